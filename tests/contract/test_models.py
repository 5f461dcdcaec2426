"""What holds for every model. A new class that is decorated with `model` is tried on it by itself."""

from __future__ import annotations

import dataclasses
import inspect
import re

import model_runs as runs
import numpy as np
import pytest
import torch
from representatives import representatives

from attnport.artifacts import ModelSpec
from attnport.cases.mask_cases import EMPTY_ROW
from attnport.models import base

WITHIN = 2e-5
"""The largest error of float32 by the output's RMS."""

# Where padding cannot be harmless, and why.
FEELS_PADDING: dict[str, str] = {}

# The dim along which a model only looks back: of those that declare a causal mask of their own, and of the others.
CAUSAL = {
    **{name: "seq" for name in base.names() if any("causal" in mask.kinds for mask in base.get(name).io.masks)},
    "dual_stream_transformer": "seq",
    "retrieval_transformer": "seq",
    "state_space_layer": "seq",
    "t5": "target",
    "transformer": "target",
}

# One of each architecture: every export takes seconds.
QUICK = (
    "additive_attention",
    "bert_encoder",
    "gpt_decoder",
    "grouped_query_attention",
    "kv_cache_attention",
    "longformer_attention",
    "masked_self_attention",
    "relative_bias_attention",
    "state_space_layer",
    "vision_transformer",
)
EXPORTED = representatives(base.names(), QUICK)

PADDED = [name for name in base.names() if base.get(name).io.padding_masks() and name not in FEELS_PADDING]


@pytest.fixture(params=base.names())
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def spec(name: str) -> ModelSpec:
    return base.get(name)


def test_it_is_called_by_its_name(name: str, spec: ModelSpec) -> None:
    assert spec.name == spec.source.text == name
    assert base.get(name.replace("_", "-")).name == name


def test_its_text_names_a_paper_a_formula_and_the_cost(name: str) -> None:
    text = inspect.getdoc(type(base.get(name).make())) or ""
    assert base.descriptions()[name] == text.splitlines()[0]
    assert re.search(r"\b(19|20)\d\d\b", text), "no paper's year"
    assert re.search(r"^ {4,}\S.* = \S", text, re.MULTILINE), "no formula, indented"
    assert re.search(r"\bcosts?\b|operations|multiplications", text, re.IGNORECASE), "no cost"


def test_every_call_makes_the_same_weights_and_leaves_the_global_generator_alone(name: str, spec: ModelSpec) -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    one = spec.make()
    assert torch.equal(torch.rand(3), expected)
    other = spec.make().state_dict()
    assert all(torch.equal(value, other[key]) for key, value in one.state_dict().items())
    assert not one.training
    assert {each.dtype for each in one.parameters()} == {torch.float32}
    seeded = base.get(name, seed=1).make().state_dict()
    assert any(not torch.equal(value, seeded[key]) for key, value in one.state_dict().items())


@pytest.mark.parametrize("which", runs.LENGTHS)
def test_the_module_takes_its_inputs_and_gives_its_outputs(name: str, spec: ModelSpec, which: str) -> None:
    found = runs.in_float64(name)(runs.unpadded(spec.io, which).feeds)
    expected = [output.shape(runs.sizes(spec.io, which)) for output in spec.io.outputs]
    assert [each.shape for each in found] == expected
    assert all(np.isfinite(each).all() for each in found)


def test_its_output_is_of_order_one_and_follows_its_inputs(name: str, spec: ModelSpec) -> None:
    """Outputs that are nearly equal whatever comes in would hide every error."""
    one, other = (runs.full_case(spec.io, runs.sizes(spec.io, "small"), seed=seed).feeds for seed in (1, 2))
    run = runs.in_float64(name)
    for first, second in zip(run(one), run(other), strict=True):
        size = float(np.sqrt(np.mean(np.square(first))))
        assert 0.01 < size < 100
        assert np.abs(first - second).max() > 0.05 * size


def test_zeros_give_finite_numbers(name: str, spec: ModelSpec) -> None:
    feeds = dict(runs.unpadded(spec.io, "small").feeds)
    masks = {mask.input for mask in spec.io.masks}
    feeds = {key: array if key in masks else np.zeros_like(array) for key, array in feeds.items()}
    assert all(np.isfinite(each).all() for each in runs.in_float64(name)(feeds))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["fp16", "bf16"])
def test_the_module_runs_in_half_precision(spec: ModelSpec, dtype: torch.dtype) -> None:
    found = runs.run_module(spec.make().to(dtype), runs.unpadded(spec.io, "small").feeds, dtype)
    assert all(np.isfinite(each).all() for each in found)


@pytest.mark.parametrize("name", PADDED)
def test_padding_beside_an_item_changes_none_of_its_rows(name: str) -> None:
    io, run = base.get(name).io, runs.in_float64(name)
    case = runs.unpadded(io, "small")
    expected = run(case.feeds)
    for mask in io.padding_masks():
        for side in ("right", "left") if io.positions == "none" and mask.carries == "mask" else ("right",):
            padded = runs.with_padding(io, mask, case.feeds, 3, side)
            assert any(padded[key].shape != array.shape for key, array in case.feeds.items())
            got = runs.without_padding(io, mask, run(padded), 3, side)
            assert runs.error(io, case, got, expected) < 1e-9, (mask, side)


@pytest.mark.parametrize("name", PADDED)
def test_a_padding_mask_that_is_not_read_would_be_noticed(name: str) -> None:
    """The test above can fail: what stands in the padding does reach the rows once it is not hidden."""
    io, run = base.get(name).io, runs.in_float64(name)
    case = runs.unpadded(io, "small")
    padded = runs.with_padding(io, io.padding_masks()[0], case.feeds, 3, "right")
    hidden = run(padded)
    shown = {key: array.copy() for key, array in padded.items()}
    for mask in io.padding_masks():
        key = str(mask.input)
        if mask.carries == "mask":
            shown[key] = np.broadcast_to(case.feeds[key][..., :1], padded[key].shape).copy()
        else:
            shown[key] = padded[key] + (3 if mask.carries == "lengths" else 1)
    changed = [np.abs(one - other).max() for one, other in zip(run(shown), hidden, strict=True)]
    assert max(changed) > 1e-3


@pytest.mark.parametrize("name", EXPORTED)
@pytest.mark.parametrize("which", runs.LENGTHS)
def test_its_export_equals_the_module_on_onnx_runtime(name: str, spec: ModelSpec, which: str) -> None:
    case = runs.unpadded(spec.io, which)
    assert runs.error(spec.io, case, runs.on_ort(name)(case.feeds), runs.in_float64(name)(case.feeds)) < WITHIN


@pytest.mark.parametrize("name", EXPORTED)
def test_its_export_equals_the_module_under_every_layout_of_its_masks(name: str, spec: ModelSpec) -> None:
    for case in runs.layouts(spec.io):
        assert runs.error(spec.io, case, runs.on_ort(name)(case.feeds), runs.in_float64(name)(case.feeds)) < WITHIN, (
            case.name
        )


@pytest.mark.parametrize("name", CAUSAL)
def test_a_later_token_changes_nothing_before_it(name: str) -> None:
    io, run, dim = base.get(name).io, runs.in_float64(name), CAUSAL[name]
    feeds = runs.unpadded(io, "small").feeds
    before, after = run(feeds), run(runs.with_another_end(io, feeds, dim))
    for spec, one, other in zip(io.outputs, before, after, strict=True):
        along = spec.dims.index(dim)
        changed = np.abs(np.moveaxis(one - other, along, -1)).reshape(-1, one.shape[along]).max(0)
        assert changed[:-1].max() < 1e-12
        assert changed[-1] > 1e-3


@pytest.mark.parametrize("name", EXPORTED)
def test_equal_tokens_go_through(name: str, spec: ModelSpec) -> None:
    """Scores that are all alike: nothing is divided by their spread, and no order of equals is taken for granted."""
    case = runs.unpadded(spec.io, "small")
    equal = dataclasses.replace(case, feeds=runs.with_equal_tokens(spec.io, case.feeds))
    found = runs.on_ort(name)(equal.feeds)
    assert runs.error(spec.io, equal, found, runs.in_float64(name)(equal.feeds)) < WITHIN


@pytest.mark.parametrize("name", EXPORTED)
def test_very_large_inputs_stay_finite(name: str, spec: ModelSpec) -> None:
    feeds = runs.unpadded(spec.io, "small").feeds
    masks = {mask.input for mask in spec.io.masks}
    large = {
        key: array * np.float32(1e4) if array.dtype.kind == "f" and key not in masks else array
        for key, array in feeds.items()
    }
    for found in (runs.in_float64(name)(large), runs.on_ort(name)(large)):
        assert all(np.isfinite(each).all() for each in found)


@pytest.mark.slow
def test_its_decomposed_form_equals_the_module(name: str, spec: ModelSpec) -> None:
    run = runs.on_ort(name, "onnx_18")
    for case in [runs.unpadded(spec.io, "odd"), *runs.layouts(spec.io)]:
        assert runs.error(spec.io, case, run(case.feeds), runs.in_float64(name)(case.feeds)) < WITHIN, case.name


def test_errors_are_noticed_by_what_measures_them() -> None:
    io = base.get("masked_self_attention").io
    case = runs.unpadded(io, "small")
    (right,) = runs.in_float64("masked_self_attention")(case.feeds)
    wrong, holed = right.copy(), right.copy()
    wrong[0, 0, 0] += 1e-3
    holed[1, 2, 3] = np.nan
    assert runs.error(io, case, [right], [right]) == 0
    assert runs.error(io, case, [wrong], [right]) > WITHIN
    assert runs.error(io, case, [holed], [right]) == np.inf
    assert runs.error(io, case, [right[:, :-1]], [right]) == np.inf


def test_the_layouts_of_a_padding_mask_have_a_row_without_any_key() -> None:
    assert EMPTY_ROW in [case.name for case in runs.layouts(base.get("masked_self_attention").io)]
