"""Reads built engines, and proves from what they say of their kernels that attention is fused.

For each optimization profile an engine contains a graph in clear text: `NLYM`, `header { version = 5 ...`, then for
each kernel a line `function={ name=_gemm_mha_v2 fqn=... layers="[ONNX Layer: A]\\x1f[ONNX Layer: B]..." }` with the
ONNX nodes that it covers. After the graph comes the CUDA source of each kernel, which the device compiles. There is one
graph for all compute capabilities of the engine (measured with one target and with six), so all of them run the kernels
in it.

A plan of the data centre flavour is no clear text as TensorRT-RTX's engines are. Built with detailed profiling
verbosity, its inspector says `{"Layers": [{"Name": ..., "LayerType": ..., "TacticName": ..., "Metadata":
"[ONNX Layer: a]\\x1e[ONNX Layer: b]", ...}], "Bindings": [...]}`. The layers of further optimization profiles have
` [profile 1]` and so on behind their names. This follows the documentation of IEngineInspector; no such engine was run.
"""

from __future__ import annotations

import json
import mmap
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnport.artifacts import Evidence
from attnport.errors import ArtifactError
from attnport_bundle.runtimes import tensorrt
from attnport_bundle.runtimes.tensorrt import EngineHeader

ATTENTION_KERNEL = re.compile(r"_ge(?:mm|mv)_mha_v\d+\w*")
_GRAPH = re.compile(rb"NLYM.{12}header \{\n\s*version = \d+", re.DOTALL)
_STATEMENT = re.compile(rb"\n\s*(\w+)=\{ ([^\n]*?)layers=\"([^\"\n]+)\"")
_FUNCTION = re.compile(rb"name=(\S+) fqn=(\S+) ")
_LAYER = "[ONNX Layer: "
_ATTENDS = re.compile(r"\w*(?:mha|attention)\w*", re.IGNORECASE)
"""A kernel's name is one word. TensorRT also calls layers by the nodes in them, whose names say what a model likes."""
_NODE = re.compile(r"\[ONNX Layer: ([^\x1e\x1f]*)\]")
_PROFILE = re.compile(r"\s*\[profile (\d+)\]$")
Data = bytes | mmap.mmap
"""The bytes of an engine's file."""


@dataclass(frozen=True)
class Kernel:
    """One kernel of a graph: its name, the ONNX nodes it covers, and which tiles its CUDA source skips."""

    name: str
    nodes: frozenset[str]
    tiles: str = ""


@dataclass(frozen=True)
class EngineText:
    """The kernels of an engine, graph by graph, with one graph for each optimization profile.

    `attends` is what the name of a kernel that computes a whole attention looks like.
    """

    graphs: tuple[tuple[Kernel, ...], ...]
    attends: re.Pattern[str] = ATTENTION_KERNEL


def read_header(path: Path) -> EngineHeader:
    """Reads and checks the header of a TensorRT-RTX engine.

    Raises:
        ArtifactError: the file cannot be read, or is no TensorRT-RTX engine.
        IntegrityError: it is cut short or has bytes after its end.
    """
    try:
        return tensorrt.read_header(path)
    except OSError as err:
        raise ArtifactError(f"{path} cannot be read: {err.strerror}.") from err
    except ValueError as err:
        raise ArtifactError(str(err), hint="Build one with: attnport build FOLDER --target tensorrt_rtx") from err


def read_engine_text(engine: Path) -> EngineText:
    """Reads the kernels of an engine.

    The file is not deserialised. Check its digest first, since a changed byte is not noticed here.

    Raises:
        ArtifactError: the file cannot be read, or contains no graph text, so that nothing can be proved from it.
    """
    try:
        with engine.open("rb") as file:  # mapped, as the weights in it may take gigabytes
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if engine.stat().st_size else b""
    except OSError as err:
        raise ArtifactError(f"{engine} cannot be read: {err.strerror}.") from err
    starts = [match.start() for match in _GRAPH.finditer(data)]
    if not starts:
        raise ArtifactError(
            f"{engine} contains no graph text, so nothing can be proved from it: it is not a TensorRT engine, "
            "or its version writes another format."
        )
    ends = [*starts[1:], len(data)]
    return EngineText(tuple(_kernels(data, start, end) for start, end in zip(starts, ends, strict=True)))


def _kernels(data: Data, start: int, end: int) -> tuple[Kernel, ...]:
    kernels = []
    for statement in _STATEMENT.finditer(data, start, end):
        layers = statement[3].decode(errors="replace").split("\x1f")
        nodes = frozenset(layer.removeprefix(_LAYER).removesuffix("]") for layer in layers if layer.startswith(_LAYER))
        function = _FUNCTION.match(statement[2]) if statement[1] == b"function" else None
        # A kernel that was not generated (a matrix product from a library) is named by its kind.
        name = (function[1] if function else statement[1]).decode(errors="replace")
        tiles = _tiles(data, start, end, function[2]) if function and ATTENTION_KERNEL.fullmatch(name) else ""
        kernels.append(Kernel(name, nodes, tiles))
    return tuple(kernels)


def _tiles(data: Data, start: int, end: int, entry: bytes) -> str:
    """Which key tiles the kernel called `entry` skips, read from its CUDA source; empty where that does not tell."""
    at = data.find(entry + b"\0", start, end)
    if at < 0:
        return ""
    stop = data.find(b"\0", max(at + len(entry) + 1, data.find(b"#", at, end)), end)
    source = data[at + len(entry) : stop if stop >= 0 else end]
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


def read_layers(layers: Path) -> EngineText:
    """The kernels by optimization profile, from a file with the inspector's JSON.

    Raises:
        ArtifactError: there is no such file, or it does not tell which ONNX nodes the layers cover.
    """
    try:
        told = json.loads(layers.read_bytes())
        found = [layer for layer in told["Layers"] if isinstance(layer, dict) and _nodes(layer)]
    except (OSError, ValueError, KeyError, TypeError):
        found = []
    if not found:
        raise ArtifactError("TensorRT's engine inspector does not tell which ONNX nodes the engine's layers cover.")
    graphs: dict[int, list[Kernel]] = {}
    for layer in found:
        profile = _PROFILE.search(str(layer.get("Name")))
        graphs.setdefault(int(profile[1]) if profile else 0, []).append(Kernel(_name(layer), _nodes(layer)))
    return EngineText(tuple(tuple(graphs[profile]) for profile in sorted(graphs)), _ATTENDS)


def _nodes(layer: Mapping[str, Any]) -> frozenset[str]:
    return frozenset(_NODE.findall(str(layer.get("Metadata", ""))))


def _name(layer: Mapping[str, Any]) -> str:
    """The name, kernel or type that says that a layer is an attention; the name if none does."""
    name = _PROFILE.sub("", str(layer.get("Name")))
    given = (name, str(layer.get("TacticName", "")), str(layer.get("LayerType", "")))
    nodes = _nodes(layer)
    return next((one for one in given if _ATTENDS.fullmatch(one) and one not in nodes), f"layer {name}")


def prove(text: EngineText, anchors: tuple[str, ...], profiles: int) -> Evidence | str:
    """Checks whether one attention kernel covers all `anchors`, in the graph of every optimization profile.

    Args:
        text: The engine's kernels.
        anchors: One attention operator, or (QK^T product, softmax, PV product), by node name.
        profiles: How many optimization profiles the engine was built with.

    Returns:
        The proof, or why the attention does not count as fused.
    """
    wanted = frozenset(anchors)
    proofs: list[Kernel] = []
    for graph in text.graphs:
        touching = [kernel for kernel in graph if kernel.nodes & wanted]
        fused = [kernel for kernel in touching if text.attends.fullmatch(kernel.name) and wanted <= kernel.nodes]
        # If a second kernel computes the softmax of a decomposed attention too, that branch is not fused. With an
        # attention operator this cannot be told: its name is also on the kernels that only change its layout.
        others = [
            kernel for kernel in touching if kernel not in fused and len(anchors) > 1 and anchors[1] in kernel.nodes
        ]
        if touching and (not fused or others):
            return _not_covered(touching, anchors)
        proofs += fused[:1]
    if len(proofs) < max(profiles, 1):
        return (
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


def _not_covered(touching: list[Kernel], anchors: tuple[str, ...]) -> str:
    """The reason, with the kernels that compute each anchor."""
    parts = []
    for anchor in anchors:
        names = [kernel.name for kernel in touching if anchor in kernel.nodes]
        parts.append(f"{anchor} in {', '.join(dict.fromkeys(names)) or 'no named kernel'}")
    return f"no single attention kernel covers it: {'; '.join(parts)}."
