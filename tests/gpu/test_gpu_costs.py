"""Operations and bytes of a call, against PyTorch's own counter and the modules' own weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from attnport.models import bert_encoder, llama_decoder
from attnport.verbs.gpu import costs as gpu_costs
from attnport.verbs.gpu.costs import Shape, attention_flops
from attnport.verbs.gpu.subjects import BERT, LLAMA, LONGEST

SMALL_BERT = Shape(width=48, heads=3, groups=3, layers=2, hidden=80, vocabulary=97)
SMALL_LLAMA = Shape(width=48, heads=6, groups=2, layers=3, hidden=72, vocabulary=89)


def bert_of(shape: Shape) -> torch.nn.Module:
    with torch.device("meta"):
        return bert_encoder.BertEncoder(
            bert_encoder.BertConfig(
                shape.vocabulary, shape.width, shape.heads, shape.layers, shape.hidden, positions=LONGEST
            )
        ).eval()


def llama_of(shape: Shape) -> torch.nn.Module:
    with torch.device("meta"):
        return llama_decoder.LlamaDecoder(
            llama_decoder.LlamaConfig(
                shape.vocabulary, shape.width, shape.heads, shape.groups, shape.layers, shape.hidden
            )
        ).eval()


def bert_feeds(B: int, S: int) -> dict[str, torch.Tensor]:
    ids = torch.zeros(B, S, dtype=torch.int64, device="meta")
    return {"input_ids": ids, "attention_mask": ids, "token_type_ids": ids}


def llama_feeds(shape: Shape, B: int, S: int, P: int) -> dict[str, torch.Tensor]:
    past = torch.zeros(B, shape.layers, shape.groups, P, shape.width // shape.heads, device="meta")
    ids = torch.zeros(B, S, dtype=torch.int64, device="meta")
    mask = torch.zeros(B, P, dtype=torch.int64, device="meta")
    return {"input_ids": ids, "past_keys": past, "past_values": past, "cache_mask": mask}


def counted(module: torch.nn.Module, feeds: dict[str, torch.Tensor]) -> int:
    """PyTorch's count, nothing computed; it knows no mask, so causal attention counts in full."""
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH), torch.no_grad():
        module(**feeds)
    return int(counter.get_total_flops())


def moved(module: torch.nn.Module, feeds: dict[str, torch.Tensor], element_bytes: int, looked_up: int) -> int:
    """Weights outside of embedding tables, rows looked up, inputs, outputs, from the tensors themselves."""
    tables = {id(part.weight) for part in module.modules() if isinstance(part, torch.nn.Embedding)}
    weights = sum(one.numel() for one in module.parameters() if id(one) not in tables)
    result: Any = module(**feeds)
    outputs = sum(one.numel() for one in (result if isinstance(result, tuple) else (result,)))
    inputs = sum(one.numel() * (8 if one.dtype == torch.int64 else element_bytes) for one in feeds.values())
    return element_bytes * (weights + looked_up + outputs) + inputs


@pytest.mark.parametrize(("shape", "B", "S"), [(SMALL_BERT, 3, 7), (BERT, 1, 128), (BERT, 32, 2048)])
def test_berts_operations_and_bytes_are_those_of_the_module(shape: Shape, B: int, S: int) -> None:
    module, feeds = bert_of(shape), bert_feeds(B, S)
    work = gpu_costs.bert(shape, {"batch": B, "seq": S}, 2)
    assert work.flops == counted(module, feeds)
    assert work.moved_bytes == moved(module, feeds, 2, (2 * B * S + S) * shape.width)


@pytest.mark.parametrize(
    ("shape", "B", "S", "P"), [(SMALL_LLAMA, 2, 5, 9), (LLAMA, 1, 1016, 8), (LLAMA, 8, 1, 2047), (LLAMA, 1, 1, 1)]
)
def test_llamas_operations_and_bytes_are_those_of_the_module(shape: Shape, B: int, S: int, P: int) -> None:
    module, feeds = llama_of(shape), llama_feeds(shape, B, S, P)
    work = gpu_costs.llama(shape, {"batch": B, "seq": S, "past": P}, 2)
    full, causal = (attention_flops(B, S, P + S, shape.width, causal=which) for which in (False, True))
    assert work.flops + shape.layers * (full - causal) == counted(module, feeds)
    assert work.moved_bytes == moved(module, feeds, 2, B * S * shape.width)


@pytest.mark.parametrize(("S", "T"), [(1, 1), (1, 9), (5, 5), (4, 11)])
def test_causal_attention_counts_the_pairs_that_its_mask_allows(S: int, T: int) -> None:
    allowed = int(torch.ones(S, T).tril(T - S).sum())
    assert attention_flops(3, S, T, 16, causal=True) == 2 * 2 * 3 * allowed * 16
    assert attention_flops(3, S, T, 16) == 2 * 2 * 3 * S * T * 16


def test_a_count_that_is_off_is_noticed() -> None:
    module = bert_of(SMALL_BERT)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        module(**bert_feeds(3, 7))
    assert gpu_costs.bert(SMALL_BERT, {"batch": 3, "seq": 8}, 2).flops != counter.get_total_flops()


def test_decode_moves_the_weights_and_the_cache_and_little_else() -> None:
    sizes = {"batch": 8, "seq": 1, "past": 2047}
    work, module = gpu_costs.llama(LLAMA, sizes, 2), llama_of(LLAMA)
    weights = 2 * sum(one.numel() for one in module.parameters()) - 2 * LLAMA.vocabulary * LLAMA.width
    cache = 2 * 2 * 8 * LLAMA.layers * 2047 * LLAMA.groups * 64
    assert weights + cache < work.moved_bytes < 1.01 * (weights + cache)
