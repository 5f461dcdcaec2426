"""What a verb needs before its own work: runtimes that are installed, and the forms that they open."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from attnport.artifacts import Capabilities
from attnport.errors import ArtifactError, ExportError, UnavailableError
from attnport.exporter.targets import base as lowerings
from attnport.folder.machine import versions
from attnport.folder.workspace import check_source, open_folder
from attnport.processes.isolated import Limits, probe_all
from attnport.runtimes import base
from attnport.runtimes.base import Runtime


def ready(folder: Path, names: Sequence[str], progress: Callable[[str], None], plan: str | None = None) -> None:
    """Writes the forms of runtimes that a user named, as `fuse` does, where the folder has none for them.

    Where none is named and there is no form at all, those of the processor are written: else nothing that is deployed
    would be judged. Engines, bundles and forms that have to be searched are not made, nor is a form for a runtime that
    cannot run here.

    Args:
        names: Runtimes, also with a precision, as `openvino.bf16`; empty = as said.
        plan: The precision of names that do not tell it; None = the default of `fuse`, which is the row of that name
            in every table: other precisions that are there are judged too.

    Raises:
        UsageError: there is no such runtime.
        UnavailableError: none of the runtimes is installed. Where one is, the others are NOT_RUN in the result.
        SpecError: the source is not what was exported.
        ArtifactError, IntegrityError, ExportError: as `fuse`.
    """
    lacking, absent = list[tuple[Runtime, str]](), dict[str, Capabilities]()
    usual = [] if names or open_folder(folder).forms else [one.name for one in base.chosen(()) if not one.gpu]
    for name in names or usual:
        key = base.Key.parse(name)
        runtime, named = base.get(key.runtime), key.precision
        # NVIDIA's libraries are used by several packages, and tell nothing about one of them.
        if not versions(each for each in runtime.distributions if not each.startswith("nvidia")):
            found = runtime.probe()
            if not found.available:
                absent[name] = found
                continue
        if runtime.opens == "onnx" and runtime.form and lacks(folder, runtime.form, named or plan or ""):
            lacking.append((runtime, named or plan or ""))
    if names and len(absent) == len(set(names)):
        name, found = next(iter(absent.items()))
        raise UnavailableError(f"{name} was not run: {found.reason.rstrip('.')}.", hint=found.hint)
    probed = probe_all(list({runtime for runtime, _ in lacking}), Limits()) if lacking else {}
    if lacking:
        check_source(open_folder(folder))
    for runtime, each in lacking:
        if not probed[runtime.name].available:
            continue
        try:
            write_form(folder, runtime.form, each, progress)
        except (ArtifactError, ExportError) as err:  # as of a graph that the runtime cannot compile
            if names:
                raise
            # The others are judged all the same, and this one is NOT_RUN without its form.
            logging.getLogger("attnport").warning(f"the form {runtime.form} was not written: {err.message}")


def lacks(folder: Path, target: str, plan: str) -> bool:
    """Whether a folder has no form of a target that `fuse` can write, in a precision; "" = the default of `fuse`."""
    there = {form.plan for form in open_folder(folder).forms.values() if form.target == target}
    plans = lowerings.get(target).plans
    return (plan or plans[0]) not in there and (not plan or plan in plans)


def write_form(folder: Path, target: str, plan: str, progress: Callable[[str], None]) -> None:
    """Writes a form that a folder lacks, and says so on the logger `attnport`; raises as `fuse`."""
    from attnport.verbs.fuse import fuse

    lowering = lowerings.get(target)
    plan = plan or lowering.plans[0]
    logging.getLogger("attnport").warning(f"{folder} has no form {lowering.form_key(plan)}, so it is written first")
    fuse(folder, [f"{target}.{plan}"], progress=progress)
