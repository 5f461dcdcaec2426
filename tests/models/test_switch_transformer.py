"""SwitchTransformer against transformers' encoder on equal weights, and its router by itself."""

from __future__ import annotations

import pytest
import torch
from equal_weights import ATTENTION, filled, renamed

from attnport.exporter.capture import capture
from attnport.models.base import build, get
from attnport.models.encoders import SwitchFeedForward, SwitchTransformer

SIZES = {
    "vocabulary": 53, "width": 40, "heads": 3, "depth": 16, "layers": 4, "hidden": 72, "experts": 5, "every": 2,
    "buckets": 8, "max_distance": 9,
}  # fmt: skip


def names() -> dict[str, str]:
    """Our modules' paths, and transformers'."""
    found = {
        "tokens": "shared",
        "norm": "encoder.final_layer_norm",
        "positions.table": "encoder.block.0.layer.0.SelfAttention.relative_attention_bias",
    }
    for index in range(SIZES["layers"]):
        ours, theirs = f"layers.{index}", f"encoder.block.{index}.layer"
        found[f"{ours}.attention_norm"] = f"{theirs}.0.layer_norm"
        found[f"{ours}.feed_forward_norm"] = f"{theirs}.1.layer_norm"
        found |= {f"{ours}.attention.{leaf}": f"{theirs}.0.SelfAttention.{its}" for leaf, its in ATTENTION.items()}
        pairs = [("feed_forward", "mlp")]
        if index % SIZES["every"] == SIZES["every"] - 1:
            found[f"{ours}.feed_forward.router"] = f"{theirs}.1.mlp.router.classifier"
            pairs = [(f"feed_forward.experts.{n}", f"mlp.experts.expert_{n}") for n in range(SIZES["experts"])]
        for part, its in pairs:
            found |= {f"{ours}.{part}.up": f"{theirs}.1.{its}.wi", f"{ours}.{part}.down": f"{theirs}.1.{its}.wo"}
    return found


def reference(ours: SwitchTransformer) -> torch.nn.Module:
    """transformers' encoder with the same weights, and room for every token at every expert."""
    transformers = pytest.importorskip("transformers")
    theirs = transformers.SwitchTransformersEncoderModel(
        transformers.SwitchTransformersConfig(
            vocab_size=SIZES["vocabulary"],
            d_model=SIZES["width"],
            d_kv=SIZES["depth"],
            d_ff=SIZES["hidden"],
            num_layers=SIZES["layers"],
            num_sparse_encoder_layers=SIZES["layers"] // SIZES["every"],
            num_heads=SIZES["heads"],
            num_experts=SIZES["experts"],
            expert_capacity=1000,
            relative_attention_num_buckets=SIZES["buckets"],
            relative_attention_max_distance=SIZES["max_distance"],
            attn_implementation="eager",
        )
    )
    return filled(theirs, renamed(ours, names()))


def feeds(batch: int = 3, seq: int = 23) -> dict[str, torch.Tensor]:
    ids = torch.randint(0, 53, (batch, seq), generator=torch.Generator().manual_seed(seq))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def feed_forward(experts: int = 4) -> SwitchFeedForward:
    torch.manual_seed(0)
    return SwitchFeedForward(8, 12, experts).double()


@pytest.mark.parametrize("hidden", ["none", "right", "left", "one token"])
def test_equals_transformers_encoder_on_equal_weights(hidden: str) -> None:
    ours = build(lambda: SwitchTransformer(**SIZES))
    theirs, given = reference(ours), feeds(3, 1 if hidden == "one token" else 23)
    if hidden in ("right", "left"):
        given["attention_mask"][1, slice(9, None) if hidden == "right" else slice(0, 9)] = 0
    with torch.no_grad():
        expected = theirs(**given).last_hidden_state
        valid = given["attention_mask"].bool()
        assert torch.allclose(ours(**given)[valid], expected[valid], atol=5e-5, rtol=0)
    assert expected.abs().mean() > 0.1


def test_one_changed_expert_is_noticed_by_the_comparison() -> None:
    ours, given = build(lambda: SwitchTransformer(**SIZES)), feeds()
    theirs = reference(ours)
    with torch.no_grad():
        ours.layers[1].feed_forward.experts[3].down.weight.neg_()  # type: ignore[union-attr, index, operator]
        assert not torch.allclose(ours(**given), theirs(**given).last_hidden_state, atol=5e-5, rtol=0)


def test_each_token_gets_its_best_expert_alone_times_the_routers_probability() -> None:
    part = feed_forward()
    x = torch.randn(2, 9, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    used = set()
    with torch.no_grad():
        got = part(x)
        for token, found in zip(x.flatten(0, 1), got.flatten(0, 1), strict=True):
            logits = part.router.weight @ token
            best = int(logits.argmax())
            probability = logits.exp()[best] / logits.exp().sum()
            expert = part.experts[best]
            hidden = (expert.up.weight @ token).clamp(min=0)  # type: ignore[union-attr, operator]
            assert torch.allclose(found, probability * (expert.down.weight @ hidden), atol=1e-12)  # type: ignore[union-attr, operator]
            used.add(best)
    assert len(used) > 2


def test_an_expert_that_overflows_on_tokens_of_others_does_not_reach_them() -> None:
    part = feed_forward(2)
    with torch.no_grad():
        part.router.weight.zero_()
        part.router.weight[1, 0] = 1.0
        part.experts[1].up.weight.fill_(torch.inf)  # type: ignore[union-attr, operator]
        x = torch.randn(1, 3, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
        x[..., 0] = torch.tensor([-1.0, 1.0, -2.0])
        finite = torch.isfinite(part(x)).all(dim=-1)[0]
    assert finite.tolist() == [True, False, True]


def test_a_token_is_routed_by_itself() -> None:
    part = feed_forward()
    x = torch.randn(1, 7, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    order = torch.tensor([3, 0, 6, 2, 5, 1, 4])
    with torch.no_grad():
        assert torch.allclose(part(x)[:, order], part(x[:, order]), atol=1e-14)


def test_padding_reaches_nothing_and_an_item_without_tokens_stays_finite() -> None:
    ours, given = build(lambda: SwitchTransformer(**SIZES)).double(), feeds()
    given["attention_mask"][:, 14:] = 0
    given["attention_mask"][0] = 0
    with torch.no_grad():
        whole = ours(**given)
        given["input_ids"][:, 14:] = (given["input_ids"][:, 14:] + 1) % 53
        assert torch.isfinite(whole).all()
        assert torch.equal(whole[1:, :14], ours(**given)[1:, :14])
        short = {name: value[1:, :14] for name, value in given.items()}
        assert torch.allclose(whole[1:, :14], ours(**short), atol=1e-12, rtol=0)


def test_the_router_is_not_taken_for_an_attention() -> None:
    spec = get("switch_transformer")
    counted = capture(spec.make(), spec.io).attentions
    assert [attention.name for attention in counted] == ["layers.0.attention", "layers.1.attention"]


def test_no_token_is_near_a_tie_of_the_default_weights() -> None:
    ours, found = build(SwitchTransformer), []
    ours.layers[1].feed_forward.router.register_forward_hook(lambda module, given, logits: found.append(logits))
    ids = torch.randint(0, 1000, (8, 128), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        ours(ids, torch.ones_like(ids))
    best = found[0].topk(2).values
    assert (best[..., 0] - best[..., 1]).min() > 0.25
    assert len(found[0].argmax(-1).unique()) == 4
