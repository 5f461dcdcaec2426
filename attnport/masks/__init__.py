"""The mask contract: what a mask means (the reader's `MaskSpec`), the numbers that hide a key, the arrays of masks."""

from attnport_bundle.format.contract import (
    ALIGNMENTS,
    CARRIES,
    COMPUTED,
    KINDS,
    OF_INTEGERS,
    POLARITIES,
    RANKS,
    MaskSpec,
)

__all__ = [
    "ABSORBS", "ALIGNMENTS", "CARRIES", "COMPUTED", "HIDDEN", "HIDES", "KINDS", "OF_INTEGERS", "POLARITIES",
    "RANKS", "MaskSpec",
]  # fmt: skip

HIDES = -1e4
"""A constant that a graph adds to a score, or puts in its place, hides the key if it is this or less; otherwise it is a
bias. It is the largest of those in use, which fits half precision."""

HIDDEN = HIDES / 2
"""Where only values are known, an element of an additive mask, or a score, is hidden if it is this or less: `HIDES` is,
also when half precision has rounded it or a score was added, and a score itself is not."""

ABSORBS = -1e30
"""A score is lost in rounding where this or less is added to it, so that all hidden scores are equal, and their
exponentials zero beside any other."""
