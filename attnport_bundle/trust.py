"""Reads a bundle's manifest safely: it checks the size, then the signature, and only then parses the content."""

from __future__ import annotations

from pathlib import Path

from .manifest import MANIFEST, Manifest, from_bytes, read_bytes
from .signature import check, read_signature


def read(folder: Path, key: Path | None) -> tuple[Manifest, str]:
    """Reads the manifest of a bundle; with a key, only if its signature is valid.

    Args:
        folder: The bundle.
        key: The public key, a PEM file from outside the bundle; None = the signature is not checked.

    Returns:
        The manifest, and the fingerprint of the key ("" without one).

    Raises:
        BundleError: the folder is not a bundle, has a version that this reader does not know, or the key is refused.
        IntegrityError: the manifest is malformed or, with a key, not signed with it.
        RuntimeMissing: a key is given and the package cryptography is not installed.
    """
    data = read_bytes(folder)
    fingerprint = "" if key is None else check(data, read_signature(folder), key, folder)
    return from_bytes(data, str(folder / MANIFEST)), fingerprint
