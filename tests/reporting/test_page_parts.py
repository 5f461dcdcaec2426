"""Escaping, numbers, the axis of the chart and the images: the parts that the page is made of."""

from __future__ import annotations

import base64
import math
import struct
import zlib
from dataclasses import replace

import numpy as np
import page_sample as sample
import pytest

from attnport.artifacts import CaseResult, LatencyRow, ParityReport, Ran, RuntimeParity
from attnport.console.terminal import shown as as_text
from attnport.reporting import document as doc
from attnport.reporting import parity
from attnport.reporting.document import NONE, mebibytes, milliseconds, scientific, significant
from attnport.reporting.html import IMAGE_BUDGET_BYTES, INK, VEIL, html, place, png
from attnport.reporting.latency import axis
from attnport.reporting.markup import Html, el, join, name, text


def test_text_is_escaped_and_markup_is_not() -> None:
    assert el("p", "<b>", el("i", "&"), title='"') == '<p title="&quot;">&lt;b&gt;<i>&amp;</i></p>'
    assert join(["<", Html("<br>"), None], " ") == "&lt; <br>"
    assert text("a\ud800b\x07\u202e") == "a\ufffdb\ufffd\ufffd"


def test_attributes_without_value_are_left_out_or_bare() -> None:
    assert (
        el("i", hidden=True, title=None, aria_label="x", class_="c", open=False)
        == '<i hidden aria-label="x" class="c"></i>'
    )


def test_a_name_may_break_after_its_separators_only() -> None:
    assert name("a.b_c") == "<code>a.<wbr>b_<wbr>c</code>"


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0.0123456, "0.0123"), (1.0, "1.00"), (99.96, "100"), (12345.0, "12\u202f300"), (0.0, "0"), (None, "–")],
)
def test_three_significant_digits(value: float | None, shown: str) -> None:
    assert significant(value) == shown


def test_units_and_exponents() -> None:
    assert milliseconds(1_234_567) == "1.23"
    assert mebibytes(68_157_440) == "65.0"
    assert scientific(1.2345e-7) == "1.23e-7"
    assert scientific(math.inf) == "inf"


def _case(rms: float | None, bound: float, largest: float | None, max_bound: float) -> CaseResult:
    return CaseResult("c", "y", "PASS", "", 1, rms, bound, largest, max_bound, None, None, 0)


def test_the_share_of_a_bound_is_the_worse_of_both_errors() -> None:
    assert _case(1.0, 2.0, 9.0, 10.0).used == pytest.approx(0.9)
    assert _case(3.0, 2.0, 1.0, 10.0).used == pytest.approx(1.5)
    assert _case(None, 1.0, None, 1.0).used is None
    assert _case(0.0, 0.0, 1.0, 0.0).used == math.inf


def _rows_of(report: ParityReport) -> dict[str, tuple[doc.Line, ...]]:
    """The cells of the table of runtimes, by runtime."""
    table = next(block for block in parity.parity(report) if isinstance(block, doc.Table))
    return {str(getattr(row.cells[0], "text", "")): row.cells for row in table.groups[0].rows}


def test_what_a_metric_judges_has_a_sign_for_what_it_has_not_and_says_by_what() -> None:
    said = "judged by its metric: 6 of 6 layers in int8"
    judged = ParityReport("PASS", {"ort_cpu.int8": RuntimeParity("PASS", said, "int8")}, {})
    assert _rows_of(judged)["ort_cpu.int8"][2:] == (NONE, NONE, NONE, doc.Share("", None))
    assert said in as_text(judged)
    assert "judged by the metric of tune, and not by cases" in as_text(judged)
    unrun = ParityReport("NOT_RUN", {"openvino": RuntimeParity("NOT_RUN", "there is no form", "fp32")}, {})
    assert len(_rows_of(unrun)["openvino"]) == 2


@pytest.mark.parametrize(
    ("problem", "nonfinite", "shown"),
    [("NaN or Inf in 3 of 8 valid elements (3 NaN)", 3, "not finite"), ("the shape is wrong", 0, NONE)],
)
def test_the_worst_of_a_failure_without_a_finite_error_is_not_what_other_cases_have(
    problem: str, nonfinite: int, shown: str
) -> None:
    fine = CaseResult("fine", "y", "PASS", "", 8, 0.46, 1.0, 0.1, 1.0, None, None, 0)
    bad = replace(fine, case="bad", verdict="FAIL", reason=problem, rms_error=None, max_error=None, nonfinite=nonfinite)
    ran_as = Ran("cpu", "CPU", "fp32")
    rows = {
        "broken": RuntimeParity("FAIL", problem, "fp32", ran_as, (fine, bad)),
        "right": RuntimeParity("PASS", "", "fp32", ran_as, (fine,)),
    }
    cells = {name: row[4] for name, row in _rows_of(ParityReport("FAIL", rows, {})).items()}
    assert cells == {"broken": shown, "right": "0.46"}
    page = html(parity.section(ParityReport("FAIL", rows, {}), "out"))
    assert page.count('<span class="r">not finite</span>') == (shown == "not finite")
    assert page.count("at most 0.46 of the bound of fp32") == 1


def test_the_axis_holds_every_interval_and_the_line_at_one() -> None:
    rows = [LatencyRow("faster", "", 1.0, ratio=(0.2, 0.25, 0.3)), LatencyRow()]
    low, high = axis(rows)
    assert low < 0.2
    assert high > 1
    assert 0 < place(0.2, (low, high)) < place(1, (low, high)) < 100
    assert axis([])[0] < 1 < axis([])[1]


def _pixels(image: bytes) -> np.ndarray:
    """Reads the kind of PNG that the page writes, checking every chunk's sum."""
    assert image[:8] == b"\x89PNG\r\n\x1a\n"
    chunks, at = {}, 8
    while at < len(image):
        (size,) = struct.unpack(">I", image[at : at + 4])
        kind, data = image[at + 4 : at + 8], image[at + 8 : at + 8 + size]
        assert struct.unpack(">I", image[at + 8 + size : at + 12 + size])[0] == zlib.crc32(kind + data)
        chunks[kind], at = data, at + 12 + size
    width, height = struct.unpack(">II", chunks[b"IHDR"][:8])
    lines = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), np.uint8).reshape(height, 1 + 4 * width)
    assert not lines[:, 0].any()
    return lines[:, 1:].reshape(height, width, 4)


def test_an_image_holds_the_weights_to_four_thousandths() -> None:
    weights = np.random.default_rng(0).random((5, 7))
    alpha = _pixels(png(weights, np.zeros((5, 7), dtype=bool)))[..., 3].astype(float)
    assert (alpha / 255) ** 2 == pytest.approx(weights, abs=0.004)


def test_weights_that_are_no_numbers_are_clear() -> None:
    assert _pixels(png(np.array([[np.nan, -1.0, 2.0]]), np.zeros((1, 3), dtype=bool)))[0, :, 3].tolist() == [0, 0, 255]


def test_what_is_hidden_has_a_colour_of_its_own() -> None:
    image = _pixels(png(np.array([[1.0, 0.0, 0.01]]), np.array([[False, True, False]])))
    assert image[0, 1].tolist() == list(VEIL)
    assert image[0, 0].tolist() == [*INK, 255]


def drawn(*heatmaps: doc.Heatmap) -> str:
    return html([doc.Maps(heatmaps, "s")])


def test_the_images_of_a_large_model_stay_within_their_budget_and_the_rest_is_counted() -> None:
    tokens = tuple(f"t{i}" for i in range(32))
    weights = np.random.default_rng(1).random((32, 32, 32))
    hidden = np.zeros((32, 32), dtype=bool)
    made = drawn(*(doc.Heatmap(f"layer.{i}", tokens, tokens, weights, hidden) for i in range(40)))
    assert len(made) < 2 * IMAGE_BUDGET_BYTES
    shown = made.count('<th scope="row">')
    assert 1 < shown < 40
    assert f"One of {-(-40 // shown)} attentions is shown" in made
    assert "layer.<wbr>0<" in made


def test_cross_attention_has_its_own_tokens_on_each_axis() -> None:
    made = drawn(doc.Heatmap("a", ("q",), ("k1", "k2"), np.array([[[0.25, 0.75]]]), np.zeros((1, 2), dtype=bool)))
    assert "strongest: q to k2, 0.75" in made
    assert "a: rows from the top <code>q</code>; columns from the left <code>k1 k2</code>" in made


def test_an_image_in_the_page_is_the_image_of_its_head() -> None:
    item = sample.maps(layers=1, heads=2).heatmaps[0]
    made = drawn(item)
    urls = [part.split('"')[0] for part in made.split("base64,")[1:]]
    assert base64.b64decode(urls[1]) == png(item.weights_HST[1], item.hidden_ST)
