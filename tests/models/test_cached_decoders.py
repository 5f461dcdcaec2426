"""Decoders and an attention with a cache, against transformers and torch on equal weights, in one call and in steps."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from equal_weights import ATTENTION, filled, renamed
from torch import nn
from torch_layers import attention_weights

from attnport.exporter.capture import capture
from attnport.models.base import build, get
from attnport.models.blocks import split_heads
from attnport.models.cached_decoders import GPTDecoder, KVCacheAttention, LlamaDecoder

GPT = {"vocabulary": 53, "width": 48, "heads": 3, "layers": 2, "hidden": 80, "positions": 40}
LLAMA = {"vocabulary": 53, "width": 64, "heads": 4, "groups": 2, "layers": 2, "hidden": 72}
Cache = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def gpt_reference(ours: Any) -> torch.nn.Module:
    """transformers' GPT2LMHeadModel with the same weights, under the names that it has for them."""
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        vocab_size=GPT["vocabulary"], n_positions=GPT["positions"], n_embd=GPT["width"], n_layer=GPT["layers"],
        n_head=GPT["heads"], n_inner=GPT["hidden"], activation_function="gelu", bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    names = {"tokens": "wte", "positions": "wpe", "norm": "ln_f"}
    inner = {"attention_norm": "ln_1", "attention.qkv": "attn.c_attn", "attention.out": "attn.c_proj",
             "feed_forward_norm": "ln_2", "feed_forward.up": "mlp.c_fc", "feed_forward.down": "mlp.c_proj"}  # fmt: skip
    names |= {f"layers.{at}.{one}": f"h.{at}.{other}" for at in range(GPT["layers"]) for one, other in inner.items()}
    weights = renamed(ours, names, "transformer.")
    weights = {key: value.T if "c_" in key and value.ndim == 2 else value for key, value in weights.items()}
    return filled(transformers.GPT2LMHeadModel(config), weights | {"lm_head.weight": ours.tokens.weight})


def llama_reference(ours: Any) -> torch.nn.Module:
    """transformers' LlamaForCausalLM with the same weights, under the names that it has for them."""
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=LLAMA["vocabulary"], hidden_size=LLAMA["width"], num_hidden_layers=LLAMA["layers"],
        num_attention_heads=LLAMA["heads"], num_key_value_heads=LLAMA["groups"], intermediate_size=LLAMA["hidden"],
        rms_norm_eps=1e-5, bos_token_id=0, eos_token_id=0, pad_token_id=0,
    )  # fmt: skip
    names = {"tokens": "embed_tokens", "norm": "norm"}
    inner = {"attention_norm": "input_layernorm", "feed_forward_norm": "post_attention_layernorm"}
    inner |= {f"attention.{one}": f"self_attn.{letter}_proj" for one, letter in ATTENTION.items()}
    inner |= {f"feed_forward.{one}": f"mlp.{one}_proj" for one in ("gate", "up", "down")}
    names |= {
        f"layers.{at}.{one}": f"layers.{at}.{other}" for at in range(LLAMA["layers"]) for one, other in inner.items()
    }
    head = ours.head.weight
    weights = renamed(ours, {**names, "head": "-"}, "model.") | {"lm_head.weight": head}
    return filled(transformers.LlamaForCausalLM(config), weights)


BOTH = pytest.mark.parametrize(
    ("made", "reference"),
    [
        (lambda: build(lambda: GPTDecoder(**GPT)), gpt_reference),
        (lambda: build(lambda: LlamaDecoder(**LLAMA)), llama_reference),
    ],
    ids=["gpt", "llama"],
)
Made = Callable[[], Any]


def ids(batch: int, length: int) -> torch.Tensor:
    return torch.randint(0, 53, (batch, length), generator=torch.Generator().manual_seed(length))


def empty(module: Any, batch: int) -> Cache:
    """A cache of one hidden position, which holds rubbish."""
    sizes = GPT if isinstance(module, GPTDecoder) else LLAMA
    heads = sizes.get("groups", sizes["heads"])
    rubbish = torch.full((batch, sizes["layers"], heads, 1, sizes["width"] // sizes["heads"]), 7.0)
    return rubbish, rubbish, torch.zeros(batch, 1, dtype=torch.int64)


def step(module: Any, tokens: torch.Tensor, cache: Cache) -> tuple[torch.Tensor, Cache]:
    """Logits, and the cache with the new tokens appended."""
    keys, values, mask = cache
    with torch.no_grad():
        logits, new_keys, new_values = module(
            tokens, keys.to(module.tokens.weight), values.to(module.tokens.weight), mask
        )
    longer = torch.cat([mask, torch.ones_like(tokens)], dim=1)
    return logits, (torch.cat([keys, new_keys], dim=3), torch.cat([values, new_values], dim=3), longer)


def with_holes(cache: Cache) -> Cache:
    """The same cache, with hidden positions of rubbish before, inside and behind."""
    keys, values, mask = cache
    hole = torch.full_like(keys[..., :2, :], 9.0)
    gap = torch.zeros_like(mask[:, :1]).expand(-1, 2)
    parted = [torch.cat([hole, x[..., :3, :], hole, x[..., 3:, :], hole], dim=3) for x in (keys, values)]
    return parted[0], parted[1], torch.cat([gap, mask[:, :3], gap, mask[:, 3:], gap], dim=1)


@BOTH
@pytest.mark.parametrize(("batch", "length"), [(3, 13), (1, 1)])
def test_prefill_equals_transformers_on_equal_weights(made: Made, reference: Any, batch: int, length: int) -> None:
    ours, tokens = made(), ids(batch, length)
    with torch.no_grad():
        expected = reference(ours)(tokens).logits
    logits, _ = step(ours, tokens, empty(ours, batch))
    assert torch.allclose(logits, expected, atol=1e-4, rtol=0)
    assert expected.std() > 0.5


@BOTH
def test_decoding_behind_a_cache_equals_transformers_on_the_whole(made: Made, reference: Any) -> None:
    ours, tokens = made(), ids(2, 11)
    with torch.no_grad():
        expected = reference(ours)(tokens).logits
    first, cache = step(ours, tokens[:, :6], empty(ours, 2))
    chunk, cache = step(ours, tokens[:, 6:9], with_holes(cache))
    found = [first, chunk]
    for at in (9, 10):
        logits, cache = step(ours, tokens[:, at : at + 1], cache)
        found.append(logits)
    assert torch.allclose(torch.cat(found, dim=1), expected, atol=1e-4, rtol=0)


@BOTH
def test_one_changed_weight_is_noticed_by_the_comparison(made: Made, reference: Any) -> None:
    ours, tokens = made(), ids(2, 11)
    model = reference(ours)
    with torch.no_grad():
        ours.layers[1].attention.out.weight[0, 0] += 0.5
        expected = model(tokens).logits
    assert not torch.allclose(step(ours, tokens, empty(ours, 2))[0], expected, atol=1e-4, rtol=0)


@BOTH
def test_hidden_positions_change_nothing_wherever_they_stand(made: Made, reference: Any) -> None:
    ours = made().double()
    _, cache = step(ours, ids(2, 7), empty(ours, 2))
    found, expected = (step(ours, ids(2, 4), each)[0] for each in (with_holes(cache), cache))
    assert torch.allclose(found, expected, atol=1e-12)


@BOTH
def test_items_of_different_lengths_decode_as_each_alone(made: Made, reference: Any) -> None:
    """The shorter item's prompt is padded on the right: its padding is cached, hidden, and left behind."""
    ours, tokens, then = made().double(), ids(2, 8), ids(2, 3)
    _, (keys, values, mask) = step(ours, tokens, empty(ours, 2))
    mask[1, 1 + 5 :] = 0
    together, _ = step(ours, then, (keys, values, mask))
    for row, length in ((0, 8), (1, 5)):
        _, cache = step(ours, tokens[row : row + 1, :length], empty(ours, 1))
        alone, _ = step(ours, then[row : row + 1], cache)
        assert torch.allclose(together[row : row + 1], alone, atol=1e-12)


@BOTH
def test_very_large_scores_stay_finite(made: Made, reference: Any) -> None:
    ours = made()
    with torch.no_grad():
        for layer in ours.layers:
            next(layer.attention.parameters()).mul_(1e4)
    assert torch.isfinite(step(ours, ids(2, 6), empty(ours, 2))[0]).all()


def test_the_most_tokens_of_the_contract_have_a_position() -> None:
    spec = get("gpt_decoder", positions=300)
    assert spec.io.dim("past").max + spec.io.dim("seq").max == 300


@pytest.mark.slow
def test_grouped_heads_behind_a_cache_are_lowered_for_engines() -> None:
    onnx_ir = pytest.importorskip("onnx_ir")
    ort = pytest.importorskip("onnxruntime")
    from attnport.cases.inputs import full_case
    from attnport.exporter.capture import capture
    from attnport.exporter.targets import base

    spec = get("llama_decoder", **LLAMA)
    found = capture(spec.make(), spec.io)
    low = base.get("tensorrt_rtx").lower(found.model, found.attentions, plan="fp32", masks=spec.io.masks)
    assert [form.endswith("grouped heads as rows") for form in low.forms.values()] == [True, True]
    session = ort.InferenceSession(onnx_ir.to_proto(low.model).SerializeToString(), providers=["CPUExecutionProvider"])
    for sizes in ({"batch": 2, "seq": 5, "past": 3}, {"batch": 1, "seq": 1, "past": 9}):
        feeds = dict(full_case(spec.io, sizes).feeds)
        feeds["cache_mask"][0, :2] = 0
        with torch.no_grad():
            expected = spec.make()(**{key: torch.from_numpy(value) for key, value in feeds.items()})
        for got, wanted in zip(session.run(None, feeds), expected, strict=True):
            assert torch.allclose(torch.from_numpy(got), wanted, atol=2e-5)


@pytest.mark.parametrize(
    ("name", "sizes"),
    [("gpt_decoder", GPT), pytest.param("llama_decoder", LLAMA, marks=pytest.mark.slow)],
    ids=["gpt", "llama"],
)
def test_no_integer_is_padded_since_onnx_runtime_has_no_kernel_for_it_on_cuda(name: str, sizes: dict[str, int]) -> None:
    spec = get(name, **sizes)
    graph = capture(spec.make().eval(), spec.io).model.graph
    padded = [node.inputs[0] for node in graph if node.op_type == "Pad"]
    assert not [value for value in padded if value is not None and value.dtype and value.dtype.is_integer()]


KV = partial(KVCacheAttention, width=48, heads=3)


def sequence(batch: int, length: int) -> torch.Tensor:
    return torch.randn(batch, length, 48, dtype=torch.float64, generator=torch.Generator().manual_seed(length))


def cached(module: KVCacheAttention, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """What a cache holds after `x`: keys, values, and a mask that hides nothing."""
    keys, values = (split_heads(part(x), 3) for part in (module.project.key, module.project.value))
    return keys, values, torch.ones(x.shape[:2], dtype=torch.int64)


def kv_reference(ours: KVCacheAttention, x: torch.Tensor, hidden: torch.Tensor | None = None) -> torch.Tensor:
    """Causal attention over all of `x`, computed again; `hidden` [B, T] is True for keys that are not there."""
    theirs = nn.MultiheadAttention(48, 3, batch_first=True).double().eval()
    theirs.load_state_dict(attention_weights(ours))
    later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
    y: torch.Tensor = theirs(x, x, x, attn_mask=later, key_padding_mask=hidden, need_weights=False)[0]
    return y


@pytest.mark.parametrize(("past", "new"), [(1, 12), (7, 5), (11, 1), (1, 1), (2, 31)])
@torch.no_grad()
def test_new_tokens_get_what_attention_over_the_whole_gives(past: int, new: int) -> None:
    ours, x = build(KV).double(), sequence(2, past + new)
    y, keys, values = ours(x[:, past:], *cached(ours, x[:, :past]))
    assert torch.allclose(y, kv_reference(ours, x)[:, past:], atol=1e-12)
    whole_keys, whole_values, _ = cached(ours, x)
    assert torch.allclose(keys, whole_keys[:, :, past:])
    assert torch.allclose(values, whole_values[:, :, past:])


@torch.no_grad()
def test_one_attention_does_not_see_hidden_positions_of_its_cache() -> None:
    ours, x = build(KV).double(), sequence(2, 12)
    keys, values, mask = cached(ours, x[:, :7])
    mask[0, :3] = mask[1, 2:6] = 0
    hidden = torch.cat([mask == 0, torch.zeros(2, 5, dtype=torch.bool)], dim=1)
    y, _, _ = ours(x[:, 7:], keys, values, mask)
    assert torch.allclose(y, kv_reference(ours, x, hidden)[:, 7:], atol=1e-12)
    assert not torch.allclose(y, kv_reference(ours, x)[:, 7:], atol=1e-3)


@torch.no_grad()
def test_behind_an_empty_cache_the_first_token_sees_itself_alone() -> None:
    ours, x = build(KV).double(), sequence(1, 1)
    rubbish = torch.full((1, 3, 1, 16), 1e3, dtype=torch.float64)
    y, _, values = ours(x, rubbish, rubbish, torch.zeros(1, 1, dtype=torch.int64))
    assert torch.allclose(y, ours.out(values.transpose(1, 2).flatten(2)), atol=1e-12)


@torch.no_grad()
def test_the_order_of_what_is_cached_does_not_matter() -> None:
    ours, x = build(KV).double(), sequence(2, 12)
    keys, values, mask = cached(ours, x[:, :7])
    mask[:, :2] = 0
    order = torch.tensor([3, 0, 6, 2, 5, 1, 4])
    one, other = (
        ours(x[:, 7:], keys, values, mask),
        ours(x[:, 7:], keys[:, :, order], values[:, :, order], mask[:, order]),
    )
    assert torch.allclose(one[0], other[0], atol=1e-12)
