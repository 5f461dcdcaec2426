"""What all runtimes of ONNX Runtime share, whatever their execution provider: sessions, their errors, runs that are
profiled, and the evidence that an attention is one kernel."""

from __future__ import annotations

import contextlib
import ctypes
import json
import math
import os
import re
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from attnport.artifacts import MANY, Evidence, IOContract, Ran
from attnport.errors import ArtifactError, UnavailableError, UsageError, whole_cause
from attnport.onnx_graph import CONTRIB
from attnport.onnx_walk import walk
from attnport.runtimes.base import (
    Array,
    CheckedSession,
    Runtime,
    broken,
    physical_cores,
    read_graph,
    refused,
    small_feeds,
)
from attnport_bundle.decoding.caches import Buffers, Carried, Steps
from attnport_bundle.format.decoder import IN_PLACE
from attnport_bundle.runtimes.onnxruntime import CPU, CUDA, WITHOUT_SKIP_NORMS, InPlace, OnDevice

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
_FAULT = re.compile(
    r"\b(cuda|cudnn(_fe)?|cublas(lt)?) (failure|error)\b|failed to load (shared )?library|failed to build cudnn graph"
    r"|\bcudaError[A-Z]|misaligned address|illegal memory access",
    re.I,
)
"""A fault that a library of NVIDIA reports, a provider's library that does not load, cuDNN without a kernel here."""
_NO_MEMORY = re.compile(r"out of memory|failed to allocate memory", re.I)


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


class OrtRuntime(Runtime):
    """A runtime that is a provider of ONNX Runtime."""

    opens = "onnx"
    package = "onnxruntime"
    distributions: ClassVar[tuple[str, ...]] = ONNX_RUNTIMES

    def require_built(self, provider: str) -> None:
        """Raises UnavailableError if this ONNX Runtime is built without a provider."""
        import onnxruntime as ort

        if provider not in ort.get_available_providers():
            raise UnavailableError(f"this onnxruntime is built without {provider}.", hint=self.install)

    def able_on(self, provider: Provider, hint: str = "") -> dict[str, Any]:
        """What a runtime on a GPU is able to do, after a tiny model has run there: that it is built in says little.

        Raises:
            UnavailableError: the model does not run.
        """
        if answer := refusal(TINY, provider):
            raise UnavailableError(f"{name_of(provider)} does not work here: {answer}", hint=hint)
        return {"devices": ("CUDA",), "max_opset": max_opset(provider)}


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


def unopened(model: Path, provider: str, err: BaseException) -> Exception:
    """The error for a session that could not be made: `ArtifactError`, unless `unavailable` has another."""
    return unavailable(provider, err) or broken(model, err)


def unavailable(provider: str, err: BaseException) -> UnavailableError | MemoryError | None:
    """The error of a device that cannot run the model; None on the CPU, and for errors about the model itself.

    A lack of memory may be over the next time, so it is a MemoryError, as of every runtime.
    """
    from onnxruntime.capi.onnxruntime_pybind11_state import NotImplemented as NoKernel

    if provider == CPU:
        return None
    if isinstance(err, NoKernel):
        return UnavailableError(
            f"{provider} cannot run it: {whole_cause(err)}",
            hint="This onnxruntime has no kernel there for these operators in these types; try another precision.",
        )
    if _NO_MEMORY.search(str(err)):
        return MemoryError(f"{provider} has not enough memory: {whole_cause(err)}")
    if _FAULT.search(str(err)):
        return UnavailableError(f"{provider} failed: {whole_cause(err)}", hint="attnport doctor says what it wants.")
    return None


def refusal(text: str, provider: Provider) -> str:
    """Why a model (in ONNX's text form) does not open or run on a provider: ONNX Runtime's answer; "" if it runs."""
    import onnx.parser

    model = onnx.parser.parse_model(text)
    try:
        open_session(model.SerializeToString(), options(1), provider).run(None, small_feeds(model))
    except Exception as err:  # a runtime's own exceptions share no base
        return whole_cause(err.__cause__ or err)  # without the name of the model, which is none of a user's
    return ""


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
            hint="This onnxruntime has no kernel there for these operators in these types; try another precision.",
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
        self.keeps_caches = ran.provider == CUDA

    def new_steps(self, roles: Roles) -> Steps | None:
        """On a GPU, and for a model that writes to its caches; see `attnport_bundle.decoding.caches.steps_of`."""
        import onnxruntime

        run: InPlace | OnDevice | None = None
        if self.ran.provider == CPU:
            run = InPlace.of(onnxruntime, self._session)
        elif self.ran.provider == CUDA and roles.returns_whole_cache:
            run = OnDevice(onnxruntime, self._session)
        if run is None:
            return None

        def step(feeds: Mapping[str, Array], held: Mapping[str, tuple[str, Any]]) -> Any:
            with self._open(), refused("ONNX Runtime", feeds):
                return run(feeds, held)

        return Carried(step, run.read, roles) if isinstance(run, OnDevice) else Buffers(step, roles)

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
    import onnx
    import onnxruntime as ort

    whole = np.ascontiguousarray(array)
    if array.dtype != ml_dtypes.bfloat16:
        return ort.OrtValue.ortvalue_from_numpy(whole)
    return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(whole.view(np.uint16), onnx.TensorProto.BFLOAT16)


def _to_array(value: Any) -> Array:
    """A copy of a value in the CPU's memory."""
    import ml_dtypes

    if value.data_type() != _BFLOAT16:
        return np.array(value.numpy())
    shape = tuple(value.shape())
    raw = ctypes.string_at(value.data_ptr(), 2 * math.prod(shape)) if math.prod(shape) else b""
    return np.frombuffer(raw, ml_dtypes.bfloat16).reshape(shape)


# --- evidence of fusion -------------------------------------------------------------------------------------------


FUSED_OPS = {
    ("", "Attention"),
    (CONTRIB, "Attention"),
    (CONTRIB, "MultiHeadAttention"),
    (CONTRIB, "GroupQueryAttention"),
}
"""Operators of which one kernel covers an attention from QK^T to PV."""

_COPYING = ("MemcpyFromHost", "MemcpyToHost")

# One operator is no proof of one kernel on CUDA: an attention operator chooses among kernels when it runs, and the last
# choice, MATH, is several of them. With an environment variable, ONNX Runtime prints the choice on its standard output,
# a line for each node that runs (measured with 1.31.1):
#
#     Operator=Attention Node=att DataType=fp16 SdpaKernel=FLASH_ATTENTION
VARIABLE = "ORT_ENABLE_ATTENTION_KERNEL_DEBUG_INFO"
UNFUSED = "MATH"
_STDOUT = 1
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_LINE = re.compile(r"Operator=\S+ Node=(.+) DataType=\S+ SdpaKernel=(\S+)\s*")
_ALIGNED = 8
"""Some kernels want lengths that are multiples of 4, or of 8."""

Kernels = dict[str, tuple[str, ...]]
"""By node, the kernels that it ran as, each once."""


def evidence(
    model: Path,
    anchors: Mapping[str, tuple[str, ...]],
    provider: Provider,
    io: IOContract | None = None,
    *,
    printing: bool = False,
) -> dict[str, Evidence]:
    """Evidence for attentions that are one operator in the session's optimised model and ran as one kernel.

    A decomposed attention (three anchors) is never fused here: this runtime does not join its two products into one
    kernel whose name could be traced back. Of a decoder that writes to its caches, both ways of an attention must be
    fused: that of one new token, and that of several.

    Args:
        printing: Whether the operators of this provider print the kernel that they choose. Then that is the evidence,
            at lengths that are multiples of 8; an operator that printed none gives no evidence. What it took at odd
            ones stands in the text.

    Raises:
        ArtifactError, UnavailableError: see `profiled`; or no operator printed a kernel.
    """
    graph = read_graph(model)
    sizes = aligned_sizes(graph, io) if printing else {}
    with printed_kernels() if printing else contextlib.nullcontext(None) as chosen:
        of_step = _step_events(model, graph, provider, io, sizes)
        events, optimised = profiled(model, provider, small_feeds(graph, io, sizes), io=io)
    odd = {name: size + 1 for name, size in sizes.items() if _takes(io, name, size + 1)}
    with printed_kernels() if odd else contextlib.nullcontext(None) as at_odd:
        if odd:
            profiled(model, provider, small_feeds(graph, io, sizes | odd), io=io)
    if chosen == {} and anchors:
        raise UnavailableError("this onnxruntime printed no kernel of any attention.")
    events += of_step
    name, copies = name_of(provider), _copies(events)
    nodes = {node.name: node for node in walk(optimised.graph.node)}
    kernels = {event["name"]: event for event in events}
    proofs = {}
    for attention, anchor in anchors.items():
        if len(anchor) != 1:
            continue
        ways = [way for way in (anchor[0], f"{anchor[0]}{MANY}") if way == anchor[0] or way in nodes]
        found = [_proof(nodes.get(way), kernels.get(f"{way}_kernel_time"), name, chosen, at_odd) for way in ways]
        proved = [proof for proof in found if proof is not None]
        if len(proved) == len(ways):
            proofs[attention] = Evidence(proved[0].kernel, "; ".join(proof.text for proof in proved) + copies)
    return proofs


def _copies(events: Iterable[Mapping[str, Any]]) -> str:
    """How often a run copied tensors between the devices, for a text; "" if it did not."""
    count = sum(event["args"]["op_name"] in _COPYING for event in events)
    return f"; {count} copies between CPU and device in this run, for nodes without a kernel there" if count else ""


def _proof(
    node: onnx.NodeProto | None,
    event: Mapping[str, Any] | None,
    provider: str,
    chosen: Kernels | None,
    at_odd: Kernels | None = None,
) -> Evidence | None:
    """What an operator of the optimised model, its event in the profile and the kernel that it printed show."""
    if node is None or event is None or (node.domain, node.op_type) not in FUSED_OPS:
        return None
    arguments = event["args"]
    if (arguments["op_name"], arguments["provider"]) != (node.op_type, provider):
        return None
    text = (
        f"optimised model: node {node.name} is {node.domain or 'ai.onnx'}.{node.op_type}; "
        f"profile: {event['name']} on {arguments['provider']}, {event['dur']} us"
    )
    if chosen is None:
        return Evidence(node.op_type, text)
    ran_as = chosen.get(node.name, ())
    if not ran_as or UNFUSED in ran_as:
        return None
    kernel = " and ".join(ran_as)
    text += f"; ONNX Runtime printed SdpaKernel={kernel} for it"
    if at_odd is not None and (others := " and ".join(at_odd.get(node.name, ("nothing",)))) != kernel:
        text += f"; at lengths that are no multiple of {_ALIGNED} it printed {others}"
    return Evidence(f"{node.op_type} {kernel}", text)


def _step_events(
    model: Path, graph: onnx.ModelProto, provider: Provider, io: IOContract | None, sizes: Mapping[str, int]
) -> list[dict[str, Any]]:
    """The events of a run with one new token, of a model that writes to its caches then; none of others."""
    ids = next((entry.value for entry in graph.metadata_props if entry.key == IN_PLACE), None)
    if ids is None:
        return []
    shape = next(value.type.tensor_type.shape for value in graph.graph.input if value.name == ids)
    return profiled(model, provider, small_feeds(graph, io, {**sizes, shape.dim[1].dim_param: 1}), False, io)[0]


@contextlib.contextmanager
def printed_kernels() -> Iterator[Kernels]:
    """Has ONNX Runtime print the kernels of sessions that are made and run in the block.

    Whatever is written to the standard output of the process meanwhile is read here, and appears nowhere else.

    Yields:
        A dict that is filled when the block ends.
    """
    kernels: Kernels = {}
    before = os.environ.get(VARIABLE)
    with tempfile.TemporaryFile() as printed:
        sys.stdout.flush()
        kept = os.dup(_STDOUT)
        try:
            os.dup2(printed.fileno(), _STDOUT)
            os.environ[VARIABLE] = "1"
            yield kernels
        finally:
            sys.stdout.flush()
            os.dup2(kept, _STDOUT)
            os.close(kept)
            os.environ.pop(VARIABLE, None)
            if before is not None:
                os.environ[VARIABLE] = before
        printed.seek(0)
        kernels.update(kernels_in(printed.read().decode("utf-8", "replace")))


def kernels_in(printed: str) -> Kernels:
    """The kernels in what ONNX Runtime printed; a node without a line is missing."""
    found: Kernels = {}
    for line in _COLOUR.sub("", printed).splitlines():
        if match := _LINE.fullmatch(line):
            node, kernel = match.groups()
            found[node] = tuple(dict.fromkeys((*found.get(node, ()), kernel)))
    return found


def _takes(io: IOContract | None, name: str, size: int) -> bool:
    """Whether a model has this size of a named dim, as far as is known."""
    return io is None or any(dim.name == name and dim.takes(size) for dim in io.dims)


def aligned_sizes(graph: onnx.ModelProto, io: IOContract | None) -> dict[str, int]:
    """Small sizes of a model's named dims that are multiples of 8, where the contract allows them."""
    if io is not None:
        return {dim.name: dim.at_least(-(-max(dim.min, 1) // _ALIGNED) * _ALIGNED) for dim in io.dims}
    dims = {dim.dim_param for value in graph.graph.input for dim in value.type.tensor_type.shape.dim if dim.dim_param}
    return dict.fromkeys(dims, _ALIGNED)
