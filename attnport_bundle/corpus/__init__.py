"""Runs bundles over a corpus: callables for batches of rows, as `map_batches` of Ray Data takes them.

    ray.data.read_parquet("texts/").map_batches(Embed, fn_constructor_args=["app"])

They work in the same way where Ray is not installed: in Spark's `mapInPandas`, in a function of Daft, in a loop. A
batch is a dict of arrays, a DataFrame or an Arrow table. It is part of the installed reader alone; no bundle has it.
"""

from __future__ import annotations

import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import batches
from ..arguments import path, several, shown
from ..errors import BundleError, FeedError
from ..format.contract import TensorSpec
from ..goldens import GoldenCases
from ..serve.joining import Joining

if TYPE_CHECKING:
    import numpy as np

    from ..model import Model

    Array = np.ndarray[Any, Any]

__all__ = ["Embed", "Run"]
_LONGEST = 500
"""Characters of an error that are kept in a row."""


class _OnRows(ABC):
    """Takes a batch of rows and gives it back with more columns. Holds its arguments alone until the first call."""

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        error: str = "error",
        tokens: int = batches.TOKENS,
        threads: int | None = None,
        form: str | None = None,
        require_signature: str | os.PathLike[str] | None = None,
    ) -> None:
        self._folder = os.fspath(path("folder", folder))
        self._error = error
        self._tokens = tokens
        self._threads = threads
        self._how: dict[str, Any] = {"form": form, "require_signature": require_signature}
        self._opened: Model | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None}

    def __call__(self, batch: Any) -> Any:
        """Runs the rows.

        A row that the model cannot take costs itself alone: the batch is run again without it.

        Args:
            batch: A dict of NumPy arrays, a pandas.DataFrame or a pyarrow.Table.

        Returns:
            The same with a column for each output and one of errors, and the rows in their order. An output of a row
            with an error is null; in a dict of arrays it is NaN, or 0 of an output of integers.

        Raises:
            BundleError: as `load`; or the columns do not fit the model, or the model runs no row here.
        """
        outputs = self._outputs()
        taken = [name for name in (*(spec.name for spec in outputs), self._error) if name in _names(batch)]
        if taken:
            raise FeedError(f"column {taken[0]!r} is there already; give the new one another name, or drop it before.")
        rows, errors = self._rows(batch)
        good = [at for at, error in enumerate(errors) if not error]
        found: dict[TensorSpec, list[Array | None]] = {spec: [None] * len(errors) for spec in outputs}
        for part, arrays in self._parts(rows, good, errors):
            for spec in outputs:
                for at, row in zip(part, arrays[spec.name], strict=True):
                    found[spec][at] = row
        return _joined(batch, found, {self._error: errors})

    @property
    def _model(self) -> Model:
        """The model, which is opened when it is first asked for: its files are compared once in a process."""
        if self._opened is None:
            from ..model import load

            threads = _cpus_of_ray() if self._threads is None else self._threads
            self._opened = load(self._folder, threads=threads, **self._how)
        return self._opened

    def _parts(
        self, rows: Any, good: list[int], errors: list[str]
    ) -> Iterator[tuple[list[int], Mapping[str, Sequence[Array]]]]:
        """Runs rows together; those that fail together in halves, until a row that fails is alone, and has an error."""
        todo = [good] if good else []
        while todo:
            part = todo.pop()
            try:
                outputs = self._run(rows, part)
            except Exception as err:  # a runtime's own exceptions share no base
                if len(part) in (1, len(good)) and not self._runs_at_all():
                    raise
                if len(part) == 1:
                    errors[part[0]] = _said(err)
                else:
                    todo += [part[len(part) // 2 :], part[: len(part) // 2]]
                continue
            yield part, outputs

    def _runs_at_all(self) -> bool:
        """Whether the model still computes what it should, so that a failure is the fault of the rows."""
        try:
            return self._known_to_run()
        except Exception:  # whatever fails here, it is not the rows
            return False

    @abstractmethod
    def _outputs(self) -> tuple[TensorSpec, ...]:
        """What is added to the rows, under the names of their columns."""

    @abstractmethod
    def _rows(self, batch: Any) -> tuple[Any, list[str]]:
        """What `_run` takes, and for each row what is wrong with it, or ""."""

    @abstractmethod
    def _run(self, rows: Any, part: list[int]) -> Mapping[str, Sequence[Array]]:
        """The outputs of some rows, by the names of the columns."""

    @abstractmethod
    def _known_to_run(self) -> bool:
        """Runs something that the model takes. Returns whether its result is right."""


class Embed(_OnRows):
    """Adds the vector of a text to each row: see `Model.embed`.

    Args:
        folder: The bundle of an embedder, which every machine reads under this path.
        column: The column of texts. A row that has none, or something else, has an error.
        output: The column of vectors.
        prompt: As of `Model.embed`.
        error: The column that says what is wrong with a row, "" for the others.
        tokens: As of `embed`, for each process that runs this.
        threads: Compute threads; None = the CPUs that Ray gives the actor or task, and outside of Ray the runtime's own
            choice.
        form, require_signature: As of `load`.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        column: str = "text",
        output: str = "embedding",
        prompt: str | None = None,
        **options: Any,
    ) -> None:
        super().__init__(folder, **options)
        self._column, self._output, self._prompt = column, output, prompt

    def _outputs(self) -> tuple[TensorSpec, ...]:
        io = self._model.io
        vector = next(spec for spec in io.outputs if spec.name == batches.embedding(io))
        return (TensorSpec(self._output, vector.dtype, vector.dims),)

    def _rows(self, batch: Any) -> tuple[Any, list[str]]:
        texts = _column(batch, self._column).tolist()
        wrong = {at: text for at, text in enumerate(texts) if not isinstance(text, str)}
        said = {at: f"{self._column}: got {shown(text)}; expected text." for at, text in wrong.items()}
        return texts, [said.get(at, "") for at in range(len(texts))]

    def _run(self, rows: Any, part: list[int]) -> Mapping[str, Sequence[Array]]:
        return {self._output: self._vectors([rows[at] for at in part])}

    def _known_to_run(self) -> bool:
        return len(self._vectors(["a"])) == 1

    def _vectors(self, texts: list[str]) -> Any:
        return self._model.embed(texts, prompt=self._prompt, tokens=self._tokens)


class Run(_OnRows):
    """Adds the outputs of a model to each row: see `Model.map`.

    Each input is a column of its name, without the dim of items: token ids are a list of integers in each row. Lists
    may differ in length from row to row. A padding mask that is no column is made from the lengths. An output with a
    place for each token has those of its row alone.

    Args:
        folder: The bundle, which every machine reads under this path.
        outputs: The outputs to add; None = all.
        error, tokens, threads, form, require_signature: As of `Embed`.
    """

    def __init__(self, folder: str | os.PathLike[str], *, outputs: Sequence[str] | None = None, **options: Any) -> None:
        super().__init__(folder, **options)
        one = isinstance(outputs, str)
        names = [outputs] if one else None if outputs is None else several("outputs", outputs, "names of outputs")
        self._wanted = None if names is None else tuple(names)

    def _outputs(self) -> tuple[TensorSpec, ...]:
        found = {spec.name: spec for spec in self._model.io.outputs}
        unknown = [name for name in self._wanted or () if name not in found]
        if unknown:
            raise FeedError(f"output {unknown[0]!r}: the model has {', '.join(found)}.")
        return tuple(found.values()) if self._wanted is None else tuple(found[name] for name in self._wanted)

    def _rows(self, batch: Any) -> tuple[Any, list[str]]:
        io, there = self._model.io, _names(batch)
        apart = [spec for spec in io.inputs if spec.dims[:1] != io.inputs[0].dims[:1]]
        if apart:
            raise FeedError(f"input {apart[0]}: it has no item for each row; run one batch at a time, with Model.run.")
        made = {mask.input for mask in io.padding_masks()}
        rows = {spec: _column(batch, spec.name) for spec in io.inputs if spec.name in there or spec.name not in made}
        for spec, values in rows.items():
            if values.dtype != object:
                _require_dtype(spec, values.dtype)
        return rows, [""] * len(next(iter(rows.values())))

    def _run(self, rows: Any, part: list[int]) -> Mapping[str, Sequence[Array]]:
        model, joining = self._model, Joining(self._model.io)
        requests = []
        for at in part:
            feeds = {spec.name: _item(spec, values[at])[None] for spec, values in rows.items()}
            width = joining.width(feeds)
            requests.append({**(model.masks([width]) if width else {}), **feeds})
        parts = joining.split(model.map(joining.join(requests), tokens=self._tokens), requests)
        return {spec.name: [each[spec.name][0] for each in parts] for spec in self._outputs()}

    def _known_to_run(self) -> bool:
        """The first golden case: its inputs are in the bundle, and what comes out."""
        goldens = GoldenCases(Path(self._folder), self._model.manifest)
        return next(goldens.check(self._model.form, lambda **feeds: self._model.map(feeds, tokens=self._tokens))).passed


def _cpus_of_ray() -> int | None:
    """The CPUs of the actor or task that this is; None outside of Ray, which is not imported for it."""
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return None
    try:
        cpus = ray.get_runtime_context().get_assigned_resources().get("CPU")
    except AssertionError:  # Ray's answer where no actor or task runs, as in the program that started it
        return None
    return max(1, int(cpus)) if cpus else None


def _said(err: Exception) -> str:
    """An error as a row keeps it."""
    try:
        text = str(err) if isinstance(err, BundleError) else f"{type(err).__name__}: {err}"
    except Exception:  # of a class of somebody's own, which a value in the row raised
        text = type(err).__name__
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def _require_dtype(spec: TensorSpec, got: np.dtype[Any]) -> None:
    """Raises FeedError if values of one dtype are no values of an input, whatever they are."""
    import numpy as np

    if not np.can_cast(got, spec.dtype, "same_kind"):
        raise FeedError(f"{spec.name}: got {got}; expected {spec.dtype}.")


def _item(spec: TensorSpec, value: object) -> Array:
    """What a row has for an input, in its dtype. Raises FeedError: it is another rank or kind, or does not fit."""
    import numpy as np

    array = _array(value)
    if array.ndim != len(spec.dims) - 1 or array.dtype == object:
        what = f"rank {array.ndim}" if array.dtype != object else shown(value)
        raise FeedError(f"{spec.name}: got {what}; expected an array of rank {len(spec.dims) - 1}, an item of {spec}.")
    if not array.size:
        return array.astype(spec.dtype)  # an empty list has no dtype of its own
    _require_dtype(spec, array.dtype)
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


def _names(batch: Any) -> list[str]:
    """The names of a batch's columns. Raises FeedError for what is no batch."""
    if _is_table(batch):
        return list(batch.column_names)
    if isinstance(batch, Mapping) or _is_frame(batch):
        return [str(name) for name in batch]
    kind = type(batch)
    raise FeedError(
        f"batch: got {kind.__module__}.{kind.__name__}; expected a dict of arrays, pandas.DataFrame or pyarrow.Table."
    )


def _column(batch: Any, name: str) -> Array:
    """A column, whose items are objects where they are lists or texts. Raises FeedError if it is not there."""
    import numpy as np

    if name not in _names(batch):
        raise FeedError(f"column {name!r}: the rows have {', '.join(_names(batch)) or 'no columns'}.")
    values = _arrow_column(batch, name) if _is_table(batch) else batch[name]
    if hasattr(values, "to_numpy"):
        return np.asarray(values.to_numpy())
    if isinstance(values, np.ndarray):
        return values
    objects = np.empty(len(values), dtype=object)
    objects[:] = list(values)
    return objects


def _joined(batch: Any, outputs: Mapping[TensorSpec, Sequence[Array | None]], texts: Mapping[str, list[str]]) -> Any:
    """The batch with more columns, as what it was.

    An output of a row may be None: null in a DataFrame and a table, in a dict of arrays NaN, or 0 of integers.
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
