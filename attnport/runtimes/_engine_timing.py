"""Times a TensorRT call on the device by events: input copies, computation, output copies; also as a CUDA graph.

A graph is captured only after the context has run at these shapes, as TensorRT requires. Source: TensorRT developer
guide, "CUDA graphs"; CUDA Driver API, stream capture.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

from attnport.artifacts import DEVICE_PARTS
from attnport.runtimes._cuda import Device
from attnport.runtimes._device_timing import GRAPH
from attnport.runtimes._session import Array
from attnport_bundle.errors import BundleError, RuntimeMissing
from attnport_bundle.runtimes.tensorrt import EngineSession as ReaderSession


class TimedSession(ReaderSession):
    """The reader's session, with calls that return the time of each part on the device."""

    _device: Device
    _graph: tuple[Any, int] | None = None

    def run_timed(self, feeds: Mapping[str, Array], mode: str) -> dict[str, int]:
        """Times one call; its outputs are copied back and dropped.

        Args:
            feeds: Arrays in the engine's own dtypes, as `run` takes them.
            mode: `stream`, as `run` does it, or `graph`: the same as one captured CUDA graph.

        Returns:
            ns by part of `DEVICE_PARTS`, from events on the stream.

        Raises:
            FeedError, BundleError, RuntimeMissing: as `run`; or the call cannot be captured as a graph.
        """
        with self._lock:
            return self._timed(feeds, mode)

    def close(self) -> None:
        """As the reader's, after freeing the graph."""
        with self._lock:
            if self._runtime is not None:
                self._device.bind()
                self._drop_graph()
        super().close()

    def _configured(self) -> tuple[Any, Any]:
        """As the reader's, but a call waits for the kernels made for its shapes.

        By default, TensorRT-RTX compiles them in the background and uses others meanwhile: the wrong kernels would be
        timed, and captured in a graph.
        """
        config, compiled = super()._configured()
        strategies = getattr(self._module, "DynamicShapesKernelSpecializationStrategy", None)
        if strategies is not None:
            config = self._engine.create_runtime_config() if config is None else config
            config.dynamic_shapes_kernel_specialization_strategy = strategies.EAGER
        return config, compiled

    def _timed(self, feeds: Mapping[str, Array], mode: str) -> dict[str, int]:
        device = self._device
        context, _, uploads, outputs = self._prepared(feeds)
        run = self._execution(context, tuple(sorted((name, array.shape) for name, array in uploads.items())), mode)
        with device.events(len(DEVICE_PARTS) + 1) as events:
            device.record(events[0])
            for name, array in uploads.items():
                device.upload(self._buffers[name][0], array)
            device.record(events[1])
            run()
            device.record(events[2])
            for name, array in outputs.items():
                device.download(array, self._buffers[name][0])
            device.record(events[3])
            device.synchronize()
            times = [device.elapsed_ns(*pair) for pair in itertools.pairwise(events)]
        return dict(zip(DEVICE_PARTS, times, strict=True))

    def _execution(self, context: Any, shapes: tuple[Any, ...], mode: str) -> Any:
        """A function that computes: with the context, or with a graph captured for these shapes and addresses."""

        def execute() -> None:
            if not context.execute_async_v3(self._device.stream):
                raise BundleError(f"{self.provider} did not run: {self._complaint()}")

        if mode != GRAPH:
            return execute
        key = (shapes, tuple(sorted((name, address) for name, (address, _) in self._buffers.items())))
        if self._graph is None or self._graph[0] != key:
            self._drop_graph()
            execute()
            self._device.synchronize()
            # A TensorRT-RTX engine may allocate memory during a call of large sizes, which cannot be captured.
            capturable = getattr(context, "is_stream_capturable", None)
            if capturable is not None and not capturable(self._device.stream):
                raise RuntimeMissing(f"{self.provider} cannot be captured as a CUDA graph at these shapes.")
            self._graph = key, self._device.captured(execute)
        graph = self._graph[1]
        return lambda: self._device.launch(graph)

    def _drop_graph(self) -> None:
        if self._graph is not None:
            self._device.drop_graph(self._graph[1])
            self._graph = None
