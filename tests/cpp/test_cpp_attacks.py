"""Every attack on a bundle gets the Python reader's answer from the C++ one: exit code and rows, in its own words."""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
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
from attnport_bundle.selftest import selftest  # noqa: E402 - behind those

ALL = [attacks.read(path) for path in sorted(ATTACKS.glob("*.json"))]
ON_BUNDLES = [attack for attack in ALL if attack.on == "bundle"]
# Behind these a reader repeats what a parser, a library or a runtime of its own language said.
SAID_BY_OTHERS = (
    "is not a public key in PEM form: ",
    "cannot be opened: ",
)
OWN_WORDS = {
    "manifest_unknown_mask_content": '"tiles"',
    "manifest_nan": "bundle.json is not valid: ",
    "manifest_overflow": "bundle.json is not valid: ",
    "external_beyond": "bytes of weights from byte",
}
"""What the C++ reader says where it has other words than those that the attack asks for."""
ROW = re.compile(r"(?P<check>.*?) {2,}(?P<verdict>PASS|FAIL|NOT_RUN) +(?P<detail>.*)")


@dataclass(frozen=True)
class Answer:
    """What a reader says: the exit code, and either rows or an error. `words`: the first thing that is wrong, whole."""

    code: int
    rows: tuple[tuple[str, str, str], ...]
    error: str
    words: str = field(default="", compare=False)


def own(words: str) -> str:
    """The part of a message that is the reader's own."""
    return next((words.partition(mark)[0] + mark for mark in SAID_BY_OTHERS if mark in words), words)


def answer(code: int, rows: Iterable[tuple[str, str, str]], error: str = "") -> Answer:
    """An answer to compare. Why a form's runtime is not here is said in the words of each language's packages."""
    rows = list(rows)
    words = next((f"{check}: {detail}" for check, verdict, detail in rows if verdict == "FAIL"), error)
    kept = [
        (check, verdict, "" if verdict == "NOT_RUN" and check != "signature" else own(detail))
        for check, verdict, detail in rows
    ]
    return Answer(code, tuple(kept), own(error), words)


def in_python(app: Path, key: Path | None) -> Answer:
    try:
        report = selftest(app, key=key)
    except BundleError as err:
        return answer(err.exit_code, (), str(err))
    return answer(report.exit_code, ((row.check, row.verdict, row.detail) for row in report.rows))


def in_cpp(build: Build, app: Path, key: Path | None, *more: str) -> Answer:
    done = build.run("attnport-selftest", app, *([] if key is None else ["--key", key]), *more)
    assert "terminate" not in done.stderr
    if done.stderr:
        assert not done.stdout
        assert done.stderr.startswith("error: ")
        return answer(done.returncode, (), done.stderr.removeprefix("error: ").removesuffix("\n"))
    *lines, last = done.stdout.splitlines()
    assert last == (f"NOT OK (exit {done.returncode})" if done.returncode else "OK")
    matches = [ROW.fullmatch(line) for line in lines if not line.startswith("This bundle is UNVERIFIED")]
    assert all(matches), lines
    return answer(done.returncode, (match.group("check", "verdict", "detail") for match in matches if match))


def verdicts(answered: Answer) -> list[tuple[str, str]]:
    """What was checked, and each verdict."""
    return [(check, verdict) for check, verdict, _ in answered.rows]


def compare(attack: attacks.Attack, got: Answer, wanted: Answer) -> None:
    assert got.code == attack.exit, f"{attack.about} Got exit {got.code}: {got.words}"
    assert OWN_WORDS.get(attack.name, attack.says) in got.words
    assert is_printable(got.words), "text of the bundle reaches the terminal as it is"
    # The same rows and verdicts, each reader in words of its own.
    assert (got.code, bool(got.error)) == (wanted.code, bool(wanted.error))
    assert verdicts(got) == verdicts(wanted)


def test_every_attack_on_a_bundle_is_carried_out() -> None:
    """Artifact and `hf:` folders are what a bundle is made of, and requests are sent to a server in Python; nothing in
    C++ ever opens one."""
    others = [attack for attack in ALL if attack.on in ("artifact", "hf", "server")]
    assert len(ON_BUNDLES) + len(others) == len(ALL)
    assert len(ON_BUNDLES) > 100


@pytest.mark.parametrize("attack", representatives(ON_BUNDLES, ON_BUNDLES[::3]), ids=lambda attack: attack.name)
def test_every_attack_gets_the_python_readers_answer(attack: attacks.Attack, app: Path, cpp_build: Build) -> None:
    attacks.carry_out(attack, app)
    key = None if attack.key is None else keys.place(attack.key, app)
    compare(attack, in_cpp(cpp_build, app, key), in_python(app, key))


def test_what_nobody_attacked_is_fine_in_both_readers(app: Path, cpp_build: Build) -> None:
    got = in_cpp(cpp_build, app, None)
    assert verdicts(got) == verdicts(in_python(app, None))
    assert [row[1] for row in got.rows] == ["NOT_RUN", *["PASS"] * 7]
    whole = attacks.Attack("none", "", "bundle", [{"step": "add_engine"}], False, 0, "")
    attacks.carry_out(whole, app)
    attacks.carry_out(dataclasses.replace(whole, do=[], signed=True), app)
    got = in_cpp(cpp_build, app, None)
    assert verdicts(got) == verdicts(in_python(app, None))
    assert got.rows[0] == ("signature", "NOT_RUN", "not checked: no --key")
    key = keys.place("right", app)
    got = in_cpp(cpp_build, app, key)
    assert verdicts(got) == verdicts(in_python(app, key))
    assert (got.code, got.rows[0][1], got.rows[-1][:2]) == (0, "PASS", ("tensorrt_rtx", "NOT_RUN"))


def test_numbers_that_are_off_are_said(app: Path, cpp_build: Build) -> None:
    manifest = json.loads((app / "bundle.json").read_text())
    for bound, name in zip(manifest["goldens"]["bounds"], ["max_bound", "rms_bound"] * 3, strict=True):
        bound[name] = 1e-12
    (app / "bundle.json").write_text(json.dumps(manifest))
    got = in_cpp(cpp_build, app, None)
    assert verdicts(got) == verdicts(in_python(app, None))
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
    ("arguments", "words"),
    [
        ([], "the following arguments are required: FOLDER"),
        (["a", "b"], "unrecognized argument: b"),
        (["a", "--unknown"], "unrecognized argument: --unknown"),
        (["a", "--key"], "argument --key: expected one argument"),
        (["a", "--key="], "argument --key: expected one argument"),
        (["a", "--threads", "0"], "argument --threads: got '0'; expected a number of 1 or more"),
        (["a", "--threads", "2x"], "argument --threads: got '2x'"),
        (["a", "--threads=99999999999999999999"], "argument --threads: got '99999999999999999999'"),
    ],
)
def test_wrong_use_is_exit_2_with_the_usage(cpp_build: Build, arguments: list[str], words: str) -> None:
    done = cpp_build.run("attnport-selftest", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("usage: attnport-selftest FOLDER")
    assert words in done.stderr


def test_help_is_no_error(cpp_build: Build) -> None:
    done = cpp_build.run("attnport-selftest", "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert all(word in done.stdout for word in ("FOLDER", "--key", "--threads", "--onnxruntime", "Exit codes"))


@pytest.mark.parametrize("folder", ["nowhere", "", "x" * 5000, "a\nb"])
def test_a_folder_that_is_none_is_exit_2(cpp_build: Build, folder: str) -> None:
    done = cpp_build.run("attnport-selftest", folder)
    assert (done.returncode, done.stdout) == (2, "")
    assert "error: " in done.stderr
    if folder.isalpha():  # the others are shown by each reader in its own way
        assert done.stderr == f"error: {in_python(Path(folder), None).error}\n"


def test_the_comparison_notices_another_answer() -> None:
    attack = attacks.read(ATTACKS / "changed_weights.json")
    row = ("weights.bin", "FAIL", "changed: its SHA-256 is not that of the manifest")
    wanted = answer(6, [row])
    compare(attack, wanted, wanted)
    for got in (
        answer(4, [row]),
        answer(6, [("goldens.safetensors", "FAIL", f"weights.bin: {row[2]}")]),
        answer(6, [], "weights.bin"),
    ):
        with pytest.raises(AssertionError):
            compare(attack, got, wanted)


@pytest.mark.slow
def test_without_openssl_no_signature_is_taken_for_checked(app: Path, cpp_clang: Build) -> None:
    whole = attacks.Attack("none", "", "bundle", [], False, 0, "", signed=True)
    attacks.carry_out(whole, app)
    key = keys.place("right", app)
    assert in_python(app, key).rows[0][:2] == ("signature", "PASS")
    got = in_cpp(cpp_clang, app, key)
    said = "this library was built without OpenSSL, which checks signatures; build it with OpenSSL."
    assert (got.code, got.rows, got.error) == (3, (), said)
    got = in_cpp(cpp_clang, app, None)
    assert (got.code, got.rows[0]) == (0, ("signature", "NOT_RUN", "not checked: no --key"))
