"""Biases that are added to the scores, in NumPy and float64: ALiBi and the relative positions of T5.

Letters: H heads, S query length, T key length.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from attnport.errors import UsageError
from attnport.masks.numpy_builders import positions

Array = np.ndarray[Any, Any]


def alibi_slopes(H: int) -> list[float]:
    """The slope of each head: a geometric sequence (Press et al. 2022, "Train Short, Test Long").

    If H is not a power of two, the other heads get every second slope of the next power, as in the authors' code.
    """
    if H < 1:
        raise UsageError(f"ALiBi slopes: got {H} heads; expected 1 or more.")
    power = 1 << (H.bit_length() - 1)
    slopes = [2.0 ** (-8.0 * (n + 1) / power) for n in range(power)]
    beyond = [2.0 ** (-4.0 * (n + 1) / power) for n in range(0, 2 * power, 2)]
    return slopes + beyond[: H - power]


def alibi(H: int, S: int, T: int, alignment: str = "upper_left", *, symmetric: bool = False) -> Array:
    """ALiBi's bias `[1,H,S,T]`: slope * (key position - query position), or slope * -distance if `symmetric`."""
    i, j = positions(S, T, alignment)
    distance = -np.abs(j - i) if symmetric else j - i
    return np.asarray(np.array(alibi_slopes(H))[None, :, None, None] * distance)


def t5_lookup(buckets: int, max_distance: int) -> list[int]:
    """The bucket of every distance from 0 to `max_distance`, on one side: exact for near keys, then logarithmic.

    The bounds are computed in integer arithmetic. The papers' code takes a logarithm at run time, which falls on either
    side of a bound depending on the runtime's rounding.

    Raises:
        UsageError: there are too few buckets, or the largest distance is within the exact ones.
    """
    exact = buckets // 2
    if exact < 1 or max_distance <= exact:
        raise UsageError(
            f"relative positions: got {buckets} buckets on a side up to distance {max_distance}; "
            "expected 2 or more, and a distance above half of them."
        )
    steps = buckets - exact
    # floor(log(d / exact) / log(max_distance / exact) * steps) >= n, as powers.
    least = [exact ** (steps - n) * max_distance**n for n in range(1, steps)]
    lookup = list(range(exact))
    lookup += [exact + sum(d**steps >= bound for bound in least) for d in range(exact, max_distance + 1)]
    return lookup


def t5_buckets(
    S: int,
    T: int,
    *,
    buckets: int = 32,
    max_distance: int = 128,
    bidirectional: bool = True,
    alignment: str = "upper_left",
) -> Array:
    """T5's bucket of each query and key, int64 `[S,T]` (Raffel et al. 2020, and its code).

    If `bidirectional`, half of the buckets are for later keys; otherwise every later key is in bucket 0.
    """
    i, j = positions(S, T, alignment)
    side = buckets // 2 if bidirectional else buckets
    lookup = np.array(t5_lookup(side, max_distance), dtype=np.int64)
    distance = np.abs(j - i) if bidirectional else np.maximum(i - j, 0)
    return np.asarray(lookup[np.minimum(distance, max_distance)] + (side * (j > i) if bidirectional else 0))


def t5_bias(table: Array, S: int, T: int, **options: Any) -> Array:
    """The bias `[1,H,S,T]` of a table `[buckets,H]`; options as `t5_buckets`."""
    buckets = t5_buckets(S, T, buckets=len(table), **options)
    return np.asarray(np.asarray(table, dtype=np.float64)[buckets].transpose(2, 0, 1)[None])
