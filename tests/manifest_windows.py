"""Changes of a manifest that say what the layers with a sliding window keep: those that are fine, and wrong ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def window(found: dict[str, Any], **changed: object) -> None:
    """A window of the dim `seq`, with positions from the first input."""
    first = found["io"]["inputs"][0]
    first.update(high=64)
    found["io"]["window"] = {"dim": "seq", "places": 3, "positions": first["name"]} | changed


def without_end(found: dict[str, Any]) -> None:
    """Positions from an input that does not say how many there are."""
    window(found)
    found["io"]["inputs"][0].update(high=None)


FINE_WINDOWS: dict[str, Callable[[dict[str, Any]], object]] = {
    "what its layers keep": window,
    "positions counted by a mask": lambda m: window(m, positions=None),
    "all is kept": lambda m: m["io"].update(window=None),
}
WRONG_WINDOWS: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "a window of nothing": (lambda m: window(m, places=0), "window of 'seq': got 0 places"),
    "a window of no dim": (lambda m: window(m, dim="past"), "a window is of 'past', which is no dim"),
    "a window with one missing": (lambda m: m["io"].update(window={"dim": "seq"}), "is missing"),
    "a window with more": (lambda m: window(m, more=1), "unknown key"),
    "positions from no input": (
        lambda m: window(m, positions="places"),
        "from 'places', which is no input with a high",
    ),
    "positions without end": (without_end, "which is no input with a high"),
}
