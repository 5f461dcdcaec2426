"""From a torch module to an ONNX graph whose dimensions stay dynamic, and the count of its attentions.

The attentions are counted in the torch graph, before any ONNX exists, so that recognition can be held against a number
that it did not produce itself.
"""

from __future__ import annotations

import contextlib
import io
import logging
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from attnport.artifacts import IOContract, SourceAttention
from attnport.dims import TensorSpec
from attnport.errors import ExportError, first_line
from attnport.exporter.one_head import add_head_axis
from attnport.exporter.passes.rotary import write_out as write_out_rotary

if TYPE_CHECKING:
    import onnx_ir as ir
    import torch

OPSET = 23
SCOPES = "pkg.torch.onnx.name_scopes"
"""The one piece of the exporter's metadata that stays: the module path of each node."""

# Between a softmax and the product that uses it, these change layout, type or a few elements, not the meaning.
_TRANSPARENT = {
    "view",
    "reshape",
    "_unsafe_view",
    "transpose",
    "permute",
    "unsqueeze",
    "squeeze",
    "expand",
    "clone",
    "contiguous",
    "to",
    "_to_copy",
    "type_as",
    "alias",
    "dropout",
    "native_dropout",
    "masked_fill",
    "where",
    "nan_to_num",
    "mul",
    "div",
    "add",
    "sub",
    "slice",
    "getitem",
    "detach",
    "flatten",
    "unflatten",
    "exp",
    "repeat",
    "expand_as",
    "view_as",
    "half",
    "float",
    "type",
    "cat",
    "split",
    "chunk",
}
_PRODUCTS = {
    "matmul",
    "bmm",
    "baddbmm",
    "mm",
    "einsum",
}
_SOFTMAXES = {
    "softmax",
    "_softmax",
    "special_softmax",
    "log_softmax",
    "_log_softmax",
    "_safe_softmax",
}


@dataclass(frozen=True)
class Capture:
    """An exported graph and what was counted before it was one."""

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
        ExportError: torch cannot export the module, or a dim froze; names the dim and the inputs that have it.
    """
    import torch

    sizes = example_sizes(contract)
    masks = {mask.input for mask in contract.masks}
    feeds = {spec.name: example_tensor(spec, sizes, is_mask=spec.name in masks) for spec in contract.inputs}
    with quiet():
        program = _export_program(module, contract, feeds)
        attentions = count_attentions(program.graph_module)
        add_head_axis(program)
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
        except Exception as err:  # the exporter's own decompositions raise whatever they meet
            raise ExportError(
                f"torch.onnx cannot express the module: {type(err).__name__}: {first_line(err)}",
                hint="Run with --traceback for torch's full account.",
            ) from err
    if exported is None:
        raise ExportError("torch.onnx returned no model.")
    model: ir.Model = exported.model
    if len(model.graph.outputs) != len(contract.outputs):
        raise ExportError(
            f"the module returns {len(model.graph.outputs)} tensors; "
            f"{len(contract.outputs)} are declared: {', '.join(map(str, contract.outputs))}.",
            hint="Return a tensor or a flat tuple of tensors, one for each declared output.",
        )
    write_out_rotary(model)
    _name_dims(model, contract)
    _strip(model)
    return Capture(model, attentions)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keeps torch's exporter from printing progress and warnings that are about itself."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "torch.export", "onnxscript", "torch.fx")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _export_program(
    module: torch.nn.Module, contract: IOContract, feeds: dict[str, torch.Tensor]
) -> torch.export.ExportedProgram:
    import torch

    dims = {dim.name: torch.export.Dim(dim.name, min=dim.min, max=dim.max) for dim in contract.dims}
    dynamic = {
        spec.name: {axis: dims[dim] for axis, dim in enumerate(spec.dims) if isinstance(dim, str)}
        for spec in contract.inputs
    }
    try:
        with torch.no_grad():
            return torch.export.export(module, (), kwargs=dict(feeds), dynamic_shapes=dynamic, strict=False)
    except Exception as err:  # torch.export raises whatever the module's own code raises under tracing
        frozen = _frozen_dims(contract, str(err)) if isinstance(err, torch._dynamo.exc.UserError) else ""
        if frozen:
            raise ExportError(
                f"{frozen}.",
                hint="Look for int(x.shape[i]), x.view with a literal size, or Python control flow on a size.",
            ) from err
        raise ExportError(
            f"torch.export cannot trace the module: {type(err).__name__}: {first_line(err)}",
            hint="Run with --traceback for torch's full account.",
        ) from err


def _frozen_dims(contract: IOContract, refusal: str) -> str:
    """The dims that torch.export says the code decided on, as `dim 'seq' of input 'x' (axis 1), ... froze: ...`, or "".

    Its message is the only place: the refused program is not given out, and one traced with sizes that torch may
    choose shows what became a constant, but not what the code branched on.
    """
    violated = re.search(r"Constraints violated \(([^)]*)\)", refusal)
    known = {dim.name for dim in contract.dims}
    found = [name.strip() for name in violated[1].split(",") if name.strip() in known] if violated else []
    told = []
    for name in found:
        places = [f"{spec.name!r} (axis {spec.dims.index(name)})" for spec in contract.inputs if name in spec.dims]
        constant = re.search(rf"You marked {name} as dynamic but your code specialized it .*?\((\d+)\)", refusal)
        guard = re.search(rf"Not all values of {name} = .*? satisfy the generated guard (.*)", refusal)
        why = "the module's code turns it into a constant"
        if constant:
            why = f"the module's code turns it into the constant {constant[1]}"
        elif guard:
            why = f"the module's code branches on it ({guard[1].strip().rstrip('.')})"
        told.append(f"dim {name!r} of input {', '.join(places)} froze at the traced size: {why}")
    return "; ".join(told)


def count_attentions(program: torch.fx.GraphModule) -> tuple[SourceAttention, ...]:
    """Every scaled_dot_product_attention call, and every softmax whose result reaches a matrix product, in order.

    Branches of control flow (`torch.cond`) are graphs inside `program` and are counted with it, after it.
    """
    import torch

    found: list[SourceAttention] = []
    seen: dict[str, int] = {}
    graphs = [each.graph for each in program.modules() if isinstance(each, torch.fx.GraphModule)]
    for node in (node for graph in graphs for node in graph.nodes):
        operator = _operator(node)
        if "scaled_dot_product" in operator and "attention" in operator:
            call = "scaled_dot_product_attention"
        elif operator in _SOFTMAXES and _reaches_product(node):
            call = "softmax"
        else:
            continue
        module = module_path(node)
        seen[module] = seen.get(module, 0) + 1
        name = module or "module"
        found.append(SourceAttention(name if seen[module] == 1 else f"{name}#{seen[module] - 1}", module, call))
    return tuple(found)


def module_path(node: torch.fx.Node) -> str:
    """The path of the module whose forward made the call, as in `named_modules`; "" for the outermost."""
    stack = node.meta.get("nn_module_stack") or {}
    paths = [entry[0] if isinstance(entry, tuple) else "" for entry in stack.values()]
    return str(paths[-1]) if paths else ""


def _operator(node: Any) -> str:
    """`softmax` for `aten.softmax.int`; "" for what is no call."""
    if node.op != "call_function":
        return ""
    return str(getattr(node.target, "__name__", node.target)).split(".")[0]


def _reaches_product(softmax: Any) -> bool:
    pending, seen = list(softmax.users), set()
    while pending:
        node = pending.pop()
        if node in seen:
            continue
        seen.add(node)
        operator = _operator(node)
        if operator in _PRODUCTS:
            return True
        if operator in _TRANSPARENT:
            pending.extend(node.users)
    return False


def _name_dims(model: ir.Model, contract: IOContract) -> None:
    """Gives the graph's symbolic dims (`s18`) the contract's names (`batch`), on every value."""
    import onnx_ir as ir

    names: dict[str, str] = {}
    for value, spec in zip(model.graph.inputs, contract.inputs, strict=True):
        if value.shape is None:
            continue
        for axis, dim in enumerate(spec.dims):
            symbol = value.shape[axis]
            if isinstance(dim, str) and isinstance(symbol, ir.SymbolicDim) and symbol.value:
                names[symbol.value] = dim
    for value in all_values(model):
        if value.shape is not None:
            value.shape = ir.Shape([_named(dim, names) for dim in value.shape])
    for value, spec in zip(model.graph.inputs, contract.inputs, strict=True):
        value.shape = ir.Shape(list(spec.dims))
    for value, spec in zip(model.graph.outputs, contract.outputs, strict=True):
        value.shape = ir.Shape(list(spec.dims))


def _named(dim: Any, names: dict[str, str]) -> int | str | None:
    if isinstance(dim, int):
        return dim
    symbol = dim.value
    if not symbol:
        return None
    # Expressions such as "Min(512, s41)" are the tracer's private notes, and other readers take them as names: each
    # gets a plain name, so that equal sizes are still known to be equal.
    if symbol not in names:
        number = len(names)
        while f"size{number}" in names.values():
            number += 1
        names[symbol] = f"size{number}"
    return names[symbol]


def all_values(model: ir.Model) -> Iterator[ir.Value]:
    """Every value: inputs, initializers and node outputs of the graph, its branches and the model's functions."""
    for graph in (model.graph, *model.graph.subgraphs()):
        yield from graph.inputs
        yield from graph.initializers.values()
    for function in model.functions.values():
        yield from function.inputs
    for node in all_nodes(model):
        yield from node.outputs


def all_nodes(model: ir.Model) -> Iterator[ir.Node]:
    """Every node of the graph, its branches and the model's functions."""
    yield from model.graph.all_nodes()
    for function in model.functions.values():
        yield from function.all_nodes()


def _strip(model: ir.Model) -> None:
    """Drops stack traces, source lines and builder paths; keeps each node's module path."""
    model.metadata_props.clear()
    model.doc_string = None
    for graph in (model.graph, *model.graph.subgraphs()):
        graph.metadata_props.clear()
        graph.doc_string = None
    for function in model.functions.values():
        function.metadata_props.clear()
        function.doc_string = None
    for node in all_nodes(model):
        scopes = node.metadata_props.get(SCOPES)
        node.metadata_props.clear()
        node.doc_string = None
        if scopes:
            node.metadata_props[SCOPES] = scopes
    for value in all_values(model):
        value.metadata_props.clear()
        value.doc_string = None


def _root(err: BaseException) -> str:
    """The first cause, which the exporter wraps in several layers of advice, and the operator it met."""
    cause: BaseException = err
    operator = ""
    while cause.__cause__ is not None:
        cause = cause.__cause__
        found = re.search(r"target=(torch\.ops\.[\w.]+)", str(cause))
        operator = found.group(1) if found else operator
    return f"{operator}: {first_line(cause)}" if operator else first_line(cause)
