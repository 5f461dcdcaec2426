"""DualStreamTransformer against torch's decoder layers on equal weights, and who hears what when."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch_layers import decoder_layer, later

from attnport.models.base import build
from attnport.models.encoder_decoders import DualStreamTransformer

SIZES = {"features": 6, "vocabulary": 53, "width": 48, "heads": 3, "layers": 2, "hidden": 80, "positions": 40}


def feeds(batch: int = 3, seq: int = 11) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seq)
    return {
        "heard": torch.randn(batch, seq, SIZES["features"], generator=generator, dtype=torch.float64),
        "spoken": torch.randint(0, 53, (batch, seq), generator=generator),
        "attention_mask": torch.ones(batch, seq, dtype=torch.int64),
    }


def reference(
    ours: DualStreamTransformer, heard: torch.Tensor, spoken: torch.Tensor, attention_mask: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """By torch's decoder layers, of which each stream's memory is the other stream."""
    seq = spoken.shape[1]
    hidden, behind = attention_mask == 0, later(seq)
    masks = {"tgt_mask": behind, "memory_mask": behind, "tgt_key_padding_mask": hidden}
    positions = ours.positions.table.weight[:seq]
    streams = [heard @ ours.frames.weight.T + ours.frames.bias + positions, ours.tokens.weight[spoken] + positions]

    def half(layer: Any, x: torch.Tensor, read: torch.Tensor) -> torch.Tensor:
        norms = [layer.attention_norm, layer.cross_norm, layer.feed_forward_norm]
        attentions = [layer.attention, layer.cross_attention]
        made = decoder_layer(attentions, norms, layer.feed_forward, SIZES, norm_first=True, activation="gelu")
        found: torch.Tensor = made(x, read, memory_key_padding_mask=hidden, **masks)
        return found

    def both(layer: Any, heard: torch.Tensor, spoken: torch.Tensor) -> list[torch.Tensor]:
        return [
            half(layer.heard, heard, layer.spoken_norm(spoken)),
            half(layer.spoken, spoken, layer.heard_norm(heard)),
        ]

    for layer in ours.layers:
        streams = both(layer, *streams)
    return ours.head(ours.spoken_norm(streams[1])), ours.heard_norm(streams[0])


@pytest.mark.parametrize("seq", [1, 2, 11])
def test_equals_torchs_decoders_that_read_each_other(seq: int) -> None:
    ours, given = build(lambda: DualStreamTransformer(**SIZES)).double(), feeds(3, seq)
    given["attention_mask"][1, 7:] = 0
    with torch.no_grad():
        expected = reference(ours, **given)
        for got, wanted in zip(ours(**given), expected, strict=True):
            assert torch.allclose(got, wanted, atol=1e-10, rtol=0)
            assert wanted.std() > 0.3


def test_one_changed_weight_is_noticed_by_the_comparison() -> None:
    ours, given = build(lambda: DualStreamTransformer(**SIZES)).double(), feeds()
    with torch.no_grad():
        expected = reference(ours, **given)
        ours.layers[0].heard.cross_attention.project.value.weight[0, 0] += 0.5  # type: ignore[union-attr, operator, index]
        assert all((a - b).abs().max() > 1e-5 for a, b in zip(ours(**given), expected, strict=True))


@pytest.mark.parametrize("stream", ["heard", "spoken"])
def test_both_streams_follow_a_step_of_either_from_then_on_alone(stream: str) -> None:
    ours, given = build(lambda: DualStreamTransformer(**SIZES)).double(), feeds()
    changed = dict(given)
    changed[stream] = given[stream].clone()
    changed[stream][:, 5] = (given[stream][:, 5] + 1) % 53
    with torch.no_grad():
        for before, after in zip(ours(**given), ours(**changed), strict=True):
            assert torch.equal(before[:, :5], after[:, :5])
            # Everything from that step on, in this stream and in the other one.
            assert ((before - after)[:, 5:].abs().amax(-1) > 1e-6).all()


def test_silence_and_very_large_logits_stay_finite() -> None:
    ours, given = build(lambda: DualStreamTransformer(**SIZES)).double(), feeds()
    given["heard"][:] = 0
    with torch.no_grad():
        ours.layers[0].spoken.cross_attention.project.query.weight.mul_(1e5)  # type: ignore[union-attr, operator]
        assert all(torch.isfinite(each).all() for each in ours(**given))
