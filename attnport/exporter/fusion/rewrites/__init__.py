"""Rewrites that prepare a graph for recognition: each file defines `apply(model) -> int`.

A rewrite never changes what a graph computes, whether attention is recognised afterwards or not.
"""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING

from attnport.registry import all_of

if TYPE_CHECKING:
    import onnx_ir as ir


def modules() -> list[ModuleType]:
    """The rewrites: every file of this folder."""
    return all_of(__name__)


def apply_all(model: ir.Model) -> None:
    """Applies every rewrite in name order, in place."""
    for module in modules():
        module.apply(model)
