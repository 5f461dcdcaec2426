"""What each runtime opens in gpu-check, made for models of few layers with the calls and profiles of the large ones."""

from __future__ import annotations

import dataclasses
import math
from importlib.util import find_spec
from pathlib import Path

import pytest

from attnport.artifacts import CASTS, Capabilities
from attnport.dims import parse_profile
from attnport.errors import EngineBuildError, ProfileError
from attnport.folder.workspace import open_folder
from attnport.latency.workloads import parse_grid
from attnport.verbs import gpu_check as verb
from attnport.verbs._gpu_models import SUBJECTS, Subject, bert_base, llama_part
from attnport.verbs.export import export

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
    checked = [sizes for grid in subject.checked for sizes in parse_grid(grid, io.dims)]
    for sizes in calls:
        elements = max(math.prod(spec.shape(sizes)) for spec in io.outputs)
        assert (sizes in checked) == (elements <= 1 << 24), sizes
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
        *((1, True, 512), (1, True, 1024), (1, True, 513)),  # prefill
        *((1, False, 2048), (8, False, 2048)),  # decode
        (8, True, 512),
    ]


def run_of(output: Path, probed: dict[str, Capabilities], sm: int) -> verb._Run:
    return verb._Run(output, list(probed), probed, sm, cold=False, force=False, progress=lambda message: None)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.skipif(not find_spec("tensorrt_rtx"), reason="tensorrt_rtx is not installed")
@pytest.mark.parametrize("subject", SUBJECTS, ids=lambda subject: subject.name)
def test_files_are_made_for_each_runtime_on_the_gpu_that_is_there(subject: Subject, tmp_path: Path) -> None:
    probed = {name: there(name) for name in ("torch_eager_cuda", "ort_cuda", "tensorrt_rtx")}
    probed["ort_tensorrt"] = Capabilities("ort_tensorrt", False, "it is not there.", "pip install it")
    export(small(subject).spec, tmp_path)

    def fused(sm: int) -> dict[str, str]:
        found, notes = run_of(tmp_path.parent, probed, sm)._files(tmp_path, subject, "fp16")
        assert notes == ()
        return found

    assert list(fused(130)) == ["ort_cuda", "tensorrt_rtx"]
    assert fused(89)["tensorrt_rtx"] == "2/2"
    manifest = open_folder(tmp_path)
    assert [form.plan for form in manifest.forms.values()] == ["fp16", "fp16"]
    assert {len(record.profiles) for record in manifest.engines.values()} == {len(subject.profiles)}
    # A GPU newer than the builder's targets gets the engine of its default list.
    assert {record.sm for record in manifest.engines.values()} == {(), (89,)}


def test_a_form_that_cannot_be_made_is_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*given: object, **options: object) -> None:
        raise EngineBuildError("no tactic for node 3.", hint="Report it.")

    monkeypatch.setattr(verb, "build", refused)
    run = run_of(tmp_path, {"tensorrt": there("tensorrt")}, 90)
    assert run._files(tmp_path, SUBJECTS[0], "fp16") == ({}, ("tensorrt: no tactic for node 3. Report it.",))
