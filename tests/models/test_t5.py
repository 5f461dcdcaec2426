"""T5 against transformers' T5Model on equal weights, and what its masks promise."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from equal_weights import ATTENTION, filled, renamed

from attnport.models.base import build
from attnport.models.encoder_decoders import T5

# Distances beyond the last bucket's begin occur, and H D is not E.
SIZES = {
    "vocabulary": 53, "width": 40, "heads": 3, "depth": 16, "layers": 2, "hidden": 72, "buckets": 8,
    "max_distance": 9,
}  # fmt: skip
FEED_FORWARD = {"up": "DenseReluDense.wi", "down": "DenseReluDense.wo"}


def names() -> dict[str, str]:
    """Our modules' paths, and transformers'."""
    found = {"tokens": "shared", "encoder_norm": "encoder.final_layer_norm", "decoder_norm": "decoder.final_layer_norm"}
    parts = {
        "encoder": {"attention": (0, "SelfAttention"), "feed_forward": (1, "")},
        "decoder": {"attention": (0, "SelfAttention"), "cross": (1, "EncDecAttention"), "feed_forward": (2, "")},
    }
    for stack, layers in parts.items():
        found[f"{stack}_positions.table"] = f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias"
        for index in range(SIZES["layers"]):
            for part, (at, its) in layers.items():
                ours, theirs = f"{stack}.{index}", f"{stack}.block.{index}.layer.{at}"
                found[f"{ours}.{part}_norm"] = f"{theirs}.layer_norm"
                module = "cross_attention" if part == "cross" else part
                for leaf, name in (ATTENTION if its else FEED_FORWARD).items():
                    found[f"{ours}.{module}.{leaf}"] = f"{theirs}.{its}.{name}" if its else f"{theirs}.{name}"
    return found


def reference(ours: T5) -> torch.nn.Module:
    """transformers' T5Model with the same weights; every one of its parameters must be set."""
    transformers = pytest.importorskip("transformers")
    theirs = transformers.T5Model(
        transformers.T5Config(
            vocab_size=SIZES["vocabulary"],
            d_model=SIZES["width"],
            d_kv=SIZES["depth"],
            d_ff=SIZES["hidden"],
            num_layers=SIZES["layers"],
            num_heads=SIZES["heads"],
            relative_attention_num_buckets=SIZES["buckets"],
            relative_attention_max_distance=SIZES["max_distance"],
            attn_implementation="eager",
        )
    )
    return filled(theirs, renamed(ours, names()))


def feeds(batch: int = 3, seq: int = 23, target: int = 17) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seq)
    source, given = (torch.randint(0, 53, (batch, length), generator=generator) for length in (seq, target))
    return {"input_ids": source, "attention_mask": torch.ones_like(source), "decoder_input_ids": given}


@pytest.mark.parametrize("hidden", ["none", "right", "left", "interior", "one token"])
def test_equals_transformers_t5_on_equal_weights(hidden: str) -> None:
    ours = build(lambda: T5(**SIZES))
    theirs, given = reference(ours), feeds(*((3, 1, 1) if hidden == "one token" else ()))
    places = {"right": slice(9, None), "left": slice(0, 9), "interior": slice(4, 11)}
    if hidden in places:
        given["attention_mask"][1, places[hidden]] = 0
    with torch.no_grad():
        expected = theirs(**given).last_hidden_state
        assert torch.allclose(ours(**given), expected, atol=5e-5, rtol=0)
    assert expected.abs().mean() > 0.1


@pytest.mark.parametrize("changed", ["encoder_positions", "decoder_positions"])
def test_one_changed_bias_is_noticed_by_the_comparison(changed: str) -> None:
    ours, given = build(lambda: T5(**SIZES)), feeds()
    theirs = reference(ours)
    with torch.no_grad():
        getattr(ours, changed).table.weight[2, 0] += 1.0
        assert not torch.allclose(ours(**given), theirs(**given).last_hidden_state, atol=5e-5, rtol=0)


def test_positions_are_relative_alone() -> None:
    ours, given = build(lambda: T5(**SIZES)).double(), feeds(seq=12)
    moved = dict(given)
    moved["input_ids"] = torch.nn.functional.pad(given["input_ids"], (5, 0))
    moved["attention_mask"] = torch.nn.functional.pad(given["attention_mask"], (5, 0))
    with torch.no_grad():
        assert torch.allclose(ours(**given), ours(**moved), atol=1e-12, rtol=0)


def test_a_source_without_any_token_reaches_nothing_and_stays_finite() -> None:
    ours, given = build(lambda: T5(**SIZES)), feeds()
    given["attention_mask"][0] = 0
    with torch.no_grad():
        whole = ours(**given)
        given["input_ids"][0] = (given["input_ids"][0] + 1) % 53
        assert torch.isfinite(whole).all()
        assert torch.equal(whole, ours(**given))


def test_very_large_logits_and_zero_embeddings_stay_finite() -> None:
    ours, given = build(lambda: T5(**SIZES)), feeds()
    with torch.no_grad():
        ours.encoder[0].attention.project.query.weight.mul_(1e4)  # type: ignore[union-attr, operator]
        ours.tokens.weight[0] = 0
        given["input_ids"][0] = 0
        assert torch.isfinite(ours(**given)).all()


def test_the_scale_of_scores_is_in_the_weights_of_q() -> None:
    attention: Any = build(T5).decoder[0].cross_attention
    assert attention.project.query.weight.std().item() == pytest.approx((64 * 16) ** -0.5, rel=0.1)
    assert attention.project.key.weight.std().item() == pytest.approx(64**-0.5, rel=0.1)
