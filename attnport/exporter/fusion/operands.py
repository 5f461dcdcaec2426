"""Finds q, k and v of an attention in the form that a lowering needs: rank 4, and each key/value head once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnport.exporter.fusion.formula import ZERO, Axis, Const, Expr
from attnport.exporter.fusion.indices import Index, components, split
from attnport.exporter.fusion.layout import DEPTH, KEY, Layout, Located
from attnport.exporter.fusion.moves import dims_of, relaid

if TYPE_CHECKING:
    import onnx_ir as ir


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
    if k_few is not None and v_few is not None and _head_dim(k_few) == _head_dim(v_few):
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


def _head_dim(at: Located) -> int | str | None:
    dims = dims_of(at.value)
    return dims[1] if dims else None


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
