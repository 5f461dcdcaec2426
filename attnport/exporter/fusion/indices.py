"""Indices of elements, and which of the leading axes of an attention's tensors count batch items and which heads.

`Join(a, b, n)` is `a n + b` with `b` below `n`: the index of two axes merged into one, the second of size n. `FloorDiv`
and `FloorMod` split it again. Merging and splitting by the same size cancel out.

Attention is written over tensors of many ranks: `[S,D]`, `[B,S,D]` for one head, `[B H,S,D]` with both merged,
`[B,H,S,D]`, `[B,G,R,S,D]` for grouped heads, `[B,W,H,S,D]` for windows. Each leading axis has an index variable (`l0`,
`l1`, ...). The canonical axes `b` and `h`, over which masks are read, are made of these. q, k and v are found in the
form that a lowering needs: rank 4, and each key/value head once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from attnport.exporter.fusion.formula import ZERO, Axis, Const, Expr, Op, Size, axes_of, op
from attnport.onnx_graph import constant_of, dims_of, ir, known_size, perm_of

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


# --- operators that only move elements: from the index in their output to that in their input ----------------------


Source = tuple["ir.Value", Index]


def source_of(node: ir.Node, index: Index) -> Source | None:
    """The input, and the index in it, of the element at `index` of a node's output; None for other operators.

    Sizes may differ: a slice that starts at 0 moves nothing.
    """
    rule = _MOVES.get(node.op_type) if node.domain == "" else None
    source = node.inputs[0] if node.inputs else None
    if rule is None or source is None:
        return None
    moved = rule(node, index)
    return None if moved is None else (source, moved)


def relaid(value: ir.Value, index: Index) -> Source | None:
    """As `source_of` for the value's producer, if that keeps every element at least once (a slice does not)."""
    node = value.producer()
    return source_of(node, index) if node is not None and node.op_type in LAYOUT else None


LAYOUT = frozenset({"Identity", "Expand", "Tile", "Unsqueeze", "Squeeze", "Reshape", "Flatten", "Transpose"})


def broadcast_index(value: ir.Value, index: Index) -> Index | None:
    """The index of the element of `value` that is used if it is broadcast to a tensor indexed by `index`."""
    dims = dims_of(value)
    if dims is None or None in dims or len(dims) > len(index):  # an unknown size may be 1, and then the index is zero
        return None
    aligned = index[len(index) - len(dims) :]
    return tuple(ZERO if dim == 1 else at for dim, at in zip(dims, aligned, strict=True))


def _expand(node: ir.Node, index: Index) -> Index | None:
    assert node.inputs[0] is not None
    return broadcast_index(node.inputs[0], index)


def _tile(node: ir.Node, index: Index) -> Index | None:
    dims, repeats = dims_of(node.inputs[0]), constant_of(node.inputs[1])
    after = dims_of(node.outputs[0])
    if dims is None or None in dims:
        return None
    moved: list[Expr] = []
    for axis, (dim, at) in enumerate(zip(dims, index, strict=True)):
        same = (repeats is not None and repeats.reshape(-1)[axis] == 1) or (after is not None and after[axis] == dim)
        assert dim is not None
        moved.append(ZERO if dim == 1 else at if same else split(at, size_of(dim))[1])
    return tuple(moved)


def _unsqueeze(node: ir.Node, index: Index) -> Index | None:
    axes = constant_of(node.inputs[1])
    if axes is None:
        return None
    removed = {int(axis) % len(index) for axis in axes.reshape(-1)}
    return tuple(at for axis, at in enumerate(index) if axis not in removed)


def _squeeze(node: ir.Node, index: Index) -> Index | None:
    dims = dims_of(node.inputs[0])
    if dims is None:
        return None
    axes = constant_of(node.inputs[1]) if len(node.inputs) > 1 else None
    gone = (
        {int(axis) % len(dims) for axis in axes.reshape(-1)}
        if axes is not None
        else {axis for axis, dim in enumerate(dims) if dim == 1}
    )
    if len(dims) - len(gone) != len(index):
        return None
    rest = iter(index)
    return tuple(ZERO if axis in gone else next(rest) for axis in range(len(dims)))


def _reshape(node: ir.Node, index: Index) -> Index | None:
    before, after = dims_of(node.inputs[0]), dims_of(node.outputs[0])
    return None if before is None or after is None else reshaped(index, after, before)


def _transpose(node: ir.Node, index: Index) -> Index:
    moved: list[Expr] = [ZERO] * len(index)
    for axis, source in enumerate(perm_of(node, len(index))):
        moved[source] = index[axis]
    return tuple(moved)


def _slice(node: ir.Node, index: Index) -> Index | None:
    starts = constant_of(node.inputs[1])
    inputs = [*node.inputs, None, None]
    axes, steps = constant_of(inputs[3]), constant_of(inputs[4])
    if any(value is not None and array is None for value, array in ((inputs[3], axes), (inputs[4], steps))):
        return None
    if starts is None or (steps is not None and (steps < 1).any()):
        return None
    moved, dims = list(index), dims_of(node.inputs[0])
    for at, start in enumerate(starts.reshape(-1)):
        axis = int(axes.reshape(-1)[at]) % len(index) if axes is not None else at
        step = int(steps.reshape(-1)[at]) if steps is not None else 1
        if start < 0:  # counted from the end
            size = dims[axis] if dims is not None else None
            if not isinstance(size, int):
                return None
            start = max(start + size, 0)
        moved[axis] = op("Add", op("Mul", moved[axis], Const(step)), Const(int(start)))
    return tuple(moved)


_MOVES: dict[str, Callable[[Any, Index], Index | None]] = {
    "Expand": _expand,
    "Flatten": _reshape,
    "Identity": lambda node, index: index,
    "Reshape": _reshape,
    "Slice": _slice,
    "Squeeze": _squeeze,
    "Tile": _tile,
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
}


ROW, KEY, DEPTH = Axis("i"), Axis("j"), Axis("d")
"""Index variables of queries, keys and the head dim."""


@dataclass(frozen=True)
class Located:
    """A graph value and, for each of its axes, the index variable (or zero) at which an attention reads it."""

    value: ir.Value
    index: Index


@dataclass(frozen=True)
class Lead:
    """One leading axis: its index variable, and its size or the name of its size."""

    axis: Axis
    dim: int | str | None


@dataclass(frozen=True)
class Layout:
    """The leading axes of an attention.

    Attributes:
        batch: The axes that count batch items, slowest first; empty for an attention without a batch.
        heads: The axes that count heads, slowest first; empty for one head.
        raw: The index of the product with v, over its own leading axes.
    """

    batch: tuple[Lead, ...]
    heads: tuple[Lead, ...]
    raw: Index

    @property
    def batch_index(self) -> Expr:
        """The index of a batch item, all batch axes merged."""
        return _merged(self.batch)

    @property
    def head_index(self) -> Expr:
        """The index of a head, all head axes merged."""
        return _merged(self.heads)

    @property
    def head_count(self) -> int | str | None:
        """The number of heads, or the name of that size; None if it is not known."""
        count = 1
        for lead in self.heads:
            if not isinstance(lead.dim, int):
                return lead.dim if len(self.heads) == 1 else None
            count *= lead.dim
        return count

    def split(self, axis: Axis, size: Expr) -> Layout | None:
        """The layout with one leading axis replaced by the two axes that were merged into it, the second of `size`."""
        number = getattr(size, "value", None) or getattr(size, "dim", None)
        high, low = Lead(Axis(f"{axis.name}a"), None), Lead(Axis(f"{axis.name}b"), number)

        def parts(leads: tuple[Lead, ...]) -> tuple[Lead, ...]:
            apart = ((high, low) if lead.axis == axis else (lead,) for lead in leads)
            return tuple(part for axes in apart for part in axes)

        meaning: dict[Axis, Expr] = {axis: join(high.axis, low.axis, size)}
        raw = tuple(_replaced(at, meaning) for at in self.raw)
        return Layout(parts(self.batch), parts(self.heads), raw) if number else None

    def canonical(self, index: Index) -> Index:
        """An index over the leading axes, as one over `b` and `h`."""
        meaning: dict[Axis, Expr] = {}
        for name, leads in (("b", self.batch), ("h", self.heads)):
            rest: Expr = Axis(name)
            for lead in reversed(leads[1:]):
                rest, meaning[lead.axis] = split(rest, size_of(lead.dim))
            if leads:
                meaning[leads[0].axis] = rest
        return tuple(_replaced(at, meaning) for at in index)


def _merged(leads: tuple[Lead, ...]) -> Expr:
    total: Expr = leads[0].axis if leads else ZERO
    for lead in leads[1:]:
        total = join(total, lead.axis, size_of(lead.dim))
    return total


def _replaced(at: Expr, meaning: dict[Axis, Expr]) -> Expr:
    if isinstance(at, Axis):
        return meaning.get(at, at)
    if isinstance(at, Op) and at.name == "Join":
        return join(_replaced(at.args[0], meaning), _replaced(at.args[1], meaning), at.args[2])
    if isinstance(at, Op) and at.name in ("FloorDiv", "FloorMod"):
        quotient, remainder = split(_replaced(at.args[0], meaning), at.args[1])
        return quotient if at.name == "FloorDiv" else remainder
    return at


def layout_of(output: ir.Value, v: ir.Value) -> Layout | None:
    """The layout of an attention, from the output of its product with v; None if a leading size is not known."""
    dims = dims_of(output)
    if dims is None or len(dims) < 2 or None in dims[:-2]:
        return None
    leads = tuple(Lead(Axis(f"l{at}"), dim) for at, dim in enumerate(dims[:-2]))
    raw: Index = tuple(lead.axis for lead in leads)
    if len(leads) == 1:
        heads = _merged_heads(v)
        if heads is not None:
            batch, head = Lead(Axis("l0"), None), Lead(Axis("l1"), heads)
            return Layout((batch,), (head,), (join(batch.axis, head.axis, size_of(heads)),))
        return Layout(leads, (), raw)
    if len(leads) > 2:
        repeated = _repeats_over(v, leads)
        if repeated is not None:
            grouped = tuple(lead for lead in leads[-2:] if lead is not repeated)
            return Layout(leads[:-2], (*grouped, repeated), raw)
    return Layout(leads[:-1], leads[-1:], raw)


def _merged_heads(v: ir.Value) -> int | str | None:
    """The number of heads, if the one leading axis of v was merged from a batch axis and a head axis."""
    if dims_of(v) is None or len(dims_of(v) or ()) != 3:
        return None
    at: tuple[ir.Value, Index] | None = (v, (Axis("l0"), KEY, DEPTH))
    while at is not None:
        for entry in at[1]:
            heads = _modulus(entry)
            if heads is not None:
                return heads
        at = relaid(*at)
    return None


def _modulus(entry: Expr) -> int | str | None:
    """The n of `l0 mod n`, anywhere in an index entry."""
    if not isinstance(entry, Op):
        return None
    if entry.name == "FloorMod" and entry.args[0] == Axis("l0"):
        size = entry.args[1]
        return getattr(size, "value", None) or getattr(size, "dim", None)
    return next((modulus for modulus in map(_modulus, entry.args) if modulus is not None), None)


def _repeats_over(v: ir.Value, leads: tuple[Lead, ...]) -> Lead | None:
    """The axis, among the last two leading ones, over which v is constant, as with grouped key/value heads."""
    dims = dims_of(v)
    if dims is None or len(dims) < 3:
        return None
    index: Index = (*(lead.axis for lead in leads), KEY, DEPTH)[-len(dims) :]
    at: tuple[ir.Value, Index] | None = (
        v,
        tuple(ZERO if dim == 1 else entry for dim, entry in zip(dims, index, strict=True)),
    )
    last = at
    while at is not None:
        last, at = at, relaid(*at)
    assert last is not None
    unused = [
        lead for lead in leads[-2:] if lead.dim != 1 and not any(lead.axis.name in axes_of(entry) for entry in last[1])
    ]
    return unused[0] if len(unused) == 1 else None


# --- q, k and v ----------------------------------------------------------------------------------------------------


def query(layout: Layout, located: Located) -> Located:
    """q as `[B,H,S,D]` if the graph has it in this form, else as it is."""
    return next((at for at in sources(located) if is_canonical(layout, at) and _heads_of(layout, at) != "few"), located)


def key_and_value(layout: Layout, k: Located, v: Located) -> tuple[Located, Located]:
    """k and v with equal head counts, without the repeats of grouped heads if possible."""
    operands = []
    for operand in (k, v):
        seen = list(sources(operand))
        full = next((at for at in seen if is_canonical(layout, at) and _heads_of(layout, at) == "all"), operand)
        few = next((at for at in seen if is_canonical(layout, at) and _heads_of(layout, at) == "few"), None)
        operands.append((full, few))
    (k_full, k_few), (v_full, v_few) = operands
    if k_few is not None and v_few is not None and known_size(k_few.value, 1) == known_size(v_few.value, 1):
        return k_few, v_few
    return k_full, v_full


def sources(located: Located) -> list[Located]:
    """The value itself, then the values before it that hold the same elements in another layout, nearest first."""
    result = [located]
    at = relaid(located.value, located.index)
    while at is not None:
        result.append(Located(*at))
        at = relaid(*at)
    return result


def is_canonical(layout: Layout, at: Located) -> bool:
    """Whether a value is `[B,H|G,.,.]`: batch and heads in one axis each, at full batch size."""
    dims = dims_of(at.value)
    if dims is None or len(dims) != 4 or len(at.index) != 4:
        return False
    batch_fits = at.index[0] == layout.batch_index and (at.index[0] != ZERO or dims[0] == 1)
    return batch_fits and _heads_of(layout, at) is not None and all(isinstance(entry, Axis) for entry in at.index[2:])


def _heads_of(layout: Layout, at: Located) -> str | None:
    """`all` if the second axis counts heads, `few` if it counts groups of heads, else None."""
    dims = dims_of(at.value) or []
    entry: Expr = at.index[1] if len(at.index) == 4 else ZERO
    if entry == layout.head_index and (entry != ZERO or dims[1] == 1):
        return "all"
    if not layout.heads:
        return None
    if entry == ZERO and dims[1] == 1:
        return "few"
    heads = layout.head_count
    if isinstance(heads, int) and isinstance(dims[1], int) and dims[1] and heads % dims[1] == 0:
        return "few" if entry == split(layout.head_index, Const(heads // dims[1]))[0] else None
    return None


def bringable(layout: Layout, at: Located, *last: Axis) -> bool:
    """Whether `forms.canonical` can bring a value to `[B,H,.,.]`: its axes are the attention's, merged or moved."""
    if is_canonical(layout, at) and set(at.index[2:]) == set(last):
        return True
    dims = dims_of(at.value)
    wanted = [lead.axis for lead in (*layout.batch, *layout.heads)] + list(last)
    parts = components(at.index)
    return (
        dims is not None
        and len(dims) == len(at.index)
        and parts is not None
        and len(set(parts)) == len(parts)
        and set(parts) <= set(wanted)
    )


def depth_first(at: Located) -> bool:
    """Whether a key tensor is transposed: the head dim before the keys."""
    order: list[Expr] = [entry for entry in at.index if entry in (KEY, DEPTH)]
    return order == [DEPTH, KEY]


def at_product(value: ir.Value | None, leads: Index, *last: Expr) -> Located | None:
    """An operand of a matrix product, indexed by the leading axes of the product and `last`."""
    dims = dims_of(value)
    if value is None or dims is None or len(dims) < 2 or len(dims) > len(leads) + 2 or None in dims[:-2]:
        return None
    index = (*leads, *last)[len(leads) + 2 - len(dims) :]
    lead_count = len(dims) - 2
    own_index = tuple(
        ZERO if at < lead_count and dim == 1 else entry for at, (dim, entry) in enumerate(zip(dims, index, strict=True))
    )
    return Located(value, own_index)
