"""TensorRT (data centre): strongly typed, half precision around attention, the form that needs least memory by mask.

The form is chosen in three steps (measured by `benchmarks/engine_forms.py`):

1. head dims are padded to what kernels take: the same for q, k and v, a multiple of 8 from 16 to 256;
2. grouped heads use the `Attention` operator if that writes no mask to memory: without a mask, with the causal mask
   alone, or with a mask of keys alone;
3. everything else is written as products around one `Where` (`_tiled`), with grouped heads as rows, unless
   that would write a larger mask to memory: in float32, which has no fused kernel.

For heads that are not grouped, the products never need more memory than the operator, and they also build where the
operator does not: with a single query and fewer than four heads.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import ClassVar

import numpy as np

from attnport.artifacts import PLANS, WEIGHT_PLANS
from attnport.exporter.builder import Builder, node_name
from attnport.exporter.forms.operands import Change, MaskWriter, key_of, operands, reindexed, repeated, sink_bias
from attnport.exporter.forms.standard import attention_op
from attnport.exporter.fusion.formula import ELEMENTWISE, Axis, Const, Expr, I, Op, Read, Size, axes_of, reads_of
from attnport.exporter.fusion.mask import Factor
from attnport.exporter.fusion.recognise import Attention
from attnport.exporter.naming import upstream
from attnport.exporter.precision.islands import STAYS
from attnport.exporter.targets.base import Lowering, Written
from attnport.onnx_graph import dims_of, ir, known_size

LEAST_DEPTH, MOST_DEPTH, STEP = 16, 256, 8
"""Head dims with a fused kernel: at 8 and 257 there is none, at 12 and 20 a mask makes the builder fail (1.7.1)."""
FAR = 2**30 - 1
"""Larger than every index, and small enough that the sum of two fits into int32."""
MOST_CONSTANT = 1 << 20
"""Elements of a bias that is stored: those of 12 heads at 197 tokens, or of 32 at a window of 144, are fewer."""
_DRAWS = ("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Bernoulli", "Multinomial")
_COMPARISONS = ("Equal", "Ne", "Less", "LessOrEqual")
_SUMS = ("Add", "Sub", "Neg", "Abs", "Max", "Min", "Mod")


class TensorRt(Lowering):
    """Fused kernels exist in half precision only, so fp32 models use it in islands around attention."""

    name = "tensorrt"
    opset = 23
    plans: ClassVar[tuple[str, ...]] = ("fp16", "bf16", "fp16_islands", "bf16_islands", "fp32")
    proved_by: ClassVar[tuple[str, ...]] = ("engine",)
    integers: ClassVar[tuple[str, ...]] = WEIGHT_PLANS

    def mask_writer(self, build: Builder) -> MaskWriter:
        """A writer that compares indices in int32, so that kernels compute the mask."""
        return _NarrowMaskWriter(build)

    def write(self, build: Builder, masks: MaskWriter, attention: Attention, plan: str) -> Written:
        """Chooses the form that one kernel covers with the least memory; a note says if there is none.

        Raises:
            CannotLower: the head counts do not say how often a key/value head is repeated.
        """
        compute = ir.DataType[PLANS[plan].half.upper()] if PLANS[plan].islands else None
        changes: list[str] = []
        key_depth, value_depth = _head_dims(attention)
        depth = None if plan == "fp32" else _kernel_depth(key_depth, value_depth)
        if depth is not None:
            attention = _widened(build, attention, depth)
            changes.append(f"head dim {key_depth} padded to {depth}" if key_depth != depth else "")
            changes.append(
                f"value dim {value_depth} padded to {depth}" if value_depth not in (key_depth, depth) else ""
            )
        if attention.sink is not None:
            changes.append("sink as one more key")
        if plan != "fp32" and _as_operator(attention):
            form = "Attention"
            output, anchors = attention_op(build, masks, attention, "bool", compute=compute)
        elif _can_fold(attention) and (plan != "fp32" or not _mask_is_square(attention)):
            form = "MatMul, Where(-inf), Softmax, MatMul"
            rows = _folded(build, masks, attention)
            output, anchors = _tiled(build, masks, rows, compute=compute)
            output = _unfolded(build, attention, output)
            changes.append("grouped heads as rows")
        else:
            form = "MatMul, Where(-inf), Softmax, MatMul"
            output, anchors = _tiled(build, masks, attention, compute=compute)
        if depth is not None and value_depth is not None and value_depth < depth:
            output = _narrowed(build, output, value_depth)
        return Written(
            output, ", ".join([form, *filter(None, changes)]), anchors, _note(plan, attention, key_depth, value_depth)
        )


def _kernel_depth(key_depth: int | None, value_depth: int | None) -> int | None:
    """The head dim to pad to; None if no padding is needed or none helps."""
    if key_depth is None or value_depth is None:
        return None
    depth = max(LEAST_DEPTH, -(-max(key_depth, value_depth) // STEP) * STEP)
    return None if depth > MOST_DEPTH or key_depth == value_depth == depth else depth


def _as_operator(attention: Attention) -> bool:
    """Whether the operator fuses and needs less memory than the products.

    The operator writes a mask that depends on queries to memory at full size. With a bias and no mask, the products
    would write repeated keys.
    """
    mask = attention.mask
    heads, groups = attention.head_counts()
    if attention.softcap or attention.sink is not None or any((dim or 0) > MOST_DEPTH for dim in _head_dims(attention)):
        return False
    by_key = all(axes_of(factor.keep) <= {"b", "j"} for factor in mask.factors)
    return heads != groups and (mask.is_causal_only or (by_key if not mask.biases else not mask.factors))


def _mask_is_square(attention: Attention) -> bool:
    """Whether the mask is one of queries by keys for each item of the batch, with as many queries as keys.

    Where it is written to memory, grouped heads as rows repeat it for every head of a group. Repeated keys and values
    are then leaner at long inputs (`benchmarks/scratch_exports.py`; Llama in float32: 1982 MB against 2052).
    """
    axes = {axis for factor in attention.mask.factors for axis in axes_of(factor.keep)}
    q, v = dims_of(attention.q), dims_of(attention.v)
    return {"b", "i"} <= axes and q is not None and v is not None and q[2] is not None and q[2] == v[2]


def _note(plan: str, attention: Attention, key_depth: int | None, value_depth: int | None) -> str:
    if plan == "fp32":
        return "fp32 attention has no fused kernel; use fp16, bf16 or their islands"
    deepest = max(key_depth or 0, value_depth or 0)
    if deepest > MOST_DEPTH:
        return f"head dim {deepest}: fused kernels take up to {MOST_DEPTH}"
    if (dims_of(attention.v) or [None] * 4)[2] == 1:
        return "a single key, whose weight is always 1: there is no fused kernel for it"
    return ""


def _head_dims(attention: Attention) -> tuple[int | None, int | None]:
    """The head dim of q and k, and that of v; None if the graph does not fix it."""
    key_depth, value_depth = (known_size(value, 3) for value in (attention.q, attention.v))
    return key_depth if isinstance(key_depth, int) else None, value_depth if isinstance(value_depth, int) else None


def _widened(build: Builder, attention: Attention, depth: int) -> Attention:
    """The attention with q, k and v padded to `depth` columns and the same scale; the head dims must be known.

    Zero columns change neither scores nor results.
    """
    key_depth, value_depth = _head_dims(attention)
    assert key_depth is not None
    assert value_depth is not None
    q, k, v = attention.q, key_of(build, attention), attention.v
    if key_depth < depth:
        q, k = _padded(build, q, key_depth, depth), _padded(build, k, key_depth, depth)
    return replace(attention, q=q, k=k, k_transposed=None, v=_padded(build, v, value_depth, depth))


def _narrowed(build: Builder, output: ir.Value, depth: int) -> ir.Value:
    """The first `depth` columns of an output."""
    start, end, axis = (build.const([number], np.int64) for number in (0, depth, -1))
    return build.op("Slice", output, start, end, axis, name="narrow")


def _padded(build: Builder, value: ir.Value, columns: int, depth: int) -> ir.Value:
    if columns == depth:
        return value
    dims = dims_of(value) or [None] * 4
    ends = build.const([0] * 7 + [depth - columns], np.int64)
    return build.op("Pad", value, ends, name="wide", shape=[*dims[:-1], depth])


def _can_fold(attention: Attention) -> bool:
    """Whether every group has the same number of query heads, and no mask or bias differs between heads."""
    heads, groups = attention.head_counts()
    mask = attention.mask
    grouped = heads is not None and groups is not None and heads != groups and heads % groups == 0
    return grouped and not mask.biases and not any("h" in axes_of(factor.keep) for factor in mask.factors)


def _folded(build: Builder, masks: MaskWriter, attention: Attention) -> Attention:
    """The attention with queries `[B,H,S,D]` as `[B,G,R S,D]`: row r S + s is query s of the group's head r."""
    heads, groups = attention.head_counts()
    assert heads is not None
    assert groups is not None
    times, size = heads // groups, masks.length(attention, "i")

    def lay(value: ir.Value, axis: int) -> ir.Value:
        dims = dims_of(value) or [None] * 4  # a factor that was just written has the scores' axes, but no shape yet
        repeats = [times if at == axis else 1 for at in range(len(dims))]
        dims[axis] = _times(times, dims[axis])
        return build.op("Tile", value, build.const(repeats, np.int64), name="mask/each_head", shape=dims)

    change = Change(I, Op("Mod", (I, Read(size, ()))), lay)
    factors = tuple(Factor(reindexed(masks, attention, factor, change), None) for factor in attention.mask.factors)
    q = _rows(build, attention, attention.q, groups, times)
    sink = attention.sink
    if sink is not None and sink.shape is not None and sink.shape[1] != 1:
        if sink.shape[2] == 1:
            shape = build.op("Concat", build.const([1, heads], np.int64), build.size(attention.q, 2),
                           build.const([1], np.int64), name="sink_shape", axis=0)  # fmt: skip
            sink = build.op("Expand", sink, shape, name="sink_each_query")
        sink = _rows(build, attention, sink, groups, times)
    return replace(attention, q=q, sink=sink, mask=replace(attention.mask, factors=factors))


def _unfolded(build: Builder, attention: Attention, output: ir.Value) -> ir.Value:
    """The output of the folded attention, `[B,G,R S,Dv]`, as the `[B,H,S,Dv]` of `attention`."""
    heads, _ = attention.head_counts()
    shape = build.op(
        "Concat", build.const([0, heads], np.int64), build.size(attention.q, 2), build.const([-1], np.int64),
        name="heads_shape", axis=0,
    )  # fmt: skip
    return build.op("Reshape", output, shape, name="heads")


def _rows(build: Builder, attention: Attention, value: ir.Value, groups: int, times: int) -> ir.Value:
    """`[B,H,S,X]` as `[B,G,R S,X]`."""
    dims = dims_of(value)
    assert dims is not None
    last = build.size(value, 3)
    shape = build.op("Concat", build.const([0, groups, -1], np.int64), last, name="rows_shape", axis=0)
    return build.op("Reshape", value, shape, name="rows", shape=[dims[0], groups, _times(times, dims[2]), dims[3]])


def _times(times: int, dim: int | str | None) -> int | str | None:
    if dim is None:
        return None
    return times * dim if isinstance(dim, int) else f"{times}*({dim})"


def _tiled(
    build: Builder, masks: MaskWriter, attention: Attention, *, compute: ir.DataType | None = None
) -> tuple[ir.Value, tuple[str, ...]]:
    """Writes `Where(mask, (q scale) k^T + bias, -inf) -> Softmax -> v`, and zero for a row with no allowed key.

    Each choice was measured on one block at T=4096 (`benchmarks/engine_forms.py`; scratch memory in MB):

    - A `Where` hides keys with -inf. Hidden tiles are skipped only then, and only if there is an operator between the
      product and the mask. So about the square root of the scale is on q (for range) and the rest on the scores.
    - The NaN of a row with no allowed key becomes zero after the product with v. This guard on the probabilities needs
      more memory (59 against 50), and with it one masked head, a cap and a softmax in float32 are not fused at all. It
      needs less there (185 against 193) only beside a bias looked up in a table, which has already filled the memory.
    - A mask that combines indices with an input's values is written `Equal(mask, true)`: the kernel then skips every
      hidden tile, by a map made at run time. Without it, causal with padding skips none.
    - If bias and mask are both computed from indices, the mask is applied to the bias: a `Where` on the scores would
      write one of the two to memory (67 to 151 against 50).
    - A cap on the scores is written with `Exp`, in float32: with `Tanh` nothing is fused (2206 against 50).

    Args:
        compute: The dtype to compute in (q, k, v are cast to it, the output back); None = the dtype of q.

    Returns:
        The output and the names of the QK^T product, the softmax and the PV product.

    Raises:
        CannotLower: the head counts do not say how often a key/value head is repeated.
    """
    dtype = attention.q.dtype
    assert dtype is not None
    compute = compute or dtype
    on_q, on_scores = split_scale(attention.scale)
    q, k_transposed, v = operands(build, attention, compute, on_q, _for_each_head)
    product = build.op("MatMul", q, k_transposed, name="qk")
    scores = product
    if on_scores != 1.0:
        scores = build.op("Mul", scores, build.like(on_scores, scores), name="scale_scores")
    if attention.softcap:
        scores = _capped(build, scores, attention.softcap)
    bias = masks.bias(attention, compute)
    weights = build.op("Softmax", _masked(build, masks, attention, scores, bias, compute), name="softmax", axis=-1)
    softmax = weights
    if attention.softcap:
        _stays(weights)
        weights = build.op("Cast", weights, name="weights_cast", dtype=compute, to=compute)
    within = bias is not None and _is_gathered(bias) and attention.head_counts()[0] != 1 and not attention.softcap
    if within:
        weights = build.without_nan(weights)
    output = build.op("MatMul", weights, v, name="pv")
    names = tuple(map(node_name, (product, softmax, output)))
    return build.cast(output if within else build.without_nan(output), dtype, "out_cast"), names


def split_scale(scale: float) -> tuple[float, float]:
    """A scale as a factor on q and one on the scores; the latter is a power of two (exact in every type), never 1."""
    if scale <= 0:
        return 1.0, scale
    on_scores = 2.0 ** round(math.log2(scale) / 2)
    on_scores = 0.5 if on_scores == 1.0 else on_scores
    return scale / on_scores, on_scores


def _masked(
    build: Builder,
    masks: MaskWriter,
    attention: Attention,
    scores: ir.Value,
    bias: ir.Value | None,
    compute: ir.DataType,
) -> ir.Value:
    keep = _keep(masks, attention, scores)
    sink = sink_bias(build, masks, attention, compute)
    low = -np.inf
    of_queries = any("i" in axes_of(factor.keep) for factor in attention.mask.factors)
    if bias is not None and keep is not None and of_queries and _of_indices(bias):
        bias = build.op("Where", keep, bias, build.like(low, bias), name="mask", dtype=compute)
        keep = None
    for term in (bias, sink):
        if term is None:
            continue
        if attention.softcap:
            term = _stays(build.op("Cast", term, name="bias_cast", dtype=scores.dtype, to=scores.dtype))
        scores = build.op("Add", scores, term, name="bias")
        if attention.softcap:
            _stays(scores)
    if keep is not None:
        scores = build.op("Where", keep, scores, build.like(low, scores), name="mask", dtype=scores.dtype)
        if attention.softcap:
            _stays(scores)
    return scores


def _keep(masks: MaskWriter, attention: Attention, scores: ir.Value) -> ir.Value | None:
    """The mask as it is, or as `Equal(mask, true)`; in sizes of the scores where these have other keys than queries.

    A mask of comparisons between indices bounds the tiles of a row and needs no map. A mask over queries and keys that
    an input contains is read by the kernel as it is; an operator on it would write it to memory again.
    """
    keep = masks.keep(attention)
    factors = [factor.keep for factor in attention.mask.factors]
    compared = all(
        getattr(condition, "name", "") in ("Less", "LessOrEqual") and not reads_of(condition) for condition in factors
    )
    held = any(axes_of(read) >= {"i", "j"} for condition in factors for read in reads_of(condition))
    if keep is None:
        return None
    if _has_cache(attention):
        axes = set[str]().union(*(axes_of(condition) for condition in factors))
        keep, compared = _sized(masks.build, keep, scores, axes), False
    if compared or held:
        return keep
    true = masks.build.const(True)
    return masks.build.once(
        ("mapped", keep), lambda: masks.build.op("Equal", keep, true, name="mask/mapped", dtype=ir.DataType.BOOL)
    )


def _has_cache(attention: Attention) -> bool:
    """Whether there may be a single query, and more keys than queries, as in a step of a decoder."""
    q, v = dims_of(attention.q), dims_of(attention.v)
    return q is not None and v is not None and not isinstance(q[2], int) and q[2] != v[2]


def _sized(build: Builder, keep: ir.Value, scores: ir.Value, axes: Collection[str]) -> ir.Value:
    """A mask in a shape that is read off the scores, in the axes that it has.

    The builder does not see that `past+seq` keys of a mask and of a cache are as many. Where there may be one, it
    takes the mask for one that is broadcast, and fuses nothing: one block of 8 heads of 32, `seq=1:64:256` behind
    `past=0:128:255`, takes 727 MB, and 109 so (1.7.1). `Expand` does not tell it.
    """
    known = dims_of(keep) or [None] * 4
    sizes = [
        build.size(scores, at) if axis in axes and known[at] != 1 else build.const([1], np.int64)
        for at, axis in enumerate("bhij")
    ]
    shape = build.op("Concat", *sizes, name="mask/sizes", axis=0)
    return build.op("Reshape", keep, shape, name="mask/sized", dtype=ir.DataType.BOOL)


def _of_indices(bias: ir.Value) -> bool:
    """Whether a bias is computed element by element from ranges, so that the kernel can compute it."""
    through = {*ELEMENTWISE, "Cast", "Unsqueeze", "Div", "Reshape", "Expand"}
    computing = {node.op_type for node in _computing(bias, through)}
    return "Range" in computing and computing <= {*through, "Range"}


def _is_gathered(bias: ir.Value) -> bool:
    """Whether a bias is looked up in a table, which the builder writes to memory for all queries and keys."""
    through = {"Add", "Mul", "Cast", "Where", "Unsqueeze", "Squeeze", "Transpose", "Reshape", "Expand"}
    return any(node.op_type in {"Gather", "GatherND", "GatherElements"} for node in _computing(bias, through))


def _constant(build: Builder, bias: ir.Value) -> ir.Value:
    """A bias as a constant, if no input changes it and it is not too large; else as it is.

    The builder computes one of few elements by itself. Larger ones, as of Swin's windows, whose positions are looked up
    in a table, it puts into the kernel of the softmax, which then is not fused with the products.
    """
    from onnx.reference import ReferenceEvaluator

    if bias.producer() is None or any(node.domain or node.op_type in _DRAWS for node in _computing(bias, None)):
        return bias  # an input, or a constant already, or what ONNX's reference evaluator cannot compute
    try:
        graph = ir.convenience.extract(build.model.graph, [], [bias])
    except ValueError:  # an input of the model changes it
        return bias
    model = ir.external_data.load_to_model(ir.Model(graph, ir_version=build.model.ir_version))
    (found,) = ReferenceEvaluator(ir.to_proto(model)).run(None, {})
    array = np.asarray(found)
    return bias if array.size > MOST_CONSTANT else build.stored(f"{bias.name}/constant", array)


def _computing(value: ir.Value, through: Collection[str] | None) -> Iterator[ir.Node]:
    """The nodes that compute a value, from the last back; the walk goes on at operators in `through`; None = all."""
    walk = upstream([value], lambda _, node: through is None or node.op_type in through)
    return (node for each in walk if (node := each.producer()) is not None)


def _capped(build: Builder, scores: ir.Value, cap: float) -> ir.Value:
    """`cap tanh(scores / cap)` as `cap - 2 cap / (exp(2 scores / cap) + 1)`, in float32; exact where exp overflows."""
    float32 = ir.DataType.FLOAT
    up = _stays(build.op("Cast", scores, name="softcap_in", dtype=float32, to=float32))
    twice = _stays(build.op("Mul", up, build.like(2.0 / cap, up), name="softcap_twice"))
    power = _stays(build.op("Exp", twice, name="softcap_exp"))
    above = _stays(build.op("Add", power, build.like(1.0, power), name="softcap_plus"))
    part = _stays(build.op("Div", build.like(2.0 * cap, above), above, name="softcap_part"))
    return _stays(build.op("Sub", build.like(cap, part), part, name="softcap"))


def _stays(value: ir.Value) -> ir.Value:
    """Marks the node that computes a value to stay in float32."""
    node = value.producer()
    assert node is not None
    node.metadata_props[STAYS] = "1"
    return value


def _for_each_head(build: Builder, attention: Attention, value: ir.Value) -> ir.Value:
    """Keys or values for every query head, since a product that broadcasts one head over several is not fused."""
    heads, groups = attention.head_counts()
    if groups == 1 and heads is not None and heads > 1:
        return build.op("Expand", value, build.const([1, heads, 1, 1], np.int64), name="each_head")
    return repeated(build, attention, value)


class _NarrowMaskWriter(MaskWriter):
    """Compares indices with each other and with numbers from inputs in int32, with the same results as in int64.

    TensorRT computes such a mask in the attention kernel, and skips its tiles. With int64 it first writes documents,
    prefixes and lengths to memory as `[B,1,S,T]`: 126 MB of scratch memory instead of 51 for one block
    (`benchmarks/engine_forms.py`).

    A number from an input that is compared with an index is clipped at `FAR`, which is larger than every index. If two
    numbers from inputs are compared for equality, such as the documents of two tokens, each is compared as two words of
    32 bits. If they are compared by order, the comparison stays in int64.
    """

    def bias(self, attention: Attention, dtype: ir.DataType) -> ir.Value | None:
        """As `MaskWriter.bias`; one that no input changes is a constant."""
        bias = super().bias(attention, dtype)
        return bias if bias is None else self.build.once(("constant", bias), lambda: _constant(self.build, bias))

    def _operation(self, expr: Op, attention: Attention) -> ir.Value:
        if expr.name not in _COMPARISONS or not all(map(_narrows, expr.args)):
            return super()._operation(expr, attention)
        left, right = expr.args
        order = expr.name in ("Less", "LessOrEqual")
        if _is_open(left) and _is_open(right):
            if order or not (isinstance(left, Read) and isinstance(right, Read)):
                return super()._operation(expr, attention)
            result = self._same(left, right, attention)
        elif not order and isinstance(left, Read) and isinstance(right, Const):
            return super()._operation(expr, attention)  # `mask[b, j] == 1`: no index is compared
        else:
            numbers = [self._narrow(arg, attention) for arg in expr.args]
            kind = "Equal" if expr.name == "Ne" else expr.name
            result = self.build.op(kind, *numbers, name=f"mask/{kind.lower()}", dtype=ir.DataType.BOOL)
        return self.build.op("Not", result, name="mask/not") if expr.name == "Ne" else result

    def _same(self, left: Read, right: Read, attention: Attention) -> ir.Value:
        """Whether two int64 numbers are equal, by their lower and their upper words."""
        parts = []
        for word in (self._lower, self._upper):
            inputs = [word(self._write(number, attention)) for number in (left, right)]
            parts.append(self.build.op("Equal", *inputs, name="mask/same", dtype=ir.DataType.BOOL))
        return self._shared("And", *parts)

    def _lower(self, value: ir.Value) -> ir.Value:
        return self.build.once(("lower", value), lambda: self.build.cast(value, ir.DataType.INT32, "mask/lower"))

    def _upper(self, value: ir.Value) -> ir.Value:
        def write() -> ir.Value:
            lower = self.build.cast(self._lower(value), ir.DataType.INT64, "mask/lower64")
            rest = self.build.op("Sub", value, lower, name="mask/upper64")
            word = self.build.op("Div", rest, self.build.const(2**32, np.int64), name="mask/upper_word")
            return self.build.cast(word, ir.DataType.INT32, "mask/upper")

        return self.build.once(("upper", value), write)

    def _narrow(self, expr: Expr, attention: Attention) -> ir.Value:
        """A whole number as an int32 tensor of rank 4 (or a scalar constant)."""
        build, int32 = self.build, ir.DataType.INT32

        def write() -> ir.Value:
            if isinstance(expr, Const):
                return build.const(np.clip(int(expr.value), -FAR, FAR), np.int32)
            if isinstance(expr, Axis):  # a range in int64: ONNX Runtime refuses one of a known size in int32
                return build.cast(self._write(expr, attention), int32, f"mask/{expr.name}32")
            if isinstance(expr, Read | Size):
                near = build.op("Max", self._write(expr, attention), build.const(-FAR, np.int64), name="mask/near")
                near = build.op("Min", near, build.const(FAR, np.int64), name="mask/near")
                return build.cast(near, int32, "mask/int32")
            assert isinstance(expr, Op)
            return build.op(
                expr.name, *(self._narrow(arg, attention) for arg in expr.args), name=f"mask/{expr.name.lower()}"
            )

        return self.build.once(("narrow", expr, *self._sizes_of(expr, attention)), write)


def _is_open(expr: Expr) -> bool:
    """Whether a formula reads numbers that may be larger than `FAR`: any but those of a small constant."""
    return any(
        read.value.const_value is None or (np.abs(read.value.const_value.numpy()) > FAR).any()
        for read in reads_of(expr)
    )


def _narrows(expr: Expr) -> bool:
    """Whether a formula is a sum of indices, sizes, whole constants, and whole numbers from inputs."""
    if isinstance(expr, Const):
        return not isinstance(expr.value, bool) and float(expr.value).is_integer()
    if isinstance(expr, Axis | Size):
        return True
    if isinstance(expr, Read):
        return expr.value.dtype is not None and expr.value.dtype.is_integer()
    return expr.name in _SUMS and all(map(_narrows, expr.args))


LOWERING = TensorRt()
