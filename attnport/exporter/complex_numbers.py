"""Rewrites complex numbers in the torch graph as pairs of real ones; ONNX Runtime computes with no others.

torch's exporter does so for a few operators alone (https://github.com/pytorch/pytorch/issues/126972). A complex value
whose operator has no rule here stays, and the exporter names it. A rule takes the function that writes a node and the
operator's arguments as pairs, and gives a pair, or a node if the result is real.

Fourier transforms are products with the matrix of sines and cosines, which every runtime has. Not all have ONNX's
`DFT`, and torch's exporter writes none for a size that is not traced (https://github.com/pytorch/pytorch/issues/113067).
A product costs the square of the size.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch._guards import detect_fake_mode
from torch.fx.node import map_arg

_Call = Callable[..., Any]
aten = torch.ops.aten


class _Pair(NamedTuple):
    """A number as two nodes or plain numbers; the imaginary part of a real one is None."""

    real: Any
    imag: Any


# Operators that do the same to both parts, and which of their arguments are numbers; only the shape of others counts.
_BY_PARTS: dict[str, tuple[int, ...]] = {
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
_READS = ("sym_size", "sym_numel")
"""Operators that read a shape."""


def split_complex(program: torch.export.ExportedProgram) -> int:
    """Replaces complex values by pairs of real ones, in place; returns how many were replaced."""
    writer = _Writer(program)
    for node in list(program.graph.nodes):
        if node.op == "placeholder" and _is_complex(node):
            writer.take(node)
        elif node.op == "call_function":
            writer.visit(node)
    return writer.finish()


class _Writer:
    """Writes real nodes beside the complex ones, then removes those."""

    def __init__(self, program: torch.export.ExportedProgram) -> None:
        self._program, self._graph = program, program.graph
        self._pairs: dict[torch.fx.Node, _Pair] = {}
        self._replaced: list[torch.fx.Node] = []
        self._meta: dict[str, Any] = {}
        self._mode: Any = detect_fake_mode([node.meta.get("val") for node in program.graph.nodes])

    def call(self, target: Any, *args: Any, **kwargs: Any) -> Any:
        """A new node; what is computed of sizes that are numbers is a number."""
        known: list[Any] = []
        map_arg((args, kwargs), known.append)
        if not known and not hasattr(target, "_schema"):
            return target(*args, **kwargs)
        node = self._graph.call_function(target, args, kwargs)
        taken: Any = map_arg((args, kwargs), lambda one: one.meta["val"])
        with self._mode:
            node.meta = {**self._meta, "val": target(*taken[0], **taken[1])}
        return node

    def take(self, node: torch.fx.Node) -> None:
        """Reads a weight as a pair; whether all that uses it has a rule is not known yet."""
        with self._graph.inserting_before(next(one for one in self._graph.nodes if one.op != "placeholder")):
            both = self.call(aten.view_as_real.default, node)
            self._pairs[node] = _Pair(*(self.call(aten.select.int, both, -1, part) for part in (0, 1)))

    def visit(self, node: torch.fx.Node) -> None:
        """Writes a node's value as a pair, or what it reads from pairs, if there is a rule for its operator."""
        inputs = [one for one in node.all_input_nodes if _is_complex(one)]
        if not (inputs or _is_complex(node)) or any(one not in self._pairs for one in inputs):
            return
        self._meta = {name: value for name, value in node.meta.items() if name not in ("val", "tensor_meta")}
        with self._graph.inserting_before(node):
            result = self._written(node)
        if result is None:
            return
        if _is_complex(node):
            self._pairs[node] = result
        elif node.users:
            real = result.real if isinstance(result, _Pair) else result  # a cast to a real type drops the other
            self._program.graph_signature.replace_all_uses(node.name, real.name)
            node.replace_all_uses_with(real)
        self._replaced.append(node)

    def finish(self) -> int:
        """Removes the complex nodes that nothing uses any more, and makes weights real; returns how many nodes."""
        for node in reversed(self._replaced):
            if not node.users:
                self._graph.erase_node(node)
        for node in self._graph.find_nodes(op="placeholder"):
            if node in self._pairs:
                self._make_real(node)
        if self._replaced:  # what is computed of pairs lies in memory otherwise, where a view may be refused
            for node in self._graph.find_nodes(op="call_function", target=aten.view.default):
                node.target = aten.reshape.default
        return len(self._replaced)

    def _written(self, node: torch.fx.Node) -> Any:
        """The value of a node as a pair, or as a node if it is real; None if there is no rule."""
        name = "getitem" if node.target is operator.getitem else str(getattr(node.target, "overloadpacket", ""))[5:]
        if name == "_assert_tensor_metadata":
            return _Pair(None, None)  # it has no users
        if node.target is aten.view.dtype:
            return None
        if name in _READS:
            return self.call(node.target, *map(self._one, node.args), **node.kwargs)
        if name in _BY_PARTS:
            return self._by_parts(node, _BY_PARTS[name])
        if name in _FOURIER:
            return _FOURIER[name](self.call, self._pair(node.args[0]), *node.args[1:], **node.kwargs)
        if name in _RULES and not node.kwargs:
            return _RULES[name](self.call, *(self._pair(value) for value in node.args))
        return None

    def _by_parts(self, node: torch.fx.Node, numbers: tuple[int, ...]) -> _Pair:
        """The same operator for both parts; `view` as `reshape`, as a part lies in memory otherwise than the whole."""
        target = aten.reshape.default if node.target is aten.view.default else node.target
        kwargs = {name: self._one(value) for name, value in node.kwargs.items()}
        found = []
        for part in (0, 1):
            args = [
                self._part(value, part) if at in numbers else self._one(value) for at, value in enumerate(node.args)
            ]
            found.append(self.call(target, *args, **kwargs))
        return _Pair(*found)

    def _pair(self, value: Any) -> Any:
        if isinstance(value, list | tuple):
            return [self._pair(one) for one in value]
        if isinstance(value, torch.fx.Node):
            return self._pairs.get(value, _Pair(value, None))
        return _Pair(value.real, value.imag) if isinstance(value, complex) else _Pair(value, None)

    def _part(self, value: Any, part: int) -> Any:
        """One part of an argument that is a number, or a list of such; that of a real one is zero."""
        if isinstance(value, list | tuple):
            return [self._part(one, part) for one in value]
        found = self._pair(value)[part]
        if found is None and isinstance(value, torch.fx.Node):
            return self.call(aten.zeros_like.default, value)
        return 0.0 if found is None else found

    def _one(self, value: Any) -> Any:
        """An argument of which only the type or the shape counts."""
        if isinstance(value, torch.dtype):
            return value.to_real()
        return self._pair(value).real if isinstance(value, torch.fx.Node) else value

    def _make_real(self, node: torch.fx.Node) -> None:
        """Makes a complex weight a real one with a last axis of 2, unless it is still used as it was."""
        reads = list(node.users)
        specs = self._program.graph_signature.input_specs
        target = next((spec.target for spec in specs if getattr(spec.arg, "name", "") == node.name), None)
        kept: Any = next((kept for kept in (self._program.state_dict, self._program.constants) if target in kept), None)
        if kept is None or [read.target for read in reads] != [aten.view_as_real.default]:
            return
        real = torch.view_as_real(kept[target].detach().resolve_conj()).contiguous()
        kept[target] = torch.nn.Parameter(real, False) if isinstance(kept[target], torch.nn.Parameter) else real
        node.meta = {**node.meta, "val": reads[0].meta["val"]}
        reads[0].replace_all_uses_with(node)
        self._graph.erase_node(reads[0])


def _is_complex(node: torch.fx.Node) -> bool:
    """Whether a node's value, or each of its list, is complex."""
    value = node.meta.get("val")
    first = value[0] if isinstance(value, list | tuple) and value else value
    return isinstance(first, torch.Tensor) and first.is_complex()


def _mul(call: _Call, one: _Pair, other: _Pair) -> _Pair:
    """`one * other`."""
    return _product(call, partial(call, aten.mul.Tensor), one, other)


def _div(call: _Call, one: _Pair, other: _Pair) -> _Pair:
    """`one / other`."""
    if other.imag is None:
        return _Pair(*(call(aten.div.Tensor, part, other.real) for part in one))
    if isinstance(other.real, float):
        inverse = 1 / complex(*other)
        return _mul(call, one, _Pair(inverse.real, inverse.imag))
    return _mul(call, one, _reciprocal(call, other))


def _reciprocal(call: _Call, one: _Pair) -> _Pair:
    """`conj(z) / |z|²`."""
    squared = _squared(call, one)
    opposite = call(aten.neg.default, one.imag)
    return _Pair(*(call(aten.div.Tensor, part, squared) for part in (one.real, opposite)))


def _power(call: _Call, one: _Pair, exponent: _Pair) -> _Pair | None:
    """Small whole powers."""
    if exponent.imag is not None or exponent.real not in (1, 2, 3, 4):
        return None
    result = one
    for _ in range(int(exponent.real) - 1):
        result = _mul(call, result, one)
    return result


def _linear(call: _Call, one: _Pair, weight: _Pair, bias: _Pair | None = None) -> _Pair:
    """A linear layer."""
    result = _product(call, partial(call, aten.linear.default), one, weight)
    pairs = zip(result, bias or (None, None), strict=True)
    return _Pair(*(part if added is None else call(aten.add.Tensor, part, added) for part, added in pairs))


def _matmul(call: _Call, one: _Pair, other: _Pair) -> _Pair:
    """A product of matrices."""
    return _product(call, partial(call, aten.matmul.default), one, other)


def _einsum(call: _Call, equation: _Pair, of: list[_Pair]) -> _Pair:
    """Products that are summed."""
    return _product(call, lambda *parts: call(aten.einsum.default, equation.real, list(parts)), *of)


def _product(call: _Call, multiply: Callable[..., Any], *of: _Pair) -> _Pair:
    """A product of any kind that is linear in each of its factors, which `multiply` writes for real ones."""
    at = next((at for at, one in enumerate(of) if one.imag is not None), None)
    if at is None:
        return _Pair(multiply(*(one.real for one in of)), None)
    (a, b), (c, d) = (_product(call, multiply, *of[:at], _Pair(part, None), *of[at + 1 :]) for part in of[at])
    # (a + ib) + i (c + id)
    return _Pair(a if d is None else call(aten.sub.Tensor, a, d), c if b is None else call(aten.add.Tensor, b, c))


def _polar(call: _Call, size: _Pair, at: _Pair) -> _Pair:
    """A number of a size at an angle."""
    sides = (call(aten.cos.default, at.real), call(aten.sin.default, at.real))
    return _Pair(*(call(aten.mul.Tensor, size.real, side) for side in sides))


def _of_parts(call: _Call, real: _Pair, imag: _Pair) -> _Pair:
    """`torch.complex`, which broadcasts."""
    parts = (real.real, imag.real)
    zeros = (call(aten.zeros_like.default, part) for part in reversed(parts))
    return _Pair(*(call(aten.add.Tensor, part, zero) for part, zero in zip(parts, zeros, strict=True)))


def _conj(call: _Call, one: _Pair) -> _Pair:
    """The conjugate."""
    return _Pair(one.real, call(aten.neg.default, one.imag))


def _squared(call: _Call, one: _Pair) -> Any:
    return call(aten.add.Tensor, *(call(aten.mul.Tensor, part, part) for part in one))


_RULES: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(("matmul", "mm", "bmm", "mv"), _matmul),
    **dict.fromkeys(("conj", "_conj", "conj_physical", "_conj_physical"), _conj),
    "mul": _mul,
    "div": _div,
    "reciprocal": _reciprocal,
    "pow": _power,
    "square": lambda call, one: _mul(call, one, one),
    "exp": lambda call, one: _polar(call, _Pair(call(aten.exp.default, one.real), None), _Pair(one.imag, None)),
    "linear": _linear,
    "einsum": _einsum,
    "complex": _of_parts,
    "polar": _polar,
    "view_as_complex": lambda call, both: _Pair(*(call(aten.select.int, both.real, -1, part) for part in (0, 1))),
    "view_as_real": lambda call, one: call(aten.stack.default, list(one), -1),
    "real": lambda _, one: one.real,
    "imag": lambda _, one: one.imag,
    "abs": lambda call, one: call(aten.sqrt.default, _squared(call, one)),
    "angle": lambda call, one: call(aten.atan2.default, one.imag, one.real),
}
"""Rules by the operator's name."""


def _several(
    inverse: bool, default: Any, call: _Call, of: _Pair, s: Any = None, dim: Any = None, norm: str | None = None
) -> _Pair:
    """`fftn`, `fft2` and their inverses."""
    dims = default if dim is None else dim
    if dims is None:
        rank = of.real.meta["val"].dim()
        dims = range(rank if s is None else rank - len(s), rank)
    for at, axis in enumerate(dims):
        of = _along(call, of, None if s is None else s[at], axis, norm, inverse=inverse)
    return of


def _to_real(call: _Call, of: _Pair, n: Any = None, dim: int = -1, norm: str | None = None) -> Any:
    """`irfft`, of the first half of the frequencies; the others are their conjugates."""
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


def _along(
    call: _Call,
    of: _Pair,
    n: Any = None,
    dim: int = -1,
    norm: str | None = None,
    *,
    inverse: bool = False,
    half: bool = False,
) -> _Pair:
    """`fft`, `ifft`, and with `half` of the frequencies `rfft`."""
    n = _size(call, of.real, dim) if n is None else n
    parts, count = _last(call, of, n, dim)
    bins = call(operator.add, call(operator.floordiv, n, 2), 1) if half else n
    cos, sin = _table(call, count, bins, n, _dtype(of))
    turned = _Pair(cos, sin if inverse else call(aten.neg.default, sin))
    found = _product(call, partial(call, aten.matmul.default), parts, turned)
    return _Pair(*(_finished(call, part, n, dim, norm, inverse=inverse) for part in found))


def _last(call: _Call, of: _Pair, n: Any, dim: int) -> tuple[_Pair, Any]:
    """The first `n` along an axis, as the last axis, and how many there are; a shorter one ends with zeros."""
    size = _size(call, of.real, dim)
    cut = str(_value(size)) != str(_value(n))
    parts = []
    for part in of:
        if part is not None and cut:
            part = call(aten.slice.Tensor, part, dim, 0, n)
        parts.append(part if part is None else call(aten.movedim.int, part, dim, -1))
    return _Pair(*parts), _size(call, parts[0], -1) if cut else size


def _finished(call: _Call, part: Any, n: Any, dim: int, norm: str | None, *, inverse: bool) -> Any:
    """Scaled, and the axis back where it was."""
    part = call(aten.movedim.int, part, -1, dim)
    if norm == "ortho":
        count = call(aten.scalar_tensor.default, n, dtype=part.meta["val"].dtype)
        return call(aten.div.Tensor, part, call(aten.sqrt.default, count))
    return call(aten.div.Tensor, part, n) if inverse == (norm != "forward") else part


def _table(call: _Call, rows: Any, columns: Any, n: Any, dtype: Any) -> tuple[Any, Any]:
    """Cosines and sines of `2 pi row column / n`, `[rows,columns]`; whole turns are taken off before it is a float."""
    turns = call(aten.mul.Tensor, call(aten.unsqueeze.default, _row(call, rows), 1), _row(call, columns))
    rest = call(aten._to_copy.default, call(aten.remainder.Scalar, turns, n), dtype=dtype)
    at = call(aten.mul.Tensor, call(aten.div.Tensor, rest, n), 2 * math.pi)
    return call(aten.cos.default, at), call(aten.sin.default, at)


def _row(call: _Call, count: Any) -> Any:
    return call(aten.arange.default, count, dtype=torch.int64, device=torch.device("cpu"))


def _size(call: _Call, value: Any, dim: int) -> Any:
    size = value.meta["val"].shape[dim]
    return size if isinstance(size, int) else call(aten.sym_size.int, value, dim)


def _value(size: Any) -> Any:
    return size.meta["val"] if hasattr(size, "meta") else size


def _dtype(of: _Pair) -> Any:
    return of.real.meta["val"].dtype


_FOURIER: dict[str, Callable[..., Any]] = {
    "fft_fft": _along,
    "fft_ifft": partial(_along, inverse=True),
    "fft_fftn": partial(_several, False, None),
    "fft_ifftn": partial(_several, True, None),
    "fft_fft2": partial(_several, False, (-2, -1)),
    "fft_ifft2": partial(_several, True, (-2, -1)),
    "fft_rfft": partial(_along, half=True),
    "fft_irfft": _to_real,
}
"""Rules by the operator's name, as those of `_RULES`; arguments after the first are as the operator's."""
