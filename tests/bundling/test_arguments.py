"""Arguments of the reader: each of another kind, sign or size is refused by its name, and a text is not its letters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attnport_bundle import load
from attnport_bundle.__main__ import bench
from attnport_bundle.arguments import LARGEST, flag, integer, mapping, number, path, several
from attnport_bundle.corpus import Run
from attnport_bundle.decoding.generate import Options
from attnport_bundle.errors import BundleError, FeedError
from attnport_bundle.format.decoder import Rules
from attnport_bundle.format.manifest import Prompts
from attnport_bundle.model import selftest

NOT_NUMBERS: list[Any] = [None, "5", b"5", True, np.bool_(True), [5], float("nan"), np.float32("nan"), 1j, object()]


class Unprintable:
    def __repr__(self) -> str:
        raise RuntimeError


def _kind(value: object) -> str:
    """A parameter's name: pytest prints integers, which Python does not with more than 4300 digits."""
    return type(value).__name__


def test_numbers_of_python_and_numpy_are_taken() -> None:
    assert integer("n", np.int32(3), 0) == 3
    assert number("x", np.float32(0.5), 0, 1) == number("x", 0.5, 0, 1) == 0.5
    assert number("x", np.int64(3)) == 3.0


@pytest.mark.parametrize("wrong", [*NOT_NUMBERS, Unprintable(), -1, 10**400, -(10**5000), 10**5000], ids=_kind)
def test_what_is_no_number_in_its_range_is_refused(wrong: Any) -> None:
    with pytest.raises(FeedError, match=r"^n: got .*; expected 0"):
        integer("n", wrong, 0)
    with pytest.raises(FeedError, match=r"^x: got .*; expected 0 or more, at most 7\.$"):
        number("x", wrong, 0, 7)
    with pytest.raises(FeedError, match=r"^x: got .*; expected above 0\.$"):
        number("x", wrong, 0, above=True)


def test_the_ends_of_a_range_are_in_it_unless_it_says_above() -> None:
    assert integer("n", 7, 7, 7) == 7
    assert integer("n", LARGEST, 0) == LARGEST
    assert number("x", 0, 0) == 0.0
    with pytest.raises(FeedError, match="expected above 0"):
        number("x", 0, 0, above=True)


def test_flags_paths_mappings_and_lists_are_of_their_kind() -> None:
    assert flag("f", False) is False
    assert path("p", "a/b") == Path("a/b") == path("p", Path("a/b"))
    assert mapping("m", {"a": 1}, "a number") == {"a": 1}
    assert list(several("s", (text for text in "ab"), "texts")) == ["a", "b"]
    wrong: list[Any] = ["no", 0, None, np.bool_(True)]
    for value in wrong:
        with pytest.raises(FeedError, match=r"^f: got .*; expected True or False\.$"):
            flag("f", value)
    for value in (5, None, b"a", Path):
        with pytest.raises(FeedError, match=r"^p: got .*; expected a path\.$"):
            path("p", value)
    for value in ([1], None, "a", {1: 2}):
        with pytest.raises(FeedError, match=r"^m: got .*; expected a number by its name\.$"):
            mapping("m", value, "a number")
    for value in ("end", b"end", {"end": 1}, 5, None):
        with pytest.raises(FeedError, match=r"^s: got .*; expected texts\.$"):
            several("s", value, "texts")


@pytest.mark.parametrize("threads", [-5, 0, 2.0, "2", True, 1 << 31])
def test_numbers_of_threads_are_1_or_more(tmp_path: Path, threads: Any) -> None:
    for call in (load, selftest):
        with pytest.raises(FeedError, match=r"^threads: got .*; expected 1"):
            call(tmp_path, threads=threads)


def test_a_bundle_is_not_looked_for_in_what_is_no_path(tmp_path: Path) -> None:
    wrong: list[Any] = [5, ["app"], b"app"]
    for value in wrong:
        with pytest.raises(BundleError, match="folder: got"):
            load(value)
        with pytest.raises(BundleError, match="require_signature: got"):
            load(tmp_path, require_signature=value)
        with pytest.raises(BundleError, match="cache: got"):
            load(tmp_path, cache=value)


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("max_tokens", [0, -1, 1.0, "5", True, None]),
        ("temperature", [-1, float("nan"), "0", True, None]),
        ("top_k", [-1, 2.5, "5"]),
        ("top_p", [0, 1.5, float("nan"), "1"]),
        ("seed", [-1, 1.5, "x", True]),
    ],
)
def test_options_of_a_generation_are_of_their_kind(name: str, wrong: list[Any]) -> None:
    for value in wrong:
        with pytest.raises(FeedError, match=f"^{name}: got"):
            Options(**{name: value})


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("suppress", ["end", 5, [1.5], [-1], [True], {"a": 1}, [10**30]]),
        ("bad_words", ["end", ["end"], [5], [[-1]]]),
        ("forced_last", ["</s>", 3]),
        ("min_tokens", [-1, 1.5, "3", True]),
        ("beams", [0, 1.5, True, "2"]),
        ("repetition_penalty", [0, "1", float("nan"), True]),
        ("length_penalty", [float("nan"), "1", True]),
        ("early_stopping", ["never", 1]),
    ],
)
def test_rules_are_of_their_kind(name: str, wrong: list[Any]) -> None:
    for value in wrong:
        with pytest.raises(Exception, match=f"^{name}: ") as error:
            Rules().changed(**{name: value})
        assert getattr(error.value, "exit_code", 1) == 2


def test_rules_take_lists_and_numbers_of_numpy() -> None:
    changed = Rules().changed(suppress=np.array([3, 4]), beams=np.int64(2), bad_words=[[1, 2], np.array([3])])
    assert (changed.suppress, changed.beams, changed.bad_words) == ((3, 4), 2, ((1, 2), (3,)))


def test_a_prompt_is_named_by_a_text() -> None:
    wrong: list[Any] = [5, ["query"], b"query"]
    for value in wrong:
        with pytest.raises(FeedError, match=r"^prompt: got"):
            Prompts().chosen(value)


def test_one_output_of_rows_is_one_name() -> None:
    assert Run("app", outputs="vector")._wanted == ("vector",)
    assert Run("app", outputs=["vector", "rows"])._wanted == ("vector", "rows")
    wrong: list[Any] = [5, b"vector", {"vector": 1}]
    for value in wrong:
        with pytest.raises(FeedError, match=r"^outputs: got"):
            Run("app", outputs=value)


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf"), "2", True])
def test_a_measurement_takes_some_time(seconds: Any) -> None:
    model: Any = None  # which is not asked before
    with pytest.raises(FeedError, match=r"^seconds: got"):
        bench(model, seconds=seconds)
