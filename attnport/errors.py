"""One tree of errors; each class owns its exit code and carries a hint that says how to fix it.

Exit codes: 0 fine, 1 our bug, 2 usage or bad input, 3 a runtime or dependency is not available,
4 parity failed, 5 a required fusion is missing, 6 integrity or a disclosure, 7 slower than before;
129, 130 and 143 ended by SIGHUP, Ctrl-C and SIGTERM.
"""

from __future__ import annotations

from typing import ClassVar


def first_line(err: BaseException) -> str:
    """The first line of a foreign error that says something, with its type when it says nothing."""
    lines = [line.strip() for line in str(err).splitlines() if line.strip()]
    return lines[0][:300] if lines else type(err).__name__


class AttnportError(Exception):
    """Base of every error that a user can cause or meet.

    Args:
        message: What happened, with the evidence (tensor, got, expected).
        hint: How to fix it, one sentence; empty when the message says it.
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(AttnportError):
    """The arguments do not fit: an unknown name, a bad number, a missing option."""

    exit_code = 2


class SpecError(UsageError):
    """A SPEC cannot be turned into a module, or the module no longer is what was exported."""


class FeedError(UsageError):
    """Inputs do not fit the model: a wrong name, dtype, rank or size."""


class ProfileError(UsageError):
    """An optimization profile is contradictory or beyond what the model can take."""


class ArtifactError(UsageError):
    """A folder or file is not what it should be (no artifact, half written, malformed)."""


class ExportError(UsageError):
    """The module cannot be exported, or a dimension froze on the way."""


class EngineBuildError(UsageError):
    """TensorRT refused the network, or its builder died; the last log lines are in the message."""


class UnavailableError(AttnportError):
    """A runtime that was asked for is not available on this machine."""

    exit_code = 3


class MissingDependency(UnavailableError):
    """A Python package that was asked for is not installed; the hint is the pip line."""


class ParityFailed(AttnportError):
    """A runtime's numbers are outside the bound."""

    exit_code = 4


class FusionMissing(AttnportError):
    """An attention that had to be fused is not."""

    exit_code = 5


class IntegrityError(AttnportError):
    """A file is not the one that was written: digest, version, target or signature differ."""

    exit_code = 6


class Disclosure(AttnportError):
    """A file gives away what whoever gets it need not know: paths, people, notes, attention weights, data."""

    exit_code = 6


class LatencyRegressed(AttnportError):
    """A model is slower than it was, and that was to be no success."""

    exit_code = 7
