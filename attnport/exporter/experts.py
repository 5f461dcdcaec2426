"""Experts of transformers' models that have but one way to run, while they are traced.

Their loop is over the experts that were chosen, which a trace cannot know. Here it is over all of them, each with the
rows that chose it, of which there may be none. Most models have a way that can be traced (see `capture`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from attnport.exporter.recurrences import replaced
from attnport.patches import Patch

if TYPE_CHECKING:
    import torch


def all_experts() -> tuple[Patch, ...]:
    """Patches that replace the loops in all models of transformers that are loaded."""
    written: dict[str, Callable[..., Any]] = {
        "SwitchTransformersExperts.forward": _switch_transformers,
        "NllbMoeExperts.forward": _nllb_moe,
        "DbrxExperts.forward": _dbrx,
        "LongcatFlashExperts.forward": _longcat_flash,
        "Step3p7Experts.forward": _step3p7,
    }
    return replaced(written)


def _switch_transformers(
    self: Any, hidden_states: torch.Tensor, selected_experts: torch.Tensor, routing_weights: torch.Tensor
) -> torch.Tensor:
    def run(at: int, rows: torch.Tensor) -> Any:
        return self[f"expert_{at}"](rows)

    return _summed(run, hidden_states, selected_experts, routing_weights)


def _nllb_moe(
    self: Any, hidden_states: torch.Tensor, router_mask: torch.Tensor, router_probs: torch.Tensor
) -> torch.Tensor:
    def run(at: int, rows: torch.Tensor) -> Any:
        return self[f"expert_{at}"](rows) * (1 - self.moe_token_dropout)

    return _summed(run, hidden_states, _chosen(router_mask, self.num_experts), router_probs)


def _dbrx(
    self: Any, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
) -> torch.Tensor:
    w1, v1, w2 = (
        weight.view(-1, self.ffn_hidden_size, self.hidden_size) for weight in (self.mlp.w1, self.mlp.v1, self.mlp.w2)
    )

    def run(at: int, rows: torch.Tensor) -> Any:
        return self.mlp(rows, w1[at], v1[at], w2[at])

    rows = hidden_states.reshape(-1, self.hidden_size)
    found = _summed(run, rows, _chosen(top_k_index, self.num_experts), top_k_weights)
    return found.view(hidden_states.shape[0], -1, self.hidden_size)


def _longcat_flash(
    self: Any, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
) -> torch.Tensor:
    from torch.nn import functional

    def run(at: int, rows: torch.Tensor) -> Any:
        if at >= self.num_routed_experts or self.gate_up_proj is None:
            return self.identity_expert(rows)
        gate, up = functional.linear(rows, self.gate_up_proj[at]).chunk(2, dim=-1)
        return functional.linear(self.act_fn(gate) * up, self.down_proj[at])

    return _summed(run, hidden_states, _chosen(top_k_index, self.total_experts), top_k_weights)


def _step3p7(
    self: Any, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
) -> torch.Tensor:
    from torch.nn import functional

    def run(at: int, rows: torch.Tensor) -> Any:
        gated = self._apply_gate(functional.linear(rows, self.gate_up_proj[at]))
        return functional.linear(gated, self.down_proj[at])

    return _summed(run, hidden_states, _chosen(top_k_index, self.num_experts), top_k_weights)


def _chosen(index: torch.Tensor, experts: int) -> torch.Tensor:
    """Which rows chose which experts, `[T,K,experts]`, of `[T,K]` indices; one beyond the last is none."""
    import torch

    return index[..., None] == torch.arange(experts, device=index.device)


def _summed(
    run: Callable[[int, torch.Tensor], Any], rows: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor
) -> torch.Tensor:
    """The sum of the experts that each row of `[T,D]` chose, times its weights `[T,K]`."""
    import torch

    result = torch.zeros_like(rows)
    for at in range(chosen.shape[-1]):
        row, choice = torch.where(chosen[..., at])
        found = run(at, rows[row]) * weights[row, choice, None]
        result = result.index_add(0, row, found.to(result.dtype))
    return result
