"""`inspect` on a bundle: what it holds, and that a damaged one is refused with the exit code of what is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from attnport.console.terminal import shown
from attnport.errors import BundleError, IntegrityError
from attnport.verbs.inspect import inspect
from attnport_bundle.format.manifest import VERSION, read


def test_a_bundle_is_described_with_its_preferred_model(app: Path) -> None:
    found = inspect(app)
    assert found.kind == "bundle"
    assert found.source
    assert any(name.endswith(".onnx") for name in found.files)
    assert found.graph is not None
    assert found.graph.operators
    assert found.size_bytes == sum((app / name).stat().st_size for name in found.files)
    assert all(name.startswith("parity of ") for name in found.verdicts)
    manifest = read(app)
    assert [one.name for one in found.deploy] == list(manifest.order)
    first = manifest.forms[manifest.order[0]]
    assert found.deploy[0].files == {file: (app / file).stat().st_size for file in (first.file, *first.external)}
    text = shown(found)
    assert all(len(line) <= 80 for line in text.splitlines() if str(app) not in line)
    assert f"next:\n  attnport verify {app}\n" in text
    assert text.index("next:") < text.index("SHA-256")
    assert "python/attnport_bundle" not in text  # the files of the reader are a number


def test_a_changed_file_of_a_bundle_is_an_integrity_error(app: Path) -> None:
    model = next(app.rglob("*.onnx"))
    data = bytearray(model.read_bytes())
    data[len(data) // 2] ^= 1
    model.write_bytes(data)
    with pytest.raises(IntegrityError, match="SHA-256"):
        inspect(app)


def test_an_added_file_of_a_bundle_is_an_integrity_error(app: Path) -> None:
    (app / "extra.txt").touch()
    with pytest.raises(IntegrityError, match="not part of the bundle"):
        inspect(app)


def test_a_bundle_of_a_later_version_is_an_error_that_says_so(app: Path) -> None:
    manifest = app / "bundle.json"
    manifest.write_text(manifest.read_text().replace(f'"version": {VERSION}', '"version": 99', 1))
    with pytest.raises(BundleError, match="version 99"):
        inspect(app)
