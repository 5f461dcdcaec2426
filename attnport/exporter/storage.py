"""Saves and loads graphs beside shared weights: `weights.bin` for all forms, and per form only the tensors that it
changed. A copy for a proof has fewer."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from attnport.errors import ArtifactError
from attnport.onnx_graph import ir

INLINE_BYTES = 1024
"""Tensors of at most this size stay inside the ONNX file, so that readers can fold them."""
BLOCK_BYTES = 1 << 24
"""What is copied at once of a tensor, to compare it or to write it."""
MOST = 0.75
"""A form that reads a smaller part of `weights.bin` has a file of its own for all its weights."""
LARGE_BYTES = 1 << 28
"""A graph with fewer bytes of weights is proved as it is."""


def save_exported(model: ir.Model, path: Path, weights: str) -> None:
    """Saves a captured graph with its tensors in the new file `weights` beside it; equal tensors are stored once."""
    _share_equal_tensors(model)
    _externalise(model, path.parent, weights)
    _write(model, path)


def save_form(model: ir.Model, path: Path, weights: str, *, again: bool = False) -> bool:
    """Saves a lowered graph; it refers to the artifact's `weights.bin`, and new large tensors go to the file `weights`.

    Args:
        again: Also those that are in a file already, so that the form needs `weights` alone.

    Returns:
        Whether the file `weights` was written; a form that changes no large tensor has none.
    """
    written = _externalise(model, path.parent, weights, again=again)
    _write(model, path)
    return written


def reads_little(model: ir.Model) -> bool:
    """Whether a graph reads less than `MOST` of a weights file.

    Integers replace most of `weights.bin`, and a bundle copies whole files: it would carry float32 that nothing reads.
    """
    read = defaultdict[Path, dict[int | None, int]](dict)
    for _, tensor in _external_tensors(model):
        read[Path(tensor.path)][tensor.offset] = tensor.nbytes
    return any(sum(sizes.values()) < MOST * file.stat().st_size for file, sizes in read.items())


def load(path: Path) -> ir.Model:
    """Loads a graph; its tensors stay on disk until they are used.

    Raises:
        ArtifactError: the file is not ONNX, or its external data is outside the folder or too short.
    """
    try:
        model = ir.load(path)
    except Exception as err:  # protobuf and onnx_ir raise a dozen types of error for a damaged file
        raise ArtifactError(
            f"{path} is not a readable ONNX file: {str(err).splitlines()[0] if str(err) else type(err).__name__}",
            hint="It was cut short or changed; export again.",
        ) from err
    if not model.graph.outputs or "" not in model.graph.opset_imports:
        # To protobuf, an empty file or one that ends between two fields is a complete message.
        raise ArtifactError(
            f"{path} is not a whole ONNX file: it has {path.stat().st_size} bytes and no outputs or no opset.",
            hint="It was cut short or changed; export again.",
        )
    check_external(model, path)
    return model


def check_external(model: ir.Model, path: Path) -> None:
    """Checks the files and offsets of a graph's external tensors.

    Raises:
        ArtifactError: a tensor lies outside the model's folder or beyond its file's end, its file is missing, or its
            declared length does not agree with its shape and type.
    """
    for name, tensor in _external_tensors(model):
        place = Path(str(tensor.location))
        file = path.parent / place
        if place.is_absolute() or ".." in place.parts or not file.resolve().is_relative_to(path.parent.resolve()):
            raise ArtifactError(f"{path}: tensor {name!r} lies in {str(place)!r}, outside the model's folder.")
        if not file.is_file():
            raise ArtifactError(f"{path}: tensor {name!r} lies in {str(place)!r}, which is missing.")
        offset, length = tensor.offset or 0, tensor.nbytes if tensor.length is None else tensor.length
        if offset < 0 or length != tensor.nbytes:
            raise ArtifactError(
                f"{path}: tensor {name!r} declares {length} bytes from byte {offset} of {place.name}; "
                f"its shape and type need {tensor.nbytes}.",
                hint="The ONNX file was changed; export again.",
            )
        if offset + length > file.stat().st_size:
            raise ArtifactError(
                f"{path}: tensor {name!r} ends at byte {offset + length} of {place.name}, "
                f"which has {file.stat().st_size}.",
                hint="The weights file was cut short; export again.",
            )


def _external_tensors(model: ir.Model) -> Iterator[tuple[str, ir.ExternalTensor]]:
    """Every external tensor of the graph, its branches and its nodes' attributes, with its name."""
    graphs = [model.graph, *model.graph.subgraphs()]
    for graph in graphs:
        for name, value in graph.initializers.items():
            if isinstance(value.const_value, ir.ExternalTensor):
                yield name, value.const_value
    for function in (*graphs, *model.functions.values()):
        for node in function:
            for attribute in node.attributes.values():
                if isinstance(attribute.value, ir.ExternalTensor):
                    yield attribute.value.name or f"{node.name}.{attribute.name}", attribute.value


def _share_equal_tensors(model: ir.Model) -> None:
    """Keeps one of several equal initializers. onnx_ir's pass holds a copy of every weight while it looks for them."""
    for graph in model.graphs():
        alike = defaultdict(list)
        for value in graph.initializers.values():
            tensor = value.const_value
            if tensor is None or tensor.dtype == ir.DataType.STRING:
                continue
            if not value.is_graph_input() and not value.is_graph_output():
                alike[tensor.dtype, tuple(tensor.shape)].append((value, tensor))
        kept: dict[bytes, ir.Value] = {}
        for (dtype, shape), values in alike.items():
            for value, tensor in values if len(values) > 1 else ():
                content = hashlib.sha256(f"{dtype} {shape}".encode())
                for block in _blocks(tensor):
                    content.update(block)
                if (first := kept.setdefault(content.digest(), value)) is not value:
                    value.replace_all_uses_with(first)
                    graph.initializers.pop(str(value.name))


def _externalise(model: ir.Model, folder: Path, weights: str, *, again: bool = False) -> bool:
    """Writes large tensors to a file; returns whether there are any.

    Args:
        again: Also those that are in a file already.
    """
    values = [
        value
        for value in model.graph.initializers.values()
        if value.const_value is not None
        and (again or not isinstance(value.const_value, ir.ExternalTensor))
        and value.const_value.nbytes > INLINE_BYTES
    ]
    if not values:
        return False
    tensors = [_in_blocks(value.const_value) for value in values if value.const_value is not None]
    stored = ir.external_data.convert_tensors_to_external(tensors, folder, weights, alignment=4096)
    for value, tensor in zip(values, stored, strict=True):
        value.const_value = tensor
    return True


def _in_blocks(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    """The same tensor, written block by block; onnx_ir copies a whole one that lies transposed in memory, twice."""

    class InBlocks(ir.LazyTensor):
        def tofile(self, file: Any) -> None:
            for block in _blocks(tensor):
                file.write(block)

    if isinstance(tensor, ir.ExternalTensor) or tensor.dtype.bitwidth < 8:  # on disk already, or packed
        return tensor
    return InBlocks(lambda: tensor, tensor.dtype, ir.Shape(tensor.shape.numpy()), name=tensor.name)


def _blocks(tensor: ir.TensorProtocol) -> Iterator[memoryview]:
    """The elements in their order, as far as a copy of `BLOCK_BYTES` holds them."""
    import numpy as np

    array = np.atleast_1d(tensor.numpy())
    rows = max(1, BLOCK_BYTES // max(1, array[:1].nbytes))
    for at in range(0, len(array), rows):
        yield np.ascontiguousarray(array[at : at + rows]).reshape(-1).view(np.uint8).data


def _write(model: ir.Model, path: Path) -> None:
    proto = ir.serde.serialize_model(model)
    path.write_bytes(proto.SerializeToString(deterministic=True))


def light_copy(model: Path, folder: Path) -> Path:
    """Writes a copy of a graph with large weights, for a proof of fusion, into an empty folder: layers share weights.

    A runtime that compiles a graph makes copies of its weights. Which kernels it takes does not depend on their values,
    so that a graph of many layers is proved with the weights of few.

    Args:
        model: An ONNX file with its weights beside it.

    Returns:
        The copy, or the model itself where its weights are not large.

    Raises:
        ArtifactError: as `load`.
    """
    graph = load(model)
    tensors = (value.const_value for value in graph.graph.initializers.values())
    if sum(tensor.nbytes for tensor in tensors if tensor is not None) < LARGE_BYTES:
        return model
    _share_weights(graph)
    copy = folder / model.name
    _externalise(graph, folder, "proof.bin", again=True)
    _write(graph, copy)
    return copy


def _share_weights(model: ir.Model) -> None:
    """Lets nodes that read different values take weights of one shape from one tensor.

    Nodes that read the same values, as the projections to q, k and v do, keep weights of their own: with equal ones
    they would compute the same, and be merged.
    """
    kept: dict[tuple[object, ...], ir.Value] = {}
    siblings = Counter[tuple[object, ...]]()
    for node in model.graph:
        others = tuple(id(value) for value in node.inputs if value is not None and value.const_value is None)
        for at, value in enumerate(node.inputs):
            tensor = value.const_value if value is not None else None
            if value is None or tensor is None or not value.is_initializer() or tensor.nbytes <= INLINE_BYTES:
                continue
            kind = node.op_type, at, tensor.dtype, tuple(tensor.shape)
            first = kept.setdefault((kind, siblings[others, kind]), value)
            siblings[others, kind] += 1
            if first is not value:
                node.replace_input_with(at, first)
    for name, value in list(model.graph.initializers.items()):
        if not value.uses() and not value.is_graph_output() and not value.is_graph_input():
            del model.graph.initializers[name]
