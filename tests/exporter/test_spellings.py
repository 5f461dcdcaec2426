"""Every spelling is recognised, its mask is read for what it means, and every form computes what its module does."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from representatives import representatives
from running import ON_ORT, Run, captured, check_numbers, distance, judged, lowered, on_openvino, on_ort, on_reference
from spellings import ALL, AXES, CASES
from spellings.case import MASK, SDPA, in_order

from attnport.exporter.targets.base import Lowered

# What is not recognised, or is read as less than it is, and why. It only shrinks: what passes must leave it.
NOT_YET: dict[str, str] = {
    "bmm_stacked_on_batch": "the mask is repeated along the merged axis: its input is not named",
    "chunks": "keys are named by chunk and place, which no kind of the contract says",
}

FIRST_OF_EACH_AXIS = [next(iter(axis)) for axis in AXES.values()]
QUICK = list(
    dict.fromkeys(
        [*(name for axis in AXES.values() for name in list(axis)[::12]), "float_subtracted", "one_value_head"]
    )
)
EMPTY_ROWS = [name for name, case in AXES["masks"].items() if case.masks == "padding(mask)" and MASK in case.io.inputs]


def runner(result: Lowered, target: str) -> Run:
    if target == "openvino":
        return on_openvino(result.model)
    return on_ort(result.model) if target in ON_ORT else on_reference(result.model)


UNREAD = {name: pytest.mark.xfail(strict=True, reason=reason) for name, reason in NOT_YET.items()}


@pytest.mark.parametrize("name", representatives(ALL, QUICK, UNREAD))
def test_it_is_recognised_and_its_mask_is_read(name: str) -> None:
    counted = [attention.name for attention in captured(name).attentions]
    result = lowered(name, "onnx")
    assert {key: in_order(mask) for key, mask in result.masks.items()} == ALL[name].expected(counted), result.notes
    assert set(result.forms) == set(result.anchors) == set(counted)
    assert {attention.call for attention in captured(name).attentions} == {ALL[name].call}


@pytest.mark.parametrize("target", ["ort_cpu", "openvino"])
@pytest.mark.parametrize("name", representatives(ALL, QUICK))
def test_it_computes_what_the_module_computes_and_is_told_in_one_row(name: str, target: str) -> None:
    result = lowered(name, target)
    onnx.checker.check_model(ir.to_proto(result.model), full_check=True)
    check_numbers(runner(result, target), ALL[name], within=ALL[name].within)
    assert {*result.forms, *result.notes} == {attention.name for attention in captured(name).attentions}
    assert result.forms.keys() == result.anchors.keys() == result.masks.keys()


@pytest.mark.slow
@pytest.mark.parametrize("target", ["onnx", "onnx_18", "tensorrt"])
@pytest.mark.parametrize("name", ALL)
def test_it_computes_what_the_module_computes_in_every_other_form(name: str, target: str) -> None:
    check_numbers(runner(lowered(name, target), target), ALL[name], within=ALL[name].within)


@pytest.mark.slow
@pytest.mark.parametrize("name", ALL)
def test_it_computes_what_the_module_computes_on_the_reference_evaluator(name: str) -> None:
    check_numbers(on_reference(lowered(name, "openvino").model), ALL[name], within=ALL[name].within)


@pytest.mark.parametrize("name", FIRST_OF_EACH_AXIS)
def test_the_first_of_each_axis_computes_it_in_every_other_form(name: str) -> None:
    for target in ("onnx", "onnx_18", "tensorrt"):
        check_numbers(runner(lowered(name, target), target), ALL[name], within=ALL[name].within)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "plan"),
    [
        *((name, "fp16") for name in ALL),
        *((name, plan) for name in FIRST_OF_EACH_AXIS for plan in ("bf16", "fp16_islands", "bf16_islands")),
    ],
)
def test_a_half_precision_form_stays_close(name: str, plan: str) -> None:
    run = on_reference(lowered(name, "tensorrt", plan).model)
    check_numbers(run, ALL[name], within=0.03 if plan.startswith("fp16") else 0.2)


@pytest.mark.parametrize("name", representatives(EMPTY_ROWS, [name for name in EMPTY_ROWS if name in QUICK]))
def test_a_row_that_a_spelling_hides_whole_gives_zero(name: str) -> None:
    case = CASES[name]
    feeds = case.feeds({"batch": 3, "seq": 4, "mem": 6}, empty_row=True)
    expected = judged(case, feeds, case.reference(feeds))[0]
    for target in ("ort_cpu", "openvino"):
        got = judged(case, feeds, runner(lowered(name, target), target)(feeds))[0]
        assert (got[0] == 0).all()
        assert np.abs(got[1:]).any()
        assert distance([got[1:]], [expected[1:]]) < case.within


def test_the_suite_is_as_large_as_it_says() -> None:
    assert len(CASES) >= 150
    assert min(len(axis) for axis in AXES.values()) >= 10
    assert sum(case.call == SDPA for case in CASES.values()) >= 20
    assert set(NOT_YET) <= set(ALL)


def test_a_spelling_that_reads_or_computes_something_else_is_noticed() -> None:
    case = CASES["masked_fill"]
    with pytest.raises(AssertionError):
        check_numbers(on_ort(lowered("causal_triu", "onnx").model), CASES["window"], within=2e-5)
    assert distance([np.full(2, np.nan)], [np.zeros(2)]) == np.inf
    assert distance([np.zeros((1, 2))], [np.zeros(2)]) == np.inf
    assert case.expected(["module"]) != {"module": "padding(hidden)"}
    assert in_order("padding+causal(mask)") == in_order("causal+padding(mask)") != in_order("causal+padding(other)")
    with pytest.raises(ValueError, match="argument"):
        case.expected(["module", "module#1"])
