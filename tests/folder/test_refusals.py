"""Errors of files that a user can mend are told as such; others stay what they are."""

from __future__ import annotations

import errno
import tempfile
from pathlib import Path

import pytest

from attnport.folder.refusals import as_usage_error


@pytest.mark.parametrize(
    "err",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        OSError("problem writing element 1024 to file"),  # what NumPy raises
        OSError("1024 requested and 496 written"),  # what it raises too
    ],
)
def test_a_full_disk_is_told(err: OSError) -> None:
    told = as_usage_error(err)
    assert told is not None
    assert told.message == "No space left on device; what was there before is untouched."
    assert "Free some space" in told.hint


def test_an_error_of_another_kind_is_none_of_the_users() -> None:
    assert as_usage_error(OSError(errno.EBADF, "Bad file descriptor")) is None
    assert as_usage_error(OSError("something else")) is None


def test_no_place_for_temporary_files_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: [str(tmp_path / "none")])
    monkeypatch.setattr(tempfile, "tempdir", None)
    with pytest.raises(FileNotFoundError) as caught:
        tempfile.gettempdir()
    told = as_usage_error(caught.value)
    assert told is not None
    assert str(tmp_path / "none") in told.message
    assert "TMPDIR" in told.hint
    assert as_usage_error(FileNotFoundError(errno.ENOENT, "No such file or directory", "weights.bin")) is None
