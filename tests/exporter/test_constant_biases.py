"""Biases that no input changes, as positions in a window, are constants of an engine's form; one key has no kernel."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from running import distance, on_reference

from attnport.artifacts import Evidence, IOContract
from attnport.dims import Dim, TensorSpec
from attnport.exporter import storage
from attnport.exporter.capture import capture
from attnport.exporter.engine.build import build_engine
from attnport.exporter.engine.evidence import prove, read_engine_text
from attnport.exporter.targets import base, tensorrt

HEADS, WINDOW, DEPTH = 6, 7, 16
X = TensorSpec("x", "float32", ("windows", WINDOW**2, HEADS * DEPTH))
IO = IOContract((X,), (TensorSpec("y", X.dtype, X.dims),), (Dim("windows", 1, 4, 64),))


class Window(torch.nn.Module):
    """An attention of Swin: each pair of positions in a window has a bias for each head."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(HEADS * DEPTH, HEADS * DEPTH) for _ in "qkv")
        self.table = torch.nn.Parameter(torch.randn((2 * WINDOW - 1) ** 2, HEADS))
        places = torch.stack(torch.meshgrid(*[torch.arange(WINDOW)] * 2, indexing="ij")).flatten(1)
        away = (places[:, :, None] - places[:, None]) + WINDOW - 1
        self.register_buffer("index", away[0] * (2 * WINDOW - 1) + away[1])

    def forward(self, x: Any) -> Any:
        q, k, v = (layer(x).unflatten(-1, (HEADS, DEPTH)).transpose(1, 2) for layer in self.layers)
        bias = self.table[self.index.view(-1)].view(WINDOW**2, WINDOW**2, -1).permute(2, 0, 1).unsqueeze(0)
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=bias).transpose(1, 2).flatten(2)


def bias_is_stored(model: Any) -> bool:
    (added,) = (node.inputs[1] for node in model.graph if node.name.endswith("/bias"))
    return added.const_value is not None


def test_it_is_fused_and_gives_the_modules_numbers(tmp_path: Path) -> None:
    pytest.importorskip("tensorrt_rtx")
    module = Window().eval()
    found = capture(module, IO)
    exact = base.get("tensorrt_rtx").lower(found.model.clone(), found.attentions, plan="fp32").model
    x = np.random.default_rng(0).standard_normal(X.shape({"windows": 3})).astype(np.float32)
    with torch.no_grad():
        assert distance(on_reference(exact)({"x": x}), [module(torch.from_numpy(x)).numpy()]) < 2e-5
    low = base.get("tensorrt_rtx").lower(found.model, found.attentions, plan="fp16")
    assert bias_is_stored(low.model)
    storage.save_form(low.model, tmp_path / "form.onnx", "form.bin")
    build_engine("tensorrt_rtx", tmp_path / "form.onnx", IO, tmp_path / "form.engine", plan="fp16")
    (anchors,) = low.anchors.values()
    assert isinstance(prove(read_engine_text(tmp_path / "form.engine"), anchors, 1), Evidence)


def test_a_larger_one_is_not_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensorrt, "MOST_CONSTANT", HEADS * WINDOW**4 - 1)
    found = capture(Window().eval(), IO)
    low = base.get("tensorrt_rtx").lower(found.model, found.attentions, plan="fp16")
    assert not bias_is_stored(low.model)


class Given(torch.nn.Module):
    def forward(self, x: Any, bias: Any) -> Any:
        return torch.nn.functional.scaled_dot_product_attention(x, x, x, attn_mask=bias)


def test_one_that_is_an_input_itself_is_added_as_it_is() -> None:
    x, bias = (TensorSpec(name, "float32", dims) for name, dims in (("x", (2, 4, 9, 16)), ("bias", ("n", 1, 9, 9))))
    io = IOContract((x, bias), (TensorSpec("y", "float32", x.dims),), (Dim("n", 1, 2, 2),))
    found = capture(Given(), io)
    low = base.get("tensorrt_rtx").lower(found.model, found.attentions, plan="fp16")
    assert list(low.forms) == [attention.name for attention in found.attentions], low.notes


def test_one_that_is_drawn_anew_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    found = capture(Window().eval(), IO)
    monkeypatch.setattr(tensorrt, "_DRAWS", ("Unsqueeze",))
    low = base.get("tensorrt_rtx").lower(found.model, found.attentions, plan="fp16")
    assert not bias_is_stored(low.model)


def test_an_attention_to_a_single_key_says_why_it_is_not_fused() -> None:
    x, key = TensorSpec("x", "float32", ("batch", 2, 9, 16)), TensorSpec("key", "float32", ("batch", 2, 1, 16))
    io = IOContract((x, key), (TensorSpec("y", "float32", x.dims),), (Dim("batch", 1, 2, 4),))

    class ToOne(torch.nn.Module):
        def forward(self, x: Any, key: Any) -> Any:
            return torch.nn.functional.scaled_dot_product_attention(x, key, key)

    found = capture(ToOne().eval(), io)
    low = base.get("tensorrt_rtx").lower(found.model, found.attentions, plan="fp16")
    assert list(low.notes.values()) == ["a single key, whose weight is always 1: there is no fused kernel for it"]
