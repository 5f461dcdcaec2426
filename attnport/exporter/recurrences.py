"""Recurrences of transformers' models as scans, while they are traced.

Without kernels of their own, transformers runs state spaces (Mamba) and the gated delta rule (Qwen3-Next) in Python
loops over the sequence or over chunks of it. A trace unrolls such a loop, which freezes the sequence. torch's `scan`
becomes the `Scan` of ONNX (https://github.com/pytorch/pytorch/pull/156217), with a step for each position.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


@contextlib.contextmanager
def scanned() -> Iterator[None]:
    """Replaces the loops in all models of transformers that are loaded, and restores them afterwards."""
    written: dict[str, Callable[..., Any]] = {
        "mamba_selective_scan": selective_scan,
        "torch_chunk_gated_delta_rule": gated_delta_rule,
    }
    models = [module for name, module in list(sys.modules.items()) if name.startswith("transformers.models.")]
    before = [(vars(model), name, vars(model)[name]) for model in models for name in written if name in vars(model)]
    try:
        for scope, name, _ in before:
            scope[name] = written[name]
        yield
    finally:
        for scope, name, loop in before:
            scope[name] = loop


def selective_scan(
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
    import torch
    from torch.nn import functional

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


def gated_delta_rule(
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
    """`h = exp(g) h + k (v - k h) beta`, `y = q h`, of `[B,S,H,D]` (https://arxiv.org/abs/2412.06464)."""
    import torch

    dtype, several = query.dtype, value.shape[2] // key.shape[2]
    if several > 1:
        query, key = (one.repeat_interleave(several, dim=2) for one in (query, key))
    q, k, v, gate, rate = (one.movedim(1, 0).to(torch.float32) for one in (query, key, value, g, beta))
    if use_qk_l2norm_in_kernel:
        q, k = (one * torch.rsqrt((one * one).sum(-1, keepdim=True) + 1e-6) for one in (q, k))
    q = q * q.shape[-1] ** -0.5

    def step(state: torch.Tensor, at: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, torch.Tensor]:
        q_BHD, k_BHD, v_BHD, decay_BH, rate_BH = at
        kept = state * decay_BH[..., None, None]
        change = (v_BHD - (kept * k_BHD[..., None]).sum(-2)) * rate_BH[..., None]
        following = kept + k_BHD[..., None] * change[..., None, :]
        return following, (following * q_BHD[..., None]).sum(-2)

    start = initial_state
    if start is None:
        start = torch.zeros_like(k[0][..., None] * v[0][..., None, :])
    last, found = _scan(step, start.to(torch.float32), (q, k, v, gate.exp(), rate))
    return found.movedim(0, 1).to(dtype), last if output_final_state else None


def _scan(step: Callable[..., Any], start: torch.Tensor, over: tuple[torch.Tensor, ...]) -> Any:
    from torch._higher_order_ops.scan import scan

    def apart(state: torch.Tensor, at: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, torch.Tensor]:
        following, found = step(state, at)
        return following.clone(), found  # a scan refuses outputs that share memory

    return scan(apart, start, over)
