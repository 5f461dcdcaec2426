"""The page's figures of speed: who is called the fastest, what a device and a cache add, what memory means."""

from __future__ import annotations

import dataclasses
import re

import page_sample as sample
import pytest
from page_words import full, text_of
from wellformed import faults

from attnport.artifacts import LatencyReport, LatencyRow, ParityReport, Verdict

COLD, DEVICE = "load, first call and tail", "parts of a call on the device"


def _card(page: str) -> str:
    return text_of(page[page.index("<h2>Fastest</h2>") : page.index("<nav")])


def _verdicts(parity: ParityReport, **verdicts: Verdict | None) -> ParityReport:
    """The report with other verdicts; None = without that runtime."""
    runtimes = {
        key: dataclasses.replace(found, verdict=verdicts.get(key, found.verdict))
        for key, found in parity.runtimes.items()
        if verdicts.get(key, "") is not None
    }
    return dataclasses.replace(parity, runtimes=runtimes)


@pytest.mark.parametrize(
    ("verdict", "why"),
    [
        ("FAIL", "torch_compile, parity was not checked; openvino, parity failed"),
        ("NOT_RUN", "torch_compile, parity was not checked; openvino, parity was not run"),
        (None, "torch_compile, openvino, parity was not checked"),
    ],
)
def test_only_a_runtime_that_passed_parity_is_called_the_fastest_and_marked_so(
    verdict: Verdict | None, why: str
) -> None:
    page = full(parity=_verdicts(sample.parity(), openvino=verdict))
    assert "ort_cpu 1 sentence" in _card(page)
    assert "openvino 1 sentence" not in _card(page)
    assert f"Not counted: {why}" in _card(page)
    marked = re.findall(r'<tr><th scope="row"><code>([^/]*?)</code></th>(?:(?!</tr>).)* data-best', page)
    assert [name.replace("<wbr>", "") for name in marked] == ["ort_cpu"] * 3


def test_a_further_way_to_run_a_call_is_not_the_fastest_since_parity_does_not_look_at_it() -> None:
    report = sample.latency()
    shapes = {
        workload: {**rows, "ort_cpu (graph)": dataclasses.replace(rows["ort_cpu"], median_ns=1e3)}
        for workload, rows in report.shapes.items()
    }
    page = full(latency=dataclasses.replace(report, shapes=shapes))
    assert "openvino 1 sentence" in _card(page)
    assert "(graph), parity judged its calls as they are, without (graph)" in _card(page)
    failed = _verdicts(sample.parity(), ort_cpu="FAIL")
    page = full(latency=dataclasses.replace(report, shapes=shapes), parity=failed)
    assert "ort_cpu, ort_cpu (graph), parity failed" in _card(page)


def test_what_was_never_checked_is_called_fastest_with_that_said_and_marked_nowhere() -> None:
    page = full(parity=None)
    assert "openvino 1 sentence" in _card(page)
    assert "numbers not checked" in _card(page)
    assert "Not counted" not in _card(page)
    assert " data-best" not in page
    assert "numbers not checked" not in text_of(full())


def test_where_no_timed_runtime_passed_none_is_the_fastest() -> None:
    page = full(parity=ParityReport("NOT_RUN", {}, {}))
    assert "none of those that passed parity was timed" in _card(page)
    assert "1 sentence" not in _card(page)


def test_a_difference_that_was_not_shown_is_not_claimed() -> None:
    row = LatencyRow("no difference shown", "", 9e6, None, (), (0.8, 0.9, 1.1))
    rows = {"torch_eager": LatencyRow("baseline", "", 1e7), "ort_cpu": row}
    page = full(latency=LatencyReport("torch_eager", {}, {"1 sentence": rows}, {}, {}))
    head = page[: page.index("<nav")]
    assert "no difference shown" in head
    assert "<b>0.9" not in head
    assert " data-best" not in page


def test_a_runtime_that_no_workload_measured_is_listed_once() -> None:
    seen = text_of(full())
    table = seen[seen.index("Latency, throughput") :]
    assert table.count(sample.NO_GPU) == 1
    assert "on no workload tensorrt_" in table


def _headings(page: str, caption: str) -> list[str]:
    head = page[page.index(f"<caption>{caption}") :]
    return [
        re.sub("<[^>]*>", "", cell)
        for cell in re.findall(r"<th scope=\"col\"[^>]*>(.*?)</th>", head.partition("</tr>")[0])
    ]


def test_a_start_from_what_was_kept_is_two_columns_where_a_row_has_one_and_none_elsewhere() -> None:
    page = full(latency=sample.device_latency())
    assert faults(page) == []
    head = _headings(page, COLD)
    assert head[1:5] == ["load ms", "load cached ms", "first call cached ms", "p90 ms"]
    table = text_of(page[page.index(f"<caption>{COLD}") :])
    assert "openvino 900 4.40 5.50" in table
    assert "ort_cpu – – –" in table
    assert "in a further process" in text_of(page)
    plain = full()
    assert _headings(plain, COLD) == ["runtime", "p90 ms", "warm-up calls", "calls"]
    assert "in a further process" not in text_of(plain)


def test_parts_of_a_call_and_their_ratio_have_a_table_where_events_timed_them() -> None:
    page = full(latency=sample.device_latency())
    assert _headings(page, DEVICE)[1:] == ["to device ms", "on device ms", "from device ms", "ratio on device"]
    part = page[page.index(f"<caption>{DEVICE}") :]
    table = text_of(part[: part.index("</table>")])
    assert "openvino 0.0110 1.23 0.0330 0.211 [0.201, 0.222]" in table
    assert "torch_eager 0.0110 1.23 0.0330 baseline" in table
    assert "ort_cpu" not in table
    assert DEVICE not in full()


def test_parts_that_no_event_timed_have_no_column() -> None:
    row = LatencyRow("baseline", "", 1e7, parts_ns={"device": 2e6})
    page = full(latency=LatencyReport("torch_eager_cuda", {}, {"1 sentence": {"torch_eager_cuda": row}}, {}, {}))
    assert _headings(page, DEVICE) == ["runtime", "on device ms", "ratio on device"]
    assert "2.00 baseline" in text_of(page[page.index(f"<caption>{DEVICE}") :])


def test_what_a_peak_of_memory_is_stands_where_one_is_shown() -> None:
    said = "Peak memory is the most until the end of a workload, loading included"
    assert said in text_of(full())
    assert "peak memory until the end of that size, what ran before it included" in text_of(
        full(latency=sample.grid_latency())
    )
    rows = {"torch_eager": LatencyRow("baseline", "", 1e7)}
    assert said not in text_of(full(latency=LatencyReport("torch_eager", {}, {"1 sentence": rows}, {}, {})))
