"""What can go wrong with a bundle; each class owns the exit code of the command line."""

from __future__ import annotations


class BundleError(Exception):
    """Not a bundle, of a version that this reader does not know, or used in a way that it does not offer."""

    exit_code = 2


class FeedError(BundleError):
    """Inputs do not fit the model: the message names the tensor, what was got and what is expected."""


class RuntimeMissing(BundleError):
    """The runtime is not installed, or is older than the bundle needs."""

    exit_code = 3


class BundleWarning(UserWarning):
    """Something was done in another way than one may expect: a form was passed over, or no cache is kept."""


class NumbersOff(BundleError):
    """The model computes something else here than where the bundle was made."""

    exit_code = 4


class IntegrityError(BundleError):
    """A file is not the one that was bundled, or the manifest cannot be trusted."""

    exit_code = 6
