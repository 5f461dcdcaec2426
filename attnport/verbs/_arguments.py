"""How verbs are called: by the names of the command line too, with text for a path and one thing for a list."""

from __future__ import annotations

import contextlib
import difflib
import importlib.util
import inspect
import os
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
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
            _tell(err, given.get("folder"))
            raise
        if isinstance(result, Printed) and isinstance(folder := given.get("folder"), Path):
            object.__setattr__(result, "about", folder)  # no field: it is not compared, and in no file
        return result

    call.__signature__ = signature  # type: ignore[attr-defined]  # what help() reads
    call.__doc__ = _explained(inspect.getdoc(function) or "", known)
    return call


@contextlib.contextmanager
def hinting(folder: Path) -> Iterator[None]:
    """Shows hints to callers of what is no verb, as verbs do."""
    try:
        yield
    except AttnportError as err:
        _tell(err, folder)
        raise


def _tell(err: AttnportError, folder: Any) -> None:
    """Makes the hint of an error fit a folder, and notes of it, which a traceback shows, with its commands as calls."""
    said = f"{err.message} {err.hint}"
    if isinstance(folder, Path):
        err.hint, said = as_command(err.hint, folder), as_command(said, folder)
    if getattr(err, "__notes__", ()):
        return
    if err.hint:
        err.add_note(f"hint: {err.hint}")
    if calls := list(dict.fromkeys(as_calls(said))):
        err.add_note(f"in Python: {', or '.join(calls)}")


_COMMAND = re.compile(r"(?<![\w/.-])attnport (?P<name>[a-z]+(?:-[a-z]+)*) (?P<words>[^`\n]+)")
_WORD = re.compile(r"'[^']*'|[^\s,;]+")


def as_calls(text: str) -> Iterator[str]:
    """The commands in a text as calls from Python: `attnport.fuse('out', target='ort_cpu')`."""
    for command in _COMMAND.finditer(text):
        name = command["name"].replace("-", "_")
        if importlib.util.find_spec(f"{__package__}.{name}") is None:
            continue
        function = getattr(importlib.import_module(f"{__package__}.{name}"), name)
        by_flag = {flag: one for one in parameters(function).values() for flag in one.flags}
        words, given = command["words"], list[str]()
        while (word := _WORD.match(words)) is not None:
            one = by_flag.get(word[0].rstrip(".:"))
            if one is None and (given or word[0].startswith("-")):
                break
            words = words[word.end() :]
            if one is None:
                given.append(_as_literal(word[0]))
            elif one.type is bool:
                given.append(f"{one.name}=True")
            elif (value := _WORD.match(words.removeprefix(" "))) is not None:
                flag = word[0].lstrip("-").replace("-", "_") if word[0].startswith("--") else one.name
                given.append(f"{flag}={_as_literal(value[0])}")
                words = words.removeprefix(" ")[value.end() :]
            if not words.startswith(" "):
                break
            words = words[1:]
        if any("=" in each for each in given) or not words[:1].isalpha():  # a sentence about a verb goes on
            yield f"attnport.{name}({', '.join(given)})"


def _as_literal(word: str) -> str:
    """A word of a command in Python; what stands for something, such as FILE, is left as it is."""
    word = word.rstrip(".") or word
    return word if word.isupper() or word.startswith("'") else repr(word)


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
