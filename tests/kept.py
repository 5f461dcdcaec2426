"""What is exported once and kept under `.cache/exports` for the other test processes: an export takes over a second.

All is kept under a digest of the sources that it depends on, so that a change of one makes it again.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from attnport.artifacts import SourceAttention
from attnport.errors import ArtifactError
from attnport.folder.machine import versions
from attnport.jsonfile import read, to_json

ROOT = Path(__file__).parents[1]
KEPT = ROOT / ".cache" / "exports"
Made = tuple[bytes, tuple[SourceAttention, ...]]


@dataclass(frozen=True)
class Attentions:
    """What is kept beside a graph."""

    found: tuple[SourceAttention, ...]


@functools.cache
def state() -> str:
    """A digest of attnport, of what tests share, and of the packages that export."""
    shared = [path for path in (ROOT / "tests").rglob("*.py") if not path.name.startswith("test_")]
    product = [path for folder in ("attnport", "attnport_bundle") for path in (ROOT / folder).rglob("*.py")]
    digest = hashlib.sha256()
    for path in sorted([*product, *shared]):
        digest.update(f"{path}\0".encode() + hashlib.sha256(path.read_bytes()).digest())
    digest.update(repr(versions(("torch", "onnx", "onnxscript", "onnx_ir", "numpy", "transformers"))).encode())
    return digest.hexdigest()[:16]


def _folder(within: Path) -> Path:
    """Where the exports of this state lie; those of earlier states go."""
    folder = within / state()
    if not folder.is_dir():
        shutil.rmtree(within, ignore_errors=True)
        folder.mkdir(parents=True, exist_ok=True)
    return folder


def kept(name: str, make: Callable[[], Made], within: Path = KEPT) -> Made:
    """The graph called `name` and its attentions, made once for this state of the sources."""
    folder = _folder(within)
    graph, beside = folder / f"{name}.onnx", folder / f"{name}.json"
    try:
        return graph.read_bytes(), read(Attentions, beside).found
    except (OSError, ArtifactError):
        data, attentions = make()
    for path, content in ((graph, data), (beside, to_json(Attentions(attentions)).encode())):
        draft = path.with_suffix(f".{os.getpid()}")
        draft.write_bytes(content)
        draft.replace(path)
    return data, attentions


def kept_folder(name: str, make: Callable[[Path], None], within: Path = KEPT) -> Path:
    """The folder called `name`, which `make` fills once for this state of the sources; others wait meanwhile."""
    folder = _folder(within) / name
    whole = folder.with_suffix(".whole")
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not whole.is_file():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            make(folder)
            whole.touch()
    return folder
