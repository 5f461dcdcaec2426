"""What stands beside the products: rotary positions, norms of q and k, biases, soft-caps, sinks, differences."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention as sdpa

from attnport.dims import TensorSpec
from spellings.case import MASK, PADDED, PADDING, PLAIN, SDPA, Case, D, E, H, Projected, X, contract, projected, scores


def _angles(length: int, dtype: Any, width: int = D) -> Any:
    frequency = 1.0 / (100.0 ** (torch.arange(0, width, 2).to(dtype) / width))
    return torch.outer(torch.arange(length).to(dtype), frequency)


def rotate_half(x: Any) -> Any:
    x1, x2 = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]
    return torch.cat((-x2, x1), dim=-1)


def _rotary_half(q: Any, k: Any, v: Any) -> Any:
    """Llama's."""
    angles = _angles(q.shape[2], q.dtype)
    cos, sin = torch.cat((angles, angles), -1).cos(), torch.cat((angles, angles), -1).sin()
    q, k = (each * cos + rotate_half(each) * sin for each in (q, k))
    return sdpa(q, k, v, is_causal=True)


def _rotary_interleaved(q: Any, k: Any, v: Any) -> Any:
    """GPT-J's: pairs of neighbours."""
    angles = _angles(q.shape[2], q.dtype)
    cos, sin = angles.cos().repeat_interleave(2, -1), angles.sin().repeat_interleave(2, -1)

    def every_two(x: Any) -> Any:
        return torch.stack((-x[..., 1::2], x[..., ::2]), dim=-1).flatten(-2)

    q, k = (each * cos + every_two(each) * sin for each in (q, k))
    return (scores(q, k)).softmax(-1) @ v


def _rotary_partial(q: Any, k: Any, v: Any) -> Any:
    """NeoX's: half of each head is turned."""
    angles = _angles(q.shape[2], q.dtype, 2)
    cos, sin = torch.cat((angles, angles), -1).cos(), torch.cat((angles, angles), -1).sin()
    turned = []
    for each in (q, k):
        rot, rest = each[..., :2], each[..., 2:]
        turned.append(torch.cat((rot * cos + rotate_half(rot) * sin, rest), dim=-1))
    return (turned[0] @ turned[1].transpose(-1, -2) / math.sqrt(D)).softmax(-1) @ v


class RotaryComplex(Projected):
    """Meta's Llama without complex numbers: the halves of each pair apart."""

    def __init__(self) -> None:
        super().__init__(self.attention)

    def attention(self, q: Any, k: Any, v: Any, mask: Any) -> Any:
        angles = _angles(q.shape[2], q.dtype)

        def turn(x: Any) -> Any:
            real, imag = x.reshape(*x.shape[:-1], -1, 2).unbind(-1)
            pair = (real * angles.cos() - imag * angles.sin(), real * angles.sin() + imag * angles.cos())
            return torch.stack(pair, -1).flatten(3)

        attn = scores(turn(q), turn(k)).masked_fill(mask[:, None, None] == 0, -1e9)
        return attn.softmax(-1) @ v


class NormL2(Projected):
    """Normalised queries and keys with a learned scale on the normalised queries."""

    def __init__(self) -> None:
        super().__init__(self.attention)
        self.q_scale, self.k_scale = nn.Parameter(torch.rand(D) + 1), nn.Parameter(torch.rand(D) + 1)

    def attention(self, q: Any, k: Any, v: Any) -> Any:
        q, k = (nn.functional.normalize(each, dim=-1) for each in (q, k))
        return torch.softmax((q * self.q_scale) @ (k * self.k_scale).transpose(-2, -1) * 8, dim=-1) @ v


class NormRMS(Projected):
    """Qwen3's: RMS norm of each head before the product."""

    def __init__(self) -> None:
        super().__init__(self.attention)
        self.q_norm, self.k_norm = nn.RMSNorm(D, eps=1e-6), nn.RMSNorm(D, eps=1e-6)

    def attention(self, q: Any, k: Any, v: Any) -> Any:
        return sdpa(self.q_norm(q), self.k_norm(k), v, is_causal=True)


class NormLayer(Projected):
    """ViT-22B's: layer norm of each head."""

    def __init__(self) -> None:
        super().__init__(self.attention)
        self.q_norm, self.k_norm = nn.LayerNorm(D), nn.LayerNorm(D)

    def attention(self, q: Any, k: Any, v: Any, mask: Any) -> Any:
        attn = (self.q_norm(q) * D**-0.5) @ self.k_norm(k).transpose(-2, -1)
        return attn.masked_fill(mask[:, None, None] == 0, -1e9).softmax(-1) @ v


def _softcap(q: Any, k: Any, v: Any) -> Any:
    attn = scores(q, k)
    return (5.0 * torch.tanh(attn / 5.0)).softmax(-1) @ v


def _softcap_masked(q: Any, k: Any, v: Any, mask: Any) -> Any:
    """Gemma 2's."""
    attn = torch.matmul(q, k.transpose(2, 3)) * D**-0.5
    attn = attn / 3.0
    attn = torch.tanh(attn)
    attn = attn * 3.0
    later = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).triu(1)
    attn = attn + torch.zeros(later.shape, dtype=q.dtype).masked_fill(later, torch.finfo(q.dtype).min)
    attn = attn.masked_fill(mask[:, None, None] == 0, torch.finfo(q.dtype).min)
    return nn.functional.softmax(attn, dim=-1) @ v


class Sinks(Projected):
    """gpt-oss's: a learned logit of each head beside the scores; its column of the probabilities is dropped."""

    shifted = False

    def __init__(self) -> None:
        super().__init__(self.attention)
        self.sinks = nn.Parameter(torch.randn(H))

    def attention(self, q: Any, k: Any, v: Any) -> Any:
        later = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).triu(1)
        attn_weights = scores(q, k).masked_fill(later, -math.inf)
        sinks = self.sinks.reshape(1, -1, 1, 1).expand(q.shape[0], -1, q.shape[-2], -1)
        combined = torch.cat([attn_weights, sinks], dim=-1)
        if self.shifted:
            combined = combined - combined.max(dim=-1, keepdim=True).values
        probs = nn.functional.softmax(combined, dim=-1)
        return torch.matmul(probs[..., :-1], v)


class SinksShifted(Sinks):
    """The same after the largest logit is subtracted, which changes nothing but the range."""

    shifted = True


class SinksFirst(Sinks):
    """The sink stands first."""

    def attention(self, q: Any, k: Any, v: Any, mask: Any) -> Any:
        attn = scores(q, k).masked_fill(mask[:, None, None] == 0, -1e9)
        sinks = self.sinks.view(1, H, 1, 1).expand(q.shape[0], H, q.shape[2], 1)
        return torch.cat((sinks, attn), dim=-1).softmax(-1)[..., 1:] @ v


def _off_by_one(q: Any, k: Any, v: Any) -> Any:
    """A zero logit beside the scores: attention may attend to nothing."""
    return nn.functional.pad(scores(q, k), (1, 0)).softmax(dim=-1)[..., 1:] @ v


def _off_by_one_key(q: Any, k: Any, v: Any) -> Any:
    """`add_zero_attn`: a key of zeros with a value of zeros."""
    k, v = (nn.functional.pad(each, (0, 0, 0, 1)) for each in (k, v))
    return scores(q, k).softmax(-1) @ v


def _alibi(q: Any, k: Any, v: Any, mask: Any) -> Any:
    slopes = torch.tensor([0.5, 0.25, 0.125, 0.0625], dtype=q.dtype)[:, None, None]
    distance = torch.arange(k.shape[2])[None, :] - torch.arange(q.shape[2])[:, None]
    attn = scores(q, k) + slopes * distance.to(q.dtype)
    return attn.masked_fill(mask[:, None, None, :] == 0, -math.inf).softmax(-1) @ v


def _penalty(q: Any, k: Any, v: Any, mask: Any) -> Any:
    return (scores(q, k) + torch.where(mask[:, None, None, :] != 0, 0.0, -5.0).to(q.dtype)).softmax(-1) @ v


class Buckets(Projected):
    """T5's: distances sorted into buckets, a learned number for each bucket and head, no scale."""

    def __init__(self) -> None:
        super().__init__(self.attention)
        self.relative_attention_bias = nn.Embedding(8, H)

    def attention(self, q: Any, k: Any, v: Any, mask: Any) -> Any:
        context = torch.arange(q.shape[2], dtype=torch.long)[:, None]
        memory = torch.arange(k.shape[2], dtype=torch.long)[None, :]
        relative = memory - context
        buckets = (relative > 0).to(torch.long) * 4
        relative = torch.abs(relative)
        large = 2 + (torch.log(relative.float() / 2) / math.log(8 / 2) * 2).to(torch.long)
        large = torch.min(large, torch.full_like(large, 3))
        buckets = buckets + torch.where(relative < 2, relative, large)
        position_bias = self.relative_attention_bias(buckets).permute([2, 0, 1]).unsqueeze(0)
        position_bias = position_bias + (1.0 - mask[:, None, None, :].to(q.dtype)) * torch.finfo(q.dtype).min
        attn = torch.matmul(q, k.transpose(3, 2))
        attn += position_bias
        return nn.functional.softmax(attn.float(), dim=-1).type_as(attn) @ v


class Distances(Projected):
    """A table of clipped distances, as in music and speech models."""

    def __init__(self) -> None:
        super().__init__(self.attention)
        self.table = nn.Parameter(torch.randn(H, 9))

    def attention(self, q: Any, k: Any, v: Any) -> Any:
        distance = torch.arange(k.shape[2])[None, :] - torch.arange(q.shape[2])[:, None]
        return (scores(q, k) + self.table[:, distance.clamp(-4, 4) + 4]).softmax(-1) @ v


class Pairs(Projected):
    """AlphaFold's: a bias for each pair of places and head, projected from a pair representation."""

    def __init__(self) -> None:
        super().__init__(self.attention)
        self.to_bias = nn.Linear(3, H, bias=False)

    def attention(self, q: Any, k: Any, v: Any, mask: Any, bias: Any) -> Any:
        pair = self.to_bias(bias).permute(0, 3, 1, 2)
        attn = scores(q, k) + pair
        return (attn + 1e9 * (mask[:, None, None, :].to(q.dtype) - 1)).softmax(-1) @ v


def _bias_before_scale(q: Any, k: Any, v: Any, bias: Any) -> Any:
    return ((q @ k.transpose(-1, -2) + bias) / math.sqrt(D)).softmax(-1) @ v


def _biased(q: Any, k: Any, v: Any, bias: Any) -> Any:
    return sdpa(q, k, v, attn_mask=bias)


def _bias_and_mask(q: Any, k: Any, v: Any, mask: Any, bias: Any) -> Any:
    return sdpa(q, k, v, attn_mask=torch.where(mask.bool()[:, None, None, :], bias, -math.inf).to(q.dtype))


class Difference(nn.Module):
    """The differential transformer's: two maps of attention, one subtracted from the other, over one v."""

    apart = False

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(22)
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(E, E) for _ in range(3))
        self.lambda_q = nn.Parameter(torch.tensor(0.3))

    def forward(self, x: Any) -> Any:
        b, s, _ = x.shape
        q, k = (p(x).view(b, s, 4, 2, 2).permute(3, 0, 2, 1, 4) for p in (self.q_proj, self.k_proj))
        v = self.v_proj(x).view(b, s, 4, 4).transpose(1, 2)
        later = torch.triu(torch.full((s, s), float("-inf"), dtype=x.dtype), 1)
        first, second = (torch.softmax(q[at] @ k[at].transpose(-1, -2) / math.sqrt(2) + later, dim=-1) for at in (0, 1))
        lambda_full = torch.exp(self.lambda_q) - 0.5
        out = first @ v - lambda_full * (second @ v) if self.apart else (first - lambda_full * second) @ v
        return out.transpose(1, 2).reshape(b, s, E)


class DifferenceOfOutputs(Difference):
    """The same after the products."""

    apart = True


def _row_maximum_taken_off(q: Any, k: Any, v: Any, mask: Any) -> Any:
    attn = scores(q, k).masked_fill(mask[:, None, None] == 0, -1e9)
    attn = attn - attn.amax(dim=-1, keepdim=True).detach()
    return attn.softmax(dim=-1) @ v


def _bias_but_for_the_first(q: Any, k: Any, v: Any, bias: Any) -> Any:
    """MViTv2's, whose class token has no position."""
    attn = scores(q, k)
    attn[:, :, 1:, 1:] += bias[:, 1:, 1:]
    return attn.softmax(dim=-1) @ v


def _bias(*dims: str | int) -> TensorSpec:
    return TensorSpec("bias", "float32", dims)


CASES: dict[str, Case] = {
    "rotary_half": projected(_rotary_half, PLAIN, "causal", call=SDPA),
    "rotary_interleaved": projected(_rotary_interleaved),
    "rotary_partial": projected(_rotary_partial),
    "rotary_pairs": Case(RotaryComplex, PADDED, "padding(mask)"),
    "norm_l2": Case(NormL2, PLAIN, "none"),
    "norm_rms": Case(NormRMS, PLAIN, "causal", SDPA),
    "norm_layer": Case(NormLayer, PADDED, "padding(mask)"),
    "softcap": projected(_softcap),
    "softcap_masked": projected(_softcap_masked, PADDED, "causal+padding(mask)"),
    "sinks": Case(Sinks, PLAIN, "causal"),
    "sinks_shifted": Case(SinksShifted, PLAIN, "causal"),
    "sinks_first": Case(SinksFirst, PADDED, "padding(mask)"),
    "off_by_one": projected(_off_by_one),
    "off_by_one_key": projected(_off_by_one_key),
    "alibi": projected(_alibi, PADDED, "padding+bias(mask)"),
    "penalty": projected(_penalty, PADDED, "bias"),
    "buckets": Case(Buckets, PADDED, "padding+bias(mask)"),
    "distances": Case(Distances, PLAIN, "bias"),
    "pairs": Case(Pairs, contract(X, MASK, _bias("batch", "seq", "seq", 3), masks=(PADDING,)), "padding+bias(mask)"),
    "bias_before_scale": projected(_bias_before_scale, contract(X, _bias(H, "seq", "seq")), "bias"),
    "bias_2d": projected(_biased, contract(X, _bias("seq", "seq")), "bias", call=SDPA),
    "bias_3d": projected(_biased, contract(X, _bias(H, "seq", "seq")), "bias", call=SDPA),
    "bias_of_keys": projected(_biased, contract(X, _bias("batch", 1, 1, "seq")), "bias", call=SDPA),
    "bias_but_for_the_first": projected(_bias_but_for_the_first, contract(X, _bias(H, "seq", "seq")), "bias"),
    "bias_and_mask": projected(
        _bias_and_mask, contract(X, MASK, _bias(1, H, "seq", "seq"), masks=(PADDING,)), "padding+bias(mask)", call=SDPA
    ),
    "difference": Case(Difference, PLAIN, ("causal", "causal")),
    "difference_of_outputs": Case(DifferenceOfOutputs, PLAIN, ("causal", "causal")),
    "row_maximum_taken_off": projected(_row_maximum_taken_off, PADDED, "padding(mask)"),
}
