"""Engines and forms of other runtimes in a bundle: what is said of each, and which of them may be in one."""

from __future__ import annotations

import dataclasses
import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tiny_attention as tiny
from bundle_folders import tree
from pretended_gpu import engine_bytes

from attnport.artifacts import EngineRecord, Form, ParityReport, Ran, RuntimeParity, Verdict
from attnport.bundling.readme import package_of
from attnport.dims import Profile, parse_profile
from attnport.errors import ArtifactError, IntegrityError, ParityFailed, UsageError
from attnport.folder.workspace import change
from attnport.verbs import check as checking
from attnport.verbs.bundle import bundle
from attnport.verbs.inspect import inspect
from attnport_bundle import load
from attnport_bundle.format import manifest

VERSION, SM_86 = "1.0.0.9", 1 << 2
ENGINE = engine_bytes(VERSION, SM_86)
NAME = "tensorrt_rtx-fp16-sm86-0.engine"
FORM = "tensorrt_rtx.fp16"
NARROW = Profile(parse_profile("batch=1:2:4,seq=1:4:8", tiny.IO.dims).dims)


def half_model(folder: Path) -> bytes:
    """The model with outputs in float16, as the form of a half-precision plan has them; it is never run."""
    model = onnx.load(folder / "model.onnx", load_external_data=False)
    for value in model.graph.output:
        value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT16
    data: bytes = model.SerializeToString()
    return data


def record(**changes: Any) -> EngineRecord:
    whole = EngineRecord(
        target="tensorrt_rtx", plan="fp16", file=f"engines/{NAME}", form=FORM, sm=(86,), profiles=(NARROW,),
        version=VERSION, digest="0" * 64, size_bytes=99, scratch_bytes=0,
    )  # fmt: skip
    return dataclasses.replace(whole, **changes)


def found(verdict: Verdict, ran: Ran | None = None, plan: str = "fp32") -> RuntimeParity:
    return RuntimeParity(verdict, "as told", plan, ran)


def report(runtimes: dict[str, RuntimeParity], forms: dict[str, RuntimeParity]) -> ParityReport:
    known = tiny.parity()
    return ParityReport("PASS", {**known.runtimes, **runtimes}, {**known.forms, **forms})


def widen(folder: Path, parity: ParityReport, **engines: EngineRecord) -> Path:
    """Adds the forms `onnx` and `openvino`, the fp16 form of TensorRT-RTX, and its engine."""
    with change(folder) as edit:
        for target in ("onnx", "openvino"):
            edit.path(f"model.{target}.onnx").write_bytes((folder / "model.onnx").read_bytes())
        edit.path(f"model.{FORM}.onnx").write_bytes(half_model(folder))
        records = {NAME: record(), **engines}
        for one in records.values():
            edit.path(one.file).write_bytes(ENGINE)
        forms = {
            **edit.manifest.forms,
            **{target: Form(target, "fp32", f"model.{target}.onnx", 23) for target in ("onnx", "openvino")},
            FORM: Form("tensorrt_rtx", "fp16", f"model.{FORM}.onnx", 23),
        }
        edit.manifest = dataclasses.replace(edit.manifest, forms=forms, engines=records)
        edit.finish("build", "1")
    return tiny.judged(folder, parity)


UNRUN = report({"tensorrt_rtx": found("NOT_RUN"), "openvino": found("PASS")}, {FORM: found("PASS", plan="fp16")})


@pytest.fixture
def wide(artifact: Path) -> Path:
    return widen(artifact, UNRUN)


def test_an_engine_that_ran_nowhere_is_graph_only_and_says_what_it_needs(wide: Path, tmp_path: Path) -> None:
    app = bundle(wide, tmp_path / "app", forms=["tensorrt-rtx", "ort_cpu"])
    read = manifest.read(app)
    form = read.forms[NAME]
    assert read.order == (NAME, "ort_cpu")
    assert (form.runtime, form.provider, form.plan, form.external) == ("tensorrt_rtx", None, "fp16", ())
    assert form.proof == "graph-only"
    assert (form.parity.verdict, form.parity.runtime, form.parity.graph) == ("PASS", "NOT_RUN", "PASS")
    assert form.requires == manifest.Requires("1.0.0.9", True, None, (86,))
    assert [[dataclasses.astuple(dim) for dim in one.dims] for one in form.profiles] == [
        [("batch", 1, 2, 4, 1), ("seq", 1, 4, 8, 1)]
    ]
    assert form.dtypes == {"ids": "int64", "attention_mask": "int64", "hidden": "float16", "pooled": "float16"}
    assert form.fusion is None, "what was proved was proved of another file"
    assert (app / "engines" / NAME).read_bytes() == ENGINE
    assert f"model.{FORM}.onnx" not in read.files
    assert inspect(app).graph is None, "an engine has none that can be shown"
    page = (app / "README.md").read_text()
    assert "`numpy` and one of `tensorrt-rtx`, `onnxruntime`;" in page
    assert "pip install numpy tensorrt-rtx\n" in page
    assert "    cd python && python -m attnport_bundle warm\n" in page
    assert not read.unverified
    assert read.forms["ort_cpu"].proof == "device"
    with load(app, form="ort_cpu") as model:
        assert model.form == "ort_cpu"


@pytest.mark.parametrize(
    ("runtime", "provider", "package"),
    [
        ("onnxruntime", "CPUExecutionProvider", "onnxruntime"),
        ("onnxruntime", "CUDAExecutionProvider", "onnxruntime-gpu[cuda,cudnn]"),
        ("openvino", None, "openvino"),
        ("tensorrt", None, "tensorrt"),
    ],
)
def test_a_form_needs_the_package_of_its_runtime(runtime: str, provider: str | None, package: str) -> None:
    assert package_of(runtime, provider) == package


def test_each_plan_has_bounds_of_its_own(wide: Path, tmp_path: Path, arrays: dict[str, Any]) -> None:
    read = manifest.read(bundle(wide, tmp_path / "app", forms=["tensorrt_rtx", "ort_cpu"]))
    by = {(one.plan, one.case, one.output): one for one in read.goldens.bounds}
    assert {plan for plan, _, _ in by} == {"fp16", "fp32"}
    valid = arrays["golden-0/valid/hidden"]
    reference = arrays["golden-0/out/hidden"][valid]
    for plan, eager, eps in (("fp16", "eager.fp16", 2**-10), ("fp32", "eager", 2**-23)):
        error = arrays[f"golden-0/{eager}/hidden"][valid].astype(np.float64) - reference
        expected = 4 * tiny.rms(error) + 4 * eps * tiny.rms(reference)
        assert by[plan, "golden-0", "hidden"].rms_bound == pytest.approx(expected)
    alone = manifest.read(bundle(wide, tmp_path / "alone", forms=["ort_cpu"]))
    assert {one.plan for one in alone.goldens.bounds} == {"fp32"}


def test_an_engine_that_passed_on_its_device_says_so(artifact: Path, tmp_path: Path) -> None:
    ran = Ran("an RTX", "tensorrt_rtx 1.0", "fp16")
    widen(artifact, report({"tensorrt_rtx": found("PASS", ran, "fp16")}, {FORM: found("PASS", plan="fp16")}))
    form = manifest.read(bundle(artifact, tmp_path / "app", forms=[NAME])).forms[NAME]
    assert form.proof == "device"
    assert form.parity.ran == Ran("an RTX", "tensorrt_rtx 1.0", "fp16")


def test_a_case_that_was_not_judged_is_none_of_what_was_measured(artifact: Path, tmp_path: Path) -> None:
    judged = tiny.parity().runtimes["ort_cpu"].cases[0]
    beyond = dataclasses.replace(judged, case="large values", verdict="NOT_RUN", rms_error=68.0, max_error=99.0)
    graph = dataclasses.replace(found("PASS", plan="fp16"), cases=(judged, beyond))
    widen(artifact, report({}, {FORM: graph}))
    form = manifest.read(bundle(artifact, tmp_path / "app", forms=[NAME])).forms[NAME]
    assert [one.case for one in form.parity.results] == [judged.case]


def test_an_engine_without_a_verdict_is_checked_first(
    artifact: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def check(folder: Path, runtimes: list[str], **_: Any) -> None:
        assert "tensorrt_rtx" in runtimes
        tiny.judged(folder, UNRUN)

    widen(artifact, report({}, {}))
    monkeypatch.setattr(checking, "check", check)
    read = manifest.read(bundle(artifact, tmp_path / "app", forms=[NAME]))
    assert (read.unverified, read.forms[NAME].parity.verdict) == (False, "PASS")


@pytest.mark.parametrize(("runtime", "graph"), [("FAIL", "PASS"), ("NOT_RUN", "FAIL"), ("PASS", "FAIL")])
def test_an_engine_that_failed_anywhere_is_never_bundled(
    artifact: Path, tmp_path: Path, runtime: Verdict, graph: Verdict
) -> None:
    widen(artifact, report({"tensorrt_rtx": found(runtime)}, {FORM: found(graph)}))
    with pytest.raises(ParityFailed, match=f"engine {NAME} failed parity: as told"):
        bundle(artifact, tmp_path / "app", forms=[NAME], unverified=True)


def test_an_engine_that_nobody_looked_at_needs_unverified(artifact: Path, tmp_path: Path) -> None:
    widen(artifact, report({}, {}))
    with pytest.raises(ParityFailed, match="has no parity verdict"):
        bundle(artifact, tmp_path / "app", forms=[NAME])
    read = manifest.read(bundle(artifact, tmp_path / "app", forms=[NAME], unverified=True))
    assert (read.unverified, read.forms[NAME].proof) == (True, "graph-only")


def test_a_verdict_on_another_form_of_an_engine_does_not_count(wide: Path, tmp_path: Path) -> None:
    tiny.judged(wide, UNRUN, **{f"model.{FORM}.onnx": "of another"})
    with pytest.raises(ParityFailed, match="made again after parity was checked"):
        bundle(wide, tmp_path / "app", forms=[NAME])


def test_of_several_engines_one_is_named(artifact: Path, tmp_path: Path) -> None:
    other = record(file="engines/other.engine")
    verdicts = {f"tensorrt_rtx.{name}": found(verdict) for name, verdict in ((NAME, "PASS"), ("other", "NOT_RUN"))}  # type: ignore[arg-type]  # a Literal in a loop
    widen(artifact, report(verdicts, {FORM: found("PASS")}), other=other)
    for named, what in (("tensorrt_rtx", "target"), (FORM, "form")):
        with pytest.raises(UsageError, match=f"{what} {named} has 2 engines") as caught:
            bundle(artifact, tmp_path / "app", forms=[named])
        assert caught.value.hint == f"Choose: --form {NAME} or --form other"
    read = manifest.read(bundle(artifact, tmp_path / "app", forms=["other", NAME]))
    assert [read.forms[name].proof for name in read.order] == ["graph-only", "device"]


def test_an_engine_is_named_by_its_form_as_well(artifact: Path, tmp_path: Path) -> None:
    widen(artifact, report({f"tensorrt_rtx.{NAME}": found("PASS")}, {FORM: found("PASS")}))
    with change(artifact) as edit:
        engines, forms = edit.manifest.engines, edit.manifest.forms
        wide = dataclasses.replace(engines[NAME], form="tensorrt_rtx.bf16")
        edit.manifest = dataclasses.replace(
            edit.manifest, engines={**engines, "wide": wide}, forms={**forms, "tensorrt_rtx.bf16": forms[FORM]}
        )
        edit.finish("build", "2")
    with pytest.raises(UsageError) as caught:
        bundle(artifact, tmp_path / "app", forms=["tensorrt_rtx"])
    assert caught.value.hint == f"Choose: --form {FORM} or --form tensorrt_rtx.bf16"
    assert manifest.read(bundle(artifact, tmp_path / "app", forms=["tensorrt-rtx.FP16"])).order == (NAME,)


def test_an_engine_whose_header_is_not_its_records_is_refused(wide: Path, tmp_path: Path) -> None:
    for data, error in ((engine_bytes("9.9.9.9", SM_86), IntegrityError), (b"no engine at all", ArtifactError)):
        with change(wide) as edit:
            edit.path(f"engines/{NAME}").write_bytes(data)
            edit.finish("build", "2")
        tiny.judged(wide, UNRUN)
        with pytest.raises(error):
            bundle(wide, tmp_path / "app", forms=[NAME])


def test_an_engine_that_no_golden_case_fits_is_refused(artifact: Path, tmp_path: Path) -> None:
    large = Profile(parse_profile("batch=8,seq=16", tiny.IO.dims).dims)
    widen(artifact, UNRUN, **{NAME: record(profiles=(large,))})
    with pytest.raises(UsageError, match="no golden case has sizes inside one of its profiles") as caught:
        bundle(artifact, tmp_path / "app", forms=[NAME])
    assert "batch=2,seq=5" in caught.value.hint


def test_a_form_has_no_bound_before_check_ran_pytorch_at_its_plan(
    wide: Path, arrays: dict[str, Any], tmp_path: Path
) -> None:
    with change(wide) as edit, edit.path("golden.npz").open("wb") as file:
        np.savez(file, **{name: array for name, array in arrays.items() if "eager.fp16" not in name})
        edit.finish("export", "1")
    with pytest.raises(ArtifactError, match=r"golden\.npz lacks golden-0/eager\.fp16/hidden") as caught:
        bundle(wide, tmp_path / "app", forms=[NAME])
    assert "Run attnport check" in caught.value.hint
    bundle(wide, tmp_path / "app", forms=["ort_cpu"])


@pytest.mark.parametrize(("provider", "proof"), [("CPUExecutionProvider", "device"), ("onnx_reference", "graph-only")])
def test_the_portable_form_is_proved_by_the_runtime_that_opens_it(
    artifact: Path, tmp_path: Path, provider: str, proof: str
) -> None:
    widen(artifact, report({}, {"onnx": found("PASS", Ran("CPU", provider, "fp32"))}))
    app = bundle(artifact, tmp_path / "app", forms=["onnx"])
    assert manifest.read(app).forms["onnx"].proof == proof
    with load(app, cache=tmp_path / "cache") as model:
        assert model.form == "onnx"


def test_a_form_of_openvino_names_its_release_and_runs(wide: Path, tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    app = bundle(wide, tmp_path / "app", forms=["openvino", "ort_cpu"])
    form = manifest.read(app).forms["openvino"]
    assert (form.runtime, form.provider, form.proof) == ("openvino", None, "device")
    assert form.requires == manifest.Requires("2026.4", False, 23, ())
    feeds = tiny.feeds([4, 6], 3)
    with load(app) as model, load(app, form="ort_cpu") as other:
        assert model.form == "openvino"
        np.testing.assert_allclose(model.run(**feeds)["pooled"], other.run(**feeds)["pooled"], rtol=0, atol=1e-5)


def test_equal_inputs_give_equal_bytes_in_processes_that_hash_differently(wide: Path, tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from attnport.verbs.bundle import bundle; "
        "forms = ['openvino', 'tensorrt_rtx', 'ort_cpu', 'onnx']; "
        "bundle(Path(sys.argv[1]), Path(sys.argv[2]), forms=forms, unverified=True)"
    )
    made = []
    for seed in ("0", "1"):
        app = tmp_path / f"app{seed}"
        subprocess.run(
            [sys.executable, "-c", program, str(wide), str(app)],
            env={**os.environ, "PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
        )
        made.append(tree(app))
    assert made[0] == made[1]


def test_the_commands_are_told_without_the_builders_folders(wide: Path, tmp_path: Path) -> None:
    tiny.edit_source(
        wide, text="/" + "home/alice/secret/model.py:make", inputs=("x=float32[batch]",), dims=("batch=1:2:8",)
    )
    app = bundle(wide, tmp_path / "app", forms=["tensorrt_rtx", "ort_cpu"])
    assert [shlex.join(command) for command in manifest.read(app).provenance.commands] == [
        "attnport export model.py:make --input 'x=float32[batch]' --dim batch=1:2:8 -o out/",
        "attnport fuse out/ --target tensorrt_rtx --precision fp16",
        "attnport build out/ --target tensorrt_rtx --precision fp16 --profile batch=1:2:4,seq=1:4:8 --sm 86",
        "attnport fuse out/ --target ort_cpu",
    ]
    assert not [path for path in app.rglob("*") if path.is_file() and b"alice" in path.read_bytes()]


def test_text_of_a_runtime_that_no_reader_takes_is_made_plain(artifact: Path, tmp_path: Path) -> None:
    widen(artifact, report({"ort_cpu": dataclasses.replace(found("PASS"), reason="a\n\x1b[31mred" + "x" * 2000)}, {}))
    reason = manifest.read(bundle(artifact, tmp_path / "app")).forms["ort_cpu"].parity.reason
    assert reason.startswith("a [31mredxxx")
    assert len(reason) == 1000


def test_a_changed_engine_is_refused(wide: Path, tmp_path: Path) -> None:
    (wide / "engines" / NAME).write_bytes(ENGINE[:-1] + b"!")
    with pytest.raises(IntegrityError, match=NAME):
        bundle(wide, tmp_path / "app", forms=[NAME])
    shutil.rmtree(wide / "engines")
    with pytest.raises(IntegrityError, match=NAME):
        bundle(wide, tmp_path / "app", forms=[NAME])


def test_what_a_writer_says_is_what_is_in_the_file(wide: Path, tmp_path: Path) -> None:
    app = bundle(wide, tmp_path / "app", forms=["tensorrt_rtx"])
    told = json.loads((app / "bundle.json").read_text())["forms"][NAME]
    assert list(told) == [field.name for field in dataclasses.fields(manifest.Form)]
