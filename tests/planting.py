"""Runtimes that are planted beside the real ones, in this process and in the worker processes that it starts.

`plant(folder)` makes every `NAME.py` of a folder a runtime. Run as a program, this is the worker with the runtimes of
the folder that `$PLANTED` names.
"""

from __future__ import annotations

import os
from pathlib import Path

from attnport import registry, runtimes

VARIABLE = "PLANTED"


def plant(folder: Path) -> None:
    """Makes the files of a folder runtimes; `registry.files` and the package's path are changed."""
    real = registry.files
    runtimes.__path__.append(str(folder))
    registry.files = lambda package: [
        *real(package),
        *(sorted(folder.glob("*.py")) if package == "attnport.runtimes" else ()),
    ]


if __name__ == "__main__":
    from attnport.processes.worker import Worker, serve

    plant(Path(os.environ[VARIABLE]))
    serve(Worker())
