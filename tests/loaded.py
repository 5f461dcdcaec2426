"""A model as `export` loads it, from a SPEC and what is given beside it."""

from __future__ import annotations

from typing import Any

from attnport.artifacts import ModelSpec, Source
from attnport.folder import loading


def load(text: str, **given: Any) -> ModelSpec:
    """Loads it; `given` are fields of its `Source`, with a list where that has a tuple."""
    fields = {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}
    return loading.load(Source(text, **fields))
