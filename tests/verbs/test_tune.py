"""`tune` on a small model: every candidate is judged and timed, and a form in int8 stays only where it is chosen."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from text_artifact import WORDS, write_tokenizer

from attnport.bundling import golden
from attnport.bundling.write import GOLDENS
from attnport.errors import SpecError, UsageError
from attnport.folder.workspace import open_folder
from attnport.jsonfile import digest_file
from attnport.latency import choice
from attnport.parity import comparing, scoring
from attnport.precisions import Score
from attnport.verbs import tune as tuning
from attnport.verbs.bundle import bundle
from attnport.verbs.check import check
from attnport.verbs.export import export
from attnport.verbs.inspect import inspect
from attnport.verbs.tune import parse_share, tune
from attnport_bundle.goldens import read_safetensors
from attnport_bundle.model import selftest

pytest.importorskip("onnxruntime")
MODEL = Path(__file__).parent.parent / "ship_model.py"
SHAPES = ["batch=2,seq=8"]


@pytest.fixture(scope="module")
def _exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tune") / "out"
    export(f"{MODEL}:spec", folder)
    return folder


@pytest.fixture
def folder(_exported: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(_exported, tmp_path / "out"))


@pytest.fixture
def items(folder: Path, tmp_path: Path) -> Path:
    """60 items of up to 6 positions, padded on the right."""
    random = np.random.default_rng(0)
    keep = np.arange(6) < random.integers(1, 7, (60, 1))
    feeds: dict[str, Any] = {}
    for spec in open_folder(folder).io.inputs:
        shape = (60, 6, *(int(size) for size in spec.dims[2:]))
        number = random.normal(size=shape) if "float" in spec.dtype else random.integers(0, 9, shape)
        feeds[spec.name] = (keep if "mask" in spec.name else number).astype(spec.dtype)
    path = tmp_path / "items.npz"
    np.savez(path, **feeds)
    return path


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch, idle: None) -> None:
    monkeypatch.setattr(tuning, "_LEAST_S", 1.0)


def run(folder: Path, items: Path | None, **options: Any) -> Any:
    given: dict[str, Any] = {"shapes": SHAPES, "inputs": items, "threads": [1], "budget_s": 1.0, **options}
    return tune(folder, **{"runtimes": ["ort_cpu"], **given})


def prefer(monkeypatch: pytest.MonkeyPatch, plan: str) -> None:
    """As on a machine where a precision is the fastest."""
    best = choice._best
    monkeypatch.setattr(
        choice, "_best", lambda timed: next((one for one in timed if one.plan == plan), None) or best(timed)
    )
    monkeypatch.setattr(tuning.Tuning, "_slower", lambda *given: "")


@pytest.mark.slow
def test_a_form_in_int8_that_is_not_faster_is_not_kept(
    folder: Path, items: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefer(monkeypatch, "fp32")
    report = run(folder, items, max_drop=0.5)
    assert {one.form for one in report.candidates} == {"ort_cpu", "ort_cpu.int8"}
    assert report.chosen is not None
    assert report.chosen.form == "ort_cpu"
    manifest = open_folder(folder)
    assert list(manifest.forms) == ["ort_cpu"]
    assert not [name for name in (*manifest.files, *(path.name for path in folder.iterdir())) if "int8" in name]
    assert "int8" not in (folder / "fusion.json").read_text()


def test_a_form_in_int8_that_is_chosen_is_checked_by_its_metric_and_bundled(
    folder: Path, items: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefer(monkeypatch, "int8")
    report = run(folder, items, max_drop=0.5)
    assert report.chosen is not None
    assert report.chosen.form == "ort_cpu.int8"
    found = open_folder(folder).forms["ort_cpu.int8"].integers
    assert found is not None
    assert found.items == (30, 30)
    opened = [folder / "model.ort_cpu.int8.onnx", folder / "model.ort_cpu.int8.bin"]
    assert report.chosen.size_bytes == sum(file.stat().st_size for file in opened if file.is_file())
    assert found.drop == report.chosen.drop
    assert inspect(folder).next == (f"attnport bundle {folder} -o app/ --form ort_cpu.int8 --lang python",)
    bundle(folder, tmp_path / "at once", forms=["ort_cpu.int8", "ort_cpu"])
    row = check(folder, ["ort_cpu"]).runtimes["ort_cpu.int8"]
    assert row.verdict == "PASS"
    assert "judged by its metric" in row.reason
    with monkeypatch.context() as patch:  # no run of PyTorch judges it
        patch.setattr(comparing.Eager, "session", lambda *given, **options: pytest.fail("the module ran"))
        assert check(folder, ["ort_cpu.int8"], force=True).runtimes["ort_cpu.int8"].verdict == "PASS"
    app = bundle(folder, tmp_path / "app", forms=["ort_cpu.int8", "ort_cpu"])
    judged = [each for each in selftest(app).rows if "int8" in each.check]
    assert judged
    assert {each.verdict for each in judged} == {"PASS"}


def test_a_reranker_is_judged_by_the_order_of_each_querys_documents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=len(WORDS), hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64,
        num_labels=1, max_position_embeddings=64,
    )  # fmt: skip
    transformers.BertForSequenceClassification(config).save_pretrained(tmp_path / "reranker")
    write_tokenizer(tmp_path / "reranker" / "tokenizer.json")
    lines = [f"w{query} w9\tw{at % 40} w{at * 7 % 40} w{at * at % 40}" for query in range(3) for at in range(20)]
    text = tmp_path / "pairs.txt"
    text.write_text("\n".join(lines))
    export(f"hf:{tmp_path / 'reranker'}", tmp_path / "out")
    prefer(monkeypatch, "int8")
    report = run(tmp_path / "out", None, text=text, shapes=(), max_drop=0.9)
    assert report.metric == "order of each query's documents"
    assert report.chosen is not None
    assert report.chosen.form == "ort_cpu.int8"
    assert set(report.chosen.score.parts) == {"correlation", "nDCG at 10"}
    assert report.chosen.score.counts["first documents"][1] == 3


def test_what_is_not_asked_for_stays_with_its_line(
    folder: Path, items: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefer(monkeypatch, "int8")
    first = run(folder, items, max_drop=0.5).chosen
    metric = tmp_path / "mine.py"
    metric.write_text("def mine(model):\n    return 0.75\n")
    for options in ({}, {"metric": f"{metric}:mine"}):
        report = run(folder, items, runtimes=["ort_cpu.fp32"], max_drop=0.5, **options)
        chosen, earlier = report.candidates
        assert (chosen.form, chosen.verdict) == ("ort_cpu", "chosen")
        assert (earlier.form, earlier.verdict, earlier.ms) == ("ort_cpu.int8", "earlier", first.ms)
        assert "chosen in an earlier run" in earlier.reason
        assert any(note.startswith("ort_cpu.int8 was chosen before") for note in report.notes) == (not options)
        assert earlier.score == (None if options else first.score)
        assert {name for rows in report.latency[1].shapes.values() for name in rows} == {"ort_cpu", "torch_eager"}
        assert "ort_cpu.int8" in open_folder(folder).forms
    app = bundle(folder, tmp_path / "app", forms=["ort_cpu.int8"])
    assert "FAIL" not in {each.verdict for each in selftest(app).rows}


@pytest.mark.slow
def test_forms_in_int8_of_two_runtimes_are_bundled_each_with_its_own_reference(
    folder: Path, items: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("openvino")
    prefer(monkeypatch, "int8")
    forms = ["openvino.int8", "ort_cpu.int8"]
    for form in forms:
        run(folder, items, runtimes=[form], max_drop=0.5)
    assert set(forms) < set(open_folder(folder).forms)
    for form in forms:
        app = bundle(folder, tmp_path / form, forms=[form])
        assert "FAIL" not in {each.verdict for each in selftest(app).rows}
    with pytest.raises(UsageError, match=r"openvino\.int8 and ort_cpu\.int8 are both in int8"):
        bundle(folder, tmp_path / "both", forms=forms)


@pytest.mark.slow
def test_a_bundle_in_int8_that_computes_something_else_fails_where_it_lands(
    folder: Path, items: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefer(monkeypatch, "int8")
    run(folder, items, max_drop=0.5)
    check(folder, ["ort_cpu"])
    app = bundle(folder, tmp_path / "app", forms=["ort_cpu.int8"])
    assert not (app / "weights.bin").exists()  # float32 that its form does not read
    assert "FAIL" not in {each.verdict for each in selftest(app).rows}
    described = json.loads((app / "bundle.json").read_text())
    assert {bound["case"].rpartition(".")[2] for bound in described["goldens"]["bounds"]} == {"int8"}
    arrays = read_safetensors((app / GOLDENS).read_bytes(), "the goldens")
    others = {name: array[..., ::-1] if "/out/" in name else array for name, array in arrays.items()}
    golden.write(app / GOLDENS, others)
    described["files"][GOLDENS] = {"sha256": digest_file(app / GOLDENS), "bytes": (app / GOLDENS).stat().st_size}
    (app / "bundle.json").write_text(json.dumps(described))
    assert "FAIL" in {each.verdict for each in selftest(app).rows if "int8" in each.check}


@pytest.mark.slow
def test_it_is_not_run_again_unless_something_changed(
    folder: Path, items: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = run(folder, items)

    def timed_again(*given: object, **how: object) -> None:
        raise AssertionError("it was run again")

    monkeypatch.setattr(tuning.Tuning, "judge", timed_again)
    assert run(folder, items) == first
    with pytest.raises(AssertionError, match="again"):
        run(folder, items, max_drop=0.1)


@pytest.mark.slow
def test_what_an_unfinished_run_has_written_is_whole_and_is_used(
    folder: Path, items: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefer(monkeypatch, "int8")

    def interrupted(*given: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(tuning.Tuning, "finish", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run(folder, items, max_drop=0.5)
    assert "ort_cpu.int8" in open_folder(folder).forms
    app = bundle(folder, tmp_path / "app", forms=["ort_cpu.int8"])
    assert "FAIL" not in {each.verdict for each in selftest(app).rows}
    monkeypatch.setattr(tuning, "plan_integers", interrupted)
    assert run(folder, items, max_drop=0.5).chosen.form == "ort_cpu.int8"


class Vectors(scoring.Agreement):
    """As of an embedder, which this model is not."""

    def __call__(self, session: Any) -> Score:
        return Score(super().__call__(session).value, {"least cosine": 0.97}, {"nearest neighbours": (28, 30)})


@pytest.mark.slow
def test_a_drop_that_is_not_allowed_leaves_no_form(
    folder: Path, items: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefer(monkeypatch, "int8")
    monkeypatch.setattr(tuning, "Agreement", Vectors)
    metric = tmp_path / "mine.py"
    metric.write_text("def mine(model):\n    return 1.0 if model._session.ran.precision == 'fp32' else 0.9\n")
    report = run(folder, items, metric=f"{metric}:mine")
    assert [one.form for one in report.candidates] == ["ort_cpu"]
    assert any("worse by 10.00%" in note for note in report.notes)
    report = run(folder, items, metric=f"{metric}:mine", max_drop=0.2)
    assert report.chosen.form == "ort_cpu.int8"
    assert report.chosen.drop == pytest.approx(0.1)


def test_without_data_int8_is_not_tried_and_the_report_says_so(folder: Path) -> None:
    report = run(folder, None)
    assert [one.form for one in report.candidates] == ["ort_cpu"]
    assert "--text" in report.notes[0]


def test_a_metric_of_the_users_judges_every_form_without_items_too(folder: Path, tmp_path: Path) -> None:
    metric = tmp_path / "mine.py"
    metric.write_text("def mine(model):\n    return 0.75\n")
    (only,) = run(folder, None, metric=f"{metric}:mine").candidates
    assert only.score is not None
    assert (only.score.value, only.reference) == (0.75, only.score)
    with pytest.raises(SpecError, match=r"lost\.py"):
        run(folder, None, metric="lost.py:mine")


def test_a_metric_of_the_users_stands_beside_the_answers_that_stay_the_same(
    folder: Path, items: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefer(monkeypatch, "int8")
    monkeypatch.setattr(tuning, "Agreement", Vectors)
    metric = tmp_path / "mine.py"
    metric.write_text("def mine(model):\n    return 1.0\n")
    report = run(folder, items, metric=f"{metric}:mine", max_drop=0.5)
    scores = {one.form: one.score for one in report.candidates}
    assert set(scores) == {"ort_cpu", "ort_cpu.int8"}
    assert all(score is not None and score.value == 1.0 and score.counts for score in scores.values())
    assert any("does not tell them apart" in note for note in report.notes)
    printed = str(report)
    assert "-0.00%" not in printed
    for each in ("28 of 30 nearest neighbours the same", "least cosine 0.9700 of the 30 that were judged"):
        assert each in " ".join(printed.split())


@pytest.mark.parametrize(
    ("name", "said", "hint"),
    [
        (
            "{file}:nope",
            "there is no 'nope'; it defines accuracy",
            "Name a function that takes one model, on which it calls run, .* a number",
        ),
        ("{file}:acuracy", "there is no 'acuracy'", "accuracy"),
        ("{file}:LIMIT", "got int; expected a function that takes one model", "^$"),
        ("{file}", "names no function", "A metric is FILE"),
        ("lost.py:mine", "lost.py is not a file", "A metric is FILE"),
        ("no such:mine", "is not a module's name", "A metric is FILE"),
    ],
)
def test_a_metric_that_is_not_there_is_told_as_a_metric(
    folder: Path, tmp_path: Path, name: str, said: str, hint: str
) -> None:
    file = tmp_path / "evaluate.py"
    file.write_text("LIMIT = 3\ndef accuracy(model):\n    return 0.75\n")
    with pytest.raises(SpecError, match=said) as caught:
        run(folder, None, metric=name.format(file=file))
    assert re.search(hint, caught.value.hint)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"max_drop": 0.0}, "--max-drop"),
        ({"max_drop": 1.5}, "--max-drop"),
        ({"metric": "lost.py:mine"}, "lost.py"),
    ],
)
def test_bad_input_is_named(folder: Path, items: Path, options: dict[str, Any], said: str) -> None:
    with pytest.raises((UsageError, SpecError), match=said):
        run(folder, items, **options)


def test_a_runtime_that_it_does_not_try_is_named(folder: Path) -> None:
    with pytest.raises(UsageError, match="tune tries ort_cpu and openvino"):
        tune(folder, ["torch_eager"])


def test_too_few_items_are_refused(folder: Path, items: Path, tmp_path: Path) -> None:
    with np.load(items) as arrays:
        np.savez(tmp_path / "few.npz", **{name: array[:10] for name, array in arrays.items()})
    with pytest.raises(UsageError, match="at least 20"):
        run(folder, tmp_path / "few.npz")


def test_a_share_that_may_be_meant_as_a_percentage_is_refused() -> None:
    assert [parse_share(each) for each in ("0.5%", "0.005", 0.5, "50%")] == [0.005, 0.005, 0.5, 0.5]
    with pytest.raises(UsageError, match=r"got 0\.5, which is 50% of the metric"):
        parse_share("0.5")
