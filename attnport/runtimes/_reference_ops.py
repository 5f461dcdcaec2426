"""Operators for ONNX's reference evaluator that are faster, or truer to half precision, than its own.

In half precision an operator here takes half-precision tensors, computes in float32 internally and rounds once, as
tensor cores, torch and TensorRT do. The evaluator's own operators round after every numpy call; their sums in bfloat16
stop growing at 256 terms, and a half-precision product in numpy takes minutes. Results are still rounded *between*
operators, so that scores can overflow: finding that is what such a graph is run for.

Casts and products are PyTorch's: numpy casts one element at a time, which was most of the time of a half-precision
graph.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
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
