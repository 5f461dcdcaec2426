"""What recognition returns: an attention found in a graph, or the place and the reason where it was not."""

from __future__ import annotations

import ast
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from attnport.exporter.capture import SCOPES
from attnport.exporter.fusion.mask import Mask

if TYPE_CHECKING:
    import onnx_ir as ir


@dataclass(frozen=True)
class Attention:
    """softmax(scale q k^T + mask) v, found in a graph.

    Attributes:
        name: Of the attention counted at export that it is.
        node: The softmax or the attention operator; new nodes go before `last`.
        last: The node that computes `output`.
        q: `[B,H,S,D]`, or `[B,S,D]` for one head.
        k: `[B,G,T,D]` or `[B,T,D]`; None when the graph only has it transposed, in `k_transposed`.
        k_transposed: `[B,G,D,T]` or `[B,D,T]`; None when the graph only has `k`.
        v: `[B,G,T,D]` or `[B,T,D]`.
        scale: What q k^T is multiplied with.
        output: The value that a lowered form replaces, shaped as `q` with v's last dim.
    """

    name: str
    node: ir.Node
    last: ir.Node
    q: ir.Value
    k: ir.Value | None
    k_transposed: ir.Value | None
    v: ir.Value
    scale: float
    mask: Mask
    output: ir.Value

    @property
    def rank(self) -> int:
        """3 or 4."""
        assert self.q.shape is not None
        return len(self.q.shape)

    def head_counts(self) -> tuple[int | None, int | None]:
        """Query heads H and key/value heads G; None where the graph does not fix them."""
        if self.rank == 3:
            return 1, 1
        heads = []
        for value in (self.q, self.v):
            dim = value.shape[1] if value.shape is not None else None
            heads.append(dim if isinstance(dim, int) else None)
        return heads[0], heads[1]


@dataclass(frozen=True)
class Miss:
    """A softmax or attention operator that was not recognised, and why; `node` names the place in the graph."""

    node: str
    module: str
    reason: str


class NotRecognised(Exception):
    """Raised inside a rule with the reason why a node is no attention that can be lowered."""


@dataclass(frozen=True)
class Context:
    """What a rule may know beside the graph: the inputs whose MaskSpec declares that 1 keeps."""

    keep_inputs: Collection[str] = ()


def module_of(node: ir.Node) -> str | None:
    """The module path that the exporter left on a node; None where it left none."""
    scopes = node.metadata_props.get(SCOPES)
    if not scopes:
        return None
    try:
        path = ast.literal_eval(scopes)
    except (ValueError, SyntaxError):
        return None
    return str(path[-2]) if isinstance(path, list) and len(path) > 1 else ""
