"""Changes to other packages are undone, whatever happens while they hold, and in threads too."""

from __future__ import annotations

import sys
import threading
import types
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import attnport
from attnport.exporter.decomposing import node_by_node
from attnport.exporter.loops import all_experts, scanned
from attnport.exporter.patching import exact_rules, located, obstacles, quiet
from attnport.exporter.translations.recurrent import kept_whole
from attnport.patches import Patch, patched

TABLES = (exact_rules, node_by_node, located, scanned, all_experts, kept_whole, obstacles)


def fail(place: Any, error: type[BaseException]) -> None:
    with patched(lambda: [Patch(place, "kept", 2), Patch(place, "new", 3), Patch(place, "kept", 4)]):
        assert (place.kept, place.new) == (4, 3)
        raise error


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_what_was_there_is_there_again_after_an_error(error: type[BaseException]) -> None:
    place = types.SimpleNamespace(kept=1)
    with pytest.raises(error):
        fail(place, error)
    assert vars(place) == {"kept": 1}


def state() -> list[object]:
    patches = [patch for table in TABLES for patch in table()]
    values = [vars(patch.owner).get(patch.name) for patch in patches]
    return [*values, sys.stdout, ("ignore", None, Warning, None, 0) in warnings.filters, len(patches)]


def test_each_table_changes_something_and_no_more_afterwards() -> None:
    before = state()
    for table in TABLES:
        found = [(owner, name, vars(owner).get(name)) for owner, name, _ in table()]
        with patched(table), quiet():
            assert all(vars(owner)[name] is not value for owner, name, value in found)
    assert state() == before


class Attends(nn.Module):
    """One attention."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.MultiheadAttention(16, 2, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.a(x, x, x, need_weights=False)[0]
        return result


def test_exports_in_threads_are_right_and_leave_nothing_changed(tmp_path: Path) -> None:
    before, errors = state(), list[str]()

    def export(number: int) -> None:
        try:
            found = attnport.export(Attends(), tmp_path / str(number), args=(torch.randn(2, 5, 16),))
            assert len(found.manifest.attentions) == 1
        except BaseException as err:
            errors.append(f"{type(err).__name__}: {err}")

    threads = [threading.Thread(target=export, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert state() == before
