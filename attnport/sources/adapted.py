"""Modules that are called with flat tensors: seen from outside, as their own class with another forward, and copied."""

from __future__ import annotations

import copy
import inspect
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from attnport.errors import SpecError
from attnport.sources.structure import Arguments, Branch, Constant, Node, flat_outputs, take_apart

if TYPE_CHECKING:
    import torch
    from torch import nn


def _other(result: Any) -> str:
    """What a result holds that is neither a tensor nor None, and where; "" for nothing."""
    pending: list[tuple[str, Node]] = [("", take_apart(result, (), {}))]
    for name, node in pending:
        if isinstance(node, Constant) and node.value is not None:
            return f"{name.lstrip('.')}={node.value!r:.40}"
        if isinstance(node, Branch):
            pending += [(f"{name}.{key}", part) for key, part in zip(node.keys, node.parts, strict=True)]
    return ""


class Observed:
    """Calls a module with flat tensors by keyword, and returns those outputs by name that are wanted.

    Attributes:
        adapts: Whether the module must be `adapted` to be called so; known after a call.
    """

    def __init__(self, module: nn.Module, arguments: Arguments, outputs: Sequence[str], text: str) -> None:
        self._module, self._arguments, self._wanted, self._text = module, arguments, tuple(outputs), text
        self.adapts = not arguments.flat

    def __call__(self, /, **tensors: torch.Tensor) -> dict[str, torch.Tensor]:
        """The outputs by name.

        Raises:
            SpecError: there is no such output, or there is none at all.
        """
        import torch

        args, kwargs = self._arguments.bound(tensors)
        result = self._module(*args, **kwargs)
        found = flat_outputs(result, self._arguments.names)
        if not found:
            raise SpecError(
                f"{self._text}: its forward returns {type(result).__name__} without a tensor in it.",
                hint="Return a tensor, or a structure that has one.",
            )
        if not self._wanted and (other := _other(result)):
            raise SpecError(
                f"{self._text}: its forward returns {type(result).__name__} with {other}, which is no tensor.",
                hint=f"Choose the outputs: --outputs {' --outputs '.join(found)}.",
            )
        values = (result,) if isinstance(result, torch.Tensor) else result
        flat = isinstance(values, tuple | list) and all(isinstance(value, torch.Tensor) for value in values)
        for name in self._wanted:
            if name not in found:
                raise SpecError(
                    f"{self._text}: got --outputs {name}; its forward returns {', '.join(found)}.",
                    hint="Name one of these.",
                )
        chosen = {name: found[name] for name in self._wanted or found}
        self.adapts = self.adapts or not flat or list(chosen) != list(found)
        return chosen


def adapted(module: nn.Module, arguments: Arguments, outputs: Sequence[str]) -> nn.Module:
    """`module` with another forward: the flat tensors of `arguments` by keyword in, those called `outputs` out.

    It is a shallow copy, whose class is a subclass with the name of the module's own. So paths of modules, names of
    parameters, deep copies, casts and `isinstance` stay what they were. Hooks of the module itself see its own
    arguments and results.
    """
    from attnport.known import computing

    kind, names, chosen = type(module), arguments.names, tuple(outputs)
    made = copy.copy(module)
    own = made.__dict__.pop("forward", None)  # somebody replaced the forward of this one instance
    hooks = _Hooks(made)

    def forward(self: nn.Module, *positional: torch.Tensor, **tensors: torch.Tensor) -> Any:
        tensors = {**dict(zip(names, positional, strict=False)), **tensors}
        args, kwargs = arguments.bound(tensors)
        with computing(args, kwargs):
            result = hooks.run(self, own or kind.forward.__get__(self), args, kwargs)
        found = flat_outputs(result, names)
        missing = [name for name in chosen if name not in found]
        if missing:
            raise SpecError(f"{kind.__name__}: its forward returned no {missing[0]}; it returned {', '.join(found)}.")
        return found[chosen[0]] if chosen == ("output",) else tuple(found[name] for name in chosen)

    either = inspect.Parameter.POSITIONAL_OR_KEYWORD
    forward.__signature__ = inspect.Signature(  # type: ignore[attr-defined]  # torch.export binds by it
        [inspect.Parameter(name, either) for name in ("self", *names)]
    )
    space = {"forward": forward, "__module__": kind.__module__, "__qualname__": kind.__qualname__}
    meta: Any = type(kind)
    made.__class__ = meta(kind.__name__, (kind,), space)
    return made


def own_copy(module: nn.Module) -> nn.Module:
    """A copy that shares the weights alone: what is registered on it, or what it keeps of a run, is not `module`'s."""
    shared = {id(tensor): tensor for tensor in (*module.parameters(), *module.buffers())}
    return copy.deepcopy(module, dict(shared))


class _Hooks:
    """The hooks of a module's own forward, taken from it."""

    KEPT = ("_forward_pre_hooks", "_forward_pre_hooks_with_kwargs", "_forward_hooks", "_forward_hooks_with_kwargs")

    def __init__(self, module: nn.Module) -> None:
        self._before, self._before_with, self._after, self._after_with = (getattr(module, name) for name in self.KEPT)
        for name in self.KEPT:
            module.__dict__[name] = OrderedDict()

    def run(self, module: nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Calls `forward` between the hooks, as torch does."""
        for number, before in self._before.items():
            if number in self._before_with:
                args, kwargs = before(module, args, kwargs) or (args, kwargs)
            elif (changed := before(module, args)) is not None:
                args = changed if isinstance(changed, tuple) else (changed,)
        result = forward(*args, **kwargs)
        for number, after in self._after.items():
            given = (args, kwargs) if number in self._after_with else (args,)
            replaced = after(module, *given, result)
            result = result if replaced is None else replaced
        return result
