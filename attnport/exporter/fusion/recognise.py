"""Recognises the attention around a softmax: back to the product of q and k, on to the product with v.

The steps before the softmax are read as algebra. Those behind it may change no probability of an allowed key. What is
returned is an attention of a graph, or the place that was not recognised and the reason.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import cast

from attnport.artifacts import SourceAttention
from attnport.exporter.counting import counts
from attnport.exporter.fusion.elements import element
from attnport.exporter.fusion.formula import ZERO, Const, Expr, axes_of, op
from attnport.exporter.fusion.indices import KEY, LAYOUT, Index, Layout, Located, broadcast_index, relaid, source_of
from attnport.exporter.fusion.mask import Mask, MaskReader
from attnport.exporter.naming import module_of
from attnport.masks import HIDES, MaskSpec
from attnport.onnx_graph import attribute, constant_of, dims_of, ir, made_by, node_axes, reduced, scalar
from attnport.registry import all_of


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


def cost_of_weights(graph: ir.Graph, attention: Recognised, sizes: Mapping[str, int]) -> str:
    """A sentence with the cost of attention weights that are used elsewhere; "" if there are none.

    No fused kernel returns them, so that scores and softmax are computed a second time.

    Args:
        graph: After lowering, without unused nodes.
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


_STEPS = {"Add", "Sub", "Mul", "Div", "Where", "Cast", "Identity", "Tanh", "Max", "Clip", "Concat", "Pad"}
_FAR = 48
MIXED = "the {} are multiplied by a weight {}, as where heads are mixed, which no fused kernel computes"


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
            if is_weight(node.inputs[1]):
                if leads_to_product(node.inputs[0]):
                    raise NotRecognised(MIXED.format("scores", "before the softmax"))
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
            own = broadcast_index(value, index)
            if own is not None and len(own) > 1:  # rows and keys keep their axes, also where there is one of them
                index = (*own[:-2], *index[-2:])
    raise NotRecognised("the product of q and k is too far from the softmax")


_MASKED_FIRST = "scores are made finite after they are masked, so that a row without a key is the mean of all values"


class _Walk:
    def __init__(self, reader: MaskReader) -> None:
        self.reader = reader
        self.scale = 1.0
        self.outer = 0.0
        self.sink: Located | None = None
        self.factors: list[Multiplier] = []
        self.below_tanh = False
        self.finite = False

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
            on, lowest = _clamped(node)
            self.reader.floor = max(self.reader.floor, lowest * self.scale)
            return on
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
        if operator == "Sub" and reduced(second, "ReduceMax") is first and "j" in axes_of(index[-1]):
            return first  # a softmax does not change if the same number is subtracted from all its scores
        on, term = (first, second) if leads_to_product(first) else (second, first)
        if not leads_to_product(on) or (operator == "Sub" and on is second):
            linear = "; they come from a linear layer" if is_weight(first) or is_weight(second) else ""
            raise NotRecognised(f"neither side of an addition to the scores is a product of q and k{linear}")
        if self.below_tanh:
            raise NotRecognised("a term is added to the scores before their soft-cap", "add it after the cap")
        if self.finite:
            raise NotRecognised(_MASKED_FIRST)
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
        if leads_to_product(third) and _tests_infinite(condition, leads_to_product, or_nan=True):
            self.finite = True
            return third  # `nan_to_num(q k^T)`, which changes no number
        if self.finite:
            raise NotRecognised(_MASKED_FIRST)
        for hides, fill, rest in ((True, second, third), (False, third, second)):
            constant = self.reader.element(self._located(fill, index)) if not leads_to_product(fill) else None
            if isinstance(constant, Const):
                low = max(constant.value * self.scale, self.reader.floor)
                if self.below_tanh:
                    raise NotRecognised("scores are masked before their soft-cap", "mask after the cap")
                if not low <= HIDES:
                    raise NotRecognised(
                        f"masked scores are set to {low:g}, which hides nothing ({HIDES:g} or less does)",
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
    constant = attribute(node, "mode", "constant") == "constant"
    if on is not None and pads is not None and dims is not None and len(node.inputs) < 4 and constant:
        for first in (True, False):
            wanted = [0] * (2 * len(dims))
            wanted[len(dims) - 1 if first else -1] = 1
            if pads.reshape(-1).tolist() == wanted and scalar(fill) is not None:
                return on, len(dims) - 1, fill, first
    raise NotRecognised("the scores are padded, but not with one more key")


def _zero() -> ir.Value:
    """The default constant of `Pad`, which belongs to no graph."""
    import numpy as np

    zero = ir.Value(name="", const_value=ir.tensor(np.float32(0)))
    zero.dtype, zero.shape = ir.DataType.FLOAT, ir.Shape([])
    return zero


def _clamped(node: ir.Node) -> tuple[ir.Value, float]:
    """The scores of `max(scores, lowest number)`, which changes none but -inf, and the number."""
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
    return on, lowest


def largest(dtype: ir.DataType) -> float:
    """The largest finite number of a float type."""
    import ml_dtypes  # NumPy's finfo does not know bfloat16

    return float(ml_dtypes.finfo(dtype.numpy()).max)  # type: ignore[no-untyped-call]  # ml_dtypes has no types here


def leads_to_product(value: ir.Value | None) -> bool:
    """Whether a value is a product of two computed tensors, which may be scaled, masked or in another layout."""
    pending, seen = [value], set[ir.Node]()
    while pending:
        value = pending.pop()
        node = value.producer() if value is not None else None
        if node is None or node in seen or node.domain != "":
            continue
        seen.add(node)
        if node.op_type == "MatMul" and not is_weight(node.inputs[1]):
            return True
        if node.op_type in _STEPS:
            pending += node.inputs
        elif node.op_type in ("Reshape", "Transpose", "Unsqueeze", "Squeeze", "Flatten"):
            pending.append(node.inputs[0])
    return False


def is_weight(value: ir.Value | None) -> bool:
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


_PASSED = {"Cast", "Identity", "Dropout", "Where", "Mul", "Slice", "Reshape", "Transpose", "Unsqueeze", "Squeeze"}
_FAR_BEHIND = 12


@dataclass(frozen=True)
class Zeroed:
    """Probabilities that become zero where `at` is true (`hides`) or false, or where it is zero (`number`)."""

    at: Located
    hides: bool
    number: bool = False


@dataclass(frozen=True)
class Probabilities:
    """The steps between a softmax and the product with v.

    Attributes:
        index: Of the softmax's element, over the product's leading axes, queries and keys.
        zeroed: Conditions under which probabilities are set to zero; they are harmless if the mask hides these keys.
        drops_one: Whether the first or the last key's probability is dropped, as that of a sink.
    """

    index: Index
    zeroed: tuple[Zeroed, ...]
    drops_one: bool


def product_of(softmax: ir.Node) -> ir.Node:
    """The product with v that the probabilities reach.

    Raises:
        NotRecognised: there is no such product, or there are several.
    """
    products: dict[ir.Node, None] = {}
    others: dict[str, None] = {}
    pending, seen = [softmax.outputs[0]], set()
    while pending:
        value = pending.pop(0)
        for user in value.consumers():
            if user in seen:
                continue
            seen.add(user)
            if user.op_type == "MatMul":
                products[user] = None
            elif user.op_type in _PASSED and user.domain == "" and not _is_condition(user, value):
                pending.extend(user.outputs)
            elif user.op_type not in ("IsNaN", "IsInf", "Shape", "Less", "Greater", "Equal"):
                others[user.op_type] = None
    if len(products) == 1:
        return next(iter(products))
    if products:
        advice = "concatenate the values: one product with v"
        raise _of_scores(softmax, "the probabilities enter several products", advice)
    raise NotRecognised(f"after the softmax comes {', '.join(sorted(others)) or 'nothing'}, not the product with v")


def _of_scores(softmax: ir.Node, problem: str, advice: str) -> NotRecognised:
    """A problem behind a softmax of scores, with what mends it; another softmax is what stands in the way."""
    if leads_to_product(softmax.inputs[0]):
        return NotRecognised(problem, advice)
    return NotRecognised("the softmax is of features, as in linear attention, which no fused kernel computes")


def _is_condition(user: ir.Node, value: ir.Value) -> bool:
    return user.op_type == "Where" and user.inputs[0] is value


def read_probabilities(operand: Located, softmax: ir.Node) -> Probabilities:
    """Walks from the product with v up to the softmax.

    Args:
        operand: The probabilities as they enter the product, over its leading axes, queries and keys.

    Raises:
        NotRecognised: a step between them changes probabilities.
    """
    value, index = operand.value, operand.index
    zeroed: list[Zeroed] = []
    drops_one = False
    for _ in range(_FAR_BEHIND):
        node = value.producer()
        assert node is not None
        if node is softmax:
            return Probabilities(index, tuple(zeroed), drops_one)
        moved = relaid(value, index)
        if moved is not None and node.op_type != "Expand":
            value, index = moved
        elif node.op_type in ("Cast", "Dropout"):
            value = _unchanged(node)
        elif node.op_type == "Slice":
            moved = source_of(node, index)
            if moved is None or not _drops_one(node, index, moved[1]):
                raise NotRecognised("after the softmax comes Slice, not the product with v")
            (value, index), drops_one = moved, True
        elif node.op_type in ("Where", "Mul"):
            value, step = _guard(node, index, softmax)
            zeroed.extend(step)
        else:
            raise NotRecognised(f"after the softmax comes {node.op_type}, not the product with v")
    raise NotRecognised("the product with v is too far from the softmax")


def _unchanged(node: ir.Node) -> ir.Value:
    value = node.inputs[0]
    assert value is not None
    if node.op_type == "Dropout" and len(node.inputs) > 2 and node.inputs[2] is not None and scalar(node.inputs[2]):
        raise NotRecognised("the probabilities pass through Dropout in training mode", "export in eval mode")
    if node.op_type == "Cast" and node.outputs[0].dtype is not None and not node.outputs[0].dtype.is_floating_point():
        raise NotRecognised(f"the probabilities are cast to {node.outputs[0].dtype.name.lower()}")
    return value


def _drops_one(node: ir.Node, index: Index, moved: Index) -> bool:
    """Whether a slice takes all but the first or all but the last probability of each row."""
    ends, axes = constant_of(node.inputs[2]), constant_of(node.inputs[3]) if len(node.inputs) > 3 else None
    if ends is None or axes is None or ends.size != 1 or index[int(axes.reshape(-1)[0]) % len(index)] != KEY:
        return False
    end = int(ends.reshape(-1)[0])
    if moved == index:
        return end == -1
    return tuple(op("Add", KEY, Const(1)) if at == KEY else at for at in index) == moved and end >= 2**31 - 1


def _guard(node: ir.Node, index: Index, softmax: ir.Node) -> tuple[ir.Value, list[Zeroed]]:
    """The probabilities in `Where(c, 0, p)`, `Where(c, p, 0)` or `p m`, and the conditions for zero."""
    if node.op_type == "Mul":
        first, second = node.inputs
        on, by = (first, second) if comes_from(first, softmax) else (second, first)
        assert on is not None
        if scalar(by) is not None:
            problem = "after the softmax comes Mul by a number, not the product with v"
            raise _of_scores(softmax, problem, "multiply v or the output with it")
        return on, [Zeroed(_located(by, index), hides=False, number=True)]
    condition, when_true, when_false = node.inputs
    is_softmax = functools.partial(comes_from, softmax=softmax)
    for hides, zero, on in ((True, when_true, when_false), (False, when_false, when_true)):
        if on is not None and comes_from(on, softmax):
            if hides and _tests_infinite(condition, is_softmax):
                return on, []  # which a softmax never is
            is_zero = _is_zero(zero, index)
            if hides and is_zero and _tests_infinite(condition, is_softmax, or_nan=True):
                return on, []  # a softmax is NaN only in a row with no allowed key, which gives zero anyway
            if is_zero:
                return on, [Zeroed(_located(condition, index), hides=hides)]
    raise NotRecognised("after the softmax comes Where, not the product with v")


def _is_zero(value: ir.Value | None, index: Index) -> bool:
    """Whether a value is zero, also one of many elements, as of `zeros_like`."""
    at = broadcast_index(value, index) if value is not None else None
    found = element(value, at) if at is not None else None
    return scalar(value) == 0 or (isinstance(found, Const) and found.value == 0)


def _tests_infinite(
    condition: ir.Value | None, tested: Callable[[ir.Value | None], bool], *, or_nan: bool = False
) -> bool:
    """Whether a condition can hold only where what is `tested` is infinite, or NaN with `or_nan`."""
    node = condition.producer() if condition is not None else None
    if node is None:
        return False
    if node.op_type == "And":
        return any(_tests_infinite(part, tested, or_nan=or_nan) for part in node.inputs)
    if node.op_type == "IsInf" or (node.op_type == "IsNaN" and or_nan):
        return tested(node.inputs[0])
    if node.op_type == "Not" and or_nan:  # `p != p`
        equal = made_by(node.inputs[0], "Equal")
        return equal is not None and equal.inputs[0] is equal.inputs[1] and tested(equal.inputs[0])
    if node.op_type == "Equal":
        number = scalar(node.inputs[1])
        return tested(node.inputs[0]) and isinstance(number, float) and abs(number) == float("inf")
    return False


def of_every_key(at: Located) -> Located | None:
    """The condition on keys that `at` requires of all keys; None if `at` is another condition."""
    node = at.value.producer()
    while node is not None and node.op_type == "Cast":
        node = node.inputs[0].producer() if node.inputs[0] is not None else None
    if node is None or node.op_type != "ReduceMin" or node.inputs[0] is None:
        return None
    axes = node_axes(node, len(at.index))
    if axes is None or len(axes) != 1 or attribute(node, "keepdims", 1) != 1:
        return None
    return Located(node.inputs[0], tuple(KEY if place == axes[0] else entry for place, entry in enumerate(at.index)))


def _located(value: ir.Value | None, index: Index) -> Located:
    broadcast = broadcast_index(value, index) if value is not None else None
    if value is None or broadcast is None:
        raise NotRecognised("after the softmax comes a tensor of unknown size")
    return Located(value, broadcast)


def comes_from(value: ir.Value | None, softmax: ir.Node) -> bool:
    """Whether a value is the softmax's result after steps that may stand before the product with v."""
    for _ in range(_FAR_BEHIND):
        node = value.producer() if value is not None else None
        if node is None or node is softmax:
            return node is softmax
        if node.op_type == "Where":
            value = node.inputs[2] if comes_from(node.inputs[2], softmax) else node.inputs[1]
        elif node.op_type in _PASSED:
            value = node.inputs[0] if node.op_type != "Mul" or comes_from(node.inputs[0], softmax) else node.inputs[1]
        else:
            return False
    return False


@dataclass(frozen=True)
class Recognition:
    """The attentions in graph order, and the reason for each counted attention that is not among them."""

    attentions: tuple[Recognised, ...]
    reasons: dict[str, str]


@functools.cache
def rule_modules() -> list[ModuleType]:
    """The rules: files in `rules/` with `OP_TYPE`, `applies(node)` and `match(node, masks) -> Recognised`."""
    return all_of("attnport.exporter.fusion.rules")


def recognise(model: ir.Model, counted: Sequence[SourceAttention], *, masks: Collection[MaskSpec] = ()) -> Recognition:
    """Recognises the attentions of `model`; each of `counted` is either recognised or has a reason.

    Args:
        model: As `infer_sizes` leaves it; shapes of the values are used.
    """
    found = ((node, matched(node, masks)) for node in model.graph)
    matches = [_Match(module_of(node), item, counts(node)) for node, item in found if item is not None]
    return _assign(matches, counted, _in_branches(model, {rule.OP_TYPE for rule in rule_modules()}))


def matched(node: ir.Node, masks: Collection[MaskSpec]) -> Recognised | Miss | None:
    """What the first rule says that recognises a node; else why the last one does not; None if no rule applies."""
    item = None
    for rule in rule_modules() if node.domain == "" else ():
        if node.op_type == rule.OP_TYPE and rule.applies(node):
            try:
                return cast("Recognised", rule.match(node, masks))
            except NotRecognised as err:
                item = Miss(node.name or "", module_of(node) or "", str(err), err.change)
    return item


@dataclass(frozen=True)
class _Match:
    """A rule's result for a node, the node's module path if it has one, and whether the count would count the node."""

    module: str | None
    item: Recognised | Miss
    counts: bool


def _without_surplus(matches: list[_Match], paths: list[str], *, with_path: bool) -> list[_Match]:
    """Removes unrecognised nodes, such as a gate beside an attention, while there are more nodes than were counted.

    Nodes that the count would not count go first, then the others from the last one back.
    """
    kept = list(matches)
    for path in dict.fromkeys(paths) if with_path else (None,):
        here = [match for match in kept if not with_path or match.module == path]
        surplus = len(here) - (paths.count(str(path)) if with_path else len(paths))
        misses = [(match.counts, -place, match) for place, match in enumerate(here) if isinstance(match.item, Miss)]
        going = [match for *_, match in sorted(misses, key=lambda entry: entry[:2])[: max(surplus, 0)]]
        kept = [match for match in kept if all(match is not gone for gone in going)]
    return kept


def _in_branches(model: ir.Model, operators: Collection[str]) -> dict[str, str]:
    """The control flow operators that have attentions in their branches, by the module path of the attention."""
    operator_of: dict[str, str] = {}
    for node in model.graph:
        for value in node.attributes.values():
            if value.type == ir.AttributeType.GRAPH:
                for inner in ir.traversal.RecursiveGraphIterator(value.as_graph()):
                    if inner.op_type in operators:
                        operator_of[module_of(inner) or ""] = node.op_type
    return operator_of


def _assign(matches: Sequence[_Match], counted: Sequence[SourceAttention], branches: dict[str, str]) -> Recognition:
    """Matches nodes with counted attentions by module path and order; nodes without a path by order alone."""
    open_names = {attention.name: attention.module for attention in counted}
    attentions: list[Recognised] = []
    reasons: dict[str, str] = {}
    counted_modules = set(open_names.values())
    for with_path in (True, False):
        # A node with the path of a counted module can stand only for an attention of that module.
        several = [match for match in matches if (match.module in counted_modules) is with_path]
        for match in _without_surplus(several, list(open_names.values()), with_path=with_path):
            module, item = match.module, match.item
            name = next((name for name, path in open_names.items() if not with_path or path == module), None)
            if name is None:
                continue  # the exporter added or split off this node: it stands for no counted attention
            del open_names[name]
            if isinstance(item, Miss):
                reasons[name] = f"{item.reason} (node {item.node}){f'; {item.change}' if item.change else ''}"
            else:
                attentions.append(replace(item, name=name))
    for name, module in open_names.items():
        operator = branches.get(module) or (branches.get("") if len(branches) == 1 else None)
        reasons[name] = (
            f"it lies inside a branch of the control flow operator {operator}, where nothing is lowered"
            if operator
            else f"nothing in the exported graph stands for it (module {module or 'outermost'})"
        )
    return Recognition(tuple(attentions), reasons)
