"""The C++ reader's goldens: arrays and comparison as Python's, and files that somebody damaged."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from cpp_builds import Build
from damaged_safetensors import BAD, GOOD

from attnport.bundling import golden
from attnport_bundle import IntegrityError
from attnport_bundle.format.manifest import Bound
from attnport_bundle.goldens import compare, read_safetensors

Array = np.ndarray[Any, Any]
Dump = Callable[[bytes], tuple[int, str]]

ARRAYS: dict[str, Array] = {
    "case/in/ids": np.arange(6, dtype=np.int64).reshape(2, 3),
    "case/in/lengths": np.array([1, 2], dtype=np.int32),
    "case/in/half": np.array([1.5, -0.25], dtype=np.float16),
    "case/in/x": np.linspace(0, 1, 7, dtype=np.float32),
    "case/in/gr\u00f6\u00dfe": np.array(4.5),
    "case/valid/y": np.array([[True], [False]]),
    "case/out/y": np.zeros((2, 0, 3)),
}


@pytest.fixture
def dump(cpp_build: Build, tmp_path: Path) -> Dump:
    """Exit code and output of the reader's own look at a file, which Python's takes or refuses too."""

    def run(data: bytes) -> tuple[int, str]:
        (tmp_path / "goldens").write_bytes(data)
        done = cpp_build.run("safetensors_dump", tmp_path / "goldens")
        assert done.returncode in (0, 6), done.stderr
        assert done.returncode == in_python(data), done.stdout + done.stderr
        return done.returncode, done.stdout + done.stderr

    return run


def in_python(data: bytes) -> int:
    try:
        read_safetensors(data, "goldens")
    except IntegrityError as err:
        return err.exit_code
    return 0


def described(arrays: dict[str, Array]) -> set[str]:
    """What `safetensors_dump` prints of arrays that it reads."""
    return {
        f"{name}|{array.dtype}|{list(array.shape)}|{hashlib.sha256(array.tobytes()).hexdigest()}"
        for name, array in arrays.items()
    }


def test_what_the_library_of_the_format_or_a_bundle_writes_is_read(dump: Dump, tmp_path: Path) -> None:
    golden.write(tmp_path / "bundled", ARRAYS)
    for data in (safetensors.numpy.save(ARRAYS, {"format": "np"}), (tmp_path / "bundled").read_bytes()):
        code, lines = dump(data)
        assert (code, set(lines.splitlines())) == (0, described(ARRAYS))


def test_what_the_damages_start_from_is_read(dump: Dump) -> None:
    assert dump(GOOD)[0] == 0


@pytest.mark.parametrize("name", BAD)
def test_files_that_are_damaged_or_contradict_themselves_are_refused(dump: Dump, name: str) -> None:
    code, words = dump(BAD[name])
    assert (code, words[:9]) == (6, "goldens: ")


def test_damaged_files_give_an_error_or_an_answer_and_never_anything_else(dump: Dump) -> None:
    data, chance, refused = safetensors.numpy.save(ARRAYS), random.Random(20261121), 0
    for _ in range(60):
        broken = bytearray(data)
        for _ in range(chance.randint(1, 3)):
            broken[chance.randrange(len(broken))] = chance.randrange(256)
        refused += dump(bytes(broken[: chance.choice([len(broken), chance.randrange(len(broken))])]))[0] == 6
    assert refused > 40


# --- the comparison -----------------------------------------------------------------------------------------------

OUT = np.linspace(-1, 1, 24).reshape(2, 3, 4)
INDEX = np.arange(24).reshape(OUT.shape)
VALID = np.array([[True, True, True], [True, False, False]])
JUDGED: dict[str, tuple[Array | None, Array, Array, tuple[float, float]]] = {
    "right": (OUT.astype(np.float32), OUT, VALID, (1e-6, 2e-6)),
    "padding": (np.where(VALID[..., None], OUT, 1e9), OUT, VALID, (1e-6, 2e-6)),
    "rms": (OUT + 1.5e-6, OUT, VALID, (1e-6, 2e-6)),
    "max": (OUT + np.where(INDEX == 5, 2.5e-6, 0), OUT, VALID, (1e-6, 2e-6)),
    "nan": (np.where(OUT[0, 0, 0] == OUT, np.nan, OUT), OUT, VALID, (1e-6, 2e-6)),
    "inf in padding": (np.where(OUT[1, 2, 0] == OUT, np.inf, OUT), OUT, VALID, (1e-6, 2e-6)),
    "half inf": (np.array([1, np.inf, np.nan], np.float16), np.ones(3), np.ones(3, bool), (1, 1)),
    "shape": (OUT[:, :2], OUT, VALID, (1e-6, 2e-6)),
    "rank": (OUT.reshape(24), OUT, VALID, (1e-6, 2e-6)),
    "missing": (None, OUT, VALID, (1e-6, 2e-6)),
    "none valid": (OUT, OUT, np.zeros((2, 3), bool), (1, 1)),
    "valid of other shape": (OUT, OUT, np.ones((2, 4), bool), (1, 1)),
    "valid of higher rank": (np.ones(2), np.ones(2), np.ones((2, 1), bool), (1, 1)),
    "valid for all": (np.array(1.5), np.array(1.25), np.array(True), (1, 1)),
    "valid of rank 0": (OUT + 0.5, OUT, np.array(True), (1, 1)),
    "empty": (np.zeros((0, 4)), np.zeros((0, 4)), np.zeros(0, bool), (1, 1)),
    "empty inside": (np.zeros((2, 0)), np.zeros((2, 0)), np.ones(2, bool), (1, 1)),
    "reference nan": (OUT, np.full_like(OUT, np.nan), VALID, (1e300, 1e300)),
    "reference inf": (OUT, np.full_like(OUT, np.inf), VALID, (1e300, 1e300)),
    "square overflows": (OUT, np.full_like(OUT, 1e300), VALID, (1e308, 1e308)),
    "sum overflows": (OUT * 0, np.full_like(OUT, 1.2e154), VALID, (1e308, 1e308)),
    "integers": (np.array([1, 2, -3]), np.array([1.0, 2.0, -3.0]), np.ones(3, bool), (0, 0)),
    "integers off": (np.array([1, 2, -3], np.int32), np.array([1.0, 2.0, -4.0]), np.ones(3, bool), (0, 0)),
    "booleans": (np.array([True, False]), np.array([1.0, 0.0]), np.ones(2, bool), (0, 0)),
    "just in": (np.array([0.5]), np.array([0.0]), np.ones(1, bool), (0.5, 0.5)),
    "just over": (np.array([0.5]), np.array([0.0]), np.ones(1, bool), (0.5, np.nextafter(0.5, 0))),
    "denormal": (np.array([5e-324]), np.array([0.0]), np.ones(1, bool), (0, 1)),
}  # fmt: skip


def test_verdicts_and_errors_are_those_of_the_python_reader(cpp_build: Build, tmp_path: Path) -> None:
    arrays, wanted = {}, []
    for name, (got, out, valid, bounds) in JUDGED.items():
        arrays |= {
            f"{name}/out": np.asarray(out, float),
            f"{name}/valid": valid,
            f"{name}/bounds": np.array(bounds, float),
        }
        arrays |= {} if got is None else {f"{name}/got": np.ascontiguousarray(got).reshape(got.shape)}
        with np.errstate(all="ignore"):
            one = compare(Bound(name, "y", "fp32", *bounds), got, np.asarray(out, float), valid)
        errors = [-1 if error is None else error for error in (one.rms_error, one.max_error)]
        wanted.append(f"{int(one.passed)}|{errors[0]:.6e}|{errors[1]:.6e}".replace("-nan", "nan"))
    safetensors.numpy.save_file(arrays, tmp_path / "a")
    done = cpp_build.run("golden_compare", tmp_path / "a", *JUDGED)
    assert done.returncode == 0, done.stderr
    found = [line.split("|") for line in done.stdout.replace("-nan", "nan").splitlines()]
    assert [f"{passed}|{rms}|{largest}" for passed, _, rms, largest in found] == wanted
    assert all((passed == "1") is not bool(reason) for passed, reason, _, _ in found)
    assert {line[0] for line in wanted} == {"0", "1"}
