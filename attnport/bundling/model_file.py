"""What an ONNX form in a bundle needs: its weights files, and the oldest ONNX Runtime that opens it."""

from __future__ import annotations

from pathlib import Path

from attnport.errors import ArtifactError, IntegrityError
from attnport.onnx_graph import CONTRIB
from attnport.onnx_walk import references, walk

# Opset, IR version and the oldest ONNX Runtime that loads them, measured with models on 1.22 to 1.31.
_OLDEST = ((23, 11, "1.23"), (25, 13, "1.24"), (26, 13, "1.25"))
# Up to 1.27 the CPU kernel of the standard's Attention gives NaN for a row with no allowed key, from 1.28 on zero. The
# kernel of GroupQueryAttention gives NaN for queries in padding in 1.23, 1.24 and 1.26, and is correct in 1.28.
_ATTENTION = "1.28"
_SINCE_ATTENTION = {("Attention", ""), ("Attention", "ai.onnx"), ("GroupQueryAttention", CONTRIB)}


def external_files(folder: Path, name: str) -> tuple[str, ...]:
    """The weights files of the form `name`.

    Raises:
        ArtifactError: the form is not an ONNX file.
        IntegrityError: it refers to a file outside its own folder.
    """
    try:
        locations = sorted({reference.location for reference in references((folder / name).resolve())})
    except ValueError as err:
        raise ArtifactError(f"{folder / name} is not an ONNX file: {err}", hint="Make it again.") from err
    for location in locations:
        if location != Path(location).name or location in (".", "..", "") or "\\" in location:
            raise IntegrityError(f"{folder / name} takes weights from {location!r}, which is outside its folder.")
    return tuple(locations)


def oldest_onnxruntime(path: Path) -> tuple[str, int]:
    """The oldest measured ONNX Runtime that loads a form, and the form's opset.

    Raises:
        ArtifactError: its opset or IR version is newer than those measured.
    """
    import onnx

    model = onnx.load(path, load_external_data=False)
    opset = max((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), default=1)
    for most, version, release in _OLDEST:
        if opset <= most and model.ir_version <= version:
            nodes = (node for part in (model.graph, *model.functions) for node in walk(part.node))
            attends = any((node.op_type, node.domain) in _SINCE_ATTENTION for node in nodes)
            return (_ATTENTION if attends else release), opset
    raise ArtifactError(
        f"{path}: got opset {opset}, IR version {model.ir_version}; bundles know opsets up to {_OLDEST[-1][0]}, "
        f"IR versions up to {_OLDEST[-1][1]}."
    )


def dtypes(path: Path) -> dict[str, str]:
    """The dtype of every input and output in the file, which for a half-precision form differ from the contract's."""
    import onnx

    graph = onnx.load(path, load_external_data=False).graph
    names = {"FLOAT": "float32", "DOUBLE": "float64"}
    by_name = {}
    for value in (*graph.input, *graph.output):
        name = onnx.TensorProto.DataType.Name(value.type.tensor_type.elem_type)
        by_name[value.name] = names.get(name, name.lower())
    return by_name
