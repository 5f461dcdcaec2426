"""Arithmetic of indices that a reshape merges and splits; indices are never negative.

`Join(a, b, n)` is `a n + b` with `b` below `n`: the index of two axes merged into one, the second of size n. `FloorDiv`
and `FloorMod` split it again. Merging and splitting by the same size cancel out.
"""

from __future__ import annotations

from collections.abc import Sequence

from attnport.exporter.fusion.formula import ZERO, Axis, Const, Expr, Op, Size

Dims = Sequence[int | str | None]
Index = tuple[Expr, ...]


def join(high: Expr, low: Expr, size: Expr) -> Expr:
    """`high size + low`."""
    if size == Const(1):
        return high
    if isinstance(high, Const) and isinstance(low, Const) and isinstance(size, Const):
        return Const(int(high.value) * int(size.value) + int(low.value))
    if high == ZERO:
        return low
    parts = [part for part in (high, low) if isinstance(part, Op)]
    if [part.name for part in parts] == ["FloorDiv", "FloorMod"] and parts[0].args == parts[1].args == (
        parts[0].args[0],
        size,
    ):
        return parts[0].args[0]
    return Op("Join", (high, low, size))


def split(index: Expr, size: Expr) -> tuple[Expr, Expr]:
    """The quotient and the remainder of an index by a size."""
    if size == Const(1):
        return index, ZERO
    if isinstance(index, Const) and isinstance(size, Const):
        whole, rest = divmod(int(index.value), int(size.value))
        return Const(whole), Const(rest)
    if isinstance(index, Op) and index.name == "Join":
        high, low, inner = index.args
        if inner == size:
            return high, low
        if isinstance(inner, Const) and isinstance(size, Const):
            ours, theirs = int(size.value), int(inner.value)
            if theirs % ours == 0:
                quotient, remainder = split(low, size)
                return join(high, quotient, Const(theirs // ours)), remainder
            if ours % theirs == 0:
                quotient, remainder = split(high, Const(ours // theirs))
                return quotient, join(remainder, low, inner)
    return Op("FloorDiv", (index, size)), Op("FloorMod", (index, size))


def reshaped(index: Index, after: Dims, before: Dims) -> Index | None:
    """The index, in a tensor of dims `before`, of the element at `index` of the tensor reshaped to `after`.

    None if the dims do not determine how the axes are merged and split.
    """
    if len(after) != len(index) or None in after or None in before:
        return None
    new = [(dim, at) for dim, at in zip(after, index, strict=True) if dim != 1]
    old = [dim for dim in before if dim != 1]
    head: list[Expr] = []
    tail: list[Expr] = []
    while new and old and new[0][0] == old[0]:
        head.append(new.pop(0)[1])
        old.pop(0)
    while new and old:
        size = _common_tail(new, old)
        if size is None:
            break
        theirs, ours = size
        merged = _joined(new[len(new) - theirs :])
        tail[:0] = _taken_apart(merged, old[len(old) - ours :])
        del new[len(new) - theirs :], old[len(old) - ours :]
    if bool(new) != bool(old):
        return None
    if new:  # the axes that are left have the same number of elements on both sides
        tail[:0] = _taken_apart(_joined(new), old)
    rest = iter(head + tail)
    return tuple(ZERO if dim == 1 else next(rest) for dim in before)


def _common_tail(new: list[tuple[int | str | None, Expr]], old: list[int | str | None]) -> tuple[int, int] | None:
    """How many axes at the end of each have the same number of elements; None if the dims do not tell."""
    if new[-1][0] == old[-1]:
        return 1, 1
    theirs = ours = 0
    product_new = product_old = 1
    while True:
        if theirs and product_new == product_old:
            return theirs, ours
        from_new = product_new <= product_old
        at = len(new) - 1 - theirs if from_new else len(old) - 1 - ours
        dim = (new[at][0] if from_new else old[at]) if at >= 0 else None
        if not isinstance(dim, int):
            return None
        if from_new:
            product_new, theirs = product_new * dim, theirs + 1
        else:
            product_old, ours = product_old * dim, ours + 1


def _joined(axes: Sequence[tuple[int | str | None, Expr]]) -> Expr:
    total = axes[0][1]
    for dim, at in axes[1:]:
        total = join(total, at, size_of(dim))
    return total


def _taken_apart(index: Expr, dims: Sequence[int | str | None]) -> list[Expr]:
    remainders: list[Expr] = []
    for dim in reversed(dims[1:]):
        index, remainder = split(index, size_of(dim))
        remainders.insert(0, remainder)
    return [index, *remainders]


def size_of(dim: int | str | None) -> Expr:
    """A dim as a formula."""
    assert dim is not None
    return Const(dim) if isinstance(dim, int) else Size(dim)


def components(index: Index) -> tuple[Expr, ...] | None:
    """The index variables of a tensor from its slowest to its fastest, with merged axes split; None for other indices.

    Two tensors with equal components hold the same numbers in the same order: a reshape turns one into the other.
    """
    variables: list[Expr] = []
    for at in index:
        for part in _parts(at):
            last = variables[-1] if variables else None
            if isinstance(part, Op) and part.name == "FloorMod":
                if not (isinstance(last, Op) and last.name == "FloorDiv" and last.args == part.args):
                    return None
                variables[-1] = part.args[0]
            elif isinstance(part, Axis) or (isinstance(part, Op) and part.name == "FloorDiv"):
                variables.append(part)
            elif part != ZERO:
                return None
    return tuple(variables) if all(isinstance(part, Axis) for part in variables) else None


def _parts(at: Expr) -> list[Expr]:
    if isinstance(at, Op) and at.name == "Join":
        return [*_parts(at.args[0]), *_parts(at.args[1])]
    return [at]
