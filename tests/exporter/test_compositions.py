"""Attentions put together at random from spellings of their parts are recognised, with the masks they were given."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from running import check_numbers, export, on_ort
from spellings.case import MASK, PADDING, Case, D, H, X, contract, grid, in_order, projected

Tensors = Callable[..., Any]
SCALES: dict[str, Tensors] = {
    "on_q": lambda q, k, product: product(q * D**-0.5, k),
    "on_k": lambda q, k, product: product(q, k * D**-0.5),
    "root": lambda q, k, product: product(q * D**-0.25, k * D**-0.25),
    "after": lambda q, k, product: product(q, k) * D**-0.5,
    "divides": lambda q, k, product: product(q, k) / math.sqrt(D),
    "absent": lambda q, k, product: product(q, k),
}
PRODUCTS: dict[str, tuple[Tensors, Tensors]] = {
    "at": (lambda q, k: q @ k.transpose(-1, -2), lambda p, v: p @ v),
    "mT": (lambda q, k: q @ k.mT, torch.matmul),
    "matmul": (lambda q, k: torch.matmul(q, k.permute(0, 1, 3, 2)), torch.matmul),
    "einsum": (
        lambda q, k: torch.einsum("bhid,bhjd->bhij", q, k),
        lambda p, v: torch.einsum("bhij,bhjd->bhid", p, v),
    ),
    "bmm": (
        lambda q, k: torch.bmm(q.flatten(0, 1), k.flatten(0, 1).mT).unflatten(0, q.shape[:2]),
        lambda p, v: torch.bmm(p.flatten(0, 1), v.flatten(0, 1)).unflatten(0, p.shape[:2]),
    ),
}
HIDINGS: dict[str, Tensors] = {
    "filled": lambda s, hidden, low: s.masked_fill(hidden, low),
    "chosen": lambda s, hidden, low: torch.where(~hidden, s, low),
    "added": lambda s, hidden, low: s + torch.zeros(hidden.shape, dtype=s.dtype).masked_fill(hidden, low),
    "added_choice": lambda s, hidden, low: s + torch.where(hidden, low, 0.0).to(s.dtype),
    "subtracted": lambda s, hidden, low: s - hidden.to(s.dtype) * -max(low, -1e30),
}
"""`s` with the keys at `hidden` at `low`; a product with infinity would be NaN, so `subtracted` takes a number."""
LOWS = (-math.inf, -1e4, -1e9, -65504.0, torch.finfo(torch.float32).min)
KINDS: dict[str, Tensors] = {
    "causal": lambda i, j, mask: j > i,
    "window": lambda i, j, mask: (i - j > 2) | (j - i > 2),
    "padding": lambda i, j, mask: (mask == 0)[:, None, None, :],
}
HEADS: dict[str, tuple[int, Tensors]] = {
    "own": (H, lambda each: each),
    "repeated": (2, lambda each: each.repeat_interleave(2, 1)),
    "expanded": (2, lambda each: each[:, :, None].expand(-1, -1, 2, -1, -1).flatten(1, 2)),
    "one": (1, lambda each: each.expand(-1, H, -1, -1)),
}
GUARDS: dict[str, Tensors] = {
    "none": lambda p: p,
    "cast": lambda p: p.float().to(p.dtype),
    "dropout": lambda p: torch.dropout(p, 0.1, False),
    "isnan": lambda p: torch.where(torch.isnan(p), torch.zeros_like(p), p),
}


@dataclass(frozen=True)
class Parts:
    """Names of the parts of one attention, from the tables above."""

    scale: str = "after"
    product: str = "at"
    kinds: tuple[str, ...] = ()
    hiding: str = "filled"
    low: float = -math.inf
    merged: bool = False
    heads: str = "own"
    guard: str = "none"

    def attend(self, q: Any, k: Any, v: Any, mask: Any = None) -> Any:
        """The attention that they make."""
        (to_scores, to_out), repeat = PRODUCTS[self.product], HEADS[self.heads][1]
        scores = SCALES[self.scale](q, repeat(k), to_scores)
        i, j = grid(q, k)
        hidden = [KINDS[kind](i, j, mask) for kind in self.kinds]
        if self.merged and hidden:
            hidden = [functools.reduce(torch.logical_or, hidden)]
        for each in hidden:
            scores = HIDINGS[self.hiding](scores, each, self.low)
        return to_out(GUARDS[self.guard](scores.softmax(-1)), repeat(v))

    def case(self) -> Case:
        """It, with projections around it, and the mask that recognition should read."""
        padded = "padding" in self.kinds
        io = contract(X, MASK, masks=(PADDING,)) if padded else contract(X)
        mask = ("+".join(self.kinds) or "none") + ("(mask)" if padded else "")
        return projected(self.attend, io, mask, key_heads=HEADS[self.heads][0])


PARTS = st.builds(
    Parts,
    scale=st.sampled_from(list(SCALES)),
    product=st.sampled_from(list(PRODUCTS)),
    kinds=st.lists(st.sampled_from(list(KINDS)), unique=True, max_size=3).map(tuple),
    hiding=st.sampled_from(list(HIDINGS)),
    low=st.sampled_from(LOWS),
    merged=st.booleans(),
    heads=st.sampled_from(list(HEADS)),
    guard=st.sampled_from(list(GUARDS)),
)


def check(parts: Parts) -> None:
    """It is recognised, its mask is the one it was given, and its form computes what it computes."""
    case = parts.case()
    result = export(case.module(), case.io).lowered("onnx")
    assert {name: in_order(mask) for name, mask in result.masks.items()} == case.expected(["module"]), result.notes
    check_numbers(on_ort(result.model), case, within=case.within)


@pytest.mark.slow
@settings(deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow], database=None, max_examples=60)
@given(PARTS)
@example(Parts("root", "bmm", ("causal", "padding"), "added", torch.finfo(torch.float32).min, False, "repeated"))
@example(Parts("on_q", "einsum", ("window", "causal"), "subtracted", -1e9, True, "one", "isnan"))
def test_a_composition_is_recognised_with_the_mask_it_was_given(parts: Parts) -> None:
    check(parts)


def test_a_composition_that_is_read_as_something_else_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(KINDS, "causal", lambda i, j, mask: j > i + 1)
    with pytest.raises(AssertionError):
        check(Parts(kinds=("causal",)))
    monkeypatch.setitem(GUARDS, "none", lambda p: p.square())
    with pytest.raises(AssertionError):
        check(Parts())
