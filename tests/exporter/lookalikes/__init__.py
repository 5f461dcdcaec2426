"""What looks like attention, or like a mask, and is not: each with the reason, or with what must stay as it is."""

from __future__ import annotations

from lookalikes import masks, others, products, scores
from lookalikes.case import LookAlike

LOOKALIKES: dict[str, LookAlike] = {
    name: case for module in (masks, products, scores, others) for name, case in module.CASES.items()
}
