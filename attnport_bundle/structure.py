"""Counts how large a model becomes once a runtime has inlined its functions, before the runtime does so.

Without these limits, a file of a few kilobytes can keep a runtime busy for hours or crash it by a stack overflow. They
are far above real models: a hundred layers have about ten thousand nodes, or a hundred thousand if each layer has
hundreds of experts, all written out; and real models nest only a few graphs.
"""

from __future__ import annotations

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
