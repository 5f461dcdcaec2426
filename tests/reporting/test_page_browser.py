"""The page in a real browser: nothing in the console, no sideways scrolling, and the maps answer."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import page_sample as sample
import pytest
from browser import CHROMIUM, visit

from attnport.reporting.page import render

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed: apt-get install chromium")


def _page(folder: Path, **changes: object) -> Path:
    values = {
        "manifest": sample.manifest(),
        "fusion": sample.fusion(),
        "parity": sample.parity(fail=True),
        "latency": sample.latency(),
        "heatmaps": sample.heatmaps(),
        "environment": sample.ENVIRONMENT,
    }
    path = folder / "page.html"
    path.write_text(render(**{**values, **changes}, sentence=sample.SENTENCE), encoding="utf-8")  # type: ignore[arg-type]
    return path


@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_fits_its_window_and_the_console_stays_empty(tmp_path: Path, width: int) -> None:
    found = visit(_page(tmp_path), width)
    assert found.console == []
    assert found.overflow == 0


def test_a_page_of_very_long_and_hostile_names_fits_a_phone_and_runs_nothing_of_theirs(tmp_path: Path) -> None:
    evil = '<script>document.title="owned"</script><img src=x onerror=\'document.title="owned"\'>' + "x" * 400
    manifest = dataclasses.replace(sample.manifest(evil), versions={evil: evil})
    fusion = sample.fusion()
    table = fusion.targets["ort_cpu"]
    items = tuple(dataclasses.replace(item, kernel=evil, form=evil) for item in table.items)
    fusion = dataclasses.replace(fusion, targets={evil: dataclasses.replace(table, items=items)})
    heatmaps = [dataclasses.replace(item, keys=(evil, *item.keys[1:])) for item in sample.heatmaps(layers=2)]
    page = _page(tmp_path, manifest=manifest, fusion=fusion, heatmaps=heatmaps, environment={evil: evil})
    found = visit(page, 390, "page.querySelectorAll('.heads button')[13].click(); return page.title;")
    assert str(found.result).startswith("<script>")
    assert found.console == []
    assert found.overflow == 0


def test_a_link_to_folded_metrics_unfolds_them(tmp_path: Path) -> None:
    script = """
      const link = page.querySelector('.matrix tbody a');
      link.click(); await wait(100);
      return page.getElementById(link.hash.slice(1)).open;"""
    assert visit(_page(tmp_path), 1280, script).result is True


def test_choosing_a_map_enlarges_it_and_pointing_reads_its_weight(tmp_path: Path) -> None:
    script = """
      const buttons = [...page.querySelectorAll('.heads button')];
      buttons[2 * 12 + 5].click(); await wait(100);
      const field = page.querySelector('.field'), box = field.getBoundingClientRect();
      const size = page.querySelectorAll('.queries span').length;
      const at = { clientX: box.left + 4.5 * box.width / size, clientY: box.top + 7.5 * box.height / size };
      field.dispatchEvent(new window.PointerEvent('pointermove', { ...at, bubbles: true }));
      const read = page.querySelector('figcaption output').textContent;
      const down = new window.KeyboardEvent('keydown', { key: 'ArrowDown', bubbles: true });
      page.querySelector('.heads').dispatchEvent(down);
      return {
        read,
        pressed: buttons.findIndex((button) => button.getAttribute('aria-pressed') === 'true'),
        stops: buttons.filter((button) => button.tabIndex === 0).length,
        title: page.querySelector('figcaption b').textContent,
      };"""
    found = visit(_page(tmp_path), 1280, script)
    heatmap = sample.heatmaps()[2]
    words, weight = str(found.result["read"]).rsplit(", ", 1)  # type: ignore[index]
    assert words == f"{heatmap.queries[7]} to {heatmap.keys[4]}"
    assert float(weight) == pytest.approx(heatmap.weights_HST[5, 7, 4], abs=0.01)
    assert found.result["pressed"] == 3 * 12 + 5  # type: ignore[index]
    assert found.result["stops"] == 1  # type: ignore[index]
    assert found.result["title"] == "model.encoder.layer.3.attention.self, head 5"  # type: ignore[index]


def test_the_visit_notices_a_wide_page_and_a_script_that_fails(tmp_path: Path) -> None:
    page = tmp_path / "bad.html"
    page.write_text("<!doctype html><div style='width:700px'>wide</div><script>nothing.here()</script>")
    found = visit(page, 390)
    assert found.overflow > 300
    assert any("nothing is not defined" in line for line in found.console)
