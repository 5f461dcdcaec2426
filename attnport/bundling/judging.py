"""The parity and fusion of the backends of a bundle, and whether they may be bundled."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from attnport.artifacts import FusionReport, Manifest, ParityReport, RuntimeParity, Verdict
from attnport.bundling.backends import Backend
from attnport.bundling.write import Judged
from attnport.errors import ParityFailed
from attnport.jsonfile import read

PARITY, FUSION = "parity.json", "fusion.json"


def judge(folder: Path, manifest: Manifest, backends: Sequence[Backend], parity: ParityReport | None) -> list[Judged]:
    """The backends with their verdicts; raises as `jsonfile.read`.

    Args:
        parity: The report as far as it is still true of the folder: `folder.verdicts.read_parity`.
    """
    fusion = read(FusionReport, folder / FUSION) if FUSION in manifest.files else None
    judged = []
    for backend in backends:
        runtime, graph = _verdicts(manifest, parity, backend)
        verdicts = (runtime.verdict, graph.verdict)
        verdict: Verdict = "FAIL" if "FAIL" in verdicts else "PASS" if "PASS" in verdicts else "NOT_RUN"
        decided = [parity_of_backend for parity_of_backend in (runtime, graph) if parity_of_backend.verdict == verdict]
        reason = "; ".join(
            dict.fromkeys(parity_of_backend.reason for parity_of_backend in decided if parity_of_backend.reason)
        )
        measured = decided[0] if verdict == "PASS" else None
        judged.append(Judged(backend, verdict, *verdicts, reason, measured, backend.table(fusion)))
    return judged


def gate(folder: Path, judged: Sequence[Judged], unverified: bool) -> None:
    """Raises ParityFailed if one failed, or if one was not run and `unverified` is false."""
    for backend_judged in judged:
        kind = "engine" if backend_judged.backend.engine else "form"
        if backend_judged.verdict == "FAIL":
            raise ParityFailed(
                f"{kind} {backend_judged.backend.name} failed parity: {backend_judged.reason}.",
                hint=f"It is never bundled; see {folder / PARITY}.",
            )
        if backend_judged.verdict == "NOT_RUN" and not unverified:
            raise ParityFailed(
                f"{kind} {backend_judged.backend.name} has no parity verdict: {backend_judged.reason}.",
                hint=f"Run: attnport check {folder}; or bundle with --unverified, which the bundle then states.",
            )


def _verdicts(manifest: Manifest, parity: ParityReport | None, backend: Backend) -> tuple[RuntimeParity, RuntimeParity]:
    """The parity of a backend on its runtime, and that of its graph."""

    def not_run(reason: str) -> RuntimeParity:
        return RuntimeParity("NOT_RUN", reason, backend.form.plan)

    if parity is None:
        return (not_run("parity was not checked"),) * 2
    unknown = "it is not in the parity report"
    key = _key(manifest, backend)
    graph = parity.forms.get(key, not_run(unknown))
    if backend.measured_as is None:
        # No runtime is for this form alone, but its graph may have been run by the runtime that will open it.
        same = graph.ran is not None and graph.ran.provider == backend.provider
        return graph if same else not_run("its graph was run by another runtime"), graph
    absent = parity.absent.get(backend.measured_as.partition(".")[0], unknown)
    return parity.runtimes.get(backend.measured_as, not_run(absent)), graph


def _key(manifest: Manifest, backend: Backend) -> str:
    return next(key for key, form in manifest.forms.items() if form == backend.form)
