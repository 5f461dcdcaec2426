"""LSTM, GRU and RNN with their layers, as `recurrent` keeps them: the ONNX operator of that name for each layer.

torch.onnx has its own translation of the first two (https://github.com/microsoft/onnxscript/pull/2674).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from attnport.exporter.recurrent import GATES, operator
from attnport.exporter.translations import Translation, opset

_ORDERS = {"lstm": (0, 3, 1, 2), "gru": (1, 0, 2)}
"""Where ONNX's gates are among torch's: input, output, forget, cell; update, reset, hidden."""


def table() -> dict[Any, Translation]:
    """The operators of this file."""
    return {operator(kind).default: functools.partial(_layers, kind) for kind in GATES}


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
    op = opset()
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
    op = opset()
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
    op = opset()
    if kind not in _ORDERS:
        return weight
    gates = op.Split(weight, num_outputs=GATES[kind], axis=0)
    return op.Concat(*(gates[at] for at in _ORDERS[kind]), axis=0)


def _stacked(parts: Sequence[Any]) -> Any:
    """A tensor of each direction, one behind the other along a new first axis."""
    op = opset()
    first = [op.Unsqueeze(part, _ints(0)) for part in parts]
    return op.Concat(*first, axis=0) if len(first) > 1 else first[0]


def _ints(value: int) -> Any:
    return opset().Constant(value_ints=[value])
