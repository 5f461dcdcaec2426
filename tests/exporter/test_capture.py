"""From module to graph: what is counted, what stays dynamic, what never leaves the builder's machine."""

from __future__ import annotations

import dataclasses
import getpass
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import torch
from running import on_ort
from spellings import CASES
from spellings.case import E, X, Y, contract
from torch import nn
from torch.nn.functional import scaled_dot_product_attention as sdpa

from attnport.artifacts import IOContract
from attnport.dims import Dim, TensorSpec, distinct_sizes
from attnport.errors import ExportError
from attnport.example_values import packed
from attnport.exporter import storage
from attnport.exporter.capture import capture, example_tensors
from attnport.exporter.counting import count_attentions
from attnport.exporter.naming import MAY_BE_EMPTY, SCOPES
from attnport.masks import MaskSpec

PLAIN = contract(X)


def counted(module: nn.Module, io: IOContract = PLAIN) -> list[tuple[str, str]]:
    return [(each.name, each.call) for each in capture(module.eval(), io).attentions]


class Attend(nn.Module):
    def forward(self, x: Any) -> Any:
        return (x @ x.transpose(1, 2)).softmax(-1) @ x


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = Attend()

    def forward(self, x: Any) -> Any:
        return x + self.attention(x)


def test_attentions_are_named_by_module_and_the_second_of_one_has_a_number() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([Block(), Block()])

        def forward(self, x: Any) -> Any:
            for layer in self.layers:
                x = layer(x)
            return sdpa(x, x, x) + (x @ x.transpose(1, 2)).softmax(-1) @ x

    assert counted(Twice()) == [
        ("layers.0.attention", "softmax"),
        ("layers.1.attention", "softmax"),
        ("module", "scaled_dot_product_attention"),
        ("module#1", "softmax"),
    ]


def test_one_module_called_twice_is_two_attentions_and_both_are_found() -> None:
    from attnport.exporter.targets import base

    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = Block()

        def forward(self, x: Any) -> Any:
            return self.block(self.block(x))

    found = capture(Shared().eval(), PLAIN)
    assert len(found.attentions) == len({each.name for each in found.attentions}) == 2
    lowered = base.get("onnx").lower(found.model, found.attentions, plan="fp32")
    assert set(lowered.forms) == {each.name for each in found.attentions}


def test_a_softmax_that_reaches_no_product_is_not_counted() -> None:
    class Gate(nn.Module):
        def forward(self, x: Any) -> Any:
            return x * x.softmax(-1) + x.softmax(1).sum(1, keepdim=True)

    assert counted(Gate()) == []


@pytest.mark.parametrize("einsum", [True, False])
def test_every_spelling_of_the_product_counts(einsum: bool) -> None:
    class Spelt(nn.Module):
        def forward(self, x: Any) -> Any:
            p = torch.nn.functional.dropout((x @ x.transpose(1, 2)).softmax(-1), 0.1, self.training)
            return torch.einsum("bst,bte->bse", p, x) if einsum else torch.bmm(p, x)

    assert counted(Spelt()) == [("module", "softmax")]


def test_the_encoder_layer_of_torch_is_counted() -> None:
    layer = nn.TransformerEncoderLayer(E, 4, 32, batch_first=True)
    assert len(counted(nn.Sequential(layer), contract(TensorSpec("input", "float32", X.dims)))) == 1


def test_an_attention_in_a_branch_is_counted() -> None:
    class Branch(nn.Module):
        def forward(self, x: Any) -> Any:
            return torch.cond(x.sum() > 0, lambda y: (y @ y.transpose(1, 2)).softmax(-1) @ y, lambda y: y.clone(), (x,))

    program = torch.export.export(Branch(), (torch.ones(2, 3, E),), strict=False)
    assert [each.call for each in count_attentions(program.graph_module)] == ["softmax"]


def test_dims_have_the_contracts_names_and_no_expression_is_a_name() -> None:
    class Folded(nn.Module):
        def forward(self, x: Any) -> Any:
            y = x.reshape(x.shape[0] * x.shape[1], E) * 2
            return y.view(x.shape)

    model = capture(Folded().eval(), PLAIN).model
    names = {d.value for n in model.graph for v in n.outputs for d in v.shape or () if not isinstance(d, int)}
    assert all(name is None or name.isidentifier() for name in names)
    assert {"batch", "seq"} <= names
    assert [str(d) for d in model.graph.outputs[0].shape or ()] == ["batch", "seq", str(E)]


def test_the_file_tells_module_paths_and_nothing_of_where_it_was_made(tmp_path: Path) -> None:
    found = capture(Block().eval(), PLAIN)
    storage.save_exported(found.model, tmp_path / "model.onnx", "weights.bin")
    data = (tmp_path / "model.onnx").read_bytes()
    assert b"attention" in data
    assert any(SCOPES in node.metadata_props for node in found.model.graph)
    leaks = [b"stack_trace", b".py", b"File ", b"line ", b"site-packages", b"softmax(-1)", str(Path.cwd()).encode()]
    leaks += [str(Path.home()).encode() + b"/", str(tmp_path).encode(), b"/tmp/"]
    assert [leak for leak in leaks if leak in data] == []
    if len(getpass.getuser()) > 4:
        assert getpass.getuser().encode() not in data


def test_branches_are_stripped_as_well(tmp_path: Path) -> None:
    class Branch(nn.Module):
        def forward(self, x: Any) -> Any:
            return torch.cond(x.sum() > 0, lambda y: y.sin() + 1, lambda y: y.cos() + 2, (x,))

    found = capture(Branch().eval(), PLAIN)
    assert "If" in {node.op_type for node in found.model.graph}
    storage.save_exported(found.model, tmp_path / "model.onnx", "weights.bin")
    data = (tmp_path / "model.onnx").read_bytes()
    assert [leak for leak in (b"stack_trace", b".py", b"site-packages") if leak in data] == []


def test_a_dim_that_froze_is_named_with_its_input() -> None:
    class Frozen(nn.Module):
        def forward(self, x: Any) -> Any:
            return x + sum(at for at in range(x.shape[1]))

    froze = r"dim 'seq' of input 'x' \(axis 1\) froze .* the constant 63 \(test_capture.py, line \d+: return x \+ sum"
    with pytest.raises(ExportError, match=froze) as caught:
        capture(Frozen().eval(), PLAIN)
    assert caught.value.hint is not None
    assert "A Python loop over a size is unrolled" in caught.value.hint


def test_what_has_no_onnx_form_is_named_by_its_operator() -> None:
    class Odd(nn.Module):
        def forward(self, x: Any) -> Any:
            return torch.special.bessel_j0(x)

    with pytest.raises(ExportError, match=r"torch\.ops\.prims\.bessel_j0\.default"):
        capture(Odd().eval(), PLAIN)


def test_a_module_that_raises_and_one_of_too_many_outputs_are_export_errors() -> None:
    class Raises(nn.Module):
        def forward(self, x: Any) -> Any:
            raise ValueError("no such thing")

    class Two(nn.Module):
        def forward(self, x: Any) -> Any:
            return x, x + 1

    with pytest.raises(ExportError, match="ValueError: no such thing"):
        capture(Raises().eval(), PLAIN)
    with pytest.raises(ExportError, match=r"returns 2 tensors; 1 are declared: y=float32"):
        capture(Two().eval(), PLAIN)


def test_example_inputs_are_the_same_each_time_and_fit_the_contract() -> None:
    io = IOContract((X,), (Y,), (Dim("batch", 1, 1, 2), Dim("seq", 9, 9, 64)))
    assert distinct_sizes(io.dims) == {"batch": 2, "seq": 9}
    ids = TensorSpec("ids", "int64", ("batch", "seq"), high=3)
    mask = TensorSpec("mask", "int64", ("batch", "seq"))
    given = {"x": packed(np.arange(2.0 * E).reshape(2, 1, E))}
    io = dataclasses.replace(io, inputs=(ids, mask), masks=(MaskSpec(("padding",), "mask"),))
    first, second = (example_tensors(io, {"batch": 2, "seq": 50}) for _ in range(2))
    assert torch.equal(first["ids"], second["ids"])
    assert (int(first["ids"].min()), int(first["ids"].max())) == (0, 2)
    assert bool((first["mask"] == 1).all())
    plain = dataclasses.replace(io, inputs=(X,), masks=())
    assert example_tensors(plain, {"batch": 2, "seq": 3})["x"].shape == (2, 3, E)
    told = example_tensors(dataclasses.replace(plain, examples=given), {"batch": 3, "seq": 2})["x"]
    assert told[:, :, 0].tolist() == [[0.0, 0.0], [E, E], [0.0, 0.0]]


def test_sizes_of_many_dims_differ() -> None:
    dims = tuple(Dim(f"d{number}", 1, 64, 512) for number in range(40))
    io = IOContract((TensorSpec("x", "float32", tuple(dim.name for dim in dims)),), (), dims, (), positions="none")
    assert len(set(distinct_sizes(io.dims).values())) == len(dims)


def test_dims_that_may_be_empty_are_noted_in_the_graph() -> None:
    class Doubled(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2

    io = contract(X)
    model = capture(Doubled().eval(), dataclasses.replace(io, dims=(io.dim("batch"), Dim("seq", 0, 8, 16)))).model
    assert model.metadata_props == {MAY_BE_EMPTY: "seq"}
    assert not capture(Doubled().eval(), io).model.metadata_props


def test_flex_attention_is_refused_by_name_with_what_to_write() -> None:
    from torch.nn.attention.flex_attention import flex_attention

    class Flex(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            heads = x.unsqueeze(1)
            return flex_attention(heads, heads, heads).squeeze(1)  # type: ignore[union-attr]

    told = pytest.raises(ExportError, match=r"calls flex_attention.*test_capture.py, line \d+: return flex_attention")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch, that it is not compiled
        with told as refused:
            capture(Flex().eval(), contract(X))
    assert "scaled_dot_product_attention" in refused.value.hint


def test_scaled_dot_product_attention_stays_one_operator() -> None:
    case = CASES["padding_sdpa"]
    model: ir.Model = capture(case.module().eval(), case.io).model
    operators = [node.op_type for node in model.graph]
    assert operators.count("Attention") == 1
    assert "Softmax" not in operators


def test_a_weight_may_be_called_as_an_output_is() -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.y = nn.Parameter(torch.ones(E))

        def forward(self, x: Any) -> Any:
            return x * self.y

    model = capture(Named().eval(), PLAIN).model
    assert [value.name for value in model.graph.outputs] == ["y"]
    assert "y" not in model.graph.initializers


class Normalised(nn.Module):
    """RMS normalisation with an epsilon that onnxscript's rules take for zero."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-8) * 1.000005


def test_numbers_near_zero_and_one_stay() -> None:
    x = torch.cat([torch.zeros(1, 5, 4), torch.randn(1, 5, 4, generator=torch.Generator().manual_seed(0))])
    spec = TensorSpec("x", "float32", ("batch", "seq", 4))
    contract = IOContract((spec,), (dataclasses.replace(spec, name="y"),), (Dim("batch", 1, 2, 4), Dim("seq", 1, 5, 9)))
    got = on_ort(capture(Normalised().eval(), contract).model)({"x": x.numpy()})[0]
    np.testing.assert_allclose(got, Normalised()(x).numpy(), rtol=1e-6)


def test_a_module_that_casts_a_part_to_what_it_already_is_is_traced() -> None:
    class Casts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.router = nn.Linear(E, E)

        def forward(self, x: Any) -> Any:
            self.router = self.router.to(x.dtype)
            return self.router.float()(x)

    before = nn.Module._apply
    found = capture(Casts().eval(), PLAIN).model
    assert {"MatMul", "Gemm"} & {node.op_type for node in found.graph}
    assert nn.Module._apply is before
    assert nn.Linear(2, 2).to(torch.float64).weight.dtype == torch.float64
