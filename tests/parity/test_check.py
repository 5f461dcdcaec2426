from __future__ import annotations

import contextlib
import dataclasses
import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from representatives import representatives

from attnport.artifacts import Capabilities, CaseResult, Form, ParityReport, Ran, RuntimeParity, Session
from attnport.cli import cli
from attnport.console.terminal import shown as as_text
from attnport.errors import IntegrityError, ParityFailed, UnavailableError, UsageError
from attnport.folder.workspace import change, open_folder
from attnport.jsonfile import read
from attnport.options import command_line
from attnport.parity.comparing import Comparison, Eager
from attnport.runtimes import base
from attnport.verbs.check import EARLIER, check, of_named, raise_for

Outputs = dict[str, np.ndarray]
Lie = Callable[[Mapping[str, np.ndarray], Outputs], Outputs]
SENTENCES = ["the cat sat", "a dog ran on", "tree", "the slow red dog sat under the blue tree"] * 3


class Liar(base.Runtime):
    """ONNX Runtime, with its outputs changed on the way."""

    name = "liar"
    opens = "onnx"
    isolated = False
    lie: Lie

    def probe(self) -> Capabilities:
        return Capabilities(self.name, True)

    def session(self, opening: base.Opening) -> Session:
        session, lie = base.get("ort_cpu").open(opening), self.lie

        class Lying:
            ran = session.ran

            def run(self, feeds: Mapping[str, np.ndarray]) -> Outputs:
                return lie(feeds, session.run(feeds))

            def close(self) -> None:
                session.close()

        return Lying()


@pytest.fixture
def lying(monkeypatch: pytest.MonkeyPatch) -> Callable[[Lie], None]:
    get = base.get

    def install(lie: Lie) -> None:
        liar = Liar()
        liar.lie = lie
        monkeypatch.setattr(base, "get", lambda name: liar if name == "liar" else get(name))

    return install


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "sentences.txt"
    path.write_text("\n".join(SENTENCES))
    return path


def without_forms(folder: Path) -> None:
    with change(folder) as edit:
        edit.manifest = dataclasses.replace(edit.manifest, forms={})
        edit.finish("fuse", "")


@pytest.fixture(scope="module")
def checked(_tiny_exported: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ParityReport, list[str]]:
    """A folder that was checked with everything, once for the tests that only read."""
    folder = Path(shutil.copytree(_tiny_exported, tmp_path_factory.mktemp("checked") / "tiny"))
    sentences, messages = folder.parent / "text", []
    sentences.write_text("\n".join(SENTENCES))
    return folder, check(folder, text=sentences, progress=messages.append), messages


def test_every_runtime_and_every_form_passes_on_every_case(checked: tuple[Path, ParityReport, list[str]]) -> None:
    folder, report, _ = checked
    assert report.verdict == "PASS"
    for name in ("torch_eager", "ort_cpu", "onnx_reference"):
        assert report.runtimes[name].verdict == "PASS", report.runtimes[name].reason
    assert set(report.forms) == set(open_folder(folder).forms)
    for name, form in report.forms.items():
        assert form.verdict == "PASS", (name, form.reason)
        cases = {result.case for result in form.cases}
        assert {"no padding", "left padding", "one row fully masked", "sequence 1", "longest", "primes"} <= cases
        assert any(case.startswith("sentences") for case in cases)
        assert {result.output for result in form.cases} == {"last_hidden_state", "sentence_embedding"}
    raise_for(report, ["torch-eager", "ort_cpu"])


def test_every_runtime_shows_that_padding_changes_nothing(checked: tuple[Path, ParityReport, list[str]]) -> None:
    _, report, _ = checked
    for name in ("torch_eager", "ort_cpu", "onnx_reference"):
        pairs = {(pair.comparison, pair.output) for pair in report.runtimes[name].invariance}
        assert len(pairs) == 4  # in a batch and with more padding, two outputs


def test_forms_are_run_without_their_target_and_half_ones_at_declared_types(
    checked: tuple[Path, ParityReport, list[str]],
) -> None:
    _, report, _ = checked
    half = report.forms["tensorrt_rtx"]
    assert half.ran.provider.startswith("onnx.reference")
    assert half.plan == "fp16"
    worst = max(result.rms_error for result in half.cases)
    assert worst > 100 * max(result.rms_error for result in report.forms["onnx"].cases)


def test_a_form_that_its_own_runtime_passes_is_not_run_again(checked: tuple[Path, ParityReport, list[str]]) -> None:
    _, report, messages = checked
    for name, runtime in {"onnx": "onnx_reference", "ort_cpu": "ort_cpu", "openvino": "openvino"}.items():
        assert report.forms[name].reason.endswith(f"this is what {runtime} opens, and ran")
        assert report.forms[name].cases == report.runtimes[runtime].cases
    assert [message for message in messages if message.startswith("model.") and "fp16" not in message] == []


def test_graphs_that_are_equal_are_run_once_where_their_runtimes_are_not_there(
    checked: tuple[Path, ParityReport, list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(shutil.copytree(checked[0], tmp_path / "out"))
    for name in ("onnx_reference", "openvino"):
        monkeypatch.setattr(type(base.get(name)), "isolated", False)
        monkeypatch.setattr(
            type(base.get(name)), "probe", lambda self: Capabilities(self.name, False, "not here, says a test")
        )
    messages: list[str] = []
    forms = check(folder, force=True, progress=messages.append).forms
    assert forms["onnx"].ran.provider == "CPUExecutionProvider"
    assert "graphs are equal" in forms["openvino"].reason
    assert len({message.partition(":")[0] for message in messages if message.startswith("model.")}) == 1


def test_an_engine_that_was_not_built_is_not_run_with_the_command_that_builds_it(
    checked: tuple[Path, ParityReport, list[str]],
) -> None:
    _, report, _ = checked
    told = report.absent | {name: row.reason for name, row in report.runtimes.items() if row.verdict == "NOT_RUN"}
    assert told["tensorrt_rtx"]
    with pytest.raises(UnavailableError, match="tensorrt_rtx"):
        raise_for(report, ["tensorrt_rtx"])


def test_the_report_is_on_disk_and_is_not_made_again(checked: tuple[Path, ParityReport, list[str]]) -> None:
    folder, report, _ = checked
    assert read(ParityReport, folder / "parity.json") == report
    assert open_folder(folder).stages["check"].files == ("parity.json",)
    messages: list[str] = []
    assert check(folder, text=folder.parent / "text", progress=messages.append) == report
    assert not any("reference" in message for message in messages)


def test_other_sentences_or_another_model_are_checked_again(tiny_artifact: Path, text: Path) -> None:
    without_forms(tiny_artifact)
    said: list[str] = []

    def runs() -> bool:
        said.clear()
        check(tiny_artifact, ["onnx_reference"], text=text, progress=said.append)
        return any("float64 reference" in message for message in said)

    assert runs()
    assert not runs()
    text.write_text(text.read_text() + "\na cat")
    assert runs()
    form = Form("ort_cpu", "fp32", "model.ort_cpu.onnx", 23)
    with change(tiny_artifact) as edit:
        edit.manifest = dataclasses.replace(edit.manifest, forms={"ort_cpu": form})
        edit.finish("fuse", "again")
    assert not runs(), "that runtime does not open the form"
    model = onnx.load(tiny_artifact / "model.onnx", load_external_data=False)
    model.doc_string = "another"
    with change(tiny_artifact) as edit:
        edit.path("model.onnx").write_bytes(model.SerializeToString())
        edit.finish("export", "again")
    assert runs()


def test_a_named_runtime_is_checked_with_its_own_form_and_the_report_keeps_the_others(tiny_artifact: Path) -> None:
    said: list[str] = []
    first = check(tiny_artifact, ["onnx_reference"])
    assert (set(first.runtimes), set(first.forms)) == ({"onnx_reference"}, set())
    both = check(tiny_artifact, ["ort_cpu"], progress=said.append)
    assert set(both.runtimes) == {"onnx_reference", "ort_cpu"}
    assert set(both.forms) == {"ort_cpu"}
    assert both.runtimes["onnx_reference"] == first.runtimes["onnx_reference"]
    assert not any(message.startswith("onnx_reference") for message in said)
    assert set(check(tiny_artifact, ["ort_cpu"], force=True).runtimes) == {"ort_cpu"}


def test_a_runtime_that_was_not_run_is_tried_again_where_it_is_named(
    tiny_artifact: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def probed(reason: str, failed: bool = False) -> None:
        probe = lambda self: Capabilities(self.name, False, reason, failed=failed)  # noqa: E731
        patched.setattr(type(base.get("onnx_reference")), "probe", probe)

    with monkeypatch.context() as patched:
        probed("its probe failed with OSError: broken", failed=True)
        failed = check(tiny_artifact, ["onnx_reference"]).runtimes["onnx_reference"]
        assert (failed.verdict, failed.kind) == ("NOT_RUN", "unavailable")
        probed("not installed")
        lacking = check(tiny_artifact, ["onnx_reference"])
        assert (lacking.runtimes, lacking.absent) == ({}, {"onnx_reference": "not installed"})
        said: list[str] = []
        assert check(tiny_artifact, ["onnx_reference"], progress=said.append) == lacking
        assert not any("loading" in message for message in said)
    found = check(tiny_artifact, ["onnx_reference"])
    assert (found.runtimes["onnx_reference"].verdict, found.absent) == ("PASS", {})


def test_what_takes_longer_than_all_others_is_run_where_it_is_named() -> None:
    assert "torch_compile" not in {runtime.name for runtime in base.chosen(None)}
    assert {"torch_eager", "ort_cpu", "openvino"} <= {runtime.name for runtime in base.chosen(())}
    assert [runtime.name for runtime in base.chosen(["torch_compile"])] == ["torch_compile"]


def nan_in_padding(feeds: Mapping[str, np.ndarray], outputs: Outputs) -> Outputs:
    hidden = outputs["last_hidden_state"].copy()
    hidden[feeds["attention_mask"] == 0] = np.nan
    return {**outputs, "last_hidden_state": hidden}


def leak(feeds: Mapping[str, np.ndarray], outputs: Outputs) -> Outputs:
    """Padding weighs in a little, as with a mask of -1e4 in a model of large scores."""
    share = 1e-4 * (feeds["attention_mask"] == 0).sum(1)
    return {**outputs, "last_hidden_state": outputs["last_hidden_state"] * (1 + share[:, None, None]).astype("f4")}


LIES: dict[str, tuple[Lie, str]] = {
    "slightly off": (lambda feeds, outputs: {name: one * np.float32(1.001) for name, one in outputs.items()}, "RMS"),
    "one element": (
        lambda feeds, outputs: {
            name: np.where(np.arange(one.size).reshape(one.shape) == 3, one + np.float32(0.01), one)
            for name, one in outputs.items()
        },
        "error",
    ),
    "frozen sequence": (lambda feeds, outputs: {name: one[:, :9] for name, one in outputs.items()}, "shape"),
    "missing output": (lambda feeds, outputs: {"last_hidden_state": outputs["last_hidden_state"]}, "missing"),
    "integers": (lambda feeds, outputs: {name: one.astype(np.int64) for name, one in outputs.items()}, "dtype"),
    "nan in padding": (nan_in_padding, "padded query rows"),
    "padding leaks": (leak, "padding"),
    "raises": (lambda feeds, outputs: {"last_hidden_state": outputs["no such"]}, "raised KeyError"),
}


@pytest.mark.parametrize(
    "name", representatives(LIES, ["slightly off", "missing output", "nan in padding", "padding leaks"])
)
def test_a_runtime_that_is_wrong_fails(
    name: str, tiny_artifact: Path, lying: Callable[[Lie], None], text: Path
) -> None:
    lie, why = LIES[name]
    lying(lie)
    without_forms(tiny_artifact)
    report = check(tiny_artifact, ["liar"], text=text)
    assert report.verdict == report.runtimes["liar"].verdict == "FAIL"
    assert why in report.runtimes["liar"].reason
    for named in (["liar"], []):
        with pytest.raises(ParityFailed, match="liar"):
            raise_for(report, named)
    raise_for(check(tiny_artifact, ["ort_cpu"], text=text), ["ort_cpu"])  # a gate of one runtime is of that one
    assert json.loads((tiny_artifact / "parity.json").read_text())["verdict"] == "FAIL"


def replace_form(folder: Path, key: str, edit_model: Callable[[onnx.ModelProto], None]) -> None:
    with change(folder) as edit:
        form = edit.manifest.forms[key]
        model = onnx.load(folder / form.file)
        edit_model(model)
        edit.path(form.file).write_bytes(model.SerializeToString())
        edit.manifest = dataclasses.replace(edit.manifest, forms={key: form})
        edit.finish("fuse", "changed")


def shift_weights(model: onnx.ModelProto) -> None:
    for tensor in model.graph.initializer:
        array = onnx.numpy_helper.to_array(tensor)
        if array.dtype.kind == "f" and array.ndim == 2:
            tensor.CopyFrom(onnx.numpy_helper.from_array((array * 1.02).astype(array.dtype), tensor.name))


@pytest.fixture
def eager_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch eager is the only runtime there is, so that a check runs every form and little else."""
    monkeypatch.setattr(base, "names", lambda: ["torch_eager"])


@pytest.mark.usefixtures("eager_alone")
@pytest.mark.parametrize("key", ["onnx", "tensorrt_rtx"])
def test_a_form_with_other_numbers_fails(key: str, tiny_artifact: Path) -> None:
    replace_form(tiny_artifact, key, shift_weights)
    report = check(tiny_artifact)
    assert report.runtimes["torch_eager"].verdict == "PASS"
    assert report.verdict == report.forms[key].verdict == "FAIL"
    with pytest.raises(ParityFailed, match=f"form {key}"):
        raise_for(report)


class Overflowing:
    """PyTorch eager, whose results in fp16 are Inf but for extreme values."""

    def __init__(self, session: Any) -> None:
        self.session, self.ran = session, session.ran

    def run(self, feeds: Any) -> dict[str, Any]:
        return {name: np.full_like(array, np.inf) for name, array in self.session.run(feeds).items()}


@pytest.mark.usefixtures("eager_alone")
def test_a_form_that_cannot_run_here_is_not_judged_where_pytorch_itself_overflows_in_its_precision(
    tiny_artifact: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_way = Eager._own_way

    @contextlib.contextmanager
    def overflowing(self: Eager, plan: str, nudged: int | None = None) -> Iterator[Any]:
        with own_way(self, plan, nudged) as session:
            yield Overflowing(session) if plan == "fp16" else session

    monkeypatch.setattr(Eager, "_own_way", overflowing)
    report = check(tiny_artifact)
    row = report.forms["tensorrt_rtx"]
    assert (report.verdict, row.verdict, row.kind) == ("PASS", "NOT_RUN", "no bound")
    assert "PyTorch itself overflows in fp16 in " in row.reason
    assert "FAIL" not in {result.verdict for result in (*row.cases, *row.invariance)}
    raise_for(report)

    monkeypatch.setattr(Comparison, "_runs_here", lambda self, form: True)
    assert check(tiny_artifact, force=True).forms["tensorrt_rtx"].verdict == "FAIL"


@pytest.mark.usefixtures("eager_alone")
def test_a_form_that_no_evaluator_reads_fails_with_what_they_say(tiny_artifact: Path) -> None:
    with change(tiny_artifact) as edit:
        form = edit.manifest.forms["onnx"]
        edit.path(form.file + ".cut.onnx").write_bytes((tiny_artifact / form.file).read_bytes()[:2000])
        form = dataclasses.replace(form, file=form.file + ".cut.onnx")
        edit.manifest = dataclasses.replace(edit.manifest, forms={"onnx": form})
        edit.finish("fuse", "cut")
    report = check(tiny_artifact)
    assert report.forms["onnx"].verdict == "FAIL"
    assert "cannot be opened" in report.forms["onnx"].reason


def test_a_file_that_is_not_what_was_written_is_refused(tiny_artifact: Path) -> None:
    path = tiny_artifact / "model.onnx"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(IntegrityError, match=r"model\.onnx"):
        check(tiny_artifact, ["torch_eager"])
    assert not (tiny_artifact / "parity.json").exists()


def test_given_inputs_are_one_more_case(tiny_artifact: Path, tmp_path: Path) -> None:
    without_forms(tiny_artifact)
    ids = np.arange(10).reshape(2, 5)
    np.savez(tmp_path / "mine.npz", input_ids=ids, attention_mask=np.ones_like(ids))
    report = check(tiny_artifact, ["torch_eager"], inputs=tmp_path / "mine.npz")
    assert "mine.npz" in {result.case for result in report.runtimes["torch_eager"].cases}
    (tmp_path / "bad.npz").write_bytes(b"no")
    with pytest.raises(UsageError, match=r"bad\.npz"):
        check(tiny_artifact, ["ort_cpu"], inputs=tmp_path / "bad.npz")


def test_text_for_a_folder_without_a_tokenizer_is_an_error(tiny_artifact: Path, text: Path) -> None:
    with change(tiny_artifact) as edit:
        edit.manifest = dataclasses.replace(edit.manifest, tokenizer=None)
        edit.finish("export", "")
    with pytest.raises(UsageError, match="no tokenizer"):
        check(tiny_artifact, ["torch_eager"], text=text)


def test_an_unknown_runtime_is_a_usage_error(tiny_artifact: Path) -> None:
    with pytest.raises(UsageError, match="there is none"):
        check(tiny_artifact, ["warp_drive"])


def test_a_failure_comes_before_what_is_not_available() -> None:
    runs = {
        "a": RuntimeParity("NOT_RUN", "not here", "fp32"),
        "b": RuntimeParity("FAIL", "wrong", "fp32"),
    }
    with pytest.raises(ParityFailed, match="b fails: wrong"):
        raise_for(ParityReport("FAIL", runs, {}), ["a", "b"])
    with pytest.raises(UnavailableError, match="a was not run"):
        raise_for(ParityReport("FAIL", runs, {}), ["a"])
    raise_for(ParityReport("NOT_RUN", {"a": runs["a"]}, {}, absent={"c": "not installed"}))
    with pytest.raises(UnavailableError, match="c was not run: not installed"):
        raise_for(ParityReport("PASS", {}, {}, absent={"c": "not installed"}), ["c"])
    with pytest.raises(UnavailableError, match="a was not run: not here"):
        raise_for(ParityReport("NOT_RUN", {"a": runs["a"]}, {}), ["a"])


def failed(runtime: str, provider: str, form: RuntimeParity | None = None, error: float | None = 9.0) -> ParityReport:
    wrong = CaseResult("zeros", "y", "FAIL", "wrong", 8, error, 1.0, error, 1.0, None, None, 0)
    row = RuntimeParity("FAIL", "wrong", "fp32", Ran("CPU", provider, "fp32"), (wrong,))
    return ParityReport("FAIL", {runtime: row}, {runtime: form} if form else {})


def hint_of(report: ParityReport, again: str = command_line("check", check, folder=Path("my out"))) -> str:
    with pytest.raises(ParityFailed) as caught:
        raise_for(report, again=again)
    return caught.value.hint


def test_a_failure_names_the_command_that_finds_the_operator_and_who_is_at_fault() -> None:
    form = RuntimeParity("PASS", "", "fp32", Ran("CPU", "CPUExecutionProvider", "fp32"))
    hint = hint_of(failed("openvino", "openvino 1", form))
    assert hint == (
        "CPUExecutionProvider computes the right numbers from the same file, so openvino is at fault. "
        "Every case: parity.json, or of one precision parity.PRECISION.json. "
        "Where it goes wrong: attnport check 'my out' --runtime openvino --bisect"
    )
    assert "Where it goes wrong" not in hint_of(failed("openvino", "openvino 1", form), again="")


def test_masks_are_suspected_where_the_module_fails_in_float32_alone() -> None:
    report = failed("torch_eager", "torch")
    assert "such as :hide" in hint_of(report)
    half = dataclasses.replace(report.runtimes["torch_eager"], plan="fp16")
    assert ":hide" not in hint_of(ParityReport("FAIL", {"torch_eager": half}, {}))


@pytest.mark.parametrize(
    ("plan", "told", "not_told"),
    [
        ("fp16", "overflows is kept in float32 by `attnport build FOLDER --target TARGET --precision auto`", ":hide"),
        ("fp16_islands", "attention overflows: take --precision bf16_islands", "auto"),
        ("bf16", "Take fp32", "--precision bf16"),
    ],
)
def test_where_pytorch_overflows_the_advice_is_one_that_mends_that_precision(
    plan: str, told: str, not_told: str
) -> None:
    row = dataclasses.replace(failed("torch_eager", "torch").runtimes["torch_eager"], plan=plan)
    hint = hint_of(ParityReport("FAIL", {"torch_eager": row}, {}))
    assert told in hint
    assert not_told not in hint


def test_what_is_shown_of_named_runtimes_has_their_verdict_and_tells_of_others_in_a_note() -> None:
    passed, wrong = RuntimeParity("PASS", "", "fp32"), RuntimeParity("FAIL", "wrong", "bf16")
    whole = ParityReport(
        "FAIL",
        {"openvino": passed, "openvino.bf16": wrong, "ort_cpu": passed},
        {"openvino": passed, "openvino.bf16": passed, "tensorrt_rtx": passed, "tensorrt_rtx.bf16": passed},
        ("usual", f"ort_cpu{EARLIER}with --seed 1"),
        {"tensorrt_rtx": "no GPU", "ort_cuda": "no GPU"},
    )
    absent = of_named(whole, ["tensorrt-rtx"])
    assert (absent.verdict, dict(absent.runtimes)) == ("NOT_RUN", {})
    assert (set(absent.forms), set(absent.absent)) == ({"tensorrt_rtx", "tensorrt_rtx.bf16"}, {"tensorrt_rtx"})
    assert absent.notes[0] == "usual"
    assert absent.notes[1:] == (
        "not named, and so no part of this verdict; an earlier check found: openvino PASS, openvino.bf16 FAIL, "
        "ort_cpu PASS",
    )
    assert of_named(whole, ["openvino"]).verdict == "FAIL"
    plain = of_named(whole, ["openvino.fp32", "tensorrt_rtx.fp16"])
    assert (plain.verdict, set(plain.runtimes)) == ("PASS", {"openvino"})
    assert set(plain.forms) == {"openvino", "tensorrt_rtx"}
    assert of_named(whole, []) == whole


def test_the_heading_is_of_the_runtimes_that_were_named(checked: tuple[Path, ParityReport, list[str]]) -> None:
    # Its package is there, so that the command does not end at once.
    absent = next(name for name in checked[1].absent if name in ("tensorrt_rtx", "torch_eager_cuda"))
    done = CliRunner().invoke(cli, ["check", str(checked[0]), "--runtime", absent])
    assert done.exit_code == 3, done.stderr
    assert done.stdout.startswith("parity against float64: NOT_RUN")


def test_a_name_without_a_precision_is_every_form_whichever_was_judged_before(tiny_artifact: Path) -> None:
    if "bf16" not in base.get("openvino").probe().plans:
        pytest.skip("openvino does not compute in bf16 here")
    with change(tiny_artifact) as edit:
        form = edit.manifest.forms["openvino"]
        edit.manifest = dataclasses.replace(
            edit.manifest, forms={"openvino": form, "openvino.bf16": dataclasses.replace(form, plan="bf16")}
        )
        edit.finish("fuse", "changed")
    assert set(check(tiny_artifact, ["openvino.bf16"]).runtimes) == {"openvino.bf16"}
    whole = check(tiny_artifact, ["openvino"])
    assert set(whole.runtimes) == {"openvino", "openvino.bf16"}
    messages: list[str] = []
    assert check(tiny_artifact, ["openvino"], progress=messages.append) == whole
    assert messages == []


def test_the_usual_form_of_a_named_runtime_is_written_beside_that_of_another_precision(tiny_artifact: Path) -> None:
    with change(tiny_artifact) as edit:
        form = dataclasses.replace(edit.manifest.forms["openvino"], plan="bf16")
        edit.manifest = dataclasses.replace(edit.manifest, forms={"openvino.bf16": form})
        edit.finish("fuse", "changed")
    assert check(tiny_artifact, ["openvino"]).runtimes["openvino"].verdict == "PASS"


def test_a_runtime_without_a_form_beside_others_is_not_run_with_the_command_that_writes_it(tiny_artifact: Path) -> None:
    with change(tiny_artifact) as edit:
        forms = {name: form for name, form in edit.manifest.forms.items() if form.target == "ort_cpu"}
        edit.manifest = dataclasses.replace(edit.manifest, forms=forms)
        edit.finish("fuse", "changed")
    report = check(tiny_artifact)
    assert (report.verdict, report.runtimes["openvino"].verdict) == ("PASS", "NOT_RUN")
    shown = " ".join(as_text(report).split())
    assert "openvino: there is no form for openvino; make it with: attnport fuse" in shown


def test_nobody_is_blamed_where_the_file_fails_elsewhere_too_or_ran_nowhere_else() -> None:
    assert "at fault" not in hint_of(failed("openvino", "openvino 1"))
    wrong = RuntimeParity("FAIL", "wrong", "fp32", Ran("CPU", "CPUExecutionProvider", "fp32"))
    assert "at fault" not in hint_of(failed("openvino", "openvino 1", wrong))
    same = RuntimeParity("PASS", "", "fp32", Ran("CPU", "openvino 1", "fp32"))
    assert "at fault" not in hint_of(failed("openvino", "openvino 1", same))


def test_no_search_is_advised_where_there_is_nothing_to_search() -> None:
    assert "--bisect" not in hint_of(failed("torch_compile", "inductor"))
    assert "--bisect" not in hint_of(failed("openvino", "openvino 1", error=None))


def test_a_form_that_fails_is_searched_by_a_check_of_all() -> None:
    wrong = failed("openvino", "openvino 1").runtimes["openvino"]
    again = command_line("check", check, folder=Path("out"), text=Path("a b.txt"), shapes=("batch=2",), thorough=True)
    hint = hint_of(ParityReport("FAIL", {}, {"onnx": wrong}), again)
    options = "'--text=a b.txt' --shape=batch=2 --thorough"
    assert hint.endswith(f"Where it goes wrong: attnport check out {options} --bisect")


def test_a_runtime_with_several_engines_is_there_when_one_ran() -> None:
    ran, missing = RuntimeParity("PASS", "", "fp16"), RuntimeParity("NOT_RUN", "no form", "fp32")
    raise_for(ParityReport("PASS", {"rt.a": ran, "rt.b": missing}, {}), ["rt"])
    with pytest.raises(UnavailableError, match="no form"):
        raise_for(ParityReport("PASS", {"rt.b": missing, "rtx": ran}, {}), ["rt"])
    with pytest.raises(UnavailableError, match="not in the report"):
        raise_for(ParityReport("PASS", {"rtx": ran}, {}), ["rt"])
