"""A form on OpenVINO's CPU plugin, in exactly the precision of its plan.

A decoder's caches become states of the model, to which the plugin adds in place. Such a cache, an input and the output
that follows it, is a variable: it is read, its rows are put into their order by the input `beam_idx`, and what follows
is assigned. The CPU plugin has a kernel of attention for this pattern, which keeps the keys and values of earlier
tokens where they are.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import BundleError, FeedError, RuntimeMissing, escaped
from ..feeds import BFLOAT16
from ..format.decoder import Roles
from ..format.manifest import Form
from . import Port, Session, cpu, refusals

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

PRECISIONS = {"fp32": "f32", "bf16": "bf16", "int8": "f32", "int8_bf16": "bf16", "int4": "f32", "int4_bf16": "bf16"}
"""The plugin's names of precisions. bf16 is an fp32 graph that it computes in bfloat16; it has no float16 on CPU. Those
with integers say how it computes the rest of the graph."""

Guard = Callable[[Mapping[str, Any]], AbstractContextManager[None]]
"""Makes what stands around every use of the runtime, of the arrays that it is given: it turns errors into ours."""
_INT32 = -(1 << 31), (1 << 31) - 1
_DTYPES = {
    "f32": "float32",
    "f16": "float16",
    "f64": "float64",
    "bf16": BFLOAT16,
    "i32": "int32",
    "i64": "int64",
    "boolean": "bool",
}


def compiled(module: Any, graph: Any, plan: str, threads: int | None, where: Path) -> Any:
    """Compiles a graph for the CPU, and checks the precision and device that the plugin really uses.

    Args:
        graph: The result of `Core.read_model`.
        threads: Compute threads; None = the plugin's own choice.
        where: The file, for messages.

    Raises:
        RuntimeMissing: the CPU does not compute in the plan's precision.
        BundleError: OpenVINO refuses the graph.
    """
    if plan not in PRECISIONS:
        raise RuntimeMissing(f"openvino computes in {' or '.join(PRECISIONS)} on CPU; {plan} was asked for.")
    wanted = PRECISIONS[plan]
    settings: dict[str, Any] = {
        # Without these, the plugin computes an fp32 graph in bf16 if the CPU can, and keeps states in 8 bits.
        "INFERENCE_PRECISION_HINT": wanted,
        "KV_CACHE_PRECISION": wanted,
        "PERFORMANCE_HINT": "LATENCY",
    }
    if threads is not None:
        settings["INFERENCE_NUM_THREADS"] = threads
    try:
        with signal_stack_kept():
            model = module.Core().compile_model(graph, "CPU", settings)
    except Exception as err:  # a runtime's own exceptions share no base
        raise BundleError(f"{where}: OpenVINO cannot compile it: {escaped(_reason(str(err)))}") from err
    precision = model.get_property("INFERENCE_PRECISION_HINT").get_type_name()
    devices = list(model.get_property("EXECUTION_DEVICES"))
    if precision != wanted or devices != ["CPU"]:
        raise RuntimeMissing(
            f"OpenVINO was asked for {wanted} on CPU; it runs {precision} on {', '.join(devices)}. "
            "This CPU may lack bfloat16 instructions.",
            hint="Where bfloat16 was asked for and this CPU lacks it, use the plan fp32.",
        )
    return model


def _reason(said: str) -> str:
    """The line with the reason; the lines before it name the plugin's own source files."""
    lines = said.splitlines() or [""]
    return next((line for line in lines if line.strip() and not line.startswith("Exception from ")), lines[0])


class Stepping:
    """Makes the caches of a decoder's batches; the model with its caches as states is compiled with the first."""

    def __init__(self, graph: Any, compile_graph: Callable[[Any], Any], guard: Guard) -> None:
        """Keeps the graph if it has caches; `compile_graph` is `compiled`, of a graph alone."""
        self._graph = graph if has_caches(graph) else None
        self._compile, self._guard = compile_graph, guard
        self._made: Any = None
        self._lock = threading.Lock()

    def __call__(self, roles: Roles) -> _States | None:
        """As `decoding.caches.steps_of`; none of a model that the plugin takes without states. Raises as `compiled`."""
        with self._lock:
            if self._made is None:
                graph, self._graph = self._graph, None
                with self._guard({}):
                    changed = None if graph is None else with_states(graph, roles)
                if changed is None:
                    return None
                try:
                    self._made = self._compile(changed)
                except BundleError:  # 2026.4 finds a loop where the mask reads the length of a cache that it has fused
                    return None
            return _States(self._made, roles, self._guard)

    def close(self) -> None:
        """Frees the model, once no batch uses it."""
        with self._lock:
            self._graph = self._made = None


def infer(request: Any, made: Any, feeds: Mapping[str, Any], outputs: tuple[str, ...]) -> dict[str, Any]:
    """Runs a request; the outputs are copies.

    Inputs are copied too (share_inputs off): OpenVINO 2026.4 keeps the address of a shared array after the call, and
    crashed when the array was freed and another request of the same model ran at another shape.

    Raises:
        FeedError: an integer does not fit into 32 bits; the plugin would silently use its lower half.
    """
    for name, array in feeds.items():
        if array.dtype == "int64" and array.size and not (_INT32[0] <= array.min() and array.max() <= _INT32[1]):
            raise FeedError(
                f"input {name!r}: got values {int(array.min())} to {int(array.max())}; "
                f"OpenVINO computes int64 in 32 bits, from {_INT32[0]} to {_INT32[1]}."
            )
    request.infer(dict(feeds), share_inputs=False)
    return {name: request.get_tensor(made.output(name)).data.copy() for name in outputs}


class OpenVinoSession(Session):
    """A compiled model; the attributes are `runtimes.Session`'s. Calls from several threads take turns."""

    def __init__(self, module: Any, path: Path, form: Form, threads: int | None, mapped: bool = True) -> None:
        """Opens the file, as `runtimes.open_session` says."""
        try:
            core = module.Core()
            core.set_property({"ENABLE_MMAP": mapped})
            graph = core.read_model(str(path))
        except Exception as err:  # a runtime's own exceptions share no base
            raise BundleError(f"{path} cannot be opened: {escaped(str(err))}") from err
        compile_graph = partial(compiled, module, plan=form.plan, threads=threads, where=path)
        self._made = compile_graph(graph)
        self.new_steps = Stepping(graph, compile_graph, lambda arrays: refusals("openvino"))
        self._request = self._made.create_infer_request()
        self._lock = threading.Lock()
        self.provider, self.version = "OpenVINO CPU", str(module.__version__).split("-")[0]
        self.machine = cpu()
        declared = set(form.dtypes)
        self.inputs = tuple(_port(port, declared) for port in self._made.inputs)
        self.outputs = tuple(_port(port, declared) for port in self._made.outputs)

    def run(self, feeds: Mapping[str, np.ndarray[Any, Any]]) -> dict[str, np.ndarray[Any, Any]]:
        """Every output by name, in the file's own dtypes."""
        with self._lock:
            return infer(self._request, self._made, feeds, tuple(port.name for port in self.outputs))

    def close(self) -> None:
        """Frees the model."""
        with self._lock:
            self._request = self._made = None
        self.new_steps.close()


def _port(port: Any, declared: set[str]) -> Port:
    # A tensor may have several names in OpenVINO; the contract's counts.
    names = sorted(port.get_names())
    name = next((name for name in names if name in declared), names[0] if names else "")
    kind = port.get_element_type().get_type_name()
    shape = port.get_partial_shape()
    sizes = None if shape.rank.is_dynamic else tuple(None if size.is_dynamic else size.get_length() for size in shape)
    return Port(name, _DTYPES.get(kind, kind), sizes)


open_session = OpenVinoSession

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
    if not roles.returns_whole_cache or any(node.get_output_size() > 1 for node in made.values()):
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


class _States:
    """`decoding.caches.Steps` of a compiled model with states."""

    def __init__(self, made: Any, roles: Roles, guard: Guard) -> None:
        self._made, self._roles, self._guard = made, roles, guard
        self._request = made.create_infer_request()
        followed = {output for _, output, _ in roles.caches}
        self._outputs = tuple(name for port in made.outputs for name in port.get_names() if name not in followed)
        self._rows: Any = None
        self._given: dict[str, Array] = {}

    def begin(self, caches: Mapping[str, Array]) -> None:
        import openvino

        with self._guard(caches):
            self._request.reset_state()
            for state in self._request.query_state():
                state.state = openvino.Tensor(caches[state.name])
        self._rows = None

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        import numpy as np

        batch = len(feeds[self._roles.ids.name])
        rows = np.arange(batch) if self._rows is None else self._rows
        # What is the same at every step, such as what an encoder gave, is copied to the request once.
        new = {name: array for name, array in feeds.items() if self._given.get(name) is not array}
        with self._guard(feeds):
            outputs = infer(self._request, self._made, {**new, _ROWS: rows.astype(np.int32)}, self._outputs)
        self._rows, self._given = None, dict(feeds)
        return outputs

    def take(self, rows: Array) -> None:
        # They are put into their order with the next token.
        self._rows = rows if self._rows is None else self._rows[rows]

    def drop(self, count: int) -> None:
        import openvino

        from ..decoding.caches import dropped

        axes = {spec.name: axis for spec, axis in self._roles.growing("window")}
        with self._guard({}):
            for state in self._request.query_state():
                if state.name in axes:
                    state.state = openvino.Tensor(dropped(state.state.data, axes[state.name], count))

    def cache(self, name: str) -> Array:
        import numpy as np

        with self._guard({}):
            state = next(one for one in self._request.query_state() if one.name == name)
            held = np.array(state.state.data)
        axis = next(spec for spec, _, _ in self._roles.caches if spec.name == name).dims.index(self._roles.ids.dims[0])
        return held if self._rows is None else np.take(held, self._rows, axis)


_DISABLED = 2  # SS_DISABLE: no such stack


class _Stack(ctypes.Structure):
    """`stack_t` of Linux."""

    _fields_ = (("pointer", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t))


@contextmanager
def signal_stack_kept() -> Iterator[None]:
    """Restores the calling thread's signal stack at the end of the block; does nothing outside Linux.

    When the plugin compiles a model, it gives the thread a signal stack that belongs to the model, and restores the
    previous one when the model is destroyed. If two models are not destroyed in reverse order, the thread keeps a stack
    that was freed, and the next Ctrl-C is a segmentation fault (openvino 2026.4.1, seen in gdb; `sigaltstack` shows the
    stale address).
    """
    if sys.platform != "linux":  # others have no such call, or another order of fields in `stack_t`
        yield
        return
    library, before = ctypes.CDLL(None), _Stack()
    library.sigaltstack(None, ctypes.byref(before))
    try:
        yield
    finally:
        before.flags &= _DISABLED
        library.sigaltstack(ctypes.byref(before), None)
