from __future__ import annotations

import dataclasses
import json
import re
import shutil
import time
from collections.abc import Callable, Collection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnx_ir as ir
import pytest

from attnport.artifacts import FusionItem, FusionTable
from attnport.errors import ArtifactError, FusionMissing, IntegrityError, UnavailableError
from attnport.exporter.fusion.recognise import Attention
from attnport.exporter.targets import base as lowerings
from attnport.exporter.targets.base import BLOCKS, REAL_TOKENS, Written
from attnport.folder.workspace import open_folder
from attnport.verbs import fuse as verb
from attnport.verbs.export import export
from attnport.verbs.fuse import earlier_tables, fuse, require_fused

MODEL = Path(__file__).parent.parent / "ship_model.py"
LAYERS = MODEL.with_name("layered_model.py")


@pytest.fixture(scope="module")
def _exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fuse") / "out"
    export(f"{MODEL}:spec", folder)
    return folder


@pytest.fixture
def folder(_exported: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(_exported, tmp_path / "out"))


@pytest.mark.slow
def test_a_target_that_nothing_here_can_prove_is_not_proven_and_names_no_place(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(runtime: object) -> None:
        raise UnavailableError(f"{folder.resolve()}/libx.so cannot be loaded")

    assert str(fuse(folder, targets=["ort_cpu"]).targets["ort_cpu"]) == "1/1"
    monkeypatch.setattr(verb.runtimes, "available", missing)
    report = fuse(folder, targets=["ort_cpu"], force=True)
    table = report.targets["ort_cpu"]
    assert (table.proved_by, table.fused, str(table)) == (None, 0, "not proven")
    assert table.items[0].reason == "not proven: libx.so cannot be loaded"
    assert json.loads((folder / "fusion.json").read_text())["targets"]["ort_cpu"]["proved_by"] is None
    assert table.unavailable == "libx.so cannot be loaded"


def test_a_proof_that_is_not_available_here_is_no_missing_fusion_unless_something_else_is() -> None:
    item = FusionItem("one", "Attention", "padding", None, False, "not proven: no GPU")
    table = FusionTable(1, 0, (item,), "model.ort_cuda.onnx", "fp32", None, unavailable="no GPU.")
    with pytest.raises(UnavailableError, match=r"cannot be told here: ort_cuda: no GPU\.$"):
        require_fused({"ort_cuda": table})
    kept = dataclasses.replace(table, items=(dataclasses.replace(item, form="as exported"),))
    unfused = dataclasses.replace(table, unavailable="", proved_by="ort_cpu")
    for tables in ({"ort_cuda": kept}, {"ort_cuda": table, "ort_cpu": unfused}):
        with pytest.raises(FusionMissing):
            require_fused(tables)


def test_tables_that_were_changed_are_made_again_and_taken_by_nobody(folder: Path) -> None:
    fuse(folder, targets=["ort_cpu", "onnx"])
    file = folder / "fusion.json"
    for spoilt in (file.read_text().replace('"fused": true', '"fused": false'), "{"):
        file.write_text(spoilt)
        with pytest.raises(IntegrityError):
            earlier_tables(folder, open_folder(folder))
        assert set(fuse(folder, targets=["ort_cpu"]).targets) == {"ort_cpu"}  # the other is not believed
        made = fuse(folder, targets=["ort_cpu", "onnx"])
        assert {key: str(table) for key, table in made.targets.items()} == {"ort_cpu": "1/1", "onnx": "1/1"}
        assert earlier_tables(folder, open_folder(folder)) == made.targets


def test_the_time_of_the_stage_is_that_of_lowering_and_proving(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prove = verb._Fusing.prove

    def slowly(*arguments: Any) -> FusionTable:
        time.sleep(0.3)
        return prove(*arguments)

    monkeypatch.setattr(verb._Fusing, "prove", slowly)
    fuse(folder, targets=["onnx"])
    assert open_folder(folder).stages["fuse:onnx"].seconds >= 0.3


@pytest.fixture(scope="module")
def layers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("layers") / "out"
    export(f"{LAYERS}:spec", folder)
    return folder


def spoil(monkeypatch: pytest.MonkeyPatch, names: Collection[str], fault: Callable[[Written], None]) -> None:
    """Lets `ort_cpu` write a fault into the attentions with these names."""
    lowering = type(lowerings.get("ort_cpu"))
    write = lowering.write

    def faulty(self: object, build: object, masks: object, attention: Attention, plan: str) -> Written:
        written = write(self, build, masks, attention, plan)
        if attention.name in names:
            fault(written)
        return written

    monkeypatch.setattr(lowering, "write", faulty)


def unknown_operator(written: Written) -> None:
    node = written.output.producer()
    assert node is not None
    node.op_type = "NoSuchOperator"


def bad_index(written: Written) -> None:
    raise KeyError("batch")


@pytest.mark.parametrize(
    ("fault", "spoilt", "reason"),
    [
        (unknown_operator, [0, 2], "^it stays as exported: ort_cpu does not run the form: .*NoSuchOperator"),
        (bad_index, [1], "^it stays as exported: writing its form failed, please report it: KeyError: 'batch'"),
    ],
)
def test_an_attention_whose_form_is_refused_stays_as_exported_and_the_others_are_fused(
    fault: Callable[[Written], None],
    spoilt: list[int],
    reason: str,
    layers: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = Path(shutil.copytree(layers, tmp_path / "out"))
    names = [attention.name for attention in open_folder(folder).attentions]
    spoil(monkeypatch, [names[at] for at in spoilt], fault)
    table = fuse(folder, targets=["ort_cpu"]).targets["ort_cpu"]
    assert [at for at, item in enumerate(table.items) if not item.fused] == spoilt
    for item in table.items:
        assert re.search(reason if not item.fused else "^$", item.reason), item.reason
        assert (item.form == "as exported") == (not item.fused)
    assert table.proved_by == "ort_cpu"
    assert str(tmp_path) not in table.items[spoilt[0]].reason


def test_real_tokens_that_the_runtime_refuses_are_left_out_and_every_attention_is_fused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def spoilt(model: ir.Model, *more: object) -> str:
        model.graph[-1].op_type = "NoSuchOperator"
        return ""

    monkeypatch.setattr(lowerings, "run_real_tokens", spoilt)
    table = fuse(folder, targets=["ort_cpu"]).targets["ort_cpu"]
    assert str(table) == "1/1"
    assert "NoSuchOperator" in table.padding["attention_mask"]


NAMES = [f"layer.{at}" for at in range(40)]
Parts = dict[str, str]


@pytest.mark.parametrize(
    ("refused", "left_out"),
    [
        (lambda lowered: False, []),
        (lambda lowered: "layer.7" in lowered, ["layer.7"]),
        (lambda lowered: BLOCKS in lowered, [BLOCKS]),
        (lambda lowered: REAL_TOKENS in lowered and "layer.0" in lowered, [REAL_TOKENS]),
        (lambda lowered: {BLOCKS, REAL_TOKENS} & lowered and "layer.0" in lowered, [BLOCKS, REAL_TOKENS]),
        (lambda lowered: bool(lowered & set(NAMES)), NAMES),
        (lambda lowered: True, []),
    ],
    ids=["none", "one", "blocks", "real_tokens", "either_step", "each", "the_model"],
)
def test_the_search_for_what_is_refused_ends_with_a_form_that_runs(
    refused: Callable[[set[str]], bool], left_out: list[str]
) -> None:
    form, problem, tries = search(refused)
    assert (set(form), problem) == (set(left_out), "no" if refused(set()) else "")
    assert set(form.values()) <= {"no"}
    assert tries <= verb.MOST_TRIES + 2


def test_what_is_refused_only_together_is_not_all_left_out() -> None:
    form, _, tries = search(lambda lowered: len(lowered & set(NAMES)) > 1)
    assert len(set(NAMES) - set(form)) == 1
    assert tries <= verb.MOST_TRIES + 2


def search(refused: Callable[[set[str]], bool]) -> tuple[Parts, str, int]:
    """What is left out with which reasons, the reason why nothing is proved, and the number of attempts."""
    tried: list[Parts] = []

    def attempt(without: Parts, problem: str = "") -> tuple[Parts, str]:
        tried.append(without)
        if not problem and refused({BLOCKS, REAL_TOKENS, *NAMES} - without.keys()):
            raise verb._Refused("no")
        return without, problem

    return *verb._accepted(attempt, [BLOCKS, REAL_TOKENS], NAMES), len(tried)


def test_a_model_without_attention_that_the_runtime_refuses_is_an_error() -> None:
    def attempt(without: Parts) -> None:
        raise verb._Refused("ort_cpu does not run the form: why")

    with pytest.raises(ArtifactError, match="why"):
        verb._accepted(attempt, [], [])


def test_a_model_that_the_runtime_refuses_ends_nothing_and_every_attention_has_the_reason(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def spoilt(model: ir.Model) -> None:
        model.graph[-1].op_type = "NoSuchOperator"

    monkeypatch.setattr(lowerings, "apply_all", spoilt)
    report = fuse(folder, targets=["ort_cpu", "onnx"])
    for key in ("ort_cpu", "onnx"):
        (item,) = report.targets[key].items
        assert (report.targets[key].proved_by, item.fused) == (None, False)
        assert "NoSuchOperator" in item.reason
    with pytest.raises(FusionMissing, match="NoSuchOperator"):
        require_fused({"ort_cpu": report.targets["ort_cpu"]})


@pytest.mark.parametrize(
    ("forms", "said"),
    [
        ({"a": "Attention"}, "ort_cpu runs it as several kernels; not in blocks: the mask has no window"),
        ({}, "not in blocks: the mask has no window"),
    ],
)
def test_an_attention_that_is_not_proved_has_the_runtimes_reason_and_that_of_its_form(
    forms: dict[str, str], said: str
) -> None:
    attention = SimpleNamespace(name="a")
    lowered: Any = SimpleNamespace(
        forms=forms, masks={}, notes={"a": "not in blocks: the mask has no window"}, costs={}
    )
    manifest: Any = SimpleNamespace(attentions=(attention,))
    (item,) = verb._items(manifest, lowered, {}, "ort_cpu runs it as several kernels")
    assert item.reason == said
