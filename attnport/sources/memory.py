"""Modules given in Python: later verbs use one while somebody in this process holds it, then the stored program."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from attnport.artifacts import IN_MEMORY, Dim, ModelSpec, Source
from attnport.errors import SpecError, first_line
from attnport.patches import Patch, patched
from attnport.sources.declare import declared_arguments, observed_spec
from attnport.sources.load import sealed
from attnport.sources.parsing import text_of
from attnport.sources.plain import in_float32, plain_module
from attnport.sources.program import program_spec
from attnport.sources.structure import Arguments, own_copy
from attnport.user_code import copy_of

if TYPE_CHECKING:
    import torch
    from torch import nn

_HELD: weakref.WeakValueDictionary[Source, ModelSpec] = weakref.WeakValueDictionary()


def kept_copy(module: nn.Module) -> nn.Module:
    """A copy to export: on the processor, in eval mode, in float32 where the module is in half precision or in float64.

    The caller's module stays as it is, and may be trained on. In the copy, models of transformers are set for a trace.

    Raises:
        SpecError: it cannot be copied.
    """
    from attnport.sources.hf.modules import make_traceable

    text = type(module).__name__
    plain = plain_module(text, module)
    with patched(_results_copied):
        try:
            made = copy_of(plain)
        except Exception as err:  # classes raise whatever they like from their own __deepcopy__
            raise SpecError(f"{text} cannot be copied: {first_line(err)}") from err
    made = made.cpu().eval()
    make_traceable(made)
    return in_float32(made)


def _results_copied() -> tuple[Patch, ...]:
    """Patches with which results of computations are copied, too: what a forward kept, such as a loss of training, and
    weights that torch.nn.utils.weight_norm computed."""
    import torch

    plain: Any = torch.Tensor.__deepcopy__

    def copied(tensor: torch.Tensor, memo: dict[int, Any]) -> Any:
        if tensor.is_leaf:
            return plain(tensor, memo)
        return memo.setdefault(id(tensor), tensor.detach().clone())

    return (Patch(torch.Tensor, "__deepcopy__", copied),)


def memory_spec(
    module: nn.Module,
    arguments: Arguments,
    ranges: Mapping[str, Dim],
    outputs: Sequence[str] = (),
    precision: str = "",
    notes: Sequence[str] = (),
    fixable: Sequence[Dim] = (),
    seen: Mapping[str, int] = MappingProxyType({}),
) -> ModelSpec:
    """The ModelSpec of a module in memory, which `kept_copy` made.

    Args:
        ranges: Of dims by name; others are found.
        outputs: Those that are wanted; none = all.
        precision: The precision that it was in before `kept_copy`; "" = float32.
        notes: What users are to know of how it is taken.
        fixable, seen: As of `ModelSpec`.

    Raises:
        UsageError, SpecError: as `declare.observed_spec`.
    """
    from attnport.sources.hf.modules import mask_notes

    name = type(module).__name__
    text = f"{name}{IN_MEMORY}"
    # What a module keeps from one run to the next, such as a table of positions, is of that run.
    ran = own_copy(module)
    spec = observed_spec(name, text, ran, lambda: own_copy(module), arguments, ranges, outputs, precision)
    inputs, dims = map(text_of, arguments.leaves), map(str, ranges.values())
    source = Source(text, tuple(inputs), tuple(dims), outputs=tuple(outputs))
    notes = (*spec.notes, *notes, *mask_notes(module))
    return hold(dataclasses.replace(spec, source=source, notes=notes, fixable=tuple(fixable), seen=dict(seen)))


def hold(spec: ModelSpec) -> ModelSpec:
    """`spec` with the digests of its module. `held` finds it for as long as somebody has it.

    Raises:
        SpecError: its module is none, or has no data.
    """
    if not spec.source.in_memory:
        spec = dataclasses.replace(spec, source=dataclasses.replace(spec.source, text=f"{spec.name}{IN_MEMORY}"))
    module = spec.make()
    found = sealed(spec, module)
    # The `make` of `sealed` returns the first module itself, which a caller might change; this one returns copies.
    return hold_as(dataclasses.replace(found, make=spec.make), found.source)


def hold_as(spec: ModelSpec, source: Source) -> ModelSpec:
    """`spec` as the model of a source, by which `held` finds it for as long as somebody has it."""
    found = _HELD[source] = dataclasses.replace(spec, source=source)
    return found


def held(source: Source) -> ModelSpec | None:
    """The model in memory that a source stands for; None if it is not in this process."""
    return _HELD.get(source) if source.in_memory else None


def stored(source: Source) -> ModelSpec:
    """The model of a source that was in the memory of another process, from the program in its folder, which is run.

    Raises:
        IntegrityError, SpecError: as `program_spec`.
        SpecError: it has no program.
    """
    if (found := program_spec(source)) is None:
        raise SpecError(
            f"{source.text.removesuffix(IN_MEMORY)} was exported from the memory of a Python process, is not in this "
            "one, and could not be stored.",
            hint="Give the module again, in Python: attnport.open(FOLDER).check(module=model)",
        )
    return found


def given_again(module: nn.Module, source: Source) -> ModelSpec:
    """The model of a source in memory, from the module that was exported. `held` finds it as long as it is in use.

    Another one with the same weights and code is not told apart here; a check shows whether the numbers are.

    Raises:
        SpecError: the module is another one, or the source is no module in memory.
    """
    if not source.in_memory:
        raise SpecError(f"{source.text} is loaded by its SPEC; a module does not apply.", hint="Leave it out.")
    copied = kept_copy(module)
    found = memory_spec(copied, *declared_arguments(source.text, copied, source.inputs, source.dims), source.outputs)
    for part in ("code", "weights"):
        if getattr(found.source, f"{part}_digest") != getattr(source, f"{part}_digest"):
            raise SpecError(
                f"the {part} of this module are not those of {source.text}.",
                hint="Give the module as it was exported, or export again.",
            )
    return hold_as(found, source)
