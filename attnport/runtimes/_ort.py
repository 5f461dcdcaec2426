"""Code that all ONNX Runtime sessions share, whatever their execution provider."""

from __future__ import annotations

import ctypes
import json
import math
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnport.artifacts import IOContract, Ran
from attnport.errors import ArtifactError, UnavailableError, UsageError, first_line, whole_cause
from attnport.runtimes._onnx_file import read_graph, small_feeds
from attnport.runtimes._ort_faults import unavailable, unopened
from attnport.runtimes._session import Array, CheckedSession, refused
from attnport.runtimes.base import physical_cores
from attnport_bundle.decoding.caches import Buffers
from attnport_bundle.runtimes.onnxruntime import CPU, WITHOUT_SKIP_NORMS, InPlace

if TYPE_CHECKING:
    import onnx

    from attnport_bundle.format.decoder import Roles

ONNX_RUNTIMES = (
    *("onnxruntime", "onnxruntime-gpu", "onnxruntime-openvino", "onnxruntime-directml", "onnxruntime-rocm"),
    *("onnxruntime-migraphx", "onnxruntime-qnn", "onnxruntime-cann", "onnxruntime-training", "ort-nightly"),
)
"""All these wheels install the folder `onnxruntime`, and overwrite each other's files."""

TINY = '<ir_version: 10, opset_import: ["" : 18]> g (float[B] x) => (float[B] y) { y = Relu(x) }'
"""A model to try a provider with, in ONNX's text form."""

_FLOATS = ("float", "double", "float16", "bfloat16")
# Operators that read a tensor's shape and none of its elements.
_OF_SHAPES = ("Shape", "Size")


@dataclass(frozen=True)
class Plugin:
    """An execution provider that is a library of its own, with its devices."""

    name: str
    devices: tuple[Any, ...]
    options: Mapping[str, str]


Provider = str | tuple[str, Mapping[str, str]] | Plugin
"""An execution provider: its name, its name and options, or a registered plug-in."""


def name_of(provider: Provider) -> str:
    """The provider's name in sessions and profiles."""
    if isinstance(provider, Plugin):
        return provider.name
    return provider if isinstance(provider, str) else provider[0]


def options(threads: int | None) -> Any:
    """Session options for `threads` compute threads (None = physical cores): all optimisations, no spinning."""
    import onnxruntime as ort

    settings = ort.SessionOptions()
    settings.intra_op_num_threads = threads or physical_cores()
    settings.inter_op_num_threads = 1
    settings.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    settings.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    settings.log_severity_level = 4
    # Spinning threads would slow down everything else that is running.
    settings.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return settings


def keep_memory_low(settings: Any) -> None:
    """Leaves weights mapped from their file as they are, where kernels would make copies of them that are quicker."""
    settings.enable_cpu_mem_arena = False
    settings.add_session_config_entry("session.disable_prepacking", "1")


def open_session(model: Path | bytes, settings: Any, provider: Provider) -> Any:
    """Opens a session on one provider; ONNX Runtime also adds its CPU provider for operators that the other lacks.

    By default, its Python package opens or runs the whole model on the CPU after an error of the provider; that is
    turned off.

    Raises:
        ArtifactError: the model cannot be read.
        UnavailableError: the session fell back to another provider, or the provider has no kernel or no working device.
    """
    import onnxruntime as ort

    name, source = name_of(provider), model if isinstance(model, bytes) else str(model)
    if name == CPU:
        settings.add_session_config_entry(*WITHOUT_SKIP_NORMS)
    try:
        if isinstance(provider, Plugin):
            settings.add_provider_for_devices(list(provider.devices), dict(provider.options))
            session = ort.InferenceSession(source, settings, enable_fallback=0)
        else:
            requested = provider if isinstance(provider, str) else (name, dict(provider[1]))
            session = ort.InferenceSession(source, settings, providers=[requested], enable_fallback=0)
    except Exception as err:  # a runtime's own exceptions share no base
        raise unopened(model if isinstance(model, Path) else Path("the model"), name, err) from err
    if session.get_providers()[0] != name:
        raise UnavailableError(f"{name} was asked for; the session runs on {', '.join(session.get_providers())}.")
    return session


def refusal(text: str, provider: Provider) -> str:
    """Why a model (in ONNX's text form) does not open or run on a provider: ONNX Runtime's answer; "" if it runs."""
    import onnx.parser

    model = onnx.parser.parse_model(text)
    try:
        open_session(model.SerializeToString(), options(1), provider).run(None, small_feeds(model))
    except Exception as err:  # a runtime's own exceptions share no base
        return runtime_answer(err)
    return ""


def runtime_answer(err: BaseException) -> str:
    """The runtime's own answer in an error, without the model's name and without places in the runtime's source."""
    answer = str(err.__cause__ or err)
    # After "Status Message:", ONNX Runtime gives a source file, a C++ signature and a condition, and its answer last.
    return first_line(RuntimeError(answer.rsplit(" was false. ", 1)[-1]))


def max_opset(provider: Provider) -> int | None:
    """The newest opset of the installed onnx that this provider opens."""
    import onnx

    versions = range(onnx.defs.onnx_opset_version(), 17, -1)
    return next((version for version in versions if not refusal(TINY.replace("18", str(version)), provider)), None)


def profiled(
    model: Path,
    provider: Provider,
    feeds: Mapping[str, Array] | None = None,
    save: bool = True,
    io: IOContract | None = None,
) -> tuple[list[dict[str, Any]], onnx.ModelProto]:
    """Runs a model once. Returns the profile's event of each node that ran, and the optimised model.

    Args:
        feeds: The inputs; None = small ones.
        save: Whether the session writes the optimised model; otherwise the model in the file is returned. ONNX Runtime
            refuses to write the nodes of a provider that compiles.
        io: What small inputs are made for; None = what the file tells of them.

    Raises:
        ArtifactError: the model cannot be read or run.
        UnavailableError: the session fell back to another provider, or the provider has no kernel or no working device.
    """
    graph = read_graph(model)
    with tempfile.TemporaryDirectory(prefix="attnport-") as scratch:
        settings = options(1)
        keep_memory_low(settings)  # which kernels run does not depend on it
        written = Path(scratch, "optimised.onnx")
        if save:
            # Weights in a file beside the model are not copied: the optimised model refers to them.
            settings.optimized_model_filepath = str(written)
        settings.enable_profiling = True
        settings.profile_file_prefix = str(Path(scratch, "profile"))
        session = open_session(model, settings, provider)
        feeds = small_feeds(graph, io) if feeds is None else feeds
        try:
            halves = {name: feeds[name].astype(kind) for name, kind in _half_inputs(session.get_inputs()).items()}
            _run(session, [output.name for output in session.get_outputs()], {**feeds, **halves})
        except Exception as err:  # a runtime's own exceptions share no base
            if (lacking := unavailable(name_of(provider), err)) is not None:
                raise lacking from err
            shapes = ", ".join(f"{name}{list(array.shape)}" for name, array in feeds.items())
            raise ArtifactError(f"{model} does not run on {shapes}: {whole_cause(err)}") from err
        events = _events(Path(session.end_profiling()))
        ran = [event for event in events if event.get("cat") == "Node" and event["name"].endswith("_kernel_time")]
        return ran, read_graph(written) if save else graph


def _events(profile: Path) -> list[dict[str, Any]]:
    """The events of a profile. ONNX Runtime reports no error if it cannot write one because the disk is full.

    Raises:
        UsageError: the profile is missing or incomplete.
    """
    try:
        events: list[dict[str, Any]] = json.loads(profile.read_text(encoding="utf-8"))
    except (OSError, ValueError) as err:
        raise UsageError(
            f"{profile}: ONNX Runtime's profile is missing or was cut short.",
            hint="Free some space (temporary files go to TMPDIR) and try again.",
        ) from err
    return events


def refuse_fallback(
    model: Path, provider: Provider, feeds: Mapping[str, Array] | None = None, io: IOContract | None = None
) -> None:
    """Runs a model once, to make sure that nothing fell back to another provider.

    Raises:
        UnavailableError: nodes on floating-point tensors of more than one element ran outside `provider`; names them.
            Or see `profiled`.
        ArtifactError: the model cannot be read or run.
    """
    events, _ = profiled(model, provider, feeds, False, io)
    if elsewhere := misplaced(events, name_of(provider)):
        raise UnavailableError(
            f"{model.name}: {len(elsewhere)} nodes did not run on {name_of(provider)}: {', '.join(elsewhere[:5])}.",
            hint="This onnxruntime has no kernel there for these operators in these types; try another plan.",
        )


def misplaced(events: Iterable[Mapping[str, Any]], provider: str) -> list[str]:
    """Each node outside `provider` on floating-point tensors of more than one element, with its provider."""
    nodes = []
    for event in events:
        arguments = event["args"]
        tensors = [*arguments.get("input_type_shape", ()), *arguments.get("output_type_shape", ())]
        large = any(kind in _FLOATS and math.prod(shape) > 1 for tensor in tensors for kind, shape in tensor.items())
        if arguments["provider"] != provider and large and arguments["op_name"] not in _OF_SHAPES:
            nodes.append(
                f"{event['name'].removesuffix('_kernel_time')} ({arguments['op_name']}, {arguments['provider']})"
            )
    return nodes


class OrtSession(CheckedSession):
    """A session of ONNX Runtime whose feeds are checked against the contract."""

    def __init__(self, io: IOContract, session: Any, ran: Ran) -> None:
        super().__init__(io, ran)
        self._session = session
        self._names = [spec.name for spec in io.outputs]
        self._halves = _half_inputs(session.get_inputs())

    def new_steps(self, roles: Roles) -> Buffers | None:
        """For a model that writes to its caches; see `attnport_bundle.decoding.caches.steps_of`."""
        import onnxruntime

        run = InPlace.of(onnxruntime, self._session) if self.ran.provider == CPU else None
        if run is None:
            return None

        def step(feeds: Mapping[str, Array], buffers: Mapping[str, tuple[str, Array]]) -> dict[str, Array]:
            with self._open(), refused("ONNX Runtime", feeds):
                return run(feeds, buffers)

        return Buffers(step, roles)

    def _run(self, feeds: Mapping[str, Array]) -> Mapping[str, Array]:
        with refused("ONNX Runtime", feeds):
            halves = {name: feeds[name].astype(kind, copy=False) for name, kind in self._halves.items()}
            outputs = _run(self._session, self._names, {**feeds, **halves})
        return dict(zip(self._names, outputs, strict=True))

    def _free(self) -> None:
        self._session = None


_BFLOAT16 = "tensor(bfloat16)"
"""A type that ONNX Runtime's Python interface supports, but not as NumPy arrays."""


def _half_inputs(inputs: Sequence[Any]) -> dict[str, Any]:
    """The NumPy types of half-precision inputs, which may be float32 in the contract."""
    import ml_dtypes
    import numpy as np

    kinds: dict[str, Any] = {"tensor(float16)": np.float16, _BFLOAT16: ml_dtypes.bfloat16}
    return {tensor.name: kinds[tensor.type] for tensor in inputs if tensor.type in kinds}


def _run(session: Any, names: Sequence[str], feeds: Mapping[str, Array]) -> Sequence[Array]:
    if all(tensor.type != _BFLOAT16 for tensor in (*session.get_inputs(), *session.get_outputs())):
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
