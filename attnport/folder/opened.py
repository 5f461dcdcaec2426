"""Opens an artifact folder in a runtime, for a program that runs it."""

from __future__ import annotations

from pathlib import Path

from attnport.artifacts import INTEGERS, PLANS, Manifest, Session
from attnport.errors import UnavailableError
from attnport.folder.openings import model_openings, not_in, why_none
from attnport.folder.workspace import check_files, load_spec
from attnport.runtimes import base
from attnport.runtimes.base import Opening


def opened(folder: Path, manifest: Manifest, name: str, threads: int | None = None) -> Session:
    """A session of the folder's model in a runtime; of several forms, the first in its usual precision.

    Args:
        name: The runtime's, or that of a form in another precision as reports have it, such as `openvino.bf16`.

    Raises:
        UsageError: there is no such runtime.
        UnavailableError: it is not available here, or the folder holds nothing for it.
        IntegrityError: a file is not the one that was written.
        SpecError: the runtime runs the module itself, which changed or cannot be loaded.
    """
    own, _, plan = name.replace("-", "_").partition(".")
    runtime = base.get(own)
    found = base.available(runtime)
    if runtime.opens == "module":
        return runtime.open(Opening(manifest.io, spec=load_spec(manifest), threads=threads))
    openings = model_openings(runtime, folder, manifest, found.plans, threads)
    opening = openings.get(f"{own}.{plan}" if plan else own) or (None if plan else next(iter(openings.values()), None))
    if opening is None:
        form = plan if plan in (*PLANS, *INTEGERS) else None
        why = (form and not_in(found, form)) or why_none(runtime, form)
        there = f"; there is {', '.join(openings)}" if openings else ""
        raise UnavailableError(f"{name} has nothing to open in {folder}: {why}{there}.")
    check_files(folder, manifest, *(file for file in manifest.files if (folder / file).suffix in (".onnx", ".bin")))
    if opening.model is not None:
        check_files(folder, manifest, opening.model.relative_to(folder).as_posix())
    return runtime.open(opening)
