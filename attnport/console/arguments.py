"""Checks that apply to all arguments of all verbs: text must be UTF-8, and paths must not be empty."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import click

from attnport.errors import UsageError


class _Path(click.Path):
    """A path. An empty one, which would mean the current folder, is refused."""

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> Any:
        """As click's."""
        if value == "":
            self.fail("the path is empty; does it come from a shell variable that is not set?", parameter, context)
        return super().convert(value, parameter, context)


FOLDER = _Path(path_type=Path)
ABOUT: ContextVar[Path | None] = ContextVar("ABOUT", default=None)
"""The folder that the verb of this process is about, which messages call FOLDER."""


def readable(text: str) -> str:
    """A text for a terminal, with the folder that it is about in place of FOLDER."""
    from attnport.folder.portable import as_command

    folder = ABOUT.get()
    return text if folder is None else as_command(text, folder)


@contextlib.contextmanager
def about(options: Mapping[str, Any]) -> Iterator[None]:
    """A context in which messages are about the artifact's folder among a verb's arguments, if there is just one."""
    given = options.get("folder") or options.get("output")
    given = given[0] if isinstance(given, tuple) and len(given) == 1 else given
    before = ABOUT.set(given if isinstance(given, Path) else None)
    try:
        yield
    finally:
        ABOUT.reset(before)


def check_arguments(options: Mapping[str, Any]) -> None:
    """Refuses arguments that no verb can use, before anything is read or written.

    The libraries that read models need paths in UTF-8, and so do the JSON files that contain them.

    Raises:
        UsageError: the current folder was deleted, or an argument, its absolute path or TMPDIR is not UTF-8.
    """
    from attnport.folder.refusals import folder_is_gone

    if gone := folder_is_gone():
        raise gone
    for value in _single_values((*options.values(), os.environ.get("TMPDIR"))):
        text = os.path.realpath(value) if isinstance(value, Path) else value
        if isinstance(text, str) and not _is_utf8(text):
            raise UsageError(
                f"{os.fsencode(text)!r} is not UTF-8, so that models and reports cannot refer to it.",
                hint="Rename it, or choose another.",
            )


def _single_values(values: Iterable[Any]) -> Iterator[Any]:
    """Every value; an option that is given again has a tuple of them, and one of two values a tuple of two."""
    for value in values:
        if isinstance(value, tuple):
            yield from _single_values(value)
        else:
            yield value


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
