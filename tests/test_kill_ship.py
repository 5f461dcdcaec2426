"""`attnport ship` killed at its renames and at random moments leaves its folder whole, or absent.

Of 76 renames in 21 transactions it is killed at the 38 of those 10 transactions that put files of other kinds into the
folder than every earlier one: `fuse` does the same for each target. Around a manifest's rename it is killed twice.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from killing import BUNDLE

from attnport.artifacts import MANIFEST, FusionReport, LatencyReport, ParityReport
from attnport.bundling.model_file import external_files
from attnport.errors import AttnportError
from attnport.folder.workspace import open_folder
from attnport.jsonfile import read
from attnport.transaction import OWN, STAGING, undo_unfinished
from attnport.verbs.verify import raise_for, verify

HERE = Path(__file__).parent
SHIP = ("attnport.cli", "ship", f"{HERE / 'ship_model.py'}:spec", "--budget", "1")
EXPORT = ("attnport.cli", "export", f"{HERE / 'ship_model.py'}:spec")
MOMENTS = 6
REPORTS = {"fusion.json": FusionReport, "parity.json": ParityReport, "latency.json": LatencyReport}
ENVIRONMENT = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}


def start(command: Sequence[str], folder: Path, *driver: str) -> subprocess.Popen[bytes]:
    """Starts `python -m COMMAND -o FOLDER` under the driver that counts renames, in a session of its own."""
    log = ("--log", str(folder.parent / f"{folder.name}.renames"))
    program = [sys.executable, str(HERE / "killing.py"), "--folder", str(folder), *log, *driver, "--", *command]
    with (folder.parent / f"{folder.name}.stderr").open("wb") as errors:
        return subprocess.Popen(
            [*program, "-o", str(folder)],
            env=ENVIRONMENT,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            start_new_session=True,
        )


def finish(process: subprocess.Popen[bytes]) -> int:
    """Waits for the process; its children, which it may have left behind, go as well."""
    code = process.wait()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    return code


def renames(folder: Path) -> list[str]:
    log = folder.parent / f"{folder.name}.renames"
    found = log.read_text().splitlines() if log.exists() else []
    return [re.sub(rf"^{STAGING}/[^/]+/", "staged ", name) for name in found]  # a staging folder has a random name


def of_a_kind_each(names: Sequence[str]) -> list[int]:
    """The numbers of the renames in transactions whose files no earlier transaction had, the target's name aside."""
    found, seen, begun = [], set(), 0
    for end, name in enumerate(names, start=1):
        if name in (MANIFEST, BUNDLE):
            kinds = tuple(
                re.sub(r"model\.\w+(\.fp16)?\.(onnx|bin)$", r"model.TARGET.\2", one) for one in names[begun:end]
            )
            found += range(begun + 1, end + 1) if kinds not in seen else ()
            seen.add(kinds)
            begun = end
    return found


def whole(folder: Path) -> frozenset[str] | None:
    """Fails unless the folder is whole; returns the stages that it holds, None when there is no artifact.

    Whole: after recovery every file is the one of the manifest, no file is under a final name without standing in it,
    models and their weights belong together, reports can be read, and a bundle in it is whole too.
    """
    undo_unfinished(folder)
    if not (folder / MANIFEST).exists():
        left = {path.name for path in folder.rglob("*") if not path.is_dir()} - set(OWN)
        assert not left, f"files without a manifest: {sorted(left)}"
        return None
    result = verify(folder)
    raise_for(result)
    strangers = [row.check for row in result.rows if row.verdict != "PASS" and not row.check.startswith(f".{BUNDLE}.")]
    assert not strangers, f"files under final names that the manifest lacks: {strangers}"
    manifest = open_folder(folder)
    for form in manifest.forms.values():
        assert {form.file, *external_files(folder, form.file)} <= set(manifest.files)
    for name, kind in REPORTS.items():
        if name in manifest.files:
            read(kind, folder / name)
    assert {name for stage in manifest.stages.values() for name in stage.files} <= set(manifest.files)
    if (folder / BUNDLE).exists():
        raise_for(verify(folder / BUNDLE))
    return frozenset(manifest.stages)


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, int, float]:
    """One run to its end: the folder, copies of it before each commit by the number of the rename, exit code, time."""
    base = tmp_path_factory.mktemp("reference")
    (base / "copies").mkdir()
    began = time.monotonic()
    code = finish(start(SHIP, base / "out", "--copies", str(base / "copies")))
    seconds = time.monotonic() - began
    message = (base / "out.stderr").read_text()
    assert code == 0, message
    assert whole(base / "out")
    return base / "out", base / "copies", code, seconds


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_ship_killed_at_the_renames_of_each_kind_leaves_the_artifact_whole_or_absent(
    reference: tuple[Path, Path, int, float], tmp_path: Path
) -> None:
    folder, copies, _, _ = reference
    wanted = renames(folder)
    commits = sorted(int(copy.name) for copy in copies.iterdir())
    assert commits[0] == 1
    assert len(wanted) > 20
    outcomes = set()
    for number in of_a_kind_each(wanted):
        name = wanted[number - 1]
        nearest = max(commit for commit in commits if commit <= number)
        # Before the manifest's rename an artifact is the earlier one, and after it the later one.
        for when in ("before", "after") if name == MANIFEST else ("before",):
            # From the nearest commit on, to save time; from the start where a run that is taken up skips what it meant.
            for first in dict.fromkeys((nearest, 1)):
                target = tmp_path / f"{when} {number} from {first}" / "out"
                shutil.copytree(copies / str(first), target)
                before = whole(target)
                code = finish(start(SHIP, target, "--at", str(number - first + 1), "--when", when))
                assert code == -signal.SIGKILL, (target.parent / "out.stderr").read_text()
                after = whole(target)
                assert (after or frozenset()) >= (before or frozenset()), "the earlier artifact is gone"
                outcomes.add((before is None, before == after))
                reached = renames(target)[-1]
                shutil.rmtree(target.parent)
                if reached == name:
                    break
            else:
                pytest.fail(f"rename {number} was {reached} and not {name}: two runs differ")
    assert (False, True) in outcomes, "no kill left the earlier artifact"
    assert (False, False) in outcomes, "no kill left the later artifact"


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_ship_killed_at_random_moments_leaves_the_artifact_whole_or_absent(
    reference: tuple[Path, Path, int, float], tmp_path: Path
) -> None:
    folder, _, _, seconds = reference
    chance, found, killed = random.Random(20261120), [], 0
    for moment in range(MOMENTS):
        target = tmp_path / f"{moment}" / "out"
        target.parent.mkdir()
        process = start(SHIP, target)
        time.sleep(seconds * (moment + chance.random()) / MOMENTS)  # one in each sixth of the time
        process.kill()
        killed += finish(process) == -signal.SIGKILL
        found.append(whole(target))
    assert killed > MOMENTS / 2
    assert len(set(found)) > 2, "the moments all fell into one stage"
    last = tmp_path / f"{max(range(MOMENTS), key=lambda moment: len(found[moment] or ()))}" / "out"
    assert finish(start(SHIP, last)) == 0, "a killed run cannot be taken up again"
    assert whole(last) == whole(folder)


def test_every_file_of_ship_is_of_a_kind_that_it_is_killed_at() -> None:
    one, other = ("fusion.json", "model.onnx.onnx", MANIFEST), ("fusion.json", "model.ort_cuda.fp16.onnx", MANIFEST)
    again = ("staged old/fusion.json", *other)
    assert of_a_kind_each([*one, *other, *again, *again, "parity.json", MANIFEST, BUNDLE]) == [
        1,
        2,
        3,
        7,
        8,
        9,
        10,
        15,
        16,
        17,
    ]
    assert of_a_kind_each(["model.onnx", MANIFEST, "model.onnx.onnx", MANIFEST]) == [1, 2, 3, 4]


@pytest.mark.slow
def test_a_first_export_killed_between_two_renames_is_made_again_by_the_same_command(tmp_path: Path) -> None:
    target = tmp_path / "out"
    assert finish(start(EXPORT, target, "--at", "4")) == -signal.SIGKILL
    assert renames(target)[-3:] == ["golden.npz", "model.onnx", "weights.bin"]
    assert (target / "model.onnx").exists(), "it was not killed half way"
    assert not (target / MANIFEST).exists()
    assert finish(start(EXPORT, target)) == 0
    assert whole(target) == {"export"}


def test_the_checker_notices_a_stray_file_a_mixture_and_a_half_bundle(tiny_artifact: Path) -> None:
    assert whole(tiny_artifact) == {"export"}
    (tiny_artifact / "model.half.onnx").write_bytes(b"x")
    with pytest.raises(AssertionError, match=r"model\.half\.onnx"):
        whole(tiny_artifact)
    (tiny_artifact / "model.half.onnx").unlink()
    (tiny_artifact / BUNDLE).mkdir()
    (tiny_artifact / BUNDLE / "weights.bin").write_bytes(b"x")
    with pytest.raises(AssertionError, match=r"bundle/weights\.bin"):
        whole(tiny_artifact)
    shutil.rmtree(tiny_artifact / BUNDLE)
    data = (tiny_artifact / "model.onnx").read_bytes()
    (tiny_artifact / "model.onnx").write_bytes(data[:-1])
    with pytest.raises(AttnportError, match=r"model\.onnx"):
        whole(tiny_artifact)


def test_the_checker_takes_an_absent_artifact_and_refuses_files_without_a_manifest(tmp_path: Path) -> None:
    assert whole(tmp_path / "none") is None
    assert whole(tmp_path) is None
    (tmp_path / "weights.bin").write_bytes(b"x")
    with pytest.raises(AssertionError, match=r"weights\.bin"):
        whole(tmp_path)
