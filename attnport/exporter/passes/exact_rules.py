"""Makes onnxscript's rewrite rules exact, and their time proportional to the number of nodes."""

from __future__ import annotations

import itertools
import math
import types
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from attnport.patches import Patch

if TYPE_CHECKING:
    import onnx_ir as ir

_MOST = 100


def exact_rules() -> tuple[Patch, ...]:
    """Patches with which a rule of onnxscript matches a constant only if both are the same float32 number.

    By default, 1e-8 matches 0 and 1.00001 matches 1: `x + 1e-8` becomes `x`, so that a normalisation with that epsilon
    divides zeros by zero, and `x * 1.00001` becomes `x`.

    A rule with several last nodes (two Slices that are a Split) is tried on those that read the same value alone. By
    default, all nodes of the graph are looked at again for each node: 20,000 of them take a quarter of an hour.
    """
    from onnxscript.rewriter import _matcher

    def isclose(value: float, of_rule: float, *, rel_tol: float, abs_tol: float) -> bool:
        return math.isclose(value, of_rule, rel_tol=min(rel_tol, 1e-7), abs_tol=0.0)

    anywhere = _matcher.SimplePatternMatcher.match

    def match(matcher: Any, model: ir.Model, graph: Any, node: ir.Node, **options: Any) -> Any:
        near: Any = graph if matcher.pattern.has_single_output_node else _Near(graph, node)
        return anywhere(matcher, model, near, node, **options)

    return (
        Patch(_matcher, "math", types.SimpleNamespace(isclose=isclose)),
        Patch(_matcher.SimplePatternMatcher, "match", match),
    )


class _Near:
    """The nodes of a graph that read the first value which `node` reads: the first `_MOST` of them."""

    def __init__(self, graph: ir.Graph | ir.Function, node: ir.Node) -> None:
        self.graph = getattr(graph, "graph", graph)
        self._node = node

    def __iter__(self) -> Iterator[ir.Node]:
        read = self._node.inputs[0] if self._node.inputs else None
        uses = itertools.islice(read.uses() if read is not None else (), _MOST)
        return (node for node, _ in uses if node.graph is self._node.graph)
