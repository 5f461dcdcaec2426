"""What goes into a model and comes out: checks against the contract, padding masks, tensors of other libraries, casts.

DLPack: https://dmlc.github.io/dlpack/latest. Measured with onnxruntime 1.28 and 1.31: `OrtValue.from_dlpack` takes
contiguous, writable tensors, but no booleans; those are bound by their address. NumPy arrays are bound as they are.

NumPy has no bfloat16, the upper half of a float32, which is uint16 here. Rounding is to nearest, ties to even.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from .arguments import integer, several
from .errors import BundleError, FeedError, RuntimeMissing, UsageError
from .format.contract import IO, Dim, MaskSpec, TensorSpec

if TYPE_CHECKING:
    import numpy as np


def check_feeds(io: IO, feeds: Mapping[str, object]) -> dict[str, int]:
    """Checks arrays against the declared inputs and returns the size of each named dim.

    Raises:
        FeedError: a missing or unknown name, a wrong dtype, rank, size or value; names the tensor, got and expected.
    """
    sizes = check_shapes(io, feeds)
    check_arrays(io, feeds, sizes)
    return sizes


def check_shapes(io: IO, feeds: Mapping[str, object], dtypes: Mapping[str, str] | None = None) -> dict[str, int]:
    """As `check_feeds`, but without values. `dtypes` are those of inputs that differ from the contract's."""
    declared = {spec.name: spec for spec in io.inputs}
    for name in feeds:
        if name not in declared:
            raise FeedError(f"input {name!r}: the model has no such input; expected {', '.join(declared)}.")
    shapes = {}
    for spec in io.inputs:
        if spec.name not in feeds:
            raise FeedError(f"input {spec.name!r} is missing; expected {spec}.")
        shapes[spec] = _shape(spec, feeds[spec.name], (dtypes or {}).get(spec.name, spec.dtype))
    sizes = _named_sizes(io, shapes)
    for spec, shape in shapes.items():
        try:
            expected = spec.shape(sizes)
        except UsageError as err:
            raise FeedError(f"input {spec.name!r}: {err}") from err
        for axis, (got, size, dim) in enumerate(zip(shape, expected, spec.dims, strict=True)):
            if got != size:
                at = "" if isinstance(dim, int) else f" with {_told(sizes)}"
                raise FeedError(f"input {spec.name!r}: got size {got} on axis {axis}; expected {dim}{at}.")
    return sizes


def _named_sizes(io: IO, shapes: Mapping[TensorSpec, tuple[int, ...]]) -> dict[str, int]:
    """The size of each named dim. Raises FeedError where inputs differ in it, or the model does not take it."""
    known = {dim.name: dim for dim in io.dims}
    sizes: dict[str, int] = {}
    by: dict[str, str] = {}
    for spec, shape in shapes.items():
        for axis, (got, name) in enumerate(zip(shape, spec.dims, strict=True)):
            if not isinstance(name, str) or name not in known:
                continue
            problem = f"input {spec.name!r}: got {name}={got} on axis {axis}; expected"
            if sizes.setdefault(name, got) != got:
                raise FeedError(f"{problem} {name}={sizes[name]} as in input {by[name]!r}.")
            by.setdefault(name, spec.name)
            if not known[name].takes(got):
                raise FeedError(f"{problem} {known[name].span}.{_wider(known[name], got)}")
    return sizes


def _told(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{name}={size}" for name, size in sizes.items())


def check_arrays(io: IO, feeds: Mapping[str, object], sizes: Mapping[str, int] | None = None) -> None:
    """Checks the values of those feeds that are arrays (other tensors may be on a device). Raises as `check_feeds`."""
    import numpy as np

    counted = {mask.input: (sizes or {}).get(str(mask.keys)) for mask in io.masks if mask.carries == "lengths"}
    for spec in io.inputs:
        given, most = feeds[spec.name], counted.get(spec.name) if spec.high is None else spec.high - 1
        if most is None or not isinstance(given, np.ndarray) or not given.size:
            continue
        low, high = int(np.asarray(given).min()), int(np.asarray(given).max())
        # ONNX counts a negative index from the end, so a negative id would give a wrong answer instead of an error.
        if low < 0 or high > most:
            raise FeedError(f"input {spec.name!r}: got values {low} to {high}; expected 0 to {most}.")


def check_outputs(io: IO, sizes: Mapping[str, int], shapes: Mapping[str, Sequence[int]]) -> None:
    """Checks the shapes of outputs, which are often unknown before the model runs.

    Args:
        sizes: The named dims of this call, as the inputs have them. A dim that only outputs have takes its size from
            the first of them.

    Raises:
        BundleError: another rank, or another size than the contract gives; names the output, got and expected.
    """
    known, names = dict(sizes), {dim.name for dim in io.dims}
    for spec in io.outputs:
        shape = [int(size) for size in shapes[spec.name]]
        for got, dim in zip(shape, spec.dims, strict=False):
            if dim in names:
                known.setdefault(str(dim), got)
        if not spec.fits(shape, known):
            stated = _told({dim.name: known[dim.name] for dim in io.dims if dim.name in known}) or "any size"
            raise BundleError(f"output {spec.name!r}: got shape {shape}; expected {spec} with {stated}.")


def not_an_array(value: object, dtype: str) -> str:
    """Why a value is not accepted as an array of `dtype`, to follow the input's name in a message; "" = it is.

    Subclasses of numpy.ndarray such as numpy.memmap are accepted, except masked arrays: a runtime would compute with
    the elements that the mask hides. Objects that only behave like arrays are refused, as what they report of
    themselves may differ from what they contain.
    """
    import numpy as np

    masked = isinstance(value, np.ma.MaskedArray)
    if isinstance(value, np.ndarray) and not masked:
        return ""
    kind = type(value)
    name = kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"
    return f"got {name}; expected numpy.ndarray of {dtype}; {'.filled(value)' if masked else 'numpy.asarray'} makes one"


def _shape(spec: TensorSpec, given: Any, wanted: str) -> tuple[int, ...]:
    import numpy as np

    if not isinstance(given, Described):
        if problem := not_an_array(given, wanted):
            raise FeedError(f"input {spec.name!r}: {problem}.")
        given = np.asarray(given)  # as the runtime sees it, without any subclass
    shape, dtype = given.shape, str(given.dtype)
    if dtype != wanted:
        raise FeedError(f"input {spec.name!r}: got dtype {dtype}; expected {wanted}.")
    if len(shape) != len(spec.dims):
        raise FeedError(
            f"input {spec.name!r}: got rank {len(shape)}, shape {list(shape)}; expected rank {len(spec.dims)}, {spec}."
        )
    return tuple(int(size) for size in shape)


def _wider(dim: Dim, size: int) -> str:
    """The option that would have allowed a size beyond the range, as a sentence behind a message; "" if none."""
    if size % dim.step:
        return ""
    wide = Dim(dim.name, min(dim.min, size), dim.opt, max(dim.max, size), dim.step)
    return f" At export, --dim {wide} allows it, if the module does."


def padding_masks(
    io: IO, lengths: Sequence[int], size: int | None = None, *, left: bool = False
) -> dict[str, np.ndarray[Any, Any]]:
    """Every input that says what is padding, for items of `lengths`, padded to `size`.

    Each is a mask, the lengths themselves, or document ids: 1 for an item's positions and 0 for its padding.

    Args:
        lengths: How many positions of each item are real; at least one item.
        size: The padded length; None = the longest item.
        left: Padding stands before an item, and not behind it.

    Raises:
        FeedError: the model takes no padding mask, lengths or size are not integers, a length exceeds the size, or
            there is no rule for the mask: it has another rank or expresses more than padding.
    """
    import numpy as np

    masks = io.padding_masks()
    if not masks:
        raise FeedError("the model takes no padding mask; give every item its full length.")
    lengths = _integers("lengths", lengths)
    longest = max(lengths, default=0)
    size = longest if size is None else _integers("size", [size])[0]
    if not lengths or min(lengths) < 0 or longest > size or size < 1:
        raise FeedError(f"lengths: got {lengths} for size {size}; expected 0 to {size} for each item.")
    tensors = {spec.name: spec for spec in io.inputs}
    keep_BT = np.arange(size)[None, :] < np.asarray(lengths)[:, None]
    if left:
        keep_BT = keep_BT[:, ::-1]
    return {mask.input: _padding_mask(mask, tensors[mask.input], lengths, keep_BT) for mask in masks if mask.input}


def _integers(name: str, values: Sequence[int]) -> list[int]:
    """Integers from a list or an array. Raises FeedError for anything else."""
    return [integer(name, value, 0, what="integers of") for value in several(name, values, "integers")]


def _padding_mask(
    mask: MaskSpec, spec: TensorSpec, lengths: Sequence[int], keep_BT: np.ndarray[Any, Any]
) -> np.ndarray[Any, Any]:
    import numpy as np

    if mask.carries == "lengths":
        return np.asarray(lengths, dtype=spec.dtype)
    others = [kind for kind in mask.kinds if kind != "padding"]
    if mask.carries == "mask" and others:
        raise FeedError(
            f"input {spec.name!r} also carries {', '.join(others)}, not only padding; make it yourself for your items."
        )
    if mask.polarity == "keep":
        values = keep_BT.astype(spec.dtype)
    elif mask.polarity == "hide":
        values = (~keep_BT).astype(spec.dtype)
    else:
        values = np.where(keep_BT, 0.0, -np.inf).astype(spec.dtype)
    if len(spec.dims) == 2:
        return values
    if len(spec.dims) == 4 and spec.dims[1] == 1:
        batch, size = keep_BT.shape
        query = 1 if spec.dims[2] == 1 else size
        return np.broadcast_to(values[:, None, None, :], (batch, 1, query, size)).copy()
    raise FeedError(f"input {spec.name!r}: there is no rule for a padding mask of dims {list(spec.dims)}.")


_CPU, _CUDA = (1, 3), (2, 13)  # DLDeviceType: kDLCPU, kDLCUDAHost; kDLCUDA, kDLCUDAManaged


class Described(NamedTuple):
    """Shape and dtype, in NumPy's terms, of a tensor whose values are not read."""

    shape: tuple[int, ...]
    dtype: str


def described(name: str, tensor: Any) -> Any:
    """An array itself, or a tensor's shape and dtype. Raises FeedError for anything without `__dlpack__`."""
    import numpy as np

    if isinstance(tensor, np.ndarray):
        return tensor
    if not (hasattr(tensor, "__dlpack__") and hasattr(tensor, "__dlpack_device__")):
        raise FeedError(f"input {name!r}: got {type(tensor).__name__}; expected an array, or a tensor with __dlpack__.")
    shape, dtype = tensor.shape, getattr(tensor, "dtype", "")
    if callable(shape):  # onnxruntime's own OrtValue
        kind = tensor.data_type().removeprefix("tensor(").removesuffix(")")
        shape, dtype = shape(), {"float": "float32", "double": "float64"}.get(kind, kind)
    return Described(tuple(int(size) for size in shape), str(dtype).rpartition(".")[2])


def bound(module: Any, session: Any, feeds: Mapping[str, Any], place: str) -> Any:
    """A binding of `session` with every input bound; the caller keeps `feeds` alive until the session has run.

    Args:
        place: Where the session computes, `cpu` or `cuda`.

    Raises:
        FeedError: a tensor is on another device, is not contiguous or carries gradients.
        RuntimeMissing: this onnxruntime is older than 1.28 and has no public DLPack.
    """
    import numpy as np

    if not hasattr(module.OrtValue, "from_dlpack"):
        raise RuntimeMissing(
            f'got onnxruntime {module.__version__}; device tensors need 1.28; pip install "onnxruntime>=1.28".'
        )
    binding = session.io_binding()
    for name, tensor in feeds.items():
        if isinstance(tensor, np.ndarray):
            binding.bind_cpu_input(name, np.ascontiguousarray(tensor).reshape(tensor.shape))
            continue
        device = device_of(name, tensor, place)
        shape, dtype = described(name, tensor)
        if dtype == "bool":
            binding.bind_input(name, place, device, np.bool_, list(shape), _address(name, tensor, shape))
        elif isinstance(tensor, module.OrtValue):
            binding.bind_ortvalue_input(name, tensor)
        else:
            binding.bind_ortvalue_input(name, _taken(name, tensor, module.OrtValue.from_dlpack))
    return binding


def through_numpy(feeds: Mapping[str, Any]) -> dict[str, Any]:
    """The feeds as arrays, for runtimes that take no other library's memory. Raises FeedError as `bound`."""
    import numpy as np

    arrays = dict(feeds)
    for name, tensor in feeds.items():
        if not isinstance(tensor, np.ndarray):
            device_of(name, tensor, "cpu")
            arrays[name] = _taken(name, tensor, np.from_dlpack)
    return arrays


def device_of(name: str, tensor: Any, place: str) -> int:
    """The number of a tensor's device. Raises FeedError for a tensor that cannot be taken over where it is."""
    kind, number = tensor.__dlpack_device__()
    if int(kind) not in (_CUDA if place == "cuda" else _CPU):
        raise FeedError(f"input {name!r}: got a tensor on DLPack device {int(kind)}; the model computes on {place}.")
    if getattr(tensor, "requires_grad", False):
        raise FeedError(f"input {name!r}: the tensor carries gradients; call .detach().")
    contiguous = getattr(tensor, "is_contiguous", None)
    if contiguous is not None and not contiguous():
        raise FeedError(f"input {name!r}: the tensor is not contiguous; call .contiguous().")
    return int(number)


def _taken(name: str, tensor: Any, take: Callable[[Any], Any]) -> Any:
    try:
        return take(tensor)
    except Exception as err:  # the libraries raise exceptions of different types
        raise FeedError(f"input {name!r}: the tensor cannot be taken over: {err}") from err


def _address(name: str, tensor: Any, shape: tuple[int, ...]) -> int:
    """The address of a boolean tensor, which PyTorch and onnxruntime both give by `data_ptr`."""
    if not hasattr(tensor, "data_ptr"):
        raise FeedError(f"input {name!r}: got booleans of {type(tensor).__name__}, which has no data_ptr().")
    return int(tensor.data_ptr()) if math.prod(shape) else 0


BFLOAT16 = "bfloat16"


def storage(dtype: str) -> str:
    """The NumPy dtype that stores an array of `dtype`."""
    return "uint16" if dtype == BFLOAT16 else dtype


def to_file(array: np.ndarray[Any, Any], dtype: str) -> np.ndarray[Any, Any]:
    """An array of the contract's dtype in the file's dtype; the array itself if they are the same."""
    if dtype != BFLOAT16:
        return array.astype(dtype, copy=False)
    import numpy as np

    with np.errstate(over="ignore"):  # a float64 beyond float32 becomes Inf
        bits = np.ascontiguousarray(array, np.float32).reshape(array.shape).view(np.uint32)
    upper = bits >> np.uint32(16)
    rounded = (bits + np.uint32(0x7FFF) + (upper & np.uint32(1))) >> np.uint32(16)
    quiet = upper | np.uint32(0x40)  # a NaN must not be rounded to Inf
    return np.where(np.isnan(array), quiet, rounded).astype(np.uint16)


def from_file(array: np.ndarray[Any, Any], dtype: str, wanted: str) -> np.ndarray[Any, Any]:
    """An output of the file, of `dtype`, in the contract's dtype `wanted`."""
    if dtype == BFLOAT16:
        import numpy as np

        array = (array.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return array.astype(wanted, copy=False)
