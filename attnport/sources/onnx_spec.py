"""`onnx:FILE` as a ModelSpec: its inputs, dims and masks as the graph declares them."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from attnport.artifacts import UNKNOWN_SIZE, Dim, ModelSpec, TensorSpec
from attnport.errors import SpecError, UsageError
from attnport.onnx_graph import attribute, ir, made_by, perm_of
from attnport.options import advised
from attnport.sources.declare import FrozenError, observed_spec
from attnport.sources.onnx_decoder import CONFIG, stops_of
from attnport.sources.onnx_file import beside, input_names, output_names, path_of, read
from attnport.sources.parsing import marked, marks_by_name, parse_dims, parse_input, polarity_of
from attnport.sources.plain import precision_notes
from attnport.sources.structure import Input, Leaf, flat_name, of_leaves
from attnport_bundle.format.contract import DTYPES

if TYPE_CHECKING:
    from torch import nn

_FEW = 3
"""As many names a note has."""
_LAYOUT = frozenset({"Cast", "Identity", "Reshape", "Unsqueeze", "Squeeze", "Flatten", "Slice", "Expand"})


def load_onnx(text: str, inputs: Sequence[str], dims: Sequence[str], outputs: Sequence[str]) -> ModelSpec:
    """The ModelSpec of a file.

    Args:
        inputs: `--input` declarations, in place of what the graph says of these inputs.

    Raises:
        SpecError: it cannot be read or computed, or the graph does not tell the shape of an input.
        UsageError: a declaration names no input of the graph.
    """
    theirs = read(text)
    decoder = theirs.decoder
    declared = _declared(text, theirs.model, inputs, decoder is not None)
    path = path_of(text)
    notes, stop = precision_notes(theirs.half), tuple[int, ...]()
    if theirs.preset:
        more = f" and {len(theirs.preset) - _FEW} more" if len(theirs.preset) > _FEW else ""
        notes = (*notes, f"inputs with a value in the file keep it: {', '.join(theirs.preset[:_FEW])}{more}")
    if decoder is not None:
        taken = {each.partition("=")[0] for each in dims}
        dims = [*dims, *(each for each in decoder.dims if each.partition("=")[0] not in taken)]
        notes, stop = (*notes, *decoder.notes), stops_of(beside(text, CONFIG))

    def make() -> nn.Module:
        return _module(text)

    name = path.stem if path.stem != "model" else path.absolute().parent.name

    def observed(dims: Sequence[str]) -> ModelSpec:
        module = make()
        return observed_spec(name, text, module, make, of_leaves(module, declared), parse_dims(dims), outputs)

    spec = _declared_or_fixed(observed, dims)
    reads_text = any(each.name == "input_ids" for each in spec.io.inputs)
    io = dataclasses.replace(spec.io, stop=stop) if stop else spec.io
    return dataclasses.replace(spec, io=io, notes=(*notes, *spec.notes),
                               tokenizer=beside(text, "tokenizer.json") if reads_text else None)  # fmt: skip


def _declared_or_fixed(declare: Callable[[Sequence[str]], ModelSpec], dims: Sequence[str]) -> ModelSpec:
    """The model, with dims fixed to the one size that an exporter froze in the file, and a note of them.

    Nobody can change the code behind a file, and at that size it is right.
    """
    taken = {each.partition("=")[0] for each in dims}
    try:
        spec = declare(dims)
    except FrozenError as err:
        if not taken.isdisjoint(dim.name for dim in err.dims):
            raise
        frozen, cause = err.dims, err.why
    else:
        stepped = [dim for dim in spec.io.dims if dim.step > 1 and dim.name not in taken]
        if not stepped or not any(UNKNOWN_SIZE in output.dims for output in spec.io.outputs):
            return spec
        frozen = tuple(Dim(dim.name, dim.step, dim.step, dim.step) for dim in stepped)
        cause = "the sizes of its outputs do not follow from other sizes"
    spec = declare([*dims, *map(str, frozen)])
    sizes = " and ".join(f"{dim.name} to {dim.opt}" for dim in frozen)
    note = f"the file is frozen at one size, and fixed {sizes} (--dim chooses another): {cause}"
    return dataclasses.replace(spec, notes=(*spec.notes, note))


def _module(text: str) -> nn.Module:
    from attnport.sources.onnx_module import OnnxModule

    model = read(text).model
    names = input_names(model)
    return OnnxModule(model, {flat: name for name, flat in names.items()}, output_names(model))


def _declared(text: str, model: ir.Model, inputs: Sequence[str], counted: bool) -> list[Leaf]:
    """The inputs of the graph, as declared or as the graph says."""
    given = {each.spec.name: each for each in map(parse_input, inputs)}
    names = input_names(model)
    unknown = [name for name in given if name not in names.values()]
    if unknown:
        raise UsageError(f"input {unknown[0]}: the graph's inputs are {', '.join(names.values())}.")
    if not names:
        raise SpecError(f"{text}: the graph has no inputs.", hint="Expected a model that computes something of them.")
    dims = _dim_names(model)
    return [
        Leaf((name,), given.get(name) or _input(text, value, name, counted, dims))
        for value in model.graph.inputs
        for name in [names[str(value.name)]]
    ]


def _input(text: str, value: ir.Value, name: str, counted: bool, known: dict[str, str]) -> Input:
    """What the graph says of an input.

    Args:
        counted: Whether masks of padding say lengths, as of a `Decoder`.
        known: The names of dims by what the graph calls them, for all of its inputs.
    """
    dtype = _dtype(value)
    if dtype not in DTYPES:
        raise SpecError(f"{text}: input {value.name} has type {dtype}; expected one of {', '.join(DTYPES)}.",
                        hint="Make it one of these in the file, with a Cast behind it.")  # fmt: skip
    if value.shape is None:
        raise SpecError(
            f"{text}: the graph does not say how many dims input {value.name} has.",
            hint=f"Declare it: {advised('inputs', [f'{name}={dtype}[batch,seq]'])}.",
        )
    dims = tuple(_dim(dim, axis, len(value.shape), name, known) for axis, dim in enumerate(value.shape))
    spec = TensorSpec(name, dtype, dims)
    if not counted and (marks := marks_by_name(name, dtype, len(dims))):
        return marked(spec, marks)
    high = 2 if counted and polarity_of(name) else _high(value) if dtype in ("int64", "int32") else 0
    return Input(dataclasses.replace(spec, high=high or None))


def _dtype(value: ir.Value) -> str:
    kind = value.dtype.name.lower() if value.dtype is not None else "unknown"
    return {"float": "float32", "double": "float64"}.get(kind, kind)


def _dim_names(model: ir.Model) -> dict[str, str]:
    """The names of dims by what the graph calls them: a batch is called so wherever it is, and two names stay two."""
    said = [
        (axis, str(dim.value))
        for value in model.graph.inputs
        for axis, dim in enumerate(value.shape or ())
        if not isinstance(dim, int) and dim.value
    ]
    known = {name: "batch" for axis, name in said if axis == 0 and _is_batch(name)}
    known.update((name, name) for _, name in said if name not in known and name.isascii() and name.isidentifier())
    return known


def _is_batch(said: str) -> bool:
    return "batch" in said.lower() or said.lower() in ("n", "b", "bs")


def _dim(dim: Any, axis: int, rank: int, name: str, known: dict[str, str]) -> str | int:
    """The size of an axis, or its name; names that stand for nothing, such as `unk__12`, are those of the place."""
    if isinstance(dim, int) and dim > 0:
        return dim
    said = "" if isinstance(dim, int) or dim.value is None else str(dim.value)
    if axis == 0 and (not said or _is_batch(said)):
        return "batch"
    if not said or re.fullmatch(r"unk__\d+|\?|-1|None|dynamic_axes_\d+", said):
        usual = ("batch", "channels", "height", "width") if rank == 4 else ("batch", "seq")
        return usual[axis] if axis < len(usual) else f"{name}_{axis}"
    plain = re.sub(r"\s", "", said)
    if re.fullmatch(r"[A-Za-z_]\w*(\+[A-Za-z_]\w*)*", plain, re.ASCII):
        return "+".join("batch" if part == "batch_size" else known.get(part, part) for part in plain.split("+"))
    if said not in known:
        flat = flat_name((said,))
        flat = f"{name}_{axis}" if flat[0].isdigit() or not flat.strip("_") else flat
        while flat in known.values():
            flat += "_"
        known[said] = flat
    return known[said]


def _high(value: ir.Value) -> int:
    """How many rows the smallest table has that an input chooses rows of; 0 = none was found."""
    found, seen, pending = [], set(), [value]
    while pending:
        current = pending.pop()
        for node in current.consumers():
            first = node.inputs[0] if node.inputs else None
            if node.op_type == "Gather" and len(node.inputs) > 1 and node.inputs[1] is current:
                if first is not None and (rows := _size_of_table(first, attribute(node, "axis", 0))) is not None:
                    found.append(rows)
            elif node.op_type in _LAYOUT and first is current and node not in seen:
                seen.add(node)
                pending.append(node.outputs[0])
    return min(found, default=0)


def _size_of_table(table: ir.Value, axis: int) -> int | None:
    """The size of an axis of a constant, or of one that is transposed, as a table that is also the last layer's."""
    node = made_by(table, "Transpose")
    if table.const_value is None and node is not None and node.inputs[0] is not None:
        table = node.inputs[0]
        rank = 0 if table.const_value is None else len(table.const_value.shape)
        axis = perm_of(node, rank)[axis] if rank else 0
    return None if table.const_value is None else int(table.const_value.numpy().shape[axis])
