"""An ONNX file before a runtime gets it: readable, self-contained, and of the precision plan it is opened as."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from attnport.artifacts import AUTO
from attnport.errors import ArtifactError, IntegrityError, UsageError, first_line
from attnport.runtimes._session import check_names
from attnport.runtimes.base import Opening

if TYPE_CHECKING:
    import onnx

_HALF_OF_PLAN = {"fp16": "FLOAT16", "bf16": "BFLOAT16", AUTO: "FLOAT16"}


def read_graph(path: Path) -> onnx.ModelProto:
    """The model without its external data: small whatever the model's size.

    Raises:
        ArtifactError: the file is missing or is no ONNX model.
        IntegrityError: its external data lies outside its folder.
    """
    import onnx

    try:
        model = onnx.load_model(path, load_external_data=False)
    except OSError as err:
        raise ArtifactError(f"{path} cannot be read: {err.strerror}.") from err
    except Exception as err:  # protobuf's DecodeError, whose package is not ours to import
        raise broken(path, err) from err
    if not model.graph.node and not model.graph.output:
        raise ArtifactError(f"{path} is no ONNX model: it has no graph.", hint="Make it again.")
    for tensor in _tensors(model.graph):
        for entry in tensor.external_data:
            place = PurePosixPath(entry.value)
            if entry.key == "location" and (place.is_absolute() or ".." in place.parts):
                raise IntegrityError(
                    f"{path}: tensor {tensor.name!r} wants its data from {entry.value!r}, outside the model's folder."
                )
    return model


def broken(path: Path, err: BaseException) -> ArtifactError:
    """The error of a file that a runtime cannot read."""
    return ArtifactError(
        f"{path} is no model that can be read: {first_line(err)}",
        hint="It was cut short, changed, or made for another version; make it again.",
    )


def checked_model(runtime: str, opening: Opening) -> tuple[Path, onnx.ModelProto]:
    """The file of an opening and its graph, after checking them against the contract and the plan.

    Raises:
        UsageError: no file was given.
        ArtifactError: unreadable, other inputs or outputs than the contract's, or another precision than the plan's.
        IntegrityError: external data outside the folder.
    """
    if opening.model is None:
        raise UsageError(f"{runtime} opens an ONNX file; got none.")
    model = read_graph(opening.model)
    held = {tensor.name for tensor in model.graph.initializer}
    inputs = [value.name for value in model.graph.input if value.name not in held]
    check_names(opening.io, inputs, [value.name for value in model.graph.output], str(opening.model))
    found = half_types(model)
    wanted = {_HALF_OF_PLAN[half] for half in _HALF_OF_PLAN if opening.plan.startswith(half)}
    # Without attention there is nothing in half precision in one plan, and the other may keep all in float32.
    if found != wanted and not (opening.plan.endswith(("_islands", AUTO)) and not found):
        raise ArtifactError(
            f"{opening.model} was opened as {opening.plan}, which has "
            f"{' and '.join(sorted(wanted)) or 'no half-precision'} tensors; it has "
            f"{' and '.join(sorted(found)) or 'none'}.",
            hint="Open the form that was made for this plan.",
        )
    return opening.model, model


def half_types(model: onnx.ModelProto) -> set[str]:
    """Which of FLOAT16 and BFLOAT16 occur in weights, inputs, outputs, casts or constants, in functions too."""
    import onnx

    kinds = {onnx.TensorProto.FLOAT16: "FLOAT16", onnx.TensorProto.BFLOAT16: "BFLOAT16"}
    found = {tensor.data_type for tensor in _tensors(model.graph)}
    found |= {value.type.tensor_type.elem_type for value in (*model.graph.input, *model.graph.output)}
    for node in _nodes(model):
        found |= {attribute.i for attribute in node.attribute if node.op_type == "Cast" and attribute.name == "to"}
        found |= {attribute.t.data_type for attribute in node.attribute if attribute.HasField("t")}
    return {kinds[kind] for kind in found if kind in kinds}


def external_files(model: onnx.ModelProto) -> tuple[str, ...]:
    """The files beside a model that hold its weights, each once."""
    entries = (entry for tensor in _tensors(model.graph) for entry in tensor.external_data)
    return tuple(sorted({entry.value for entry in entries if entry.key == "location"}))


def _tensors(graph: Any) -> Iterator[Any]:
    yield from graph.initializer
    for node in _walk(graph.node):
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            if attribute.HasField("g"):
                yield from attribute.g.initializer


def _nodes(model: Any) -> Iterator[Any]:
    yield from _walk(model.graph.node)
    for function in model.functions:
        yield from _walk(function.node)


def _walk(nodes: Any) -> Iterator[Any]:
    for node in nodes:
        yield node
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _walk(attribute.g.node)


def small_feeds(model: onnx.ModelProto, size: int = 2) -> dict[str, Any]:
    """Feeds that any model takes: `size` for each symbolic dim, zeros (an id that every table has), True for masks."""
    import numpy as np
    import onnx

    held = {tensor.name for tensor in model.graph.initializer}
    feeds: dict[str, Any] = {}
    for value in model.graph.input:
        if value.name in held:
            continue
        tensor = value.type.tensor_type
        shape = [dim.dim_value if dim.HasField("dim_value") else size for dim in tensor.shape.dim]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        feeds[value.name] = np.full(shape, dtype == np.bool_, dtype)
    return feeds
