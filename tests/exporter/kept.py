"""Exports of spellings, kept under `.cache/exports` for the other test processes: an export takes over a second.

Each is kept under a digest of all sources that it depends on, so that a change of one makes it again.
"""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from attnport.artifacts import SourceAttention
from attnport.errors import ArtifactError
from attnport.jsonfile import read, to_json

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
KEPT = ROOT / ".cache" / "exports"
Made = tuple[bytes, tuple[SourceAttention, ...]]


@dataclass(frozen=True)
class Attentions:
    """What is kept beside a graph."""

    found: tuple[SourceAttention, ...]


@functools.cache
def state() -> str:
    """A digest of attnport, of the spellings and of the packages that export."""
    sources = [ROOT / "attnport", ROOT / "attnport_bundle", HERE / "spellings"]
    digest = hashlib.sha256()
    for path in [*(path for folder in sources for path in sorted(folder.rglob("*.py"))), HERE / "running.py"]:
        digest.update(f"{path}\0".encode() + hashlib.sha256(path.read_bytes()).digest())
    for package in ("torch", "onnx", "onnxscript", "onnx_ir", "numpy"):
        digest.update(f"{package}=={version(package)}\0".encode())
    return digest.hexdigest()[:16]


def kept(name: str, make: Callable[[], Made], within: Path = KEPT) -> Made:
    """The graph called `name` and its attentions, made once for this state of the sources."""
    folder = within / state()
    if not folder.is_dir():
        shutil.rmtree(within, ignore_errors=True)  # of earlier states
        folder.mkdir(parents=True, exist_ok=True)
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
