"""Attention of a token to some of the others: those near it, chosen ones, those that are alike, or of fewer tokens."""

from __future__ import annotations

import torch
from torch import nn

from attnport.masks import MaskSpec
from attnport.masks import torch_builders as masks
from attnport.models.base import CAUSAL, PADDING, model, sequence_contract
from attnport.models.blocks import MaskedAttention, ProjectedAttention, QueryKeyValue, merge_heads, split_heads


@model(
    "sliding_window_attention",
    lambda sizes: sequence_contract(sizes.width, masks=(PADDING, MaskSpec(("window",), window=sizes.window))),
)
class SlidingWindowAttention(ProjectedAttention):
    """Sliding-window attention: every token sees those at most W away, in time and memory linear in the length.

    Beltagy, Peters, Cohan, "Longformer: The Long-Document Transformer" (2020), section 3.1; Child et al. (2019) have it
    as local attention. With q, k, v [B, H, T, D] of x [B, T, E]:

        y_i = Wo sum_j p_ij v_j        p_i = softmax over the j with |i - j| <= W of q_i k_j / sqrt(D)

    The sequence is cut into chunks of W tokens. The windows of a chunk's tokens lie within the chunk and its two
    neighbours; keys of these outside a window are masked. Cost: 8 B T E^2 + 12 B T W E floating-point operations
    against 8 B T E^2 + 4 B T^2 E of full attention; the scores take 3 B H T W numbers against B H T^2.

    Args:
        width: E.
        heads: H.
        window: W, the largest distance of a key on either side.
    """

    def __init__(self, width: int = 64, heads: int = 4, window: int = 8) -> None:
        super().__init__(width, heads)
        self.window = window

    def forward(self, x: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Attends from every token to the ones near it.

        Shapes: C chunks of W queries, each with U = 3 W keys.

        Args:
            x: [B, T, E].
            attention_mask: [B, T], 0 for padding; a window with no other token gives zero before the projection.
        """
        q_BHTD, k_BHTD, v_BHTD = self.project(x)
        q_BHCWD = cut(q_BHTD, self.window)
        k_BHCUD, v_BHCUD = (with_neighbours(cut(y_BHTD, self.window), 1, 1) for y_BHTD in (k_BHTD, v_BHTD))
        # Cut like the keys: the filling of the last chunk and positions outside the sequence are zero, so hidden.
        keep_B1CU1 = with_neighbours(cut(attention_mask[:, None, :, None], self.window), 1, 1)
        allowed_B1CWU = keep_B1CU1.mT.bool() & self.near(x.device)
        scores_BHCWU = (q_BHCWD @ k_BHCUD.mT * q_BHTD.shape[-1] ** -0.5).masked_fill(~allowed_B1CWU, -torch.inf)
        # A row with no allowed key is NaN after the softmax.
        p_BHCWU = scores_BHCWU.softmax(dim=-1).masked_fill(~allowed_B1CWU, 0.0)
        mixed_BHCWD = p_BHCWU @ v_BHCUD
        mixed_BHTD = join(mixed_BHCWD, x.shape[1])
        return self.merge(mixed_BHTD)

    def near(self, device: torch.device) -> torch.Tensor:
        """Which keys of a chunk and its neighbours are in each query's window: key u is at u - W in the chunk."""
        at_W, at_U = torch.arange(self.window, device=device), torch.arange(3 * self.window, device=device)
        return (at_U - self.window - at_W[:, None]).abs() <= self.window


@model(
    "longformer_attention",
    lambda sizes: sequence_contract(
        sizes.width,
        inputs=("attention_mask", "global_attention_mask"),
        masks=(PADDING, MaskSpec(("window", "global"), "global_attention_mask", window=sizes.window, carries="marks")),
    ),
)
class LongformerAttention(ProjectedAttention):
    """Longformer's attention: a window around every token, and chosen tokens that see all and are seen by all.

    Beltagy, Peters, Cohan, "Longformer: The Long-Document Transformer" (2020), section 3.1. Global tokens attend by
    projections of their own (q', k', v'), made of x [B, T, E] like the usual ones:

        y_i = Wo softmax over the j with |i - j| <= W, or j global, of (q_i k_j / sqrt(D)) v_j     i not global
        y_i = Wo softmax over all j of (q'_i k'_j / sqrt(D)) v'_j                                  i global

    An input marks the global tokens, of which there may be any number at any position. So both attentions are computed
    at full size, and the marks choose between them. Cost: 14 B T E^2 + 8 B T^2 E floating-point operations; attention
    as one kernel keeps the scores out of memory. `sliding_window_attention` is the form in chunks of the window alone,
    at linear cost.

    Args:
        width: E.
        heads: H.
        window: W, the largest distance of a local key on either side.
    """

    def __init__(self, width: int = 64, heads: int = 4, window: int = 8) -> None:
        super().__init__(width, heads)
        self.window = window
        self.project_global = QueryKeyValue(width, heads)

    def forward(
        self, x: torch.Tensor, attention_mask: torch.Tensor, global_attention_mask: torch.Tensor
    ) -> torch.Tensor:
        """Attends from every token to its window and the global tokens, from global ones to all.

        Args:
            x: [B, T, E].
            attention_mask: [B, T], 0 for padding.
            global_attention_mask: [B, T], 1 for global tokens.
        """
        seen_B11T = masks.padding(attention_mask)
        marks_BT = global_attention_mask.bool()
        local_B1TT = masks.local_global(marks_BT, x.shape[1], self.window) & seen_B11T
        near_BHTD = attend(self.project(x), local_B1TT)
        all_BHTD = attend(self.project_global(x), seen_B11T)
        mixed_BHTD = torch.where(marks_BT[:, None, :, None], all_BHTD, near_BHTD)
        return self.merge(mixed_BHTD)


def attend(qkv: tuple[torch.Tensor, torch.Tensor, torch.Tensor], allowed: torch.Tensor) -> torch.Tensor:
    """The mixture of values of each head, [B, H, T, D]."""
    q_BHTD, k_BHTD, v_BHTD = qkv
    return nn.functional.scaled_dot_product_attention(q_BHTD, k_BHTD, v_BHTD, attn_mask=allowed)


@model("bigbird_attention", lambda sizes: sequence_contract(sizes.width, limit=sizes.positions))
class BigBirdAttention(MaskedAttention):
    """BigBird's attention: a window, global tokens and random keys, block by block.

    Zaheer et al., "Big Bird: Transformers for Longer Sequences" (2020), section 2, in its internal transformer
    construction: tokens are grouped into blocks, and the pattern is one of blocks. A query block sees

        itself and its neighbours at distance 1        (window)
        the first G blocks, which see every block       (global)
        R blocks drawn once, with the weights           (random)

        y_i = Wo softmax over the tokens j of the blocks that block(i) sees of (q_i k_j / sqrt(D)) v_j

    The random blocks are drawn for the longest sequence, so that the pattern of a token does not depend on the tokens
    after it. Block i draws from the blocks before the next power of two, so that most of them exist in short sequences
    too.

    The pattern is a mask here. Cost: 8 B T E^2 + 4 B T^2 E floating-point operations; in kernels that skip whole blocks
    of b tokens, 8 B T E^2 + 4 B T (3 + G + R) b E.

    Args:
        width: E.
        heads: H.
        block: b, the tokens of a block.
        global_blocks: G.
        random_blocks: R.
        positions: The longest sequence, in tokens.
    """

    pattern: torch.Tensor  # [N, N], of blocks

    def __init__(
        self,
        width: int = 64,
        heads: int = 4,
        block: int = 8,
        global_blocks: int = 1,
        random_blocks: int = 2,
        positions: int = 512,
    ) -> None:
        super().__init__(width, heads)
        self.block = block
        self.register_buffer("pattern", draw_pattern(block, global_blocks, random_blocks, positions))

    def mask(self, x: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """A token sees the real ones of the blocks that its own block sees, bool [B, 1, T, T]."""
        block_T = torch.arange(x.shape[1], device=x.device) // self.block
        pattern_TT = self.pattern[block_T[:, None], block_T]
        return masks.combine(masks.padding(attention_mask), pattern_TT)


def draw_pattern(block: int, global_blocks: int, random_blocks: int, positions: int) -> torch.Tensor:
    """Which of the N blocks each block sees, bool [N, N]; from torch's global generator; the sizes are the model's."""
    at_N = torch.arange(-(-positions // block))
    near_NN = (at_N[:, None] - at_N).abs() <= 1
    first_N = at_N < global_blocks
    sees_NN = near_NN | first_N[:, None] | first_N
    for index, row_N in enumerate(sees_NN):
        free = (~row_N[: 1 << index.bit_length()]).nonzero()[:, 0]
        row_N[free[torch.randperm(len(free))[:random_blocks]]] = True
    return sees_NN


@model("strided_sparse_attention", lambda sizes: sequence_contract(sizes.width, masks=(PADDING, CAUSAL)))
class StridedSparseAttention(MaskedAttention):
    """Strided sparse attention: half of the heads see the last L tokens, the others every L-th earlier token.

    Child, Gray, Radford, Sutskever, "Generating Long Sequences with Sparse Transformers" (2019), sections 4.2 and 5.1,
    with separate heads for the two patterns. For a query i, causal:

        A1(i) = {j : i - L < j <= i}                      local heads, the first half
        A2(i) = {j : j <= i and (i - j) mod L = 0}        strided heads, the second half

        y_i = Wo concat_h softmax over A_h(i) of (q_i k_j / sqrt(D)) v_j

    With one after the other, every token reaches every later one in two steps. With L near sqrt(T) the pattern has
    T sqrt(T) pairs; it is a mask here, and attention costs 8 B T E^2 + 4 B T^2 E floating-point operations unless a
    kernel skips what is masked.

    Args:
        width: E.
        heads: H, even.
        stride: L.
    """

    strided: torch.Tensor  # [H], True for strided heads

    def __init__(self, width: int = 64, heads: int = 4, stride: int = 8) -> None:
        super().__init__(width, heads)
        self.stride = stride
        self.register_buffer("strided", torch.arange(heads) >= heads // 2, persistent=False)

    def mask(self, x: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """A token sees the earlier ones of each head's pattern, bool [B, H, T, T]."""
        T = x.shape[1]
        i_T1, j_1T = masks.positions(T, T, device=x.device)
        local_TT, strided_TT = i_T1 - j_1T < self.stride, (i_T1 - j_1T) % self.stride == 0
        strided_H11 = self.strided[:, None, None]
        pattern_HTT = (strided_TT & strided_H11) | (local_TT & ~strided_H11)
        return masks.combine(masks.causal(T, T, device=x.device), pattern_HTT, masks.padding(attention_mask))


@model("lsh_attention", lambda sizes: sequence_contract(sizes.width))
class LshAttention(nn.Module):
    """Reformer's attention: tokens are hashed, sorted by bucket, and attend within chunks of the sorted order.

    Kitaev, Kaiser, Levskaya, "Reformer: The Efficient Transformer" (2020), section 2. Queries and keys are shared: a
    key is its query at length 1. In each of R rounds, with random rotations Z_r [D, K / 2] for K buckets:

        bucket_r(i) = argmax over the K entries of (q_i Z_r, -q_i Z_r)
        sort by (bucket, position), cut into chunks of W; a query sees its bucket's keys in its chunk and the one before
        o_r = softmax(q_i k_j / sqrt(D)) v_j over these, z_r = logsumexp of the same scores
        y_i = Wo sum_r softmax_r(z_r) o_r

    A token sees itself only if it sees no other. Padding is sorted after all buckets and is never seen, and the first
    chunk has no chunk before it (in the authors' code it has the last one), so that padding on the right changes no
    token's keys. The attention is not causal, since the borders of the chunks depend on every token.

    Cost: 6 B T E^2 + R (8 B T W E + B T K E) floating-point operations and 2 R B H T W scores, and R sorts; full
    attention takes 8 B T E^2 + 4 B T^2 E and B H T^2.

    The buckets are discontinuous: a query near the border between two may fall into the other one at another precision.

    Args:
        width: E.
        heads: H.
        buckets: K, even.
        chunk: W.
        rounds: R.
    """

    rotations: torch.Tensor  # [H, R, D, K / 2]

    def __init__(self, width: int = 64, heads: int = 4, buckets: int = 8, chunk: int = 16, rounds: int = 2) -> None:
        super().__init__()
        self.heads, self.buckets, self.chunk = heads, buckets, chunk
        self.query_key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.out = nn.Linear(width, width)
        shape = (heads, rounds, width // heads, buckets // 2)
        self.register_buffer("rotations", torch.randn(shape))

    def forward(self, x: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Attends from every token to those of its buckets near it in the sorted order.

        Shapes: in R rounds, C chunks of W queries, each with U = 2 W keys.

        Args:
            x: [B, T, E].
            attention_mask: [B, T], 0 for padding; a row of padding only gives zero.
        """
        q_BHTD, v_BHTD = (split_heads(project(x), self.heads) for project in (self.query_key, self.value))
        k_BHTD = nn.functional.normalize(q_BHTD, dim=-1)
        bucket_BHRT = self.bucket(q_BHTD, attention_mask.bool())
        T = x.shape[1]
        order_BHRT = (bucket_BHRT * T + torch.arange(T, device=x.device)).argsort(dim=-1)
        q_BHRCWD = cut(in_order(q_BHTD, order_BHRT), self.chunk)
        k_BHRCUD, v_BHRCUD = (
            with_neighbours(cut(in_order(y_BHTD, order_BHRT), self.chunk), 1, 0) for y_BHTD in (k_BHTD, v_BHTD)
        )
        allowed_BHRCWU = self.allowed(bucket_BHRT.gather(-1, order_BHRT))
        scores_BHRCWU = q_BHRCWD @ k_BHRCUD.mT * q_BHTD.shape[-1] ** -0.5
        scores_BHRCWU = scores_BHRCWU.masked_fill(~allowed_BHRCWU, -torch.inf)
        mixed_BHRCWD = scores_BHRCWU.softmax(dim=-1) @ v_BHRCUD
        weight_BHRCW1 = scores_BHRCWU.logsumexp(dim=-1, keepdim=True)

        place_BHRT1 = order_BHRT.argsort(dim=-1)[..., None]
        mixed_BHRTD = join(mixed_BHRCWD, T)
        mixed_BHRTD = mixed_BHRTD.gather(-2, place_BHRT1.expand_as(mixed_BHRTD))
        weight_BHRT1 = join(weight_BHRCW1, T).gather(-2, place_BHRT1)
        mixed_BHTD = (weight_BHRT1.softmax(dim=2) * mixed_BHRTD).sum(dim=2)
        y_BTE: torch.Tensor = self.out(merge_heads(mixed_BHTD) * attention_mask[..., None].to(x.dtype))
        return y_BTE

    def bucket(self, q_BHTD: torch.Tensor, keep_BT: torch.Tensor) -> torch.Tensor:
        """The bucket of each token in each round, [B, H, R, T]; K for padding, after all others."""
        rotated_BHRTK = q_BHTD[:, :, None] @ self.rotations
        found_BHRT = torch.cat([rotated_BHRTK, -rotated_BHRTK], dim=-1).argmax(dim=-1)
        return found_BHRT.masked_fill(~keep_BT[:, None, None], self.buckets)

    def allowed(self, sorted_BHRT: torch.Tensor) -> torch.Tensor:
        """Which keys of its chunk and the one before each query sees, [B, H, R, C, W, U], by the sorted buckets."""
        # Buckets count from 1 here: 0 is the filling of the last chunk, and of the missing chunk before the first.
        bucket_BHRCW1 = cut(sorted_BHRT[..., None] + 1, self.chunk)
        bucket_BHRC1U = with_neighbours(bucket_BHRCW1, 1, 0).mT
        seen_BHRC1U = (bucket_BHRC1U > 0) & (bucket_BHRC1U <= self.buckets)
        same_BHRCWU = (bucket_BHRCW1 == bucket_BHRC1U) & seen_BHRC1U
        at_W, at_U = (torch.arange(count * self.chunk, device=sorted_BHRT.device) for count in (1, 2))
        self_WU = at_U - self.chunk == at_W[:, None]
        others_BHRCWU = same_BHRCWU & ~self_WU
        return others_BHRCWU | (self_WU & ~others_BHRCWU.any(dim=-1, keepdim=True))


def in_order(x_BHTD: torch.Tensor, order_BHRT: torch.Tensor) -> torch.Tensor:
    """The vectors in the order of every round, [B, H, R, T, D]."""
    shape = (*order_BHRT.shape, x_BHTD.shape[-1])
    return x_BHTD[:, :, None].expand(shape).gather(-2, order_BHRT[..., None].expand(shape))


@model("funnel_attention", lambda sizes: sequence_contract(sizes.width))
class FunnelAttention(ProjectedAttention):
    """Funnel attention: pooled queries attend to all tokens, and each result is repeated for the tokens of its pool.

    Dai, Lai, Yang, Le, "Funnel-Transformer: Filtering out Sequential Redundancy for Efficient Language Processing"
    (2020), sections 2.2 (pool-query-only attention) and 2.3 (the decoder's upsampling). On x [B, T, E], by a factor
    of P:

        h = pool(x) [B, ceil(T / P), E]                          the mean of each P tokens
        a_s = Wo softmax_j(q_s k_j / sqrt(D)) v_j                q = Wq h, k = Wk x, v = Wv x
        y_i = x_i + norm(h + a)_(i div P)                        each pooled vector for all P tokens of its pool

    The mean is over the tokens that are not padding, so that a sequence's end does not depend on the padding after it.
    The paper's relative positions are left out. Cost: (4 + 4 / P) B T E^2 + 4 B T^2 E / P floating-point operations.

    Args:
        width: E.
        heads: H.
        pool: P.
    """

    def __init__(self, width: int = 64, heads: int = 4, pool: int = 2) -> None:
        super().__init__(width, heads)
        self.pool = pool
        self.norm = nn.LayerNorm(width)

    def forward(self, x: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Attends from every S = ceil(T / P) pooled tokens to all that are not padding.

        Args:
            x: [B, T, E].
            attention_mask: [B, T], 0 for padding; a row of padding only gives zero before the projection.
        """
        pooled_BSE = self.pooled(x, attention_mask)
        q_BHSD, k_BHTD, v_BHTD = self.project(pooled_BSE, x)
        allowed_B11T = masks.padding(attention_mask)
        mixed_BHSD = nn.functional.scaled_dot_product_attention(q_BHSD, k_BHTD, v_BHTD, attn_mask=allowed_B11T)
        short_BSE: torch.Tensor = self.norm(pooled_BSE + self.merge(mixed_BHSD))
        of_token_T = torch.arange(x.shape[1], device=x.device) // self.pool
        return x + short_BSE[:, of_token_T]

    def pooled(self, x_BTE: torch.Tensor, attention_mask_BT: torch.Tensor) -> torch.Tensor:
        """The mean of each P tokens over those that are not padding, or zero if all are padding, [B, S, E]."""
        keep_BT1 = attention_mask_BT[..., None].to(x_BTE.dtype)
        sum_BSE = cut(x_BTE * keep_BT1, self.pool).sum(dim=2)
        count_BS1 = cut(keep_BT1, self.pool).sum(dim=2)
        return sum_BSE / count_BS1.clamp(min=1)


# --- chunks -------------------------------------------------------------------------------------------------------


def cut(x: torch.Tensor, length: int) -> torch.Tensor:
    """[..., T, D] to [..., C, W, D] with W = `length`, filled up with zeros to C = ceil(T / W) + 1 chunks.

    There is one chunk more than needed, so that there are always several: torch.export treats a size of 1 as constant.
    """
    T = x.shape[-2]
    chunks = (T - 1) // length + 2
    filled = nn.functional.pad(x, (0, 0, 0, chunks * length - T))
    # Indexed, not reshaped, here and below: torch.export cannot know that the padded length is divisible.
    at_C1, at_W = torch.arange(chunks, device=x.device)[:, None], torch.arange(length, device=x.device)
    return filled[..., at_C1 * length + at_W, :]


def join(x: torch.Tensor, T: int) -> torch.Tensor:
    """[..., C, W, D] to the first T of its tokens, [..., T, D]: the reverse of `cut`."""
    at_T = torch.arange(T, device=x.device)
    return x[..., at_T // x.shape[-2], at_T % x.shape[-2], :]


def with_neighbours(x: torch.Tensor, before: int, after: int) -> torch.Tensor:
    """[..., C, W, D] to [..., C, (before + 1 + after) W, D]: each chunk between its neighbours, zeros past the ends."""
    chunks = x.shape[-3]
    padded = nn.functional.pad(x, (0, 0, 0, 0, before, after))
    return torch.cat([padded.narrow(-3, start, chunks) for start in range(before + 1 + after)], dim=-2)
