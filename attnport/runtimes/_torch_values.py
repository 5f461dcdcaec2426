"""Computes named tensors of a traced torch module, as references for the tensors of an exported graph.

The traced graph runs node by node under the modes with which `torch_eager` runs the module, so that a tensor's float64
value and eager's error are computed in the same way as those of the module's outputs.
"""

# torch leaves its interpreter untyped.
# mypy: disable-error-code="no-untyped-call,no-any-unimported"

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch

from attnport.artifacts import PLANS
from attnport.runtimes._torch_modes import (
    Products,
    Rounded,
    Ties,
    ZeroWithoutKey,
    active,
    half_of_islands,
    modes_for,
)
from attnport.runtimes.base import Array
from attnport.runtimes.torch_eager import to_array, to_tensor
from attnport.user_code import module_path, place_in_trace

_KINDS = torch.export.graph_signature.InputKind


class TracedModule:
    """A traced module that returns tensors by name; outputs have the contract's names."""

    def __init__(
        self, program: torch.export.ExportedProgram, outputs: Collection[str], plan: str, *, float64: bool = False
    ) -> None:
        """Takes a program and how to run it.

        Args:
            program: The traced module, cast to half precision if the plan is.
            outputs: The names of its outputs, in order.
            float64: Run in float64; `program` is then traced from the float32 module.
        """
        self._program, self._plan, self._float64 = program, plan, float64
        for node in program.graph.nodes:
            # Attention in float64 gives another layout in memory than that which was traced, as if its view were none.
            if node.target is torch.ops.aten.view.default:
                node.target = torch.ops.aten.reshape.default
        returned = [spec.arg.name for spec in program.graph_signature.output_specs if spec.kind.name == "USER_OUTPUT"]
        self._outputs = dict(zip(outputs, returned, strict=True))
        self._dtype = torch.float64 if float64 else getattr(torch, PLANS[plan].cast)

    def modules(self) -> dict[str, str]:
        """The module path of each named tensor."""
        return {name: module_path(node) for name, node in self._nodes().items()}

    def line(self, name: str) -> str:
        """The user's line of code that computes a tensor, as `net.py, line 7: y = x @ w`; "" if torch kept none."""
        node = self._nodes().get(name)
        place = place_in_trace(node.meta.get("stack_trace") or "") if node is not None else ""
        return place.removeprefix(" (").removesuffix(")")

    def _nodes(self) -> dict[str, torch.fx.Node]:
        """What computes each named tensor."""
        nodes = {node.name: node for node in self._program.graph.nodes if node.op == "call_function"}
        named = {name: node for name, node in nodes.items() if isinstance(node.meta.get("val"), torch.Tensor)}
        return named | {name: nodes[own] for name, own in self._outputs.items() if own in nodes}

    def run(self, feeds: Mapping[str, Array], names: Collection[str]) -> dict[str, Array]:
        """The tensors called `names`."""
        wanted = {self._outputs.get(name, name): name for name in names}
        kept: dict[str, Array] = {}

        def keep(name: str, value: torch.Tensor) -> None:
            if name in wanted:
                kept[wanted[name]] = to_array(value).copy()

        self._interpret(feeds, keep)
        return kept

    def shapes(self, feeds: Mapping[str, Array]) -> dict[str, tuple[int, ...]]:
        """The shape of every named tensor."""
        shapes: dict[str, tuple[int, ...]] = {}

        def note(name: str, value: torch.Tensor) -> None:
            shapes[name] = tuple(value.shape)

        self._interpret(feeds, note)
        return shapes | {name: shapes[own] for name, own in self._outputs.items() if own in shapes}

    def _interpret(self, feeds: Mapping[str, Array], see: Any) -> None:
        class Seeing(torch.fx.Interpreter):
            def run_node(self, node: torch.fx.Node) -> Any:
                result = super().run_node(node)
                if isinstance(result, torch.Tensor):
                    see(node.name, result)
                return result

        arguments = self._arguments(feeds)
        steps = not self._float64 and PLANS[self._plan].cast != "float32"  # as the bounds of outputs are measured
        modes = [Ties(), *modes_for(self._plan, float64=self._float64, step_by_step=steps), ZeroWithoutKey()]
        island = None if self._float64 else half_of_islands(self._plan)
        if island is not None:
            with active(products := Products()):
                torch.fx.Interpreter(self._program.graph_module).run(*arguments)
            modes = [*modes, Rounded(products, island)]
        with active(*modes):
            Seeing(self._program.graph_module).run(*arguments)

    def _arguments(self, feeds: Mapping[str, Array]) -> list[Any]:
        """Parameters, buffers, constants and feeds in the graph's order."""
        program, arguments = self._program, list[Any]()
        names = iter(feeds)
        for spec in program.graph_signature.input_specs:
            if spec.kind == _KINDS.USER_INPUT:
                # The graph's input usually has the keyword's name; if torch renamed it, the order is still the same.
                keyword = next(names)
                name = spec.arg.name if spec.arg.name in feeds else keyword
                arguments.append(to_tensor(feeds[name], self._dtype))
                continue
            value = program.state_dict.get(str(spec.target), program.constants.get(str(spec.target)))
            wide = self._float64 and isinstance(value, torch.Tensor) and value.is_floating_point()
            arguments.append(value.to(self._dtype) if wide and isinstance(value, torch.Tensor) else value)
        return arguments
