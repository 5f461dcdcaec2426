"""Exports a torch module to an ONNX graph whose dimensions stay dynamic, and counts its attentions.

The attentions are counted in the torch graph, before any ONNX exists, so that recognition can be compared with a number
that it did not produce itself.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from attnport.artifacts import IOContract, SourceAttention
from attnport.dims import TensorSpec
from attnport.errors import ExportError, first_line
from attnport.exporter.counting import count_attentions
from attnport.exporter.naming import name_dims, strip
from attnport.exporter.passes.rotary import write_out as write_out_rotary
from attnport.exporter.passes.sizes import settle_sizes
from attnport.exporter.sdpa_rank import to_rank_4
from attnport.exporter.tracing import quiet, trace

if TYPE_CHECKING:
    import onnx_ir as ir
    import torch

OPSET = 23


@dataclass(frozen=True)
class Capture:
    """An exported graph, and the attentions that were counted in the torch graph before."""

    model: ir.Model
    attentions: tuple[SourceAttention, ...]


def example_sizes(io_contract: IOContract) -> dict[str, int]:
    """Sizes to trace at: distinct primes where the range allows, never 1 (torch would specialise on it)."""
    sizes: dict[str, int] = {}
    primes = iter((3, 5, 7, 11, 13, 17, 19, 23))
    for dim in io_contract.dims:
        wanted = next(primes, 29)
        sizes[dim.name] = max(min(wanted, dim.max), dim.min)
    return sizes


def example_tensor(spec: TensorSpec, sizes: dict[str, int], *, is_mask: bool) -> torch.Tensor:
    """A tensor that fits `spec`: ones for masks, small token ids, normal floats; the same each time."""
    import torch

    shape = spec.shape(sizes)
    generator = torch.Generator().manual_seed(0)
    dtype: torch.dtype = getattr(torch, spec.dtype)
    if is_mask or dtype == torch.bool:
        return torch.ones(shape, dtype=dtype)
    if dtype.is_floating_point:
        return torch.randn(shape, generator=generator).to(dtype)
    return torch.randint(0, spec.high or 2, shape, generator=generator, dtype=dtype)


def capture(module: torch.nn.Module, contract: IOContract, *, opset: int = OPSET) -> Capture:
    """Exports `module` to ONNX with every named dim dynamic.

    Args:
        module: In eval mode; called with the contract's inputs by keyword.
        contract: Inputs, outputs and dims.
        opset: 23 or later, so that scaled_dot_product_attention stays one `Attention` node.

    Raises:
        ExportError: torch cannot export the module, or a dim froze; the message names the dim and its inputs.
    """
    exported, attentions = _exported(module, contract, opset)
    model: ir.Model = exported.model
    if len(model.graph.outputs) != len(contract.outputs):
        raise ExportError(
            f"the module returns {len(model.graph.outputs)} tensors; "
            f"{len(contract.outputs)} are declared: {', '.join(map(str, contract.outputs))}.",
            hint="Return a tensor or a flat tuple of tensors, one for each declared output.",
        )
    write_out_rotary(model)
    name_dims(model, contract)
    settle_sizes(model)
    strip(model)
    return Capture(model, attentions)


def named_program(module: torch.nn.Module, contract: IOContract, *, opset: int = OPSET) -> torch.export.ExportedProgram:
    """The torch graph behind an export; its nodes have the names of the exported graph's values.

    Args:
        module: As for `capture`; one cast to half precision is traced with feeds in half precision.

    Raises:
        ExportError: as `capture`.
    """
    exported, _ = _exported(module, contract, opset)
    if exported.exported_program is None:
        raise ExportError("torch.onnx kept no torch graph.", hint="Use a version of torch as in constraints.txt.")
    return exported.exported_program


def _exported(
    module: torch.nn.Module, contract: IOContract, opset: int
) -> tuple[torch.onnx.ONNXProgram, tuple[SourceAttention, ...]]:
    import torch

    sizes = example_sizes(contract)
    masks = {mask.input for mask in contract.masks}
    feeds = {spec.name: example_tensor(spec, sizes, is_mask=spec.name in masks) for spec in contract.inputs}
    narrow = next(
        (parameter.dtype for parameter in module.parameters() if parameter.dtype in (torch.float16, torch.bfloat16)),
        None,
    )
    if narrow is not None:
        feeds = {name: feed.to(narrow) if feed.is_floating_point() else feed for name, feed in feeds.items()}
    with quiet(), torch.no_grad():
        program = trace(module, contract, feeds)
        attentions = count_attentions(program.graph_module)
        to_rank_4(program)
        try:
            exported = torch.onnx.export(
                program,
                opset_version=opset,
                verbose=False,
                optimize=True,
                input_names=[spec.name for spec in contract.inputs],
                output_names=[spec.name for spec in contract.outputs],
            )
        except torch.onnx.OnnxExporterError as err:
            raise ExportError(
                f"torch.onnx cannot express the module: {_root(err)}",
                hint="The operator named above has no ONNX form at this opset; rewrite it with standard ones.",
            ) from err
        except Exception as err:  # the exporter's decompositions raise errors of any type
            raise ExportError(
                f"torch.onnx cannot express the module: {type(err).__name__}: {first_line(err)}",
                hint="Run with --traceback for torch's full message.",
            ) from err
    if exported is None:
        raise ExportError("torch.onnx returned no model.")
    return exported, attentions


def _root(err: BaseException) -> str:
    """The operator that failed and the first cause, which the exporter wraps in several errors with advice."""
    cause: BaseException = err
    operator = ""
    while cause.__cause__ is not None:
        cause = cause.__cause__
        target = re.search(r"target=(torch\.ops\.[\w.]+)", str(cause))
        operator = target.group(1) if target else operator
    return f"{operator}: {first_line(cause)}" if operator else first_line(cause)
