"""Caches as states of a model in OpenVINO, which then adds to them in place.

A cache, an input and the output that follows it, becomes a variable of the model: it is read, its rows are put into
their order by the input `beam_idx`, and what follows is assigned. The CPU plugin has a kernel of attention for this
pattern, which keeps the keys and values of earlier tokens where they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from .decoding import dropped, kept_axes
from .roles import Roles

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]
Guard = Callable[[Mapping[str, Any]], AbstractContextManager[None]]
"""Makes what stands around every use of the runtime, of the arrays that it is given: it turns errors into ours."""
_ROWS = "beam_idx"
"""The name that the plugin's own models have for it."""


def has_caches(graph: Any) -> bool:
    """Whether an input is put before something, and both together are an output."""
    return any(
        user.get_node().get_type_name() == "Concat"
        and any(one.get_node().get_type_name() == "Result" for one in user.get_node().output(0).get_target_inputs())
        for node in graph.get_parameters()
        for user in node.output(0).get_target_inputs()
    )


def with_states(graph: Any, roles: Roles) -> Any | None:
    """The model with its caches as states. `graph` is changed, and must not be used afterwards.

    Args:
        graph: A result of `Core.read_model`.

    Returns:
        None where what follows a cache is not the whole cache, or one of several results of an operator.
    """
    import numpy as np
    import openvino
    from openvino import opset6, opset13

    rows = opset13.parameter(openvino.PartialShape([-1]), openvino.Type.i32, _ROWS)
    rows.output(0).set_names({_ROWS})
    inputs = {name: node for node in graph.get_parameters() for name in node.output(0).get_names()}
    followers = {name: node for node in graph.get_results() for name in node.input_value(0).get_names()}
    made = {output: followers[output].input_value(0).get_node() for _, output, _ in roles.caches}
    if not roles.grown or any(node.get_output_size() > 1 for node in made.values()):
        return None
    assigned, gone = [], []
    for spec, output, _ in roles.caches:
        cache, shape = inputs[spec.name], inputs[spec.name].get_partial_shape()
        # What a variable begins with. It is never read: caches are given before the first token.
        sizes = [0 if size.is_dynamic else size.get_length() for size in shape]
        begin = opset13.constant(np.zeros(sizes, np.float32), cache.get_element_type())
        read = opset6.read_value(begin, spec.name, cache.get_element_type(), shape)
        axis = opset13.constant(np.int32(spec.dims.index(roles.ids.dims[0])))
        ordered = opset13.gather(read, rows, axis)
        for user in list(cache.output(0).get_target_inputs()):
            user.replace_source_output(ordered.output(0))
        assigned.append(opset6.assign(made[output], spec.name))
        gone += [cache, followers[output]]
    kept = [node for node in graph.get_results() if node not in gone]
    given = [node for node in graph.get_parameters() if node not in gone]
    return openvino.Model(kept, assigned, [*given, rows], graph.get_friendly_name())


class States:
    """`decoding.Steps` of a compiled model with states."""

    def __init__(
        self, request: Any, infer: Callable[[Mapping[str, Any]], dict[str, Array]], roles: Roles, guard: Guard
    ) -> None:
        """Keeps what runs the model.

        Args:
            request: An infer request of its own.
            infer: Runs it on inputs by name, the others as they were before, and gives its outputs.
        """
        self._request, self._infer, self._roles, self._guard = request, infer, roles, guard
        self._rows: Any = None
        self._given: dict[str, Array] = {}

    def begin(self, caches: Mapping[str, Array]) -> None:
        """Takes caches, by input."""
        import openvino

        with self._guard(caches):
            self._request.reset_state()
            for state in self._request.query_state():
                state.state = openvino.Tensor(caches[state.name])
        self._rows = None

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Runs one new token of every text; gives the outputs that follow no cache."""
        import numpy as np

        batch = len(feeds[self._roles.ids.name])
        rows = np.arange(batch) if self._rows is None else self._rows
        # What is the same at every step, such as what an encoder gave, is copied to the request once.
        new = {name: array for name, array in feeds.items() if self._given.get(name) is not array}
        with self._guard(feeds):
            outputs = self._infer({**new, _ROWS: rows.astype(np.int32)})
        self._rows, self._given = None, dict(feeds)
        return outputs

    def take(self, rows: Array) -> None:
        """Goes on with these rows of the batch; they are put into their order with the next token."""
        self._rows = rows if self._rows is None else self._rows[rows]

    def drop(self, count: int) -> None:
        """Lets the first places go, of the caches that hold the last ones alone."""
        import openvino

        axes = {spec.name: axis for spec, axis in kept_axes(self._roles)}
        with self._guard({}):
            for state in self._request.query_state():
                if state.name in axes:
                    state.state = openvino.Tensor(dropped(state.state.data, axes[state.name], count))

    def cache(self, name: str) -> Array:
        """What the cache of an input holds."""
        import numpy as np

        with self._guard({}):
            state = next(one for one in self._request.query_state() if one.name == name)
            held = np.array(state.state.data)
        axis = next(spec for spec, _, _ in self._roles.caches if spec.name == name).dims.index(self._roles.ids.dims[0])
        return held if self._rows is None else np.take(held, self._rows, axis)
