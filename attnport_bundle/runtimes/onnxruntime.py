"""A form on ONNX Runtime, with the execution provider on which it was checked and no other."""

from __future__ import annotations

import contextlib
import ctypes
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

from ..errors import BundleError, RuntimeMissing, escaped
from ..feeds import BFLOAT16, bound, from_file, storage, to_file
from ..format.decoder import IN_PLACE, Roles
from ..format.files import read_regular
from ..format.manifest import Form
from . import Port, Session, cpu, refusals

if TYPE_CHECKING:
    import numpy as np

    from ..decoding.caches import Steps

CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"
_OF_THE_FILE = ("NoSuchFile", "NoModel", "InvalidProtobuf", "InvalidGraph")
"""Exceptions for which the file is at fault, not the provider."""
DTYPES = {"float": "float32", "double": "float64"}
"""NumPy's names of ONNX Runtime's types, where they differ."""
# ONNX Runtime recognises its own format by the file's name or this key; files of that format are not checked here.
_FORMAT = ("session.load_model_format", "ONNX")
WITHOUT_SKIP_NORMS = ("optimization.disable_specified_optimizers", "SkipLayerNormFusion")
"""On a CPU, the kernel that adds and normalises at once takes five times as long as the two that it replaces: 0.26 ms
and 0.05 ms for 128 rows of 384 in ONNX Runtime 1.31. MiniLM takes 0.93 of its time without it."""
_ONNX_BFLOAT16 = 16  # TensorProto.BFLOAT16


class InPlace:
    """Runs a model that writes to its caches, for the texts of one batch; see `decoding.caches.Buffers`."""

    def __init__(self, module: Any, session: Any) -> None:
        self._module, self._session = module, session
        self._bound: dict[str, Any] = {}
        self._binding: Any = None

    @classmethod
    def of(cls, module: Any, session: Any) -> InPlace | None:
        """For a session of such a model; None of others."""
        return cls(module, session) if IN_PLACE in session.get_modelmeta().custom_metadata_map else None

    def __call__(self, feeds: Mapping[str, Any], buffers: Mapping[str, tuple[str, Any]]) -> dict[str, Any]:
        """The outputs that follow no cache. Raises BundleError if the runtime refuses to."""
        import numpy as np

        followed = {output for output, _ in buffers.values()}
        others = [output.name for output in self._session.get_outputs() if output.name not in followed]
        given = {name: np.ascontiguousarray(array) for name, array in feeds.items()}  # alive during the call
        with refusals("onnxruntime"):
            self._bind(buffers)
            for name, array in given.items():
                self._binding.bind_cpu_input(name, array)
            for name in others:
                self._binding.bind_output(name)
            self._session.run_with_iobinding(self._binding)
            # Outputs come in the order in which they were first bound: those of the caches, then the others.
            outputs = [np.array(value.numpy()) for value in self._binding.get_outputs()[len(buffers) :]]
        return dict(zip(others, outputs, strict=True))

    def _bind(self, buffers: Mapping[str, tuple[str, Any]]) -> None:
        """Binds the buffers, unless they are those of the call before."""
        arrays = {name: buffer for name, (_, buffer) in buffers.items()}
        if self._bound.keys() == arrays.keys() and all(self._bound[name] is array for name, array in arrays.items()):
            return
        self._binding, self._bound = self._session.io_binding(), arrays
        for name, (output, buffer) in buffers.items():
            value = self._module.OrtValue.ortvalue_from_numpy(buffer)  # on a CPU it is the array's own memory
            self._binding.bind_ortvalue_input(name, value)
            self._binding.bind_ortvalue_output(output, value)


GRAPHS = 8
"""The most shapes of inputs that are captured: each graph has memory of its own."""
_GRAPH_ID, _NO_GRAPH = "gpu_graph_id", "-1"  # onnxruntime_run_options_config_keys.h


class Graphs:
    """Runs calls of shapes that come again as CUDA graphs, captured by ONNX Runtime.

    Of small batches, the host takes longer to start kernels than the device to run them: on an H200, BERT base takes
    1.41 ms for 1 x 128 in a stream, and 0.49 as a graph (docs/gpu.md). A graph has fixed addresses: inputs are copied
    into memory of its own, as without it they are copied into other memory.
    """

    def __init__(self, module: Any, session: Any, place: str = "cuda") -> None:
        """Takes a session that was opened with `enable_cuda_graph`; `place` is ONNX Runtime's name of the device."""
        self._module, self._session, self._place = module, session, place
        self._names = [output.name for output in session.get_outputs()]
        self._once: set[Any] = set()
        self._captured: dict[Any, tuple[Any, Any, dict[str, Any], list[Any]]] = {}

    def options(self, number: str = _NO_GRAPH) -> Any:
        """Options for a run that is captured or replayed under a number, or that is no graph."""
        options = self._module.RunOptions()
        options.add_run_config_entry(_GRAPH_ID, number)
        return options

    def has(self, feeds: Mapping[str, np.ndarray[Any, Any]]) -> bool:
        """Whether a call of these shapes is captured."""
        return _shapes(feeds) in self._captured

    def replayed(self, feeds: Mapping[str, np.ndarray[Any, Any]]) -> list[Any]:
        """The outputs in order. Raises whatever ONNX Runtime raises."""
        import numpy as np

        binding, options, inputs, outputs = self._captured[_shapes(feeds)]
        for name, array in feeds.items():
            inputs[name].update_inplace(np.ascontiguousarray(array))
        self._session.run_with_iobinding(binding, options)
        return [np.array(value.numpy()) for value in outputs]

    def capture(self, feeds: Mapping[str, np.ndarray[Any, Any]], plain: Sequence[Any]) -> None:
        """Captures a call, unless its shapes came for the first time, or there are too many.

        Args:
            plain: Its outputs without a graph.

        Raises:
            Exception: whatever ONNX Runtime raises where it cannot capture, and RuntimeError where the graph's outputs
                are not bit for bit those without it.
        """
        import numpy as np

        if len(self._captured) == GRAPHS or not all(array.size for array in feeds.values()):
            return
        shapes = _shapes(feeds)
        if shapes not in self._once:
            self._once.add(shapes)
            return
        value = self._module.OrtValue
        inputs = {
            name: value.ortvalue_from_numpy(np.ascontiguousarray(array), self._place, 0)
            for name, array in feeds.items()
        }
        outputs = [
            value.ortvalue_from_shape_and_type(list(array.shape), array.dtype.type, self._place, 0) for array in plain
        ]
        binding, options = self._session.io_binding(), self.options(str(len(self._captured) + 1))
        for name, held in inputs.items():
            binding.bind_ortvalue_input(name, held)
        for name, held in zip(self._names, outputs, strict=True):
            binding.bind_ortvalue_output(name, held)
        self._session.run_with_iobinding(binding, options)
        if any(held.numpy().tobytes() != array.tobytes() for held, array in zip(outputs, plain, strict=True)):
            raise RuntimeError("the graph gives other numbers")
        self._captured[shapes] = binding, options, inputs, outputs


def _shapes(feeds: Mapping[str, np.ndarray[Any, Any]]) -> tuple[Any, ...]:
    return tuple((name, array.shape) for name, array in sorted(feeds.items()))


class OnDevice:
    """Runs a model whose caches stay on its device, for the texts of one batch; see `decoding.caches.Carried`."""

    def __init__(
        self,
        module: Any,
        session: Any,
        place: str = "cuda",
        options: Any = None,
        turn: contextlib.AbstractContextManager[Any] | None = None,
    ) -> None:
        """Takes a session.

        Args:
            place: ONNX Runtime's name of the device.
            options: Those of each run.
            turn: What a run holds meanwhile.
        """
        self._module, self._session, self._place, self._options = module, session, place, options
        self._turn = turn or contextlib.nullcontext()
        self._dtypes = {port.name: port.dtype for port in map(_port, session.get_inputs())}

    def steps(self, roles: Roles) -> Steps | None:
        """`Steps` of a model whose outputs are whole caches; None of one that gives what is new alone."""
        from ..decoding.caches import Carried

        return Carried(self, self.read, roles) if roles.returns_whole_cache else None

    def __call__(
        self, feeds: Mapping[str, Any], held: Mapping[str, tuple[str, Any]]
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """The outputs that follow no cache, and the caches by input. Raises BundleError if the runtime refuses to."""
        import numpy as np

        of_caches = {output for output, _ in held.values()}
        binding, names = self._session.io_binding(), [output.name for output in self._session.get_outputs()]
        given = {**feeds, **{name: value for name, (_, value) in held.items()}}
        with refusals("onnxruntime"):
            for name, value in given.items():
                # An array is copied to the device by the run: the ids and masks of a step, and caches that begin.
                bound_value = self._value(name, value) if isinstance(value, np.ndarray) else value
                binding.bind_ortvalue_input(name, bound_value)
            for name in names:
                binding.bind_output(name, self._place if name in of_caches else "cpu")
            with self._turn:
                self._session.run_with_iobinding(binding, self._options)
            found = dict(zip(names, binding.get_outputs(), strict=True))
            outputs = {name: self.read(value) for name, value in found.items() if name not in of_caches}
        return outputs, {name: found[output] for name, (output, _) in held.items()}

    def _value(self, name: str, array: Any) -> Any:
        import numpy as np

        dtype = self._dtypes[name]
        whole, value = np.ascontiguousarray(to_file(array, dtype)), self._module.OrtValue
        if dtype == BFLOAT16:
            return value.ortvalue_from_numpy_with_onnx_type(whole, _ONNX_BFLOAT16)
        return value.ortvalue_from_numpy(whole)

    def read(self, value: Any) -> np.ndarray[Any, Any]:
        """A copy of a value as an array; of bfloat16 as float32."""
        import numpy as np

        if value.data_type() != f"tensor({BFLOAT16})":
            return np.array(value.numpy())
        if value.device_name() == "cpu":
            return from_file(_array(value), BFLOAT16, "float32")
        from . import cuda

        bits, device = np.empty(value.shape(), np.uint16), cuda.Device()
        device.open()
        try:
            device.download(bits, value.data_ptr())
            device.synchronize()
        finally:
            device.close()
        return from_file(bits, BFLOAT16, "float32")


class OnnxRuntimeSession(Session):
    """A session of ONNX Runtime; the attributes are `runtimes.Session`'s."""

    def __init__(self, module: Any, path: Path, form: Form, threads: int | None, mapped: bool = True) -> None:
        """Opens the file, as `runtimes.open_session` says."""
        provider = str(form.provider)
        if provider not in module.get_available_providers():
            raise RuntimeMissing(f"this onnxruntime was built without {provider}.")
        own: dict[str, str] = {}
        self.machine = cpu()
        if provider == CUDA:
            from . import cuda

            cuda.load_for_onnxruntime(module)
            self.machine = cuda.gpu(cuda.Device())
            own = cuda.provider_options(self.machine.sm)
            self.wants_eights = True  # for kernels of attention below SM 90, and everywhere so that graphs come again
        options = module.SessionOptions()
        options.log_severity_level = 4  # errors are raised; they need not be printed as well
        options.add_session_config_entry(*_FORMAT)
        if provider == CPU:
            options.add_session_config_entry(*WITHOUT_SKIP_NORMS)
        if threads is not None:
            options.intra_op_num_threads = threads
        # On the CPU alone: other providers move weights to their device, and not all were tried with weights in memory.
        names = () if mapped or provider != CPU else form.external
        weights = {name: read_regular(path.parent / name) for name in names}
        # The method exists from ONNX Runtime 1.24 on.
        if weights and hasattr(options, "add_external_initializers_from_files_in_memory"):
            sizes = [len(data) for data in weights.values()]
            options.add_external_initializers_from_files_in_memory(list(weights), list(weights.values()), sizes)

        def opened(more: Mapping[str, str]) -> Any:
            try:
                # The fallback to the CPU is off: it prints the error, which may hold text of the model file, unescaped.
                return module.InferenceSession(
                    path, options, providers=[(provider, {**own, **more})], enable_fallback=0
                )
            except Exception as err:  # a runtime's own exceptions share no base
                if provider != CPU and type(err).__name__ not in _OF_THE_FILE:
                    raise RuntimeMissing(f"{provider} does not start here: {escaped(str(err))}") from err
                raise BundleError(f"{path} cannot be opened: {escaped(str(err))}") from err

        session = None
        if provider == CUDA:
            with contextlib.suppress(RuntimeMissing):  # such as for nodes that the CPU has to compute
                session = opened({"enable_cuda_graph": "1"})
        graphs = session is not None
        session = session or opened({})
        # If the requested provider does not start, onnxruntime only warns and takes another one.
        if session.get_providers()[0] != provider:
            raise RuntimeMissing(f"got provider {session.get_providers()[0]}; expected {provider}.")
        if own:
            cuda.require_options(session, provider, own)
        self._module, self._session = module, session
        self.provider, self.version = provider, str(module.__version__)
        self.inputs = tuple(map(_port, session.get_inputs()))
        self.outputs = tuple(map(_port, session.get_outputs()))
        self._names = [port.name for port in self.outputs]
        self._halves = any(port.dtype == BFLOAT16 for port in (*self.inputs, *self.outputs))
        self._opened = opened if graphs else None  # it holds the weights that were read for the CPU
        self._graphs = Graphs(module, session) if graphs else None
        self._options = self._graphs.options() if self._graphs else None
        # A session that captures graphs runs one call at a time.
        self._turn: contextlib.AbstractContextManager[Any] = Lock() if graphs else contextlib.nullcontext()
        self.keeps_caches = provider == CUDA

    def run(self, feeds: Mapping[str, np.ndarray[Any, Any]]) -> dict[str, np.ndarray[Any, Any]]:
        """Every output by name, in the file's own dtypes; bfloat16 is passed as uint16 both ways."""
        if not self._halves:
            with self._turn:
                found = self._by_graph(self._graphs, feeds) if self._graphs else self._plainly(feeds)
            return dict(zip(self._names, found, strict=True))
        dtypes = {port.name: port.dtype for port in self.inputs}
        value = self._module.OrtValue
        values = {
            name: value.ortvalue_from_numpy_with_onnx_type(array, _ONNX_BFLOAT16)
            if dtypes[name] == BFLOAT16
            else value.ortvalue_from_numpy(array)
            for name, array in feeds.items()
        }
        with self._turn:
            results = self._session.run_with_ort_values(self._names, values, self._options)
        # The arrays are views; if an output is an input passed through, its memory is the caller's.
        outputs = {name: _array(value) for name, value in zip(self._names, results, strict=True)}
        return {name: array.copy() if name in feeds else array for name, array in outputs.items()}

    def _plainly(self, feeds: Mapping[str, np.ndarray[Any, Any]]) -> list[Any]:
        return list(self._session.run(self._names, dict(feeds), self._options))

    def _by_graph(self, graphs: Graphs, feeds: Mapping[str, np.ndarray[Any, Any]]) -> list[Any]:
        """The outputs by a CUDA graph, where there is one. Where a graph fails, there are none from then on."""
        found = None if graphs.has(feeds) else self._plainly(feeds)  # an error of the call itself is the caller's
        try:
            if found is None:
                return graphs.replayed(feeds)
            graphs.capture(feeds, found)
        except Exception:  # ONNX Runtime's exceptions share no base; without the graph, the call still has its result
            self._graphs = self._options = self._session = None  # a failed capture may leave a stream that is lost
            assert self._opened is not None
            self._session = self._opened({})
        return found or self._plainly(feeds)

    def run_device(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """As `run`, through I/O binding: see `feeds.bound`."""
        place = "cuda" if self.provider == CUDA else "cpu"
        binding = bound(self._module, self._session, feeds, place)
        for name in self._names:
            binding.bind_output(name, place)
        binding.synchronize_inputs()
        with self._turn:
            self._session.run_with_iobinding(binding, self._options)
        binding.synchronize_outputs()
        outputs = dict(zip(self._names, binding.get_outputs(), strict=True))
        # An output that is an input passed through is the caller's memory, which the caller may free after the call.
        return {name: self._copied(name, value) if name in feeds else value for name, value in outputs.items()}

    def new_steps(self, roles: Roles) -> Steps | None:
        """On a GPU, and for a model that writes to its caches; see `decoding.caches.steps_of`."""
        from ..decoding.caches import Buffers

        if self.provider == CUDA:
            return OnDevice(self._module, self._session, options=self._options, turn=self._turn).steps(roles)
        run = InPlace.of(self._module, self._session) if self.provider == CPU else None
        return Buffers(run, roles) if run else None

    def close(self) -> None:
        """Frees the session."""
        self._graphs = self._session = None

    def _copied(self, name: str, value: Any) -> Any:
        """A copy of an output in the runtime's own memory. Raises BundleError if the output is on a GPU."""
        if value.device_name() != "cpu":
            raise BundleError(
                f"output {name!r} is the caller's own memory on the GPU, which the caller may free; call run instead."
            )
        import numpy as np

        dtype = next(port.dtype for port in self.outputs if port.name == name)
        # Not from a NumPy array: a DLPack capsule of such a value would not keep the array alive.
        kind: Any = _ONNX_BFLOAT16 if dtype == BFLOAT16 else np.dtype(dtype)
        copy = self._module.OrtValue.ortvalue_from_shape_and_type(value.shape(), kind)
        ctypes.memmove(copy.data_ptr(), value.data_ptr(), math.prod(value.shape()) * np.dtype(storage(dtype)).itemsize)
        return copy


def _array(value: Any) -> np.ndarray[Any, Any]:
    """A tensor in host memory as an array; ONNX Runtime has no NumPy array for bfloat16."""
    if value.data_type() != f"tensor({BFLOAT16})":
        array: np.ndarray[Any, Any] = value.numpy()
        return array
    import numpy as np

    bits = np.empty(value.shape(), np.uint16)
    ctypes.memmove(bits.ctypes.data, value.data_ptr(), bits.nbytes)
    return bits


def _port(tensor: Any) -> Port:
    kind = tensor.type.removeprefix("tensor(").removesuffix(")")
    # onnxruntime reports an unknown rank in the same way as a scalar.
    shape = tuple(size if isinstance(size, int) and size >= 0 else None for size in tensor.shape or ()) or None
    return Port(tensor.name, DTYPES.get(kind, kind), shape)


open_session = OnnxRuntimeSession
