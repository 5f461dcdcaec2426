"""Runs every test, files with slow ones first, and continues where an earlier run stopped.

A file that passed is not run again as long as the working tree is unchanged: its result is kept under
`.cache/test-all`, in a folder named by the state of the tree. A file that failed, or exceeded the limit, is run again.
A few files of a folder share a process, unless they are named. A file that fails there is run again by itself, and so
is each if the process dies: a crash of a runtime only loses the results of one file.

    python tools/test_all.py [--fresh] [--jobs 2] [--limit-minutes 80] [TEST_FILE ...] [-- PYTEST_ARGUMENT ...]
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
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
from dataclasses import asdict, dataclass, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIMIT_MINUTES = 80.0
TOGETHER, SLOW_TOGETHER = 15, 4
"""Files that share a process. Its start, and what their fixtures share, is half of the time of a small file."""
SERVING = "tests/serving/"
"""Its files run in `.venv-serve`, each in a process: kserve's messages and those of its client cannot be in one."""


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


def test_groups(root: Path) -> list[list[str]]:
    """Returns the test files below `tests` in groups that share a process.

    Files with a slow test come first: if a long file started last, one processor would wait for the other.
    """
    files = sorted(path.relative_to(root).as_posix() for path in (root / "tests").rglob("test_*.py"))
    groups = [[file] for file in files if file.startswith(SERVING)]
    files = [file for file in files if not file.startswith(SERVING)]
    for slow, most in ((True, SLOW_TOGETHER), (False, TOGETHER)):
        chosen = [file for file in files if _has_slow((root / file).read_text(encoding="utf-8")) == slow]
        for _, folder in itertools.groupby(chosen, lambda file: file.rpartition("/")[0]):
            within = list(folder)
            groups += [within[at : at + most] for at in range(0, len(within), most)]
    return groups


def _has_slow(text: str) -> bool:
    return any(sign in text for sign in ("pytest.mark.slow", "representatives(", "crossed("))


def count(report: Path, file: str = "") -> Counts:
    """Counts the tests in a JUnit XML report, or those of one file in it.

    A missing or incomplete report (the process died) is one failure.
    """
    try:
        cases = list(ElementTree.parse(report).getroot().iter("testcase"))
    except (OSError, ElementTree.ParseError):
        return Counts(failed=1)
    total, module = Counts(), file.removesuffix(".py").replace("/", ".")
    for case in cases:
        if file and not f"{case.get('classname')}.".startswith(f"{module}."):
            continue
        found = {child.tag for child in case}
        failed = bool(found & {"failure", "error"})
        skipped = "skipped" in found and not failed
        total += Counts(not (failed or skipped), failed, skipped, float(case.get("time", 0)))
    return total


def run_files(
    root: Path, files: Sequence[str], limit_s: float, arguments: Sequence[str], place: str = "0/1"
) -> tuple[dict[str, Counts], str]:
    """Runs pytest on files in one process, as run number/runs of those that run at once.

    Returns the counts of each, and what pytest printed. Of several files, those that fail are run again by themselves,
    and all if the process dies.
    """
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch) / "report.xml"
        began = time.monotonic()
        python = root / ".venv-serve" / "bin" / "python" if files[0].startswith(SERVING) else sys.executable
        command = [str(python), "-m", "pytest", "-q", f"--junitxml={report}", *arguments, *files]
        try:
            done = subprocess.run(
                command, cwd=root, timeout=limit_s, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, text=True, errors="replace",
                env={**os.environ, "ATTNPORT_TEST_RUN": place},  # tests/conftest.py gives each its own processors
            )  # fmt: skip
            output, total = done.stdout, count(report)
            # 5: no test was selected. Any other bad exit without a counted failure (a crash after the report) is one.
            if done.returncode not in (0, 5) and not total.failed:
                total += Counts(failed=1)
        except subprocess.TimeoutExpired as err:
            printed = err.stdout.decode(errors="replace") if isinstance(err.stdout, bytes) else err.stdout or ""
            output = f"{printed}\n{' '.join(files)}: stopped after {limit_s / 60:.0f} minutes; split it.\n"
            total = Counts(failed=1, seconds=time.monotonic() - began)
        except FileNotFoundError as err:  # its environment could not be made
            output, total = f"{' '.join(files)}: {err}\n", Counts(failed=1)
        if len(files) == 1:
            return {files[0]: total}, output
        counts = {file: count(report, file) for file in files}
    # Where tests failed and each is in a file's counts, the other files are good.
    whole = replace(sum(counts.values(), Counts()), seconds=total.seconds) == total
    for file in [file for file in files if counts[file].failed or not whole]:
        found, printed = run_files(root, [file], limit_s, arguments, place)
        counts, output = counts | found, output + printed
    return counts, output


def run(
    root: Path,
    groups: Sequence[Sequence[str]],
    limit_s: float,
    fresh: bool,
    arguments: Sequence[str],
    jobs: int = 1,
) -> Counts:
    """Runs the files that have not passed in this state of the tree, `jobs` groups at a time; each has a process.

    Returns the counts of all.
    """
    done = root / ".cache" / "test-all" / hashlib.sha256((tree_state(root) + repr(arguments)).encode()).hexdigest()[:16]
    done.mkdir(parents=True, exist_ok=True)
    every = [file for group in groups for file in group]
    numbers = {file: f"[{number}/{len(every)}]" for number, file in enumerate(every, 1)}
    places: queue.SimpleQueue[str] = queue.SimpleQueue()
    for place in range(jobs):
        places.put(f"{place}/{jobs}")

    def run_group(files: Sequence[str]) -> Counts:
        stamps = {file: done / (file.replace("/", "__") + ".json") for file in files}
        counts = {
            file: Counts(**json.loads(stamp.read_text()))
            for file, stamp in stamps.items()
            if stamp.exists() and not fresh
        }
        lines = [(file, "done before") for file in counts]
        output, rest = "", [file for file in files if file not in counts]
        if rest:
            print(*(f"{numbers[file]} {file}" for file in rest), sep="\n", flush=True)
            place = places.get()
            found, output = run_files(root, rest, limit_s, arguments, place)
            places.put(place)
            counts, lines = counts | found, [*lines, *((file, "done") for file in rest)]
            for file in rest:
                if not found[file].failed:
                    draft = stamps[file].with_suffix(".new")
                    draft.write_text(json.dumps(asdict(found[file])))
                    draft.replace(stamps[file])
        told = "\n".join(
            f"{numbers[file]} {file}: {how}, {counts[file].passed} passed, {counts[file].failed} failed, "
            f"{counts[file].skipped} skipped, {counts[file].seconds:.0f} s"
            for file, how in lines
        )
        print(f"{output}{told}", flush=True)  # in one call, so that the output of parallel files does not mix
        return sum(counts.values(), Counts())

    with ThreadPoolExecutor(jobs) as pool:
        return sum(pool.map(run_group, groups), Counts())


def main() -> int:
    """The command line; exit 1 if a test failed or none ran."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", help="test files; default: all")
    parser.add_argument("--fresh", action="store_true", help="also run files that have passed")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--limit-minutes", type=float, default=LIMIT_MINUTES, help="longest time for a process")
    own, arguments = sys.argv[1:], []
    if "--" in own:
        at = own.index("--")
        own, arguments = own[:at], own[at + 1 :]
    options = parser.parse_args(own)
    groups = [[file] for file in options.files] or test_groups(ROOT)
    total = run(ROOT, groups, options.limit_minutes * 60, options.fresh, arguments, options.jobs)
    print(
        f"test-all: {total.passed} passed, {total.failed} failed, {total.skipped} skipped "
        f"in {sum(map(len, groups))} files, {total.seconds:.0f} s"
    )
    return 1 if total.failed or not total.passed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
