"""ONNX Runtime on CPU, in process: the embedded default."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

from attnport.artifacts import Capabilities, Evidence, IOContract, Ran, Session
from attnport.errors import ArtifactError, UnavailableError, first_line
from attnport.optional import require
from attnport.runtimes._onnx_file import broken, checked_model, read_graph, small_feeds
from attnport.runtimes._session import Array, CheckedSession, refused
from attnport.runtimes.base import Opening, Runtime, physical_cores

PROVIDER = "CPUExecutionProvider"
FUSED_OPS = {
    ("", "Attention"),
    ("com.microsoft", "Attention"),
    ("com.microsoft", "MultiHeadAttention"),
    ("com.microsoft", "GroupQueryAttention"),
}
"""Operators whose one kernel covers an attention from QK^T to PV. Anything else is several kernels."""

# What lowering asks: does the kernel take an Attention whose mask is written so? Answered by running it.
_FORMS = {
    "Attention": ("", ""),
    "Attention, bool mask [B,1,S,T]": (", m", "bool[B,1,S,S] m"),
    "Attention, bool mask [B,1,1,T]": (", m", "bool[B,1,1,S] m"),
    "Attention, float mask [B,1,S,T]": (", m", "float[B,1,S,S] m"),
    "Attention, float mask [B,1,1,T]": (", m", "float[B,1,1,S] m"),
}


class OrtCpu(Runtime):
    """ONNX Runtime with the CPU execution provider and no other."""

    name: ClassVar[str] = "ort_cpu"
    opens: ClassVar[Literal["module", "onnx", "engine"]] = "onnx"
    form: ClassVar[str] = "ort_cpu"

    def probe(self) -> Capabilities:
        """What the installed version can do; never raises."""
        try:
            ort = require("onnxruntime")
        except UnavailableError as err:
            return Capabilities(self.name, False, err.message, err.hint)
        try:
            if PROVIDER not in ort.get_available_providers():
                return Capabilities(self.name, False, f"this onnxruntime has no {PROVIDER}.")
            return Capabilities(
                self.name,
                True,
                version=str(ort.__version__),
                devices=("CPU",),
                plans=("fp32",),
                max_opset=_max_opset(ort),
                attention_forms={form: _tried(ort, *text) for form, text in _FORMS.items()},
            )
        except Exception as err:  # a half-installed wheel fails anywhere
            return Capabilities(self.name, False, f"onnxruntime does not work: {first_line(err)}")

    def open(self, opening: Opening) -> Session:
        """Opens the form `ort_cpu`.

        Raises:
            UnavailableError: not installed, a plan other than fp32, or the session fell back to another provider.
            ArtifactError: the file is not a model that it can read, or not the contract's.
            IntegrityError: external data outside the model's folder.
        """
        require("onnxruntime")
        if opening.plan != "fp32":
            raise UnavailableError(
                f"ort_cpu computes in fp32; {opening.plan} was asked for.",
                hint="ONNX Runtime's CPU kernels cast half precision to fp32 and so hide its overflow: "
                "use onnx_reference for the numbers of a half-precision form.",
            )
        path, _ = checked_model(self.name, opening)
        return _OrtSession(opening.io, _session(path, _options(opening.threads)))

    def fusion_evidence(self, model: Path, anchors: Mapping[str, tuple[str, ...]]) -> dict[str, Evidence]:
        """Attentions whose one operator stands in the session's own optimised model and ran as one kernel.

        A decomposed attention (three anchors) is never fused here: no optimisation of this runtime joins its two
        products into one kernel under a name that could be traced back.

        Raises:
            UnavailableError: not installed.
            ArtifactError: not a model that it can read or run.
        """
        require("onnxruntime")
        graph = read_graph(model)
        with tempfile.TemporaryDirectory(prefix="attnport-") as scratch:
            options = _options(1)
            # Weights in a file beside the model stay there: the optimised model then refers to them.
            options.optimized_model_filepath = str(Path(scratch, "optimised.onnx"))
            options.enable_profiling = True
            options.profile_file_prefix = str(Path(scratch, "profile"))
            session = _session(model, options)
            feeds = small_feeds(graph)
            try:
                session.run(None, feeds)
            except Exception as err:  # a runtime's own exceptions share no base
                shapes = ", ".join(f"{name}{list(array.shape)}" for name, array in feeds.items())
                raise ArtifactError(f"{model} does not run on {shapes}: {first_line(err)}") from err
            events = json.loads(Path(session.end_profiling()).read_text())
            optimised = read_graph(Path(options.optimized_model_filepath))
        nodes = {node.name: node for node in optimised.graph.node}
        kernels = {event["name"]: event for event in events if event.get("cat") == "Node"}
        found = {}
        for attention, names in anchors.items():
            node, event = nodes.get(names[0]), kernels.get(f"{names[0]}_kernel_time")
            if len(names) != 1 or node is None or event is None:
                continue
            ran = event["args"]
            if (node.domain, node.op_type) in FUSED_OPS and (ran["op_name"], ran["provider"]) == (
                node.op_type,
                PROVIDER,
            ):
                domain = node.domain or "ai.onnx"
                found[attention] = Evidence(
                    node.op_type,
                    f"optimised model: node {node.name} is {domain}.{node.op_type}; "
                    f"profile: {event['name']} on {ran['provider']}, {event['dur']} us",
                )
        return found


class _OrtSession(CheckedSession):
    def __init__(self, io: IOContract, session: Any) -> None:
        super().__init__(io, Ran("CPU", session.get_providers()[0], "fp32"))
        self._session = session
        self._names = [spec.name for spec in io.outputs]

    def _run(self, feeds: Mapping[str, Array]) -> Mapping[str, Array]:
        with refused("ONNX Runtime", feeds):
            outputs = self._session.run(self._names, dict(feeds))
        return dict(zip(self._names, outputs, strict=True))

    def _free(self) -> None:
        self._session = None


def _options(threads: int | None) -> Any:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = threads or physical_cores()
    options.inter_op_num_threads = 1
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.log_severity_level = 4
    # A waiting pool that spins takes the cores from whatever runs beside it, and makes that look slow.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return options


def _session(path: Path, options: Any) -> Any:
    """A session on the CPU provider. Raises ArtifactError for a broken model, UnavailableError for a fallback."""
    import onnxruntime as ort

    try:
        session = ort.InferenceSession(str(path), options, providers=[PROVIDER])
    except Exception as err:  # a runtime's own exceptions share no base
        raise broken(path, err) from err
    if session.get_providers() != [PROVIDER]:
        raise UnavailableError(f"{PROVIDER} was asked for; the session runs on {', '.join(session.get_providers())}.")
    return session


def _opens(ort: Any, text: str) -> str:
    """Empty if a model (in ONNX's text form) opens and runs on this version, else what it answered."""
    import onnx.parser

    model = onnx.parser.parse_model(text)
    options = _options(1)
    try:
        ort.InferenceSession(model.SerializeToString(), options, providers=[PROVIDER]).run(None, small_feeds(model))
    except Exception as err:  # a runtime's own exceptions share no base
        # Behind "Status Message:" come a source file, a C++ signature and a condition; what it says stands last.
        return first_line(RuntimeError(str(err).rsplit(" was false. ", 1)[-1]))
    return ""


def _max_opset(ort: Any) -> int | None:
    """The newest opset of the installed onnx that this version opens."""
    import onnx

    text = '<ir_version: 10, opset_import: ["" : {}]> g (float[B] x) => (float[B] y) {{ y = Relu(x) }}'
    versions = range(onnx.defs.onnx_opset_version(), 17, -1)
    return next((version for version in versions if not _opens(ort, text.format(version))), None)


def _tried(ort: Any, mask: str, declared: str) -> str:
    """`fused` if a tiny Attention with such a mask runs on this version, else what it answered."""
    inputs = ", ".join(filter(None, ("float[B,H,S,D] q", declared)))
    answer = _opens(
        ort,
        f'<ir_version: 10, opset_import: ["" : 23]> g ({inputs}) => (float[B,H,S,D] y) '
        f"{{ y = Attention(q, q, q{mask}) }}",
    )
    return f"refused: {answer}" if answer else "fused"


RUNTIME = OrtCpu()
