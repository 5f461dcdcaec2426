"""ONNX Runtime with a CUDA provider that is the CPU's: it counts what is captured and replayed as a graph."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import onnxruntime as ort

CUDA = "CUDAExecutionProvider"


class Value:
    """`OrtValue`, whose device "cuda" is the CPU."""

    from_dlpack = ort.OrtValue.from_dlpack
    ortvalue_from_numpy_with_onnx_type = ort.OrtValue.ortvalue_from_numpy_with_onnx_type

    @staticmethod
    def ortvalue_from_numpy(array: Any, place: str = "cpu", number: int = 0) -> Any:
        return ort.OrtValue.ortvalue_from_numpy(array.copy())  # memory of the device is not the array's

    @staticmethod
    def ortvalue_from_shape_and_type(shape: list[int], kind: Any, place: str = "cpu", number: int = 0) -> Any:
        return ort.OrtValue.ortvalue_from_shape_and_type(shape, kind)


class Pretended:
    """The module `onnxruntime`.

    Attributes:
        opened: The provider's options of each session.
        ids: By session, the graph's number of each run that has one; "-1" is no graph.
        captures, replays: How many runs had a new number, and how many one that was there.
        problem: Where graphs fail: "opening", "capturing", or "numbers" for a graph that gives others.
    """

    def __init__(self, model: bytes, problem: str = "") -> None:
        self.model, self.problem = model, problem
        self.opened: list[dict[str, str]] = []
        self.ids: list[str] = []
        self.captures = self.replays = 0
        self.module = SimpleNamespace(
            __version__=ort.__version__,
            get_available_providers=lambda: [CUDA],
            SessionOptions=ort.SessionOptions,
            RunOptions=ort.RunOptions,
            OrtValue=Value,
            InferenceSession=self.session,
        )

    def session(self, path: Any, options: Any, providers: Any, enable_fallback: int) -> Any:
        ((name, own),) = providers
        assert (name, enable_fallback) == (CUDA, 0)
        as_graph = own.get("enable_cuda_graph") == "1"
        if as_graph and self.problem == "opening":
            raise RuntimeError("all compute graph nodes have not been partitioned to the CUDAExecutionProvider")
        self.opened.append(dict(own))
        return Session(self, as_graph)


class Session:
    """A session on the CPU."""

    def __init__(self, of: Pretended, as_graph: bool) -> None:
        self.of, self.as_graph, self.known = of, as_graph, set[str]()
        self.real = ort.InferenceSession(of.model, providers=["CPUExecutionProvider"])

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    def get_providers(self) -> list[str]:
        return [CUDA]

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        return {CUDA: self.of.opened[-1]}

    def _number(self, options: Any) -> str:
        # A session that captures graphs captures every run that does not say otherwise.
        assert not self.as_graph or options is not None, "this run would be captured"
        number = "-1" if options is None else str(options.get_run_config_entry("gpu_graph_id"))
        self.of.ids.append(number)
        return number

    def run(self, names: list[str], feeds: Mapping[str, Any], options: Any = None) -> Any:
        assert self._number(options) == "-1"
        return self.real.run(names, feeds)

    def run_with_iobinding(self, binding: Any, options: Any = None) -> None:
        number = self._number(options)
        if number != "-1":
            if number not in self.known and self.of.problem == "capturing":
                raise RuntimeError("operation not permitted when stream is capturing")
            self.of.replays += number in self.known
            self.of.captures += number not in self.known
            self.known.add(number)
        self.real.run_with_iobinding(binding)
        if number != "-1" and self.of.problem == "numbers":
            for value in binding.get_outputs():
                value.update_inplace(value.numpy() + 1)
