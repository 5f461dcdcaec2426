"""What operators do to complex numbers, in real ones.

A rule takes the function that writes a node and the operator's arguments as pairs, and gives a pair, or a node if the
result is real.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

Call = Callable[..., Any]


class Pair(NamedTuple):
    """A number as two nodes or plain numbers; the imaginary part of a real one is None."""

    real: Any
    imag: Any


# Operators that do the same to both parts, and which of their arguments are numbers; only the shape of others counts.
BY_PARTS: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(("_to_copy", "to", "type_as", "alias", "detach", "lift_fresh_copy"), (0,)),
    **dict.fromkeys(("clone", "contiguous", "resolve_conj", "resolve_neg", "zeros_like"), (0,)),
    **dict.fromkeys(("expand", "expand_as", "broadcast_to", "repeat", "repeat_interleave"), (0,)),
    **dict.fromkeys(("flatten", "reshape", "reshape_as", "unflatten", "view", "view_as"), (0,)),
    **dict.fromkeys(("movedim", "permute", "squeeze", "swapaxes", "t", "transpose", "unsqueeze"), (0,)),
    **dict.fromkeys(("chunk", "narrow", "select", "slice", "split", "split_with_sizes", "unbind"), (0,)),
    **dict.fromkeys(("diagonal", "flip", "gather", "index", "index_select", "roll", "tril", "triu"), (0,)),
    **dict.fromkeys(("cat", "concat", "constant_pad_nd", "stack"), (0,)),
    **dict.fromkeys(("cumsum", "mean", "neg", "sum", "getitem"), (0,)),
    **dict.fromkeys(("add", "sub", "rsub"), (0, 1)),
    "masked_fill": (0, 2),
    "where": (1, 2),
}
READS = ("sym_size", "sym_numel")
"""Operators that read a shape."""


def mul(call: Call, one: Pair, other: Pair) -> Pair:
    """`one * other`."""
    return product(call, partial(call, _aten().mul.Tensor), one, other)


def div(call: Call, one: Pair, other: Pair) -> Pair:
    """`one / other`."""
    if other.imag is None:
        return Pair(*(call(_aten().div.Tensor, part, other.real) for part in one))
    if isinstance(other.real, float):
        inverse = 1 / complex(*other)
        return mul(call, one, Pair(inverse.real, inverse.imag))
    return mul(call, one, reciprocal(call, other))


def reciprocal(call: Call, one: Pair) -> Pair:
    """`conj(z) / |z|²`."""
    aten, squared = _aten(), _squared(call, one)
    opposite = call(aten.neg.default, one.imag)
    return Pair(*(call(aten.div.Tensor, part, squared) for part in (one.real, opposite)))


def power(call: Call, one: Pair, exponent: Pair) -> Pair | None:
    """Small whole powers."""
    if exponent.imag is not None or exponent.real not in (1, 2, 3, 4):
        return None
    result = one
    for _ in range(int(exponent.real) - 1):
        result = mul(call, result, one)
    return result


def linear(call: Call, one: Pair, weight: Pair, bias: Pair | None = None) -> Pair:
    """A linear layer."""
    aten = _aten()
    result = product(call, partial(call, aten.linear.default), one, weight)
    pairs = zip(result, bias or (None, None), strict=True)
    return Pair(*(part if added is None else call(aten.add.Tensor, part, added) for part, added in pairs))


def matmul(call: Call, one: Pair, other: Pair) -> Pair:
    """A product of matrices."""
    return product(call, partial(call, _aten().matmul.default), one, other)


def einsum(call: Call, equation: Pair, of: list[Pair]) -> Pair:
    """Products that are summed."""
    return product(call, lambda *parts: call(_aten().einsum.default, equation.real, list(parts)), *of)


def product(call: Call, multiply: Callable[..., Any], *of: Pair) -> Pair:
    """A product of any kind that is linear in each of its factors, which `multiply` writes for real ones."""
    aten = _aten()
    at = next((at for at, one in enumerate(of) if one.imag is not None), None)
    if at is None:
        return Pair(multiply(*(one.real for one in of)), None)
    (a, b), (c, d) = (product(call, multiply, *of[:at], Pair(part, None), *of[at + 1 :]) for part in of[at])
    # (a + ib) + i (c + id)
    return Pair(a if d is None else call(aten.sub.Tensor, a, d), c if b is None else call(aten.add.Tensor, b, c))


def exp(call: Call, one: Pair) -> Pair:
    """`exp(z)`."""
    return polar(call, Pair(call(_aten().exp.default, one.real), None), Pair(one.imag, None))


def polar(call: Call, size: Pair, at: Pair) -> Pair:
    """A number of a size at an angle."""
    aten = _aten()
    sides = (call(aten.cos.default, at.real), call(aten.sin.default, at.real))
    return Pair(*(call(aten.mul.Tensor, size.real, side) for side in sides))


def of_parts(call: Call, real: Pair, imag: Pair) -> Pair:
    """`torch.complex`, which broadcasts."""
    aten = _aten()
    parts = (real.real, imag.real)
    zeros = (call(aten.zeros_like.default, part) for part in reversed(parts))
    return Pair(*(call(aten.add.Tensor, part, zero) for part, zero in zip(parts, zeros, strict=True)))


def of_view(call: Call, both: Pair) -> Pair:
    """`torch.view_as_complex`."""
    return Pair(*(call(_aten().select.int, both.real, -1, part) for part in (0, 1)))


def conj(call: Call, one: Pair) -> Pair:
    """The conjugate."""
    return Pair(one.real, call(_aten().neg.default, one.imag))


def view(call: Call, one: Pair) -> Any:
    """`torch.view_as_real`."""
    return call(_aten().stack.default, list(one), -1)


def absolute(call: Call, one: Pair) -> Any:
    """`|z|`."""
    return call(_aten().sqrt.default, _squared(call, one))


def angle(call: Call, one: Pair) -> Any:
    """The angle of `z`."""
    return call(_aten().atan2.default, one.imag, one.real)


def _squared(call: Call, one: Pair) -> Any:
    aten = _aten()
    return call(aten.add.Tensor, *(call(aten.mul.Tensor, part, part) for part in one))


def _aten() -> Any:
    import torch

    return torch.ops.aten


RULES: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(("matmul", "mm", "bmm", "mv"), matmul),
    **dict.fromkeys(("conj", "_conj", "conj_physical", "_conj_physical"), conj),
    "mul": mul,
    "div": div,
    "reciprocal": reciprocal,
    "pow": power,
    "square": lambda call, one: mul(call, one, one),
    "exp": exp,
    "linear": linear,
    "einsum": einsum,
    "complex": of_parts,
    "polar": polar,
    "view_as_complex": of_view,
    "view_as_real": view,
    "real": lambda _, one: one.real,
    "imag": lambda _, one: one.imag,
    "abs": absolute,
    "angle": angle,
}
"""Rules by the operator's name."""
