"""How a batch of rows is cut into calls, with the place of each row, so that outputs return in the batch's order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from attnport_bundle import batches
from attnport_bundle.format.contract import Dim

Array = np.ndarray[Any, Any]
PADDED, ALONE = "padded", "one at a time"
MAPPED = "its own batches"
"""As `Model.map` of attnport's bundles cuts them; a schedule of attnport's sides alone."""
GROUPS = (2, 4, 8, 16)
BY_SIZE = (ALONE, *(f"groups of {size}" for size in GROUPS), PADDED)
FIRST = "groups of 4"
"""Where trying begins, as it is the best of most sides."""


@dataclass(frozen=True)
class Work:
    """Rows of token ids, or images as one array a row."""

    name: str
    rows: tuple[Array, ...]

    @property
    def tokens(self) -> list[int]:
        """The length of each row; of an image, 0."""
        return [len(row) if row.ndim == 1 else 0 for row in self.rows]

    @property
    def share(self) -> float:
        """Real tokens of all places of a padded batch."""
        longest = max(self.tokens)
        return sum(self.tokens) / (len(self.rows) * longest) if longest else 1.0

    @property
    def repeats(self) -> int:
        """The runs of a turn. Of several the median counts, but not the first, which finds others' caches."""
        return 6 if 0 < sum(self.tokens) <= 64 else 1


def calls(work: Work) -> dict[str, list[list[int]]]:
    """By schedule, the places of each call's rows. A batch without padding is one call."""
    count = len(work.rows)
    found = {PADDED: [list(range(count))]}
    if work.share < 1:
        order = sorted(range(count), key=lambda at: work.tokens[at])
        found[ALONE] = [[at] for at in order]
        found[MAPPED] = list(batches.groups(work.tokens, batches.TOKENS, Dim("batch", 1, 1, max(count, 1))))
        found |= {f"groups of {size}": [order[at : at + size] for at in range(0, count, size)] for size in GROUPS}
        found = {FIRST: found[FIRST], **found}
    return found


def feeds_of(rows: Sequence[Array], names: Sequence[str]) -> dict[str, Array]:
    """The inputs of one call: images, or ids padded at the right, with their mask and types."""
    if rows[0].ndim > 1:
        return {names[0]: np.stack(rows)}
    shape = len(rows), max(map(len, rows))
    feeds = {name: np.zeros(shape, np.int64) for name in names}
    for at, row in enumerate(rows):
        feeds["input_ids"][at, : len(row)] = row
        feeds["attention_mask"][at, : len(row)] = 1
    return feeds


def write(work: Work, names: Sequence[str], file: Path) -> list[str]:
    """Writes all calls as the child reads them; returns the names of the schedules."""
    found = calls(work)
    stored = {}
    for schedule, parts in found.items():
        for number, places in enumerate(parts):
            feeds = feeds_of([work.rows[at] for at in places], names)
            stored |= {f"{schedule}/{number}/{name}": array for name, array in feeds.items()}
            stored[f"{schedule}/{number}/@places"] = np.array(places)
    np.savez(file, **stored)
    return list(found)
