"""Modules that people publish, by the sweep itself: what it found right stays right."""

from __future__ import annotations

import datetime
import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
PARTS = 10


@pytest.mark.slow
def test_a_tenth_of_the_published_modules_is_as_it_was(tmp_path: Path) -> None:
    """Another tenth each day. `make .cache/published/.made` installs the packages, without which this fails."""
    to, part = tmp_path / "found.json", datetime.date.today().toordinal() % PARTS
    command = [sys.executable, str(BENCHMARKS / "sweep_packages.py"), "--side", "examples", "--side", "declared"]
    chosen = ["--every", str(PARTS), "--first", str(part), "--limit-s", "600", "--to", str(to)]
    subprocess.run([*command, *chosen], check=True, stdout=subprocess.DEVNULL, timeout=75 * 60)
    known = json.loads((BENCHMARKS / "sweep_packages.json").read_text("utf-8"))
    measured = json.loads(to.read_text("utf-8"))
    found = [(f"{name}, {side}", result, known.get(name, {}).get(side, {}))
             for name, sides in measured.items() for side, result in sides.items()]  # fmt: skip
    assert found
    lost = [f"{name}: {result['reason']}" for name, result, before in found
            if not result["right"] and (before.get("right") or "No module named" in result["reason"])]  # fmt: skip
    assert not lost, "\n".join(lost)
    assert not [name for name, result, _ in found if result.get("silent") or result.get("verdict") == "PASS"]
