"""`attnport inspect`: describes a folder, an ONNX file, an engine or a bundle without running it."""

from __future__ import annotations

import dataclasses
import os
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from attnport.artifacts import MANIFEST, EngineRecord, FusionReport, FusionTable, IOContract, Manifest
from attnport.bundling.verifying import check
from attnport.bundling.write import FUSION
from attnport.dims import values_of
from attnport.errors import ArtifactError, AttnportError, IntegrityError
from attnport.exporter.inspect_graph import GraphAttention, GraphFacts, as_fused, graph_facts
from attnport.folder.workspace import check_files, meant_by, open_folder, read_parity
from attnport.jsonfile import digest_file, read
from attnport.options import Option
from attnport.printed import Printed
from attnport.reporting import document as doc
from attnport.reporting.choice import Deployable
from attnport.verbs._arguments import verb
from attnport.verbs._confined import Told, carry_out, confined
from attnport.verbs._deployables import next_commands, of_bundle, of_folder
from attnport_bundle.format import files as bundle_files
from attnport_bundle.format import manifest as bundle_manifest
from attnport_bundle.format.manifest import MANIFEST as BUNDLE

ENGINE_SUFFIXES = (".engine", ".plan", ".trt")
Kind = Literal["folder", "onnx", "engine", "bundle"]


@dataclass(frozen=True)
class EngineFacts:
    """A TensorRT engine, from its header.

    Attributes:
        record: The file beside it; None if there is none.
        fusion: The attentions of its plan; None unless it lies in the artifact folder that it was built in.
    """

    version: str
    sm: tuple[int, ...]
    record: EngineRecord | None
    fusion: FusionTable | None = None


@dataclass(frozen=True, repr=False)
class Inspection(Printed):
    """What `attnport inspect` found.

    Attributes:
        digest: SHA-256 of the file; for a folder or bundle, that of its manifest, which has the digests of its files.
        size_bytes: The size of the file, or of all files of the folder.
        io: The contract, if there is one.
        graph: The graph of the ONNX file; for a folder, of the exported model.
        files: SHA-256 by name, for a folder or bundle.
        verdicts: Parity by runtime and by form, and fused attentions by target, as far as known.
        precision: By form or engine with a searched precision: its half type, and what stays in float32.
        deploy: What a folder or a bundle holds for applications.
        next: The commands that embed it, or those that are missing before.
    """

    schema: Literal["attnport/inspect/1"] = field(default="attnport/inspect/1", kw_only=True)
    path: str
    kind: Kind
    name: str
    digest: str
    size_bytes: int
    source: str = ""
    io: IOContract | None = None
    graph: GraphFacts | None = None
    engine: EngineFacts | None = None
    files: Mapping[str, str] = field(default_factory=dict)
    verdicts: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    precision: Mapping[str, str] = field(default_factory=dict)
    deploy: tuple[Deployable, ...] = ()
    next: tuple[str, ...] = ()


@verb
def inspect(path: Annotated[Path, Option("A folder, an ONNX file, an engine or a bundle.")]) -> Inspection:
    """Describes what is at `path`.

    Raises:
        ArtifactError: `path` does not exist, or is of an unknown kind, malformed or cut short.
        BundleError: it is a bundle of an unknown version.
        IntegrityError: a file is not the one that its manifest or record names.
    """
    return {"folder": _folder, "onnx": _onnx, "engine": _engine, "bundle": _bundle}[kind_of(path)](path)


def kind_of(path: Path) -> Kind:
    """What is at a path, by its name; raises ArtifactError where that is nothing of ours."""
    hint = "Give a folder, a bundle, an .onnx file or an engine."
    if not path.exists():
        raise ArtifactError(f"{path} does not exist.", hint=hint)
    if path.is_dir():
        return "bundle" if (path / BUNDLE).exists() else "folder"
    if path.suffix in (".onnx", *ENGINE_SUFFIXES):
        return "onnx" if path.suffix == ".onnx" else "engine"
    suffixes = f"got suffix {path.suffix!r}; expected .onnx or one of {', '.join(ENGINE_SUFFIXES)}"
    raise ArtifactError(f"{path} is none of the files that attnport reads: {suffixes}.", hint=meant_by(path))


def _onnx(path: Path) -> Inspection:
    graph = graph_facts(path)
    if any(attention.reason for attention in graph.attentions):
        graph = dataclasses.replace(graph, attentions=_as_fused(path, graph))
    sizes = [file.stat().st_size for file in (path, *(path.parent / name for name in graph.external))]
    return Inspection(
        path=str(path), kind="onnx", name=path.stem, digest=digest_file(path), size_bytes=sum(sizes), graph=graph
    )


def _as_fused(path: Path, graph: GraphFacts) -> tuple[GraphAttention, ...]:
    """The attentions as `fuse` would find them, where that recognises more of them than the file as it is.

    Other exporters write sizes as arithmetic, which `export` settles first.
    """
    files = (path, *(path.parent / name for name in graph.external))
    try:
        answer = confined("inspect", str(path), files, None, None, {}, path=str(path.absolute()))
    except (AttnportError, RuntimeError):  # `export` of this file tells why; the file is described all the same
        return graph.attentions
    settled = tuple(GraphAttention(**one) for one in answer["attentions"])
    counts = [sum(not one.reason for one in found) for found in (settled, graph.attentions)]
    return settled if counts[0] > counts[1] else graph.attentions


def _carry_out(message: Mapping[str, Any], listeners: Mapping[str, Told]) -> dict[str, Any]:
    return {"attentions": [dataclasses.asdict(one) for one in as_fused(Path(message["path"]))]}


if __name__ == "__main__":
    carry_out(_carry_out)


def _engine(path: Path) -> Inspection:
    from attnport.exporter.engine.evidence import read_header

    header = read_header(path)
    digest, beside = digest_file(path), path.with_suffix(".json")
    record = read(EngineRecord, beside) if beside.is_file() else None
    if record is not None and record.digest != digest:
        raise IntegrityError(
            f"{path} is not the engine that {beside.name} describes: its digest differs.", hint="Build it again."
        )
    found = Inspection(
        path=str(path),
        kind="engine",
        name=path.stem,
        digest=digest,
        size_bytes=path.stat().st_size,
        engine=EngineFacts(header.version, header.sm, record),
        precision={path.stem: str(record.precision)} if record and record.precision else {},
    )
    return found if record is None else _in_its_folder(found, path.absolute().parent.parent, record)


def _in_its_folder(found: Inspection, folder: Path, record: EngineRecord) -> Inspection:
    """With what the artifact folder that an engine was built in knows of it, if it lies in one."""
    if not (folder / MANIFEST).is_file():
        return found
    manifest = open_folder(folder)
    known = any(one.digest == found.digest for one in manifest.engines.values())
    if not known or found.engine is None:
        return found
    folder = Path(os.path.relpath(folder))
    every = of_folder(folder, manifest, read_parity(folder, manifest))
    deployable = next((one for one in every if record.file in one.files), None)
    if deployable is None:  # the form that it was built of is gone
        return found
    verdicts = _verdicts(folder, manifest)
    tables = read(FusionReport, folder / FUSION).targets if FUSION in manifest.files else {}
    table = next((table for table in tables.values() if table.proved_by == record.file), None)
    own = f"parity of {deployable.measured_as}", f"parity of the graph of {record.form}"
    quoted = shlex.quote(str(folder))
    return dataclasses.replace(
        found,
        name=manifest.name,
        source=manifest.source.text,
        io=manifest.io,
        engine=dataclasses.replace(found.engine, fusion=table),
        verdicts={about: verdict for about, verdict in verdicts.items() if about in own},
        deploy=(deployable,),
        next=(f"attnport bundle {quoted} -o app/ --form {shlex.quote(deployable.name)}",)
        if deployable.parity == "PASS"
        else (f"attnport check {quoted} --runtime {record.target}",),
    )


def _folder(folder: Path) -> Inspection:
    manifest = open_folder(folder)
    check_files(folder, manifest)
    model = folder / "model.onnx"
    deployable = of_folder(folder, manifest, read_parity(folder, manifest))
    return Inspection(
        path=str(folder),
        kind="folder",
        name=manifest.name,
        digest=digest_file(folder / MANIFEST),
        size_bytes=sum((folder / name).stat().st_size for name in manifest.files),
        source=manifest.source.text,
        io=manifest.io,
        graph=graph_facts(model, manifest.io.masks) if model.is_file() else None,
        files=manifest.files,
        verdicts=_verdicts(folder, manifest),
        precision={name: str(form.precision) for name, form in manifest.forms.items() if form.precision},
        versions=manifest.versions,
        deploy=deployable,
        next=next_commands(folder, manifest, deployable),
    )


def _verdicts(folder: Path, manifest: Manifest) -> dict[str, str]:
    """Parity and fusion, each in a word, from the reports in the folder."""
    verdicts: dict[str, str] = {}
    if (parity := read_parity(folder, manifest)) is not None:
        verdicts |= {f"parity of {name}": item.verdict for name, item in parity.runtimes.items()}
        verdicts |= {f"parity of the graph of {name}": item.verdict for name, item in parity.forms.items()}
    if FUSION in manifest.files:
        fusion = read(FusionReport, folder / FUSION)
        verdicts |= {f"fusion for {name}": str(table) for name, table in fusion.targets.items()}
    return verdicts


def _bundle(folder: Path) -> Inspection:
    manifest = bundle_manifest.read(folder)
    bundle_files.require(folder, check(folder, manifest))
    preferred = manifest.forms[manifest.order[0]]
    return Inspection(
        path=str(folder),
        kind="bundle",
        name=manifest.name,
        digest=digest_file(folder / BUNDLE),
        size_bytes=sum(file.bytes for file in manifest.files.values()),
        source=manifest.provenance.source,
        graph=graph_facts(folder / preferred.file) if preferred.file.endswith(".onnx") else None,
        files={name: file.sha256 for name, file in manifest.files.items()},
        verdicts={f"parity of {one.name}": one.parity for one in of_bundle(manifest)},
        versions=manifest.provenance.versions,
        deploy=of_bundle(manifest),
        next=(f"attnport verify {shlex.quote(str(folder))}",),
    )


_GRAPH_WORDS = {"elements": "weights", "weights_bytes": "bytes of weights", "external": "weights are in"}


@doc.blocks.register(Inspection)
def _blocks(inspection: Inspection, detail: doc.Detail = "brief") -> Iterator[doc.Block]:
    """What a file or folder is."""
    facts: Iterable[tuple[str, Any]] = _facts(inspection)
    title: doc.Line = f"{inspection.kind} {inspection.path}"
    if inspection.deploy or inspection.next:
        yield doc.Text(title, "strong")
        title = "the model"
    if inspection.deploy:
        yield _deploy(inspection.deploy)
    if inspection.next:
        yield doc.Text("next:")
        yield doc.Commands(tuple(f"  {command}" for command in inspection.next))
    yield doc.Table(title, doc.columns("what", "value"), doc.rows((what, str(value)) for what, value in facts))


def _deploy(deployable: tuple[Deployable, ...]) -> doc.Table:
    """A row for each file; those of one form have its name in the first."""
    rows: list[tuple[doc.Line, ...]] = []
    for one in deployable:
        named: tuple[doc.Line, ...] = (one.name, doc.Verdict(one.parity), one.fused)
        for file, size in one.files.items():
            mib = size / 2**20
            rows.append((*named, file, f"{mib:,.0f}" if mib >= 10 else f"{mib:.2g}"))
            named = ("", "", "")
    columns = doc.columns("form", "parity", "fused", "file", "MiB", right=("fused", "MiB"), whole=("parity", "MiB"))
    return doc.Table("files to deploy", columns, doc.rows(rows))


def _facts(inspection: Inspection) -> list[tuple[str, Any]]:
    rows: list[tuple[str, Any]] = [("name", inspection.name), ("size", f"{inspection.size_bytes:,} bytes")]
    rows.append(("SHA-256", inspection.digest))
    if inspection.source:
        rows.append(("source", inspection.source))
    if inspection.engine is not None:
        rows += _engine_facts(inspection.engine)
    if inspection.io is not None:
        rows += [("input", spec) for spec in inspection.io.inputs] + [
            ("output", spec) for spec in inspection.io.outputs
        ]
        rows += [
            (f"labels of {spec.name}", values_of(spec, inspection.io)) for spec in inspection.io.outputs if spec.labels
        ]
        rows += [("dim", dim) for dim in inspection.io.dims] + [("mask", mask) for mask in inspection.io.masks]
    if inspection.graph is not None:
        rows += _graph_facts(inspection.graph, with_tensors=inspection.io is None)
    rows += [("precision", f"{name}: {text}") for name, text in inspection.precision.items()]
    by_verdict: dict[tuple[str, str], list[str]] = {}
    for name, verdict in inspection.verdicts.items():
        about, _, of = name.rpartition(" ")
        by_verdict.setdefault((about, verdict), []).append(of)
    rows += [(f"{verdict}, {about}", ", ".join(names)) for (about, verdict), names in by_verdict.items()]
    if inspection.files:
        rows.append(("files", ", ".join(_files(inspection.files))))
    return rows


def _engine_facts(engine: EngineFacts) -> list[tuple[str, Any]]:
    record = engine.record
    library = {"tensorrt": "TensorRT", "tensorrt_rtx": "TensorRT-RTX"}.get(record.target if record else "", "TensorRT")
    rows: list[tuple[str, Any]] = [("opened by", f"{library} {engine.version}, no other release")]
    rows.append(("compute capabilities", ", ".join(map(str, engine.sm)) or "those of the GPU that it was built on"))
    if record is None:
        rows.append(("profiles", "not known: the .json that build wrote is not beside the engine"))
        return rows
    rows.append(("precision", f"{record.plan}, built of the form {record.form}"))
    rows += [("profile, min:opt:max", profile) for profile in record.profiles]
    if record.scratch_bytes is not None:
        rows.append(("scratch memory", f"{record.scratch_bytes:,} bytes"))
    if engine.fusion is not None:
        rows.append(("attentions fused", str(engine.fusion)))
        rows += [(item.attention, item.kernel or f"not fused: {item.reason}") for item in engine.fusion.items]
    return rows


def _files(names: Iterable[str]) -> list[str]:
    """The files, those of a bundle's readers as their number."""
    readers: dict[str, int] = {}
    others = []
    for name in sorted(names):
        top, inside, _ = name.partition("/")
        if inside and top in ("python", "cpp"):
            readers[top] = readers.get(top, 0) + 1
        else:
            others.append(name)
    return [*others, *(f"{top}/ ({number} files)" for top, number in readers.items())]


def _graph_facts(graph: Any, *, with_tensors: bool) -> list[tuple[str, Any]]:
    rows: list[tuple[str, Any]] = []
    for fact in dataclasses.fields(graph):
        value = getattr(graph, fact.name)
        if not value or (fact.name in ("inputs", "outputs") and not with_tensors):
            continue
        if isinstance(value, Mapping):
            value = ", ".join(f"{name or 'ai.onnx'} {count}" for name, count in value.items())
        elif isinstance(value, tuple | list):
            value = ", ".join(map(str, value))
        elif isinstance(value, int) and fact.name != "ir_version":
            value = f"{value:,}"
        rows.append((_GRAPH_WORDS.get(fact.name, fact.name.replace("_", " ")), value))
    return rows
