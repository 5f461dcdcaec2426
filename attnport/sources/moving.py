"""Which axes of examples can have other sizes, and which have to have the same one: the module itself decides.

torch.export says what its trace can keep dynamic. A trace also freezes what the module takes in any size, as after
`int(x.shape[0])`, and keeps what the module takes in one size alone. So the module is run with axes of other sizes.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from attnport.dims import Symbol, TensorSpec, said_by
from attnport.errors import SpecError, first_line
from attnport.sources.examples import SYMBOL
from attnport.user_code import raised_in
from attnport_bundle.format.contract import evaluate

_LONG = 120
"""Characters of a reason that is shown."""
Axis = tuple[str, int]
"""The name of an input, and the number of its axis."""
Dims = Mapping[str, Sequence[Any]]
"""For each input, sizes and symbols (`Symbol`)."""
_GROWN = (2, 3)
"""Sizes in place of 0 and 1: a mask that is broadcast over heads takes at most one of them."""


class Trials:
    """Runs of a module on its examples, in which some dims have other sizes.

    Attributes:
        tensors: The examples, by the name of the input.
        problem: What the module raised in the last run that failed, and the line of its code.
    """

    def __init__(self, tensors: Mapping[str, torch.Tensor], call: Callable[..., Any]) -> None:
        self.tensors, self._call, self.problem = dict(tensors), call, ""

    def shapes(self, dims: Dims, sizes: Mapping[str, int]) -> dict[str, tuple[int, ...]] | None:
        """The shapes of the outputs; None if the module raises something.

        Args:
            sizes: Of dims by name; the others have those of the examples.
        """
        try:
            feeds = self.feeds(dims, sizes)
            # The fused kernel does not notice keys and values of different lengths.
            with torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
                return {name: tuple(output.shape) for name, output in self._call(**feeds).items()}
        except Exception as err:  # the user's forward may raise anything
            said = first_line(err)
            self.problem = (said if len(said) <= _LONG else f"{said[: _LONG - 1]}…") + raised_in(err)
            return None

    def feeds(self, dims: Dims, sizes: Mapping[str, int]) -> dict[str, torch.Tensor]:
        """The examples with some dims of other sizes, as of `shapes`."""
        known = {**self.sizes(dims), **sizes}
        return {name: _resized(tensor, dims[name], known) for name, tensor in self.tensors.items()}

    def sizes(self, dims: Dims) -> dict[str, int]:
        """The sizes of dims in the examples, by name."""
        found: dict[str, int] = {}
        for name, own in dims.items():
            for dim, size in zip(own, self.tensors[name].shape, strict=True):
                if not isinstance(dim, int) and dim.name.isidentifier():
                    found.setdefault(dim.name, int(size))
        return found

    def axes(self) -> dict[Axis, int]:
        """The sizes of all axes of all inputs."""
        return {(name, at): int(n) for name, tensor in self.tensors.items() for at, n in enumerate(tensor.shape)}

    def groups(self, axis: Axis) -> list[tuple[Axis, ...]]:
        """Axes that may have to be equally long: `axis` alone; with those of its number among the equal ones of each
        input, as height with height; with equal ones of its number among all; with all equal ones."""
        sizes = self.axes()
        same = [other for other, size in sizes.items() if size == sizes[axis]]

        def nth(one: Axis) -> int:
            return sum(other[0] == one[0] and other[1] < one[1] for other in same)

        in_order = tuple(other for other in same if nth(other) == nth(axis))
        at_its_place = tuple(other for other in same if other[1] == axis[1])
        return list(dict.fromkeys(((axis,), in_order, at_its_place, tuple(same))))


def ones(tensors: Mapping[str, torch.Tensor]) -> list[str]:
    """The inputs that are 1 everywhere, as masks that hide nothing."""
    return [name for name, each in tensors.items() if not each.is_floating_point() and each.numel() > 1
            and bool((each == 1).all())]  # fmt: skip


def hiding(trials: Trials) -> Trials:
    """The trials with a 0 at the end of each of `ones`, where the module takes that.

    A module may not look at a mask that hides nothing, as those of transformers, and then takes one of any size.
    """
    changed = dict(trials.tensors)
    for name in ones(changed):
        changed[name] = changed[name].clone()
        changed[name][(-1,) * changed[name].dim()] = 0
    made = Trials(changed, trials._call)
    return made if made.shapes(_placed(changed, {}), {}) is not None else trials


def grown(trials: Trials, kept: Collection[Axis]) -> dict[str, torch.Tensor]:
    """The examples with 2 in place of sizes of 0 and 1, of which torch makes constants, where the module takes that.

    Args:
        kept: Axes that are to keep their size.

    Raises:
        SpecError: an example has no elements, and the module takes no other.
    """
    found = dict(trials.tensors)
    sizes = trials.axes()
    for axis, size in sizes.items():
        if size > 1 or axis in kept or found[axis[0]].shape[axis[1]] != size:
            continue
        groups = [group for group in trials.groups(axis) if not set(group) & set(kept)]
        if size == 0:  # a mask is as long as what was before and what is new together
            longer = [other for other in sizes if sizes[other] > 1 and other not in kept]
            groups += [(*group, other) for group in reversed(groups) for other in longer]
        for group in groups:
            places = {each: Symbol(f"{each[0]}_{each[1]}") for each in group}
            dims = _placed(trials.tensors, places)
            more = [{dim.name: sizes[each] - size + to for each, dim in places.items()} for to in _GROWN]
            if all(trials.shapes(dims, to) is not None for to in more):
                found |= {name: _resized(found[name], dims[name], more[0]) for name, _ in group}
                break
        else:
            if size == 0:
                raise SpecError(
                    f"the example of input {axis[0]} has no elements: its axis {axis[1]} is 0 long, and with more the "
                    f"module raises: {trials.problem}",
                    hint="Give an example with elements, or leave the input out if it has a default.",
                )
    return found


def _placed(tensors: Mapping[str, torch.Tensor], places: Mapping[Axis, Any]) -> dict[str, tuple[Any, ...]]:
    """The sizes of examples, with dims at some axes."""
    return {
        name: tuple(places.get((name, axis), int(size)) for axis, size in enumerate(tensor.shape))
        for name, tensor in tensors.items()
    }


def immovable(trials: Trials, kept: Collection[Axis]) -> dict[Axis, str]:
    """The axes of which the module takes one size alone, and what it raises at another.

    torch may look for minutes into sizes that nobody can change. Of several inputs, one may be as long as two others
    are together, so that only a trace tells.
    """
    fixed: dict[Axis, str] = {}
    if len(trials.tensors) > 1:
        return fixed
    dims, why_fixed = _placed(trials.tensors, {}), _asking(trials, _placed(trials.tensors, {}))
    for axis, size in trials.axes().items():
        reasons: list[str | None] = []
        for group in trials.groups(axis) if size > 1 and axis not in kept else ():
            tried, name = _as_one(dims, group, axis, kept)
            reasons.append(why_fixed(tried, name) if name else "it goes with others")
        if reasons and all(reasons):
            fixed[axis] = str(reasons[0])
    return fixed


def in_truth(
    dims: Dims, trials: Trials, kept: Collection[Axis], known: Mapping[Axis, str] = MappingProxyType({})
) -> tuple[dict[str, tuple[Any, ...]], dict[str, Symbol], tuple[str, ...]]:
    """The dims: dynamic where the module takes other sizes, fixed where it does not; those of which torch's trace takes
    fewer sizes, by name; and what users are to know.

    Args:
        dims: Those of torch's trace.
        kept: Axes that are to keep the size that they have.
        known: As `immovable` gives them.
    """
    found = {name: tuple(own) for name, own in dims.items()}
    why_fixed = _asking(trials, found)
    fixed = dict(known)
    failed: dict[tuple[Axis, ...], str] = {}

    for name in trials.sizes(found):
        chosen = any(said_by(dim) == "user" and dim.name == name for own in found.values() for dim in own)
        if not chosen and (problem := why_fixed(found, name)) is not None:
            places = [(each, axis) for each, own in found.items() for axis, dim in enumerate(own)
                      if not isinstance(dim, int) and dim.name == name]  # fmt: skip
            fixed |= dict.fromkeys(places, problem)
            size = trials.sizes(found)[name]
            found = {each: tuple(_with_size(dim, name, size) for dim in own) for each, own in found.items()}
    for axis, size in trials.axes().items():
        if not isinstance(found[axis[0]][axis[1]], int) or axis in kept or axis in known:
            continue
        groups = trials.groups(axis) if size > 1 else []
        tried, reasons = _moved_with(found, axis, [each for each in groups if each not in failed], kept, why_fixed)
        if tried is None:
            failed |= reasons
            declared = _declared_with(found, axis, groups, kept, why_fixed)
            fixed[axis] = declared or fixed.get(axis) or _why(groups, failed)
        else:
            found = tried
    widened, limited = _widened(found, trials)
    return widened, limited, _fixed_note(fixed, trials)


def _asking(trials: Trials, dims: Dims) -> Callable[[Dims, str], str | None]:
    """A function that says why a dim has one size.

    Args:
        dims: Any that go with the examples.
    """
    base = trials.shapes(dims, {})

    def why_fixed(tried: Dims, name: str) -> str | None:
        """Why a dim has one size: what the module raises with another one; None where it takes others."""
        sizes, problem = trials.sizes(tried), ""
        if name not in sizes:
            return "it goes with others"  # a sum of other dims
        size = sizes[name]
        for other in _others(size):
            shapes = trials.shapes(tried, {name: other})
            # More pixels than whole patches have are cut off: that is no other size.
            if shapes is not None and (shapes != base or not size < 2 * other < 4 * size):
                return None
            problem = problem or (trials.problem if shapes is None else "")
        return problem or "what is more is cut off"

    return why_fixed


def _moved_with(
    dims: Dims,
    axis: Axis,
    groups: Sequence[tuple[Axis, ...]],
    kept: Collection[Axis],
    why_fixed: Callable[[Dims, str], str | None],
) -> tuple[dict[str, tuple[Any, ...]] | None, dict[tuple[Axis, ...], str]]:
    """The dims with one at an axis and the fewest others that have to be as long; None if none moves, and why not, by
    group.

    Args:
        groups: The axes to try, see `Trials.groups`.
        why_fixed: Why a dim has one size; None where it takes others.
    """
    reasons: dict[tuple[Axis, ...], str] = {}
    for group in groups:
        tried, name = _as_one(dims, group, axis, kept)
        problem = why_fixed(tried, name) if name else "it goes with others"
        if problem is not None:
            reasons[group] = problem
            continue
        for other in group:  # some are as long by chance
            fewer = tuple(each for each in group if each != other)
            smaller, name = _as_one(dims, fewer, axis, kept)
            if other != axis and name and why_fixed(smaller, name) is None:
                group, tried = fewer, smaller
        return tried, {}
    return None, reasons


def _why(groups: Sequence[tuple[Axis, ...]], reasons: Mapping[tuple[Axis, ...], str]) -> str:
    """The reason why an axis has one size: the error when all axes of equal size were changed together.

    Changed alone, it would differ from the axes of other inputs, and the error would be about that difference.
    """
    told = [reasons[group] for group in groups[:2] if reasons.get(group)]
    return told[-1] if told else "it is broadcast"


def _declared_with(
    dims: Dims,
    axis: Axis,
    groups: Sequence[tuple[Axis, ...]],
    kept: Collection[Axis],
    why_fixed: Callable[[Dims, str], str | None],
) -> str:
    """Why an axis has one size: it has to be as long as one of `kept`, and would move with it; "" if it would not."""
    for group in groups:
        tried, name = _as_one(dims, group, axis, ())
        if (held := [each for each in group if each in kept]) and name and why_fixed(tried, name) is None:
            return f"it is as long as axis {held[0][1]} of {held[0][0]}, which is declared so"
    return ""


def _as_one(
    dims: Dims, group: Sequence[Axis], axis: Axis, kept: Collection[Axis]
) -> tuple[dict[str, tuple[Any, ...]], str]:
    """The dims with one at all axes of a group, and its name; "" if some are to keep their size, or are two dims."""
    held = {dims[name][at] for name, at in group if not isinstance(dims[name][at], int)}
    if len(held) > 1 or set(group) & set(kept):
        return {name: tuple(own) for name, own in dims.items()}, ""
    dim = next(iter(held), Symbol(f"{axis[0]}_{axis[1]}_frozen", by="module"))
    tried = {
        name: tuple(dim if (name, at) in group else old for at, old in enumerate(own)) for name, own in dims.items()
    }
    return tried, dim.name


def _others(size: int) -> list[int]:
    """Other sizes to try an axis at: beside its own, half and double of it, and those a divisor of it away.

    At 1, an axis that has to be as long as another one is broadcast.
    """
    steps = [step for step in range(2, size) if size % step == 0]
    sizes = [size + 1, size // 2, size - 1, 2 * size, *(size + step for step in steps)]
    return [other for other in dict.fromkeys(sizes) if other > 1]


def _with_size(dim: Any, name: str, size: int) -> Any:
    """A dim, in which another one has turned out to have one size."""
    if isinstance(dim, int) or name not in SYMBOL.findall(dim.name):
        return dim
    if set(SYMBOL.findall(dim.name)) == {name}:
        return evaluate(dim.name, {name: size})
    return dataclasses.replace(
        dim, name=SYMBOL.sub(lambda found: str(size) if found[0] == name else found[0], dim.name)
    )


def _fixed_note(fixed: Mapping[Axis, str], trials: Trials) -> tuple[str, ...]:
    """What users are told of axes with one size: those of the batch first, the width of features behind them."""
    sizes, places = trials.axes(), dict[tuple[int, int, str], list[str]]()
    for (name, axis), why in fixed.items():
        places.setdefault((axis, sizes[name, axis], why), []).append(name)
    told = [
        f"axis {axis} of {' and '.join(names)} at {size}: {why}"
        for (axis, size, why), names in sorted(places.items(), key=lambda each: each[0][0])
    ]
    return ("fixed, as the module takes no other size: " + "; ".join(told),) if told else ()


def _widened(dims: Dims, trials: Trials) -> tuple[dict[str, tuple[Any, ...]], dict[str, Symbol]]:
    """The dims without the limits of torch's trace that the module itself does not have, and those as they were.

    Small examples limit a trace: of 32 pixels, two layers of half as many each leave 8, and one more leaves one patch.
    """
    sizes, limited = trials.sizes(dims), dict[str, Symbol]()
    for dim in itertools.chain.from_iterable(dims.values()):
        if said_by(dim) in ("", "user") or sizes.pop(dim.name, None) is None:
            continue
        beyond = ([dim.smallest - 1] if dim.smallest > 1 else []) + ([dim.largest + 1] if dim.largest else [])
        if any(trials.shapes(dims, {dim.name: size}) is not None for size in beyond):
            limited[dim.name] = dim

    def free(dim: Any) -> Any:
        return dataclasses.replace(dim, smallest=1, largest=None) if getattr(dim, "name", "") in limited else dim

    return {name: tuple(map(free, own)) for name, own in dims.items()}, limited


def frozen(dims: Dims) -> list[Axis]:
    """The axes that are frozen in torch's trace, and that the module takes in other sizes."""
    return [(name, axis) for name, own in dims.items() for axis, dim in enumerate(own) if said_by(dim) == "module"]


def from_zero(dims: Dims, tensors: Mapping[str, torch.Tensor]) -> dict[str, tuple[Any, ...]]:
    """The dims, which begin at 0 where the example that the user gave has no elements."""
    return {
        name: tuple(
            dataclasses.replace(dim, smallest=0) if not isinstance(dim, int) and not size else dim
            for dim, size in zip(own, tensors[name].shape, strict=True)
        )
        for name, own in dims.items()
    }


def joined(dims: Dims, trials: Trials, masks: Collection[str] = ()) -> dict[str, tuple[Any, ...]]:
    """The dims, where those that have to be equal are one: the module fails with one of them larger, not with both.

    Args:
        masks: Inputs that are masks of padding.
    """
    # torch does not notice that the keys and values of a cache must be equally long. A size that follows from others,
    # as `2*s`, where no axis is `s` long, is taken as a number at first.
    sizes = trials.sizes(dims)
    dims = {
        name: tuple(
            dim if said_by(dim) in ("", "user") or set(SYMBOL.findall(dim.name)) <= set(sizes) else int(size)
            for dim, size in zip(own, trials.tensors[name].shape, strict=True)
        )
        for name, own in dims.items()
    }
    kinds = {dim.name: dim for own in dims.values() for dim in reversed(own) if not isinstance(dim, int)}

    def runs(*larger: str) -> bool:
        return trials.shapes(dims, {name: sizes[name] + 1 for name in larger}) is not None

    ranges_first = sorted((name for name, size in sizes.items() if size > 0),
                          key=lambda name: kinds[name].by != "user")  # fmt: skip
    same = _equal_dims(ranges_first, sizes, runs)

    def settled(dim: Any) -> Any:
        if isinstance(dim, int):
            return dim
        if dim.name in same:
            return kinds[same[dim.name]]
        return dataclasses.replace(dim, name=SYMBOL.sub(lambda found: same.get(found[0], found[0]), dim.name))

    found = {name: tuple(map(settled, own)) for name, own in dims.items()}
    return {name: _beside(name, own, found, trials.tensors) if name in masks else own for name, own in found.items()}


def _beside(
    name: str, own: tuple[Any, ...], dims: Mapping[str, tuple[Any, ...]], tensors: Mapping[str, torch.Tensor]
) -> tuple[Any, ...]:
    """The dims of a mask, in which an axis that no other input has is as long as what the mask is for.

    A module may take a mask of more rows than it uses, as BERT of transformers does, or of any length, as its decoders.
    """
    tensor = tensors[name]
    others = [(each, tensors[other].shape) for other, each in dims.items() if other != name]
    shared = {dim.name for each, _ in others for dim in each if not isinstance(dim, int)}

    def joint(axis: int, dim: Any) -> Any:
        if isinstance(dim, int) or dim.name in shared:
            return dim
        size = tensor.shape[axis]
        return next((each[axis] for each, shape in others if len(shape) > axis and shape[axis] == size), dim)

    return tuple(joint(axis, dim) for axis, dim in enumerate(own))


def _equal_dims(names: Sequence[str], sizes: Mapping[str, int], runs: Callable[..., bool]) -> dict[str, str]:
    """By dim, the one before it that it has to be equal to.

    Args:
        runs: Whether the module runs with the dims of these names larger by one.
    """
    same: dict[str, str] = {}
    for one, other in itertools.combinations(names, 2):
        apart = one not in same and one not in same.values() and other not in same
        # One partner is enough: where pixels alone count, of two pictures, a side may go with either one of the other.
        # One of the two may grow alone: a module may take more rows than it uses.
        if apart and sizes[one] == sizes[other] and not (runs(one) and runs(other)) and runs(one, other):
            same[other] = one
    # Where three have to be equal, no two of them can grow alone.
    groups = {name: [name, *(other for other in same if same[other] == name)] for name in names if name not in same}
    counts = Counter(sizes[name] for name in names)
    bound = [name for name, group in groups.items() if counts[sizes[name]] > 2 and not runs(*group)]
    for size in {sizes[name] for name in bound}:
        alike = [each for name in bound if sizes[name] == size for each in groups[name]]
        if len(alike) > 2 and runs(*alike):
            same |= dict.fromkeys(alike[1:], alike[0])
    return same


def _resized(tensor: torch.Tensor, dims: Sequence[Any], sizes: Mapping[str, int]) -> torch.Tensor:
    """A tensor of other sizes, its last part repeated; ones where it has no elements."""
    for axis, (dim, had) in enumerate(zip(dims, tensor.shape, strict=True)):
        size = had if isinstance(dim, int) else TensorSpec("", "int64", (dim.name,)).shape(sizes)[0]
        if size != had and not had:
            tensor = tensor.new_ones((*tensor.shape[:axis], size, *tensor.shape[axis + 1 :]))
        elif size != had:
            tensor = tensor.index_select(axis, torch.arange(size).clamp(max=had - 1))
    return tensor
