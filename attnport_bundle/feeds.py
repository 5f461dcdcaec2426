"""Checks arrays against the contract before they reach the runtime, and makes padding masks from lengths."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .arguments import integer, several
from .contract import IO, Dim, MaskSpec, TensorSpec
from .device_tensors import Described
from .errors import BundleError, FeedError, UsageError

if TYPE_CHECKING:
    import numpy as np


def check_feeds(io: IO, feeds: Mapping[str, object]) -> dict[str, int]:
    """Checks arrays against the declared inputs and returns the size of each named dim.

    Raises:
        FeedError: a missing or unknown name, a wrong dtype, rank, size or value; names the tensor, got and expected.
    """
    sizes = check_shapes(io, feeds)
    for spec in io.inputs:
        _check_values(spec, _plain(spec, feeds[spec.name], spec.dtype))
    return sizes


def check_shapes(io: IO, feeds: Mapping[str, object], dtypes: Mapping[str, str] | None = None) -> dict[str, int]:
    """As `check_feeds`, but without values. `dtypes` are those of inputs that differ from the contract's."""
    declared = {spec.name: spec for spec in io.inputs}
    for name in feeds:
        if name not in declared:
            raise FeedError(f"input {name!r}: the model has no such input; expected {', '.join(declared)}.")
    sizes: dict[str, tuple[int, str]] = {}
    computed: list[tuple[TensorSpec, tuple[int, ...]]] = []
    known = {dim.name for dim in io.dims}
    for spec in io.inputs:
        if spec.name not in feeds:
            raise FeedError(f"input {spec.name!r} is missing; expected {spec}.")
        shape = _shape(spec, feeds[spec.name], (dtypes or {}).get(spec.name, spec.dtype))
        for axis, (got, dim) in enumerate(zip(shape, spec.dims, strict=True)):
            if isinstance(dim, int) or dim in known:
                _check_size(io, spec, axis, got, dim, sizes)
        if any(isinstance(dim, str) and dim not in known for dim in spec.dims):
            computed.append((spec, shape))
    found = {name: size for name, (size, _) in sizes.items()}
    for spec, shape in computed:
        _check_computed(spec, shape, found)
    return found


def check_arrays(io: IO, feeds: Mapping[str, object]) -> None:
    """Checks the values of those feeds that are arrays (other tensors may be on a device). Raises as `check_feeds`."""
    import numpy as np

    for spec in io.inputs:
        if isinstance(feeds[spec.name], np.ndarray):
            _check_values(spec, np.asarray(feeds[spec.name]))


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
        try:
            fits = shape == list(spec.shape(known))
        except UsageError:  # an expression has no value at these sizes
            fits = False
        if not fits:
            stated = ", ".join(f"{dim.name}={known[dim.name]}" for dim in io.dims if dim.name in known)
            raise BundleError(f"output {spec.name!r}: got shape {shape}; expected {spec} with {stated or 'any size'}.")


def _check_values(spec: TensorSpec, array: Any) -> None:
    # ONNX counts a negative index from the end, so a negative id would give a wrong answer instead of an error.
    if spec.high is not None and array.size and not (int(array.min()) >= 0 and int(array.max()) < spec.high):
        raise FeedError(
            f"input {spec.name!r}: got values {int(array.min())} to {int(array.max())}; expected 0 to {spec.high - 1}."
        )


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


def _plain(spec: TensorSpec, value: Any, wanted: str) -> np.ndarray[Any, Any]:
    """The array as the runtime sees it, without any subclass. Raises FeedError if it is not an array."""
    import numpy as np

    problem = not_an_array(value, wanted)
    if problem:
        raise FeedError(f"input {spec.name!r}: {problem}.")
    return np.asarray(value)


def _shape(spec: TensorSpec, given: object, wanted: str) -> tuple[int, ...]:
    array = given if isinstance(given, Described) else _plain(spec, given, wanted)
    shape, dtype = array.shape, str(array.dtype)
    if dtype != wanted:
        raise FeedError(f"input {spec.name!r}: got dtype {dtype}; expected {wanted}.")
    if len(shape) != len(spec.dims):
        raise FeedError(
            f"input {spec.name!r}: got rank {len(shape)}, shape {list(shape)}; expected rank {len(spec.dims)}, {spec}."
        )
    return tuple(int(size) for size in shape)


def _check_size(
    io: IO, spec: TensorSpec, axis: int, got: int, dim: str | int, sizes: dict[str, tuple[int, str]]
) -> None:
    if isinstance(dim, int):
        if got != dim:
            raise FeedError(f"input {spec.name!r}: got size {got} on axis {axis}; expected {dim}.")
        return
    limit = next(known for known in io.dims if known.name == dim)
    size, by = sizes.setdefault(dim, (got, spec.name))
    if size != got:
        raise FeedError(
            f"input {spec.name!r}: got {dim}={got} on axis {axis}; expected {dim}={size} as in input {by!r}."
        )
    if not limit.takes(got):
        raise FeedError(
            f"input {spec.name!r}: got {dim}={got} on axis {axis}; expected {limit.span}.{_wider(limit, got)}"
        )


def _wider(dim: Dim, size: int) -> str:
    """The option that would have allowed a size beyond the range, as a sentence behind a message; "" if none."""
    if size % dim.step:
        return ""
    wide = Dim(dim.name, min(dim.min, size), dim.opt, max(dim.max, size), dim.step)
    return f" At export, --dim {wide} allows it, if the module does."


def _check_computed(spec: TensorSpec, shape: tuple[int, ...], sizes: Mapping[str, int]) -> None:
    """Checks the sizes that are expressions, when all named dims are known."""
    at = ", ".join(f"{name}={size}" for name, size in sizes.items())
    try:
        expected = spec.shape(sizes)
    except UsageError as err:
        raise FeedError(f"input {spec.name!r}: {err}") from err
    for axis, (got, size) in enumerate(zip(shape, expected, strict=True)):
        if got != size:
            raise FeedError(
                f"input {spec.name!r}: got size {got} on axis {axis}; expected {spec.dims[axis]} with {at}."
            )


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
