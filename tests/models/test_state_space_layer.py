"""StateSpaceLayer against the recurrence that its convolution unrolls, complex and step by step in float64."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from attnport.models.state_space_layer import SPEC, StateSpaceConfig, StateSpaceLayer, make

CONFIG = StateSpaceConfig(width=6, states=4)


def given(batch: int, seq: int) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(batch, seq, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(seq))
    return x, torch.ones(batch, seq, dtype=torch.int64)


def reference(module: StateSpaceLayer, u: np.ndarray) -> np.ndarray:
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
def test_equals_the_recurrence(seq: int) -> None:
    module, (x, mask) = make(CONFIG).double(), given(2, seq)
    expected = reference(module, x.numpy())
    assert np.allclose(module(x, mask).numpy(), expected, atol=1e-10)
    assert expected.std() > 0.1


@torch.no_grad()
def test_one_changed_decay_is_noticed_by_the_comparison() -> None:
    module, (x, mask) = make(CONFIG).double(), given(2, 30)
    expected = reference(module, x.numpy())
    module.kernel.log_decay[2, 1] += 2
    assert np.abs(module(x, mask).numpy() - expected).max() > 1e-3


@torch.no_grad()
def test_a_later_position_changes_nothing_before_it_and_an_earlier_one_is_remembered() -> None:
    module, (x, mask) = make(CONFIG), given(2, 40)
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
    module, (x, mask) = make(CONFIG).double(), given(2, 25)
    own = slice(5, None) if side == "left" else slice(0, 20)
    mask[:] = 0
    mask[:, own] = 1
    assert torch.allclose(module(x, mask)[:, own], module(x[:, own], mask[:, own]), atol=1e-12)


@torch.no_grad()
def test_half_precision_keeps_the_kernels_angles() -> None:
    module, (x, mask) = make(CONFIG), given(1, 300)
    exact = module.kernel(300)
    rough = module.half().kernel(300)
    assert rough.dtype == torch.float32
    assert (rough - exact).abs().max() < 0.2 * exact.abs().max()
    assert torch.isfinite(module(x.half(), mask)).all()


def test_there_is_no_attention_in_it() -> None:
    from attnport.exporter.capture import capture

    assert capture(SPEC.make(), SPEC.io).attentions == ()
