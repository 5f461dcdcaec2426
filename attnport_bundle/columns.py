"""Columns of a batch of rows, as Ray Data, Spark and Daft give one: a dict of arrays, a DataFrame, an Arrow table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .contract import TensorSpec
from .errors import FeedError

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]


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
