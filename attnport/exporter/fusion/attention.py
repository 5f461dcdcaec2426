"""What recognition returns: an attention found in a graph, or the place and the reason where it was not."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from attnport.exporter.fusion.layout import Layout, Located
from attnport.exporter.fusion.mask import Mask
from attnport.masks.spec import MaskSpec

if TYPE_CHECKING:
    import onnx_ir as ir


@dataclass(frozen=True)
class Multiplier:
    """A tensor, the same for every key, that the scores are multiplied with (`divides`: divided by)."""

    at: Located
    divides: bool = False


@dataclass(frozen=True)
class Recognised:
    """softmax(softcap(scale q k^T) + mask) v, found in a graph, its tensors as they lie there.

    Attributes:
        name: Of the attention counted at export that it is.
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
    """An attention on its way into a lowered form: every tensor of rank 4, whatever rank the graph had.

    Attributes:
        name: Of the attention counted at export that it is.
        last: New nodes go before this one.
        bring: Gives a tensor that lies as the scores do in the graph as `[B|1,H|1,S|1,T|1]`.
        q: `[B,H,S,D]`.
        k: `[B,G,T,D]`; None when the graph only has it transposed, in `k_transposed`.
        k_transposed: `[B,G,D,T]`; None when the graph only has `k`.
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
        """Query heads H and key/value heads G; None where the graph does not fix them."""
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
    """Raised inside a rule with the reason why a node is no attention that can be lowered.

    Attributes:
        change: What the author of the module could change; "" where there is nothing, as in what is no attention.
    """

    def __init__(self, reason: str, change: str = "") -> None:
        super().__init__(reason)
        self.change = change


@dataclass(frozen=True)
class Context:
    """What a rule may know beside the graph.

    Attributes:
        masks: The mask contracts of the graph's inputs.
    """

    masks: Collection[MaskSpec] = ()
