"""Attention in transformers, eager and sdpa: each is counted, recognised with its mask, and computes the same."""

from __future__ import annotations

import functools

import huggingface
import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from huggingface import CASES, KINDS, Arrays
from running import distance, on_ort, on_reference

from attnport.artifacts import SourceAttention
from attnport.errors import ExportError
from attnport.exporter.capture import capture
from attnport.exporter.lowering import base

SIZES = ({"batch": 2, "seq": 7}, {"batch": 3, "seq": 1}, {"batch": 1, "seq": 12})
QUICK = {("bert", "eager"), ("t5", "sdpa"), ("mistral", "eager")}
RUNNABLE = [case for case in CASES if case[0] != "longformer"]
EACH = [pytest.param(*case, marks=() if case in QUICK else pytest.mark.slow) for case in RUNNABLE]
CALLS = {"eager": "softmax", "sdpa": "scaled_dot_product_attention"}
both = pytest.mark.parametrize(("kind", "way"), EACH)


@functools.cache
def captured(kind: str, way: str) -> tuple[bytes, tuple[SourceAttention, ...]]:
    found = capture(huggingface.make(kind, way), huggingface.contract(kind))
    return ir.to_proto(found.model).SerializeToString(), found.attentions


def exported(kind: str, way: str) -> ir.Model:
    return ir.from_proto(onnx.load_model_from_string(captured(kind, way)[0]))


def reference(kind: str, way: str, feeds: Arrays) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """The model in float64."""
    module = huggingface.make(kind, way).double()
    given = {name: torch.from_numpy(array) for name, array in feeds.items()}
    with torch.no_grad():
        found = module(**{name: each.double() if each.is_floating_point() else each for name, each in given.items()})
    return np.asarray(found)


@both
def test_each_attention_is_counted_once_under_the_path_of_its_module(kind: str, way: str) -> None:
    found = [(each.name, each.call) for each in captured(kind, way)[1]]
    assert found == [(name, CALLS[way]) for name, _ in KINDS[kind].attentions]


@both
def test_each_is_recognised_with_the_mask_that_it_has(kind: str, way: str) -> None:
    masks = huggingface.contract(kind).masks
    found = base.get("onnx").lower(exported(kind, way), captured(kind, way)[1], masks=masks, plan="fp32")
    assert found.masks == dict(huggingface.named_masks(kind)), found.notes


@both
def test_the_graph_and_its_lowered_form_compute_what_the_model_computes(kind: str, way: str) -> None:
    masks = huggingface.contract(kind).masks
    form = base.get("onnx").lower(exported(kind, way), captured(kind, way)[1], masks=masks, plan="fp32")
    graph, runtime = on_reference(exported(kind, way)), on_ort(form.model)
    for seed, sizes in enumerate(SIZES):
        feeds = huggingface.feeds(kind, sizes, seed)
        expected = reference(kind, way, feeds)
        # Padded queries are unspecified: with every key hidden, an eager model attends to all.
        real = feeds["attention_mask"].astype(bool) if "attention_mask" in feeds else np.ones(len(expected), bool)
        for run in (graph, runtime):
            assert distance([run(feeds)[0][real]], [expected[real]]) < 2e-5, sizes


def test_eager_and_sdpa_are_one_model_and_the_mask_matters() -> None:
    feeds = huggingface.feeds("bert", SIZES[0])
    eager = reference("bert", "eager", feeds)
    assert distance([eager[1]], [reference("bert", "sdpa", feeds)[1]]) < 1e-12
    whole = {**feeds, "attention_mask": np.ones_like(feeds["attention_mask"])}
    assert distance([reference("bert", "eager", whole)[0]], [eager[0]]) > 1e-3


def test_longformer_is_refused_by_the_line_that_takes_a_size_out_of_the_graph() -> None:
    """It divides a length as a tensor, which no trace can follow; transformers has it so."""
    with pytest.raises(ExportError, match=r"data-dependent.*\(modeling_longformer.py, line \d+: .*view"):
        capture(huggingface.make("longformer", "eager"), huggingface.contract("longformer"))
