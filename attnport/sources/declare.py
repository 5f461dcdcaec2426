"""Makes the ModelSpec of a plain module from what its forward is called with, and from runs of the module."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import inspect
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path as FilePath
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

from attnport.artifacts import UNKNOWN_SIZE, IOContract, MaskSpec, ModelSpec, Source
from attnport.budget import Budget, limited_memory
from attnport.dims import Dim, TensorSpec, distinct_sizes, prime
from attnport.errors import SpecError, UsageError, first_line
from attnport.example_values import ROWS, example
from attnport.options import advised
from attnport.sources.examples import vocabularies
from attnport.sources.parsing import (
    called_a_mask,
    check_dims,
    declarations,
    names_of,
    parse_dims,
    parse_leaf,
    polarity_of,
    text_of,
)
from attnport.sources.plain import CAST_HINT, in_float32, plain_module, precision_notes, precision_of
from attnport.sources.ranges import bound_dims, found_ranges, refuse_sizes, usual_range
from attnport.sources.seeds import seeded
from attnport.sources.structure import Arguments, Input, Leaf, Observed, adapted, flat_outputs, of_leaves
from attnport.user_code import raised_in

if TYPE_CHECKING:
    import torch
    from torch import nn

Result = TypeVar("Result")
Sizes = Mapping[str, int]
_LITERAL = "Look for a literal size in view, reshape or expand"
_IDS = re.compile(r"(^|_)(ids?|tokens)$")
_FLOATS = "x=float32[batch,seq,256]"
_WORDS = 30522
"""The ids of BERT's table, where that of a module is not known."""
_SIZES_TRIED = 60
"""At most so many sizes are tried, of those that errors name."""


class FrozenError(SpecError):
    """Some dims of a module have one size only.

    Args:
        message, hint: As of any error.
        dims: These dims, each with its size.
        why: What another size raises.
    """

    def __init__(self, message: str, *, hint: str, dims: Sequence[Dim], why: str) -> None:
        super().__init__(message, hint=hint)
        self.dims, self.why = tuple(dims), why


def refuse_inputs(text: str, inputs: Sequence[str]) -> None:
    """Raises UsageError for declared inputs of a model that declares its own."""
    if inputs:
        raise UsageError(f"{text} declares its own inputs; {inputs[0]!r} does not apply.", hint="Leave it out.")


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
            raise UsageError(f"dim {dim}: got {name!r}; the model's dims are {', '.join(known) or 'none'}.")
        own = known[name]
        if dim.step % own.step or (name != "batch" and (dim.max > own.max or dim.min < own.min)):
            raise UsageError(f"dim {dim}: got it from {dim.span}; the model takes it from {own.span}.")
    return tuple(wanted.get(dim.name, dim) for dim in ranges)


def plain_spec(
    text: str, factory: Callable[[], Any], inputs: Sequence[str], dims: Sequence[str], outputs: Sequence[str] = ()
) -> ModelSpec:
    """The ModelSpec that a factory returns, or one made from declarations and runs of the module at several sizes.

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
            hint=f"Declare them: {advised('inputs', likely(in_float32(plain_module(text, result))))}",
        )
    module = plain_module(text, result)
    precision = precision_of(module)
    place, _, made_by = text.rpartition(":")
    file = FilePath(place).stem if place.endswith(".py") else place.rpartition(".")[2]

    def make() -> nn.Module:
        return in_float32(plain_module(text, factory()))

    name = f"{file}.{made_by}"
    module = in_float32(module)
    return observed_spec(name, text, module, make, *declared_arguments(text, module, inputs, dims), outputs, precision)


def declared_arguments(
    text: str, module: nn.Module, inputs: Sequence[str], dims: Sequence[str]
) -> tuple[Arguments, dict[str, Dim]]:
    """What a forward is called with, and the ranges of dims, as they are declared.

    Args:
        text: What errors call the module.

    Raises:
        UsageError: as `parsing.declarations`.
        SpecError: as `of_leaves`; or the forward does not take an input, or needs another.
    """
    leaves, ranges = declarations(inputs, dims)
    names = [path[0] for path, _ in leaves]
    parameters = inspect.signature(module.forward).parameters
    kinds = {each.kind for each in parameters.values()}
    taken = [name for name, each in parameters.items() if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)]
    form = f"its forward is forward({', '.join(map(str, parameters.values()))})"
    others = [name for name in names if name not in parameters]
    missing = [name for name in _needed(module) if name not in names]
    if others and inspect.Parameter.VAR_KEYWORD not in kinds:
        near = difflib.get_close_matches(others[0], [name for name in taken if name not in names], 1)
        raise SpecError(
            f"{text}: input {others[0]}: the module takes no input of this name; {form}.",
            hint=f"Did you mean {near[0]!r}?" if near else f"Its inputs are {', '.join(taken) or 'none'}.",
        )
    if missing:
        raise SpecError(
            f"{text}: no input is declared for {', '.join(map(repr, missing))}, which the module needs; {form}.",
            hint=f"Declare it, for example so: {advised('inputs', likely(module, leaves))}",
        )
    return of_leaves(module, leaves), ranges


def _needed(module: nn.Module) -> list[str]:
    """The parameters of a forward without a default."""
    parameters = inspect.signature(module.forward).parameters.values()
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [each.name for each in parameters if each.kind not in variable and each.default is each.empty]


def likely(module: nn.Module, declared: Sequence[Leaf] = ()) -> list[str]:
    """Declarations of what a forward needs and nobody declared, as they are likely by the names of its parameters.

    A mask has the first shape and type with which the module runs; of ids, there are as many as their table has rows.

    Args:
        declared: What is declared; its dims are taken for the others.
    """
    taken = {path[0] for path, _ in declared}
    missing = [name for name in _needed(module) if name not in taken]
    if not declared:  # a mask that need not be given is the one thing that nobody should forget
        missing += [name for name in inspect.signature(module.forward).parameters
                    if name not in missing and called_a_mask(name)][:1]  # fmt: skip
    given = [held.spec for _, held in declared if isinstance(held, Input) and not held.mask]
    tokens = next(
        (spec.dims[:2] for spec in given if spec.dims[1:] and isinstance(spec.dims[1], str)), ("batch", "seq")
    )
    batch, seq = map(str, tokens)
    wide = next((spec.dims for spec in given if spec.dtype == "float32" and len(spec.dims) > 2), (batch, seq, 256))
    ways: list[list[str]] = []
    for name in missing:
        if called_a_mask(name):
            dtypes = ("bool", "int64") if polarity_of(name) == "hide" else ("int64", "bool")
            shapes = (f"{batch},{seq}", f"{batch},1,1,{seq}")
            ways.append([f"{name}={dtype}[{shape}]:padding" for shape in shapes for dtype in dtypes])
        else:
            ids = f"{name}=int64[{batch},{seq}]"
            ways.append([ids if _IDS.search(name) else f"{name}=float32[{','.join(map(str, wide))}]"])
    for found in itertools.islice(itertools.product(*ways), _SIZES_TRIED):
        if (rows := _tables_on(module, [*declared, *map(parse_leaf, found)])) is not None:
            break
    else:
        found, rows = tuple(first for first, *_ in ways), {}
    highs = {name: f":high={rows.get(name, _WORDS)}" for name in missing if _IDS.search(name)}
    return [f"{each}{highs.get(name, '')}" for name, each in zip(missing, found, strict=True)] or [_FLOATS]


def _tables_on(module: nn.Module, leaves: Sequence[Leaf]) -> dict[str, int] | None:
    """How many rows the tables of ids have; None where the module does not run on these inputs, at small sizes."""
    with contextlib.suppress(UsageError):
        arguments = of_leaves(module, leaves)
        tensors = [held.spec for held in arguments.inputs]
        sizes = distinct_sizes([usual_range(name) for name in names_of(tensors)])
        feeds = {spec.name: example(spec, sizes) for spec in tensors}
        call = Observed(module.eval(), arguments, (), "")
        return called("", "", "", lambda: vocabularies(call, feeds))
    return None


@limited_memory()
def observed_spec(
    name: str,
    text: str,
    module: nn.Module,
    make: Callable[[], nn.Module],
    arguments: Arguments,
    ranges: Mapping[str, Dim],
    outputs: Sequence[str],
    precision: str = "",
) -> ModelSpec:
    """The ModelSpec of a module, by runs of it.

    Args:
        name: What the artifact calls it.
        text: What errors call it.
        make: As of `ModelSpec`.
        ranges: Of dims by name; others are found.
        outputs: Those that are wanted; none = all.
        precision: The precision that it was in before; "" = float32.

    Raises:
        UsageError: the arguments do not fit the ranges, or memory.
        SpecError: the module does not run on the inputs, or is not deterministic.
    """
    check_dims(arguments.leaves, ranges)
    tensors = tuple(held.spec for held in arguments.inputs)
    masks = tuple(held.mask for held in arguments.inputs if held.mask)
    examples = {held.spec.name: held.example for held in arguments.inputs if held.example}
    used = names_of(tensors)
    call = Observed(module.eval(), arguments, outputs, text)
    run = partial(_run, call, tensors, text, examples, masks=masks)
    problem = ""

    def runs(sizes: Mapping[str, int]) -> bool:
        nonlocal problem
        from torch.nn.attention import SDPBackend, sdpa_kernel

        try:
            # The fused kernel keeps no scores, but runtimes do, and then take more memory than it.
            with sdpa_kernel(SDPBackend.MATH):
                run(sizes)
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
        found = observe_outputs(call, tensors, named, text, examples, budget, masks)
        contract = IOContract(tensors, found, named, masks, positions="none", examples=examples)
    except SpecError as err:
        if precision and "dtype" in err.message:
            raise SpecError(err.message, hint=CAST_HINT) from err
        told = problem
        if (declared := _of_declarations(text, arguments, ranges, call, examples, budget, runs)) is not None:
            raise declared from err
        if not named:
            elsewhere = f" Elsewhere it raises {told}" if told else ""
            raise SpecError(err.message + elsewhere, hint=err.hint) from err
        narrower = [dim for dim in found_ranges(list(used), {}, runs, budget)[0] if dim.name in ranges and dim.step > 1]
        if not all(dim.step % found.step == 0 for found in narrower for dim in [ranges[found.name]]):
            hint = f"The module takes multiples of a number: {advised('dims', narrower)}"
            raise SpecError(err.message, hint=hint) from err
        free = [dim.name for dim in named if dim.name not in ranges]
        frozen = frozen_dims(distinct_sizes(named), free, run)
        if frozen:
            at = " and ".join(f"{dim.name}={dim.opt}" for dim in frozen)
            hint = f"It runs at {at}. {_LITERAL}; or take that size alone: {advised('dims', frozen)}"
            raise FrozenError(err.message, hint=hint, dims=frozen, why=first_line(err.__cause__ or err)) from err
        raise
    refuse_sizes(text, named, ranges, runs, budget, lambda: problem)
    usual = {dim.name: dim.opt for dim in named}
    _refuse_random(text, module, (partial(run, distinct_sizes(named)), partial(run, usual, varied=True)))
    if call.adapts:
        plain, held, chosen = make, arguments, [spec.name for spec in contract.outputs]

        def make() -> nn.Module:
            return adapted(plain(), held, chosen)

    steps = steps_note(dim for dim in named if dim.name not in ranges)
    casts = tuple(
        f"input {held.spec.name} is {held.dtype} in the module: in the graph it is int32, with the same values"
        for held in arguments.inputs
        if held.dtype
    )
    kept = tuple(
        f"input {name}: every test has the values of the example, as random ones do not fit; the folder keeps them, "
        f"up to {ROWS} rows of a batch"
        for name in examples
    )
    mixed = mixing_notes(arguments.inputs, contract.outputs)
    notes = (*precision_notes(precision), *steps, *limits, *casts, *kept, *mixed)
    return ModelSpec(name, Source(text), contract, make, observed=True, notes=notes)


def steps_note(dims: Iterable[Dim]) -> tuple[str, ...]:
    """What users are told of dims that take multiples of a number alone."""
    return tuple(
        f"dim {dim.name}: the module runs at multiples of {dim.step}, so it takes {dim.span}"
        for dim in dims
        if dim.step > 1
    )


def mixing_notes(inputs: Iterable[Input], outputs: Iterable[TensorSpec]) -> Iterator[str]:
    """What users are told where a mask has so many dims that the module broadcasts items against items."""
    masks = [each.spec for each in inputs if len(each.spec.dims) > 2 and (each.mask or called_a_mask(each.spec.name))]
    for output, mask in itertools.product(outputs, masks):
        if output.dims.count(mask.dims[0]) > 1:
            yield (
                f"output {output} has {mask.dims[0]} twice, so items are computed with the masks of others: does the "
                f"module take fewer dims than {mask}?"
            )


def frozen_dims(
    start: Mapping[str, int], free: Sequence[str], run: Callable[[Mapping[str, int]], Any]
) -> tuple[Dim, ...]:
    """The dims of which a module takes one size, found by the numbers in its errors; none where it runs, or never does.

    A shape with a literal size is named by the error at any other: `shape '[-1, 9, 16]' is invalid for input of size`.

    Args:
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
                if name == "batch" and number > usual_range(name).max:
                    continue  # a number of elements or of a length; a batch of thousands may take long
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
    masks: Sequence[MaskSpec] = (),
) -> tuple[TensorSpec, ...]:
    """The outputs of a module, from runs at base sizes, with each dim changed alone, and with all of them changed.

    The size of an axis is a number, a dim, a sum such as `past+seq`, or `UNKNOWN_SIZE`, which export finds out.

    Args:
        budget, masks: What the module takes, as far as it is known, None = it fits; masks, which hide nothing.

    Raises:
        SpecError: the module does not run on the declared inputs, returns something other than tensors, or runs at only
            one size of a dim; the message names that dim and its inputs.
        UsageError: its smallest sizes may not fit into memory or time.
    """
    base = distinct_sizes(dims)
    run = partial(_run, module, inputs, text, examples, masks=masks)

    def runs(sizes: Sizes) -> bool:
        with contextlib.suppress(SpecError):
            return bool(run(sizes))
        return False

    if budget and not budget.fits(base) and budget.reach(base, runs) is None:
        smallest = ", ".join(f"{dim.name}={base[dim.name]}" for dim in dims)
        raise UsageError(
            f"{text}: at {smallest}, the smallest sizes to be tried, the module may take up to {budget.cost(base)}.",
            hint="Declare smaller ones, "
            + advised("dims", [dataclasses.replace(dim, min=dim.step) for dim in dims if dim.min > 1])
            + ", or use a machine with more memory.",
        )
    at_base = run(base)
    alone = {}
    for name, sizes in _changed_alone(dims).items():
        try:
            alone[name] = sizes, run(sizes)
        except SpecError as err:
            having = ", ".join(repr(spec.name) for spec in inputs if name in spec.dims)
            raise SpecError(
                f"{text}: dim {name!r} of input {having} is frozen in the module: it runs at "
                f"{name}={base[name]} and fails at {name}={sizes[name]}: {err.__cause__}",
                hint=f"{_LITERAL}; or take that size alone: {advised('dims', [Dim(name, *[base[name]] * 3)])}",
            ) from err
        _same_ranks(at_base, alone[name][1], f"{text}: with another size of {name}")
    last = _all_changed(dims)
    confirms = (len(dims) > 1 or alone) and (budget is None or budget.fits(last))
    try:
        confirming = run(last) if confirms else None
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


def _changed_alone(dims: Sequence[Dim]) -> dict[str, dict[str, int]]:
    """By dim, the base sizes with another size of this dim; without the dims that have only one size."""
    base, changed = distinct_sizes(dims), {}
    for dim in dims:
        other = base[dim.name] + (dim.step if base[dim.name] < dim.max else -dim.step)
        if other >= dim.min:
            changed[dim.name] = {**base, dim.name: other}
    return changed


def _all_changed(dims: Sequence[Dim]) -> dict[str, int]:
    """Sizes that all differ from the base, each by another number; for dims with more than two sizes.

    They are more than twice the base: many sizes of what a convolution or a window shortens have one size behind it.
    """
    base = distinct_sizes(dims)
    return {dim.name: dim.at_least(2 * base[dim.name] + prime(index + 2)) for index, dim in enumerate(dims)}


def fit(base: tuple[Sizes, int], alone: Mapping[str, tuple[Sizes, int]], last: tuple[Sizes, int] | None) -> str | int:
    """One size as a number, a dim or a sum of dims (`past+seq`, `2*seq-1`); `UNKNOWN_SIZE` where it is none.

    Args:
        base: The base sizes, and the size that an axis has there.
        alone: The same with each dim changed by itself.
        last: The same with all dims changed, which has to confirm the sum; None where that run is missing.
    """
    sizes, rest = base
    factors = {}
    for dim, (others, size) in alone.items():
        factors[dim], remainder = divmod(size - base[1], others[dim] - sizes[dim])
        if remainder:
            return UNKNOWN_SIZE
        rest -= factors[dim] * sizes[dim]
    if last is not None and last[1] != rest + sum(factor * last[0][dim] for dim, factor in factors.items()):
        return UNKNOWN_SIZE
    terms = [(factor, dim) for dim, factor in sorted(factors.items()) if factor]
    return _sum_of(terms, rest)


def _sum_of(terms: Sequence[tuple[int, str]], rest: int) -> str | int:
    """A sum with whole factors as an expression of a contract; what is added stands before what is subtracted."""
    if not terms:
        return rest
    parts = [(factor, name if abs(factor) == 1 else f"{abs(factor)}*{name}") for factor, name in terms]
    parts += [(rest, str(abs(rest)))] if rest else []
    added = "+".join(text for sign, text in parts if sign > 0)
    return (added or "0") + "".join(f"-{text}" for sign, text in parts if sign < 0)


def _same_ranks(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor], where: str) -> None:
    ranks = [{name: out.ndim for name, out in outputs.items()} for outputs in (one, other)]
    if ranks[0] != ranks[1]:
        raise SpecError(f"{where}, the module gives other outputs: ranks {ranks[1]} instead of {ranks[0]}.")


def _run(
    module: Callable[..., Any],
    inputs: Sequence[TensorSpec],
    text: str,
    examples: Mapping[str, str],
    sizes: Sizes,
    masks: Sequence[MaskSpec] = (),
    *,
    varied: bool = False,
) -> dict[str, torch.Tensor]:
    """The outputs at these sizes, with masks that hide nothing; `varied`: of whole numbers whose highest is known,
    which else are all 1."""
    feeds = {spec.name: example(spec, sizes, examples.get(spec.name, ""), least=0 if varied and spec.high else None)
             for spec in inputs}  # fmt: skip
    hidden = {mask.input for mask in masks if mask.carries == "mask" and mask.polarity == "hide"}
    feeds |= {name: feed.new_zeros(feed.shape) for name, feed in feeds.items() if name in hidden - examples.keys()}
    hint = "Check names, dtypes and dims of the inputs, which are passed by keyword."
    given = f"the declared inputs ({', '.join(f'{name} {list(feed.shape)}' for name, feed in feeds.items())})"
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


def _cause(err: BaseException | None) -> str:
    return f"{type(err).__name__}: {str(err).strip()}{raised_in(err)}" if err else ""


def _of_declarations(
    text: str,
    arguments: Arguments,
    ranges: Mapping[str, Dim],
    call: Callable[..., Any],
    examples: Mapping[str, str],
    budget: Budget,
    runs: Callable[[Sizes], bool],
) -> SpecError | None:
    """Says that dims have to be equal, or one a sum of others, which were declared with other names or as numbers.

    Args:
        call, examples: As `_run` takes them.
        runs: Whether the module runs at sizes of the named dims.

    Returns:
        The error; None where the module does not fail for that.
    """
    used = names_of([held.spec for held in arguments.inputs])
    dims = [ranges.get(name) or usual_range(name) for name in used]
    small = [{dim.name: dim.at_least(unit * prime(index)) for index, dim in enumerate(dims)} for unit in (1, 8)]

    def runs_with(inputs: Mapping[str, Input], sizes: Sizes) -> bool:
        from torch.nn.attention import SDPBackend, sdpa_kernel

        with contextlib.suppress(SpecError), sdpa_kernel(SDPBackend.MATH):  # the fused kernel notices less
            specs = [held.spec for held in inputs.values()]
            masks = [held.mask for held in inputs.values() if held.mask]
            return budget.cheap(sizes) and bool(_run(call, specs, text, examples, sizes, masks))
        return False

    # All sizes differ. They are multiples of eight, as some modules take no others.
    declared = {held.spec.name: held for held in arguments.inputs}
    failing = [sizes for sizes in small if not runs_with(declared, sizes)]

    def mends(inputs: Mapping[str, Input]) -> bool:
        return any(runs_with(inputs, sizes) for sizes in failing)

    if failing and (masks := _of_masks(text, arguments, mends)) is not None:
        return masks
    fixed = {name: dim.opt for name, dim in ranges.items() if dim.min == dim.max}
    bound = bound_dims([name for name in used if name not in fixed],
                       lambda sizes: budget.runs_cheaply({**fixed, **sizes}, runs))  # fmt: skip
    if bound:
        return _of_bound_dims(text, arguments, *bound)
    return _of_numbers(text, arguments, list(used), mends) if failing else None


def _of_masks(text: str, arguments: Arguments, mends: Callable[[Mapping[str, Input]], bool]) -> SpecError | None:
    """The error of a mask that is declared with the wrong dims or type, which names the right ones.

    Args:
        mends: As of `_of_numbers`.

    Returns:
        The error; None where that is not why the module fails.
    """
    inputs = {held.spec.name: held for held in arguments.inputs}
    for path, held in arguments.leaves:
        if not isinstance(held, Input) or held.dtype or not (held.mask or called_a_mask(held.spec.name)):
            continue
        own, kept = held.spec, held.mask is None or held.mask.carries == "mask"
        # A dim that no other input has may be the second name of another one.
        others = {dim for each in arguments.inputs if each is not held for dim in each.spec.dims}
        if not kept or own.dims[:1] == own.dims[-1:] or not {own.dims[0], own.dims[-1]} <= others:
            continue
        first, last = own.dims[0], own.dims[-1]
        shapes = [own.dims, (first, last), (first, 1, 1, last), (first, 1, last, last), (first, last, last)]
        dtypes = [own.dtype] if own.dtype.startswith("float") else [own.dtype, "bool", "int64"]
        for dtype, shape in itertools.product(dict.fromkeys(dtypes), dict.fromkeys(shapes)):
            high = own.high if dtype.startswith("int") else None
            other = held._replace(spec=dataclasses.replace(own, dtype=dtype, dims=shape, high=high), example="")
            if other.spec != own and mends({**inputs, own.name: other}):
                ranks = f" of {len(own.dims)} dims", f", of {len(shape)}"
                at, instead = ranks if len(shape) != len(own.dims) else ("", "")
                return SpecError(
                    f"{text}: the module does not run with input {own}{at}; it runs with {other.spec}{instead}.",
                    hint=f"Declare it so: {advised('inputs', [text_of(Leaf(path, other))])}",
                )
    return None


def _of_bound_dims(text: str, arguments: Arguments, dim: str, size: str) -> SpecError:
    """Says that a dim follows from others, which it was not declared as."""

    def having(name: str) -> str:
        names = [repr(each.spec.name) for each in arguments.inputs if name in each.spec.dims]
        return f"{name!r} of input {' and '.join(names)}"

    def with_size(held: Input) -> Input:
        dims = tuple(re.sub(rf"\b{dim}\b", size, one) if isinstance(one, str) else one for one in held.spec.dims)
        return held._replace(spec=dataclasses.replace(held.spec, dims=dims), example="")

    same = size.isidentifier()
    what = (
        f"dims {having(size)} and {having(dim)} must be equal: the module runs where they are, and not elsewhere."
        if same
        else f"dim {having(dim)} must be {size}: the module runs where it is, and not elsewhere."
    )
    declared = [
        text_of(Leaf(path, with_size(held)))
        for path, held in arguments.leaves
        if isinstance(held, Input) and dim in held.spec.dims
    ]
    hint = ("Give them one name: " if same else "Declare it so: ") + advised("inputs", declared)
    held_both = [held for _, held in arguments.leaves if isinstance(held, Input) and {dim, size} <= set(held.spec.dims)]
    if len(held_both) > 1 and len({tuple(held.spec.dims) for held in held_both}) > 1:
        hint = f"Two inputs have these dims in another order: {' and '.join(str(held.spec) for held in held_both[:2])}."
    return SpecError(f"{text}: {what}", hint=hint)


def _of_numbers(
    text: str, arguments: Arguments, names: Sequence[str], mends: Callable[[Mapping[str, Input]], bool]
) -> SpecError | None:
    """The error for two dims that the module needs to be equal, where one is declared as a number and not by name.

    Args:
        names: Of the dims.
        mends: Whether the module runs with inputs declared so, at sizes at which it does not as they are declared.

    Returns:
        The error; None where that is not why the module fails.
    """
    inputs = {held.spec.name: held for held in arguments.inputs}
    places = [(name, axis) for name, held in inputs.items() for axis, dim in enumerate(held.spec.dims)
              if isinstance(dim, int)]  # fmt: skip
    alike: dict[object, list[tuple[str, int]]] = {}
    for name, axis in places:
        number = inputs[name].spec.dims[axis]
        for key in ((name, axis), (number, axis), number):  # from an axis by itself to all that may be the same one
            alike.setdefault(key, []).append((name, axis))
    groups = sorted(dict.fromkeys(map(tuple, alike.values())), key=len)
    ways = (
        (chosen, given)
        for several in (1, 2)  # a batch of one and a length may both be numbers
        for chosen in itertools.combinations(groups, several)
        if len({*itertools.chain(*chosen)}) == sum(map(len, chosen))
        for given in itertools.product(names, repeat=several)
    )
    for chosen, given in itertools.islice(ways, _SIZES_TRIED):
        changed = dict(inputs)
        for group, dim in zip(chosen, given, strict=True):
            for name, axis in group:
                spec = changed[name].spec
                renamed = dataclasses.replace(spec, dims=(*spec.dims[:axis], dim, *spec.dims[axis + 1 :]))
                changed[name] = changed[name]._replace(spec=renamed, example="")
        if mends(changed):
            break
    else:
        return None
    said, alone = [], []
    for group, dim in zip(chosen, given, strict=True):
        own = list(dict.fromkeys(name for name, _ in group))
        number = int(inputs[own[0]].spec.dims[group[0][1]])
        others = [name for name, held in inputs.items() if dim in held.spec.dims]
        beside = next((name for name in others if name not in own), others[0])
        declare = "input {} declares" if len(own) == 1 else "inputs {} declare"
        said.append(f"{declare.format(' and '.join(map(repr, own)))} {number} where {beside!r} says {dim!r}")
        alone.append(Dim(dim, number, number, number))
    declared = [text_of(Leaf(path, changed[held.spec.name])) for path, held in arguments.leaves
                if isinstance(held, Input) and changed[held.spec.name] != held]  # fmt: skip
    equal = f"{', and '.join(said)}; the module runs only where they are equal"
    hint = f"Give both one name: {advised('inputs', declared)}; or take that size alone: {advised('dims', alone)}"
    return FrozenError(f"{text}: {equal}.", hint=hint, dims=alone, why=equal)


def _out_of_memory(err: BaseException | None) -> bool:
    """Whether torch found no memory for a tensor."""
    return isinstance(err, MemoryError) or "DefaultCPUAllocator" in str(err)


def _refuse_random(
    text: str,
    module: nn.Module,
    calls: Sequence[Callable[[], Mapping[str, torch.Tensor]]],
) -> None:
    """Calls a module twice. If it draws random numbers that do not show, it is called in another way too: Reformer
    chooses by them which tokens see each other, and of few or equal tokens all are as good.

    Args:
        calls: Run the module, each with the same inputs each time, and return its outputs by name.

    Raises:
        SpecError: the outputs differ; names the submodules that drew random numbers.
    """
    import torch

    drew: dict[str, None] = {}
    differing: list[str] = []
    with torch.random.fork_rng(devices=[]), _watched(module, drew):
        torch.manual_seed(0)
        for call in calls:
            one, other = call(), call()  # the second call draws other numbers than the first
            differing = [name for name in one if not _equal(one[name], other[name])]
            if differing or not drew:
                break
    if differing:
        kinds = {name: type(part).__name__ for name, part in module.named_modules()}
        places = [f"{name} ({kinds[name]})" if name else kinds[name] for name in drew]
        where = f"; random numbers are drawn in {', '.join(places[:4])}" if places else ""
        raise SpecError(
            f"{text} is not deterministic: on the same inputs, two runs in eval mode differ in output "
            f"{', '.join(differing[:4])}{where}.",
            hint="Write F.dropout(x, p, self.training), which is off in eval mode; take random numbers as an input; "
            "or reset what the module keeps from call to call.",
        )


def _equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two outputs are the same but for sums in another order."""
    import torch

    if one.shape != other.shape:
        return False
    if not one.is_floating_point() or not one.numel():
        return torch.equal(one, other)
    wide, further = one.double(), other.double()
    largest = float(torch.nan_to_num(wide, nan=0.0, posinf=0.0, neginf=0.0).abs().max())
    return torch.allclose(wide, further, rtol=1e-4, atol=1e-4 * largest, equal_nan=True)


@contextlib.contextmanager
def _watched(module: nn.Module, drew: dict[str, None]) -> Iterator[None]:
    """Notes the innermost submodules that draw random numbers of torch."""
    import torch

    before: list[tuple[torch.Tensor, int]] = []

    def entered(part: nn.Module, arguments: object) -> None:
        before.append((torch.get_rng_state(), len(drew)))

    def left_as(name: str) -> Callable[[nn.Module, object, object], None]:
        def left(part: nn.Module, arguments: object, result: object) -> None:
            state, known = before.pop()
            if len(drew) == known and not torch.equal(state, torch.get_rng_state()):
                drew[name] = None

        return left

    hooks = []
    for name, part in module.named_modules():
        hooks += [part.register_forward_pre_hook(entered), part.register_forward_hook(left_as(name))]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
