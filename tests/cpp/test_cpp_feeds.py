"""What the C++ reader says of inputs, the masks that it makes and its casts, against the Python reader's."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from cpp_builds import Build

from attnport_bundle import feeds as python
from attnport_bundle.errors import BundleError
from attnport_bundle.feeds import from_file, to_file
from attnport_bundle.format.contract import IO, Dim, MaskSpec, TensorSpec
from attnport_bundle.runtimes import release

Say = Callable[[Sequence[str]], list[str]]
REFUSED = re.compile(r"(\d+) .*")
Feeds = Sequence[tuple[str, np.ndarray[Any, Any]]]
DIMS = (Dim("batch", 1, 2, 4), Dim("seq", 2, 3, 1 << 40))
OUTPUTS = (TensorSpec("y", "float32", ("batch",), None),)
LINE = IO(
    (
        TensorSpec("grown", "bool", ("batch", "2*seq+1"), None),
        TensorSpec("ids", "int64", ("batch", "seq"), 50),
        TensorSpec("kinds", "int32", ("batch", "seq"), 2),
        TensorSpec("bias", "float32", ("batch", 1, 3), None),
        TensorSpec("it's", "bool", ("seq",), None),
    ),
    OUTPUTS,
    DIMS,
    (),
)


@pytest.fixture(scope="module")
def say(cpp_build: Build) -> Say:
    """Gives lines to the program and returns its own."""

    def run(lines: Sequence[str]) -> list[str]:
        done = cpp_build.run("feed_calls", given="\n".join(lines) + "\n")
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    return run


def digits(text: str | bytes) -> str:
    return (text.encode() if isinstance(text, str) else text).hex()


def joined(parts: Sequence[object]) -> str:
    return ",".join(map(str, parts)) or "-"


def named(name: str | None) -> str:
    return "-" if name is None else digits(name)


def contract(io: IO) -> list[str]:
    """The lines that describe a contract."""

    def axes(spec: TensorSpec) -> str:
        return joined([f"#{dim}" if isinstance(dim, int) else digits(dim) for dim in spec.dims])

    return [
        "reset",
        *(f"dim {digits(dim.name)} {dim.min} {dim.max} {dim.step}" for dim in io.dims),
        *(f"input {digits(x.name)} {x.dtype} {axes(x)} {'-' if x.high is None else x.high}" for x in io.inputs),
        *(" ".join(["mask", named(m.input), joined(m.kinds), m.polarity, m.carries, named(m.keys)]) for m in io.masks),
    ]


def fed(feeds: Feeds) -> list[str]:
    return [
        f"feed {digits(name)} {array.dtype} {joined(array.shape)} {digits(array.tobytes()) or '.'}"
        for name, array in feeds
    ]


def arrays(**others: np.ndarray[Any, Any] | None) -> Feeds:
    """Inputs that fit `LINE`, but for those that are given; None leaves one out."""
    names = {"apostrophe": "it's"}
    found: dict[str, np.ndarray[Any, Any] | None] = {
        "grown": np.zeros((2, 7), bool),
        "ids": np.zeros((2, 3), np.int64),
        "kinds": np.zeros((2, 3), np.int32),
        "bias": np.zeros((2, 1, 3), np.float32),
        "apostrophe": np.zeros(3, bool),
        **others,
    }
    return [(names.get(name, name), array) for name, array in found.items() if array is not None]


def answer_of_python(io: IO, feeds: Feeds) -> str:
    try:
        python.check_feeds(io, dict(feeds))
    except BundleError as err:
        return f"{err.exit_code} {err}"
    return "fits " + " ".join(digits(spec.name) for spec in io.inputs)


def kinds(said: str) -> str:
    """An answer to compare: all of it, but of a refusal the exit code alone, since each reader has words of its own."""
    refused = REFUSED.fullmatch(said)
    return refused[1] if refused else said


def ids(*values: int, dtype: Any = np.int64) -> np.ndarray[Any, Any]:
    return np.array([*values, *([0] * (6 - len(values)))], dtype).reshape(2, 3)


CASES: dict[str, Feeds] = {
    "fits": arrays(),
    "other_order": list(reversed(arrays())),
    "missing": arrays(kinds=None),
    "nothing": [],
    "unknown": arrays(x=np.zeros(1, np.int64)),
    "unknown_and_missing": arrays(x=np.zeros(1, np.int64), ids=None),
    "dtype": arrays(ids=np.zeros((2, 3), np.float64)),
    "dtype_of_half": arrays(bias=np.zeros((2, 1, 3), np.float16)),
    "dtype_before_rank": arrays(ids=np.zeros(3, np.int32)),
    "rank": arrays(ids=np.zeros((2, 3, 1), np.int64)),
    "rank_0": arrays(ids=np.zeros((), np.int64)),
    "fixed_size": arrays(bias=np.zeros((2, 1, 4), np.float32)),
    "other_batch": arrays(bias=np.zeros((3, 1, 3), np.float32)),
    "other_seq_of_the_last": arrays(apostrophe=np.zeros(4, bool)),
    "too_large": arrays(ids=np.zeros((5, 3), np.int64)),
    "too_small": arrays(ids=np.zeros((2, 1), np.int64)),
    "other_computed_size": arrays(grown=np.zeros((2, 6), bool)),
    "no_element": arrays(ids=np.zeros((0, 3), np.int64)),
    "id_at_high": arrays(ids=ids(0, 49, 50)),
    "id_below_zero": arrays(ids=ids(0, 49, -1)),
    "ids_far_off": arrays(ids=ids(-(1 << 63), (1 << 63) - 1)),
    "id_largest": arrays(ids=ids(0, 0, 0, 0, 0, (1 << 63) - 1)),
    "id_least": arrays(ids=ids(0, 0, 0, 0, 0, -(1 << 63))),
    "int32_at_high": arrays(kinds=ids(1, 2, dtype=np.int32)),
    "int32_below_zero": arrays(kinds=ids(-(1 << 31), 1, dtype=np.int32)),
    "values_after_shapes": arrays(ids=ids(99), apostrophe=np.zeros(9, bool)),
}


def test_answers_are_those_of_python(say: Say) -> None:
    lines = [line for feeds in CASES.values() for line in [*contract(LINE), *fed(feeds), "check"]]
    wanted = {case: answer_of_python(LINE, feeds) for case, feeds in CASES.items()}
    said = dict(zip(CASES, say(lines), strict=True))
    assert {case: kinds(one) for case, one in said.items()} == {case: kinds(one) for case, one in wanted.items()}
    # A refusal names the tensor.
    assert all("input '" in one for one in said.values() if not one.startswith("fits"))
    assert sum(answer.startswith("fits") for answer in wanted.values()) == 2


@pytest.mark.parametrize("seq", [0, 1, 3, 4, 6, 8, 16, 20, 24, 40])
def test_sizes_and_steps_are_refused_alike(say: Say, seq: int) -> None:
    dims = (Dim("batch", 1, 2, 4), Dim("seq", 8, 8, 24, 4))
    io = IO((TensorSpec("ids", "int64", ("batch", "seq"), 9),), OUTPUTS, dims)
    feeds: Feeds = [("ids", np.zeros((2, seq), np.int64))]
    wanted = answer_of_python(io, feeds)
    assert wanted.startswith("fits") is (seq in (8, 16, 20, 24))
    (said,) = say([*contract(io), *fed(feeds), "check"])
    assert kinds(said) == kinds(wanted)
    assert ("--dim" in said) is (seq in (0, 4, 40))


def test_lengths_are_at_most_the_size_of_what_they_count(say: Say) -> None:
    specs = (TensorSpec("x", "float32", ("batch", "seq"), None), TensorSpec("n", "int64", ("batch",), None))
    io = IO(specs, OUTPUTS, DIMS, (MaskSpec(("padding",), "n", "keep", "upper_left", 0, "lengths", "seq"),))
    given: list[Feeds] = [[("x", np.zeros((2, 3), np.float32)), ("n", np.array([0, length]))] for length in (-1, 3, 4)]
    wanted = [answer_of_python(io, feeds) for feeds in given]
    assert [answer.startswith("fits") for answer in wanted] == [False, True, False]
    lines = [line for feeds in given for line in [*contract(io), *fed(feeds), "check"]]
    assert [kinds(one) for one in say(lines)] == [kinds(one) for one in wanted]


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("high", [1, 2, 50, (1 << 31) - 1, 1 << 31, (1 << 53) - 1])
def test_every_place_and_value_is_looked_at(say: Say, dtype: str, high: int) -> None:
    """One value that is off among many that fit, at every place of what a vector of the processor may hold."""
    io = IO((TensorSpec("x", dtype, (37,), high),), OUTPUTS, DIMS, ())
    info = np.iinfo(dtype)
    wanted, lines = [], contract(io)
    values = [info.min, -1, 0, high - 1, high, info.max]
    for place, value in itertools.product(range(37), (v for v in values if info.min <= v <= info.max)):
        array = np.zeros(37, dtype)
        array[place] = value
        wanted.append(answer_of_python(io, [("x", array)]))
        lines += [*contract(io), *fed([("x", array)]), "check"]
    assert [kinds(one) for one in say(lines)] == [kinds(one) for one in wanted]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("feed 6964 int64 2,3 -", "2 input 'id': got no memory for 6 elements."),
        (
            "feed 6964 int64 2,3 " + "00" * 47,
            "2 input 'id': got memory that is not aligned; expected a multiple of 8 bytes.",
        ),
    ],
)
def test_memory_that_no_array_of_python_has(say: Say, line: str, words: str) -> None:
    io = IO((TensorSpec("id", "int64", (2, 3), None),), OUTPUTS, DIMS, ())
    assert say([*contract(io), line, "check"]) == [words]


def test_a_name_that_is_there_twice(say: Say) -> None:
    feeds = [*arrays(), *arrays()[1:2]]
    assert say([*contract(LINE), *fed(feeds), "check"]) == ["2 input 'ids': it is there twice."]


def masked(dims: tuple[str | int, ...], dtype: str, polarity: Any, kinds: Any = ("padding",), **more: Any) -> IO:
    return IO(
        (TensorSpec("m", dtype, dims, None),), OUTPUTS, DIMS, (MaskSpec(kinds, "m", polarity, "upper_left", 0, **more),)
    )


FLOATS, WHOLE = ("float32", "float16", "float64"), ("int32", "int64", "bool")
FLAT, SQUARE, ROW = ("batch", "seq"), ("batch", 1, "seq", "seq"), ("batch", 1, 1, "seq")
MASKS: dict[str, IO] = {
    **{
        f"{dtype}_{polarity}_{len(dims)}": masked(dims, dtype, polarity)
        for dtype in (*FLOATS, *WHOLE)
        for polarity in ("keep", "hide", *(["additive"] if dtype in FLOATS else []))
        for dims in (FLAT, SQUARE, ROW)
    },
    "lengths": masked(("batch",), "int64", "keep", carries="lengths", keys="seq"),
    "lengths_32": masked(("batch",), "int32", "keep", carries="lengths", keys="seq"),
    "ids": masked(FLAT, "int64", "keep", ("documents", "padding"), carries="ids"),
    "more_than_padding": masked(FLAT, "int64", "keep", ("padding", "causal")),
    "no_rule_rank": masked(("batch", "seq", 3), "int64", "keep"),
    "no_rule_heads": masked(("batch", 2, "seq", "seq"), "int64", "keep"),
    "no_padding": masked(FLAT, "int64", "keep", ("causal",)),
    "in_no_input": IO(
        (TensorSpec("m", "int64", FLAT, None),), OUTPUTS, DIMS, (MaskSpec(("padding",), None, "keep", "upper_left", 0),)
    ),
}
LENGTHS: list[tuple[list[int], int | None]] = [
    ([3, 1], None), ([3, 0, 2], 5), ([4], 4), ([5], 4), ([-1, 2], None), ([], None), ([], 3), ([0, 0], None), ([0], 0),
]  # fmt: skip


def python_masks(io: IO, lengths: list[int], size: int | None) -> str:
    try:
        found = python.padding_masks(io, lengths, size)
    except BundleError as err:
        return f"{err.exit_code} {err}"
    shown = [
        f"{digits(name)} {a.dtype} {''.join(f'{size},' for size in a.shape)} {digits(a.tobytes())}"
        for name, a in found.items()
    ]
    return " ".join(["masks", *shown])


def test_masks_are_those_of_python(say: Say) -> None:
    asked = [(name, io, *given) for name, io in MASKS.items() for given in LENGTHS]
    lines: list[str] = []
    for _, io, lengths, size in asked:
        lines += [*contract(io), f"masks {joined(lengths)} {'-' if size is None else size}"]
    wanted: Mapping[Any, str] = {(n, str(x), s): python_masks(io, x, s) for n, io, x, s in asked}
    assert [kinds(one) for one in say(lines)] == [kinds(one) for one in wanted.values()]
    assert sum(answer.startswith("masks") for answer in wanted.values()) == 99


@pytest.mark.parametrize("size", [1 << 31, 1 << 61, (1 << 63) - 1])
def test_a_mask_larger_than_memory_is_refused(say: Say, size: int) -> None:
    (said,) = say([*contract(masked(SQUARE, "float64", "keep")), f"masks 1 {size}"])
    assert said.startswith("2 ")


def numbers(dtype: str) -> np.ndarray[Any, Any]:
    """Every half, or many floats: of every size, at and beside where halves end, and in the middle of two of them."""
    if dtype in ("float16", "bfloat16"):
        return np.arange(1 << 16, dtype=np.uint16).view(np.float16 if dtype == "float16" else ml_dtypes.bfloat16)
    with np.errstate(invalid="ignore"):  # NaNs that signal
        halves = [numbers(half).astype(np.float64) for half in ("float16", "bfloat16")]
    finite = np.concatenate([half[np.isfinite(half)] for half in halves])
    middles = (finite[1:] + finite[:-1]) / 2
    near = np.concatenate([np.nextafter(middles, np.inf), np.nextafter(middles, -np.inf)])
    random = np.random.default_rng(0).integers(0, 1 << 64, 50_000, dtype=np.uint64).view(np.float64)
    special = np.array([np.nan, np.inf, -np.inf, 65504, 65519.9, 65520, 2**-24, 2**-25, 1.0000001 * 2**-25, 1e300])
    with np.errstate(over="ignore", invalid="ignore"):
        return np.concatenate([finite, middles, near, random, special]).astype(dtype)


@pytest.mark.parametrize(("source", "wanted"), list(itertools.permutations([*FLOATS, "bfloat16"], 2)))
def test_casts_are_those_of_python(say: Say, source: str, wanted: str) -> None:
    values = numbers(source)
    bits = values.view(np.uint16) if source == "bfloat16" else values
    (said,) = say([f"cast {source} {wanted} {digits(values.tobytes())}"])
    with np.errstate(over="ignore", invalid="ignore"):
        plain = from_file(bits, source, "float32") if source == "bfloat16" else values
        expected = to_file(plain, wanted)
    found = np.frombuffer(bytes.fromhex(said.split()[-1]), expected.dtype)
    kind = ml_dtypes.bfloat16 if wanted == "bfloat16" else expected.dtype
    with np.errstate(invalid="ignore"):
        not_numbers = np.isnan(expected.view(kind).astype(np.float64))
        kept = np.isnan(found.view(kind)[not_numbers].astype(np.float64))
    np.testing.assert_array_equal(
        found[~not_numbers].view(f"u{found.itemsize}"), expected[~not_numbers].view(f"u{found.itemsize}")
    )
    assert kept.all()
    assert kept.size


def test_releases_are_read_as_in_python(say: Say) -> None:
    texts = ["1.31.1", "1.28", "2026.4.1-22981-abc", "1.31.0.dev20260101+cpu", "x", "1..2", "1.2.3.4", "v1.2rc3", "1-2"]
    wanted = [" ".join(["release", *map(str, release(text))]) for text in texts]
    assert say([f"release {text}" for text in texts]) == wanted
