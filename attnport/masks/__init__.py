"""The mask contract: what a mask means, and the arrays that represent it."""

from attnport.masks.spec import KINDS, POLARITIES, MaskSpec

__all__ = ["KINDS", "POLARITIES", "MaskSpec"]
