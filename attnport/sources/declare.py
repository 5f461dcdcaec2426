"""Reads `--input` and `--dim` declarations, and makes the ModelSpec of a plain module from them."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Any, TypeVar

from attnport.artifacts import IOContract, ModelSpec, Source
from attnport.dims import Dim, TensorSpec
from attnport.errors import SpecError, UsageError
from attnport.masks.spec import MaskSpec
from attnport.sources.marks import mask_of
from attnport.sources.output_sizes import all_changed, base_sizes, changed_alone, fit
from attnport.sources.plain import plain_module
from attnport.sources.ranges import found_ranges
from attnport.sources.structure import (
    Arguments,
    Observed,
    Path,
    adapted,
    flat_name,
    flat_outputs,
    of_declarations,
)

if TYPE_CHECKING:
    import torch
    from torch import nn

_INPUT = re.compile(r"(?P<name>[A-Za-z_]\w*(\.\w+)*)=(?P<dtype>\w+)\[(?P<dims>[^\]]*)\](?P<marks>(:[\w=]+)*)")
_CONSTANT = re.compile(r"\s*(?P<name>[A-Za-z_]\w*(\.\w+)*)\s*=\s*(?P<value>[^\[\]]+?)\s*")
Result = TypeVar("Result")
_WORDS = {"True": True, "False": False, "None": None}


def parse_input(text: str) -> tuple[TensorSpec, MaskSpec | None]:
    """Reads `x=float32[batch,seq,256]`, `mask=int64[batch,seq]:padding`, `ids=int64[batch,seq]:high=30522`.

    A tensor in a structure is written with dots, `past.0=float32[batch,heads,past,16]`, and called `past_0`. Marks
    after the shape are `high=N` (values below N) and those of a mask (`sources.marks`).

    Raises:
        UsageError: the text cannot be read; the message shows the part.
    """
    match = _INPUT.fullmatch(text.replace(" ", ""))
    if not match:
        raise UsageError(
            f"--input {text!r} cannot be read.",
            hint='Write NAME=DTYPE[DIM,...], for example "attention_mask=int64[batch,seq]:padding".',
        )
    dims = tuple(int(dim) if re.fullmatch(r"[0-9]{1,18}", dim) else dim for dim in match["dims"].split(",") if dim)
    for dim in dims:
        if (isinstance(dim, str) and not dim.isidentifier()) or dim == 0:
            raise UsageError(f"--input {text!r}: dim {dim!r} is neither a name nor a size.")
    high: int | None = None
    marks = []
    for mark in filter(None, match["marks"].split(":")):
        if mark.startswith("high=") and mark[5:].isdigit():
            high = int(mark[5:])
        else:
            marks.append(mark)
    spec = TensorSpec(flat_name(path_of(text)), match["dtype"], dims, high)
    return spec, mask_of(spec, marks)


def path_of(text: str) -> Path:
    """Where a declaration belongs in the arguments of the forward: `past.0.key=...` is `("past", "0", "key")`."""
    return tuple(text.partition("=")[0].strip().split("."))


def parse_constant(text: str) -> tuple[Path, Any] | None:
    """Reads `use_cache=false`, `scale=0.5` or `mode="mean"`: an argument that is the same in every call.

    Returns:
        The argument's path and its value. None if the text declares a tensor, which has its dims in brackets.
    """
    match = _CONSTANT.fullmatch(text)
    if match is None:
        return None
    try:
        value = _WORDS[match["value"]] if match["value"] in _WORDS else json.loads(match["value"])
    except ValueError:
        return None
    return path_of(text), value


def parse_dim(text: str) -> Dim:
    """Reads `seq=1:128:512` (min, opt, max); min may be 0, for inputs that may be empty.

    Raises:
        UsageError: the text cannot be read.
    """
    match = re.fullmatch(r"\s*(\w+)\s*=\s*(\d{1,18}):(\d{1,18}):(\d{1,18})\s*", text)
    if not match:
        raise UsageError(f"--dim {text!r} cannot be read.", hint="Write DIM=MIN:OPT:MAX, for example seq=1:128:512.")
    dim = Dim(match[1], int(match[2]), int(match[3]), int(match[4]))
    if dim.opt < 1:
        raise UsageError(f"--dim {text!r}: got the usual size 0; expected 1 or more.", hint="Only MIN may be 0.")
    return dim


def refuse_inputs(text: str, inputs: Sequence[str]) -> None:
    """Raises UsageError for `--input` with a model that declares its own inputs."""
    if inputs:
        raise UsageError(f"{text} declares its own inputs; --input {inputs[0]!r} does not apply.", hint="Leave it out.")


def narrow(spec: ModelSpec, declared: Sequence[str]) -> ModelSpec:
    """A ModelSpec with its ranges replaced by those of `--dim`; raises UsageError like `narrow_dims`."""
    dims = narrow_dims(spec.io.dims, declared)
    return dataclasses.replace(spec, io=dataclasses.replace(spec.io, dims=dims))


def narrow_dims(ranges: tuple[Dim, ...], declared: Sequence[str]) -> tuple[Dim, ...]:
    """The ranges, replaced by those of `--dim`; only the batch may exceed the model's range.

    Raises:
        UsageError: the model does not have a dim, a dim is given twice, or a size is beyond the model's limit.
    """
    wanted = parse_dims(declared)
    known = {dim.name: dim for dim in ranges}
    for name, dim in wanted.items():
        if name not in known:
            raise UsageError(f"--dim {dim}: got dim {name!r}; the model's dims are {', '.join(known) or 'none'}.")
        if name != "batch" and (dim.max > known[name].max or dim.min < known[name].min):
            raise UsageError(
                f"--dim {dim}: got {name} from {dim.min} to {dim.max}; "
                f"the model takes it from {known[name].min} to {known[name].max}."
            )
    return tuple(wanted.get(dim.name, dim) for dim in ranges)


def parse_dims(declared: Sequence[str]) -> dict[str, Dim]:
    """`--dim` declarations by name; raises UsageError for one that cannot be read or is given twice."""
    dims: dict[str, Dim] = {}
    for dim in map(parse_dim, declared):
        if dim.name in dims:
            raise UsageError(f"--dim {dim}: {dim.name} is given twice.", hint="Give each dim once.")
        dims[dim.name] = dim
    return dims


def plain_spec(
    text: str, factory: Callable[[], Any], inputs: Sequence[str], dims: Sequence[str], outputs: Sequence[str] = ()
) -> ModelSpec:
    """The ModelSpec that a factory returns, or one made from `--input` and runs of the module at several sizes.

    Raises:
        SpecError: the factory returns neither a ModelSpec nor a module, or the module does not run on the inputs.
    """
    import torch

    result = factory()
    if isinstance(result, ModelSpec):
        refuse_inputs(text, inputs)
        return narrow(result, dims)
    if not isinstance(result, torch.nn.Module):
        raise SpecError(
            f"{text}: got {type(result).__name__}; expected a torch.nn.Module or a ModelSpec.",
            hint="The factory must return the module itself.",
        )
    if not inputs:
        raise UsageError(
            f"{text} returns a plain module, whose inputs are not known.",
            hint='Declare them: --input "x=float32[batch,seq,256]" --input "attention_mask=int64[batch,seq]:padding"',
        )
    module = plain_module(text, result)
    place, _, made_by = text.rpartition(":")
    file = FilePath(place).stem if place.endswith(".py") else place.rpartition(".")[2]
    return declared_spec(
        f"{file}.{made_by}", text, module, lambda: plain_module(text, factory()), inputs, dims, outputs
    )


def declared_spec(
    name: str,
    text: str,
    module: nn.Module,
    make: Callable[[], nn.Module],
    inputs: Sequence[str],
    dims: Sequence[str],
    outputs: Sequence[str],
    arguments: Arguments | None = None,
) -> ModelSpec:
    """The ModelSpec of a module with declared inputs.

    Args:
        text: What errors call it.
        module: What `make` returns.
        arguments: What the forward is called with; None = what the declarations say.

    Raises:
        UsageError: a declaration cannot be read, or does not fit the others.
        SpecError: the module does not run on the inputs.
    """
    constants = dict(filter(None, map(parse_constant, inputs)))
    declared = [each for each in inputs if parse_constant(each) is None]
    parsed = [parse_input(each) for each in declared]
    tensors = tuple(spec for spec, _ in parsed)
    if len({spec.name for spec in tensors}) != len(tensors):
        raise UsageError("--input: a name is declared twice.")
    ranges = parse_dims(dims)
    used = dict.fromkeys(dim for spec in tensors for dim in spec.dims if isinstance(dim, str))
    unknown = [name for name in ranges if name not in used]
    if unknown:
        raise UsageError(f"--dim {unknown[0]}: no input has that dim; they have {', '.join(used) or 'none'}.")
    masks = tuple(mask for _, mask in parsed if mask)
    for mask in masks:
        if mask.keys is not None and mask.keys not in used:
            raise UsageError(f"--input {mask.input}: got keys={mask.keys}; the inputs have {', '.join(used)}.")
    arguments = arguments or of_declarations(module, list(map(path_of, declared)), constants)
    call = Observed(module.eval(), arguments, outputs, text)

    def runs(sizes: Mapping[str, int]) -> bool:
        try:
            _run(call, tensors, sizes, text)
        except SpecError:
            return False
        return True

    named = found_ranges(list(used), ranges, runs)
    contract = IOContract(tensors, observe_outputs(call, tensors, named, text), named, masks, positions="none")
    if not call.adapts:
        return ModelSpec(name, Source(text), contract, make, observed=True)
    kept, chosen = arguments, [spec.name for spec in contract.outputs]
    return ModelSpec(name, Source(text), contract, lambda: adapted(make(), kept, chosen), observed=True)


def observe_outputs(
    module: Callable[..., Any], inputs: Sequence[TensorSpec], dims: Sequence[Dim], text: str
) -> tuple[TensorSpec, ...]:
    """The outputs of a module, from runs at base sizes, with each dim changed alone, and with all of them changed.

    The size of an axis is a number, a dim, a sum such as `past+seq`, or `UNKNOWN_SIZE`, which export finds out.

    Raises:
        SpecError: the module does not run on the declared inputs, returns something other than tensors, or runs at only
            one size of a dim; the message names that dim and its inputs.
    """
    base = base_sizes(dims)
    at_base = _run(module, inputs, base, text)
    alone = {}
    for name, sizes in changed_alone(dims).items():
        try:
            alone[name] = sizes, _run(module, inputs, sizes, text)
        except SpecError as err:
            having = ", ".join(repr(spec.name) for spec in inputs if name in spec.dims)
            raise SpecError(
                f"{text}: dim {name!r} of input {having} is frozen in the module: it runs at "
                f"{name}={base[name]} and fails at {name}={sizes[name]}: {err.__cause__}",
                hint="Look for a literal size in view, reshape or expand.",
            ) from err
        _same_ranks(at_base, alone[name][1], f"{text}: with another size of {name}")
    last = all_changed(dims)
    try:
        confirming = _run(module, inputs, last, text) if len(dims) > 1 or alone else None
    except SpecError:
        confirming = None  # sizes that do not go together; export tries its own
    else:
        _same_ranks(at_base, confirming or at_base, f"{text}: with other sizes of all dims")
    outputs = []
    for name, out in at_base.items():
        axes = [
            fit(
                (base, int(size)),
                {dim: (sizes, int(got[name].shape[axis])) for dim, (sizes, got) in alone.items()},
                None if confirming is None else (last, int(confirming[name].shape[axis])),
            )
            for axis, size in enumerate(out.shape)
        ]
        outputs.append(TensorSpec(name, str(out.dtype).removeprefix("torch."), tuple(axes)))
    return tuple(outputs)


def _same_ranks(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor], where: str) -> None:
    ranks = [{name: out.ndim for name, out in outputs.items()} for outputs in (one, other)]
    if ranks[0] != ranks[1]:
        raise SpecError(f"{where}, the module gives other outputs: ranks {ranks[1]} instead of {ranks[0]}.")


def _run(
    module: Callable[..., Any], inputs: Sequence[TensorSpec], sizes: Mapping[str, int], text: str
) -> dict[str, torch.Tensor]:
    feeds = {spec.name: example(spec, sizes) for spec in inputs}
    hint = "Check names, dtypes and dims of --input; inputs are passed by keyword."
    return called(text, "the declared inputs", hint, lambda: flat_outputs(module(**feeds)))


def called(text: str, given: str, hint: str, call: Callable[[], Result]) -> Result:
    """What a call of the user's forward returns, computed without gradients.

    Raises:
        SpecError: the forward raised something; the message has it, and what was `given`.
    """
    import torch

    try:
        with torch.no_grad():
            return call()
    except SpecError:
        raise
    except Exception as err:  # the user's forward may raise anything
        raise SpecError(f"{text}: its forward raised {type(err).__name__} on {given}: {err}", hint=hint) from err


def example(spec: TensorSpec, sizes: Mapping[str, int]) -> torch.Tensor:
    """A tensor to try a module with: normal floats, ones for integers."""
    import torch

    dtype: torch.dtype = getattr(torch, spec.dtype)
    shape = spec.shape(sizes)
    if dtype.is_floating_point:
        return torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    return torch.full(shape, min(1, (spec.high or 2) - 1), dtype=dtype)
