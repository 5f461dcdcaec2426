"""OpenVINO on CPU, in exactly the requested precision."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from attnport.artifacts import Capabilities, Evidence, IOContract, Ran, Session
from attnport.errors import UnavailableError, first_line
from attnport.optional import require
from attnport.runtimes._onnx_file import broken, checked_model, read_graph
from attnport.runtimes._session import Array, CheckedSession, refused
from attnport.runtimes.base import Kind, Opening, Runtime, physical_cores
from attnport_bundle.runtimes.openvino import PRECISIONS, Stepping, compiled, infer


class OpenVino(Runtime):
    """OpenVINO's CPU plugin."""

    name: ClassVar[str] = "openvino"
    opens: ClassVar[Kind] = "onnx"
    form: ClassVar[str] = "openvino"
    distributions = ("openvino*",)

    def probe(self) -> Capabilities:
        """What the installed version can do; never raises."""
        try:
            openvino = require("openvino")
        except UnavailableError as err:
            return Capabilities(self.name, False, err.message, err.hint)
        try:
            core = openvino.Core()
            devices = tuple(core.available_devices)
            if "CPU" not in devices:
                return Capabilities(self.name, False, "this OpenVINO has no CPU plugin.", devices=devices)
            able = core.get_property("CPU", "OPTIMIZATION_CAPABILITIES")
            return Capabilities(
                self.name,
                True,
                version=str(openvino.__version__).split("-")[0],
                devices=devices,
                plans=tuple(plan for plan, word in PRECISIONS.items() if word == "f32" or word.upper() in able),
            )
        except Exception as err:  # a half-installed wheel fails anywhere
            return Capabilities(self.name, False, f"openvino does not work: {first_line(err)}")

    def open(self, opening: Opening) -> Session:
        """Opens the form `openvino`, an fp32 graph.

        Raises:
            UnavailableError: OpenVINO is not installed, or the CPU does not support the plan's precision.
            ArtifactError: OpenVINO cannot read the file, or its inputs and outputs are not the contract's.
            IntegrityError: external data lies outside the model's folder.
        """
        import dataclasses

        require("openvino")
        if opening.plan not in PRECISIONS:
            raise UnavailableError(
                f"openvino computes in {' or '.join(PRECISIONS)} on CPU; {opening.plan} was asked for.",
                hint="Use onnx_reference for the numbers of a half-precision form.",
            )
        path, _ = checked_model(self.name, dataclasses.replace(opening, plan="fp32"))
        return _OpenVinoSession(opening, path)

    def fusion_evidence(
        self,
        model: Path,
        anchors: Mapping[str, tuple[str, ...]],
        plan: str = "fp32",
        io: IOContract | None = None,
    ) -> dict[str, Evidence]:
        """Evidence for attentions that one layer of the compiled model covers.

        The product QK^T, the softmax and the product PV of each attention are found in OpenVINO's graph before
        compilation and get names of ours. The layer of the compiled model that lists all three names is the evidence.

        Raises:
            UnavailableError: OpenVINO is not installed, or the CPU does not support the plan's precision.
            ArtifactError: OpenVINO cannot read the file.
        """
        require("openvino")
        from attnport.runtimes._openvino_evidence import covering_layers, mark

        outputs = {node.name: node.output[0] for node in read_graph(model).graph.node if node.output}
        graph = _read(model)
        marked = mark(graph, anchors, outputs)
        return covering_layers(_compiled(model, graph, plan, 1).get_runtime_model(), marked)


def _read(path: Path) -> Any:
    import openvino

    try:
        return openvino.Core().read_model(str(path))
    except Exception as err:  # a runtime's own exceptions share no base
        raise broken(path, err) from err


def _compiled(path: Path, graph: Any, plan: str, threads: int | None) -> Any:
    """Compiles for the CPU and checks the precision that is really used. Raises BundleError or RuntimeMissing."""
    import openvino

    return compiled(openvino, graph, plan, threads or physical_cores(), path)


class _OpenVinoSession(CheckedSession):
    def __init__(self, opening: Opening, path: Path) -> None:
        import openvino

        super().__init__(opening.io, Ran("CPU", f"openvino {openvino.__version__.split('-')[0]}", opening.plan))
        graph = _read(path)
        compile_graph = partial(_compiled, path, plan=opening.plan, threads=opening.threads)
        self._compiled = compile_graph(graph)
        self._request = self._compiled.create_infer_request()
        self.new_steps = Stepping(graph, compile_graph, self._guarded)

    @contextmanager
    def _guarded(self, feeds: Mapping[str, Array]) -> Iterator[None]:
        with self._open(), refused("OpenVINO", feeds):
            yield

    def _run(self, feeds: Mapping[str, Array]) -> Mapping[str, Array]:
        with refused("OpenVINO", feeds):
            return infer(self._request, self._compiled, feeds, tuple(spec.name for spec in self._io.outputs))

    def _free(self) -> None:
        self._request = self._compiled = None
        self.new_steps.close()


RUNTIME = OpenVino()
