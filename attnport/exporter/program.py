"""Writes a module that has no file of its own as the Python program that torch.export traced from it.

The program is text that can be read, and needs torch alone; its weights are arrays beside it. Nothing is pickled. It
computes in the type that it is given: where the trace has types or limits of types, the module is traced in float64
too, which says what depends on the module's type.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_leaves

from attnport.errors import ExportError, first_line
from attnport.exporter.capture import Trace
from attnport.user_code import copy_of

if TYPE_CHECKING:
    import numpy as np

_DTYPE, _DEVICE = "attnport dtype", "attnport device"
_LIMITS = {f"attnport {name}": name for name in ("min", "max", "eps", "tiny")}
_HEAD = '''"""{name}, as torch.export traced it: written by attnport export, and run as its reference."""

import operator
import math
from math import inf, nan

import torch
from torch import device

INPUTS = {inputs!r}
WEIGHTS = {weights!r}


'''


@dataclass(frozen=True)
class Program:
    """A traced program.

    Attributes:
        text: Python, with a function `forward(self, WEIGHTS..., INPUTS...)`, `self` having `dtype` and `device`.
        arrays: The weights by name.
    """

    text: str
    arrays: Mapping[str, np.ndarray[Any, Any]]


def write_program(name: str, module: torch.nn.Module, trace: Trace) -> Program:
    """The program of a module.

    Args:
        module: In eval mode, in float32.
        trace: As `capture` made it of the same module.

    Raises:
        ExportError: the trace has parts that are no plain program, or its graph is another one in float64.
    """
    graph = trace.graph
    if _has_types(graph):
        try:
            graph = trace.again(copy_of(module).to(torch.float64)).graph
        except Exception as err:  # torch.export raises whatever the module's own code raises under tracing
            raise ExportError(
                f"the module cannot be written as a program: in float64, {type(err).__name__}: {first_line(err)}."
            ) from err
    _follow_types(graph, trace.graph)
    names, arrays = _weights(trace, graph)
    written = graph.python_code("self")
    own = [name for name, value in written.globals.items() if getattr(value, "__module__", "") == "math"]
    code = "".join(f"{name} = math.{written.globals[name].__name__}\n" for name in own) + written.src.strip()
    code = code.replace(repr(_DTYPE), "self.dtype").replace(repr(_DEVICE), "self.device")
    for mark, limit in _LIMITS.items():
        code = code.replace(repr(mark), f"torch.finfo(self.dtype).{limit}")
    head = _HEAD.format(name=name.replace("\\", "/").replace('"', "'"), inputs=trace.inputs, weights=names)
    return Program(f"{head}{code}\n", arrays)


def _has_types(graph: torch.fx.Graph) -> bool:
    """Whether a graph of float32 says nothing of what it would be in float64: it has types of floating point or limits
    of float32, or casts to the type of another tensor."""
    limits = {getattr(torch.finfo(torch.float32), name) for name in _LIMITS.values()}
    for node in graph.nodes:
        if node.op != "call_function" or _asserts(node):
            continue
        if node.target in (torch.ops.aten.to.other, torch.ops.aten.type_as.default):
            return True
        for value in tree_leaves((node.args, node.kwargs)):
            if (isinstance(value, torch.dtype) and value.is_floating_point) or (
                isinstance(value, float) and value in limits
            ):
                return True
    return False


def _asserts(node: torch.fx.Node) -> bool:
    """Whether a node only asserts what was true of the sizes that were traced."""
    return node.op == "call_function" and "_assert" in str(node.target) and not node.users


def _follow_types(wide: torch.fx.Graph, narrow: torch.fx.Graph) -> None:
    """Replaces, in place, the type and the device in `wide` where they are those of the module.

    It is the wide graph that is kept: in the other, a cast to float32 returns the tensor itself, and torch then takes
    all uses of that tensor for uses of the cast one.

    Raises:
        ExportError: the two are not the same graph but for types, or have parts that are graphs of their own.
    """
    for graph in (narrow, wide):
        for node in list(graph.nodes):
            if _asserts(node):
                graph.erase_node(node)
    pairs = list(zip(wide.nodes, narrow.nodes, strict=False))
    same = len(narrow.nodes) == len(wide.nodes) and all(
        (mine.op, str(mine.target)) == (theirs.op, str(theirs.target)) for mine, theirs in pairs if mine.op != "output"
    )
    # The same happens here with a cast to float64.
    same = same and all(
        len(mine.users) == len(theirs.users) or torch.float64 not in theirs.args for mine, theirs in pairs
    )
    inner = [node for node in wide.nodes if node.op == "get_attr"]
    if not same or inner:
        why = f"it has a graph inside of it, {inner[0].target}" if inner else "its graph depends on the type"
        raise ExportError(f"the module cannot be written as a program: {why}.")

    def followed(mine: Any, theirs: Any) -> Any:
        if isinstance(mine, list | tuple):
            if len(mine) != len(theirs):
                raise ExportError("the module cannot be written as a program: its graph depends on the type.")
            return type(mine)(followed(*pair) for pair in zip(mine, theirs, strict=True))
        return _of_type(mine, theirs)

    for mine, theirs in pairs:
        if mine.op == "call_function":
            mine.args = followed(tuple(mine.args), tuple(theirs.args))
            mine.kwargs = {key: followed(value, theirs.kwargs.get(key)) for key, value in mine.kwargs.items()}


def _of_type(wide: Any, narrow: Any) -> Any:
    """An argument as it is written; a number of the module's type as one of `torch.finfo`, else as fits in both."""
    if isinstance(wide, torch.dtype) and wide != narrow:
        return _DTYPE
    if isinstance(wide, torch.device):
        return _DEVICE
    if not isinstance(wide, float) or wide == narrow:
        return wide
    limits = [torch.finfo(dtype) for dtype in (torch.float64, torch.float32)]
    marks = (mark for mark, name in _LIMITS.items() if [getattr(one, name) for one in limits] == [wide, narrow])
    return next(marks, narrow)


def _weights(trace: Trace, graph: torch.fx.Graph) -> tuple[tuple[str, ...], dict[str, np.ndarray[Any, Any]]]:
    """The name of each weight in the order of the placeholders, and arrays by name; one array for tied weights.

    Those that the graph does not use, such as the sparse buffer of Whisper, are left out of it.
    """
    names: list[str] = []
    arrays: dict[str, np.ndarray[Any, Any]] = {}
    known: dict[int, str] = {}
    for node in [node for node in graph.nodes if node.op == "placeholder" and node.name in trace.weights]:
        held = trace.weights[node.name]
        if not node.users:
            graph.erase_node(node)
            continue
        if held is None or held.dtype == torch.bfloat16 or held.layout is not torch.strided:
            raise ExportError(f"the module cannot be written as a program: {node.name} is no array.")
        name = known.setdefault(id(held), node.name)
        names.append(name)
        arrays[name] = held.detach().cpu().contiguous().numpy()
    return tuple(names), arrays
