"""`attnport bundle`: what it takes, what it refuses, and that a bundle appears whole or not at all."""

from __future__ import annotations

import dataclasses
import json
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_attention as tiny
import tiny_model
from bundle_folders import python, tree
from killing import Armed, in_child

from attnport.artifacts import Form
from attnport.bundling import golden, place
from attnport.bundling.model_file import oldest_onnxruntime
from attnport.dims import TensorSpec
from attnport.errors import ArtifactError, IntegrityError, ParityFailed, SpecError, UsageError
from attnport.folder.workspace import change
from attnport.masks import MaskSpec
from attnport.parity.golden import bounds, write_golden
from attnport.verbs import bundle as verb
from attnport.verbs.bundle import bundle
from attnport_bundle.format import files, manifest


def hidden(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if path.name.startswith(".")]


def test_a_bundle_holds_what_it_needs_and_nothing_else(made_bundle: Path, made_artifact: Path) -> None:
    found = manifest.read(made_bundle)
    assert files.check(made_bundle, found) == []
    assert set(found.files) - {name for name in found.files if name.startswith("python/attnport_bundle/")} == {
        "README.md",
        "goldens.safetensors",
        "model.ort_cpu.onnx",
        "weights.bin",
    }
    assert found.forms["ort_cpu"].external == ("weights.bin",)
    assert found.forms["ort_cpu"].requires == manifest.Requires("1.28", False, 23, ())
    assert not (made_bundle / "weights.bin").samefile(made_artifact / "weights.bin")


def test_bundling_twice_gives_equal_bytes(made_artifact: Path, made_bundle: Path, tmp_path: Path) -> None:
    again = bundle(made_artifact, tmp_path / "elsewhere" / "again")
    assert tree(again) == tree(made_bundle)


def test_the_bundle_that_ship_made_is_told_beside_one_made_by_hand(artifact: Path, tmp_path: Path) -> None:
    told = list[str]()
    bundle(artifact, artifact / "bundle", tell=told.append)
    assert not any("ship" in line for line in told)
    bundle(artifact, tmp_path / "app", tell=told.append)
    (line,) = (line for line in told if "ship" in line)
    assert line == (
        f"{artifact / 'bundle'}, which ship or serve made of the same form, stays as it is; an application needs "
        f"{tmp_path / 'app'} alone"
    )


def test_the_builders_folders_are_not_told(exported: Path, arrays: dict[str, Any], tmp_path: Path) -> None:
    folder = tiny.make(tmp_path / "out", exported, arrays, tiny.parity())
    app = bundle(tiny.edit_source(folder, text=f"hf:{tmp_path}/private/model"), tmp_path / "app")
    assert json.loads((app / "bundle.json").read_text())["provenance"]["source"] == "hf:model"
    assert not [name for name, data in tree(app).items() if str(tmp_path).encode() in data]


def test_a_model_of_many_inputs_is_bundled(artifact: Path, tmp_path: Path) -> None:
    inputs = tuple(f"past_keys_{index}=float32[batch,heads,past,64]" for index in range(30))
    app = bundle(tiny.edit_source(artifact, inputs=inputs), tmp_path / "app")
    told = manifest.read(app).provenance.commands[0]
    assert sum(map(len, told)) > 1000
    assert tuple(value for value in told if "past" in value) == inputs


def test_what_no_reader_would_take_is_refused_with_words(artifact: Path, tmp_path: Path) -> None:
    tiny.edit_source(artifact, inputs=(f"x=float32[{','.join(['batch'] * 200)}]",))
    said = r"readers would refuse this bundle: bundle\.json: .*inputs\[0\]: .* at most 1000 characters"
    with pytest.raises(ArtifactError, match=said):
        bundle(artifact, tmp_path / "app")
    assert not (tmp_path / "app").exists()


def test_a_form_that_failed_is_never_bundled(exported: Path, arrays: dict[str, Any], tmp_path: Path) -> None:
    folder = tiny.make(tmp_path / "out", exported, arrays, tiny.parity("FAIL", "too far off"))
    for unverified in (False, True):
        with pytest.raises(ParityFailed, match="too far off") as caught:
            bundle(folder, tmp_path / "app", unverified=unverified)
        assert caught.value.exit_code == 4
    assert not (tmp_path / "app").exists()


def test_a_form_that_cannot_be_checked_here_has_the_hint_of_check(
    exported: Path, arrays: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tiny.make(tmp_path / "out", exported, arrays, None)
    hint = "The path is from the folder in which export was run."
    refused = SpecError("model.py is not a file, and the artifact was exported from it.", hint=hint)

    def check(*given: Any, **options: Any) -> None:
        raise refused

    monkeypatch.setattr("attnport.verbs.check.check", check)
    with pytest.raises(ParityFailed, match="no parity verdict") as caught:
        bundle(folder, tmp_path / "app")
    assert caught.value.hint == hint


@pytest.mark.parametrize("judged", [None, tiny.parity("NOT_RUN", "nobody ran it")], ids=["no check", "not run"])
def test_a_form_without_a_verdict_is_bundled_only_on_demand_and_says_so(
    exported: Path, arrays: dict[str, Any], tmp_path: Path, judged: Any
) -> None:
    folder = tiny.make(tmp_path / "out", exported, arrays, judged)
    with pytest.raises(ParityFailed, match="no parity verdict"):
        bundle(folder, tmp_path / "app")
    found = manifest.read(bundle(folder, tmp_path / "app", unverified=True))
    assert found.unverified
    assert found.forms["ort_cpu"].parity.verdict == "NOT_RUN"
    assert "UNVERIFIED" in python(tmp_path / "app" / "python", "-m", "attnport_bundle", "selftest").stdout


def test_unverified_says_nothing_of_a_form_that_passed(made_artifact: Path, tmp_path: Path) -> None:
    assert not manifest.read(bundle(made_artifact, tmp_path / "app", unverified=True)).unverified


def test_a_verdict_on_another_form_does_not_count(artifact: Path, tmp_path: Path) -> None:
    tiny.judged(artifact, tiny.parity(), **{"model.ort_cpu.onnx": "of another"})
    with pytest.raises(ParityFailed, match="made again after"):
        bundle(artifact, tmp_path / "app")


def test_a_model_that_computes_something_else_is_not_written(
    exported: Path, arrays: dict[str, Any], tmp_path: Path
) -> None:
    wrong = {name: array + 1e-3 if "/out/hidden" in name else array for name, array in arrays.items()}
    wrong = {name: array + np.float32(1e-3) if "/eager/hidden" in name else array for name, array in wrong.items()}
    folder = tiny.make(tmp_path / "out", exported, wrong, tiny.parity())
    with pytest.raises(ParityFailed, match="golden-0 hidden: RMS error"):
        bundle(folder, tmp_path / "app")
    assert list(tmp_path.iterdir()) == [folder]


@pytest.mark.parametrize("name", ["weights.bin", "model.ort_cpu.onnx", "golden.npz", "parity.json", "fusion.json"])
def test_a_changed_file_of_the_artifact_is_refused(artifact: Path, tmp_path: Path, name: str) -> None:
    data = bytearray((artifact / name).read_bytes())
    data[len(data) // 2] ^= 1
    (artifact / name).write_bytes(data)
    with pytest.raises(IntegrityError, match=name):
        bundle(artifact, tmp_path / "app")
    assert not (tmp_path / "app").exists()


def test_an_artifact_without_goldens_is_refused(artifact: Path, tmp_path: Path) -> None:
    with change(artifact) as edit:
        edit.remove("golden.npz")
        edit.finish("again", "1")
    with pytest.raises(ArtifactError, match=r"has no golden\.npz"):
        bundle(artifact, tmp_path / "app")


def test_unknown_languages_and_forms_are_refused_by_name(artifact: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="language cobol"):
        bundle(artifact, tmp_path / "app", lang=["python", "cobol"])
    with pytest.raises(ArtifactError, match=r"has no form 'openvino\.fp64'; it has ort_cpu"):
        bundle(artifact, tmp_path / "app", forms=["openvino.fp64"])
    form = Form("tensorrt_rtx", "fp16", "model.onnx", 23)
    tiny.edit_manifest(artifact, lambda m: dataclasses.replace(m, forms={**m.forms, "tensorrt_rtx": form}))
    with pytest.raises(UsageError, match="opens an engine of it"):
        bundle(artifact, tmp_path / "app", forms=["tensorrt-rtx"])


def test_a_strangers_folder_is_left_alone(made_artifact: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.txt").write_text("years of work")
    for force in (False, True):
        with pytest.raises(UsageError, match="neither empty nor a bundle; it was not changed"):
            bundle(made_artifact, mine, force=force)
    (tmp_path / "file").write_text("x")
    (tmp_path / "link").symlink_to(mine)
    for other in ("file", "link"):
        with pytest.raises(UsageError, match="is not a folder"):
            bundle(made_artifact, tmp_path / other, force=True)
    assert (mine / "thesis.txt").read_text() == "years of work"
    with pytest.raises(UsageError):
        bundle(made_artifact, made_artifact, force=True)


def test_an_empty_folder_and_a_bundle_are_replaced(made_artifact: Path, made_bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "app").mkdir()
    for _ in range(2):
        bundle(made_artifact, tmp_path / "app")
        assert tree(tmp_path / "app") == tree(made_bundle)
    assert not hidden(tmp_path)


def test_a_bundle_is_made_again_only_when_something_changed(
    artifact: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, told, ran = tmp_path / "app", list[str](), list[Path]()
    real = verb._try
    monkeypatch.setattr(verb, "_try", lambda staged, tell: ran.append(staged) or real(staged, tell))

    def made(**options: Any) -> bool:
        ran.clear()
        bundle(artifact, app, tell=told.append, **options)
        return bool(ran)

    assert made()
    assert not made()
    assert told[-1].startswith(f"{app} is up to date, with ort_cpu")
    assert made(force=True)
    assert made(lang=["python", "cpp"])
    assert made(), "without C++ again"
    tiny.edit_manifest(artifact, lambda m: dataclasses.replace(m, name="another"))
    assert made()
    assert manifest.read(app).name == "another"
    tiny.judged(artifact, tiny.parity("PASS", "for another reason"))
    assert made()
    shutil.rmtree(app)
    assert made()
    bundle(artifact, tmp_path / "other", lang=["python", "cpp"])
    shutil.rmtree(app)
    shutil.copytree(tmp_path / "other", app)
    assert made(), "what lies there is another bundle"


def test_a_form_that_is_lacking_is_written_and_checked_first(tiny_artifact: Path, tmp_path: Path) -> None:
    with change(tiny_artifact) as edit:
        edit.manifest = dataclasses.replace(edit.manifest, forms={})
        write_golden(tiny_model.spec(), edit.path("golden.npz"))
        edit.finish("fuse", "")
    app = bundle(tiny_artifact, tmp_path / "app")
    assert manifest.read(app).forms["ort_cpu"].parity.verdict == "PASS"


def test_a_bundle_that_was_worked_on_is_replaced_by_force_only(
    app: Path, made_artifact: Path, made_bundle: Path
) -> None:
    (app / "my notes.txt").write_text("mine")
    with pytest.raises(UsageError, match="changed since: my notes"):
        bundle(made_artifact, app)
    assert (app / "my notes.txt").read_text() == "mine"
    bundle(made_artifact, app, force=True)
    assert tree(app) == tree(made_bundle)


@pytest.mark.slow
@pytest.mark.parametrize("exchange", [True, False], ids=["exchange", "two renames"])
def test_killed_at_every_rename_the_earlier_bundle_or_the_later_one_stands(
    made_artifact: Path, made_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exchange: bool
) -> None:
    target = tmp_path / "app"
    renamed = Path(shutil.copytree(made_artifact, tmp_path / "out2"))
    tiny.edit_manifest(renamed, lambda m: dataclasses.replace(m, name="another"))
    other = bundle(renamed, tmp_path / "other")
    if not exchange:
        monkeypatch.setattr(place.ctypes, "CDLL", lambda *args, **kwargs: object())
    kills = 0
    for at in range(1, 200):
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(other, target)

        def act(at: int = at) -> None:
            Armed(at, "before").install(("rename", "replace", "rmdir", "fsync"))
            bundle(made_artifact, target)

        if in_child(act) == 0:
            break
        kills += 1
        if exchange or target.exists():
            assert tree(target) in (tree(other), tree(made_bundle))
        else:  # a file system without exchange: nothing is lost, the old one stands beside
            assert any(tree(path) == tree(other) for path in hidden(tmp_path))
    assert kills > 5
    assert tree(target) == tree(made_bundle)
    assert not hidden(tmp_path), "what the killed ones left is gone"


def test_a_killed_first_bundle_leaves_nothing_under_its_name(made_artifact: Path, tmp_path: Path) -> None:
    def act() -> None:
        Armed(3).install(("fsync",))
        bundle(made_artifact, tmp_path / "app")

    assert in_child(act) == -signal.SIGKILL
    assert not (tmp_path / "app").exists()
    assert hidden(tmp_path)
    bundle(made_artifact, tmp_path / "app")
    assert not hidden(tmp_path)


def test_the_folder_of_a_call_at_work_is_not_cleared_away(made_artifact: Path, tmp_path: Path) -> None:
    with place.replaced(tmp_path / "app", lambda: None) as staged:
        (staged / "x").write_text("mine")
        bundle(made_artifact, tmp_path / "app")
        assert (staged / "x").read_text() == "mine"
    assert tree(tmp_path / "app") == {"x": b"mine"}


def test_bounds_follow_the_rule_and_a_reference_that_is_not_finite_is_refused(arrays: dict[str, Any]) -> None:
    found = {(one.case, one.output): one for one in bounds(arrays, tiny.IO, "fp32")}
    assert len(found) == 6
    for case in tiny.LENGTHS:
        valid = arrays[f"{case}/valid/hidden"]
        reference = arrays[f"{case}/out/hidden"][valid]
        error = arrays[f"{case}/eager/hidden"][valid] - reference
        floor = 4 * 2**-23 * tiny.rms(reference)
        assert found[case, "hidden"].rms_bound == pytest.approx(4 * tiny.rms(error) + floor)
        assert found[case, "hidden"].max_bound == pytest.approx(4 * float(np.abs(error).max()) + floor)
    broken = {**arrays, "golden-0/out/hidden": np.full_like(arrays["golden-0/out/hidden"], np.nan)}
    with pytest.raises(ArtifactError, match="NaN or Inf"):
        bounds(broken, tiny.IO, "fp32")
    nothing = {**arrays, "golden-0/valid/hidden": np.zeros_like(arrays["golden-0/valid/hidden"])}
    with pytest.raises(ArtifactError, match="no element to compare"):
        bounds(nothing, tiny.IO, "fp32")


def test_goldens_that_lack_an_array_are_refused_by_its_name(arrays: dict[str, Any], tmp_path: Path) -> None:
    del (fewer := dict(arrays))["golden-1/eager/pooled"]
    np.savez(tmp_path / "golden.npz", **fewer)
    with pytest.raises(ArtifactError, match="lacks golden-1/eager/pooled"):
        golden.read(tmp_path / "golden.npz", tiny.IO)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"masks": (MaskSpec(("padding",), "attention_mask", "additive"),)}, "which is of floats"),
        ({"masks": (MaskSpec(("padding",), "keep"),)}, "'keep', which is no input"),
        ({"outputs": (TensorSpec("hidden", "bfloat16", ("batch",)),)}, "hidden: got dtype bfloat16"),
    ],
    ids=["additive integers", "a mask of no input", "an output dtype that NumPy lacks"],
)
def test_a_contract_that_no_reader_takes_is_refused(
    artifact: Path, tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    tiny.edit_manifest(artifact, lambda m: dataclasses.replace(m, io=dataclasses.replace(m.io, **changes)))
    with pytest.raises(UsageError, match=words):
        bundle(artifact, tmp_path / "app")


def test_a_form_that_takes_weights_from_outside_is_refused(artifact: Path, tmp_path: Path) -> None:
    import onnx

    model = onnx.load(artifact / "model.ort_cpu.onnx", load_external_data=False)
    for tensor in model.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = "../weights.bin"
    with change(artifact) as edit:
        edit.path("model.ort_cpu.onnx").write_bytes(model.SerializeToString())
        edit.finish("fuse", "2")
    tiny.judged(artifact, tiny.parity())
    with pytest.raises(IntegrityError, match=r"takes weights from '\.\./weights\.bin'"):
        bundle(artifact, tmp_path / "app")


@pytest.mark.parametrize(
    ("opset", "ir_version", "operator", "expected"),
    [
        (18, 10, "Identity", "1.23"),
        (23, 12, "Identity", "1.24"),
        (26, 13, "Identity", "1.25"),
        (23, 10, "Attention", "1.28"),
        (23, 10, "com.microsoft.GroupQueryAttention", "1.28"),
        (23, 10, "com.microsoft.MultiHeadAttention", "1.23"),
    ],
)
def test_the_oldest_onnxruntime_is_the_one_that_was_measured(
    tmp_path: Path, opset: int, ir_version: int, operator: str, expected: str
) -> None:
    import onnx
    from onnx import helper

    domain, _, op_type = operator.rpartition(".")
    inner = helper.make_graph([helper.make_node(op_type, ["x"], ["y"], domain=domain)], "inner", [], [])
    graph = helper.make_graph([helper.make_node("If", ["c"], ["y"], then_branch=inner, else_branch=inner)], "g", [], [])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=ir_version)
    onnx.save(model, tmp_path / "m.onnx")
    assert oldest_onnxruntime(tmp_path / "m.onnx") == (expected, opset)


def test_an_opset_that_nobody_measured_is_refused(tmp_path: Path) -> None:
    import onnx
    from onnx import helper

    graph = helper.make_graph([], "g", [], [])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 99)]), tmp_path / "m.onnx")
    with pytest.raises(ArtifactError, match="got opset 99"):
        oldest_onnxruntime(tmp_path / "m.onnx")
