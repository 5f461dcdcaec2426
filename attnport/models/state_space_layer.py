"""S4D, a diagonal state space layer in its convolution form: the literature's alternative to attention.

Gu, Gupta, Goel, Re, "On the Parameterization and Initialization of Diagonal State Space Models" (2022), after Gu, Goel,
Re, "Efficiently Modeling Long Sequences with Structured State Spaces" (2021, S4). Every channel of u [B, T, E] drives N
complex states, x' = A x + u, and reads them, y = 2 Re(C x) + D u. With u constant over steps of length dt, this is a
causal convolution:

    K[l] = 2 Re(sum_n C_n (exp(dt A_n) - 1) / A_n exp(l dt A_n))
    y[t] = sum_(j <= t) K[t - j] u[j] + D u[t]

with A_n = -1/2 + i pi n initially (S4D-Lin). A GELU and a projection with a gate (GLU) follow. Padding is set to zero
before the convolution, so that padding on either side has no effect.

The convolution is written as a product with the Toeplitz matrix of K, because a Fourier transform is an operator that
few runtimes have. Complex numbers are written as their real and imaginary parts. The kernel is computed in float32 at
least: in half precision the angle l dt Im(A) is not known to a turn.

Cost: 2 B T^2 E + 4 B T E^2 floating-point operations, and E T^2 numbers in memory; by a fast Fourier transform the
first term would be of order B T E log T.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import nn

from attnport.artifacts import ModelSpec
from attnport.models.blocks.model import build, model_spec, sequence_contract


@dataclass(frozen=True)
class StateSpaceConfig:
    """Sizes: `width` is E, `states` is N; steps begin between `shortest` and `longest` (0.001 and 0.1 in the paper)."""

    width: int = 32
    states: int = 8
    shortest: float = 0.01
    longest: float = 0.2


class DiagonalKernel(nn.Module):
    """The convolution kernels of the channels, each from a diagonal state space."""

    def __init__(self, config: StateSpaceConfig) -> None:
        super().__init__()
        low, high, shape = math.log(config.shortest), math.log(config.longest), (config.width, config.states)
        self.log_step = nn.Parameter(low + (high - low) * torch.rand(config.width, 1))
        self.log_decay = nn.Parameter(torch.full(shape, math.log(0.5)))
        self.frequency = nn.Parameter(math.pi * torch.arange(config.states).float().repeat(config.width, 1))
        self.read_real = nn.Parameter(torch.randn(shape))
        self.read_imag = nn.Parameter(torch.randn(shape))

    def forward(self, T: int) -> torch.Tensor:
        """K [E, T]."""
        wide = torch.promote_types(self.log_step.dtype, torch.float32)
        a_real_EN, a_imag_EN, step_E1 = (
            -self.log_decay.to(wide).exp(),
            self.frequency.to(wide),
            self.log_step.to(wide).exp(),
        )
        decay_EN, angle_EN = a_real_EN * step_E1, a_imag_EN * step_E1
        # (exp(dt A) - 1) / A, then times C.
        turn_real_EN, turn_imag_EN = decay_EN.exp() * angle_EN.cos() - 1, decay_EN.exp() * angle_EN.sin()
        square_EN = a_real_EN.square() + a_imag_EN.square()
        drive_real_EN = (turn_real_EN * a_real_EN + turn_imag_EN * a_imag_EN) / square_EN
        drive_imag_EN = (turn_imag_EN * a_real_EN - turn_real_EN * a_imag_EN) / square_EN
        c_real_EN = drive_real_EN * self.read_real - drive_imag_EN * self.read_imag
        c_imag_EN = drive_real_EN * self.read_imag + drive_imag_EN * self.read_real

        l_T = torch.arange(T, device=step_E1.device).to(wide)
        size_ENT, turned_ENT = (decay_EN[..., None] * l_T).exp(), angle_EN[..., None] * l_T
        wave_ENT = c_real_EN[..., None] * turned_ENT.cos() - c_imag_EN[..., None] * turned_ENT.sin()
        return 2 * (size_ENT * wave_ENT).sum(dim=1)


class StateSpaceLayer(nn.Module):
    """The convolution, a skip connection, a GELU and a gated projection."""

    def __init__(self, config: StateSpaceConfig) -> None:
        super().__init__()
        self.kernel = DiagonalKernel(config)
        self.skip = nn.Parameter(torch.randn(config.width))
        self.out = nn.Linear(config.width, 2 * config.width)

    def forward(self, x: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Maps a sequence to a sequence; a position depends on those before it and on itself.

        Args:
            x: [B, T, E].
            attention_mask: int64 [B, T], 1 for a real position and 0 for padding on either side.

        Returns:
            [B, T, E].
        """
        u_BTE = x * attention_mask[..., None].to(x.dtype)
        at_T = torch.arange(x.shape[1], device=x.device)
        lag_TT = at_T[:, None] - at_T[None, :]
        toeplitz_ETT = torch.where(lag_TT >= 0, self.kernel(x.shape[1])[:, lag_TT.clamp(min=0)], 0.0).to(x.dtype)
        y_BTE = (toeplitz_ETT @ u_BTE.permute(2, 1, 0)).permute(2, 1, 0) + self.skip * u_BTE
        return nn.functional.glu(self.out(nn.functional.gelu(y_BTE)), dim=-1)


def make(config: StateSpaceConfig = StateSpaceConfig(), seed: int = 0) -> StateSpaceLayer:
    """A `StateSpaceLayer` in float32 and eval mode with random weights; the same seed gives the same weights."""
    return build(lambda: StateSpaceLayer(config), seed)


def spec(config: StateSpaceConfig = StateSpaceConfig(), seed: int = 0) -> ModelSpec:
    """The ModelSpec of a layer of any size."""
    return model_spec(__name__, sequence_contract(config.width, positions="none"), lambda: make(config, seed))


SPEC = spec()
