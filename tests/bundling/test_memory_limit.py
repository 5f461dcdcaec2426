"""`max_memory`: batches grow only as far as the resident memory of the process stays within it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from limited_memory import CASES, IO_OF_ROWS, MB, Case, Process, feeds_of, shapes_and_outputs

from attnport_bundle import batches
from attnport_bundle import batches as memory
from attnport_bundle.batches import Learned, Memory
from attnport_bundle.errors import FeedError

WORDS = {
    "tokens_below_one": "tokens: got 0; expected 1 or more.",
    "held_already": "max_memory: the process holds 100.00 MB; the limit is 99.00 MB.",
    "an_item_too_long": "max_memory: a batch of 128 places needs 2.56 MB more; the process holds 102.56 MB, "
    "the limit is 105.00 MB.",
    "the_first_batch_too_large": "max_memory: with a batch of 4 places the process held 104.00 MB, "
    "100.00 MB before it; the limit is 103.00 MB.",
    "a_peak_that_passes": "max_memory: with a batch of 4 places the process held 104.00 MB, 100.00 MB before it; "
    "the limit is 103.00 MB.",
    "kept_memory_stays": "max_memory: a batch of 200 places needs 0.00 MB more; the process holds 112.00 MB, "
    "the limit is 112.00 MB.",
    "outputs_too_large": "max_memory: what all items give needs 0.26 MB more; the process holds 100.01 MB, "
    "the limit is 100.10 MB.",
}


def grown(case: Case) -> int:
    shapes, _ = shapes_and_outputs(case)
    return max(rows * size for rows, size in shapes)


@pytest.mark.parametrize("name", sorted(set(CASES) - set(WORDS)))
def test_results_are_those_without_a_limit(name: str) -> None:
    case = CASES[name]
    shapes, outputs = shapes_and_outputs(case)
    assert not isinstance(outputs, str), outputs
    given = feeds_of(case)
    assert outputs["vector"].tolist() == np.repeat((given["ids"] * given["mask"]).sum(1)[:, None], 3, 1).tolist()
    assert outputs["rows"][..., 0].tolist() == given["ids"].tolist()
    if case.limit is not None and not case.creep:
        most = max(rows * size for rows, size in shapes)
        assert case.base + case.first + case.rate * most <= case.limit


@pytest.mark.parametrize("name", WORDS)
def test_a_limit_that_is_too_low_is_refused_with_figures(name: str) -> None:
    assert shapes_and_outputs(CASES[name])[1] == WORDS[name]


def test_batches_grow_to_the_budget_where_there_is_memory_and_no_further_where_not() -> None:
    assert 900 <= grown(CASES["enough"]) <= 1024
    assert grown(CASES["little"]) == 200


def test_where_there_is_no_room_left_short_items_still_run_together() -> None:
    shapes, _ = shapes_and_outputs(CASES["little"])
    assert next(rows for rows, size in shapes if size == 7) * 7 >= batches.FULL


def test_each_batch_is_at_most_twice_as_large_as_one_before() -> None:
    shapes, _ = shapes_and_outputs(CASES["enough"])
    most = memory.START
    for rows, size in shapes:
        assert rows * size <= 2 * most
        most = max(most, rows * size)


def test_the_longest_item_is_known_to_fit_before_others_run() -> None:
    shapes, outputs = shapes_and_outputs(CASES["an_item_too_long"])
    assert isinstance(outputs, str)
    assert shapes == [(1, 64)]


def test_a_second_call_neither_tries_again_nor_forgets_what_is_kept() -> None:
    case = CASES["several_calls"]
    first = len(shapes_and_outputs(Case(case.lengths, case.limit))[0])
    shapes, _ = shapes_and_outputs(case)
    assert len(shapes) < 3 * first
    assert (1, 64) not in shapes[first:]


def test_memory_that_grows_without_the_model_counts_too(monkeypatch: pytest.MonkeyPatch) -> None:
    process = Process(Case((1,), rate=0))
    monkeypatch.setattr(memory, "used", lambda: memory.Used(100 * MB + 30 * MB * len(process.shapes), 0))
    with pytest.raises(FeedError, match=r"held 190\.00 MB, 160\.00 MB before it; the limit is 180\.00 MB"):
        batches.mapped(process.run, IO_OF_ROWS, feeds_of(Case((60,) * 90)), memory=Memory(180 * MB, Learned()))


@pytest.mark.parametrize(
    ("given", "size"),
    [(None, None), (5, 5), ("512MB", 512 * MB), ("512 MiB", 512 << 20), ("1.5GiB", 3 << 29), ("7B", 7), ("2KB", 2000)],
)
def test_a_limit_is_bytes_or_text(given: int | str | None, size: int | None) -> None:
    assert memory.limit_bytes(given) == size


@pytest.mark.parametrize("given", ["", "512", "512mb", "-1MB", "1,5GB", "MB", "1e9B", "x" * 99, 1.5, True, []])
def test_another_text_or_type_is_refused(given: Any) -> None:
    with pytest.raises(FeedError, match=r"max_memory: got .*; expected bytes, or text such as '512MB'"):
        memory.limit_bytes(given)


@pytest.mark.parametrize("given", [0, -1, "0MB", "0.1B"])
def test_a_limit_below_a_byte_is_refused(given: int | str) -> None:
    with pytest.raises(FeedError, match=r"max_memory: got .*; expected 1 byte or more"):
        memory.limit_bytes(given)


@pytest.mark.parametrize("status", [None, "Name:\tpython\n"])
def test_where_the_system_does_not_tell_it_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: str | None
) -> None:
    if status is not None:
        (tmp_path / "status").write_text(status)
    monkeypatch.setattr(memory, "STATUS", tmp_path / "status")
    process, feeds = Process(CASES["enough"]), feeds_of(CASES["enough"])
    batches.mapped(process.run, IO_OF_ROWS, feeds)
    with pytest.raises(FeedError, match=r"no VmRSS and VmHWM in /proc/self/status; choose the size of batches by"):
        batches.mapped(process.run, IO_OF_ROWS, feeds, memory=Memory(500 * MB, Learned()))


REAL = """
import json, sys
import numpy as np
from limited_memory import IO_OF_ROWS
from attnport_bundle import batches

kept = []
def run(ids, mask):
    if ids.size > sum(map(len, kept)) // 100_000:
        kept.clear()
        kept[:] = [np.ones(100_000 * ids.size, np.uint8)]
    return {"rows": np.zeros((*ids.shape, 2), np.float32), "vector": ids[:, :1].astype(np.float32).repeat(3, 1)}

ids = np.arange(1, 300 * 16 + 1).reshape(300, 16)
limit = batches.used().now + 40_000_000
out = batches.mapped(run, IO_OF_ROWS, {"ids": ids, "mask": np.ones_like(ids)}, memory=batches.Memory(limit))
peak = next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(json.dumps([peak <= limit, out["vector"][:, 0].tolist() == ids[:, 0].tolist(), sum(map(len, kept))]))
"""


@pytest.mark.skipif(not memory.STATUS.exists(), reason="only Linux tells the memory of a process there")
def test_the_process_stays_within_a_real_limit() -> None:
    folders = [str(Path(__file__).parent), str(Path(memory.__file__).parents[1])]
    command = [sys.executable, "-c", f"import sys; sys.path[:0] = {folders!r}{REAL}"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    within, same, kept = json.loads(done.stdout)
    assert within
    assert same
    assert kept >= 10_000_000
