"""What looks like attention and is not stays as it is, with its reason; what looks like a mask stays what it is."""

from __future__ import annotations

import functools
import itertools
import re

import numpy as np
import pytest
from lookalikes import LOOKALIKES
from representatives import representatives
from running import Exported, distance, export, judged, on_openvino, on_ort, on_reference
from spellings.case import SIZES, in_order

from attnport.exporter.targets.base import Lowered

UNCOUNTED = [name for name, each in LOOKALIKES.items() if not each.reasons and not each.case.masks]
QUICK = list(LOOKALIKES)[::4]
COMPARED = [name for name, each in LOOKALIKES.items() if not each.random]


@functools.cache
def captured(name: str) -> Exported:
    return export(LOOKALIKES[name].case.module(), LOOKALIKES[name].case.io)


def lowered(name: str, target: str, plan: str = "fp32") -> Lowered:
    return captured(name).lowered(target, plan)


@pytest.mark.parametrize("name", representatives(LOOKALIKES, QUICK))
def test_it_is_told_apart_with_its_reason(name: str) -> None:
    alike, counted = LOOKALIKES[name], [attention.name for attention in captured(name).attentions]
    result = lowered(name, "onnx")
    read = [each for each in counted if each in result.forms]
    assert {key: in_order(mask) for key, mask in result.masks.items()} == alike.case.expected(read)
    told = [result.notes[each] for each in counted if each not in read]
    assert len(told) == len(alike.reasons), told
    assert all(re.search(reason, note) for reason, note in zip(alike.reasons, told, strict=True)), told


@pytest.mark.parametrize("name", representatives(UNCOUNTED, UNCOUNTED[:1]))
def test_without_a_softmax_that_reaches_a_product_nothing_is_counted(name: str) -> None:
    assert captured(name).attentions == ()


@pytest.mark.parametrize(
    ("name", "target"),
    representatives(
        itertools.product(COMPARED, ["ort_cpu", "openvino", "onnx_18"]),
        [*((name, "ort_cpu") for name in COMPARED if name in QUICK), (COMPARED[0], "openvino")],
    ),
)
def test_it_still_computes_what_the_module_computes(name: str, target: str) -> None:
    case = LOOKALIKES[name].case
    run = (on_openvino if target == "openvino" else on_ort)(lowered(name, target).model)
    for seed, sizes in enumerate(SIZES):
        feeds = case.feeds(sizes, seed=seed)
        got, expected = (judged(case, feeds, each) for each in (run(feeds), case.reference(feeds)))
        if name == "zero_times_infinity":
            # The module breaks. So does the graph, or the guard for rows that see nothing makes zeros of it.
            for one, right in zip(got, expected, strict=True):
                broken = np.isnan(right)
                assert (np.isnan(one[broken]) | (one[broken] == 0)).all()
                one[broken], right[broken] = 0, 0
        assert distance(got, expected) < 2e-5, sizes


@pytest.mark.parametrize("plan", ["fp16", "fp16_islands"])
def test_two_masks_whose_sum_overflows_half_precision_hide_and_give_no_nan(plan: str) -> None:
    """A key that both hide would stand at -131008, which is -inf there; a row of such keys would be NaN."""
    case = LOOKALIKES["two_low_masks"].case
    feeds = case.feeds({"batch": 2, "seq": 5}, empty_row=True)
    feeds["mask"][1] = (1, 0, 0, 1, 1)
    got = on_reference(lowered("two_low_masks", "tensorrt", plan).model)(feeds)[0].astype(np.float64)
    assert (got[0] == 0).all()
    assert distance([got[1:]], [case.reference(feeds)[0][1:]]) < 0.02


@pytest.mark.parametrize("plan", ["fp16", "fp16_islands"])
def test_two_float_masks_whose_sum_overflows_half_precision_stay_added(plan: str) -> None:
    case = LOOKALIKES["two_float_inputs"].case
    feeds = case.feeds({"batch": 2, "seq": 5})
    feeds["bias"] = np.where(np.arange(5) == 4, np.float32(-65504), feeds["bias"])
    feeds["hidden"][:] = (0, 0, 0, 0, 1)
    got = on_reference(lowered("two_float_inputs", "tensorrt", plan).model)(feeds)
    assert distance(got, case.reference(feeds)) < 0.02


def test_a_look_alike_that_is_read_as_something_else_is_noticed() -> None:
    assert "padding(mask)" not in lowered("penalty_of_five", "onnx").masks.values()
    assert not re.search(LOOKALIKES["two_values"].reasons[0], lowered("softmax_over_heads", "onnx").notes["module"])
    with pytest.raises(ValueError, match="argument"):
        LOOKALIKES["two_values"].case.expected(["module"])


def test_the_look_alikes_are_as_many_as_they_say() -> None:
    assert len(LOOKALIKES) >= 50
    assert sum(bool(each.reasons) for each in LOOKALIKES.values()) >= 30
    assert len(UNCOUNTED) >= 4
