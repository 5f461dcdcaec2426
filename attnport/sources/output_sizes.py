"""Sizes of outputs, as sums of dims, from runs of a module; what is no sum is left to the torch graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attnport.artifacts import UNKNOWN_SIZE
from attnport.dims import Dim

Sizes = Mapping[str, int]
_PRIMES = (3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59)


def base_sizes(dims: Sequence[Dim]) -> dict[str, int]:
    """A different prime for each dim, where its range allows."""
    return {dim.name: dim.at_least(_prime(index)) for index, dim in enumerate(dims)}


def changed_alone(dims: Sequence[Dim]) -> dict[str, dict[str, int]]:
    """By dim, the base sizes with another size of this dim; without the dims that have only one size."""
    base, changed = base_sizes(dims), {}
    for dim in dims:
        other = base[dim.name] + (dim.step if base[dim.name] < dim.max else -dim.step)
        if other >= dim.min:
            changed[dim.name] = {**base, dim.name: other}
    return changed


def all_changed(dims: Sequence[Dim]) -> dict[str, int]:
    """Sizes that all differ from the base, each by another number; for dims with more than two sizes.

    They are more than twice the base: many sizes of what a convolution or a window shortens have one size behind it.
    """
    base = base_sizes(dims)
    return {dim.name: dim.at_least(2 * base[dim.name] + _prime(index + 2)) for index, dim in enumerate(dims)}


def fit(base: tuple[Sizes, int], alone: Mapping[str, tuple[Sizes, int]], last: tuple[Sizes, int] | None) -> str | int:
    """One size as a number, a dim or a sum of dims (`past+seq`, `2*seq-1`); `UNKNOWN_SIZE` where it is none.

    Args:
        base: The base sizes, and the size that an axis has there.
        alone: The same with each dim changed by itself.
        last: The same with all dims changed, which has to confirm the sum; None where that run is missing.
    """
    sizes, rest = base
    factors = {}
    for dim, (others, size) in alone.items():
        factors[dim], remainder = divmod(size - base[1], others[dim] - sizes[dim])
        if remainder:
            return UNKNOWN_SIZE
        rest -= factors[dim] * sizes[dim]
    if last is not None and last[1] != rest + sum(factor * last[0][dim] for dim, factor in factors.items()):
        return UNKNOWN_SIZE
    terms = [(factor, dim) for dim, factor in sorted(factors.items()) if factor]
    return text_of(terms, rest)


def text_of(terms: Sequence[tuple[int, str]], rest: int) -> str | int:
    """A sum with whole factors as an expression of a contract; what is added stands before what is subtracted."""
    if not terms:
        return rest
    parts = [(factor, name if abs(factor) == 1 else f"{abs(factor)}*{name}") for factor, name in terms]
    parts += [(rest, str(abs(rest)))] if rest else []
    added = "+".join(text for sign, text in parts if sign > 0)
    return (added or "0") + "".join(f"-{text}" for sign, text in parts if sign < 0)


def _prime(index: int) -> int:
    return _PRIMES[index] if index < len(_PRIMES) else 2 * index + 29
