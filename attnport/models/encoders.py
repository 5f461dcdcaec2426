"""Encoders: of a text, with one score for each label or feed-forwards of several experts, and of an image."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import nn

from attnport.artifacts import IOContract, TensorSpec
from attnport.errors import UsageError
from attnport.masks import torch_builders as masks
from attnport.models.base import BATCH, PADDING, get, length, model
from attnport.models.blocks import (
    FeedForward,
    LearnedPositions,
    MultiHeadAttention,
    PreNormLayer,
    RelativePositions,
    ReluFeedForward,
    RMSNorm,
    T5Attention,
)

POOLINGS = ("mean", "first")


def token_contract(inputs: Mapping[str, int], width: int, *, limit: int = 512) -> IOContract:
    """Token ids and other numbers of each token, to `last_hidden_state` float32 [batch, seq, E].

    Args:
        inputs: By name, the number below which all of an input's are; each is int64 [batch, seq], and one is
            `attention_mask`.
        width: E.
        limit: The longest sequence.
    """
    tokens = ("batch", "seq")
    return IOContract(
        inputs=tuple(TensorSpec(name, "int64", tokens, high=high) for name, high in inputs.items()),
        outputs=(TensorSpec("last_hidden_state", "float32", (*tokens, width)),),
        dims=(BATCH, length(limit=limit)),
        masks=(PADDING,),
    )


class PostNormLayer(nn.Module):
    """Attention and feed-forward, each added to its input and normalised afterwards."""

    def __init__(self, width: int, heads: int, hidden: int, norm_eps: float) -> None:
        super().__init__()
        self.attention = MultiHeadAttention(width, heads)
        self.attention_norm = nn.LayerNorm(width, eps=norm_eps)
        self.feed_forward = FeedForward(width, hidden)
        self.feed_forward_norm = nn.LayerNorm(width, eps=norm_eps)

    def forward(self, x_BTE: torch.Tensor, allowed_B11T: torch.Tensor) -> torch.Tensor:
        """Maps [B, T, E] to [B, T, E]."""
        x_BTE = self.attention_norm(x_BTE + self.attention(x_BTE, x_BTE, allowed_B11T))
        y_BTE: torch.Tensor = self.feed_forward_norm(x_BTE + self.feed_forward(x_BTE))
        return y_BTE


@model(
    "bert_encoder",
    lambda sizes: token_contract(
        {"input_ids": sizes.vocabulary, "attention_mask": 2, "token_type_ids": sizes.segments},
        sizes.width,
        limit=sizes.positions,
    ),
)
class BertEncoder(nn.Module):
    """BERT's encoder: token, position and segment embeddings, then post-norm layers of self-attention and feed-forward.

    Devlin, Chang, Lee, Toutanova, "BERT: Pre-training of Deep Bidirectional Transformers for Language Understanding"
    (2019), after Vaswani et al., "Attention Is All You Need" (2017). One layer, on x [B, T, E]:

        a = x + Wo softmax(q k^T / sqrt(D) + mask) v        q, k, v = x split into H heads of D = E / H
        y = norm(a_n + W2 gelu(W1 a_n))                      a_n = norm(a)

    Cost of a layer with a feed-forward of 4 E: 24 B T E^2 + 4 B T^2 E floating-point operations; attention as one
    kernel keeps the T x T scores out of memory.

    Args:
        vocabulary: The number of token ids.
        width: E.
        heads: H.
        layers: The number of layers.
        hidden: The size between the projections of a feed-forward.
        positions: The longest T.
        segments: The number of token types.
        norm_eps: Added to the variances of the norms.
    """

    def __init__(
        self,
        vocabulary: int = 1000,
        width: int = 64,
        heads: int = 4,
        layers: int = 2,
        hidden: int = 256,
        positions: int = 512,
        segments: int = 2,
        norm_eps: float = 1e-12,
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.segments = nn.Embedding(segments, width)
        self.positions = LearnedPositions(positions, width)
        self.norm = nn.LayerNorm(width, eps=norm_eps)
        self.layers = nn.ModuleList(PostNormLayer(width, heads, hidden, norm_eps) for _ in range(layers))

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, token_type_ids: torch.Tensor
    ) -> torch.Tensor:
        """Encodes token ids.

        Args:
            input_ids: int64 [B, T], below the vocabulary's size.
            attention_mask: int64 [B, T], 1 for a real token and 0 for padding, on either side or inside.
            token_type_ids: int64 [B, T], the segment of each token.

        Returns:
            The last layer's activations, [B, T, E].
        """
        allowed_B11T = attention_mask[:, None, None, :].bool()
        x_BTE: torch.Tensor = self.norm(self.positions(self.tokens(input_ids) + self.segments(token_type_ids)))
        for layer in self.layers:
            x_BTE = layer(x_BTE, allowed_B11T)
        return x_BTE


class MeanPooling(nn.Module):
    """The mean over the tokens that a mask keeps; zero if it keeps none."""

    def forward(self, x_BTE: torch.Tensor, keep_BT: torch.Tensor) -> torch.Tensor:
        """Maps [B, T, E] to [B, E]; `keep_BT` is True for a real token."""
        kept_BTE = torch.where(keep_BT[:, :, None], x_BTE, torch.zeros_like(x_BTE))
        count_B1 = keep_BT.sum(dim=1, keepdim=True).clamp(min=1)
        return kept_BTE.sum(dim=1) / count_B1.to(x_BTE.dtype)


class FirstPooling(nn.Module):
    """The first token that a mask keeps; token 0 if it keeps none."""

    def forward(self, x_BTE: torch.Tensor, keep_BT: torch.Tensor) -> torch.Tensor:
        """Maps [B, T, E] to [B, E]; `keep_BT` is True for a real token."""
        first_B = keep_BT.long().argmax(dim=1)
        index_B1E = first_B[:, None, None].expand(-1, 1, x_BTE.shape[2])
        return x_BTE.gather(1, index_B1E).squeeze(1)


@model(
    "sequence_classifier",
    lambda sizes: dataclasses.replace(
        get("bert_encoder", **sizes.encoder).io, outputs=(TensorSpec("logits", "float32", ("batch", sizes.labels)),)
    ),
)
class SequenceClassifier(nn.Module):
    """A classifier of sequences: BERT's encoder, pooling over the real tokens, and a head.

    Devlin et al., "BERT" (2019), section 4.1, pools by taking the first token; Reimers and Gurevych, "Sentence-BERT"
    (2019), by the mean over the real ones, which they found to be better for embeddings. On the encoder's y [B, T, E]:

        p = y[first real token]    or    sum over kept t of y[t] / kept        [B, E]
        scores = Wc tanh(Wp p + bp) + bc                                       [B, labels]

    Padding never affects the scores, wherever it is. The mean is zero for an item without real tokens.

    Cost: the encoder's, and B T E + 2 B E^2 floating-point operations for pooling and head.

    Args:
        labels: The number of labels.
        pooling: `mean` or `first`.
        encoder: Sizes of the `BertEncoder`.

    Raises:
        UsageError: another pooling.
    """

    def __init__(self, labels: int = 5, pooling: str = "mean", **encoder: Any) -> None:
        super().__init__()
        if pooling not in POOLINGS:
            raise UsageError(f"sequence_classifier: got pooling {pooling!r}; expected {' or '.join(POOLINGS)}.")
        self.encoder = BertEncoder(**encoder)
        width = self.encoder.tokens.embedding_dim
        self.pooling = MeanPooling() if pooling == "mean" else FirstPooling()
        self.dense = nn.Linear(width, width)
        self.classifier = nn.Linear(width, labels)

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, token_type_ids: torch.Tensor
    ) -> torch.Tensor:
        """Scores each label.

        Args:
            input_ids: int64 [B, T], below the vocabulary's size.
            attention_mask: int64 [B, T], 1 for a real token and 0 for padding, on either side or inside.
            token_type_ids: int64 [B, T], the segment of each token.

        Returns:
            Scores before the softmax, [B, labels].
        """
        y_BTE = self.encoder(input_ids, attention_mask, token_type_ids)
        pooled_BE = self.pooling(y_BTE, attention_mask.bool())
        scores_BL: torch.Tensor = self.classifier(torch.tanh(self.dense(pooled_BE)))
        return scores_BL


class SwitchFeedForward(nn.Module):
    """A router and its experts: each token's output is that of its best expert, times the router's probability.

    Args:
        width: Model dim E.
        hidden: Size between an expert's projections.
        experts: N.
    """

    def __init__(self, width: int, hidden: int, experts: int) -> None:
        super().__init__()
        self.router = nn.Linear(width, experts, bias=False)
        self.experts = nn.ModuleList(ReluFeedForward(width, hidden, bias=False) for _ in range(experts))

    def forward(self, x_BTE: torch.Tensor) -> torch.Tensor:
        """Maps [B, T, E] to [B, T, E], each token by itself."""
        gate_BT1, chosen_BT1 = self.router(x_BTE).softmax(-1).max(dim=-1, keepdim=True)
        found_BTE = torch.zeros_like(x_BTE)
        for number, expert in enumerate(self.experts):
            found_BTE = torch.where(chosen_BT1 == number, expert(x_BTE), found_BTE)
        y_BTE: torch.Tensor = gate_BT1 * found_BTE
        return y_BTE


@model(
    "switch_transformer",
    lambda sizes: token_contract({"input_ids": sizes.vocabulary, "attention_mask": 2}, sizes.width),
)
class SwitchTransformer(nn.Module):
    """Switch Transformer: T5's encoder in which a router sends every token to one of several feed-forward experts.

    Fedus, Zoph, Shazeer, "Switch Transformers: Scaling to Trillion Parameter Models with Simple and Efficient Sparsity"
    (2022). For a token x, after the norm, with N experts f_n:

        p = softmax(Wr x)                                    [N]
        y = p[m] f_m(x)                                      m = argmax p

    Every second layer has experts, as in the paper (section 2.4); the others have one feed-forward. Here every expert
    runs on every token, and the outputs that were not chosen are replaced by zero. The sizes then depend only on the
    sizes of the inputs, as a graph for any batch and sequence requires, and no expert has a capacity beyond which
    tokens are dropped. The experts cost N times as much as needed.

    A token whose two best experts are nearly equal may go to the other one in another precision, which visibly changes
    its output. The model itself is discontinuous there, and a checkpoint with such tokens can fail a comparison in half
    precision. The probabilities choose and scale, but enter no matrix product: they are not an attention.

    Cost of a layer with experts of 4 E: B (8 T E^2 + 4 T^2 E + 16 N T E^2 + 2 N T E) floating-point operations.

    Args:
        vocabulary: The number of token ids.
        width: E.
        heads: H.
        depth: The head dim D.
        layers: The number of layers.
        hidden: The size between the projections of a feed-forward.
        experts: N.
        every: The distance of layers with experts.
        buckets: The rows of the table of relative positions, half of them for later keys.
        max_distance: The distance at which the last bucket begins.
        norm_eps: Added to the mean squares of the norms.
    """

    def __init__(
        self,
        vocabulary: int = 1000,
        width: int = 64,
        heads: int = 4,
        depth: int = 16,
        layers: int = 2,
        hidden: int = 128,
        experts: int = 4,
        every: int = 2,
        buckets: int = 32,
        max_distance: int = 128,
        norm_eps: float = 1e-6,
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = RelativePositions(heads, buckets, max_distance)
        self.layers = nn.ModuleList()
        for number in range(layers):
            feed_forward = (
                SwitchFeedForward(width, hidden, experts)
                if number % every == every - 1
                else ReluFeedForward(width, hidden, bias=False)
            )
            attention = T5Attention(width, heads, depth)
            self.layers.append(PreNormLayer(partial(RMSNorm, width, norm_eps), attention, feed_forward))
        self.norm = RMSNorm(width, norm_eps)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Encodes token ids.

        Args:
            input_ids: int64 [B, T], below the vocabulary's size.
            attention_mask: int64 [B, T], 1 for a real token and 0 for padding.

        Returns:
            The activations after the last norm, [B, T, E].
        """
        T = input_ids.shape[1]
        x_BTE = self.tokens(input_ids)
        bias_BHTT = self.positions(T, T) + masks.additive(masks.padding(attention_mask), x_BTE.dtype)
        for part in self.layers:
            x_BTE = part(x_BTE, bias_BHTT)
        y_BTE: torch.Tensor = self.norm(x_BTE)
        return y_BTE

    def adjust_random_weights(self, lean: float = 10.0) -> None:
        """Adds to the embedding of token id i `lean` times the router's row of expert i mod N.

        Trained routers recognise most tokens by their embedding. With random ones, one token in a thousand is so close
        to a tie that a half-precision rounding decides, and a comparison of two precisions says nothing about the
        graph.
        """
        ids_V = torch.arange(self.tokens.num_embeddings)
        for part in self.modules():
            if isinstance(part, SwitchFeedForward):
                rows_NE = part.router.weight
                self.tokens.weight.add_(lean * rows_NE[ids_V % len(rows_NE)])


@model(
    "vision_transformer",
    lambda sizes: IOContract(
        inputs=(TensorSpec("pixels", "float32", ("batch", sizes.channels, sizes.image, sizes.image)),),
        outputs=(TensorSpec("logits", "float32", ("batch", sizes.classes)),),
        dims=(BATCH,),  # the table of positions fixes the image's
    ),
)
class VisionTransformer(nn.Module):
    """The Vision Transformer: an image as a class token and a sequence of patches.

    Dosovitskiy et al., "An Image is Worth 16x16 Words: Transformers for Image Recognition at Scale" (2020). An image of
    N = (image / patch)^2 patches becomes T = N + 1 tokens: z = [class; Wp patch_1; ...; Wp patch_N] + positions.
    Pre-norm layers, on z [B, T, E]:

        a = z + Wo softmax(q k^T / sqrt(D)) v        q, k, v = projections of norm(z)
        y = a + W2 gelu(W1 norm(a))

    and logits = W norm(y[0]). Nothing is masked.

    Cost of a layer with a feed-forward of 4 E: 24 B T E^2 + 4 B T^2 E floating-point operations.

    Args:
        image: The side of an image, a square, in pixels.
        patch: The side of a patch, a square, in pixels.
        channels: The numbers of a pixel.
        width: E.
        heads: H.
        layers: The number of layers.
        hidden: The size between the projections of a feed-forward.
        classes: The number of logits.
        norm_eps: Added to the variances of the norms.
    """

    def __init__(
        self,
        image: int = 32,
        patch: int = 8,
        channels: int = 3,
        width: int = 64,
        heads: int = 4,
        layers: int = 2,
        hidden: int = 256,
        classes: int = 10,
        norm_eps: float = 1e-6,
    ) -> None:
        super().__init__()
        tokens = (image // patch) ** 2 + 1
        self.patches = nn.Conv2d(channels, width, patch, stride=patch)
        self.class_token = nn.Parameter(torch.randn(width))
        self.positions = LearnedPositions(tokens, width)
        norm = partial(nn.LayerNorm, width, eps=norm_eps)
        self.layers = nn.ModuleList(
            PreNormLayer(norm, MultiHeadAttention(width, heads), FeedForward(width, hidden)) for _ in range(layers)
        )
        self.norm = norm()
        self.classifier = nn.Linear(width, classes)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        """Classifies images.

        Args:
            pixels: [B, channels, image, image].

        Returns:
            Logits [B, classes].
        """
        patches_BNE = self.patches(pixels).flatten(2).transpose(1, 2)
        class_B1E = self.class_token.expand(patches_BNE.shape[0], 1, -1)
        x_BTE = self.positions(torch.cat([class_B1E, patches_BNE], dim=1))
        for part in self.layers:
            x_BTE = part(x_BTE, None)
        logits_BC: torch.Tensor = self.classifier(self.norm(x_BTE)[:, 0])
        return logits_BC
