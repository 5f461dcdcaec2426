"""One tree of errors, whose root and common classes are those of the bundle reader.

Each class owns its exit code and carries a hint that says how to fix it.

Exit codes: 0 fine, 1 our bug, 2 usage or bad input, 3 a runtime or dependency is not available,
4 parity failed, 5 a required fusion is missing, 6 integrity or a disclosure, 7 slower than before;
129, 130 and 143 ended by SIGHUP, Ctrl-C and SIGTERM.
"""

from __future__ import annotations

from attnport_bundle.errors import AttnportError as AttnportError
from attnport_bundle.errors import BundleError as BundleError
from attnport_bundle.errors import FeedError as FeedError
from attnport_bundle.errors import IntegrityError as IntegrityError
from attnport_bundle.errors import NumbersOff as NumbersOff
from attnport_bundle.errors import ProfileError as ProfileError
from attnport_bundle.errors import RuntimeMissing as RuntimeMissing
from attnport_bundle.errors import UnavailableError as UnavailableError
from attnport_bundle.errors import UsageError as UsageError


def first_line(err: BaseException) -> str:
    """The first line of a foreign error that says something, with its type when it says nothing."""
    lines = [line.strip() for line in str(err).splitlines() if line.strip()]
    return lines[0][:300] if lines else type(err).__name__


class SpecError(UsageError):
    """A SPEC cannot be turned into a module, or the module no longer is what was exported."""


class ArtifactError(UsageError):
    """A folder or file is not what it should be (no artifact, half written, malformed)."""


class ExportError(UsageError):
    """The module cannot be exported, or a dimension froze on the way."""


class EngineBuildError(UsageError):
    """TensorRT refused the network, or its builder died; the last log lines are in the message."""


class MissingDependency(UnavailableError):
    """A Python package that was asked for is not installed; the hint is the pip line."""


class ParityFailed(AttnportError):
    """A runtime's numbers are outside the bound."""

    exit_code = 4


class FusionMissing(AttnportError):
    """An attention that had to be fused is not."""

    exit_code = 5


class Disclosure(AttnportError):
    """A file gives away what whoever gets it need not know: paths, people, notes, attention weights, data."""

    exit_code = 6


class LatencyRegressed(AttnportError):
    """A model is slower than it was, and that was to be no success."""

    exit_code = 7
