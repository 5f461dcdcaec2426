"""Dims with a step are traced as multiples of it, and the graph that comes back takes the inputs as they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
import torch
from torch import nn

from attnport.artifacts import IOContract
from attnport.dims import Dim, TensorSpec
from attnport.exporter import capture
from attnport.exporter.multiples import joining, split, steps_of
from attnport.exporter.output_sizes import traced_outputs
from attnport.exporter.patching import quiet
from attnport.exporter.storage import save_exported

IMAGE = TensorSpec("image", "float32", ("batch", 4, "height", "width"))
SIDES = (Dim("batch", 1, 4, 16), Dim("height", 8, 32, 96, 8), Dim("width", 8, 48, 96, 8))


class OneWay(nn.Module):
    """As MaxViT of timm: two strides of 2, and beside them one of 4; torch cannot tell that both leave as many rows."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = (nn.Conv2d(4, 4, 3, 2, 1) for _ in range(2))
        self.beside = nn.Conv2d(4, 4, 1, 4)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.second(self.first(image)) + self.beside(image)
        return found


class Patches(nn.Module):
    """As einops: patches by a view, whose number the code computes."""

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        batch, depth, height, width = image.shape
        rows, columns = height // 8, width // 8
        assert rows * 8 == height
        assert columns * 8 == width
        x = image.view(batch, depth, rows, 8, columns, 8).permute(0, 2, 4, 1, 3, 5)
        x = x.reshape(batch, rows * columns, -1)
        return (x @ x.mT / x.shape[-1]).softmax(-1) @ x + width


class Whole(nn.Module):
    """The sizes themselves, and one more row than there are pixels."""

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x = image.flatten(2).mT
        return torch.cat([x.mean(1, keepdim=True), x], 1) * image.shape[2]


def contract_of(*inputs: TensorSpec, dims: tuple[Dim, ...] = SIDES) -> IOContract:
    return IOContract(inputs, (TensorSpec("output", "float32", (1,)),), dims, ())


def program_of(module: nn.Module, contract: IOContract) -> torch.export.ExportedProgram:
    feeds = capture.example_tensors(contract, capture.traced_sizes(contract))
    with quiet():
        program, _ = capture.trace(module.eval(), contract, feeds)
    return program


@pytest.mark.parametrize("kind", [OneWay, Patches, Whole])
def test_the_graph_is_the_module_at_every_multiple(
    kind: type[nn.Module], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capture, "_retraced", lambda *args, **options: None)  # the first way is enough
    module: Any = kind().eval()
    found = capture.capture(module, contract_of(IMAGE), observed=True)
    save_exported(found.model, tmp_path / "model.onnx", "weights.bin")
    session = ort.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    assert session.get_inputs()[0].shape == ["batch", 4, "height", "width"]
    for shape in ((2, 4, 32, 24), (1, 4, 8, 48), (3, 4, 72, 8)):
        x = torch.randn(shape)
        with torch.no_grad():
            expected = module(x).numpy()
        np.testing.assert_allclose(session.run(None, {"image": x.numpy()})[0], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (OneWay, ("batch", 4, "height//4", "width//4")),
        (Patches, ("batch", "(height//8)*(width//8)", 256)),
        (Whole, ("batch", "height*width+1", 4)),
    ],
)
def test_sizes_of_outputs_are_those_of_the_dims(kind: type[nn.Module], expected: tuple[Any, ...]) -> None:
    contract = contract_of(IMAGE)
    program = program_of(kind(), contract)
    rank = len(expected)
    contract = IOContract((IMAGE,), (TensorSpec("output", "float32", ("?",) * rank),), SIDES, ())
    (output,) = traced_outputs(program, contract)
    for sizes in ({"batch": 2, "height": 32, "width": 24}, {"batch": 1, "height": 8, "width": 96}):
        assert output.shape(sizes) == TensorSpec("output", "float32", expected).shape(sizes)
    assert "//1" not in str(output)


def test_a_dim_of_two_inputs_is_one_size() -> None:
    class Two(nn.Module):
        def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            return (x * mask[..., None]).view(len(x), -1, 8, 4).sum(2)

    inputs = (TensorSpec("x", "float32", ("batch", "seq", 4)), TensorSpec("mask", "float32", ("batch", "seq")))
    contract = contract_of(*inputs, dims=(Dim("batch", 1, 4, 16), Dim("seq", 8, 64, 512, 8)))
    program = program_of(Two(), contract)
    shapes = [node.meta["val"].shape for node in program.graph.nodes if node.op == "placeholder"]
    assert [len(shape) for shape in shapes] == [3, 2]
    assert str(shapes[0][1]) == str(shapes[1][1])
    x, mask = torch.randn(3, 24, 4), torch.randint(0, 2, (3, 24)).float()
    (got,) = torch.fx.Interpreter(program.graph_module).run(x, mask)
    torch.testing.assert_close(got, Two()(x, mask))


def test_a_condition_is_told_in_the_dims_own_sizes() -> None:
    class Halves(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.sum(1) if x.shape[1] < 100 else x.sum(1) * 2

    contract = contract_of(TensorSpec("x", "float32", ("batch", "seq", 4)),
                           dims=(Dim("batch", 1, 4, 16), Dim("seq", 8, 64, 512, 8)))  # fmt: skip
    feeds = capture.example_tensors(contract, capture.traced_sizes(contract))
    with quiet():
        _, guards = capture.trace(Halves(), contract, feeds)
    assert any(guard.sizes.get("seq", 0) in range(8, 100, 8) for guard in guards), guards
    assert all(guard.sizes["seq"] % 8 == 0 for guard in guards if "seq" in guard.sizes)


def test_the_modules_own_forward_is_put_back() -> None:
    module, contract = Patches(), contract_of(IMAGE)
    feeds = {"image": torch.randn(2, 4, 16, 24)}
    steps = steps_of(contract, feeds)
    assert steps == {"image": {2: 8, 3: 8}}
    parts = split(feeds, steps)
    assert parts["image"].shape == (2, 4, 2, 8, 3, 8)
    with joining(module, steps):
        torch.testing.assert_close(module(**parts), Patches()(**feeds))
    assert "forward" not in vars(module)
