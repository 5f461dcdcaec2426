"""A model's inputs from batches of rows, as Ray Data, Spark and Daft give them, and its outputs as further columns.

A batch is a dict of arrays, a DataFrame or an Arrow table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..arguments import shown
from ..errors import FeedError
from ..format.contract import IO, Dim, TensorSpec

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


def names(batch: Any) -> list[str]:
    """The names of a batch's columns.

    Raises:
        FeedError: it is none of the three.
    """
    if _is_table(batch):
        return list(batch.column_names)
    if isinstance(batch, Mapping) or _is_frame(batch):
        return [str(name) for name in batch]
    kind = type(batch)
    raise FeedError(
        f"batch: got {kind.__module__}.{kind.__name__}; expected a dict of arrays, pandas.DataFrame or pyarrow.Table."
    )


def column(batch: Any, name: str) -> Array:
    """A column with an item for each row; of lists, and of texts, the items are objects.

    Raises:
        FeedError: there is none of this name.
    """
    import numpy as np

    if name not in names(batch):
        raise FeedError(f"column {name!r}: the rows have {', '.join(names(batch)) or 'no columns'}.")
    values = _arrow_column(batch, name) if _is_table(batch) else batch[name]
    if hasattr(values, "to_numpy"):
        return np.asarray(values.to_numpy())
    if isinstance(values, np.ndarray):
        return values
    objects = np.empty(len(values), dtype=object)
    objects[:] = list(values)
    return objects


def joined(batch: Any, outputs: Mapping[TensorSpec, Sequence[Array | None]], texts: Mapping[str, list[str]]) -> Any:
    """The batch with more columns, as what it was.

    Args:
        outputs: An array for each row, by the output that it is of; None for a row without one. That is null in a
            DataFrame and a table. In a dict of arrays, which has no null, it is NaN, or 0 of an output of integers.
        texts: A text for each row, by the column's name.
    """
    if _is_table(batch):
        return _joined_table(batch, outputs, texts)
    if _is_frame(batch):
        # Lists, as an array of two dims is no column of a DataFrame.
        return batch.assign(**{spec.name: list(values) for spec, values in outputs.items()}, **texts)
    import numpy as np

    arrays = {spec.name: _stacked(spec, values) for spec, values in outputs.items()}
    return {**batch, **arrays, **{name: np.asarray(values, dtype=object) for name, values in texts.items()}}


def _is_table(batch: Any) -> bool:
    return hasattr(batch, "append_column")


def _is_frame(batch: Any) -> bool:
    return hasattr(batch, "assign")


def _arrow_column(batch: Any, name: str) -> Any:
    import pyarrow  # the batch is of it

    values = batch.column(name)
    # `to_numpy` of pyarrow 26 gives a null in a dictionary the value of another row.
    return values.cast(values.type.value_type) if pyarrow.types.is_dictionary(values.type) else values


def _joined_table(
    batch: Any, outputs: Mapping[TensorSpec, Sequence[Array | None]], texts: Mapping[str, list[str]]
) -> Any:
    import pyarrow  # the batch is of it

    for spec, values in outputs.items():
        kind = pyarrow.from_numpy_dtype(spec.dtype)
        for dim in reversed(spec.dims[1:]):
            kind = pyarrow.list_(kind, dim if isinstance(dim, int) else -1)
        rows = [None if value is None else _nested(value) for value in values]
        batch = batch.append_column(spec.name, pyarrow.array(rows, type=kind))
    for name, lines in texts.items():
        batch = batch.append_column(name, pyarrow.array(lines, type=pyarrow.string()))
    return batch


def _nested(value: Array) -> Any:
    """What Arrow takes: arrays of one dim, in lists."""
    return value if value.ndim == 1 else value.item() if value.ndim == 0 else [_nested(part) for part in value]


def _stacked(spec: TensorSpec, values: Sequence[Array | None]) -> Array:
    """One array for all rows; of an output whose sizes differ from row to row, an array of arrays."""
    import numpy as np

    shape = tuple(dim if isinstance(dim, int) else 0 for dim in spec.dims[1:])
    dtype = np.dtype(spec.dtype)
    lacking = np.full(shape, np.nan if dtype.kind == "f" else 0, dtype)
    rows = [lacking if value is None else value for value in values]
    if all(isinstance(dim, int) for dim in spec.dims[1:]):
        return np.stack(rows) if rows else np.empty((0, *shape), dtype)
    objects = np.empty(len(rows), dtype=object)
    for at, row in enumerate(rows):
        objects[at] = row
    return objects
