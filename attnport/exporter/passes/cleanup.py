"""Removes what a graph does not use, sorts it, and infers its types."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx_ir as ir


def clean_up(model: ir.Model) -> None:
    """Removes unused nodes, initializers and opsets; sorts; infers types."""
    import onnx_ir.passes.common as passes

    passes.RemoveUnusedNodesPass()(model)
    passes.RemoveUnusedOpsetsPass()(model)
    passes.TopologicalSortPass()(model)
    passes.ShapeInferencePass(data_prop=False)(model)


def inline_functions(model: ir.Model) -> None:
    """Inlines the model's own functions, so that every pass sees every node."""
    import onnx_ir.passes.common as passes

    if model.functions:
        passes.InlinePass()(model)
        passes.RemoveUnusedFunctionsPass()(model)  # type: ignore[no-untyped-call]  # its __init__ has no types
        clean_up(model)
