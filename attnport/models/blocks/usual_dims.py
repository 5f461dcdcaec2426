"""The named dims that the models' contracts share, with their usual ranges."""

from __future__ import annotations

from attnport.dims import Dim

BATCH = Dim("batch", 1, 8, 32)


def length(name: str = "seq", limit: int = 512) -> Dim:
    """The length of a sequence, up to `limit`, usually 128."""
    return Dim(name, 1, min(128, limit), limit)
