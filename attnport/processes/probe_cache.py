"""Keeps what runtimes' probes found, as asking again takes seconds: packages are imported, and small graphs are run.

A file in this user's cache is called `probe.RUNTIME.DIGEST.json`. The digest covers everything that the answer depends
on: the machine, the packages as they are installed, the code that asks.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import attnport_bundle
from attnport.artifacts import Capabilities
from attnport.errors import ArtifactError
from attnport.folder.machine import machine, versions
from attnport.jsonfile import digest_file, digest_text, from_json, to_json
from attnport.runtimes import base
from attnport.user_cache import cache

_HEX = 16
_VARIABLES = ("PATH", "CXX", "LD_LIBRARY_PATH", "PYTHONPATH", "CUDA_VISIBLE_DEVICES")
_LIBRARIES_OF_SYSTEM = "/etc/ld.so.cache"
"""Written anew when the system's package manager installs a library."""


def kept_probe(runtime: str) -> Capabilities | None:
    """What was found last time; None where nothing was, something has changed since, or the file is damaged."""
    kept = cache()
    data = kept.read(_name(runtime)) if kept is not None else None
    if data is None:
        return None
    try:
        found = from_json(Capabilities, data, "a kept probe")
    except ArtifactError:
        return None
    return found if found.runtime == runtime else None


def keep_probe(found: Capabilities) -> None:
    """Keeps what a probe found. If that fails, the runtime is probed again next time."""
    if (kept := cache()) is not None:
        kept.write(_name(found.runtime), to_json(found).encode())


def _name(runtime: str) -> str:
    wanted = base.distributions({runtime} & set(base.names()))
    installed = versions(wanted)
    modules = sorted({name.strip("-*").replace("-", "_") for name in (*wanted, *installed)})
    parts = json.dumps([_state(), installed, [list(_places(name)) for name in modules]])
    return f"probe.{runtime}.{digest_text(parts)[:_HEX]}.json"


@functools.lru_cache(maxsize=1)
def _state() -> str:
    """A digest of what all answers depend on."""
    here = machine()
    parts: list[object] = [sys.version, here.platform, here.cpu, here.features, here.cores, here.cuda, here.gpu_note]
    parts += [asdict(gpu) for gpu in here.gpus]
    parts += [f"{name} {os.environ.get(name, '')}" for name in _VARIABLES]
    parts += [_stamp(path) for path in (_LIBRARIES_OF_SYSTEM, shutil.which(os.environ.get("CXX") or "g++"))]
    # Runtimes use the reader's sessions.
    code = [Path(module.__file__ or "").parent for module in (base, attnport_bundle)]
    parts += [digest_file(path) for folder in code for path in sorted(folder.glob("*.py"))]
    return digest_text(json.dumps(parts, default=str))


def _stamp(path: str | None) -> tuple[str, int, int] | None:
    """A file with its size and time of change; None where there is none."""
    if path is None or not Path(path).is_file():
        return None
    state = Path(path).stat()
    return path, state.st_size, state.st_mtime_ns


def _places(package: str) -> Iterator[tuple[str, int]]:
    """A package's folder and those in it, with their times of change: a file that comes or goes changes its folder."""
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return
    for place in (spec.submodule_search_locations or ()) if spec else ():
        folder = Path(place)
        for path in (folder, *sorted(folder.iterdir())) if folder.is_dir() else ():
            if path.is_dir() and path.name != "__pycache__":
                yield str(path), path.stat().st_mtime_ns
