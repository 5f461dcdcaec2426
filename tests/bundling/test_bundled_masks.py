"""Bundles of models whose mask inputs hold lengths, ids or marks: made, checked and run as a stranger would."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from bundle_folders import program, python

from attnport.verbs.bundle import bundle
from attnport.verbs.export import export
from attnport.verbs.fuse import fuse
from attnport_bundle import load
from attnport_bundle.format.contract import MaskSpec
from attnport_bundle.format.manifest import read

EXAMPLE = Path(__file__).parents[2] / "examples" / "masked_attention.py"
X = "x=float32[batch,seq,64]"
CASES = {
    "padding_lengths": (
        "int64[batch]:padding",
        MaskSpec(("padding",), "mask", "keep", "upper_left", 0, "lengths", "seq"),
    ),
    "prefix": ("int64[batch]:prefix", MaskSpec(("prefix",), "mask", "keep", "upper_left", 0, "lengths", "seq")),
    "documents": ("int64[batch,seq]:documents", MaskSpec(("documents",), "mask", "keep", "upper_left", 0, "ids")),
    "local_global": (
        "bool[batch,seq]:global:window=3",
        MaskSpec(("global", "window"), "mask", "keep", "upper_left", 3, "marks"),
    ),
}

GOLDENS = {
    "padding_lengths": "right_padding",
    "prefix": "prefixes_of_several_lengths",
    "documents": "documents_of_several_lengths",
    "local_global": "random_global_tokens",
}


def bundled(kind: str, folder: Path) -> Path:
    dims = ("batch=1:2:4", "seq=1:6:24")
    export(f"{EXAMPLE}:self_{kind}", folder / "out", inputs=(X, f"mask={CASES[kind][0]}"), dims=dims)
    fuse(folder / "out", targets=["ort_cpu"])
    return bundle(folder / "out", folder / "app", unverified=True)


def run(folder: Path, *arguments: str) -> str:
    done = python(folder, *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def check(kind: str, folder: Path) -> Path:
    app = bundled(kind, folder)
    assert read(app).io.masks == (CASES[kind][1],)
    assert f"ort_cpu {GOLDENS[kind]} output" in run(app / "python", "-m", "attnport_bundle", "selftest")
    assert run(folder, "-c", program((app / "README.md").read_text())) == "output (2, 6, 64)\n"
    return app


def test_a_model_that_takes_lengths_runs_from_its_bundle(tmp_path: Path) -> None:
    app = check("padding_lengths", tmp_path)
    x = np.random.default_rng(0).standard_normal((2, 5, 64)).astype(np.float32)
    with load(app) as model:
        padded = model.run(x=x, **model.masks([2, 5]))["output"]
        alone = model.run(x=x[:1, :2], **model.masks([2]))["output"]
        whole = model.run(x=x, **model.masks([5, 5]))["output"]
    np.testing.assert_allclose(padded[0, :2], alone[0], rtol=0, atol=1e-5)
    assert np.abs(padded[0, :2] - whole[0, :2]).max() > 1e-2  # the lengths do something


@pytest.mark.slow
@pytest.mark.parametrize("kind", sorted(set(CASES) - {"padding_lengths"}))
def test_models_that_take_prefixes_ids_and_marks_run_from_their_bundles(kind: str, tmp_path: Path) -> None:
    check(kind, tmp_path)
