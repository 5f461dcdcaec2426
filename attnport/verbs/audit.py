"""`attnport audit`: finds what a file or folder gives away to those who receive it, and removes it."""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from html import unescape
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from attnport.artifacts import MANIFEST as ARTIFACT
from attnport.auditing.onnx_file import (
    Range,
    audit_constants,
    audit_notes,
    audit_unreferenced,
    beside,
    clean,
    external,
    load,
    tensors,
    unread,
)
from attnport.auditing.text import TEXTS, Builder, Finding, audit_bytes, audit_text, shown, this_builder
from attnport.errors import ArtifactError, Disclosure, UsageError, first_line
from attnport.exporter.builder import inline_functions
from attnport.folder.workspace import change, check_files, open_folder
from attnport.jsonfile import digest_text, from_json, to_json
from attnport.options import Option, Progress, ReadMemory, ReadTimeout
from attnport.patches import patched
from attnport.printed import Printed
from attnport.reporting import document as doc
from attnport.reporting.facts import count
from attnport.sources.onnx_file import unique_names
from attnport.transaction import OWN
from attnport.verbs._arguments import verb
from attnport.verbs._confined import Told, carry_out, confined
from attnport.verbs.inspect import Kind, kind_of
from attnport.verbs.report import FILE as PAGE
from attnport_bundle.format.manifest import MANIFEST as BUNDLE

if TYPE_CHECKING:
    from onnx import ModelProto, TensorProto

STAGE = "audit"
_VOCABULARY = "tokenizer.json"
_ADVICE = {
    ARTIFACT: "An artifact needs its SPEC to find the module again; ship a bundle, or export with a relative SPEC.",
    PAGE: "Write the page again with a relative folder and without --text, or do not pass it on.",
}
IN_BUNDLE = "The bundle's digests would not fit; clean the artifact, check it and bundle again."
_NOT_LISTED = "The manifest does not name this file; audit it by itself, or remove it."
_WEIGHTS = "Export the module without it, as attnport export does unless --with-weights is given."


@dataclass(frozen=True, repr=False)
class AuditReport(Printed):
    """What `audit` found.

    Attributes:
        files: The files that were examined, relative to the folder (or to the folder that contains the file).
        findings: What they give away; with `fix`, what is left.
        fixed: How many things `fix` removed.
        notes: What could not be examined, and why.
    """

    schema: Literal["attnport/audit/1"] = field(default="attnport/audit/1", kw_only=True)
    path: str
    kind: Kind
    files: tuple[str, ...]
    findings: tuple[Finding, ...]
    fixed: int = 0
    notes: tuple[str, ...] = ()


@verb
def audit(
    path: Annotated[Path, Option("An ONNX file, an engine, an artifact folder or a bundle.")],
    fix: Annotated[
        bool,
        Option(
            "Remove notes, doc strings and unknown fields of ONNX files. Names, numbers, outputs and other kinds of "
            "files are not changed."
        ),
    ] = False,
    *,
    timeout_s: ReadTimeout = None,
    memory_gib: ReadMemory = None,
    progress: Progress = lambda message: None,
) -> AuditReport:
    """Finds what `path` gives away: an ONNX file with its weights, an engine, an artifact folder or a bundle.

    It runs nothing and opens no file outside the folder. The files are read in a process of its own, with limits of
    time and memory.

    Raises:
        ArtifactError: `path` does not exist, is of an unknown kind or cannot be read.
        IntegrityError: with `fix`: a file of the folder is not the one that was written.
        UsageError: with `fix`: `path` is a bundle, or a file whose digest a bundle or an artifact has; or a limit is
            exceeded.
    """
    files = [path] if path.is_file() else [path / name for name in _on_disk(path)[0]]
    answer = confined("audit", str(path), files, timeout_s, memory_gib, {"progress": progress}, path=str(path), fix=fix)
    return from_json(AuditReport, answer["report"], "the answer of the process that audits")


def audit_here(path: Path, fix: bool = False, *, progress: Callable[[str], None] = lambda message: None) -> AuditReport:
    """As `audit`, in this process and without limits."""
    target = _Target(path)
    if fix and target.kind == "bundle":
        raise UsageError(f"{path} is a bundle, which must not be changed.", hint=IN_BUNDLE)
    if fix and target.owner:
        raise UsageError(
            f"{path} belongs to {target.owner.folder}, whose digests would not fit.", hint=target.owner.advice
        )
    report = target.look(progress)
    fixable = sorted({finding.file for finding in report.findings if finding.fixable})
    if not fix or not fixable:
        return report
    progress(f"cleaning {len(fixable)} files")
    if target.kind == "folder":
        _clean_folder(path, fixable, target.builder)
    else:
        replace_file(path, clean(load(path), target.builder))
    left = target.look(progress)
    return replace(left, fixed=len(report.findings) - len(left.findings))


def raise_for(report: AuditReport) -> None:
    """Raises Disclosure if there are findings left."""
    if not report.findings:
        return
    kinds = ", ".join(f"{count} {kind}" for kind, count in Counter(finding.kind for finding in report.findings).items())
    fixable = any(finding.fixable for finding in report.findings)
    raise Disclosure(
        f"{report.path} gives something away: {kinds}.",
        hint=f"Remove what can be removed with: attnport audit {report.path} --fix" if fixable else "",
    )


class _Target:
    """What is audited: its kind, and the folder with its files."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.kind = kind_of(path)
        self.listed = set(open_folder(path).files) if self.kind == "folder" else set[str]()
        self.root = path if path.is_dir() else path.parent
        self.owner = None if path.is_dir() else owner(path)
        self.builder = this_builder()
        self.notes: list[str] = []

    def look(self, progress: Callable[[str], None]) -> AuditReport:
        """Examines all files and returns what they give away."""
        findings = list[Finding]()
        names, skipped = _on_disk(self.path) if self.path.is_dir() else ([self.path.name], [])
        self.notes = [f"{shown(name)}: a link or no regular file, which is not followed" for name in skipped]
        ranges: dict[str, list[Range]] = {}
        for name in (name for name in names if name.endswith(".onnx")):
            progress(f"auditing {name}")
            model = load(self.root / name)
            findings += self._graph(name, model, (self.root / name).parent)
            self._note_ranges(name, model, ranges)
        if self.kind == "onnx":
            _add_neighbours(self.path, ranges)
        for name, used in ranges.items():
            findings += audit_unreferenced(name, self.root / name, used)
        for name in names:
            if not name.endswith(".onnx") and name not in ranges:
                progress(f"auditing {name}")
                findings += self._other(name)
        files = tuple(dict.fromkeys((*names, *ranges)))
        placed = tuple(self._placed(finding) for finding in findings)
        return AuditReport(str(self.path), self.kind, files, placed, notes=tuple(self.notes))

    def _graph(self, name: str, model: ModelProto, folder: Path) -> Iterator[Finding]:
        yield from audit_notes(name, model, self.builder)
        yield from audit_constants(name, model, folder)
        try:
            outputs = _weights_out(model)
        except Exception as err:  # for an invalid graph, onnx_ir raises a dozen types of exceptions
            self.notes.append(f"{name}: outputs were not looked at: {first_line(err)}")
            return
        for output in outputs:
            yield Finding(name, f"graph.output[{output}]", "weights_output", shown(output), False, _WEIGHTS)

    def _note_ranges(self, name: str, model: ModelProto, ranges: dict[str, list[Range]]) -> None:
        """Adds the parts of weights files that a model's tensors use, by the file's name relative to the root."""
        folder = (self.root / name).parent
        notes = list[str]()
        for where, _, tensor in tensors(model):
            why = unread(tensor, folder)
            if why:
                notes.append(f"{name}: {why if external(tensor) else f'{shown(where)}: {why}'}")
            for file, place in _taken(tensor, folder):
                ranges.setdefault(file.relative_to(self.root.resolve()).as_posix(), []).append(place)
        self.notes += dict.fromkeys(notes)  # tensors in one file have the same note

    def _other(self, name: str) -> Iterator[Finding]:
        path, advice = self.root / name, _ADVICE.get(name, "Make the file again in a place that gives nothing away.")
        if path.suffix not in TEXTS:
            return audit_bytes(name, path, self.builder, advice=advice)
        texts = audit_text(name, path, self.builder, words=path.name != _VOCABULARY, advice=advice)
        return iter([*texts, *(_sentences(name, path) if path.name == PAGE else ())])

    def _placed(self, finding: Finding) -> Finding:
        """The finding, marked as not fixable if a manifest has a digest of the file."""
        if not finding.fixable or finding.file in self.listed:
            return finding
        if self.kind == "onnx":
            return replace(finding, fixable=False, advice=self.owner.advice) if self.owner else finding
        return replace(finding, fixable=False, advice=IN_BUNDLE if self.kind == "bundle" else _NOT_LISTED)


def _on_disk(folder: Path) -> tuple[list[str], list[str]]:
    """The names of all regular files, and of links and the like; without the files of an unfinished writer."""
    files, others = list[str](), list[str]()
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        if name.parts[0] not in OWN and (path.is_symlink() or not path.is_dir()):
            (files if path.is_file() and not path.is_symlink() else others).append(name.as_posix())
    return files, others


def _weights_out(proto: ModelProto) -> tuple[str, ...]:
    import onnx_ir as ir

    from attnport.exporter.weights_out import weights_out

    model = ir.from_proto(proto)
    with patched(unique_names):
        inline_functions(model)
    return weights_out(model)


def _add_neighbours(path: Path, ranges: dict[str, list[Range]]) -> None:
    """Adds the parts that other ONNX files of the folder use, as they may share weights files."""
    for other in path.parent.glob("*.onnx") if ranges else ():
        if other.name == path.name:
            continue
        try:
            model = load(other)
        except (ArtifactError, OSError):  # not the file to audit
            continue
        for _, _, tensor in tensors(model):
            for file, place in _taken(tensor, path.parent):
                name = file.relative_to(path.parent.resolve()).as_posix()
                if name in ranges:
                    ranges[name].append(place)


def _taken(tensor: TensorProto, folder: Path) -> Iterator[tuple[Path, Range]]:
    """The file and the part of it that a tensor uses; nothing if it uses none, or the file does not exist."""
    place = external(tensor)
    file = beside(folder, place.location) if place else None
    if place and file:
        yield file, place


def _sentences(name: str, path: Path) -> Iterator[Finding]:
    """The user's sentences in a report, which alone are quoted there."""
    for quoted in re.findall(r"<q>([^<]*)</q>", path.read_text("utf-8", "replace")):
        yield Finding(name, "attention maps", "user_text", shown(unescape(quoted)), False, _ADVICE[PAGE])


def _clean_folder(folder: Path, names: Sequence[str], builder: Builder) -> None:
    """Cleans ONNX files of an artifact, and writes their new digests in the same change."""
    with change(folder) as changing:
        manifest = changing.manifest
        check_files(folder, manifest, *names)  # otherwise a file that was changed would get a valid digest
        for name in names:
            changing.path(name).write_bytes(clean(load(folder / name), builder))
        changing.finish(STAGE, digest_text(*(manifest.files[name] for name in names)))


def replace_file(path: Path, data: bytes) -> None:
    """Replaces a file's contents atomically and keeps its mode; for a link, the file that it points to."""
    path = path.resolve()
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        shutil.copymode(path, name)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


@dataclass(frozen=True)
class Owner:
    """A folder whose manifest has the digest of a file.

    Attributes:
        advice: How to clean the file and update its digest.
    """

    folder: Path
    advice: str


def owner(path: Path) -> Owner | None:
    """The bundle or artifact whose manifest names a file, or a link to it; None if there is none."""
    for file in dict.fromkeys((path.parent.resolve() / path.name, path.resolve())):
        for folder in file.parents:
            name = file.relative_to(folder).as_posix()
            if _names(folder / BUNDLE, name):
                return Owner(folder, IN_BUNDLE)
            if _names(folder / ARTIFACT, name):
                return Owner(folder, f"Clean the file and its digest together: attnport audit {folder} --fix")
    return None


def _names(manifest: Path, name: str) -> bool:
    """Whether a manifest of any version has a digest of a file."""
    try:
        data = json.loads(manifest.read_bytes())
    except (OSError, ValueError, RecursionError):  # there is no manifest, or not one of ours
        return False
    files = data.get("files") if isinstance(data, dict) else None
    return isinstance(files, dict) and name in files


def _carry_out(message: Mapping[str, Any], listeners: Mapping[str, Told]) -> dict[str, Any]:
    report = audit_here(Path(message["path"]), message["fix"], progress=listeners["progress"])
    return {"report": to_json(report)}


if __name__ == "__main__":
    carry_out(_carry_out)


@doc.blocks.register(AuditReport)
def _blocks(report: AuditReport, detail: doc.Detail = "brief") -> Iterator[doc.Block]:
    """A row for all findings of a kind in a file, with the first of them; below, advice where `--fix` does not help."""
    groups: dict[tuple[str, str, bool], list[Finding]] = {}
    for finding in report.findings:
        groups.setdefault((finding.file, finding.kind, finding.fixable), []).append(finding)
    if groups:
        columns = doc.columns("kind", "times", "--fix", "first of them", right=("times",))
        rows = (
            (kind, str(len(of_kind)), "yes" if fixable else "no", f"{file}: {of_kind[0].where}: {of_kind[0].evidence}")
            for (file, kind, fixable), of_kind in groups.items()
        )
        yield doc.Table("what is given away", columns, doc.rows(rows))
        yield doc.notes(
            {f"{advised.kind} of {advised.file}": advised.advice for advised in report.findings if advised.advice}
        )
    yield from doc.warnings(report.notes, "not looked at")
    if report.fixed:
        yield doc.Text(f"{report.fixed} taken away")
    count_found = len(report.findings)
    end = doc.Verdict(f"{count_found} given away", "fail") if count_found else doc.Verdict("nothing found", "pass")
    yield doc.Text((f"{report.kind} {report.path}, {count(len(report.files), 'file')}: ", end))
