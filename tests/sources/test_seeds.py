"""Factories that set no seed, and those whose weights no seed can hold."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from loaded import load
from representatives import representatives

from attnport.errors import SpecError
from attnport.sources import seeds

MODULE = """
import os, random
import numpy as np
import torch

class Net(torch.nn.Module):
    def __init__(self, start):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.register_buffer("start", torch.tensor(float(start)))

    def forward(self, x):
        return self.linear(x) + self.start

def make():
    return Net(START)

MADE = Net(START)
"""
X = ["x=float32[batch,4]"]


def written(folder: Path, start: str) -> str:
    path = folder / "net.py"
    path.write_text(MODULE.replace("START", start))
    return str(path)


@pytest.mark.parametrize("name", ["make", "MADE"])
@pytest.mark.parametrize("start", representatives(["0", "random.random()", "np.random.rand()"], ["np.random.rand()"]))
def test_a_factory_without_a_seed_makes_the_same_weights_in_every_process(
    name: str, start: str, tmp_path: Path
) -> None:
    text = f"{written(tmp_path, start)}:{name}"
    here = load(text, inputs=X)
    assert torch.equal(here.make().linear.weight, here.make().linear.weight)
    code = "from attnport.artifacts import Source; from attnport.sources import load; "
    code += f"print(load(Source({text!r}, {tuple(X)!r})).source.weights_digest)"
    there = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert there.stdout.strip() == here.source.weights_digest


def test_the_callers_random_numbers_go_on(tmp_path: Path) -> None:
    text = f"{written(tmp_path, 'random.random()')}:make"

    def drawn() -> tuple[float, ...]:
        return random.random(), float(np.random.rand()), float(torch.rand(()))

    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(7)
    expected = drawn()
    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(7)
    load(text, inputs=X)
    assert drawn() == expected


@pytest.mark.parametrize("small", [seeds.SMALL, 0])
def test_weights_that_no_seed_holds_are_refused(small: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seeds, "SMALL", small)
    text = f"{written(tmp_path, 'int.from_bytes(os.urandom(2))')}:make"

    def twice() -> None:
        make = load(text, inputs=X).make
        assert not small, "a small module is made a second time at once"
        make()
        make()

    with pytest.raises(SpecError, match="makes other weights each time") as caught:
        twice()
    assert "attnport.export" in (caught.value.hint or "")
