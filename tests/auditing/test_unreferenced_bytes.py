"""Bytes of a weights file that no tensor takes are found, unless they are the zeros of an alignment."""

from __future__ import annotations

from pathlib import Path

import pytest

from attnport.auditing.onnx_file import Range, audit_unreferenced, gaps


def taken(*ranges: tuple[int, int | None]) -> list[Range]:
    return [Range("w.bin", begin, end) for begin, end in ranges]


@pytest.mark.parametrize(
    ("ranges", "expected"),
    [
        ([], [(0, 100)]),
        ([(0, 100)], []),
        ([(0, None)], []),
        ([(10, 20), (40, 100)], [(0, 10), (20, 40)]),
        ([(40, 100), (0, 50)], []),
        ([(0, 90), (10, 20)], [(90, 100)]),
        ([(0, 500)], []),
        ([(400, 500)], [(0, 100)]),
    ],
)
def test_the_gaps_of_a_file(ranges: list[tuple[int, int | None]], expected: list[tuple[int, int]]) -> None:
    assert list(gaps(taken(*ranges), 100)) == expected


def test_only_bytes_that_are_not_zero_count(tmp_path: Path) -> None:
    path = tmp_path / "w.bin"
    path.write_bytes(b"\1" * 10 + b"\0" * 90)
    assert not list(audit_unreferenced("w.bin", path, taken((0, 10))))
    path.write_bytes(b"\1" * 10 + b"\0" * (3 << 20) + b"the key is under the mat" + b"\0" * 100)
    (finding,) = audit_unreferenced("w.bin", path, taken((0, 10)))
    assert finding.kind == "unreferenced_bytes"
    assert finding.evidence.startswith(f"at {10 + (3 << 20)}: the key is under the mat")
    assert not finding.fixable
