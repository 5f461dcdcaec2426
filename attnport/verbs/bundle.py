"""`attnport bundle`: writes a folder for an application, with proof that its forms are those that were checked.

A layout for a server is made of a bundle that has passed its own check, so that nothing else chooses and copies forms.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from attnport.artifacts import INTEGERS, Manifest, ParityReport, key_of
from attnport.bundling import place, signing
from attnport.bundling.layouts import base as layouts
from attnport.bundling.layouts.hub import AS_BUNDLE
from attnport.bundling.readme import package_of
from attnport.bundling.verifying import check
from attnport.bundling.write import FUSION, PARITY, RUNS, Backend, choose_backends, gate, judge, needed_files, write
from attnport.errors import (
    ArtifactError,
    AttnportError,
    IntegrityError,
    ParityFailed,
    UnavailableError,
    UsageError,
    refuse_list,
)
from attnport.exporter.targets import base as lowerings
from attnport.folder.workspace import check_files, load_spec, not_in, open_folder, read_parity, toolchain
from attnport.jsonfile import digest_file, digest_text, to_json
from attnport.options import Folder, Option, Progress, Tell
from attnport.parity.golden import FILE as GOLDEN
from attnport.parity.golden import read_goldens
from attnport.processes.isolated import Limits, probe_all
from attnport.reporting.document import mebibytes
from attnport.reporting.facts import part_compared
from attnport.runtimes import base
from attnport.runtimes._javascript import JavaScriptRuntime
from attnport.sources.hf.files import describing_files
from attnport.user_cache import cache
from attnport.verbs._arguments import verb
from attnport.verbs._deployables import LATENCY, TUNED, recommended
from attnport.verbs._needs import lacks, write_form
from attnport_bundle.errors import BundleError, RuntimeMissing
from attnport_bundle.format.manifest import ENGINES, MANIFEST, SIGNATURE
from attnport_bundle.format.manifest import Manifest as BundleManifest
from attnport_bundle.format.manifest import read as read_manifest

LANGUAGES = ("python", "cpp")
FORMS = ("ort_cpu",)
BUNDLE = "bundle"
"""The bundle that `ship` and `serve` make in an artifact folder."""
_LARGE = 20
"""A file of a layout is told by its name where it has more than one of so many parts of all bytes."""
_INNER = ".bundle"
"""The bundle inside the folder of a layout that is being made of it."""


@verb
def bundle(
    folder: Folder,
    out: Annotated[
        Path, Option("The bundle's folder; one that is empty or an unchanged bundle is replaced.", "-o --output")
    ],
    *,
    lang: Annotated[Sequence[str], Option("A reader: python, which is always included, or cpp; several allowed.")] = (
        "python",
    ),
    forms: Annotated[
        Sequence[str],
        Option(
            "Forms and engines, the preferred one first; default: the recommended form, else ort_cpu, or what the "
            "layout reads.",
            "--form",
        ),
    ] = (),
    layout: Annotated[str, Option("Lay the files out for what reads them instead: triton, ovms, hub or web.")] = "",
    sign: Annotated[Path | None, Option("An Ed25519 private key (PEM) outside of both folders.")] = None,
    unverified: Annotated[
        bool, Option("Accept forms whose parity was not run; the bundle says so. Forms that failed are never accepted.")
    ] = False,
    force: Annotated[
        bool, Option("Write it even if nothing has changed, or if files of the earlier one were changed or added.")
    ] = False,
    progress: Progress = lambda message: None,
    tell: Tell = lambda message: None,
) -> Path:
    """Writes a bundle of an artifact folder; all of it appears at once, and equal inputs give equal bytes.

    A bundle that was made of the same inputs, and is unchanged, is kept. Forms that the folder lacks are written first,
    and forms without a verdict are checked. Without `forms`, it has the one that `inspect` recommends, if that can run
    here, or else ort_cpu.

    Returns:
        `out`.

    Raises:
        UsageError: a language, form or layout is unknown, the key is refused, `out` is not a bundle, or the layout
            cannot have this model or form.
        ArtifactError, IntegrityError: the artifact is incomplete, or not what was written.
        ParityFailed: a form failed or was not checked, or the bundle fails its own golden cases here.
    """
    _refuse_language(lang)
    laid_out = layouts.get(layout) if layout else None
    if laid_out is not None:
        _refuse_with_layout(layout, lang, sign, unverified, force)
    if sign is not None:
        signing.private_key(sign, folder, out)  # a wrong key is refused before the work
    manifest = open_folder(folder)

    def refuse() -> None:
        _refuse_filled(out) if laid_out else _refuse_stranger(out, force)

    refuse()
    place.refuse_unwritable(out)
    named = forms or (laid_out.usual(manifest.forms) if laid_out else ())
    names, why = (named, "") if named else usual(folder, manifest)
    manifest = _with_forms(folder, manifest, names, progress)
    backends = choose_backends(folder, manifest, names)
    progress("checking the artifact's files")
    wanted = _wanted(folder, manifest, backends)
    check_files(folder, manifest, *wanted)
    judged = judge(folder, manifest, backends, read_parity(folder, manifest))
    unchecked, hint = [one.backend for one in judged if one.verdict == "NOT_RUN"], ""
    if unchecked and not unverified:
        hint = _check(folder, unchecked, progress, tell)
        manifest = open_folder(folder)
        check_files(folder, manifest, *wanted)
        judged = judge(folder, manifest, backends, read_parity(folder, manifest))
    gate(folder, judged, unverified, hint)
    inputs = digest_text(
        toolchain("numpy", *base.distributions(base.names())),
        str((sorted(lang), layout, sign and digest_file(sign))),
        to_json(
            replace(manifest, files={name: manifest.files[name] for name in wanted}, forms={}, engines={}, stages={})
        ),
        *map(to_json, judged),
    )
    if not force and _is_made(out, inputs):
        tell(f"{out} is up to date, with {', '.join(backend.name for backend in backends)}{why}")
        return out
    own = _own(backends)
    goldens = read_goldens(folder / GOLDEN, manifest.io, {backend.form.plan for backend in backends}, own)
    if sign is None and (out / SIGNATURE).exists():
        progress(f"{out} was signed; the bundle that replaces it is not")
    with place.replaced(out, refuse) as staged:
        packed = staged / _INNER if laid_out else staged
        packed.mkdir(exist_ok=True)
        progress("copying")
        written = write(packed, folder, manifest, judged, goldens, cpp="cpp" in lang)
        if sign is not None:
            signing.sign(packed, sign)
        progress("running the golden cases")
        tried = _try(packed, tell)
        if laid_out is not None:
            progress(f"laying out for {layout}, and running the golden cases there")
            laid_out.write(layouts.Packed(packed, written, lambda: _described(manifest), tell, _in_browser), staged)
            shutil.rmtree(packed)
    if laid_out is not None:
        tell(f"{_files(out, written)}; next: {laid_out.next(written, out)}")
    else:
        _tell_of_another(folder / BUNDLE, out, written, tell)
        tell(f"{_contents(written, why)}{_in_cpp(written) if 'cpp' in lang else ''}")
        _tell_of_masks(read_parity(folder, manifest), tell)
        if tried and (kept := cache()) is not None:
            kept.write(_record(out), _made(out, inputs))
    return out


def _own(backends: Sequence[Backend]) -> dict[str, str]:
    """For each plan in integers the form in it, which is its own reference.

    Raises:
        UsageError: there are two of a plan, and a bundle has one reference for each.
    """
    found: dict[str, str] = {}
    for backend in backends:
        plan, form = backend.form.plan, backend.engine.form if backend.engine else backend.name
        if plan in INTEGERS and found.setdefault(plan, form) != form:
            raise UsageError(
                f"{found[plan]} and {form} are both in {plan}: a bundle takes one of a precision in integers, as each "
                "is judged by what it gave itself.",
                hint="Leave out one of them, or make a bundle of each.",
            )
    return found


@contextlib.contextmanager
def _in_browser(model: Path, beside: Mapping[str, Path]) -> Iterator[Callable[[Mapping[str, Any]], dict[str, Any]]]:
    """See `layouts.base.Packed.in_browser`.

    Raises:
        UnavailableError: onnxruntime-web or Chromium is missing, or does not start.
        UsageError: onnxruntime-web does not open the file.
    """
    runtime = base.get("ort_web")
    assert isinstance(runtime, JavaScriptRuntime)
    try:
        started = runtime.started({model.name: model, **beside})
    except ChildProcessError as err:
        raise UnavailableError(f"{runtime.npm} does not work here: {err}.") from err
    with contextlib.closing(started) as process:
        names = [value.name for value in base.read_graph(model).graph.output]
        try:
            runtime.opened(process, model, list(beside), 1)
        except RuntimeError as err:
            raise UsageError(f"{runtime.npm} does not open {model.name}: {err}.", hint="Name another form.") from err
        yield lambda feeds: process.ask("run", feeds, outputs=names)[1]


def _tell_of_another(place: Path, out: Path, written: BundleManifest, tell: Callable[[str], None]) -> None:
    """Tells of the bundle that `ship` or `serve` made, which stays in the artifact folder beside one made by hand."""
    if out.resolve() == place.resolve() or not (place / MANIFEST).is_file():
        return
    with contextlib.suppress(BundleError):
        names = set(read_manifest(place).forms)
        same = "of the same form" if names == set(written.forms) else f"of {', '.join(sorted(names))}"
        tell(f"{place}, which ship or serve made {same}, stays as it is; an application needs {out} alone")


def _tell_of_masks(parity: ParityReport | None, tell: Callable[[str], None]) -> None:
    """Tells the notes of a check where the module does not keep to its masks, on which an application may rely."""
    if parity is not None and any(part_compared(row.invariance) for row in parity.runtimes.values()):
        for note in parity.notes:
            tell(note)


def _is_made(out: Path, inputs: str) -> bool:
    """Whether `out`, an unchanged bundle, is what this user made of these inputs, and its golden cases were run.

    The record lies in the user's cache: in an artifact from elsewhere it could be of a bundle from elsewhere.
    """
    kept = cache()
    return kept is not None and (out / MANIFEST).is_file() and kept.read(_record(out)) == _made(out, inputs)


def _record(out: Path) -> str:
    return f"bundle.{digest_text(str(out.resolve()))[:32]}.txt"


def _made(out: Path, inputs: str) -> bytes:
    """What tells a bundle from one that was made of other inputs, or signed otherwise."""
    files = [digest_file(out / name) if (out / name).is_file() else "" for name in (MANIFEST, SIGNATURE)]
    return digest_text(inputs, *files).encode()


def _with_forms(folder: Path, manifest: Manifest, names: Sequence[str], progress: Callable[[str], None]) -> Manifest:
    """The manifest of the folder, after the forms among `names` that it lacks were written."""
    for name in names:
        target, _, plan = (key := key_of(name)).partition(".")
        if key in manifest.engines or target not in lowerings.names() or target not in RUNS or target in ENGINES:
            continue
        lowering = lowerings.get(target)
        plan = plan or lowering.plans[0]
        if lowering.form_key(plan) == key and lacks(folder, target, plan):
            write_form(folder, target, plan, progress)
    return open_folder(folder)


def _check(
    folder: Path, backends: Sequence[Backend], progress: Callable[[str], None], tell: Callable[[str], None]
) -> str:
    """Checks what has no verdict, as far as that is possible; returns the hint of an error that ended the check.

    Of an engine without its device, the graph of its form is checked. What `check --precision` wrote is not asked: it
    judges by names and rows of its own, as if nothing but that precision were there.
    """
    from attnport.verbs.check import check

    targets = {backend.form.target for backend in backends}
    try:
        if runtimes := [name for name in base.names() if base.get(name).form in targets]:
            tell(f"parity of {', '.join(backend.name for backend in backends)} is checked first")
            check(folder, runtimes, progress=progress)
    except AttnportError as err:
        tell(f"parity was not checked: {err}")
        return err.hint
    return ""


def usual(folder: Path, manifest: Manifest, otherwise: tuple[str, ...] = FORMS) -> tuple[tuple[str, ...], str]:
    """The form of a bundle for which none is named, and why it is that one, to follow its name.

    Args:
        otherwise: The forms where none is recommended that can run here.

    Raises:
        IntegrityError: a form or a report is not the one that was written.
    """
    if not {LATENCY, TUNED} & manifest.files.keys():
        return otherwise, ", as nothing was timed"
    check_files(folder, manifest, *(form.file for form in manifest.forms.values()))  # before they are parsed
    choice = recommended(folder, manifest)
    if (best := choice.deploy) is None:
        return otherwise, f", as {choice.reason}"
    key = base.Key.parse(best.measured_as)
    found = probe_all([base.get(key.runtime)], Limits())[key.runtime]
    if not found.available:
        return otherwise, f", as {best.name}, which is recommended, cannot run here: {found.problem}"
    if best.runtime not in ENGINES and (lacks_plan := not_in(found, best.plan)):
        return otherwise, f", as {best.name}, which is recommended, cannot run here: {lacks_plan}"
    return (best.name,), ", which is recommended"


def _contents(manifest: BundleManifest, why: str) -> str:
    """The forms of a bundle, its size, and the packages that an application installs for the preferred form.

    Args:
        why: Why these forms, to follow their names.
    """
    forms = ", ".join(f"{name} ({form.plan})" for name, form in manifest.forms.items()) + why
    size = mebibytes(sum(file.bytes for file in manifest.files.values()))
    first = manifest.forms[manifest.order[0]]
    packages = ["numpy", package_of(first.runtime, first.provider)]
    if manifest.needs_tokenizers:
        packages.append("tokenizers")
    needs = f"an application in Python needs: pip install {' '.join(packages)}"
    return f"{forms}; {size} MiB in {len(manifest.files)} files; {needs}"


def _files(out: Path, manifest: BundleManifest) -> str:
    """The forms that were laid out, and the files: their size, and that of each large one."""
    sizes = {path.relative_to(out).as_posix(): path.stat().st_size for path in out.rglob("*") if path.is_file()}
    total = sum(sizes.values())
    large = [f"{name} ({mebibytes(sizes[name])} MiB)" for name in sorted(sizes) if sizes[name] * _LARGE > total]
    forms = ", ".join(f"{name} ({form.plan})" for name, form in manifest.forms.items())
    return f"{forms}; {mebibytes(total)} MiB in {len(sizes)} files: {', '.join(large)}"


def _in_cpp(manifest: BundleManifest) -> str:
    """What a program in C++ needs, to follow what one in Python needs."""
    unread = manifest.tokenizer is not None and manifest.tokenizer.chars is None
    tokenizer = ", and a function that makes ids of texts: it does not read this tokenizer" if unread else ""
    return f"; one in C++: what cpp/README.md says{tokenizer}"


def _refuse_language(lang: Sequence[str]) -> None:
    """Raises UsageError for a language that no reader is in, or none at all."""
    for language in lang:
        refuse_list("--lang", language)
    unknown = [language for language in lang if language not in LANGUAGES]
    if unknown or not lang:
        raise UsageError(
            f"language {', '.join(unknown) or 'missing'}; expected one of {', '.join(LANGUAGES)}.",
            hint="Other languages call the C interface of cpp.",
        )


def _refuse_with_layout(layout: str, lang: Sequence[str], sign: Path | None, unverified: bool, force: bool) -> None:
    """Raises UsageError for what only a bundle has."""
    if set(lang) != {"python"}:
        raise UsageError(f"--lang {' '.join(lang)}: layout {layout} has no reader; what it is for reads it.")
    if sign is not None:
        raise UsageError(
            f"--sign: layout {layout} has no {MANIFEST}, which a signature is of.",
            hint="Leave out one of them.",
        )
    if unverified:
        raise UsageError(
            f"--unverified: nothing in a folder of layout {layout} says that its parity was not run.",
            hint="Run attnport check on the artifact's folder first.",
        )
    if force:
        raise UsageError(
            f"--force: a folder of layout {layout} is not replaced, as nothing in it tells whether it was changed.",
            hint="Give a new folder, or remove it yourself.",
        )


def _refuse_filled(out: Path) -> None:
    """Raises UsageError unless `out` does not exist or is an empty folder."""
    if os.path.lexists(out) and (out.is_symlink() or not out.is_dir() or any(out.iterdir())):
        raise UsageError(
            f"{out} exists and is not an empty folder; it was not changed.", hint="Give another folder, or remove it."
        )


def _described(manifest: Manifest) -> Mapping[str, Path]:
    """The files of an `hf:` source that describe the model, after a check that it is still what was exported.

    Raises:
        UsageError: the source has no such files.
        SpecError: it is gone or changed.
    """
    source = manifest.source
    if not source.text.startswith("hf:") or source.part not in ("", "with-past"):
        raise UsageError(
            f"{manifest.name} is not the whole of an hf: folder, whose config and tokenizer this layout has.",
            hint="Export hf: with the folder that save_pretrained wrote, without --part; a decoder with --with-past. "
            f"{AS_BUNDLE}",
        )
    load_spec(manifest)
    return describing_files(source.text.removeprefix("hf:"))


def _wanted(folder: Path, manifest: Manifest, backends: Sequence[Backend]) -> list[str]:
    """The artifact's files that are used; a form is compared with its digest before it is parsed."""
    check_files(folder, manifest, *(backend.form.file for backend in backends))
    wanted = [
        *needed_files(folder, manifest, backends),
        *(report for report in (PARITY, FUSION) if report in manifest.files),
    ]
    for name in wanted:
        if name not in manifest.files:
            raise ArtifactError(f"{folder} has no {name}, which a bundle is made from.", hint="Export and fuse again.")
    return wanted


def _refuse_stranger(out: Path, force: bool) -> None:
    """Raises UsageError unless `out` does not exist, is empty, or is an unchanged bundle."""
    from attnport_bundle.format import files, manifest

    if not os.path.lexists(out):
        return
    if out.is_symlink() or not out.is_dir():
        raise UsageError(f"{out} exists and is not a folder.", hint="Give another folder, or move it away.")
    if not any(out.iterdir()):
        return
    if not (out / manifest.MANIFEST).is_file():
        raise UsageError(f"{out} is neither empty nor a bundle; it was not changed.", hint="Give another folder.")
    if force:
        return
    try:
        problems = files.check(out, manifest.read(out))
    except BundleError as err:
        raise UsageError(f"{out} holds a bundle that cannot be read: {err}", hint="Replace it with --force.") from err
    if problems:
        raise UsageError(
            f"{out} holds a bundle that was changed since: {problems[0].name}: {problems[0].problem}.",
            hint="Move your own files out of it, or replace all of it with --force.",
        )


def _try(staged: Path, tell: Callable[[str], None]) -> bool:
    """Runs the bundle's own check before the bundle appears, and returns whether the golden cases were run.

    Where none of its forms can run, only the files are checked.
    """
    from attnport_bundle.model import selftest

    try:
        report = selftest(staged, check=check)
    except BundleError as err:  # the artifact has something that a reader refuses, such as a long declaration
        problem = str(err).removeprefix(f"{staged}{os.sep}")
        raise ArtifactError(
            f"readers would refuse this bundle: {problem}",
            hint="It was not written; correct what is named and export again.",
        ) from err
    bad = next((row for row in report.rows if row.verdict == "FAIL"), None)
    if bad is None or report.exit_code in (0, RuntimeMissing.exit_code):
        if report.exit_code:
            last = next(row for row in reversed(report.rows) if row.verdict == "NOT_RUN")
            tell(f"the bundle's golden cases were not all run, as it cannot run here: {last.check}: {last.detail}")
        return not report.exit_code
    kinds: dict[int, type[AttnportError]] = {
        ParityFailed.exit_code: ParityFailed,
        IntegrityError.exit_code: IntegrityError,
    }
    raise kinds.get(report.exit_code, ArtifactError)(
        f"the bundle fails its own check: {bad.check}: {bad.detail}.", hint="It was not written; check the artifact."
    )
