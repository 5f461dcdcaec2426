"""What every argument of a verb has to be, whatever it means: text that is UTF-8, and paths that lead somewhere."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from attnport.errors import UsageError
from attnport.folder.refusals import folder_is_gone


class _Path(click.Path):
    """A path; an empty one is refused, which would be the current folder."""

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> Any:
        """As click's."""
        if value == "":
            self.fail("the path is empty; is it of a shell variable that is not set?", parameter, context)
        return super().convert(value, parameter, context)


FOLDER = _Path(path_type=Path)


def check_arguments(options: Mapping[str, Any]) -> None:
    """Refuses what no verb can work with, before anything is read or written.

    The libraries that read models take paths as UTF-8, and so do the JSON files that repeat them.

    Raises:
        UsageError: the current folder is gone, or an argument, the whole path of one, or TMPDIR is not UTF-8.
    """
    if gone := folder_is_gone():
        raise gone
    given = [each for value in options.values() for each in (value if isinstance(value, tuple) else (value,))]
    for each in (*given, os.environ.get("TMPDIR")):
        text = os.path.realpath(each) if isinstance(each, Path) else each
        if isinstance(text, str) and not _is_utf8(text):
            raise UsageError(
                f"{os.fsencode(text)!r} is not UTF-8; no model and no report can name it.",
                hint="Rename it, or give another.",
            )


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
