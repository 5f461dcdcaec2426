"""Transformer against torch's own layers on equal weights, pre-norm and post-norm."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch_layers import decoder_layer, encoder_layer, later

from attnport.models.base import build, get
from attnport.models.encoder_decoders import Transformer

SIZES = {"vocabulary": 53, "width": 48, "heads": 3, "layers": 2, "hidden": 80}
BOTH = pytest.mark.parametrize("norm_first", [False, True], ids=["post_norm", "pre_norm"])
Ids = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def feeds(batch: int = 3, seq: int = 11, target: int = 7) -> Ids:
    """Random ids; the second item has four tokens of padding on the right, where there is room."""
    generator = torch.Generator().manual_seed(seq)
    source, given = (torch.randint(0, 53, (batch, length), generator=generator) for length in (seq, target))
    mask = torch.ones_like(source)
    mask[1:2, max(1, seq - 4) :] = 0
    return source, mask, given


def sinusoids(T: int, width: int) -> torch.Tensor:
    """The paper's table, element by element."""
    table = np.zeros((T, width))
    for position in range(T):
        for at in range(0, width, 2):
            angle = position / 10000 ** (at / width)
            table[position, at : at + 2] = np.sin(angle), np.cos(angle)
    return torch.from_numpy(table)


def reference(
    ours: Transformer, norm_first: bool, source: torch.Tensor, mask: torch.Tensor, target: torch.Tensor
) -> torch.Tensor:
    """The scores by torch's layers, float64."""
    options = {"norm_first": norm_first, "activation": "relu"}
    embed = ours.tokens.weight.double()
    hidden = mask == 0
    memory = embed[source] * SIZES["width"] ** 0.5 + sinusoids(source.shape[1], SIZES["width"])
    for layer in ours.encoder:
        norms = [layer.attention_residual.norm, layer.feed_forward_residual.norm]
        memory = encoder_layer(layer.attention, norms, layer.feed_forward, SIZES, **options)(
            memory, src_key_padding_mask=hidden
        )
    x = embed[target] * SIZES["width"] ** 0.5 + sinusoids(target.shape[1], SIZES["width"])
    if norm_first:
        memory = torch.nn.functional.layer_norm(
            memory, (SIZES["width"],), ours.encoder_norm.weight, ours.encoder_norm.bias
        )
    for layer in ours.decoder:
        norms = [layer.attention_residual.norm, layer.cross_residual.norm, layer.feed_forward_residual.norm]
        attentions = [layer.attention, layer.cross_attention]
        x = decoder_layer(attentions, norms, layer.feed_forward, SIZES, **options)(
            x, memory, tgt_mask=later(x.shape[1]), memory_key_padding_mask=hidden
        )
    if norm_first:
        x = torch.nn.functional.layer_norm(x, (SIZES["width"],), ours.decoder_norm.weight, ours.decoder_norm.bias)
    return x @ embed.T


@BOTH
@pytest.mark.parametrize(("seq", "target"), [(11, 7), (1, 1), (5, 13)])
def test_equals_torchs_layers_on_equal_weights(norm_first: bool, seq: int, target: int) -> None:
    ours, given = build(lambda: Transformer(**SIZES, norm_first=norm_first)).double(), feeds(3, seq, target)
    with torch.no_grad():
        expected = reference(ours, norm_first, *given)
        assert torch.allclose(ours(*given), expected, atol=1e-10, rtol=0)
    assert expected.std() > 0.3


@BOTH
def test_one_changed_weight_is_noticed_by_the_comparison(norm_first: bool) -> None:
    ours, given = build(lambda: Transformer(**SIZES, norm_first=norm_first)).double(), feeds()
    with torch.no_grad():
        expected = reference(ours, norm_first, *given)
        ours.decoder[1].cross_attention.project.key.weight[0, 0] += 0.5
        assert (ours(*given) - expected).abs().max() > 1e-4


@BOTH
def test_a_source_without_any_token_leaves_the_target_alone(norm_first: bool) -> None:
    ours, (source, mask, target) = build(lambda: Transformer(**SIZES, norm_first=norm_first)), feeds()
    mask[0] = 0
    with torch.no_grad():
        whole = ours(source, mask, target)
        source[0] = (source[0] + 1) % 53
        assert torch.isfinite(whole).all()
        assert torch.equal(whole, ours(source, mask, target))


def test_the_default_is_post_norm_as_in_the_paper() -> None:
    assert isinstance(build(Transformer).encoder_norm, torch.nn.Identity)
    assert [str(mask) for mask in get("transformer").io.padding_masks()] == ["padding(source_mask)"]


def test_very_large_logits_stay_finite() -> None:
    ours, given = build(lambda: Transformer(**SIZES, norm_first=True)), feeds()
    with torch.no_grad():
        for layer in ours.encoder:
            layer.attention.project.query.weight.mul_(1e4)
        assert torch.isfinite(ours(*given)).all()
