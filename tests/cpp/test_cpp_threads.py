"""Several threads use a bundle at once, under ThreadSanitizer, and each gets what one alone gets."""

from __future__ import annotations

from pathlib import Path

import pytest
from bundle_forms import manifest, reform
from cpp_builds import Build


@pytest.fixture(params=["onnxruntime", "openvino"])
def threaded_app(app: Path, request: pytest.FixtureRequest) -> Path:
    """A bundle of one form of that runtime, which nobody judged: whoever opens it first proves it."""
    changes = {"proof": "graph-only"}
    if request.param == "openvino":
        requires = manifest(app)["forms"]["ort_cpu"]["requires"] | {"runtime": "2024.0"}
        changes |= {"runtime": "openvino", "provider": None, "requires": requires}
    reform(app, {request.param: changes})
    return app


@pytest.mark.slow
@pytest.mark.parametrize(("how", "told"), [("run", "20 calls"), ("open", "3 openings")])
def test_threads_use_a_bundle_at_once(cpp_tsan: Build, threaded_app: Path, how: str, told: str) -> None:
    done = cpp_tsan.run("threads", how, threaded_app)
    assert (done.returncode, done.stdout) == (0, f"4 threads, {told} each, 0 wrong\n"), done.stdout + done.stderr


@pytest.mark.slow
def test_a_race_beside_the_runtime_is_found(cpp_tsan: Build, threaded_app: Path) -> None:
    with pytest.raises(AssertionError, match=r"ThreadSanitizer: data race .*threads\.cpp"):
        cpp_tsan.run("threads", "race", threaded_app)
