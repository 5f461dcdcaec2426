"""`onnx:FILE`: reads a file of ONNX that anybody made, and names its inputs and outputs."""

from __future__ import annotations

import keyword
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnport.bodies import schema_of, write_out
from attnport.errors import NOT_ONNX, SpecError, first_line, root_line
from attnport.onnx_graph import ir, passes
from attnport.onnx_walk import references
from attnport.patches import Patch, patched
from attnport.sources.hf.files import is_blob
from attnport.sources.onnx_decoder import Decoder, prepare_decoder
from attnport.sources.structure import flat_name

PREFIX = "onnx:"
_HALVES = ("FLOAT16", "BFLOAT16")
_OF_TYPES = {"to", "dtype", "output_dtype", "softmax_precision", "stash_type"}
"""Attributes of operators that hold a type."""
_WEIGHTS_ARE_INPUTS = 3
"""The last IR version in which every weight is listed among the inputs as well."""


def is_onnx(text: str) -> bool:
    """Whether a SPEC names a file of ONNX."""
    return text == PREFIX[:-1] or text.startswith(PREFIX)


def path_of(text: str) -> Path:
    """The file that a SPEC names."""
    return Path(text.removeprefix(PREFIX))


def files_of(text: str) -> list[Path]:
    """The file and those with its weights.

    Raises:
        SpecError: it is no file of ONNX, or its weights are missing or outside its folder.
    """
    return [path_of(text), *_weights_files(text).values()]


def _weights_files(text: str) -> dict[str, Path]:
    """Where weights lie, by the name that the file has for them: beside it or, where it is a link, beside its target.

    A link may lead no further than that, or to a blob of the hub cache that the file is in: whoever sends a folder must
    not have other files read.

    Raises:
        SpecError: as `files_of`.
    """
    path = path_of(text)
    if not path.is_file():
        raise SpecError(f"{text}: {path} is {'a folder' if path.is_dir() else 'not there'}; expected a file of ONNX.",
                        hint="Name the file by its own path, such as theirs/model.onnx.")  # fmt: skip
    try:
        names = {each.location for each in references(path.resolve())}
    except (ValueError, OSError) as err:
        raise SpecError(f"{text}: {path} is not a readable file of ONNX: {first_line(err)}.", hint=NOT_ONNX) from err
    found = {}
    for name in sorted(names):
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise SpecError(f"{text}: its weights lie in {name!r}, outside the file's folder.")
        place = beside(text, name)
        if place is None:
            raise SpecError(f"{text}: its weights lie in {name!r}, which is missing.",
                            hint="Copy the file of weights beside the file of ONNX.")  # fmt: skip
        found[name] = place
    return found


def beside(text: str, name: str) -> Path | None:
    """What is called `name` beside the file or, where the file is a link, beside its target; None if nothing is.

    A link may lead no further than into these two folders, or to a blob of the hub cache that the file is in: whoever
    sends a folder must not have other files read.

    Raises:
        SpecError: it is a link to elsewhere.
    """
    path = path_of(text)
    named, real = path.absolute().parent, path.resolve().parent
    place = next((folder / name for folder in (named, real) if (folder / name).is_file()), None)
    if place is None:
        return None
    target = place.resolve()
    snapshots = (root.resolve() for root in (named, *named.parents))
    if not (target.is_relative_to(named.resolve()) or target.is_relative_to(real)
            or any(is_blob(root, target) for root in snapshots)):  # fmt: skip
        raise SpecError(
            f"{text}: {name!r} is a link to '{target}', outside the file's folder.",
            hint="Put the file itself there, or make the file of ONNX a link into the same folder.",
        )
    return place


@dataclass(frozen=True)
class ImportedFile:
    """What a file holds.

    Attributes:
        model: The graph without functions of its own, types of 16 bits widened to 32; operators that the standard
            defines by others are written so, unless PyTorch computes them here. Its weights stay on disk.
        half: `float16` or `bfloat16` where anything of the graph had that type; otherwise "".
        preset: Inputs that have a value in the file, which is the one that they keep.
        decoder: What is known of a decoder with its cache.
    """

    model: ir.Model
    half: str
    preset: tuple[str, ...]
    decoder: Decoder | None


def read(text: str) -> ImportedFile:
    """What a file holds.

    Raises:
        SpecError: as `files_of`.
    """
    from attnport.sources.onnx_module import is_known

    path, places = path_of(text), _weights_files(text)
    try:
        model = ir.load(path.resolve())
    except Exception as err:  # protobuf and onnx_ir raise a dozen types of error for a damaged file
        raise SpecError(f"{text}: {path} is not a readable file of ONNX: {root_line(err)}", hint=NOT_ONNX) from err
    if not model.graph.outputs or not {"", "ai.onnx"} & set(model.graph.opset_imports):
        raise SpecError(f"{text}: {path} has no outputs, or names no opset of ONNX's operators.",
                        hint=NOT_ONNX)  # fmt: skip
    if model.functions:
        with patched(unique_names):
            passes.InlinePass()(model)
    _map_weights(text, model, places)
    _refuse_what_is_unknown(text, model, is_known)
    preset = tuple(str(value.name) for value in model.graph.inputs if value.is_initializer())
    if preset:
        model.graph.inputs[:] = [value for value in model.graph.inputs if not value.is_initializer()]
    if model.ir_version <= _WEIGHTS_ARE_INPUTS:
        model.ir_version, preset = _WEIGHTS_ARE_INPUTS + 1, ()
    write_out(model, lambda node: not is_known(node))
    used = _types(model)
    half = next((name.lower() for name in _HALVES if ir.DataType[name] in used), "")
    if half:
        _widen(model)
    return ImportedFile(model, half, preset, prepare_decoder(model))


def _refuse_what_is_unknown(text: str, model: ir.Model, is_known: Callable[[ir.Node], bool]) -> None:
    """Raises SpecError for what is no graph of tensors that can be computed, in words."""
    for kind, values in (("input", list(model.graph.inputs)), ("output", list(model.graph.outputs))):
        names = [value.name for value in values]
        for at, value in enumerate(values):
            if not value.name:
                raise SpecError(f"{text}: {kind} {at + 1} of the graph has no name.", hint="Give it one in the file.")
            if names.index(value.name) != at:
                raise SpecError(f"{text}: two {kind}s are called {value.name!r}.", hint="Rename one in the file.")
            if isinstance(value.type, ir.SequenceType | ir.OptionalType):
                is_list = isinstance(value.type, ir.SequenceType)
                what = "a list of tensors" if is_list else "a tensor that may be missing"
                raise SpecError(f"{text}: {kind} {value.name} is {what}; expected a tensor.",
                                hint=f"Make a file with a tensor for each {kind}.")  # fmt: skip
    unknown: dict[str, int] = {}
    for node in model.graph.all_nodes():
        for read in node.inputs:
            if read is None or read.producer() or read.is_graph_input() or read.is_initializer():
                continue
            raise SpecError(f"{text}: node {node.name or node.op_type} ({node.op_type}) reads {read.name!r}, which "
                            "nothing in the graph makes.", hint="The file was not written whole.")  # fmt: skip
        if not is_known(node) and schema_of(node, model.graph.opset_imports.get(node.domain, 1)) is None:
            name = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
            unknown[name] = unknown.get(name, 0) + 1
    if unknown:
        each = ", ".join(f"{name} ({count} nodes)" if count > 1 else name for name, count in sorted(unknown.items()))
        raise SpecError(
            f"{text}: nothing tells what these operators compute, so that no result could be compared: {each}.",
            hint="Export the model without them, or give their definitions as functions of the file.",
        )


def _map_weights(text: str, model: ir.Model, places: Mapping[str, Path]) -> None:
    """Maps weights beside the file into memory: what is written later need not know where they lie.

    Raises:
        SpecError: what a constant tensor holds does not fit its type and dims.
    """

    def mapped(tensor: Any) -> Any:
        dims = [int(size) for size in tensor.shape]
        if min(dims, default=0) < 0:
            raise SpecError(f"{text}: tensor {tensor.name!r} has dims {dims}; no dim of a constant is below 0.",
                            hint="The file was damaged, or made to do damage.")  # fmt: skip
        if not isinstance(tensor, ir.ExternalTensor):
            try:
                tensor.numpy()
            except Exception as err:  # onnx_ir raises what NumPy and protobuf do
                raise SpecError(f"{text}: what tensor {tensor.name!r} holds is no {tensor.dtype.name} of dims {dims}: "
                                f"{first_line(err)}.", hint="The file was damaged.") from err  # fmt: skip
            return tensor
        if tensor.length is not None and tensor.length != tensor.nbytes:
            raise SpecError(
                f"{text}: weight {tensor.name!r} has {tensor.length} bytes in {str(tensor.location)!r}; its type and "
                f"dims, {tensor.dtype.name} of {dims}, take {tensor.nbytes}.",
                hint="The file was damaged, or made to do damage.",
            )
        place = places[str(tensor.location)]
        beside = ir.ExternalTensor(
            place.resolve(), tensor.offset, tensor.length, tensor.dtype, shape=tensor.shape, name=str(tensor.name)
        )
        try:
            return ir.Tensor(beside.numpy(), dtype=tensor.dtype, shape=tensor.shape, name=tensor.name)
        except (ValueError, OSError, TypeError) as err:
            raise SpecError(
                f"{text}: weight {tensor.name!r} cannot be read from {place.name!r}: {first_line(err)}.",
                hint="The file of weights was cut short, or belongs to another file of ONNX.",
            ) from err

    _replace_tensors(model, mapped)


def _replace_tensors(model: ir.Model, change: Callable[[Any], Any]) -> None:
    """Replaces every constant tensor of a model, in place: initializers and attributes."""
    for graph in (model.graph, *model.graph.subgraphs()):
        for value in graph.initializers.values():
            if value.const_value is not None:
                value.const_value = change(value.const_value)
    for node in model.graph.all_nodes():
        for name, attribute in list(node.attributes.items()):
            if attribute.type == ir.AttributeType.TENSOR and attribute.value is not None:
                node.attributes[name] = ir.AttrTensor(name, change(attribute.value))
            elif attribute.type == ir.AttributeType.TENSORS:
                node.attributes[name] = ir.AttrTensors(name, [change(tensor) for tensor in attribute.value])


def input_names(model: ir.Model) -> dict[str, str]:
    """By name of a graph's input, the name that it has in feeds."""
    return _identifiers([str(value.name) for value in model.graph.inputs])


def output_names(model: ir.Model) -> dict[str, str]:
    """By name of an output in results, the name of a graph's output."""
    names = _identifiers([str(value.name) for value in model.graph.outputs])
    taken = set(input_names(model).values())
    found: dict[str, str] = {}
    for name, flat in names.items():
        while flat in taken or flat in found or (flat in names.values() and names[name] != flat):
            flat += "_out"
        found[flat] = name
    return found


def _identifiers(names: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name in names:
        flat = flat_name((name.partition(":")[0] if name.endswith(":0") else name,))
        flat = flat if flat and not flat[0].isdigit() else f"value_{flat}"
        while flat in found.values() or keyword.iskeyword(flat) or flat == "self":
            flat += "_"
        found[name] = flat
    return found


def unique_names() -> tuple[Patch, ...]:
    """Has onnx_ir's inliner find a free name in a time that does not grow with the calls before.

    onnx_ir counts up from 1 for each name, which takes ten minutes for 16,384 calls of one function.
    """
    from onnx_ir.passes.common import inliner

    counts: dict[tuple[int, str], int] = {}

    def unique(name: str, calls: object, used: set[str]) -> str:
        number, free = counts.get((id(used), name), 1), name
        while free in used:
            number += 1
            free = f"{name}_{number}"
        counts[id(used), name] = number
        used.add(free)
        return free

    return (Patch(inliner, "_make_unique_name", unique),)


def _values(model: ir.Model) -> Iterator[ir.Value]:
    for graph in (model.graph, *model.graph.subgraphs()):
        yield from graph.inputs
        yield from graph.initializers.values()
    for node in model.graph.all_nodes():
        yield from node.outputs


def _types(model: ir.Model) -> set[ir.DataType]:
    """Every type that a tensor of the graph is said to have: inputs, weights, results, and what casts give."""
    found = {value.dtype for value in _values(model) if value.dtype is not None}
    for node in model.graph.all_nodes():
        for name, attribute in node.attributes.items():
            if attribute.type == ir.AttributeType.TENSOR and attribute.value is not None:
                found.add(attribute.value.dtype)
            elif name in _OF_TYPES and attribute.type == ir.AttributeType.INT:
                found.update(kind for kind in ir.DataType if int(kind) == attribute.value)
    return found


def _widen(model: ir.Model) -> None:
    """Makes every type of 16 bits one of 32, in place. No value changes."""
    import numpy as np

    halves = {ir.DataType[name] for name in _HALVES}
    _replace_tensors(
        model,
        lambda tensor: (
            ir.tensor(tensor.numpy().astype(np.float32), name=tensor.name) if tensor.dtype in halves else tensor
        ),
    )
    for value in _values(model):
        if value.dtype in halves:
            value.dtype = ir.DataType.FLOAT
    for node in model.graph.all_nodes():
        for name in _OF_TYPES & set(node.attributes):
            if node.attributes[name].value in {int(kind) for kind in halves}:
                node.attributes[name] = ir.AttrInt64(name, int(ir.DataType.FLOAT))
