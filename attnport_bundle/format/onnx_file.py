"""Opens files that may be anything, and reads of an ONNX file what it refers to and how large a runtime makes it.

Only regular files are opened: no link is followed, and no pipe waited for. Protobuf is read without the onnx package:
https://protobuf.dev/programming-guides/encoding; field numbers: onnx.proto3. Every place that can hold a tensor is
visited: initializers, sparse initializers, attributes, subgraphs, functions and training graphs.

On the way, nodes and graphs are counted, as if all functions were inlined. Without limits, a file of a few kilobytes
can keep a runtime busy for hours or crash it by a stack overflow. They are far above real models: a hundred layers have
about ten thousand nodes, or a hundred thousand if each layer has hundreds of experts, all written out; and real models
nest only a few graphs.
"""

from __future__ import annotations

import mmap
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from ..errors import IntegrityError

# Not every system has all of these flags.
_FLAGS = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)


def open_regular(path: Path) -> BinaryIO:
    """Opens `path` for reading.

    Raises:
        OSError: it cannot be opened, or is a link.
        ValueError: it is not a regular file.
    """
    # The descriptor makes sure that the file that is checked is the one that is read.
    file = open(os.open(path, os.O_RDONLY | _FLAGS), "rb")  # noqa: PTH123, SIM115 - see above; the caller closes it
    if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        return file
    file.close()
    raise ValueError("not a regular file")


def read_regular(path: Path) -> bytes:
    """The bytes of a bundled file. Raises IntegrityError if it cannot be read."""
    try:
        with open_regular(path) as file:
            return file.read()
    except OSError as err:
        raise IntegrityError(f"{path}: cannot be read: {err.strerror}.") from err
    except ValueError as err:
        raise IntegrityError(f"{path}: {err}.") from err


_TENSOR, _ENTRY, _SPARSE = "tensor", "entry", "sparse"
_EXTERNAL_DATA, _DATA_LOCATION = 13, 14  # of TensorProto
_OPSET_IMPORT = 8  # of ModelProto
_LARGEST_TAG, _TAG_BYTES = 0xFFFFFFFF, 5
# message -> field number -> message that the field holds
_FIELDS: dict[str, dict[int, str]] = {
    "model": {7: "graph", 20: "training", 25: "function"},
    "training": {1: "graph", 2: "graph"},
    "function": {7: "node", 11: "attribute"},
    "graph": {1: "node", 5: _TENSOR, 15: _SPARSE},
    "nested": {1: "node", 5: _TENSOR, 15: _SPARSE},
    "node": {5: "attribute"},
    "attribute": {5: _TENSOR, 6: "nested", 10: _TENSOR, 11: "nested", 22: _SPARSE, 23: _SPARSE},
    _SPARSE: {1: _TENSOR, 2: _TENSOR},
}
# message -> the fields of its domain, operator and overload
_NAMES = {"function": (10, 1, 13), "node": (7, 4, 8)}


@dataclass(frozen=True)
class Reference:
    """A tensor's external data: `length` bytes (None = to the end) of file `location`, from byte `offset`."""

    location: str
    offset: int
    length: int | None


def references(path: Path) -> list[Reference]:
    """Every reference to external data in the ONNX file `path`.

    Raises:
        ValueError: the file is not an ONNX file, or exceeds a limit.
        OSError: the file cannot be opened, or is a link.
    """
    structure = Structure()
    all_references = list(_visit(_mapped(path), "model", structure, structure.model, 0))
    structure.check()
    return all_references


def _mapped(path: Path) -> memoryview:
    with open_regular(path) as file:
        if os.fstat(file.fileno()).st_size == 0:
            raise ValueError("the file is empty")
        # Not closed by hand: views of it may still be alive in a traceback, and closing would hide the error.
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def opset(path: Path) -> int:
    """The opset of ONNX's own operators that the file `path` imports. Raises ValueError if it imports none."""
    versions = []
    for number, _, value in _fields(_mapped(path)):
        if number == _OPSET_IMPORT and value is not None:
            domain, version = "", 0
            for key, integer, text in _fields(value):
                domain = bytes(text).decode("utf-8") if key == 1 and text is not None else domain
                version = integer if key == 2 else version
            versions += [version] if domain in ("", "ai.onnx") else []
    if not versions:
        raise ValueError("it imports no opset of ONNX's own operators")
    return max(versions)


def _visit(view: memoryview, message: str, structure: Structure, body: Body, depth: int) -> Iterator[Reference]:
    """The references in a message inside `depth` nested graphs; its nodes and graphs are counted in `body`."""
    if message == _TENSOR:
        yield from _tensor(view)
        return
    if message == "nested":
        body.graph(depth := depth + 1)
    elif message == "function":
        body = Body()
    graphs, fields = body.graphs, _FIELDS[message]
    texts = dict.fromkeys(_NAMES.get(message, ()), b"")
    for number, _, value in _fields(view):
        if value is None:
            continue
        if number in fields:
            before = body.graphs
            yield from _visit(value, fields[number], structure, body, depth)
            if message == "function" and fields[number] == "attribute" and body.graphs > before:
                raise ValueError(GRAPH_HANDED)
        elif number in texts:
            texts[number] = bytes(value)
    if message == "node":
        domain, operator, overload = texts.values()
        body.node((domain, operator, overload), depth, body.graphs > graphs)
    elif message == "function":
        domain, operator, overload = texts.values()
        structure.add((domain, operator, overload), body)


def _tensor(view: memoryview) -> Iterator[Reference]:
    entries: dict[str, str] = {}
    external = False
    for number, integer, value in _fields(view):
        if number == _DATA_LOCATION:
            # Protobuf cuts an enum to 32 bits (2**32 + 1 is EXTERNAL) and keeps the last of several values. So any
            # value but DEFAULT counts as external, whatever follows.
            external = external or integer != 0
        elif number == _EXTERNAL_DATA and value is not None:
            external = True
            texts = {key: bytes(text).decode("utf-8") for key, _, text in _fields(value) if text is not None}
            if texts.get(1, "") in entries:
                raise ValueError(f"a tensor's external data has {texts.get(1)!r} twice")
            entries[texts.get(1, "")] = texts.get(2, "")
    if external:
        length = entries.get("length")
        yield Reference(
            entries.get("location", ""),
            _integer(entries.get("offset", "0")),
            None if length is None else _integer(length),
        )


def _integer(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 19:
        raise ValueError(f"{text!r} is not an offset or length")
    return int(text)


def _fields(view: memoryview) -> Iterator[tuple[int, int, memoryview | None]]:
    """Field number, integer value and bytes (None for a number) of each field of one message."""
    at, end = 0, len(view)
    while at < end:
        begin = at
        tag, at = _varint(view, at)
        # A tag has 32 bits, and some parsers drop any further ones: they read field 2**29 + 7 as field 7.
        if tag > _LARGEST_TAG or at - begin > _TAG_BYTES:
            raise ValueError("a tag of more than 32 bits")
        number, wire = tag >> 3, tag & 7
        if number == 0:
            raise ValueError("field number 0")
        if wire == 0:
            integer, at = _varint(view, at)
            yield number, integer, None
        elif wire == 2:
            length, at = _varint(view, at)
            if length > end - at:
                raise ValueError("cut short")
            yield number, 0, view[at : at + length]
            at += length
        elif wire in (1, 5):
            at += 8 if wire == 1 else 4
            if at > end:
                raise ValueError("cut short")
        else:
            raise ValueError(f"wire type {wire}")


def _varint(view: memoryview, at: int) -> tuple[int, int]:
    result = shift = 0
    while True:
        if at >= len(view) or shift > 63:
            raise ValueError("cut short, or a number that is too long")
        byte = view[at]
        at += 1
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            return result, at
        shift += 7


MAX_NODES = 1_000_000
"""ONNX Runtime needs two to three minutes and 3 GB to open a model of this many nodes without functions."""
MAX_DEPTH = 32
"""Nesting of graphs and functions. Protobuf's parsers allow about as much: 100 nested messages, three for a graph."""
MAX_FUNCTIONS = 10_000
WEIGHT = 20
"""A nested graph, or a call of a function, costs a runtime as much as this many nodes."""

GRAPH_HANDED = "a graph is handed to a function"
"""Such models are refused, as it is not counted how often the function repeats the graph."""

Name = tuple[bytes, bytes, bytes]
"""Domain, operator and overload, by which a node names what it calls."""


def _called(name: Name) -> Name:
    """The name with one spelling of ONNX's own domain, which has two."""
    domain, operator, overload = name
    return (b"" if domain == b"ai.onnx" else domain, operator, overload)


class Body:
    """The content of the model's graph, or of one function.

    Attributes:
        graphs: The number of nested graphs so far.
    """

    def __init__(self) -> None:
        self.graphs = 0
        self._nodes = 0
        self._depth = 0
        self._calls: dict[Name, tuple[int, int]] = {}  # number of calls, and the deepest nesting of graphs around one
        self._given: set[Name] = set()  # operators called with a graph in an attribute
        self._expanded: tuple[int, int] | None = None

    def graph(self, depth: int) -> None:
        """Counts a nested graph; `depth` is its nesting, itself included. Raises ValueError beyond a limit."""
        self.graphs += 1
        self._depth = max(self._depth, depth)
        self._check(0, depth)

    def node(self, name: Name, depth: int, given: bool) -> None:
        """Counts a node inside `depth` nested graphs; `given` says that it has a graph in an attribute.

        Raises:
            ValueError: there are too many nodes.
        """
        name = _called(name)
        times, deepest = self._calls.get(name, (0, 0))
        self._calls[name] = times + 1, max(deepest, depth)
        self._nodes += 1
        if given:
            self._given.add(name)
        self._check(self._nodes + WEIGHT * self.graphs, 0)

    def expanded(self, functions: dict[Name, Body], level: int = 0) -> tuple[int, int]:
        """The number of nodes and the depth with all functions inlined. Raises ValueError beyond a limit."""
        if self._expanded is None:
            self._check(0, level)  # this also stops the recursion when functions call each other in a circle
            nodes, depth = self._nodes + WEIGHT * self.graphs, self._depth
            for name, (times, deepest) in sorted(self._calls.items()):
                if name in functions:
                    if name in self._given:
                        raise ValueError(GRAPH_HANDED)
                    inside, below = functions[name].expanded(functions, level + 1)
                    nodes += times * (WEIGHT + inside)
                    depth = max(depth, deepest + 1 + below)
                    self._check(nodes, depth)
            self._expanded = nodes, depth
        return self._expanded

    def _check(self, nodes: int, depth: int) -> None:
        if depth > MAX_DEPTH:
            raise ValueError(f"graphs or functions nested deeper than {MAX_DEPTH}, or functions that call themselves")
        if nodes > MAX_NODES:
            raise ValueError(
                f"more than {MAX_NODES} nodes with functions put in place of their calls; "
                f"each call and each nested graph counts as {WEIGHT}"
            )


class Structure:
    """The body of a model's graph, and those of its functions."""

    def __init__(self) -> None:
        self.model = Body()
        self._functions: dict[Name, Body] = {}

    def add(self, name: Name, function: Body) -> None:
        """Adds a function. Raises ValueError if there is one of that name, or there are too many."""
        if len(self._functions) == MAX_FUNCTIONS:
            raise ValueError(f"more than {MAX_FUNCTIONS} functions")
        name = _called(name)
        if name in self._functions:
            raise ValueError("two functions of one domain, name and overload")
        self._functions[name] = function

    def check(self) -> None:
        """Raises ValueError if the model is too large or too deep, or a function calls itself."""
        self.model.expanded(self._functions)
        for _, function in sorted(self._functions.items(), key=lambda item: item[0]):
            function.expanded(self._functions)
