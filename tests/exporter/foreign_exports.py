"""Graphs as other people export them: torch's older exporter, and its present one at any opset, called plainly."""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Collection, Iterator

import onnx
import onnx_ir as ir
import torch
from torch import nn

from attnport.artifacts import IOContract
from attnport.dims import distinct_sizes
from attnport.exporter.capture import example_tensors
from attnport.exporter.patching import quiet, traceable


@contextlib.contextmanager
def _plainly(module: nn.Module) -> Iterator[None]:
    with warnings.catch_warnings(), quiet(), traceable(module), torch.no_grad():
        warnings.simplefilter("ignore")  # the older exporter warns that it is the older one
        yield


def _sample(contract: IOContract) -> dict[str, torch.Tensor]:
    found = example_tensors(contract, distinct_sizes(contract.dims))
    for spec in contract.inputs:
        if spec.name == "attention_mask":
            found[spec.name] = torch.ones_like(found[spec.name])
        elif spec.dtype == "bool":
            found[spec.name] = torch.zeros_like(found[spec.name])
    return found


def scripted(module: nn.Module, contract: IOContract, opset: int, *, fixed: Collection[str] = ()) -> ir.Model:
    """By the TorchScript exporter; the dims in `fixed` keep the size that they were traced at."""
    buffer = io.BytesIO()
    axes = {
        spec.name: {axis: dim for axis, dim in enumerate(spec.dims) if isinstance(dim, str) and dim not in fixed}
        for spec in (*contract.inputs, *contract.outputs)
    }
    with _plainly(module):
        torch.onnx.export(
            module, (), buffer, kwargs=_sample(contract), opset_version=opset, dynamo=False, dynamic_axes=axes,
            input_names=[spec.name for spec in contract.inputs], output_names=[spec.name for spec in contract.outputs],
        )  # fmt: skip
    return ir.from_proto(onnx.load_model_from_string(buffer.getvalue()))


def exported(module: nn.Module, contract: IOContract, opset: int) -> ir.Model:
    """By torch's present exporter."""
    dims = {dim.name: torch.export.Dim(dim.name, min=dim.min, max=dim.max) for dim in contract.dims}
    shapes = {
        spec.name: {axis: dims[dim] for axis, dim in enumerate(spec.dims) if isinstance(dim, str)}
        for spec in contract.inputs
    }
    with _plainly(module):
        program = torch.onnx.export(
            module, (), kwargs=_sample(contract), opset_version=opset, dynamo=True, dynamic_shapes=shapes,
            verbose=False, input_names=[spec.name for spec in contract.inputs],
            output_names=[spec.name for spec in contract.outputs],
        )  # fmt: skip
    assert program is not None
    return ir.from_proto(program.model_proto)
