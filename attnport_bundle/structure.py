"""How large a model becomes once a runtime has put functions in place of their calls, counted before it is built.

Without these limits, a file of a few kilobytes keeps a runtime busy for hours or ends it by a stack overflow. They are
far above real models: a hundred layers are some ten thousand nodes, with each of hundreds of experts a layer written
out some hundred thousand; and they nest a handful of graphs.
"""

from __future__ import annotations

MAX_NODES = 1_000_000
"""ONNX Runtime needs two to three minutes and 3 GB to open a plain model of so many."""
MAX_DEPTH = 32
"""Graphs in graphs and functions in functions. Protobuf's own parsers take as many graphs: 100 messages, three each."""
MAX_FUNCTIONS = 10_000
WEIGHT = 20
"""A nested graph, or a call of a function, costs a runtime what so many nodes do."""

GRAPH_HANDED = "a graph is handed to a function"
"""How often the function repeats it is not counted."""

Name = tuple[bytes, bytes, bytes]
"""Domain, operator and overload, by which a node names what it calls."""


def _called(name: Name) -> Name:
    """ONNX's own domain has two spellings."""
    domain, operator, overload = name
    return (b"" if domain == b"ai.onnx" else domain, operator, overload)


class Body:
    """What stands in the model, or in one function.

    Attributes:
        graphs: Nested graphs so far.
    """

    def __init__(self) -> None:
        self.graphs = 0
        self._nodes = 0
        self._depth = 0
        self._calls: dict[Name, tuple[int, int]] = {}  # how often, and in how many nested graphs at most
        self._given: set[Name] = set()  # what is called with a graph in an attribute
        self._expanded: tuple[int, int] | None = None

    def graph(self, depth: int) -> None:
        """Takes one more graph, inside `depth` others with itself counted. Raises ValueError beyond a limit."""
        self.graphs += 1
        self._depth = max(self._depth, depth)
        self._check(0, depth)

    def node(self, name: Name, depth: int, given: bool) -> None:
        """Takes one more node, inside `depth` nested graphs; `given`: it has a graph in an attribute.

        Raises:
            ValueError: there are too many.
        """
        name = _called(name)
        times, deepest = self._calls.get(name, (0, 0))
        self._calls[name] = times + 1, max(deepest, depth)
        self._nodes += 1
        if given:
            self._given.add(name)
        self._check(self._nodes + WEIGHT * self.graphs, 0)

    def expanded(self, functions: dict[Name, Body], level: int = 0) -> tuple[int, int]:
        """Nodes and depth with all functions in place of their calls. Raises ValueError beyond a limit."""
        if self._expanded is None:
            self._check(0, level)  # also what ends functions that call each other in a circle
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
    """The bodies of a model: what stands in its graphs, and its functions."""

    def __init__(self) -> None:
        self.model = Body()
        self._functions: dict[Name, Body] = {}

    def add(self, name: Name, function: Body) -> None:
        """Takes one more function. Raises ValueError for one that is there already, or is one too many."""
        if len(self._functions) == MAX_FUNCTIONS:
            raise ValueError(f"more than {MAX_FUNCTIONS} functions")
        name = _called(name)
        if name in self._functions:
            raise ValueError("two functions of one domain, name and overload")
        self._functions[name] = function

    def check(self) -> None:
        """Raises ValueError when the model is too large or too deep, or a function calls itself."""
        self.model.expanded(self._functions)
        for _, function in sorted(self._functions.items(), key=lambda item: item[0]):
            function.expanded(self._functions)
