"""The folder of a bundle against its manifest, and the manifest's signature.

No file may be changed, missing, added, a link, or refer elsewhere. `bundle.sig` is the Ed25519 signature of the
manifest, which holds the digest of every file. The public key always comes from outside the bundle: a key inside would
only prove that the bundle agrees with itself. Ed25519: https://www.rfc-editor.org/rfc/rfc8032. Keys are PEM files, as
`openssl genpkey -algorithm ed25519` makes them.
"""

from __future__ import annotations

import hashlib
import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import BundleError, IntegrityError, RuntimeMissing
from .manifest import ENGINES, MANIFEST, SIGNATURE, Form, Manifest, from_bytes, read_bytes, shown_name
from .onnx_file import open_regular, references

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

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


def check_signature(manifest: bytes, signature: bytes | None, key: Path, folder: Path) -> str:
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


def read_trusted(folder: Path, key: Path | None) -> tuple[Manifest, str]:
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
    fingerprint = "" if key is None else check_signature(data, read_signature(folder), key, folder)
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


def require(folder: Path, manifest: Manifest) -> None:
    """Raises IntegrityError for the first problem that `check` finds, and says how many more there are."""
    problems = check(folder, manifest)
    if problems:
        more = f" ({len(problems) - 1} more)" if len(problems) > 1 else ""
        raise IntegrityError(
            f"{folder / problems[0].name}: {problems[0].problem}{more}. Restore the bundle as it was made."
        )


def _problems(folder: Path, manifest: Manifest) -> Iterator[FileProblem]:
    problems: dict[str, str] = {}
    for name, problem in _walk(folder, manifest):
        problems[name] = problem
        if problem:
            yield FileProblem(shown_name(name), problem)
    damaged = any(problems.values())
    for name, expected in manifest.files.items():
        if problems.get(name):  # reported above; it may be a pipe, and reading it would wait
            continue
        problem = _compare(folder / name, expected.bytes, expected.sha256) if name in problems else "missing"
        if problem:
            damaged = True
            yield FileProblem(name, problem)
    if damaged:  # a model is parsed only once it is known to be the bundled one
        return
    for form in manifest.forms.values():
        if form.runtime not in ENGINES:
            yield from _external(folder, manifest, form)


def _walk(folder: Path, manifest: Manifest) -> Iterator[tuple[str, str]]:
    """Every entry with its problem, "" if it has none. Links are not followed."""
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
            elif name == SIGNATURE:  # to check it takes a key: see signature.py
                size = entry.stat(follow_symlinks=False).st_size
                yield name, "" if size == BYTES else f"not a signature: got {size} bytes; expected {BYTES}"
            elif name not in manifest.files and name != MANIFEST:
                yield name, "added: this file is not part of the bundle"
            else:
                yield name, ""


def _compare(path: Path, size: int, sha256: str) -> str:
    """What differs between a file and its record; "" = nothing."""
    try:
        with open_regular(path) as file:
            got = os.fstat(file.fileno()).st_size
            if got != size:
                return f"changed: got {got} bytes; expected {size}"
            sha = hashlib.sha256()
            while chunk := file.read(1 << 20):
                sha.update(chunk)
    except OSError as err:
        return f"cannot be read: {err.strerror}"
    except ValueError as err:
        return str(err)
    return "" if sha.hexdigest() == sha256 else "changed: its SHA-256 is not that of the manifest"


def _external(folder: Path, manifest: Manifest, form: Form) -> Iterator[FileProblem]:
    """Problems of external data: in a file other than the model's weights files, beyond its end, or overlapping."""
    ranges: dict[str, set[tuple[int, int]]] = {}
    try:
        for reference in references(folder / form.file):
            if reference.location not in form.external:
                where = f"takes weights from {reference.location!r}"
                yield FileProblem(form.file, f"{where}; its weights files are {', '.join(form.external) or 'none'}")
                return
            size = manifest.files[reference.location].bytes
            length = size - reference.offset if reference.length is None else reference.length
            if reference.offset < 0 or length < 0 or reference.offset + length > size:
                beyond = f"bytes {reference.offset} to {reference.offset + length} of {reference.location}"
                yield FileProblem(form.file, f"takes weights from {beyond}, which has {size}")
                return
            if length:
                ranges.setdefault(reference.location, set()).add((reference.offset, length))
    except ValueError as err:
        yield FileProblem(form.file, f"not a model that can be read: {err}")
        return
    for location, used in ranges.items():
        end = 0
        for offset, length in sorted(used):
            if offset < end:
                yield FileProblem(form.file, f"takes overlapping weights from {location} at byte {offset}")
                return
            end = offset + length
