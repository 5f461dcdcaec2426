"""What the bundle's reader raises, in this package's own errors: runtimes share its sessions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from attnport.errors import ArtifactError, AttnportError, FeedError, IntegrityError, UnavailableError
from attnport_bundle import errors as reader

_SAME: tuple[tuple[type[reader.BundleError], type[AttnportError]], ...] = (
    (reader.RuntimeMissing, UnavailableError),
    (reader.FeedError, FeedError),
    (reader.IntegrityError, IntegrityError),
)


@contextmanager
def own_errors(hint: str = "") -> Iterator[None]:
    """Around a call of the reader: what it raises becomes the error of ours with the same exit code, with `hint`."""
    try:
        yield
    except reader.BundleError as err:
        kind = next((ours for theirs, ours in _SAME if isinstance(err, theirs)), ArtifactError)
        raise kind(str(err), hint=hint) from err
