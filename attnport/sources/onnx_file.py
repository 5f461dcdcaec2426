"""`onnx:FILE`: reads a file of ONNX that anybody made, and names its inputs and outputs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnport.errors import SpecError, first_line
from attnport.sources.onnx_decoder import Decoder, settle_decoder
from attnport.sources.structure import flat_name
from attnport_bundle.external import references

if TYPE_CHECKING:
    import onnx_ir as ir

PREFIX = "onnx:"
_HALVES = ("FLOAT16", "BFLOAT16")


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
    path = path_of(text)
    if not path.is_file():
        raise SpecError(f"{text}: {path} is {'a folder' if path.is_dir() else 'not there'}; expected a file of ONNX.",
                        hint="Write onnx:FOLDER/model.onnx.")  # fmt: skip
    try:
        names = {each.location for each in references(path.resolve())}
    except (ValueError, OSError) as err:
        raise SpecError(f"{text}: {path} is not a readable file of ONNX: {first_line(err)}.") from err
    folder = path.resolve().parent
    for name in sorted(names):
        place = Path(name)
        if place.is_absolute() or ".." in place.parts or not (folder / place).resolve().is_relative_to(folder):
            raise SpecError(f"{text}: its weights lie in {name!r}, outside the file's folder.")
        if not (folder / place).is_file():
            raise SpecError(f"{text}: its weights lie in {name!r}, which is missing.",
                            hint="Copy the file of weights beside the file of ONNX.")  # fmt: skip
    return [path, *(path.parent / name for name in sorted(names))]


@dataclass(frozen=True)
class Theirs:
    """What a file holds.

    Attributes:
        model: The graph without functions of its own, types of 16 bits widened to 32; its weights stay on disk.
        half: `float16` or `bfloat16` where weights had that type; otherwise "".
        decoder: What is known of a decoder with its cache.
    """

    model: ir.Model
    half: str
    decoder: Decoder | None


def graph_of(text: str) -> ir.Model:
    """As `read`, the graph alone."""
    return read(text).model


def read(text: str) -> Theirs:
    """What a file holds.

    Raises:
        SpecError: as `files_of`.
    """
    import onnx_ir as ir
    import onnx_ir.passes.common as passes

    path = files_of(text)[0]
    try:
        model = ir.load(path.resolve())
    except Exception as err:  # protobuf and onnx_ir raise a dozen types of error for a damaged file
        raise SpecError(f"{text}: {path} is not a readable file of ONNX: {first_line(err)}.") from err
    if not model.graph.outputs or not {"", "ai.onnx"} & set(model.graph.opset_imports):
        raise SpecError(f"{text}: {path} has no outputs, or names no opset of ONNX's operators.",
                        hint="It was cut short, or is another file of protobuf.")  # fmt: skip
    for value in _weights(model):
        if isinstance(tensor := value.const_value, ir.ExternalTensor):
            # Mapped into memory: what is written later need not know where it lies.
            value.const_value = ir.Tensor(tensor.numpy(), dtype=tensor.dtype, shape=tensor.shape, name=tensor.name)
    if model.functions:
        passes.InlinePass()(model)
    held = {value.dtype.name for value in _weights(model) if value.dtype is not None}
    half = next((name.lower() for name in _HALVES if name in held), "")
    if half:
        _widen(model)
    return Theirs(model, half, settle_decoder(model))


def input_names(model: ir.Model) -> dict[str, str]:
    """By name of a graph's input, the name that it has in feeds."""
    return _identifiers([str(value.name) for value in inputs_of(model)])


def output_names(model: ir.Model) -> dict[str, str]:
    """By name of an output in results, the name of a graph's output."""
    names = _identifiers([str(value.name) for value in model.graph.outputs])
    taken = set(input_names(model).values())
    return {flat + "_out" * (flat in taken): name for name, flat in names.items()}


def _identifiers(names: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name in names:
        flat = flat_name((name.partition(":")[0] if name.endswith(":0") else name,))
        flat = flat if flat and not flat[0].isdigit() else f"value_{flat}"
        while flat in found.values():
            flat += "_"
        found[name] = flat
    return found


def inputs_of(model: ir.Model) -> list[ir.Value]:
    """Inputs that are no weights; up to IR version 3 weights are inputs too."""
    return [value for value in model.graph.inputs if str(value.name) not in model.graph.initializers]


def _weights(model: ir.Model) -> Iterator[ir.Value]:
    for graph in (model.graph, *model.graph.subgraphs()):
        yield from graph.initializers.values()


def _widen(model: ir.Model) -> None:
    """Makes every type of 16 bits one of 32, in place. No value changes."""
    import numpy as np
    import onnx_ir as ir

    halves = {ir.DataType[name] for name in _HALVES}

    def wide(tensor: Any) -> Any:
        if tensor is None or tensor.dtype not in halves:
            return tensor
        return ir.tensor(tensor.numpy().astype(np.float32), name=tensor.name)

    for graph in (model.graph, *model.graph.subgraphs()):
        for value in (*graph.inputs, *graph.outputs, *graph.initializers.values()):
            value.const_value = wide(value.const_value)
            if value.dtype in halves:
                value.dtype = ir.DataType.FLOAT
    for node in model.graph.all_nodes():
        for value in node.outputs:
            if value.dtype in halves:
                value.dtype = ir.DataType.FLOAT
        for name, attribute in list(node.attributes.items()):
            if attribute.type == ir.AttributeType.TENSOR:
                node.attributes[name] = ir.AttrTensor(name, wide(attribute.value))
            elif name in ("to", "dtype") and attribute.value in {int(kind) for kind in halves}:
                node.attributes[name] = ir.AttrInt64(name, int(ir.DataType.FLOAT))
