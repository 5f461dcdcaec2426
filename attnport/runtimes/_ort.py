"""What ONNX Runtime's sessions have in common, whatever execution provider they run on."""

from __future__ import annotations

import ctypes
import json
import math
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnport.artifacts import Evidence, IOContract, Ran
from attnport.errors import ArtifactError, UnavailableError, UsageError, first_line
from attnport.runtimes._onnx_file import broken, read_graph, small_feeds
from attnport.runtimes._session import Array, CheckedSession, refused
from attnport.runtimes.base import physical_cores

if TYPE_CHECKING:
    import onnx

FUSED_OPS = {
    ("", "Attention"),
    ("com.microsoft", "Attention"),
    ("com.microsoft", "MultiHeadAttention"),
    ("com.microsoft", "GroupQueryAttention"),
}
"""Operators whose one kernel covers an attention from QK^T to PV. Anything else is several kernels."""

_FLOATS = ("float", "double", "float16", "bfloat16")
# They read a tensor's shape and none of its elements.
_OF_SHAPES = ("Shape", "Size")


@dataclass(frozen=True)
class Plugin:
    """An execution provider that came as a library of its own, on the devices that it found."""

    name: str
    devices: tuple[Any, ...]
    options: Mapping[str, str]


Provider = str | tuple[str, Mapping[str, str]] | Plugin
"""An execution provider's name, with its options where it is given some; or one that was registered."""


def name_of(provider: Provider) -> str:
    """The provider's name, as sessions and profiles call it."""
    if isinstance(provider, Plugin):
        return provider.name
    return provider if isinstance(provider, str) else provider[0]


def options(threads: int | None) -> Any:
    """Session options for `threads` compute threads (None = physical cores): all optimisations, no spinning."""
    import onnxruntime as ort

    made = ort.SessionOptions()
    made.intra_op_num_threads = threads or physical_cores()
    made.inter_op_num_threads = 1
    made.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    made.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    made.log_severity_level = 4
    # A waiting pool that spins takes the cores from whatever runs beside it, and makes that look slow.
    made.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return made


def open_session(model: Path | bytes, settings: Any, provider: Provider) -> Any:
    """A session on one provider; ONNX Runtime adds its CPU provider behind any other for what that cannot run.

    Its Python part would open or run the whole model on the CPU again after an error of the provider; that is off.

    Raises:
        ArtifactError: a model that cannot be read.
        UnavailableError: it fell back to another provider.
    """
    import onnxruntime as ort

    name, what = name_of(provider), model if isinstance(model, bytes) else str(model)
    try:
        if isinstance(provider, Plugin):
            settings.add_provider_for_devices(list(provider.devices), dict(provider.options))
            session = ort.InferenceSession(what, settings, enable_fallback=0)
        else:
            given = provider if isinstance(provider, str) else (name, dict(provider[1]))
            session = ort.InferenceSession(what, settings, providers=[given], enable_fallback=0)
    except Exception as err:  # a runtime's own exceptions share no base
        raise broken(model if isinstance(model, Path) else Path("the model"), err) from err
    if session.get_providers()[0] != name:
        raise UnavailableError(f"{name} was asked for; the session runs on {', '.join(session.get_providers())}.")
    return session


def refusal(text: str, provider: Provider) -> str:
    """Empty if a model (in ONNX's text form) opens and runs on this version, else what it answered."""
    import onnx.parser

    model = onnx.parser.parse_model(text)
    try:
        open_session(model.SerializeToString(), options(1), provider).run(None, small_feeds(model))
    except Exception as err:  # a runtime's own exceptions share no base
        said = err.__cause__ or err
        # Behind "Status Message:" come a source file, a C++ signature and a condition; what it says stands last.
        return first_line(RuntimeError(str(said).rsplit(" was false. ", 1)[-1]))
    return ""


def max_opset(provider: Provider) -> int | None:
    """The newest opset of the installed onnx that this version opens."""
    import onnx

    text = '<ir_version: 10, opset_import: ["" : {}]> g (float[B] x) => (float[B] y) {{ y = Relu(x) }}'
    versions = range(onnx.defs.onnx_opset_version(), 17, -1)
    return next((version for version in versions if not refusal(text.format(version), provider)), None)


def profiled(
    model: Path, provider: Provider, feeds: Mapping[str, Array] | None = None, save: bool = True
) -> tuple[list[dict[str, Any]], onnx.ModelProto]:
    """One run: the profile's event of each node that ran, and the model as the session optimised it.

    Args:
        feeds: What to run it on; None = small inputs.
        save: Whether the session writes the optimised model. A provider that compiles has nodes that ONNX Runtime
            refuses to write; without, the model comes back as it stands in its file.

    Raises:
        ArtifactError: not a model that it can read or run.
        UnavailableError: the session fell back to another provider.
    """
    graph = read_graph(model)
    with tempfile.TemporaryDirectory(prefix="attnport-") as scratch:
        settings = options(1)
        written = Path(scratch, "optimised.onnx")
        if save:
            # Weights in a file beside the model stay there: the optimised model then refers to them.
            settings.optimized_model_filepath = str(written)
        settings.enable_profiling = True
        settings.profile_file_prefix = str(Path(scratch, "profile"))
        session = open_session(model, settings, provider)
        feeds = small_feeds(graph) if feeds is None else feeds
        try:
            halves = {name: feeds[name].astype(kind) for name, kind in _half_inputs(session.get_inputs()).items()}
            _run(session, [each.name for each in session.get_outputs()], {**feeds, **halves})
        except Exception as err:  # a runtime's own exceptions share no base
            shapes = ", ".join(f"{name}{list(array.shape)}" for name, array in feeds.items())
            raise ArtifactError(f"{model} does not run on {shapes}: {first_line(err)}") from err
        events = _events(Path(session.end_profiling()))
        ran = [event for event in events if event.get("cat") == "Node" and event["name"].endswith("_kernel_time")]
        return ran, read_graph(written) if save else graph


def _events(profile: Path) -> list[dict[str, Any]]:
    """The events of a profile, which ONNX Runtime writes without a word when the disk is full.

    Raises:
        UsageError: it was not written, or not to its end.
    """
    try:
        events: list[dict[str, Any]] = json.loads(profile.read_text(encoding="utf-8"))
    except (OSError, ValueError) as err:
        raise UsageError(
            f"{profile}: ONNX Runtime's profile is missing or was cut short.",
            hint="Free some space (temporary files go to TMPDIR) and try again.",
        ) from err
    return events


def refuse_fallback(model: Path, provider: Provider, feeds: Mapping[str, Array] | None = None) -> None:
    """Runs a model once.

    Raises:
        UnavailableError: nodes on floating-point tensors of more than one element ran outside `provider`; names them.
        ArtifactError: it cannot be read or run.
    """
    events, _ = profiled(model, provider, feeds, False)
    if found := misplaced(events, name_of(provider)):
        raise UnavailableError(
            f"{model.name}: {len(found)} nodes did not run on {name_of(provider)}: {', '.join(found[:5])}.",
            hint="This onnxruntime has no kernel there for these operators in these types; try another plan.",
        )


def misplaced(events: Iterable[Mapping[str, Any]], provider: str) -> list[str]:
    """The nodes that computed on floating-point tensors of more than one element outside `provider`, with where."""
    found = []
    for event in events:
        ran = event["args"]
        tensors = [*ran.get("input_type_shape", ()), *ran.get("output_type_shape", ())]
        large = any(kind in _FLOATS and math.prod(shape) > 1 for tensor in tensors for kind, shape in tensor.items())
        if ran["provider"] != provider and large and ran["op_name"] not in _OF_SHAPES:
            found.append(f"{event['name'].removesuffix('_kernel_time')} ({ran['op_name']}, {ran['provider']})")
    return found


def evidence(model: Path, anchors: Mapping[str, tuple[str, ...]], provider: Provider) -> dict[str, Evidence]:
    """Attentions whose one operator stands in the session's own optimised model and ran as one kernel.

    A decomposed attention (three anchors) is never fused here: no optimisation of this runtime joins its two
    products into one kernel under a name that could be traced back.

    Raises:
        ArtifactError, UnavailableError: see `profiled`.
    """
    events, optimised = profiled(model, provider)
    name = name_of(provider)
    nodes = {node.name: node for node in optimised.graph.node}
    kernels = {event["name"]: event for event in events}
    found = {}
    for attention, names in anchors.items():
        node, event = nodes.get(names[0]), kernels.get(f"{names[0]}_kernel_time")
        if len(names) != 1 or node is None or event is None:
            continue
        ran = event["args"]
        if (node.domain, node.op_type) in FUSED_OPS and (ran["op_name"], ran["provider"]) == (node.op_type, name):
            domain = node.domain or "ai.onnx"
            found[attention] = Evidence(
                node.op_type,
                f"optimised model: node {node.name} is {domain}.{node.op_type}; "
                f"profile: {event['name']} on {ran['provider']}, {event['dur']} us",
            )
    return found


class OrtSession(CheckedSession):
    """A session of ONNX Runtime behind the contract's checks.

    Args:
        ran: As the session tells.
    """

    def __init__(self, io: IOContract, session: Any, ran: Ran) -> None:
        super().__init__(io, ran)
        self._session = session
        self._names = [spec.name for spec in io.outputs]
        self._halves = _half_inputs(session.get_inputs())

    def _run(self, feeds: Mapping[str, Array]) -> Mapping[str, Array]:
        with refused("ONNX Runtime", feeds):
            halves = {name: feeds[name].astype(kind, copy=False) for name, kind in self._halves.items()}
            outputs = _run(self._session, self._names, {**feeds, **halves})
        return dict(zip(self._names, outputs, strict=True))

    def _free(self) -> None:
        self._session = None


_BFLOAT16 = "tensor(bfloat16)"
"""A type that ONNX Runtime's Python interface has, but not as NumPy arrays."""


def _half_inputs(inputs: Sequence[Any]) -> dict[str, Any]:
    """NumPy types of the half-precision inputs: where the contract says float32, a half-precision form says float16."""
    import ml_dtypes
    import numpy as np

    kinds: dict[str, Any] = {"tensor(float16)": np.float16, _BFLOAT16: ml_dtypes.bfloat16}
    return {each.name: kinds[each.type] for each in inputs if each.type in kinds}


def _run(session: Any, names: Sequence[str], feeds: Mapping[str, Array]) -> Sequence[Array]:
    if all(each.type != _BFLOAT16 for each in (*session.get_inputs(), *session.get_outputs())):
        outputs: Sequence[Array] = session.run(names, dict(feeds))
        return outputs
    values = session.run_with_ort_values(names, {name: _to_value(array) for name, array in feeds.items()})
    return [_to_array(value) for value in values]


def _to_value(array: Array) -> Any:
    import ml_dtypes
    import numpy as np
    import onnx
    import onnxruntime as ort

    whole = np.ascontiguousarray(array)
    if array.dtype != ml_dtypes.bfloat16:
        return ort.OrtValue.ortvalue_from_numpy(whole)
    return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(whole.view(np.uint16), onnx.TensorProto.BFLOAT16)


def _to_array(value: Any) -> Array:
    """A copy of a value in the CPU's memory."""
    import ml_dtypes
    import numpy as np

    if value.data_type() != _BFLOAT16:
        return np.array(value.numpy())
    shape = tuple(value.shape())
    raw = ctypes.string_at(value.data_ptr(), 2 * math.prod(shape)) if math.prod(shape) else b""
    return np.frombuffer(raw, ml_dtypes.bfloat16).reshape(shape)
