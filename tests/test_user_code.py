"""Which line of code an error is about."""

from __future__ import annotations

from pathlib import Path

import pytest

import attnport
from attnport.user_code import place_in_trace

OURS = Path(attnport.__file__).parent
PACKAGES = "/env/lib/python3.11/site-packages"


def told(*files: str) -> str:
    """The place in a traceback through these files, the last one raised."""
    lines = (f'  File "{file}", line {at}, in run\n    y = {at}' for at, file in enumerate(files))
    return place_in_trace("\n".join(lines))


@pytest.mark.parametrize(
    ("files", "said"),
    [
        (["/app/model.py"], " (model.py, line 0: y = 0)"),
        (["/app/model.py", f"{PACKAGES}/torch/_export.py"], " (model.py, line 0: y = 0)"),
        (["/app/model.py", f"{PACKAGES}/einx/api.py"], " (api.py, line 1: y = 1, called in model.py, line 0: y = 0)"),
        # What calls `export` is not the module's code.
        (["/app/main.py", f"{OURS}/cli.py", "/app/model.py"], " (model.py, line 2: y = 2)"),
        (["/app/main.py", f"{OURS}/cli.py"], ""),
        (
            ["/app/main.py", f"{OURS}/cli.py", f"{PACKAGES}/timm/vit.py", f"{PACKAGES}/einx/api.py"],
            " (api.py, line 3: y = 3, called in vit.py, line 2: y = 2)",
        ),
        # A function of ours in the module's place, and the models that we have ourselves.
        ([f"{OURS}/cli.py", "/app/model.py", f"{OURS}/exporter/patching.py"], " (model.py, line 1: y = 1)"),
        ([f"{OURS}/cli.py", f"{OURS}/models/bert.py"], " (bert.py, line 1: y = 1)"),
    ],
)
def test_it_is_the_last_one_of_the_module(files: list[str], said: str) -> None:
    assert told(*files) == said
