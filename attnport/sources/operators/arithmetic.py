"""Operators that work element by element."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from attnport.sources.operators.base import OPERATORS, Call, operator


def _plain(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda call, *tensors: function(*tensors)


_UNARY: dict[str, Callable[..., Any]] = {
    "Abs": torch.abs, "Acos": torch.acos, "Acosh": torch.acosh, "Asin": torch.asin, "Asinh": torch.asinh,
    "Atan": torch.atan, "Atanh": torch.atanh, "BitwiseNot": torch.bitwise_not, "Ceil": torch.ceil, "Cos": torch.cos,
    "Cosh": torch.cosh, "Erf": torch.erf, "Exp": torch.exp, "Floor": torch.floor, "HardSwish": functional.hardswish,
    "IsNaN": torch.isnan, "Log": torch.log, "Mish": functional.mish, "Neg": torch.neg, "Not": torch.logical_not,
    "Reciprocal": torch.reciprocal, "Relu": torch.relu, "Round": torch.round, "Sigmoid": torch.sigmoid,
    "Sign": torch.sign, "Sin": torch.sin, "Sinh": torch.sinh, "Softplus": functional.softplus,
    "Softsign": functional.softsign, "Sqrt": torch.sqrt, "Tan": torch.tan, "Tanh": torch.tanh, "Identity": lambda x: x,
}  # fmt: skip
_BINARY: dict[str, Callable[..., Any]] = {
    "Add": torch.add, "Sub": torch.sub, "Mul": torch.mul, "And": torch.logical_and, "Or": torch.logical_or,
    "Xor": torch.logical_xor, "Equal": torch.eq, "Less": torch.lt, "LessOrEqual": torch.le, "Greater": torch.gt,
    "GreaterOrEqual": torch.ge, "BitwiseAnd": torch.bitwise_and, "BitwiseOr": torch.bitwise_or,
    "BitwiseXor": torch.bitwise_xor,
}  # fmt: skip
OPERATORS.update({name: _plain(function) for name, function in (*_UNARY.items(), *_BINARY.items())})


@operator("Div")
def _div(call: Call, a: Tensor, b: Tensor) -> Tensor:
    whole = not a.is_floating_point() and not b.is_floating_point()
    return torch.div(a, b, rounding_mode="trunc" if whole else None)


@operator("Mod")
def _mod(call: Call, a: Tensor, b: Tensor) -> Tensor:
    return torch.fmod(a, b) if call.get("fmod") else torch.remainder(a, b)


@operator("Clip")
def _clip(call: Call, x: Tensor, low: Tensor | None = None, high: Tensor | None = None) -> Tensor:
    # Up to opset 10 the bounds are attributes, and so is their type Python's.
    bounds = [
        x.new_tensor(call.get(name)) if bound is None and name in call.attributes else bound
        for name, bound in (("min", low), ("max", high))
    ]
    if bounds[0] is not None:
        x = torch.maximum(x, bounds[0].to(x.dtype))
    return x if bounds[1] is None else torch.minimum(x, bounds[1].to(x.dtype))


@operator("IsInf")
def _is_inf(call: Call, x: Tensor) -> Tensor:
    none = torch.zeros_like(x, dtype=torch.bool)
    up = torch.isposinf(x) if call.get("detect_positive", 1) else none
    return up | (torch.isneginf(x) if call.get("detect_negative", 1) else none)


@operator("Cast")
def _cast(call: Call, x: Tensor) -> Tensor:
    return x.to(call.type(call.get("to")))


@operator("Dropout")
def _dropout(call: Call, x: Tensor, *rest: Tensor | None) -> Any:
    if len(rest) > 1 and rest[1] is not None and bool(rest[1].item()):
        raise NotImplementedError("Dropout in training mode")
    return (x, torch.ones_like(x, dtype=torch.bool)) if call.outputs > 1 else x


OPERATORS.update(
    {
        "Pow": lambda call, base, exponent: torch.pow(base, exponent).to(base.dtype),  # as the standard has it
        "Max": lambda call, *tensors: functools.reduce(torch.maximum, tensors),
        "Min": lambda call, *tensors: functools.reduce(torch.minimum, tensors),
        "Sum": lambda call, *tensors: functools.reduce(torch.add, tensors),
        "Mean": lambda call, *tensors: functools.reduce(torch.add, tensors) / len(tensors),
        "Where": lambda call, condition, a, b: torch.where(condition, a, b),
        "BitShift": lambda call, a, b: a << b if call.get("direction") == "LEFT" else a >> b,
        "LeakyRelu": lambda call, x: functional.leaky_relu(x, call.get("alpha", 0.01)),
        "PRelu": lambda call, x, slope: torch.where(x < 0, x * slope, x),
        "Elu": lambda call, x: functional.elu(x, call.get("alpha", 1.0)),
        "HardSigmoid": lambda call, x: torch.add(x * call.get("alpha", 0.2), call.get("beta", 0.5)).clamp(0, 1),
        "Gelu": lambda call, x: functional.gelu(x, approximate=call.get("approximate", "none")),
        "Swish": lambda call, x: x * torch.sigmoid(x * call.get("alpha", 1.0)),
        "CastLike": lambda call, x, like: x.to(like.dtype),
    }
)
