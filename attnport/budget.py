"""The memory and time that may go into trying a model at a size, and what a larger size may take at most.

A model whose attention is over the pixels of a picture takes sixteen times the memory where both sides double, so that
a size cannot simply be tried: the system would end the process. Sizes grow step by step instead, each step only if what
it may take, by the steps before it, is there.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

SECONDS = 60.0
"""The time that trying one size may take."""
SHARE = 1 / 3
"""The share of the free memory that it may take: other processes need some, and a bound may be wrong."""
_LEAST_LIMIT_BYTES = 4 << 30
"""No run is stopped that takes less: threads reserve some gigabytes that they do not use."""
_LEAST_BYTES, _LEAST_SECONDS = 4 << 20, 0.002
"""What every run is taken to need: less than this cannot be measured."""
_LITTLE = 0.1
"""The share of memory and time that is small."""
_SHORT = 8
"""Lengths up to this are taken to need the same."""

Sizes = Mapping[str, int]


@dataclass(frozen=True)
class Cost:
    """What running a model once took, or may take at most."""

    seconds: float
    bytes: float

    @property
    def share(self) -> float:
        """The larger share of the time and of the memory that are there: up to 1 it fits."""
        usable = _usable_bytes()
        return max(self.seconds / SECONDS, self.bytes / usable if usable else 0.0)

    def __str__(self) -> str:
        usable = _usable_bytes()
        if usable and self.bytes / usable >= self.seconds / SECONDS:
            limit = f"{_gigabytes(usable)}, a third of what is free"
            return f"{_gigabytes(self.bytes)} of memory (the limit is {limit})"
        minutes = self.seconds / 60
        time_needed = f"{minutes:.0f} minutes" if minutes >= 2 else f"{self.seconds:.0f} s"
        return f"{time_needed} (the limit is {SECONDS:.0f} s)"


def _gigabytes(size: float) -> str:
    return f"{size / 1e9:.1f} GB" if size < 1e10 else f"{size / 1e9:,.0f} GB"


class Budget:
    """What a model took at the sizes at which it ran, and what it may take at others.

    Time grows at most by the square of each length, as in attention. Memory grows at most by that, times the length
    that has grown most, as in attention over pairs. Both grow in proportion to the batch. Of the bounds by all runs so
    far, the lowest holds.
    """

    def __init__(self, counts: Collection[str] = ()) -> None:
        """`counts`: the dims that count items, such as `batch`."""
        self._counts = frozenset(counts)
        self._known: dict[tuple[tuple[str, int], ...], Cost] = {}

    def cost(self, sizes: Sizes) -> Cost:
        """What running the model at these sizes may take; nothing, where it has not run at any."""
        bounds = [self._bound(dict(known), cost, sizes) for known, cost in self._known.items()]
        return min(bounds, key=lambda bound: bound.share, default=Cost(0.0, 0.0))

    def fits(self, sizes: Sizes) -> bool:
        """Whether what the model may take at these sizes is there."""
        return self.cost(sizes).share <= 1

    def why_not(self, sizes: Sizes) -> str:
        """Why the model was not run at these sizes."""
        return "there is not enough memory for it" if self.fits(sizes) else f"it may take up to {self.cost(sizes)}"

    @contextlib.contextmanager
    def measured(self, sizes: Sizes) -> Iterator[None]:
        """Measures what runs in the context, which is the model at these sizes. What raises is not counted."""
        level, began_s = _level_bytes(), time.perf_counter()
        yield
        self._known[_key(sizes)] = Cost(time.perf_counter() - began_s, max(0, memory_bytes("VmHWM") - level))

    def reach(self, sizes: Sizes, runs: Callable[[Sizes], bool]) -> bool | None:
        """Runs the model at sizes, before that at smaller ones where it is not known yet whether these fit.

        Returns:
            Whether it does; False also if it does not at smaller sizes on the way. None if `sizes` do not fit.
        """
        with contextlib.suppress(MemoryError):  # of a bound that was wrong
            known_well = len(self._known) > 1
            while not self.fits(sizes):
                steps = (step for step in self._steps(sizes) if _key(step) not in self._known and self.fits(step))
                step = next(steps, None)  # each once: one that took more than was expected leads no further
                if step is None and not known_well:  # the first run also took what libraries load once
                    step, known_well = dict(next(iter(self._known))), True
                if step is None:
                    return None
                if not self._run(step, runs):
                    return False
            return self._run(sizes, runs)
        return None

    def runs_cheaply(self, sizes: Sizes, runs: Callable[[Sizes], bool]) -> bool:
        """Whether the model runs at sizes that take a small share; many are tried to explain an error."""
        return self.cheap(sizes) and bool(self.reach(sizes, runs))

    def cheap(self, sizes: Sizes) -> bool:
        """Whether running the model at these sizes takes a small share."""
        return self.cost(sizes).share <= _LITTLE

    def _run(self, sizes: Sizes, runs: Callable[[Sizes], bool]) -> bool:
        with contextlib.suppress(_DidNotRun), self.measured(sizes):
            if not runs(sizes):
                raise _DidNotRun
            return True
        return False

    def _steps(self, sizes: Sizes) -> Iterator[dict[str, int]]:
        """Sizes on the way from those that are known, doubled so often that the step is as large as can be.

        Doubled, they are sizes that a model takes which takes multiples of a number. Where too little was taken to be
        measured, one length after the other is doubled: of five lengths together, the bound is 2048 times as high.
        """
        nearest = min(self._known.items(), key=lambda item: self._bound(dict(item[0]), item[1], sizes).share)
        known = dict(nearest[0])
        most = max(math.ceil(math.log2(size / max(known.get(name, size), 1))) for name, size in sizes.items())
        for times in range(most - 1, 0, -1):
            yield {name: min(size, max(known.get(name, size), 1) << times) for name, size in sizes.items()}
        for name, size in known.items() if nearest[1].bytes <= _LEAST_BYTES else ():
            if size < sizes[name]:
                yield {**known, name: min(sizes[name], 2 * max(size, 1))}

    def _bound(self, known: Sizes, cost: Cost, sizes: Sizes) -> Cost:
        lengths = [
            max(1.0, size / max(known.get(name, 0), _SHORT)) for name, size in sizes.items() if name not in self._counts
        ]
        items = math.prod(
            max(1.0, size / max(known.get(name, 1), 1)) for name, size in sizes.items() if name in self._counts
        )
        squares = math.prod(factor**2 for factor in lengths) * items
        more = squares * max(lengths, default=1.0)
        return Cost(max(cost.seconds, _LEAST_SECONDS) * squares, max(cost.bytes, _LEAST_BYTES) * more)


class _DidNotRun(Exception):
    """The model did not run, so that nothing was measured."""


def _key(sizes: Sizes) -> tuple[tuple[str, int], ...]:
    return tuple(sorted(sizes.items()))


def free_memory_bytes() -> int:
    """The free memory of the machine, or of its control group if that has less; 0 if unknown."""
    limits = []
    for line in text_of("/proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            limits.append(int(line.split()[1]) << 10)
    limit, used = (text_of(f"/sys/fs/cgroup/memory.{name}").strip() for name in ("max", "current"))
    if limit.isdigit() and used.isdigit():
        limits.append(max(0, int(limit) - int(used)))
    return min(limits, default=0)


@contextlib.contextmanager
def limited_memory() -> Iterator[None]:
    """Makes taking more than `SHARE` of the free memory an error, where the system might otherwise end the process.

    No bound holds before a module has run. A mask of the wrong rank, [batch, 1, 1, seq] in place of [batch, seq], makes
    scores of the square of the batch.
    """
    try:
        import resource
    except ImportError:  # another system than Unix
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    free, size = free_memory_bytes(), memory_bytes("VmSize")
    limit = size + max(int(SHARE * free), _LEAST_LIMIT_BYTES)
    lower = free and size and (soft == resource.RLIM_INFINITY or limit < soft)
    if lower:
        resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    try:
        yield
    finally:
        if lower:
            resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _usable_bytes() -> float:
    """The memory that trying one size may take; 0 if unknown."""
    limits = [SHARE * free_memory_bytes()]
    with contextlib.suppress(ImportError):  # another system than Unix
        import resource

        most = resource.getrlimit(resource.RLIMIT_AS)[0]
        if most != resource.RLIM_INFINITY:
            limits.append(max(1, most - memory_bytes("VmSize")))
    return min(filter(None, limits), default=0)


def _level_bytes() -> int:
    """The memory of this process now, above which `VmHWM` then rises: without what is kept of earlier runs."""
    with contextlib.suppress(OSError, AttributeError):  # of another C library, or no file to write to
        ctypes.CDLL(None).malloc_trim(0)
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM
    return memory_bytes("VmRSS")


def memory_bytes(field: str) -> int:
    """The memory of this process: `VmRSS` is now, `VmHWM` is the highest so far; 0 where the system tells none."""
    for line in text_of("/proc/self/status").splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) << 10
    return 0


def text_of(path: str) -> str:
    """The text of a file; "" where there is none."""
    return Path(path).read_text() if Path(path).is_file() else ""
