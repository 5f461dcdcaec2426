"""Rates on a GPU: operations and bytes of a call against PyTorch's counter and the modules' weights; peaks; shares."""

from __future__ import annotations

import importlib.util
import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from attnport.artifacts import LatencyReport, LatencyRow
from attnport.jsonfile import to_json
from attnport.models.cached_decoders import LlamaDecoder
from attnport.models.encoders import BertEncoder
from attnport.verbs._gpu_models import BERT, LLAMA, LONGEST
from attnport.verbs.gpu_check import GpuReport, Piece

SMALL_BERT = {"width": 48, "heads": 3, "layers": 2, "hidden": 80, "vocabulary": 97}
SMALL_LLAMA = {"width": 48, "heads": 6, "groups": 2, "layers": 3, "hidden": 72, "vocabulary": 89}
Shape = dict[str, int]

FILE = Path(__file__).resolve().parents[2] / "benchmarks" / "gpu_rates.py"
_spec = importlib.util.spec_from_file_location("gpu_rates", FILE)
assert _spec is not None
assert _spec.loader is not None
rates = sys.modules["gpu_rates"] = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(rates)


def bert_of(shape: Shape) -> torch.nn.Module:
    with torch.device("meta"):
        return BertEncoder(**shape, positions=LONGEST).eval()


def llama_of(shape: Shape) -> torch.nn.Module:
    with torch.device("meta"):
        return LlamaDecoder(**shape).eval()


def bert_feeds(B: int, S: int) -> dict[str, torch.Tensor]:
    ids = torch.zeros(B, S, dtype=torch.int64, device="meta")
    return {"input_ids": ids, "attention_mask": ids, "token_type_ids": ids}


def llama_feeds(shape: Shape, B: int, S: int, P: int) -> dict[str, torch.Tensor]:
    past = torch.zeros(B, shape["layers"], shape["groups"], P, shape["width"] // shape["heads"], device="meta")
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
    work = rates.bert(shape, {"batch": B, "seq": S}, 2)
    assert work.flops == counted(module, feeds)
    assert work.moved_bytes == moved(module, feeds, 2, (2 * B * S + S) * shape["width"])


@pytest.mark.parametrize(
    ("shape", "B", "S", "P"), [(SMALL_LLAMA, 2, 5, 9), (LLAMA, 1, 1016, 8), (LLAMA, 8, 1, 2047), (LLAMA, 1, 1, 1)]
)
def test_llamas_operations_and_bytes_are_those_of_the_module(shape: Shape, B: int, S: int, P: int) -> None:
    module, feeds = llama_of(shape), llama_feeds(shape, B, S, P)
    work = rates.llama(shape, {"batch": B, "seq": S, "past": P}, 2)
    full, causal = (rates.attention_flops(B, S, P + S, shape["width"], causal=which) for which in (False, True))
    assert work.flops + shape["layers"] * (full - causal) == counted(module, feeds)
    assert work.moved_bytes == moved(module, feeds, 2, B * S * shape["width"])


@pytest.mark.parametrize(("S", "T"), [(1, 1), (1, 9), (5, 5), (4, 11)])
def test_causal_attention_counts_the_pairs_that_its_mask_allows(S: int, T: int) -> None:
    allowed = int(torch.ones(S, T).tril(T - S).sum())
    assert rates.attention_flops(3, S, T, 16, causal=True) == 2 * 2 * 3 * allowed * 16
    assert rates.attention_flops(3, S, T, 16) == 2 * 2 * 3 * S * T * 16


def test_a_count_that_is_off_is_noticed() -> None:
    module = bert_of(SMALL_BERT)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        module(**bert_feeds(3, 7))
    assert rates.bert(SMALL_BERT, {"batch": 3, "seq": 8}, 2).flops != counter.get_total_flops()


def test_decode_moves_the_weights_and_the_cache_and_little_else() -> None:
    sizes = {"batch": 8, "seq": 1, "past": 2047}
    work, module = rates.llama(LLAMA, sizes, 2), llama_of(LLAMA)
    weights = 2 * sum(one.numel() for one in module.parameters()) - 2 * LLAMA["vocabulary"] * LLAMA["width"]
    cache = 2 * 2 * 8 * LLAMA["layers"] * 2047 * LLAMA["groups"] * 64
    assert weights + cache < work.moved_bytes < 1.01 * (weights + cache)


class Clock:
    """A device on which a product of n x n takes n ns, and a copy 1 us."""

    kind = "cpu"

    def mark(self) -> int:
        return 0

    def ns_between(self, first: int, second: int) -> int:
        return 1000

    def wait(self) -> None: ...


def test_the_peak_is_the_best_median_of_all_sizes() -> None:
    clock = Clock()
    found = rates.peaks(clock, ("fp32", "bf16"), sizes=(8, 16), copy_bytes=4096, rounds=3, warm_s=0.0)
    assert found["per_s"] == {
        "fp32": pytest.approx(2 * 16**3 / 1e-6), "bf16": pytest.approx(2 * 16**3 / 1e-6),
        "copy": pytest.approx(2 * 4096 / 1e-6),
    }  # fmt: skip
    assert found["samples_ns"]["fp32 8"] == [1000] * 3
    assert len(found["gpu"]) == 2


def test_clocks_are_warm_before_the_first_round(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, waits = Clock(), []
    monkeypatch.setattr(clock, "wait", lambda: waits.append(time.monotonic()))
    told: list[int] = []

    def state() -> tuple[str, str]:
        told.append(len(waits))
        return f"{len(told)} MHz", ""

    monkeypatch.setattr(rates, "gpu_state", state)
    found = rates.peaks(clock, ("fp32",), sizes=(8,), copy_bytes=4096, rounds=3, warm_s=0.2)
    warm, end = told
    assert warm > 1
    assert waits[warm - 1] - waits[0] > 0.1
    assert end == len(waits) == warm + 2 * 4  # a product and a copy in each round, and in the one that loads kernels
    assert found["gpu"] == ["1 MHz", "2 MHz"]


PER_S = {"fp16": 500e12, "copy": 2e12}
MS = {"median_ns": 1e6}


def test_rates_are_of_the_time_of_computing_where_events_tell_it() -> None:
    work = rates.Work(flops=10**11, moved_bytes=10**9)
    by_events = {"median_ns": 4e6, "parts_ns": {"device": 1e6}}
    assert rates.rates(by_events, work, "fp16", PER_S) == ("100 20%", "1e+03 50%", [])
    assert rates.rates(MS, work, "fp16", PER_S) == ("100* 20%", "1e+03* 50%", [])
    assert rates.rates(MS, work, "fp16", {}) == ("100*", "1e+03*", [])
    assert rates.rates({"median_ns": None}, work, "fp16", PER_S) is None


def test_a_share_above_the_measured_peak_is_said_to_be_an_error_of_the_measurement() -> None:
    work = rates.Work(flops=520 * 10**9, moved_bytes=3 * 10**9)
    found = ("520* 104% (!)", "3e+03* 150% (!)", [rates.TOO_FAST, rates.FROM_CACHE])
    assert rates.rates(MS, work, "fp16", PER_S) == found


def test_what_gpu_check_wrote_is_printed_beside_the_peaks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = {"a": LatencyRow("faster", median_ns=1e6), "b": LatencyRow()}
    latency = LatencyReport("a", {}, {"batch=8,seq=512": rows}, {}, {})
    pieces = {"bert_encoder fp16": Piece(latency=latency), "llama_decoder fp16": Piece("failed")}
    report, peaks = tmp_path / "gpu.json", tmp_path / "peaks.json"
    report.write_text(to_json(GpuReport("X", pieces)))
    peaks.write_text(json.dumps({"device": "X", "per_s": PER_S, "samples_ns": {}, "gpu": ["cold", "warm"]}))
    monkeypatch.setattr(sys, "argv", ["gpu_rates.py", str(peaks), str(report)])
    rates.main()
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == ["X: cold; warm", "measured peak: fp16 500 TFLOP/s", "measured peak: 2000 GB/s (a copy)"]
    assert [line.split()[:4] for line in lines if "batch" in line] == [["bert_encoder", "fp16", "batch=8,seq=512", "a"]]


def test_shares_of_peaks_that_were_measured_at_other_clocks_are_told() -> None:
    def lines(clock: int) -> list[str]:
        settings = {"gpu before batch=8,seq=512": f"{clock} MHz, 45 C", "gpu after batch=8,seq=512": "1980 MHz, 55 C"}
        latency = {"shapes": {"batch=8,seq=512": {"a": MS}}, "settings": settings}
        report = {"pieces": {"bert_encoder fp16": {"latency": latency}}}
        return rates.table(report, PER_S, ["1980 MHz, 65 C, slowed down by: heat", "1980 MHz"])

    assert not [line for line in lines(1980) if "two clocks" in line]
    assert lines(1410)[-2] == (
        "bert_encoder fp16 batch=8,seq=512: at 1410 and 1980 MHz, the peaks at 1980 MHz: shares are of two clocks"
    )
