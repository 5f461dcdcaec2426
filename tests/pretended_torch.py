"""PyTorch's CUDA device, pretended by the processor: what is shown on it is what this project does with a device."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

from attnport.errors import UnavailableError
from attnport.runtimes import _torch_device

RUNTIMES = ("torch_eager_cuda", "torch_compile_cuda", "torch_compile_tuned_cuda")


class HostDevice:
    """The processor in the place of a GPU; its clock is the host's, and a graph calls its work again."""

    kind, name, bf16 = "cpu", "Pretended GPU (SM 89)", True
    waits_inside = False

    def __init__(self) -> None:
        self.done: list[str] = []

    def put(self, value: Any) -> Any:
        self.done.append("put")
        return value.clone() if isinstance(value, torch.Tensor) else value

    def mark(self) -> int:
        self.done.append("mark")
        return time.perf_counter_ns()

    def ns_between(self, first: int, second: int) -> int:
        return second - first

    def wait(self) -> None:
        self.done.append("wait")

    def captured(self, work: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
        if self.waits_inside:
            raise UnavailableError("it cannot be captured as a CUDA graph: it waits")
        self.done.append("captured")
        result = work()
        tensors = (result,) if isinstance(result, torch.Tensor) else result

        def replay() -> None:
            self.done.append("replayed")
            again = work()
            for old, new in zip(tensors, (again,) if isinstance(again, torch.Tensor) else again, strict=True):
                old.copy_(new)

        return replay, result

    def free(self) -> None:
        self.done.append("free")


def pretend(monkeypatch: pytest.MonkeyPatch) -> list[HostDevice]:
    """Every device that is opened from now on is a pretended one; they are listed in the order of opening."""
    made: list[HostDevice] = []

    def make() -> HostDevice:
        made.append(HostDevice())
        return made[-1]

    monkeypatch.setattr(_torch_device, "TorchDevice", make)
    return made
