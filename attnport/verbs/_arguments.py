"""How Python calls verbs: by the names of the command line too, with text for a path and one thing for a list."""

from __future__ import annotations

import contextlib
import difflib
import functools
import inspect
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from attnport.errors import AttnportError, UsageError
from attnport.folder.portable import as_command

T = TypeVar("T")
showing: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext
"""Makes the line that shows what a verb does, or None; the console's, which `attnport.artifact` sets."""


def public(verb: Callable[..., T]) -> Callable[..., T]:
    """The verb as Python calls it: every option has the command line's name too, and one thing stands for a list of it.

    What it does is shown in a line, see `showing`, unless it is given a `progress` of its own; `progress=None` shows
    nothing. Text is taken for a path, one name or number for a list of one, a dict of sizes for the text of a shape,
    and `runtime=`, `shape=` or `dtype=` for what the verb itself calls `runtimes`, `shapes` or `plan`.

    Raises:
        TypeError: there is no such argument; names the one that is spelled most like it.
        UsageError: an argument is no path where one is meant.
    """
    signature = inspect.signature(verb)
    kinds = {name: str(parameter.annotation) for name, parameter in signature.parameters.items()}

    @functools.wraps(verb)
    def call(*args: Any, **options: Any) -> T:
        named = {argument_of(verb, name): value for name, value in options.items()}
        try:
            given = signature.bind(*args, **named)
        except TypeError as err:
            unknown = next((name for name in named if name not in kinds), "")
            near = difflib.get_close_matches(unknown, kinds, 1) if f"'{unknown}'" in str(err) else []
            raise TypeError(f"{verb.__name__}: {err}{f'; is it {near[0]}?' if near else ''}") from None
        for name, value in given.arguments.items():
            if kinds[name] in ("Path", "Path | None"):
                given.arguments[name] = _path(name, value)
            elif kinds[name].startswith("Sequence["):
                given.arguments[name] = _listed(value)
        shown = "progress" in kinds and "progress" not in given.arguments
        if given.arguments.get("progress", "") is None:
            del given.arguments["progress"]
        try:
            with showing() if shown else contextlib.nullcontext() as line:
                for name, method in {"progress": "progress", "begin": "stage"}.items() if line is not None else ():
                    if name in kinds:
                        given.arguments.setdefault(name, getattr(line, method))
                return verb(*given.args, **given.kwargs)
        except AttnportError as err:
            if isinstance(folder := given.arguments.get("folder"), Path):
                err.hint = as_command(err.hint, folder)
            raise

    return call


_OTHER_NAMES = {
    "dtype": ("plan", "plans", "dtypes"),
    "format": ("kind",),
    "output": ("out", "folder"),
    "spec": ("model",),
}
"""What arguments are called where the command line's name is neither theirs nor one of several, as `shape` is."""


def argument_of(verb: Callable[..., Any], name: str) -> str:
    """What a verb calls the argument that the command line calls `name`; the name itself if it has none."""
    known = inspect.signature(verb).parameters
    names = (name, f"{name}s", f"{name}_s", f"{name}_gib", *_OTHER_NAMES.get(name, ()))
    return next((each for each in names if each in known), name)


def _path(name: str, value: Any) -> Path | None:
    if value is None or isinstance(value, Path):
        return value
    if isinstance(value, str | os.PathLike):
        return Path(value)
    raise UsageError(
        f"{name}: got {type(value).__name__}; expected the path of a file or folder.",
        hint="Write sentences to a text file, one in each line, and arrays to an .npz: numpy.savez(FILE, **arrays).",
    )


def _listed(value: Any) -> Any:
    """A list of one thing, in which a dict of sizes is the text of a shape."""
    if value is None:
        return None
    several = value if isinstance(value, Iterable) and not isinstance(value, str | Mapping) else (value,)
    return tuple(",".join(f"{k}={n}" for k, n in one.items()) if isinstance(one, Mapping) else one for one in several)
