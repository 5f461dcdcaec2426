"""PyTorch eager on CPU: the module itself, the float64 reference, and eager in each precision plan.

The files of other PyTorch runtimes use what is here: casts, calls, sessions, and tensors of arrays.
"""

# torch leaves its mode classes untyped.
# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from attnport.artifacts import AUTO, CASTS, PLANS, IOContract, ModelSpec, Ran, Session
from attnport.errors import SpecError, UsageError
from attnport.patches import Caches
from attnport.runtimes.base import Array, CheckedSession, Opening, Runtime, physical_cores, refused
from attnport.user_code import copy_of
from attnport_bundle.feeds import check_feeds

if TYPE_CHECKING:
    import torch

Call = Callable[[dict[str, "torch.Tensor"]], Any]
"""What returns a module's result for inputs by name."""


class TorchEager(Runtime):
    """Runs the module as PyTorch does, without any graph."""

    name = "torch_eager"
    opens = "module"
    package = "torch"
    isolated = False
    distributions = ("torch",)

    def session(self, opening: Opening) -> Session:
        """Makes the module and casts it to the plan.

        Raises:
            UsageError: PyTorch has no such plan.
        """
        import torch

        module, dtype = module_of(opening)
        if dtype == torch.float64 and opening.nudged is None:
            return TorchSession(opening, dtype, _WideCall(opening, module))
        if dtype != torch.float32:
            module = cast(module, dtype)
        elif opening.plan == AUTO:
            from attnport.runtimes._torch_modes import round_parameters

            module = round_parameters(copy_of(module))
        return TorchSession(opening, dtype, EagerCall(opening, module))


def module_of(opening: Opening) -> tuple[torch.nn.Module, torch.dtype]:
    """The module of an opening, not yet cast, and the type to cast it to.

    Raises:
        UsageError: PyTorch has no such plan.
    """
    import torch

    if opening.plan not in (*CASTS, AUTO):
        raise UsageError(f"precision {opening.plan!r}; expected one of {', '.join((*CASTS, AUTO))}.")
    dtype = torch.float64 if opening.float64 else getattr(torch, PLANS[opening.plan].cast)
    assert opening.spec is not None
    return opening.spec.make().eval(), dtype


def cast(
    module: torch.nn.Module, dtype: torch.dtype, put: Callable[[Any], Any] = lambda weight: weight
) -> torch.nn.Module:
    """A copy in another type; a cast works in place, and a maker may hand out one module several times.

    `put` brings each weight to a device, where it is cast: a GPU is quick at that, and holds one weight twice at most.

    `Module.to` would take the imaginary parts of complex weights away. They become as precise as float64, and stay
    otherwise, as `Module.half` has it.
    """
    import torch

    def to(given: torch.Tensor) -> torch.Tensor:
        weight: torch.Tensor = put(given)
        if weight.is_complex():
            return weight.to(torch.complex128) if dtype == torch.float64 else weight
        return weight.to(dtype) if weight.is_floating_point() else weight

    copied = copy_of(module)
    copied._apply(to)
    return copied


class EagerCall:
    """Calls a module that was cast to a plan, in the way of the plan, on any device.

    With `Opening.contract`, an element for which the module gives NaN or Inf has the value that it has if attention
    rows with no allowed key are zero. All other elements are the unchanged module's.

    Attributes:
        undefined: By position among the returned tensors, whether the unchanged module gave NaN or Inf in the last
            call.
        gave_numbers: In float64: whether it gave other numbers than zero in a row with no allowed key in the last
            call.
    """

    def __init__(self, opening: Opening, module: torch.nn.Module, *, widens: bool = False, own: bool = False) -> None:
        """`own`: nobody else has the module, so that its weights may be changed."""
        from attnport.runtimes._torch_modes import SumsInOrder, Ties, half_of_islands, modes_for

        self._nudged = opening.nudged
        if opening.nudged is not None:
            module = nudge_parameters(module if own else copy_of(module), Draw(opening.nudged))
        self._module, self._caches = module, Caches(module)
        self._masks = {mask.input for mask in opening.io.masks}
        self._steps = opening.step_by_step
        self._modes = modes_for(
            opening.plan,
            float64=opening.float64,
            step_by_step=self._steps,
            widens=widens,
        )
        if opening.contract or opening.ordered or opening.float64 or opening.nudged is not None:
            self._modes.insert(0, Ties(opening.nudged))
        if opening.nudged is not None:
            self._modes.insert(0, SumsInOrder())
        self._contract = opening.contract
        self._looks = opening.float64
        self.undefined: tuple[bool, ...] = ()
        self.gave_numbers = False
        self._island = None if opening.float64 else half_of_islands(opening.plan)
        self._rounds = opening.plan == AUTO and not opening.float64

    def __call__(self, tensors: dict[str, torch.Tensor]) -> Any:
        """What the module returns for inputs by name."""
        with self._caches.unused():
            return self._result(tensors)

    def _result(self, tensors: dict[str, torch.Tensor]) -> Any:
        from torch.utils._pytree import tree_leaves, tree_map

        from attnport.runtimes._torch_modes import AttentionMode, Hidden, Products, Rounded, ZeroWithoutKey, active

        if self._nudged is not None:
            draw = Draw(self._nudged)
            floats = {name: tensor for name, tensor in tensors.items() if tensor.is_floating_point()}
            nudged_tensors = {name: nudged(tensor, draw) for name, tensor in floats.items() if name not in self._masks}
            # Whole numbers stay, as they may be flags or counts even in a floating type.
            tensors = {
                name: tensor
                if name not in nudged_tensors
                else tensor.where(tensor == tensor.round(), nudged_tensors[name])
                for name, tensor in tensors.items()
            }
        if self._rounds:
            from attnport.runtimes._torch_modes import rounded

            tensors = {name: rounded(tensor) for name, tensor in tensors.items()}
        modes = self._modes
        if self._island is not None:
            with active(products := Products()):
                self._module(**tensors)
            modes = [*modes, Rounded(products, self._island, step_by_step=self._steps)]
        if not self._contract:
            with active(*modes):
                return self._module(**tensors)
        hidden = Hidden()
        with active(*modes, hidden if self._looks else AttentionMode()):
            result = self._module(**tensors)
        self.gave_numbers = hidden.gave_numbers
        self.undefined = tuple(not bool(leaf.isfinite().all()) for leaf in tree_leaves(result))
        if not any(self.undefined):
            return result
        with active(*modes, ZeroWithoutKey()):
            defined = self._module(**tensors)
        return tree_map(lambda own, other: own.where(own.isfinite(), other), result, defined)


class _WideCall:
    """Calls a module that is not cast: each weight is while it is used, or all once that has failed."""

    def __init__(self, opening: Opening, module: torch.nn.Module) -> None:
        self._call = EagerCall(opening, module, widens=True)
        self._cast: Callable[[torch.dtype], EagerCall] | None = lambda dtype: EagerCall(opening, cast(module, dtype))

    def __call__(self, tensors: dict[str, torch.Tensor]) -> Any:
        """What the module returns for inputs by name, in float64."""
        import torch
        from torch.utils._pytree import tree_map_only

        if self._cast is None:
            return self._call(tensors)

        def wide(tensor: torch.Tensor) -> torch.Tensor:
            return tensor.to(torch.float64) if tensor.is_floating_point() else tensor

        try:
            return tree_map_only(torch.Tensor, wide, self._call(tensors))  # an output may be a part of a weight
        except Exception:  # code that compares the type of a weight with an input's, or writes to a buffer
            self._call, self._cast = self._cast(torch.float64), None
            return self._call(tensors)

    @property
    def undefined(self) -> tuple[bool, ...]:
        """As of `EagerCall`."""
        return self._call.undefined

    @property
    def gave_numbers(self) -> bool:
        """As of `EagerCall`."""
        return self._call.gave_numbers


class TorchSession(CheckedSession):
    """Runs a callable that takes tensors by name, such as an `EagerCall`."""

    def __init__(
        self, opening: Opening, dtype: torch.dtype, call: Call, compiler: str = "", device: str = "CPU"
    ) -> None:
        """`dtype` is that of floating-point inputs; `compiler` is told behind the release of PyTorch."""
        import torch

        precision = "fp64" if opening.float64 else matmul_precision(opening.plan, on_gpu=device != "CPU")
        super().__init__(opening.io, Ran(device, f"torch {torch.__version__}{compiler}", precision))
        self._dtype, self._threads = dtype, opening.threads or physical_cores()
        self._call: Call | None = call

    @property
    def undefined(self) -> frozenset[str]:
        """The outputs in which the unchanged module gave NaN or Inf in the last call."""
        undefined = getattr(self._call, "undefined", ())
        return frozenset(spec.name for spec, bad in zip(self._io.outputs, undefined, strict=False) if bad)

    @property
    def gave_numbers(self) -> bool:
        """Whether the module gave other numbers than zero in a row with no allowed key, in the last call."""
        return bool(getattr(self._call, "gave_numbers", False))

    def _in_own_types(self, feeds: Mapping[str, Array]) -> dict[str, torch.Tensor]:
        """The inputs on the host, floating-point ones in the session's dtype."""
        import torch

        if torch.get_num_threads() != self._threads:
            torch.set_num_threads(self._threads)  # the setting is process-wide, and another session may have changed it
        return {spec.name: to_tensor(feeds[spec.name], self._dtype) for spec in self._io.inputs}

    def _run(self, feeds: Mapping[str, Array]) -> Mapping[str, Array]:
        assert self._call is not None
        with refused(self.ran.provider, feeds):
            result = self._call(self._in_own_types(feeds))
        return {name: to_array(tensor) for name, tensor in named_outputs(result, self._io).items()}

    def _free(self) -> None:
        self._call = None


def matmul_precision(plan: str, *, on_gpu: bool) -> str:
    """The plan as shown in reports; fp32 gets a note if PyTorch was told to compute products in TF32 or less."""
    import torch

    setting = torch.get_float32_matmul_precision()  # on the CPU too: it lets float32 products run in bfloat16
    if on_gpu and plan == "fp32" and setting == "highest" and torch.backends.cuda.matmul.allow_tf32:
        setting = "TF32"
    return plan if plan != "fp32" or setting == "highest" else f"{plan} (matmul {setting})"


class Draw:
    """A source of random sides, to which weights and inputs are moved by one rounding; a seed gives the same ones.

    The result for the moved values is as good as that for the given ones, which were rounded themselves. If the two are
    far apart, the error comes from the task and not from the runtime, as in a softmax of two nearly equal scores in the
    thousands. (Monte Carlo arithmetic: D. Stott Parker, 1997; here the data are perturbed, not each operation.)
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._generators: dict[torch.device, torch.Generator] = {}

    def on(self, device: torch.device) -> torch.Generator:
        """The generator of a device: numbers for the weights of a large model are not copied there."""
        import torch

        if device not in self._generators:
            self._generators[device] = torch.Generator(device).manual_seed(self._seed)
        return self._generators[device]


def nudged(tensor: torch.Tensor, draw: Draw) -> torch.Tensor:
    """A copy with each element changed to a neighbouring value of its type; zeros, infinities and NaN stay.

    Args:
        tensor: On any device; returned unchanged unless it is dense, with a floating type of 16, 32 or 64 bits.
    """
    import torch

    whole = {2: torch.int16, 4: torch.int32, 8: torch.int64}.get(tensor.element_size())
    dense = type(tensor) is torch.Tensor and tensor.layout is torch.strided  # a subclass may store other bits
    if whole is None or not dense or not tensor.is_floating_point():
        return tensor
    sides = torch.randint(0, 2, tensor.shape, generator=draw.on(tensor.device), device=tensor.device, dtype=torch.int8)
    moved = (tensor.view(whole) + (2 * sides - 1)).view(tensor.dtype)
    return torch.where((tensor != 0) & tensor.isfinite() & moved.isfinite(), moved, tensor)


def nudge_parameters(module: torch.nn.Module, draw: Draw) -> torch.nn.Module:
    """Moves every weight of a module in place; returns it."""
    for parameter in module.parameters():
        parameter.data = nudged(parameter.data, draw)
    return module


def to_tensor(array: Array, dtype: torch.dtype | None = None) -> torch.Tensor:
    """A torch tensor of an array (bfloat16 is ml_dtypes'); a floating-point one is cast to `dtype` if that is given."""
    import torch

    array = np.ascontiguousarray(array).reshape(array.shape)
    if not array.flags.writeable:
        array = array.copy()
    if array.dtype.name == "bfloat16":
        tensor = torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    else:
        tensor = torch.from_numpy(array)
    return tensor.to(dtype) if dtype is not None and tensor.is_floating_point() else tensor


def to_array(tensor: torch.Tensor) -> Array:
    """An array of a torch tensor, in the same dtype (bfloat16 is ml_dtypes')."""
    import ml_dtypes
    import torch

    tensor = tensor.detach().cpu().contiguous()
    array: Array
    if tensor.dtype == torch.bfloat16:
        array = tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    else:
        array = tensor.numpy()
    return array


def named_outputs(result: Any, io: IOContract) -> dict[str, torch.Tensor]:
    """A module's result as tensors by output name.

    Raises:
        SpecError: it is not a tensor or a tuple of as many tensors as the contract has outputs.
    """
    import torch

    values = (result,) if isinstance(result, torch.Tensor) else result
    expected = ", ".join(map(str, io.outputs))
    if not isinstance(values, (tuple, list)) or not all(isinstance(value, torch.Tensor) for value in values):
        raise SpecError(f"the module returned {type(result).__name__}; expected a tensor or a tuple: {expected}.")
    if len(values) != len(io.outputs):
        raise SpecError(f"the module returned {len(values)} tensors; expected {len(io.outputs)}: {expected}.")
    return {spec.name: value for spec, value in zip(io.outputs, values, strict=True)}


def attention_weights(spec: ModelSpec, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """The softmax probabilities of every attention of the module in float32, for display.

    Returns:
        [B, H, S, T] by attention name (`SourceAttention.name`, in call order); rows with no allowed key are zero.

    Raises:
        FeedError: the feeds do not fit.
        SpecError: the module's attention cannot be reached.
    """
    from attnport.runtimes._torch_modes import active
    from attnport.runtimes._torch_watch import Watch, module_paths, numbered

    check_feeds(spec.io, feeds)
    module = spec.make().eval()
    tensors = {tensor_spec.name: to_tensor(feeds[tensor_spec.name]) for tensor_spec in spec.io.inputs}
    with module_paths(module) as path:
        watch = Watch(path)
        with refused("torch_eager", feeds), active(watch):
            module(**tensors)
    batch = next((array.shape[0] for array in feeds.values() if array.ndim), 1)
    return {name: to_array(weights.float()) for name, weights in numbered(watch.found(), batch).items()}


RUNTIME = TorchEager()
