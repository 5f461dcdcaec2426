"""Every attack on a bundle gets the exit code from the C++ reader that it gets from the one in Python."""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from cpp_builds import Build
from representatives import representatives

ATTACKS = Path(__file__).resolve().parents[1] / "attacks"
if str(ATTACKS) not in sys.path:
    sys.path.append(str(ATTACKS))  # where the attacks and their keys are

import attack as attacks  # noqa: E402 - see above
import keys  # noqa: E402 - behind those

from attnport_bundle import BundleError  # noqa: E402 - behind those
from attnport_bundle.errors import is_printable  # noqa: E402 - behind those
from attnport_bundle.model import selftest  # noqa: E402 - behind those

ALL = [attacks.read(path) for path in sorted(ATTACKS.glob("*.json"))]
ON_BUNDLES = [attack for attack in ALL if attack.on == "bundle"]
ROW = re.compile(r"(?P<check>.*?) {2,}(?P<verdict>PASS|FAIL|NOT_RUN) +(?P<detail>.*)")


@dataclass(frozen=True)
class Answer:
    """What a reader says: the exit code, and either rows or an error. `words`: the first thing that is wrong, whole."""

    code: int
    rows: tuple[tuple[str, str, str], ...]
    error: str

    @property
    def words(self) -> str:
        return next((f"{check}: {detail}" for check, verdict, detail in self.rows if verdict == "FAIL"), self.error)

    @property
    def verdicts(self) -> list[tuple[str, str]]:
        return [(check, verdict) for check, verdict, _ in self.rows]


def in_python(app: Path, key: Path | None) -> Answer:
    try:
        report = selftest(app, key=key)
    except BundleError as err:
        return Answer(err.exit_code, (), str(err))
    return Answer(report.exit_code, tuple((row.check, row.verdict, row.detail) for row in report.rows), "")


def in_cpp(build: Build, app: Path, key: Path | None, *more: str) -> Answer:
    done = build.run("attnport-selftest", app, *([] if key is None else ["--key", key]), *more)
    assert "terminate" not in done.stderr
    if done.stderr:
        assert not done.stdout
        assert done.stderr.startswith("error: ")
        return Answer(done.returncode, (), done.stderr.removeprefix("error: ").removesuffix("\n"))
    *lines, last = done.stdout.splitlines()
    assert last == (f"NOT OK (exit {done.returncode})" if done.returncode else "OK")
    matches = [ROW.fullmatch(line) for line in lines if not line.startswith("This bundle is UNVERIFIED")]
    assert all(matches), lines
    rows = tuple((match["check"], match["verdict"], match["detail"]) for match in matches if match)
    return Answer(done.returncode, rows, "")


def compare(attack: attacks.Attack, got: Answer) -> None:
    wanted = attack.readers
    assert got.code == wanted, f"{attack.about} Got exit {got.code}: {got.words}"
    assert bool(got.words) is bool(wanted)
    assert is_printable(got.words), "text of the bundle reaches the terminal as it is"


def test_every_attack_on_a_bundle_is_carried_out() -> None:
    """Artifact and `hf:` folders are what a bundle is made of, and requests are sent to a server in Python; nothing in
    C++ ever opens one."""
    others = [attack for attack in ALL if attack.on in ("artifact", "hf", "server")]
    assert len(ON_BUNDLES) + len(others) == len(ALL)
    assert len(ON_BUNDLES) > 100


@pytest.mark.parametrize("attack", representatives(ON_BUNDLES, ON_BUNDLES[::3]), ids=lambda attack: attack.name)
def test_every_attack_has_its_exit_code(attack: attacks.Attack, app: Path, cpp_build: Build) -> None:
    attacks.carry_out(attack, app)
    key = None if attack.key is None else keys.place(attack.key, app)
    compare(attack, in_cpp(cpp_build, app, key))


def test_what_nobody_attacked_is_fine_in_both_readers(app: Path, cpp_build: Build) -> None:
    got = in_cpp(cpp_build, app, None)
    assert got.verdicts == in_python(app, None).verdicts
    assert [row[1] for row in got.rows] == ["NOT_RUN", *["PASS"] * 7]
    whole = attacks.Attack("none", "", "bundle", [{"step": "add_engine"}], False, 0, "")
    attacks.carry_out(whole, app)
    attacks.carry_out(dataclasses.replace(whole, do=[], signed=True), app)
    got = in_cpp(cpp_build, app, None)
    assert got.verdicts == in_python(app, None).verdicts
    assert got.rows[0] == ("signature", "NOT_RUN", "not checked: no --key")
    key = keys.place("right", app)
    got = in_cpp(cpp_build, app, key)
    assert got.verdicts == in_python(app, key).verdicts
    assert (got.code, got.rows[0][1], got.rows[-1][:2]) == (0, "PASS", ("tensorrt_rtx", "NOT_RUN"))


def test_numbers_that_are_off_are_said(app: Path, cpp_build: Build) -> None:
    manifest = json.loads((app / "bundle.json").read_text())
    for bound, name in zip(manifest["goldens"]["bounds"], ["max_bound", "rms_bound"] * 3, strict=True):
        bound[name] = 1e-12
    (app / "bundle.json").write_text(json.dumps(manifest))
    got = in_cpp(cpp_build, app, None)
    assert got.verdicts == in_python(app, None).verdicts
    assert got.code == 4
    assert [row[1] for row in got.rows[2:]] == ["FAIL"] * 6
    assert "max error" in got.rows[2][2]
    assert "RMS error" in got.rows[3][2]


def test_a_bundle_that_was_not_verified_says_so(app: Path, cpp_build: Build) -> None:
    manifest = json.loads((app / "bundle.json").read_text())
    form = manifest["forms"]["ort_cpu"]
    form["parity"] |= {"verdict": "NOT_RUN", "runtime": "NOT_RUN", "graph": "NOT_RUN", "results": [], "ran": None}
    form["proof"], manifest["unverified"] = "graph-only", True
    (app / "bundle.json").write_text(json.dumps(manifest))
    done = cpp_build.run("attnport-selftest", app)
    said = "This bundle is UNVERIFIED: a form in it was not compared with its source when it was made."
    assert done.stdout.splitlines()[-2:] == [said, "OK"]
    assert done.returncode == 0


def test_without_its_runtime_a_bundle_is_not_taken_for_checked(app: Path, tmp_path: Path, cpp_build: Build) -> None:
    got = in_cpp(cpp_build, app, None, "--onnxruntime", str(tmp_path / "none.so"))
    assert (got.code, [row[1] for row in got.rows]) == (3, ["NOT_RUN", "PASS", "NOT_RUN"])


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["a", "b"],
        ["a", "--unknown"],
        ["a", "--key"],
        ["a", "--key="],
        ["a", "--threads", "0"],
        ["a", "--threads", "2x"],
        ["a", "--threads=99999999999999999999"],
    ],
)
def test_wrong_use_is_exit_2_with_the_usage(cpp_build: Build, arguments: list[str]) -> None:
    done = cpp_build.run("attnport-selftest", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("usage: attnport-selftest FOLDER")


def test_help_is_no_error(cpp_build: Build) -> None:
    done = cpp_build.run("attnport-selftest", "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert all(word in done.stdout for word in ("FOLDER", "--key", "--threads", "--onnxruntime", "Exit codes"))


@pytest.mark.parametrize("folder", ["nowhere", "", "x" * 5000, "a\nb"])
def test_a_folder_that_is_none_is_exit_2(cpp_build: Build, folder: str) -> None:
    done = cpp_build.run("attnport-selftest", folder)
    assert (done.returncode, done.stdout) == (2, "")
    assert "error: " in done.stderr


def test_the_comparison_notices_another_answer() -> None:
    attack = attacks.read(ATTACKS / "changed_weights.json")
    row = ("weights.bin", "FAIL", "changed: its SHA-256 is not that of the manifest")
    compare(attack, Answer(6, (row,), ""))
    for got in (Answer(4, (row,), ""), Answer(0, (), ""), Answer(6, (), ""), Answer(6, (), "\x1b[2J")):
        with pytest.raises(AssertionError):
            compare(attack, got)
