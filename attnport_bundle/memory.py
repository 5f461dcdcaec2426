"""Keeps the resident memory of the process within a limit, by the size of the batches that a model is given.

A runtime keeps the memory of earlier batches: ONNX Runtime's arena and OpenVINO's pool never shrink by themselves. A
batch of another shape may fit into it, or take all that it needs once more: batches are planned for the latter, and
refused only if there is no room for the former. Where room is short, OpenVINO is told to give back what it keeps.

ONNX Runtime's arena is left as it is. Shrunk after each call (`memory.enable_memory_arena_shrinkage`), it had a higher
peak with MiniLM and was slower. With `kSameAsRequested` the peak was higher; without an arena it was about the same,
and the speed lower.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from .arguments import LARGEST, shown
from .errors import FeedError

if TYPE_CHECKING:
    import numpy as np

    Outputs = Mapping[str, np.ndarray[Any, Any]]

STATUS = Path("/proc/self/status")
START = 64
"""Places of the first call of a model under a limit, of which nothing is known."""
RESERVE = 16
"""The part of the limit that batches are not planned to fill: a batch of longer items takes more a place."""
_TEXT = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,18})?) ?(?:([KMGT])(i?))?B")
_POWERS = {None: 0, "K": 1, "M": 2, "G": 3, "T": 4}


def limit_bytes(limit: int | str | None) -> int | None:
    """A limit in bytes, from a number or text such as `512MB` or `1.5GiB`; None stays None.

    Raises:
        FeedError: it is neither, or less than a byte, or 2**63 bytes or more.
    """
    if limit is None:
        return None
    found: int | str = limit
    if isinstance(limit, str) and (text := _TEXT.fullmatch(limit)):
        found = int(Fraction(text[1]) * (1024 if text[3] else 1000) ** _POWERS[text[2]])
    if isinstance(found, str | bool) or not hasattr(found, "__index__"):
        raise FeedError(f"max_memory: got {shown(limit)}; expected bytes, or text such as '512MB' or '1.5GiB'.")
    if not 1 <= found <= LARGEST:
        expected = "1 byte or more" if found < 1 else "less than 2**63 bytes"
        raise FeedError(f"max_memory: got {shown(limit)}; expected {expected}.")
    return int(found)


class Used(NamedTuple):
    """Resident memory of this process, in bytes: now, and at most so far."""

    now: int
    peak: int


def used() -> Used:
    """Reads it.

    Raises:
        FeedError: the system does not tell it; Linux does.
    """
    try:
        lines = STATUS.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        lines = []
    found = {name: rest.split() for name, _, rest in (line.partition(":") for line in lines)}
    if "VmRSS" not in found or "VmHWM" not in found:
        raise FeedError(
            "max_memory: this system has no VmRSS and VmHWM in /proc/self/status; choose the size of batches by tokens."
        )
    return Used(int(found["VmRSS"][0]) * 1024, int(found["VmHWM"][0]) * 1024)


@dataclass
class Learned:
    """What is known of an open model.

    Attributes:
        length: The longest item that ran.
        places: The places of the largest batch since an item of that length ran.
        rate: The bytes that one more place took, without outputs.
        output_rate: The bytes of the outputs of a place.
    """

    length: int = 0
    places: int = 0
    rate: float = 0.0
    output_rate: float = 0.0


class Memory:
    """A limit, and what batches may have within it.

    Args:
        limit: Bytes; None = no limit, and nothing is measured.
        learned: Of the model that runs; is brought up to date.
        give_back: Makes the runtime give the system what it keeps between calls. Returns whether it can.
    """

    def __init__(
        self,
        limit: int | None = None,
        learned: Learned | None = None,
        give_back: Callable[[], bool] = lambda: False,
    ) -> None:
        self.limit = limit
        self._give_back = give_back
        self._learned = learned or Learned()

    def places(self, length: int, tokens: int) -> int:
        """The most places of a batch whose longest item has `length`; 0 = that item alone.

        At most twice as many as ran before, so that what they take is measured before there are many. No fewer than
        the longest item that ran: shorter ones take no more than that did.
        """
        known = self._learned
        if self.limit is None:
            return tokens
        if length > known.length:
            return 0
        aim = self.limit - self.limit // RESERVE
        room = aim - self._held(aim)
        rate = known.rate + known.output_rate
        most = min(tokens, 2 * known.places)
        if rate > 0:
            most = min(most, int(room / rate))
        return max(most, min(tokens, known.length))

    def steps(self, length: int) -> Iterator[int]:
        """The lengths at which an item of `length` is tried first, cut: each twice the one before."""
        step = max(START, 2 * self._learned.length)
        while self.limit is not None and step < length:
            yield step
            step *= 2

    def run(self, places: int, length: int, call: Callable[[], Outputs]) -> Outputs:
        """Runs a batch and learns from it.

        Raises:
            FeedError: the limit is exceeded, or would be as far as is known.
        """
        if self.limit is None:
            return call()
        known = self._learned
        extra = places - (known.places if length <= known.length else min(known.places, known.length))
        self._held(self.limit - int(places * (known.rate + known.output_rate)))
        self.require(int(max(0, extra) * known.rate + places * known.output_rate), f"a batch of {places} places")
        before = used()
        outputs = call()
        given = sum(array.nbytes for array in outputs.values())
        after = used()
        held = after.peak if after.peak > before.peak else after.now
        known.output_rate = given / places
        grown = held - before.now - given
        if grown > 0 and 4 * extra >= places:
            # No less than half of before: a batch that found memory of earlier ones says little.
            known.rate = max(grown / extra, known.rate / 2)
        known.places = places if length > known.length else max(known.places, places)
        known.length = max(known.length, length)
        if held > self.limit:
            raise FeedError(
                f"max_memory: with a batch of {places} places the process held {_mb(held)}, "
                f"{_mb(before.now)} before it; the limit is {_mb(self.limit)}."
            )
        return outputs

    def require(self, needed: int, what: str) -> None:
        """Raises FeedError if there is no room for so many bytes more."""
        if self.limit is None:
            return
        held = used().now
        if held > self.limit:
            raise FeedError(f"max_memory: the process holds {_mb(held)}; the limit is {_mb(self.limit)}.")
        if held + needed > self.limit:
            raise FeedError(
                f"max_memory: {what} needs {_mb(needed)} more; the process holds {_mb(held)}, "
                f"the limit is {_mb(self.limit)}."
            )

    def _held(self, aim: int) -> int:
        """What the process holds; if that is more than `aim`, behind what the runtime gives back."""
        held = used().now
        if held > aim and self._give_back():
            held = used().now
        return held


def _mb(size: int) -> str:
    return f"{size / 1e6:.2f} MB"
