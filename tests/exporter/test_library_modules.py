"""The attentions of torch.nn: each is counted, recognised with its mask, and computes what the module computes."""

from __future__ import annotations

import functools
import threading
from typing import Any

import library_modules
import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from library_modules import CASES, Arrays
from running import distance, on_ort, on_reference
from spellings.case import X, contract
from torch import nn
from torch.nn.modules import transformer

from attnport.artifacts import SourceAttention
from attnport.errors import ExportError
from attnport.exporter.capture import capture
from attnport.exporter.lowering import base
from attnport.exporter.lowering.base import Lowered
from attnport.exporter.tracing import traceable

SIZES = ({"batch": 2, "seq": 5, "mem": 7}, {"batch": 3, "seq": 1, "mem": 2}, {"batch": 1, "seq": 11, "mem": 4})
QUICK = {"attention_causal_padding", "attention_weights_causal_padding", "encoder_padding", "decoder_all_masks"}
EACH = [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in CASES]


@functools.cache
def captured(name: str) -> tuple[bytes, tuple[SourceAttention, ...]]:
    found = capture(CASES[name].make(), CASES[name].io)
    return ir.to_proto(found.model).SerializeToString(), found.attentions


def exported(name: str) -> ir.Model:
    return ir.from_proto(onnx.load_model_from_string(captured(name)[0]))


def lowered(name: str, target: str = "onnx") -> Lowered:
    return base.get(target).lower(exported(name), captured(name)[1], masks=CASES[name].io.masks, plan="fp32")


@pytest.mark.parametrize("name", EACH)
def test_each_attention_is_counted_once_under_the_path_of_its_module(name: str) -> None:
    found = [(each.name, each.call) for each in captured(name)[1]]
    assert found == [(attention, call) for attention, call, _ in CASES[name].attentions]


@pytest.mark.parametrize("name", EACH)
def test_each_is_recognised_with_the_mask_that_it_has(name: str) -> None:
    found = lowered(name)
    assert found.masks == {attention: mask for attention, _, mask in CASES[name].attentions}, found.notes


@pytest.mark.parametrize("name", EACH)
def test_the_graph_and_its_lowered_form_compute_what_the_module_computes(name: str) -> None:
    case = CASES[name]
    graph, form = on_reference(exported(name)), on_ort(lowered(name).model)
    for seed, sizes in enumerate(SIZES):
        feeds = case.feeds(sizes, seed)
        expected = case.reference(feeds)
        assert distance(graph(feeds), expected) < 2e-5, sizes
        assert distance(form(feeds), expected) < 2e-5, sizes


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype")
@pytest.mark.parametrize("name", [param for param in EACH if not str(param.values[0]).startswith("encoder_bias")])
def test_the_fast_path_of_torch_computes_the_same(name: str) -> None:
    case = CASES[name]
    feeds = case.feeds(SIZES[0])
    fast, slow = (case.reference(feeds, fast=fast)[0] for fast in (True, False))
    real = ~feeds["hide"] if "hide" in feeds else np.ones(fast.shape[:2], bool)  # padded queries are unspecified
    assert distance([fast[real]], [slow[real]]) < 1e-12


def test_the_fast_path_takes_a_float_bias_for_a_mask_which_the_graph_does_not() -> None:
    """torch's own fault: any bias but zero hides its key. What is exported is what the module's code says."""
    case = CASES["encoder_bias"]
    feeds = case.feeds(SIZES[0])
    assert np.isnan(case.reference(feeds, fast=True)[0]).any()
    assert np.isfinite(case.reference(feeds)[0]).all()


def test_numbers_that_differ_are_noticed() -> None:
    case = CASES["decoder_all_masks"]
    feeds = case.feeds(SIZES[0])
    expected = case.reference(feeds)
    assert feeds["hide"].any()
    assert feeds["hide_memory"].any()
    for name in ("hide", "hide_memory"):
        assert distance(case.reference({**feeds, name: np.zeros_like(feeds[name])}), expected) > 1e-3
    assert distance(CASES["decoder_causal"].reference(feeds_of("decoder_causal")), expected) > 1e-3


def feeds_of(name: str) -> Arrays:
    return CASES[name].feeds(SIZES[0])


def test_torch_is_as_it_was_after_an_export_that_failed() -> None:
    class Raises(nn.Module):
        def forward(self, x: Any) -> Any:
            raise ValueError("no such thing")

    before = transformer._detect_is_causal_mask
    with pytest.raises(ExportError, match=r"no such thing \(test_library_modules.py, line \d+: raise ValueError"):
        capture(Raises().eval(), contract(X))
    assert transformer._detect_is_causal_mask is before
    assert torch.backends.mha.get_fastpath_enabled()
    assert before(nn.Transformer.generate_square_subsequent_mask(3), None, 3)


def test_torch_is_as_it_was_after_two_threads_traced_at_once() -> None:
    before, inside, seen = transformer._detect_is_causal_mask, threading.Event(), []

    def second() -> None:
        inside.wait()
        with traceable():
            seen.append(transformer._detect_is_causal_mask)

    thread = threading.Thread(target=second)
    thread.start()
    with traceable():
        first = transformer._detect_is_causal_mask
        inside.set()
        assert not first(torch.zeros(2, 2), None, 2)
        assert first(torch.zeros(2, 2), True, 2)
        assert not torch.backends.mha.get_fastpath_enabled()
        thread.join(0.2)
        assert thread.is_alive(), "the second waits"
    thread.join()
    assert seen != [before]
    assert transformer._detect_is_causal_mask is before
    assert torch.backends.mha.get_fastpath_enabled()


def test_a_fast_path_that_was_off_stays_off() -> None:
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with traceable():
            pass
        assert not torch.backends.mha.get_fastpath_enabled()
    finally:
        torch.backends.mha.set_fastpath_enabled(True)


def test_a_trace_that_is_refused_prints_no_graph(capfd: pytest.CaptureFixture[str]) -> None:
    class Branches(nn.Module):
        def forward(self, x: Any) -> Any:
            return x + 1 if x.sum() > 0 else x

    with pytest.raises(ExportError, match=r"data-dependent.*line \d+: return x \+ 1 if x.sum"):
        capture(Branches().eval(), contract(X))
    assert "def forward" not in "".join(capfd.readouterr())


def test_every_case_says_what_it_holds() -> None:
    assert all(case.attentions for case in CASES.values())
    assert {call for case in CASES.values() for _, call, _ in case.attentions} == {
        library_modules.SDPA,
        library_modules.SOFTMAX,
    }
    assert CASES.keys() >= QUICK
