"""Operators for ONNX's reference evaluator: faster ones, or truer to half precision, than its own; and those of ONNX
Runtime, as `contrib` computes them.

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
import onnx
from onnx.reference.op_run import OpRun
from onnx.reference.ops import load_op

from attnport.contrib import SCHEMAS, evaluate
from attnport.onnx_graph import CONTRIB
from attnport.runtimes.torch_eager import to_array, to_tensor

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
    return to_tensor(np.asarray(array)).float().numpy()


def _narrow(array: Any, half: np.dtype[Any]) -> Any:
    """A float32 array rounded to half precision."""
    import torch

    kind = torch.float16 if half == np.float16 else torch.bfloat16
    return to_array(torch.from_numpy(np.ascontiguousarray(array)).to(kind)).reshape(array.shape)


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


def contrib_ops() -> list[type[OpRun]]:
    """Classes for `ReferenceEvaluator(new_ops=...)`."""
    return [_contrib(name) for name in SCHEMAS]


def _contrib(name: str) -> type[OpRun]:
    def run(self: Any, *inputs: Any, **_: Any) -> tuple[Any, ...]:
        # The evaluator also passes the defaults of an operator of ONNX's that has the same name.
        attributes = {one.name: onnx.helper.get_attribute_value(one) for one in self.onnx_node.attribute}
        if name == "GroupQueryAttention":
            inputs = _without_padding(*inputs)
        tensors = [None if array is None else to_tensor(np.asarray(array)) for array in inputs]
        return tuple(to_array(tensor) for tensor in evaluate(name, tensors, attributes))

    return type(name, (OpRun,), {"op_domain": CONTRIB, "_run": run})


def _without_padding(*inputs: Any) -> tuple[Any, ...]:
    """Inputs of `GroupQueryAttention` with a bias that hides the keys of padding, from queries in padding as well.

    What the operator gives for these is not said anywhere; lowered forms rely on what its CPU kernels do.
    """
    last, total, size = np.asarray(inputs[5]), int(np.asarray(inputs[6]).reshape(-1)[0]), inputs[0].shape[1]
    if not (size <= total and ((last >= 0) & (last < total)).all()):
        raise ValueError(f"GroupQueryAttention: {size} queries, total {total}, last keys {last}.")
    hidden = np.arange(total) > last.reshape(-1, 1, 1, 1)
    given = [*inputs, *[None] * (11 - len(inputs))]
    bias = np.where(hidden, np.float32(-np.inf), np.float32(0)) + (0 if given[10] is None else given[10])
    return (*given[:10], bias, *given[11:])


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
