"""One table of a document, rendered three times: the same words in HTML, Markdown and a terminal."""

from __future__ import annotations

import re

import pytest

from attnport.console.terminal import render
from attnport.reporting import document as doc
from attnport.reporting import html, markdown

TABLE = doc.Table(
    "Some [numbers] of <a>",
    (*doc.columns("Runtime", "Verdict"), *doc.numbers("Median ms")),
    doc.rows([(doc.Name("a.b_c"), doc.Verdict("PASS"), "1.25"), (doc.Name("d|e"), doc.Verdict("FAIL"), "[2]")]),
)
WORDS = ["Runtime", "Verdict", "Median ms", "a.b_c", "PASS", "1.25", "d|e", "FAIL", "[2]"]


def test_html_has_every_word_and_aligns_numbers() -> None:
    made = html.html([TABLE])
    cells = re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", made)
    assert [re.sub(r"<[^>]*>", "", cell) for cell in cells] == WORDS
    assert '<td class="n">1.25</td>' in made
    assert "<caption>Some [numbers] of &lt;a&gt;</caption>" in made


def test_markdown_has_every_word_and_aligns_numbers() -> None:
    lines = markdown.table(TABLE).splitlines()
    assert lines == [
        "| Runtime | Verdict | Median ms |",
        "| :-- | :-- | --: |",
        "| `a.b_c` | PASS | 1.25 |",
        r"| d\|e | FAIL | \[2\] |",
    ]


def test_a_terminal_has_every_word_aligns_numbers_and_keeps_colour_within_the_word() -> None:
    lines = render([TABLE]).strip().splitlines()
    assert lines[0] == "Some [numbers] of <a>"
    shown = [part for line in lines for part in re.split(r"\s{2,}", line.strip()) if part and "─" not in part]
    assert shown[1:] == WORDS
    assert lines[-1].endswith("  [2]")
    assert len({len(line) for line in lines[-2:]}) == 1
    assert "\x1b[32mPASS\x1b[0m" in render([TABLE], colour=True)


def test_a_reason_takes_the_place_of_the_cells_that_are_not_there() -> None:
    row = doc.Row((doc.Name("x"), doc.Verdict("NOT_RUN")), "no GPU")
    columns = (*doc.columns("Runtime", "Verdict"), *doc.numbers("ms", "ratio"))
    table = doc.Table("t", columns, (doc.Group((row,), "one sentence"),), "Workload")
    assert '<td colspan="2"><span class="why">no GPU</span></td>' in html.html([table])
    assert markdown.table(table).splitlines()[2] == r"| one sentence | `x` | NOT\_RUN | – | no GPU |"


@pytest.mark.parametrize(("count", "shown"), [(1, "`l0`"), (2, "`l0`, `l1`"), (5, "5: `l0` to `l4`")])
def test_rows_that_are_alike_are_one_and_no_others(count: int, shown: str) -> None:
    cells = [(doc.Name(f"l{place}"), "fused") for place in range(count)] + [(doc.Name("last"), "not fused")]
    table = doc.Table("t", doc.columns("Attention", "state"), doc.rows(doc.merged(cells)))
    assert markdown.table(table).splitlines()[2:] == [f"| {shown} | fused |", "| `last` | not fused |"]
    assert html.html([table]).count('scope="row"') == 2


def test_what_one_form_alone_shows_is_left_out_of_the_other() -> None:
    both = [doc.Only("page", (doc.Text("wide"),)), doc.Only("markdown", (doc.Text("narrow"),))]
    assert html.html(both) == "<p>wide</p>"
    assert list(markdown.paragraphs(both)) == ["narrow"]


def test_a_terminal_refuses_what_it_cannot_show_and_says_a_shared_reason_once() -> None:
    with pytest.raises(TypeError, match="A terminal cannot show Maps"):
        render([doc.Maps((), "", "")])
    assert render([doc.notes({"a": "same", "b": "same"})]) == "  a, b: same\n"


@pytest.mark.parametrize(("places", "charts"), [((1, 8), 0), ((1, 8, 32), 1)])
def test_two_sizes_are_numbers_and_no_chart(places: tuple[int, ...], charts: int) -> None:
    series = doc.Series("seq 8", "batch", tuple(map(str, places)), {"ort_cpu": tuple(map(float, places))}, places)
    page = html.html([doc.Lines((doc.LineChart(series, "Median ms", str),))])
    assert page.count("<figure") == charts
    assert page.count("<table") == 1
    assert ("The numbers" in page) == bool(charts)


def test_a_heading_is_broken_between_words_alone() -> None:
    columns = doc.numbers(*(f"{count} sentences ms" for count in range(6)))
    shown = render([doc.Table("t", columns, doc.rows([("1",) * 6]))])
    assert shown.count("sentences") == 6
