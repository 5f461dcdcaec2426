"""Metrics by which a model without a bound is judged: agreement with float32, perplexity, or a function of the user's.

A metric is given a session and returns a score, the larger the better; `artifacts.drop` compares two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from attnport.artifacts import IOContract, Manifest, Score, Session
from attnport.cases.choosing import text_cases
from attnport.cases.inputs import Array, Case, case
from attnport.decoders import roles_in
from attnport.errors import AttnportError, SpecError, UsageError, first_line
from attnport.sources.load import function_of
from attnport.sources.package import Wanted
from attnport_bundle.batches import OF_TOKENS, embedding, mapped, scoring
from attnport_bundle.decoding.caches import Decoding, steps_of
from attnport_bundle.text import Text

FEWEST = 20
"""Items that must be scored, at least: with fewer, one of them decides."""
TEXTS, TOKENS = 64, 256
"""The most texts that are scored, and the most tokens of each."""
_AT_ONCE = 16
"""Texts that are decoded at a time, as far as the model takes so many."""
_MOST_VECTORS = 2048
"""Of which each is compared with every other one."""
_MOST_NUMBERS = 1 << 25
"""That are kept of all items to measure a difference by; of more, some that are evenly spread over each item."""
_BEST = 10
"""Documents of a query whose order counts."""
FEWEST_TOKENS = 200
"""Tokens that must be scored, at least."""


class Metric(Protocol):
    """Scores a model.

    Attributes:
        name: What it measures, for reports.
    """

    name: str

    def __call__(self, session: Session) -> Score:
        """The score of a session; raises SpecError where a user's function fails."""
        ...


class Agreement:
    """How much of a model's answers stays the same as those of the session that is scored first.

    One logit for each item, as of a reranker: the correlation, or the nDCG at 10 of the documents of each query,
    whichever is less. More logits: the share of positions with the same largest. Otherwise, vectors of one item each,
    or of each of its tokens: the mean cosine, or how much less alike, by float32, the neighbours are that it finds for
    each item among the others, whichever is less. The share of neighbours that stay the same is told and not judged: of
    100 items even bf16 changes one, for another that is as near. Otherwise: 1 - the norm of the difference as a share
    of the norm. The least over outputs counts.
    """

    def __init__(
        self, io: IOContract, items: Sequence[Case], *, queries: Sequence[str] = (), near: bool = False
    ) -> None:
        """Takes the items to run.

        Args:
            io: The contract of the model.
            items: Batches of one item each.
            queries: Where items are pairs of a query and a document, the query of each.
            near: Measure the norm of the difference in any case, which tells small changes apart.

        Raises:
            UsageError: there are fewer than `FEWEST`, or the model has no floating-point output.
        """
        if len(items) < FEWEST:
            raise UsageError(
                f"got {len(items)} items to judge integers by; expected at least {FEWEST}.",
                hint=f"Half of the given items are for ranges; give {2 * FEWEST} or more, as they occur in use.",
            )
        self._io, self._items = io, items
        at = {query: [place for place, each in enumerate(queries) if each == query] for query in dict.fromkeys(queries)}
        self._lists = [places for places in at.values() if len(places) > 1]
        self._expected: dict[str, list[Array]] | None = None
        logits = [spec.name for spec in io.outputs if spec.name == "logits" or spec.name.endswith("_logits")]
        measures: dict[Callable[..., Score], list[str]] = {
            _correlation: [spec.name for spec in io.outputs if spec.name in logits and spec.dims[1:] == (1,)],
            _same_largest: logits,
            vectors_agree: [spec.name for spec in io.outputs if len(spec.dims) == 2 and "float" in spec.dtype],
            _tokens_agree: [spec.name for spec in io.outputs if spec.name == OF_TOKENS],
            _nearness: [spec.name for spec in io.outputs if "float" in spec.dtype],
        }
        chosen = [measure for measure, names in measures.items() if names and (not near or measure is _nearness)]
        self._measure = next(iter(chosen), _nearness)
        self._outputs = measures[self._measure]
        if not self._outputs:
            raise UsageError("the model has no floating-point output.", hint="Give --metric FILE.py:FUNCTION.")
        self._ranks = bool(self._lists) and self._measure is _correlation
        self.name = "order of each query's documents" if self._ranks else _NAMES[self._measure]

    def __call__(self, session: Session) -> Score:
        """The agreement; 1 for the session that is scored first."""
        found: dict[str, list[Array]] = {name: [] for name in self._outputs}
        finite = True
        for item in self._items:
            outputs = session.run(item.feeds)
            for name in self._outputs:
                rows = outputs[name][item.valid[name]]
                finite = finite and bool(np.isfinite(rows).all())
                found[name].append(self._kept(rows))
        if self._expected is None:
            self._expected = found
        if not finite:
            return Score(float("-inf"), {"finite": 0.0})
        measure = partial(_ranking, lists=self._lists) if self._ranks else self._measure
        scores = [measure(found[name], self._expected[name]) for name in self._outputs]
        return min(scores, key=lambda score: score.value)

    def _kept(self, rows: Array) -> Array:
        """What the measure needs of an item's output, which may have a number for each word of a vocabulary."""
        if self._measure is _same_largest:
            return np.atleast_1d(rows.argmax(-1))
        if self._measure is _nearness and rows.size > (most := _MOST_NUMBERS // len(self._items)):
            rows = rows.reshape(-1)[np.linspace(0, rows.size - 1, most).astype(np.int64)]
        return rows.astype(np.float64)


def _same_largest(found: Sequence[Array], expected: Sequence[Array]) -> Score:
    """By the place of the largest in each row."""
    same = np.concatenate([got == wanted for got, wanted in zip(found, expected, strict=True)])
    return Score(float(same.mean()), counts={"largest logits": (int(same.sum()), same.size)})


def _correlation(found: Sequence[Array], expected: Sequence[Array]) -> Score:
    """Of a number for each item; what does not differ from item to item is compared as it is."""
    got, wanted = (np.concatenate([row.reshape(-1) for row in rows]) for rows in (found, expected))
    whole, got, wanted = np.linalg.norm(wanted), got - got.mean(), wanted - wanted.mean()
    if np.linalg.norm(wanted) <= 1e-9 * whole:
        return _nearness(found, expected)
    return Score(float(got @ wanted) / max(float(np.linalg.norm(got) * np.linalg.norm(wanted)), 1e-30))


def _ranking(found: Sequence[Array], expected: Sequence[Array], lists: Sequence[Sequence[int]]) -> Score:
    """`_correlation`, or the mean nDCG at 10 of each query's documents if that is less.

    The gains are those of the expected best, 10 down to 1.

    Args:
        found: A number for each item.
        expected: The same in float32.
        lists: The places of each query's documents among the items.
    """
    got, wanted = (np.concatenate([row.reshape(-1) for row in rows]) for rows in (found, expected))
    shares, same = [], 0
    for places in lists:
        best, order = ((-scores[places]).argsort(kind="stable")[:_BEST] for scores in (wanted, got))
        gains, discounts = np.zeros(len(places)), 1 / np.log2(np.arange(2, len(best) + 2))
        gains[best] = np.arange(len(best), 0, -1)
        shares.append(float((gains[order] * discounts).sum() / (gains[best] * discounts).sum()))
        same += int(best[0] == order[0])
    parts = {"correlation": _correlation(found, expected).value, "nDCG at 10": float(np.mean(shares))}
    return Score(min(parts.values()), parts, {"first documents": (same, len(lists))})


def _tokens_agree(found: Sequence[Array], expected: Sequence[Array]) -> Score:
    """`vectors_agree` of the vectors of tokens; of very many, some that are evenly spread."""
    got, wanted = (np.concatenate([row.reshape(-1, row.shape[-1]) for row in rows]) for rows in (found, expected))
    some = np.linspace(0, len(wanted) - 1, min(len(wanted), _MOST_VECTORS)).astype(np.int64)
    return vectors_agree(list(got[some]), list(wanted[some]))


def vectors_agree(found: Sequence[Array], expected: Sequence[Array]) -> Score:
    """Of the vectors of some items, an array each: the mean cosine, or the likeness of neighbours if that is less."""
    got, wanted = (_directions(rows) for rows in (found, expected))
    cosines = (got * wanted).sum(-1)
    cosine = float(cosines.mean())
    nearest, expected_nearest = _nearest(got), _nearest(wanted)
    same = float((nearest == expected_nearest).mean())
    at = np.arange(len(wanted))
    similar = wanted @ wanted.T  # both neighbours by the expected vectors
    lost = (similar[at, expected_nearest] - similar[at, nearest]).sum() / max(
        float(np.abs(similar[at, expected_nearest]).sum()), 1e-30
    )
    parts = {
        "mean cosine": cosine,
        "least cosine": float(cosines.min()),
        "likeness of neighbours": 1 - float(lost),
        "neighbours unchanged": same,
    }
    counts = {"nearest neighbours": (int((nearest == expected_nearest).sum()), len(nearest))}
    return Score(min(cosine, 1 - float(lost)), parts, counts)


def _directions(rows: Sequence[Array]) -> Array:
    vectors = np.stack([row.reshape(-1) for row in rows])
    directions: Array = vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-30)
    return directions


def _nearest(directions: Array) -> Array:
    similar = directions @ directions.T
    np.fill_diagonal(similar, -np.inf)
    nearest: Array = similar.argmax(-1)
    return nearest


def _nearness(found: Sequence[Array], expected: Sequence[Array]) -> Score:
    missed = sum(float(((got - wanted) ** 2).sum()) for got, wanted in zip(found, expected, strict=True))
    whole = sum(float((wanted**2).sum()) for wanted in expected)
    return Score(1 - (missed / max(whole, 1e-30)) ** 0.5)


_NAMES: dict[Callable[..., Score], str] = {
    _correlation: "correlation of scores",
    _tokens_agree: "agreement of the vectors of tokens and their neighbours",
    _same_largest: "agreement of the largest logit",
    vectors_agree: "agreement of vectors and their neighbours",
    _nearness: "agreement of outputs",
}


class Perplexity:
    """exp of the mean negative log likelihood of each token behind those before it, run a token at a time with a cache.

    Its negative is the score, so that larger is better.
    """

    name = "perplexity"

    def __init__(self, io: IOContract, items: Sequence[Case]) -> None:
        """Takes the texts.

        Args:
            items: Batches of one text each; of a long one the first `TOKENS` tokens count.

        Raises:
            UsageError: they have too few tokens.
        """
        roles = roles_in(io)
        most = min(TOKENS, roles.longest_past - roles.start + 1)
        self._io, self._roles = io, roles
        self._texts = sorted((self._real(item)[:most] for item in items[:TEXTS]), key=len)
        scored = sum(len(text) - 1 for text in self._texts)
        if scored < FEWEST_TOKENS:
            raise UsageError(
                f"got {scored} tokens behind others to judge by; expected at least {FEWEST_TOKENS}.",
                hint="Every second text is scored; give more of them, or longer ones.",
            )

    def __call__(self, session: Session) -> Score:
        """The score of a session."""
        missed = np.concatenate([self._missed(session, texts) for texts in self._batches()])
        perplexity = float(np.exp(missed.mean()))
        return Score(-perplexity, {self.name: perplexity})

    def _real(self, item: Case) -> Array:
        """The ids of a text without its padding."""
        ids_T: Array = item.feeds[self._roles.ids.name][0]
        mask = self._roles.mask
        return ids_T[item.feeds[mask.name][0].astype(bool)] if mask and self._roles.mask_covers_new else ids_T

    def _batches(self) -> Iterator[list[Array]]:
        """Texts of like lengths, in batches that the model takes."""
        batch = self._io.dim(str(self._roles.ids.dims[0]))
        together = max(batch.min, min(_AT_ONCE, batch.max))
        for start in range(0, len(self._texts), together):
            texts = self._texts[start : start + together]
            yield [*texts, *texts[-1:] * (batch.min - len(texts))]

    def _missed(self, session: Session, texts: Sequence[Array]) -> Array:
        """The negative log likelihood of every token of some texts but the first ones, float64 `[tokens]`.

        Shorter texts are padded on the right, which no earlier token sees.
        """
        lengths = np.array([len(text) for text in texts])
        ids_BT = np.zeros((len(texts), lengths.max()), np.int64)
        for row, text in enumerate(texts):
            ids_BT[row, : len(text)] = text
        decoding = Decoding(lambda **feeds: session.run(feeds), self._io, self._roles, steps_of(session))
        real_B1, found = np.ones((len(texts), 1), dtype=bool), []
        for at in range(ids_BT.shape[1] - 1):
            logits_BV = decoding.push(ids_BT[:, at : at + 1], real_B1).astype(np.float64)
            largest_B = logits_BV.max(-1)
            total_B = largest_B + np.log(np.exp(logits_BV - largest_B[:, None]).sum(-1))
            next_B = np.take_along_axis(logits_BV, ids_BT[:, at + 1 : at + 2], -1)[:, 0]
            found.append((total_B - next_B)[at + 1 < lengths])
        return np.concatenate(found)


class ScoredModel:
    """What a user's metric is given: a model to run, whatever its runtime and precision."""

    def __init__(self, session: Session, io: IOContract, tokenizer: Path | None) -> None:
        self._session, self._io, self._tokenizer = session, io, tokenizer

    def run(self, **feeds: Array) -> dict[str, Array]:
        """Outputs by name; takes an array for each input."""
        return self._session.run(feeds)

    def map(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """As `run`, for any number of items, in batches of like length."""
        return mapped(self.run, self._io, feeds)

    def embed(self, texts: Sequence[str]) -> Array:
        """The vectors of texts, `[texts, width]`, for models that read text and give one vector for each."""
        return self._output_of(embedding(self._io), texts)

    def predict(self, texts: Sequence[Text]) -> Array:
        """The scores of texts or pairs of texts, `[texts]` or `[texts, classes]`, for rerankers and classifiers."""
        if not (output := scoring(self._io)):
            raise UsageError("the model has no output scores or logits of items; use run or map.")
        return self._output_of(output, [text if isinstance(text, str) else "\t".join(text) for text in texts])

    def _output_of(self, output: str, sentences: Sequence[str]) -> Array:
        if self._tokenizer is None:
            raise UsageError("the model has no tokenizer; use run or map.")
        tried = text_cases(self._io, sentences, self._tokenizer, batch=1)
        found: Array = np.concatenate([self._session.run(one.feeds)[output] for one in tried])
        return found


_METRIC = Wanted(
    "A metric is FILE.py:FUNCTION or MODULE:FUNCTION.",
    "a function that takes one model, on which it calls run, map, embed or predict, and returns a number, the larger "
    "the better",
)


class UserMetric:
    """A function of the user's, `FILE.py:FUNCTION` or `MODULE:FUNCTION`, called with a `ScoredModel`."""

    def __init__(self, text: str, folder: Path, manifest: Manifest) -> None:
        """Loads the function. Raises UsageError, SpecError: it cannot be loaded."""
        self.name = text
        self._function: Callable[[ScoredModel], Any] = function_of(text, _METRIC)
        self._io = manifest.io
        self._tokenizer = folder / manifest.tokenizer if manifest.tokenizer else None

    def __call__(self, session: Session) -> Score:
        """What the function returns for a session.

        Raises:
            SpecError: it raised, or returned something else than a number.
        """
        try:
            value = self._function(ScoredModel(session, self._io, self._tokenizer))
        except AttnportError:
            raise
        except Exception as err:  # the user's own code may raise anything
            raise SpecError(f"metric {self.name} raised {type(err).__name__}: {first_line(err)}.") from err
        try:
            return Score(float(value))
        except (TypeError, ValueError) as err:
            raise SpecError(f"metric {self.name} returned {value!r:.60}; expected a number.") from err


def items_of(io: IOContract, name: str, feeds: Mapping[str, Array]) -> list[Case]:
    """The items of arrays of any number of them, each in a batch of its own.

    Raises:
        UsageError: an input is missing, has other items than the first, or the model has no common first dim of items.
        FeedError: an item does not fit the contract.
    """
    batch = io.inputs[0].dims[0] if io.inputs[0].dims else 0
    if isinstance(batch, int) or any(spec.dims[:1] != (batch,) for spec in io.inputs):
        raise UsageError(f"the inputs have no common first dim of items: {', '.join(map(str, io.inputs))}.")
    counts = {spec.name: len(feeds[spec.name]) if spec.name in feeds else 0 for spec in io.inputs}
    if len(set(counts.values())) > 1 or not min(counts.values()):
        raise UsageError(f"{name}: got {counts} items by input; expected the same number for each, at least one.")
    return [
        case(io, f"{name} {at}", "given", {key: array[at : at + 1] for key, array in feeds.items()})
        for at in range(min(counts.values()))
    ]
