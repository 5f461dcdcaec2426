"""The build verb: what lies in the folder afterwards, what is skipped, and what a miss or a damage does."""

from __future__ import annotations

import dataclasses
import json
from importlib.util import find_spec
from pathlib import Path

import engine_graphs
import pytest
import tiny_attention as tiny
from click.testing import CliRunner
from decoders import exported

from attnport.artifacts import (
    FORMAT,
    EngineRecord,
    Form,
    FusionItem,
    FusionReport,
    FusionTable,
    Manifest,
    ParityReport,
    RuntimeParity,
    Source,
    SourceAttention,
)
from attnport.cli import cli
from attnport.errors import (
    ArtifactError,
    FusionMissing,
    IntegrityError,
    MissingDependency,
    ProfileError,
    UsageError,
)
from attnport.folder.workspace import change, check_files, create, open_folder
from attnport.jsonfile import digest_file, read, to_json
from attnport.verbs import build as verb
from attnport.verbs.build import build
from attnport.verbs.fuse import drop_forms, fuse, require_fused
from attnport.verbs.inspect import inspect

pytest.importorskip("tensorrt_rtx")
KEY = "tensorrt_rtx.fp16"
TEXT = "batch=1:2:4,seq=1:64:128"


def folder_with_form(
    folder: Path, dtype: str = "float16", plan: str = "fp16", anchors: dict[str, tuple[str, ...]] | None = None
) -> Path:
    """A folder as lowering leaves it: one form with one attention, and a table that no engine has proved yet."""
    key = f"tensorrt_rtx.{plan}"
    name = f"model.{key}.onnx"
    form = Form(
        "tensorrt_rtx", plan, name, 18, engine_graphs.ANCHORS if anchors is None else anchors, {"attn": "padding"}
    )
    item = FusionItem("attn", "products", "padding", None, False, "not recognised: it was hidden")
    table = FusionTable(1, 0, (item,), name, plan, None)
    other = dataclasses.replace(table, proved_by="ort_cpu")
    manifest = Manifest(
        format=FORMAT,
        attnport="",
        name="tiny",
        source=Source("tiny"),
        io=engine_graphs.contract(dtype),
        opset=23,
        attentions=(SourceAttention("attn", "attn", "scaled_dot_product_attention"),),
        tokenizer=None,
        versions={},
        files={},
        forms={key: form},
    )
    with create(folder, manifest) as edit:
        engine_graphs.decomposed(edit.path(name), dtype)
        tables = {"ort_cpu": other, "tensorrt_rtx" if plan == "fp16" else key: table}
        edit.path("fusion.json").write_text(to_json(FusionReport(tables)))
        edit.finish("fuse", "")
    return folder


def test_engine_record_table_and_manifest_agree(tmp_path: Path) -> None:
    folder = folder_with_form(tmp_path / "a")
    record, table = build(folder, "tensorrt-rtx", profiles=(TEXT,), sm=(89, 86))
    name = Path(record.file).name
    assert record.file.startswith("engines/tensorrt_rtx-fp16-sm86-sm89-")
    manifest = open_folder(folder)
    check_files(folder, manifest)
    assert manifest.engines == {name: record}
    assert read(EngineRecord, (folder / record.file).with_suffix(".json")) == record
    assert record.digest == digest_file(folder / record.file)
    assert [str(profile) for profile in record.profiles] == [TEXT]
    assert (record.form, record.plan, record.sm) == (KEY, "fp16", (86, 89))
    written = read(FusionReport, folder / "fusion.json").targets
    assert written["tensorrt_rtx"] == table
    assert written["ort_cpu"].proved_by == "ort_cpu"
    (item,) = table.items
    assert (table.fused, table.proved_by, table.file) == (1, record.file, f"model.{KEY}.onnx")
    assert (item.form, item.mask, item.kernel, item.reason) == ("products", "padding", "_gemm_mha_v2", "")
    assert "attn/softmax" in item.evidence
    require_fused({KEY: table})
    assert sorted(path.name for path in (folder / "engines").iterdir()) == [name, f"{Path(name).stem}.json"]


def test_the_command_prints_the_fusion_below_the_engine_and_one_json_document(tmp_path: Path) -> None:
    folder = folder_with_form(tmp_path / "a")
    words = ["build", str(folder), "--target", "tensorrt_rtx"]
    assert CliRunner().invoke(cli, words).stdout.endswith("\n1/1 attentions fused: _gemm_mha_v2\n")
    assert json.loads(CliRunner().invoke(cli, [*words, "--json"]).stdout)["target"] == "tensorrt_rtx"


def test_a_step_and_a_prompt_of_a_decoder_are_fused_in_one_profile(tmp_path: Path) -> None:
    folder = exported("llama", tmp_path)
    for profiles in ((), ("batch=1:1:4,seq=1:1:1,past=0:16:31",)):
        _, table = build(folder, "tensorrt_rtx", profiles=profiles)
        assert table.fused == table.attentions == 2


@pytest.mark.parametrize("file", ["parity.json", "parity.fp16.json"])
def test_a_form_that_failed_check_is_told_before_its_engine_is_built(tmp_path: Path, file: str) -> None:
    folder, told = folder_with_form(tmp_path / "a"), list[str]()
    row = RuntimeParity("FAIL", "fp16 overflows in layer 3", "fp16")
    with change(folder) as edit:
        edit.write(file, tiny.on(edit.manifest, ParityReport("FAIL", {}, {KEY: row})))
        edit.finish("check", "1")
    build(folder, "tensorrt-rtx", profiles=(TEXT,), tell=told.append)
    assert told == [f"{KEY} fails check, so that the engine will too: fp16 overflows in layer 3"]


def test_inspect_tells_of_an_engine_what_its_record_and_its_folder_know(tmp_path: Path) -> None:
    folder = folder_with_form(tmp_path / "a")
    record, _ = build(folder, "tensorrt_rtx", profiles=(TEXT,), sm=(89, 86))
    found = inspect(folder / record.file)
    assert (found.name, found.io) == ("tiny", engine_graphs.contract("float16"))
    shown = " ".join(str(found).split())
    for said in (
        f"TensorRT-RTX {record.version}, no other release",
        "compute capabilities 86, 89",
        "fp16, built of the form tensorrt_rtx.fp16",
        f"profile, min:opt:max {TEXT}",
        "attentions fused 1/1 attn _gemm_mha_v2",
        f"input {found.io.inputs[0] if found.io else ''}",
        "tensorrt_rtx NOT_RUN 1/1",
        "--runtime tensorrt_rtx",
    ):
        assert said in shown
    alone = tmp_path / "alone.engine"
    alone.write_bytes((folder / record.file).read_bytes())
    assert "profiles not known: the .json that build wrote" in " ".join(str(inspect(alone)).split())
    alone.with_suffix(".json").write_text(to_json(record))
    shown = " ".join(str(inspect(alone)).split())
    assert f"profile, min:opt:max {TEXT}" in shown
    assert "attentions fused" not in shown


def test_each_engine_of_a_form_keeps_its_proof_of_fusion_until_the_form_is_made_again(tmp_path: Path) -> None:
    folder = folder_with_form(tmp_path / "a")
    first, _ = build(folder, "tensorrt_rtx", profiles=(TEXT,))
    second, _ = build(folder, "tensorrt_rtx", profiles=("batch=1:2:2,seq=1:64:64",))

    def proved() -> dict[str, str | None]:
        tables = read(FusionReport, folder / "fusion.json").targets
        return {key: table.proved_by for key, table in tables.items() if key != "ort_cpu"}

    named = f"tensorrt_rtx.{Path(first.file).name}"
    assert proved() == {"tensorrt_rtx": second.file, named: first.file}
    assert {one.fused for one in inspect(folder).deploy if one.runtime == "tensorrt_rtx"} == {"1/1"}
    build(folder, "tensorrt_rtx", profiles=(TEXT,))
    assert proved() == {"tensorrt_rtx": first.file, f"tensorrt_rtx.{Path(second.file).name}": second.file}
    with change(folder) as edit:
        drop_forms(edit, [KEY])
        edit.finish("fuse", "")
    assert not proved()


def test_a_form_that_is_made_again_takes_the_proofs_of_its_engines_with_it(tiny_artifact: Path) -> None:
    tables = dict(fuse(tiny_artifact, ["onnx_18"]).targets)
    with change(tiny_artifact) as edit:
        tables["onnx_18.an.engine"] = dataclasses.replace(tables["onnx_18"], proved_by="engines/an.engine")
        edit.path("fusion.json").write_text(to_json(FusionReport(tables)))
        edit.finish("fuse", "")
    fuse(tiny_artifact, ["onnx_18"], force=True)
    del tables["onnx_18.an.engine"]
    assert read(FusionReport, tiny_artifact / "fusion.json").targets.keys() == tables.keys()


def test_form_that_is_not_there_is_made_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = folder_with_form(tmp_path / "a", "bfloat16", "bf16")
    with change(folder) as edit:
        forms = dict(edit.manifest.forms)
        edit.manifest = dataclasses.replace(edit.manifest, forms={})
        edit.finish("fuse", "")
    asked: list[object] = []

    def lower(place: Path, targets: object, **options: object) -> None:
        asked.append(targets)
        with change(place) as edit:
            edit.manifest = dataclasses.replace(edit.manifest, forms=forms)
            edit.finish("fuse", "")

    monkeypatch.setattr("attnport.verbs.fuse.fuse", lower)
    record, table = build(folder, "tensorrt_rtx", "BFloat16")
    assert asked == [["tensorrt_rtx.bf16"]]
    assert (record.form, table.fused) == ("tensorrt_rtx.bf16", 1)


def test_second_build_is_skipped_until_something_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = folder_with_form(tmp_path / "a")
    first = build(folder, "tensorrt_rtx", profiles=(TEXT,))
    said: list[str] = []
    assert build(folder, "tensorrt_rtx", profiles=(TEXT,), progress=said.append) == first
    assert said == []
    for options in ({"profiles": (TEXT,), "force": True}, {"profiles": ()}, {"profiles": (TEXT,), "sm": (120,)}):
        build(folder, "tensorrt_rtx", progress=said.append, **options)  # type: ignore[arg-type]
        assert said.pop() == "reading the proof of fusion"
    monkeypatch.setattr(verb, "build_engine", lambda *_args, **_options: pytest.fail("it was built again"))
    build(folder, "tensorrt_rtx", profiles=(TEXT,), sm=(120,))
    with pytest.raises(pytest.fail.Exception, match="built again"):
        build(folder, "tensorrt_rtx", profiles=(TEXT,))


def test_engine_whose_proof_was_replaced_is_built_again(tmp_path: Path) -> None:
    folder = folder_with_form(tmp_path / "a")
    record, table = build(folder, "tensorrt_rtx", profiles=(TEXT,))
    with change(folder) as edit:
        lowered = dataclasses.replace(table, proved_by="tensorrt_rtx engine", fused=0)
        edit.path("fusion.json").write_text(to_json(FusionReport({"tensorrt_rtx": lowered})))
        edit.finish("fuse", "again")
    again, proved = build(folder, "tensorrt_rtx", profiles=(TEXT,))
    assert (again.file, proved) == (record.file, table)
    assert read(FusionReport, folder / "fusion.json").targets["tensorrt_rtx"] == table


def test_unfused_attention_is_written_with_its_reason_and_required_fusion_is_missing(tmp_path: Path) -> None:
    folder = folder_with_form(tmp_path / "a", "float32", "fp32")
    record, table = build(folder, "tensorrt_rtx", "fp32")
    assert (folder / record.file).is_file()
    assert table.fused == 0
    assert table.items[0].reason.startswith("no single attention kernel covers it: attn/qk in ")
    assert read(FusionReport, folder / "fusion.json").targets["tensorrt_rtx.fp32"] == table
    with pytest.raises(FusionMissing, match=r" 0/1\. .*no single attention kernel") as caught:
        require_fused({KEY: table})
    assert caught.value.exit_code == 5


def test_attention_without_anchors_keeps_the_reason_of_lowering(tmp_path: Path) -> None:
    _, table = build(folder_with_form(tmp_path / "a", anchors={}), "tensorrt_rtx")
    assert table.items[0].reason == "not recognised: it was hidden"
    with pytest.raises(FusionMissing, match="it was hidden"):
        require_fused({KEY: table})


def test_table_that_counts_more_than_it_lists_is_not_fused(tmp_path: Path) -> None:
    _, table = build(folder_with_form(tmp_path / "a"), "tensorrt_rtx")
    for lie in (dataclasses.replace(table, items=()), dataclasses.replace(table, attentions=2, fused=2)):
        with pytest.raises(FusionMissing):
            require_fused({KEY: lie})


def test_where_no_attention_is_counted_none_is_fused(tmp_path: Path) -> None:
    _, table = build(folder_with_form(tmp_path / "a"), "tensorrt_rtx")
    with pytest.raises(FusionMissing, match="no attention was counted"):
        require_fused({KEY: dataclasses.replace(table, attentions=0, fused=0, items=())})


def test_form_that_was_changed_is_refused_and_nothing_is_built(tmp_path: Path) -> None:
    folder = folder_with_form(tmp_path / "a")
    form = folder / f"model.{KEY}.onnx"
    form.write_bytes(form.read_bytes()[:-30])
    with pytest.raises(IntegrityError, match="digest differs"):
        build(folder, "tensorrt_rtx")
    assert not (folder / "engines").exists()


@pytest.mark.parametrize(
    ("profile", "message"),
    [
        ("seq=8:4:16", "min <= opt <= max"),
        ("sequence=1:8:16", "got dim 'sequence'"),
        ("seq=1:8:512", "takes seq from 1 to 256"),
    ],
)
def test_bad_profile_is_refused_before_anything_is_done(tmp_path: Path, profile: str, message: str) -> None:
    folder = folder_with_form(tmp_path / "a")
    with pytest.raises(ProfileError, match=message):
        build(folder, "tensorrt_rtx", profiles=(profile,))


def test_failed_build_leaves_the_earlier_engine(tmp_path: Path) -> None:
    folder = folder_with_form(tmp_path / "a")
    record, _ = build(folder, "tensorrt_rtx")
    before = (folder / "attnport.json").read_bytes()
    with pytest.raises(UsageError, match="cannot target it"):
        build(folder, "tensorrt_rtx", sm=(90,))
    assert (folder / "attnport.json").read_bytes() == before
    check_files(folder, open_folder(folder))
    assert (folder / record.file).is_file()


def test_target_without_engines_and_folder_without_artifact(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no engine is built for it"):
        build(tmp_path, "openvino")
    with pytest.raises(ArtifactError, match="no artifact"):
        build(tmp_path, "tensorrt_rtx")


@pytest.mark.skipif(find_spec("tensorrt"), reason="tensorrt is installed")
def test_flavour_that_is_not_installed_is_said_before_lowering(tmp_path: Path) -> None:
    with pytest.raises(MissingDependency, match="tensorrt is not installed"):
        build(folder_with_form(tmp_path / "a"), "tensorrt")
