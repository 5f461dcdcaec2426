"""What an ONNX file of a stranger refers to, and how large a runtime makes it, read without opening the model.

Protobuf is read field by field from the mapped file, without the onnx package, which needs many times the file's size
in memory and hides what other parsers read in another way: https://protobuf.dev/programming-guides/encoding; field
numbers: onnx.proto3. Every place that can hold a tensor is visited: initializers, sparse initializers, attributes,
subgraphs, functions and training graphs.

On the way, nodes and graphs are counted, as if all functions were inlined. Without limits, a file of a few kilobytes
can keep a runtime busy for hours or crash it by a stack overflow. They are far above real models: a hundred layers have
about ten thousand nodes, or a hundred thousand if each layer has hundreds of experts, all written out; and real models
nest only a few graphs.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from attnport_bundle.format.files import open_regular

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

_EXTERNAL_DATA, _DATA_LOCATION = 13, 14  # of TensorProto
_OPSET_IMPORT = 8  # of ModelProto
_LARGEST_TAG, _TAG_BYTES = 0xFFFFFFFF, 5
# message -> field number -> message that the field holds
_FIELDS: dict[str, dict[int, str]] = {
    "model": {7: "graph", 20: "training", 25: "function"},
    "training": {1: "graph", 2: "graph"},
    "function": {7: "node", 11: "attribute"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "nested": {1: "node", 5: "tensor", 15: "sparse"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "nested", 10: "tensor", 11: "nested", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
}
# message -> the fields of its domain, operator and overload
_NAMES = {"function": (10, 1, 13), "node": (7, 4, 8)}


class Reference(NamedTuple):
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
    model, functions = _Body(), dict[Name, _Body]()
    found = list(_visit(_mapped(path), "model", model, functions, 0))
    for body in (model, *(functions[name] for name in sorted(functions))):
        body.expanded(functions)
    return found


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


def walk(nodes: Any) -> Iterator[Any]:
    """Nodes of a model that the onnx package has read, each followed by those of the graphs in its attributes."""
    for node in nodes:
        yield node
        for attribute in node.attribute:
            for graph in (attribute.g, *attribute.graphs):
                yield from walk(graph.node)


def _mapped(path: Path) -> memoryview:
    with open_regular(path) as file:
        if os.fstat(file.fileno()).st_size == 0:
            raise ValueError("the file is empty")
        # Not closed by hand: views of it may still be alive in a traceback, and closing would hide the error.
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def _visit(
    view: memoryview, message: str, body: _Body, functions: dict[Name, _Body], depth: int
) -> Iterator[Reference]:
    """The references in a message inside `depth` nested graphs.

    Args:
        body: Counts the nodes and graphs.
        functions: Gets the body of each function.
    """
    if message == "tensor":
        yield from _tensor(view)
        return
    if message == "nested":
        body.add_graph(depth := depth + 1)
    elif message == "function":
        body = _Body()
    graphs, fields = body.graphs, _FIELDS[message]
    texts = dict.fromkeys(_NAMES.get(message, ()), b"")
    for number, _, value in _fields(view):
        if value is None:
            continue
        if number in fields:
            before = body.graphs
            yield from _visit(value, fields[number], body, functions, depth)
            if message == "function" and fields[number] == "attribute" and body.graphs > before:
                raise ValueError(GRAPH_HANDED)
        elif number in texts:
            texts[number] = bytes(value)
    if not texts:
        return
    domain, operator, overload = texts.values()
    name = (b"" if domain == b"ai.onnx" else domain, operator, overload)  # ONNX's own domain is written in two ways
    if message == "node":
        body.add_node(name, depth, body.graphs > graphs)
    else:
        _add_function(functions, name, body)


def _add_function(functions: dict[Name, _Body], name: Name, body: _Body) -> None:
    if len(functions) == MAX_FUNCTIONS:
        raise ValueError(f"more than {MAX_FUNCTIONS} functions")
    if name in functions:
        raise ValueError("two functions of one domain, name and overload")
    functions[name] = body


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
        length = _integer(entries["length"]) if "length" in entries else None
        yield Reference(entries.get("location", ""), _integer(entries.get("offset", "0")), length)


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


class _Body:
    """The content of the model's graph, or of one function; `graphs` is the number of nested graphs so far."""

    def __init__(self) -> None:
        self.graphs = 0
        self._nodes = 0
        self._depth = 0
        self._calls: dict[Name, tuple[int, int]] = {}  # number of calls, and the deepest nesting of graphs around one
        self._given: set[Name] = set()  # operators called with a graph in an attribute
        self._expanded: tuple[int, int] | None = None

    def add_graph(self, depth: int) -> None:
        """Counts a nested graph; `depth` is its nesting, itself included. Raises ValueError beyond a limit."""
        self.graphs += 1
        self._depth = max(self._depth, depth)
        _limit(0, depth)

    def add_node(self, name: Name, depth: int, given: bool) -> None:
        """Counts a node inside `depth` nested graphs; `given` says that it has a graph in an attribute.

        Raises:
            ValueError: there are too many nodes.
        """
        times, deepest = self._calls.get(name, (0, 0))
        self._calls[name] = times + 1, max(deepest, depth)
        self._nodes += 1
        if given:
            self._given.add(name)
        _limit(self._nodes + WEIGHT * self.graphs, 0)

    def expanded(self, functions: dict[Name, _Body], level: int = 0) -> tuple[int, int]:
        """The number of nodes and the depth with all functions inlined. Raises ValueError beyond a limit."""
        if self._expanded is None:
            _limit(0, level)  # this also stops the recursion when functions call each other in a circle
            nodes, depth = self._nodes + WEIGHT * self.graphs, self._depth
            for name, (times, deepest) in sorted(self._calls.items()):
                if name in functions:
                    if name in self._given:
                        raise ValueError(GRAPH_HANDED)
                    inside, below = functions[name].expanded(functions, level + 1)
                    nodes += times * (WEIGHT + inside)
                    depth = max(depth, deepest + 1 + below)
                    _limit(nodes, depth)
            self._expanded = nodes, depth
        return self._expanded


def _limit(nodes: int, depth: int) -> None:
    if depth > MAX_DEPTH:
        raise ValueError(f"graphs or functions nested deeper than {MAX_DEPTH}, or functions that call themselves")
    if nodes > MAX_NODES:
        raise ValueError(
            f"more than {MAX_NODES} nodes with functions put in place of their calls; "
            f"each call and each nested graph counts as {WEIGHT}"
        )
