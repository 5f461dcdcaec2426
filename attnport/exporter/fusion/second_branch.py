"""The cost of attention weights that are used elsewhere: no fused kernel returns them, so they are computed again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from attnport.exporter.fusion.attention import Recognised
from attnport.exporter.fusion.moves import dims_of

if TYPE_CHECKING:
    import onnx_ir as ir


def cost(graph: ir.Graph, attention: Recognised, sizes: Mapping[str, int]) -> str:
    """A sentence with the cost of computing scores and softmax a second time; "" if they are not computed again.

    Args:
        graph: After lowering, without unused nodes.
        attention: An attention that was lowered.
        sizes: The usual size of each named dim; if one is missing, only the formula is given.
    """
    if attention.node.graph is not graph or attention.node.op_type != "Softmax":
        return ""
    scores, q = dims_of(attention.node.outputs[0]), dims_of(attention.q.value)
    elements, depth = _product(scores, sizes), _product(q[-1:] if q else None, sizes)
    text = "the weights are used elsewhere: q k^T and the softmax are computed a second time for them"
    if elements is None or depth is None:
        return f"{text}, 2 B H S T D operations and B H S T numbers in memory"
    return f"{text}, {2 * elements * depth / 1e6:.3g} MFLOP and {4 * elements / 1e6:.3g} MB in float32 at usual sizes"


def _product(dims: list[int | str | None] | None, sizes: Mapping[str, int]) -> int | None:
    total = 1
    for dim in dims if dims is not None else [None]:
        known = dim if isinstance(dim, int) else sizes.get(dim or "")
        if known is None:
            return None
        total *= known
    return total
