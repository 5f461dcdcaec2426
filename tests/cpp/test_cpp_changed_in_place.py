"""Files that are changed in place under an open model of the C++ reader: its answers stay."""

from __future__ import annotations

from pathlib import Path

import bundle_forms
import pytest
from cpp_builds import Build


@pytest.mark.parametrize("damage", ["cut", "overwritten"])
@pytest.mark.parametrize("form", ["ort_cpu", "openvino"])
def test_an_open_model_does_not_see_it(cpp_build: Build, app: Path, form: str, damage: str) -> None:
    if form == "openvino":
        requires = bundle_forms.manifest(app)["forms"]["ort_cpu"]["requires"] | {"runtime": "2024.0"}
        bundle_forms.reform(app, {form: {"runtime": "openvino", "provider": None, "requires": requires}})
    done = cpp_build.run("changed_in_place", app, damage)
    assert (done.returncode, done.stdout) == (0, f"{form}: same\n"), done.stderr


def test_weights_that_cannot_be_read_are_said(cpp_build: Build, app: Path) -> None:
    (app / "weights.bin").unlink()
    done = cpp_build.run("changed_in_place", app, "unchecked")
    assert (done.returncode, done.stderr) == (6, f"{app / 'weights.bin'}: cannot be read: No such file or directory.\n")
