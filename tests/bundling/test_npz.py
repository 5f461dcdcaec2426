"""Golden arrays in an archive: what NumPy writes is read, and what is packed otherwise or contradicts itself is not."""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from damaged_archives import ARCHIVES, BAD, archive, attacked, member

from attnport.bundling import golden
from attnport_bundle.npz import read_npz

ARRAYS: dict[str, np.ndarray[Any, Any]] = {
    "case/in/ids": np.arange(6, dtype=np.int64).reshape(2, 3),
    "case/in/half": np.array([1.5, -0.25], dtype=np.float16),
    "case/in/gr\u00f6\u00dfe": np.array(4.5),
    "case/valid/y": np.array([[True], [False]]),
    "case/out/y": np.zeros((2, 0, 3)),
}

REFUSALS = (ValueError, EOFError, struct.error, zlib.error)


def check(found: dict[str, np.ndarray[Any, Any]]) -> None:
    assert set(found) == set(ARRAYS)
    for name, array in ARRAYS.items():
        assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape)
        assert np.array_equal(found[name], array)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed, lambda path, **arrays: golden.write(path, arrays)])
def test_what_numpy_or_a_bundle_saves_is_read(save: Any, tmp_path: Path) -> None:
    save(tmp_path / "a.npz", **ARRAYS)
    check(read_npz((tmp_path / "a.npz").read_bytes()))


def test_an_archive_that_was_written_to_a_pipe_is_read() -> None:
    class Pipe(io.RawIOBase):
        data = b""

        def writable(self) -> bool:
            return True

        def write(self, chunk: Any) -> int:
            self.data += bytes(chunk)
            return len(chunk)

    pipe = Pipe()
    with zipfile.ZipFile(pipe, "w", zipfile.ZIP_DEFLATED) as file:  # type: ignore[arg-type]
        for name, array in ARRAYS.items():
            file.writestr(f"{name}.npy", member(array))
        file.comment = b"PK\5\6 is how the last record of an archive begins"
    check(read_npz(pipe.data))


def test_what_the_damages_start_from_is_read(tmp_path: Path) -> None:
    found = read_npz(attacked(tmp_path, lambda data: None).read_bytes())
    assert {name: array.tolist() for name, array in found.items()} == {"a": [0, 0, 0], "b": [1, 1, 1]}


@pytest.mark.parametrize("name", ARCHIVES)
def test_archives_that_contradict_themselves_or_are_packed_otherwise_are_refused(name: str, tmp_path: Path) -> None:
    data = attacked(tmp_path, ARCHIVES[name]).read_bytes()
    with pytest.raises(REFUSALS):
        read_npz(data)


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_what_python_could_unpack_beside_is_refused_by_its_method(method: int, tmp_path: Path) -> None:
    path = archive(tmp_path / "a.npz", [("a.npy", member(np.zeros(3)))], method)
    with pytest.raises(ValueError, match=r"'a.npy': neither stored nor deflated"):
        read_npz(path.read_bytes())


@pytest.mark.parametrize("name", BAD)
def test_members_that_are_no_plain_arrays_are_refused(name: str, tmp_path: Path) -> None:
    path = archive(tmp_path / "a.npz", [("good.npy", member(np.zeros(2))), ("a.npy", BAD[name]())])
    with pytest.raises(REFUSALS):
        read_npz(path.read_bytes())


def test_a_name_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    path = archive(tmp_path / "a.npz", [("a.npy", member(np.zeros(3))), ("a", member(np.ones(3)))])
    with pytest.raises(ValueError, match="a name is there twice"):
        read_npz(path.read_bytes())


def test_a_member_that_unpacks_to_more_than_it_says_is_not_unpacked_whole(tmp_path: Path) -> None:
    path = archive(tmp_path / "a.npz", [("a.npy", bytes(1 << 20))], zipfile.ZIP_DEFLATED)
    data = bytearray(path.read_bytes())
    entry = data.index(b"PK\1\2")
    data[entry + 24 : entry + 28] = (1 << 10).to_bytes(4, "little")
    with pytest.raises(ValueError, match="it does not unpack to its size"):
        read_npz(bytes(data))
