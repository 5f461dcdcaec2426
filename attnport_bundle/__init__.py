"""Reads a bundle: checks every file, opens the model and checks its inputs. Needs only numpy and a runtime.

from attnport_bundle import load

model = load("app")
outputs = model.run(input_ids=ids, **model.masks([5, 9]))
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if sys.version_info < (3, 10):  # noqa: UP036 - a bundle goes where attnport itself need not run
    raise ImportError("attnport_bundle needs Python 3.10 or later.")

if TYPE_CHECKING:
    from .errors import BundleError, BundleWarning, FeedError, IntegrityError, NumbersOff, RuntimeMissing
    from .format.manifest import VERSION, Manifest
    from .model import Model, load
    from .text.tokenizer import Tokenizer

_HOMES = {
    "errors": ("BundleError", "BundleWarning", "FeedError", "IntegrityError", "NumbersOff", "RuntimeMissing"),
    "format.manifest": ("VERSION", "Manifest"),
    "model": ("Model", "load"),
    "text.tokenizer": ("Tokenizer",),
}
"""The modules that the names come from. They are imported when asked for: numpy takes longer than the rest."""

__all__ = [
    "VERSION",
    "BundleError",
    "BundleWarning",
    "FeedError",
    "IntegrityError",
    "Manifest",
    "Model",
    "NumbersOff",
    "RuntimeMissing",
    "Tokenizer",
    "load",
]


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            import importlib

            return getattr(importlib.import_module(f"{__name__}.{home}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
