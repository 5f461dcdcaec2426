"""Decoders that read another stream by cross-attention: an encoded source, what was retrieved, or what is heard."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import nn

from attnport.artifacts import Dim, IOContract, TensorSpec
from attnport.masks import MaskSpec
from attnport.masks import torch_builders as masks
from attnport.models.base import BATCH, PADDING, length, model
from attnport.models.blocks import (
    FeedForward,
    LearnedPositions,
    MultiHeadAttention,
    PreNormLayer,
    PreNormParts,
    RelativePositions,
    ReluFeedForward,
    RMSNorm,
    SinusoidalPositions,
    T5Attention,
    causal_and_padding,
)


def source_target_contract(names: tuple[str, str, str], vocabulary: int, output: str, width: int) -> IOContract:
    """A source with its padding mask, and a target so far, to float32 [batch, target, width].

    Args:
        names: The names of the source's ids, int64 [batch, seq], of its mask, and of the target's ids [batch, target].
        vocabulary: The number below which all ids are.
        output: The output's name.
        width: The output's last dim.
    """
    source_ids, source_mask, target_ids = names
    return IOContract(
        inputs=(
            TensorSpec(source_ids, "int64", ("batch", "seq"), high=vocabulary),
            TensorSpec(source_mask, "int64", ("batch", "seq"), high=2),
            TensorSpec(target_ids, "int64", ("batch", "target"), high=vocabulary),
        ),
        outputs=(TensorSpec(output, "float32", ("batch", "target", width)),),
        dims=(BATCH, length(), length("target")),
        masks=(MaskSpec(("padding",), input=source_mask),),
    )


class Residual(nn.Module):
    """`norm(x + f(x))`, or with `norm_first` `x + f(norm(x))`, of a part f."""

    def __init__(self, width: int, norm_first: bool, norm_eps: float) -> None:
        super().__init__()
        self.norm_first = norm_first
        self.norm = nn.LayerNorm(width, eps=norm_eps)

    def forward(self, x_BSE: torch.Tensor, part: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        """Maps [B, S, E] to [B, S, E]."""
        if self.norm_first:
            return x_BSE + part(self.norm(x_BSE))
        y_BSE: torch.Tensor = self.norm(x_BSE + part(x_BSE))
        return y_BSE


class EncoderLayer(nn.Module):
    """Self-attention and feed-forward."""

    def __init__(self, width: int, heads: int, hidden: int, residual: Callable[[], Residual]) -> None:
        super().__init__()
        self.attention = MultiHeadAttention(width, heads)
        self.attention_residual = residual()
        self.feed_forward = ReluFeedForward(width, hidden)
        self.feed_forward_residual = residual()

    def forward(self, x_BTE: torch.Tensor, source_B11T: torch.Tensor) -> torch.Tensor:
        """Maps [B, T, E] to [B, T, E]; `source_B11T` is True for the source's real tokens."""
        x_BTE = self.attention_residual(x_BTE, lambda h_BTE: self.attention(h_BTE, h_BTE, source_B11T))
        y_BTE: torch.Tensor = self.feed_forward_residual(x_BTE, self.feed_forward)
        return y_BTE


class DecoderLayer(nn.Module):
    """Causal self-attention, cross-attention to the encoded source, and feed-forward."""

    def __init__(self, width: int, heads: int, hidden: int, residual: Callable[[], Residual]) -> None:
        super().__init__()
        self.attention = MultiHeadAttention(width, heads)
        self.attention_residual = residual()
        self.cross_attention = MultiHeadAttention(width, heads)
        self.cross_residual = residual()
        self.feed_forward = ReluFeedForward(width, hidden)
        self.feed_forward_residual = residual()

    def forward(
        self, x_BSE: torch.Tensor, memory_BTE: torch.Tensor, causal_11SS: torch.Tensor, source_B11T: torch.Tensor
    ) -> torch.Tensor:
        """Maps [B, S, E] to [B, S, E], reading the encoded source `memory_BTE`."""
        x_BSE = self.attention_residual(x_BSE, lambda h_BSE: self.attention(h_BSE, h_BSE, causal_11SS))
        x_BSE = self.cross_residual(x_BSE, lambda h_BSE: self.cross_attention(h_BSE, memory_BTE, source_B11T))
        y_BSE: torch.Tensor = self.feed_forward_residual(x_BSE, self.feed_forward)
        return y_BSE


@model(
    "transformer",
    lambda sizes: source_target_contract(
        ("source_ids", "source_mask", "target_ids"), sizes.vocabulary, "logits", sizes.vocabulary
    ),
)
class Transformer(nn.Module):
    """The Transformer: an encoder of the source, and a decoder of the target that reads it by cross-attention.

    Vaswani et al., "Attention Is All You Need" (2017); with `norm_first`, the order of Xiong et al., "On Layer
    Normalization in the Transformer Architecture" (2020). With f one of self-attention, cross-attention and
    W2 relu(W1 x), in this order:

        x = norm(x + f(x))                                   post-norm, as in 2017
        x = x + f(norm(x))                                   pre-norm; one more norm after each stack

    Embeddings are multiplied by sqrt(E), get sinusoidal positions, and are the output projection too (section 3.4). The
    decoder's self-attention is causal; padding of the source is hidden from encoder and decoder.

    Cost with a feed-forward of 4 E: an encoder layer takes B (24 T E^2 + 4 T^2 E) floating-point operations, a decoder
    layer B (28 S E^2 + 4 T E^2 + 4 S^2 E + 4 S T E), the scores 2 B S E V.

    Args:
        vocabulary: The number of token ids, V.
        width: E.
        heads: H.
        layers: The number of layers of each stack.
        hidden: The size between the projections of a feed-forward.
        norm_first: Whether norms are before each part, not after it.
        norm_eps: Added to the variances of the norms.
    """

    def __init__(
        self,
        vocabulary: int = 1000,
        width: int = 64,
        heads: int = 4,
        layers: int = 2,
        hidden: int = 256,
        norm_first: bool = False,
        norm_eps: float = 1e-5,
    ) -> None:
        super().__init__()
        self.scale: float = width**0.5
        self.tokens = nn.Embedding(vocabulary, width)
        # Multiplied by sqrt(E) these have variance 1, and so do the scores, which use the same weights.
        nn.init.normal_(self.tokens.weight, std=width**-0.5)
        self.positions = SinusoidalPositions(width)
        residual = partial(Residual, width, norm_first, norm_eps)
        self.encoder = nn.ModuleList(EncoderLayer(width, heads, hidden, residual) for _ in range(layers))
        self.decoder = nn.ModuleList(DecoderLayer(width, heads, hidden, residual) for _ in range(layers))
        last = (lambda: nn.LayerNorm(width, eps=norm_eps)) if norm_first else nn.Identity
        self.encoder_norm, self.decoder_norm = last(), last()

    def forward(self, source_ids: torch.Tensor, source_mask: torch.Tensor, target_ids: torch.Tensor) -> torch.Tensor:
        """Scores each next token of the target.

        Args:
            source_ids: int64 [B, T], below the vocabulary's size.
            source_mask: int64 [B, T], 1 for a real token of the source and 0 for padding.
            target_ids: int64 [B, S], the target so far; padding on its right reaches nothing before it.

        Returns:
            Scores before the softmax, [B, S, V].
        """
        source_B11T = masks.padding(source_mask)
        memory_BTE = self.positions(self.tokens(source_ids) * self.scale)
        for encoder_layer in self.encoder:
            memory_BTE = encoder_layer(memory_BTE, source_B11T)
        memory_BTE = self.encoder_norm(memory_BTE)

        S = target_ids.shape[1]
        causal_11SS = masks.causal(S, S, device=target_ids.device)
        x_BSE = self.positions(self.tokens(target_ids) * self.scale)
        for decoder_layer in self.decoder:
            x_BSE = decoder_layer(x_BSE, memory_BTE, causal_11SS, source_B11T)
        return nn.functional.linear(self.decoder_norm(x_BSE), self.tokens.weight)


class PreNormDecoderLayer(PreNormParts):
    """`a = x + attention(norm(x))`, `c = a + cross_attention(norm(a), memory)`, `y = c + f(norm(c))`.

    Args:
        norm: Makes a norm.
        attention: A `MultiHeadAttention`, of x to x.
        cross_attention: A `MultiHeadAttention`, of x to the memory.
        feed_forward: f, from [B, S, E] to [B, S, E].
    """

    def __init__(
        self, norm: Callable[[], nn.Module], attention: nn.Module, cross_attention: nn.Module, feed_forward: nn.Module
    ) -> None:
        super().__init__(norm, attention, feed_forward)
        self.cross_norm = norm()
        self.cross_attention = cross_attention

    def forward(
        self, x_BSE: torch.Tensor, memory_BTE: torch.Tensor, mask_BHSS: torch.Tensor, memory_mask_B1ST: torch.Tensor
    ) -> torch.Tensor:
        """Maps [B, S, E] to [B, S, E], reading the memory; the masks are the attentions'."""
        normed_BSE = self.attention_norm(x_BSE)
        x_BSE = x_BSE + self.attention(normed_BSE, normed_BSE, mask_BHSS)
        x_BSE = x_BSE + self.cross_attention(self.cross_norm(x_BSE), memory_BTE, memory_mask_B1ST)
        return self.plus_feed_forward(x_BSE)


@model(
    "t5",
    lambda sizes: source_target_contract(
        ("input_ids", "attention_mask", "decoder_input_ids"), sizes.vocabulary, "last_hidden_state", sizes.width
    ),
)
class T5(nn.Module):
    """T5: an encoder-decoder whose positions are biases of the scores, with RMSNorm and without any shift.

    Raffel et al., "Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer" (2020), version
    1.0, and its code. With f one of self-attention, cross-attention and W2 relu(W1 x), in this order:

        x = x + f(norm(x))                                   norm(x) = w x / sqrt(mean(x^2))
        scores = q k^T + bias[h, i, j]                       not divided by sqrt(D)

    The bias is a table's number for the bucket of j - i: one table for all layers of the encoder, one for those of the
    decoder, none for cross-attention.

    Cost with a feed-forward of 4 E and H D = E: an encoder layer takes B (24 T E^2 + 4 T^2 E) floating-point
    operations, a decoder layer B (28 S E^2 + 4 T E^2 + 4 S^2 E + 4 S T E); a stack's bias is H numbers for every pair
    of tokens.

    Args:
        vocabulary: The number of token ids.
        width: E.
        heads: H.
        depth: The head dim D.
        layers: The number of layers of each stack.
        hidden: The size between the projections of a feed-forward.
        buckets: The rows of a table of relative positions; in the encoder half of them are for later keys.
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
        hidden: int = 256,
        buckets: int = 32,
        max_distance: int = 128,
        norm_eps: float = 1e-6,
    ) -> None:
        super().__init__()
        norm = partial(RMSNorm, width, norm_eps)
        self.tokens = nn.Embedding(vocabulary, width)
        self.encoder_positions = RelativePositions(heads, buckets, max_distance)
        attention = partial(T5Attention, width, heads, depth)
        feed_forward = partial(ReluFeedForward, width, hidden, bias=False)
        self.encoder = nn.ModuleList(PreNormLayer(norm, attention(), feed_forward()) for _ in range(layers))
        self.encoder_norm = norm()
        self.decoder_positions = RelativePositions(heads, buckets, max_distance, bidirectional=False)
        self.decoder = nn.ModuleList(
            PreNormDecoderLayer(norm, attention(), attention(), feed_forward()) for _ in range(layers)
        )
        self.decoder_norm = norm()

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, decoder_input_ids: torch.Tensor
    ) -> torch.Tensor:
        """Encodes the source and decodes the target.

        Args:
            input_ids: int64 [B, T], the source, below the vocabulary's size.
            attention_mask: int64 [B, T], 1 for a real token of the source and 0 for padding.
            decoder_input_ids: int64 [B, S], the target so far; padding on its right reaches nothing before it.

        Returns:
            The decoder's activations after its last norm, [B, S, E].
        """
        T, S = input_ids.shape[1], decoder_input_ids.shape[1]
        source_B11T = masks.padding(attention_mask)
        memory_BTE = self.tokens(input_ids)
        bias_BHTT = self.encoder_positions(T, T) + masks.additive(source_B11T, memory_BTE.dtype)
        for encoder_layer in self.encoder:
            memory_BTE = encoder_layer(memory_BTE, bias_BHTT)
        memory_BTE = self.encoder_norm(memory_BTE)

        causal_11SS = masks.causal(S, S, device=decoder_input_ids.device)
        x_BSE = self.tokens(decoder_input_ids)
        bias_1HSS = self.decoder_positions(S, S) + masks.additive(causal_11SS, x_BSE.dtype)
        for decoder_layer in self.decoder:
            x_BSE = decoder_layer(x_BSE, memory_BTE, bias_1HSS, source_B11T)
        y_BSE: torch.Tensor = self.decoder_norm(x_BSE)
        return y_BSE


def crossing_layer(width: int, heads: int, hidden: int, norm_eps: float) -> PreNormDecoderLayer:
    """Self-attention, cross-attention and feed-forward, with LayerNorm.

    Args:
        width: E.
        heads: H.
        hidden: The size between the projections of the feed-forward.
        norm_eps: Added to the variances of the norms.
    """
    return PreNormDecoderLayer(
        partial(nn.LayerNorm, width, eps=norm_eps),
        MultiHeadAttention(width, heads),
        MultiHeadAttention(width, heads),
        FeedForward(width, hidden),
    )


@model(
    "retrieval_transformer",
    lambda sizes: IOContract(
        inputs=(
            TensorSpec("input_ids", "int64", ("batch", "seq"), high=sizes.vocabulary),
            TensorSpec("attention_mask", "int64", ("batch", "seq"), high=2),
            TensorSpec("chunks", "float32", ("batch", "chunks", "length", sizes.width)),
            TensorSpec("chunk_mask", "int64", ("batch", "chunks"), high=2),
        ),
        outputs=(TensorSpec("last_hidden_state", "float32", ("batch", "seq", sizes.width)),),
        dims=(BATCH, length(limit=sizes.positions), Dim("chunks", 1, 4, 16), Dim("length", 1, 16, 32)),
        masks=(PADDING, MaskSpec(("padding",), "chunk_mask")),
    ),
)
class RetrievalTransformer(nn.Module):
    """A decoder that reads retrieved text: causal self-attention, then cross-attention to the retrieved chunks.

    Borgeaud et al., "Improving Language Models by Retrieving from Trillions of Tokens" (RETRO, 2022), with the flat
    memory of Izacard and Grave, "Leveraging Passage Retrieval with Generative Models" (2021): N retrieved chunks of C
    encoded tokens, [B, N, C, E], are one memory of N C keys, in which the keys of missing chunks are hidden. One layer,
    on the query stream x [B, S, E]:

        a = x + attention(norm(x), norm(x))                  a token to itself and those before it
        c = a + attention(norm(a), chunks)                   every token to every token of every retrieved chunk
        y = c + W2 gelu(W1 norm(c))

    If nothing was retrieved, the cross-attention gives zero, and the layer is that of a plain decoder (up to the bias
    of a projection). The order of the chunks has no effect, unless positions are added when they are encoded.

    Cost of a layer with a feed-forward of 4 E: B (28 S E^2 + 4 N C E^2 + 4 S^2 E + 4 S N C E) floating-point
    operations.

    Args:
        vocabulary: The number of token ids.
        width: E, of the query stream and of the chunks.
        heads: H.
        layers: The number of layers.
        hidden: The size between the projections of a feed-forward.
        positions: The longest S.
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
        norm_eps: float = 1e-5,
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = LearnedPositions(positions, width)
        self.memory_norm = nn.LayerNorm(width, eps=norm_eps)
        self.layers = nn.ModuleList(crossing_layer(width, heads, hidden, norm_eps) for _ in range(layers))
        self.norm = nn.LayerNorm(width, eps=norm_eps)

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, chunks: torch.Tensor, chunk_mask: torch.Tensor
    ) -> torch.Tensor:
        """Reads token ids and the chunks that were retrieved for them.

        Args:
            input_ids: int64 [B, S], below the vocabulary's size.
            attention_mask: int64 [B, S], 1 for a real token and 0 for padding.
            chunks: Retrieved chunks, encoded, [B, N, C, E].
            chunk_mask: int64 [B, N], 1 for a chunk that was retrieved and 0 for an empty place.

        Returns:
            The query stream after the last norm, [B, S, E].
        """
        allowed_B1SS = causal_and_padding(attention_mask)
        keep_BNC = chunk_mask.bool()[:, :, None].expand(-1, -1, chunks.shape[2])
        retrieved_B11T = masks.padding(keep_BNC.flatten(1))
        memory_BTE = self.memory_norm(chunks.flatten(1, 2))
        x_BSE = self.positions(self.tokens(input_ids))
        for part in self.layers:
            x_BSE = part(x_BSE, memory_BTE, allowed_B1SS, retrieved_B11T)
        y_BSE: torch.Tensor = self.norm(x_BSE)
        return y_BSE


class DualStreamLayer(nn.Module):
    """The halves of both streams; each reads the other stream as it was before the layer."""

    def __init__(self, width: int, heads: int, hidden: int, norm_eps: float) -> None:
        super().__init__()
        self.heard, self.spoken = (crossing_layer(width, heads, hidden, norm_eps) for _ in range(2))
        # The norm of each stream for the attention of the other.
        self.heard_norm, self.spoken_norm = (nn.LayerNorm(width, eps=norm_eps) for _ in range(2))

    def forward(
        self, heard_BTE: torch.Tensor, spoken_BTE: torch.Tensor, allowed_B1TT: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Maps both streams, [B, T, E], to new ones; `allowed_B1TT` is the mask of all four attentions."""
        read_heard_BTE, read_spoken_BTE = self.heard_norm(heard_BTE), self.spoken_norm(spoken_BTE)
        return (
            self.heard(heard_BTE, read_spoken_BTE, allowed_B1TT, allowed_B1TT),
            self.spoken(spoken_BTE, read_heard_BTE, allowed_B1TT, allowed_B1TT),
        )


@model(
    "dual_stream_transformer",
    lambda sizes: IOContract(
        inputs=(
            TensorSpec("heard", "float32", ("batch", "seq", sizes.features)),
            TensorSpec("spoken", "int64", ("batch", "seq"), high=sizes.vocabulary),
            TensorSpec("attention_mask", "int64", ("batch", "seq"), high=2),
        ),
        outputs=(
            TensorSpec("next_spoken", "float32", ("batch", "seq", sizes.vocabulary)),
            TensorSpec("heard_state", "float32", ("batch", "seq", sizes.width)),
        ),
        dims=(BATCH, length(limit=sizes.positions)),
        masks=(PADDING,),
    ),
)
class DualStreamTransformer(nn.Module):
    """Listening while speaking: a stream that is heard and a stream that is spoken, coordinated by cross-attention.

    Nguyen et al., "Generative Spoken Dialogue Language Modeling" (dGSLM, 2022): two towers on one clock, each with
    causal self-attention over its own past and causal cross-attention to the other's; with the heard stream of Ma et
    al., "Language Model Can Listen While Speaking" (2024): frames of an audio encoder beside the tokens that the model
    itself has said. One layer, for the stream x and the other one z, both [B, T, E]; the streams have weights of their
    own:

        a = x + attention(norm(x), norm(x))                  what this stream did until now
        c = a + attention(norm(a), norm(z))                  what the other stream did until now
        y = c + W2 gelu(W1 norm(c))

    Both streams read the previous layer, so that a layer's two halves can run in parallel. Step t of `spoken` is the
    token that was said last, and nothing of step t + 1 reaches step t of either stream: the model can start or stop
    speaking while it is spoken to.

    Cost of a layer with a feed-forward of 4 E: 2 B (32 T E^2 + 8 T^2 E) floating-point operations for the two streams.

    Args:
        features: The numbers of a heard frame, F.
        vocabulary: The number of token ids that may be spoken, V.
        width: E.
        heads: H.
        layers: The number of layers.
        hidden: The size between the projections of a feed-forward.
        positions: The longest T.
        norm_eps: Added to the variances of the norms.
    """

    def __init__(
        self,
        features: int = 32,
        vocabulary: int = 500,
        width: int = 64,
        heads: int = 4,
        layers: int = 2,
        hidden: int = 256,
        positions: int = 512,
        norm_eps: float = 1e-5,
    ) -> None:
        super().__init__()
        self.frames = nn.Linear(features, width)
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = LearnedPositions(positions, width)
        self.layers = nn.ModuleList(DualStreamLayer(width, heads, hidden, norm_eps) for _ in range(layers))
        self.heard_norm = nn.LayerNorm(width, eps=norm_eps)
        self.spoken_norm = nn.LayerNorm(width, eps=norm_eps)
        self.head = nn.Linear(width, vocabulary)

    def forward(
        self, heard: torch.Tensor, spoken: torch.Tensor, attention_mask: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Listens and speaks.

        Args:
            heard: Frames of the input stream, [B, T, F].
            spoken: int64 [B, T], the token of the output stream that was said before each step.
            attention_mask: int64 [B, T], 1 for a real step and 0 for padding; the streams share one clock.

        Returns:
            The scores of the next token to say, [B, T, V], and the heard stream's activations, [B, T, E].
        """
        allowed_B1TT = causal_and_padding(attention_mask)
        heard_BTE, spoken_BTE = self.positions(self.frames(heard)), self.positions(self.tokens(spoken))
        for layer in self.layers:
            heard_BTE, spoken_BTE = layer(heard_BTE, spoken_BTE, allowed_B1TT)
        return self.head(self.spoken_norm(spoken_BTE)), self.heard_norm(heard_BTE)
