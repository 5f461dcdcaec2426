"""SequenceClassifier against transformers' BERT classifier on equal weights, and both poolings."""

from __future__ import annotations

import pytest
import torch
from equal_weights import filled, renamed
from test_bert_encoder import EMBEDDING_NAMES, LAYER_NAMES

from attnport.errors import UsageError
from attnport.models.base import build, get
from attnport.models.encoders import FirstPooling, MeanPooling, SequenceClassifier

ENCODER = {"vocabulary": 97, "width": 48, "heads": 3, "layers": 2, "hidden": 96, "positions": 40}


def classifier(pooling: str) -> SequenceClassifier:
    return build(lambda: SequenceClassifier(labels=3, pooling=pooling, **ENCODER))


def reference(module: SequenceClassifier) -> torch.nn.Module:
    """transformers' BertForSequenceClassification, which takes the first token, with the same weights."""
    transformers = pytest.importorskip("transformers")
    theirs = transformers.BertForSequenceClassification(
        transformers.BertConfig(
            vocab_size=ENCODER["vocabulary"],
            hidden_size=ENCODER["width"],
            num_hidden_layers=ENCODER["layers"],
            num_attention_heads=ENCODER["heads"],
            intermediate_size=ENCODER["hidden"],
            max_position_embeddings=ENCODER["positions"],
            num_labels=3,
        )
    )
    names = {f"encoder.{ours}": f"bert.{its}" for ours, its in EMBEDDING_NAMES.items()}
    names |= {"dense": "bert.pooler.dense", "classifier": "classifier"}
    for index in range(ENCODER["layers"]):
        names |= {f"encoder.layers.{index}.{a}": f"bert.encoder.layer.{index}.{b}" for a, b in LAYER_NAMES.items()}
    return filled(theirs, renamed(module, names))


def feeds(batch: int = 3, seq: int = 12) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seq)
    return {
        "input_ids": torch.randint(0, ENCODER["vocabulary"], (batch, seq), generator=generator),
        "attention_mask": torch.ones(batch, seq, dtype=torch.int64),
        "token_type_ids": torch.randint(0, 2, (batch, seq), generator=generator),
    }


@pytest.mark.parametrize("seq", [1, 12])
def test_equals_transformers_classifier_on_equal_weights(seq: int) -> None:
    ours, given = classifier("first"), feeds(3, seq)
    theirs = reference(ours)
    given["attention_mask"][1, 7:] = 0
    with torch.no_grad():
        expected = theirs(**given).logits
        assert torch.allclose(ours(**given), expected, atol=2e-5, rtol=0)
        ours.dense.weight[0, 0] += 0.5
        assert not torch.allclose(ours(**given), expected, atol=2e-5, rtol=0)
    assert expected.std(dim=0).max() > 0.05 or seq == 1


def test_the_mean_is_that_of_the_real_tokens() -> None:
    ours, given = classifier("mean").double(), feeds()
    given["attention_mask"][1, 3:6] = 0
    with torch.no_grad():
        encoded = ours.encoder(**given)
        pooled = torch.stack(
            [one[keep.bool()].mean(0) for one, keep in zip(encoded, given["attention_mask"], strict=True)]
        )
        expected = ours.classifier(ours.dense(pooled).tanh())
        assert torch.allclose(ours(**given), expected, atol=1e-12, rtol=0)


@pytest.mark.parametrize("pooling", ["first", "mean"])
def test_what_a_hidden_token_is_never_reaches_the_scores(pooling: str) -> None:
    ours, given = classifier(pooling).double(), feeds()
    given["attention_mask"][:, :2] = 0
    given["attention_mask"][:, 9:] = 0
    with torch.no_grad():
        before = ours(**given)
        given["input_ids"][:, :2] = (given["input_ids"][:, :2] + 1) % 97
        given["input_ids"][:, 9:] = (given["input_ids"][:, 9:] + 1) % 97
        assert torch.allclose(before, ours(**given), atol=1e-14, rtol=0)
        given["input_ids"][:, 4] = (given["input_ids"][:, 4] + 1) % 97
        assert (before - ours(**given)).abs().amax(1).min() > 1e-4


def test_an_item_without_any_token_is_pooled_to_zero() -> None:
    x = torch.randn(2, 4, 3)
    x[0, 1] = torch.inf
    keep = torch.tensor([[False] * 4, [True, False, True, False]])
    assert torch.equal(MeanPooling()(x, keep)[0], torch.zeros(3))
    assert torch.allclose(MeanPooling()(x, keep)[1], (x[1, 0] + x[1, 2]) / 2)


def test_the_first_real_token_is_taken() -> None:
    x = torch.randn(3, 4, 5)
    keep = torch.tensor([[False, False, True, True], [True, False, True, False], [False] * 4])
    assert torch.equal(FirstPooling()(x, keep), torch.stack([x[0, 2], x[1, 0], x[2, 0]]))


def test_another_pooling_is_refused() -> None:
    with pytest.raises(UsageError, match="'max'; expected mean or first"):
        SequenceClassifier(pooling="max")


def test_the_inputs_are_the_encoders() -> None:
    spec = get("sequence_classifier", positions=40)
    assert [one.name for one in spec.io.inputs] == ["input_ids", "attention_mask", "token_type_ids"]
    assert spec.io.outputs[0].dims == ("batch", 5)
    assert spec.io.dim("seq").max == 40
