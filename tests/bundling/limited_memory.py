"""A model and the process that holds it, made up, and cases of both, for both readers: what is held follows a rule."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from attnport_bundle import batches
from attnport_bundle import batches as memory
from attnport_bundle.errors import FeedError
from attnport_bundle.format.contract import IO, Dim, MaskSpec, TensorSpec

MB = 1_000_000
IO_OF_ROWS = IO(
    (TensorSpec("ids", "int64", ("batch", "seq")), TensorSpec("mask", "int64", ("batch", "seq"))),
    (TensorSpec("rows", "float32", ("batch", "seq", 2)), TensorSpec("vector", "float32", ("batch", 3))),
    (Dim("batch", 1, 2, 64), Dim("seq", 1, 8, 512)),
    (MaskSpec(("padding",), "mask"),),
)


@dataclass(frozen=True)
class Case:
    """Items to run, and a process: it holds `base`, from the first call on `first` more, and keeps what the largest
    batch took, `rate` bytes a place. During a call, it holds `passing` more. Each call
    adds `creep`; the model gives back what it keeps if it `gives_back`. Padding stands at the `left`, or the right. A
    batch has `least` items or more, in steps of `step`."""

    lengths: tuple[int, ...]
    limit: int | None = None
    tokens: int = 1024
    base: int = 100 * MB
    first: int = 0
    rate: int = 20_000
    passing: int = 0
    creep: int = 0
    gives_back: bool = False
    times: int = 1
    left: bool = False
    least: int = 1
    step: int = 1

    @property
    def io(self) -> IO:
        """The contract, with the numbers of items that the model takes."""
        return dataclasses.replace(
            IO_OF_ROWS,
            dims=(
                Dim("batch", self.least, max(self.least, self.step), 64 // self.step * self.step, self.step),
                IO_OF_ROWS.dims[1],
            ),
        )


CASES = {
    "batches_of_at_least_four": Case((3, 90, 7, 64, 0, 1, 200, 200, 5), tokens=128, least=4),
    "batches_in_steps": Case((3, 90, 7, 64, 0, 1, 200, 200, 5), tokens=700, least=3, step=3),
    "batches_of_any_size_in_steps": Case((3, 90), tokens=700, least=0, step=4, left=True),
    "batches_of_one_size": Case((3, 90, 7) * 30, 400 * MB, least=64, times=2),
    "padded_at_the_left": Case((3, 90, 7, 64, 0, 1, 200, 200), tokens=128, left=True),
    "padded_at_the_left_within_a_limit": Case((3, 90, 7, 64, 64, 1, 0, 200) * 20, 108 * MB, left=True),
    "left_and_all_of_one_length": Case((9, 9, 9), tokens=16, left=True),
    "no_limit": Case((3, 90, 7, 64, 64, 1, 0, 200), tokens=128),
    "enough": Case((3, 90, 7, 64, 64, 1, 0, 200) * 20, 500 * MB),
    "one_longer_than_the_places": Case((300, 2, 3), 500 * MB, tokens=64),
    "little": Case((3, 90, 7, 64, 64, 1, 0, 200) * 20, 108 * MB),
    "a_first_call_that_takes_more": Case((500, 20, 30) * 9, 200 * MB, first=40 * MB),
    "several_calls": Case((3, 90, 7, 64) * 30, 115 * MB, times=3),
    "kept_memory_is_given_back": Case((3, 90, 7, 64, 64, 1, 0, 200) * 40, 112 * MB, creep=MB, gives_back=True),
    "kept_memory_stays": Case((3, 90, 7, 64, 64, 1, 0, 200) * 40, 112 * MB, creep=MB),
    "tokens_below_one": Case((3,), 500 * MB, tokens=0),
    "held_already": Case((3, 90), 99 * MB),
    "an_item_too_long": Case((3, 500, 4), 105 * MB, rate=40_000),
    "the_first_batch_too_large": Case((3, 4), 103 * MB, rate=MB),
    "a_peak_that_passes": Case((3, 4), 103 * MB, rate=0, passing=4 * MB),
    "outputs_too_large": Case((512,) * 64, 100 * MB + 100_000, rate=10),
}


class Process:
    """Stands for a model and the memory of its process; rows are the ids, a vector is the sum of an item's real ids."""

    def __init__(self, case: Case) -> None:
        self.used = memory.Used(case.base, case.base)
        self.shapes: list[tuple[int, ...]] = []
        self._case, self._most, self._calls = case, 0, 0

    def run(self, **feeds: np.ndarray[Any, Any]) -> dict[str, np.ndarray[Any, Any]]:
        ids, mask = feeds["ids"], feeds["mask"]
        self.shapes.append(ids.shape)
        self._most, self._calls = max(self._most, ids.size), self._calls + 1
        self._hold()
        vector = np.repeat((ids * mask).sum(1)[:, None], 3, 1).astype(np.float32)
        return {"rows": np.stack([ids, mask], -1).astype(np.float32), "vector": vector}

    def give_back(self) -> bool:
        if self._case.gives_back:
            self._most = self._calls = 0
            self._hold(passing=0)
        return self._case.gives_back

    def _hold(self, passing: int | None = None) -> None:
        case = self._case
        held = case.base + case.first + case.rate * self._most + case.creep * self._calls
        self.used = memory.Used(held, max(self.used.peak, held + (case.passing if passing is None else passing)))


def feeds_of(case: Case) -> dict[str, np.ndarray[Any, Any]]:
    size = max(case.lengths)
    mask = (np.arange(size)[None, :] < np.array(case.lengths)[:, None]).astype(np.int64)
    if case.left:
        mask = mask[:, ::-1].copy()
    return {"ids": np.arange(1, mask.size + 1).reshape(mask.shape) % 1000 * mask, "mask": mask}


def shapes_and_outputs(case: Case) -> tuple[list[tuple[int, ...]], dict[str, np.ndarray[Any, Any]] | str]:
    """The shapes of the calls, and the outputs or the words of the error. Wherever it looks, it is within the limit."""
    process, feeds, learned = Process(case), feeds_of(case), memory.Learned()
    outputs: dict[str, np.ndarray[Any, Any]] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory, "used", lambda: process.used)
        try:
            for _ in range(case.times):
                limit = memory.Memory(case.limit, learned, process.give_back)
                outputs = batches.mapped(process.run, case.io, feeds, case.tokens, memory=limit)
        except FeedError as err:
            return process.shapes, str(err)
    return process.shapes, outputs
