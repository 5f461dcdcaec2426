"""Attentions as people write them, one file an axis: small modules with what recognition should read in them."""

from __future__ import annotations

from spellings import grouped, guards, layouts, masks, positions, products, scale, terms
from spellings.case import Case
from spellings.layouts import STACKED

AXES: dict[str, dict[str, Case]] = {
    module.__name__.split(".")[-1]: module.CASES
    for module in (scale, masks, positions, products, grouped, layouts, terms, guards)
}
CASES: dict[str, Case] = {name: case for axis in AXES.values() for name, case in axis.items()}
if len(CASES) != sum(map(len, AXES.values())):
    raise ValueError("two spellings have one name")
ALL: dict[str, Case] = {**CASES, "stacked": STACKED}
