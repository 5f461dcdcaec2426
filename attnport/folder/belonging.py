"""Which bundle or artifact a file belongs to: its digests would not fit once the file changed."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from attnport.artifacts import MANIFEST as ARTIFACT
from attnport_bundle.manifest import MANIFEST as BUNDLE

IN_BUNDLE = "The bundle's digests would not fit; clean the artifact, check it and bundle again."


@dataclass(frozen=True)
class Owner:
    """A folder whose manifest has the digest of a file.

    Attributes:
        advice: How to have the file cleaned and the digests with it.
    """

    folder: Path
    advice: str


def owner(path: Path) -> Owner | None:
    """The bundle or artifact that names a file, or names the link that leads to it; None for a file by itself."""
    for file in dict.fromkeys((path.parent.resolve() / path.name, path.resolve())):
        for folder in file.parents:
            name = file.relative_to(folder).as_posix()
            if _names(folder / BUNDLE, name):
                return Owner(folder, IN_BUNDLE)
            if _names(folder / ARTIFACT, name):
                return Owner(folder, f"Clean the file and its digest together: attnport audit {folder} --fix")
    return None


def _names(manifest: Path, name: str) -> bool:
    """Whether a manifest, of whatever version, has a digest of a file."""
    try:
        data = json.loads(manifest.read_bytes())
    except (OSError, ValueError, RecursionError):  # none, or none of ours
        return False
    files = data.get("files") if isinstance(data, dict) else None
    return isinstance(files, dict) and name in files
