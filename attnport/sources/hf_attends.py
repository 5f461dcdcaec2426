"""What a transformers text model attends to, and how many positions it has, seen in a short run of it."""

# torch leaves its mode classes untyped.
# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from attnport.masks import MaskSpec

_LENGTH = 8
_KINDS = ("sdpa", "eager")
_LOOKED_UP = (torch.ops.aten.embedding.default, torch.ops.aten.index_select.default)


@dataclass(frozen=True)
class Seen:
    """What a run shows.

    Attributes:
        positions: The longest sequence for which a table has positions; None if no table was seen.
        causal: Whether every token attends to itself and what is before it alone; None if that cannot be said.
        functions: Each mask that transformers made: whether a query may attend to a key, of their positions.
    """

    positions: int | None = None
    causal: bool | None = None
    functions: tuple[Callable[..., Any], ...] = ()


def see(run: Callable[[torch.Tensor, torch.Tensor], dict[str, torch.Tensor]], vocab: int, padding: int | None) -> Seen:
    """Runs a model on a few tokens, and looks at the tables that it reads and the masks that it makes.

    Args:
        run: Token ids and padding mask `[B,T]` to outputs by name.
        vocab: The number of ids.
        padding: The id of padding, which does not occur, since positions may depend on it.
    """
    known = [each for each in range(vocab) if each != padding]
    ids_BT = torch.tensor([[known[(5 * at + 3) % len(known)] for at in range(_LENGTH)]])
    mask_BT = torch.ones_like(ids_BT)
    tables = _Tables()
    try:
        with torch.no_grad(), _mask_functions() as functions:
            with tables:
                first = run(ids_BT, mask_BT)
            changed_BT = ids_BT.clone()
            changed_BT[0, -1] = next((each for each in known if each != int(ids_BT[0, -1])), known[0])
            second = run(changed_BT, mask_BT)
    except Exception:  # some models take no sequence as short as this; observing their outputs says what is wrong
        return Seen(min(tables.found, default=None))
    return Seen(min(tables.found, default=None), _is_causal(first, second), tuple(functions))


def windows(seen: Seen, longest: int) -> tuple[MaskSpec, ...]:
    """The windows of a model's masks that hide something in a sequence of `longest` tokens."""
    found = []
    for function in seen.functions:
        reaches = [_reach(function, longest - 1 - back) for back in range(3) if longest - 1 - back > 0]
        # In chunks, how far a query reaches back depends on its place: that is no window.
        if not reaches or None in reaches or len(set(reaches)) != 1 or reaches[0] is None:
            continue
        before, after = reaches[0]
        if 0 < before < longest - 3 and after in (0, before):
            kinds = ("causal", "window") if after == 0 else ("window",)
            found.append(MaskSpec(kinds, window=before))
    return tuple(dict.fromkeys(found))


def _reach(function: Callable[..., Any], position: int) -> tuple[int, int] | None:
    """How many keys before and behind a query its mask allows; None if they are not all those between, or unknown."""
    zero = torch.tensor(0)
    try:
        allowed_T = function(zero, zero, torch.tensor(position), torch.arange(2 * position + 1))
        places = torch.broadcast_to(torch.as_tensor(allowed_T), (2 * position + 1,)).nonzero().flatten().tolist()
    except Exception:  # a function of transformers, which may look up the tokens of the run
        return None
    if not places or places != list(range(places[0], places[-1] + 1)) or not places[0] <= position <= places[-1]:
        return None
    return position - places[0], places[-1] - position


def _is_causal(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool | None:
    """Whether another last token left the outputs of all others as they were."""
    by_token = [name for name, value in first.items() if value.ndim > 2 and value.shape[1] == _LENGTH]
    if not by_token:
        return None
    return all(torch.allclose(first[name][:, :-1], second[name][:, :-1], rtol=1e-5, atol=1e-6) for name in by_token)


class _Tables(TorchDispatchMode):
    """Finds tables that are read at consecutive places, the same for every item: those of positions."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[int] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _LOOKED_UP:
            table, places = args[0], args[-1] if func is _LOOKED_UP[1] else args[1]
            rows = places.reshape(-1, places.shape[-1]) if places.ndim and places.shape[-1] == _LENGTH else None
            if rows is not None and (func is _LOOKED_UP[0] or args[1] == 0):
                start = int(rows[0, 0])
                if bool((rows == torch.arange(start, start + _LENGTH)).all()):
                    self.found.append(table.shape[0] - start)
        return func(*args, **(kwargs or {}))


@contextmanager
def _mask_functions() -> Iterator[list[Callable[..., Any]]]:
    """Notes the functions of which transformers makes masks in the block."""
    from transformers import masking_utils

    table, found = masking_utils.ALL_MASK_ATTENTION_FUNCTIONS, []
    before = {name: table[name] for name in _KINDS}

    def noting(original: Callable[..., Any]) -> Callable[..., Any]:
        def make(*args: Any, **kwargs: Any) -> Any:
            if "mask_function" in kwargs:
                found.append(kwargs["mask_function"])
            return original(*args, **kwargs)

        return make

    for name, original in before.items():
        table[name] = noting(original)
    try:
        yield found
    finally:
        for name, original in before.items():
            table[name] = original
