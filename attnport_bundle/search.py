"""What sentence-transformers' methods give, of a bundle: vectors of texts of every kind, and how alike they are.

A text has one vector; or a sparse one, whose numbers that are not zero are kept; or a vector for each of its tokens,
of which those that count are kept. `Model` has the methods.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from . import batches
from .arguments import integer, require, several, shown
from .errors import FeedError, IntegrityError, of_this_copy
from .format.contract import IO
from .format.manifest import MAX_BYTES, Manifest, Prompts
from .format.search import SEARCH, Search
from .format.strict_json import decode, parse

if TYPE_CHECKING:
    import numpy as np

    from .text import Tokenizer

    Array = np.ndarray[Any, Any]

WINDOW = 64
"""Texts that are run together where each has many numbers, most of which are then left out."""
ROLES = ("query", "document")
"""What a text is for, which is the name of its prompt, too."""
_NO_TOKEN = -1e9
"""The score of a document of which no token counts, as in sentence-transformers."""
_TORCH = "this reader gives arrays of NumPy, of which torch.from_numpy makes tensors"
_WITHOUT_EFFECT = ("batch_size", "show_progress_bar", "chunk_size", "save_to_cpu")
_AS_IT_IS: dict[str, tuple[tuple[object, ...], str]] = {
    "convert_to_numpy": ((True,), _TORCH),
    "convert_to_tensor": ((False, None), _TORCH),
    "convert_to_sparse_tensor": ((True,), "encode_sparse(...).dense() gives all numbers"),
    "output_value": (("sentence_embedding",), "run gives every output"),
    "token_pooling": ((None,), "vectors of tokens are whole"),
    "precision": (("float32",), "the vectors are float32; make other numbers of them yourself"),
    "device": ((None,), "the form that was opened decides: load(app, form=...)"),
    "pool": ((None,), "open the bundle in every process"),
}
"""Arguments of sentence-transformers that may have these values alone, and why."""


class Sparse(NamedTuple):
    """Sparse vectors as compressed rows: those of scipy are `scipy.sparse.csr_array((data, indices, indptr), shape)`.

    Attributes:
        data: The numbers that are not zero, row by row.
        indices: The place of each.
        indptr: Where the numbers of each row begin, and where those of the last one end.
        shape: How many rows there are, and how many places a row has.
    """

    data: Array
    indices: Array
    indptr: Array
    shape: tuple[int, int]

    def dense(self) -> Array:
        """All numbers, `shape`."""
        import numpy as np

        whole = np.zeros(self.shape, self.data.dtype)
        whole[self.row_of_each(), self.indices] = self.data
        return whole

    def row_of_each(self) -> Array:
        """The row of each number."""
        import numpy as np

        return np.repeat(np.arange(self.shape[0]), np.diff(self.indptr))

    def rows(self) -> list[dict[int, float]]:
        """A dict for each row: the numbers that are not zero, by their places, the largest first."""
        found = []
        for begin, end in itertools.pairwise(self.indptr.tolist()):
            order = begin + (-self.data[begin:end]).argsort(kind="stable")
            found.append(dict(zip(self.indices[order].tolist(), self.data[order].tolist(), strict=True)))
        return found


def read_search(folder: Path | None, manifest: Manifest) -> Search:
    """How a bundle's vectors are chosen and compared; the default of a bundle that does not say it.

    Raises:
        IntegrityError: the file is malformed, or has a value that is not allowed.
    """
    if folder is None or SEARCH not in manifest.files:
        return Search()
    try:
        with (folder / SEARCH).open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as err:
        raise IntegrityError(f"{SEARCH} cannot be read: {err.strerror}.") from err
    if len(data) > MAX_BYTES:
        raise IntegrityError(f"{SEARCH} has more than {MAX_BYTES} bytes.")
    return decode(Search, parse(data, SEARCH), SEARCH)


def tokenizer_of(path: Path, io: IO, limit: int | None, search: Search, role: str) -> Tokenizer:
    """What makes the inputs of texts that are `query`, `document` or neither, "".

    Args:
        limit: The most tokens of a text where the role says nothing; None = what the model takes.
    """
    with of_this_copy("text"):
        from .text import Tokenizer

    own = {"query": search.query_limit, "document": search.document_limit}.get(role)
    expansion = search.expansion if role == "query" else None
    if expansion is not None:
        own = expansion.length if expansion.fixed else max(own, expansion.length) if own else None
    return Tokenizer(path, io, limit=own or limit, expansion=expansion)


def prompt_of(prompts: Prompts, role: str, name: str | None, text: str | None) -> str:
    """What belongs before texts: `text` itself, the prompt called `name`, or that of the role; of none, the default.

    Raises:
        FeedError: there is no such prompt, or it is no text.
    """
    if text is not None:
        require(isinstance(text, str), "prompt", text, "the text to put before each text")
        return text
    return prompts.chosen(role or None if name is None else name)


def check_options(options: Mapping[str, object], where: str) -> None:
    """Raises FeedError for an argument of sentence-transformers that is unknown, or whose value would be ignored."""
    for name, value in options.items():
        if name in _WITHOUT_EFFECT:
            continue
        if name not in _AS_IT_IS:
            raise FeedError(f"{where}: got an unknown argument {name!r}.")
        known, why = _AS_IT_IS[name]
        if not any(value is one or (isinstance(one, str) and value == one) for one in known):
            raise FeedError(f"{where}: got {name}={shown(value)}; expected {shown(known[0])}: {why}.")


@dataclass
class Texts:
    """Texts that are encoded, one or several, and what makes vectors of them.

    Attributes:
        given: One text, or several.
        role: `query`, `document` or "".
        before: What is put before each text.
        run: As `Model.run`.
        io: The contract of the model.
        tokenizer: Gives the tokenizer of a role.
        tokens: The most places of a batch.

    Raises:
        FeedError: these are no texts, or there is no such role.
    """

    given: str | Iterable[str]
    role: str
    before: str
    run: Callable[..., dict[str, Array]]
    io: IO
    tokenizer: Callable[[str], Tokenizer]
    tokens: int

    def __post_init__(self) -> None:
        self.alone = isinstance(self.given, str)
        self.texts = iter([self.given]) if self.alone else several("texts", self.given, "a text, or several")
        require(self.role in ("", *ROLES), "task", self.role, "'query', 'document' or None")

    def encode(self, texts: Sequence[Any], first: int) -> dict[str, Array]:
        """The inputs of texts, the first of which has this number."""
        for number, text in enumerate(texts, first):
            what = "a text; pairs are for `predict` of a cross-encoder"
            require(isinstance(text, str), f"texts[{number}]", text, what)
        return self.tokenizer(self.role).encode(texts, first, prompt=self.before)

    def vectors(self) -> Array:
        """A vector for each text, `[texts, width]`."""
        output = batches.embedding(self.io)
        return batches.embedded(self.run, self.io, output, self.encode, self.texts, self.tokens)

    def _windows(self, output: str) -> Iterator[tuple[dict[str, Array], Array]]:
        """The inputs and an output of `WINDOW` texts at a time."""
        first = 0
        while window := list(itertools.islice(self.texts, WINDOW)):
            feeds = self.encode(window, first)
            yield feeds, batches.mapped(self.run, self.io, feeds, self.tokens, output)[output]
            first += len(window)
        if not first:
            raise FeedError("texts: got none; expected one or more.")

    def sparse(self, active: int | None) -> Sparse:
        """A sparse vector for each text, of so many numbers at most."""
        import numpy as np

        parts = []
        for _, rows in self._windows(batches.SPARSE):
            if active is not None and active < rows.shape[1]:
                least = np.partition(rows, -active, axis=1)[:, -active, None]
                above, at_least = rows > least, rows == least
                # Of equal numbers, the first ones, as far as there is room.
                rows = np.where(
                    above | (at_least & (above.sum(1, keepdims=True) + at_least.cumsum(1) <= active)), rows, 0
                )
            row, place = rows.nonzero()
            parts.append((rows[row, place], place, np.bincount(row, minlength=len(rows)), rows.shape[1]))
        data, places, counts, widths = zip(*parts, strict=True)
        ends = np.concatenate([[0], np.concatenate(counts).cumsum()])
        return Sparse(np.concatenate(data), np.concatenate(places), ends, (len(ends) - 1, widths[0]))

    def of_tokens(self, search: Search) -> list[Array]:
        """For each text the vectors of the tokens that count, `[tokens, width]`."""
        import numpy as np

        from .text import IDS

        found: list[Array] = []
        masks, _ = batches.padding(self.io)
        for feeds, rows in self._windows(batches.OF_TOKENS):
            counts = batches.real_places(masks, feeds)
            if (self.role or "document") in search.skipped_of:
                counts &= ~np.isin(feeds[IDS], search.skipped)
            found += [row[count] for row, count in zip(rows, counts, strict=True)]
        return found


def shortened(vectors: Any, width: int | None, *, normalise: bool) -> Any:
    """The first places of vectors, and those of length 1 if they are wanted so."""
    import numpy as np

    if width is not None:
        vectors = vectors[..., : integer("truncate_dim", width, 1)]
    return vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12) if normalise else vectors


def similarity(name: str, first: Any, second: Any) -> Array:
    """How alike each text of one side is to each of the other, `[first, second]`: the larger, the more alike.

    Args:
        name: As `Search.similarity`.

    Raises:
        FeedError: the vectors are not those of one model.
    """
    import numpy as np

    if name in ("maxsim", "meanmaxsim"):
        return _maxsim(*(_several(one) for one in (first, second)), mean=name == "meanmaxsim")
    if isinstance(first, Sparse) or isinstance(second, Sparse):
        return _sparse_similarity(name, _as_sparse(first), _as_sparse(second))
    a, b = (np.atleast_2d(np.asarray(one, np.float32)) for one in (first, second))
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[1]:
        raise FeedError(f"similarity: got vectors {a.shape} and {b.shape}; expected [texts, width], of one width.")
    if name in ("dot", "cosine"):
        a, b = (shortened(one, None, normalise=name == "cosine") for one in (a, b))
        return np.asarray(a @ b.T)
    power = 1 if name == "manhattan" else 2
    return -np.stack([np.linalg.norm(row - b, ord=power, axis=1) for row in a])


def _several(vectors: Any) -> list[Array]:
    """Vectors of tokens, a text each."""
    import numpy as np

    found = [np.asarray(one, np.float32) for one in ([vectors] if getattr(vectors, "ndim", 3) == 2 else vectors)]
    if any(one.ndim != 2 for one in found):
        raise FeedError("similarity: expected vectors of tokens, [tokens, width], for each text.")
    return found


def _maxsim(queries: Sequence[Array], documents: Sequence[Array], *, mean: bool) -> Array:
    """For each token of a query the likest token of a document, summed up (ColBERT: Khattab and Zaharia, 2020)."""
    import numpy as np

    scores = np.full((len(queries), len(documents)), _NO_TOKEN, np.float32)
    some = [at for at, document in enumerate(documents) if len(document)]
    begins = np.cumsum([0, *(len(documents[at]) for at in some[:-1])])
    whole = np.concatenate([documents[at] for at in some]) if some else None
    for row, query in zip(scores, queries, strict=True):
        if whole is not None:
            row[some] = np.maximum.reduceat(query @ whole.T, begins, axis=1).sum(0)
        if mean:
            row /= max(len(query), 1)
    return scores


def _as_sparse(vectors: Any) -> Sparse:
    if not isinstance(vectors, Sparse):
        raise FeedError(f"similarity: got {type(vectors).__name__}; expected two results of encode_sparse.")
    return vectors


def _sparse_similarity(name: str, a: Sparse, b: Sparse) -> Array:
    import numpy as np

    if a.shape[1] != b.shape[1]:
        raise FeedError(f"similarity: got rows of {a.shape[1]} and {b.shape[1]} places; expected those of one model.")
    if name == "manhattan":
        return similarity(name, a.dense(), b.dense())
    products, row = np.zeros((a.shape[0], b.shape[0])), b.row_of_each()
    for at in range(a.shape[0]):
        own, whole = slice(a.indptr[at], a.indptr[at + 1]), np.zeros(a.shape[1])
        whole[a.indices[own]] = a.data[own]
        products[at] = np.bincount(row, whole[b.indices] * b.data, minlength=b.shape[0])
    if name != "dot":
        squares = [
            np.bincount(one.row_of_each(), one.data.astype(np.float64) ** 2, minlength=one.shape[0]) for one in (a, b)
        ]
        if name == "euclidean":
            products = -np.sqrt(np.maximum(squares[0][:, None] + squares[1] - 2 * products, 0))
        else:
            products /= np.maximum(np.sqrt(squares[0][:, None] * squares[1]), 1e-12)
    return products.astype(np.float32)


def softmax(scores: Array) -> Array:
    """The shares of classes, `[texts, classes]`."""
    import numpy as np

    powers = np.exp(scores - scores.max(-1, keepdims=True))
    return np.asarray(powers / powers.sum(-1, keepdims=True))


def activation(chosen: object, io: IO) -> Callable[[Array], Array]:
    """An activation of a cross-encoder: `Sigmoid` or `Identity`, its name or torch's module of it.

    Raises:
        FeedError: it is another one, or the model does not give the logits.
    """
    import numpy as np

    name = chosen if isinstance(chosen, str) else type(chosen).__name__
    require(name.lower() in ("sigmoid", "identity"), "activation_fn", chosen, "Sigmoid, Identity or None")
    require(any(spec.name == "logits" for spec in io.outputs), "activation_fn", chosen, "None: there are no logits")
    return (lambda logits: 1 / (1 + np.exp(-logits))) if name.lower() == "sigmoid" else lambda logits: logits
