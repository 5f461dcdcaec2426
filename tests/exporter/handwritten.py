"""The spellings under their old name."""

from __future__ import annotations

from spellings import CASES, STACKED
from spellings.case import BATCH, HIDDEN, MASK, MEM, MEMORY, PADDING, SEQ, Case, D, E, H, X, Y, contract, heads

_heads = heads
__all__ = [
    "BATCH", "CASES", "HIDDEN", "MASK", "MEM", "MEMORY", "PADDING", "SEQ", "STACKED", "Case", "D", "E", "H", "X", "Y",
    "_heads", "contract",
]  # fmt: skip
