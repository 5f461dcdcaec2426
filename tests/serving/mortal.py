"""An Embed and a file system that end their process once, by SIGKILL, in the middle of their work.

Ray sends them by their names to its workers, which import this file.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from fsspec.implementations.local import LocalFileSystem

from attnport_bundle.corpus import Embed

BATCHES = 3
"""An actor dies in so many-th batch."""
LARGE = 1000
"""Bytes of rows, not of a file's ends."""


def die_once(mark: str) -> None:
    """Kills this process, unless another that was given the mark died before."""
    try:
        os.close(os.open(mark, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    os.kill(os.getpid(), signal.SIGKILL)


class Mortal(Embed):
    """An Embed whose process dies behind the model's run, when nothing of the batch is given back yet."""

    def __init__(self, folder: str, mark: str) -> None:
        super().__init__(folder)
        self.mark, self.batches = mark, 0

    def __call__(self, batch: Any) -> Any:
        found = super().__call__(batch)
        self.batches += 1
        if self.batches == BATCHES:
            die_once(self.mark)
        return found


class MortalFiles(LocalFileSystem):
    """Files of which the second one ends its process when half of what is written is on the disk."""

    protocol = "mortal"

    def __init__(self, mark: str) -> None:
        super().__init__(skip_instance_cache=True)
        self.mark = mark

    def _open(self, path: str, mode: str = "rb", block_size: Any = None, **options: Any) -> Any:
        file = super()._open(path, mode, block_size, **options)
        if "w" in mode and len(list(Path(path).parent.glob("*.parquet"))) > 1:
            write = file.write

            def half(data: Any) -> Any:
                written = bytes(data)
                if len(written) > LARGE:
                    write(written[: len(written) // 2])
                    file.flush()
                    die_once(self.mark)
                    written = written[len(written) // 2 :]
                return write(written)

            file.write = half
        return file
