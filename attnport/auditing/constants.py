"""Finds constants that look like data, not weights: text, bytes without quantisation, integers without order.

Floating-point data cannot be distinguished from weights, so all floating-point numbers count as weights.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from attnport.auditing.findings import Finding, shown
from attnport.auditing.onnx_file import messages
from attnport.auditing.tensors import content, tensors

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto, TensorProto

_MOST_BYTES = 1 << 20
_FEWEST, _DISTINCT = 64, 32
_PRINTABLE = 0.9
_ADVICE = "Only the module's author knows whether it may be there; if not, remove it from the module."
_INTEGERS = {3: "<i1", 4: "<u2", 5: "<i2", 6: "<i4", 7: "<i8", 12: "<u4", 13: "<u8"}
_UINT8, _STRING = 2, 8
_TEXT = re.compile(rb"[\x20-\x7e\t\r\n]")
_QUANTISED = ("Linear", "Integer", "NBits", "Quantize")
_LAYOUT = frozenset(
    (
        *("Reshape", "Transpose", "Flatten", "Unsqueeze", "Squeeze", "Expand", "Tile", "Slice", "Split", "Concat"),
        *("Pad", "Cast", "Identity", "Gather"),
    )
)
_INDEXED = {"Gather": 1, "GatherElements": 1, "GatherND": 1, "ScatterElements": 1, "ScatterND": 1}
"""The first input that is an index; the inputs before it are data."""
_SIZED = frozenset(("Reshape", "Slice", "Expand", "Tile", "Pad", "Split", "ConstantOfShape", "Resize", "Unsqueeze"))


def audit_constants(file: str, model: ModelProto, folder: Path) -> Iterator[Finding]:
    """Findings for tensors that look like data, by the first MiB of each."""
    uses = Uses(model)
    for where, name, tensor in tensors(model):
        evidence = _looks_like_data(tensor, folder, list(uses.ends(name)))
        if evidence:
            yield Finding(file, where, "data_constant", shown(evidence), fixable=False, advice=_ADVICE)


class Uses:
    """The uses of each constant, by its name, in every graph and function of a model."""

    def __init__(self, model: ModelProto) -> None:
        self._users: dict[str, list[tuple[NodeProto, int]]] = {}
        for _, message in messages(model):
            if message.DESCRIPTOR.name == "NodeProto":
                for position, name in enumerate(message.input):
                    if name:  # an omitted optional input has no name
                        self._users.setdefault(name, []).append((message, position))

    def ends(self, name: str) -> Iterator[tuple[str, int]]:
        """The operators that read a constant, directly or after layout changes and casts, with the input's position."""
        pending, seen = [name], set[str]()
        while pending:
            for node, position in self._users.get(pending.pop(), ()):
                if (node.op_type in _LAYOUT and position == 0) or node.op_type == "Concat":
                    pending += [output for output in node.output if output not in seen]
                    seen.update(node.output)
                else:
                    yield node.op_type, position


def _looks_like_data(tensor: TensorProto, folder: Path, ends: list[tuple[str, int]]) -> str:
    """Why a tensor looks like data, with a piece of it; "" if it does not."""
    data = content(tensor, folder, _MOST_BYTES)
    if tensor.data_type == _STRING:
        return f"text: {data.decode('utf-8', 'replace')}" if data else ""
    if len(data) < _FEWEST:
        return ""
    if len(_TEXT.findall(data)) >= _PRINTABLE * len(data) and len(set(data)) >= _FEWEST // 4:
        return f"text: {data.decode('latin-1')}"
    if tensor.data_type == _UINT8:
        quantised = any(word in operator for operator, _ in ends for word in _QUANTISED)
        return "" if quantised or len(set(data)) < _DISTINCT else f"bytes: {data[:24].hex(' ')}"
    if tensor.data_type in _INTEGERS:
        return _strange_integers(tensor, data, ends)
    return ""


def _strange_integers(tensor: TensorProto, data: bytes, ends: list[tuple[str, int]]) -> str:
    kind = np.dtype(_INTEGERS[tensor.data_type])
    values = np.frombuffer(data[: len(data) // kind.itemsize * kind.itemsize], kind)
    if values.size < _FEWEST or np.unique(values).size < _DISTINCT:
        return ""
    if all(_is_index(operator, position) for operator, position in ends) and ends:
        return ""
    if any(word in operator for operator, _ in ends for word in _QUANTISED) or _is_counted(values, tensor):
        return ""
    return f"integers: {', '.join(map(str, values[:12]))}"


def _is_index(operator: str, position: int) -> bool:
    first = _INDEXED.get(operator)
    return (first is not None and position >= first) or (operator in _SIZED and position > 0)


def _is_counted(values: np.ndarray[tuple[int], np.dtype[np.signedinteger]], tensor: TensorProto) -> bool:
    """Whether each row counts up or down in equal steps, as with positions and distances."""
    width = int(tensor.dims[-1]) if tensor.dims else 1
    rows = values[: values.size // width * width].reshape(-1, width) if 1 < width <= values.size else values[None]
    steps = np.diff(rows.astype(np.float64), axis=-1)
    return bool(steps.size and (steps == steps.flat[0]).all())
