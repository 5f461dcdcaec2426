"""Parts that several models share: projections and heads, attention, positions, norms, feed-forwards and layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from attnport.masks import torch_builders as masks
from attnport.masks.torch_biases import t5_bias

# --- attention ----------------------------------------------------------------------------------------------------


def split_heads(x_BTE: torch.Tensor, heads: int) -> torch.Tensor:
    """[B, T, H D] to [B, H, T, D]: the first D numbers of a token are those of head 0."""
    return torch.unflatten(x_BTE, -1, (heads, -1)).transpose(1, 2)


def merge_heads(x_BHTD: torch.Tensor) -> torch.Tensor:
    """[B, H, T, D] to [B, T, H D], the reverse of `split_heads`."""
    return x_BHTD.transpose(1, 2).flatten(2)


class QueryKeyValue(nn.Module):
    """Three projections, each split into heads (Vaswani et al. 2017, section 3.2.2).

    Args:
        width: Model dim E.
        heads: H.
        groups: G, the heads of keys and values, a divisor of H; None = H.
        depth: Head dim D; None = E / H.
        bias: Whether the projections have a bias.
    """

    def __init__(
        self, width: int, heads: int, *, groups: int | None = None, depth: int | None = None, bias: bool = True
    ) -> None:
        super().__init__()
        self.heads, self.groups = heads, groups or heads
        depth = depth or width // heads
        self.query = nn.Linear(width, heads * depth, bias=bias)
        self.key = nn.Linear(width, self.groups * depth, bias=bias)
        self.value = nn.Linear(width, self.groups * depth, bias=bias)

    def forward(
        self, x_BSE: torch.Tensor, memory_BTE: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """q [B, H, S, D] of `x_BSE`; k and v [B, G, T, D] of `memory_BTE`, or of `x_BSE` if that is None."""
        read_BTE = x_BSE if memory_BTE is None else memory_BTE
        q_BHSD = split_heads(self.query(x_BSE), self.heads)
        k_BGTD, v_BGTD = (split_heads(project(read_BTE), self.groups) for project in (self.key, self.value))
        return q_BHSD, k_BGTD, v_BGTD


class ProjectedAttention(nn.Module):
    """The base class of attentions with projections: `forward` of a derived class calls `project` and `merge`.

    Args:
        width: Model dim E.
        heads: H.
        groups: G, the heads of keys and values, a divisor of H; None = H.
        depth: Head dim D; None = E / H.
        bias: Whether the four projections have a bias.
    """

    def __init__(
        self, width: int, heads: int, *, groups: int | None = None, depth: int | None = None, bias: bool = True
    ) -> None:
        super().__init__()
        self.project = QueryKeyValue(width, heads, groups=groups, depth=depth, bias=bias)
        self.out = nn.Linear(heads * (depth or width // heads), width, bias=bias)

    def merge(self, mixed_BHSD: torch.Tensor) -> torch.Tensor:
        """`Wo concat_h mixed_h`: [B, H, S, D] to [B, S, E]."""
        y_BSE: torch.Tensor = self.out(merge_heads(mixed_BHSD))
        return y_BSE


class MultiHeadAttention(ProjectedAttention):
    """`Wo softmax(q k^T / sqrt(D) + mask) v`, q of x and k, v of memory (Vaswani et al. 2017, section 3.2.2).

    Args:
        width: Model dim E.
        heads: H.
        depth: Head dim D; None: E / H.
        bias: Whether the projections have one.
        scale: What scores are multiplied by; None: 1 / sqrt(D).
    """

    def __init__(
        self, width: int, heads: int, *, depth: int | None = None, bias: bool = True, scale: float | None = None
    ) -> None:
        super().__init__(width, heads, depth=depth, bias=bias)
        self.scale = scale

    def forward(self, x_BSE: torch.Tensor, memory_BTE: torch.Tensor, mask_BHST: torch.Tensor | None) -> torch.Tensor:
        """Attends from every position of `x_BSE` to the allowed ones of `memory_BTE`; returns [B, S, E].

        Args:
            x_BSE: The sequence of the queries.
            memory_BTE: The sequence of the keys and values; `x_BSE` again for self-attention.
            mask_BHST: True where a key may be attended to, or a bias that is -inf where it may not. B, H and S may be
                1; None allows every key. A row with no allowed key gives zero before the output projection.
        """
        q_BHSD, k_BHTD, v_BHTD = self.project(x_BSE, memory_BTE)
        mixed_BHSD = nn.functional.scaled_dot_product_attention(
            q_BHSD, k_BHTD, v_BHTD, attn_mask=mask_BHST, scale=self.scale
        )
        return self.merge(mixed_BHSD)


class MaskedAttention(ProjectedAttention):
    """The base class of self-attentions: a derived class has a `mask` of its own, and may change `vectors` and `scale`.

    Attributes:
        scale: What scores are multiplied by; None: 1 / sqrt(D).
    """

    scale: float | None = None

    def forward(self, x: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Attends from every token to those that `mask` allows.

        Args:
            x: [B, T, E].
            attention_mask: int64 [B, T], 1 for a real token and 0 for padding, which may be anywhere. A token that sees
                no other, nor itself, gets zero before the output projection.

        Returns:
            [B, T, E].
        """
        mask_BHTT = self.mask(x, attention_mask)
        q_BHTD, k_BGTD, v_BGTD = self.vectors(x)
        shared = self.project.groups < self.project.heads
        mixed_BHTD = nn.functional.scaled_dot_product_attention(
            q_BHTD, k_BGTD, v_BGTD, attn_mask=mask_BHTT, scale=self.scale, enable_gqa=shared
        )
        return self.merge(mixed_BHTD)

    def vectors(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The queries [B, H, T, D], and the keys and values [B, G, T, D], of `x` [B, T, E]."""
        q_BHTD, k_BGTD, v_BGTD = self.project(x)
        return q_BHTD, k_BGTD, v_BGTD

    def mask(self, x: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """True where a key may be attended to, or a bias that is -inf where it may not; B, H and the first T may be 1.

        Args:
            x: As in `forward`.
            attention_mask: As in `forward`.
        """
        raise NotImplementedError


def causal_and_padding(attention_mask_BT: torch.Tensor) -> torch.Tensor:
    """Allows a token those up to its own that are not padding, bool [B, 1, T, T]; the argument is 0 for padding."""
    T = attention_mask_BT.shape[1]
    return masks.combine(masks.causal(T, T, device=attention_mask_BT.device), masks.padding(attention_mask_BT))


class T5Attention(MultiHeadAttention):
    """`Wo softmax(q k^T + mask) v`, q of x and k, v of memory (Raffel et al. 2020, and its code).

    The factor 1 / sqrt(D) of other models is in T5's initial weights: those of q have variance 1 / (E D).

    Args:
        width: Model dim E.
        heads: H.
        depth: Head dim D; H D need not be E.
    """

    def __init__(self, width: int, heads: int, depth: int) -> None:
        super().__init__(width, heads, depth=depth, bias=False, scale=1.0)
        self.depth = depth

    def adjust_random_weights(self) -> None:
        """Divides those of q by sqrt(D): from variance 1 / E to T5's."""
        self.project.query.weight.mul_(self.depth**-0.5)


# --- positions --------------------------------------------------------------------------------------------------------


class Frequencies(nn.Module):
    """`base^(-2i/D)` for i < D/2, in float64 whatever the module is cast to: in half precision angles would be wrong.

    A buffer, and not numbers in the code: on a GPU those are copied there in each call, for which the host waits.
    """

    table: torch.Tensor

    def __init__(self, depth: int, base: float = 10000.0) -> None:
        super().__init__()
        numbers = torch.tensor([base ** (-even / depth) for even in range(0, depth, 2)], dtype=torch.float64)
        self.register_buffer("table", numbers, persistent=False)

    def forward(self, dtype: torch.dtype) -> torch.Tensor:
        """[F] in a type."""
        return self.table.to(dtype)

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Any:
        before = self.table
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        if self.table.dtype != before.dtype:
            self.table = before.to(self.table.device)
        return self


class LearnedPositions(nn.Module):
    """A table of position vectors; position t of a sequence gets row t, whether it is padding or not.

    Args:
        limit: The longest sequence, which is the number of vectors.
        width: Model dim E.
    """

    def __init__(self, limit: int, width: int) -> None:
        super().__init__()
        self.table = nn.Embedding(limit, width)

    def forward(self, x_BTE: torch.Tensor) -> torch.Tensor:
        """Adds the position vectors to `x_BTE`; T may not exceed the limit."""
        # The length is the size of a tensor, not a number of the configuration, so that T stays dynamic at export.
        positions_T = torch.arange(x_BTE.shape[1], device=x_BTE.device)
        added: torch.Tensor = x_BTE + self.table(positions_T)
        return added


class SinusoidalPositions(nn.Module):
    """`PE[p, 2i] = sin(p / base^(2i/E))`, `PE[p, 2i+1] = cos(p / base^(2i/E))` (Vaswani et al. 2017, section 3.5).

    Sequences may have any length. The angles are computed in float32 or wider, since in half precision integers above
    2048 are not exact.

    Args:
        width: Model dim E, even.
        base: 10000 in the paper.
    """

    def __init__(self, width: int, base: float = 10000.0) -> None:
        super().__init__()
        self.frequencies = Frequencies(width, base)

    def forward(self, x_BTE: torch.Tensor, offset: int = 0) -> torch.Tensor:
        """Adds the position vectors to `x_BTE`, whose first token is at position `offset`."""
        dtype = torch.promote_types(x_BTE.dtype, torch.float32)
        positions_T = torch.arange(x_BTE.shape[1], device=x_BTE.device) + offset
        angles_TF = positions_T[:, None].to(dtype) * self.frequencies(dtype)
        encoding_TE = torch.stack([angles_TF.sin(), angles_TF.cos()], dim=-1).flatten(-2)
        return x_BTE + encoding_TE.to(x_BTE.dtype)


class RotaryPositions(nn.Module):
    """Rotates the pairs `(x[i], x[i + D/2])` of every head by `p base^(-2i/D)` (Su et al. 2021, "RoFormer").

    The product of a query and a key then depends only on the distance of their positions. The paper rotates pairs of
    neighbours, `(x[2i], x[2i+1])`; pairs of halves, as in GPT-NeoX and LLaMA, are the same up to the order of the
    weights' rows. The angles are computed in float32 or wider: in half precision integers above 2048 are not exact.

    Args:
        depth: Head dim D, even.
        base: 10000 in the paper.
    """

    def __init__(self, depth: int, base: float = 10000.0) -> None:
        super().__init__()
        self.frequencies = Frequencies(depth, base)

    def forward(self, x_BHTD: torch.Tensor, offset: int | torch.Tensor = 0) -> torch.Tensor:
        """Rotates queries or keys; `offset` is the position of the first one (with a cache: its length).

        An offset may be [B, 1, 1, 1], with a number for each item.
        """
        dtype = torch.promote_types(x_BHTD.dtype, torch.float32)
        positions_T1 = torch.arange(x_BHTD.shape[2], device=x_BHTD.device)[:, None] + offset
        angles_TF = positions_T1.to(dtype) * self.frequencies(dtype)
        cos_TF, sin_TF = angles_TF.cos().to(x_BHTD.dtype), angles_TF.sin().to(x_BHTD.dtype)
        first_BHTF, second_BHTF = x_BHTD.chunk(2, dim=-1)
        return torch.cat(
            [first_BHTF * cos_TF - second_BHTF * sin_TF, second_BHTF * cos_TF + first_BHTF * sin_TF], dim=-1
        )


class RelativePositions(nn.Module):
    """`bias[h, i, j] = table[bucket(j - i), h]` (Raffel et al. 2020, section 2.1, and its code).

    Each near distance has its own bucket; farther ones share buckets of logarithmic width, and all beyond
    `max_distance` share the last.

    Args:
        heads: H.
        buckets: Rows of the table; if `bidirectional`, half of them are for later keys.
        max_distance: The distance at which the last bucket begins.
        bidirectional: False in decoders, where later keys are hidden.
    """

    def __init__(self, heads: int, buckets: int = 32, max_distance: int = 128, bidirectional: bool = True) -> None:
        super().__init__()
        self.table = nn.Embedding(buckets, heads)
        self.max_distance = max_distance
        self.bidirectional = bidirectional

    def forward(self, S: int, T: int, alignment: str = "upper_left") -> torch.Tensor:
        """The bias of S queries and T keys, [1, H, S, T]; `lower_right`: the last query is at the last key."""
        return t5_bias(
            self.table.weight,
            S,
            T,
            max_distance=self.max_distance,
            bidirectional=self.bidirectional,
            alignment=alignment,
        )


# --- norms, feed-forwards and layers ----------------------------------------------------------------------------------


class RMSNorm(nn.Module):
    """`w x / sqrt(mean(x^2) + eps)` (Zhang and Sennrich 2019): LayerNorm without the mean and the shift.

    The mean is computed in float32 or wider, since the square of a half-precision number above 255 is infinite.

    Args:
        width: Model dim E.
        eps: Added to the mean square, so that a zero token stays zero.
    """

    def __init__(self, width: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x_BTE: torch.Tensor) -> torch.Tensor:
        """Maps [..., E] to [..., E]."""
        wide_BTE = x_BTE.to(torch.promote_types(x_BTE.dtype, torch.float32))
        normed_BTE = wide_BTE * torch.rsqrt(wide_BTE.square().mean(-1, keepdim=True) + self.eps)
        return self.weight * normed_BTE.to(x_BTE.dtype)


class FeedForward(nn.Module):
    """`W2 gelu(W1 x + b1) + b2` (Vaswani et al. 2017, section 3.3, with the exact GELU of Hendrycks and Gimpel 2016).

    Args:
        width: Model dim E.
        hidden: Size between the projections, 4 E in most models.
    """

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, hidden)
        self.act = nn.GELU()
        self.down = nn.Linear(hidden, width)

    def forward(self, x_BTE: torch.Tensor) -> torch.Tensor:
        """Maps [B, T, E] to [B, T, E]."""
        y_BTE: torch.Tensor = self.down(self.act(self.up(x_BTE)))
        return y_BTE


class ReluFeedForward(nn.Module):
    """`W2 relu(W1 x + b1) + b2` (Vaswani et al. 2017, section 3.3); T5 leaves the biases out.

    Args:
        width: Model dim E.
        hidden: Size between the projections, 4 E in most models.
        bias: Whether there are b1 and b2.
    """

    def __init__(self, width: int, hidden: int, bias: bool = True) -> None:
        super().__init__()
        self.up = nn.Linear(width, hidden, bias=bias)
        self.down = nn.Linear(hidden, width, bias=bias)

    def forward(self, x_BTE: torch.Tensor) -> torch.Tensor:
        """Maps [B, T, E] to [B, T, E]."""
        y_BTE: torch.Tensor = self.down(self.up(x_BTE).relu())
        return y_BTE


class PreNormParts(nn.Module):
    """The base class of pre-norm layers (Xiong et al. 2020); `forward` of a derived class calls the attention.

    Args:
        norm: Makes a norm.
        attention: The module that is called with the norm of x.
        feed_forward: f, from [B, S, E] to [B, S, E].
    """

    def __init__(self, norm: Callable[[], nn.Module], attention: nn.Module, feed_forward: nn.Module) -> None:
        super().__init__()
        self.attention_norm = norm()
        self.attention = attention
        self.feed_forward_norm = norm()
        self.feed_forward = feed_forward

    def plus_feed_forward(self, x_BSE: torch.Tensor) -> torch.Tensor:
        """`x + f(norm(x))`, the end of every layer."""
        y_BSE: torch.Tensor = x_BSE + self.feed_forward(self.feed_forward_norm(x_BSE))
        return y_BSE


class PreNormLayer(PreNormParts):
    """`a = x + attention(norm(x))`, `y = a + f(norm(a))`; the attention is a `MultiHeadAttention`."""

    def forward(self, x_BTE: torch.Tensor, mask_BHTT: torch.Tensor | None) -> torch.Tensor:
        """Maps [B, T, E] to [B, T, E]; the mask is the attention's."""
        normed_BTE = self.attention_norm(x_BTE)
        return self.plus_feed_forward(x_BTE + self.attention(normed_BTE, normed_BTE, mask_BHTT))
