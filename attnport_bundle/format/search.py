"""`search.json`: how the vectors of texts are chosen and compared, beyond what a graph computes. See FORMAT.md."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

SEARCH = "search.json"
Similarity = Literal["cosine", "dot", "euclidean", "manhattan", "maxsim", "meanmaxsim"]


@dataclass(frozen=True)
class Expansion:
    """What makes a query longer: tokens behind it, whose vectors count as those of its own tokens.

    Attributes:
        token: Their id.
        length: How many tokens a query then has, special ones included, unless it is longer.
        fixed: Whether a longer query is cut to that length.
        attended: Whether the other tokens attend to them.
    """

    token: int
    length: int
    fixed: bool
    attended: bool

    def __post_init__(self) -> None:
        if self.token < 0 or not 1 <= self.length <= 1 << 20:
            raise ValueError(f"got token {self.token}, length {self.length}; expected 0 or more, and 1 or more")


@dataclass(frozen=True)
class Search:
    """How a model's vectors of texts are chosen and compared.

    Attributes:
        similarity: How two are compared; the last two are of several vectors a text.
        active: Of a sparse vector, the most numbers that are not zero; None = any number.
        query_limit: The most tokens of a query; None = those of any text.
        document_limit: The most tokens of a document; None = those of any text.
        expansion: What makes a query longer; None = nothing.
        skipped: Token ids whose vectors do not count, such as those of punctuation.
        skipped_of: Whether they are skipped in a `query`, in a `document`, or in both; a text that is called neither is
            a document.
    """

    similarity: Similarity = "cosine"
    active: int | None = None
    query_limit: int | None = None
    document_limit: int | None = None
    expansion: Expansion | None = None
    skipped: tuple[int, ...] = ()
    skipped_of: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("active", "query_limit", "document_limit"):
            if (got := getattr(self, name)) is not None and got < 1:
                raise ValueError(f"got {name} {got}; expected 1 or more")
        if any(token < 0 for token in self.skipped):
            raise ValueError("got a skipped token below 0; expected token ids")
