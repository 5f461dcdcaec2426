"""`python -m attnport_bundle bench`: warmed up, raw samples, inputs that the contract allows, no claim."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import tiny_attention as tiny

from attnport.latency import statistics
from attnport_bundle import FeedError, Model, load
from attnport_bundle import __main__ as command
from attnport_bundle.__main__ import P90_SAMPLES, WINDOW, Report, bench, sample_feeds
from attnport_bundle.feeds import check_feeds
from attnport_bundle.format.contract import IO, Dim, MaskSpec, TensorSpec

DIMS = (Dim("batch", 1, 2, 8), Dim("seq", 1, 5, 16))


def contract(spec: TensorSpec, polarity: str = "keep", carries: str = "mask") -> IO:
    kinds = {"ids": ("documents",), "marks": ("global",)}.get(carries, ("padding",))
    mask = MaskSpec(kinds, spec.name, polarity, "upper_left", 0, carries, "seq" if carries == "lengths" else None)
    hidden = TensorSpec("x", "float16", ("batch", "seq", 3), None)
    return IO((spec, hidden), (hidden,), DIMS, (mask,))


class Clocked:
    """A model whose calls take the times that it is told, by a clock of its own."""

    def __init__(self, times_ns: Iterable[int]) -> None:
        self.io = contract(TensorSpec("ids", "int64", ("batch", "seq"), 7))
        self.form, self.provider, self.version = "ort_cpu", "CPUExecutionProvider", "1.31.1"
        self.manifest = SimpleNamespace(forms={"ort_cpu": SimpleNamespace(runtime="onnxruntime")})
        self.fed: list[dict[str, Any]] = []
        self._times, self._now = iter(times_ns), 0

    def run(self, **feeds: Any) -> None:
        self.fed.append(feeds)
        self._now += next(self._times)

    def clock(self) -> int:
        return self._now


def timed(times_ns: Iterable[int], seconds: float = 1e-6) -> tuple[Report, Clocked]:
    model = Clocked(times_ns)
    return bench(cast("Model", model), None, seconds, model.clock), model


def test_the_first_calls_are_warm_up_and_no_samples() -> None:
    slow = [90, 70, 50, 40, 30]
    report, model = timed([*slow, *[100] * 1000])
    assert (report.warmup_runs, report.settled) == (3 * WINDOW, True)
    assert report.samples_ns == (100,) * 10
    assert (report.median_ns, report.p90_ns) == (100.0, None)
    assert len(model.fed) == report.warmup_runs + len(report.samples_ns)


def test_what_never_settles_says_so_and_is_measured_all_the_same() -> None:
    report, _ = timed(1 << (at // WINDOW) for at in itertools.count())
    assert not report.settled
    assert report.warmup_runs == WINDOW * 8  # 5 calls of 1, 2, ... 128 ns are the first to take a microsecond
    assert report.samples_ns == (256,) * 4


def test_one_call_that_takes_longer_than_the_time_is_still_a_sample() -> None:
    report, _ = timed(itertools.repeat(10**9))
    assert report.samples_ns == (10**9,)


def test_a_tenth_of_the_calls_needs_as_many_samples_as_elsewhere() -> None:
    assert P90_SAMPLES == statistics.P90_SAMPLES
    fast, slow = [50] * 10, [50] * 18 + [90] * 2
    report, _ = timed([*fast, *slow, *[50] * 99], seconds=1.08e-6)
    assert len(report.samples_ns) == P90_SAMPLES
    assert report.p90_ns == pytest.approx(np.quantile(slow, 0.9))
    assert timed(itertools.repeat(100), seconds=1.9e-6)[0].p90_ns is None


@pytest.mark.parametrize(
    ("io", "expected"),
    [
        (contract(TensorSpec("m", "bool", ("batch", "seq"), None)), True),
        (contract(TensorSpec("m", "int64", ("batch", "seq"), None), "hide"), 0),
        (contract(TensorSpec("m", "float32", ("batch", 1, "seq", "seq"), None), "additive"), 0.0),
        (contract(TensorSpec("m", "int32", ("batch",), None), carries="lengths"), 9),
        (contract(TensorSpec("m", "int64", ("batch", "seq"), None), carries="ids"), 1),
        (contract(TensorSpec("m", "int64", ("batch", "seq"), None), carries="marks"), 1),
    ],
)
def test_no_position_is_padded_or_hidden(io: IO, expected: object) -> None:
    feeds = sample_feeds(io, {"seq": 9})
    assert check_feeds(io, feeds) == {"batch": 2, "seq": 9}
    assert (feeds["m"] == expected).all()


def test_ids_keep_to_the_vocabulary_and_every_call_has_the_same() -> None:
    io = contract(TensorSpec("ids", "int64", ("batch", "seq"), 7))
    io = dataclasses.replace(io, masks=())
    feeds, again = sample_feeds(io, {}), sample_feeds(io, {})
    assert check_feeds(io, feeds) == {"batch": 2, "seq": 5}
    assert len(set(feeds["ids"].ravel().tolist())) > 2
    for name, array in feeds.items():
        np.testing.assert_array_equal(array, again[name])
    unlimited = dataclasses.replace(io, inputs=(dataclasses.replace(io.inputs[0], high=None),))
    assert set(sample_feeds(unlimited, {})["ids"].ravel().tolist()) == {0, 1}


def test_a_real_model_is_timed_at_the_shape_that_was_asked_for(made_bundle: Path) -> None:
    with load(made_bundle, threads=1) as model:
        report = bench(model, {"batch": 3, "seq": 7}, 0.02)
        assert report.sizes == {"batch": 3, "seq": 7}
        assert (report.runtime, report.provider) == ("onnxruntime", "CPUExecutionProvider")
        assert report.median_ns > 0
        for sizes, words in (
            ({"heads": 1}, "dim 'heads': the model has no such dim; expected batch, seq"),
            ({"seq": 17}, "dim 'seq': got 17; expected 1 to 16"),
            ({"batch": 0}, "dim 'batch': got 0; expected 1 to 8"),
            ({"seq": 10**14}, "dim 'seq': got 100000000000000; expected 1 to 16"),
        ):
            with pytest.raises(FeedError) as caught:
                bench(model, sizes, 0.02)
            assert words in str(caught.value)


def test_the_command_line_prints_what_was_measured(made_bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = ["bench", str(made_bundle), "--seconds", "0.02", "--threads", "1"]
    assert command.main([*line, "--shape", "batch=1,seq=4"]) == 0
    said = capsys.readouterr().out
    assert "shape    batch=1, seq=4\n" in said
    assert "median" in said
    assert command.main([*line, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["sizes"] == {dim.name: dim.opt for dim in tiny.IO.dims}
    assert found["load_ns"] > 0
    assert found["threads"] == 1
    assert sum(found["samples_ns"]) >= 0.02e9
    assert found["median_ns"] == np.median(found["samples_ns"])


@pytest.mark.parametrize(
    "wrong",
    [["--shape", "seq"], ["--shape", "seq=-1"], ["--shape", "seq=1,seq=2"], ["--shape", "seq=²"], ["--seconds", "x"]],
)
def test_a_command_line_that_makes_no_sense_is_refused(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        command.main(["bench", *wrong])
    assert caught.value.code == 2
    assert wrong[0] in capsys.readouterr().err


def test_errors_keep_their_exit_code(made_bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["bench", str(made_bundle), "--shape", "heads=1"]) == 2
    assert command.main(["bench", str(made_bundle), "--form", "x"]) == 2
    assert command.main(["bench", str(made_bundle), "--seconds", "nan"]) == 2
    assert command.main(["bench", str(tmp_path)]) == 2
    assert "is no bundle" in capsys.readouterr().err
