"""The mask contract: what a mask means, and the arrays that show it."""

from attnport.masks.spec import KINDS, POLARITIES, MaskSpec

__all__ = ["KINDS", "POLARITIES", "MaskSpec"]
