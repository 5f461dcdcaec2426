"""For the tests of those who write modules: that a module computes the same in other runtimes."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn

    from attnport.artifacts import ModelSpec, ParityReport


def assert_parity(
    module: str | nn.Module | ModelSpec,
    args: Any = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    runtimes: str | Sequence[str] = ("ort_cpu",),
    **options: Any,
) -> ParityReport:
    """Exports a module into a temporary folder and compares the runtimes' outputs with a float64 run of the module.

    Args:
        module, args, kwargs: As of `attnport.export`.
        runtimes: Names. Each must be available here, and pass.
        options: Further arguments of `attnport.export`, such as `inputs` and `dims`.

    Returns:
        The report.

    Raises:
        AssertionError: a runtime or a form fails, or a runtime was not run; the message is the table of `check`.
        UnavailableError: none of the runtimes is installed.
        UsageError, SpecError, ExportError: the module cannot be exported.
    """
    from attnport.artifact import export
    from attnport.folder.workspace import rows_of
    from attnport.runtimes import base

    names = [base.get(name).name for name in ([runtimes] if isinstance(runtimes, str) else runtimes)]
    forms = dict.fromkeys(base.get(name).form for name in names if base.get(name).form)
    with tempfile.TemporaryDirectory(prefix="attnport-parity-") as scratch:
        artifact = export(module, Path(scratch) / "artifact", args=args, kwargs=kwargs, **options)
        if forms:
            artifact.fuse(tuple(forms))
        report = artifact.check(names)
    rows = rows_of(report, *map(base.Key, names)).values()
    absent = report.absent.keys() & set(names)
    failed = any(row.verdict == "FAIL" for row in report.forms.values())
    if absent or failed or any(row.verdict != "PASS" for row in rows):
        raise AssertionError(f"{', '.join(names)}: not within the bound of a float64 run\n{report}")
    return report
