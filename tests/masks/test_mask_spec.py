"""MaskSpec: what it accepts, and how it reads in tables."""

from __future__ import annotations

from typing import Any

import pytest

from attnport.errors import ArtifactError, UsageError
from attnport.jsonfile import from_json, to_json
from attnport.masks import ALIGNMENTS, KINDS, POLARITIES, MaskSpec

HELD = (
    MaskSpec(("padding", "causal"), "lengths", carries="lengths", keys="seq"),
    MaskSpec(("prefix",), "prefix", carries="lengths", alignment="lower_right"),
    MaskSpec(("documents", "padding", "causal"), "ids", carries="ids"),
    MaskSpec(("window", "global"), "marks", window=3, carries="marks"),
)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("polarity", POLARITIES)
@pytest.mark.parametrize("alignment", ALIGNMENTS)
def test_every_kind_polarity_and_alignment_survives_json(kind: str, polarity: str, alignment: str) -> None:
    spec = MaskSpec((kind,), "mask", polarity, alignment, window=3 if kind == "window" else 0)
    assert from_json(MaskSpec, to_json(spec), "mask") == spec


@pytest.mark.parametrize("spec", HELD, ids=str)
def test_what_an_input_holds_survives_json(spec: MaskSpec) -> None:
    assert from_json(MaskSpec, to_json(spec), "mask") == spec


def test_a_mask_written_before_there_were_contents_is_read() -> None:
    text = '{"kinds": ["padding"], "input": "m", "polarity": "hide", "alignment": "upper_left", "window": 0}'
    assert from_json(MaskSpec, text, "mask") == MaskSpec(("padding",), "m", "hide")


@pytest.mark.parametrize("kinds", [(), ("paddling",), ("padding", "casual")])
def test_an_unknown_or_missing_kind_is_refused(kinds: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match=r"mask kind .*expected one of none, padding"):
        MaskSpec(kinds=kinds)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"polarity": "inverted"}, "mask polarity 'inverted'; expected one of keep, hide, additive"),
        ({"alignment": "middle"}, "mask alignment 'middle'; expected one of upper_left, lower_right"),
        ({"carries": "offsets"}, "mask content 'offsets'; expected one of mask, lengths, ids, marks"),
        ({"kinds": ("padding", "padding")}, "named twice"),
        ({"kinds": ("none", "causal")}, "none hides nothing"),
        ({"window": 4}, "window 4 without the kind window"),
        ({"kinds": ("window",), "window": -1}, "window -1; expected 0 or more"),
        ({"input": None, "carries": "lengths"}, "got lengths without the input that holds them"),
        (
            {"kinds": ("documents",), "carries": "lengths"},
            "lengths cannot say documents; expected exactly one of padding, prefix",
        ),
        ({"kinds": ("padding", "prefix"), "carries": "lengths"}, "lengths cannot say padding, prefix"),
        ({"kinds": ("padding",), "carries": "ids"}, "ids cannot say padding; expected exactly one of documents"),
        ({"kinds": ("global", "padding"), "carries": "marks"}, "marks of global cannot say padding as well"),
        ({"carries": "lengths", "polarity": "hide"}, "polarity hide for lengths; only a mask has one"),
        ({"keys": "seq"}, "keys='seq'; only lengths count"),
        ({"kinds": ("documents",), "carries": "ids", "keys": "seq"}, "keys='seq'; only lengths count"),
    ],
)
def test_parts_that_do_not_go_together_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        MaskSpec(**{"kinds": ("padding",), "input": "m", **given})


def test_combinations_read_as_a_sum_with_their_input() -> None:
    assert str(MaskSpec(kinds=("causal", "padding"), input="attention_mask")) == "causal+padding(attention_mask)"
    assert str(MaskSpec(kinds=("causal",))) == "causal"
    assert str(MaskSpec()) == "none"


def test_an_edited_mask_is_refused() -> None:
    with pytest.raises(ArtifactError, match="window"):
        from_json(MaskSpec, '{"kinds": ["window"], "window": 1.5}', "mask")
