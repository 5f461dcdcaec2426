"""The arguments of commands: click's of the parameters of a verb, and checks of all of them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import Any, get_args, get_origin

import click
from click.core import ParameterSource

from attnport.errors import UsageError
from attnport.options import REQUIRED, Option, Parameter


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


def as_click(one: Parameter) -> click.Parameter:
    """The argument or option of a parameter that has an `Option`."""
    note = one.note
    assert isinstance(note, Option), one.name
    required = one.default is REQUIRED
    kind: Any = {"type": _type(one, note), "required": required, "metavar": note.metavar or None}
    if not required:
        kind["default"] = one.default
    if not one.flags:
        named = note.flags if note.flags != one.name.upper() else ""
        return click.Argument([one.name], **kind | {"metavar": named or None})
    if one.type is bool:
        flags = [f"{flag}/--no-{flag[2:]}" for flag in one.flags] if one.default else one.flags
        shown = bool(one.default)
        return click.Option([*flags, one.name], is_flag=True, default=one.default, show_default=shown, help=note.help)
    return click.Option(
        [*one.flags, one.name], **kind, multiple=one.several, show_default=bool(one.default), help=note.help
    )


def _type(one: Parameter, note: Option) -> Any:
    if get_origin(one.type) is tuple:
        return (FOLDER,) * len(get_args(one.type))
    if isinstance(one.type, tuple):
        return click.Choice(one.type)
    least = note.least if note.above is None else note.above
    limits: Any = {"min": least, "min_open": note.above is not None, "max": note.most}
    limited = (least, note.most) != (None, None)
    if one.type is int:
        return click.IntRange(**limits) if limited else int
    if one.type is float:
        return click.FloatRange(**limits) if limited else float
    return FOLDER if one.type is Path else str


def refuse(names: Collection[str], why: str) -> None:
    """Raises UsageError if the command line gives one of these parameters.

    Args:
        why: The message, with `{}` for the option.
    """
    context = click.get_current_context()
    for parameter in context.command.params:
        if parameter.name in names and context.get_parameter_source(parameter.name) == ParameterSource.COMMANDLINE:
            raise click.UsageError(why.format(parameter.opts[0]))


def readable(text: str) -> str:
    """A text for a terminal, with the folder that it is about in place of FOLDER."""
    from attnport.folder.portable import as_command

    folder = ABOUT.get()
    return text if folder is None else as_command(text, folder)


@contextlib.contextmanager
def about(options: Mapping[str, Any]) -> Iterator[None]:
    """A context in which messages are about the artifact's folder among a verb's arguments, if there is just one."""
    given = options.get("folder")
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
        if isinstance(text, str) and text != text.encode(errors="replace").decode():
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
