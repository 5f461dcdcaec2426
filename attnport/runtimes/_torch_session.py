"""A PyTorch session on a device: copies inputs to it, calls a callable, and copies outputs back."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from attnport.artifacts import DEVICE_PARTS, IOContract, Ran
from attnport.runtimes._device_timing import GRAPH, DeviceTimed
from attnport.runtimes._session import Array, refused, undefined_outputs
from attnport.runtimes._torch_device import TorchDevice, whole_sums

if TYPE_CHECKING:
    import torch

Call = Callable[[dict[str, "torch.Tensor"]], Any]


class DeviceSession(DeviceTimed):
    """Runs a callable that takes tensors by name, on a device."""

    def __init__(
        self, io: IOContract, ran: Ran, device: TorchDevice, dtype: torch.dtype, threads: int, call: Call
    ) -> None:
        """`dtype` is that of floating-point inputs; `threads` is the number of threads that cast them on the host."""
        super().__init__(io, ran)
        self._device, self._dtype, self._threads = device, dtype, threads
        self._call: Call | None = call
        self._graph: tuple[Any, dict[str, torch.Tensor], Callable[[], None], Any] | None = None

    def _run(self, feeds: Mapping[str, Array]) -> Mapping[str, Array]:
        import torch

        from attnport.runtimes.torch_eager import named_outputs, to_array

        assert self._call is not None
        with refused(self.ran.provider, feeds), torch.inference_mode(), whole_sums():
            result = self._call(
                {name: self._device.put(host_tensor) for name, host_tensor in self._in_own_types(feeds).items()}
            )
            return {name: to_array(tensor) for name, tensor in named_outputs(result, self._io).items()}

    @property
    def undefined(self) -> frozenset[str]:
        """The outputs in which the unchanged module gave NaN or Inf in the last call."""
        return undefined_outputs(self._call, self._io)

    @property
    def gave_numbers(self) -> bool:
        """Whether the module gave other numbers than zero in a row with no allowed key, in the last call."""
        return bool(getattr(self._call, "gave_numbers", False))

    def _timed(self, feeds: Mapping[str, torch.Tensor], mode: str) -> dict[str, int]:
        import torch

        from attnport.runtimes.torch_eager import named_outputs

        assert self._call is not None
        call, device = self._call, self._device
        with torch.inference_mode():
            device_tensors, replay, result = self._captured(feeds) if mode == GRAPH else ({}, None, None)
            marks = [device.mark()]
            if replay is None:
                device_tensors = {name: device.put(tensor) for name, tensor in feeds.items()}
            else:
                for name, tensor in feeds.items():
                    device_tensors[name].copy_(tensor)
            marks.append(device.mark())
            if replay is None:
                result = call(device_tensors)
            else:
                replay()
            marks.append(device.mark())
            for tensor in named_outputs(result, self._io).values():
                tensor.cpu()
            marks.append(device.mark())
            device.wait()
        times = [device.ns_between(*pair) for pair in itertools.pairwise(marks)]
        return dict(zip(DEVICE_PARTS, times, strict=True))

    def _captured(self, held: Mapping[str, torch.Tensor]) -> tuple[dict[str, torch.Tensor], Callable[[], None], Any]:
        """Inputs, replay and result of the graph for these shapes; only the graph of the last shapes is kept."""
        key = tuple((name, tuple(tensor.shape)) for name, tensor in held.items())
        if self._graph is None or self._graph[0] != key:
            self._graph = None
            call = self._call
            assert call is not None
            inputs = {name: self._device.put(tensor).clone() for name, tensor in held.items()}
            replay, result = self._device.captured(lambda: call(inputs))
            self._graph = key, inputs, replay, result
        return self._graph[1:]

    def _in_own_types(self, feeds: Mapping[str, Array]) -> dict[str, torch.Tensor]:
        """The inputs on the host, floating-point ones in the session's dtype."""
        import torch

        from attnport.runtimes.torch_eager import to_tensor

        if torch.get_num_threads() != self._threads:
            torch.set_num_threads(self._threads)  # the setting is process-wide, and another session may have changed it
        return {spec.name: to_tensor(feeds[spec.name], self._dtype) for spec in self._io.inputs}

    def _free(self) -> None:
        self._graph = self._call = None
        self._device.free()
