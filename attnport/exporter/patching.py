"""Changes to torch, transformers and onnxscript during the trace and translation of a module, undone afterwards.

Each function that returns a tuple of `Patch` is one table. `patched` enters tables under one lock, and undoes them when
its block ends. Tables that are subjects of their own are in `loops`, `named_axes` and `translations.recurrent`, for a
trace, and in `decomposing`, for the translation to ONNX. What stays changed in the copy of a module is in
`sources.hf.modules.make_traceable`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import logging
import math
import os
import re
import sys
import traceback
import types
import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import sympy  # type: ignore[import-untyped]  # sympy has no type hints
import torch
from onnxscript.rewriter import _matcher
from torch import nn
from torch._subclasses import FakeTensor, fake_utils
from torch.backends import mha
from torch.export import _trace
from torch.fx.experimental.sym_node import SymNode
from torch.fx.experimental.symbolic_shapes import (
    DimConstraints,
    ShapeEnv,
    statically_known_true,
    uninteresting_files,
)
from torch.nn.modules import transformer
from torch.utils._device import _device_constructors
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._sympy.numbers import int_oo

from attnport import known
from attnport.exporter.loops import all_experts, scanned
from attnport.exporter.named_axes import named_axes
from attnport.exporter.translations.recurrent import kept_whole
from attnport.known import is_asserted
from attnport.patches import Caches, Patch, alone, everywhere, forward_as, own_scopes, patched
from attnport.user_code import ONE_PART, place_of

if TYPE_CHECKING:
    import onnx_ir as ir

_SIBLINGS = 100
"""The most nodes that read one value and are tried with a rule of several last nodes."""


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silences torch's exporter: its messages of progress, its warnings about its own code, and its log of errors."""
    names = ["torch.onnx", "torch.export", "torch._subclasses", "onnxscript", "onnx_ir", "torch.fx"]
    # It logs even where no variable asks for its file, and pytest prints that with each test that fails.
    if not any(map(os.environ.get, ("TORCH_TRACE", "TORCH_DTRACE", "TORCH_COMPILE_DEBUG"))):
        names.append("torch.__trace")
    loggers = [logging.getLogger(name) for name in names]
    with alone(), warnings.catch_warnings():  # warnings are those of the whole process
        levels = [logger.level for logger in loggers]
        try:
            for logger in loggers:
                logger.setLevel(logging.CRITICAL)  # errors are raised, too
            warnings.simplefilter("ignore")
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)


@contextlib.contextmanager
def traceable(module: Any) -> Iterator[None]:
    """Replaces the parts of torch and transformers that prevent tracing, and restores them afterwards.

    - Experts of transformers' models are computed by `grouped_mm`, or in a loop over all of them (see `loops`).
    - Recurrences of transformers' models are scans (see `loops`); LSTM, GRU and RNN are one operator each (see
      `translations.recurrent`).
    - Operations of einx keep sizes (see `named_axes`).
    - Caches around a module's functions are out of use (see `patches.Caches`).
    - Torch's own obstacles are out of the way (see `obstacles`).
    - Torch's cache of fake results is off: it asks more of sizes than it saves where these are expressions. A trace of
      torchvision's Swin took 65 seconds with it, and 7 without.

    Other threads that run such modules meanwhile get the same numbers, only more slowly.
    """
    _device_constructors()  # torch lists what obeys `with torch.device(...)` once: before any of it is replaced
    without_cache = torch._dynamo.config.patch(fake_tensor_cache_enabled=False)
    caches = Caches(module)
    own = (caches.patches, lambda: _restoring(module, caches))
    with patched(obstacles, scanned, all_experts, named_axes, kept_whole, *own), without_cache:
        experts = [part for part in module.modules() if getattr(part, "_can_set_experts_implementation", bool)()]
        before = [part.get_experts_implementation() for part in experts]
        try:
            for part in experts:
                part.set_experts_implementation("grouped_mm")
            yield
        finally:
            for part, chosen in zip(experts, before, strict=True):
                part.set_experts_implementation(chosen)


def _restoring(module: Any, caches: Caches) -> Iterator[Patch]:
    """A forward that leaves the dicts of a module's parts as they are, for a trace that runs it."""
    forward = module.forward

    def restoring(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_dynamo_compiling():
            return forward(*args, **kwargs)
        with caches.restored():
            return forward(*args, **kwargs)

    if caches.dicts:
        yield forward_as(module, restoring)


def obstacles() -> tuple[Patch, ...]:
    """Patches of what prevents tracing in torch itself.

    - `nn.TransformerEncoder` and `nn.TransformerDecoder` inspect a mask to see whether it is causal, and a trace cannot
      branch on a tensor's elements. A mask is treated as causal only if the caller says so; the numbers are the same.
    - The fast path of `nn.MultiheadAttention` and `nn.TransformerEncoderLayer` is one operator that no exporter knows.
    - Means of a number of cells, as PVT's keys are, are cut out at the sizes of the trace; they become products of
      matrices that are made of the sizes.
    - A transposed convolution to a given size, as of U-Nets, pads its end by as much as a size says; it gets the most
      and is cut.
    - Tables of positions that are resized by a factor made of sizes, as DINO's, are products of matrices that are made
      of the factor.
    - `scaled_dot_product_attention` takes no condition on sizes for `is_causal`, as Whisper's decoder gives it.
    - A logarithm or exponential of a size is a number, and so a constant; it becomes a tensor, as Enformer's range of
      positions does. A root is a power, also while values are computed, as in fair-esm's MSA transformer. `linspace` of
      as many steps as a size, as of Perceiver's positions, is written with `arange`, and `triu_indices` of a size, as
      of reformer-pytorch's causal mask, with `nonzero`. `roll` by a size, as by half a window, takes places by number.
    - `x.data`, as of the Annotated Transformer's masks, would be a constant without values; it is `x.detach()`.
    - `x[..., -n] = 0` has the number of the trace for a size, without a guard; it writes to a slice of one place.
    - A size is a key, as of tables that a module keeps by their length, or of the set of all lengths.
    - A tensor of sizes, as of the levels of Deformable DETR, would have the numbers of the trace.
    - A split of a size into parts of a number gives as many parts as the traced size has, and a loop over them freezes
      it. The whole is one part: code that computes in parts to save memory gives the same numbers.
    - Of `if n % 4: x = pad(x, 4 - n % 4)`, a graph has the padding alone, and pads by 4 where nothing is left over; by
      `(4 - n % 4) % 4` it pads by nothing there, and is the same where the trace found a rest.
    - A cast of a module replaces its parameters, which torch.export refuses. One to what the module already is does
      nothing.
    - torch divides sizes by their common divisor, and simplifies the quotients by every rule that sympy has: minutes of
      a trace at sizes that are long expressions, as of pictures that are padded in each layer. Here common factors are
      cancelled. (Expanded, `32*(n + 7) // (n + 7)` would no longer be known to be 32.)
    - torch.export prints the whole graph so far when it fails. The words that it would suggest ranges with are not
      always found, which it asserts; nobody reads them here.
    """
    cast: Callable[..., Any] = nn.Module._apply

    def kept(part: nn.Module, to: Callable[[torch.Tensor], torch.Tensor], *args: Any, **kwargs: Any) -> Any:
        return part if _keeps(to, part) else cast(part, to, *args, **kwargs)

    return (
        Patch(mha, "_is_fastpath_enabled", False),
        Patch(transformer, "_detect_is_causal_mask", lambda mask, is_causal=None, size=None: is_causal is True),
        Patch(nn.Module, "_apply", kept),
        Patch(_trace, "print", lambda *args, **kwargs: None),
        Patch(DimConstraints, "solve", _without_assertions(DimConstraints.solve)),
        *_settled_attention(),
        *everywhere({pool: _in_cells(pool, axes) for pool, axes in _POOLS.items()}),
        *everywhere({one: _cut_to_size(one) for one in _GROWING}),
        *everywhere({nn.functional.interpolate: _scaled(nn.functional.interpolate)}),
        Patch(torch.SymInt, "__hash__", _hash(torch.SymInt.__hash__)),
        Patch(torch.Tensor, "data", _data()),
        Patch(torch.Tensor, "__setitem__", _at_sizes(torch.Tensor.__setitem__)),
        Patch(torch, "tensor", _of_sizes(torch.tensor)),
        Patch(torch, "as_tensor", _of_sizes(torch.as_tensor)),
        Patch(torch, "linspace", _spaced(torch.linspace)),
        Patch(torch, "triu_indices", _of_triangle(torch.triu_indices, torch.triu)),
        Patch(torch, "tril_indices", _of_triangle(torch.tril_indices, torch.tril)),
        Patch(torch.Tensor, "split", _as_one_part(torch.Tensor.split)),
        Patch(torch, "split", _as_one_part(torch.split)),
        Patch(torch, "div", _of_whole_sizes(torch.div)),
        Patch(torch, "roll", _rolled(torch.roll)),
        Patch(torch.Tensor, "roll", _rolled(torch.Tensor.roll)),
        Patch(SymNode, "sub", _less_rest(SymNode.sub)),
        *(Patch(math, name, _of_size(name)) for name in ("log", "log2", "log10", "log1p", "exp")),
        Patch(math, "sqrt", _root(math.sqrt)),
        Patch(sympy, "simplify", sympy.cancel),
    )


def _without_assertions(solve: Callable[[Any], None]) -> Callable[[Any], None]:
    def solved(constraints: Any) -> None:
        with contextlib.suppress(AssertionError):
            solve(constraints)

    return solved


def _settled_attention() -> Iterator[Patch]:
    """Patches that decide what `is_causal` is."""
    attention = nn.functional.scaled_dot_product_attention

    def settled(*args: Any, **options: Any) -> torch.Tensor:
        if "is_causal" in options:
            options["is_causal"] = bool(options["is_causal"])
        return attention(*args, **options)

    return everywhere({attention: settled})


def _hash(plain: Callable[[Any], int]) -> Callable[[Any], int]:
    """The hash of a size: its expression's. torch and einops go another way where there is none."""

    def found(size: Any) -> int:
        if re.search(r"-packages/(einops|torch/(?!utils/_pytree))", sys._getframe(1).f_code.co_filename):
            return plain(size)
        return hash((id(size.node.shape_env), str(size.node.expr)))

    return found


def _data() -> property:
    """`Tensor.data` that is part of a trace."""
    plain: Any = torch.Tensor.data

    def found(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.detach() if isinstance(tensor, FakeTensor) else plain.__get__(tensor)

    return property(found, plain.__set__)


def _at_sizes(write: Callable[..., None]) -> Callable[..., None]:
    """`Tensor.__setitem__` whose places may be sizes of a trace."""

    def called(tensor: torch.Tensor, index: Any, value: Any) -> None:
        given = index if isinstance(index, tuple) else (index,)
        kinds = {type(each) for each in given}
        if torch.SymInt not in kinds or not kinds <= {torch.SymInt, int, slice, type(None), type(...)}:
            return write(tensor, index, value)
        rest = [slice(None)] * (tensor.dim() - sum(each is not None and each is not ... for each in given))
        parts = [*itertools.chain(*(rest if each is ... else [each] for each in given))]
        parts += [] if type(...) in kinds else rest
        behind = 0  # axes of the result
        for at in reversed(range(len(parts))):
            place = parts[at]
            if isinstance(place, torch.SymInt):
                size = tensor.shape[sum(each is not None for each in parts[:at])]
                start: Any = place if statically_known_true(place >= 0) else place % size
                parts[at] = slice(start, start + 1)
                if isinstance(value, torch.Tensor) and value.dim() >= behind:
                    value = value.unsqueeze(-1 - behind)
            behind += not isinstance(place, int)
        return write(tensor, tuple(parts), value)

    return called


def _of_sizes(tensor: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """`torch.tensor` or `torch.as_tensor` of numbers among which may be sizes of a trace."""

    def numbers(data: Any) -> Iterator[Any]:
        for each in data if isinstance(data, list | tuple) else ():
            yield from numbers(each) if isinstance(each, list | tuple) else (each,)

    def called(data: Any, *args: Any, **options: Any) -> torch.Tensor:
        if torch.compiler.is_dynamo_compiling():  # which knows sizes itself
            return tensor(data, *args, **options)
        kinds = {type(each) for each in numbers([data])}
        if not kinds & {torch.SymInt, torch.SymFloat}:
            return tensor(data, *args, **options)
        floats = bool(kinds & {float, torch.SymFloat})
        dtype = options.get("dtype") or (torch.get_default_dtype() if floats else torch.int64)

        def built(part: Any) -> torch.Tensor:
            if isinstance(part, list | tuple):
                return torch.stack([built(each) for each in part])
            return part.to(dtype) if isinstance(part, torch.Tensor) else torch.full((), part, dtype=dtype)

        return built(data)

    return called


_POOLS: dict[Callable[..., torch.Tensor], int] = {
    nn.functional.adaptive_avg_pool1d: 1,
    nn.functional.adaptive_avg_pool2d: 2,
    nn.functional.adaptive_avg_pool3d: 3,
}
"""Functions that take the mean of each cell, with the number of axes that are cut."""


def _in_cells(pool: Callable[..., torch.Tensor], axes: int) -> Callable[..., torch.Tensor]:
    """A pool whose axes may be sizes of a trace. Cell i of n of an axis is from `i * size // n` up to the place before
    `(i + 1) * size / n`, rounded up."""

    def called(input: torch.Tensor, output_size: Any) -> torch.Tensor:  # noqa: A002  # torch's name
        found, device = input, input.device
        cells = output_size if isinstance(output_size, list | tuple) else (output_size,) * axes
        traced = any(isinstance(size, torch.SymInt) for size in input.shape[-axes:])
        if not traced or all(count in (None, 1) for count in cells):
            return pool(input, output_size)
        for axis, count in zip(range(-axes, 0), cells, strict=True):
            if count is None:
                continue
            size: Any = input.shape[axis]
            number = torch.arange(count, device=device)[:, None]
            begin, end = number * size // count, ((number + 1) * size + count - 1) // count
            place = torch.arange(size, device=device)
            weights = ((place >= begin) & (place < end)) / (end - begin).to(input.dtype)
            found = (found.movedim(axis, -1) @ weights.to(input.dtype).mT).movedim(-1, axis)
        return found

    return called


_GROWING = (nn.functional.conv_transpose1d, nn.functional.conv_transpose2d, nn.functional.conv_transpose3d)


def _cut_to_size(convolution: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """A transposed convolution whose padding at the end of its output may be sizes of a trace."""

    def called(
        input: torch.Tensor,  # noqa: A002  # torch's name
        weight: torch.Tensor,
        bias: torch.Tensor | None = None,
        stride: Any = 1,
        padding: Any = 0,
        output_padding: Any = 0,
        *further: Any,
        **options: Any,
    ) -> torch.Tensor:
        ends = output_padding if isinstance(output_padding, list | tuple) else (output_padding,)
        if not any(isinstance(end, torch.SymInt) for end in ends):
            return convolution(input, weight, bias, stride, padding, output_padding, *further, **options)
        steps = stride if isinstance(stride, list | tuple) else (stride,) * len(ends)
        most = [step - 1 for step in steps]
        found = convolution(input, weight, bias, stride, padding, most, *further, **options)
        for axis, end, more in zip(range(-len(ends), 0), ends, most, strict=True):
            found = found.narrow(axis, 0, found.shape[axis] - more + end)
        return found

    return called


def _scaled(interpolate: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """`interpolate` whose factors may be made of the sizes of a trace. Place i of a result is place
    `(i + 0.5) / factor - 0.5` before; a cubic has the coefficient -0.75, as torch's."""

    def called(
        input: torch.Tensor,  # noqa: A002  # torch's name
        size: Any = None,
        scale_factor: Any = None,
        mode: str = "nearest",
        align_corners: bool | None = None,
        recompute_scale_factor: bool | None = None,
        antialias: bool = False,
    ) -> torch.Tensor:
        axes = input.dim() - 2
        factors = scale_factor if isinstance(scale_factor, list | tuple) else (scale_factor,) * axes
        traced = any(isinstance(factor, torch.SymInt | torch.SymFloat) for factor in factors)
        other = size is not None or align_corners or recompute_scale_factor or antialias
        if not traced or other or mode not in ("bilinear", "bicubic"):
            return interpolate(input, size, scale_factor, mode, align_corners, recompute_scale_factor, antialias)
        found = input
        for axis, factor in zip(range(-axes, 0), factors, strict=True):
            length: Any = input.shape[axis]
            weights = _resizing(length, math.floor(length * factor), factor, cubic=mode == "bicubic")
            found = (found.movedim(axis, -1) @ weights.to(input.dtype).mT).movedim(-1, axis)
        return found

    return called


def _resizing(length: Any, count: Any, factor: Any, *, cubic: bool) -> torch.Tensor:
    """The matrix `[count, length]` by which an axis is resized."""
    by: Any = torch.full((), factor, dtype=torch.float64)
    own = torch.arange(count, dtype=torch.float64)[:, None]
    at = (own + 0.5) / by - 0.5
    if not cubic:  # torch leaves an axis of the same size as it is
        at = torch.where(torch.full((), count) == length, own, at.clamp(min=0))
    begin = at.floor()
    place, weights = torch.arange(length), torch.zeros((), dtype=torch.float64)
    for tap in range(-1, 3) if cubic else range(2):
        away = (at - begin - tap).abs()
        near = (1.25 * away - 2.25) * away * away + 1
        far = ((-0.75 * away + 3.75) * away - 6) * away + 3
        weight = torch.where(away <= 1, near, far) if cubic else 1 - away
        weights = weights + weight * (place == (begin + tap).clamp(0, length - 1)).to(torch.float64)
    return weights


def _spaced(linspace: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """`torch.linspace` whose steps may be a size of a trace."""

    def called(start: Any, end: Any, steps: Any, *, dtype: torch.dtype | None = None, **options: Any) -> torch.Tensor:
        if not isinstance(steps, torch.SymInt):
            return linspace(start, end, steps, dtype=dtype, **options)
        size: Any = steps  # whose type torch's own signatures do not have
        last = torch.full((), size - 1, dtype=torch.float64).clamp(min=1)
        spaced: torch.Tensor = start + (end - start) * torch.arange(size, dtype=torch.float64) / last
        return spaced.to(dtype or torch.get_default_dtype())

    return called


def _of_triangle(indices: Callable[..., torch.Tensor], triangle: Callable[..., torch.Tensor]) -> Callable[..., Any]:
    """`torch.triu_indices` or `torch.tril_indices` whose sizes may be those of a trace."""

    def called(row: Any, col: Any, offset: int = 0, **options: Any) -> torch.Tensor:
        if not isinstance(row, torch.SymInt) and not isinstance(col, torch.SymInt):
            return indices(row, col, offset, **options)
        return triangle(torch.ones(row, col), offset).nonzero().T.to(options.get("dtype") or torch.int64)

    return called


def _of_size(name: str) -> Callable[..., Any]:
    """A function of `math` that gives a tensor for a size of a trace."""
    plain, of_tensor = getattr(math, name), getattr(torch, name)

    def called(number: Any, *base: float) -> Any:
        if not isinstance(number, torch.SymInt | torch.SymFloat):
            return plain(number, *base)
        size: Any = number
        found = of_tensor(torch.full((), size, dtype=torch.float64))
        return found / plain(*base) if base else found

    return called


def numbers_of_sizes(module: nn.Module) -> Iterator[Patch]:
    """Patches with which `int`, `float` and `len` keep sizes of a trace, in the packages of a module's classes.

    Reading the code, in strict mode, torch keeps them too; but there is much that it does not read.
    """
    kept = {"int": _Int, "float": _Float, "len": _length}
    models = {sys.modules[type(part).__module__] for part in module.modules()
              if type(part).__module__.startswith("transformers.models.")}  # fmt: skip
    return (Patch(scope, name, of) for scope in (*own_scopes(module), *models) for name, of in kept.items())


def sizes_of_values(decided: dict[str, None]) -> tuple[Patch, ...]:
    """Patches with which a trace goes on where a size comes of values, as that of `x[mask]` or `x[:, : lengths.max()]`.

    Operators ask whether it is 0 or 1, and the code whether it is 0, as that of experts to which no token goes. It is
    neither: a graph for some rows is right for none. What else operators ask, as whether it is that of another tensor,
    torch answers by the example's values. What else the code asks, as `if lengths.max() > 5`, has no answer still.

    Args:
        decided: Takes the first line of code at which something was asked, for each kind of answer.
    """
    evaluate, noted = ShapeEnv.evaluate_expr, ShapeEnv.set_real_tensor_prop_unbacked_vals
    last: types.FrameType | None = None
    times = 0

    def endless(asker: types.FrameType | None) -> bool:
        """Whether one call of a function has asked so often that it is a loop until nothing is left."""
        nonlocal last, times
        if asker is not None:
            last, times = asker, times + 1 if asker is last else 1
        return times > _ASKED

    def evaluated(env: ShapeEnv, question: Any, *others: Any, **options: Any) -> Any:
        of_values = question.free_symbols - env.backed_var_to_val.keys()
        if len(of_values) == 1 and question.is_Relational:
            by_code = (asker := _asker()) is not None
            own = [env.backed_var_to_val[each] for each in question.free_symbols - of_values]
            at_sizes = question.xreplace(env.backed_var_to_val)
            found = {at_sizes.xreplace(dict.fromkeys(of_values, size)) for size in (2 - by_code, 2, 3, 1009, *own)}
            known_answer = len(found) == 1 and found <= {sympy.true, sympy.false}
            if known_answer and (not by_code or (of_values <= env.size_like and not endless(asker))):
                note("neither 0 nor 1" if not by_code else "not 0")
                return found.pop()
        return evaluate(env, question, *others, **options)

    def answered(env: ShapeEnv, question: Any, answer: Any) -> None:
        asker = _asker()
        asserted = answer == sympy.true and asker is not None and is_asserted(asker)
        # If the answer is a number, it would become a constant in the graph.
        if not asserted and (asker is not None or answer not in (sympy.true, sympy.false)):
            raise env._make_data_dependent_error(question, question)
        note("as it is asserted" if asserted else "as in an example")

    def note(how: str) -> None:
        said = f", where a size that comes of values is {how}"
        place = place_of(traceback.extract_stack(limit=80)).strip()
        if place and not any(each.endswith(said) for each in decided):
            decided[place + said] = None

    def bounded(env: ShapeEnv, symbol: sympy.Symbol, value: Any) -> None:
        noted(env, symbol, value)
        if symbol.is_integer and int(value) >= 0:  # it may be a size, and counts no place from the end
            env.constrain_symbol_range(symbol, 0, int_oo)

    return (
        *(Patch(owner, name, _with_lengths(getattr(owner, name))) for owner, names in _SIZED.items() for name in names),
        Patch(ShapeEnv, "evaluate_expr", evaluated),
        Patch(ShapeEnv, "_log_real_tensor_propagation", answered),
        Patch(ShapeEnv, "set_real_tensor_prop_unbacked_vals", bounded),
        # It asks whether a view begins at the same place as its example, which makes a constant of that size.
        Patch(fake_utils, "_check_fake_real_tensors", lambda *given, **options: None),
    )


_ASKED = 512
"""The most times that one call may ask whether there is something: a mixture has fewer experts."""
_SIZED: dict[Any, tuple[str, ...]] = {
    torch: ("zeros", "ones", "full", "empty", "narrow"),
    torch.Tensor: ("new_zeros", "new_ones", "new_full", "new_empty", "narrow", "view", "reshape", "expand", "repeat"),
}
"""Functions that take sizes, by where they are."""


def _with_lengths(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """A function for which a tensor among sizes, as in `x.new_zeros(8, lengths.max())`, is a size of a trace."""

    def size_of(each: Any) -> Any:
        a_size = isinstance(each, torch.Tensor) and not each.dim() and each.dtype in (torch.int32, torch.int64)
        return each.item() if a_size else type(each)(map(size_of, each)) if isinstance(each, list | tuple) else each

    def called(first: Any, *sizes: Any, **options: Any) -> torch.Tensor:
        return function(first if isinstance(first, torch.Tensor) and first.dim() else size_of(first),
                        *map(size_of, sizes), **{name: size_of(each) for name, each in options.items()})  # fmt: skip

    return called


def _asker() -> types.FrameType | None:
    """The code that asks something of a trace; None where torch does within an operator, which runs in a dispatch."""
    for frame, _ in traceback.walk_stack(sys._getframe(2)):
        code = frame.f_code
        if code.co_name == "__torch_dispatch__":
            return None
        if f"{os.sep}torch{os.sep}" not in code.co_filename and code.co_filename not in (__file__, known.__file__):
            return frame
    return None


class _Numbers(type):
    """The type of types in whose place others stand, so that `isinstance` finds what these are."""

    def __instancecheck__(cls, value: Any) -> bool:
        return isinstance(value, cls.__mro__[1]) or (cls is _Int and isinstance(value, torch.SymInt))


class _Int(int, metaclass=_Numbers):
    def __new__(cls, value: Any = 0, *base: Any) -> Any:
        value = value.item() if isinstance(value, torch.Tensor) else value
        if isinstance(value, torch.SymInt | torch.SymFloat):
            return torch.sym_int(value)  # type: ignore[no-untyped-call]  # torch gives it no types
        return int(value, *base)


class _Float(float, metaclass=_Numbers):
    def __new__(cls, value: Any = 0.0) -> Any:
        if isinstance(value, torch.SymInt | torch.SymFloat):
            return torch.sym_float(value)  # type: ignore[no-untyped-call]  # likewise
        return float(value)


def _length(value: Any) -> Any:
    return value.shape[0] if isinstance(value, torch.Tensor) else len(value)


def _root(sqrt: Callable[[Any], float]) -> Callable[[Any], Any]:
    """`math.sqrt` that keeps a size of a trace."""
    return lambda number: number**0.5 if isinstance(number, torch.SymInt | torch.SymFloat) else sqrt(number)


def _of_whole_sizes(div: Callable[..., Any]) -> Callable[..., Any]:
    """`torch.div` that keeps a size of a trace a size, as in `torch.div(x.shape[1], 2, rounding_mode="trunc")`."""

    def called(number: Any, other: Any, **options: Any) -> Any:
        of_sizes = isinstance(number, torch.SymInt) and isinstance(other, int | torch.SymInt)
        return number // other if of_sizes and options.get("rounding_mode") else div(number, other, **options)

    return called


def _as_one_part(split: Callable[..., Any]) -> Callable[..., Any]:
    """`torch.split`, but for parts of a number of rows where it depends on a size of a trace how many there are."""

    def called(tensor: torch.Tensor, *args: Any, **options: Any) -> Any:
        named = options.get("split_size", options.get("split_size_or_sections"))
        part, dim = [*args, *([named] if not args else []), options.get("dim", 0)][:2]
        if torch.compiler.is_dynamo_compiling():
            return split(tensor, part, dim)
        size = tensor.shape[dim]
        if not (isinstance(size, torch.SymInt) and isinstance(part, int) and 1 < part < size.node.hint):
            return split(tensor, part, dim)
        if (places := ONE_PART.get()) is not None:
            places.append(place_of(traceback.extract_stack(limit=80)))
        return (tensor,)

    return called


def _rolled(roll: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """`torch.roll`, but by sizes of a trace, for which ONNX's exporter has no operators."""

    def called(input: torch.Tensor, shifts: Any, dims: Any = ()) -> torch.Tensor:  # noqa: A002  # torch's own name
        by, axes = (each if isinstance(each, tuple | list) else (each,) for each in (shifts, dims))
        if len(axes) != len(by) or not any(isinstance(shift, torch.SymInt) for shift in by):
            return roll(input, shifts, dims)
        found = input
        for shift, axis in zip(by, axes, strict=True):
            places = torch.arange(found.shape[axis], device=found.device)
            found = found.index_select(axis, (places - shift) % found.shape[axis])
        return found

    return called


def _less_rest(sub: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """A difference of sizes; what is less than a divisor by the rest, which the code has seen to be some, is a rest."""

    def called(size: Any, other: Any) -> Any:
        found, rest = sub(size, other), other.expr
        if type(rest).__name__ in ("Mod", "PythonMod") and rest.args[1] == size.expr:
            some = (sympy.Gt(rest, 0), sympy.Ne(rest, 0))
            if any(guard.expr in some for guard in other.shape_env.guards):
                return found.mod(size)
        return found

    return called


def _keeps(to: Callable[[torch.Tensor], torch.Tensor], module: torch.nn.Module) -> bool:
    """Whether a cast leaves each tensor of a module as it is; tried on empty tensors, which no trace records."""
    with _disable_current_modes():
        kinds = {(tensor.dtype, tensor.device) for tensor in (*module.parameters(), *module.buffers())}
        samples = [torch.empty(0, dtype=dtype, device=device) for dtype, device in kinds]
        return all(to(sample) is sample for sample in samples)


def located() -> tuple[Patch, ...]:
    """Patches that record two lines for each guard: the last one outside torch, and the one that asked for it."""
    kept = ShapeEnv._get_sloc

    def with_place(env: ShapeEnv, framework_loc: str | None = None) -> Any:
        frame = sys._getframe(1)  # torch itself would name this function
        while frame.f_back and frame.f_code.co_filename in uninteresting_files():
            frame = frame.f_back
        found = kept(env, framework_loc or f"{frame.f_code.co_filename}:{frame.f_lineno}")
        return dataclasses.replace(found, maybe_user_loc=place_of(traceback.extract_stack(limit=80)))

    return (Patch(ShapeEnv, "_get_sloc", with_place),)


def exact_rules() -> tuple[Patch, ...]:
    """Patches with which a rule of onnxscript matches a constant only if both are the same float32 number.

    By default, 1e-8 matches 0 and 1.00001 matches 1: `x + 1e-8` becomes `x`, so that a normalisation with that epsilon
    divides zeros by zero, and `x * 1.00001` becomes `x`.

    A rule with several last nodes (two Slices that are a Split) is tried on those that read the same value alone. By
    default, all nodes of the graph are looked at again for each node: 20,000 of them take a quarter of an hour.
    """

    def isclose(value: float, of_rule: float, *, rel_tol: float, abs_tol: float) -> bool:
        return math.isclose(value, of_rule, rel_tol=min(rel_tol, 1e-7), abs_tol=0.0)

    anywhere = _matcher.SimplePatternMatcher.match

    def match(matcher: Any, model: ir.Model, graph: Any, node: ir.Node, **options: Any) -> Any:
        near: Any = graph if matcher.pattern.has_single_output_node else _Near(graph, node)
        return anywhere(matcher, model, near, node, **options)

    return (
        Patch(_matcher, "math", types.SimpleNamespace(isclose=isclose)),
        Patch(_matcher.SimplePatternMatcher, "match", match),
    )


class _Near:
    """The nodes of a graph that read the first value which `node` reads: the first `_SIBLINGS` of them."""

    def __init__(self, graph: ir.Graph | ir.Function, node: ir.Node) -> None:
        self.graph = getattr(graph, "graph", graph)
        self._node = node

    def __iter__(self) -> Iterator[ir.Node]:
        read = self._node.inputs[0] if self._node.inputs else None
        uses = itertools.islice(read.uses() if read is not None else (), _SIBLINGS)
        return (node for node, _ in uses if node.graph is self._node.graph)
