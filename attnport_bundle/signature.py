"""`bundle.sig`: the Ed25519 signature of a bundle's manifest, which holds the digest of every file.

The public key always comes from outside the bundle: a key inside would only prove that the bundle agrees with itself.
Ed25519: https://www.rfc-editor.org/rfc/rfc8032. Keys are PEM files, as `openssl genpkey -algorithm ed25519` makes them.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from .errors import BundleError, IntegrityError, RuntimeMissing
from .regular import open_regular

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

SIGNATURE = "bundle.sig"
BYTES = 64
MAX_KEY_BYTES = 1 << 16
# The signed text starts with this, so that a signature made for another purpose is never valid for a manifest.
_PREFIX = b"attnport-bundle-signature-v1\0"
_P = 2**255 - 19


def message(manifest: bytes) -> bytes:
    """The signed text: a prefix, followed by the bytes of `bundle.json`."""
    return _PREFIX + manifest


def read_signature(folder: Path) -> bytes | None:
    """The signature in the bundle `folder`; None = it is not signed.

    Raises:
        IntegrityError: there is something of that name, but it is not a signature.
    """
    path = folder / SIGNATURE
    if not os.path.lexists(path):
        return None
    try:
        with open_regular(path) as file:
            data = file.read(BYTES + 1)
    except (OSError, ValueError) as err:
        raise IntegrityError(f"{path} is not a signature: it is no regular file that can be read.") from err
    if len(data) != BYTES:
        got = f"more than {BYTES}" if len(data) > BYTES else len(data)
        raise IntegrityError(f"{path} is not a signature: got {got} bytes; expected {BYTES}.")
    return data


def check(manifest: bytes, signature: bytes | None, key: Path, folder: Path) -> str:
    """Checks the signature of a manifest, before anything in the manifest is used.

    Args:
        manifest: The bytes of `bundle.json`.
        signature: The bytes of `bundle.sig`; None = the bundle has none.
        key: The public key, a PEM file.
        folder: The bundle; the key may not lie in it.

    Returns:
        The key's fingerprint: the first 16 hex digits of the SHA-256 of its DER form.

    Raises:
        IntegrityError: there is no signature, or it was made for another manifest or with another key.
        BundleError: the key lies inside the bundle, or is no Ed25519 public key.
        RuntimeMissing: the package cryptography is not installed.
    """
    public, fingerprint = _public_key(key, folder)
    if signature is None:
        raise IntegrityError(f"{folder} is not signed: it has no {SIGNATURE}.")
    from cryptography.exceptions import InvalidSignature

    try:
        public.verify(signature, message(manifest))
    except InvalidSignature as err:
        raise IntegrityError(
            f"{folder / SIGNATURE}: the signature is not one of this manifest with the key {fingerprint}."
        ) from err
    return fingerprint


def refuse_inside(key: Path, folder: Path) -> None:
    """Raises BundleError if a key lies in the folder, or is the same file as one in it, by whatever link."""
    parents = {Path(os.path.abspath(folder)), folder.resolve()}  # noqa: PTH100 - abspath follows no link, resolve does
    spelled = {Path(os.path.abspath(key)), key.parent.resolve() / key.name, key.resolve()}  # noqa: PTH100 - as above
    inside = any(path.is_relative_to(parent) for path in spelled for parent in parents)
    if inside or any(_is_one_file(key, path) for path in _files(folder)):
        raise BundleError(f"{key}: a key inside {folder} proves nothing; keep it elsewhere.")


def read_key(path: Path) -> bytes:
    """The bytes of a key file. Raises BundleError when it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(MAX_KEY_BYTES)
    except OSError as err:
        raise BundleError(f"{path}: the key cannot be read: {err.strerror}.") from err


def _public_key(path: Path, folder: Path) -> tuple[Ed25519PublicKey, str]:
    """The public key in a PEM file, and its fingerprint."""
    try:
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
        from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_public_key
    except ImportError as err:
        raise RuntimeMissing("cryptography is not installed; pip install cryptography.") from err
    refuse_inside(path, folder)
    try:
        key = load_pem_public_key(read_key(path))
    except (ValueError, UnsupportedAlgorithm) as err:
        raise BundleError(f"{path} is not a public key in PEM form: {err}") from err
    if not isinstance(key, Ed25519PublicKey):
        raise BundleError(f"{path}: got {type(key).__name__}; expected an Ed25519 public key.")
    if is_small_order(key.public_bytes(Encoding.Raw, PublicFormat.Raw)):
        raise BundleError(f"{path}: a key of small order, which accepts the same signature for every text.")
    der = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return key, hashlib.sha256(der).hexdigest()[:16]


def is_small_order(key: bytes) -> bool:
    """Whether an encoded public key is one of the curve's eight points of order 1, 2, 4 or 8, however it is spelled.

    Such points have y = 1, -1 or 0, or double to one with y = 0; on -x^2 + y^2 = 1 + d x^2 y^2 with
    d = -121665/121666 the latter is d y^4 + 2 y^2 = 1. https://www.rfc-editor.org/rfc/rfc8032#section-5.1
    """
    y = (int.from_bytes(key, "little") & (1 << 255) - 1) % _P
    return y * (y * y - 1) * (121666 * (2 * y * y - 1) - 121665 * y**4) % _P == 0


def _files(folder: Path) -> Iterator[Path]:
    for at, folders, names in os.walk(folder):
        yield from (Path(at, name) for name in (*folders, *names))


def _is_one_file(key: Path, other: Path) -> bool:
    try:
        return os.path.samefile(key, other)  # noqa: PTH121 - what Path.samefile calls, whichever is a link
    except OSError:  # one of them is not there
        return False
