"""This user's cache, of what can be made again at any time."""

from __future__ import annotations

import warnings
from pathlib import Path

from attnport_bundle.runtimes.kernels import Cache, find


def cache() -> Cache | None:
    """The folder of `runtimes.kernels`; None where there is none, without which things only take longer."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return find(Path(__file__).parent)
