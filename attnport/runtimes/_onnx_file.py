"""Checks an ONNX file before a runtime opens it: it must be readable, self-contained, and fit contract and plan."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from attnport.artifacts import OWN_HALF, PLANS, IOContract
from attnport.errors import ArtifactError, IntegrityError, whole_cause
from attnport.example_values import continued
from attnport.runtimes._session import check_names
from attnport.runtimes.base import Opening
from attnport_bundle.format.contract import dims_in, evaluate

if TYPE_CHECKING:
    import onnx

_HALVES = ("float16", "bfloat16")


def read_graph(path: Path) -> onnx.ModelProto:
    """The model without its external data, so that it is small.

    Raises:
        ArtifactError: the file is missing or is not an ONNX model.
        IntegrityError: its external data lies outside its folder.
    """
    import onnx

    try:
        model = onnx.load_model(path, load_external_data=False)
    except OSError as err:
        raise ArtifactError(f"{path} cannot be read: {err.strerror}.") from err
    except Exception as err:  # protobuf's DecodeError; protobuf is not a dependency of ours
        raise broken(path, err) from err
    if not model.graph.node and not model.graph.output:
        raise ArtifactError(f"{path} is not an ONNX model: it has no graph.", hint="Make it again.")
    for tensor in _tensors(model.graph):
        for entry in tensor.external_data:
            place = PurePosixPath(entry.value)
            if entry.key == "location" and (place.is_absolute() or ".." in place.parts):
                raise IntegrityError(
                    f"{path}: tensor {tensor.name!r} takes its data from {entry.value!r}, outside the model's folder."
                )
    return model


def broken(path: Path, err: BaseException) -> ArtifactError:
    """The error of a file that a runtime cannot read."""
    return ArtifactError(
        f"{path} cannot be read as a model: {whole_cause(err)}",
        hint="It was cut short, changed, or made for another version; make it again.",
    )


def checked_model(opening: Opening) -> tuple[Path, onnx.ModelProto]:
    """The file of an opening and its graph, after checking them against the contract and the plan.

    Raises:
        ArtifactError: the file is unreadable, or its inputs, outputs or precision are not those of contract and plan.
        IntegrityError: its external data lies outside its folder.
    """
    assert opening.model is not None
    model = read_graph(opening.model)
    weights = {tensor.name for tensor in model.graph.initializer}
    inputs = [value.name for value in model.graph.input if value.name not in weights]
    check_names(opening.io, inputs, [value.name for value in model.graph.output], str(opening.model))
    declared = {spec.name for spec in (*opening.io.inputs, *opening.io.outputs) if spec.dtype in _HALVES}
    plan = PLANS[opening.plan]
    # Beside integers, bf16 is a setting of the runtime.
    wanted = {plan.half.upper()} if plan.half and not plan.bits else set()
    used = half_types(model, but=declared if half_types(model) != wanted else ())
    own = {kind for entry in model.metadata_props if entry.key == OWN_HALF for kind in entry.value.split(",")}
    wanted, used = wanted - own, used - own
    # Islands of a model without attention have nothing in half precision, and the plan auto may keep all in float32.
    if used != wanted and not ((plan.islands or plan.searched) and not used):
        raise ArtifactError(
            f"{opening.model} was opened as {opening.plan}, which has "
            f"{' and '.join(sorted(wanted)) or 'no half-precision'} tensors; it has "
            f"{' and '.join(sorted(used)) or 'none'}.",
            hint="Open the form that was made for this plan.",
        )
    return opening.model, model


def half_types(model: onnx.ModelProto, but: Collection[str] = ()) -> set[str]:
    """Those of FLOAT16 and BFLOAT16 that occur in weights, inputs, outputs, casts or constants, also in functions.

    Args:
        but: Inputs and outputs that do not count: a contract may have them in half precision at any plan.
    """
    import onnx

    kinds = {onnx.TensorProto.FLOAT16: "FLOAT16", onnx.TensorProto.BFLOAT16: "BFLOAT16"}
    types = {tensor.data_type for tensor in _tensors(model.graph)}
    ends = (*model.graph.input, *model.graph.output)
    types |= {value.type.tensor_type.elem_type for value in ends if value.name not in but}
    for node in _nodes(model):
        types |= {attribute.i for attribute in node.attribute if node.op_type == "Cast" and attribute.name == "to"}
        types |= {attribute.t.data_type for attribute in node.attribute if attribute.HasField("t")}
    return {kinds[kind] for kind in types if kind in kinds}


def external_files(model: onnx.ModelProto) -> tuple[str, ...]:
    """The names of the files beside a model that hold its weights."""
    entries = (entry for tensor in _tensors(model.graph) for entry in tensor.external_data)
    return tuple(sorted({entry.value for entry in entries if entry.key == "location"}))


def _tensors(graph: Any) -> Iterator[Any]:
    yield from graph.initializer
    for node in walk(graph.node):
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            if attribute.HasField("g"):
                yield from attribute.g.initializer


def _nodes(model: Any) -> Iterator[Any]:
    yield from walk(model.graph.node)
    for function in model.functions:
        yield from walk(function.node)


def walk(nodes: Any) -> Iterator[Any]:
    """Nodes, each followed by those of its branches."""
    for node in nodes:
        yield node
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from walk(attribute.g.node)


def small_feeds(
    model: onnx.ModelProto, io: IOContract | None = None, given: Mapping[str, int] | None = None
) -> dict[str, Any]:
    """Feeds that most models take: small sizes that `io` allows, 2 without it, zeros (valid ids), True for booleans.

    Args:
        given: The sizes of some named dims.
    """
    import numpy as np
    import onnx

    weights = {tensor.name for tensor in model.graph.initializer}
    feeds: dict[str, Any] = {}
    sizes = {dim.name: dim.at_least(2) for dim in io.dims} if io is not None else {}
    sizes |= given or {}
    examples = io.examples if io is not None else {}
    for value in model.graph.input:
        if value.name in weights:
            continue
        tensor = value.type.tensor_type
        shape = [
            dim.dim_value if dim.HasField("dim_value") else _small_size(dim.dim_param, sizes)
            for dim in tensor.shape.dim
        ]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        feeds[value.name] = np.full(shape, dtype == np.bool_, dtype)
        if value.name in examples:
            feeds[value.name] = continued(examples[value.name], tuple(shape)).astype(dtype)
    return feeds


def _small_size(dim: str, sizes: Mapping[str, int]) -> int:
    """The size of a named dim, 2 if there is none; its name may be an expression of others, such as `past+seq`."""
    try:
        return evaluate(dim, {name: sizes.get(name, 2) for name in dims_in(dim)})
    except ValueError:
        return 2
