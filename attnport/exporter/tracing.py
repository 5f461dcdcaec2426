"""Traces a module with torch.export, works around obstacles in torch itself, and explains what torch refuses."""

from __future__ import annotations

import contextlib
import inspect
import logging
import re
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from attnport.artifacts import IOContract
from attnport.errors import ExportError, first_line
from attnport.exporter.experts import all_experts
from attnport.exporter.guards import Guard, constants, guards, located, pinned
from attnport.exporter.recurrences import scanned
from attnport.exporter.recurrent import kept_whole
from attnport.known import Computing, known
from attnport.patches import Patch, alone, patched
from attnport.user_code import raised_in

if TYPE_CHECKING:
    import torch

_FEW = 16
"""The most numbers of a buffer that may decide sizes, such as a stride."""


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keeps torch's exporter from telling of its progress, and from warnings about its own code."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "torch.export", "onnxscript", "onnx_ir", "torch.fx")]
    with alone(), warnings.catch_warnings():  # warnings are those of the whole process
        levels = [logger.level for logger in loggers]
        try:
            for logger in loggers:
                logger.setLevel(logging.ERROR)
            warnings.simplefilter("ignore")
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)


@contextlib.contextmanager
def traceable(module: Any) -> Iterator[None]:
    """Replaces the parts of torch and transformers that prevent tracing, and restores them afterwards.

    - The loop of transformers' experts is over those that were chosen, which a trace cannot know; `grouped_mm` computes
      the same, or a loop over all of them (see `experts`).
    - Recurrences of transformers' models are scans (see `recurrences`); LSTM, GRU and RNN are one operator each (see
      `recurrent`).
    - What is wrong in torch for a trace (see `_obstacles`).

    Other threads that run such modules meanwhile get the same numbers, only more slowly.
    """
    with patched(_obstacles, scanned, all_experts, kept_whole):
        experts = [part for part in module.modules() if getattr(part, "_can_set_experts_implementation", bool)()]
        before = [part.get_experts_implementation() for part in experts]
        try:
            for part in experts:
                part.set_experts_implementation("grouped_mm")
            yield
        finally:
            for part, chosen in zip(experts, before, strict=True):
                part.set_experts_implementation(chosen)


def _obstacles() -> tuple[Patch, ...]:
    """Patches of what prevents tracing in torch itself.

    - `nn.TransformerEncoder` and `nn.TransformerDecoder` inspect a mask to see whether it is causal, and a trace cannot
      branch on a tensor's elements. A mask is treated as causal only if the caller says so; the numbers are the same.
    - The fast path of `nn.MultiheadAttention` and `nn.TransformerEncoderLayer` is one operator that no exporter knows.
    - A cast of a module replaces its parameters, which torch.export refuses. One to what the module already is does
      nothing.
    - torch.export prints the whole graph so far when it fails.
    """
    from torch import nn
    from torch.backends import mha
    from torch.export import _trace
    from torch.nn.modules import transformer

    cast: Callable[..., Any] = nn.Module._apply

    def kept(part: nn.Module, to: Callable[[torch.Tensor], torch.Tensor], *args: Any, **kwargs: Any) -> Any:
        return part if _keeps(to, part) else cast(part, to, *args, **kwargs)

    return (
        Patch(mha, "_is_fastpath_enabled", False),
        Patch(transformer, "_detect_is_causal_mask", lambda mask, is_causal=None, size=None: is_causal is True),
        Patch(nn.Module, "_apply", kept),
        Patch(_trace, "print", lambda *args, **kwargs: None),
    )


def _keeps(to: Callable[[torch.Tensor], torch.Tensor], module: torch.nn.Module) -> bool:
    """Whether a cast leaves each tensor of a module as it is, found out with empty ones that no trace sees."""
    import torch
    from torch.utils._python_dispatch import _disable_current_modes

    with _disable_current_modes():
        kinds = {(tensor.dtype, tensor.device) for tensor in (*module.parameters(), *module.buffers())}
        samples = [torch.empty(0, dtype=dtype, device=device) for dtype, device in kinds]
        return all(to(sample) is sample for sample in samples)


def trace(
    module: torch.nn.Module, contract: IOContract, feeds: dict[str, torch.Tensor]
) -> tuple[torch.export.ExportedProgram, tuple[Guard, ...]]:
    """Returns the module as a torch graph in which every named dim is dynamic, and what the graph needs of sizes.

    If torch cannot prove the graph for all sizes of the contract, it is traced again with dims of torch's choice; the
    caller has to try the graph at the sizes of the guards. torch knows no steps of sizes, so it always chooses those.

    Raises:
        ExportError: torch cannot trace the module, or a dim froze; the message names the dim, its inputs, and the line
            of code.
    """
    import torch

    try:
        try:
            if all(dim.step == 1 for dim in contract.dims):
                return _exported(module, contract, feeds, chosen=False), ()
            with patched(located):
                program = _exported(module, contract, feeds, chosen=True)
        except (torch._dynamo.exc.UserError, AssertionError):  # torch asserts that it has words for a guard
            with patched(located):
                program = _exported(module, contract, feeds, chosen=True)
    except Exception as err:  # torch.export raises whatever the module's own code raises under tracing
        by_values = "data-dependent" in str(err)
        if (read := _retraced(module, contract, feeds, computing=by_values, strict=not by_values)) is not None:
            return read, guards(read, contract)
        raise untraceable(err, "torch.export cannot trace the module") from err
    frozen = constants(program, contract)
    if (frozen or pinned(program)) and (read := _retraced(module, contract, feeds, strict=True)) is not None:
        return read, guards(read, contract)
    if frozen:
        problems = []
        for name, (size, place) in frozen.items():
            inputs = [f"{spec.name!r} (axis {spec.dims.index(name)})" for spec in contract.inputs if name in spec.dims]
            problems.append(
                f"dim {name!r} of input {', '.join(inputs)} froze at the traced size: "
                f"the module's code turns it into the constant {size}{place}"
            )
        advice = _advice(problems[0]) or _USUAL_ADVICE
        raise ExportError(f"{'; '.join(problems)}.", hint=f"{advice} {_one_size(contract, frozen)}", dims=tuple(frozen))
    return program, guards(program, contract)


def _retraced(
    module: torch.nn.Module,
    contract: IOContract,
    feeds: dict[str, torch.Tensor],
    *,
    strict: bool = False,
    computing: bool = False,
) -> torch.export.ExportedProgram | None:
    """Traces the module in another way; None if that fails too, or if the graph is right at one size alone.

    Both ways come last: reading the code takes fewer modules than running it, and computing makes constants of buffers.

    Args:
        strict: torch reads the code, in which `len(x)` and `int(x.shape[i])` stay sizes.
        computing: What follows from numbers alone is computed meanwhile, so that it can decide sizes; see `Computing`.
    """
    try:
        with _computing(module) if computing else contextlib.nullcontext():
            program = _exported(module, contract, feeds, chosen=True, strict=strict)
    except Exception:  # torch raises errors of any type; the first try's is the one to tell
        return None
    return None if constants(program, contract) or pinned(program) else program


@contextlib.contextmanager
def _computing(module: torch.nn.Module) -> Iterator[None]:
    """Has a module's forward compute what follows from numbers, and from its buffers of whole numbers, alone."""
    made = vars(module).get("forward")
    forward = module.forward

    def computed(*args: Any, **kwargs: Any) -> Any:
        with Computing():
            return forward(*args, **kwargs)

    computed.__signature__ = inspect.signature(forward)  # type: ignore[attr-defined]  # torch.export binds by it

    taken = []
    for part in module.modules():
        for name, buffer in list(part._buffers.items()):
            if buffer is not None and not buffer.is_floating_point() and buffer.numel() <= _FEW:
                taken.append((part, name, buffer))
                del part._buffers[name]
                vars(part)[name] = known(buffer)
    module.forward = computed
    try:
        yield
    finally:
        del module.forward
        if made is not None:
            module.forward = made
        for part, name, buffer in taken:
            del vars(part)[name]
            part._buffers[name] = buffer


def _exported(
    module: torch.nn.Module,
    contract: IOContract,
    feeds: dict[str, torch.Tensor],
    *,
    chosen: bool,
    strict: bool = False,
) -> torch.export.ExportedProgram:
    """The trace with dims of the contract's ranges, or `chosen` by torch."""
    import torch

    dims: dict[str, Any] = {
        dim.name: torch.export.Dim.STATIC
        if dim.min == dim.max
        else torch.export.Dim.AUTO(min=dim.min, max=dim.max)
        if chosen
        else torch.export.Dim(dim.name, min=dim.min, max=dim.max)
        for dim in contract.dims
    }
    dynamic = {
        # torch finds out that a size is an expression of others.
        spec.name: {
            axis: dims.get(dim, torch.export.Dim.AUTO) for axis, dim in enumerate(spec.dims) if isinstance(dim, str)
        }
        for spec in contract.inputs
    }
    with torch.no_grad(), traceable(module):
        return torch.export.export(module, (), kwargs=dict(feeds), dynamic_shapes=dynamic, strict=strict)


def untraceable(err: Exception, what: str, hint: str = "") -> ExportError:
    """What torch raised in a trace, told with the line of the module's code and what to write in its place.

    Args:
        what: What failed.
        hint: What helps where nothing is known of the cause; "" = torch's own message.
    """
    place, said = raised_in(err), str(err)
    reads = type(err).__name__ == "DataDependentOutputException" or any(
        sign in said for sign in ("data-dependent", "FakeTensor", ".numpy()")
    )
    cause = f"{type(err).__name__}: {first_line(err)}"
    if reads:
        cause = "its code needs the values of a tensor to go on, which a graph does not have"
    advice = _advice(place if reads else f"{cause}{place}", _VALUES if reads else _SIZES) or (_WHERE if reads else "")
    last = hint or "Run with --traceback for torch's full message."
    return ExportError(f"{what}: {cause}{place}", hint=advice or last)


_USUAL_ADVICE = "Look for int(x.shape[i]), x.view with a literal size, or Python control flow on a size."
_WHERE = "Compute both ways and choose with torch.where(condition, one, other), or multiply by a mask."
_MASK = "For a length, keep the whole size: torch.arange(x.shape[1]) < length is a mask, for torch.where."
_VALUES = (
    (
        r"pack_padded_sequence|pad_packed_sequence",
        "Give the padded batch to the recurrent layer as it is; what it gives behind an item's end can be ignored.",
    ),
    (r"\bassert\b", "Leave the check out of the export: `if not torch.compiler.is_exporting():` before the assert."),
    (r"\bwhile\b", f"A graph has no loop of as many steps as values say; take a fixed number. {_WHERE}"),
    (r"\b(if|elif)\b", _WHERE),
    (
        r"\.(item|tolist|numpy)\(",
        f"A number that is read out of a tensor is none in a graph; keep it a tensor. {_MASK}",
    ),
    (r"\b(int|float|bool|range)\(", f"int(), float() and range() need a number; keep it a tensor. {_MASK}"),
)
"""What to write in place of code that reads values, by what stands in it."""
_SIZES = (
    (r"unhashable", "A size cannot be a key, as of a dict or lru_cache; compute the table in every call."),
    (r"\b(max|min|sum)\(\w+\)", f"Python's max, min and sum go through a tensor; take torch.amax, amin, sum. {_MASK}"),
    (r"\.item\(|\.tolist\(", "A number read out of a tensor is a constant of the graph; keep it a tensor."),
    (r"\bint\(|\bfloat\(|\bround\(|math\.", "Use x.shape[i] as it is, with + - * // alone: int() and math freeze it."),
    (r"\.(view|reshape|expand|repeat|unflatten)\(", "Write -1 or x.shape[i] in place of a literal size."),
    (r"\brange\(|\bfor\b", "A Python loop over a size is unrolled; write it with tensor operations."),
    (r"\bif\b|\bwhile\b|\bassert\b", "Python cannot branch on a tensor in a graph; use torch.where."),
)
"""The same of code that depends on sizes."""


def _one_size(contract: IOContract, frozen: Collection[str]) -> str:
    """What to declare where one size is enough."""
    spec = next(spec for spec in contract.inputs if set(frozen) & set(spec.dims))
    dims = tuple("SIZE" if dim in frozen else dim for dim in spec.dims)
    return f"Where one size is enough, declare it: {replace(spec, dims=dims)}."


def _advice(problem: str, table: Sequence[tuple[str, str]] = _SIZES) -> str:
    """What to write in place of the code that a message shows, or ""."""
    return next((advice for pattern, advice in table if re.search(pattern, problem)), "")
