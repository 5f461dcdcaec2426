"""torch.nn's own attentions: its fast path computes the same, and a trace leaves torch as it was."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
import torch
from library_modules import CASES
from running import distance
from spellings.case import X, contract
from torch import nn
from torch.nn.modules import transformer

from attnport.errors import ExportError
from attnport.exporter.capture import capture
from attnport.exporter.patching import traceable

SIZES = {"batch": 2, "seq": 5, "mem": 7}
QUICK = {"attention_causal_padding", "attention_weights_causal_padding", "encoder_padding", "decoder_all_masks"}


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype")
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in CASES if name != "encoder_bias"],
)
def test_the_fast_path_of_torch_computes_the_same(name: str) -> None:
    case = CASES[name]
    feeds = case.feeds(SIZES)
    fast, slow = (case.reference(feeds, fast=fast)[0] for fast in (True, False))
    real = ~feeds["hide"] if "hide" in feeds else np.ones(fast.shape[:2], bool)  # padded queries are unspecified
    assert distance([fast[real]], [slow[real]]) < 1e-12


def test_the_fast_path_takes_a_float_bias_for_a_mask_which_the_graph_does_not() -> None:
    """torch's own fault: any bias but zero hides its key. What is exported is what the module's code says."""
    case = CASES["encoder_bias"]
    feeds = case.feeds(SIZES)
    assert np.isnan(case.reference(feeds, fast=True)[0]).any()
    assert np.isfinite(case.reference(feeds)[0]).all()


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
        with traceable(nn.Identity()):
            seen.append(transformer._detect_is_causal_mask)

    thread = threading.Thread(target=second)
    thread.start()
    with traceable(nn.Identity()):
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
        with traceable(nn.Identity()):
            pass
        assert not torch.backends.mha.get_fastpath_enabled()
    finally:
        torch.backends.mha.set_fastpath_enabled(True)


def test_a_trace_that_is_refused_prints_no_graph(capfd: pytest.CaptureFixture[str]) -> None:
    class Branches(nn.Module):
        def forward(self, x: Any) -> Any:
            return x + 1 if x.sum() > 0 else x

    with pytest.raises(ExportError, match=r"needs the values of a tensor.*line \d+: return x \+ 1 if x.sum"):
        capture(Branches().eval(), contract(X))
    assert "def forward" not in "".join(capfd.readouterr())
