"""ONNX Runtime's own operators, of the domain com.microsoft: their inputs, their attributes, and what they compute.

`exporter.contrib` writes them into graphs and replaces them by operators of ONNX. Here PyTorch computes them: where an
ONNX file takes the place of a module, and in ONNX's reference evaluator. Both are code of their own, so that a mistake
in one shows in a comparison with the other. Source: ContribOperators.md of ONNX Runtime. It does not say the following,
which was measured on the CPU kernels of 1.31.1:

- An attention row with no allowed key gives the mean of v, or NaN if its bias is -inf.
- `unidirectional` lets the last query see every key: it is causal only where each query has a key.
- `attention_bias` is `[B|1,H|1,S,T]`; S and T are not broadcast.
- `GroupQueryAttention` without a cache needs S = T, D a multiple of 8, v with the same D as k, and no length of zero.
- Its window is of as many keys as `local_window_size` says, the query's own among them. Older releases had one more.

In `GroupQueryAttention`, a row of the batch has keys up to `last`, and its new tokens are the last of them: they are
written there, over what the cache holds, and behind them the longer cache has zeros. A pass with as many new tokens as
`total` is a prompt, which begins at place 0 whatever the cache holds.

In the functions that compute an operator, `o` are its `operands`. Axes are B (batch), T (queries), S (keys), H (heads),
G (heads of keys), D (head size), E (all heads), R (half of what is rotated).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import Tensor


@dataclass(frozen=True)
class Schema:
    """An operator, as far as it is understood.

    Attributes:
        inputs: Their names, in order.
        evaluate: Its outputs, of its `operands`, those too that nobody asked for.
        attributes: Their defaults.
    """

    inputs: tuple[str, ...]
    evaluate: Callable[[SimpleNamespace], tuple[Tensor, ...]]
    attributes: Mapping[str, Any]


def operands(op_type: str, inputs: Sequence[Any], attributes: Mapping[str, Any]) -> SimpleNamespace:
    """The inputs and attributes of an operator by the names in `SCHEMAS`; an input that is left out is None.

    Args:
        op_type: One of `SCHEMAS`.
        inputs: In the order of the operator: tensors, or values of a graph.

    Raises:
        NotImplementedError: `SCHEMAS` does not name an input that is there, or an attribute that is not zero.
    """
    names, defaults = SCHEMAS[op_type].inputs, SCHEMAS[op_type].attributes
    if any(value is not None for value in inputs[len(names) :]):
        raise NotImplementedError(f"{op_type} with inputs behind {names[-1]}")  # not evaluated, rather than wrongly
    if unknown := [name for name, value in attributes.items() if value and name not in defaults]:
        raise NotImplementedError(f"{op_type} with {unknown[0]}")  # likewise
    named = itertools.zip_longest(names, inputs[: len(names)])
    return SimpleNamespace(**{**defaults, **attributes, **dict(named)})


def evaluate(op_type: str, inputs: Sequence[Tensor | None], attributes: Mapping[str, Any]) -> tuple[Tensor, ...]:
    """The outputs of an operator, those too that nobody asked for.

    In half precision, scores and probabilities of an attention are rounded, as the least precise kernels do; what is
    added to scores, softmax and norms are computed in float32.

    Args:
        op_type: One of `SCHEMAS`.
        inputs: In the order of the operator; None for one that is left out.

    Raises:
        NotImplementedError: the operator is used in a way that is not known here.
    """
    return SCHEMAS[op_type].evaluate(operands(op_type, inputs, attributes))


# --- what attentions are made of, ONNX's own included ---------------------------------------------------------------


def split_heads(x_BTE: Tensor, heads: int) -> Tensor:
    """[B,T,E] to [B,H,T,D]."""
    B, T, E = x_BTE.shape
    return x_BTE.reshape(B, T, heads, E // heads).transpose(1, 2)


def merge_heads(x_BHTD: Tensor) -> Tensor:
    """[B,H,T,D] to [B,T,E]."""
    return x_BHTD.transpose(1, 2).flatten(2)


def scores(q_BHTD: Tensor, k_BHSD: Tensor, scale: float | None, softcap: float = 0.0) -> Tensor:
    """Products of queries and keys, [B,H,T,S]; key heads are repeated where there are fewer of them."""
    k_BHSD = repeated(k_BHSD, q_BHTD.shape[1])
    scale = q_BHTD.shape[-1] ** -0.5 if scale is None else scale
    found = (q_BHTD * scale) @ k_BHSD.transpose(-1, -2)
    return softcap * (found / softcap).tanh() if softcap else found


def repeated(x_BHSD: Tensor, heads: int) -> Tensor:
    """Each head as often as the queries' heads need it."""
    return x_BHSD.repeat_interleave(heads // x_BHSD.shape[1], dim=1)


def weights_of(scores_BHTS: Tensor, bias: Tensor | None) -> Tensor:
    """Softmax over keys; a row whose keys are all excluded has weights of zero, as ONNX says."""
    import torch

    if bias is None:
        return scores_BHTS.softmax(-1)
    if bias.dtype == torch.bool:
        bias = scores_BHTS.new_zeros(bias.shape).masked_fill(~bias, -math.inf)
    empty = bias.amax(-1, keepdim=True).isneginf()
    return (scores_BHTS + bias).softmax(-1).masked_fill(empty, 0.0)


def visible(queries: int, keys: int, before: Tensor | int, left: int, right: int, device: torch.device) -> Tensor:
    """Whether a query sees a key, [T,S], or [B,1,T,S] where `before` differs by row.

    Args:
        before: How many keys precede the first query: a number, or one of each row, [B].
        left: How many keys before its own a query sees; -1 = all.
        right: How many keys after its own; -1 = all, 0 = causal.
    """
    import torch

    at_T1 = torch.arange(queries, device=device).unsqueeze(1)
    at_T1 = at_T1 + (before.reshape(-1, 1, 1, 1) if isinstance(before, torch.Tensor) else before)
    apart = at_T1 - torch.arange(keys, device=device)
    seen = torch.ones_like(apart, dtype=torch.bool)
    if left >= 0:
        seen &= apart <= left
    if right >= 0:
        seen &= -apart <= right
    return seen


def rotated(x_BTHD: Tensor, cos_BTR: Tensor, sin_BTR: Tensor, interleaved: bool) -> Tensor:
    """Queries or keys with their first 2R values turned by the angles of their positions."""
    import torch

    size = 2 * cos_BTR.shape[-1]
    cos, sin = cos_BTR.unsqueeze(2), sin_BTR.unsqueeze(2)
    turned, rest = x_BTHD[..., :size], x_BTHD[..., size:]
    first, second = (turned[..., 0::2], turned[..., 1::2]) if interleaved else turned.chunk(2, -1)
    real, imaginary = cos * first - sin * second, sin * first + cos * second
    found = torch.stack([real, imaginary], -1).flatten(-2) if interleaved else torch.cat([real, imaginary], -1)
    return torch.cat([found, rest], -1)


def _widened(x: Tensor) -> Tensor:
    """A tensor of half precision in float32, and others as they are."""
    return x.float() if x.is_floating_point() and x.element_size() == 2 else x


# --- attentions -----------------------------------------------------------------------------------------------------


def _multi_head(o: SimpleNamespace) -> tuple[Tensor, ...]:
    q, k, v = o.q, o.k, o.v
    if q.ndim == 5:  # [B,T,H,3,D]
        q, k, v = (one.flatten(2) for one in q.unbind(3))
    elif k is not None and k.ndim == 5:  # [B,S,H,2,D]
        k, v = (one.flatten(2) for one in k.unbind(3))
    if k is None or v is None:
        raise NotImplementedError("MultiHeadAttention without keys")
    if o.bias is not None:
        E = q.shape[-1]
        q = q + o.bias[:E]
        if k.ndim == 3:
            k, v = k + o.bias[E : 2 * E], v + o.bias[2 * E :]
    q = split_heads(q, o.num_heads)
    k, v = (split_heads(one, o.num_heads) if one.ndim == 3 else one for one in (k, v))
    if o.unidirectional and q.shape[2] != k.shape[2]:
        raise NotImplementedError("MultiHeadAttention that is unidirectional, with more keys than queries or fewer")
    return _attended(o, q, k, v, None if o.past_k is None or o.past_v is None else (o.past_k, o.past_v))


def _packed(o: SimpleNamespace) -> tuple[Tensor, ...]:
    import torch

    if o.do_rotary:
        raise NotImplementedError("com.microsoft Attention with a rotation")
    product = o.x @ o.weight
    product = product if o.bias is None else product + o.bias
    sizes = list(o.qkv_hidden_sizes) or [product.shape[-1] // 3] * 3
    q, k, v = (split_heads(one, o.num_heads) for one in torch.split(product, sizes, -1))
    y, k, v = _attended(o, q, k, v, None if o.past is None else tuple(o.past))  # [2,B,H,P,D]
    return (y, torch.stack([k, v])) if k.shape == v.shape else (y,)


def _attended(
    o: SimpleNamespace, q: Tensor, k: Tensor, v: Tensor, past: tuple[Tensor, ...] | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries [B,H,T,D], keys and values to the output [B,T,E], and the longer keys and values."""
    import torch

    before = 0 if past is None else past[0].shape[2]
    if past is not None:
        k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
    products = scores(q, k, o.scale or None)
    found = _widened(products)
    for bias in (_mask_bias(o, found, k.shape[2]), o.added):
        found = found if bias is None else found + bias
    seen = visible(q.shape[2], k.shape[2], before, -1, 0, q.device) if o.unidirectional else None
    return merge_heads(weights_of(found, seen).to(products.dtype) @ v), k, v


def _mask_bias(o: SimpleNamespace, like: Tensor, keys: int) -> Tensor | None:
    """What a mask of 0 and 1, [B,S] or [B,T,S], or lengths, [B], add to the products."""
    import torch

    mask = o.mask
    if mask is None:
        return None
    if mask.ndim == 1:
        mask = (torch.arange(keys, device=mask.device) < mask.reshape(-1, 1)).to(torch.int32)
        if mask.shape[0] != like.shape[0]:
            raise NotImplementedError("a mask of first and last positions")
    kept = mask.reshape(mask.shape[0], 1, -1, mask.shape[-1])
    return like.new_zeros(kept.shape).masked_fill(kept == 0, o.mask_filter_value)


def _grouped(o: SimpleNamespace) -> tuple[Tensor, ...]:
    import torch

    if o.causal != 1 or o.sliding_window_cache:
        raise NotImplementedError("GroupQueryAttention that is not causal, or with a cache that forgets")
    q, k, v, H, G = o.q, o.k, o.v, o.num_heads, o.kv_num_heads
    if k is None or v is None:
        D = q.shape[-1] // (H + 2 * G)
        q, k, v = torch.split(q, [H * D, G * D, G * D], -1)
    B, T = q.shape[:2]
    size = int(o.total.item())
    # A prompt begins at position 0; a later step begins behind what its row has kept.
    before = o.last.reshape(-1).long() + 1 - T if size != T else torch.zeros(B, dtype=torch.int64, device=q.device)
    q, k, v = (one.reshape(B, T, count, -1) for one, count in ((q, H), (k, G), (v, G)))
    if o.do_rotary and o.cos is not None and o.sin is not None:
        at = _positions(before, T, o.positions, is_prompt=size == T)
        q, k = (rotated(one, o.cos[at], o.sin[at], bool(o.rotary_interleaved)) for one in (q, k))
    k, v = (_kept(past, one, before, size) for past, one in ((o.past_k, k), (o.past_v, v)))
    seen = visible(T, size, before, o.local_window_size - 1 if o.local_window_size > 0 else -1, 0, q.device)
    products = scores(q.transpose(1, 2), k[:, :, :size], o.scale or None, o.softcap)
    found = _widened(products) if o.added is None else _widened(products) + o.added
    sink = found.new_zeros(H) if o.smooth_softmax == 1 and o.sink is None else o.sink
    weights = weights_of(found, seen) if sink is None else _beside_sink(found, seen, sink)
    return merge_heads(weights.to(products.dtype) @ repeated(v[:, :, :size], H)), k, v


def _beside_sink(scores_BHTS: Tensor, seen: Tensor, sink_H: Tensor) -> Tensor:
    """Softmax over the keys that are seen and a number for each head, whose own weight is dropped."""
    import torch

    column = sink_H.reshape(1, -1, 1, 1).expand(*scores_BHTS.shape[:3], 1)
    return torch.cat([scores_BHTS.masked_fill(~seen, -math.inf), column], -1).softmax(-1)[..., :-1]


def _positions(before: Tensor, count: int, positions: Tensor | None, *, is_prompt: bool) -> Tensor:
    """Where new tokens are, [B,T]; a prompt counts on from the first of the positions that are an input."""
    import torch

    every = torch.arange(count, device=before.device)
    if positions is None:
        return before.unsqueeze(1) + every
    return positions.reshape(-1)[:1].long().unsqueeze(1) + every if is_prompt else positions.long()


def _kept(past_BGSD: Tensor | None, new_BTGD: Tensor, before_B: Tensor, total: int) -> Tensor:
    """The cache, [B,G,S,D], with the new tokens behind those that each row keeps, and zeros behind them."""
    import torch

    new_BGTD = new_BTGD.transpose(1, 2)
    B, G, T, D = new_BGTD.shape
    both, P = (new_BGTD, 0) if past_BGSD is None else (torch.cat([past_BGSD, new_BGTD], 2), past_BGSD.shape[2])
    every = torch.arange(max(total, P), device=both.device)
    behind = every - before_B.unsqueeze(1)
    chosen = torch.where(behind >= 0, (P + behind).clamp(max=P + T - 1), every)
    found = both.gather(2, chosen.reshape(B, 1, -1, 1).expand(B, G, len(every), D))
    return found.masked_fill((behind >= T).reshape(B, 1, -1, 1), 0.0)


def _rotary(o: SimpleNamespace) -> tuple[Tensor, ...]:
    import torch

    flat = o.x.ndim == 3
    heads = o.num_heads or (o.x.shape[-1] // (2 * o.cos.shape[-1]) if flat else 0)
    apart = o.x.reshape(*o.x.shape[:2], heads, -1) if flat else o.x.transpose(1, 2)
    at = o.positions.long()
    if at.ndim == 1:  # the position of the first token
        at = at.reshape(1, 1) + torch.arange(apart.shape[1], device=o.x.device)
    found = rotated(apart, o.cos[at], o.sin[at], bool(o.interleaved))
    return (found.flatten(2) if flat else found.transpose(1, 2),)


# --- norms, activations and products --------------------------------------------------------------------------------


def _skip_norm(o: SimpleNamespace) -> tuple[Tensor, ...]:
    import torch

    total = o.x + o.skip if o.added is None else o.x + o.skip + o.added
    return (*torch.native_layer_norm(total, total.shape[-1:], o.scale, o.bias, o.epsilon), total)


def _skip_rms_norm(o: SimpleNamespace) -> tuple[Tensor, ...]:
    from torch.nn.functional import rms_norm

    total = o.x + o.skip if o.added is None else o.x + o.skip + o.added
    of_training = total.new_empty(0)
    return rms_norm(total, total.shape[-1:], o.scale, o.epsilon), of_training, of_training, total


def _rms_norm(o: SimpleNamespace) -> tuple[Tensor, ...]:
    from torch.nn.functional import rms_norm

    shape = o.x.shape[o.axis :]
    return (rms_norm(o.x, shape, o.scale.expand(shape), o.epsilon),)


def _embed_norm(o: SimpleNamespace) -> tuple[Tensor, ...]:
    import torch
    from torch.nn.functional import layer_norm

    at = torch.arange(o.ids.shape[1], device=o.ids.device).unsqueeze(0) if o.positions is None else o.positions.long()
    total = o.words[o.ids.long()] + o.places[at]
    if o.segments is not None and o.kinds is not None:
        total = total + o.kinds[o.segments.long()]
    count = torch.zeros(len(o.ids), dtype=torch.int32, device=o.ids.device)
    found = layer_norm(total, total.shape[-1:], o.scale, o.bias, o.epsilon)
    return found, count if o.mask is None else o.mask.sum(1, dtype=torch.int32), total


def _gelu(o: SimpleNamespace) -> tuple[Tensor, ...]:
    from torch.nn.functional import gelu

    return (gelu(o.x if getattr(o, "bias", None) is None else o.x + o.bias),)


def _fast_gelu(o: SimpleNamespace) -> tuple[Tensor, ...]:
    x = o.x if o.bias is None else o.x + o.bias
    return (0.5 * x * (1 + (math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)).tanh()),)


def _fused_matmul(o: SimpleNamespace) -> tuple[Tensor, ...]:
    a, b = o.a.movedim(0, -2) if o.transBatchA else o.a, o.b.movedim(0, -2) if o.transBatchB else o.b
    a, b = a.transpose(-1, -2) if o.transA else a, b.transpose(-1, -2) if o.transB else b
    return ((a @ b) * o.alpha,)


def _matmul_n_bits(o: SimpleNamespace) -> tuple[Tensor, ...]:
    if o.order is not None:
        raise NotImplementedError("MatMulNBits with an order of blocks")
    blocks = _whole(o.weight, o.bits).to(o.scales.dtype)  # [N, blocks, width of one]
    outputs, count = blocks.shape[:2]
    middle: Tensor | float = 2.0 ** (o.bits - 1)
    if o.zeros is not None:
        whole = o.zeros if o.zeros.is_floating_point() else _whole(o.zeros.reshape(outputs, -1), o.bits)
        middle = whole.reshape(outputs, -1)[:, :count].unsqueeze(-1).to(o.scales.dtype)
    wide = (blocks - middle) * o.scales.reshape(outputs, count, 1)
    found = o.x @ wide.flatten(1)[:, : o.K].T
    return (found if o.bias is None else found + o.bias,)


def _whole(packed: Tensor, bits: int) -> Tensor:
    """Numbers of 2, 4 or 8 bits that are packed in bytes along the last axis, the first in the lowest bits."""
    import torch

    return torch.stack([(packed >> low) & (2**bits - 1) for low in range(0, 8, bits)], -1).flatten(-2)


def _schema(inputs: str, evaluate: Callable[[SimpleNamespace], tuple[Tensor, ...]], **attributes: Any) -> Schema:
    return Schema(tuple(inputs.split()), evaluate, attributes)


SCHEMAS: dict[str, Schema] = {
    "Attention": _schema("x weight bias mask past added", _packed, num_heads=0, qkv_hidden_sizes=(), scale=0.0,
                         unidirectional=0, mask_filter_value=-10000.0, do_rotary=0),
    "BiasGelu": _schema("x bias", _gelu),
    "EmbedLayerNormalization": _schema("ids segments words places kinds scale bias mask positions", _embed_norm,
                                       epsilon=1e-12),
    "FastGelu": _schema("x bias", _fast_gelu),
    "FusedMatMul": _schema("a b", _fused_matmul, alpha=1.0, transA=0, transB=0, transBatchA=0, transBatchB=0),
    "Gelu": _schema("x", _gelu),
    "GroupQueryAttention": _schema("q k v past_k past_v last total cos sin positions added sink", _grouped,
                                   num_heads=0, kv_num_heads=0, scale=0.0, softcap=0.0, local_window_size=-1,
                                   do_rotary=0, rotary_interleaved=0, causal=1, smooth_softmax=0,
                                   sliding_window_cache=0, qk_output=0, k_quant_type="NONE", v_quant_type="NONE",
                                   kv_cache_bit_width=0, qk_norm_epsilon=1e-6),
    "MatMulNBits": _schema("x weight scales zeros order bias", _matmul_n_bits, K=0, N=0, bits=4,
                           block_size=0, accuracy_level=0),
    "MultiHeadAttention": _schema("q k v bias mask added past_k past_v", _multi_head, num_heads=0, scale=0.0,
                                  unidirectional=0, mask_filter_value=-10000.0),
    "QuickGelu": _schema("x", lambda o: (o.x * (o.x * o.alpha).sigmoid(),), alpha=1.702),
    "RotaryEmbedding": _schema("x positions cos sin", _rotary, interleaved=0, num_heads=0, rotary_embedding_dim=0,
                               is_packed_batching=0, scale=1.0),
    "SimplifiedLayerNormalization": _schema("x scale", _rms_norm, axis=-1, epsilon=1e-5),
    "SkipLayerNormalization": _schema("x skip scale bias added", _skip_norm, epsilon=1e-12),
    "SkipSimplifiedLayerNormalization": _schema("x skip scale added", _skip_rms_norm, epsilon=1e-12),
}  # fmt: skip
