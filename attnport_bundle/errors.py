"""The errors of this reader and of attnport. Each class has an exit code, and an error may have a hint.

Every error that this reader raises about a bundle is a `BundleError`. attnport derives further classes from
`AttnportError`.
"""

from __future__ import annotations

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


class BundleWarning(UserWarning):
    """Something worth knowing that is not an error: a form was passed over, or no cache is kept."""


class NumbersOff(BundleError):
    """The model computes other numbers here than where the bundle was made."""

    exit_code = 4


class IntegrityError(BundleError):
    """A file is not the one that was written (digest, version, target or signature differ), or cannot be trusted."""

    exit_code = 6
