"""ONNX's reference evaluator, which computes as the standard defines, in the types that a graph declares.

It computes a lowered form without the runtime that the form is for, such as a half-precision TensorRT graph on a
machine without a GPU. It is slow.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from attnport.artifacts import IOContract, Ran, Session
from attnport.runtimes.base import Array, CheckedSession, Opening, Runtime, broken, checked_model, half_types, refused

if TYPE_CHECKING:
    import onnx


class OnnxReference(Runtime):
    """The reference evaluator of the `onnx` package, with faster and truer half-precision operators, and with ONNX
    Runtime's attention operators."""

    name = "onnx_reference"
    opens = "onnx"
    package = "onnx"
    timed = False
    isolated = False
    distributions = ("onnx", "ml-dtypes", "numpy")

    def able(self) -> dict[str, Any]:
        """Computes models up to the newest opset."""
        return {"max_opset": int(self.module().defs.onnx_opset_version())}

    def session(self, opening: Opening) -> Session:
        """Opens any form, of any plan whose types its graph declares."""
        from onnx.external_data_helper import load_external_data_for_model
        from onnx.reference import ReferenceEvaluator

        from attnport.runtimes._reference_ops import contrib_ops, name_outputs, replacements

        path, model = checked_model(opening)
        opset = next((entry.version for entry in model.opset_import if not entry.domain), 0)
        try:
            if half_types(model):
                model = _expanded(model)
            load_external_data_for_model(model, str(path.parent))
            name_outputs(model)
            evaluator = ReferenceEvaluator(model, new_ops=[*replacements(opset), *contrib_ops()])
        except Exception as err:  # a runtime's own exceptions share no base
            raise broken(path, err) from err
        types = {value.name: value.type.tensor_type.elem_type for value in model.graph.input}
        return _ReferenceSession(opening.io, evaluator, opening.plan, types)


def _expanded(model: onnx.ModelProto) -> onnx.ModelProto:
    """Replaces `Attention` by the standard's own definition of it, so that our products and softmax are used.

    The evaluator computes the operator in numpy, which is very slow in half precision.
    """
    from onnx.inliner import inline_selected_functions
    from onnx.shape_inference import infer_shapes

    return inline_selected_functions(infer_shapes(model), [("", "Attention")], inline_schema_functions=True)


class _ReferenceSession(CheckedSession):
    def __init__(self, io: IOContract, evaluator: Any, plan: str, types: Mapping[str, int]) -> None:
        import onnx

        super().__init__(io, Ran("CPU", f"onnx.reference {onnx.__version__}", plan))
        self._evaluator = evaluator
        # The contract is the same for every plan: a form in half precision has float16 where it says float32.
        dtypes = {name: onnx.helper.tensor_dtype_to_np_dtype(kind) for name, kind in types.items()}
        self._floats = {spec.name: dtypes[spec.name] for spec in io.inputs if "float" in spec.dtype}
        self._names = [spec.name for spec in io.outputs]

    def _run(self, feeds: Mapping[str, Array]) -> Mapping[str, Array]:
        # Hidden scores are -inf, and half precision may overflow: both are valid results here.
        with np.errstate(all="ignore"), refused("onnx.reference", feeds):
            cast = {name: feeds[name].astype(dtype, copy=False) for name, dtype in self._floats.items()}
            outputs = self._evaluator.run(self._names, {**feeds, **cast})
        return dict(zip(self._names, outputs, strict=True))

    def _free(self) -> None:
        self._evaluator = None


RUNTIME = OnnxReference()
