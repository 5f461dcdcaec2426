"""The open sides of a model, and what they read of a work."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from beside.models import Model
from beside.schedules import Work, write
from beside.side import Named, Side, SideFailed, opened


class Table:
    """The open sides of a model, and why others are not open."""

    def __init__(self, told: Mapping[str, Any], threads: int) -> None:
        self.told, self.threads = told, threads
        self.open: dict[Named, Side] = {}
        self.failed: dict[Named, str] = {}

    def add(self, named: Named) -> bool:
        """Opens a side; False if it cannot be opened."""
        try:
            self.open[named] = opened(named, self.told, self.threads)
        except SideFailed as err:
            self.failed[named] = str(err)
            print(f"  {named}: {err}", flush=True)
        return named in self.open

    def add_all(self, every: Sequence[Named]) -> None:
        """Opens sides, two at a time, as nothing is measured meanwhile; torch.compile first, which takes longest."""
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(self.add, sorted(every, key=lambda named: named.peer != "torch_compile")))
        self.open = {named: self.open[named] for named in every if named in self.open}

    def drop(self, named: Named, reason: str = "") -> None:
        """Closes a side."""
        if reason:
            self.failed[named] = reason
            print(f"  {named}: {reason}", flush=True)
        side = self.open.pop(named, None)
        if side is not None:
            side.close()

    def close(self) -> None:
        """Closes all."""
        for named in list(self.open):
            self.drop(named)


@contextmanager
def table(told: Mapping[str, Any], threads: int) -> Iterator[Table]:
    """A table that is closed at the end."""
    found = Table(told, threads)
    try:
        yield found
    finally:
        found.close()


@contextmanager
def written(work: Work, model: Model) -> Iterator[tuple[Path, list[str]]]:
    """A work's file for the children, and its schedules."""
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "calls.npz"
        yield file, write(work, model.inputs, file)
