"""Reads the steps between a softmax and the product with v, which may change no probability of an allowed key."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from attnport.exporter.fusion.attention import NotRecognised
from attnport.exporter.fusion.formula import Const, op
from attnport.exporter.fusion.indices import Index, broadcast_index, relaid, source_of
from attnport.exporter.fusion.layout import KEY, Located
from attnport.onnx_graph import attribute, constant_of, made_by, node_axes, scalar

if TYPE_CHECKING:
    import onnx_ir as ir

_PASSED = {"Cast", "Identity", "Dropout", "Where", "Mul", "Slice", "Reshape", "Transpose", "Unsqueeze", "Squeeze"}
_FAR = 12


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
        raise NotRecognised("the probabilities enter several products", "concatenate the values: one product with v")
    raise NotRecognised(f"after the softmax comes {', '.join(sorted(others)) or 'nothing'}, not the product with v")


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
    for _ in range(_FAR):
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
            raise NotRecognised(
                "after the softmax comes Mul by a number, not the product with v", "multiply v or the output with it"
            )
        return on, [Zeroed(_located(by, index), hides=False, number=True)]
    condition, when_true, when_false = node.inputs
    for hides, zero, on in ((True, when_true, when_false), (False, when_false, when_true)):
        if on is not None and comes_from(on, softmax):
            if _tests_finite(condition, softmax):
                return on, []  # a softmax is NaN only in a row with no allowed key, which gives zero anyway
            if scalar(zero) == 0:
                return on, [Zeroed(_located(condition, index), hides=hides)]
    raise NotRecognised("after the softmax comes Where, not the product with v")


def _tests_finite(condition: ir.Value | None, softmax: ir.Node) -> bool:
    """Whether a condition can hold only where probabilities are NaN or infinite."""
    node = condition.producer() if condition is not None else None
    if node is None:
        return False
    if node.op_type == "And":
        return any(_tests_finite(part, softmax) for part in node.inputs)
    if node.op_type == "Not":  # `p != p`
        equal = made_by(node.inputs[0], "Equal")
        return equal is not None and equal.inputs[0] is equal.inputs[1] and comes_from(equal.inputs[0], softmax)
    if node.op_type in ("IsNaN", "IsInf"):
        return comes_from(node.inputs[0], softmax)
    if node.op_type == "Equal":
        number = scalar(node.inputs[1])
        return comes_from(node.inputs[0], softmax) and isinstance(number, float) and abs(number) == float("inf")
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
    for _ in range(_FAR):
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
