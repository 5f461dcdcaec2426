"""The files that loading a source reads, as they were when it was last loaded: who finds them so need not load it.

Loading takes seconds and gigabytes. What was found by it, that code and weights are those of the export, stays true for
as long as no file changed its size or its time of change, and no file came or went in an `hf:` folder. The records lie
in this user's cache, since paths of this machine do not belong into an artifact.
"""

from __future__ import annotations

import json
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from attnport.artifacts import Source
from attnport.jsonfile import digest_text, to_json
from attnport.sources import memory
from attnport.sources.code import code_of, runs_code
from attnport.sources.onnx_file import files_of, is_onnx
from attnport.user_cache import cache

_INSTALLED = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib"))
_OWN = str(Path(__file__).resolve().parent.parent)


def note(source: Source) -> None:
    """Records the files of a source that this process has just loaded."""
    if not source.in_memory and (kept := cache()) is not None:
        seen = {"folder": _folder(source), "files": {path: _state(path) for path in sorted(set(_files(source)))}}
        kept.write(_name(source), f"{json.dumps(seen, indent=1)}\n".encode())


def unchanged(source: Source) -> bool:
    """Whether a source is what it was when it was last loaded, as far as its files tell; False where nobody knows."""
    if source.in_memory:
        return memory.held(source) is not None
    kept = cache()
    data = kept.read(_name(source)) if kept is not None else None
    try:
        seen = json.loads(data) if data else {}
    except ValueError:
        return False
    return (
        seen.get("folder") is not None
        and seen["folder"] == _folder(source)
        and all(_state(path) == state for path, state in seen["files"].items())
    )


def _name(source: Source) -> str:
    return f"seen.{digest_text(str(Path.cwd()), to_json(source))[:32]}.json"


def _files(source: Source) -> Iterator[str]:
    """The files of all Python modules of this process that are not installed, and the one that the source names."""
    for module in list(sys.modules.values()):
        file = str(getattr(module, "__file__", None) or "")
        if file and not file.startswith((*_INSTALLED, _OWN)) and Path(file).is_file():
            yield file
    code = code_of(source) if runs_code(source) else None
    if code is not None and Path(code.place).is_file():
        yield code.place
    if is_onnx(source.text):
        yield from map(str, files_of(source.text))


def _folder(source: Source) -> dict[str, Any] | None:
    """The state of every file in the folder of an `hf:` source; None for a hub id, of which the hub decides."""
    if not source.text.startswith("hf:"):
        return {}
    place = Path(source.text.removeprefix("hf:"))
    if not place.is_dir():
        return None
    return {str(path): _state(str(path)) for path in sorted(place.rglob("*")) if path.is_file()}


def _state(path: str) -> list[int] | None:
    try:
        found = Path(path).stat()
    except OSError:
        return None
    return [found.st_size, found.st_mtime_ns]
