"""What a device reaches at most, measured: the best matrix product in each type, and a copy within its memory.

The data sheet says what a chip could do; a runtime is compared with what this one does, at its clock and temperature.
"""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Protocol

from attnport.latency.gpu_state import gpu_state

SIZES = (2048, 4096, 8192)
COPY_BYTES = 1 << 30
ROUNDS = 10
WARM_S = 1.0
"""Seconds of products before the first one that counts: an idle GPU takes about that long to raise its clocks."""
_DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}


class Timer(Protocol):
    """The part of `runtimes._torch_device.TorchDevice` that measuring asks for."""

    kind: str

    def mark(self) -> Any:
        """A point in the device's time."""
        ...

    def ns_between(self, first: Any, second: Any) -> int:
        """Time between two of them."""
        ...

    def wait(self) -> None:
        """Until both are past."""
        ...

    def free(self) -> None:
        """Gives memory back."""
        ...


@dataclass(frozen=True)
class Peak:
    """The best rate that was reached, and the times it stands on.

    Attributes:
        per_s: Floating-point operations or bytes a second, of the median time.
        what: What was timed.
        samples_ns: One a round.
    """

    per_s: float
    what: str
    samples_ns: tuple[int, ...]


@dataclass(frozen=True)
class Peaks:
    """Products by precision plan, and the copy; bytes read and bytes written both count.

    Attributes:
        gpu_before: The state of the warm GPU before the first round, `1980 MHz, memory 3201 MHz, 45 C, 320 W`; "" where
            NVML does not tell.
        gpu_after: After the last one.
        note: Why there is no state; "" where there is.
    """

    flops: Mapping[str, Peak] = field(default_factory=dict)
    copy: Peak | None = None
    gpu_before: str = ""
    gpu_after: str = ""
    note: str = ""


def measure(
    device: Timer,
    plans: Sequence[str],
    sizes: Sequence[int] = SIZES,
    copy_bytes: int = COPY_BYTES,
    rounds: int = ROUNDS,
    warm_s: float = WARM_S,
    progress: Callable[[str], None] = lambda message: None,
) -> Peaks:
    """Times square products of `sizes` in the type of each plan, and a copy, in turns; what counts is the best median.

    Args:
        warm_s: Seconds of products before that.

    Raises:
        RuntimeError: PyTorch's own, as where memory is short.
    """
    import torch

    with torch.inference_mode():
        works = _works(device.kind, plans, sizes, copy_bytes)
        times: dict[tuple[str, int], list[int]] = {key: [] for key in works}
        progress("peak rates: warming up")
        _warm(device, [work for (plan, _), work in works.items() if plan], warm_s)
        before, note = gpu_state()
        for number in range(rounds + 1):
            progress(f"peak rates: round {number}/{rounds}")
            for key, work in works.items():
                ns = _timed(device, work)
                if number:  # the first round loads kernels
                    times[key].append(ns)
        after, _ = gpu_state()
    del work  # it holds tensors, as all of them do: other processes want the memory
    works.clear()
    device.free()
    best = {plan: _best(plan, {key[1]: times[key] for key in times if key[0] == plan}) for plan in plans}
    copied = times["", copy_bytes]
    what = f"a copy of {copy_bytes / 2**20:.0f} MiB within the device"
    copy = Peak(2 * copy_bytes / (median(copied) * 1e-9), what, tuple(copied))
    return Peaks(best, copy, before, after, note)


def _works(
    kind: str, plans: Sequence[str], sizes: Sequence[int], copy_bytes: int
) -> dict[tuple[str, int], Callable[[], object]]:
    """By plan and size what is timed; the copy has no plan."""
    import torch

    works: dict[tuple[str, int], Callable[[], object]] = {}
    for plan, size in itertools.product(plans, sizes):
        dtype = getattr(torch, _DTYPES[plan])
        a, b = (torch.randn(size, size, device=kind).to(dtype) for _ in range(2))
        works[plan, size] = functools.partial(torch.matmul, a, b, out=torch.empty_like(a))
    source = torch.ones(copy_bytes, device=kind, dtype=torch.uint8)
    works["", copy_bytes] = functools.partial(torch.empty_like(source).copy_, source)
    return works


def _warm(device: Timer, products: Sequence[Callable[[], object]], seconds: float) -> None:
    until_s = time.monotonic() + seconds
    while products and time.monotonic() < until_s:
        for work in products:
            work()
        device.wait()


def _timed(device: Timer, work: Callable[[], object]) -> int:
    began = device.mark()
    work()
    ended = device.mark()
    device.wait()
    return max(1, device.ns_between(began, ended))


def _best(plan: str, times: Mapping[int, Sequence[int]]) -> Peak:
    rates = {size: 2 * size**3 / (median(samples) * 1e-9) for size, samples in times.items()}
    size = max(rates, key=lambda one: rates[one])
    return Peak(rates[size], f"a product of {size} x {size} matrices in {plan}", tuple(times[size]))
