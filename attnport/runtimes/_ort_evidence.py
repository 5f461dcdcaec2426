"""Evidence that ONNX Runtime computes an attention as one kernel: its optimised model, its profile, what it prints."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnport.artifacts import MANY, Evidence, IOContract
from attnport.errors import UnavailableError
from attnport.runtimes import _ort
from attnport.runtimes._onnx_file import read_graph, small_feeds
from attnport.runtimes._ort_kernels import UNFUSED, Kernels, aligned_sizes, printed_kernels
from attnport_bundle.format.decoder import IN_PLACE

if TYPE_CHECKING:
    import onnx

FUSED_OPS = {
    ("", "Attention"),
    ("com.microsoft", "Attention"),
    ("com.microsoft", "MultiHeadAttention"),
    ("com.microsoft", "GroupQueryAttention"),
}
"""Operators of which one kernel covers an attention from QK^T to PV."""

_COPYING = ("MemcpyFromHost", "MemcpyToHost")


def evidence(
    model: Path,
    anchors: Mapping[str, tuple[str, ...]],
    provider: _ort.Provider,
    io: IOContract | None = None,
    *,
    printing: bool = False,
) -> dict[str, Evidence]:
    """Evidence for attentions that are one operator in the session's optimised model and ran as one kernel.

    A decomposed attention (three anchors) is never fused here: this runtime does not join its two products into one
    kernel whose name could be traced back. Of a decoder that writes to its caches, both ways of an attention must be
    fused: that of one new token, and that of several.

    Args:
        printing: Whether the operators of this provider print the kernel that they choose. Then that is the evidence,
            at lengths that are multiples of 8; an operator that printed none gives no evidence.

    Raises:
        ArtifactError, UnavailableError: see `_ort.profiled`; or no operator printed a kernel.
    """
    graph = read_graph(model)
    sizes = aligned_sizes(graph, io) if printing else {}
    with printed_kernels() if printing else contextlib.nullcontext(None) as chosen:
        of_step = _step_events(model, graph, provider, io, sizes)
        events, optimised = _ort.profiled(model, provider, small_feeds(graph, io, sizes), io=io)
    if chosen == {} and anchors:
        raise UnavailableError("this onnxruntime printed no kernel of any attention.")
    events += of_step
    name, copies = _ort.name_of(provider), _copies(events)
    nodes = {node.name: node for node in _nodes(optimised.graph)}
    kernels = {event["name"]: event for event in events}
    proofs = {}
    for attention, anchor in anchors.items():
        if len(anchor) != 1:
            continue
        ways = [way for way in (anchor[0], f"{anchor[0]}{MANY}") if way == anchor[0] or way in nodes]
        found = [_proof(nodes.get(way), kernels.get(f"{way}_kernel_time"), name, chosen) for way in ways]
        proved = [proof for proof in found if proof is not None]
        if len(proved) == len(ways):
            proofs[attention] = Evidence(proved[0].kernel, "; ".join(proof.text for proof in proved) + copies)
    return proofs


def _copies(events: Iterable[Mapping[str, Any]]) -> str:
    """How often a run copied tensors between the devices, for a text; "" if it did not."""
    count = sum(event["args"]["op_name"] in _COPYING for event in events)
    return f"; {count} copies between CPU and device in this run, for nodes without a kernel there" if count else ""


def _proof(
    node: onnx.NodeProto | None, event: Mapping[str, Any] | None, provider: str, chosen: Kernels | None
) -> Evidence | None:
    """What an operator of the optimised model, its event in the profile and the kernel that it printed show."""
    if node is None or event is None or (node.domain, node.op_type) not in FUSED_OPS:
        return None
    arguments = event["args"]
    if (arguments["op_name"], arguments["provider"]) != (node.op_type, provider):
        return None
    text = (
        f"optimised model: node {node.name} is {node.domain or 'ai.onnx'}.{node.op_type}; "
        f"profile: {event['name']} on {arguments['provider']}, {event['dur']} us"
    )
    if chosen is None:
        return Evidence(node.op_type, text)
    ran_as = chosen.get(node.name, ())
    if not ran_as or UNFUSED in ran_as:
        return None
    kernel = " and ".join(ran_as)
    return Evidence(f"{node.op_type} {kernel}", f"{text}; ONNX Runtime printed SdpaKernel={kernel} for it")


def _step_events(
    model: Path, graph: onnx.ModelProto, provider: _ort.Provider, io: IOContract | None, sizes: Mapping[str, int]
) -> list[dict[str, Any]]:
    """The events of a run with one new token, of a model that writes to its caches then; none of others."""
    ids = next((entry.value for entry in graph.metadata_props if entry.key == IN_PLACE), None)
    if ids is None:
        return []
    shape = next(value.type.tensor_type.shape for value in graph.graph.input if value.name == ids)
    return _ort.profiled(model, provider, small_feeds(graph, io, {**sizes, shape.dim[1].dim_param: 1}), False, io)[0]


def _nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """The nodes of a graph and of its branches."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _nodes(attribute.g)
