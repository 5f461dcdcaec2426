"""Tensors whose values are known when a module is traced, such as the rows and columns of patches in a picture."""

from __future__ import annotations

import ast
import contextlib
import functools
import linecache
import re
import sys
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from types import FrameType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from attnport.errors import SpecError, first_line
from attnport.user_code import place_of

PYTHON = "<python> "
"""What a declared text begins with that stands for an object, and not for itself."""
_MADE_OF_NUMBERS = (torch.tensor, torch.as_tensor, torch.arange)
_TRACED = (torch.SymInt, torch.SymFloat, torch.SymBool)
_SOME, _EVERY = (torch.any, torch.Tensor.any), (torch.all, torch.Tensor.all)
_READ = (torch.Tensor.__bool__, torch.Tensor.item)


class Known(torch.Tensor):
    """A tensor with which `Computing` computes."""

    __torch_function__: Any = torch._C._disabled_torch_function_impl


def known(values: Any) -> Known:
    """A known tensor of numbers in lists, or of a tensor."""
    made: Known = torch.as_tensor(values).as_subclass(Known)
    return made


def as_constant(value: Any) -> Any:
    """The value that the forward gets for a declared constant: a list of numbers becomes a known tensor.

    Raises:
        SpecError: rows differ in length, or hold something other than numbers; or it is an object of another process.
    """
    if isinstance(value, str) and value.startswith(PYTHON):
        return _of_python(value.removeprefix(PYTHON))
    try:
        return known(value) if isinstance(value, list) else value
    except (TypeError, ValueError, RuntimeError) as err:
        raise SpecError(f"the constant {value} is no tensor: {first_line(err)}.") from err


def _of_python(text: str) -> Any:
    """A type or a device of torch, by what it prints as."""
    place = re.fullmatch(r"device\(type='(\w+)'(?:, index=(\d+))?\)", text)
    if place is not None:
        return torch.device(place[1], int(place[2])) if place[2] else torch.device(place[1])
    found = getattr(torch, text.removeprefix("torch."), None)
    if not isinstance(found, torch.dtype | torch.layout | torch.memory_format):
        raise SpecError(
            f"a constant is {text:.200}, which cannot be declared: only the process that has it knows it.",
            hint="Give the module itself to attnport.export, in place of its SPEC, and this as an example.",
        )
    return found


class Computing(TorchFunctionMode):
    """While a module is traced, runs the calls that take only known tensors or numbers, and has the others traced.

    The results are known tensors too, so `.item()`, `.tolist()` and the lengths of `split` give numbers, which torch
    can use as sizes. A call that takes known and traced tensors gets the known ones as constants of the graph.

    A graph has one way where code such as `if not mask.any():` has two: ESM, and what else follows fairseq, leaves out
    a mask that hides nothing. `some` says which. What is asserted is taken to be true.

    Attributes:
        decided: The lines of code at which a way was chosen, and which.
    """

    def __init__(self, some: bool | None = None) -> None:
        """`some`: what `any` gives in a condition, and `all` does not; None = what the values say."""
        super().__init__()
        self._some = some
        self._answers: dict[int, tuple[torch.Tensor, bool]] = {}
        self.decided: dict[str, None] = {}

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Calls `func` with the known tensors among its arguments as they are, or as constants."""
        if func in _READ and id(args[0]) in self._answers:
            way = "any() is true and all() is false" if self._some else "any() is false and all() is true"
            self._decide(f", where {way}")
            return self._answers[id(args[0])][1]
        asked = func is torch.Tensor.__bool__ and self._some is not None and type(args[0]) is not Known
        if asked and is_asserted(sys._getframe(1)):  # that of the code which has the tensor: C++ calls the mode
            self._decide(", where the assertion holds")
            return True
        result = self._computed(func, args, kwargs)
        asks = self._some is not None and (func in _SOME or func in _EVERY)
        if asks and isinstance(result, torch.Tensor) and not isinstance(result, Known):
            self._answers[id(result)] = result, self._some == (func in _SOME)
        return result

    def _decide(self, which: str) -> None:
        self.decided[place_of(traceback.extract_stack()).strip() + which] = None

    def _computed(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> Any:
        given = pytree.tree_map_only(slice, _numbered, (args, kwargs or {}))
        leaves = pytree.tree_leaves(given)
        tensors = [each for each in leaves if isinstance(each, torch.Tensor)]
        are_known = [isinstance(each, Known) for each in tensors]
        traced = any(isinstance(each, _TRACED) for each in leaves)
        if not traced and (all(are_known) if tensors else func in _MADE_OF_NUMBERS):
            with _disable_current_modes():
                return pytree.tree_map_only(torch.Tensor, known, func(*given[0], **given[1]))
        if any(are_known):  # a size of the trace and a number would not be a tensor, which `func` may ask for
            given = pytree.tree_map_only(Known, _constant if all(are_known) else _literal, given)
        args, named = given
        return func(*args, **named)


def computing(args: tuple[Any, ...], kwargs: dict[str, Any]) -> AbstractContextManager[Any]:
    """`Computing`, where there are known tensors among the arguments of a call."""
    has_known = any(isinstance(each, Known) for each in pytree.tree_leaves((args, kwargs)))
    return Computing() if has_known else nullcontext()


def is_asserted(frame: FrameType) -> bool:
    """Whether the code that asks for a value, in this frame, is the condition of an `assert`."""
    return any(begin <= frame.f_lineno <= end for begin, end in _assertions(frame.f_code.co_filename))


@functools.lru_cache(maxsize=32)
def _assertions(file: str) -> tuple[tuple[int, int], ...]:
    """The first and last lines of the assertions in a file of Python; none of what cannot be read."""
    with contextlib.suppress(SyntaxError, ValueError):
        tree = ast.parse("".join(linecache.getlines(file)))
        return tuple((node.lineno, node.end_lineno or node.lineno) for node in ast.walk(tree)
                     if isinstance(node, ast.Assert))  # fmt: skip
    return ()


def _numbered(places: slice) -> slice:
    """A slice with numbers in place of known tensors."""
    ends = (places.start, places.stop, places.step)
    return slice(*(_literal(end) if isinstance(end, Known) else end for end in ends))


def _literal(tensor: Known) -> Any:
    """The values as the graph has them: a number, or a tensor that is made in it."""
    return _constant(tensor) if tensor.ndim else _values(tensor)


def _constant(tensor: Known) -> torch.Tensor:
    return torch.tensor(_values(tensor), dtype=tensor.dtype)


def _values(tensor: Known) -> Any:
    with _disable_current_modes():
        return tensor.tolist()
