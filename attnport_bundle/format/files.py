"""The folder of a bundle against its manifest, and the manifest's signature.

No file may be changed, missing, added or a link. `bundle.sig` is the Ed25519 signature of the manifest, which holds the
digest of every file. The public key always comes from outside the bundle: a key inside would only prove that the bundle
agrees with itself. Ed25519: https://www.rfc-editor.org/rfc/rfc8032. Keys are PEM files, as `openssl genpkey -algorithm
ed25519` makes them.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from ..errors import BundleError, IntegrityError, RuntimeMissing
from .manifest import MANIFEST, SIGNATURE, File, Manifest, from_bytes, read_bytes, shown_name

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

BYTES = 64
MAX_KEY_BYTES = 1 << 16
# The signed text starts with this, so that a signature made for another purpose is never valid for a manifest.
_PREFIX = b"attnport-bundle-signature-v1\0"
_P = 2**255 - 19
# Not every system has all of these flags.
_FLAGS = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)


def open_regular(path: Path) -> BinaryIO:
    """Opens `path` for reading.

    Raises:
        OSError: it cannot be opened, or is a link.
        ValueError: it is not a regular file.
    """
    # The descriptor makes sure that the file that is checked is the one that is read.
    file = open(os.open(path, os.O_RDONLY | _FLAGS), "rb")  # noqa: PTH123, SIM115 - see above; the caller closes it
    if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        return file
    file.close()
    raise ValueError("not a regular file")


def read_regular(path: Path, most: int | None = None) -> bytes:
    """The bytes of a bundled file. Raises IntegrityError if it cannot be read, or has more than `most` bytes."""
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            if most is not None and size > most:
                raise ValueError(f"got {size} bytes; expected at most {most}")
            return file.read()
    except OSError as err:
        raise IntegrityError(f"{path}: cannot be read: {err.strerror}.") from err
    except ValueError as err:
        raise IntegrityError(f"{path}: {err}.") from err


def message(manifest: bytes) -> bytes:
    """The signed text: a prefix, followed by the bytes of `bundle.json`."""
    return _PREFIX + manifest


def _check_signature(manifest: bytes, key: Path, folder: Path) -> str:
    """Checks the signature of a manifest's bytes, before any of them is used; gives the key's fingerprint."""
    public, fingerprint = _public_key(key, folder)
    from cryptography.exceptions import InvalidSignature

    path, signature = folder / SIGNATURE, b""
    if not os.path.lexists(path):
        raise IntegrityError(f"{folder} is not signed: it has no {SIGNATURE}.")
    with contextlib.suppress(OSError, ValueError), open_regular(path) as file:
        signature = file.read(BYTES + 1)
    if len(signature) != BYTES:
        raise IntegrityError(f"{path} is not a signature: expected a regular file of {BYTES} bytes.")
    try:
        public.verify(signature, message(manifest))
    except InvalidSignature as err:
        raise IntegrityError(
            f"{path}: the signature is not one of this manifest with the key {fingerprint}: "
            f"{MANIFEST} was changed since, or another key signed it."
        ) from err
    return fingerprint


def refuse_inside(key: Path, folder: Path) -> None:
    """Raises BundleError if a key lies in the folder, by whatever path and links."""
    parents = {Path(os.path.abspath(folder)), folder.resolve()}  # noqa: PTH100 - abspath follows no link, resolve does
    spelled = {Path(os.path.abspath(key)), key.parent.resolve() / key.name, key.resolve()}  # noqa: PTH100 - as above
    if any(path.is_relative_to(parent) for path in spelled for parent in parents):
        raise BundleError(f"{key}: a key inside {folder} proves nothing; keep it elsewhere.")


def read_key(path: Path) -> bytes:
    """The bytes of a key file. Raises BundleError when it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(MAX_KEY_BYTES)
    except OSError as err:
        raise BundleError(f"{path}: the key cannot be read: {err.strerror}.") from err


def _public_key(path: Path, folder: Path) -> tuple[Ed25519PublicKey, str]:
    """The public key in a PEM file, and its fingerprint: the first 16 hex digits of the SHA-256 of its DER form."""
    try:
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
        from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_public_key
    except ImportError as err:
        absent = isinstance(err, ModuleNotFoundError) and err.name == "cryptography"
        raise RuntimeMissing("cryptography is not installed; pip install cryptography.") from (None if absent else err)
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


def read_trusted(folder: Path, key: Path | None) -> tuple[Manifest, str]:
    """Reads the manifest of a bundle; with a key, only if its signature is valid.

    Args:
        folder: The bundle.
        key: The public key, a PEM file from outside the bundle; None = the signature is not checked.

    Returns:
        The manifest, and the fingerprint of the key ("" without one).

    Raises:
        BundleError: the folder is not a bundle, has a version that this reader does not know, or the key is refused: it
            lies in the bundle, or is no Ed25519 public key.
        IntegrityError: the manifest is malformed or, with a key, not signed with it.
        RuntimeMissing: a key is given and the package cryptography is not installed.
    """
    data = read_bytes(folder)
    fingerprint = "" if key is None else _check_signature(data, key, folder)
    return from_bytes(data, str(folder / MANIFEST)), fingerprint


MAX_PROBLEMS = 20


@dataclass(frozen=True)
class FileProblem:
    """A problem with one of a bundle's files; `name` is relative to the folder, and printable."""

    name: str
    problem: str


def check(folder: Path, manifest: Manifest) -> list[FileProblem]:
    """The problems of a bundle's files, at most `MAX_PROBLEMS`; empty = all files are as they were bundled."""
    return list(itertools.islice(_problems(folder, manifest), MAX_PROBLEMS))


def require(folder: Path, problems: Sequence[FileProblem]) -> None:
    """Raises IntegrityError for the first of a bundle's problems, if any, and says how many more there are."""
    if problems:
        more = f" ({len(problems) - 1} more)" if len(problems) > 1 else ""
        raise IntegrityError(
            f"{folder / problems[0].name}: {problems[0].problem}{more}. Restore the bundle as it was made."
        )


def _problems(folder: Path, manifest: Manifest) -> Iterator[FileProblem]:
    seen = set()
    for name, problem in _walk(folder, manifest):
        seen.add(name)
        if problem:
            yield FileProblem(shown_name(name), problem)
    yield from (FileProblem(name, "missing") for name in manifest.files if name not in seen)


def _walk(folder: Path, manifest: Manifest) -> Iterator[tuple[str, str]]:
    """Every entry with its problem, "" if it has none. No link is followed, and nothing but a listed file is opened."""
    folders = {parent.as_posix() for name in manifest.files for parent in Path(name).parents}
    pending = [""]
    while pending:
        at = pending.pop()
        try:
            with os.scandir(folder / at) as entries:
                listed = sorted(entries, key=lambda entry: entry.name)
        except OSError as err:
            yield at or ".", f"cannot be listed: {err.strerror}"
            continue
        for entry in listed:
            name = f"{at}/{entry.name}" if at else entry.name
            if entry.is_symlink():
                yield name, "a link; a bundle holds regular files only"
            elif entry.is_dir(follow_symlinks=False):
                if name in folders:
                    pending.append(name)
                else:
                    yield name, "added: this folder is not part of the bundle"
            elif not entry.is_file(follow_symlinks=False):
                yield name, "not a regular file"
            elif name == SIGNATURE:
                size = entry.stat(follow_symlinks=False).st_size
                yield name, "" if size == BYTES else f"not a signature: got {size} bytes; expected {BYTES}"
            elif name in manifest.files:
                yield name, _compare(folder / name, manifest.files[name])
            else:
                yield name, "" if name == MANIFEST else "added: this file is not part of the bundle"


def _compare(path: Path, expected: File) -> str:
    """What differs between a file and its record; "" = nothing."""
    try:
        with open_regular(path) as file:
            got = os.fstat(file.fileno()).st_size
            if got != expected.bytes:
                return f"changed: got {got} bytes; expected {expected.bytes}"
            sha = hashlib.sha256()
            while chunk := file.read(1 << 20):
                sha.update(chunk)
    except OSError as err:
        return f"cannot be read: {err.strerror}"
    except ValueError as err:
        return str(err)
    return "" if sha.hexdigest() == expected.sha256 else "changed: its SHA-256 is not that of the manifest"
