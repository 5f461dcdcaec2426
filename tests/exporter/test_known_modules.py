"""Attention in torch.nn and in transformers: each is counted, recognised with its mask, and computes the same."""

from __future__ import annotations

import dataclasses
import functools

import huggingface
import library_modules
import numpy as np
import pytest
from running import Exported, distance, export, on_ort, on_reference

from attnport.dims import Dim
from attnport.errors import ExportError

SIZES = ({"batch": 2, "seq": 7, "mem": 4}, {"batch": 3, "seq": 1, "mem": 2}, {"batch": 1, "seq": 12, "mem": 9})
CASES: dict[str, library_modules.Library | huggingface.Pretrained] = {**library_modules.CASES, **huggingface.CASES}
QUICK = {"attention_causal_padding", "bert-eager"}
IN_STEPS = "longformer-eager"
each = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in CASES if name != IN_STEPS]
)


@functools.cache
def exported(name: str) -> Exported:
    return export(CASES[name].make(), CASES[name].io)


@each
def test_each_attention_is_counted_once_under_the_path_of_its_module(name: str) -> None:
    found = [(attention.name, attention.call) for attention in exported(name).attentions]
    assert found == [(attention, call) for attention, call, _ in CASES[name].attentions]


@each
def test_each_is_recognised_with_the_mask_that_it_has(name: str) -> None:
    found = exported(name).lowered("onnx")
    assert found.masks == {attention: mask for attention, _, mask in CASES[name].attentions}, found.notes


@each
def test_the_graph_and_its_lowered_form_compute_what_the_module_computes(name: str) -> None:
    case = CASES[name]
    graph, form = on_reference(exported(name).model), on_ort(exported(name).lowered("onnx").model)
    for seed, sizes in enumerate(SIZES):
        feeds = case.feeds(sizes, seed)
        expected = case.compared(feeds, case.reference(feeds))
        for run in (graph, form):
            assert distance(case.compared(feeds, run(feeds)), expected) < 2e-5, sizes


def test_numbers_that_differ_are_noticed() -> None:
    case = CASES["decoder_all_masks"]
    feeds = case.feeds(SIZES[0])
    expected = case.reference(feeds)
    assert feeds["hide"].any()
    assert feeds["hide_memory"].any()
    for name in ("hide", "hide_memory"):
        assert distance(case.reference({**feeds, name: np.zeros_like(feeds[name])}), expected) > 1e-3
    causal = CASES["decoder_causal"]
    assert distance(causal.reference(causal.feeds(SIZES[0])), expected) > 1e-3


def test_eager_and_sdpa_are_one_model_and_the_mask_matters() -> None:
    eager, sdpa = CASES["bert-eager"], CASES["bert-sdpa"]
    feeds = eager.feeds(SIZES[0])
    (found,), (other,) = eager.reference(feeds), sdpa.reference(feeds)
    assert distance([found[1]], [other[1]]) < 1e-12
    (whole,) = eager.reference({**feeds, "attention_mask": np.ones_like(feeds["attention_mask"])})
    assert distance([whole[0]], [found[0]]) > 1e-3


@pytest.mark.slow
def test_longformer_is_exported_at_multiples_of_its_window() -> None:
    """It divides a length as a tensor, pads what is no whole window, and reads windows as they lie in memory."""
    case = CASES[IN_STEPS]
    whole = dataclasses.replace(case.io, dims=(case.io.dims[0], Dim("seq", 4, 8, 64, 4)))
    graph = on_ort(export(case.make(), whole).model)
    for seed, seq in enumerate((8, 4, 20)):
        feeds = case.feeds({"batch": 2, "seq": seq}, seed)
        assert distance(case.compared(feeds, graph(feeds)), case.compared(feeds, case.reference(feeds))) < 2e-5, seq
    with pytest.raises(ExportError, match=r"needs the values of a tensor.*\(modeling_longformer.py, line \d+: "):
        exported(IN_STEPS)


def test_every_case_says_what_it_holds() -> None:
    assert all(case.attentions for case in CASES.values())
    calls = {call for case in library_modules.CASES.values() for _, call, _ in case.attentions}
    assert calls == {library_modules.SDPA, library_modules.SOFTMAX}
    assert CASES.keys() >= QUICK
