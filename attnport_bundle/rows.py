"""The inputs of a model from rows, each with an array for every input, and what each row has of the outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .arguments import shown
from .contract import IO, Dim, TensorSpec
from .errors import FeedError

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]
    Masks = Callable[[Sequence[int], int], Mapping[str, Array]]


def require_dtype(spec: TensorSpec, got: np.dtype[Any]) -> None:
    """Raises FeedError if values of one dtype are no values of an input, whatever they are."""
    import numpy as np

    if not np.can_cast(got, spec.dtype, "same_kind"):
        raise FeedError(f"{spec.name}: got {got}; expected {spec.dtype}.")


def item(spec: TensorSpec, value: object) -> Array:
    """What a row has for an input, in the input's dtype.

    Raises:
        FeedError: it is no array of this rank and kind, or has a number that the dtype cannot hold.
    """
    import numpy as np

    array = _array(value)
    if array.ndim != len(spec.dims) - 1 or array.dtype == object:
        what = f"rank {array.ndim}" if array.dtype != object else shown(value)
        raise FeedError(f"{spec.name}: got {what}; expected an array of rank {len(spec.dims) - 1}, an item of {spec}.")
    if not array.size:
        return array.astype(spec.dtype)  # an empty list has no dtype of its own
    require_dtype(spec, array.dtype)
    cast = array.astype(spec.dtype)
    if array.dtype.kind in "iu" and not np.array_equal(cast, array):
        raise FeedError(f"{spec.name}: got values {array.min()} to {array.max()}; {spec.dtype} does not hold them.")
    return cast


def _array(value: object) -> Array:
    """An array of the lists in lists, or arrays in arrays, that Arrow gives."""
    import numpy as np

    array = np.asarray(value)
    if array.dtype == object and array.ndim == 1 and array.size:
        return np.asarray([_array(part) for part in array])
    return array


def place(io: IO) -> Dim | None:
    """The dim in which rows may differ, as a padding mask says how far each goes; None without one."""
    for mask in io.padding_masks():
        spec = next(spec for spec in io.inputs if spec.name == mask.input)
        name = mask.keys or spec.dims[-1]
        return next((dim for dim in io.dims if dim.name == name), None)
    return None


def lengths(rows: Mapping[TensorSpec, Sequence[Array]], along: Dim | None) -> list[int]:
    """The size of each row along a dim; empty where no input has the dim.

    Raises:
        FeedError: two inputs of a row differ in it, or it is empty or longer than the model takes.
    """
    found: list[int] = []
    if along is None:
        return found
    by = ""
    for spec, items in rows.items():
        for axis in (axis for axis, dim in enumerate(spec.dims[1:]) if dim == along.name):
            own = [each.shape[axis] for each in items]
            wrong = [size for size in own if not 0 < size <= along.max]
            if wrong:  # longer ones would be cut by `batches.mapped`
                raise FeedError(f"{spec.name}: got {along.name}={wrong[0]}; expected 1 to {along.max}.")
            if found and own != found:
                at = next(at for at, (one, other) in enumerate(zip(own, found, strict=True)) if one != other)
                raise FeedError(f"{spec.name}: got {along.name}={own[at]}; expected {found[at]}, as in {by}.")
            found, by = own, spec.name
    return found


def feeds(
    rows: Mapping[TensorSpec, Sequence[Array]], sizes: Sequence[int], along: Dim | None, masks: Masks
) -> dict[str, Array]:
    """An array for each input, of all rows, padded at the end along a dim.

    Args:
        sizes: As of `lengths`.
        masks: As `Model.masks`, for the masks that rows do not have, and for the padding of those that they have.

    Raises:
        FeedError: rows differ in another dim.
    """
    import numpy as np

    longest = max(sizes, default=0)
    size = max(longest, along.at_least(longest)) if along is not None else 0
    made = dict(masks(sizes, size)) if sizes else {}
    for spec, items in rows.items():
        shape = tuple(size if along is not None and dim == along.name else None for dim in spec.dims[1:])
        full = tuple(want or got for want, got in zip(shape, items[0].shape, strict=True))
        array = made.get(spec.name, np.zeros((len(items), *full), spec.dtype))
        for at, each in enumerate(items):
            if any(want is None and got != first for want, got, first in zip(shape, each.shape, full, strict=True)):
                raise FeedError(f"{spec.name}: rows of shapes {list(items[0].shape)} and {list(each.shape)}.")
            own: Any = (at, *(slice(extent) for extent in each.shape))
            array[own] = each
        made[spec.name] = array
    return made


def cut(spec: TensorSpec, output: Array, sizes: Sequence[int], along: Dim | None) -> Sequence[Array]:
    """What each row has of an output: along the dim, no more than the row has itself."""
    axes = [axis for axis, dim in enumerate(spec.dims[1:]) if along is not None and dim == along.name]
    if not axes or not sizes:
        return list(output)
    return [
        row[tuple(slice(size if axis in axes else None) for axis in range(row.ndim))]
        for row, size in zip(output, sizes, strict=True)
    ]
