"""What it costs that somebody wants an attention's weights: no fused kernel gives them, so they are computed again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from attnport.exporter.fusion.attention import Recognised
from attnport.exporter.fusion.moves import dims_of

if TYPE_CHECKING:
    import onnx_ir as ir


def cost(graph: ir.Graph, found: Recognised, sizes: Mapping[str, int]) -> str:
    """Says that the scores and the softmax are computed a second time, and how much that is; "" where they are not.

    Args:
        graph: After lowering, without the nodes that nobody uses.
        found: An attention that was lowered.
        sizes: The usual size of each named dim; without them only the formula is given.
    """
    if found.node.graph is not graph or found.node.op_type != "Softmax":
        return ""
    scores, q = dims_of(found.node.outputs[0]), dims_of(found.q.value)
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
