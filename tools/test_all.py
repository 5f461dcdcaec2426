"""Runs every test, one file at a time, slow ones first, and continues where an earlier run stopped.

A file that passed is not run again as long as the working tree is unchanged: its result is kept under
`.cache/test-all`, in a folder named by the state of the tree. A file that failed, or exceeded the limit, is run again.
Each file has a process of its own, so that a crash of a runtime only loses the results of one file.

    python tools/test_all.py [--fresh] [--jobs 2] [--limit-minutes 80] [TEST_FILE ...] [-- PYTEST_ARGUMENT ...]
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import queue
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIMIT_MINUTES = 80.0
ELSEWHERE = ("tests/serving/", "tests/layouts/")
"""These need other environments, which `make serve-test` and `make layouts-test` set up."""


@dataclass(frozen=True)
class Counts:
    """The numbers of tests that passed, failed (with errors) and were skipped, and the seconds that they took."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0
    seconds: float = 0.0

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            self.passed + other.passed,
            self.failed + other.failed,
            self.skipped + other.skipped,
            self.seconds + other.seconds,
        )


def tree_state(root: Path) -> str:
    """Sixteen hex digits over every file that git tracks or does not ignore: name, mode and content."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=root,
        check=True,
        capture_output=True,
    ).stdout
    state = hashlib.sha256()
    for name in sorted(filter(None, set(listed.split(b"\0")))):
        path = root / name.decode()
        if path.is_file():  # a deleted file is listed until its removal is committed
            executable = b"x" if path.stat().st_mode & 0o100 else b"-"
            state.update(name + b"\0" + executable + hashlib.sha256(path.read_bytes()).digest())
    return state.hexdigest()[:16]


def test_files(root: Path) -> list[str]:
    """Returns the test files below `tests` but those of `ELSEWHERE`, by name; files with a slow test come first.

    If a long file starts last, one processor waits for the other: in name order the run took a fifth longer.
    """
    files = sorted(path.relative_to(root).as_posix() for path in (root / "tests").rglob("test_*.py"))
    files = [file for file in files if not file.startswith(ELSEWHERE)]
    return sorted(files, key=lambda file: not _has_slow((root / file).read_text(encoding="utf-8")))


def _has_slow(text: str) -> bool:
    return "pytest.mark.slow" in text or "representatives(" in text


def count(report: Path) -> Counts:
    """Counts the tests in a JUnit XML report. A missing or incomplete report (the process died) is one failure."""
    try:
        suites = list(ElementTree.parse(report).getroot().iter("testsuite"))
    except (OSError, ElementTree.ParseError):
        return Counts(failed=1)
    total = Counts()
    for suite in suites:
        tests, skipped = int(suite.get("tests", 0)), int(suite.get("skipped", 0))
        failed = int(suite.get("failures", 0)) + int(suite.get("errors", 0))
        total += Counts(tests - failed - skipped, failed, skipped, float(suite.get("time", 0)))
    return total


def run_file(root: Path, file: str, limit_s: float, arguments: Sequence[str], place: str = "0/1") -> tuple[Counts, str]:
    """Runs pytest on one file, as run number/runs of those that run at once. Returns the counts and what it printed."""
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch) / "report.xml"
        began = time.monotonic()
        command = [sys.executable, "-m", "pytest", "-q", f"--junitxml={report}", *arguments, file]
        try:
            done = subprocess.run(
                command, cwd=root, timeout=limit_s, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, text=True, errors="replace",
                env={**os.environ, "ATTNPORT_TEST_RUN": place},  # tests/conftest.py gives each its own processors
            )  # fmt: skip
        except subprocess.TimeoutExpired as err:
            printed = err.stdout.decode(errors="replace") if isinstance(err.stdout, bytes) else err.stdout or ""
            output = f"{printed}\n{file}: stopped after {limit_s / 60:.0f} minutes; split it.\n"
            return Counts(failed=1, seconds=time.monotonic() - began), output
        counts = count(report)
        # 5: no test was selected. Any other bad exit without a counted failure (a crash after the report) is a failure.
        if done.returncode not in (0, 5) and not counts.failed:
            counts += Counts(failed=1)
        return counts, done.stdout


def run(
    root: Path, files: Sequence[str], limit_s: float, fresh: bool, arguments: Sequence[str], jobs: int = 1
) -> Counts:
    """Runs the files that have not passed in this state of the tree, `jobs` at a time. Returns the counts of all."""
    done = root / ".cache" / "test-all" / hashlib.sha256((tree_state(root) + repr(arguments)).encode()).hexdigest()[:16]
    done.mkdir(parents=True, exist_ok=True)
    places: queue.SimpleQueue[str] = queue.SimpleQueue()
    for place in range(jobs):
        places.put(f"{place}/{jobs}")

    def run_one(numbered: tuple[int, str]) -> Counts:
        number, file = numbered
        stamp = done / (file.replace("/", "__") + ".json")
        if stamp.exists() and not fresh:
            counts, how, output = Counts(**json.loads(stamp.read_text())), "done before", ""
        else:
            print(f"[{number}/{len(files)}] {file}", flush=True)
            place = places.get()
            (counts, output), how = run_file(root, file, limit_s, arguments, place), "done"
            places.put(place)
            if not counts.failed:
                draft = stamp.with_suffix(".new")
                draft.write_text(json.dumps(asdict(counts)))
                draft.replace(stamp)
        print(  # in one call, so that the output of parallel files does not mix
            f"{output}[{number}/{len(files)}] {file}: {how}, {counts.passed} passed, {counts.failed} failed, "
            f"{counts.skipped} skipped, {counts.seconds:.0f} s",
            flush=True,
        )
        return counts

    with ThreadPoolExecutor(jobs) as pool:
        return sum(pool.map(run_one, enumerate(files, 1)), Counts())


def main() -> int:
    """The command line; exit 1 if a test failed or none ran."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", help="test files; default: all")
    parser.add_argument("--fresh", action="store_true", help="also run files that have passed")
    parser.add_argument("--jobs", type=int, default=1, help="files at a time")
    parser.add_argument("--limit-minutes", type=float, default=LIMIT_MINUTES, help="longest time for one file")
    own, arguments = sys.argv[1:], []
    if "--" in own:
        at = own.index("--")
        own, arguments = own[:at], own[at + 1 :]
    options = parser.parse_args(own)
    files = options.files or test_files(ROOT)
    total = run(ROOT, files, options.limit_minutes * 60, options.fresh, arguments, options.jobs)
    print(
        f"test-all: {total.passed} passed, {total.failed} failed, {total.skipped} skipped "
        f"in {len(files)} files, {total.seconds:.0f} s"
    )
    return 1 if total.failed or not total.passed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
