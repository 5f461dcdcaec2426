"""What each runtime opens in gpu-check, made for models of few layers with the calls and profiles of the large ones."""

from __future__ import annotations

import dataclasses
from importlib.util import find_spec
from pathlib import Path

import pytest

from attnport.artifacts import CASTS, Capabilities
from attnport.dims import parse_profile
from attnport.errors import EngineBuildError, ProfileError
from attnport.folder.machine import machine
from attnport.folder.workspace import open_folder
from attnport.latency.workloads import parse_grid
from attnport.verbs import gpu_check as verb
from attnport.verbs._gpu_models import SUBJECTS, Subject, bert_base, llama_part
from attnport.verbs.export import export
from attnport.verbs.gpu_check import GpuReport

SMALL = Path(__file__).parent.parent / "gpu_small.py"
LARGE = {"bert_encoder": bert_base, "llama_decoder": llama_part}


def there(name: str) -> Capabilities:
    return Capabilities(name, True, version="1", devices=("GPU",), plans=CASTS)


def small(subject: Subject) -> Subject:
    return dataclasses.replace(subject, spec=f"{SMALL}:{subject.name.partition('_')[0]}")


@pytest.mark.parametrize("subject", SUBJECTS, ids=lambda subject: subject.name)
def test_every_timed_call_lies_in_a_profile_and_in_the_contract(subject: Subject) -> None:
    io = LARGE[subject.name]().io
    profiles = [parse_profile(text, io.dims) for text in subject.profiles]
    calls = [sizes for grid in subject.grids for sizes in parse_grid(grid, io.dims)]
    assert calls
    for sizes in calls:
        assert sum(profile.admits(sizes) for profile in profiles) == 1, sizes
    with pytest.raises(ProfileError):
        parse_profile("batch=1:1:1000", io.dims)


def test_the_models_are_measured_at_the_sizes_that_are_asked_for() -> None:
    bert, llama = SUBJECTS
    calls = parse_grid(bert.grids[0], bert_base().io.dims)
    assert {(one["batch"], one["seq"]) for one in calls} == {(b, s) for b in (1, 8, 32) for s in (128, 512, 2048)}
    io = llama_part().io
    sizes = [one for grid in llama.grids for one in parse_grid(grid, io.dims)]
    totals = [(one["batch"], one["seq"] > 1, one["seq"] + one["past"]) for one in sizes]
    assert totals == [
        *((1, True, 512), (1, True, 1024), (8, True, 512), (1, True, 513)),  # prefill
        *((1, False, 2048), (8, False, 2048)),  # decode
    ]


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.skipif(not find_spec("tensorrt_rtx"), reason="tensorrt_rtx is not installed")
@pytest.mark.parametrize("subject", SUBJECTS, ids=lambda subject: subject.name)
def test_files_are_made_for_each_runtime_and_what_cannot_be_made_is_said(subject: Subject, tmp_path: Path) -> None:
    probed = {name: there(name) for name in ("torch_eager_cuda", "ort_cuda", "tensorrt_rtx")}
    probed["ort_tensorrt"] = Capabilities("ort_tensorrt", False, "it is not there.", "pip install it")
    export(small(subject).spec, tmp_path)

    def files(sm: int) -> tuple[dict[str, str], tuple[str, ...]]:
        report = GpuReport("0", "GPU", "torch_eager_cuda", machine(), {}, probed)
        path = tmp_path.parent / "gpu.json"
        silent = (lambda said: None,) * 3
        run = verb._Run(report, path, tmp_path.parent, list(probed), sm, None, {}, *silent)
        return run._files(tmp_path, subject, "fp16")

    fused, (note,) = files(130)
    assert list(fused) == ["ort_cuda", "tensorrt_rtx"]
    assert fused["tensorrt_rtx"] == "2/2"
    # A GPU newer than the builder's targets: the engine is built for the default list, and the report says so.
    assert "SM 130" in note
    assert "cannot target it" in note
    manifest = open_folder(tmp_path)
    assert [form.plan for form in manifest.forms.values()] == ["fp16", "fp16"]
    (record,) = manifest.engines.values()
    assert record.sm == ()
    assert len(record.profiles) == len(subject.profiles)

    assert files(89)[1] == ()
    assert {record.sm for record in open_folder(tmp_path).engines.values()} == {(), (89,)}


def test_a_form_that_cannot_be_made_is_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*given: object, **options: object) -> None:
        raise EngineBuildError("no tactic for node 3.", hint="Report it.")

    monkeypatch.setattr(verb, "build", refused)
    probed = {"tensorrt": there("tensorrt")}
    report = GpuReport("0", "GPU", "torch_eager_cuda", machine(), {}, probed)
    silent = (lambda said: None,) * 3
    run = verb._Run(report, tmp_path / "x", tmp_path, ["tensorrt"], 90, None, {}, *silent)
    assert run._files(tmp_path, SUBJECTS[0], "fp16") == ({}, ("tensorrt: no tactic for node 3. Report it.",))
