"""What `inspect` prints: the files to deploy and the next command, then what the model is."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from attnport.console import cells
from attnport.reporting import document as doc

if TYPE_CHECKING:
    from attnport.verbs._deployables import Deployable
    from attnport.verbs.inspect import Inspection

_GRAPH_WORDS = {"elements": "weights", "weights_bytes": "bytes of weights", "external": "weights are in"}


def show_inspection(inspection: Inspection) -> Iterator[doc.Block]:
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
    yield doc.Table(title, doc.words("what", "value"), doc.rows((what, str(value)) for what, value in facts))


def _deploy(deployable: tuple[Deployable, ...]) -> doc.Table:
    """A row for each file; those of one form have its name in the first."""
    rows: list[tuple[doc.Line, ...]] = []
    for one in deployable:
        named: tuple[doc.Line, ...] = (one.name, doc.Verdict(one.parity), one.fused)
        for file, size in one.files.items():
            mib = size / 2**20
            rows.append((*named, file, f"{mib:,.0f}" if mib >= 10 else f"{mib:.2g}"))
            named = ("", "", "")
    columns = cells.columns("form", "parity", "fused", "file", "MiB", right=("fused", "MiB"), whole=("parity", "MiB"))
    return doc.Table("files to deploy", columns, doc.rows(rows))


def _facts(inspection: Inspection) -> list[tuple[str, Any]]:
    rows: list[tuple[str, Any]] = [("name", inspection.name), ("size", f"{inspection.size_bytes:,} bytes")]
    rows.append(("SHA-256", inspection.digest))
    if inspection.source:
        rows.append(("source", inspection.source))
    if inspection.io is not None:
        rows += [("input", spec) for spec in inspection.io.inputs] + [
            ("output", spec) for spec in inspection.io.outputs
        ]
        rows += [("dim", dim) for dim in inspection.io.dims] + [("mask", mask) for mask in inspection.io.masks]
    if inspection.graph is not None:
        rows += _graph_facts(inspection.graph, with_tensors=inspection.io is None)
    if inspection.engine is not None:
        rows.append(("TensorRT", inspection.engine.version))
        rows.append(("compute capabilities", ", ".join(map(str, inspection.engine.sm))))
    rows += [("precision", f"{name}: {text}") for name, text in inspection.precision.items()]
    by_verdict: dict[tuple[str, str], list[str]] = {}
    for name, verdict in inspection.verdicts.items():
        about, _, of = name.rpartition(" ")
        by_verdict.setdefault((about, verdict), []).append(of)
    rows += [(f"{verdict}, {about}", ", ".join(names)) for (about, verdict), names in by_verdict.items()]
    if inspection.files:
        rows.append(("files", ", ".join(_files(inspection.files))))
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
    for field in dataclasses.fields(graph):
        value = getattr(graph, field.name)
        if not value or (field.name in ("inputs", "outputs") and not with_tensors):
            continue
        if isinstance(value, Mapping):
            value = ", ".join(f"{name or 'ai.onnx'} {count}" for name, count in value.items())
        elif isinstance(value, tuple | list):
            value = ", ".join(map(str, value))
        elif isinstance(value, int) and field.name != "ir_version":
            value = f"{value:,}"
        rows.append((_GRAPH_WORDS.get(field.name, field.name.replace("_", " ")), value))
    return rows
