"""The reader's GPU device, extended by events and graphs for timing; and the shared libraries that runtimes need."""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import io
import itertools
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from attnport.artifacts import DEVICE_PARTS
from attnport.budget import text_of
from attnport.errors import UnavailableError
from attnport.runtimes.base import Array
from attnport_bundle.runtimes import cuda
from attnport_bundle.runtimes.cuda import load_for_onnxruntime

_NO_MEMORY = "CUDA_ERROR_OUT_OF_MEMORY"
_RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED: allocations, and calls of other threads, do not end the capture


class Device(cuda.Device):
    """The first GPU. A call that the driver refuses raises UnavailableError, or MemoryError if memory ran out."""

    @contextlib.contextmanager
    def events(self, count: int) -> Iterator[list[int]]:
        """Creates events with timestamps, and destroys them at the end."""
        created: list[int] = []
        try:
            for _ in range(count):
                event = ctypes.c_void_p()
                self._call("cuEventCreate", ctypes.byref(event), ctypes.c_uint(0))
                created.append(event.value or 0)
            yield created
        finally:
            for handle in created:
                self._call("cuEventDestroy_v2", ctypes.c_void_p(handle))

    def record(self, event: int) -> None:
        """Records an event after everything in the stream."""
        self._call("cuEventRecord", ctypes.c_void_p(event), ctypes.c_void_p(self.stream))

    def elapsed_ns(self, first: int, second: int) -> int:
        """Time between two events that have happened; the driver's resolution is about 500 ns."""
        milliseconds = ctypes.c_float()
        self._call("cuEventElapsedTime", ctypes.byref(milliseconds), ctypes.c_void_p(first), ctypes.c_void_p(second))
        return round(milliseconds.value * 1e6)

    def captured(self, work: Callable[[], None]) -> int:
        """Captures what `work` puts into the stream as a graph, without running it. Returns the executable graph.

        Raises:
            UnavailableError: something in it cannot be captured. Whatever `work` raises, the capture is ended.
        """
        graph, ready = ctypes.c_void_p(), ctypes.c_void_p()
        self._call("cuStreamBeginCapture_v2", ctypes.c_void_p(self.stream), ctypes.c_int(_RELAXED))
        try:
            work()
        except BaseException:
            self._driver.cuStreamEndCapture(ctypes.c_void_p(self.stream), ctypes.byref(graph))
            if graph.value:
                self._call("cuGraphDestroy", graph)
            raise
        self._call("cuStreamEndCapture", ctypes.c_void_p(self.stream), ctypes.byref(graph))
        try:
            self._call("cuGraphInstantiateWithFlags", ctypes.byref(ready), graph, ctypes.c_ulonglong(0))
        finally:
            self._call("cuGraphDestroy", graph)
        return ready.value or 0

    def launch(self, graph: int) -> None:
        """Puts a captured graph into the stream."""
        self._call("cuGraphLaunch", ctypes.c_void_p(graph), ctypes.c_void_p(self.stream))

    def drop_graph(self, graph: int) -> None:
        """Frees a graph from `captured`."""
        self._call("cuGraphExecDestroy", ctypes.c_void_p(graph))

    def _call(self, function: str, *args: Any) -> None:
        try:
            super()._call(function, *args)
        except UnavailableError as err:
            if _NO_MEMORY in err.message:
                raise MemoryError(err.message) from err
            raise


def timed(
    device: Device,
    buffers: Mapping[str, tuple[int, int]],
    uploads: Mapping[str, Array],
    run: Callable[[], object],
    downloads: Mapping[str, Array],
) -> dict[str, int]:
    """Times the parts of a call on the device by events. Returns nanoseconds by part of `DEVICE_PARTS`.

    Args:
        device: Where it is computed.
        buffers: The address of each tensor there, and its size.
        uploads: Arrays of the inputs.
        run: Puts what is computed into the stream.
        downloads: Arrays that the outputs are copied to.
    """
    with device.events(len(DEVICE_PARTS) + 1) as events:
        device.record(events[0])
        for name, array in uploads.items():
            device.upload(buffers[name][0], array)
        device.record(events[1])
        run()
        device.record(events[2])
        for name, array in downloads.items():
            device.download(array, buffers[name][0])
        device.record(events[3])
        device.synchronize()
        times = [device.elapsed_ns(*pair) for pair in itertools.pairwise(events)]
    return dict(zip(DEVICE_PARTS, times, strict=True))


def path_of(name: str) -> str:
    """The path from which the loader takes a library; "" if it does not find the library."""
    try:
        ctypes.CDLL(name)
    except OSError:
        return ""
    for line in text_of("/proc/self/maps").splitlines():
        path = "/" + line.partition("/")[2]  # the path is last, and may hold spaces
        if Path(path).name.startswith(name):
            return path
    return name


def load_cuda() -> None:
    """Loads CUDA's and cuDNN's libraries if they are installed as wheels, such as those of PyTorch.

    The loader does not search the folders of wheels, and ONNX Runtime's providers load them by name alone. ONNX Runtime
    itself looks beside its own folder, the rest of the module path is ours. A missing library is not an error here: the
    provider reports it.
    """
    import onnxruntime as ort

    preload = getattr(ort, "preload_dlls", None)
    if preload is not None:
        with contextlib.redirect_stdout(io.StringIO()):  # it prints each library that it does not find
            preload(directory="")
    load_for_onnxruntime(ort)


def load_bundled_cuda(package: str) -> None:
    """Loads the CUDA runtime that a package brings along, whose libraries need it by its short name.

    The package has it under its full name, `libcudart.so.13.4.36`, where the loader does not search; once it is loaded,
    its short name refers to it too. If it cannot be loaded, the provider reports it.
    """
    if (bundled := beside(package, "libcudart.so.*")) is not None:
        with contextlib.suppress(OSError):
            ctypes.CDLL(str(bundled), mode=ctypes.RTLD_GLOBAL)


def beside(package: str, pattern: str) -> Path | None:
    """The first file in an installed package's folder that matches a pattern; the package is not imported."""
    spec = importlib.util.find_spec(package)
    places = spec.submodule_search_locations if spec is not None else None
    return next((path for place in places or () for path in sorted(Path(place).glob(pattern))), None)
