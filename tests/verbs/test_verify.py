"""What `verify` says of an artifact folder whose files are not those that were written."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from refusing import call

from attnport.errors import IntegrityError, ParityFailed
from attnport.verbs.verify import VerifyResult, VerifyRow, raise_for, verify


@pytest.mark.parametrize(
    ("harm", "told"),
    [("change", "changed: its SHA-256 is not that of the manifest"), ("remove", "missing"), ("link", "a link")],
)
def test_a_file_that_is_not_the_one_that_was_written_is_told_once(
    harm: str, told: str, tiny_artifact: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(tiny_artifact, tmp_path / "folder"))
    victim = folder / "model.onnx"
    if harm == "change":
        victim.write_bytes(victim.read_bytes() + b"x")
    else:
        victim.rename(tmp_path / "elsewhere.onnx")
    if harm == "link":
        victim.symlink_to(tmp_path / "elsewhere.onnx")
    found = verify(folder)
    assert [(row.check, row.detail) for row in found.rows if row.verdict == "FAIL"] == [("model.onnx", told)]
    with pytest.raises(IntegrityError) as raised:
        raise_for(found)
    assert raised.value.message == f"{folder} is not what was written: model.onnx: {told}."


def test_names_that_no_terminal_should_see_are_escaped(tiny_artifact: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(tiny_artifact, tmp_path / "folder"))
    for name in ("\udcff.txt", "\x1b[31mred"):
        (folder / name).write_text("added")
    result = call("verify", folder)
    assert result.exit_code == 0
    assert "\x1b[31mred" not in result.output
    rows = {row.check for row in verify(folder).rows if row.verdict == "NOT_RUN"}
    assert rows == {r"'\udcff.txt'", r"'\x1b[31mred'"}


def test_other_numbers_are_not_told_as_changed_files() -> None:
    rows = (VerifyRow("files", "PASS", "5 files"), VerifyRow("ort_cpu one y", "FAIL", "over its bound"))
    with pytest.raises(ParityFailed) as raised:
        raise_for(VerifyResult("app", "bundle", "FAIL", 4, rows))
    assert "not what was written" not in raised.value.message
    assert "ort_cpu one y: over its bound" in raised.value.message


def test_an_artifact_passes_by_its_files_alone_and_says_what_judges_its_numbers(tiny_artifact: Path) -> None:
    assert f"judged by:\n  attnport check {tiny_artifact}\n" in call("verify", tiny_artifact).stdout
