"""The proof of a form that nobody ran on its device: the goldens, once on each device, at its first open there.

A pass is kept in the user's cache under the form's entry (see `cache.entry`), so another model, bound, runtime, device
or driver is another first open.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING

from .cache import Cache, entry
from .errors import NumbersOff

if TYPE_CHECKING:
    from .model import Model

FORMAT = "attnport-first-open"


def prove(model: Model, folder: Path, cache: Cache | None, *, record: bool) -> None:
    """Runs the goldens on a form that is `graph-only`, unless they passed here before.

    Args:
        record: Whether a pass may be kept: only when the files were compared with their digests.

    Raises:
        NumbersOff: an output is over its bound here.
        IntegrityError: the goldens are not what the manifest says.
    """
    from .goldens import Goldens

    if model.manifest.forms[model.form].proof == "device":
        return
    name = entry(model.manifest, model.form, model.version, model.machine)
    if cache is not None and _passed(cache.read(_file(name)), name):
        return
    results = list(Goldens(folder, model.manifest).check(model))
    failed = [result for result in results if not result.passed]
    if failed or not results:
        first = f"{failed[0].case}, {failed[0].output}: {failed[0].reason}" if failed else "there is no golden case"
        raise NumbersOff(f"{model.form} does not pass the goldens on {model.machine.device}: {first}.")
    if cache is not None and record:
        found = {"format": FORMAT, "entry": name, "results": [dataclasses.asdict(result) for result in results]}
        cache.write(_file(name), (json.dumps(found, indent=1, allow_nan=False) + "\n").encode())


def _file(name: str) -> str:
    return f"{name}.pass.json"


def _passed(data: bytes | None, name: str) -> bool:
    try:
        found = json.loads(data or b"")
    except (ValueError, RecursionError):
        return False
    return isinstance(found, dict) and found.get("format") == FORMAT and found.get("entry") == name
