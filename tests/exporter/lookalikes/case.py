"""What a look-alike is: a case that must not be recognised, with the reason, or of which something must stay."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from spellings.case import PLAIN, Case, X, contract, projected
from torch import nn

from attnport.artifacts import IOContract
from attnport.dims import TensorSpec

GATED = contract(X, TensorSpec("hidden", "float32", ("batch", "seq")))
PAIRS = contract(X, TensorSpec("bias", "float32", ("batch", 1, "seq", "seq")))
"""A float of each key, or of each pair of query and key, comes in."""


@dataclass(frozen=True)
class LookAlike:
    """A case whose counted attentions stay as they are, or are read with nothing lost.

    Attributes:
        case: Its `masks` are those of the attentions that are recognised all the same; () where none is.
        reasons: Of each counted attention that is not recognised, a pattern of the reason that is told.
        random: Whether the module draws numbers, so that no two runs agree.
    """

    case: Case
    reasons: tuple[str, ...] = ()
    random: bool = False


def refused(
    attend: Callable[..., Any] | type[nn.Module], reason: str | tuple[str, ...], io: IOContract = PLAIN, **more: Any
) -> LookAlike:
    """A look-alike that is not recognised, for `reason`."""
    reasons = (reason,) if isinstance(reason, str) else reason
    if isinstance(attend, type):
        return LookAlike(Case(attend, io, ()), reasons, **more)
    return LookAlike(projected(attend, io, ()), reasons, **more)


def read(attend: Callable[..., Any], masks: str, io: IOContract = PLAIN, **more: Any) -> LookAlike:
    """A look-alike that is attention, of which something must not be taken for a mask."""
    return LookAlike(projected(attend, io, masks), **more)


def uncounted(attend: Callable[..., Any], io: IOContract = PLAIN) -> LookAlike:
    """A look-alike without a softmax that reaches a product: there is nothing to recognise."""
    return LookAlike(projected(attend, io, ()))


def hides(mask: Any) -> Any:
    """Where a keep-mask `[B,T]` hides, over the scores."""
    return mask[:, None, None, :] == 0
