"""The base classes of sessions: feeds are checked, outputs come in contract order, calls are timed on a device."""

from __future__ import annotations

import abc
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from attnport.artifacts import IOContract, Ran
from attnport.errors import ArtifactError, AttnportError, FeedError, UsageError, whole_cause
from attnport.example_values import continued
from attnport.user_code import raised_in
from attnport_bundle.feeds import check_feeds

Array = np.ndarray[Any, Any]
STREAM, GRAPH = "stream", "graph"
"""Ways to run a call on a device: as `run` does, and as one captured CUDA graph."""

# Messages of NumPy, C++, PyTorch, ONNX Runtime, CUDA and TensorRT.
NO_MEMORY = re.compile(
    r"unable to allocate|bad[_ ]alloc|(failed|can't|cannot) (to )?allocate|out[ _]of[ _]memory"
    r"|not enough (free )?memory|memory \(\d+ bytes\) could not be allocated",
    re.I,
)


class CheckedSession(abc.ABC):
    """A session whose feeds are checked against the contract before the runtime sees them.

    So every runtime refuses the same feeds with the same message, and a token id out of range never makes it read
    memory outside an embedding table. Calls from several threads take turns.

    Attributes:
        ran: What really runs, as the runtime itself reports it.
    """

    def __init__(self, io: IOContract, ran: Ran) -> None:
        self.ran = ran
        self._io = io
        self._lock = threading.Lock()
        self._closed = False

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Outputs by name, in contract order.

        Args:
            feeds: An array for each input, of the dtype and shape that the contract declares.

        Raises:
            FeedError: a wrong name, dtype, rank or size, an integer out of range, or values that the runtime refuses.
            UsageError: the session is closed.
        """
        self._check(feeds)
        with self._open():
            outputs = self._run(feeds)
        return {spec.name: outputs[spec.name] for spec in self._io.outputs}

    def _check(self, feeds: Mapping[str, Array]) -> None:
        """Raises FeedError for feeds that do not fit."""
        check_feeds(self._io, feeds)

    @contextmanager
    def _open(self) -> Iterator[None]:
        """Holds the session's lock. Raises UsageError if the session is closed."""
        with self._lock:
            if self._closed:
                raise UsageError("the session is closed.", hint="Open the model again.")
            yield

    def close(self) -> None:
        """Frees the session; closing twice is fine."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._free()

    @abc.abstractmethod
    def _run(self, feeds: Mapping[str, Array]) -> Mapping[str, Array]:
        """Every output of the contract by name; the feeds fit it."""

    @abc.abstractmethod
    def _free(self) -> None:
        """Frees the session; called at most once."""


class DeviceTimed(CheckedSession):
    """A session that times the parts of a call by events.

    Inputs are converted to the session's types before the first part begins, and once for arrays that come again: an
    application whose model computes in half precision has its caches in half precision.

    Attributes:
        modes: How a call can be timed on the device, see `artifacts.DeviceTimedSession`.
    """

    modes: tuple[str, ...] = (STREAM, GRAPH)
    _converted: tuple[dict[str, Array], Mapping[str, Any]] | None = None

    def run_timed(self, feeds: Mapping[str, Array], mode: str) -> Mapping[str, int]:
        """Times a call in one of `modes`: ns by part, from the device's events. Outputs are copied back and dropped.

        Arrays that come again must not have been changed: they are neither checked nor converted again.

        Raises:
            FeedError: as `run`.
            UsageError: the mode is unknown, or the session is closed.
            UnavailableError: the call cannot be captured as a graph.
        """
        if mode not in self.modes:
            raise UsageError(f"mode {mode!r}; expected one of {', '.join(self.modes)}.")
        with self._open(), refused(self.ran.provider, feeds):
            last = self._converted
            if (
                last is None
                or last[0].keys() != feeds.keys()
                or any(last[0][name] is not feeds[name] for name in feeds)
            ):
                self._check(feeds)
                self._converted = dict(feeds), self._in_own_types(feeds)
            assert self._converted is not None
            return self._timed(self._converted[1], mode)

    def close(self) -> None:
        """As of any session."""
        self._converted = None
        super().close()

    @abc.abstractmethod
    def _in_own_types(self, feeds: Mapping[str, Array]) -> Mapping[str, Any]:
        """The inputs on the host, as the device takes them."""

    @abc.abstractmethod
    def _timed(self, feeds: Mapping[str, Any], mode: str) -> Mapping[str, int]:
        """ns by part of `DEVICE_PARTS`; `feeds` are those of `_in_own_types`."""


@contextmanager
def refused(runtime: str, feeds: Mapping[str, Array]) -> Iterator[None]:
    """Turns what a runtime raises in the block into a FeedError that names the runtime and the shapes.

    Errors of this package are raised unchanged, unless their message says that memory ran out.

    Raises:
        MemoryError: the runtime says that there is not enough memory, so that the feeds are not at fault.
    """
    try:
        yield
    except FeedError:
        raise
    except Exception as err:  # a runtime's own exceptions share no base
        shapes = ", ".join(f"{name} {array.dtype}{list(array.shape)}" for name, array in feeds.items())
        if isinstance(err, MemoryError) or NO_MEMORY.search(str(err)):
            raise MemoryError(f"{runtime} has not enough memory for {shapes}: {whole_cause(err)}") from err
        if isinstance(err, AttnportError):
            raise
        place = raised_in(err) if runtime.startswith("torch") else ""
        raise FeedError(f"{runtime} failed on {shapes}: {whole_cause(err)}{place}") from err


def check_names(io: IOContract, inputs: list[str], outputs: list[str], where: str) -> None:
    """Compares a model's own inputs and outputs with the contract's.

    Raises:
        ArtifactError: they differ; names what is missing and what is unknown.
    """
    for kind, got, specs in (("inputs", inputs, io.inputs), ("outputs", outputs, io.outputs)):
        expected = [spec.name for spec in specs]
        if set(got) != set(expected):
            raise ArtifactError(
                f"{where} has the {kind} {', '.join(sorted(got)) or 'none'}; the contract says {', '.join(expected)}.",
                hint="The file and its manifest do not belong together; make the folder again.",
            )


def usual_feeds(io: IOContract) -> dict[str, Array]:
    """Zeros at each dim's usual size, or 2 instead of 1 if allowed, as some runtimes compile size 1 separately."""
    import ml_dtypes

    sizes = {dim.name: dim.at_least(max(2, dim.opt)) for dim in io.dims}
    feeds = {}
    for spec in io.inputs:
        shape, dtype = spec.shape(sizes), ml_dtypes.bfloat16 if spec.dtype == "bfloat16" else np.dtype(spec.dtype)
        example = io.examples.get(spec.name)
        feeds[spec.name] = continued(example, shape).astype(dtype) if example else np.zeros(shape, dtype)
    return feeds
