"""The GPU as the bundle's reader drives it, with errors of this package."""

from __future__ import annotations

from typing import Any

from attnport.bundling.python import cuda
from attnport.runtimes._reader import own_errors

_HINT = "Run on a machine with an NVIDIA GPU and driver."


def load_driver() -> Any:
    """The driver's library. Raises UnavailableError where there is none."""
    with own_errors(_HINT):
        return cuda.load_driver()


class Device(cuda.Device):
    """The first GPU; every call that the driver refuses raises UnavailableError."""

    def __init__(self) -> None:
        with own_errors(_HINT):
            super().__init__()

    def _call(self, function: str, *args: Any) -> None:
        with own_errors():
            super()._call(function, *args)
