"""Attention written out: starts at a softmax and walks both ways, reading scale, mask and bias as algebra."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnport.exporter.fusion.attention import Attention, Context, NotRecognised
from attnport.exporter.fusion.elements import dims_of, scalar
from attnport.exporter.fusion.mask import LARGE_NEGATIVE, MaskReader

if TYPE_CHECKING:
    import onnx_ir as ir

OP_TYPE = "Softmax"
_BETWEEN = frozenset(
    (
        *("Cast", "Identity", "Dropout", "Where", "IsNaN", "Mul", "Div", "Add", "Sub"),
        *("Reshape", "Transpose", "Unsqueeze", "Squeeze", "Slice", "Concat", "Expand", "Split"),
    )
)
_SCORE_OPS = {"Add", "Mul", "Div", "Where", "Cast", "Identity"}


def applies(node: ir.Node) -> bool:
    """A softmax whose result reaches a matrix product."""
    pending, seen = [node.outputs[0]], set()
    while pending:
        value = pending.pop()
        for user in value.consumers():
            if user in seen:
                continue
            seen.add(user)
            if user.op_type in ("MatMul", "Gemm", "Einsum"):
                return True
            if user.op_type in _BETWEEN:
                pending.extend(user.outputs)
    return False


def match(node: ir.Node, context: Context) -> Attention:
    """Reads the attention around a softmax.

    Raises:
        NotRecognised: with the step at which it stops being one.
    """
    scores = node.inputs[0]
    assert scores is not None
    rank = len(scores.shape) if scores.shape is not None else 0
    if rank not in (3, 4):
        raise NotRecognised(f"the scores have rank {rank or 'unknown'}; 3 and 4 are read")
    axis = node.attributes["axis"].as_int() if "axis" in node.attributes else -1
    if axis % rank != rank - 1:
        raise NotRecognised(f"the softmax runs over axis {axis}, not over the keys")
    product = _product_of(node)
    v = product.inputs[1]
    reader = MaskReader(rank, context.keep_inputs)
    scale, qk = _read_scores(scores, reader)
    q, k_transposed = qk.inputs
    if q is None or k_transposed is None or v is None:
        raise NotRecognised("a matrix product lacks an input")
    for value, what in ((q, "q"), (k_transposed, "k"), (v, "v")):
        if value.shape is None or len(value.shape) != rank:
            raise NotRecognised(f"{what} has not the scores' rank {rank}")
    _check_leading(q, k_transposed, v, rank)
    return Attention("", node, product, q, None, k_transposed, v, scale, reader.read(), product.outputs[0])


def _check_leading(q: ir.Value, k_transposed: ir.Value, v: ir.Value, rank: int) -> None:
    """A product broadcasts over batch and heads; an attention operator wants one batch, and k and v of equal heads."""
    q_dims, k_dims, v_dims = (dims_of(value) or [] for value in (q, k_transposed, v))
    if not q_dims[0] == k_dims[0] == v_dims[0]:
        raise NotRecognised(f"the products broadcast over the batch: q has {q_dims[0]}, k {k_dims[0]}, v {v_dims[0]}")
    if rank == 4 and (k_dims[1] != v_dims[1] or (q_dims[1] == 1 and k_dims[1] != 1)):
        raise NotRecognised(f"the products broadcast over heads: q has {q_dims[1]}, k {k_dims[1]}, v {v_dims[1]}")


def _product_of(node: ir.Node) -> ir.Node:
    """The product of the probabilities with v, below the softmax."""
    value = node.outputs[0]
    for _ in range(8):
        products = [user for user in value.consumers() if user.op_type == "MatMul" and user.inputs[0] is value]
        if len(products) == 1:
            return products[0]
        if products:
            raise NotRecognised("the probabilities enter several products")
        following = _next_probabilities(value)
        if following is None:
            users = ", ".join(sorted({user.op_type for user in value.consumers()})) or "nothing"
            raise NotRecognised(f"after the softmax comes {users}, not the product with v")
        value = following
    raise NotRecognised("the product with v is too far from the softmax")


def _next_probabilities(value: ir.Value) -> ir.Value | None:
    """The probabilities after a step that does not change them: a cast, dropout in eval, a guard against NaN."""
    for user in value.consumers():
        if user.op_type in ("Cast", "Identity"):
            return user.outputs[0]
        if user.op_type == "Dropout" and (len(user.inputs) < 3 or user.inputs[2] is None or not scalar(user.inputs[2])):
            return user.outputs[0]
        if user.op_type == "Where" and user.inputs[2] is value and scalar(user.inputs[1]) == 0:
            test = user.inputs[0].producer() if user.inputs[0] is not None else None
            if test is not None and test.op_type == "IsNaN" and test.inputs[0] is value:
                return user.outputs[0]
    return None


def _read_scores(value: ir.Value, reader: MaskReader) -> tuple[float, ir.Node]:
    """Walks from the softmax up to q k^T; terms go to `reader`. Returns the scale and the product."""
    scale = 1.0
    for _ in range(32):
        node = value.producer()
        if node is None or node.domain != "":
            raise NotRecognised("the scores do not come from a product of q and k")
        if node.op_type == "MatMul":
            return scale, node
        if node.op_type not in _SCORE_OPS:
            raise NotRecognised(f"the scores pass through {node.op_type}, which no fused kernel computes")
        step, factor = _step(node, scale, reader)
        value, scale = step, scale * factor
    raise NotRecognised("the product of q and k is too far from the softmax")


def _step(node: ir.Node, scale: float, reader: MaskReader) -> tuple[ir.Value, float]:
    """One operator above the scores: the value that goes on to q k^T, and the factor it applies."""
    first = node.inputs[0]
    assert first is not None
    if node.op_type in ("Cast", "Identity"):
        if node.outputs[0].dtype is not None and not node.outputs[0].dtype.is_floating_point():
            raise NotRecognised(f"the scores are cast to {node.outputs[0].dtype.name.lower()}")
        return first, 1.0
    second = node.inputs[1]
    assert second is not None
    if node.op_type in ("Mul", "Div"):
        return _scaled(node.op_type, first, second)
    if node.op_type == "Add":
        on, term = (first, second) if _leads_to_product(first) else (second, first)
        if not _leads_to_product(on):
            raise NotRecognised("neither side of an addition to the scores is a product of q and k")
        if scale == 1.0:
            reader.add(term)
        elif not reader.add_mask(term, scale):
            raise NotRecognised("a term that is no mask is added to the scores before they are scaled")
        return on, 1.0
    third = node.inputs[2]
    assert third is not None
    for hides, fill, rest in ((True, second, third), (False, third, second)):
        low = scalar(fill)
        if low is not None:
            if not low * scale <= LARGE_NEGATIVE:
                raise NotRecognised(
                    f"masked scores are set to {low * scale:g}, which hides nothing ({LARGE_NEGATIVE:g} or less does)"
                )
            reader.where(first, hides=hides)
            return rest, 1.0
    raise NotRecognised("the scores are chosen from two tensors")


def _scaled(operator: str, first: ir.Value, second: ir.Value) -> tuple[ir.Value, float]:
    for on, by in ((first, scalar(second)), (second, scalar(first) if operator == "Mul" else None)):
        if by == 0:
            raise NotRecognised(f"the scores are combined with zero by {operator}")
        if by is not None:
            return on, float(by) if operator == "Mul" else 1.0 / float(by)
    raise NotRecognised(f"the scores are combined with a tensor by {operator}")


def _leads_to_product(value: ir.Value | None, depth: int = 0) -> bool:
    node = value.producer() if value is not None else None
    if node is None or depth > 16 or node.domain != "":
        return False
    if node.op_type == "MatMul":
        return all(part is not None and part.const_value is None for part in node.inputs)
    if node.op_type in _SCORE_OPS:
        return any(_leads_to_product(part, depth + 1) for part in node.inputs)
    return False
