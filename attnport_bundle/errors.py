"""The errors of this reader and of attnport, and the text of others as messages may show it.

Each class has an exit code, and an error may have a hint. Every error that this reader raises about a bundle is a
`BundleError`. attnport derives further classes from `AttnportError`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar


class AttnportError(Exception):
    """Base of every error that is reported to the user.

    Args:
        message: What happened, with the evidence (tensor, got, expected).
        hint: How to fix it, in one sentence; empty if the message already says it.
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(AttnportError):
    """Wrong arguments: an unknown name, a bad number, a missing option."""

    exit_code = 2


class ProfileError(UsageError):
    """A dim or an optimization profile contradicts itself or exceeds what the model can take."""


class UnavailableError(AttnportError):
    """A runtime that was asked for is not available on this machine."""

    exit_code = 3


class BundleError(AttnportError):
    """The folder is not a bundle, has a version that this reader does not know, or was used in an unsupported way."""

    exit_code = 2


class FeedError(BundleError, UsageError):
    """Inputs do not fit the model, or an argument has no meaning: the message names it, got and expected."""


class RuntimeMissing(BundleError, UnavailableError):
    """The runtime is not installed, or is older than the bundle needs."""

    exit_code = 3


@contextmanager
def of_this_copy(part: str) -> Iterator[None]:
    """A context that imports a part of this reader. Raises RuntimeMissing where a bundle's copy is without it."""
    name = f"{__package__}.{part}"
    try:
        yield
    except ModuleNotFoundError as err:
        if err.name != name:
            raise
        bundle, lacks = Path(__file__).resolve().parents[2], part.rpartition(".")[2]
        raise RuntimeMissing(
            f"a copy of the reader in a bundle opens the forms of that bundle alone: {bundle} has none for {lacks}. "
            "Use the copy in the folder python of the bundle that you open; for several bundles in one process, "
            "install the package attnport_bundle, which reads all."
        ) from None


class BundleWarning(UserWarning):
    """Something worth knowing that is not an error: a form was passed over, or no cache is kept."""


class NumbersOff(BundleError):
    """The model computes other numbers here than where the bundle was made."""

    exit_code = 4


class IntegrityError(BundleError):
    """A file is not the one that was written (digest, version, target or signature differ), or cannot be trusted."""

    exit_code = 6


_HIDDEN = (
    *((0x00, 0x1F), (0x7F, 0xA0), (0xAD, 0xAD), (0x600, 0x605), (0x61C, 0x61C), (0x6DD, 0x6DD), (0x70F, 0x70F)),
    *((0x890, 0x891), (0x8E2, 0x8E2), (0x1680, 0x1680), (0x180E, 0x180E), (0x2000, 0x200F), (0x2028, 0x202F)),
    *((0x205F, 0x2064), (0x2066, 0x206F), (0x3000, 0x3000), (0xD800, 0xF8FF), (0xFDD0, 0xFDEF), (0xFEFF, 0xFEFF)),
    *((0xFFF9, 0xFFFB), (0x110BD, 0x110BD), (0x110CD, 0x110CD), (0x13430, 0x1343F), (0x1BCA0, 0x1BCA3)),
    *((0x1D173, 0x1D17A), (0xE0001, 0xE0001), (0xE0020, 0xE007F), (0xF0000, 0x10FFFF)),
    *((plane + 0xFFFE, plane + 0xFFFF) for plane in range(0, 0xF0000, 0x10000)),
)
"""First and last of each range of controls, formats, separators except the space, surrogates, private use and
noncharacters: a fixed table (FORMAT.md, Text) that all readers share. Python's `str.isprintable` changes with each
release of Unicode."""

_PATTERN = re.compile("[" + "".join(f"{chr(first)}-{chr(last)}" for first, last in _HIDDEN) + "]")


def is_printable(text: str) -> bool:
    """Whether every character of `text` can be printed."""
    return _PATTERN.search(text) is None


def escaped(text: str) -> str:
    """A message of a runtime or parser, made safe to print on one line: it may contain text of a model file.

    Blanks around it are removed, and each character that cannot be printed is escaped as by `repr`.
    """
    return escape_all(text.strip(" \t\r\n\v\f"))


def escape_all(text: str) -> str:
    """`text` with each character that cannot be printed escaped as by `repr`."""
    return _PATTERN.sub(lambda match: ascii(match[0])[1:-1], text)
