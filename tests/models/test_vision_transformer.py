"""VisionTransformer against transformers' ViTForImageClassification on equal weights."""

from __future__ import annotations

import pytest
import torch
from equal_weights import filled, renamed

from attnport.models.base import build
from attnport.models.encoders import VisionTransformer

SIZES = {"image": 24, "patch": 8, "channels": 2, "width": 48, "heads": 3, "layers": 2, "hidden": 80, "classes": 7}
INNER = {
    "attention.project.query": "attention.q_proj",
    "attention.project.key": "attention.k_proj",
    "attention.project.value": "attention.v_proj",
    "attention.out": "attention.o_proj",
    "attention_norm": "layernorm_before",
    "feed_forward_norm": "layernorm_after",
    "feed_forward.up": "mlp.fc1",
    "feed_forward.down": "mlp.fc2",
}


def images(batch: int) -> torch.Tensor:
    return torch.randn(batch, 2, 24, 24, generator=torch.Generator().manual_seed(batch))


def reference(ours: VisionTransformer) -> torch.nn.Module:
    """transformers' model with the same weights; every one of its parameters is set."""
    transformers = pytest.importorskip("transformers")
    config = transformers.ViTConfig(
        hidden_size=48, num_hidden_layers=2, num_attention_heads=3, intermediate_size=80, image_size=24, patch_size=8,
        num_channels=2, num_labels=7, layer_norm_eps=1e-6, hidden_act="gelu",
    )  # fmt: skip
    names = {
        "patches": "vit.embeddings.patch_embeddings.projection",
        "norm": "vit.layernorm",
        "classifier": "classifier",
        "positions.table": "-",
        "": "-",
    }
    names |= {f"layers.{at}.{one}": f"vit.layers.{at}.{other}" for at in range(2) for one, other in INNER.items()}
    weights = {
        "vit.embeddings.cls_token": ours.class_token[None, None],
        "vit.embeddings.position_embeddings": ours.positions.table.weight[None],
    }
    return filled(transformers.ViTForImageClassification(config), weights | renamed(ours, names))


@pytest.mark.parametrize("batch", [1, 3])
@torch.no_grad()
def test_equals_transformers_on_equal_weights(batch: int) -> None:
    ours = build(lambda: VisionTransformer(**SIZES)).double()
    expected = reference(ours).double()(images(batch).double()).logits
    assert torch.allclose(ours(images(batch).double()), expected, atol=1e-6)
    assert expected.std() > 0.3


@torch.no_grad()
def test_one_changed_weight_is_noticed_by_the_comparison() -> None:
    ours = build(lambda: VisionTransformer(**SIZES))
    model = reference(ours)
    ours.patches.weight[0, 1, 2, 3] += 0.5
    assert not torch.allclose(ours(images(2)), model(images(2)).logits, atol=1e-4)


@torch.no_grad()
def test_every_pixel_reaches_the_class_token() -> None:
    ours, pixels = build(lambda: VisionTransformer(**SIZES)).double(), images(1).double()
    plain = ours(pixels)
    for row, column in ((0, 0), (0, 23), (11, 12), (23, 23)):
        changed = pixels.clone()
        changed[0, 1, row, column] += 1
        assert (ours(changed) - plain).abs().max() > 1e-4


@torch.no_grad()
def test_without_positions_the_order_of_the_patches_does_not_matter() -> None:
    ours, pixels = build(lambda: VisionTransformer(**SIZES)).double(), images(2).double()
    ours.positions.table.weight.zero_()
    swapped = pixels.clone()
    swapped[:, :, :8, :8], swapped[:, :, 16:, 8:16] = pixels[:, :, 16:, 8:16], pixels[:, :, :8, :8]
    assert torch.allclose(ours(swapped), ours(pixels), atol=1e-12)


@torch.no_grad()
def test_very_large_scores_stay_finite() -> None:
    ours = build(lambda: VisionTransformer(**SIZES))
    ours.get_parameter("layers.0.attention.project.query.weight").mul_(1e4)
    assert torch.isfinite(ours(images(2))).all()
