"""Reads `--input` and `--dim` declarations, and makes the ModelSpec of a plain module from them."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnport.artifacts import IOContract, ModelSpec, Source
from attnport.dims import Dim, TensorSpec
from attnport.errors import SpecError, UsageError
from attnport.masks.spec import MaskSpec
from attnport.sources.marks import mask_of

if TYPE_CHECKING:
    import torch

DEFAULT_DIMS = {"batch": (1, 8, 64)}
DEFAULT_RANGE = (1, 128, 512)
_INPUT = re.compile(r"(?P<name>[A-Za-z_]\w*)=(?P<dtype>\w+)\[(?P<dims>[^\]]*)\](?P<marks>(:[\w=]+)*)")


def parse_input(text: str) -> tuple[TensorSpec, MaskSpec | None]:
    """Reads `x=float32[batch,seq,256]`, `mask=int64[batch,seq]:padding`, `ids=int64[batch,seq]:high=30522`.

    Marks after the shape are `high=N` (values below N) and those of a mask (`sources.marks`).

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
    spec = TensorSpec(match["name"], match["dtype"], dims, high)
    return spec, mask_of(spec, marks)


def parse_dim(text: str) -> Dim:
    """Reads `seq=1:128:512` (min, opt, max).

    Raises:
        UsageError: the text cannot be read.
    """
    match = re.fullmatch(r"\s*(\w+)\s*=\s*(\d{1,18}):(\d{1,18}):(\d{1,18})\s*", text)
    if not match:
        raise UsageError(f"--dim {text!r} cannot be read.", hint="Write DIM=MIN:OPT:MAX, for example seq=1:128:512.")
    return Dim(match[1], int(match[2]), int(match[3]), int(match[4]))


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


def plain_spec(text: str, factory: Callable[[], Any], inputs: Sequence[str], dims: Sequence[str]) -> ModelSpec:
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
    parsed = [parse_input(declared) for declared in inputs]
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
    named = tuple(ranges.get(name) or Dim(name, *DEFAULT_DIMS.get(name, DEFAULT_RANGE)) for name in used)
    outputs = observe_outputs(result.eval(), tensors, named, text)
    contract = IOContract(tensors, outputs, named, masks, positions="none")
    place, _, made_by = text.rpartition(":")
    file = Path(place).stem if place.endswith(".py") else place.rpartition(".")[2]
    return ModelSpec(f"{file}.{made_by}", Source(text), contract, factory)


def observe_outputs(
    module: Callable[..., Any], inputs: Sequence[TensorSpec], dims: Sequence[Dim], text: str
) -> tuple[TensorSpec, ...]:
    """The outputs of a module, from runs at base sizes and with each dim changed alone.

    An axis of an output whose size changes with a dim gets that dim's name.

    Raises:
        SpecError: the module does not run on the declared inputs, returns something other than tensors, or runs at only
            one size of a dim; the message names that dim and its inputs.
    """
    primes = (3, 5, 7, 11, 13, 17, 19, 23)
    base = {dim.name: min(max(prime, dim.min), dim.max) for dim, prime in zip(dims, primes, strict=False)}
    at_base = _run(module, inputs, base, text)
    axes: dict[str, list[str | int]] = {name: [int(size) for size in out.shape] for name, out in at_base.items()}
    for dim in dims:
        other = base[dim.name] + 1 if base[dim.name] < dim.max else base[dim.name] - 1
        if other < dim.min:
            continue  # the dim has only one size
        try:
            changed = _run(module, inputs, {**base, dim.name: other}, text)
        except SpecError as err:
            having = ", ".join(repr(spec.name) for spec in inputs if dim.name in spec.dims)
            raise SpecError(
                f"{text}: dim {dim.name!r} of input {having} is frozen in the module: it runs at "
                f"{dim.name}={base[dim.name]} and fails at {dim.name}={other}: {err.__cause__}",
                hint="Look for a literal size in view, reshape or expand.",
            ) from err
        for name, out in changed.items():
            for axis, (before, after) in enumerate(zip(at_base[name].shape, out.shape, strict=True)):
                if before != after and isinstance(axes[name][axis], str):
                    raise SpecError(f"{text}: axis {axis} of {name} follows both {axes[name][axis]} and {dim.name}.")
                if before != after:
                    axes[name][axis] = dim.name
    return tuple(
        TensorSpec(name, str(out.dtype).removeprefix("torch."), tuple(axes[name])) for name, out in at_base.items()
    )


def _run(
    module: Callable[..., Any], inputs: Sequence[TensorSpec], sizes: dict[str, int], text: str
) -> dict[str, torch.Tensor]:
    import torch

    feeds = {spec.name: _example(spec, sizes) for spec in inputs}
    try:
        with torch.no_grad():
            return _tensors(module(**feeds), text)
    except SpecError:
        raise
    except Exception as err:  # the user's forward may raise anything
        raise SpecError(
            f"{text}: its forward raised {type(err).__name__} on the declared inputs: {err}",
            hint="Check names, dtypes and dims of --input; inputs are passed by keyword.",
        ) from err


def _tensors(result: Any, text: str) -> dict[str, torch.Tensor]:
    import torch

    if isinstance(result, torch.Tensor):
        return {"output": result}
    named: dict[str, Any] = {}
    if isinstance(result, dict):
        named = {str(name): value for name, value in result.items()}
    elif isinstance(result, tuple | list):
        named = {f"output_{at}": value for at, value in enumerate(result)}
    if not named or not all(isinstance(value, torch.Tensor) for value in named.values()):
        raise SpecError(
            f"{text}: its forward returns {type(result).__name__}; expected a tensor or a tuple of tensors.",
            hint="Wrap the module so that it returns tensors only.",
        )
    return named


def _example(spec: TensorSpec, sizes: dict[str, int]) -> torch.Tensor:
    import torch

    dtype: torch.dtype = getattr(torch, spec.dtype)
    shape = spec.shape(sizes)
    if dtype.is_floating_point:
        return torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    return torch.full(shape, min(1, (spec.high or 2) - 1), dtype=dtype)
