"""Attention from the tokens of one sequence to each other: by masks, by positions in the scores, by its projections."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from attnport.artifacts import IOContract, TensorSpec
from attnport.masks import MaskSpec
from attnport.masks import torch_builders as masks
from attnport.masks.torch_biases import alibi
from attnport.models.base import BATCH, BIAS, CAUSAL, PADDING, length, model, sequence_contract
from attnport.models.blocks import (
    MaskedAttention,
    ProjectedAttention,
    RelativePositions,
    RMSNorm,
    RotaryPositions,
    causal_and_padding,
    merge_heads,
    split_heads,
)

REAL_AND_EARLIER = MaskSpec(("padding", "causal"), "attention_mask")


@model(
    "self_attention",
    lambda sizes: IOContract(
        inputs=(TensorSpec("x", "float32", ("batch", "seq", sizes.width)),),
        outputs=(TensorSpec("y", "float32", ("batch", "seq", sizes.depth)),),
        dims=(BATCH, length()),
        positions="none",
    ),
)
class SelfAttention(nn.Module):
    """Self-attention of one head, written out: the result for a token is a mean of all, weighted by their scores.

    Vaswani, Shazeer, Parmar, Uszkoreit, Jones, Gomez, Kaiser, Polosukhin, "Attention Is All You Need" (2017), equation
    1. On x [B, T, E]:

        y = softmax(q k^T / sqrt(D)) v        q = x Wq, k = x Wk, v = x Wv, each [B, T, D]

    No mask and no positions: a permutation of the tokens permutes the output. Cost: 6 B T E D + 4 B T^2 D
    floating-point operations; the scores take B T^2 numbers unless one kernel computes the whole attention.

    Args:
        width: E.
        depth: D.
    """

    def __init__(self, width: int = 64, depth: int = 32) -> None:
        super().__init__()
        self.query = nn.Linear(width, depth)
        self.key = nn.Linear(width, depth)
        self.value = nn.Linear(width, depth)
        self.scale = depth**-0.5

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Maps [B, T, E] to [B, T, D]."""
        q_BSD, k_BTD, v_BTD = self.query(x), self.key(x), self.value(x)
        scores_BST = q_BSD @ k_BTD.transpose(-2, -1) * self.scale
        y_BSD: torch.Tensor = scores_BST.softmax(dim=-1) @ v_BTD
        return y_BSD


@model(
    "causal_self_attention", lambda sizes: sequence_contract(sizes.width, inputs=(), masks=(CAUSAL,), positions="none")
)
class CausalSelfAttention(ProjectedAttention):
    """Causal multi-head self-attention: a token attends to itself and to those before it, as a language model must.

    Vaswani et al., "Attention Is All You Need" (2017), section 3.2.3, as it stands alone in Radford et al., "Improving
    Language Understanding by Generative Pre-Training" (2018). On x [B, T, E], for query i and key j of each head:

        y = Wo concat_h softmax(q_h k_h^T / sqrt(D) + m) v_h        m[i, j] = 0 where j <= i, else -inf

    Cost: 8 B T E^2 + 4 B T^2 E floating-point operations; a kernel that skips what is hidden does half of the
    second term.

    Args:
        width: E.
        heads: H; the head dim D is E / H.
    """

    def __init__(self, width: int = 64, heads: int = 4) -> None:
        super().__init__(width, heads)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Maps [B, T, E] to [B, T, E]; row i depends on the rows up to i only."""
        q_BHTD, k_BHTD, v_BHTD = self.project(x)
        mixed_BHTD = nn.functional.scaled_dot_product_attention(q_BHTD, k_BHTD, v_BHTD, is_causal=True)
        return self.merge(mixed_BHTD)


@model(
    "masked_self_attention", lambda sizes: sequence_contract(sizes.width, masks=(REAL_AND_EARLIER,), positions="none")
)
class MaskedSelfAttention(MaskedAttention):
    """Multi-head self-attention with two masks at once, which hide padding and later tokens.

    Vaswani et al., "Attention Is All You Need" (2017), section 3.2.3: what a decoder does on a batch of sequences of
    different lengths. On x [B, T, E], for query i and key j of each head of item b:

        y = Wo concat_h softmax(q_h k_h^T / sqrt(D) + m) v_h       m[b, i, j] = 0 where j <= i and keep[b, j], else -inf

    Padding may be on either side: a padded query on the left has no key, and its attention is zero.
    Cost: 8 B T E^2 + 4 B T^2 E floating-point operations.

    Args:
        width: E.
        heads: H; the head dim D is E / H.
    """

    def __init__(self, width: int = 64, heads: int = 4) -> None:
        super().__init__(width, heads)

    def mask(self, x: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """A token sees the real ones up to it, bool [B, 1, T, T]."""
        return causal_and_padding(attention_mask)


@model(
    "grouped_query_attention", lambda sizes: sequence_contract(sizes.width, masks=(REAL_AND_EARLIER,), positions="none")
)
class GroupedQueryAttention(MaskedAttention):
    """Grouped-query attention: several query heads share one key and value head, so that a decoder's cache is smaller.

    Ainslie, Lee-Thorp, de Jong, Zemlyanskiy, Lebrón, Sanghai, "GQA: Training Generalized Multi-Query Transformer Models
    from Multi-Head Checkpoints" (2023). With G = 1 it is multi-query attention (Shazeer, "Fast Transformer Decoding:
    One Write-Head is All You Need", 2019), with G = H multi-head attention. On x [B, T, E], query head h uses group
    g(h) = floor(h G / H):

        y = Wo concat_h softmax(q_h k_g(h)^T / sqrt(D) + m) v_g(h)
                                                            m[b, i, j] = 0 where j <= i and keep[b, j], else -inf

    Cost: 4 B T E^2 (1 + G / H) + 4 B T^2 E floating-point operations; a cache holds 2 B T G D numbers instead of
    2 B T E.

    Args:
        width: E.
        heads: H; the head dim D is E / H.
        groups: G, a divisor of H.
    """

    def __init__(self, width: int = 64, heads: int = 4, groups: int = 2) -> None:
        super().__init__(width, heads, groups=groups)

    def mask(self, x: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """A token sees the real ones up to it, bool [B, 1, T, T]."""
        return causal_and_padding(attention_mask)


@model(
    "alibi_attention",
    lambda sizes: sequence_contract(
        sizes.width, masks=(MaskSpec(("padding", "causal", "bias"), "attention_mask"),), positions="none"
    ),
)
class AlibiAttention(MaskedAttention):
    """Causal self-attention with ALiBi: scores fall with the distance, by a slope of each head; no position embeddings.

    Press, Smith, Lewis, "Train Short, Test Long: Attention with Linear Biases Enables Input Length Extrapolation"
    (2022). On x [B, T, E], for query i and key j of head h:

        y = Wo concat_h softmax(q_h k_h^T / sqrt(D) + s_h (j - i) + m) v_h        s_h = 2^(-8 (h + 1) / H)
                                                                   m[b, i, j] = 0 where j <= i and keep[b, j], else -inf

    Cost: 8 B T E^2 + 4 B T^2 E floating-point operations; written to memory, the bias would take H T^2 numbers.

    Args:
        width: E.
        heads: H; the head dim D is E / H.
    """

    def __init__(self, width: int = 64, heads: int = 4) -> None:
        super().__init__(width, heads)
        self.heads = heads

    def mask(self, x: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """The biases of the distances where a token sees the real ones up to it, [B, H, T, T]."""
        T = x.shape[1]
        slopes_1HTT = alibi(self.heads, T, T, dtype=x.dtype, device=x.device)
        return slopes_1HTT.masked_fill(~causal_and_padding(attention_mask), -torch.inf)


@model("rotary_attention", lambda sizes: sequence_contract(sizes.width, positions="none"))
class RotaryAttention(MaskedAttention):
    """Self-attention with rotary positions: queries and keys are rotated, so that scores depend on distances only.

    Su, Lu, Pan, Murtadha, Wen, Liu, "RoFormer: Enhanced Transformer with Rotary Position Embedding" (2021), equation
    16. On x [B, T, E], with R(p) the rotation of each pair of a head's numbers by p base^(-2i/D):

        y = Wo concat_h softmax((R(i) q_i)^T (R(j) k_j) / sqrt(D) + m) v        (R(i) q)^T (R(j) k) = q^T R(j - i) k
                                                                                m[b, j] = 0 where keep[b, j], else -inf

    Cost: 8 B T E^2 + 4 B T^2 E floating-point operations, and 6 B T E for the rotations.

    Args:
        width: E.
        heads: H; the head dim D is E / H and even.
        base: Sets the longest wavelength.
    """

    def __init__(self, width: int = 64, heads: int = 4, base: float = 10000.0) -> None:
        super().__init__(width, heads)
        self.positions = RotaryPositions(width // heads, base)

    def vectors(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Rotated queries and keys, and values, [B, H, T, D]."""
        q_BHTD, k_BHTD, v_BHTD = self.project(x)
        return self.positions(q_BHTD), self.positions(k_BHTD), v_BHTD

    def mask(self, x: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """A token sees the real ones, bool [B, 1, 1, T]."""
        return masks.padding(attention_mask)


@model("relative_bias_attention", lambda sizes: sequence_contract(sizes.width, masks=(PADDING, BIAS)))
class RelativeBiasAttention(MaskedAttention):
    """T5's attention: a learned number for the distance of query and key is added to each head's scores.

    Raffel et al., "Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer" (2020), section
    2.1, after Shaw et al. (2018). On x [B, T, E], without any bias in the projections and without a scale (T5 has it in
    the weights' initial values):

        y_i = Wo sum_j softmax_j(q_i k_j + b[bucket(j - i), h]) v_j

    Near distances have a bucket each, farther ones share buckets of logarithmic width. Cost: 8 B T E^2 + 4 B T^2 E
    floating-point operations; the added bias takes H T^2 numbers, once for all items of a batch.

    Args:
        width: E.
        heads: H.
        buckets: The rows of the table, half of them for later keys.
        max_distance: The distance at which the last bucket begins.
    """

    scale = 1.0

    def __init__(self, width: int = 64, heads: int = 4, buckets: int = 32, max_distance: int = 128) -> None:
        super().__init__(width, heads, bias=False)
        self.positions = RelativePositions(heads, buckets, max_distance)

    def mask(self, x: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """The biases of the distances, and -inf for padding, [B, H, T, T]."""
        bias_1HTT: torch.Tensor = self.positions(x.shape[1], x.shape[1])
        return bias_1HTT + masks.additive(masks.padding(attention_mask), x.dtype)

    def adjust_random_weights(self) -> None:
        """Divides those of q by sqrt(D), as T5's initial values are, in place of a scale."""
        self.project.query.weight.mul_((self.project.query.out_features / self.project.heads) ** -0.5)


@model("disentangled_attention", lambda sizes: sequence_contract(sizes.width, masks=(PADDING, BIAS)))
class DisentangledAttention(ProjectedAttention):
    """DeBERTa's disentangled attention: content and relative position are separate vectors, combined in the scores.

    He, Liu, Gao, Chen, "DeBERTa: Decoding-enhanced BERT with Disentangled Attention" (2021), section 3.1. On x
    [B, T, E] with one vector for each clipped distance, P [2 K, E]:

        a_ij = (q_i k_j + q_i kr_d(i,j) + k_j qr_d(i,j)) / sqrt(3 D)        kr, qr = Wkr P, Wqr P, split into heads
        d(i, j) = 0 if i - j <= -K, 2 K - 1 if i - j >= K, else i - j + K
        y_i = Wo softmax_j(a_ij) v_j

    The second term is content-to-position, the third position-to-content. The paper has d(j, i) in the third; the
    released code, and so every checkpoint, has d(i, j).

    Cost: 8 B T E^2 + 4 B T^2 E floating-point operations as without positions, and 8 B T K E for the two tables of
    products, of which the scores gather their parts: 2 B H T^2 numbers.

    Args:
        width: E.
        heads: H.
        reach: K; distances from there on share a vector.
    """

    def __init__(self, width: int = 64, heads: int = 4, reach: int = 32) -> None:
        super().__init__(width, heads)
        self.heads, self.reach = heads, reach
        self.positions = nn.Embedding(2 * reach, width)
        self.position_key = nn.Linear(width, width)
        self.position_query = nn.Linear(width, width)

    def forward(self, x: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Attends from every token to all that are not padding.

        Args:
            x: [B, T, E].
            attention_mask: [B, T], 0 for padding; a row of padding only gives zero before the projection.
        """
        q_BHTD, k_BHTD, v_BHTD = self.project(x)
        scale = (3 * q_BHTD.shape[-1]) ** -0.5
        bias_BHTT = self.position_scores(q_BHTD, k_BHTD) * scale
        hidden_B11T = masks.additive(masks.padding(attention_mask), x.dtype)
        mixed_BHTD = nn.functional.scaled_dot_product_attention(
            q_BHTD, k_BHTD, v_BHTD, attn_mask=bias_BHTT + hidden_B11T, scale=scale
        )
        return self.merge(mixed_BHTD)

    def position_scores(self, q_BHTD: torch.Tensor, k_BHTD: torch.Tensor) -> torch.Tensor:
        """The two terms with positions, before their scale, [B, H, T, T]; R = 2 K distances."""
        T = q_BHTD.shape[2]
        i_T1, j_1T = masks.positions(T, T, device=q_BHTD.device)
        d_TT = (i_T1 - j_1T + self.reach).clamp(0, 2 * self.reach - 1)
        kr_HRD, qr_HRD = (
            split_heads(project(self.positions.weight)[None], self.heads)[0]
            for project in (self.position_key, self.position_query)
        )
        # From [query, distance] each query takes the distances of the keys; from [key, distance] each key, likewise.
        to_position_BHTR, from_position_BHTR = q_BHTD @ kr_HRD.mT, k_BHTD @ qr_HRD.mT
        shape = (q_BHTD.shape[0], self.heads, T, T)
        content_to_position_BHTT = to_position_BHTR.gather(-1, d_TT.expand(shape))
        position_to_content_BHTT = from_position_BHTR.gather(-1, d_TT.mT.expand(shape)).mT
        return content_to_position_BHTT + position_to_content_BHTT


def _fused_contract(sizes: Any) -> IOContract:
    weights = TensorSpec("weights", "float32", ("batch", sizes.heads, "seq", "seq"))
    return IOContract(
        inputs=(
            TensorSpec("x", "float32", ("batch", "seq", sizes.width)),
            TensorSpec("mask", "float32", ("batch", 1, 1, "seq")),
        ),
        outputs=(TensorSpec("y", "float32", ("batch", "seq", sizes.width)), *([weights] if sizes.weights else [])),
        dims=(BATCH, length()),
        masks=(MaskSpec(("padding",), "mask", polarity="additive"),),
        positions="none",  # padding on the left changes all positions, but no distance
    )


@model("fused_qkv_attention", _fused_contract)
class FusedQkvAttention(nn.Module):
    """Self-attention from one projection, with a bias of positions, an additive mask and, if wanted, its weights.

    One product with [Wq Wk Wv] instead of three reads x once (Shoeybi et al., "Megatron-LM", 2019). The bias is that of
    Liu et al., "Swin Transformer" (2021), equation 4: a learned number a head and offset, here of one axis and clipped
    at L, as Shaw et al. (2018) clip. On x [B, T, E]:

        y = Wo concat_h w_h v_h        [q k v] = x Wqkv
        w_h = softmax(q_h k_h^T / sqrt(D) + b_h[clip(j - i, -L, L)] + m[b, j])

    Cost: 8 B T E^2 + 4 B T^2 E floating-point operations. Weights that are returned take B H T^2 numbers of memory. A
    kernel for the whole attention never writes them, so they have to be computed separately.

    Args:
        width: E.
        heads: H.
        reach: L.
        weights: Whether the weights are a second output.
    """

    def __init__(self, width: int = 64, heads: int = 4, reach: int = 16, weights: bool = False) -> None:
        super().__init__()
        self.heads, self.reach, self.weights = heads, reach, weights
        self.qkv = nn.Linear(width, 3 * width)
        self.bias = nn.Embedding(2 * reach + 1, heads)
        self.out = nn.Linear(width, width)
        self.scale = (width // heads) ** -0.5

    def position_bias(self, T: int, device: torch.device) -> torch.Tensor:
        """The bias of each head, query and key, [1, H, T, T]."""
        i_T1, j_1T = masks.positions(T, T, device=device)
        bias_TTH: torch.Tensor = self.bias((j_1T - i_T1).clamp(-self.reach, self.reach) + self.reach)
        return bias_TTH.permute(2, 0, 1)[None]

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """Attends from every token to those that the mask allows.

        Args:
            x: [B, T, E].
            mask: [B, 1, 1, T], added to the scores: 0 for a real token and -inf for padding.

        Returns:
            [B, T, E]; with `weights`, also the weights, [B, H, T, T]. Rows of an item without any real token are zero.
        """
        q_BHTD, k_BHTD, v_BHTD = (split_heads(part, self.heads) for part in self.qkv(x).chunk(3, dim=-1))
        added_BHTT = self.position_bias(x.shape[1], x.device) + mask
        if not self.weights:
            mixed_BHTD = nn.functional.scaled_dot_product_attention(q_BHTD, k_BHTD, v_BHTD, attn_mask=added_BHTT)
            y_BTE: torch.Tensor = self.out(merge_heads(mixed_BHTD))
            return y_BTE
        scores_BHTT = q_BHTD @ k_BHTD.transpose(-2, -1) * self.scale + added_BHTT
        # A softmax over -inf alone is NaN; a row with no key attends to nothing.
        weights_BHTT = scores_BHTT.softmax(dim=-1).nan_to_num(0.0)
        return self.out(merge_heads(weights_BHTT @ v_BHTD)), weights_BHTT


@model("latent_attention", lambda sizes: sequence_contract(sizes.width, masks=(PADDING, CAUSAL), positions="none"))
class LatentAttention(nn.Module):
    """Multi-head latent attention: keys, and narrower values, of all heads from one small vector per token.

    DeepSeek-AI, "DeepSeek-V2: A Strong, Economical, and Efficient Mixture-of-Experts Language Model" (2024), section
    2.1. On x [B, T, E], with R the rotary positions:

        c = norm(Wdkv x)                       [B, T, C], the latent vector; a cache would hold only this and R(Wkr x)
        k = [Wuk c; R(Wkr x)]                  head dim D = Dn + Dr; all heads share the rotary part
        v = Wuv c                              head dim Dv, not D
        q = [Wuq norm(Wdq x); R(Wqr norm(Wdq x))]
        y = Wo softmax(q k^T / sqrt(D) + mask) v

    The mask is causal and hides padding.

    Cost of the attention itself: 2 B T^2 H (D + Dv) floating-point operations. A cache takes C + Dr numbers per token
    instead of H (D + Dv).

    Args:
        width: E.
        heads: H.
        query_latent: The size of the queries' latent vector.
        latent: C.
        plain_depth: Dn.
        rotary_depth: Dr.
        value_depth: Dv.
        base: Sets the longest wavelength of the rotary positions.
        norm_eps: Added to the mean squares of the norms.
    """

    def __init__(
        self,
        width: int = 64,
        heads: int = 4,
        query_latent: int = 48,
        latent: int = 32,
        plain_depth: int = 16,
        rotary_depth: int = 16,
        value_depth: int = 16,
        base: float = 10000.0,
        norm_eps: float = 1e-6,
    ) -> None:
        super().__init__()
        self.heads = heads
        self.query_parts = [plain_depth, rotary_depth]
        self.latent_parts = [latent, rotary_depth]
        self.key_value_parts = [plain_depth, value_depth]
        self.query_down = nn.Linear(width, query_latent, bias=False)
        self.query_norm = RMSNorm(query_latent, norm_eps)
        self.query_up = nn.Linear(query_latent, heads * sum(self.query_parts), bias=False)
        self.latent_down = nn.Linear(width, sum(self.latent_parts), bias=False)
        self.latent_norm = RMSNorm(latent, norm_eps)
        self.key_value_up = nn.Linear(latent, heads * sum(self.key_value_parts), bias=False)
        self.rotary = RotaryPositions(rotary_depth, base)
        self.out = nn.Linear(heads * value_depth, width, bias=False)

    def forward(self, x: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Attends from every position to the allowed ones before it.

        Args:
            x: [B, T, E].
            attention_mask: int64 [B, T], 1 for a real token and 0 for padding, which may be anywhere.

        Returns:
            [B, T, E].
        """
        q_BHTD = split_heads(self.query_up(self.query_norm(self.query_down(x))), self.heads)
        plain_q_BHTN, rotary_q_BHTR = torch.split(q_BHTD, self.query_parts, dim=-1)
        latent_BTC, rotary_k_BTR = torch.split(self.latent_down(x), self.latent_parts, dim=-1)
        key_value = split_heads(self.key_value_up(self.latent_norm(latent_BTC)), self.heads)
        plain_k_BHTN, v_BHTV = torch.split(key_value, self.key_value_parts, dim=-1)
        rotary_k_BHTR = self.rotary(rotary_k_BTR[:, None]).expand(-1, self.heads, -1, -1)

        q_BHTD = torch.cat([plain_q_BHTN, self.rotary(rotary_q_BHTR)], dim=-1)
        k_BHTD = torch.cat([plain_k_BHTN, rotary_k_BHTR], dim=-1)
        allowed_B1TT = causal_and_padding(attention_mask)
        mixed_BHTV = nn.functional.scaled_dot_product_attention(q_BHTD, k_BHTD, v_BHTV, attn_mask=allowed_B1TT)
        y_BTE: torch.Tensor = self.out(merge_heads(mixed_BHTV))
        return y_BTE


@model("memory_token_attention", lambda sizes: sequence_contract(sizes.width, positions="none"))
class MemoryTokenAttention(MaskedAttention):
    """Self-attention with persistent memory: learned keys and values that every position may read.

    Sukhbaatar, Grave, Lample, Jegou, Joulin, "Augmenting Self-attention with Persistent Memory" (2019). Each head has N
    learned key and value vectors in addition to those of the tokens; on x [B, T, E]:

        y = Wo softmax(q [k_memory; k]^T / sqrt(D) + mask) [v_memory; v]

    They replace the feed-forward part of a layer. The mask hides padding only, never the memory, so every row has a
    key.

    Cost: 8 B T E^2 + 4 B T (N + T) E floating-point operations.

    Args:
        width: E.
        heads: H.
        memory: N.
    """

    def __init__(self, width: int = 64, heads: int = 4, memory: int = 16) -> None:
        super().__init__(width, heads)
        self.heads, self.memory = heads, memory
        self.memory_keys = nn.Parameter(torch.randn(memory, width))
        self.memory_values = nn.Parameter(torch.randn(memory, width))

    def vectors(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Queries [B, H, T, D] of the tokens; keys and values [B, H, N + T, D] of the memory and of the tokens."""
        q_BHTD, k_BHTD, v_BHTD = self.project(x)
        return q_BHTD, self.behind(self.memory_keys, k_BHTD), self.behind(self.memory_values, v_BHTD)

    def mask(self, x: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """A token sees the memory and the real tokens, bool [B, 1, 1, N + T]."""
        return masks.padding(nn.functional.pad(attention_mask, (self.memory, 0), value=1))

    def behind(self, learned_NE: torch.Tensor, of_tokens_BHTD: torch.Tensor) -> torch.Tensor:
        """Keys or values of the memory and then those of the tokens, [B, H, N + T, D]."""
        learned_1HND = split_heads(learned_NE[None], self.heads)
        return torch.cat([learned_1HND.expand(of_tokens_BHTD.shape[0], -1, -1, -1), of_tokens_BHTD], dim=2)
