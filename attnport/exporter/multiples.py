"""Traces dims that have a step, such as the sides of pictures of whole patches, as multiples of it.

torch has no word for a size of which every value is a multiple of 8: `x.view(n, -1, 8)` becomes a condition, and of two
strides of 2 and one of 4 it cannot tell that they leave the same number of rows. So the axis is traced as two, of which
the second is as long as the step, and the module is given both as one: its size is then `8*s`, which torch divides.
In the graph that comes back, the inputs have the axes that the module has, and `s` is the size divided by 8.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from attnport.artifacts import IOContract
from attnport.patches import forward_as, patched

Steps = Mapping[str, Mapping[int, int]]
"""By input, the steps of its axes that have one."""
_SIZE = torch.ops.aten.sym_size.int


def steps_of(contract: IOContract, feeds: Mapping[str, torch.Tensor]) -> Steps:
    """The steps of the axes that are traced as multiples: of dims with more sizes than one, of which the feed has a
    multiple."""
    known = {dim.name: dim.step for dim in contract.dims if dim.step > 1 and dim.min < dim.max}
    found = {
        spec.name: {axis: known[dim] for axis, dim in enumerate(spec.dims)
                    if isinstance(dim, str) and dim in known and feeds[spec.name].shape[axis] % known[dim] == 0}
        for spec in contract.inputs if spec.name in feeds
    }  # fmt: skip
    return {name: axes for name, axes in found.items() if axes}


def split(feeds: Mapping[str, torch.Tensor], steps: Steps) -> dict[str, torch.Tensor]:
    """The feeds with two axes in place of each that has a step."""
    found = dict(feeds)
    for name, axes in steps.items():
        for axis in sorted(axes, reverse=True):
            shape = found[name].shape
            found[name] = found[name].reshape((*shape[:axis], -1, axes[axis], *shape[axis + 1 :]))
    return found


def split_axis(steps: Steps, name: str, axis: int) -> int:
    """Where the first of an axis' two axes is, or the axis itself."""
    return axis + sum(other < axis for other in steps.get(name, ()))


@contextlib.contextmanager
def joining(module: torch.nn.Module, steps: Steps) -> Iterator[None]:
    """Has a module's forward join such axes; it takes its inputs by name."""
    forward = module.forward

    def joined(**feeds: Any) -> Any:
        for name, axes in steps.items():
            for axis in sorted(axes):  # those before it are one again
                feeds[name] = feeds[name].flatten(axis, axis + 1)
        return forward(**feeds)

    with patched(lambda: [forward_as(module, joined)]):
        yield


def rejoin(program: torch.export.ExportedProgram, steps: Steps, feeds: Mapping[str, torch.Tensor]) -> None:
    """Gives the inputs of a trace the axes that the module and its feeds have, in place."""
    graph = program.graph
    placeholders = {node.name: node for node in graph.nodes if node.op == "placeholder"}
    called_with = program.call_spec.in_spec
    names = [str(key) for key in called_with.child(1).context] if called_with is not None else []
    for name, user in zip(names, program.graph_signature.user_inputs, strict=True):
        if name in steps:
            _rejoin(graph, placeholders[str(user)], steps[name])
    program._example_inputs = (), dict(feeds)
    program._guards_code = []  # of the split axes; only what runs the program as a module asks for them


def _rejoin(graph: torch.fx.Graph, given: torch.fx.Node, axes: Mapping[int, int]) -> None:
    """Replaces an input of split axes, the sizes that are asked of it, and what joins them."""
    asked: list[tuple[torch.fx.Node, int, int, bool]] = []
    layers, whole = [given], given
    layout = _layout(given.meta["val"].dim() - len(axes), axes)
    for joined in (None, *sorted(axes)):
        if joined is not None:
            (whole,) = (node for node in whole.users if node.target is torch.ops.aten.flatten.using_ints)
            layers.append(whole)
            layout = [(axis, 1 if axis == joined else step, first) for axis, step, first in layout
                      if first or axis != joined]  # fmt: skip
        for node in whole.users:
            if node.target is _SIZE:
                asked.append((node, *layout[int(node.args[1])]))  # type: ignore[arg-type]  # a number
    sizes = whole.meta["val"].shape
    given.meta = {key: value for key, value in given.meta.items() if key != "tensor_meta"} | {"val": whole.meta["val"]}
    for node, axis, step, first in asked:
        if not first:
            node.replace_all_uses_with(step)  # type: ignore[arg-type]  # a size may be a number
            graph.erase_node(node)
            continue
        node.args = (given, axis)
        if step > 1:
            with graph.inserting_after(node):
                part = graph.call_function(operator.floordiv, (node, step))
            part.meta = dict(node.meta)
            node.replace_all_uses_with(part)
            part.args = (node, step)
            node.meta = {**node.meta, "val": sizes[axis]}
    whole.replace_all_uses_with(given)
    for node in reversed(layers[1:]):
        graph.erase_node(node)


def _layout(rank: int, axes: Mapping[int, int]) -> list[tuple[int, int, bool]]:
    """For each axis of a split input: the axis that it is of, that one's step, and whether it is not the second part,
    which is as long as the step."""
    found: list[tuple[int, int, bool]] = []
    for axis in range(rank):
        found += [(axis, axes[axis], True), (axis, axes[axis], False)] if axis in axes else [(axis, 1, True)]
    return found
