"""Rewrites complex numbers in the torch graph as pairs of real ones; ONNX Runtime computes with no others.

torch's exporter does so for a few operators alone (https://github.com/pytorch/pytorch/issues/126972). A complex value
whose operator has no rule here stays, and the exporter names it.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

from attnport.exporter import fourier
from attnport.exporter.complex_rules import BY_PARTS, READS, RULES, Pair

if TYPE_CHECKING:
    import torch


def split_complex(program: torch.export.ExportedProgram) -> int:
    """Replaces complex values by pairs of real ones, in place; returns how many were replaced."""
    writer = _Writer(program)
    for node in list(program.graph.nodes):
        if node.op == "placeholder" and _is_complex(node):
            writer.take(node)
        elif node.op == "call_function":
            writer.visit(node)
    return writer.finish()


class _Writer:
    """Writes real nodes beside the complex ones, then removes those."""

    def __init__(self, program: torch.export.ExportedProgram) -> None:
        from torch._guards import detect_fake_mode

        self._program, self._graph = program, program.graph
        self._pairs: dict[torch.fx.Node, Pair] = {}
        self._replaced: list[torch.fx.Node] = []
        self._meta: dict[str, Any] = {}
        self._mode: Any = detect_fake_mode([node.meta.get("val") for node in program.graph.nodes])

    def call(self, target: Any, *args: Any, **kwargs: Any) -> Any:
        """A new node; what is computed of sizes that are numbers is a number."""
        from torch.fx.node import map_arg

        known: list[Any] = []
        map_arg((args, kwargs), known.append)
        if not known and not hasattr(target, "_schema"):
            return target(*args, **kwargs)
        node = self._graph.call_function(target, args, kwargs)
        taken: Any = map_arg((args, kwargs), lambda one: one.meta["val"])
        with self._mode:
            node.meta = {**self._meta, "val": target(*taken[0], **taken[1])}
        return node

    def take(self, node: torch.fx.Node) -> None:
        """Reads a weight as a pair; whether all that uses it has a rule is not known yet."""
        import torch

        aten = torch.ops.aten
        with self._graph.inserting_before(next(one for one in self._graph.nodes if one.op != "placeholder")):
            both = self.call(aten.view_as_real.default, node)
            self._pairs[node] = Pair(*(self.call(aten.select.int, both, -1, part) for part in (0, 1)))

    def visit(self, node: torch.fx.Node) -> None:
        """Writes a node's value as a pair, or what it reads from pairs, if there is a rule for its operator."""
        inputs = [one for one in node.all_input_nodes if _is_complex(one)]
        if not (inputs or _is_complex(node)) or any(one not in self._pairs for one in inputs):
            return
        self._meta = {name: value for name, value in node.meta.items() if name not in ("val", "tensor_meta")}
        with self._graph.inserting_before(node):
            result = self._written(node)
        if result is None:
            return
        if _is_complex(node):
            self._pairs[node] = result
        elif node.users:
            real = result.real if isinstance(result, Pair) else result  # a cast to a real type drops the other
            self._program.graph_signature.replace_all_uses(node.name, real.name)
            node.replace_all_uses_with(real)
        self._replaced.append(node)

    def finish(self) -> int:
        """Removes the complex nodes that nothing uses any more, and makes weights real; returns how many nodes."""
        import torch

        for node in reversed(self._replaced):
            if not node.users:
                self._graph.erase_node(node)
        for node in self._graph.find_nodes(op="placeholder"):
            if node in self._pairs:
                self._make_real(node)
        if self._replaced:  # what is computed of pairs lies in memory otherwise, where a view may be refused
            for node in self._graph.find_nodes(op="call_function", target=torch.ops.aten.view.default):
                node.target = torch.ops.aten.reshape.default
        return len(self._replaced)

    def _written(self, node: torch.fx.Node) -> Any:
        """The value of a node as a pair, or as a node if it is real; None if there is no rule."""
        import torch

        name = "getitem" if node.target is operator.getitem else str(getattr(node.target, "overloadpacket", ""))[5:]
        if name == "_assert_tensor_metadata":
            return Pair(None, None)  # it has no users
        if node.target is torch.ops.aten.view.dtype:
            return None
        if name in READS:
            return self.call(node.target, *map(self._one, node.args), **node.kwargs)
        if name in BY_PARTS:
            return self._by_parts(node, BY_PARTS[name])
        if name in fourier.RULES:
            return fourier.RULES[name](self.call, self._pair(node.args[0]), *node.args[1:], **node.kwargs)
        if name in RULES and not node.kwargs:
            return RULES[name](self.call, *(self._pair(value) for value in node.args))
        return None

    def _by_parts(self, node: torch.fx.Node, numbers: tuple[int, ...]) -> Pair:
        """The same operator for both parts; `view` as `reshape`, as a part lies in memory otherwise than the whole."""
        import torch

        aten = torch.ops.aten
        target = aten.reshape.default if node.target is aten.view.default else node.target
        kwargs = {name: self._one(value) for name, value in node.kwargs.items()}
        found = []
        for part in (0, 1):
            args = [
                self._part(value, part) if at in numbers else self._one(value) for at, value in enumerate(node.args)
            ]
            found.append(self.call(target, *args, **kwargs))
        return Pair(*found)

    def _pair(self, value: Any) -> Any:
        import torch

        if isinstance(value, list | tuple):
            return [self._pair(one) for one in value]
        if isinstance(value, torch.fx.Node):
            return self._pairs.get(value, Pair(value, None))
        return Pair(value.real, value.imag) if isinstance(value, complex) else Pair(value, None)

    def _part(self, value: Any, part: int) -> Any:
        """One part of an argument that is a number, or a list of such; that of a real one is zero."""
        import torch

        if isinstance(value, list | tuple):
            return [self._part(one, part) for one in value]
        found = self._pair(value)[part]
        if found is None and isinstance(value, torch.fx.Node):
            return self.call(torch.ops.aten.zeros_like.default, value)
        return 0.0 if found is None else found

    def _one(self, value: Any) -> Any:
        """An argument of which only the type or the shape counts."""
        import torch

        if isinstance(value, torch.dtype):
            return value.to_real()
        return self._pair(value).real if isinstance(value, torch.fx.Node) else value

    def _make_real(self, node: torch.fx.Node) -> None:
        """Makes a complex weight a real one with a last axis of 2, unless it is still used as it was."""
        import torch

        reads = list(node.users)
        specs = self._program.graph_signature.input_specs
        target = next((spec.target for spec in specs if getattr(spec.arg, "name", "") == node.name), None)
        kept: Any = next((kept for kept in (self._program.state_dict, self._program.constants) if target in kept), None)
        if kept is None or [read.target for read in reads] != [torch.ops.aten.view_as_real.default]:
            return
        real = torch.view_as_real(kept[target].detach().resolve_conj()).contiguous()
        kept[target] = torch.nn.Parameter(real, False) if isinstance(kept[target], torch.nn.Parameter) else real
        node.meta = {**node.meta, "val": reads[0].meta["val"]}
        reads[0].replace_all_uses_with(node)
        self._graph.erase_node(reads[0])


def _is_complex(node: torch.fx.Node) -> bool:
    """Whether a node's value, or each of its list, is complex."""
    import torch

    value = node.meta.get("val")
    first = value[0] if isinstance(value, list | tuple) and value else value
    return isinstance(first, torch.Tensor) and first.is_complex()
