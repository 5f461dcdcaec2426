"""Errors of files that a user can mend are told as such; others stay what they are."""

from __future__ import annotations

import errno

import pytest

from attnport.pipeline.refusals import as_usage_error


@pytest.mark.parametrize(
    "err",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        OSError("problem writing element 1024 to file"),  # what NumPy raises
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
