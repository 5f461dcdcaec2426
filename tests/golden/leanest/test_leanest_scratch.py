"""The project's engines want no more scratch memory than a form written by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
from leanest_bert import Shape, Variant
from representatives import representatives
from scratch_of import of_leanest, of_ours, profile

pytest.importorskip("tensorrt_rtx")
LARGEST = profile(batch=4, sequence=4096)
MINILM = Shape(vocabulary=1000)
SMALL = Shape(layers=1, vocabulary=100)


def test_leanest_form_is_fused_throughout(tmp_path: Path) -> None:
    _, fused = of_leanest(tmp_path, MINILM, LARGEST)
    assert fused == MINILM.layers


@pytest.mark.parametrize(
    "variant",
    representatives(
        [
            Variant(attention="where"),
            Variant(attention="where", scale="q"),
            Variant(attention="bias"),
            Variant(attention="expanded"),
            Variant(joined=True),
            Variant(sequence_major=True),
            Variant(chunks=4),
        ],
        [Variant(attention="bias"), Variant(joined=True)],
    ),
    ids=str,
)
def test_no_variant_that_was_tried_is_leaner(tmp_path: Path, variant: Variant) -> None:
    leanest, _ = of_leanest(tmp_path, SMALL, LARGEST)
    tried, fused = of_leanest(tmp_path, SMALL, LARGEST, variant)
    assert fused == SMALL.layers
    assert leanest.scratch_bytes <= 1.001 * tried.scratch_bytes


@pytest.mark.slow
def test_engine_of_our_own_path_is_within_a_tenth_of_the_leanest(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    leanest, _ = of_leanest(tmp_path, MINILM, LARGEST)
    ours, table = of_ours(tmp_path, MINILM, LARGEST)
    assert (table.fused, table.attentions) == (MINILM.layers, MINILM.layers)
    assert ours.profiles == leanest.profiles
    assert ours.scratch_bytes <= 1.1 * leanest.scratch_bytes


def test_bar_is_one_that_a_wasteful_form_does_not_pass(tmp_path: Path) -> None:
    leanest, _ = of_leanest(tmp_path, SMALL, LARGEST)
    wasteful, fused = of_leanest(tmp_path, SMALL, LARGEST, Variant(attention="expanded"))
    assert fused == SMALL.layers, "fused, and yet wasteful: the mask is written to memory"
    assert wasteful.scratch_bytes > 1.1 * leanest.scratch_bytes
