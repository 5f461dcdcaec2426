"""Facts about an ONNX file, which is not trusted: it is checked before anything is read from it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from attnport.errors import ArtifactError, root_line
from attnport.exporter.naming import all_nodes
from attnport.masks import MaskSpec

if TYPE_CHECKING:
    import onnx
    import onnx_ir as ir


@dataclass(frozen=True)
class GraphAttention:
    """An attention found in a graph.

    Attributes:
        node: The attention operator or the softmax.
        operator: `Attention`, `Softmax`, or a contrib operator such as `com.microsoft.MultiHeadAttention`.
        mask: What its mask means; empty where it was not recognised.
        reason: Why it was not recognised; empty where it was.
    """

    node: str
    operator: str
    mask: str
    reason: str

    def __str__(self) -> str:
        return f"{self.node}: {self.operator}, {f'mask {self.mask}' if self.mask else self.reason}"


@dataclass(frozen=True)
class GraphFacts:
    """An ONNX graph.

    Attributes:
        inputs: Inputs that are not weights, as `name=dtype[dims]`.
        opsets: Opset version by domain; "" is the standard's.
        operators: How often each operator occurs, subgraphs and functions included, the most frequent first.
        elements: Numbers in all weights.
        weights_bytes: Bytes of all weights, in the file and beside it.
        external: Names of the files beside it that hold weights.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    ir_version: int
    opsets: Mapping[str, int]
    producer: str
    operators: Mapping[str, int]
    attentions: tuple[GraphAttention, ...]
    elements: int
    weights_bytes: int
    external: tuple[str, ...]
    metadata: Mapping[str, str]


def graph_facts(path: Path, masks: Collection[MaskSpec] = ()) -> GraphFacts:
    """Reads an ONNX file; the weights beside it are checked but not loaded.

    Raises:
        ArtifactError: it is no ONNX model, is cut short or malformed, or its weights are missing, cut short or outside
            its folder.
    """
    model = load(path)
    graph = model.graph
    tensors = list(_tensors(model))
    operators = Counter(_operator(node) for node in all_nodes(model))
    return GraphFacts(
        inputs=tuple(_value(value) for value in graph.inputs if value.name not in graph.initializers),
        outputs=tuple(_value(value) for value in graph.outputs),
        ir_version=model.ir_version,
        opsets={_text(domain): version for domain, version in model.opset_imports.items()},
        producer=" ".join(_text(part) for part in (model.producer_name, model.producer_version) if part),
        operators=dict(sorted(operators.items(), key=lambda item: (-item[1], item[0]))),
        attentions=tuple(_attentions(model, masks)),
        elements=sum(tensor.size for tensor in tensors),
        weights_bytes=sum(tensor.nbytes for tensor in tensors),
        external=_external_files(path, tensors),
        metadata={_text(key): _text(value) for key, value in model.metadata_props.items()},
    )


def as_fused(path: Path) -> tuple[GraphAttention, ...]:
    """The attentions of a file after what `export` does to a graph before `fuse` reads it, such as settling sizes.

    It computes with what the file holds: a stranger's is given to a process with limits.

    Raises:
        ArtifactError: like `graph_facts`; ExportError: an operator has no form at the opset that `fuse` reads.
    """
    from attnport.exporter.imported import prepare

    return tuple(_attentions(prepare(load(path)), ()))


def load(path: Path) -> ir.Model:
    """Reads and checks the graph of an ONNX file; raises ArtifactError like `graph_facts`."""
    import onnx
    import onnx_ir as ir
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

    hint = "It was cut short or is another kind of file; export it again."
    try:
        proto = onnx.load(path, load_external_data=False)
        if not proto.HasField("graph") or not proto.opset_import:
            raise ArtifactError(
                f"{path} is not an ONNX model: it has no {'graph' if proto.opset_import else 'opset'}.", hint=hint
            )
        external_files(path, proto)
        onnx.checker.check_model(str(path))
        return ir.load(path)
    except OSError as err:
        raise ArtifactError(f"{path} cannot be read: {err.strerror or err}.") from err
    except DecodeError as err:
        raise ArtifactError(f"{path} is not an ONNX model: {err}.", hint=hint) from err
    except onnx.checker.ValidationError as err:
        if "hard link" not in str(err):
            raise ArtifactError(f"{path} is a malformed ONNX model: {root_line(err)}", hint=hint) from err
        raise ArtifactError(
            f"{path}: its file of weights is a hard link, which ONNX's checker refuses.",
            hint="Copy the folder in a way that copies its files, such as cp -r.",
        ) from err
    except (ir.serde.SerdeError, ValueError, KeyError, TypeError) as err:
        raise ArtifactError(f"{path} is a malformed ONNX model: {root_line(err)}", hint=hint) from err


def external_files(path: Path, proto: onnx.ModelProto) -> tuple[str, ...]:
    """The names of the files beside an ONNX file that hold its weights, sorted, each checked.

    Raises:
        ArtifactError: weights lie outside the folder, behind a link, in a missing file, or beyond the end of their
            file, which is how a truncated copy shows; the onnx checker does not refuse that.
    """
    from onnx import external_data_helper

    names = set[str]()
    for tensor in external_data_helper._get_all_tensors(proto):
        if not external_data_helper.uses_external_data(tensor):
            continue
        info = external_data_helper.ExternalDataInfo(tensor)
        file = path.parent / info.location
        inside = file.resolve().is_relative_to(path.parent.resolve())
        if not info.location or not inside or file.is_symlink():
            raise ArtifactError(
                f"{path}: tensor {tensor.name!r} has its data in {info.location!r}, outside the model's folder.",
                hint="Do not open it, or export the model again.",
            )
        if not file.is_file():
            raise ArtifactError(f"{path}: tensor {tensor.name!r} has its data in {file}, which is missing.")
        end, size = (info.offset or 0) + (info.length or 0), file.stat().st_size
        if end > size:
            raise ArtifactError(
                f"{file} is cut short: got {size} bytes; tensor {tensor.name!r} of {path.name} ends at {end}.",
                hint="Copy or export it again.",
            )
        names.add(info.location)
    return tuple(sorted(names))


def _text(value: str | bytes | None) -> str:
    """A string of a protobuf message, which is `bytes` if it is not valid UTF-8."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value or ""


def _operator(node: ir.Node) -> str:
    return f"{_text(node.domain)}.{_text(node.op_type)}" if node.domain else _text(node.op_type)


def _tensors(model: ir.Model) -> list[ir.TensorProtocol]:
    """Every weight, those of subgraphs too."""
    graphs = [model.graph, *model.graph.subgraphs()]
    values = [value for graph in graphs for value in graph.initializers.values()]
    return [value.const_value for value in values if value.const_value is not None]


def _external_files(path: Path, tensors: list[ir.TensorProtocol]) -> tuple[str, ...]:
    import onnx_ir as ir

    return tuple(sorted({str(tensor.location) for tensor in tensors if isinstance(tensor, ir.ExternalTensor)}))


def _value(value: ir.Value) -> str:
    """A value as `name=dtype[dims]`, with `?` for what the file does not say."""
    dtype = value.dtype.numpy().name if value.dtype is not None else "?"
    dims = "?" if value.shape is None else ",".join(_dim(dim) for dim in value.shape)
    return f"{_text(value.name)}={dtype}[{dims}]"


def _dim(dim: int | ir.SymbolicDim) -> str:
    return str(dim) if isinstance(dim, int) else _text(dim.value or "?")


def _attentions(model: ir.Model, masks: Collection[MaskSpec]) -> list[GraphAttention]:
    """Every attention operator, and every softmax whose result reaches a matrix product, recognised or not."""
    from attnport.exporter.fusion.recognise import Recognised, matched, rule_modules

    known = {rule.OP_TYPE for rule in rule_modules()}
    attentions = []
    for node in model.graph:
        name, operator, found = _text(node.name), _operator(node), matched(node, masks)
        if isinstance(found, Recognised):
            attentions.append(GraphAttention(name, operator, str(found.mask.spec), ""))
        elif found is not None:
            attentions.append(GraphAttention(name, operator, "", found.reason))
        elif operator not in known and operator.endswith("Attention"):
            attentions.append(GraphAttention(name, operator, "", "a runtime's own attention operator"))
    return attentions
