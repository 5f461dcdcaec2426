"""Writes a module that has no file of its own as the Python program that torch.export traced from it.

The program is text that can be read, and needs torch alone; its weights are arrays beside it. Nothing is pickled. It
computes in the type that it is given: what depends on the module's type is found by tracing the module in float64 too.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.export.graph_signature import InputKind

from attnport.artifacts import IOContract
from attnport.errors import ExportError
from attnport.exporter.capture import example_tensors, trace, traced_sizes
from attnport.exporter.patching import quiet

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


def write_program(name: str, module: torch.nn.Module, contract: IOContract) -> Program:
    """The program of a module.

    Args:
        module: In eval mode, in float32; called with the contract's inputs by keyword.

    Raises:
        ExportError: torch cannot trace it, or the trace has parts that are no plain program, or depends on the type.
    """
    wide = copy.deepcopy(module).to(torch.float64)
    with quiet(), torch.no_grad():
        narrow_program, _ = trace(module, contract, _feeds(contract, torch.float32))
        wide_program, _ = trace(wide, contract, _feeds(contract, torch.float64))
    _follow_types(wide_program.graph, narrow_program.graph)
    weights, arrays = _weights(narrow_program)
    called_with = narrow_program.call_spec.in_spec
    inputs = [str(key) for key in called_with.child(1).context] if called_with is not None else []
    written = wide_program.graph.python_code("self")
    own = [name for name, value in written.globals.items() if getattr(value, "__module__", "") == "math"]
    code = "".join(f"{name} = math.{written.globals[name].__name__}\n" for name in own) + written.src.strip()
    code = code.replace(repr(_DTYPE), "self.dtype").replace(repr(_DEVICE), "self.device")
    for mark, limit in _LIMITS.items():
        code = code.replace(repr(mark), f"torch.finfo(self.dtype).{limit}")
    head = _HEAD.format(name=name.replace("\\", "/").replace('"', "'"), inputs=tuple(inputs), weights=tuple(weights))
    return Program(f"{head}{code}\n", arrays)


def _feeds(contract: IOContract, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    feeds = example_tensors(contract, traced_sizes(contract))
    return {name: feed.to(dtype) if feed.is_floating_point() else feed for name, feed in feeds.items()}


def _follow_types(wide: torch.fx.Graph, narrow: torch.fx.Graph) -> None:
    """Replaces, in place, the type and the device in `wide` where they are those of the module.

    It is the wide graph that is kept: in the other, a cast to float32 returns the tensor itself, and torch then takes
    all uses of that tensor for uses of the cast one.

    Raises:
        ExportError: the two are not the same graph but for types, or have parts that are graphs of their own.
    """
    for graph in (narrow, wide):
        for node in list(graph.nodes):
            # Such a node only asserts what was true of the sizes that were traced.
            if node.op == "call_function" and "_assert" in str(node.target) and not node.users:
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


def _weights(program: torch.export.ExportedProgram) -> tuple[list[str], dict[str, np.ndarray[Any, Any]]]:
    """The name of each weight in the order of the placeholders, and arrays by name; one array for tied weights."""
    names: list[str] = []
    arrays: dict[str, np.ndarray[Any, Any]] = {}
    known: dict[int, str] = {}
    for spec in program.graph_signature.input_specs:
        if spec.kind == InputKind.USER_INPUT:
            continue
        held = program.state_dict.get(spec.target) if spec.target in program.state_dict else None
        held = program.constants.get(spec.target) if held is None else held
        if not isinstance(held, torch.Tensor) or held.dtype == torch.bfloat16:
            raise ExportError(f"the module cannot be written as a program: {spec.target} is no array.")
        name = known.setdefault(id(held), spec.arg.name)
        names.append(name)
        arrays[name] = held.detach().cpu().contiguous().numpy()
    return names, arrays
