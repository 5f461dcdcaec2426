"""The keys that attacks are signed and checked with: made from 32 bytes, so that no key file is in the repository."""

from __future__ import annotations

import base64
from pathlib import Path

SEED = bytes(range(32))
"""The private key; a reader in another language makes the same one from it (RFC 8032, section 5.1.5)."""
OTHER_SEED = bytes(range(1, 33))
_SMALL_ORDER = (1).to_bytes(32, "little")
# RFC 8410: the DER form of an Ed25519 key is a prefix and its 32 bytes.
_PUBLIC, _PRIVATE = bytes.fromhex("302a300506032b6570032100"), bytes.fromhex("302e020100300506032b657004220420")


def public_pem(raw: bytes) -> str:
    """A public key as a PEM file."""
    return _pem("PUBLIC KEY", _PUBLIC + raw)


def private_pem(seed: bytes) -> str:
    """A private key as a PEM file."""
    return _pem("PRIVATE KEY", _PRIVATE + seed)


def public(seed: bytes) -> bytes:
    """The 32 bytes of the public key of a seed."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    return Ed25519PrivateKey.from_private_bytes(seed).public_key().public_bytes_raw()


def place(key: str, app: Path) -> Path:
    """Writes the public key that a bundle is checked with: `right`, `other`, `small_order` or `inside`."""
    folder = app if key == "inside" else app.parent
    path = folder / "public.pem"
    raw = {"other": public(OTHER_SEED), "small_order": _SMALL_ORDER}.get(key) or public(SEED)
    path.write_text(public_pem(raw))
    return path


def _pem(kind: str, der: bytes) -> str:
    return f"-----BEGIN {kind}-----\n{base64.b64encode(der).decode()}\n-----END {kind}-----\n"
