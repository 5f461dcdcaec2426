"""`nn.LSTM`, `nn.GRU` and `nn.RNN`: one operator while they are traced, and ONNX's of that name for each layer.

torch unrolls them over the traced length. torch.onnx traces LSTM and GRU with a patch of its own
(`torch.export._patches`) and translates them (https://github.com/microsoft/onnxscript/pull/2674). It unrolls `nn.RNN`
still, takes minutes for a long sequence, and makes a constant of the length for what comes behind it.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch

from attnport.exporter.translations import Translation, op
from attnport.patches import Patch

_GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}
"""The gates of each kind, by the name of its function in torch."""
_ORDERS = {"lstm": (0, 3, 1, 2), "gru": (1, 0, 2)}
"""Where ONNX's gates are among torch's: input, output, forget, cell; update, reset, hidden."""


def table() -> dict[Any, Translation]:
    """The operators of this file."""
    return {_operator(kind).default: functools.partial(_layers, kind) for kind in _GATES}


def _layers(
    kind: str,
    x: Any,
    hidden: Sequence[Any],
    weights: Sequence[Any],
    biases: bool,
    layers: int,
    both_ways: bool,
    batch_first: bool,
) -> tuple[Any, ...]:
    """The last layer's output, and the last states of all layers."""
    ways, each = 1 + both_ways, 4 if biases else 2
    x_TBI = op.Transpose(x, perm=[1, 0, 2]) if batch_first else x
    last: list[list[Any]] = [[] for _ in hidden]
    for layer in range(layers):
        here = range(layer * ways * each, (layer + 1) * ways * each, each)
        of_kind = [[_reordered(kind, weights[way + at]) for way in here] for at in range(each)]
        w, r = (_stacked(parts) for parts in of_kind[:2])
        b = op.Concat(*(_stacked(parts) for parts in of_kind[2:]), axis=1) if biases else None
        starts = [op.Slice(state, _ints(layer * ways), _ints((layer + 1) * ways), _ints(0)) for state in hidden]
        y_TDBH, *ends = _layer(kind, (x_TBI, w, r, b, None, *starts), weights[here[0] + 1].shape[1], both_ways)
        y_TBDH = op.Transpose(y_TDBH, perm=[0, 2, 1, 3])
        x_TBI = op.Reshape(y_TBDH, op.Constant(value_ints=[0, 0, -1]))
        for states, end in zip(last, ends, strict=True):
            states.append(end)
    output = op.Transpose(x_TBI, perm=[1, 0, 2]) if batch_first else x_TBI
    return output, *(op.Concat(*states, axis=0) if layers > 1 else states[0] for states in last)


def _layer(kind: str, given: tuple[Any, ...], width: int, both_ways: bool) -> tuple[Any, ...]:
    direction = "bidirectional" if both_ways else "forward"
    if kind == "lstm":
        found: tuple[Any, ...] = op.LSTM(*given, hidden_size=width, direction=direction)
    elif kind == "gru":
        found = op.GRU(*given, hidden_size=width, direction=direction, linear_before_reset=1)
    else:
        activation = "Tanh" if kind == "rnn_tanh" else "Relu"
        activations = [activation] * (1 + both_ways)
        found = op.RNN(*given, hidden_size=width, direction=direction, activations=activations)
    return found


def _reordered(kind: str, weight: Any) -> Any:
    """A weight `[gates * H, ...]` with its gates in ONNX's order."""
    if kind not in _ORDERS:
        return weight
    gates = op.Split(weight, num_outputs=_GATES[kind], axis=0)
    return op.Concat(*(gates[at] for at in _ORDERS[kind]), axis=0)


def _stacked(parts: Sequence[Any]) -> Any:
    """A tensor of each direction, one behind the other along a new first axis."""
    first = [op.Unsqueeze(part, _ints(0)) for part in parts]
    return op.Concat(*first, axis=0) if len(first) > 1 else first[0]


def _ints(value: int) -> Any:
    return op.Constant(value_ints=[value])


def kept_whole() -> tuple[Patch, ...]:
    """Patches that replace torch's functions by operators of the same results."""
    from torch import _VF

    functions: Any = _VF
    return tuple(Patch(functions, kind, functools.partial(_called, kind, getattr(functions, kind))) for kind in _GATES)


def _operator(kind: str) -> Any:
    """The operator `attnport::lstm`, or that of another kind: `(x, hidden, weights, ...) -> (output, *last)`."""
    return getattr(_operators(), kind)


def _called(kind: str, torchs: Any, *args: Any) -> Any:
    """The operator's results; torch's own for packed sequences and projections, which it does not compute."""
    if len(args) != 9 or not isinstance(args[2], list | tuple):
        return torchs(*args)
    given, hidden, weights, biases, layers, dropout, train, both_ways, batch_first = args
    each = 4 if biases else 2
    if len(weights) != layers * (1 + both_ways) * each or (train and dropout):
        return torchs(*args)
    states = [hidden] if isinstance(hidden, torch.Tensor) else list(hidden)
    return _operator(kind)(given, states, list(weights), biases, layers, both_ways, batch_first)


@functools.cache
def _operators() -> Any:
    """Defines the operators, once in a process."""
    for kind in _GATES:
        torch.library.define(
            f"attnport::{kind}",
            "(Tensor x, Tensor[] hidden, Tensor[] weights, bool biases, int layers, bool both_ways, "
            f"bool batch_first) -> ({', '.join(['Tensor'] * (3 if kind == 'lstm' else 2))})",
        )
        torch.library.impl(f"attnport::{kind}", "CompositeExplicitAutograd", functools.partial(_compute, kind))
        torch.library.register_fake(f"attnport::{kind}", _shapes)
    return torch.ops.attnport


def _compute(kind: str, x: torch.Tensor, hidden: list[torch.Tensor], *others: Any) -> Any:
    weights, biases, layers, both_ways, batch_first = others
    function = getattr(torch._C._VariableFunctions, kind)
    states = hidden if kind == "lstm" else hidden[0]
    return function(x, states, weights, biases, layers, 0.0, False, both_ways, batch_first)


def _shapes(x: torch.Tensor, hidden: list[torch.Tensor], *others: Any) -> tuple[torch.Tensor, ...]:
    both_ways = others[-2]
    width = hidden[0].shape[-1] * (1 + both_ways)
    return x.new_empty((*x.shape[:2], width)), *(state.new_empty(state.shape) for state in hidden)
