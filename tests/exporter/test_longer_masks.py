"""A mask that is longer than the attention, of which a module takes the first columns, is written with as many."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from running import ON_ORT, distance, on_openvino, on_ort, on_reference

from attnport.artifacts import IOContract
from attnport.dims import Dim, TensorSpec
from attnport.exporter.capture import capture
from attnport.exporter.targets import base

X = TensorSpec("x", "float32", ("batch", 2, "seq", 8))
SIZES = {"batch": 2, "seq": 5, "longest": 41}


class Sliced(torch.nn.Module):
    def forward(self, x: Any, mask: Any) -> Any:
        keep = mask[:, None, None, : x.shape[2]] != 0
        return torch.nn.functional.scaled_dot_product_attention(x, x, x, attn_mask=keep)


class Indexed(torch.nn.Module):
    def forward(self, x: Any, mask: Any) -> Any:
        keep = mask[torch.arange(x.shape[0])[:, None, None, None], torch.arange(x.shape[2])[None, None, None]] != 0
        return torch.nn.functional.scaled_dot_product_attention(x, x, x, attn_mask=keep)


@pytest.mark.parametrize("module", [Sliced(), Indexed()], ids=["sliced", "indexed"])
@pytest.mark.parametrize("length", ["longest", 64])
def test_the_first_columns_are_taken_in_every_form(module: torch.nn.Module, length: str | int) -> None:
    mask = TensorSpec("mask", "int64", ("batch", length), high=2)
    dims = (Dim("batch", 1, 2, 4), Dim("seq", 1, 8, 40), Dim("longest", 40, 50, 64))
    named = tuple(dim for dim in dims if dim.name in (*X.dims, length))
    found = capture(module.eval(), IOContract((X, mask), (TensorSpec("y", X.dtype, X.dims),), named))
    feeds: dict[str, Any] = {"x": np.random.default_rng(0).standard_normal(X.shape(SIZES)).astype(np.float32)}
    feeds["mask"] = np.ones(mask.shape(SIZES), np.int64)
    feeds["mask"][1, 3:] = 0
    with torch.no_grad():
        expected = module(**{name: torch.from_numpy(array) for name, array in feeds.items()}).numpy()
    for target in (*ON_ORT, "openvino", "tensorrt"):
        result = base.get(target).lower(found.model.clone(), found.attentions, plan="fp32")
        assert set(result.forms) == {"module"}
        run = on_ort if target in ON_ORT else on_openvino if target == "openvino" else on_reference
        assert distance(run(result.model)(feeds), [expected]) < 2e-5, target
