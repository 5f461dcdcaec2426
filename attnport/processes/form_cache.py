"""Caches which attention forms a release of a runtime supports, as finding out takes seconds.

A file in this user's cache is called `attention-forms.RUNTIME-VERSION.DIGEST.json`; the digest covers everything else
that the answer depends on.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from attnport.artifacts import Capabilities
from attnport.folder.machine import machine
from attnport.runtimes import _attention_forms
from attnport.runtimes._attention_forms import FORMS
from attnport.user_cache import cache

_HEX = 12


def read_forms(capabilities: Capabilities) -> dict[str, str] | None:
    """The cached answers of this release on this machine; None if there are none, or the file is damaged."""
    kept = cache()
    data = kept.read(_name(capabilities)) if kept is not None else None
    if data is None:
        return None
    try:
        forms: Any = json.loads(data)
    except ValueError:
        return None
    valid = isinstance(forms, dict) and all(isinstance(answer, str) for answer in forms.values())
    return forms if valid and set(forms) <= set(FORMS) else None


def write_forms(capabilities: Capabilities, forms: dict[str, str]) -> None:
    """Keeps answers. If that fails, the runtime is tried again next time."""
    if (kept := cache()) is not None:
        kept.write(_name(capabilities), json.dumps(forms, indent=1).encode())


def _name(capabilities: Capabilities) -> str:
    here = machine()
    folder = Path(_attention_forms.__file__).parent
    parts = [
        capabilities.runtime,
        capabilities.version,
        capabilities.devices,
        capabilities.plans,
        here.cpu,
        here.features,
        here.cuda,
    ]
    # The answer also depends on the graphs that are tried, and on the code of the runtimes.
    parts += [hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.glob("*.py"))]
    digest = hashlib.sha256(json.dumps(parts, default=str).encode()).hexdigest()[:_HEX]
    version = "".join(char if char.isalnum() or char in ".+-" else "_" for char in capabilities.version)
    return f"attention-forms.{capabilities.runtime}-{version}.{digest}.json"
