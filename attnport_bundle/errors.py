"""One tree of errors, of this reader and of attnport; each class owns its exit code, and an error may have a hint.

Whatever this reader raises about a bundle is a `BundleError`. attnport adds classes of its own below `AttnportError`.
"""

from __future__ import annotations

from typing import ClassVar


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


class ProfileError(UsageError):
    """A dim or an optimization profile is contradictory or beyond what the model can take."""


class UnavailableError(AttnportError):
    """A runtime that was asked for is not available on this machine."""

    exit_code = 3


class BundleError(AttnportError):
    """Not a bundle, of a version that this reader does not know, or used in a way that it does not offer."""

    exit_code = 2


class FeedError(BundleError, UsageError):
    """Inputs do not fit the model: the message names the tensor, what was got and what is expected."""


class RuntimeMissing(BundleError, UnavailableError):
    """The runtime is not installed, or is older than the bundle needs."""

    exit_code = 3


class BundleWarning(UserWarning):
    """Something was done in another way than one may expect: a form was passed over, or no cache is kept."""


class NumbersOff(BundleError):
    """The model computes something else here than where the bundle was made."""

    exit_code = 4


class IntegrityError(BundleError):
    """A file is not the one that was written: digest, version, target or signature differ, or it cannot be trusted."""

    exit_code = 6
