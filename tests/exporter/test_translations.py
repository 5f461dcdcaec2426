"""What torch's exporter cannot translate is translated here, and computes what torch computes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from representatives import representatives
from torch import nn
from torch.nn import functional

from attnport.exporter.patching import quiet
from attnport.exporter.torch_graph import choose_by_masks, promote, slice_splits
from attnport.exporter.translations import tables


class Grouped(nn.Module):
    """Rows sorted by group, each times its group's matrix."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.weights = nn.Parameter(torch.randn(4, 8, 16, generator=generator))

    def forward(self, rows: torch.Tensor, ends: torch.Tensor) -> Any:
        return torch.ops.transformers.grouped_mm_fallback(rows, self.weights, ends)


@pytest.mark.parametrize("ends", [[3, 5, 9, 12], [0, 0, 12, 12], [12, 12, 12, 12], [0, 0, 0, 12]])
def test_each_row_is_multiplied_with_its_groups_matrix(tmp_path: Path, ends: list[int]) -> None:
    import onnxruntime as ort

    pytest.importorskip("transformers.integrations.moe")  # registers the operator
    module, path = Grouped().eval(), tmp_path / "model.onnx"
    rows = torch.randn(12, 8, generator=torch.Generator().manual_seed(1))
    with torch.no_grad(), quiet():
        torch.onnx.export(
            module, (rows, torch.tensor([1, 2, 3, 12], dtype=torch.int32)), str(path), dynamo=True, opset_version=23,
            dynamic_shapes=({0: torch.export.Dim.AUTO}, None), custom_translation_table=tables(), verbose=False,
        )  # fmt: skip
    session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_inputs()]
    got = np.asarray(session.run(None, dict(zip(names, (rows.numpy(), np.array(ends, np.int32)), strict=True)))[0])
    begins = [0, *ends[:-1]]
    weights = module.weights.detach().numpy()
    expected = np.concatenate(
        [rows.numpy()[begin:end] @ one for begin, end, one in zip(begins, ends, weights, strict=True)]
    )
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


class Called(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *values: torch.Tensor) -> Any:
        return self.function(*values)


def integers() -> torch.Tensor:
    return torch.randint(0, 4, (5, 8), generator=torch.Generator().manual_seed(2))


def numbers() -> torch.Tensor:
    return torch.randn(5, 8, generator=torch.Generator().manual_seed(3))


TABLE, OFFSETS = torch.randn(4, 3, generator=torch.Generator().manual_seed(4)), torch.tensor([0, 3, 3, 40])
LADDER = (-1.5, -0.5, 0.0, 0.5, 1.5)
CASES: dict[str, tuple[Callable[..., Any], Callable[[], torch.Tensor]]] = {
    "where of booleans": (lambda x: torch.where(x > 0, x > 1, x < -1), numbers),
    "masked_fill of booleans": (lambda x: (x > 0).masked_fill(x > 1, False), numbers),
    "all are true": (lambda x: torch.ops.aten._is_all_true(x > -9), numbers),
    "not all are true": (lambda x: torch.ops.aten._is_all_true(x > 0), numbers),
    "masked_fill of numbers": (lambda x: x.masked_fill(x > 1, -7.0), numbers),
    "stable sort": (lambda x: torch.sort(x, dim=1, stable=True), integers),
    "stable sort, downwards": (lambda x: torch.sort(x, dim=0, stable=True, descending=True), integers),
    "cummax": (lambda x: torch.cummax(x, 1), integers),
    "cummin of rows": (lambda x: torch.cummin(x, 0), numbers),
    "median": (lambda x: x.median(1)[0], numbers),
    "kthvalue": (lambda x: x.kthvalue(3, 0, keepdim=True)[0], numbers),
    "searchsorted": (lambda x: torch.searchsorted(torch.tensor(LADDER), x), numbers),
    "searchsorted from the right": (lambda x: torch.searchsorted(torch.tensor([0, 1, 3]), x, right=True), integers),
    "bucketize": (lambda x: torch.bucketize(x, torch.tensor(LADDER)), numbers),
    "bucketize from the right": (lambda x: torch.bucketize(x, torch.tensor([0, 1, 3]), right=True), integers),
    "bucketize without bounds": (lambda x: torch.bucketize(x, x[0, x.shape[1] :]), numbers),
    "division that rounds down": (lambda x: x.new_zeros(-(-x.shape[1] // 3)), numbers),
    "division of a product": (lambda x: x.new_zeros((2 * x.shape[1]) // 3), numbers),
    "remainder of a size": (lambda x: torch.arange(x.shape[1]) % x.shape[0], numbers),
    "remainder of negatives": (lambda x: torch.remainder(x, -1.5), numbers),
    "remainder of integers": (lambda x: (x - 2) % 3, integers),
    "repeats by a size": (lambda x: x.repeat_interleave(x.shape[0], dim=0), numbers),
    "repeats of all": (lambda x: x.repeat_interleave(3), numbers),
    "a float less an integer": (lambda x: (1.0 - x) * -10000.0, integers),
    "einsum of integers and floats": (lambda x: torch.einsum("ij,j->ij", x, torch.arange(x.shape[1]) / 3), integers),
    "outer product of integers and floats": (lambda x: torch.outer(x[0], torch.arange(x.shape[1]) / 3), integers),
    "chunks of a dynamic size": (lambda x: torch.chunk(x, 3, dim=1)[1:], numbers),
    "expm1 near zero": (lambda x: torch.expm1(x * 1e-6), numbers),
    "expm1 elsewhere": (lambda x: torch.expm1(x * 30), numbers),
    "erfinv": (lambda x: torch.erfinv(torch.tanh(x * 1.5)), numbers),
    "lgamma": (lambda x: torch.lgamma(x * 4).exp(), numbers),
    "lgamma of large ones": (lambda x: torch.lgamma(x.abs().exp() * 9), numbers),
    "erfinv of the ends": (lambda x: torch.erfinv(x.clamp(-1, 1).round()), numbers),
    "log1p near zero": (lambda x: torch.log1p(x * 1e-6), numbers),
    "log1p elsewhere": (lambda x: torch.log1p(x.abs() * 30), numbers),
    "squeeze of an axis that is not 1": (lambda x: x.unsqueeze(0).squeeze(1), numbers),
    "squeeze of an axis that is 1": (lambda x: (x * 2)[:, None].squeeze(-2), numbers),
    **{
        f"bags, {mode}": (lambda x, mode=mode: functional.embedding_bag(x, TABLE, mode=mode, padding_idx=2), integers)
        for mode in ("sum", "mean", "max")
    },
    "bags by offsets": (lambda x: functional.embedding_bag(x.view(-1), TABLE, OFFSETS), integers),
    "bags with a last offset": (
        lambda x: functional.embedding_bag(x.view(-1), TABLE, OFFSETS, mode="max", include_last_offset=True),
        integers,
    ),
    "bags with weights": (
        lambda x: functional.embedding_bag(x, TABLE, per_sample_weights=x * 0.5, mode="sum"),
        integers,
    ),
    "splits by a size": (lambda x: torch.split(torch.cat([x, x]), x.shape[0])[1], numbers),
}


@pytest.mark.parametrize("name", representatives(CASES, list(CASES)[::3]))
def test_an_operator_computes_what_torch_computes_at_sizes_that_were_not_traced(tmp_path: Path, name: str) -> None:
    import onnxruntime as ort

    function, values = CASES[name]
    module, value, path = Called(function).eval(), values(), tmp_path / "model.onnx"
    auto = {0: torch.export.Dim.AUTO, 1: torch.export.Dim.AUTO}
    with torch.no_grad(), quiet():
        program = torch.export.export(module, (value,), dynamic_shapes=((auto,),), strict=False)
        promote(program)
        slice_splits(program)
        torch.onnx.export(program, (), str(path), opset_version=23, custom_translation_table=tables(), verbose=False)
    session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    for rows, columns in ((5, 8), (7, 12)):
        feed = value.repeat(2, 2)[:rows, :columns].contiguous()
        expected = module(feed)
        got = session.run(None, {session.get_inputs()[0].name: feed.numpy()})
        wanted = expected if isinstance(expected, tuple) else (expected,)
        for one, other in zip(got, wanted, strict=True):
            assert np.asarray(one).shape == tuple(other.shape), f"{name} at {rows}, {columns}"
            np.testing.assert_allclose(
                np.asarray(one), other.numpy(), rtol=1e-5, err_msg=f"{name} at {rows}, {columns}"
            )


@pytest.mark.parametrize("affine", [True, False])
def test_group_normalisation_is_accurate_far_from_zero(tmp_path: Path, affine: bool) -> None:
    import onnxruntime as ort

    generator = torch.Generator().manual_seed(4)
    module, path = torch.nn.GroupNorm(2, 4, affine=affine), tmp_path / "model.onnx"
    if affine:
        with torch.no_grad():
            module.weight.copy_(torch.randn(4, generator=generator))
            module.bias.copy_(torch.randn(4, generator=generator))
    axes = dict.fromkeys((0, 2, 3), torch.export.Dim.AUTO)
    with torch.no_grad(), quiet():
        program = torch.export.export(module, (torch.zeros(2, 4, 5, 8),), dynamic_shapes=(axes,), strict=False)
        torch.onnx.export(program, (), str(path), opset_version=23, custom_translation_table=tables(), verbose=False)
    session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    for shape in ((2, 4, 5, 8), (3, 4, 9, 1)):
        x = torch.randn(shape, generator=generator) * 0.01 + 3
        got = session.run(None, {session.get_inputs()[0].name: x.numpy()})[0]
        wanted = torch.nn.functional.group_norm(
            x.double(), 2, *(one.double() if one is not None else None for one in (module.weight, module.bias))
        )
        np.testing.assert_allclose(np.asarray(got), wanted.detach().numpy(), atol=3e-4)


def scored(x: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    scores = x @ x.mT
    scores[~keep[:, None].expand_as(scores)] = -1e4
    return scores.softmax(-1) @ x


def of_a_view(x: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    x = x.clone()
    x[:, :, 1:][keep] = 3
    return x


def behind_an_axis(x: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    x = x.transpose(0, 1).clone()
    x[:, keep[:, 0]] = x.new_tensor([1.0, 2.0, 3.0])
    return x


def whole_numbers(x: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    count = keep.long()
    count[keep] = 7
    return x * count[..., None]


def of_the_same_places(x: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    y[~keep] = (x * 2)[~keep]
    return y


def of_other_places(x: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    y[keep] = (x * 2)[keep].flip(0)
    return y


def of_places_written_since(x: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    y, z = x.clone(), x * 2
    taken = z[keep]
    z[:, 0] += 1
    y[keep] = taken
    return y


def at_found_places(x: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    rows, columns = torch.where(keep)
    y[rows, columns] = 0.0
    return y


def at_places_of_a_triangle(x: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    rows, columns = torch.ones(x.shape[1], 3).triu(1).nonzero().T
    y[:, rows, columns] = -1.0
    return y


def at_columns_and_rows(x: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    """The places of a mask the wrong way round: those of no mask."""
    y = x.clone()
    rows, columns = torch.where(keep[:2, :2])
    y[columns, rows] = 0.0
    return y


@pytest.mark.parametrize(
    ("function", "searches"),
    [
        (at_found_places, False),
        (at_places_of_a_triangle, False),
        (at_columns_and_rows, True),
        (lambda x, keep: x.index_put((~keep,), torch.tensor(0.0)), False),
        (lambda x, keep: x.index_put((~keep,), torch.tensor([[4.0, 5.0, 6.0]])), False),
        (lambda x, keep: x.index_put((x > 0,), torch.tensor([1.0])), False),
        (lambda x, keep: x.index_put((keep,), torch.tensor(1.0), accumulate=True), True),
        (scored, False),
        (of_a_view, False),
        (behind_an_axis, False),
        (whole_numbers, False),
        (of_the_same_places, False),
        (of_other_places, True),
        (of_places_written_since, True),
    ],
)
def test_an_assignment_by_a_mask_is_a_choice_where_each_place_has_its_value(
    function: Callable[..., Any], searches: bool
) -> None:
    module = Called(function).eval()
    x, keep = torch.randn(2, 5, 3, generator=torch.Generator().manual_seed(2)), torch.arange(10).view(2, 5) % 3 > 0
    auto = {0: torch.export.Dim.AUTO, 1: torch.export.Dim.AUTO}
    program = torch.export.export(
        module, (x, keep), dynamic_shapes=((auto, auto),), prefer_deferred_runtime_asserts_over_guards=True
    )
    assert choose_by_masks(program) == (not searches)
    torch.testing.assert_close(program.module()(x, keep), function(x, keep))


def test_a_norm_without_weights_has_a_scale_of_its_own_axes_alone(tmp_path: Path) -> None:
    module = Called(lambda x: functional.rms_norm(x, (2, 3), eps=1e-5)).eval()
    auto = {0: torch.export.Dim.AUTO, 1: torch.export.Dim.AUTO}
    with torch.no_grad(), quiet():
        program = torch.onnx.export(
            module, (torch.randn(2, 5, 2, 3),), dynamo=True, opset_version=23, dynamic_shapes=((auto,),),
            custom_translation_table=tables(), verbose=False,
        )  # fmt: skip
    assert program is not None
    (norm,) = (node for node in program.model.graph if node.op_type == "RMSNormalization")
    assert [tuple(norm.inputs[1].shape), norm.attributes["axis"].as_int()] == [(2, 3), -2]
    x = torch.randn(3, 4, 2, 3, generator=torch.Generator().manual_seed(1))
    (got,) = program(x)
    torch.testing.assert_close(got, functional.rms_norm(x, (2, 3), eps=1e-5))
