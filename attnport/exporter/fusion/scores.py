"""Walks from a softmax back to the product of q and k, and reads the steps between as algebra."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from attnport.exporter.fusion.attention import Multiplier, NotRecognised
from attnport.exporter.fusion.formula import ZERO, Const, Expr, axes_of, op
from attnport.exporter.fusion.indices import LAYOUT, Index, broadcast_index, relaid
from attnport.exporter.fusion.layout import KEY, Located
from attnport.exporter.fusion.mask import LARGE_NEGATIVE, MaskReader
from attnport.onnx_graph import attribute, constant_of, dims_of, reduced, scalar

if TYPE_CHECKING:
    import onnx_ir as ir

_STEPS = {"Add", "Sub", "Mul", "Div", "Where", "Cast", "Identity", "Tanh", "Max", "Clip", "Concat", "Pad"}
_FAR = 48


@dataclass
class Scores:
    """The steps between q k^T and a softmax.

    Attributes:
        product: The product of q and k.
        index: Of its element, over the attention's leading axes, queries and keys.
        scale: The number that the product is multiplied with.
        softcap: c in `c tanh(s / c)`; 0 = none.
        sink: The score of one more key that has no value.
        factors: Tensors that the product is multiplied with, the same for every key.
    """

    product: ir.Node
    index: Index
    scale: float = 1.0
    softcap: float = 0.0
    sink: Located | None = None
    factors: list[Multiplier] = field(default_factory=list)


def read_scores(softmax: ir.Node, index: Index, reader: MaskReader) -> Scores:
    """Reads the scores that enter a softmax; masks and biases go to `reader`.

    Args:
        index: Of the softmax's element, over the attention's leading axes, queries and keys.

    Raises:
        NotRecognised: a step is not that of an attention; the message names it.
    """
    value = softmax.inputs[0]
    assert value is not None
    walk = _Walk(reader)
    for _ in range(_FAR):
        node = value.producer()
        if node is None or node.domain != "":
            raise NotRecognised("the scores do not come from a product of q and k")
        if node.op_type == "MatMul":
            if _is_weight(node.inputs[1]):
                raise NotRecognised("the scores are a product with a constant, as of a linear layer, not of q and k")
            return walk.done(node, index)
        moved = relaid(value, index)
        if moved is not None and node.op_type != "Expand":
            value, index = moved
            continue
        if node.op_type not in _STEPS:
            raise NotRecognised(f"the scores pass through {node.op_type}, which no fused kernel computes")
        if node.op_type in ("Concat", "Pad"):
            value, index = walk.take_sink(node, index)
        else:
            value = walk.step(node, index)
    raise NotRecognised("the product of q and k is too far from the softmax")


class _Walk:
    def __init__(self, reader: MaskReader) -> None:
        self.reader = reader
        self.scale = 1.0
        self.outer = 0.0
        self.sink: Located | None = None
        self.sink_first = False
        self.factors: list[Multiplier] = []
        self.below_tanh = False

    def done(self, product: ir.Node, index: Index) -> Scores:
        scale, softcap = self.scale, 0.0
        if self.below_tanh:
            scale, softcap = self.scale * self.outer, self.outer
        return Scores(product, index, scale, softcap, self.sink, self.factors)

    def step(self, node: ir.Node, index: Index) -> ir.Value:
        """Reads one operator; returns its input on the way to q k^T."""
        first = node.inputs[0]
        assert first is not None
        if node.op_type in ("Cast", "Identity"):
            if node.outputs[0].dtype is not None and not node.outputs[0].dtype.is_floating_point():
                raise NotRecognised(f"the scores are cast to {node.outputs[0].dtype.name.lower()}")
            return first
        if node.op_type == "Tanh":
            return self._tanh(first)
        if node.op_type in ("Max", "Clip"):
            return _clamped(node)
        second = node.inputs[1]
        assert second is not None
        if node.op_type in ("Mul", "Div"):
            return self._multiply(node.op_type, first, second, index)
        if node.op_type in ("Add", "Sub"):
            return self._add(node.op_type, first, second, index)
        return self._where(node, index)

    def _tanh(self, first: ir.Value) -> ir.Value:
        if self.below_tanh or self.scale <= 0 or self.factors:
            raise NotRecognised("the scores pass through Tanh, but not as a soft-cap", "write c * tanh(scores / c)")
        self.below_tanh, self.outer, self.scale = True, self.scale, 1.0
        return first

    def _multiply(self, operator: str, first: ir.Value, second: ir.Value, index: Index) -> ir.Value:
        for on, by in ((first, scalar(second)), (second, scalar(first) if operator == "Mul" else None)):
            if by == 0:
                raise NotRecognised(f"the scores are combined with zero by {operator}")
            if by is not None:
                self.scale *= float(by) if operator == "Mul" else 1.0 / float(by)
                return on
        on, term = (first, second) if leads_to_product(first) else (second, first)
        if not leads_to_product(on) or (operator == "Div" and on is second):
            raise NotRecognised(f"the scores are combined with a tensor by {operator}")
        located = self._located(term, index)
        formula = self.reader.element(located)
        if operator == "Mul" and self.reader.keeps(located):
            return on  # `s m - 1e9 (1 - m)`: a key for which the mask m is zero is hidden anyway
        if "j" in axes_of(formula) or self.below_tanh:
            raise NotRecognised(f"the scores are combined with a tensor by {operator}")
        self.factors.append(Multiplier(located, divides=operator == "Div"))
        return on

    def _add(self, operator: str, first: ir.Value, second: ir.Value, index: Index) -> ir.Value:
        if operator == "Sub" and reduced(second, "ReduceMax") is first:
            return first  # a softmax does not change if the same number is subtracted from all its scores
        on, term = (first, second) if leads_to_product(first) else (second, first)
        if not leads_to_product(on) or (operator == "Sub" and on is second):
            linear = "; they come from a linear layer" if _is_weight(first) or _is_weight(second) else ""
            raise NotRecognised(f"neither side of an addition to the scores is a product of q and k{linear}")
        if self.below_tanh:
            raise NotRecognised("a term is added to the scores before their soft-cap", "add it after the cap")
        if self.factors:
            raise NotRecognised(
                "a term is added to the scores before they are multiplied with a tensor", "multiply q with the tensor"
            )
        self.reader.add(self._located(term, index), self.scale if operator == "Add" else -self.scale)
        return on

    def _where(self, node: ir.Node, index: Index) -> ir.Value:
        condition, second, third = node.inputs
        assert condition is not None
        assert second is not None
        assert third is not None
        for hides, fill, rest in ((True, second, third), (False, third, second)):
            constant = self.reader.element(self._located(fill, index)) if not leads_to_product(fill) else None
            if isinstance(constant, Const):
                low = constant.value * self.scale
                if self.below_tanh:
                    raise NotRecognised("scores are masked before their soft-cap", "mask after the cap")
                if not low <= LARGE_NEGATIVE:
                    raise NotRecognised(
                        f"masked scores are set to {low:g}, which hides nothing ({LARGE_NEGATIVE:g} or less does)",
                        "fill with -inf",
                    )
                if self.factors and low != -math.inf:
                    raise NotRecognised("the masked scores are multiplied with a tensor", "mask after the product")
                self.reader.where(self._located(condition, index), low, hides=hides)
                return rest
        raise NotRecognised("the scores are chosen from two tensors")

    def take_sink(self, node: ir.Node, index: Index) -> tuple[ir.Value, Index]:
        """Reads `[scores, sink]` or `[sink, scores]`; the probability of the sink has to be dropped later."""
        if self.sink is not None:
            raise NotRecognised("the scores are concatenated with more than one key")
        if self.scale != 1.0 or self.factors or self.below_tanh or self.reader.factors or self.reader.biases:
            raise NotRecognised(
                "the scores are scaled or masked together with a sink", "scale and mask before the sink is joined"
            )
        on, axis, sink, first = _padded(node) if node.op_type == "Pad" else _concatenated(node, len(index))
        wanted: Expr = op("Add", KEY, Const(1)) if first else KEY
        if index[axis] != wanted or not leads_to_product(on):
            raise NotRecognised("the scores are concatenated, but not with one more key at an end of the row")
        rank = len(sink.shape or ())
        self.sink = Located(sink, tuple(
            ZERO if dim == 1 else at for dim, at in zip(sink.shape or (), index[len(index) - rank :], strict=True)
        ))  # fmt: skip
        self.sink_first = first
        return on, tuple(KEY if position == axis else at for position, at in enumerate(index))

    def _located(self, term: ir.Value, index: Index) -> Located:
        broadcast = broadcast_index(term, index)
        if broadcast is None:
            raise NotRecognised(f"the sizes of {term.name}, which is combined with the scores, are not known")
        return Located(term, broadcast)


def _concatenated(node: ir.Node, rank: int) -> tuple[ir.Value, int, ir.Value, bool]:
    """The scores, the axis, the sink, and whether the sink is first."""
    axis = attribute(node, "axis", 0) % rank
    for at in (0, 1) if len(node.inputs) == 2 else ():
        on, sink = node.inputs[at], node.inputs[1 - at]
        dims = dims_of(sink)
        if on is not None and sink is not None and leads_to_product(on) and dims is not None and dims[axis] == 1:
            return on, axis, sink, at == 1
    raise NotRecognised("the scores are concatenated, but not with one more key")


def _padded(node: ir.Node) -> tuple[ir.Value, int, ir.Value, bool]:
    """As `_concatenated`, for one more score that is a constant."""
    on = node.inputs[0]
    fill = node.inputs[2] if len(node.inputs) > 2 and node.inputs[2] is not None else _zero()
    pads, dims = constant_of(node.inputs[1]), dims_of(on)
    if on is not None and pads is not None and dims is not None and len(node.inputs) < 4:
        for first in (True, False):
            wanted = [0] * (2 * len(dims))
            wanted[len(dims) - 1 if first else -1] = 1
            if pads.reshape(-1).tolist() == wanted and scalar(fill) is not None:
                return on, len(dims) - 1, fill, first
    raise NotRecognised("the scores are padded, but not with one more key")


def _zero() -> ir.Value:
    """The default constant of `Pad`, which belongs to no graph."""
    import numpy as np
    import onnx_ir as ir

    zero = ir.Value(name="", const_value=ir.tensor(np.float32(0)))
    zero.dtype, zero.shape = ir.DataType.FLOAT, ir.Shape([])
    return zero


def _clamped(node: ir.Node) -> ir.Value:
    """`max(scores, lowest number)`, which changes no score."""
    first, *bounds = node.inputs
    dtype = node.outputs[0].dtype
    on = first
    if node.op_type == "Max" and len(bounds) == 1 and scalar(first) is not None:
        on, bounds = bounds[0], [first]
    lowest = scalar(bounds[0]) if bounds and bounds[0] is not None else None
    highest = scalar(bounds[1]) if len(bounds) > 1 and bounds[1] is not None else None
    limit = largest(dtype) if dtype is not None else math.inf
    unbounded_above = len(bounds) < 2 or bounds[1] is None or (highest is not None and highest >= limit)
    if on is None or lowest is None or lowest > -limit or not unbounded_above:
        raise NotRecognised(f"the scores are clamped by {node.op_type}")
    return on


def largest(dtype: ir.DataType) -> float:
    """The largest finite number of a float type."""
    import ml_dtypes  # NumPy's finfo does not know bfloat16

    return float(ml_dtypes.finfo(dtype.numpy()).max)  # type: ignore[no-untyped-call]  # ml_dtypes has no types here


def leads_to_product(value: ir.Value | None, depth: int = 0) -> bool:
    """Whether a value is a product of two computed tensors, which may be scaled, masked or in another layout."""
    node = value.producer() if value is not None else None
    if node is None or depth > _FAR or node.domain != "":
        return False
    if node.op_type == "MatMul":
        return not _is_weight(node.inputs[1])
    if node.op_type in _STEPS:
        return any(leads_to_product(part, depth + 1) for part in node.inputs)
    if node.op_type in ("Reshape", "Transpose", "Unsqueeze", "Squeeze", "Flatten"):
        return leads_to_product(node.inputs[0], depth + 1)
    return False


def _is_weight(value: ir.Value | None) -> bool:
    """Whether a value is a constant, also in another layout or type."""
    for _ in range(_FAR):
        node = value.producer() if value is not None else None
        if value is None or value.const_value is not None or node is None:
            return value is not None and value.const_value is not None
        if node.op_type == "Constant":
            return True
        if node.op_type not in (*LAYOUT, "Cast"):
            return False
        value = node.inputs[0]
    return False
