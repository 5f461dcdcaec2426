"""Formulas are read back into the kinds of the contract: every spelling alike, and nothing that is not proved."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from formula_values import value_of
from hypothesis import given, settings
from hypothesis import strategies as st
from mask_spellings import (
    AT_END,
    CASES,
    CAUSAL_SPELLINGS,
    EXPLICIT,
    G_I,
    G_J,
    GI_I,
    GI_J,
    INPUTS,
    LOWER,
    NEAR,
    PAST,
    SEG_I,
    SEG_J,
    WIDE_GLOBAL,
    WINDOW_SPELLINGS,
    B,
    C,
    M,
    N,
    P,
    S,
    T,
    all_of,
    any_of,
    le,
    lengths_spec,
    lt,
    minus,
    read,
)  # fmt: skip

from attnport.exporter.fusion.formula import CAUSAL, ZERO, Const, Expr, I, J, Op, Size, conjuncts, normal, op, same
from attnport.exporter.fusion.kinds import spec_of
from attnport.masks import CARRIES, COMPUTED, KINDS, MaskSpec
from attnport.masks.numpy_builders import build


@pytest.mark.parametrize("name", CASES)
def test_every_spelling_of_a_kind_is_read_alike(name: str) -> None:
    spellings, expected = CASES[name]
    for spelling in spellings:
        found = spec_of([spelling], biased=False, lengths=(S, T))
        assert found == expected, normal(spelling)
        assert spec_of(conjuncts(spelling), biased=True, lengths=(S, T)).kinds == (
            (*expected.kinds, "bias") if expected.kinds != ("none",) else ("bias",)
        )


def test_every_kind_and_content_has_its_spellings() -> None:
    specs = [spec for _, spec in CASES.values()]
    assert {kind for spec in specs for kind in spec.kinds} | {"bias"} == set(KINDS)  # a bias is no condition
    assert {spec.carries for spec in specs} == set(CARRIES)


@pytest.mark.parametrize("name", EXPLICIT)
def test_what_is_nearly_a_kind_stays_explicit(name: str) -> None:
    found = spec_of([EXPLICIT[name]], biased=False, lengths=(S, T))
    assert found.kinds == ("explicit",)
    assert found.input is None


def test_equal_conditions_become_one_formula() -> None:
    assert {normal(spelling) for spelling in CAUSAL_SPELLINGS} == {CAUSAL}
    assert {frozenset(conjuncts(normal(spelling))) for spelling in WINDOW_SPELLINGS} == {frozenset(conjuncts(NEAR))}
    assert len({normal(spelling) for spelling in CASES["lengths"][0]}) == 1


@pytest.mark.parametrize(
    ("lengths", "alignment"),
    [
        ((Size("seq"), op("Add", PAST, Size("seq"))), LOWER),
        ((Size("seq"), op("Add", op("Add", PAST, Size("more")), Size("seq"))), None),
        ((Size("seq"), None), None),
        ((Size("seq"), Size("mem")), None),
    ],
)
def test_a_cache_shifts_the_queries_by_its_own_length(lengths: tuple[Expr, Expr | None], alignment: str | None) -> None:
    found = spec_of([le(J, op("Add", I, PAST))], biased=False, lengths=lengths)
    assert found == (MaskSpec(("causal",), alignment=alignment) if alignment else MaskSpec(("explicit",)))


def test_the_one_query_of_a_decoding_step_sees_all_keys_or_the_window_before_it() -> None:
    lengths = (Const(1), op("Add", PAST, Const(1)))
    assert spec_of([le(J, PAST)], biased=False, lengths=lengths) == MaskSpec()
    window = all_of(le(J, PAST), le(minus(PAST, J), C(3)))
    assert spec_of([window], biased=False, lengths=lengths).kinds == ("explicit",)  # one side is all there is left


def test_with_constant_lengths_the_shift_is_a_number() -> None:
    shifted = le(J, op("Add", I, C(4)))
    assert spec_of([shifted], biased=False, lengths=(C(3), C(7))) == MaskSpec(("causal",), alignment=LOWER)
    assert spec_of([shifted], biased=False, lengths=(C(3), C(8))).kinds == ("explicit",)
    assert spec_of([CAUSAL], biased=False, lengths=(C(3), C(7))) == MaskSpec(("causal",))


def masks_of(keep: Expr, seed: int, sizes: tuple[int, int, int]) -> dict[str, Any]:
    """Random values of the inputs, and the mask that `keep` is with them, `[B,1,S,T]`."""
    random, (b, s, t) = np.random.default_rng(seed), sizes
    values: dict[str, Any] = {}
    for name, declared in INPUTS.items():
        shape = tuple({"B": b, "S": s, "T": t, "1": 1}[dim] for dim in declared.split("[")[1][:-1].split(","))
        if name in ("n", "p", "w"):
            values[name] = random.integers(0, t + 1, shape)
        else:
            values[name] = random.integers(0, 3 if name == "seg" else 2, shape)
        if declared.startswith("bool"):
            values[name] = values[name] != 0
    mask = np.zeros((b, 1, s, t), dtype=bool)
    lengths = {"S": s, "T": t, "past": 2}
    for at in itertools.product(range(b), range(s), range(t)):
        mask[at[0], 0, at[1], at[2]] = value_of(keep, dict(zip("bij", at, strict=True)), values, lengths)
    return {**values, "mask": mask}


def check_claim(spec: MaskSpec, keep: Expr, seed: int, sizes: tuple[int, int, int]) -> bool:
    """Whether `spec` names all that its mask is made of; if so, it has to be the mask that `keep` is."""
    if set(spec.kinds) - {*COMPUTED} and spec.input is None:
        return False
    made = masks_of(keep, seed, sizes)
    found = np.broadcast_to(build(spec, made.get(str(spec.input)), *sizes[1:]), made["mask"].shape)
    np.testing.assert_array_equal(found, made["mask"])
    return True


SIZES = st.sampled_from([(2, 4, 4), (2, 3, 6), (1, 5, 7), (2, 1, 3)])


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.sampled_from(sorted(CASES)), st.integers(0, 99), SIZES, st.data())
def test_the_masks_that_are_claimed_are_those_of_the_formulas(
    name: str, seed: int, sizes: tuple[int, int, int], data: st.DataObject
) -> None:
    keep = data.draw(st.sampled_from(CASES[name][0]))
    if name != "float that is added":  # its values are not those of a mask of zeros and ones
        check_claim(spec_of([keep], biased=False, lengths=(S, T)), keep, seed, sizes)


def near_misses() -> st.SearchStrategy[Expr]:
    """Conditions as masks are made of, some a little off, joined at random."""
    small = st.integers(-1, 3).map(Const)
    position = st.sampled_from([I, I, AT_END])
    bound = st.builds(
        lambda at, c, later: le(minus(J, at), c) if later else le(minus(at, J), c), position, small, st.booleans()
    )
    causal = st.sampled_from([le(J, I), le(J, AT_END), lt(J, I), *CAUSAL_SPELLINGS])
    length = st.builds(
        lambda n, at, c: lt(op("Add", at, c), n),
        st.sampled_from([N, P]),
        st.sampled_from([J, J, I]),
        st.sampled_from([C(0), C(0), C(1)]),
    )
    truth = st.sampled_from(
        [G_I, G_J, op("Ne", GI_I, ZERO), op("Ne", GI_J, ZERO), op("Ne", M, ZERO), op("Not", G_J), lt(ZERO, SEG_J)]
    )
    same = st.sampled_from(
        [op("Equal", SEG_I, SEG_J), op("Equal", SEG_J, SEG_J), op("Equal", SEG_I, M), op("Ne", SEG_J, ZERO)]
    )
    pairs = st.just(read("pairs", B, ZERO, I, J))
    prefix = st.builds(any_of, causal, length)
    sides = st.tuples(position, small, st.sampled_from([C(0), C(0), C(1)]))
    near = sides.map(lambda of: all_of(le(minus(J, of[0]), of[1]), le(minus(of[0], J), op("Add", of[1], of[2]))))
    window = st.one_of(near, near, st.builds(all_of, bound, bound))
    pair = st.sampled_from([(G_I, G_J), (G_J, G_I), (op("Ne", GI_J, ZERO), op("Ne", GI_I, ZERO)), (G_I, G_I)])
    marks = st.one_of(pair, pair, st.tuples(truth, truth))
    marked = st.builds(lambda each, two: any_of(each, *two), st.one_of(window, window, bound, causal), marks)
    part = st.one_of(bound, causal, length, truth, same, prefix, prefix, window, window, marked, marked, pairs)
    flipped = st.builds(lambda each, turn: op("Not", op("Not", each)) if turn else each, part, st.booleans())
    return st.lists(flipped, min_size=1, max_size=2).map(lambda parts: all_of(*parts))


@settings(max_examples=400, deadline=None, derandomize=True)
@given(near_misses(), st.integers(0, 3), SIZES)
def test_nothing_is_claimed_that_the_formula_is_not(keep: Expr, seed: int, sizes: tuple[int, int, int]) -> None:
    check_claim(spec_of([keep], biased=False, lengths=(S, T)), keep, seed, sizes)
    simple = normal(keep)
    assert (masks_of(simple, seed, sizes)["mask"] == masks_of(keep, seed, sizes)["mask"]).all()


@pytest.mark.parametrize(
    ("claimed", "keep"),
    [
        (MaskSpec(("causal",)), lt(J, I)),
        (MaskSpec(("causal",)), le(J, AT_END)),
        (MaskSpec(("window",), window=1), NEAR),
        (MaskSpec(("padding",), "m", "hide"), op("Ne", M, ZERO)),
        (lengths_spec("prefix", "p"), any_of(le(J, I), le(J, P))),
        (WIDE_GLOBAL, any_of(NEAR, G_J)),
    ],
    ids=str,
)
def test_the_check_itself_notices_a_wrong_claim(claimed: MaskSpec, keep: Expr) -> None:
    with pytest.raises(AssertionError):
        check_claim(claimed, keep, 1, (2, 4, 6))


def test_an_operation_that_is_not_known_is_left_as_it_is() -> None:
    unknown = Op("FloorDiv", (J, C(2)))
    assert normal(lt(unknown, I)) == lt(unknown, I)
    assert spec_of([lt(unknown, I)], biased=False, lengths=(S, T)).kinds == ("explicit",)


def test_a_mask_that_is_longer_than_the_keys_is_not_that_of_a_kind() -> None:
    shorter, sums = Size("short"), op("Add", PAST, Size("new"))
    assert spec_of([M], biased=False, lengths=(S, shorter)) == MaskSpec(("padding",))
    assert spec_of([op("Ne", M, ZERO)], biased=False, lengths=(S, None)) == MaskSpec(("padding",), "m")
    pairs = read("pairs", B, ZERO, I, J)
    assert spec_of([pairs], biased=False, lengths=(S, T)) == MaskSpec(("explicit",), "pairs")
    assert spec_of([pairs], biased=False, lengths=(shorter, T)) == MaskSpec(("explicit",))
    assert same(Size("new+past"), sums)
    assert not same(Size("past+short"), sums)
