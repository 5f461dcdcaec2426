"""ONNX Runtime on CUDA, without falling back to the CPU; its calls are also timed on the device.

For that, inputs and outputs are bound to memory of the device on one stream, as in an application that keeps its
tensors there: ONNX Runtime then copies nothing, and the host does not wait within a call. Source: ONNX Runtime's
documentation, "I/O Binding", and of the CUDA execution provider `user_compute_stream` and `enable_cuda_graph`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from attnport.artifacts import Evidence, IOContract, Ran, Session
from attnport.errors import UnavailableError, whole_cause
from attnport.runtimes import _cuda, _ort
from attnport.runtimes.base import GRAPH, STREAM, Array, DeviceTimed, Opening, checked_model
from attnport_bundle.feeds import BFLOAT16
from attnport_bundle.runtimes.cuda import (
    CUDNN,
    CUDNN_FLASH,
    EFFICIENT,
    FLASH,
    UNFUSED,
    cudnn_version,
    provider_options,
    require_options,
)
from attnport_bundle.runtimes.onnxruntime import DTYPES

PROVIDER = "CUDAExecutionProvider"
GPU_PACKAGE = 'pip uninstall -y onnxruntime && pip install "onnxruntime-gpu[cuda,cudnn]"'
"""Both wheels of ONNX Runtime install the same folder; without its extras, none of CUDA's libraries comes along."""
_KERNELS = {"flash": FLASH, "memory-efficient": EFFICIENT, "cuDNN": CUDNN_FLASH}
_ATTENTION = (
    '<ir_version: 10, opset_import: ["" : 23, "com.microsoft" : 1]> g (float16[1,8,128] q%s) => (float16[1,8,128] y) '
    "{ [att] y = com.microsoft.MultiHeadAttention<num_heads=2>(q, q, q%s) }"
)
_MASKS = {"without a mask": ("", ""), "with a bias": (", float16[1,1,8,8] bias", ", , , bias")}


class OrtCuda(_ort.OrtRuntime):
    """ONNX Runtime with the CUDA execution provider."""

    name = "ort_cuda"
    install = GPU_PACKAGE
    form = "ort_cuda"
    plans = ("fp32", "fp16", "bf16")
    fragile = True
    gpu = True
    distributions = (*_ort.ONNX_RUNTIMES, "nvidia-*")

    def able(self) -> dict[str, Any]:
        """Computes on CUDA, if driver and libraries are there; in bfloat16 from Ampere on."""
        self.require_built(PROVIDER)
        device = _cuda.Device()
        _cuda.load_cuda()
        options = provider_options(device.sm)
        able = self.able_on((PROVIDER, options), "It wants CUDA and cuDNN libraries.")
        plans = tuple(plan for plan in self.plans if plan != "bf16" or _has_bf16(device))
        details = {"cuDNN": cudnn_version() or f"{CUDNN} is not found", "attention": attention_kernels(options)}
        return able | {"devices": (f"{device.name} (SM {device.sm})",), "plans": plans, "details": details}

    def session(self, opening: Opening) -> Session:
        """Opens a form of `ort_cuda`. The model is run on small inputs to check that nothing fell back to the CPU.

        Raises:
            UnavailableError: the GPU has no kernels in bfloat16, or the session has other options than the reader's.
        """
        path, _ = checked_model(opening)
        device = _cuda.Device()
        if opening.plan == "bf16" and not _has_bf16(device):
            raise UnavailableError(f"{device.name} is SM {device.sm}; {self.name} computes in bf16 from SM 80 on.")
        own = provider_options(device.sm)
        _ort.refuse_fallback(path, (PROVIDER, own), io=opening.io)
        device.open()

        def opened(options: Mapping[str, str]) -> Any:
            provider = PROVIDER, {**own, "user_compute_stream": str(device.stream), **options}
            session = _ort.open_session(path, _ort.options(opening.threads), provider)
            require_options(session, PROVIDER, own)
            return session

        def ran(session: Any) -> Ran:
            return Ran(f"{device.name} (SM {device.sm})", session.get_providers()[0], opening.plan)

        return OrtDeviceSession(opening.io, opened, device, ran)

    def evidence(
        self, model: Path, anchors: Mapping[str, tuple[str, ...]], plan: str, io: IOContract | None
    ) -> dict[str, Evidence]:
        """Attentions that are one operator, for which ONNX Runtime printed a kernel that is one kernel.

        Its choice depends on the lengths: those of the run are multiples of 8, the least that the contract allows; the
        text says what it chose at odd ones.
        """
        return _ort.evidence(model, anchors, (PROVIDER, provider_options(_cuda.Device().sm)), io, printing=True)


def _has_bf16(device: _cuda.Device) -> bool:
    return device.sm >= 80


def attention_kernels(options: Mapping[str, str]) -> str:
    """Which kernels of attention run here in half precision, of flash, memory-efficient and cuDNN, in words.

    Each is asked for alone, for an attention of 8 tokens, and ONNX Runtime prints what it took.
    """
    found = []
    for what, texts in _MASKS.items():
        names = []
        for name, kernel in _KERNELS.items():
            with _ort.printed_kernels() as printed:
                failed = _ort.refusal(_ATTENTION % texts, (PROVIDER, {**options, "sdpa_kernel": str(kernel | UNFUSED)}))
            if not failed and _ort.UNFUSED not in printed.get("att", (_ort.UNFUSED,)):
                names.append(name)
        found.append(f"{' and '.join(names) or 'none that is fused'} {what}")
    return ", ".join(found)


# The host goes on while the device computes; the events tell when that ended.
_NO_WAIT = "disable_synchronize_execution_providers", "1"


@dataclass
class _Bound:
    """A session's binding to buffers of the device for inputs of the same shapes.

    Attributes:
        outputs: Where the outputs are copied to, in the order of the session's outputs.
    """

    shapes: dict[str, tuple[int, ...]]
    binding: Any
    options: Any
    outputs: dict[str, Array]


class OrtDeviceSession(DeviceTimed, _ort.OrtSession):
    """As `OrtSession`; `run_timed` computes from and to memory of the device."""

    def __init__(
        self,
        io: IOContract,
        opened: Callable[[Mapping[str, str]], Any],
        device: _cuda.Device,
        ran: Callable[[Any], Ran],
        place: str = "cuda",
    ) -> None:
        """Opens the model on an open device, which is closed with the session, or here if the model does not open.

        Args:
            opened: Opens the model on the device's stream, with these further options of the provider.
            ran: What a session runs on.
            place: ONNX Runtime's name of the device.
        """
        try:
            session = opened({})
            super().__init__(io, session, ran(session))
        except BaseException:
            device.close()
            raise
        self._opened, self._device, self._place = opened, device, place
        self._sessions: dict[str, Any] = {STREAM: session}
        self._bound: dict[str, _Bound] = {}
        self._buffers: dict[str, tuple[int, int]] = {}
        self._graphs, self._no_graph = 0, ""

    def _in_own_types(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        types = {tensor.name: _dtype(tensor.type) for tensor in self._session.get_inputs()}
        return {name: np.ascontiguousarray(feeds[name].astype(kind, copy=False)) for name, kind in types.items()}

    def _timed(self, feeds: Mapping[str, Array], mode: str) -> dict[str, int]:
        self._device.bind()
        bound = self._bound_to(feeds, mode)
        run = partial(self._sessions[mode].run_with_iobinding, bound.binding, bound.options)
        return _cuda.timed(self._device, self._buffers, feeds, run, bound.outputs)

    def _bound_to(self, feeds: Mapping[str, Array], mode: str) -> _Bound:
        """The binding of a mode for these shapes; only that of the last shapes is kept.

        Raises:
            UnavailableError: ONNX Runtime cannot capture the model as a graph.
        """
        shapes = {name: array.shape for name, array in feeds.items()}
        kept = self._bound.get(mode)
        if kept is not None and kept.shapes == shapes:
            return kept
        # Another shape may need larger buffers, and a graph or a binding holds the addresses of the old ones.
        self._bound = {key: one for key, one in self._bound.items() if one.shapes == shapes}
        outputs = next((one.outputs for one in self._bound.values()), None)
        if outputs is None:
            outputs = self._empty_outputs(feeds)
        binding, options = self._binding(self._session_of(mode), feeds), self._run_options(mode)
        for name, array in outputs.items():
            address = self._buffer(name, array.nbytes)
            binding.bind_output(name, self._place, 0, _element_type(array), list(array.shape), address)
        try:
            self._sessions[mode].run_with_iobinding(binding, options)  # a graph is captured here
        except Exception as err:  # a runtime's own exceptions share no base
            if mode != GRAPH:
                raise
            del binding
            raise self._not_captured(err) from err
        self._bound[mode] = _Bound(shapes, binding, options, outputs)
        return self._bound[mode]

    def _session_of(self, mode: str) -> Any:
        """The session of a mode; capturing is an option of the provider, so graphs have a session of their own."""
        if mode not in self._sessions:
            if self._no_graph:
                raise UnavailableError(self._no_graph)
            try:
                self._sessions[mode] = self._opened({"enable_cuda_graph": "1"})
            except Exception as err:  # a runtime's own exceptions share no base
                raise self._not_captured(err) from err
        return self._sessions[mode]

    def _not_captured(self, err: Exception) -> UnavailableError:
        """The error, which is the same from now on; the session, which holds the weights once more, is given up."""
        self._sessions.pop(GRAPH, None)
        self._no_graph = f"ONNX Runtime cannot capture it as a CUDA graph: {whole_cause(err)}"
        return UnavailableError(self._no_graph)

    def _run_options(self, mode: str) -> Any:
        import onnxruntime as ort

        options = ort.RunOptions()
        options.add_run_config_entry(*_NO_WAIT)
        if mode == GRAPH:
            self._graphs += 1
            options.add_run_config_entry("gpu_graph_id", str(self._graphs))
        return options

    def _empty_outputs(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Arrays of the outputs' shapes, which a run with memory of ONNX Runtime's own tells."""
        session = self._sessions[STREAM]
        binding = self._binding(session, feeds)
        for output in session.get_outputs():
            binding.bind_output(output.name, self._place)
        session.run_with_iobinding(binding)
        values = zip(session.get_outputs(), binding.get_outputs(), strict=True)
        return {output.name: np.empty(tuple(value.shape()), _dtype(output.type)) for output, value in values}

    def _binding(self, session: Any, feeds: Mapping[str, Array]) -> Any:
        """A binding with every input, which is copied to the device."""
        binding = session.io_binding()
        for name, array in feeds.items():
            address = self._buffer(name, array.nbytes)
            self._device.upload(address, array)
            binding.bind_input(name, self._place, 0, _element_type(array), list(array.shape), address)
        self._device.synchronize()
        return binding

    def _buffer(self, name: str, size_bytes: int) -> int:
        """Memory of the device for a tensor, which grows as needed."""
        address, had_bytes = self._buffers.get(name, (0, -1))
        if had_bytes < size_bytes:
            if had_bytes >= 0:
                del self._buffers[name]
                self._device.free(address)
            address = self._device.allocate(size_bytes)
            self._buffers[name] = address, size_bytes
        return address

    def _free(self) -> None:
        self._device.bind()
        self._device.synchronize()
        self._bound.clear()
        self._sessions.clear()
        super()._free()
        for address, _ in self._buffers.values():
            self._device.free(address)
        self._buffers.clear()
        self._device.close()


def _dtype(kind: str) -> Any:
    """The NumPy type of a tensor of ONNX Runtime, such as `tensor(float16)`; bfloat16 as ml_dtypes has it."""
    import ml_dtypes

    name = kind.removeprefix("tensor(").removesuffix(")")
    return np.dtype(ml_dtypes.bfloat16 if name == BFLOAT16 else DTYPES.get(name, name))


def _element_type(array: Array) -> Any:
    """The type of an array as a binding takes it: bfloat16 by its number in ONNX."""
    import onnx

    return onnx.TensorProto.BFLOAT16 if array.dtype.name == BFLOAT16 else array.dtype.type


RUNTIME = OrtCuda()
