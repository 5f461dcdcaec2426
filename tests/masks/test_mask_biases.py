"""ALiBi's slopes and T5's buckets against the papers' code."""

from __future__ import annotations

import math

import numpy as np
import pytest

from attnport.errors import UsageError
from attnport.masks.numpy_biases import alibi, alibi_slopes, t5_bias, t5_buckets, t5_lookup


def published_slopes(n: int) -> list[float]:
    """`get_slopes` of the authors' fairseq code (ofirpress/attention_with_linear_biases)."""

    def of_power(n: int) -> list[float]:
        start = 2 ** (-(2 ** -(math.log2(n) - 3)))
        return [start * start**i for i in range(n)]

    if math.log2(n).is_integer():
        return of_power(n)
    closest = 2 ** math.floor(math.log2(n))
    return of_power(closest) + published_slopes(2 * closest)[0::2][: n - closest]


@pytest.mark.parametrize("heads", range(1, 41))
def test_slopes_are_those_of_the_authors(heads: int) -> None:
    assert len(alibi_slopes(heads)) == heads
    assert alibi_slopes(heads) == pytest.approx(published_slopes(heads), rel=1e-12)


def test_eight_heads_have_the_slopes_of_the_paper() -> None:
    assert alibi_slopes(8) == [2.0**-n for n in range(1, 9)]


def test_alibi_falls_with_the_distance_to_the_key() -> None:
    bias = alibi(2, 3, 3)
    assert bias.shape == (1, 2, 3, 3)
    assert bias[0, 0, 2].tolist() == [-2 / 16, -1 / 16, 0.0]
    assert alibi(2, 1, 3, "lower_right")[0, 1, 0].tolist() == [-2 / 256, -1 / 256, 0.0]
    assert alibi(2, 3, 3, symmetric=True)[0, 0, 0].tolist() == [0.0, -1 / 16, -2 / 16]


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize(("buckets", "max_distance"), [(32, 128), (16, 64), (64, 512), (32, 100)])
def test_buckets_are_those_of_t5(bidirectional: bool, buckets: int, max_distance: int) -> None:
    import torch
    from transformers.models.t5.modeling_t5 import T5Attention

    size = 2 * max_distance
    positions = torch.arange(size)
    expected = T5Attention._relative_position_bucket(
        positions[None] - positions[:, None], bidirectional, buckets, max_distance
    ).numpy()
    found = t5_buckets(size, size, buckets=buckets, max_distance=max_distance, bidirectional=bidirectional)
    assert (found == expected).all()


def test_the_bounds_of_buckets_are_exact_powers() -> None:
    # exact 8, then a factor of 2 every second bucket: 8, 11.3, 16, 22.6, 32, ...
    found = t5_lookup(16, 128)
    assert [found.index(n) for n in range(16)] == [0, 1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 23, 32, 46, 64, 91]


def test_a_bias_is_the_row_of_its_bucket() -> None:
    table = np.random.default_rng(0).standard_normal((32, 3))
    bias = t5_bias(table, 4, 6, alignment="lower_right")
    assert bias.shape == (1, 3, 4, 6)
    assert bias.dtype == np.float64
    assert (bias[0, :, 0, 2] == table[0]).all()  # the first query stands at key 2
    assert (bias[0, :, 0, 0] == table[2]).all()
    assert (bias[0, :, 0, 5] == table[16 + 3]).all()


def test_what_has_no_buckets_or_heads_is_refused() -> None:
    for buckets, max_distance in ((1, 128), (32, 16)):
        with pytest.raises(UsageError, match="expected 2 or more, and a distance above half of them"):
            t5_lookup(buckets, max_distance)
    with pytest.raises(UsageError, match="got 0 heads"):
        alibi_slopes(0)
