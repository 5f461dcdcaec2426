"""Compares the files of a bundle with its manifest: none may be changed, missing, added, a link, or refer elsewhere."""

from __future__ import annotations

import hashlib
import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .errors import IntegrityError
from .external import references
from .manifest import ENGINES, MANIFEST, Form, Manifest
from .names import shown
from .regular import open_regular
from .signature import BYTES, SIGNATURE

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
            yield FileProblem(shown(name), problem)
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
