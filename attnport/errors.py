"""The errors of attnport, which share their base and common classes with the bundle reader.

Each class has an exit code, and each error may have a hint that says how to fix it.

Exit codes: 0 success, 1 our bug, 2 usage or bad input, 3 a runtime or dependency is not available,
4 parity failed, 5 a required fusion is missing, 6 integrity or a disclosure, 7 slower than before,
8 whether it is slower could not be told; 129, 130 and 143 ended by SIGHUP, Ctrl-C and SIGTERM.
"""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING

from attnport_bundle.errors import AttnportError as AttnportError
from attnport_bundle.errors import BundleError as BundleError
from attnport_bundle.errors import FeedError as FeedError
from attnport_bundle.errors import IntegrityError as IntegrityError
from attnport_bundle.errors import NumbersOff as NumbersOff
from attnport_bundle.errors import ProfileError as ProfileError
from attnport_bundle.errors import RuntimeMissing as RuntimeMissing
from attnport_bundle.errors import UnavailableError as UnavailableError
from attnport_bundle.errors import UsageError as UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from attnport_bundle.format.contract import Dim

NOT_ONNX = "It was cut short, is a pointer of Git LFS to the file, or is another kind of file."

PRECEDENCE = (1, 6, 4, 5, 3, 2)
"""Where several things failed, the first of these exit codes counts: our bug, integrity, parity, fusion, availability,
bad input."""
_IN_SOURCE = re.compile(
    r"/onnxruntime_src/\S+:\d+:? (?:.*? was false\. (?=\S)|.*?\)(?: const)?(?: \[with .*?\])? (?=\S))"
)
"""In an error of ONNX Runtime: a file, a C++ signature and the condition that did not hold."""
_LONGEST = 4000
"""Characters of a cause that is shown; a library may print a whole graph."""


def first_line(err: BaseException) -> str:
    """The first line of another library's error that is not blank, or its type if there is none."""
    lines = [line.strip() for line in str(err).splitlines() if line.strip()]
    return lines[0][:_LONGEST] if lines else type(err).__name__


def root_line(err: BaseException) -> str:
    """As `first_line`, of the error that led to this one: onnx_ir wraps each level of a graph in its own error."""
    while err.__cause__ is not None:
        err = err.__cause__
    return first_line(err)


def whole_cause(err: BaseException) -> str:
    """All of another library's error in one line, or its type if it says nothing: the cause may be in the last line.

    What ONNX Runtime says of its own source, such as a C++ signature with its template arguments, is left out.
    """
    said = _IN_SOURCE.sub("", " ".join(str(err)[: 4 * _LONGEST].split()))
    return f"{said[:_LONGEST]}…" if len(said) > _LONGEST else said or type(err).__name__


def nearest(word: str, known: Iterable[str]) -> str:
    """A hint that asks if the first known word that begins so is meant, or that with the most similar spelling; "" if
    none is similar."""
    words = list(known)
    found = [each for each in words if each.startswith(word)] or difflib.get_close_matches(word, words, 1)
    return f"Is it {found[0]}?" if found else ""


def refuse_list(option: str, text: str) -> None:
    """Raises UsageError where several names are given as one, with commas; `option` is the one that takes a name."""
    if len(parts := [part.strip() for part in text.split(",") if part.strip()]) > 1:
        raise UsageError(
            f"{option} {text}: this is taken for one name, and no name has a comma.",
            hint=f"Give the option for each: {' '.join(f'{option} {part}' for part in parts)}",
        )


class SpecError(UsageError):
    """A SPEC cannot be turned into a module, or the module is no longer the one that was exported."""


class ArtifactError(UsageError):
    """A folder or file is not what it should be (not an artifact, incomplete, malformed)."""


class ExportError(UsageError):
    """The module cannot be exported, or a dimension froze during the export.

    Args:
        dims: The dims that froze, where that is known.
        one_way: Ranges of dims in each of which a graph may be right, the best first.
    """

    def __init__(
        self,
        message: str,
        *,
        hint: str = "",
        dims: tuple[str, ...] = (),
        one_way: Sequence[tuple[Dim, ...]] = (),
    ) -> None:
        super().__init__(message, hint=hint)
        self.dims, self.one_way = dims, one_way


class EngineBuildError(UsageError):
    """TensorRT refused the network, or its builder died; the last log lines are in the message."""


class MissingDependency(UnavailableError):
    """A Python package that is needed is not installed; the hint is the pip command."""


class ParityFailed(AttnportError):
    """A runtime's errors exceed the bound."""

    exit_code = 4


class FusionMissing(AttnportError):
    """An attention that must be fused is not."""

    exit_code = 5


class Disclosure(AttnportError):
    """A file gives away what its receivers need not know: paths, people, notes, attention weights, data."""

    exit_code = 6


class LatencyRegressed(AttnportError):
    """A model is slower than before, which the user wants to be an error."""

    exit_code = 7


class CouldNotTell(AttnportError):
    """Whether a model is slower than before could not be told, which the user wants to be an error."""

    exit_code = 8
