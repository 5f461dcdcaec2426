"""RetrievalTransformer against torch's decoder layers on equal weights, and what is retrieved."""

from __future__ import annotations

import pytest
import torch
from torch_layers import decoder_layer, later

from attnport.models.base import build
from attnport.models.encoder_decoders import RetrievalTransformer

SIZES = {"vocabulary": 53, "width": 48, "heads": 3, "layers": 2, "hidden": 80, "positions": 40}


def feeds(batch: int = 3, seq: int = 9, chunks: int = 4, length: int = 5) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seq)
    ids = torch.randint(0, 53, (batch, seq), generator=generator)
    return {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "chunks": torch.randn(batch, chunks, length, SIZES["width"], generator=generator, dtype=torch.float64),
        "chunk_mask": torch.ones(batch, chunks, dtype=torch.int64),
    }


def reference(ours: RetrievalTransformer, given: dict[str, torch.Tensor]) -> torch.Tensor:
    """By torch's decoder layers, a batch item at a time with the chunks that it has and no mask for them."""
    found = []
    for ids, keep, chunks, there in zip(*given.values(), strict=True):
        memory = ours.memory_norm(chunks[there.bool()].reshape(1, -1, SIZES["width"]))
        x = (ours.tokens.weight[ids] + ours.positions.table.weight[: len(ids)])[None]
        for layer in ours.layers:
            norms = [layer.attention_norm, layer.cross_norm, layer.feed_forward_norm]
            attentions = [layer.attention, layer.cross_attention]
            x = decoder_layer(attentions, norms, layer.feed_forward, SIZES, norm_first=True, activation="gelu")(
                x, memory, tgt_mask=later(len(ids)), tgt_key_padding_mask=(keep == 0)[None]
            )
        found.append(ours.norm(x))
    return torch.cat(found)


@pytest.mark.parametrize(("seq", "chunks", "length"), [(9, 4, 5), (1, 1, 1), (7, 1, 3), (1, 5, 2)])
def test_equals_torchs_decoder_over_the_chunks_that_are_there(seq: int, chunks: int, length: int) -> None:
    ours, given = build(lambda: RetrievalTransformer(**SIZES)).double(), feeds(3, seq, chunks, length)
    given["chunk_mask"][1, 1:] = 0
    given["chunk_mask"][2, : chunks // 2] = 0
    given["attention_mask"][1, 6:] = 0
    with torch.no_grad():
        expected = reference(ours, given)
        assert torch.allclose(ours(**given), expected, atol=1e-10, rtol=0)
        given["chunk_mask"][0, 0] = 0
        assert (ours(**given)[0] - expected[0]).abs().max() > 0.01


def test_what_is_not_retrieved_reaches_nothing() -> None:
    ours, given = build(lambda: RetrievalTransformer(**SIZES)).double(), feeds()
    given["chunk_mask"][:, 2] = 0
    with torch.no_grad():
        before = ours(**given)
        given["chunks"][:, 2] += 100.0
        assert torch.equal(before, ours(**given))
        given["chunks"][:, 1] += 1.0 + torch.arange(SIZES["width"])
        assert (before - ours(**given)).abs().amax((1, 2)).min() > 0.01


def test_the_order_of_the_chunks_says_nothing() -> None:
    ours, given = build(lambda: RetrievalTransformer(**SIZES)).double(), feeds()
    given["chunk_mask"][:, 3] = 0
    order = torch.tensor([2, 3, 0, 1])
    moved = given | {"chunks": given["chunks"][:, order], "chunk_mask": given["chunk_mask"][:, order]}
    with torch.no_grad():
        assert torch.allclose(ours(**given), ours(**moved), atol=1e-12, rtol=0)


def test_without_any_chunk_it_is_a_plain_decoder() -> None:
    ours, given = build(lambda: RetrievalTransformer(**SIZES)).double(), feeds()
    given["chunk_mask"][:] = 0
    with torch.no_grad():
        got = ours(**given)
        for layer in ours.layers:
            project = layer.cross_attention.project  # type: ignore[union-attr]
            for leaf in (project.query, project.key, project.value):  # type: ignore[union-attr]
                leaf.weight.add_(1.0)  # type: ignore[union-attr, operator]
        assert torch.isfinite(got).all()
        assert torch.equal(got, ours(**given))


def test_zero_chunks_and_very_large_logits_stay_finite() -> None:
    ours, given = build(lambda: RetrievalTransformer(**SIZES)).double(), feeds()
    given["chunks"][0] = 0
    with torch.no_grad():
        ours.layers[0].cross_attention.project.query.weight.mul_(1e5)  # type: ignore[union-attr, operator]
        assert torch.isfinite(ours(**given)).all()
