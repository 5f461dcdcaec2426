"""What makes `importlib.metadata` see a package that is not there."""

from __future__ import annotations

import shutil
from pathlib import Path


def install_distribution(folder: Path, name: str, version: str) -> None:
    """Writes the metadata of a distribution, in place of that of an earlier version."""
    for earlier in folder.glob(f"{name.replace('-', '_')}-*.dist-info"):
        shutil.rmtree(earlier)
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
