"""Reads a bundle: checks every file, opens the model and checks its inputs. Needs only numpy and a runtime.

from attnport_bundle import load

model = load("app")
outputs = model.run(input_ids=ids, **model.masks([5, 9]))
"""

from __future__ import annotations

import sys

if sys.version_info < (3, 10):  # noqa: UP036 - a bundle goes where attnport itself need not run
    raise ImportError("attnport_bundle needs Python 3.10 or later.")

from .errors import BundleError, BundleWarning, FeedError, IntegrityError, NumbersOff, RuntimeMissing
from .manifest import VERSION, Manifest
from .model import Model, load
from .text import Tokenizer

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
