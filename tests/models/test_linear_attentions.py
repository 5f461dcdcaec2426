"""Attentions of linear cost, against their formulas written out at full size, and against softmax attention."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from attention_reference import Array, attend, inputs, kept, project_out, query_key_value, run

from attnport.models import linear_attention as linear
from attnport.models import linformer_attention as linformer
from attnport.models import performer_attention as performer

LENGTHS = [1, 2, 5, 17, 40]


def phi(x: Array) -> Array:
    return np.where(x > 0, x + 1, np.exp(np.minimum(x, 0)))


@pytest.mark.parametrize("seq", LENGTHS)
@pytest.mark.parametrize("causal", [False, True])
def test_linear_attention_is_a_normalised_product_of_features(seq: int, causal: bool) -> None:
    module = linear.make(linear.LinearAttentionConfig(causal=causal))
    given = inputs(2, seq, right=seq // 3)
    q, k, v = query_key_value(module.project, given["x"])
    weights = np.einsum("bhsd,bhtd->bhst", phi(q), phi(k)) * kept(given)
    weights = np.tril(weights) if causal else weights
    mixed = np.einsum("bhst,bhtd->bhsd", weights / weights.sum(axis=-1, keepdims=True), v)
    np.testing.assert_allclose(run(module, **given), project_out(module.out, mixed), atol=1e-12)


def test_causal_linear_attention_is_causal() -> None:
    module, given = linear.make(linear.LinearAttentionConfig(causal=True)), inputs(1, 20)
    before = run(module, **given)
    given["x"][0, 11:] += 1.0
    after = run(module, **given)
    np.testing.assert_array_equal(after[0, :11], before[0, :11])
    assert (abs(after[0, 11:] - before[0, 11:]).max(axis=1) > 1e-3).all()


@pytest.mark.parametrize("make", [linear.make, performer.make])
def test_without_positions_a_permutation_of_the_tokens_permutes_the_output(make: type) -> None:
    module, given = make(), inputs(2, 13, right=3)
    order = torch.randperm(13, generator=torch.Generator().manual_seed(1))
    moved = {name: tensor[:, order] for name, tensor in given.items()}
    np.testing.assert_allclose(run(module, **moved), run(module, **given)[:, order.numpy()], atol=1e-12)


@pytest.mark.parametrize("seq", LENGTHS)
def test_linformer_attends_to_mixtures_of_a_sequence_filled_up_with_zeros(seq: int) -> None:
    module = linformer.make(linformer.LinformerConfig(positions=40, mixtures=7))
    given = inputs(2, seq, right=seq // 3)
    q, k, v = query_key_value(module.project, given["x"])
    keep = kept(given).transpose(0, 1, 3, 2)
    fill = [(0, 0), (0, 0), (0, 40 - seq), (0, 0)]
    mix_k, mix_v = (matrix.detach().double().numpy() for matrix in (module.mix_keys, module.mix_values))
    k, v = np.pad(k * keep, fill), np.pad(v * keep, fill)
    k, v = np.einsum("nk,bhnd->bhkd", mix_k, k), np.einsum("nk,bhnd->bhkd", mix_v, v)
    np.testing.assert_allclose(run(module, **given), project_out(module.out, attend(q, k, v, True)), atol=1e-12)


def test_linformer_with_a_mixture_for_each_token_is_full_attention() -> None:
    module, given = linformer.make(linformer.LinformerConfig(positions=9, mixtures=9)), inputs(2, 9)
    given["attention_mask"][:] = 1
    with torch.no_grad():
        module.mix_keys.copy_(torch.eye(9))
        module.mix_values.copy_(torch.eye(9))
    expected = project_out(module.out, attend(*query_key_value(module.project, given["x"]), True))
    np.testing.assert_allclose(run(module, **given), expected, atol=1e-12)


@pytest.mark.parametrize("seq", LENGTHS)
def test_performer_is_a_normalised_product_of_positive_features(seq: int) -> None:
    module, given = performer.make(performer.PerformerConfig(eps=0.0)), inputs(2, seq, right=seq // 3)
    q, k, v = query_key_value(module.project, given["x"])
    w = module.directions.detach().double().numpy()
    features = [np.exp(y @ w.T / 2 - (y**2).sum(axis=-1, keepdims=True) / 8) for y in (q, k)]  # D^(1/4) is 2
    weights = np.einsum("bhsm,bhtm->bhst", *features) * kept(given)
    mixed = np.einsum("bhst,bhtd->bhsd", weights / weights.sum(axis=-1, keepdims=True), v)
    np.testing.assert_allclose(run(module, **given), project_out(module.out, mixed), atol=1e-10)


def test_more_features_bring_performer_closer_to_softmax_attention() -> None:
    errors = []
    for features in (16, 256, 4096):
        given, wrong = inputs(2, 15, right=4), []
        for seed in range(3):
            module = performer.make(performer.PerformerConfig(features=features, eps=0.0), seed)
            expected = project_out(module.out, attend(*query_key_value(module.project, given["x"]), kept(given)))
            wrong.append(np.sqrt(((run(module, **given) - expected) ** 2).mean()))
        errors.append(float(np.mean(wrong)))
    assert errors[0] > 2 * errors[1] > 4 * errors[2]
    assert errors[2] < 0.05


def test_performers_directions_are_orthogonal_in_blocks_and_as_long_as_gaussian_vectors() -> None:
    directions = performer.make(performer.PerformerConfig(features=40)).directions.double()
    for block in (directions[:16], directions[16:32], directions[32:]):
        products = block @ block.T
        assert torch.allclose(products, torch.diag(products.diagonal()), atol=1e-5)
    assert 3.0 < directions.norm(dim=1).mean() < 5.0  # sqrt(16), about
