"""PyTorch eager on CPU: the module itself, the float64 reference, and eager in each precision plan."""

# torch leaves its mode classes untyped.
# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from attnport.artifacts import AUTO, CASTS, PLANS, Capabilities, IOContract, ModelSpec, Ran, Session
from attnport.errors import SpecError, UnavailableError, UsageError
from attnport.optional import require
from attnport.runtimes._session import Array, CheckedSession, refused, undefined_outputs
from attnport.runtimes._torch_cast import cast
from attnport.runtimes._torch_nudge import Draw, nudge_parameters, nudged
from attnport.runtimes.base import Kind, Opening, Runtime, physical_cores
from attnport_bundle.feeds import check_feeds

if TYPE_CHECKING:
    import torch


class TorchEager(Runtime):
    """Runs the module as PyTorch does, without any graph."""

    name: ClassVar[str] = "torch_eager"
    opens: ClassVar[Kind] = "module"
    isolated: ClassVar[bool] = False
    distributions = ("torch",)

    def probe(self) -> Capabilities:
        """What the installed version can do; never raises."""
        try:
            torch = require("torch")
        except UnavailableError as err:
            return Capabilities(self.name, False, err.message, err.hint)
        return Capabilities(
            self.name,
            True,
            version=str(torch.__version__),
            devices=("CPU",),
            plans=CASTS,
        )

    def open(self, opening: Opening) -> Session:
        """Makes the module and casts it to the plan.

        Raises:
            UsageError: no module was given, or the plan is unknown.
        """
        import torch

        module, dtype = module_of(self.name, opening)
        if dtype == torch.float64 and opening.nudged is None:
            return _TorchSession(opening, module, dtype, widens=True)
        if dtype != torch.float32:
            module = cast(module, dtype)
        elif opening.plan == AUTO:
            from attnport.runtimes._torch_range import round_parameters

            module = round_parameters(copy.deepcopy(module))
        return _TorchSession(opening, module, dtype)


def module_of(runtime: str, opening: Opening) -> tuple[torch.nn.Module, torch.dtype]:
    """The module of an opening, not yet cast, and the type to cast it to.

    Raises:
        UsageError: no module was given, or the plan is unknown.
    """
    import torch

    if opening.spec is None:
        raise UsageError(f"{runtime} opens a module; got none.")
    if opening.plan not in (*CASTS, AUTO):
        raise UsageError(f"precision plan {opening.plan!r}; expected one of {', '.join((*CASTS, AUTO))}.")
    dtype = torch.float64 if opening.float64 else getattr(torch, PLANS[opening.plan].cast)
    return opening.spec.make().eval(), dtype


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
        from attnport.runtimes._torch_modes import TiesInOrder, half_of_islands, modes_for

        self._nudged = opening.nudged
        if opening.nudged is not None:
            module = nudge_parameters(module if own else copy.deepcopy(module), Draw(opening.nudged))
        self._module = module
        self._masks = {mask.input for mask in opening.io.masks}
        self._steps = opening.step_by_step
        self._modes = modes_for(
            opening.plan,
            float64=opening.float64,
            step_by_step=self._steps,
            widens=widens,
        )
        if opening.contract or opening.ordered or opening.float64 or opening.nudged is not None:
            self._modes.insert(0, TiesInOrder())
        self._contract = opening.contract
        self._looks = opening.float64
        self.undefined: tuple[bool, ...] = ()
        self.gave_numbers = False
        self._island = None if opening.float64 else half_of_islands(opening.plan)
        self._rounds = opening.plan == AUTO and not opening.float64

    def __call__(self, tensors: dict[str, torch.Tensor]) -> Any:
        """What the module returns for inputs by name."""
        from torch.utils._pytree import tree_leaves, tree_map

        from attnport.runtimes._torch_modes import AttentionMode, Hidden, ZeroWithoutKey, active
        from attnport.runtimes._written_attention import Found, Rounded

        if self._nudged is not None:
            draw = Draw(self._nudged)
            nudged_tensors = {name: nudged(tensor, draw) for name, tensor in tensors.items() if name not in self._masks}
            # Whole numbers stay, as they may be flags or counts even in a floating type.
            tensors = {
                name: tensor
                if name not in nudged_tensors
                else tensor.where(tensor == tensor.round(), nudged_tensors[name])
                for name, tensor in tensors.items()
            }
        if self._rounds:
            from attnport.runtimes._torch_range import rounded

            tensors = {name: rounded(tensor) for name, tensor in tensors.items()}
        modes = self._modes
        if self._island is not None:
            with active(products := Found()):
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


class _TorchSession(CheckedSession):
    def __init__(self, opening: Opening, module: torch.nn.Module, dtype: torch.dtype, *, widens: bool = False) -> None:
        """`widens`: the module is not cast; each weight is while it is used, or all once that has failed."""
        import torch

        precision = "fp64" if opening.float64 else opening.plan
        # On CPU this setting silently lets float32 products run in bfloat16.
        if precision == "fp32" and torch.get_float32_matmul_precision() != "highest":
            precision += f" (matmul {torch.get_float32_matmul_precision()})"
        super().__init__(opening.io, Ran("CPU", f"torch {torch.__version__}", precision))
        self._call: EagerCall | None = EagerCall(opening, module, widens=widens)
        self._cast = (lambda: EagerCall(opening, cast(module, dtype))) if widens else None
        self._dtype = dtype
        self._threads = opening.threads or physical_cores()

    @property
    def undefined(self) -> frozenset[str]:
        """The outputs in which the unchanged module gave NaN or Inf in the last call."""
        return undefined_outputs(self._call, self._io)

    @property
    def gave_numbers(self) -> bool:
        """Whether the module gave other numbers than zero in a row with no allowed key, in the last call."""
        return self._call is not None and self._call.gave_numbers

    def _run(self, feeds: Mapping[str, Array]) -> Mapping[str, Array]:
        import torch

        if torch.get_num_threads() != self._threads:
            torch.set_num_threads(self._threads)  # the setting is process-wide, and another session may have changed it
        tensors = {spec.name: to_tensor(feeds[spec.name], self._dtype) for spec in self._io.inputs}
        assert self._call is not None
        if self._cast is not None:
            try:
                return self._named(self._call(tensors))
            except Exception:  # code that compares the type of a weight with an input's, or writes to a buffer
                self._call, self._cast = self._cast(), None
        with refused("torch_eager", feeds):
            result = self._call(tensors)
        return self._named(result)

    def _named(self, result: Any) -> dict[str, Array]:
        tensors = named_outputs(result, self._io)
        if self._cast is not None:  # an output may be a part of a weight
            tensors = {
                name: tensor.to(self._dtype) if tensor.is_floating_point() else tensor
                for name, tensor in tensors.items()
            }
        return {name: to_array(tensor) for name, tensor in tensors.items()}

    def _free(self) -> None:
        self._call = self._cast = None


def to_tensor(array: Array, dtype: torch.dtype | None = None) -> torch.Tensor:
    """A torch tensor of an array (bfloat16 is ml_dtypes'); a floating-point one is cast to `dtype` if that is given."""
    import numpy as np
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

    Args:
        spec: The model.
        feeds: Arrays that fit its contract.

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
