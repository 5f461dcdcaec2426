"""Every attack that a JSON file here describes gets its answer, from `verify` and from the bundle's own reader."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attack as attacks
import hf_folders
import keys
import pytest
from loaded import load as load_spec
from representatives import representatives

from attnport.bundling import verifying
from attnport.errors import AttnportError
from attnport.verbs.bundle import bundle
from attnport.verbs.export import export
from attnport.verbs.verify import raise_for, verify
from attnport_bundle import BundleError, load
from attnport_bundle.errors import is_printable
from attnport_bundle.format import files
from attnport_bundle.model import selftest

HERE = Path(__file__).parent
ALL = [attacks.read(path) for path in sorted(HERE.glob("*.json"))]
ON_BUNDLES = [attack for attack in ALL if attack.on == "bundle"]
ON_ARTIFACTS = [attack for attack in ALL if attack.on == "artifact"]
ON_HF = [attack for attack in ALL if attack.on == "hf"]
NAMES = {"ids": lambda attack: attack.name}


def answer(act: Callable[[], object], *errors: type[Exception]) -> tuple[int, str]:
    """Exit code and message; anything but one of `errors` goes through and fails the test."""
    try:
        act()
    except errors as err:
        return err.exit_code, str(err)  # type: ignore[attr-defined]
    return 0, ""


def placed(attack: attacks.Attack, app: Path) -> Path | None:
    """The public key that the reader is given."""
    return None if attack.key is None else keys.place(attack.key, app)


def check(attack: attacks.Attack, found: tuple[int, str]) -> None:
    assert found[0] == attack.exit, f"{attack.about} Got exit {found[0]}: {found[1]}"
    assert attack.says in found[1]
    assert "Traceback" not in found[1]
    assert is_printable(found[1]), "text of the bundle reaches the terminal as it is"


def test_there_are_many_attacks_and_each_is_described() -> None:
    assert len(ALL) >= 300
    assert all(attack.about and attack.says for attack in ALL)
    assert all(attack.exit in ((400, 413) if attack.on == "server" else (2, 6)) for attack in ALL)


@pytest.mark.parametrize("attack", representatives(ON_BUNDLES, ON_BUNDLES[::50]), **NAMES)
def test_verify_refuses_the_bundle(attack: attacks.Attack, app: Path) -> None:
    attacks.carry_out(attack, app)
    key = placed(attack, app)
    check(attack, answer(lambda: raise_for(verify(app, key)), AttnportError))


def self_tested(app: Path, key: Path | None, look: Any = files.check) -> tuple[int, str]:
    """Exit code and message of the self-test."""

    def run() -> None:
        report = selftest(app, key=key, check=look)
        if report.exit_code:
            bad = next(row for row in report.rows if row.verdict == "FAIL")
            raise Refused(report.exit_code, f"{bad.check}: {bad.detail}")

    return answer(run, BundleError, Refused)


@pytest.mark.parametrize("attack", ON_BUNDLES, **NAMES)
def test_the_bundles_own_reader_refuses_it(attack: attacks.Attack, app: Path) -> None:
    """But for what `attnport verify` alone looks for, which is refused by it, in the same process."""
    attacks.carry_out(attack, app)
    key = placed(attack, app)
    if attack.readers != attack.exit:
        code, message = self_tested(app, key)
        assert (code, is_printable(message)) == (attack.readers, True), message
    check(attack, self_tested(app, key, verifying.check if attack.readers != attack.exit else files.check))


class Refused(Exception):
    def __init__(self, exit_code: int, message: str) -> None:
        super().__init__(message)
        self.exit_code = exit_code


@pytest.mark.parametrize(
    "attack", [one for one in ON_BUNDLES if one.found == "files" and one.readers == one.exit], **NAMES
)
def test_load_refuses_it_before_a_session_is_made(
    attack: attacks.Attack, app: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import onnxruntime

    monkeypatch.setattr(onnxruntime, "InferenceSession", lambda *args, **kwargs: pytest.fail("a session was made"))
    attacks.carry_out(attack, app)
    key = placed(attack, app)
    code, message = answer(lambda: load(app, require_signature=key), BundleError)
    assert (code, attack.says.split(":")[0] in message) == (attack.exit, True), message


@pytest.mark.parametrize("attack", ON_ARTIFACTS, **NAMES)
def test_verify_refuses_the_artifact(attack: attacks.Attack, artifact: Path) -> None:
    victim = artifact.parent / "victim"
    victim.write_text("mine")
    attacks.carry_out(attack, artifact)
    check(attack, answer(lambda: raise_for(verify(artifact)), AttnportError))
    assert victim.read_text() == "mine"


@pytest.mark.parametrize("attack", ON_ARTIFACTS, **NAMES)
def test_an_attacked_artifact_is_not_bundled(attack: attacks.Attack, artifact: Path, tmp_path: Path) -> None:
    attacks.carry_out(attack, artifact)
    used = attack.name != "artifact_truncated_model"  # the model as exported is no part of a bundle
    code, message = answer(lambda: bundle(artifact, tmp_path / "app"), AttnportError)
    assert code in ((2, 6) if used else (0,)), message
    assert (tmp_path / "app").exists() != used


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sentence-transformers folder."""
    folder = hf_folders.save("bert", tmp_path_factory.mktemp("saved") / "folder")
    hf_folders.add_pooling(folder, "mean", normalise=True)
    (folder / "tokenizer.json").write_text("{}")
    (folder / "README.md").write_text("# a-model\n")
    return folder


@pytest.mark.parametrize("attack", ON_HF, **NAMES)
def test_export_refuses_the_hf_folder(attack: attacks.Attack, saved: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(saved, tmp_path / "inner" / "hub" / "folder"))
    load_spec(f"hf:{folder}")  # before the attack it is fine
    attacks.carry_out(attack, folder)
    check(attack, answer(lambda: export(f"hf:{folder}", tmp_path / "out"), AttnportError))
    assert not (tmp_path / "out").exists()
    assert not list(tmp_path.rglob("ran"))


@pytest.mark.parametrize("kind", ["bundle", "artifact"])
def test_what_nobody_attacked_is_fine_and_resealing_alone_changes_nothing(kind: str, app: Path, artifact: Path) -> None:
    folder = {"bundle": app, "artifact": artifact}[kind]
    raise_for(verify(folder))
    attacks.reseal(folder, folder / attacks.MANIFESTS[kind])
    result = verify(folder)
    raise_for(result)
    assert result.verdict == "PASS"


def test_what_nobody_attacked_is_fine_when_it_is_signed_and_has_an_engine(app: Path) -> None:
    whole = attacks.Attack("none", "", "bundle", [{"step": "add_engine"}], False, 0, "")
    attacks.carry_out(whole, app)
    attacks.carry_out(dataclasses.replace(whole, do=[], signed=True), app)
    result = verify(app, keys.place("right", app))
    raise_for(result)
    rows = {row.check: row for row in result.rows}
    assert rows["signature"].verdict == "PASS"
    assert rows["tensorrt_rtx"].verdict == "NOT_RUN"


def test_the_checker_notices_a_reader_that_lets_an_attack_through() -> None:
    with pytest.raises(AssertionError):
        check(ON_BUNDLES[0], (0, ""))
    with pytest.raises(AssertionError):
        check(ON_BUNDLES[0], (ON_BUNDLES[0].exit, "something else"))


@pytest.mark.parametrize("name", ["changed_weights", "manifest_unknown_version", "manifest_surrogate"])
def test_the_command_line_answers_with_the_exit_code_and_no_traceback(app: Path, name: str) -> None:
    attack = attacks.read(HERE / f"{name}.json")
    attacks.carry_out(attack, app)
    done = subprocess.run(
        [sys.executable, "-m", "attnport_bundle", "selftest"],
        cwd=app / "python",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == attack.exit
    assert attack.says in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def test_descriptions_are_plain_data() -> None:
    for path in HERE.glob("*.json"):
        names = set(json.loads(path.read_text()))
        assert names >= {"about", "on", "do", "reseal", "exit", "says"}
        assert names <= {field.name for field in dataclasses.fields(attacks.Attack)} - {"name"}
        assert os.path.getsize(path) < 20_000  # noqa: PTH202
