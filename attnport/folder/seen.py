"""The files that loading a source reads, as they were when it was last loaded: who finds them so need not load it.

Loading takes seconds and gigabytes. What was found by it, that code and weights are those of the export, stays true for
as long as no file that it depends on changed its size or its times, and no file came or went beside one. The records
lie in this user's cache, since paths of this machine do not belong into an artifact.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

from attnport.artifacts import Source
from attnport.jsonfile import digest_text, to_json
from attnport.sources import memory
from attnport.sources.digests import state_of
from attnport.user_cache import cache


def note(source: Source, read: Collection[str]) -> None:
    """Records the files of a source that this process has just loaded.

    Args:
        read: As of `ModelSpec`.
    """
    if not source.in_memory and (kept := cache()) is not None:
        folders = {str(Path(path).parent) for path in read}
        seen = {
            "files": {path: state_of(path) for path in read},
            "folders": {folder: _listing(folder) for folder in sorted(folders)},
        }
        kept.write(_name(source), f"{json.dumps(seen, indent=1)}\n".encode())


def unchanged(source: Source) -> bool:
    """Whether a source is what it was when it was last loaded, as far as its files tell; False where nobody knows."""
    if source.in_memory:
        return memory.held(source) is not None
    if source.text.startswith("hf:") and not Path(source.text.removeprefix("hf:")).is_dir():
        return False  # a hub id, of which the hub decides
    kept = cache()
    data = kept.read(_name(source)) if kept is not None else None
    try:
        seen: dict[str, dict[str, Any]] = json.loads(data) if data else {}
    except ValueError:
        return False
    return (
        "folders" in seen
        and all(_listing(folder) == names for folder, names in seen["folders"].items())
        and all(_as_read(path) == state for path, state in seen["files"].items())
    )


def _name(source: Source) -> str:
    return f"seen.{digest_text(str(Path.cwd()), to_json(source))[:32]}.json"


def _as_read(path: str) -> list[int] | None:
    state = state_of(path)
    return None if state is None else list(state)


def _listing(folder: str) -> str:
    """A digest of the names of the files in a folder."""
    try:
        return digest_text(*sorted(path.name for path in Path(folder).iterdir() if path.is_file()))
    except OSError:
        return ""
