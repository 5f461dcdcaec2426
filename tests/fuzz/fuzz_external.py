"""Any bytes as an ONNX file: every external file that onnx's own parser sees is one that the walk sees."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import onnx
from google.protobuf.message import DecodeError
from scratch import scratch

from attnport.onnx_walk import opset, references

_FILE = scratch() / "model.onnx"


def one(data: bytes) -> bool:
    """Whether `data` is accepted."""
    _FILE.write_bytes(data)
    with contextlib.suppress(ValueError):
        opset(_FILE)
    try:
        found = {reference.location for reference in references(_FILE)}
    except ValueError:
        return False
    try:
        model = onnx.ModelProto.FromString(data)
    except DecodeError:  # no runtime will read it either
        return False
    for tensor in _tensors(model):
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            locations = [entry.value for entry in tensor.external_data if entry.key == "location"]
            assert set(locations) <= found, f"onnx takes weights from {locations}; the walk saw {sorted(found)}"
            assert found, "onnx takes a tensor for external that the walk does not"
    return True


def _tensors(message: Any) -> Iterator[onnx.TensorProto]:
    if isinstance(message, onnx.TensorProto):
        yield message
        return
    for field, value in message.ListFields():
        if field.message_type is not None:
            for inner in value if field.is_repeated else (value,):
                yield from _tensors(inner)
