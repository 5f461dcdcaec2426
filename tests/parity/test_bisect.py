from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from attnport.parity.bound import Yardstick
from attnport.parity.searching import Ancestry, Budget, errors_at, excess, locate, odd_one, reading

Excesses = Mapping[str, float | None]


class Oracle:
    """Answers for tensors of known excess, and remembers what it was asked."""

    def __init__(self, *samples: Excesses) -> None:
        self.samples, self.asked = samples, list[list[str]]()

    def __call__(self, names: Sequence[str]) -> dict[str, list[float | None]]:
        self.asked.append(list(names))
        return {name: [sample.get(name, 0.5) for sample in self.samples] for name in names}


def chain(length: int) -> Ancestry:
    return Ancestry({f"t{n}": (f"t{n - 1}",) if n else () for n in range(length)})


def from_on(first: int, length: int) -> dict[str, float]:
    return {f"t{n}": 100.0 if n >= first else 0.5 for n in range(length)}


@pytest.mark.parametrize("first", range(12))
@pytest.mark.parametrize("probes", [1, 2, 4])
def test_the_first_diverging_tensor_of_a_chain_is_found_wherever_it_is(first: int, probes: int) -> None:
    oracle = Oracle(from_on(first, 12))
    assert locate(chain(12), ["t11"], oracle, Budget(probes)) == [f"t{first}"]
    assert all(len(names) <= probes for names in oracle.asked)


def test_few_runs_are_enough_for_a_long_graph() -> None:
    oracle = Oracle(from_on(777, 2000))
    assert locate(chain(2000), ["t1999"], oracle) == ["t777"]
    assert len(oracle.asked) <= 7  # five parts a run: 2000 < 5 ** 5


def test_no_tensor_is_asked_for_twice() -> None:
    oracle = Oracle(from_on(3, 50), from_on(40, 50))
    assert locate(chain(50), ["t49", "t49"], oracle) == ["t3", "t40"]
    asked = [name for names in oracle.asked for name in names]
    assert len(asked) == len(set(asked))


BRANCHES = Ancestry(
    {"x": (), "q": ("x",), "k": ("x",), "v": ("x",), "mixed": ("q", "k", "v"), "sum": ("x", "mixed"), "y": ("sum",)}
)


@pytest.mark.parametrize("branch", ["q", "k", "v"])
@pytest.mark.parametrize("probes", [1, 2, 3, 4])
def test_a_branch_beside_fine_ones_is_found(branch: str, probes: int) -> None:
    """In the order of the graph this is not monotone: bad, fine, fine, bad."""
    wrong = dict.fromkeys((branch, "mixed", "sum", "y"), 9.0)
    assert locate(BRANCHES, ["y"], Oracle(wrong), Budget(probes)) == [branch]


def test_what_a_fine_tensor_makes_one_presume_is_measured_before_a_name_is_given() -> None:
    """The first probe is `b`, fine, which clears `a`; but `y` is made of `a` as well, by another way."""
    graph = Ancestry({"a": (), "b": ("a",), "c": ("b",), "y": ("a", "c")})
    oracle = Oracle({"a": 9.0, "y": 9.0})
    assert locate(graph, ["y"], oracle, Budget(1)) == ["a"]
    assert oracle.asked == [["b"], ["c"], ["a"]]


def test_what_is_presumed_fine_is_measured_through_what_cannot_be_compared() -> None:
    graph = Ancestry({"a": (), "n": ("a",), "b": ("a",), "c": ("b",), "y": ("n", "c")})
    assert locate(graph, ["y"], Oracle({"a": 9.0, "n": None, "y": 9.0}), Budget(1)) == ["a"]


@pytest.mark.parametrize("probes", [1, 2, 4, 9])
def test_an_error_that_is_mended_on_the_way_is_not_the_cause(probes: int) -> None:
    """Scores of -inf are NaN for a moment; every way from t2 to the output leads through the fine t3."""
    wrong = from_on(6, 9) | {"t2": math.inf}
    assert locate(chain(9), ["t8"], Oracle(wrong), Budget(probes)) == ["t6"]


def test_tensors_that_cannot_be_compared_are_seen_through() -> None:
    unknown: dict[str, float | None] = dict.fromkeys(("t3", "t4", "t5", "t6"), None)
    assert locate(chain(10), ["t9"], Oracle(from_on(5, 10) | unknown)) == ["t7"]
    assert locate(chain(10), ["t9"], Oracle(from_on(2, 10) | unknown)) == ["t2"]
    blind: dict[str, float | None] = {f"t{n}": None for n in range(9)}
    assert locate(chain(10), ["t9"], Oracle({**blind, "t9": 9.0})) == ["t9"]


def test_each_sample_has_an_end_of_its_own() -> None:
    oracle = Oracle(from_on(2, 9), from_on(5, 9), from_on(9, 9))
    assert locate(chain(9), ["t8", "t8", None], oracle) == ["t2", "t5", None]


def test_what_does_not_lead_to_the_output_is_never_named() -> None:
    graph = Ancestry({"x": (), "other": (), "a": ("x",), "y": ("a",), "z": ("other",)})
    oracle = Oracle({"other": 9.0, "z": 9.0, "y": 9.0})
    assert locate(graph, ["y"], oracle) == ["y"]
    assert not {"other", "z"} & {name for names in oracle.asked for name in names}


def test_a_run_keeps_to_its_memory() -> None:
    sizes = {f"t{n}": 10 for n in range(20)}
    oracle = Oracle(from_on(13, 20))
    assert locate(chain(20), ["t19"], oracle, Budget(8, 25, sizes)) == ["t13"]
    assert max(len(names) for names in oracle.asked) == 2
    large = Budget(8, 5, sizes)  # what is over the cap by itself is a run by itself
    assert large.spread(["t1", "t2", "t3"]) == ["t2"]
    assert list(large.parts(["t1", "t2"])) == [["t1"], ["t2"]]


def test_probes_are_spread_evenly() -> None:
    assert Budget(3).spread([str(n) for n in range(8)]) == ["2", "4", "6"]
    assert Budget(4).spread(["a", "b"]) == ["a", "b"]
    assert Budget(4).spread(["a"]) == ["a"]


VALID = np.ones(2, dtype=bool)


def yardstick(error: float = 0.0) -> Yardstick:
    expected = np.linspace(1, 2, 8).reshape(2, 4)
    found = errors_at((expected + error).astype(np.float64), expected, VALID, "t")
    assert found is not None
    return Yardstick("fp32", {"case": {"t": found}})


@pytest.mark.parametrize(("error", "diverges"), [(0.0, False), (1.9e-4, False), (2.1e-4, True), (1.0, True)])
def test_a_tensor_is_judged_by_eagers_error_there(error: float, diverges: bool) -> None:
    expected = np.linspace(1, 2, 8).reshape(2, 4)
    by, errors = yardstick(1e-4), errors_at(expected + error, expected, VALID, "t")
    found = excess("case", "t", errors, by)
    assert found is not None
    assert (found > 1) is diverges
    assert reading("a", "case", "t", errors, by).verdict == ("FAIL" if diverges else "PASS")


def test_nan_diverges_and_what_has_no_finite_reference_is_not_compared() -> None:
    expected = np.linspace(1, 2, 8).reshape(2, 4)
    broken = expected.copy()
    broken[0, 0] = np.nan
    assert excess("case", "t", errors_at(broken, expected, VALID, "t"), yardstick()) == math.inf
    hidden = expected.copy()
    hidden[0, 0] = -np.inf
    assert errors_at(expected, hidden, VALID, "t") is None
    assert errors_at(expected[:1], expected, VALID, "t") is None
    assert errors_at(None, expected, VALID, "t") is None
    assert excess("case", "t", None, yardstick()) is None
    assert excess("case", "t", errors_at(expected, expected, ~VALID, "t"), yardstick()) is None
    assert reading("a", "case", "t", None, yardstick()).verdict == "NOT_RUN"


def test_padded_rows_do_not_count() -> None:
    expected = np.linspace(1, 2, 8).reshape(2, 4)
    other = expected.copy()
    other[1] += 5
    found = excess("case", "t", errors_at(other, expected, np.array([True, False]), "t"), yardstick())
    assert found == 0.0


def test_the_odd_one_of_three_lies_apart_while_the_others_agree() -> None:
    rng = np.random.default_rng(0)
    good = rng.standard_normal((2, 4))
    near, far = good + 1e-6, good + 1e-2
    assert odd_one({"a": good, "b": far, "c": near}, VALID) == "b"
    assert odd_one({"a": good, "b": near, "c": good + np.nan}, VALID) == "c"
    assert odd_one({"a": good, "b": near, "c": good[:1]}, VALID) == "c"


def test_two_runtimes_or_two_wrong_ones_that_agree_have_no_odd_one() -> None:
    rng = np.random.default_rng(0)
    good = rng.standard_normal((2, 4))
    assert odd_one({"a": good, "b": good + 1}, VALID) == ""
    assert odd_one({"a": good, "b": good + 1e-6, "c": good + 1, "d": good + 1 + 1e-6}, VALID) == ""
    assert odd_one({"a": good, "b": good + 1, "c": good - 1.5, "d": good + 4}, VALID) == "d"
    assert odd_one({"a": good, "b": good, "c": good}, VALID) == ""
