"""Operators for ONNX's reference evaluator: faster ones, or truer to half precision, than its own; and those of ONNX
Runtime, as far as lowered forms use them.

In half precision an operator here takes half-precision tensors, computes in float32 internally and rounds once, as
tensor cores, torch and TensorRT do. The evaluator's own operators round after every numpy call; their sums in bfloat16
stop growing at 256 terms, and a half-precision product in numpy takes minutes. Results are still rounded *between*
operators, so that scores can overflow: finding that is what such a graph is run for.

Casts and products are PyTorch's: numpy casts one element at a time, which was most of the time of a half-precision
graph.

Where ONNX Runtime's kernels differ, its operators here follow the least precise: in half precision the scores and the
probabilities are rounded, so that scores can overflow. Rows with no allowed key are those of its CPU kernels. Source:
the operators' schema, ContribOperators.md of ONNX Runtime.
"""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx.reference.op_run import OpRun
from onnx.reference.ops import load_op

_HALVES = (np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16))

WIDENED = (
    "MatMul",
    "Gemm",
    "Einsum",
    "Softmax",
    "LogSoftmax",
    "LayerNormalization",
    "RMSNormalization",
    "ReduceSum",
    "ReduceMean",
    "ReduceL2",
    "ReduceSumSquare",
    "CumSum",
    "Add",
    "Sub",
    "Mul",
    "Div",
)
"""Operators that in half precision are computed in float32 and rounded once: those that sum, since no runtime rounds
each step, and arithmetic, where numpy is slow and the result is the same, as 24 bits are more than twice 11 or 8."""


def replacements(opset: int) -> list[type[OpRun]]:
    """Classes for `ReferenceEvaluator(new_ops=...)` that replace the evaluator's own of this opset."""
    ops = [_widened(name, load_op("", name, opset)) for name in WIDENED if _exists(name, opset)]
    ops += [_gather_elements(opset), _loop(opset)]
    return [*ops, _faster("Erf", _erf), *([_faster("Gelu", _gelu)] if _exists("Gelu", opset) else [])]


def _exists(name: str, opset: int) -> bool:
    import onnx.defs

    return onnx.defs.has(name, opset)


def _loop(opset: int) -> type[OpRun]:
    """A replacement for the evaluator's own, which runs no round without a condition, and joins what rounds give."""
    own: Any = load_op("", "Loop", opset)

    class Loop(own):  # type: ignore[misc]  # the evaluator finds an operator by the name of its class
        def _run(self, most: Any, condition: Any, *carried: Any, context: Any = None, **rest: Any) -> tuple[Any, ...]:
            rest.pop("body", None)
            values, state = dict(context or {}), list(carried)
            given: list[Any] = []
            going = condition is None or bool(condition)
            while going and (most is None or len(given) < int(most)):
                values.update(zip(self.body.input_names, (np.array(len(given)), np.array(going), *state), strict=True))
                going, *found = self._run_body(values, **rest)
                state = found[: len(state)]
                given.append(found[len(state) :])
            if not given and len(self.onnx_node.output) > len(state):
                raise NotImplementedError("a Loop without a round that gives outputs")
            return (*state, *(np.stack(each) for each in zip(*given, strict=True)))

    return Loop


def _gather_elements(opset: int) -> type[OpRun]:
    """A replacement for the evaluator's own, which takes at most 64 entries on an axis beyond rank 2."""

    def run(self: Any, data: Any, indices: Any, axis: int | None = None) -> tuple[Any, ...]:
        return (np.take_along_axis(data, indices, axis=axis or 0),)

    return type("GatherElements", (load_op("", "GatherElements", opset),), {"op_domain": "", "_run": run})


def _widened(name: str, own: Any) -> type[OpRun]:
    def run(self: Any, *args: Any, **attributes: Any) -> tuple[Any, ...]:
        half = next((arg.dtype for arg in args if getattr(arg, "dtype", None) in _HALVES), None)
        if half is None:
            return tuple(own._run(self, *args, **attributes))
        wide = [_wide(arg) if getattr(arg, "dtype", None) in _HALVES else arg for arg in args]
        results = (_product(*wide),) if name == "MatMul" else own._run(self, *wide, **attributes)
        return tuple(_narrow(array, half) if array.dtype == np.float32 else array for array in map(np.asarray, results))

    return type(name, (own,), {"op_domain": "", "_run": run})


def _wide(array: Any) -> Any:
    """A half-precision array in float32."""
    # torch warns of an array that it could write to although numpy would not; constants are such arrays.
    return _torch_half(np.require(array, requirements=["C", "W"])).float().numpy().reshape(np.shape(array))


def _torch_half(array: Any) -> Any:
    """The torch tensor of a half-precision array; both share their memory."""
    import torch

    if array.dtype == np.float16:
        return torch.from_numpy(array)
    return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)


def _narrow(array: Any, half: np.dtype[Any]) -> Any:
    """A float32 array rounded to half precision."""
    import torch

    wide = torch.from_numpy(np.ascontiguousarray(array))
    if half == np.float16:
        return wide.half().numpy().reshape(array.shape)
    return wide.bfloat16().view(torch.int16).numpy().view(half).reshape(array.shape)


def _product(a: Any, b: Any) -> Any:
    """The product of float32 arrays."""
    import torch

    return torch.matmul(torch.from_numpy(a), torch.from_numpy(b)).numpy()


def _faster(name: str, function: Any) -> type[OpRun]:
    def run(self: Any, x: Any, **attributes: Any) -> tuple[Any, ...]:
        return (function(x, **attributes),)

    return type(name, (OpRun,), {"op_domain": "", "_run": run})


def _double(x: Any) -> Any:
    """A float64 torch tensor of any floating-point array."""
    import torch

    return torch.from_numpy(np.ascontiguousarray(x, dtype=np.float64).reshape(x.shape))


def _erf(x: Any) -> Any:
    # Like the evaluator, which calls Python's math.erf for every element, this computes in float64 and then rounds.
    return _double(x).erf().numpy().astype(x.dtype)


def _gelu(x: Any, approximate: str | None = None) -> Any:
    from torch.nn.functional import gelu

    return gelu(_double(x), approximate=approximate or "none").numpy().astype(x.dtype)


# --- operators of ONNX Runtime ------------------------------------------------------------------------------------

_LOW = -10000.0
"""The schema's default of mask_filter_value."""


def contrib_ops() -> list[type[OpRun]]:
    """Classes for `ReferenceEvaluator(new_ops=...)`."""
    return [MultiHeadAttention, GroupQueryAttention, SkipSimplifiedLayerNormalization]


def name_outputs(model: onnx.ModelProto) -> None:
    """Names the outputs that nobody asked for, in place.

    The evaluator keeps every output by its name; one without a name would be what a later node reads as an input that
    is left out.
    """
    taken = {name for node in model.graph.node for name in node.output}
    for number, node in enumerate(model.graph.node):
        for at, name in enumerate(node.output):
            unused = f"unused/{number}/{at}"
            while not name and unused in taken:
                unused += "_"
            node.output[at] = name or unused


class MultiHeadAttention(OpRun):
    """Inputs `[B,S,H*D]`, k and v also `[B,H,T,D]`, a key mask (lengths, or one for each key), an attention bias;
    or q, k and v as `[B,S,H,3,D]`, with what is added to them, `[3*H*D]`. No cache."""

    op_domain = "com.microsoft"

    def _run(self, q: Any, k: Any = None, v: Any = None, *rest: Any, **attributes: Any) -> tuple[Any, ...]:
        bias, padding, added, *more = (*rest, None, None, None)
        heads, low = attributes["num_heads"], attributes.get("mask_filter_value") or _LOW
        packed = q.ndim == 5
        _refuse("MultiHeadAttention", *((k, v) if packed else (bias,)), *more)
        if packed:
            together = np.moveaxis(q, 3, 0).reshape(3, *q.shape[:2], -1)
            q, k, v = together if bias is None else together + bias.reshape(3, 1, 1, -1)
        q, k, v = (value if value.ndim == 4 else _split(value, heads) for value in (q, k, v))
        extra = np.zeros((1, 1, 1, 1), np.float32) if added is None else added.astype(np.float32)
        keep = np.ones((1, 1, q.shape[2], k.shape[2]), bool)
        if attributes.get("unidirectional"):
            if q.shape[2] != k.shape[2]:
                raise ValueError(
                    f"unidirectional with {q.shape[2]} queries and {k.shape[2]} keys has no defined meaning."
                )
            keep = np.tril(keep)
        if padding is not None:
            by_key = np.arange(k.shape[2]) < padding[:, None] if padding.ndim == 1 else padding != 0
            keep = keep & by_key[:, None, None, :]
        with np.errstate(over="ignore"):
            extra = extra + np.where(keep, np.float32(0), np.float32(low))
        return (_attend(q, k, v, attributes, extra),)


class GroupQueryAttention(OpRun):
    """Inputs `[B,S,H*D]` and `[B,S,G*D]`, lengths, soft-cap; causal; no cache, no rotation, no window."""

    op_domain = "com.microsoft"

    def _run(self, q: Any, k: Any, v: Any, *rest: Any, **attributes: Any) -> tuple[Any, ...]:
        past_key, past_value, last, total, *more = rest
        _refuse("GroupQueryAttention", past_key, past_value, *more)
        if attributes.get("causal", 1) != 1 or attributes.get("local_window_size", -1) != -1:
            raise ValueError("GroupQueryAttention: lowered forms are causal and have no window; this one is different.")
        q, heads = _split(q, attributes["num_heads"]), attributes["num_heads"]
        groups = attributes["kv_num_heads"]
        k, v = (_split(value, groups) for value in (k, v))
        length = int(np.asarray(total).reshape(-1)[0])
        if not (q.shape[2] == k.shape[2] == length and ((last >= 0) & (last < length)).all()):
            raise ValueError(
                f"GroupQueryAttention: {q.shape[2]} queries, {k.shape[2]} keys, total {length}, last keys {last}."
            )
        keep = np.tril(np.ones((length, length), bool)) & (np.arange(length) <= last[:, None, None, None])
        wide_k, wide_v = (np.repeat(value, heads // groups, axis=1) for value in (k, v))
        extra = np.where(keep, np.float32(0), -np.float32(np.inf))
        return _attend(q, wide_k, wide_v, attributes, extra), k, v


class SkipSimplifiedLayerNormalization(OpRun):
    """The RMS norm of a sum over its last axis, in float32, times a weight; and the sum as the fourth output."""

    op_domain = "com.microsoft"

    def _run(self, x: Any, skip: Any, weight: Any, *rest: Any, **attributes: Any) -> tuple[Any, ...]:
        _refuse("SkipSimplifiedLayerNormalization", *rest)
        total = x + skip
        wide = total.astype(np.float32)
        mean = (wide * wide).mean(-1, keepdims=True)
        norm = (wide / np.sqrt(mean + np.float32(attributes["epsilon"]))).astype(x.dtype) * weight
        return norm, mean, mean, total


def _refuse(name: str, *given: Any) -> None:
    if any(value is not None for value in given):
        raise ValueError(f"{name}: it has an input that lowered forms do not use.")


def _split(value: Any, heads: int) -> Any:
    """`[B,S,H*D]` as `[B,H,S,D]`."""
    return value.reshape(*value.shape[:2], heads, -1).transpose(0, 2, 1, 3)


def _attend(q: Any, k: Any, v: Any, attributes: Any, extra: Any) -> Any:
    """softmax(softcap(scale q k^T) + extra) v as `[B,S,H*Dv]`, in float32, rounded to q's type at each product."""
    kind, wide = q.dtype, np.float32
    scale = attributes.get("scale") or 1 / math.sqrt(q.shape[-1])
    cap = attributes.get("softcap") or 0.0
    with np.errstate(all="ignore"):  # infinite scores are valid results here
        scores = (q.astype(wide) @ k.astype(wide).swapaxes(-1, -2) * wide(scale)).astype(kind).astype(wide)
        scores = np.tanh(scores / wide(cap)) * wide(cap) if cap else scores
        scores = scores + extra
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights = (weights / weights.sum(-1, keepdims=True)).astype(kind).astype(wide)
        mixed = (weights @ v.astype(wide)).astype(kind)
    return mixed.transpose(0, 2, 1, 3).reshape(mixed.shape[0], mixed.shape[2], -1)
