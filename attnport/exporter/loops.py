"""Loops of transformers' models that a trace cannot follow, replaced while they are traced: recurrences and experts.

Without kernels of their own, transformers runs state spaces (Mamba) and the gated delta rule (Qwen3-Next) in Python
loops over the sequence or over chunks of it. A trace unrolls such a loop, which freezes the sequence. torch's `scan`
becomes the `Scan` of ONNX (https://github.com/pytorch/pytorch/issues/151327), with a step for each position.

The loop of experts is over those that were chosen, which a trace cannot know. Most models have a way that can be traced
(see `patching.traceable`). In those that have but one, it is over all experts here, each with the rows that chose it,
of which there may be none.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch._higher_order_ops.scan import scan
from torch.nn import functional

from attnport.patches import Patch


def scanned() -> tuple[Patch, ...]:
    """Patches that replace the recurrences in all models of transformers that are loaded."""
    written: dict[str, Callable[..., Any]] = {
        "mamba_selective_scan": _selective_scan,
        "torch_chunk_gated_delta_rule": _gated_delta_rule,
        "chunk_kimi_delta_attention": _gated_delta_rule,
        "RecurrentGemmaRglru._rnn_scan": _linear_recurrence,
        "rwkv_linear_attention": _weighted_past,
        "MiniMaxLightningAttention.forward": _lightning_attention,
    }
    return _replaced(written)


def all_experts() -> tuple[Patch, ...]:
    """Patches that replace the loops over experts in all models of transformers that are loaded."""
    written: dict[str, Callable[..., Any]] = {
        "SwitchTransformersExperts.forward": _switch_transformers,
        "NllbMoeExperts.forward": _nllb_moe,
        "DbrxExperts.forward": _dbrx,
        "LongcatFlashExperts.forward": _longcat_flash,
        "Step3p7Experts.forward": _step3p7,
    }
    return _replaced(written)


def _replaced(written: dict[str, Callable[..., Any]]) -> tuple[Patch, ...]:
    """Patches that replace functions and methods, by name, in all models of transformers that are loaded."""
    models = [module for name, module in list(sys.modules.items()) if name.startswith("transformers.models.")]
    patches = []
    for model in models:
        for path in written:
            owner, _, name = path.rpartition(".")
            scope = vars(model).get(owner) if owner else model
            if scope is not None and name in vars(scope):
                patches.append(Patch(scope, name, written[path]))
    return tuple(patches)


def _selective_scan(
    hidden_states: torch.Tensor,
    dt: torch.Tensor,
    A: torch.Tensor,
    B: torch.Tensor,
    C: torch.Tensor,
    D: torch.Tensor | None = None,
    z: torch.Tensor | None = None,
    delta_bias: torch.Tensor | None = None,
    delta_softplus: bool = False,
    return_last_state: bool = False,
    **others: Any,
) -> Any:
    """Mamba's state space: `h = exp(A dt) h + B dt x`, `y = C h + D x`, from `x` and `dt` of `[B,E,S]`."""
    if delta_bias is not None:
        dt = dt + delta_bias.to(dt.dtype)[..., None]
    if delta_softplus:
        dt = functional.softplus(dt)
    decay_BESN = torch.exp(A[None, :, None, :] * dt[..., None])
    added_BESN = dt[..., None] * B.transpose(1, 2)[:, None] * hidden_states[..., None]

    def step(state: torch.Tensor, at: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, torch.Tensor]:
        decay, added, read = at
        following = decay * state + added
        return following, (following @ read.unsqueeze(-1))[..., 0]

    start = torch.zeros_like(decay_BESN[:, :, 0])
    last, found = _scan(step, start, (decay_BESN.movedim(2, 0), added_BESN.movedim(2, 0), C.movedim(2, 0)))
    result = found.movedim(0, -1)
    if D is not None:
        result = result + hidden_states * D[None, :, None]
    if z is not None:
        result = result * functional.silu(z)
    return (result, last) if return_last_state else result


def _gated_delta_rule(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    chunk_size: int = 64,
    initial_state: torch.Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    **others: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """`h = exp(g) h + k (v - k h) beta`, `y = q h`, of `[B,S,H,D]` (https://arxiv.org/abs/2412.06464).

    The gate has one number for each head, or, as Kimi's, one for each of the head's key dims
    (https://arxiv.org/abs/2510.26692).
    """
    dtype, several = query.dtype, value.shape[2] // key.shape[2]
    if several > 1:
        query, key = (one.repeat_interleave(several, dim=2) for one in (query, key))
    q, k, v, gate, rate = (one.movedim(1, 0).to(torch.float32) for one in (query, key, value, g, beta))
    if use_qk_l2norm_in_kernel:
        q, k = (one * torch.rsqrt((one * one).sum(-1, keepdim=True) + 1e-6) for one in (q, k))
    q = q * q.shape[-1] ** -0.5

    def step(state: torch.Tensor, at: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, torch.Tensor]:
        q_BHD, k_BHD, v_BHD, decay_BHD, rate_BH = at
        kept = state * decay_BHD[..., None]
        change = (v_BHD - (kept * k_BHD[..., None]).sum(-2)) * rate_BH[..., None]
        following = kept + k_BHD[..., None] * change[..., None, :]
        return following, (following * q_BHD[..., None]).sum(-2)

    start = initial_state
    if start is None:
        start = torch.zeros_like(k[0][..., None] * v[0][..., None, :])
    decay = gate.exp() if gate.ndim == k.ndim else gate.exp()[..., None]
    last, found = _scan(step, start.to(torch.float32), (q, k, v, decay, rate))
    return found.movedim(0, 1).to(dtype), last if output_final_state else None


def _linear_recurrence(
    self: Any,
    hidden_states: torch.Tensor,
    recurrent_gate: torch.Tensor,
    reset: torch.Tensor,
    recurrent_states: torch.Tensor | None,
    acc_dtype: Any = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Griffin's `h = a h + x`, of `[B,S,E]` (https://arxiv.org/abs/2402.19427)."""
    dtype = acc_dtype or torch.float32
    gate, x = (one.movedim(1, 0).to(dtype) for one in (recurrent_gate * ~reset, hidden_states))

    def step(state: torch.Tensor, at: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, torch.Tensor]:
        following = at[0] * state + at[1]
        return following, following + 0

    start = torch.zeros_like(x[0]) if recurrent_states is None else recurrent_states.to(dtype)
    last, found = _scan(step, start, (gate, x))
    return found.movedim(0, 1).to(hidden_states.dtype), last


def _weighted_past(
    time_decay: torch.Tensor,
    time_first: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    state: Any = None,
    return_state: bool = False,
) -> tuple[torch.Tensor, Any]:
    """RWKV's mean of all values so far, weighted by `exp(key)` and age, of `[B,S,E]` (https://arxiv.org/abs/2305.13048).

    The state is a numerator, a denominator, and the exponent that was taken out of both.
    """
    fall = -torch.exp(time_decay)

    def step(state: Any, at: tuple[torch.Tensor, ...]) -> tuple[Any, torch.Tensor]:
        above, below, most = state
        k, v = at
        here = torch.maximum(most, k + time_first)
        old, new = torch.exp(most - here), torch.exp(k + time_first - here)
        found = (old * above + new * v) / (old * below + new)
        following = torch.maximum(most + fall, k)
        old, new = torch.exp(most + fall - following), torch.exp(k - following)
        return (old * above + new * v, old * below + new, following), found

    zero = torch.zeros_like(key[:, 0], dtype=torch.float32)
    start = (zero, zero + 0, zero - 1e38) if state is None else tuple(state)
    last, found = _scan(step, start, (key.movedim(1, 0).float(), value.movedim(1, 0)))
    kept = list(last) if return_state or state is not None else state
    return found.movedim(0, 1).to(key.dtype), kept


def _lightning_attention(
    self: Any,
    hidden_states: torch.Tensor,
    position_embeddings: Any,
    attention_mask: torch.Tensor | None,
    past_key_values: Any = None,
    **others: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """MiniMax's `h = exp(-slope) h + k v`, `y = q h`, of `[B,S,E]` (https://arxiv.org/abs/2401.04658)."""
    batch, length = hidden_states.shape[:2]
    qkv = self.act_fn(self.qkv_proj(hidden_states))
    qkv = sys.modules[type(self).__module__].apply_mask_to_padding_states(qkv, attention_mask)
    qkv_SBHD = qkv.reshape(batch, length, self.num_attention_heads, -1).movedim(1, 0)
    q, k, v = qkv_SBHD.split(self.head_dim, dim=-1)
    decay = torch.exp(-self.slope_rate)[None].expand(length, -1, -1, -1)

    def step(state: torch.Tensor, at: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, torch.Tensor]:
        q_BHD, k_BHD, v_BHD, decay_H11 = at
        following = decay_H11 * state + k_BHD[..., None] * v_BHD[..., None, :]
        return following, (q_BHD[..., None] * following).sum(-2)

    start = torch.zeros_like(k[0][..., None] * v[0][..., None, :])
    if past_key_values is not None:
        kept = past_key_values.get_linear_cache(self.layer_idx)
        start = start if kept is None else kept
    last, found = _scan(step, start, (q, k, v, decay))
    if past_key_values is not None:
        past_key_values.set_linear_cache(self.layer_idx, last)
    joined = self.norm(found.movedim(0, 1).reshape(batch, length, -1))
    return self.out_proj(torch.sigmoid(self.output_gate(hidden_states)) * joined), last


def _scan(step: Callable[..., Any], start: Any, over: tuple[torch.Tensor, ...]) -> Any:
    if isinstance(over[0].shape[0], int) and over[0].shape[0] == 1:  # one token is no loop
        last, only = step(start, tuple(one[0] for one in over))
        return last, only[None]

    def apart(state: Any, at: tuple[torch.Tensor, ...]) -> tuple[Any, torch.Tensor]:
        following, found = step(state, at)  # a scan refuses outputs that share memory
        if isinstance(following, torch.Tensor):
            return following.clone(), found
        return tuple(one.clone() for one in following), found

    return scan(apart, start, over)


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
    def run(at: int, rows: torch.Tensor) -> Any:
        if at >= self.num_routed_experts or self.gate_up_proj is None:
            return self.identity_expert(rows)
        gate, up = functional.linear(rows, self.gate_up_proj[at]).chunk(2, dim=-1)
        return functional.linear(self.act_fn(gate) * up, self.down_proj[at])

    return _summed(run, hidden_states, _chosen(top_k_index, self.total_experts), top_k_weights)


def _step3p7(
    self: Any, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
) -> torch.Tensor:
    def run(at: int, rows: torch.Tensor) -> Any:
        gated = self._apply_gate(functional.linear(rows, self.gate_up_proj[at]))
        return functional.linear(gated, self.down_proj[at])

    return _summed(run, hidden_states, _chosen(top_k_index, self.num_experts), top_k_weights)


def _chosen(index: torch.Tensor, experts: int) -> torch.Tensor:
    """Which rows chose which experts, `[T,K,experts]`, of `[T,K]` indices; one beyond the last is none."""
    return index[..., None] == torch.arange(experts, device=index.device)


def _summed(
    run: Callable[[int, torch.Tensor], Any], rows: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor
) -> torch.Tensor:
    """The sum of the experts that each row of `[T,D]` chose, times its weights `[T,K]`."""
    result = torch.zeros_like(rows)
    for at in range(chosen.shape[-1]):
        row, choice = torch.where(chosen[..., at])
        found = run(at, rows[row]) * weights[row, choice, None]
        result = result.index_add(0, row, found.to(result.dtype))
    return result
