"""`nn.LSTM`, `nn.GRU` and `nn.RNN` as one operator while they are traced; torch unrolls them over the traced length.

torch.onnx traces LSTM and GRU with a patch of its own (`torch.export._patches`), which unrolls `nn.RNN` still, takes
minutes for a long sequence, and makes a constant of the length for what comes behind it.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from attnport.patches import Patch

if TYPE_CHECKING:
    import torch

GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}
"""The gates of each kind, by the name of its function in torch."""


def kept_whole() -> tuple[Patch, ...]:
    """Patches that replace torch's functions by operators of the same results."""
    from torch import _VF

    functions: Any = _VF
    return tuple(Patch(functions, kind, functools.partial(_called, kind, getattr(functions, kind))) for kind in GATES)


def operator(kind: str) -> Any:
    """The operator `attnport::lstm`, or that of another kind: `(x, hidden, weights, ...) -> (output, *last)`."""
    return getattr(_operators(), kind)


def _called(kind: str, torchs: Any, *args: Any) -> Any:
    """The operator's results; torch's own for packed sequences and projections, which it does not compute."""
    import torch

    if len(args) != 9 or not isinstance(args[2], list | tuple):
        return torchs(*args)
    given, hidden, weights, biases, layers, dropout, train, both_ways, batch_first = args
    each = 4 if biases else 2
    if len(weights) != layers * (1 + both_ways) * each or (train and dropout):
        return torchs(*args)
    states = [hidden] if isinstance(hidden, torch.Tensor) else list(hidden)
    return operator(kind)(given, states, list(weights), biases, layers, both_ways, batch_first)


@functools.cache
def _operators() -> Any:
    """Defines the operators, once in a process."""
    import torch

    for kind in GATES:
        torch.library.define(
            f"attnport::{kind}",
            "(Tensor x, Tensor[] hidden, Tensor[] weights, bool biases, int layers, bool both_ways, "
            f"bool batch_first) -> ({', '.join(['Tensor'] * (3 if kind == 'lstm' else 2))})",
        )
        torch.library.impl(f"attnport::{kind}", "CompositeExplicitAutograd", functools.partial(_compute, kind))
        torch.library.register_fake(f"attnport::{kind}", _shapes)
    return torch.ops.attnport


def _compute(kind: str, x: torch.Tensor, hidden: list[torch.Tensor], *others: Any) -> Any:
    import torch

    weights, biases, layers, both_ways, batch_first = others
    function = getattr(torch._C._VariableFunctions, kind)
    states = hidden if kind == "lstm" else hidden[0]
    return function(x, states, weights, biases, layers, 0.0, False, both_ways, batch_first)


def _shapes(x: torch.Tensor, hidden: list[torch.Tensor], *others: Any) -> tuple[torch.Tensor, ...]:
    both_ways = others[-2]
    width = hidden[0].shape[-1] * (1 + both_ways)
    return x.new_empty((*x.shape[:2], width)), *(state.new_empty(state.shape) for state in hidden)
