"""The attentions of torch.nn, as their users call them: modules with their contract and the attentions they hold.

What is expected was counted by hand: one a `MultiheadAttention`, one an encoder layer, two a decoder layer.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from spellings.case import BATCH, MEM, MEMORY, SEQ, E, X, Y
from torch import nn

from attnport.artifacts import IOContract
from attnport.dims import TensorSpec
from attnport.masks import MaskSpec

H = 4
SDPA, SOFTMAX = "scaled_dot_product_attention", "softmax"
HIDE = TensorSpec("hide", "bool", ("batch", "seq"))
HIDE_MEMORY = TensorSpec("hide_memory", "bool", ("batch", "mem"))
BIAS = TensorSpec("bias", "float32", ("seq", "seq"))
WEIGHTS = TensorSpec("weights", "float32", ("batch", "seq", "seq"))
WEIGHTS_BY_HEAD = TensorSpec("weights", "float32", ("batch", H, "seq", "seq"))
MASKS = {"hide": MaskSpec(("padding",), "hide", "hide"), "hide_memory": MaskSpec(("padding",), "hide_memory", "hide")}
Arrays = dict[str, np.ndarray[Any, Any]]
Named = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Library:
    """A module, its contract, and by attention: its name, the call that is counted, and the mask that it has."""

    module: Callable[[], nn.Module]
    inputs: tuple[TensorSpec, ...]
    attentions: tuple[tuple[str, str, str], ...]
    outputs: tuple[TensorSpec, ...] = (Y,)

    @property
    def io(self) -> IOContract:
        used = {dim for spec in (*self.inputs, *self.outputs) for dim in spec.dims}
        masks = tuple(MASKS[spec.name] for spec in self.inputs if spec.name in MASKS)
        return IOContract(self.inputs, self.outputs, tuple(d for d in (BATCH, SEQ, MEM) if d.name in used), masks)

    def make(self) -> nn.Module:
        torch.manual_seed(3)
        return self.module().eval()

    def feeds(self, sizes: dict[str, int], seed: int = 0) -> Arrays:
        """Random inputs; a third of the keys of every batch row but the last is hidden, never all of them."""
        random, made = np.random.default_rng(seed), Arrays()
        for spec in self.inputs:
            made[spec.name] = random.standard_normal(spec.shape(sizes)).astype(np.float32)
            if spec.dtype == "bool":
                made[spec.name] = np.zeros(spec.shape(sizes), bool)
                made[spec.name][:-1, -max(1, sizes[str(spec.dims[1])] // 3) :] = sizes[str(spec.dims[1])] > 1
        return made

    def reference(self, feeds: Arrays, *, fast: bool = False) -> list[np.ndarray[Any, Any]]:
        """The module in float64; `fast`: by torch's fused operators where it has them."""
        module = self.make().double()
        given = {name: torch.from_numpy(array) for name, array in feeds.items()}
        given = {name: each.double() if each.is_floating_point() else each for name, each in given.items()}
        before = torch.backends.mha.get_fastpath_enabled()
        torch.backends.mha.set_fastpath_enabled(fast)
        try:
            with torch.no_grad():
                found = module(**given)
        finally:
            torch.backends.mha.set_fastpath_enabled(before)
        return [each.numpy() for each in (found if isinstance(found, tuple) else (found,))]

    def compared(self, feeds: Arrays, outputs: Sequence[Any]) -> list[np.ndarray[Any, Any]]:
        """All of it."""
        return list(outputs)


class Attend(nn.Module):
    """`nn.MultiheadAttention` called as `how` says, with what masks the case has."""

    def __init__(
        self, *, weights: str = "", causal: bool = False, seq_first: bool = False, unbatched: bool = False, **how: Any
    ) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(E, H, batch_first=not seq_first, **how)
        self.weights, self.causal, self.seq_first, self.unbatched = weights, causal, seq_first, unbatched

    def forward(self, x: Any, memory: Any = None, hide: Any = None, hide_memory: Any = None, bias: Any = None) -> Any:
        source = x if memory is None else memory
        mask = bias
        if self.causal:
            mask = torch.ones(x.shape[1], source.shape[1], dtype=torch.bool).triu(1)
        if self.seq_first:
            x, source = x.transpose(0, 1), (source.transpose(0, 1) if memory is not None else None)
            source = x if source is None else source
        if self.unbatched:
            x, source = x[0], source[0]
        out, weights = self.attention(
            x,
            source,
            source,
            key_padding_mask=hide if hide is not None else hide_memory,
            attn_mask=mask,
            need_weights=bool(self.weights),
            average_attn_weights=self.weights != "by head",
        )
        out = out.transpose(0, 1) if self.seq_first else out[None] if self.unbatched else out
        return (out, weights) if self.weights in ("mean", "by head") else out


class Encode(nn.Module):
    """`nn.TransformerEncoder` with a causal mask as its users make it, and the hint that they give."""

    def __init__(self, *, mask: str = "", hint: bool | None = None, layers: int = 2, **how: Any) -> None:
        super().__init__()
        nested = not how.get("norm_first", False)
        layer = nn.TransformerEncoderLayer(E, H, 24, batch_first=True, **how)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=nested)
        self.mask, self.hint = mask, hint

    def forward(self, x: Any, hide: Any = None, bias: Any = None) -> Any:
        mask = causal(x.shape[1], self.mask, x.dtype) if self.mask else bias
        return self.encoder(x, mask=mask, src_key_padding_mask=hide, is_causal=self.hint)


class Decode(nn.Module):
    """`nn.TransformerDecoder`, its own mask as `mask` says and the hint as `hint` says."""

    def __init__(self, *, mask: str = "", hint: bool | None = None, **how: Any) -> None:
        super().__init__()
        self.decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(E, H, 24, batch_first=True, **how), 2)
        self.mask, self.hint = mask, hint

    def forward(self, x: Any, memory: Any, hide: Any = None, hide_memory: Any = None, bias: Any = None) -> Any:
        mask = causal(x.shape[1], self.mask, x.dtype) if self.mask else bias
        return self.decoder(
            x,
            memory,
            tgt_mask=mask,
            tgt_key_padding_mask=hide,
            memory_key_padding_mask=hide_memory,
            tgt_is_causal=self.hint,
        )


class Translate(nn.Module):
    """`nn.Transformer`, whole: `memory` is the source, `x` the target."""

    def __init__(self) -> None:
        super().__init__()
        self.transformer = nn.Transformer(E, H, 1, 1, 24, batch_first=True)

    def forward(self, x: Any, memory: Any, hide_memory: Any) -> Any:
        mask = self.transformer.generate_square_subsequent_mask(x.shape[1], dtype=x.dtype)
        return self.transformer(
            memory,
            x,
            tgt_mask=mask,
            src_key_padding_mask=hide_memory,
            memory_key_padding_mask=hide_memory,
        )


class Differential(nn.Module):
    """The difference of two attentions over one v (arXiv 2410.05258)."""

    def forward(self, x: Any, memory: Any) -> Any:
        first, second = ((x * by) @ memory.transpose(1, 2) / 4 for by in (1.0, 0.5))
        return (first.softmax(-1) - 0.3 * second.softmax(-1)) @ memory


def causal(size: Any, kind: str, dtype: torch.dtype) -> Any:
    if kind == "float":
        return nn.Transformer.generate_square_subsequent_mask(size, dtype=dtype)
    return torch.ones(size, size, dtype=torch.bool).triu(1)


def _attend(mask: str = "none", call: str = SDPA) -> tuple[tuple[str, str, str], ...]:
    return (("attention", call, mask),)


def _encoder(mask: str = "none", layers: int = 2) -> tuple[tuple[str, str, str], ...]:
    return tuple((f"encoder.layers.{layer}.self_attn", SDPA, mask) for layer in range(layers))


def _decoder(own: str = "none", across: str = "none") -> tuple[tuple[str, str, str], ...]:
    return tuple(
        (f"decoder.layers.{layer}.{name}", SDPA, mask)
        for layer in range(2)
        for name, mask in (("self_attn", own), ("multihead_attn", across))
    )


ATTEND = functools.partial(functools.partial, Attend)
ENCODE = functools.partial(functools.partial, Encode)
DECODE = functools.partial(functools.partial, Decode)

CASES: dict[str, Library] = {
    "attention": Library(ATTEND(), (X,), _attend()),
    "attention_seq_first": Library(ATTEND(seq_first=True), (X,), _attend()),
    "attention_unbatched": Library(
        ATTEND(unbatched=True), (TensorSpec("x", "float32", (1, "seq", E)),), _attend(),
        (TensorSpec("y", "float32", (1, "seq", E)),),
    ),
    "attention_no_bias": Library(ATTEND(bias=False), (X,), _attend()),
    "attention_cross": Library(ATTEND(), (X, MEMORY), _attend()),
    "attention_cross_own_dims": Library(
        ATTEND(kdim=6, vdim=6), (X, TensorSpec("memory", "float32", ("batch", "mem", 6))), _attend()
    ),
    "attention_cross_padding": Library(
        ATTEND(), (X, MEMORY, HIDE_MEMORY), _attend("padding(hide_memory)")
    ),
    "attention_padding": Library(ATTEND(), (X, HIDE), _attend("padding(hide)")),
    "attention_causal": Library(ATTEND(causal=True), (X,), _attend("causal")),
    "attention_causal_padding": Library(ATTEND(causal=True), (X, HIDE), _attend("causal+padding(hide)")),
    "attention_bias": Library(ATTEND(), (X, BIAS), _attend("bias")),
    "attention_bias_kv": Library(ATTEND(add_bias_kv=True), (X,), _attend()),
    "attention_zero_key": Library(ATTEND(add_zero_attn=True), (X,), _attend()),
    "attention_weights_dropped": Library(ATTEND(weights="dropped"), (X,), _attend(call=SOFTMAX)),
    "attention_weights": Library(ATTEND(weights="mean"), (X,), _attend(call=SOFTMAX), (Y, WEIGHTS)),
    "attention_weights_by_head": Library(
        ATTEND(weights="by head"), (X,), _attend(call=SOFTMAX), (Y, WEIGHTS_BY_HEAD)
    ),
    "attention_weights_padding": Library(
        ATTEND(weights="mean"), (X, HIDE), _attend("padding(hide)", SOFTMAX), (Y, WEIGHTS)
    ),
    "attention_weights_causal_padding": Library(
        ATTEND(weights="by head", causal=True), (X, HIDE), _attend("causal+padding(hide)", SOFTMAX),
        (Y, WEIGHTS_BY_HEAD),
    ),
    "encoder": Library(ENCODE(), (X,), _encoder()),
    "encoder_norm_first": Library(ENCODE(norm_first=True, activation="gelu"), (X,), _encoder()),
    "encoder_padding": Library(ENCODE(), (X, HIDE), _encoder("padding(hide)")),
    "encoder_causal": Library(ENCODE(mask="float"), (X,), _encoder("causal")),
    "encoder_causal_hinted": Library(ENCODE(mask="float", hint=True), (X,), _encoder("causal")),
    "encoder_causal_denied": Library(ENCODE(mask="bool", hint=False), (X,), _encoder("causal")),
    "encoder_causal_padding": Library(ENCODE(mask="bool"), (X, HIDE), _encoder("causal+padding(hide)")),
    "encoder_bias": Library(ENCODE(), (X, BIAS), _encoder("bias")),
    "decoder": Library(DECODE(), (X, MEMORY), _decoder()),
    "decoder_causal": Library(DECODE(mask="float"), (X, MEMORY), _decoder("causal")),
    "decoder_causal_bool": Library(DECODE(mask="bool"), (X, MEMORY), _decoder("causal")),
    "decoder_causal_hinted": Library(DECODE(mask="float", hint=True), (X, MEMORY), _decoder("causal")),
    "decoder_causal_denied": Library(DECODE(mask="bool", hint=False), (X, MEMORY), _decoder("causal")),
    "decoder_memory_padding": Library(
        DECODE(mask="float"), (X, MEMORY, HIDE_MEMORY), _decoder("causal", "padding(hide_memory)")
    ),
    "decoder_all_masks": Library(
        DECODE(mask="bool", norm_first=True), (X, MEMORY, HIDE, HIDE_MEMORY),
        _decoder("causal+padding(hide)", "padding(hide_memory)"),
    ),
    "decoder_bias": Library(DECODE(), (X, MEMORY, BIAS), _decoder("bias")),
    "transformer": Library(
        Translate, (X, MEMORY, HIDE_MEMORY),
        (
            ("transformer.encoder.layers.0.self_attn", SDPA, "padding(hide_memory)"),
            ("transformer.decoder.layers.0.self_attn", SDPA, "causal"),
            ("transformer.decoder.layers.0.multihead_attn", SDPA, "padding(hide_memory)"),
        ),
    ),
    "differential": Library(
        Differential, (X, MEMORY), (("module", SOFTMAX, "none"), ("module#1", SOFTMAX, "none"))
    ),
}  # fmt: skip
