"""What became of each attention form on a release of a runtime, kept in this user's cache: asking takes seconds.

A file is called `attention-forms.RUNTIME-VERSION.DIGEST.json`; the digest is over everything else that decides the
answer.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from pathlib import Path
from typing import Any

from attnport.artifacts import Capabilities
from attnport.folder.machine import machine
from attnport.runtimes import _attention_forms
from attnport.runtimes._attention_forms import FORMS
from attnport_bundle.cache import Cache, find

_HEX = 12


def read_forms(found: Capabilities) -> dict[str, str] | None:
    """The answers of this release on this machine; None where there are none, or the file is not as it was written."""
    cache = _cache()
    data = cache.read(_name(found)) if cache is not None else None
    if data is None:
        return None
    try:
        held: Any = json.loads(data)
    except ValueError:
        return None
    whole = isinstance(held, dict) and all(isinstance(one, str) for one in held.values())
    return held if whole and set(held) <= set(FORMS) else None


def write_forms(found: Capabilities, forms: dict[str, str]) -> None:
    """Keeps answers; where that is not possible they are asked for again next time."""
    if (cache := _cache()) is not None:
        cache.write(_name(found), json.dumps(forms, indent=1).encode())


def _name(found: Capabilities) -> str:
    here = machine()
    folder = Path(_attention_forms.__file__).parent
    parts = [found.runtime, found.version, found.devices, found.plans, here.cpu, here.features, here.cuda]
    # How the question is put counts too: the graphs, and what the runtime's own file takes from those beside it.
    parts += [hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.glob("*.py"))]
    digest = hashlib.sha256(json.dumps(parts, default=str).encode()).hexdigest()[:_HEX]
    version = "".join(char if char.isalnum() or char in ".+-" else "_" for char in found.version)
    return f"attention-forms.{found.runtime}-{version}.{digest}.json"


def _cache() -> Cache | None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # no cache costs seconds, which is nothing to warn about
        return find(Path(_attention_forms.__file__).parent)
