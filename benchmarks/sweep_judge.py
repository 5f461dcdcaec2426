"""Whether a graph gives the numbers of a transformers module, for `sweep_hf.py`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

BOUND = 1e-3
"""The largest error that is right: RMS of the error, of the RMS of the module's output."""
NUDGES = 8
"""Runs of the module on inputs moved by one rounding, where a graph is off. If the graph gives what one of them gives,
it is right: a model that keeps its best queries swaps them where two scores are almost equal."""


def wrong(
    path: Path,
    model: Any,
    feeds: Sequence[Mapping[str, Any]],
    names: Sequence[str] | None = None,
    padding: Sequence[str] = ("decoder_attention_mask", "attention_mask", "input_features_mask"),
    runtime: str = "ONNX Runtime",
) -> str:
    """What is wrong with a graph at the first of the sizes at which something is; "" if nothing is.

    Args:
        runtime: What runs the graph, ONNX Runtime or OpenVINO.
        names: The module's outputs that the graph has, in order; None = all of them.
        padding: The inputs that say which rows are padding, with ones for the others.
    """
    try:
        taken, run = OPENED[runtime](path)
    except Exception as err:  # errors of runtimes have no common type
        return f"{runtime} does not open it: {' '.join(str(err).split())[:300]}"
    for values in feeds:
        at = ", ".join(f"{name} {list(value.shape)}" for name, value in values.items())
        expected = _outputs(model, values)
        for name in names or ():
            if name not in expected:
                return f"the module has no output {name!r}; it has {', '.join(expected)}"
        wanted = {name: expected[name] for name in names} if names is not None else expected
        try:
            got = run({name: value.numpy() for name, value in values.items() if name in taken})
        except Exception as err:
            return f"at {at} {runtime} raised {' '.join(str(err).split())[:300]}"
        masks = [values[name].flatten(1) for name in padding if name in values]
        of_sound = bool({"input_features", "input_values"} & values.keys()) and "input_ids" not in values
        problem = differs(got, wanted, masks, of_sound=of_sound)
        for seed in range(NUDGES) if problem else ():
            moved = _outputs(model, {name: nudged(value, seed) for name, value in values.items()})
            if not differs(got, {name: moved[name] for name in wanted}, masks, of_sound=of_sound):
                problem = ""
                break
        if problem:
            return f"at {at}: {problem}"
    return ""


def _ort(path: Path) -> Opened:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return {value.name for value in session.get_inputs()}, lambda feeds: session.run(None, dict(feeds))


def _openvino(path: Path) -> Opened:
    import openvino

    compiled = openvino.Core().compile_model(path, "CPU", {"INFERENCE_PRECISION_HINT": "f32", "NUM_STREAMS": 1})

    def run(feeds: Mapping[str, Any]) -> list[Any]:
        found = compiled(dict(feeds))
        return [found[output].copy() for output in compiled.outputs]

    return {name for value in compiled.inputs for name in value.names}, run


Opened = tuple[set[str], Callable[[Mapping[str, Any]], list[Any]]]
"""The names of a graph's inputs, and a function that runs it."""
OPENED: Mapping[str, Callable[[Path], Opened]] = {"ONNX Runtime": _ort, "OpenVINO": _openvino}


def _outputs(model: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    """The module's outputs, called as an artifact calls them."""
    import tiny_hf
    import torch

    with torch.no_grad():
        named = tiny_hf.named_tensors(model(**values))
    return {name.replace(".", "_"): tensor for name, tensor in named.items()}


def nudged(value: Any, seed: int) -> Any:
    """A tensor with its numbers moved by at most one rounding of float32; one of whole numbers as it is."""
    import torch

    if not value.is_floating_point():
        return value
    moved = torch.rand(value.shape, generator=torch.Generator().manual_seed(seed)) * 2 - 1
    return value * (1 + moved * 2**-23)


def differs(
    got: Sequence[Any], expected: Mapping[str, Any], masks: Sequence[Any] = (), *, of_sound: bool = False
) -> str:
    """How floating-point outputs differ from the module's; "" if they do not.

    Args:
        masks: Padding masks. Rows that the first mask of an output's shape hides are not compared.
        of_sound: The last mask is of frames or samples, of which a model makes fewer rows; those that begin with a
            hidden one are not compared.
    """
    import numpy as np

    floats = [np.asarray(value) for value in got if value is not None and np.asarray(value).dtype.kind == "f"]
    if len(floats) != len(expected):
        return f"{len(floats)} outputs; expected {len(expected)}: {', '.join(expected)}"
    for one, (name, tensor) in zip(floats, expected.items(), strict=True):
        other = tensor.detach().double().numpy()
        if one.shape != other.shape:
            return f"{name} has shape {one.shape}; expected {other.shape}"
        found = one.astype(np.float64)
        mask = next((mask for mask in masks if other.shape[:2] == tuple(mask.shape)), None)
        if mask is None and of_sound and masks and other.ndim == 3 and len(other) == len(masks[-1]):
            length = masks[-1].shape[1]
            mask = masks[-1][:, np.arange(other.shape[1]) * length // other.shape[1]]
        if mask is not None:
            found, other = found[mask.bool().numpy()], other[mask.bool().numpy()]
        finite = np.isfinite(other)
        if not np.array_equal(np.isfinite(found), finite):
            return f"{name} is finite elsewhere"
        if not finite.any():
            continue
        error = float(np.sqrt(np.mean((found[finite] - other[finite]) ** 2)))
        size = float(np.sqrt(np.mean(other[finite] ** 2)))
        if not error <= BOUND * max(size, 1e-3):
            return f"{name} is off by {error:.2e} RMS of {size:.2e}"
    return ""
