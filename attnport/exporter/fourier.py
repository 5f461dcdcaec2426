"""Fourier transforms as products with the matrix of sines and cosines, which every runtime has.

Not all runtimes have ONNX's `DFT`, and torch's exporter writes none for a size that is not traced
(https://github.com/pytorch/pytorch/issues/113067). A product costs the square of the size.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from functools import partial
from typing import Any

from attnport.exporter.complex_rules import Call, Pair, product


def _transform(inverse: bool, call: Call, of: Pair, n: Any = None, dim: int = -1, norm: str | None = None) -> Pair:
    """`fft` or `ifft`."""
    return _along(call, of, n, dim, norm, inverse=inverse)


def _several(
    inverse: bool, default: Any, call: Call, of: Pair, s: Any = None, dim: Any = None, norm: str | None = None
) -> Pair:
    """`fftn`, `fft2` and their inverses."""
    dims = default if dim is None else dim
    if dims is None:
        rank = of.real.meta["val"].dim()
        dims = range(rank if s is None else rank - len(s), rank)
    for at, axis in enumerate(dims):
        of = _along(call, of, None if s is None else s[at], axis, norm, inverse=inverse)
    return of


def _of_real(call: Call, of: Pair, n: Any = None, dim: int = -1, norm: str | None = None) -> Pair:
    """`rfft`."""
    return _along(call, of, n, dim, norm, inverse=False, half=True)


def _to_real(call: Call, of: Pair, n: Any = None, dim: int = -1, norm: str | None = None) -> Any:
    """`irfft`, of the first half of the frequencies; the others are their conjugates."""
    aten = _aten()
    if n is None:
        n = call(operator.mul, call(operator.sub, _size(call, of.real, dim), 1), 2)
    bins = call(operator.add, call(operator.floordiv, n, 2), 1)
    parts, count = _last(call, of, bins, dim)
    # A frequency that is its own conjugate counts once.
    own = call(aten.eq.Scalar, call(aten.remainder.Scalar, call(aten.mul.Tensor, _row(call, count), 2), n), 0)
    times = call(aten.rsub.Scalar, call(aten._to_copy.default, own, dtype=_dtype(of)), 2.0)
    cos, sin = _table(call, count, n, n, _dtype(of))
    products = [
        call(aten.matmul.default, call(aten.mul.Tensor, part, times), table)
        for part, table in zip(parts, (cos, sin), strict=True)
    ]
    return _finished(call, call(aten.sub.Tensor, *products), n, dim, norm, inverse=True)


def _along(call: Call, of: Pair, n: Any, dim: int, norm: str | None, *, inverse: bool, half: bool = False) -> Pair:
    aten = _aten()
    n = _size(call, of.real, dim) if n is None else n
    parts, count = _last(call, of, n, dim)
    bins = call(operator.add, call(operator.floordiv, n, 2), 1) if half else n
    cos, sin = _table(call, count, bins, n, _dtype(of))
    turned = Pair(cos, sin if inverse else call(aten.neg.default, sin))
    found = product(call, partial(call, aten.matmul.default), parts, turned)
    return Pair(*(_finished(call, part, n, dim, norm, inverse=inverse) for part in found))


def _last(call: Call, of: Pair, n: Any, dim: int) -> tuple[Pair, Any]:
    """The first `n` along an axis, as the last axis, and how many there are; a shorter one ends with zeros."""
    aten = _aten()
    size = _size(call, of.real, dim)
    cut = str(_value(size)) != str(_value(n))
    parts = []
    for part in of:
        if part is not None and cut:
            part = call(aten.slice.Tensor, part, dim, 0, n)
        parts.append(part if part is None else call(aten.movedim.int, part, dim, -1))
    return Pair(*parts), _size(call, parts[0], -1) if cut else size


def _finished(call: Call, part: Any, n: Any, dim: int, norm: str | None, *, inverse: bool) -> Any:
    """Scaled, and the axis back where it was."""
    aten = _aten()
    part = call(aten.movedim.int, part, -1, dim)
    if norm == "ortho":
        count = call(aten.scalar_tensor.default, n, dtype=part.meta["val"].dtype)
        return call(aten.div.Tensor, part, call(aten.sqrt.default, count))
    return call(aten.div.Tensor, part, n) if inverse == (norm != "forward") else part


def _table(call: Call, rows: Any, columns: Any, n: Any, dtype: Any) -> tuple[Any, Any]:
    """Cosines and sines of `2 pi row column / n`, `[rows,columns]`; whole turns are taken off before it is a float."""
    aten = _aten()
    turns = call(aten.mul.Tensor, call(aten.unsqueeze.default, _row(call, rows), 1), _row(call, columns))
    rest = call(aten._to_copy.default, call(aten.remainder.Scalar, turns, n), dtype=dtype)
    at = call(aten.mul.Tensor, call(aten.div.Tensor, rest, n), 2 * math.pi)
    return call(aten.cos.default, at), call(aten.sin.default, at)


def _row(call: Call, count: Any) -> Any:
    import torch

    return call(_aten().arange.default, count, dtype=torch.int64, device=torch.device("cpu"))


def _size(call: Call, value: Any, dim: int) -> Any:
    size = value.meta["val"].shape[dim]
    return size if isinstance(size, int) else call(_aten().sym_size.int, value, dim)


def _value(size: Any) -> Any:
    return size.meta["val"] if hasattr(size, "meta") else size


def _dtype(of: Pair) -> Any:
    return of.real.meta["val"].dtype


def _aten() -> Any:
    import torch

    return torch.ops.aten


RULES: dict[str, Callable[..., Any]] = {
    "fft_fft": partial(_transform, False),
    "fft_ifft": partial(_transform, True),
    "fft_fftn": partial(_several, False, None),
    "fft_ifftn": partial(_several, True, None),
    "fft_fft2": partial(_several, False, (-2, -1)),
    "fft_ifft2": partial(_several, True, (-2, -1)),
    "fft_rfft": _of_real,
    "fft_irfft": _to_real,
}
"""Rules by the operator's name, as those of `complex_rules`; arguments after the first are as the operator's."""
