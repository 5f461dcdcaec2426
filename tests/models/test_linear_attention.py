"""Attentions of linear cost, against their formulas and softmax attention at full size; a state space in steps."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest
import torch
from attention_reference import Array, attend, inputs, kept, project_out, query_key_value, run
from torch import nn

from attnport.models.base import build, get
from attnport.models.linear_attention import LinearAttention, LinformerAttention, PerformerAttention, StateSpaceLayer

LENGTHS = [1, 2, 5, 17, 40]


def phi(x: Array) -> Array:
    return np.where(x > 0, x + 1, np.exp(np.minimum(x, 0)))


@pytest.mark.parametrize("seq", LENGTHS)
@pytest.mark.parametrize("causal", [False, True])
def test_linear_attention_is_a_normalised_product_of_features(seq: int, causal: bool) -> None:
    module = build(lambda: LinearAttention(causal=causal))
    given = inputs(2, seq, right=seq // 3)
    q, k, v = query_key_value(module.project, given["x"])
    weights = np.einsum("bhsd,bhtd->bhst", phi(q), phi(k)) * kept(given)
    weights = np.tril(weights) if causal else weights
    mixed = np.einsum("bhst,bhtd->bhsd", weights / weights.sum(axis=-1, keepdims=True), v)
    np.testing.assert_allclose(run(module, **given), project_out(module.out, mixed), atol=1e-12)


def test_causal_linear_attention_is_causal() -> None:
    module, given = build(lambda: LinearAttention(causal=True)), inputs(1, 20)
    before = run(module, **given)
    given["x"][0, 11:] += 1.0
    after = run(module, **given)
    np.testing.assert_array_equal(after[0, :11], before[0, :11])
    assert (abs(after[0, 11:] - before[0, 11:]).max(axis=1) > 1e-3).all()


@pytest.mark.parametrize("attention", [LinearAttention, PerformerAttention])
def test_without_positions_a_permutation_of_the_tokens_permutes_the_output(attention: type[nn.Module]) -> None:
    module, given = build(attention), inputs(2, 13, right=3)
    order = torch.randperm(13, generator=torch.Generator().manual_seed(1))
    moved = {name: tensor[:, order] for name, tensor in given.items()}
    np.testing.assert_allclose(run(module, **moved), run(module, **given)[:, order.numpy()], atol=1e-12)


@pytest.mark.parametrize("seq", LENGTHS)
def test_linformer_attends_to_mixtures_of_a_sequence_filled_up_with_zeros(seq: int) -> None:
    module = build(lambda: LinformerAttention(positions=40, mixtures=7))
    given = inputs(2, seq, right=seq // 3)
    q, k, v = query_key_value(module.project, given["x"])
    keep = kept(given).transpose(0, 1, 3, 2)
    fill = [(0, 0), (0, 0), (0, 40 - seq), (0, 0)]
    mix_k, mix_v = (matrix.detach().double().numpy() for matrix in (module.mix_keys, module.mix_values))
    k, v = np.pad(k * keep, fill), np.pad(v * keep, fill)
    k, v = np.einsum("nk,bhnd->bhkd", mix_k, k), np.einsum("nk,bhnd->bhkd", mix_v, v)
    np.testing.assert_allclose(run(module, **given), project_out(module.out, attend(q, k, v, True)), atol=1e-12)


def test_linformer_with_a_mixture_for_each_token_is_full_attention() -> None:
    module, given = build(lambda: LinformerAttention(positions=9, mixtures=9)), inputs(2, 9)
    given["attention_mask"][:] = 1
    with torch.no_grad():
        module.mix_keys.copy_(torch.eye(9))
        module.mix_values.copy_(torch.eye(9))
    expected = project_out(module.out, attend(*query_key_value(module.project, given["x"]), True))
    np.testing.assert_allclose(run(module, **given), expected, atol=1e-12)


@pytest.mark.parametrize("seq", LENGTHS)
def test_performer_is_a_normalised_product_of_positive_features(seq: int) -> None:
    module, given = build(lambda: PerformerAttention(eps=0.0)), inputs(2, seq, right=seq // 3)
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
            module = build(partial(PerformerAttention, features=features, eps=0.0), seed)
            expected = project_out(module.out, attend(*query_key_value(module.project, given["x"]), kept(given)))
            wrong.append(np.sqrt(((run(module, **given) - expected) ** 2).mean()))
        errors.append(float(np.mean(wrong)))
    assert errors[0] > 2 * errors[1] > 4 * errors[2]
    assert errors[2] < 0.05


def test_performers_directions_are_orthogonal_in_blocks_and_as_long_as_gaussian_vectors() -> None:
    directions = build(lambda: PerformerAttention(features=40)).directions.double()
    for block in (directions[:16], directions[16:32], directions[32:]):
        products = block @ block.T
        assert torch.allclose(products, torch.diag(products.diagonal()), atol=1e-5)
    assert 3.0 < directions.norm(dim=1).mean() < 5.0  # sqrt(16), about


STATE_SPACE = partial(StateSpaceLayer, width=6, states=4)


def sequence(batch: int, seq: int) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(batch, seq, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(seq))
    return x, torch.ones(batch, seq, dtype=torch.int64)


def recurrence(module: StateSpaceLayer, u: np.ndarray) -> np.ndarray:
    """x_t = A' x_(t-1) + B' u_t with A' = exp(dt A), B' = (A' - 1) / A; y_t = 2 Re(C x_t) + D u_t."""
    w = {name: value.detach().numpy() for name, value in module.state_dict().items()}
    A = -np.exp(w["kernel.log_decay"]) + 1j * w["kernel.frequency"]
    kept = np.exp(np.exp(w["kernel.log_step"]) * A)
    B, C = (kept - 1) / A, w["kernel.read_real"] + 1j * w["kernel.read_imag"]
    y = np.zeros_like(u)
    for b in range(u.shape[0]):
        x = np.zeros(A.shape, dtype=complex)
        for t in range(u.shape[1]):
            x = kept * x + B * u[b, t][:, None]
            y[b, t] = 2 * (C * x).real.sum(axis=1) + w["skip"] * u[b, t]
    y = y * (1 + np.vectorize(math.erf)(y / math.sqrt(2))) / 2
    out, gate = np.split(y @ w["out.weight"].T + w["out.bias"], 2, axis=-1)
    return np.asarray(out / (1 + np.exp(-gate)))


@pytest.mark.parametrize("seq", [1, 2, 17, 150])
@torch.no_grad()
def test_a_state_space_layer_equals_its_recurrence(seq: int) -> None:
    module, (x, mask) = build(STATE_SPACE).double(), sequence(2, seq)
    expected = recurrence(module, x.numpy())
    assert np.allclose(module(x, mask).numpy(), expected, atol=1e-10)
    assert expected.std() > 0.1


@torch.no_grad()
def test_one_changed_decay_is_noticed_by_the_comparison() -> None:
    module, (x, mask) = build(STATE_SPACE).double(), sequence(2, 30)
    expected = recurrence(module, x.numpy())
    module.kernel.log_decay[2, 1] += 2
    assert np.abs(module(x, mask).numpy() - expected).max() > 1e-3


@torch.no_grad()
def test_a_later_position_changes_nothing_before_it_and_an_earlier_one_is_remembered() -> None:
    module, (x, mask) = build(STATE_SPACE), sequence(2, 40)
    x = x.float()
    later, earlier = x.clone(), x.clone()
    later[:, 20:] += 1
    earlier[:, 0] += 10
    before = module(x, mask)
    assert torch.allclose(module(later, mask)[:, :20], before[:, :20], atol=1e-6)
    assert (module(earlier, mask)[:, 30] - before[:, 30]).abs().max() > 1e-3


@pytest.mark.parametrize("side", ["left", "right"])
@torch.no_grad()
def test_padding_on_either_side_is_as_if_it_were_not_there(side: str) -> None:
    module, (x, mask) = build(STATE_SPACE).double(), sequence(2, 25)
    own = slice(5, None) if side == "left" else slice(0, 20)
    mask[:] = 0
    mask[:, own] = 1
    assert torch.allclose(module(x, mask)[:, own], module(x[:, own], mask[:, own]), atol=1e-12)


@torch.no_grad()
def test_half_precision_keeps_the_kernels_angles() -> None:
    module, (x, mask) = build(STATE_SPACE), sequence(1, 300)
    exact = module.kernel(300)
    rough = module.half().kernel(300)
    assert rough.dtype == torch.float32
    assert (rough - exact).abs().max() < 0.2 * exact.abs().max()
    assert torch.isfinite(module(x.half(), mask)).all()


def test_there_is_no_attention_in_a_state_space_layer() -> None:
    from attnport.exporter.capture import capture

    spec = get("state_space_layer")
    assert capture(spec.make(), spec.io).attentions == ()
