"""The form of the plan `auto`: searched, written, and kept until something changes that the search depends on."""

from __future__ import annotations

import time
from pathlib import Path

from attnport.artifacts import AUTO, Manifest
from attnport.exporter.lowering.base import Lowering
from attnport.folder.workspace import change, check_files, fresh, open_folder, toolchain
from attnport.jsonfile import digest_text
from attnport.parity.auto_precision import plan_precision
from attnport.parity.evaluate import Progress
from attnport.verbs import fuse as fusing
from attnport.verbs.export import MODEL, WEIGHTS

_PACKAGES = ("numpy", "onnx", "onnx_ir", "onnxscript", "torch", "transformers")


def write_form(folder: Path, lowering: Lowering, budget: float, *, force: bool, progress: Progress) -> None:
    """Searches the islands of a target's form and writes it; does nothing when the same was done before.

    Args:
        folder: An artifact folder.
        lowering: The target.
        budget: As in `plan_precision`.
        force: Search even when nothing changed.

    Raises:
        As `plan_precision` and `fuse`.
    """
    began_s = time.monotonic()
    manifest = open_folder(folder)
    key = lowering.form_key(AUTO)
    stage, digest = f"precision:{key}", _digest(manifest, key, budget)
    form = manifest.forms.get(key)
    if not force and form is not None and form.precision is not None and fresh(folder, manifest, stage, digest):
        return
    check_files(folder, manifest, *(name for name in (MODEL, WEIGHTS) if name in manifest.files))
    progress(f"{key}: searching what has to stay in float32")
    found = plan_precision(folder, manifest, lowering, budget=budget, progress=progress)
    fusing.fuse_searched(folder, lowering, found, force=force, progress=progress)
    with change(folder) as edit:
        assert edit.manifest is not None
        edit.began(began_s)
        form = edit.manifest.forms[key]
        beside = form.file.removesuffix(".onnx") + ".bin"
        edit.finish(stage, digest, extra=tuple(name for name in (form.file, beside) if name in edit.manifest.files))


def _digest(manifest: Manifest, key: str, budget: float) -> str:
    """Everything that a search depends on."""
    used = (manifest.files.get(MODEL, ""), manifest.files.get(WEIGHTS, ""))
    return digest_text(toolchain(*_PACKAGES), key, str(budget), str(manifest.source), str(manifest.io), *used)
