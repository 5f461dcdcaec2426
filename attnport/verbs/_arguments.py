"""How verbs are called: by the names of the command line too, with text for a path and one thing for a list."""

from __future__ import annotations

import contextlib
import difflib
import inspect
import os
import textwrap
from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from attnport.errors import AttnportError, UsageError
from attnport.folder.portable import as_command
from attnport.options import REQUIRED, Parameter, owners, parameters
from attnport.printed import Printed

P = ParamSpec("P")
T = TypeVar("T")
_WIDTH = 100
showing: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext
"""Makes the line that shows what a verb does, or None; the console's, which the package sets."""


def verb(function: Callable[P, T]) -> Callable[P, T]:
    """Makes a function a verb, whose docstring explains every parameter.

    What it does is shown in a line, see `showing`, unless it is given a `progress`; None shows nothing. Text is taken
    for a path, one name or number for a list of one, a dict of sizes for the text of a shape, and `runtime=` or
    `timeout=`, as on the command line, for what the function itself calls `runtimes` or `timeout_s`.

    Raises:
        TypeError: there is no such argument; names the one that is spelled most like it.
        UsageError: an argument is no path where one is meant.
    """
    known = parameters(function)
    by_flag = {flag.lstrip("-").replace("-", "_"): one.name for one in known.values() for flag in one.flags}
    values = owners(function)
    signature = _signature(function, known)

    @wraps(function)
    def call(*args: Any, **options: Any) -> T:
        named = {name if name in known else by_flag.get(name, name): value for name, value in options.items()}
        try:
            given = signature.bind(*args, **named).arguments
        except TypeError as err:
            unknown = next((name for name in named if name not in known), "")
            near = difflib.get_close_matches(unknown, known, 1) if f"'{unknown}'" in str(err) else []
            raise TypeError(f"{function.__name__}: {err}{f'; is it {near[0]}?' if near else ''}") from None
        given = {name: _taken(known[name], value) for name, value in given.items()}
        shown = "progress" in known and "progress" not in given
        if given.get("progress", "") is None:
            del given["progress"]
        try:
            with showing() if shown else contextlib.nullcontext() as line:
                for name, method in {"progress": "progress", "begin": "stage"}.items() if line is not None else ():
                    if name in known:
                        given.setdefault(name, getattr(line, method))
                result = function(**_grouped(given, known, values))  # type: ignore[call-arg]  # bound by name
        except AttnportError as err:
            if isinstance(folder := given.get("folder"), Path):
                err.hint = as_command(err.hint, folder)
            if err.hint and not getattr(err, "__notes__", ()):
                err.add_note(f"hint: {err.hint}")  # which a traceback shows
            raise
        if isinstance(result, Printed) and isinstance(folder := given.get("folder"), Path):
            object.__setattr__(result, "about", folder)  # no field: it is not compared, and in no file
        return result

    call.__signature__ = signature  # type: ignore[attr-defined]  # what help() reads
    call.__doc__ = _explained(inspect.getdoc(function) or "", known)
    return call


def verb_of_fields(function: Callable[..., T]) -> Callable[..., T]:
    """As `verb`, of a function that takes dataclasses, in whose place callers give their fields."""
    return verb(function)


def _signature(function: Callable[..., Any], known: Mapping[str, Parameter]) -> inspect.Signature:
    own = inspect.signature(function)
    made = [
        inspect.Parameter(
            one.name,
            inspect.Parameter.POSITIONAL_OR_KEYWORD if one.by_position else inspect.Parameter.KEYWORD_ONLY,
            default=one.default,
            annotation=one.type if isinstance(one.type, type) and not one.several else REQUIRED,
        )
        for one in known.values()
    ]
    made.sort(key=lambda one: (one.kind, one.default is not REQUIRED))
    return own.replace(parameters=made)


def _grouped(given: Mapping[str, Any], known: Mapping[str, Parameter], values: Mapping[str, Any]) -> dict[str, Any]:
    """What a function is called with: fields of a dataclass as one value."""
    fields: dict[str, dict[str, Any]] = {owner: {} for owner in values}
    own: dict[str, Any] = {}
    for name, value in given.items():
        (fields[known[name].owner] if known[name].owner else own)[name] = value
    return own | {owner: kind(**fields[owner]) for owner, kind in values.items()}


def _taken(one: Parameter, value: Any) -> Any:
    """A value as its parameter takes it."""
    if value is None or (one.by_name and isinstance(value, Mapping)):
        return value
    if one.several:
        several = value if isinstance(value, Iterable) and not isinstance(value, str | Mapping) else (value,)
        return tuple(
            ",".join(f"{name}={size}" for name, size in each.items()) if isinstance(each, Mapping) else each
            for each in several
        )
    if one.type is not Path or isinstance(value, Path):
        return value
    if isinstance(value, str | os.PathLike):
        return Path(value)
    raise UsageError(
        f"{one.name}: got {type(value).__name__}; expected the path of a file or folder.",
        hint="Write sentences to a text file, one in each line, and arrays to an .npz: numpy.savez(FILE, **arrays).",
    )


def _explained(text: str, known: Mapping[str, Parameter]) -> str:
    """A docstring with the explanation of every parameter, before what it returns and raises."""
    lines = [
        textwrap.fill(f"{one.name}: {one.note.help}", _WIDTH, initial_indent="    ", subsequent_indent="        ")
        for one in known.values()
        if one.note is not None
    ]
    told = "Args:\n" + "\n".join(lines)
    for section in ("\n\nReturns:\n", "\n\nRaises:\n"):
        before, there, after = text.partition(section)
        if there:
            return f"{before}\n\n{told}{there}{after}"
    return f"{text}\n\n{told}"
