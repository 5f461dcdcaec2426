"""MaskSpec: what it accepts, and how it reads in tables."""

from __future__ import annotations

import pytest

from attnport.errors import ArtifactError, UsageError
from attnport.jsonfile import from_json, to_json
from attnport.masks.spec import KINDS, POLARITIES, MaskSpec


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("polarity", POLARITIES)
def test_every_kind_and_polarity_survives_json(kind: str, polarity: str) -> None:
    spec = MaskSpec(kinds=(kind,), input="mask", polarity=polarity, window=3)
    assert from_json(MaskSpec, to_json(spec), "mask") == spec


@pytest.mark.parametrize("kinds", [(), ("paddling",), ("padding", "casual")])
def test_an_unknown_or_missing_kind_is_refused(kinds: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match=r"mask kind .*expected one of none, padding"):
        MaskSpec(kinds=kinds)


def test_an_unknown_polarity_is_refused() -> None:
    with pytest.raises(UsageError, match="mask polarity 'inverted'; expected one of keep, hide, additive"):
        MaskSpec(kinds=("padding",), polarity="inverted")


def test_combinations_read_as_a_sum_with_their_input() -> None:
    assert str(MaskSpec(kinds=("causal", "padding"), input="attention_mask")) == "causal+padding(attention_mask)"
    assert str(MaskSpec(kinds=("causal",))) == "causal"
    assert str(MaskSpec()) == "none"


def test_an_edited_mask_is_refused() -> None:
    with pytest.raises(ArtifactError, match="window"):
        from_json(MaskSpec, '{"kinds": ["window"], "window": 1.5}', "mask")
