"""What costs less than attention, or is no attention: sums instead of a softmax, fewer keys, a state space."""

from __future__ import annotations

import math

import torch
from torch import nn

from attnport.models.base import CAUSAL, PADDING, model, sequence_contract
from attnport.models.blocks import ProjectedAttention


@model(
    "linear_attention",
    lambda sizes: sequence_contract(sizes.width, masks=(PADDING, CAUSAL) if sizes.causal else (PADDING,)),
)
class LinearAttention(ProjectedAttention):
    """Linear attention: a product of feature maps instead of a softmax, so that keys and values are summed only once.

    Katharopoulos, Vyas, Pappas, Fleuret, "Transformers are RNNs: Fast Autoregressive Transformers with Linear
    Attention" (2020), section 3. With phi(x) = elu(x) + 1, on x [B, T, E] in H heads of D:

        y_i = Wo phi(q_i) S_i / (phi(q_i) z_i)        S_i = sum_j phi(k_j) v_j^T [D, D], z_i = sum_j phi(k_j)

    over all j, or over the j <= i in the causal form, whose S_i are running sums. Padded keys have a phi of zero.

    Cost: 8 B T E^2 + 4 B T E D floating-point operations, in memory B H D^2 numbers, or B H T D^2 for all running sums
    of the causal form; full attention takes 4 B T^2 E operations in place of the second term.

    Args:
        width: E.
        heads: H.
        causal: From every token to those up to itself, not to all.
    """

    def __init__(self, width: int = 64, heads: int = 4, causal: bool = False) -> None:
        super().__init__(width, heads)
        self.causal = causal

    def forward(self, x: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Attends from every token to all, or to the earlier ones, that are not padding.

        Args:
            x: [B, T, E].
            attention_mask: [B, T], 0 for padding; a row of padding only gives zero before the projection.
        """
        q_BHTD, k_BHTD, v_BHTD = self.project(x)
        keep_B1T1 = attention_mask[:, None, :, None].to(x.dtype)
        q_BHTD, k_BHTD = features(q_BHTD), features(k_BHTD) * keep_B1T1
        mixed_BHTD = (self.running if self.causal else self.whole)(q_BHTD, k_BHTD, v_BHTD)
        return self.merge(mixed_BHTD)

    def whole(self, q_BHTD: torch.Tensor, k_BHTD: torch.Tensor, v_BHTD: torch.Tensor) -> torch.Tensor:
        """Every query with the sums over all keys."""
        sum_BHDD = k_BHTD.mT @ v_BHTD
        norm_BHD1 = k_BHTD.sum(dim=2)[..., None]
        return quotient(q_BHTD @ sum_BHDD, q_BHTD @ norm_BHD1)

    def running(self, q_BHTD: torch.Tensor, k_BHTD: torch.Tensor, v_BHTD: torch.Tensor) -> torch.Tensor:
        """Every query with the sums over the keys up to its own."""
        sums_BHTDD = (k_BHTD[..., None] * v_BHTD[..., None, :]).cumsum(dim=2)
        norms_BHTD = k_BHTD.cumsum(dim=2)
        mixed_BHTD = (q_BHTD[..., None, :] @ sums_BHTDD)[..., 0, :]
        return quotient(mixed_BHTD, (q_BHTD * norms_BHTD).sum(dim=-1, keepdim=True))


def features(x: torch.Tensor) -> torch.Tensor:
    """elu(x) + 1, which is positive everywhere."""
    return nn.functional.elu(x) + 1


def quotient(sum_BHTD: torch.Tensor, norm_BHT1: torch.Tensor) -> torch.Tensor:
    """The sums divided by their norms; zero if no key is allowed, where both are zero."""
    return sum_BHTD / torch.where(norm_BHT1 > 0, norm_BHT1, 1.0)


@model("performer_attention", lambda sizes: sequence_contract(sizes.width))
class PerformerAttention(ProjectedAttention):
    """Performer: softmax attention estimated by random features (FAVOR+), in time linear in the length.

    Choromanski et al., "Rethinking Attention with Performers" (2021), sections 2.3 and 2.4. The softmax kernel is the
    mean over Gaussian w of products of positive features,

        exp(q k / sqrt(D)) = E_w [f_w(q') f_w(k')]     f_w(x) = exp(w x - |x|^2 / 2), q' = q / D^(1/4), k' = k / D^(1/4)

    here over M fixed rows w, orthogonal in blocks of D, with the lengths of Gaussian vectors. With F the M features:

        y_i = Wo F(q'_i) S / (F(q'_i) z)        S = sum_j F(k'_j) v_j^T [M, D], z = sum_j F(k'_j)

    The largest exponent is subtracted first, per query and, for keys, per head; the factor cancels in the quotient. The
    error falls as 1 / sqrt(M) and grows with the length of q and k.

    Cost: 8 B T E^2 + 8 B T M E floating-point operations and 2 B H T M features, against 8 B T E^2 + 4 B T^2 E and B H
    T^2 scores of full attention.

    Args:
        width: E.
        heads: H.
        features: M.
        eps: Added to each feature, as in the authors' code.
    """

    directions: torch.Tensor  # [M, D]

    def __init__(self, width: int = 64, heads: int = 4, features: int = 64, eps: float = 1e-4) -> None:
        super().__init__(width, heads)
        self.eps = eps
        self.register_buffer("directions", draw_directions(features, width // heads))

    def forward(self, x: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Attends from every token to all that are not padding.

        Args:
            x: [B, T, E].
            attention_mask: [B, T], 0 for padding; a row of padding only gives zero before the projection.
        """
        q_BHTD, k_BHTD, v_BHTD = self.project(x)
        keep_B1T1 = attention_mask[:, None, :, None].bool()
        q_BHTM, k_BHTM = self.exponents(q_BHTD), self.exponents(k_BHTD)
        # Padded keys must not decide what is subtracted: the weight of `eps` would then depend on the padding.
        largest_BH11 = k_BHTM.masked_fill(~keep_B1T1, torch.finfo(x.dtype).min).amax(dim=(2, 3), keepdim=True)
        q_BHTM = (q_BHTM - q_BHTM.amax(dim=-1, keepdim=True)).exp() + self.eps
        k_BHTM = torch.where(keep_B1T1, (k_BHTM - largest_BH11).exp() + self.eps, 0.0)
        sum_BHMD, norm_BHM1 = k_BHTM.mT @ v_BHTD, k_BHTM.sum(dim=2)[..., None]
        norm_BHT1 = q_BHTM @ norm_BHM1
        mixed_BHTD = (q_BHTM @ sum_BHMD) / torch.where(norm_BHT1 > 0, norm_BHT1, 1.0)
        return self.merge(mixed_BHTD)

    def adjust_random_weights(self) -> None:
        """Halves those of queries and keys, which keeps the estimate's error small at few features."""
        for projection in (self.project.query, self.project.key):
            projection.weight.mul_(0.5)

    def exponents(self, x_BHTD: torch.Tensor) -> torch.Tensor:
        """w x' - |x'|^2 / 2 of every direction w, [B, H, T, M]."""
        x_BHTD = x_BHTD * x_BHTD.shape[-1] ** -0.25
        along_BHTM: torch.Tensor = x_BHTD @ self.directions.mT
        return along_BHTM - x_BHTD.square().sum(dim=-1, keepdim=True) / 2


def draw_directions(features: int, depth: int) -> torch.Tensor:
    """M rows [M, D], orthogonal in blocks of D, each as long as a Gaussian vector; from torch's global generator."""
    blocks = [torch.linalg.qr(torch.randn(depth, depth)).Q for _ in range(-(-features // depth))]
    lengths_M1: torch.Tensor = torch.randn(features, depth).norm(dim=1, keepdim=True)
    return torch.cat(blocks)[:features] * lengths_M1


@model("linformer_attention", lambda sizes: sequence_contract(sizes.width, limit=sizes.positions))
class LinformerAttention(ProjectedAttention):
    """Linformer: keys and values are projected to a fixed number of mixtures of tokens, so that cost is linear.

    Wang, Li, Khabsa, Fang, Ma, "Linformer: Self-Attention with Linear Complexity" (2020), section 4. With learned E and
    F [N, K] over positions up to N, shared by all heads:

        k' = E^T k, v' = F^T v        from T keys to K
        y_i = Wo softmax(q_i k'^T / sqrt(D)) v'

    A shorter sequence uses the first T rows of E and F, with the same result as padding to N with zeros; padded keys
    and values are set to zero, so that they add nothing. Since a mixture includes tokens of all positions, there is no
    causal form. Cost: 8 B T E^2 + 8 B T K E floating-point operations, and B H T K scores, against 8 B T E^2 + 4 B T^2
    E and B H T^2 of full attention.

    Args:
        width: E.
        heads: H.
        positions: N, the longest sequence.
        mixtures: K.
    """

    def __init__(self, width: int = 64, heads: int = 4, positions: int = 512, mixtures: int = 32) -> None:
        super().__init__(width, heads)
        shape, deviation = (positions, mixtures), mixtures**-0.5
        self.mix_keys = nn.Parameter(torch.randn(shape) * deviation)
        self.mix_values = nn.Parameter(torch.randn(shape) * deviation)

    def forward(self, x: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Attends from every token to all mixtures.

        Args:
            x: [B, T, E], T at most N.
            attention_mask: [B, T], 0 for padding; a row of padding only gives zero.
        """
        q_BHTD, k_BHTD, v_BHTD = self.project(x)
        keep_B1T1 = attention_mask[:, None, :, None].to(x.dtype)
        T = x.shape[1]
        k_BHKD, v_BHKD = (
            mix_NK[:T].mT @ (y_BHTD * keep_B1T1)
            for mix_NK, y_BHTD in ((self.mix_keys, k_BHTD), (self.mix_values, v_BHTD))
        )
        mixed_BHTD = nn.functional.scaled_dot_product_attention(q_BHTD, k_BHKD, v_BHKD)
        return self.merge(mixed_BHTD)


class DiagonalKernel(nn.Module):
    """The convolution kernels of the channels, each from a diagonal state space."""

    def __init__(self, width: int, states: int, shortest: float, longest: float) -> None:
        super().__init__()
        low, high, shape = math.log(shortest), math.log(longest), (width, states)
        self.log_step = nn.Parameter(low + (high - low) * torch.rand(width, 1))
        self.log_decay = nn.Parameter(torch.full(shape, math.log(0.5)))
        self.frequency = nn.Parameter(math.pi * torch.arange(states).float().repeat(width, 1))
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


@model("state_space_layer", lambda sizes: sequence_contract(sizes.width, positions="none"))
class StateSpaceLayer(nn.Module):
    """S4D, a diagonal state space layer in its convolution form: the literature's alternative to attention.

    Gu, Gupta, Goel, Re, "On the Parameterization and Initialization of Diagonal State Space Models" (2022), after Gu,
    Goel, Re, "Efficiently Modeling Long Sequences with Structured State Spaces" (2021, S4). Every channel of u
    [B, T, E] drives N complex states, x' = A x + u, and reads them, y = 2 Re(C x) + D u. With u constant over steps of
    length dt, this is a causal convolution:

        K[l] = 2 Re(sum_n C_n (exp(dt A_n) - 1) / A_n exp(l dt A_n))
        y[t] = sum_(j <= t) K[t - j] u[j] + D u[t]

    with A_n = -1/2 + i pi n initially (S4D-Lin). A GELU and a projection with a gate (GLU) follow. Padding is set to
    zero before the convolution, so that padding on either side has no effect.

    The convolution is written as a product with the Toeplitz matrix of K, because a Fourier transform is an operator
    that few runtimes have. Complex numbers are written as their real and imaginary parts. The kernel is computed in
    float32 at least: in half precision the angle l dt Im(A) is not known to a turn.

    Cost: 2 B T^2 E + 4 B T E^2 floating-point operations, and E T^2 numbers in memory; by a fast Fourier transform the
    first term would be of order B T E log T.

    Args:
        width: E.
        states: N.
        shortest: The length of the shortest steps at first; 0.001 in the paper.
        longest: The length of the longest steps at first; 0.1 in the paper.
    """

    def __init__(self, width: int = 32, states: int = 8, shortest: float = 0.01, longest: float = 0.2) -> None:
        super().__init__()
        self.kernel = DiagonalKernel(width, states, shortest, longest)
        self.skip = nn.Parameter(torch.randn(width))
        self.out = nn.Linear(width, 2 * width)

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
