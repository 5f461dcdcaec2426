"""The mask contract: what a mask means (the reader's `MaskSpec`), and the arrays that represent it."""

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

__all__ = ["ALIGNMENTS", "CARRIES", "COMPUTED", "KINDS", "OF_INTEGERS", "POLARITIES", "RANKS", "MaskSpec"]
