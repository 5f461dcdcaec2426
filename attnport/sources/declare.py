"""Makes the ModelSpec of a plain module from `--input` and `--dim` declarations, and from runs of the module."""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path as FilePath
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

from attnport.artifacts import IOContract, ModelSpec, Source
from attnport.budget import Budget
from attnport.dims import Dim, TensorSpec
from attnport.errors import SpecError, UsageError, first_line
from attnport.example_values import ROWS, continued
from attnport.sources.adapted import Observed, adapted
from attnport.sources.output_sizes import all_changed, base_sizes, changed_alone, fit
from attnport.sources.parsing import (
    declarations,
    examples_of,
    names_of,
    narrow_dtypes,
    parse_constant,
    parse_dims,
    path_of,
)
from attnport.sources.plain import CAST_HINT, in_float32, plain_module, precision_notes, precision_of
from attnport.sources.randomness import refuse_random
from attnport.sources.ranges import bound_dims, found_ranges
from attnport.sources.seeds import seeded
from attnport.sources.structure import Arguments, flat_name, flat_outputs, of_declarations
from attnport.user_code import raised_in

if TYPE_CHECKING:
    import torch
    from torch import nn

Result = TypeVar("Result")
_LITERAL = "Look for a literal size in view, reshape or expand"
_SIZES_TRIED = 60
"""At most so many sizes are tried, of those that errors name."""


class FrozenError(SpecError):
    """A module runs at one size of some dims alone: the error of other sizes, with these in the hint.

    Args:
        err: What another size raises.
        dims: These dims, each with its size.
    """

    def __init__(self, err: SpecError, dims: tuple[Dim, ...]) -> None:
        sizes = " and ".join(f"{dim.name}={dim.opt}" for dim in dims)
        taken = " ".join(f"--dim {dim}" for dim in dims)
        super().__init__(err.message, hint=f"It runs at {sizes}. {_LITERAL}; or take that size alone: {taken}")
        self.dims, self.why = dims, first_line(err.__cause__ or err)


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
        own = known[name]
        if dim.step % own.step or (name != "batch" and (dim.max > own.max or dim.min < own.min)):
            raise UsageError(f"--dim {dim}: got {name} from {dim.span}; the model takes it from {own.span}.")
    return tuple(wanted.get(dim.name, dim) for dim in ranges)


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
        return narrow(dataclasses.replace(result, make=seeded(result.make)), dims)
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
    precision = precision_of(module)
    place, _, made_by = text.rpartition(":")
    file = FilePath(place).stem if place.endswith(".py") else place.rpartition(".")[2]

    def make() -> nn.Module:
        return in_float32(plain_module(text, factory()))

    name = f"{file}.{made_by}"
    return declared_spec(name, text, in_float32(module), make, inputs, dims, outputs, precision=precision)


def declared_spec(
    name: str,
    text: str,
    module: nn.Module,
    make: Callable[[], nn.Module],
    inputs: Sequence[str],
    dims: Sequence[str],
    outputs: Sequence[str],
    arguments: Arguments | None = None,
    precision: str = "",
) -> ModelSpec:
    """The ModelSpec of a module with declared inputs.

    Args:
        text: What errors call it.
        module: What `make` returns.
        arguments: What the forward is called with; None = what the declarations say.
        precision: The precision that it was in before; "" = float32.

    Raises:
        UsageError: a declaration cannot be read, or does not fit the others.
        SpecError: the module does not run on the inputs, or is not deterministic.
    """
    constants = dict(filter(None, map(parse_constant, inputs)))
    declared = [each for each in inputs if parse_constant(each) is None]
    tensors, masks, ranges = declarations(inputs, dims)
    examples = examples_of(declared)
    used = names_of(tensors)
    if arguments is None:
        _refuse_names(text, module, [path_of(each)[0] for each in inputs])
    narrow_types = narrow_dtypes(declared)
    arguments = arguments or of_declarations(module, list(map(path_of, declared)), constants, narrow_types)
    call = Observed(module.eval(), arguments, outputs, text)

    problem = ""

    def runs(sizes: Mapping[str, int]) -> bool:
        nonlocal problem
        from torch.nn.attention import SDPBackend, sdpa_kernel

        try:
            # The fused kernel keeps no scores, but runtimes do, and then take more memory than it.
            with sdpa_kernel(SDPBackend.MATH):
                _run(call, tensors, sizes, text, examples)
        except SpecError as err:
            if _out_of_memory(err.__cause__):
                raise MemoryError(err.message) from err
            problem = _cause(err.__cause__)
            return False
        return True

    budget = Budget(["batch"])
    named: tuple[Dim, ...] = ()
    try:
        named, limits = found_ranges(list(used), ranges, runs, budget)
        found = observe_outputs(call, tensors, named, text, examples, budget)
        contract = IOContract(tensors, found, named, masks, positions="none", examples=examples)
    except SpecError as err:
        if precision and "dtype" in err.message:
            raise SpecError(err.message, hint=CAST_HINT) from err
        told, fixed = problem, {name: dim.opt for name, dim in ranges.items() if dim.min == dim.max}
        bound = bound_dims([name for name in used if name not in fixed],
                           lambda sizes: budget.runs_cheaply({**fixed, **sizes}, runs))  # fmt: skip
        if bound or not named:
            raise _of_bound_dims(text, declared, tensors, *bound) if bound else _with_cause(err, told) from err
        narrower = [dim for dim in found_ranges(list(used), {}, runs, budget)[0] if dim.name in ranges and dim.step > 1]
        if not all(dim.step % found.step == 0 for found in narrower for dim in [ranges[found.name]]):
            hint = f"The module takes multiples of a number: --dim {' --dim '.join(map(str, narrower))}"
            raise SpecError(err.message, hint=hint) from err
        free = [dim.name for dim in named if dim.name not in ranges]
        frozen = frozen_dims(base_sizes(named), free, lambda sizes: _run(call, tensors, sizes, text, examples))
        if frozen:
            raise FrozenError(err, frozen) from err
        raise
    refuse_random(text, module, lambda: _run(call, tensors, base_sizes(named), text, examples))
    if call.adapts:
        plain, held, chosen = make, arguments, [spec.name for spec in contract.outputs]

        def make() -> nn.Module:
            return adapted(plain(), held, chosen)

    steps = steps_note(dim for dim in named if dim.name not in ranges)
    casts = tuple(
        f"input {name} is {dtype} in the module: in the graph it is int32, with the same values"
        for name, dtype in narrow_types.items()
    )
    kept = tuple(
        f"input {name}: every test has the values of the example, as random ones do not fit; the folder keeps them, "
        f"up to {ROWS} rows of a batch"
        for name in examples
    )
    notes = (*precision_notes(precision), *steps, *limits, *casts, *kept)
    return ModelSpec(name, Source(text), contract, make, observed=True, notes=notes)


def steps_note(dims: Iterable[Dim]) -> tuple[str, ...]:
    """What users are told of dims that take multiples of a number alone."""
    return tuple(
        f"dim {dim.name}: the module runs at multiples of {dim.step} alone, so it takes {dim.span}"
        for dim in dims
        if dim.step > 1
    )


def frozen_dims(
    start: Mapping[str, int], free: Sequence[str], run: Callable[[Mapping[str, int]], Any]
) -> tuple[Dim, ...]:
    """The dims of which a module takes one size, found by the numbers in its errors; none where it runs, or never does.

    A shape with a literal size is named by the error at any other: `shape '[-1, 9, 16]' is invalid for input of size`.

    Args:
        start: The sizes to begin with.
        free: The dims that may be changed.
        run: Runs the module at given sizes; raises SpecError.
    """
    pending: list[tuple[dict[str, int], frozenset[str]]] = [(dict(start), frozenset())]
    known = {tuple(start.items())}
    for sizes, changed in pending:
        try:
            run(sizes)
        except SpecError as err:
            numbers = list(dict.fromkeys(map(int, re.findall(r"(?<![\w.])\d{1,5}(?![\w.])", str(err.__cause__)))))
        else:
            return tuple(Dim(name, sizes[name], sizes[name], sizes[name]) for name in free if name in changed)
        for number in filter(None, numbers):
            for name in free:
                other = {**sizes, name: number}
                if name not in changed and tuple(other.items()) not in known and len(pending) < _SIZES_TRIED:
                    known.add(tuple(other.items()))
                    pending.append((other, changed | {name}))
    return ()


def observe_outputs(
    module: Callable[..., Any],
    inputs: Sequence[TensorSpec],
    dims: Sequence[Dim],
    text: str,
    examples: Mapping[str, str] = MappingProxyType({}),
    budget: Budget | None = None,
) -> tuple[TensorSpec, ...]:
    """The outputs of a module, from runs at base sizes, with each dim changed alone, and with all of them changed.

    The size of an axis is a number, a dim, a sum such as `past+seq`, or `UNKNOWN_SIZE`, which export finds out.

    Args:
        budget: What the module takes, as far as it is known; None = it fits.

    Raises:
        SpecError: the module does not run on the declared inputs, returns something other than tensors, or runs at only
            one size of a dim; the message names that dim and its inputs.
        UsageError: its smallest sizes may not fit into memory or time.
    """
    base = base_sizes(dims)
    if budget and not budget.fits(base):
        smallest = ", ".join(f"{dim.name}={base[dim.name]}" for dim in dims)
        raise UsageError(
            f"{text}: at {smallest}, the smallest sizes to be tried, the module may take up to {budget.cost(base)}.",
            hint="Declare smaller ones, " + " ".join(f"--dim {dim.name}=1:{dim.opt}:{dim.max}" for dim in dims
                                                    if dim.min > 1) + ", or use a machine with more memory.",
        )  # fmt: skip
    at_base = _run(module, inputs, base, text, examples)
    alone = {}
    for name, sizes in changed_alone(dims).items():
        try:
            alone[name] = sizes, _run(module, inputs, sizes, text, examples)
        except SpecError as err:
            having = ", ".join(repr(spec.name) for spec in inputs if name in spec.dims)
            raise SpecError(
                f"{text}: dim {name!r} of input {having} is frozen in the module: it runs at "
                f"{name}={base[name]} and fails at {name}={sizes[name]}: {err.__cause__}",
                hint=f"{_LITERAL}; or take that size alone: --dim {name}={base[name]}:{base[name]}:{base[name]}",
            ) from err
        _same_ranks(at_base, alone[name][1], f"{text}: with another size of {name}")
    last = all_changed(dims)
    confirms = (len(dims) > 1 or alone) and (budget is None or budget.fits(last))
    try:
        confirming = _run(module, inputs, last, text, examples) if confirms else None
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
    module: Callable[..., Any],
    inputs: Sequence[TensorSpec],
    sizes: Mapping[str, int],
    text: str,
    examples: Mapping[str, str],
) -> dict[str, torch.Tensor]:
    feeds = {spec.name: example(spec, sizes, examples.get(spec.name, "")) for spec in inputs}
    hint = "Check names, dtypes and dims of --input; inputs are passed by keyword."
    shapes = ", ".join(f"{name} {list(feed.shape)}" for name, feed in feeds.items())
    given = f"the declared inputs ({shapes})"
    return called(text, given, hint, lambda: flat_outputs(module(**feeds)))


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
        place = raised_in(err)
        raise SpecError(
            f"{text}: its forward raised {type(err).__name__} on {given}: {str(err).strip()}{place}",
            hint=f"{hint.rstrip('.')}; if they are right, correct that line of the module." if place else hint,
        ) from err


def _refuse_names(text: str, module: nn.Module, names: Sequence[str]) -> None:
    """Raises SpecError for an input that the forward does not take, or needs and does not get."""
    parameters = inspect.signature(module.forward).parameters
    kinds = {each.kind for each in parameters.values()}
    taken = [name for name, each in parameters.items() if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)]
    form = f"its forward is forward({', '.join(map(str, parameters.values()))})"
    others = [name for name in names if name not in parameters]
    missing = [name for name in taken if name not in names and parameters[name].default is inspect.Parameter.empty]
    if others and inspect.Parameter.VAR_KEYWORD not in kinds:
        near = difflib.get_close_matches(others[0], [name for name in taken if name not in names], 1)
        raise SpecError(
            f"{text}: --input {others[0]}: the module takes no input of this name; {form}.",
            hint=f"Did you mean {near[0]!r}?" if near else f"Its inputs are {', '.join(taken) or 'none'}.",
        )
    if missing:
        raise SpecError(
            f"{text}: no --input declares {', '.join(map(repr, missing))}, which the module needs; {form}.",
            hint=f'Declare each, such as --input "{missing[0]}=float32[batch,seq,256]".',
        )


def _cause(err: BaseException | None) -> str:
    return f"{type(err).__name__}: {str(err).strip()}{raised_in(err)}" if err else ""


def _with_cause(err: SpecError, raised: str) -> SpecError:
    """An error that says at which size alone a module runs, with what it raised at another."""
    return SpecError(f"{err.message} Elsewhere it raises {raised}" if raised else err.message, hint=err.hint)


def _of_bound_dims(text: str, declared: Sequence[str], inputs: Sequence[TensorSpec], dim: str, size: str) -> SpecError:
    """Says that a dim follows from others, which it was not declared as."""

    def having(name: str) -> str:
        return f"{name!r} of input {' and '.join(repr(spec.name) for spec in inputs if name in spec.dims)}"

    same = size.isidentifier()
    what = (
        f"dims {having(size)} and {having(dim)} must be equal: the module runs where they are, and not elsewhere."
        if same
        else f"dim {having(dim)} must be {size}: the module runs where it is, and not elsewhere."
    )
    written = [
        re.sub(rf"(?<=[\[,+*-]){dim}(?=[\],+*/-])", size, each.replace(" ", ""))
        for each in declared
        if any(spec.name == flat_name(path_of(each)) and dim in spec.dims for spec in inputs)
    ]
    hint = "Give them one name: " if same else "Declare it so: "
    return SpecError(f"{text}: {what}", hint=hint + " ".join(f"--input {shlex.quote(each)}" for each in written))


def _out_of_memory(err: BaseException | None) -> bool:
    """Whether torch found no memory for a tensor."""
    return isinstance(err, MemoryError) or "DefaultCPUAllocator" in str(err)


def example(spec: TensorSpec, sizes: Mapping[str, int], given: str = "") -> torch.Tensor:
    """A tensor to try a module with: normal floats, ones for integers, or the values that are given for it."""
    import torch

    dtype: torch.dtype = getattr(torch, spec.dtype)
    shape = spec.shape(sizes)
    if given:
        return torch.from_numpy(continued(given, shape)).to(dtype)
    if dtype.is_floating_point:
        return torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    return torch.full(shape, min(1, (spec.high or 2) - 1), dtype=dtype)
