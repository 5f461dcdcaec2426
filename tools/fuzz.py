#!/usr/bin/env python3
"""Fuzzes the bundle's reader: `make fuzz`. What reaches new code is kept in tests/fuzz/corpus; `make test` replays it.

A find ends the run with exit 1; its input lies in .cache/fuzz, to be moved into the corpus with the fix.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CORPUS = ROOT / "tests" / "fuzz" / "corpus"
WORK = ROOT / ".cache" / "fuzz"
TARGETS = ("manifest", "external", "goldens")
SECONDS = 60
MAX_FILES = 100
_OPTIONS = ("-max_len=8192", "-timeout=2", "-verbosity=0", "-print_final_stats=1")


def main() -> int:
    """Fuzzes each target for its share of the time; the exit code of the first that finds something."""
    for target in TARGETS:
        found = WORK / target
        shutil.rmtree(found, ignore_errors=True)
        found.mkdir(parents=True)
        print(f"fuzzing {target} for {SECONDS // len(TARGETS)} s", flush=True)
        total = f"-max_total_time={SECONDS // len(TARGETS)}"
        code = _run(target, *_OPTIONS, total, f"-artifact_prefix={WORK / target}-", str(found), str(CORPUS / target))
        if code:
            print(f"{target}: a find; see {WORK}/{target}-*", file=sys.stderr)
            return code
        _keep(target, found)
    return 0


def _keep(target: str, found: Path) -> None:
    """Takes into the corpus what reaches code that the corpus does not."""
    corpus, merged = CORPUS / target, WORK / f"{target}-merged"
    shutil.rmtree(merged, ignore_errors=True)
    shutil.copytree(corpus, merged)
    _run(target, "-merge=1", "-verbosity=0", str(merged), str(found))
    known = {path.name for path in corpus.iterdir()}
    new = sorted((path for path in merged.iterdir() if path.name not in known), key=lambda path: path.stat().st_size)
    kept = new[: max(0, MAX_FILES - len(known))]
    for path in kept:
        shutil.copy(path, corpus)
    print(f"{target}: {len(known)} files in the corpus, {len(kept)} added", flush=True)


def _run(target: str, *options: str) -> int:
    command = [sys.executable, "tests/fuzz/runner.py", target, *options]
    with tempfile.TemporaryDirectory() as scratch:  # libFuzzer ends without Python's own clearing up
        return subprocess.run(command, cwd=ROOT, check=False, env={**os.environ, "TMPDIR": scratch}).returncode


if __name__ == "__main__":
    sys.exit(main())
