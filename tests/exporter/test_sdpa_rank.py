"""scaled_dot_product_attention over more leading axes than two: exported, read, and computing what the module does."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import torch
from running import on_ort
from torch import nn
from torch.nn.functional import scaled_dot_product_attention as sdpa

from attnport.artifacts import IOContract
from attnport.dims import Dim, TensorSpec
from attnport.errors import ExportError
from attnport.exporter.capture import capture
from attnport.exporter.targets import base
from attnport.masks import MaskSpec

ATTEND = {
    "none": lambda h, mask: sdpa(h, h, h),
    "padding": lambda h, mask: sdpa(h, h, h, attn_mask=mask.bool()[:, :, None, None, :]),
    "causal": lambda h, mask: sdpa(h, h, h, is_causal=True),
    "explicit": lambda h, mask: sdpa(h, h, h, attn_mask=torch.eye(h.shape[-2], dtype=torch.bool)),
}
CONTRACT = IOContract(
    (TensorSpec("x", "float32", ("batch", "chunk", 6, 16)), TensorSpec("mask", "int64", ("batch", "chunk", 6))),
    (TensorSpec("y", "float32", ("batch", "chunk", 4, 6, 4)),),
    (Dim("batch", 1, 2, 4), Dim("chunk", 1, 3, 9)),
    (MaskSpec(("padding",), "mask"),),
)


class Chunks(nn.Module):
    """Attention within chunks `[B,C,H,W,D]`."""

    def __init__(self, attend: Any) -> None:
        super().__init__()
        self.attend = attend

    def forward(self, x: Any, mask: Any) -> Any:
        return self.attend(x.unflatten(-1, (4, 4)).transpose(2, 3), mask)


@pytest.mark.parametrize("kind", ATTEND)
def test_it_computes_what_the_module_computes(kind: str) -> None:
    module = Chunks(ATTEND[kind]).eval()
    found = capture(module, CONTRACT)
    assert [each.call for each in found.attentions] == ["scaled_dot_product_attention"]
    for target in ("onnx", "onnx_18"):
        model = ir.from_proto(ir.to_proto(found.model))
        lowered = base.get(target).lower(model, found.attentions, masks=CONTRACT.masks, plan="fp32")
        assert lowered.masks["module"] == {"explicit": "causal+window"}.get(kind, kind)
        run = on_ort(lowered.model)
        for batch, chunk in ((2, 3), (1, 1), (3, 5)):
            x = np.random.default_rng(chunk).standard_normal((batch, chunk, 6, 16)).astype(np.float32)
            mask = np.ones((batch, chunk, 6), np.int64)
            mask[..., 4:] = 0
            expected = module(torch.from_numpy(x), torch.from_numpy(mask)).numpy()
            assert np.abs(run({"x": x, "mask": mask})[0] - expected).max() < 1e-5


def test_leading_axes_that_broadcast_are_left_to_the_exporter_which_says_so() -> None:
    def attend(h: Any, mask: Any) -> Any:
        return sdpa(h, h[:, :1].expand_as(h)[:, :1], h[:, :1])

    with pytest.raises(ExportError):
        capture(Chunks(attend).eval(), CONTRACT)


BROADCAST = {
    "over queries": lambda keep: keep.bool()[:, None, None, :],
    "over keys": lambda keep: keep.bool()[:, None, :, None],
    "a bias": lambda keep: (keep[:, None, None, :] - 1.0) * 1e4,
    "of two axes": lambda keep: keep.bool()[:1],
}


@pytest.mark.parametrize("name", BROADCAST)
def test_onnx_runtime_runs_a_mask_that_broadcasts(name: str) -> None:
    class Masked(nn.Module):
        def forward(self, x: Any, mask: Any) -> Any:
            h = x.unflatten(-1, (2, 8)).transpose(1, 2)
            return sdpa(h, h, h, attn_mask=BROADCAST[name](mask))

    io = IOContract(
        (TensorSpec("x", "float32", ("batch", "seq", 16)), TensorSpec("mask", "int64", ("batch", "seq"))),
        (TensorSpec("y", "float32", ("batch", 2, "seq", 8)),),
        (Dim("batch", 1, 2, 4), Dim("seq", 1, 3, 9)),
    )
    module = Masked().eval()
    run = on_ort(capture(module, io).model)
    for batch, seq in ((2, 3), (1, 1), (3, 7)):
        x, mask = torch.randn(batch, seq, 16), torch.ones(batch, seq, dtype=torch.int64)
        mask[:, 2:] = 0
        if name == "over keys":
            mask[:] = 1
        expected = module(x, mask).numpy()
        found = run({"x": x.numpy(), "mask": mask.numpy()})[0]
        assert np.abs(found - expected).max() < 1e-6


class OneHead(nn.Module):
    """Keys and values of one head, which torch broadcasts to those of the queries."""

    def forward(self, x: Any, mask: Any) -> Any:
        q = x.unflatten(-1, (4, 4)).transpose(1, 2)
        key = x[..., :4].unsqueeze(1)
        return sdpa(q, key, key, attn_mask=mask.bool()[:, None, None, :])


def test_one_head_of_keys_for_all_queries_is_exported_as_grouped_heads() -> None:
    contract = IOContract(
        (TensorSpec("x", "float32", ("batch", "seq", 16)), TensorSpec("mask", "int64", ("batch", "seq"))),
        (TensorSpec("y", "float32", ("batch", 4, "seq", 4)),),
        (Dim("batch", 1, 2, 4), Dim("seq", 1, 3, 9)),
        (MaskSpec(("padding",), "mask"),),
    )
    module = OneHead().eval()
    found = capture(module, contract)
    feeds = {"x": torch.randn(2, 7, 16), "mask": torch.ones(2, 7, dtype=torch.int64)}
    feeds["mask"][1, 4:] = 0
    got = on_ort(found.model)({name: feed.numpy() for name, feed in feeds.items()})
    np.testing.assert_allclose(got[0], module(**feeds).numpy(), rtol=1e-4, atol=1e-5)
