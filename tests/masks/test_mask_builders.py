"""The NumPy builders are the definitions, and torch and the exported graph build the same."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from exported_masks import BIASES, INPUTS, MASKS, Array, allowed, exported, in_numpy, in_torch, random_inputs, turns
from hypothesis import given, settings
from hypothesis import strategies as st

from attnport.errors import UsageError
from attnport.masks import CARRIES, KINDS, MaskSpec, numpy_builders, torch_builders
from attnport.masks.numpy_builders import decode_mask, encode_mask

SIZES = st.integers(1, 12).flatmap(lambda T: st.tuples(st.integers(1, 4), st.integers(1, T), st.just(T)))


def check_equal(found: list[Array], expected: list[Array]) -> None:
    """Same dtypes, same elements once broadcast; a bias to float32's accuracy."""
    assert len(found) == len(expected)
    for n, (one, other) in enumerate(zip(found, expected, strict=True)):
        assert one.dtype == other.dtype, n
        one, other = np.broadcast_arrays(one, other)
        if n < len(turns()):
            np.testing.assert_array_equal(one, other, err_msg=f"output {n}")
        else:
            np.testing.assert_allclose(one, other, rtol=1e-6, err_msg=f"output {n}")


@pytest.mark.parametrize("mask", MASKS, ids=str)
@settings(max_examples=10, deadline=None, derandomize=True)
@given(SIZES, st.integers(0, 2**32 - 1))
def test_the_reference_is_what_the_contract_says(mask: MaskSpec, sizes: tuple[int, int, int], seed: int) -> None:
    B, S, T = sizes
    value = random_inputs(np.random.default_rng(seed), *sizes).get(str(mask.input))
    keep = numpy_builders.build(mask, value, S, T)
    assert keep.dtype == bool
    assert keep.ndim == 4
    keep = np.broadcast_to(keep, (B, 1, S, T))
    for b, i, j in itertools.product(range(B), range(S), range(T)):
        assert keep[b, 0, i, j] == allowed(mask, value, b, i, j, S, T), (b, i, j)


@pytest.fixture(scope="module")
def graph() -> Any:
    return exported()


@pytest.mark.slow
@settings(max_examples=40, deadline=None, derandomize=True)
@given(sizes=SIZES, seed=st.integers(0, 2**32 - 1))
def test_numpy_torch_and_the_exported_graph_build_the_same(graph: Any, sizes: tuple[int, int, int], seed: int) -> None:
    inputs = random_inputs(np.random.default_rng(seed), *sizes)
    expected = in_numpy(inputs, *sizes[1:])
    check_equal(in_torch(inputs), expected)
    check_equal(graph.run(None, inputs), expected)


@pytest.mark.parametrize("wrong", range(len(turns()) + len(BIASES)))
def test_the_comparison_notices_one_wrong_element(wrong: int) -> None:
    sizes = (2, 4, 6)
    inputs = random_inputs(np.random.default_rng(0), *sizes)
    found, expected = in_torch(inputs), in_numpy(inputs, *sizes[1:])
    flipped = np.array(np.broadcast_to(found[wrong], np.broadcast(found[wrong], expected[wrong]).shape))
    at = (-1,) * flipped.ndim
    flipped[at] = ~flipped[at] if flipped.dtype == bool else flipped[at] + 1 if np.isfinite(flipped[at]) else 0
    found[wrong] = flipped
    with pytest.raises(AssertionError):
        check_equal(found, expected)


def test_every_kind_and_content_is_among_the_masks_that_are_compared() -> None:
    assert {kind for mask in MASKS for kind in mask.kinds} | {"bias"} == set(KINDS)  # BIASES has those
    assert {mask.carries for mask in MASKS} == set(CARRIES)


@pytest.mark.parametrize("mask", [mask for mask in MASKS if mask.input], ids=str)
@pytest.mark.parametrize("builders", [numpy_builders, torch_builders])
def test_a_mask_without_its_value_is_refused(mask: MaskSpec, builders: Any) -> None:
    with pytest.raises(UsageError, match="made from an input's value, and none was given"):
        builders.build(mask, None, 3, 3)


def test_global_tokens_without_a_window_are_refused() -> None:
    with pytest.raises(UsageError, match="its width is not given"):
        numpy_builders.build(MaskSpec(("global",), "g", carries="marks"), np.ones((1, 3)), 3, 3)


def test_queries_without_a_document_of_their_own_are_refused() -> None:
    with pytest.raises(UsageError, match="4 queries and values for 3 positions"):
        numpy_builders.documents(np.ones((1, 3)), 4)


def test_a_mask_of_rank_five_is_refused() -> None:
    with pytest.raises(UsageError, match="expected rank 1 to 4"):
        numpy_builders.padding(np.ones((1, 1, 1, 1, 1)))


@pytest.mark.parametrize(("polarity", "dtype"), sorted(set(turns())))
def test_what_is_encoded_is_decoded(polarity: str, dtype: str) -> None:
    mask = MaskSpec(("padding",), "m", polarity)
    keep = np.random.default_rng(1).random((3, 1, 1, 5)) < 0.5
    encoded = encode_mask(mask, dtype, keep)
    assert encoded.dtype == dtype
    assert (decode_mask(mask, encoded) == keep).all()
    assert (torch_builders.decode(torch.from_numpy(encoded), polarity).numpy() == keep).all()
    assert (decode_mask(MaskSpec(polarity="hide" if polarity == "keep" else "keep"), encoded) != keep).any()


def test_what_has_no_polarity_is_neither_encoded_nor_decoded() -> None:
    lengths = MaskSpec(("padding",), "n", carries="lengths")
    for attempt in (lambda: encode_mask(lengths, "int64", np.ones(3, bool)), lambda: decode_mask(lengths, np.ones(3))):
        with pytest.raises(UsageError, match="holds lengths, which have no polarity"):
            attempt()
    with pytest.raises(UsageError, match="dtype int64 for an additive mask; expected a float"):
        encode_mask(MaskSpec(("padding",), "m", "additive"), "int64", np.ones(3, bool))


def test_the_additive_form_is_zero_or_minus_infinity() -> None:
    added = numpy_builders.additive(numpy_builders.causal(2, 2))
    assert added.dtype == np.float64
    assert added.tolist() == [[[[0.0, -np.inf], [0.0, 0.0]]]]


def test_every_input_is_used_by_some_mask() -> None:
    assert {mask.input for mask in MASKS if mask.input} | {"queries"} == set(INPUTS)
