"""The C++ reader's goldens: arrays as NumPy reads them, the comparison as Python's, and files that somebody damaged."""

from __future__ import annotations

import hashlib
import io
import random
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cpp_builds import Build
from damaged_archives import ARCHIVES, BAD, archive, attacked, member, put

from attnport.bundling import golden
from attnport_bundle.goldens import compare
from attnport_bundle.manifest import Bound
from attnport_bundle.npz import read_npz

Array = np.ndarray[Any, Any]
Dump = Callable[[Path], tuple[int, str]]

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
def dump(cpp_build_asan: Build) -> Dump:
    """Exit code and output of the reader's own look at a file, which Python's takes or refuses too."""

    def run(path: Path) -> tuple[int, str]:
        done = cpp_build_asan.run("npz_dump", path)
        assert done.returncode in (0, 6), done.stderr
        assert done.returncode == in_python(path), done.stdout + done.stderr
        return done.returncode, done.stdout + done.stderr

    return run


def in_python(path: Path) -> int:
    try:
        read_npz(path.read_bytes())
    except Exception:  # what the Python reader takes for a refusal
        return 6
    return 0


def described(arrays: dict[str, Array]) -> str:
    """What `npz_dump` prints of arrays that it reads."""
    rows = []
    for name, array in arrays.items():
        digest = hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()
        rows.append(f"{name}|{array.dtype}|{list(array.shape)}|{digest}\n")
    return "".join(rows)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_what_numpy_saves_is_read(dump: Dump, tmp_path: Path, save: Any) -> None:
    save(tmp_path / "a.npz", **ARRAYS)
    assert dump(tmp_path / "a.npz") == (0, described(ARRAYS))


def test_what_a_bundle_carries_is_read(dump: Dump, tmp_path: Path) -> None:
    golden.write(tmp_path / "a.npz", ARRAYS)
    assert dump(tmp_path / "a.npz") == (0, described(dict(sorted(ARRAYS.items()))))


def test_an_archive_that_was_written_to_a_pipe_is_read(dump: Dump, tmp_path: Path) -> None:
    class Pipe(io.RawIOBase):
        data = b""

        def writable(self) -> bool:
            return True

        def write(self, chunk: Any) -> int:
            self.data += bytes(chunk)
            return len(chunk)

    pipe = Pipe()
    with zipfile.ZipFile(pipe, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("a.npy", member(ARRAYS["case/in/ids"]))
    (tmp_path / "a.npz").write_bytes(pipe.data)
    assert dump(tmp_path / "a.npz") == (0, described({"a": ARRAYS["case/in/ids"]}))


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_every_version_of_the_array_format_is_read(dump: Dump, tmp_path: Path, version: tuple[int, int]) -> None:
    data = io.BytesIO()
    np.lib.format.write_array(data, ARRAYS["case/in/x"], version=version)
    assert dump(archive(tmp_path / "a.npz", [("a.npy", data.getvalue())]))[0] == 0


def test_an_order_that_makes_no_difference_is_taken(dump: Dump, tmp_path: Path) -> None:
    array = np.arange(3.0).reshape(1, 3, 1)
    raw = member(array, **{"False": "True "})
    assert dump(archive(tmp_path / "a.npz", [("a.npy", raw)])) == (0, described({"a": array}))


@pytest.mark.parametrize("dtype", ["c16", "c8", "u1", "u2", "i2", "i1", "U32", ">f8", ">i4", "S3"])
def test_other_dtypes_are_called_what_numpy_calls_them(dump: Dump, tmp_path: Path, dtype: str) -> None:
    array = np.zeros(3, dtype)
    np.savez(tmp_path / "a.npz", a=array)
    assert dump(tmp_path / "a.npz") == (0, f"a|{array.dtype}|[]|-\n")


@pytest.mark.parametrize("name", BAD)
def test_members_that_are_no_plain_arrays_are_refused(dump: Dump, tmp_path: Path, name: str) -> None:
    code, words = dump(archive(tmp_path / "a.npz", [("good.npy", member(np.zeros(2))), ("a.npy", BAD[name]())]))
    assert (code, bool(words)) == (6, True), words


@pytest.mark.parametrize("name", ARCHIVES)
def test_archives_that_contradict_themselves_are_refused(dump: Dump, tmp_path: Path, name: str) -> None:
    code, words = dump(attacked(tmp_path, ARCHIVES[name]))
    assert (code, bool(words)) == (6, True), words


def test_a_name_that_is_there_twice_is_refused(dump: Dump, tmp_path: Path) -> None:
    one = member(np.zeros(3))
    with pytest.warns(UserWarning, match="Duplicate"):
        archive(tmp_path / "a.npz", [("a.npy", one), ("a.npy", one)])
    assert dump(tmp_path / "a.npz") == (6, "a name is there twice\n")
    assert dump(archive(tmp_path / "a.npz", [("a.npy", one), ("a", one)])) == (6, "a name is there twice\n")


def test_what_unpacks_to_too_much_is_refused_before_it_is_unpacked(dump: Dump, tmp_path: Path) -> None:
    path = archive(tmp_path / "a.npz", [("a.npy", bytes(1 << 20)), ("b.npy", b"")], zipfile.ZIP_DEFLATED)
    data = bytearray(path.read_bytes())
    put(24, "I", (1 << 30) + 1)(data)
    put(20, "I", 1 << 21)(data)  # or the ratio of the two would say it
    path.write_bytes(data)
    assert dump(path) == (6, f"it unpacks to more than {1 << 30} bytes\n")


def test_damaged_archives_give_an_error_or_an_answer_and_never_anything_else(dump: Dump, tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "whole.npz", **ARRAYS)
    data, chance, refused = (tmp_path / "whole.npz").read_bytes(), random.Random(20261121), 0
    for _ in range(60):
        broken = bytearray(data)
        for _ in range(chance.randint(1, 3)):
            broken[chance.randrange(len(broken))] = chance.randrange(256)
        (tmp_path / "a.npz").write_bytes(bytes(broken[: chance.choice([len(broken), chance.randrange(len(broken))])]))
        refused += dump(tmp_path / "a.npz")[0] == 6
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


def test_verdicts_and_words_are_those_of_the_python_reader(cpp_build_asan: Build, tmp_path: Path) -> None:
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
        wanted.append(f"{int(one.passed)}|{one.reason}|{errors[0]:.6e}|{errors[1]:.6e}".replace("-nan", "nan"))
    np.savez(tmp_path / "a.npz", **arrays)
    done = cpp_build_asan.run("golden_compare", tmp_path / "a.npz", *JUDGED)
    assert done.returncode == 0, done.stderr
    assert done.stdout.replace("-nan", "nan").splitlines() == wanted
    assert {line[0] for line in wanted} == {"0", "1"}
