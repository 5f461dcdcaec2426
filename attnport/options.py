"""The parameters of verbs, each with its explanation: the command line, Python and the manual are made of them.

A parameter is written once, in the signature of its verb: `text: Text = None`. Its annotation has the type, and an
`Option`, or a `Note` if the command line does not have it. A verb may take a dataclass: then its fields are parameters.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

REQUIRED: Any = inspect.Parameter.empty
TYPED: ContextVar[bool] = ContextVar("TYPED", default=False)
"""Whether the command line was given the arguments, and not Python: `advised` writes them so."""
_FLAGS = {"inputs": "--input", "dims": "--dim", "outputs": "--outputs"}


@contextlib.contextmanager
def typed() -> Iterator[None]:
    """A context in which advice is in the options of the command line."""
    token = TYPED.set(True)
    try:
        yield
    finally:
        TYPED.reset(token)


def advised(name: str, values: Iterable[object]) -> str:
    """What to give to `export`, as its user writes it: `--dim seq=1:8:64`, or in Python `dims=['seq=1:8:64']`.

    Args:
        name: `inputs`, `dims` or `outputs`.
        values: Each is written as it prints.
    """
    texts = list(map(str, values))
    return " ".join(f"{_FLAGS[name]} {shlex.quote(text)}" for text in texts) if TYPED.get() else f"{name}={texts}"


@dataclasses.dataclass(frozen=True)
class Note:
    """What a parameter is."""

    help: str


@dataclasses.dataclass(frozen=True)
class Option(Note):
    """What a parameter is, and how the command line takes it.

    Attributes:
        flags: `--runtime`, or `-o --output`; without dashes, the name of an argument; "" = as the parameter is called:
            an option, or an argument if it has no default.
        metavar: What help calls the value; "" = its type.
        least: The smallest number.
        above: A number that it has to exceed.
        most: The largest number.
    """

    flags: str = ""
    metavar: str = dataclasses.field(default="", kw_only=True)
    least: float | None = dataclasses.field(default=None, kw_only=True)
    above: float | None = dataclasses.field(default=None, kw_only=True)
    most: float | None = dataclasses.field(default=None, kw_only=True)


@dataclasses.dataclass(frozen=True)
class Parameter:
    """A parameter of a verb, or a field of a dataclass that it takes.

    Attributes:
        type: Its type, without None: `Path`, `str`, `int`, `float`, `bool`, the values of a Literal as a tuple, or
            another, which Python alone can give.
        several: Whether it is a list of values of this type.
        by_name: Whether it may be a dict instead.
        default: `REQUIRED` if there is none.
        owner: The parameter whose field it is; "" if it is one itself.
        by_position: Whether Python takes it by position too.
    """

    name: str
    type: Any
    several: bool
    note: Note | None
    default: Any = REQUIRED
    owner: str = ""
    by_position: bool = False
    by_name: bool = False

    @property
    def flags(self) -> tuple[str, ...]:
        """The flags of an option; empty for an argument, and for what Python alone has."""
        if not isinstance(self.note, Option):
            return ()
        if self.note.flags or self.default is REQUIRED:
            return tuple(flag for flag in self.note.flags.split() if flag.startswith("-"))
        return (f"--{self.name.replace('_', '-')}",)


def parameters(verb: Callable[..., Any]) -> dict[str, Parameter]:
    """The parameters of a verb by name, fields of dataclasses among them."""
    found: dict[str, Parameter] = {}
    for each, annotation in _annotated(verb):
        if dataclasses.is_dataclass(annotation):
            found |= {one.name: one for one in _fields(annotation, each.name)}
        else:
            by_position = each.kind is each.POSITIONAL_OR_KEYWORD
            found[each.name] = _parameter(each.name, annotation, each.default, by_position=by_position)
    return found


def command_line(name: str, /, *functions: Callable[..., Any], **arguments: Any) -> str:
    """The command that calls a verb with these arguments; those with their default are left out.

    Args:
        name: What the command is called.
        functions: The verb, and what else has options of the command.
        arguments: Their arguments by name.
    """
    words = ["attnport", name]
    for one in (one for function in functions for one in parameters(function).values()):
        value = arguments.get(one.name, one.default)
        if not isinstance(one.note, Option) or value == one.default or value is None:
            continue
        if one.type is bool:
            words.append(one.flags[-1] if value else f"--no-{one.flags[-1][2:]}")
            continue
        for each in value if isinstance(value, Sequence) and not isinstance(value, str) else (value,):
            if isinstance(each, tuple):
                words += [one.flags[-1], *map(str, each)]
            else:
                text = str(each).removesuffix(".0") if isinstance(each, float) else str(each)
                words.append(f"{one.flags[-1]}={text}" if one.flags else text)
    return shlex.join(words)


def owners(verb: Callable[..., Any]) -> dict[str, Any]:
    """The dataclasses that a verb takes, by the name of their parameter."""
    return {each.name: kind for each, kind in _annotated(verb) if dataclasses.is_dataclass(kind)}


def _annotated(verb: Callable[..., Any]) -> Iterator[tuple[inspect.Parameter, Any]]:
    function = inspect.unwrap(verb)
    for each in inspect.signature(function).parameters.values():
        yield each, _evaluated(each.annotation, function.__module__)


def _fields(kind: Any, owner: str) -> Iterator[Parameter]:
    for field in dataclasses.fields(kind):
        default: Any = REQUIRED
        if field.default is not dataclasses.MISSING:
            default = field.default
        elif field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        made = _parameter(field.name, _evaluated(field.type, kind.__module__), default, owner, default is REQUIRED)
        if "help" in field.metadata:  # the reader of bundles has options of its own
            made = dataclasses.replace(made, note=Option(field.metadata["help"]))
        yield made


def _parameter(name: str, annotation: Any, default: Any, owner: str = "", by_position: bool = False) -> Parameter:
    kind, note = annotation, None
    if get_origin(annotation) is Annotated:
        kind, *notes = get_args(annotation)
        note = next((one for one in notes if isinstance(one, Note)), None)
    kinds = [one for one in get_args(kind) if one is not type(None)] if _is_union(kind) else [kind]
    by_name = any(get_origin(one) is Mapping for one in kinds)
    lists = [one for one in kinds if get_origin(one) is Sequence]
    if lists:
        (inside,) = get_args(lists[0])
        kinds = list(get_args(inside)) if _is_union(inside) else [inside]
    chosen = str if str in kinds else kinds[0]
    if get_origin(chosen) is Literal:
        chosen = get_args(chosen)
    return Parameter(name, chosen, bool(lists), note, default, owner, by_position, by_name)


def _is_union(kind: Any) -> bool:
    return get_origin(kind) in (Union, UnionType)


def _evaluated(annotation: Any, module: str) -> Any:
    """An annotation as a value; as it is written if it names what is imported for types alone."""
    if not isinstance(annotation, str):
        return annotation
    try:
        return eval(annotation, dict(vars(sys.modules[module])))  # of our own source
    except NameError:
        return annotation


Folder = Annotated[Path, Option("An artifact folder.")]
Output = Annotated[Path, Option("The artifact folder.", "-o --output")]
Text = Annotated[Path | None, Option("Sentences, one in each line, for models that read text.")]
Shapes = Annotated[
    Sequence[str], Option('Sizes to time: "batch=8,seq=128"; a grid: "batch=1/8,seq=64/128".', "--shape")
]
Lengths = Annotated[Path | None, Option("Lengths for ragged batches, one in each line, or LENGTH:COUNT.")]
Batch = Annotated[int, Option("Sentences or lengths in a padded batch.", least=1)]
Threads = Annotated[int | None, Option("Compute threads; default: the physical cores.", least=1)]
Timeout = Annotated[float, Option("Seconds for each answer of a runtime's process.", "--timeout", above=0)]
ReadTimeout = Annotated[
    float | None,
    Option(
        "Seconds for each step of reading an ONNX file; default: 120, and 100 more for each GB.", "--timeout", above=0
    ),
]
ReadMemory = Annotated[
    float | None,
    Option(
        "Memory that reading an ONNX file may take; default: nine tenths of what is free.",
        "--memory",
        metavar="GIB",
        above=0,
    ),
]
Trust = Annotated[bool, Option("Run the code that a folder from elsewhere names, now and later.")]
Force = Annotated[bool, Option("Run again even if nothing has changed.")]
Seed = Annotated[int, Note("The seed of what is drawn.")]
Progress = Annotated[Callable[[str], None], Note("Called with a line about each step.")]
Tell = Annotated[Callable[[str], None], Note("Called with a line about what a user should know.")]
