"""Runs the programs of this folder in the environments of those who read the layouts."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).parent


def ran(command: Sequence[object], given: object = None) -> str:
    """What a program prints that gets a value as JSON; it sees no packages but its own, and no network."""
    values = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        list(map(str, command)),
        input=json.dumps(given),
        env={**values, "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout
