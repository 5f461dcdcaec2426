"""What parity and fusion found about what a bundle is to take, and whether it may."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from attnport.artifacts import FusionReport, Manifest, ParityReport, RuntimeParity, Verdict
from attnport.bundling.backends import Backend
from attnport.bundling.write import Judged
from attnport.errors import ParityFailed
from attnport.jsonfile import read

PARITY, FUSION = "parity.json", "fusion.json"
_CHECK = "check"


def judge(folder: Path, manifest: Manifest, backends: Sequence[Backend]) -> list[Judged]:
    """The backends with what the artifact's reports say of them; raises as `jsonfile.read`."""
    parity = read(ParityReport, folder / PARITY) if PARITY in manifest.files else None
    fusion = read(FusionReport, folder / FUSION) if FUSION in manifest.files else None
    found = []
    for backend in backends:
        runtime, graph = _verdicts(manifest, parity, backend)
        verdicts = (runtime.verdict, graph.verdict)
        verdict: Verdict = "FAIL" if "FAIL" in verdicts else "PASS" if "PASS" in verdicts else "NOT_RUN"
        decided = [one for one in (runtime, graph) if one.verdict == verdict]
        reason = "; ".join(dict.fromkeys(one.reason for one in decided if one.reason))
        measured = decided[0] if verdict == "PASS" else None
        found.append(Judged(backend, verdict, *verdicts, reason, measured, backend.table(fusion)))
    return found


def gate(folder: Path, judged: Sequence[Judged], unverified: bool) -> None:
    """Raises ParityFailed for one that failed, or that nobody ran and `unverified` does not let through."""
    for found in judged:
        kind = "engine" if found.backend.engine else "form"
        if found.verdict == "FAIL":
            raise ParityFailed(
                f"{kind} {found.backend.name} failed parity: {found.reason}.",
                hint=f"It is never bundled; see {folder / PARITY}.",
            )
        if found.verdict == "NOT_RUN" and not unverified:
            raise ParityFailed(
                f"{kind} {found.backend.name} has no parity verdict: {found.reason}.",
                hint=f"Run: attnport check {folder}; or bundle with --unverified, which is said inside.",
            )


def _verdicts(manifest: Manifest, parity: ParityReport | None, backend: Backend) -> tuple[RuntimeParity, RuntimeParity]:
    """What was found of a backend on its runtime, and of its graph."""

    def not_run(reason: str) -> RuntimeParity:
        return RuntimeParity("NOT_RUN", reason, backend.form.plan)

    if parity is None:
        return (not_run("parity was not checked"),) * 2
    used = {backend.file, backend.form.file}
    made = max((stage.made for stage in manifest.stages.values() if used & set(stage.files)), default="")
    if _CHECK not in manifest.stages or manifest.stages[_CHECK].made < made:
        return (not_run("it was made again after parity was checked"),) * 2
    missing = not_run("it is not in the parity report")
    key = _key(manifest, backend)
    graph = parity.forms.get(key, missing)
    if backend.measured_as is None:
        # No runtime is made for this form, but its graph may have been run by the very runtime that will open it.
        same = graph.ran is not None and graph.ran.provider == backend.provider
        return graph if same else not_run("its graph was run by another runtime"), graph
    return parity.runtimes.get(backend.measured_as, missing), graph


def _key(manifest: Manifest, backend: Backend) -> str:
    return next(key for key, form in manifest.forms.items() if form == backend.form)
