"""Reads what TensorRT's engine inspector says of an engine's layers, for the proof that attention is fused.

A plan of the data centre flavour is no clear text as TensorRT-RTX's engines are. Built with detailed profiling
verbosity, its inspector says `{"Layers": [{"Name": ..., "LayerType": ..., "TacticName": ..., "Metadata":
"[ONNX Layer: a]\\x1e[ONNX Layer: b]", ...}], "Bindings": [...]}`. The layers of further optimization profiles have
` [profile 1]` and so on behind their names. This follows the documentation of IEngineInspector; no such engine was run.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attnport.errors import ArtifactError
from attnport.exporter.engine.evidence import EngineText, Kernel

_ATTENDS = re.compile(r"\w*(?:mha|attention)\w*", re.IGNORECASE)
"""A kernel's name is one word. TensorRT also calls layers by the nodes in them, whose names say what a model likes."""
_NODE = re.compile(r"\[ONNX Layer: ([^\x1e\x1f]*)\]")
_PROFILE = re.compile(r"\s*\[profile (\d+)\]$")


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
