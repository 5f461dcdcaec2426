"""Parameters of which `make test` takes some, and `make test-all` every one."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def representatives(names: Iterable[str], quick: Collection[str], **marks: Any) -> list[Any]:
    """The names for parametrize: those that are not in `quick` are slow. `marks` has a further mark of a name."""
    names = list(names)
    assert quick, "not one is quick"
    assert set(quick) <= set(names), f"no parameters: {set(quick) - set(names)}"
    further = {name: [marks[name]] if name in marks else [] for name in names}
    return [
        pytest.param(name, marks=further[name] if name in quick else [*further[name], pytest.mark.slow])
        for name in names
    ]
