"""Loops of transformers' models over the sequence are exported as scans, right at lengths that were not traced."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from representatives import representatives
from running import on_ort
from torch import nn

from attnport.artifacts import IOContract
from attnport.dims import Dim, TensorSpec
from attnport.exporter.capture import capture
from attnport.exporter.loops import scanned
from attnport.patches import patched

transformers: Any = pytest.importorskip("transformers")
modeling_mamba: Any = pytest.importorskip("transformers.models.mamba.modeling_mamba")
modeling_recurrent_gemma: Any = pytest.importorskip("transformers.models.recurrent_gemma.modeling_recurrent_gemma")
modeling_minimax: Any = pytest.importorskip("transformers.models.minimax.modeling_minimax")
modeling_rwkv: Any = pytest.importorskip("transformers.models.rwkv.modeling_rwkv")
modeling_qwen3_next: Any = pytest.importorskip("transformers.models.qwen3_next.modeling_qwen3_next")
modeling_kimi_linear: Any = pytest.importorskip("transformers.models.kimi_linear.modeling_kimi_linear")

DIMS = (Dim("batch", 1, 2, 4), Dim("seq", 1, 5, 200))


class StateSpace(nn.Module):
    """Mamba's scan, with everything computed from the input."""

    def forward(self, x: Any) -> Any:
        x_BES = x.transpose(1, 2)
        A = -torch.arange(1.0, 13.0).view(4, 3)
        dt = nn.functional.softplus(x_BES)
        return modeling_mamba.mamba_selective_scan(
            x_BES, dt, A, x_BES[:, :3], x_BES[:, 1:], D=torch.ones(4), z=x_BES, delta_bias=torch.ones(4) * 0.1
        )


class DeltaRule(nn.Module):
    """Qwen3-Next's rule, with two heads of values for each of keys."""

    def forward(self, x: Any) -> Any:
        heads = torch.stack([x, x.flip(-1)], dim=2)
        values = torch.cat([heads, heads * 0.5], dim=2)
        gate, rate = -values.abs().mean(-1), values.mean(-1).sigmoid()
        found, _ = modeling_qwen3_next.torch_chunk_gated_delta_rule(
            heads, heads.roll(1, -1), values, g=gate, beta=rate, use_qk_l2norm_in_kernel=True
        )
        return found


class GatedByKey(nn.Module):
    """Kimi's rule, with a gate for each dim of a key."""

    def forward(self, x: Any) -> Any:
        heads = torch.stack([x, x.flip(-1)], dim=2)
        gate, rate = -heads.roll(2, -1).abs(), heads.mean(-1).sigmoid()
        found, _ = modeling_kimi_linear.chunk_kimi_delta_attention(
            heads, heads.roll(1, -1), heads * 0.5, g=gate, beta=rate, use_qk_l2norm_in_kernel=True
        )
        return found


class LinearRecurrence(nn.Module):
    """Griffin's recurrence, which starts again where a document does."""

    def forward(self, x: Any) -> Any:
        reset = torch.zeros_like(x[..., :1], dtype=torch.bool)
        found, _ = modeling_recurrent_gemma.RecurrentGemmaRglru._rnn_scan(None, x, x.sigmoid(), reset, None)
        return found


class WeightedPast(nn.Module):
    """RWKV's mean of the past."""

    def forward(self, x: Any) -> Any:
        decay, first = torch.linspace(-1, 1, 4), torch.linspace(1, -1, 4)
        found, _ = modeling_rwkv.rwkv_linear_attention(decay, first, x, x.flip(-1))
        return found


class Lightning(nn.Module):
    """MiniMax's attention, in blocks of 16."""

    def __init__(self) -> None:
        super().__init__()
        config = transformers.MiniMaxConfig(
            hidden_size=4, num_attention_heads=2, num_key_value_heads=2, head_dim=4, num_hidden_layers=2, block_size=16
        )
        torch.manual_seed(0)
        self.inner = modeling_minimax.MiniMaxLightningAttention(config, 0)

    def forward(self, x: Any) -> Any:
        return self.inner(x, None, torch.ones(x.shape[:2], dtype=torch.int64))[0]


@pytest.mark.parametrize(
    ("kind", "output"),
    representatives(
        [
            (StateSpace, (4, "seq")),
            (DeltaRule, ("seq", 4, 4)),
            (GatedByKey, ("seq", 2, 4)),
            (LinearRecurrence, ("seq", 4)),
            (WeightedPast, ("seq", 4)),
            (Lightning, ("seq", 4)),
        ],
        [(StateSpace, (4, "seq")), (DeltaRule, ("seq", 4, 4))],
    ),
)
def test_a_loop_over_the_sequence_is_a_scan(kind: type[nn.Module], output: tuple[Any, ...]) -> None:
    contract = IOContract(
        (TensorSpec("x", "float32", ("batch", "seq", 4)),), (TensorSpec("y", "float32", ("batch", *output)),), DIMS
    )
    module = kind().eval()
    run = on_ort(capture(module, contract).model)
    for batch, length in ((2, 5), (1, 1), (3, 70)):  # beyond a chunk, which is of 64
        x = torch.randn(batch, length, 4, generator=torch.Generator().manual_seed(length))
        with torch.no_grad():
            expected = module(x).numpy()
        np.testing.assert_allclose(run({"x": x.numpy()})[0], expected, rtol=1e-3, atol=1e-5)


def test_the_loops_are_as_before_after_a_trace() -> None:
    before = modeling_mamba.mamba_selective_scan
    with patched(scanned):
        assert modeling_mamba.mamba_selective_scan is not before
    assert modeling_mamba.mamba_selective_scan is before
