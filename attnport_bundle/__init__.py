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
    from .text import Tokenizer

__all__ = ["VERSION", "BundleError", "BundleWarning", "FeedError", "IntegrityError", "Manifest", "Model", "NumbersOff",
           "RuntimeMissing", "Tokenizer", "load"]  # fmt: skip
_HOMES = {
    **dict.fromkeys(("VERSION", "Manifest"), "format.manifest"),
    **dict.fromkeys(("Model", "load"), "model"),
    "Tokenizer": "text",
}
"""The modules of names that are not of `errors`. They are imported when asked for: numpy takes longer than the rest."""


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"{__name__}.{_HOMES.get(name, 'errors')}"), name)
