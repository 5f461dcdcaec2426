"""BertEncoder against transformers' BertModel on equal weights, and what its ModelSpec promises."""

from __future__ import annotations

import pytest
import torch
from equal_weights import filled, renamed

from attnport.errors import FeedError
from attnport.models.base import build, get
from attnport.models.encoders import BertEncoder
from attnport_bundle.feeds import check_feeds

SIZES = {"vocabulary": 97, "width": 48, "heads": 3, "layers": 2, "hidden": 96, "positions": 40}
LAYER_NAMES = {
    "attention.project.query": "attention.self.query",
    "attention.project.key": "attention.self.key",
    "attention.project.value": "attention.self.value",
    "attention.out": "attention.output.dense",
    "attention_norm": "attention.output.LayerNorm",
    "feed_forward.up": "intermediate.dense",
    "feed_forward.down": "output.dense",
    "feed_forward_norm": "output.LayerNorm",
}
EMBEDDING_NAMES = {
    "tokens": "embeddings.word_embeddings",
    "segments": "embeddings.token_type_embeddings",
    "positions.table": "embeddings.position_embeddings",
    "norm": "embeddings.LayerNorm",
}


def reference(module: BertEncoder) -> torch.nn.Module:
    """transformers' BertModel with the same weights; every one of its parameters must be set."""
    transformers = pytest.importorskip("transformers")
    model = transformers.BertModel(
        transformers.BertConfig(
            vocab_size=SIZES["vocabulary"],
            hidden_size=SIZES["width"],
            num_hidden_layers=SIZES["layers"],
            num_attention_heads=SIZES["heads"],
            intermediate_size=SIZES["hidden"],
            max_position_embeddings=SIZES["positions"],
        ),
        add_pooling_layer=False,
    )
    names = dict(EMBEDDING_NAMES)
    for index in range(SIZES["layers"]):
        names |= {f"layers.{index}.{ours}": f"encoder.layer.{index}.{its}" for ours, its in LAYER_NAMES.items()}
    return filled(model, renamed(module, names))


def feeds(batch: int, seq: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(batch * 1000 + seq)
    return {
        "input_ids": torch.randint(0, SIZES["vocabulary"], (batch, seq), generator=generator),
        "attention_mask": torch.ones(batch, seq, dtype=torch.int64),
        "token_type_ids": torch.randint(0, 2, (batch, seq), generator=generator),
    }


@pytest.mark.parametrize("hidden", ["none", "right", "left", "interior"])
def test_equals_transformers_bert_on_equal_weights(hidden: str) -> None:
    ours = build(lambda: BertEncoder(**SIZES))
    theirs = reference(ours)
    given = feeds(3, 17)
    mask = given["attention_mask"]
    if hidden == "right":
        mask[1, 9:] = 0
    elif hidden == "left":
        mask[1, :9] = 0
    elif hidden == "interior":
        mask[1, 4:11] = 0
    with torch.no_grad():
        got = ours(**given)
        expected = theirs(**given).last_hidden_state
    valid = mask.bool()
    assert torch.allclose(got[valid], expected[valid], atol=2e-5, rtol=0)
    assert expected[valid].abs().mean() > 0.1


def test_one_changed_weight_is_noticed_by_the_comparison() -> None:
    ours = build(lambda: BertEncoder(**SIZES))
    theirs = reference(ours)
    with torch.no_grad():
        ours.layers[1].attention.project.key.weight[0, 0] += 0.5  # type: ignore[operator, union-attr, index]
        given = feeds(2, 11)
        assert not torch.allclose(ours(**given), theirs(**given).last_hidden_state, atol=2e-5, rtol=0)


def test_an_attention_row_with_no_allowed_key_gives_zero() -> None:
    module = build(lambda: BertEncoder(**SIZES))
    attention = module.layers[0].attention
    x = torch.randn(2, 5, SIZES["width"], generator=torch.Generator().manual_seed(1))
    allowed = torch.ones(2, 1, 1, 5, dtype=torch.bool)
    allowed[1] = False
    with torch.no_grad():
        got = attention(x, x, allowed)  # type: ignore[operator]
    assert torch.equal(got[1], attention.out.bias.expand_as(got[1]))  # type: ignore[union-attr, operator]


def test_a_sequence_beyond_the_position_table_is_refused_by_the_contract() -> None:
    small = get("bert_encoder", **SIZES)
    with pytest.raises(FeedError, match="seq=41"):
        check_feeds(small.io, {name: tensor.numpy() for name, tensor in feeds(1, 41).items()})
