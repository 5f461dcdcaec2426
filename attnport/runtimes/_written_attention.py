"""The eager twin of `*_islands` for attention that a module writes out as product, softmax and product.

A single call does not show that it belongs to an attention, so the module runs twice. In the first run, `Found` numbers
the products, and records which of them compute scores for a softmax and which use its probabilities. In the second,
`Rounded` computes these products as a half-precision kernel does.
"""

# torch leaves its mode classes untyped.
# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.weak import WeakTensorKeyDictionary

from attnport.runtimes._torch_modes import SOFTMAXES, operator_name
from attnport.runtimes._torch_range import DispatchMode

PRODUCTS = {"matmul", "bmm", "mm", "baddbmm", "einsum"}
# The result of a layer with weights no longer counts as scores or probabilities.
LAYERS = {"linear", "conv1d", "conv2d", "embedding", "layer_norm"}


@dataclass(frozen=True)
class _Origin:
    """The products whose scores a tensor holds, and those whose probabilities, after a softmax."""

    scores: frozenset[int] = frozenset()
    probabilities: frozenset[int] = frozenset()

    def __or__(self, other: _Origin) -> _Origin:
        return _Origin(self.scores | other.scores, self.probabilities | other.probabilities)


class _Numbered(DispatchMode):
    """Numbers the products of a run."""

    def __init__(self) -> None:
        super().__init__()
        self._count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = operator_name(func)
        if name not in PRODUCTS:
            return self.other(name, func, args, kwargs or {})
        number, self._count = self._count, self._count + 1
        return self.product(number, func, args, kwargs or {})

    def product(self, number: int, func: Any, args: Any, kwargs: Any) -> Any:
        """The product with this number."""
        return func(*args, **kwargs)

    def other(self, name: str, func: Any, args: Any, kwargs: Any) -> Any:
        """Any other call."""
        return func(*args, **kwargs)


class Found(_Numbered):
    """Finds the products of attentions; `scores` and `values` are the numbers of those before and after a softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.scores: set[int] = set()
        self.values: set[int] = set()
        self._origins: Any = WeakTensorKeyDictionary()

    def product(self, number: int, func: Any, args: Any, kwargs: Any) -> Any:
        """A product of probabilities is the last step of an attention."""
        multiplied = self._origin_of(args, kwargs).probabilities
        if multiplied:
            self.scores |= multiplied
            self.values.add(number)
        return self._marked(func(*args, **kwargs), _Origin(scores=frozenset({number})))

    def other(self, name: str, func: Any, args: Any, kwargs: Any) -> Any:
        """The result counts as scores if an argument does, and after a softmax as probabilities."""
        origin = self._origin_of(args, kwargs)
        if name in SOFTMAXES:
            origin = _Origin(probabilities=origin.scores)
        elif name in LAYERS:
            origin = _Origin()
        return self._marked(func(*args, **kwargs), origin)

    def _origin_of(self, *given: Any) -> _Origin:
        origin = _Origin()
        for value in _tensors(given):
            origin |= self._origins.get(value, _Origin())
        return origin

    def _marked(self, result: Any, origin: _Origin) -> Any:
        for value in _tensors(result):
            self._origins[value] = origin
        return result


class Rounded(_Numbered):
    """Runs the products that `Found` found as a half-precision kernel does: it rounds their operands and the final
    output, while scores and softmax are float32. With `step_by_step` it rounds the scores too."""

    def __init__(self, found: Found, dtype: torch.dtype, *, step_by_step: bool = False) -> None:
        super().__init__()
        self._found, self._dtype = found, dtype
        self._rounded = found.values | found.scores if step_by_step else found.values

    def product(self, number: int, func: Any, args: Any, kwargs: Any) -> Any:
        """Rounds the operands of every product of an attention, and the output of its last."""
        if number not in self._found.scores | self._found.values:
            return func(*args, **kwargs)
        result = func(*tree_map_only(Tensor, self._round, args), **tree_map_only(Tensor, self._round, kwargs))
        return self._round(result) if number in self._rounded else result

    def _round(self, value: Tensor) -> Tensor:
        return value.to(self._dtype).to(value.dtype) if value.is_floating_point() else value


def _tensors(given: Any) -> Iterator[Tensor]:
    return (value for value in tree_leaves(given) if isinstance(value, Tensor))
