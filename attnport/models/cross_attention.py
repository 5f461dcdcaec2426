"""Attention from the tokens of one sequence to those of another: a source, a memory or an earlier segment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from torch import nn

from attnport.artifacts import Dim, IOContract, TensorSpec
from attnport.masks import MaskSpec
from attnport.masks import torch_builders as masks
from attnport.models.base import BATCH, length, model
from attnport.models.blocks import ProjectedAttention, SinusoidalPositions, merge_heads, split_heads

SOURCE_PADDING = MaskSpec(("padding",), "memory_mask")
LENGTHS = (length(), length("mem"))
SENTENCES = (Dim("seq", 1, 16, 64), Dim("mem", 1, 64, 256))


def memory_contract(
    width: int,
    memory_width: int,
    outputs: Mapping[str, int | str],
    *,
    lengths: tuple[Dim, Dim] = LENGTHS,
    masks: tuple[MaskSpec, ...] = (SOURCE_PADDING,),
    positions: Literal["absolute", "none"] = "none",
) -> IOContract:
    """`x` float32 [batch, seq, E], `memory` float32 [batch, mem, M] and its `memory_mask` int64 [batch, mem].

    Args:
        width: E.
        memory_width: M.
        outputs: The last dim of each output, float32 [batch, seq, ...], by name.
        lengths: The ranges of `seq` and `mem`.
        masks: The masks that hide tokens of the memory.
        positions: `none` if padding on the left of the memory changes nothing.
    """
    return IOContract(
        inputs=(
            TensorSpec("x", "float32", ("batch", "seq", width)),
            TensorSpec("memory", "float32", ("batch", "mem", memory_width)),
            TensorSpec("memory_mask", "int64", ("batch", "mem"), high=2),
        ),
        outputs=tuple(TensorSpec(name, "float32", ("batch", "seq", last)) for name, last in outputs.items()),
        dims=(BATCH, *lengths),
        masks=masks,
        positions=positions,
    )


@model(
    "multi_head_attention",
    lambda sizes: IOContract(
        inputs=(
            TensorSpec("query", "float32", ("batch", "seq", sizes.width)),
            TensorSpec("key", "float32", ("batch", "mem", sizes.key_width)),
            TensorSpec("value", "float32", ("batch", "mem", sizes.value_width)),
            TensorSpec("key_mask", "bool", ("batch", "mem")),
        ),
        outputs=(TensorSpec("y", "float32", ("batch", "seq", sizes.width)),),
        dims=(BATCH, *LENGTHS),
        masks=(MaskSpec(("padding",), "key_mask"),),
        positions="none",
    ),
)
class MultiHeadAttention(nn.Module):
    """Multi-head attention with queries, keys and values of three separate inputs, each of its own width.

    Vaswani et al., "Attention Is All You Need" (2017), section 3.2.2. On query [B, S, E], key [B, T, Ek] and value
    [B, T, Ev], with H heads of D = E / H:

        y = Wo concat_h softmax(q_h k_h^T / sqrt(D) + m) v_h        q = query Wq, k = key Wk, v = value Wv
                                                                     m[b, j] = 0 where keep[b, j], else -inf

    Cost: 4 B S E^2 + 2 B T E (Ek + Ev) + 4 B S T E floating-point operations.

    Args:
        width: E.
        key_width: Ek.
        value_width: Ev.
        heads: H.
    """

    def __init__(self, width: int = 64, key_width: int = 48, value_width: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(key_width, width)
        self.value = nn.Linear(value_width, width)
        self.out = nn.Linear(width, width)

    def forward(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, key_mask: torch.Tensor
    ) -> torch.Tensor:
        """Attends from every query to the keys that are not padding.

        Args:
            query: [B, S, E].
            key: [B, T, Ek].
            value: [B, T, Ev].
            key_mask: bool [B, T], True for a real key; an item without any gets the output projection of zero.

        Returns:
            [B, S, E].
        """
        q_BHSD = split_heads(self.query(query), self.heads)
        k_BHTD = split_heads(self.key(key), self.heads)
        v_BHTD = split_heads(self.value(value), self.heads)
        mixed_BHSD = nn.functional.scaled_dot_product_attention(
            q_BHSD, k_BHTD, v_BHTD, attn_mask=masks.padding(key_mask)
        )
        y_BSE: torch.Tensor = self.out(merge_heads(mixed_BHSD))
        return y_BSE


@model("cross_attention", lambda sizes: memory_contract(sizes.width, sizes.memory_width, {"y": sizes.width}))
class CrossAttention(nn.Module):
    """Cross-attention: the tokens of one sequence attend to those of another, as a decoder attends to encoded text.

    Bahdanau et al. (2015) as multi-head dot products: Vaswani et al., "Attention Is All You Need" (2017), section
    3.2.3. On x [B, S, E] and memory [B, T, M], with keys and values from one projection of the memory:

        y = x + Wo concat_h softmax(q_h k_h^T / sqrt(D) + m) v_h        q = norm(x) Wq, [k v] = memory Wkv
                                                                         m[b, j] = 0 where keep[b, j], else -inf

    Cost: 4 B S E^2 + 4 B T M E + 4 B S T E floating-point operations; in decoding, the second term is paid once.

    Args:
        width: E.
        memory_width: M.
        heads: H.
    """

    def __init__(self, width: int = 64, memory_width: int = 48, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.query = nn.Linear(width, width)
        self.key_value = nn.Linear(memory_width, 2 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: torch.Tensor, memory: torch.Tensor, memory_mask: torch.Tensor) -> torch.Tensor:
        """Adds to every token what it reads from the memory.

        Args:
            x: [B, S, E].
            memory: [B, T, M].
            memory_mask: int64 [B, T], 1 for a real token of the memory and 0 for padding.

        Returns:
            [B, S, E].
        """
        q_BHSD = split_heads(self.query(self.norm(x)), self.heads)
        k_BTE, v_BTE = self.key_value(memory).chunk(2, dim=-1)
        k_BHTD, v_BHTD = split_heads(k_BTE, self.heads), split_heads(v_BTE, self.heads)
        mixed_BHSD = nn.functional.scaled_dot_product_attention(
            q_BHSD, k_BHTD, v_BHTD, attn_mask=masks.padding(memory_mask)
        )
        y_BSE: torch.Tensor = x + self.out(merge_heads(mixed_BHSD))
        return y_BSE


@model(
    "recurrent_memory_attention",
    lambda sizes: IOContract(
        inputs=(
            TensorSpec("x", "float32", ("batch", "seq", sizes.width)),
            TensorSpec("memory", "float32", ("batch", "mem", sizes.width)),
        ),
        outputs=(TensorSpec("y", "float32", ("batch", "seq", sizes.width)),),
        dims=(BATCH, Dim("seq", 1, 64, 256), Dim("mem", 1, 64, 256)),
        masks=(MaskSpec(("causal",), alignment="lower_right"),),
    ),
)
class RecurrentMemoryAttention(ProjectedAttention):
    """Transformer-XL's attention: a memory of the previous segment, and positions relative to the query.

    Dai, Yang, Yang, Carbonell, Le, Salakhutdinov, "Transformer-XL: Attentive Language Models beyond a Fixed-Length
    Context" (2019), section 3. Queries are the S tokens of a segment x, keys and values the M tokens of the memory and
    then these S; T = M + S. Query i is at the position of key i + M, and with R[d] the sinusoidal vector of distance d,

        score[i, j] = (q_i + u) . k_j + (q_i + v) . Wr R[i + M - j]        for j <= i + M
        y = Wo softmax(score / sqrt(D)) value

    u and v are learned, one per head: the weight of a key's content, and of its distance, for every query. The products
    with R are computed for all distances at once, [S, T], and each row is then shifted by its query's position: the
    "relative shift" of appendix B.

    Cost: 4 B S E^2 + 4 B T E^2 + 2 T E^2 + 6 B S T E floating-point operations.

    Args:
        width: E.
        heads: H; the head dim D is E / H.
    """

    def __init__(self, width: int = 64, heads: int = 4) -> None:
        super().__init__(width, heads, bias=False)
        self.heads, depth = heads, width // heads
        self.scale = depth**-0.5
        self.distance = nn.Linear(width, width, bias=False)
        self.sinusoidal = SinusoidalPositions(width)
        self.content_bias = nn.Parameter(torch.randn(heads, 1, depth))
        self.position_bias = nn.Parameter(torch.randn(heads, 1, depth))

    def forward(self, x: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
        """Attends from each token to those before it, in its segment and in the memory.

        Args:
            x: The segment, [B, S, E].
            memory: The activations of the previous segment at this layer, [B, M, E].

        Returns:
            [B, S, E].
        """
        context_BTE = torch.cat([memory, x], dim=1)
        q_BHSD, k_BHTD, v_BHTD = self.project(x, context_BTE)
        S, T = q_BHSD.shape[2], k_BHTD.shape[2]

        nearest_first_1TE = self.sinusoidal(torch.zeros_like(context_BTE[:1]))
        r_1HTD = split_heads(self.distance(nearest_first_1TE.flip(1)), self.heads)
        position_BHST = relative_shift((q_BHSD + self.position_bias) @ r_1HTD.transpose(-1, -2)) * self.scale
        allowed_11ST = masks.causal(S, T, "lower_right", x.device)
        mixed_BHSD = nn.functional.scaled_dot_product_attention(
            q_BHSD + self.content_bias,
            k_BHTD,
            v_BHTD,
            attn_mask=position_BHST.masked_fill(~allowed_11ST, -torch.inf),
            scale=self.scale,
        )
        return self.merge(mixed_BHSD)


def relative_shift(x_BHST: torch.Tensor) -> torch.Tensor:
    """Moves row i to the left by S - 1 - i; what comes in on the right belongs to keys after the query.

    Column c of the argument has distance T - 1 - c. A column of zeros is put before the rows, and the numbers are then
    read as rows that are shorter by one: every row begins one number later than the row above it.
    """
    B, H, S, T = x_BHST.shape
    padded = nn.functional.pad(x_BHST, (1, 0)).reshape(B, H, T + 1, S)
    return padded[:, :, 1:].reshape(B, H, S, T)


@model(
    "additive_attention",
    lambda sizes: memory_contract(
        sizes.width, sizes.width, {"context": sizes.width, "weights": "mem"}, lengths=SENTENCES
    ),
)
class AdditiveAttention(nn.Module):
    """Bahdanau's attention: each pair of a decoder state and an encoder state is scored by a small network.

    Bahdanau, Cho, Bengio, "Neural Machine Translation by Jointly Learning to Align and Translate" (2015), appendix
    A.1.2. With decoder states s [B, S, E] and annotations h [B, T, E] of the source:

        score[i, j] = va . tanh(Wa s_i + Ua h_j)
        alpha = softmax(score + mask),   c = alpha h

    A score is not a product of a query and a key, because of the tanh, and no attention kernel computes it. The hidden
    vectors of all pairs, [B, S, T, A], are in memory at once. A state whose source is all padding gets the context
    zero.

    Cost: 2 B (S + T) E A + 4 B S T A + 2 B S T E floating-point operations, of which B S T A are a tanh.

    Args:
        width: E.
        hidden: A, the size of the network that scores.
    """

    def __init__(self, width: int = 64, hidden: int = 32) -> None:
        super().__init__()
        self.states = nn.Linear(width, hidden)
        self.annotations = nn.Linear(width, hidden, bias=False)
        self.score = nn.Linear(hidden, 1, bias=False)

    def forward(
        self, x: torch.Tensor, memory: torch.Tensor, memory_mask: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Aligns decoder states with annotations.

        Args:
            x: Decoder states, [B, S, E].
            memory: Annotations, [B, T, E].
            memory_mask: int64 [B, T], 1 for a real word and 0 for padding, which may be anywhere.

        Returns:
            The contexts [B, S, E] and the weights [B, S, T].
        """
        hidden_BSTA = torch.tanh(self.states(x)[:, :, None] + self.annotations(memory)[:, None])
        hidden_B1T = memory_mask[:, None] == 0
        score_BST = self.score(hidden_BSTA).squeeze(-1).masked_fill(hidden_B1T, -torch.inf)
        weights_BST = score_BST.softmax(dim=-1).masked_fill(hidden_B1T, 0.0)  # a softmax without keys is NaN
        return weights_BST @ memory, weights_BST


class GlobalAttention(nn.Module):
    """Attends to all that a mask allows, with the general score."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.score = nn.Linear(width, width, bias=False)
        self.state = nn.Linear(2 * width, width, bias=False)

    def forward(self, h_BSE: torch.Tensor, e_BTE: torch.Tensor, allowed_B1ST: torch.Tensor) -> torch.Tensor:
        """Gives the attentional states [B, S, E]."""
        q_B1SE, e_B1TE = self.score(h_BSE)[:, None], e_BTE[:, None]
        context_B1SE = nn.functional.scaled_dot_product_attention(
            q_B1SE, e_B1TE, e_B1TE, attn_mask=allowed_B1ST, scale=1.0
        )
        return torch.tanh(self.state(torch.cat([context_B1SE.squeeze(1), h_BSE], dim=-1)))


class PredictiveAttention(nn.Module):
    """Predicts where to look, and attends to a window around it (local-p)."""

    def __init__(self, width: int, radius: int) -> None:
        super().__init__()
        self.radius = radius
        self.score = nn.Linear(width, width, bias=False)
        self.state = nn.Linear(2 * width, width, bias=False)
        self.position = nn.Linear(width, width, bias=False)
        self.position_score = nn.Linear(width, 1, bias=False)

    def forward(self, h_BSE: torch.Tensor, e_BTE: torch.Tensor, keep_BT: torch.Tensor) -> torch.Tensor:
        """Gives the attentional states [B, S, E]."""
        share_BS1 = torch.sigmoid(self.position_score(torch.tanh(self.position(h_BSE))))
        center_BS1 = keep_BT.sum(dim=1)[:, None, None] * share_BS1
        distance_BST = torch.arange(e_BTE.shape[1], device=e_BTE.device) - center_BS1
        allowed_BST = (distance_BST.abs() <= self.radius) & keep_BT[:, None]

        score_BST = self.score(h_BSE) @ e_BTE.transpose(1, 2)
        weights_BST = score_BST.masked_fill(~allowed_BST, -torch.inf).softmax(dim=-1).masked_fill(~allowed_BST, 0.0)
        near_BST = torch.exp(-distance_BST.square() / (2 * (self.radius / 2) ** 2))
        context_BSE = (weights_BST * near_BST) @ e_BTE
        return torch.tanh(self.state(torch.cat([context_BSE, h_BSE], dim=-1)))


@model(
    "luong_attention",
    lambda sizes: memory_contract(
        sizes.width,
        sizes.width,
        dict.fromkeys(("global_state", "monotonic_state", "predictive_state"), sizes.width),
        lengths=SENTENCES,
        masks=(SOURCE_PADDING, MaskSpec(("window",), window=sizes.radius)),
        positions="absolute",
    ),
)
class LuongAttention(nn.Module):
    """Luong's attentions: a decoder state attends to the whole source, or to a window of it.

    Luong, Pham, Manning, "Effective Approaches to Attention-based Neural Machine Translation" (2015), section 3, with
    the "general" score. With decoder states h [B, S, E] and encoder states e [B, T, E]:

        global     a = softmax(h W e^T + mask)
        local-m    the same over the 2 R + 1 source positions around t: alignment is taken to be monotonic
        local-p    over those around p = length sigmoid(vp . tanh(Wp h)), and then a exp(-(j - p)^2 / (2 sigma^2))
        state      tanh(Wc [a e; h])

    with sigma = R / 2. Scores are not scaled, and there is one head. In local-p the Gaussian multiplies the weights
    after the softmax, so that rows do not sum to one. A row with no key (padding only, or a target position far after
    the end of the source) has the context zero.

    Cost: 2 B S E^2 + 4 B S T E + 4 B S E^2 floating-point operations each, local ones written over all T with a mask.

    Args:
        width: E.
        radius: R, how far a local attention looks to either side; 10 in the paper, which calls it D.
    """

    def __init__(self, width: int = 64, radius: int = 10) -> None:
        super().__init__()
        self.radius = radius
        self.all = GlobalAttention(width)
        self.monotonic = GlobalAttention(width)
        self.predictive = PredictiveAttention(width, radius)

    def forward(
        self, x: torch.Tensor, memory: torch.Tensor, memory_mask: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Attends from decoder states to the source.

        Args:
            x: Decoder states, [B, S, E].
            memory: Encoder states, [B, T, E].
            memory_mask: int64 [B, T], 1 for a real word and 0 for padding.

        Returns:
            The attentional states of global, local-m and local-p attention, each [B, S, E].
        """
        keep_B11T = masks.padding(memory_mask)
        window_11ST = masks.window(x.shape[1], memory.shape[1], self.radius, device=x.device)
        return (
            self.all(x, memory, keep_B11T),
            self.monotonic(x, memory, masks.combine(keep_B11T, window_11ST)),
            self.predictive(x, memory, keep_B11T[:, 0, 0]),
        )
