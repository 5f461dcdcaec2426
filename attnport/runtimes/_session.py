"""What every session does the same way: check the feeds, run, put the outputs in contract order, close once."""

from __future__ import annotations

import abc
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from attnport.artifacts import IOContract, Ran
from attnport.errors import ArtifactError, AttnportError, FeedError, UsageError, first_line
from attnport_bundle.feeds import check_feeds

Array = np.ndarray[Any, Any]

# As NumPy, C++, PyTorch, ONNX Runtime, CUDA and TensorRT put it.
_NO_MEMORY = re.compile(
    r"unable to allocate|bad[_ ]alloc|(failed|can't|cannot) (to )?allocate|out[ _]of[ _]memory"
    r"|not enough (free )?memory|memory \(\d+ bytes\) could not be allocated",
    re.I,
)


class CheckedSession(abc.ABC):
    """A session whose feeds are checked against the contract before the runtime sees them.

    Every runtime so refuses the same feeds with the same words, and reads no memory beyond an embedding table because
    of a token id out of range. Calls from several threads take turns.

    Attributes:
        ran: What really runs, as the runtime itself tells.
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
        """This thread's turn. Raises UsageError when the session is closed."""
        with self._lock:
            if self._closed:
                raise UsageError("the session is closed.", hint="Open the model again.")
            yield

    def close(self) -> None:
        """Frees what the session holds; closing twice is fine."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._free()

    @abc.abstractmethod
    def _run(self, feeds: Mapping[str, Array]) -> Mapping[str, Array]:
        """Every output of the contract by name; the feeds fit it."""

    @abc.abstractmethod
    def _free(self) -> None:
        """Called once."""


@contextmanager
def refused(runtime: str, feeds: Mapping[str, Array]) -> Iterator[None]:
    """Around a runtime's own call: what it raises becomes a FeedError that names runtime and shapes.

    Errors of this package stay what they are, unless they say that memory ran out, as an engine's may.

    Raises:
        MemoryError: the runtime says that there is not enough memory, which is no fault of the feeds.
    """
    try:
        yield
    except FeedError:
        raise
    except Exception as err:  # a runtime's own exceptions share no base
        shapes = ", ".join(f"{name} {array.dtype}{list(array.shape)}" for name, array in feeds.items())
        if isinstance(err, MemoryError) or _NO_MEMORY.search(str(err)):
            raise MemoryError(f"{runtime} has not enough memory for {shapes}: {first_line(err)}") from err
        if isinstance(err, AttnportError):
            raise
        raise FeedError(f"{runtime} failed on {shapes}: {first_line(err)}") from err


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
    """Zeros that fit, at each dim's usual size, but at least 2 where it may be: some compile a size of 1 for itself."""
    import ml_dtypes

    sizes = {dim.name: min(dim.max, max(2, dim.opt)) for dim in io.dims}
    return {
        spec.name: np.zeros(spec.shape(sizes), ml_dtypes.bfloat16 if spec.dtype == "bfloat16" else spec.dtype)
        for spec in io.inputs
    }
