"""The error tree: every class owns the exit code that the design gives it, and carries its hint apart."""

from __future__ import annotations

import inspect

import pytest

from attnport import errors
from attnport.errors import AttnportError, BundleError

CLASSES = [kind for _, kind in inspect.getmembers(errors, inspect.isclass)]
BASES = (AttnportError, BundleError)
"""What every error is, and what every error of a bundle's reader is."""
EXIT_CODES = {
    "AttnportError": 1,
    "UsageError": 2,
    "SpecError": 2,
    "BundleError": 2,
    "FeedError": 2,
    "ProfileError": 2,
    "ArtifactError": 2,
    "ExportError": 2,
    "EngineBuildError": 2,
    "UnavailableError": 3,
    "RuntimeMissing": 3,
    "MissingDependency": 3,
    "ParityFailed": 4,
    "NumbersOff": 4,
    "FusionMissing": 5,
    "IntegrityError": 6,
    "Disclosure": 6,
    "LatencyRegressed": 7,
    "CouldNotTell": 8,
}


def test_every_class_owns_its_exit_code() -> None:
    assert {kind.__name__: kind.exit_code for kind in CLASSES} == EXIT_CODES


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_every_class_is_one_of_the_tree_and_says_when_it_is_raised(kind: type[AttnportError]) -> None:
    assert issubclass(kind, AttnportError)
    assert (kind.__doc__ or "").strip()


def test_the_hint_is_kept_apart_from_what_happened() -> None:
    err = errors.FeedError("input 'x': got rank 2; expected 3.", hint="Add the batch axis.")
    assert str(err) == err.message == "input 'x': got rank 2; expected 3."
    assert err.hint == "Add the batch axis."
    assert errors.FeedError("x").hint == ""


def test_catching_one_exit_code_never_catches_another() -> None:
    for kind in CLASSES:
        for other in CLASSES:
            if issubclass(kind, other) and other not in BASES:
                assert kind.exit_code == other.exit_code
