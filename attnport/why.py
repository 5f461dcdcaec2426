"""Why a runtime gave no numbers: a kind that code asks for, and a text for people."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Why:
    """Why a runtime gave no numbers.

    Attributes:
        kind: `absent`: not installed, or no such device; `unavailable`: installed, but it cannot run this; `died`: its
            process ended; `late`: the time ran out; `no bound`: nothing says how exact it must be.
        text: The reason, a sentence for people.
    """

    kind: Literal["absent", "unavailable", "died", "late", "no bound"]
    text: str
