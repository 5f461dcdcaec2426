"""A finding of an audit, and what text reveals: paths, people, source lines, stack traces, the environment.

A text file is read as a whole; in any other file that is not ONNX, the runs of printable text are searched.
"""

from __future__ import annotations

import mmap
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Kind = Literal[
    "path",
    "user",
    "source_line",
    "stack_trace",
    "environment",
    "metadata",
    "doc_string",
    "weights_output",
    "data_constant",
    "unknown_field",
    "unreferenced_bytes",
    "user_text",
]
MOST = 80
"""The most characters of evidence: a report must not itself reveal more than necessary."""


@dataclass(frozen=True)
class Finding:
    """Something that a file reveals.

    Attributes:
        file: Relative to what was audited.
        where: Which part of the file, such as `graph.node[linear].metadata_props`.
        evidence: At most `MOST` characters of it, with unprintable characters escaped.
        fixable: Whether `--fix` removes it.
        advice: What to do about it if `--fix` cannot remove it.
    """

    file: str
    where: str
    kind: Kind
    evidence: str
    fixable: bool
    advice: str = ""


def shown(text: str) -> str:
    """Text as evidence: one line of at most `MOST` characters, without terminal control sequences."""
    text = text.strip()
    line = "".join(_escaped(text[:MOST]))
    return line if len(text) <= MOST and len(line) <= MOST else f"{line[: MOST - 1]}…"


def _escaped(text: str) -> Iterator[str]:
    for char in text:
        yield char if char.isprintable() else char.encode("unicode_escape", "surrogatepass").decode()


TEXTS = frozenset((".json", ".html", ".txt", ".md", ".py", ".toml", ".yaml", ".yml", ".csv", ".js", ".css", ".svg"))
_RUN = re.compile(rb"[\x20-\x7e]{12,}")
_MOST_RUN = 1 << 16
_SHARED_ACCOUNTS = frozenset(
    (
        *("root", "user", "users", "admin", "administrator", "runner", "ubuntu", "debian", "jovyan", "nobody"),
        *("docker", "builder", "build", "default", "public", "shared", "guest", "test", "tester", "vscode"),
        *("codespace", "home"),
    )
)
"""System and generic accounts: such a name identifies nobody, and modules may have it too."""
_LEAST_NAME = 3

# Values of a TorchScript export have names such as "/encoder/layer.0/MatMul". So a path is recognised by a folder that
# systems have and modules hardly ever have, or by the suffix of a file.
_FOLDERS = "home|Users|root|tmp|work|workspace|mnt|opt|usr|var|private|srv|gpfs|lustre"
_FILES = "py|pyc|ipynb|cpp|cc|cu|cuh|so|onnx|engine|plan|pt|pth|ckpt|safetensors|npz|npy|bin|json|ya?ml|toml|csv|txt"
_PART = r"[^\s\"'<>|:;,()\[\]{}\\]"
_PATHS = re.compile(
    rf"(?<![\w.:/~+-])(?:file://)?/(?:(?:{_FOLDERS})/{_PART}+|(?:{_PART}+/)*{_PART}+\.(?:{_FILES})\b)"
    r"|(?<![A-Za-z0-9])[A-Za-z]:(?:\\{1,2}|/)(?:[\w .()-]{2,}[\\/]{1,2})+[\w.()-]*"
    r"|(?<![\\\w])\\{2,4}[A-Za-z][\w.-]+\\{1,2}[A-Za-z][\w.-]*\$?\\{1,2}[\w.-]+"
)
_HOMES = re.compile(r"(?:(?<![\w.])/(?:home|Users)/|[A-Za-z]:[\\/]{1,2}Users[\\/]{1,2})([\w.-]+)")
_MAIL = re.compile(r"(?<![\w.+-])[\w.+-]+@[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)*\.[A-Za-z]{2,}\b")
_TRACE = re.compile(r"Traceback \(most recent call last\)|File \"[^\"\n]+\", line \d+[^\n]*")
_TRACED_LINE = re.compile(r"File \"[^\"\n]+\", line \d+[^\n]*\n[ \t]+(?!File \")(\S[^\n]*)")
_SOURCE = re.compile(r"[\w./\\<>-]+\.(?:py|cpp|cc|cu|h)(?:\(\d+\)|:\d+)[^\n]*")
_VARIABLES = re.compile(
    r"\b(?:PATH|HOME|USER|LOGNAME|PWD|HOSTNAME|SHELL|VIRTUAL_ENV|(?:CONDA|PYTHON|LD|CUDA|HF|AWS|SLURM)[A-Z0-9_]+"
    r"|[A-Z0-9_]*(?:TOKEN|SECRET|PASSWORD|API_?KEY)[A-Z0-9_]*)=[^\s=]\S*"
    r"|\bhf_[A-Za-z0-9]{30,}|\bgh[pousr]_[A-Za-z0-9]{30,}|\bAKIA[0-9A-Z]{16}\b|-----BEGIN [A-Z ]*PRIVATE KEY-----"
)


@dataclass(frozen=True)
class Builder:
    """The names of accounts and machines to look for as words."""

    users: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()


def this_builder() -> Builder:
    """The current account and machine, without generic names (`root`, `localhost`)."""
    import getpass
    import socket

    users = {Path.home().name} if Path.home().name else set()
    with suppress(OSError, KeyError):  # the account may have no entry, as in containers
        users.add(getpass.getuser())
    host = socket.gethostname().split(".")[0]
    people = tuple(sorted(name for name in users if _is_somebody(name)))
    return Builder(people, (host,) if len(host) > _LEAST_NAME and host != "localhost" else ())


def leaks(text: str, builder: Builder, *, words: bool = True) -> Iterator[tuple[Kind, str]]:
    """Everything that `text` reveals: its kind and its text.

    Args:
        words: Look for the builder's names too; False for vocabularies, which contain most first names.
    """
    if not text:
        return
    for match in _PATHS.finditer(text):
        yield "path", match[0]
    for match in _HOMES.finditer(text):
        if _is_somebody(match[1]):
            yield "user", match[1]
    yield from (("user", match[0]) for match in _MAIL.finditer(text))
    yield from (("stack_trace", match[0]) for match in _TRACE.finditer(text))
    yield from (("source_line", match[1]) for match in _TRACED_LINE.finditer(text))
    yield from (("source_line", match[0]) for match in _SOURCE.finditer(text))
    yield from (("environment", match[0]) for match in _VARIABLES.finditer(text))
    if words:
        yield from (("user", name) for name in builder.users if _has_word(text, name))
        yield from (("environment", host) for host in builder.hosts if _has_word(text, host))


def first_of_each(text: str, builder: Builder) -> dict[Kind, str]:
    """The first text of each kind that `text` reveals."""
    evidence_of: dict[Kind, str] = {}
    for kind, evidence in leaks(text, builder):
        evidence_of.setdefault(kind, evidence)
    return evidence_of


def _is_somebody(name: str) -> bool:
    return len(name) >= _LEAST_NAME and name.lower() not in _SHARED_ACCOUNTS


def _has_word(text: str, word: str) -> bool:
    return word in text and re.search(rf"(?<![A-Za-z0-9]){re.escape(word)}(?![A-Za-z0-9])", text) is not None


def audit_text(file: str, path: Path, builder: Builder, *, words: bool = True, advice: str = "") -> Iterator[Finding]:
    """Findings for the lines of a text file; what occurs several times is reported once.

    Args:
        words: Look for the builder's names too; False for vocabularies, which contain most first names.
    """
    seen = set[tuple[Kind, str]]()
    for number, line in enumerate(path.read_text("utf-8", "replace").splitlines(), start=1):
        for leak in leaks(line, builder, words=words):
            if leak not in seen:
                seen.add(leak)
                yield Finding(file, f"line {number}", leak[0], shown(leak[1]), fixable=False, advice=advice)


def audit_bytes(file: str, path: Path, builder: Builder, *, advice: str = "") -> Iterator[Finding]:
    """Findings for the runs of 12 or more printable characters in a binary file."""
    if not path.stat().st_size:
        return
    with path.open("rb") as handle, mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ) as data:
        for match in _RUN.finditer(data):
            run = match[0][:_MOST_RUN].decode("ascii")
            for kind, evidence in first_of_each(run, builder).items():
                where = f"byte {match.start()}"
                yield Finding(file, where, kind, shown(evidence), fixable=False, advice=advice)
