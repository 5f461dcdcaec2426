"""What examples of a forward's arguments say of its inputs: names and ranges of dims, masks, needed values."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attnport.dims import Dim, Symbol, said_by
from attnport.errors import UsageError
from attnport.example_values import ROWS, example, packed
from attnport.sources.parsing import Beside, marked, marks_by_name
from attnport.sources.ranges import usual_range
from attnport.sources.structure import NARROW, Arguments, Input
from attnport_bundle.format.contract import dims_in

if TYPE_CHECKING:
    import torch

SYMBOL = re.compile(r"[A-Za-z_]\w*")


Dims = tuple[Symbol | int, ...]
Call = Callable[..., "dict[str, torch.Tensor]"]


def named_dims(
    dims: Mapping[str, Sequence[Any]], tensors: Mapping[str, torch.Tensor], declared: Mapping[str, Sequence[Any]]
) -> dict[str, Dims]:
    """Dims with names: `batch` and `seq` for those of a mask of padding; else `batch` for the first one that inputs
    share, `seq` for the second of sequences, and INPUT_AXIS for others.

    Args:
        dims: For each input, its dims; those by the user have their name.
        declared: For inputs that were declared, their dims; the names in them go before those made here.
    """
    names = {dim.name: dim.name for own in dims.values() for dim in own if said_by(dim) == "user"}
    for name, own in declared.items():
        for symbol, dim in zip(dims.get(name, ()), own, strict=False):
            if not isinstance(symbol, int) and isinstance(dim, str):
                names.setdefault(symbol.name, dim)
    _name_usual(names, dims, tensors)
    # Sums of dims are named after the dims that are in them.
    placed = [(dim.name, f"{name}_{axis}") for name, own in dims.items() for axis, dim in enumerate(own)
              if not isinstance(dim, int)]  # fmt: skip
    for symbol, named in placed:
        if symbol.isidentifier():
            names.setdefault(symbol, named)
    for symbol, named in placed:
        names.setdefault(symbol, _renamed(symbol, names) or named)
    found: dict[str, Dims] = {}
    for name, own in dims.items():
        found[name] = tuple(
            dim if isinstance(dim, int) else dataclasses.replace(dim, name=names[dim.name]) for dim in own
        )
    return found


def _name_usual(names: dict[str, str], dims: Mapping[str, Sequence[Any]], tensors: Mapping[str, torch.Tensor]) -> None:
    """Adds the dims of items and of places, if they have no name yet, as `named_dims` says."""
    for name, own in dims.items():
        if marks_by_name(name, str(tensors[name].dtype).removeprefix("torch."), len(own)):
            for dim, usual in zip(own, ("batch", "seq"), strict=True):
                if not isinstance(dim, int) and usual not in names.values():
                    names.setdefault(dim.name, usual)
    first = [own[0].name for own in dims.values() if own and not isinstance(own[0], int)]
    batches = [symbol for symbol in first if first.count(symbol) > 1 or len(dims) == 1]
    batches = batches or [own[0].name for own in dims.values() if len(own) > 1 and not isinstance(own[0], int)]
    if batches and "batch" not in names.values():
        names.setdefault(max(batches, key=batches.count), "batch")
    for name, own in dims.items():
        sequence = len(own) > 1 and names.get(getattr(own[0], "name", "")) == "batch" and not isinstance(own[1], int)
        whole = not tensors[name].is_floating_point()
        if sequence and (whole or len(own) == 3) and "seq" not in names.values():
            names.setdefault(own[1].name, "seq")


def _renamed(formula: str, names: Mapping[str, str]) -> str:
    """A formula of torch's symbols as an expression of dims; "" if it is none, or has a symbol that is no dim."""
    text = SYMBOL.sub(lambda found: names.get(found[0], found[0]), formula).replace(" ", "")
    if re.fullmatch(r"[\w+]+", text):  # as sums are written elsewhere, so that equal ones have equal names
        text = "+".join(sorted(text.split("+"), key=lambda term: (term.isdigit(), term)))
    try:
        return text if set(SYMBOL.findall(formula)) <= set(names) and dims_in(text) else ""
    except ValueError:
        return ""


def refuse_other_sizes(declared: Mapping[str, Sequence[str | int]], tensors: Mapping[str, torch.Tensor]) -> None:
    """Raises UsageError where the dims that inputs are declared with are not those of the examples."""
    sizes: dict[str, tuple[str, int]] = {}
    for name, dims in declared.items():
        shape = tuple(tensors[name].shape)
        if len(dims) != len(shape):
            raise UsageError(
                f"input {name}: it is declared with {len(dims)} dims; its example has shape {list(shape)}."
            )
        for axis, (dim, size) in enumerate(zip(dims, shape, strict=True)):
            if isinstance(dim, int) and dim != size:
                raise UsageError(f"input {name}: axis {axis} is declared as {dim}; in its example it is {size}.")
            other, known = sizes.setdefault(str(dim), (name, size))
            if known != size and isinstance(dim, str):
                raise UsageError(
                    f"dim {dim!r} of input {name} is {size}, of input {other} it is {known}.",
                    hint="Give an axis of another size another name.",
                )


def with_dims(
    arguments: Arguments, dims: Mapping[str, Dims], highs: Mapping[str, int], beside: Mapping[str, Beside]
) -> Arguments:
    """The arguments of examples, whose inputs have dims and marks.

    Args:
        highs: By input, the number of its values, where that is known.
        beside: By input, what was declared of it.

    Raises:
        UsageError: marks do not fit an input.
    """

    def found(held: Input) -> Input:
        name = held.spec.name
        declared, marks, _ = beside.get(name, Beside(None, (), False))
        if declared:
            dtype = declared.dtype or (held.dtype if declared.spec.dtype == "int32" else "")
            high = declared.spec.high or NARROW.get(dtype)
            return declared._replace(spec=dataclasses.replace(declared.spec, high=high), dtype=dtype)
        sizes = tuple(dim if isinstance(dim, int) else dim.name for dim in dims[name])
        marks = marks or marks_by_name(name, held.dtype or held.spec.dtype, len(sizes))
        high = None if marks else highs.get(name)
        return marked(dataclasses.replace(held.spec, dims=sizes, high=high), marks, held.dtype)

    return arguments.with_inputs({held.spec.name: found(held) for held in arguments.inputs})


def dim_ranges(
    dims: Mapping[str, Dims], tensors: Mapping[str, torch.Tensor], declared: Mapping[str, Dim]
) -> dict[str, Dim]:
    """The ranges of dims that are declared, and of those whose sizes the examples or the module's code tell."""
    limits: dict[str, tuple[int, int | None, int]] = {}
    for name, own in dims.items():
        for axis, dim in enumerate(own):
            if isinstance(dim, Symbol) and dim.name.isidentifier() and dim.name not in declared:
                low, high, seen = limits.get(dim.name, (dim.smallest, None, 1))
                highs = [each for each in (high, dim.largest) if each is not None]
                seen = max(seen, tensors[name].shape[axis])
                limits[dim.name] = (max(low, dim.smallest), min(highs) if highs else None, seen)
    found = dict(declared)
    for name, (low, high, seen) in limits.items():
        usual = usual_range(name)
        largest = max(usual.max, seen)
        largest = largest if high is None else min(largest, high)
        if (low, largest) != (usual.min, usual.max):
            found[name] = Dim(name, low, min(max(usual.opt, low), largest), largest)
    return found


def within(dim: Dim, symbol: Symbol) -> Dim:
    """The part of a range that a symbol takes."""
    low = dim.at_least(max(dim.min, symbol.smallest))
    high = max(low, min(dim.max, symbol.largest or dim.max) // dim.step * dim.step)
    return dataclasses.replace(dim, min=low, opt=min(max(dim.opt, low), high), max=high)


def vocabularies(call: Any, tensors: Mapping[str, torch.Tensor]) -> dict[str, int]:
    """For each integer input that is looked up in an embedding: how many rows that has."""
    import torch
    from torch.overrides import TorchFunctionMode

    found: dict[str, int] = {}

    class Watch(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func is torch.nn.functional.embedding:
                ids, table = (*args, *(kwargs or {}).values())[:2]
                for name, tensor in tensors.items():
                    if tensor.dtype in (torch.int32, torch.int64) and ids.data_ptr() == tensor.data_ptr():
                        found[name] = min(found.get(name, len(table)), len(table))
            return func(*args, **(kwargs or {}))

    with torch.no_grad(), Watch():
        call(**tensors)
    return found


def with_needed_values(
    arguments: Arguments, call: Call, tensors: Mapping[str, torch.Tensor], forced: Collection[str]
) -> Arguments:
    """The arguments; inputs without whose example the module does not run, or gives NaN, have its values in tests.

    Args:
        forced: Inputs that have the values of their examples in any case.
    """
    wanted = _finite(call, tensors) or set()
    inputs = {each.spec.name: each for each in arguments.inputs}

    def takes(names: Collection[str]) -> bool:
        for least in (None, 0):
            drawn = {name: example(inputs[name].spec, {}, shape=tensors[name].shape, least=least) for name in names}
            found = _finite(call, {**tensors, **drawn})
            if found is None or not wanted <= found:
                return False
        return True

    free = [name for name, each in inputs.items() if not each.mask and name not in forced]
    needed = set() if takes(free) else set(free)
    for name in free:
        if name in needed and takes([each for each in free if each == name or each not in needed]):
            needed.remove(name)
    return arguments.with_inputs(
        {name: inputs[name]._replace(example=_rows(tensors[name], inputs[name])) for name in (*needed, *forced)}
    )


def _finite(call: Call, feeds: Mapping[str, torch.Tensor]) -> set[str] | None:
    """The outputs that are finite; None if the module does not run."""
    import torch

    try:
        with torch.no_grad():
            return {name for name, out in call(**feeds).items() if out.isfinite().all()}
    except Exception:  # the user's forward may raise anything
        return None


def _rows(tensor: torch.Tensor, held: Input) -> str:
    dims = held.spec.dims
    rows = tensor[:ROWS] if dims and isinstance(dims[0], str) else tensor
    return packed(rows.contiguous().numpy())
