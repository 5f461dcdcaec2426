"""What recognition returns: an attention of a graph, or the place that was not recognised and the reason."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from attnport.exporter.fusion.layout import Layout, Located
from attnport.exporter.fusion.mask import Mask
from attnport.masks import MaskSpec
from attnport.onnx_graph import dims_of

if TYPE_CHECKING:
    import onnx_ir as ir


@dataclass(frozen=True)
class Multiplier:
    """A tensor, the same for every key, that the scores are multiplied with (`divides`: divided by)."""

    at: Located
    divides: bool = False


@dataclass(frozen=True)
class Recognised:
    """softmax(softcap(scale q k^T) + mask) v in a graph, with its tensors in the layout that they have there.

    Attributes:
        name: The name under which the attention was counted at export.
        node: The softmax or the attention operator.
        last: The node that computes `output`; new nodes go before it.
        layout: Which leading axes are batch and which are heads.
        q: Queries, over the leading axes, `i` and `d`.
        k: Keys, over the leading axes, `j` and `d`, in any order.
        v: Values, over the leading axes, `j` and `d`.
        scale: What q k^T is multiplied with.
        mask: What hides keys and what is added to the scores.
        output: What a lowered form replaces; its index over the leading axes, `i` and `d`.
        softcap: c in `c tanh(s / c)`, which the scaled scores pass through before the mask; 0 = none.
        sink: The score of one more key that has no value, over the leading axes; None = none.
        factors: Tensors that q is multiplied with, over the leading axes and `i`.
    """

    name: str
    node: ir.Node
    last: ir.Node
    layout: Layout
    q: Located
    k: Located
    v: Located
    scale: float
    mask: Mask
    output: Located
    softcap: float = 0.0
    sink: Located | None = None
    factors: tuple[Multiplier, ...] = ()


@dataclass(frozen=True)
class Attention:
    """An attention to be lowered: every tensor has rank 4, whatever rank it had in the graph.

    Attributes:
        name: The name under which the attention was counted at export.
        last: New nodes go before this one.
        bring: Brings a tensor with the layout of the graph's scores to `[B|1,H|1,S|1,T|1]`.
        q: `[B,H,S,D]`.
        k: `[B,G,T,D]`; None if the graph only has it transposed, in `k_transposed`.
        k_transposed: `[B,G,D,T]`; None if the graph only has `k`.
        v: `[B,G,T,Dv]`.
        scale: What q k^T is multiplied with.
        mask: What hides keys and what is added to the scores, over the axes b, h, i, j.
        softcap: c in `c tanh(s / c)`, which the scaled scores pass through before the mask; 0 = none.
        sink: The score of one more key that has no value and that no mask hides, `[1|B,H,1|S,1]`; None = none.
    """

    name: str
    last: ir.Node
    bring: Callable[[Located], ir.Value]
    q: ir.Value
    k: ir.Value | None
    k_transposed: ir.Value | None
    v: ir.Value
    scale: float
    mask: Mask
    softcap: float = 0.0
    sink: ir.Value | None = None

    def head_counts(self) -> tuple[int | None, int | None]:
        """Query heads H and key/value heads G; None for a count that the graph does not fix."""
        heads = []
        for value in (self.q, self.v):
            dim = value.shape[1] if value.shape is not None else None
            heads.append(dim if isinstance(dim, int) else None)
        return heads[0], heads[1]


@dataclass(frozen=True)
class Miss:
    """A softmax or attention operator that was not recognised, and why.

    Attributes:
        node: The place in the graph.
        change: What the author of the module could change.
    """

    node: str
    module: str
    reason: str
    change: str = ""


class NotRecognised(Exception):
    """Raised inside a rule with the reason why a node is not an attention that can be lowered.

    Attributes:
        change: What the author of the module could change; "" if there is nothing to change.
    """

    def __init__(self, reason: str, change: str = "") -> None:
        super().__init__(reason)
        self.change = change


@dataclass(frozen=True)
class Context:
    """What a rule knows in addition to the graph.

    Attributes:
        masks: The mask contracts of the graph's inputs.
    """

    masks: Collection[MaskSpec] = ()


def cost_of_weights(graph: ir.Graph, attention: Recognised, sizes: Mapping[str, int]) -> str:
    """A sentence with the cost of attention weights that are used elsewhere; "" if there are none.

    No fused kernel returns them, so that scores and softmax are computed a second time.

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
