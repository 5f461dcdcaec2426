"""The metric of decoders: how likely a user's own texts are to them, token by token."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from attnport.artifacts import IOContract, Score, Session
from attnport.cases.inputs import Array, Case
from attnport.decoders import roles_in
from attnport.errors import UsageError
from attnport_bundle.decoding.caches import Decoding, steps_of

TEXTS, TOKENS = 64, 256
"""The most texts that are scored, and the most tokens of each."""
_TOGETHER = 16
"""Texts that are decoded at a time, as far as the model takes so many."""
_FEWEST = 200


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
        if scored < _FEWEST:
            raise UsageError(
                f"got {scored} tokens behind others to judge by; expected at least {_FEWEST}.",
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
        together = max(batch.min, min(_TOGETHER, batch.max))
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
