"""Writes the files of the corpora that the fuzzer starts from, `valid` and others: run it when the format changes.

python tests/fuzz/seeds.py
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import onnx

CORPUS = Path(__file__).parent / "corpus"
sys.path.insert(0, str(Path(__file__).parent.parent))


def main() -> None:
    """Makes a bundle of the tests' tiny attention and takes the seeds from it, cut down to what a fuzzer can hold."""
    import tiny_attention as tiny

    from attnport.verbs.bundle import bundle

    arrays = tiny.goldens()
    with tempfile.TemporaryDirectory() as folder:
        exported = Path(folder) / "exported"
        exported.mkdir()
        tiny.export(exported)
        app = bundle(tiny.make(Path(folder) / "out", exported, arrays, tiny.parity()), Path(folder) / "app")
        (CORPUS / "manifest" / "valid").write_bytes(manifest(json.loads((app / "bundle.json").read_text())))
        (CORPUS / "goldens" / "valid").write_bytes((app / "goldens.safetensors").read_bytes())
    (CORPUS / "external" / "valid").write_bytes(model())
    (CORPUS / "external" / "wrapped_enum").write_bytes(wrapped_enum())
    (CORPUS / "external" / "wrapped_tag").write_bytes(wrapped_tag())


def manifest(value: dict[str, Any]) -> bytes:
    """The manifest without the files that nothing in it refers to."""
    forms = value["forms"].values()
    used = {value["goldens"]["file"], *(name for form in forms for name in (form["file"], *form["external"]))}
    value["files"] = {name: file for name, file in value["files"].items() if name in used}
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def model() -> bytes:
    """A model with external data in every place where a tensor can stand."""
    proto = onnx.ModelProto(ir_version=10)
    proto.opset_import.add(domain="", version=23)
    inner, step = proto.graph, proto.training_info.add()
    external(inner.initializer.add(), offset="0", length="16")
    external(inner.sparse_initializer.add().values)
    external(inner.sparse_initializer.add().indices)
    external(step.algorithm.initializer.add())
    for node in (inner.node.add(op_type="If"), proto.functions.add(name="f").node.add(op_type="Constant")):
        attribute = node.attribute.add()
        external(attribute.t)
        external(attribute.tensors.add())
        external(attribute.sparse_tensor.values)
        external(attribute.g.initializer.add())
        external(attribute.graphs.add().initializer.add())
    return proto.SerializeToString()


def wrapped_enum() -> bytes:
    """A model with a tensor that is external by the number 2**32 + 1, which no mutation comes upon."""
    proto = onnx.ModelProto(ir_version=10)
    external(proto.graph.initializer.add())
    tag = onnx.TensorProto.DATA_LOCATION_FIELD_NUMBER << 3
    one, wrapped = bytes([tag, 1]), bytes([tag, 0x81, 0x80, 0x80, 0x80, 0x10])
    field = proto.graph.initializer[0].SerializeToString().replace(one, wrapped)
    graph = bytes([onnx.GraphProto.INITIALIZER_FIELD_NUMBER << 3 | 2, len(field)]) + field
    return bytes([onnx.ModelProto.GRAPH_FIELD_NUMBER << 3 | 2, len(graph)]) + graph


def wrapped_tag() -> bytes:
    """A model whose graph is behind the tag of field 2**29 + 7, which some parsers take for field 7."""
    proto = onnx.ModelProto(ir_version=10)
    external(proto.graph.initializer.add())
    graph = proto.graph.SerializeToString()
    return bytes([0xBA, 0x80, 0x80, 0x80, 0x10, len(graph)]) + graph


def external(tensor: onnx.TensorProto, **more: str) -> None:
    """Makes a tensor one whose data lie in weights.bin."""
    tensor.data_type, tensor.data_location = onnx.TensorProto.FLOAT, onnx.TensorProto.EXTERNAL
    for key, value in {"location": "weights.bin", **more}.items():
        tensor.external_data.add(key=key, value=value)


if __name__ == "__main__":
    main()
