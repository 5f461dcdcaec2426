"""Several threads run one model at several shapes, under ThreadSanitizer, and each gets what one alone gets."""

from __future__ import annotations

from pathlib import Path

import pytest
from cpp_builds import Build


@pytest.mark.slow
def test_threads_share_a_model(cpp_build_tsan: Build, made_bundle: Path) -> None:
    done = cpp_build_tsan.run("threads", made_bundle, "4")
    assert (done.returncode, done.stdout) == (0, "4 threads, 20 calls each, 0 wrong\n"), done.stdout + done.stderr
