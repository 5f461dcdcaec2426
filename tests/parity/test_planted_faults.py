"""Attentions with one fault each, judged on every case of a contract: each fault fails, on the cases made for it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from attnport.artifacts import IOContract
from attnport.cases import inputs
from attnport.cases.inputs import LARGE_VALUES
from attnport.dims import Dim, TensorSpec
from attnport.masks import MaskSpec
from attnport.parity import bound as parity
from attnport.parity.metrics import Errors, measure_all

WINDOW, DEPTH = 8, 16
IO = IOContract(
    (TensorSpec("x", "float32", ("batch", "seq", DEPTH)), TensorSpec("mask", "int64", ("batch", "seq"), 2)),
    (TensorSpec("logits", "float32", ("batch", "seq", DEPTH)),),
    (Dim("batch", 1, 4, 24), Dim("seq", 1, 48, 64)),
    (MaskSpec(("padding",), "mask"), MaskSpec(("window",), window=WINDOW)),
)
CASES = inputs.cases(IO)
Array = np.ndarray
Softmax = Callable[[Array], Array]


def softmax(scores: Array) -> Array:
    """Over keys; a row without any is zero."""
    top = scores.max(-1, keepdims=True, initial=-1e30)
    raised = np.exp(scores - top)
    return raised / np.maximum(raised.sum(-1, keepdims=True), np.finfo(scores.dtype).tiny)


def attention(x: Array, keep: Array, *, window: int = WINDOW, weigh: Softmax = softmax) -> Array:
    """x [B,T,D], keep [B,T]; queries, keys and values are x."""
    at = np.arange(x.shape[1])
    allowed = keep[:, None, :] & (np.abs(at[:, None] - at) <= window)
    scores = np.where(allowed, x @ x.swapaxes(1, 2) / x.dtype.type(DEPTH**0.5), -np.inf)
    return weigh(scores) @ x


def unguarded(scores: Array) -> Array:
    with np.errstate(over="ignore", invalid="ignore"):
        raised = np.exp(scores)
        return raised / np.maximum(raised.sum(-1, keepdims=True), np.finfo(scores.dtype).tiny)


def mean_of_nothing(scores: Array) -> Array:
    return softmax(np.where(np.isneginf(scores).all(-1, keepdims=True), 0.0, scores).astype(scores.dtype))


def ties_to_the_first(scores: Array) -> Array:
    """Of equal scores one alone counts, as in a hash by value."""
    earlier = np.tril(np.ones(scores.shape[-1:] * 2, dtype=bool), -1)
    tied = ((scores[..., None] == scores[..., None, :]) & earlier).any(-1)
    return softmax(np.where(tied, -np.inf, scores))


def in_tiles(x: Array, keep: Array) -> Array:
    """Keys in tiles of 8, the rest after the last whole one forgotten."""
    keep = keep & (np.arange(x.shape[1]) < max(8, x.shape[1] // 8 * 8))
    return attention(x, keep)


def for_few_items(x: Array, keep: Array) -> Array:
    found = attention(x, keep)
    found[8:] = found[:1]
    return found


def nan_where(chosen: Callable[[Array], Array]) -> Callable[[Array, Array], Array]:
    def run(x: Array, keep: Array) -> Array:
        found = attention(x, keep)
        found[chosen(keep)] = np.nan
        return found

    return run


def judged(run: Callable[[Array, Array], Array]) -> dict[str, str]:
    """The reason by case, "" where it passes; eager is the right attention in float32."""
    eager: dict[str, dict[str, Errors]] = {}
    tried: dict[str, dict[str, Errors]] = {}
    for case in CASES:
        x, keep = case.feeds["x"], case.feeds["mask"] == 1
        expected = {"logits": attention(x.astype(np.float64), keep)}
        eager[case.name] = measure_all({"logits": attention(x, keep)}, expected, case, IO)
        tried[case.name] = measure_all({"logits": run(x, keep).astype(np.float32)}, expected, case, IO)
    by = parity.Yardstick("fp32", eager, [case.name for case in CASES if case.group == "extremes"])
    found = {case: parity.judge(case, "logits", errors["logits"], by) for case, errors in tried.items()}
    return {case: result.reason for case, result in found.items() if result.verdict != "PASS"}


def test_the_right_attention_passes_every_case() -> None:
    assert judged(attention) == {}
    assert judged(lambda x, keep: attention(x.astype(np.float64), keep)) == {}


PADDED = {"right padding", "left padding", "interior padding"}
FAULTS: dict[str, tuple[Callable[[Array, Array], Array], set[str], set[str]]] = {
    "a flipped mask": (lambda x, keep: attention(x, ~keep), {"no padding", *PADDED, "sequence 1"}, set()),
    "no mask": (lambda x, keep: attention(x, np.ones_like(keep)), PADDED, {"no padding", "sequence 1"}),
    "the mask of the first item": (
        lambda x, keep: attention(x, np.repeat(keep[:1], len(keep), 0)), {"right padding"}, {"one item"},
    ),
    "a window too narrow by one": (
        lambda x, keep: attention(x, keep, window=WINDOW - 1), {"length 9", "length 16"}, {"length 7", "length 8"},
    ),
    "a window too wide by one": (
        lambda x, keep: attention(x, keep, window=WINDOW + 1), {"length 16"}, {"length 7", "length 8", "length 9"},
    ),
    "the mean where there is no key": (
        lambda x, keep: attention(x, keep, weigh=mean_of_nothing), {"one row fully masked"}, {"right padding"},
    ),
    "exponentials that overflow": (
        lambda x, keep: attention(x, keep, weigh=unguarded), {LARGE_VALUES}, {"no padding", "longest"},
    ),
    "equal scores that count once": (
        lambda x, keep: attention(x, keep, weigh=ties_to_the_first), {"equal rows"}, {"no padding", "longest"},
    ),
    "whole tiles alone": (in_tiles, {"primes"}, {"no padding", "longest"}),
    "eight items at most": (for_few_items, {"largest batch"}, {"no padding", "longest", "primes"}),
    "NaN in padded rows": (nan_where(lambda keep: ~keep & keep.any(1, keepdims=True)), PADDED, {"no padding"}),
    "NaN in a valid row": (nan_where(lambda keep: keep & (np.arange(keep.shape[1]) == 0)), {"no padding"}, set()),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_fails_the_cases_that_are_made_for_it(fault: str) -> None:
    run, caught, blind = FAULTS[fault]
    failed = judged(run)
    assert caught <= set(failed), sorted(failed)
    assert not blind & set(failed), {case: failed[case] for case in blind & set(failed)}


def test_what_failed_is_said() -> None:
    flipped, beside, inside = (judged(FAULTS[name][0]) for name in ("a flipped mask", *list(FAULTS)[-2:]))
    assert "argmax differs in" in flipped["right padding"]
    assert "padded query rows, which may hold anything finite" in beside["right padding"]
    assert "valid elements (" in inside["no padding"]
