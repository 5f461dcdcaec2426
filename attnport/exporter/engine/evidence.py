"""Proof of fused attention, read from the clear text of a serialized engine.

An engine holds, for each optimization profile, a graph in clear text: `NLYM`, `header { version = 5 ...`, then for each
kernel a line `function={ name=_gemm_mha_v2 fqn=... layers="[ONNX Layer: A]\\x1f[ONNX Layer: B]..." }` with the ONNX
nodes it covers. Behind the graph stands the CUDA source of each kernel, which the device compiles. One graph serves
every compute capability the engine is for (measured: one for one target and for six), so the kernel that is in the
graph is what all of them run.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from attnport.artifacts import Evidence
from attnport.errors import ArtifactError

ATTENTION_KERNEL = re.compile(r"_ge(?:mm|mv)_mha_v\d+\w*")
_GRAPH = re.compile(rb"NLYM.{12}header \{\n\s*version = \d+", re.DOTALL)
_STATEMENT = re.compile(rb"\n\s*(\w+)=\{ ([^\n]*?)layers=\"([^\"\n]+)\"")
_FUNCTION = re.compile(rb"name=(\S+) fqn=(\S+) ")
_LAYER = "[ONNX Layer: "


@dataclass(frozen=True)
class Kernel:
    """One kernel of a graph: its name, the ONNX nodes it covers, and how its CUDA source treats the mask's tiles."""

    name: str
    nodes: frozenset[str]
    tiles: str = ""


@dataclass(frozen=True)
class EngineText:
    """The kernels of an engine, graph by graph; there is a graph for each optimization profile."""

    graphs: tuple[tuple[Kernel, ...], ...]


@dataclass(frozen=True)
class Unfused:
    """Why an attention does not count as fused in an engine."""

    reason: str
    kernels: tuple[str, ...] = ()


def read_engine_text(engine: Path) -> EngineText:
    """Reads the kernels of an engine.

    The file is not deserialised. Check its digest first: this only reads text, it does not find a changed byte.

    Raises:
        ArtifactError: it cannot be read, or it holds no graph text, so that nothing can be proved from it.
    """
    try:
        data = engine.read_bytes()
    except OSError as err:
        raise ArtifactError(f"{engine} cannot be read: {err.strerror}.") from err
    starts = [match.start() for match in _GRAPH.finditer(data)]
    if not starts:
        raise ArtifactError(
            f"{engine} holds no graph text, so nothing can be proved from it: it is no TensorRT engine, "
            "or one of a version that writes another format."
        )
    ends = [*starts[1:], len(data)]
    return EngineText(tuple(_kernels(data[start:end]) for start, end in zip(starts, ends, strict=True)))


def _kernels(graph: bytes) -> tuple[Kernel, ...]:
    found = []
    for statement in _STATEMENT.finditer(graph):
        layers = statement[3].decode(errors="replace").split("\x1f")
        nodes = frozenset(layer.removeprefix(_LAYER).removesuffix("]") for layer in layers if layer.startswith(_LAYER))
        function = _FUNCTION.match(statement[2]) if statement[1] == b"function" else None
        # What is no generated kernel (a matrix product from a library) is called by its kind.
        name = (function[1] if function else statement[1]).decode(errors="replace")
        tiles = _tiles(graph, function[2]) if function and ATTENTION_KERNEL.fullmatch(name) else ""
        found.append(Kernel(name, nodes, tiles))
    return tuple(found)


def _tiles(graph: bytes, entry: bytes) -> str:
    """Which key tiles the kernel called `entry` computes, read from its CUDA source; empty where that does not tell."""
    start = graph.find(entry + b"\0")
    if start < 0:
        return ""
    source = graph[start + len(entry) : graph.find(b"\0", graph.find(b"#", start))]
    facts = []
    skipping = re.search(rb"USE_RUNTIME_SKIPPING = (\d)", source)
    if skipping:
        facts.append("hidden tiles skipped by a run-time tile map" if skipping[1] == b"1" else "no run-time tile map")
    for side, everything in (("left", r"0"), ("right", r"shape\d+")):
        bound = re.search(rb"col_%s_bound\([^{]*\{\s*return ([^;]+);" % side.encode(), source)
        if bound:
            text = re.sub(r"\s+", " ", re.sub(r"\(\(int32_t\) (\w+)\)", r"\1", bound[1].decode(errors="replace")))
            if not re.fullmatch(everything, text):
                facts.append(f"tiles {side} of `{text}` skipped")
    return "; ".join(facts)


def prove(text: EngineText, anchors: tuple[str, ...], profiles: int) -> Evidence | Unfused:
    """Whether one attention kernel covers all `anchors`, in the graph of every optimization profile.

    Args:
        text: The engine's kernels.
        anchors: One attention operator, or (QK^T product, softmax, PV product), by node name.
        profiles: How many optimization profiles the engine was built with.
    """
    wanted = frozenset(anchors)
    proofs: list[Kernel] = []
    for graph in text.graphs:
        touching = [kernel for kernel in graph if kernel.nodes & wanted]
        fused = [kernel for kernel in touching if ATTENTION_KERNEL.fullmatch(kernel.name) and wanted <= kernel.nodes]
        # A decomposed attention whose softmax a second kernel computes too has an unfused branch. The operator's own
        # name also stands on the layout moves around its kernel, so there it tells nothing.
        others = [
            kernel for kernel in touching if kernel not in fused and len(anchors) > 1 and anchors[1] in kernel.nodes
        ]
        if touching and (not fused or others):
            names = tuple(kernel.name for kernel in touching)
            return Unfused(_told(touching, anchors), names)
        proofs += fused[:1]
    if len(proofs) < max(profiles, 1):
        return Unfused(
            f"the engine's text names {', '.join(anchors)} in {len(proofs)} of {profiles} graphs; "
            "each optimization profile has its own."
        )
    names = tuple(dict.fromkeys(kernel.name for kernel in proofs))
    lines = [f"{kernel.name} covers {', '.join(sorted(kernel.nodes))}" for kernel in proofs]
    if any(kernel.tiles for kernel in proofs):
        lines = [
            f"{line} ({kernel.tiles})" if kernel.tiles else line for line, kernel in zip(lines, proofs, strict=True)
        ]
    if len(proofs) > 1:
        lines = [f"profile {index}: {line}" for index, line in enumerate(lines)]
    return Evidence(kernel=", ".join(names), text="\n".join(lines))


def _told(touching: list[Kernel], anchors: tuple[str, ...]) -> str:
    """Which kernels compute what a single one should."""
    parts = []
    for anchor in anchors:
        names = [kernel.name for kernel in touching if anchor in kernel.nodes]
        parts.append(f"{anchor} in {', '.join(dict.fromkeys(names)) or 'no named kernel'}")
    return f"no single attention kernel covers it: {'; '.join(parts)}."


def engine_evidence(engine: Path, anchors: Mapping[str, tuple[str, ...]], profiles: int = 1) -> dict[str, Evidence]:
    """For each attention that one kernel covers from QK^T to PV, the proof; those not fused are left out.

    Args:
        engine: A serialized engine whose digest was checked.
        anchors: Node names by attention, as in `Form.anchors`.
        profiles: How many optimization profiles it was built with.

    Raises:
        ArtifactError: the engine cannot be read, or holds no graph text.
    """
    text = read_engine_text(engine)
    proofs = {name: prove(text, nodes, profiles) for name, nodes in anchors.items()}
    return {name: proof for name, proof in proofs.items() if isinstance(proof, Evidence)}
