"""Which tensor is named: the first that diverges of those that a wrong output is computed from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
import pytest

from attnport.artifacts import LayerError
from attnport.exporter.probing import Tensor, before
from attnport.parity.layers import difference, errors_at, first_wrong

VALID = np.ones(2, dtype=bool)
EXPECTED = np.linspace(1, 2, 8).reshape(2, 4)


def graph(sources: Mapping[str, Sequence[str]]) -> dict[str, Tensor]:
    return {name: Tensor(name, "Op", "", None, tuple(of), True, False) for name, of in sources.items()}


def errors(*, wrong: str, fine: str = "", unknown: str = "") -> dict[str, LayerError]:
    def told(names: str, verdict: Literal["PASS", "FAIL", "NOT_RUN"]) -> dict[str, LayerError]:
        return dict.fromkeys(names.split(), LayerError(verdict, ""))

    return told(wrong, "FAIL") | told(fine, "PASS") | told(unknown, "NOT_RUN")


CHAIN = graph({f"t{n}": (f"t{n - 1}",) if n else ("input",) for n in range(6)})
BRANCHES = graph(
    {"x": (), "q": ("x",), "k": ("x",), "v": ("x",), "mixed": ("q", "k", "v"), "sum": ("x", "mixed"), "y": ("sum",)}
)


@pytest.mark.parametrize("first", range(6))
def test_the_first_diverging_tensor_of_a_chain_is_named(first: int) -> None:
    wrong, fine = (" ".join(f"t{n}" for n in range(6) if (n >= first) is which) for which in (True, False))
    assert first_wrong(CHAIN, "t5", errors(wrong=wrong, fine=fine)) == f"t{first}"


@pytest.mark.parametrize("branch", ["q", "k", "v"])
def test_a_branch_beside_fine_ones_is_named(branch: str) -> None:
    """In the order of the graph this is not monotone: wrong, fine, fine, wrong."""
    fine = " ".join({"x", "q", "k", "v"} - {branch})
    assert first_wrong(BRANCHES, "y", errors(wrong=f"{branch} mixed sum y", fine=fine)) == branch


def test_an_error_that_is_mended_on_the_way_is_not_the_cause() -> None:
    """Scores of -inf are NaN for a moment; every way from t1 to the output leads through the fine t2."""
    assert first_wrong(CHAIN, "t5", errors(wrong="t1 t4 t5", fine="t0 t2 t3")) == "t4"
    around = graph({"a": (), "b": ("a",), "c": ("b",), "y": ("a", "c")})
    assert first_wrong(around, "y", errors(wrong="a y", fine="b c")) == "a"  # by another way


def test_what_was_not_measured_or_cannot_be_compared_is_seen_through() -> None:
    assert first_wrong(CHAIN, "t5", errors(wrong="t1 t5", fine="t0", unknown="t2 t3")) == "t1"
    assert first_wrong(CHAIN, "t5", errors(wrong="t5", unknown="t0 t1 t2")) == "t5"


def test_what_does_not_lead_to_the_output_is_never_named() -> None:
    made = graph({"x": (), "other": (), "a": ("x",), "y": ("a",), "z": ("other",)})
    assert first_wrong(made, "y", errors(wrong="other z y", fine="x a")) == "y"


def test_what_is_behind_a_tensor_ends_at_the_fine_ones() -> None:
    assert before(BRANCHES, "sum", {"x", "q"}) == (("x", "q"), ("k", "v", "mixed"))
    assert before(CHAIN, "t2", ()) == ((), ("t0", "t1"))


def test_what_has_no_finite_reference_or_another_shape_is_not_compared() -> None:
    broken, hidden = EXPECTED.copy(), EXPECTED.copy()
    broken[0, 0], hidden[0, 0] = np.nan, -np.inf
    found = errors_at(broken, EXPECTED, VALID, "t")
    assert found is not None
    assert found.problem
    assert errors_at(EXPECTED, hidden, VALID, "t") is None
    assert errors_at(EXPECTED[:1], EXPECTED, VALID, "t") is None
    assert errors_at(None, EXPECTED, VALID, "t") is None
    assert errors_at(EXPECTED, EXPECTED, ~VALID, "t") is None


def test_padded_rows_do_not_count() -> None:
    other = EXPECTED.copy()
    other[1] += 5
    found = errors_at(other, EXPECTED, np.array([True, False]), "t")
    assert found is not None
    assert found.max == 0.0


WANTED = np.array([1, 2**40, 3])
ALL = np.ones(3, dtype=bool)


def test_integers_are_equal_or_wrong() -> None:
    same = difference(WANTED.astype(np.int64), WANTED, WANTED, ALL)
    assert (same.verdict, same.reason) == ("PASS", "all 3 elements are equal")
    other = difference(np.array([1, 2**40 + 1, 4]), WANTED, WANTED, ALL)
    assert other.verdict == "FAIL"
    assert other.reason.startswith("int64: 2 of 3 elements differ, first 1099511627777 instead of 1099511627776")
    told = difference(np.array([True, False, True]), np.array([True, True, True]), None, ALL)
    assert told.reason.startswith("bool: 1 of 3 elements differ, first False instead of True")


def test_padded_integers_do_not_count() -> None:
    found = difference(np.array([1, 2**40, 7]), WANTED, WANTED, np.array([True, True, False]))
    assert found.reason == "all 2 elements are equal"


def test_integers_that_cannot_be_compared_have_no_verdict() -> None:
    own = WANTED + 1  # the module's depend on rounding
    unknown = [difference(None, WANTED, WANTED, ALL), difference(WANTED[:1], WANTED, WANTED, ALL)]
    unknown += [difference(WANTED, WANTED.astype(np.float64), WANTED, ALL), difference(WANTED, WANTED, own, ALL)]
    assert {found.verdict for found in unknown} == {"NOT_RUN"}
