"""The golden check, and the two parsers of untrusted data below it: each is fed wrong answers."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import tiny_attention as tiny
from bundle_forms import manifest, seal
from safetensors.numpy import load_file, save_file

from attnport.bundling.verifying import bounds as bounds_missing
from attnport.errors import ArtifactError, ParityFailed
from attnport.parity.golden import bounds as golden_bounds
from attnport.parity.golden import read_goldens
from attnport.verbs.verify import raise_for, verify
from attnport_bundle import BundleError, IntegrityError, goldens, load
from attnport_bundle.format.contract import Dim, Profile
from attnport_bundle.format.manifest import Bound, Manifest, Requires, read
from attnport_bundle.format.manifest import Goldens as GoldenRecord
from attnport_bundle.format.strict_json import MAX_DEPTH, decode, parse
from attnport_bundle.goldens import GoldenCases, compare
from attnport_bundle.model import selftest

BOUND = Bound("case", "y", "fp32", 1e-6, 2e-6)
REFERENCE = np.linspace(-1, 1, 24).reshape(2, 3, 4)
VALID = np.array([[True, True, True], [True, False, False]])


def judge(got: Any, valid: Any = VALID, bound: Bound = BOUND) -> tuple[bool, str]:
    result = compare(bound, got, REFERENCE, valid)
    return result.passed, result.reason


def test_the_reference_itself_passes_and_padding_rows_may_hold_anything_finite() -> None:
    got = REFERENCE.astype(np.float32)
    got[1, 1:] = 1e9
    assert judge(got) == (True, "")


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda y: y + 1.5e-6, "RMS error"),
        (lambda y: y + np.where(np.arange(24).reshape(2, 3, 4) == 5, 2.5e-6, 0), "max error"),
        (lambda y: y * 0, "RMS error"),
        (lambda y: np.where(y == y[0, 0, 0], np.nan, y), "1 elements are NaN"),
        (lambda y: np.where(y == y[1, 2, 0], np.inf, y), "1 elements are NaN"),
        (lambda y: y[:, :2], "got shape [2, 2, 4]"),
        (lambda y: y.reshape(4, 3, 2), "got shape [4, 3, 2]"),
        (lambda y: None, "the output is missing"),
    ],
)
def test_wrong_answers_fail(wrong: Any, words: str) -> None:
    passed, reason = judge(wrong(REFERENCE.copy()))
    assert not passed
    assert words in reason


def test_nothing_to_compare_and_bounds_or_references_that_are_not_finite_fail() -> None:
    assert not judge(REFERENCE, np.zeros((2, 3), bool))[0]
    assert not judge(REFERENCE, np.ones((2, 4), bool))[0]
    assert not judge(REFERENCE, bound=dataclasses.replace(BOUND, rms_bound=float("nan")))[0]
    assert not compare(BOUND, REFERENCE, np.full_like(REFERENCE, np.nan), VALID).passed
    assert not compare(BOUND, REFERENCE, np.full_like(REFERENCE, 1e300), VALID).passed


def test_a_form_in_integers_is_held_to_what_it_gave_itself_in_cases_of_its_own(tmp_path: Path) -> None:
    arrays = tiny.goldens()
    outputs = {name: array for name, array in arrays.items() if name.split("/")[1] == "out"}
    off = {name: array + 0.01 * np.cos(np.arange(array.size)).reshape(array.shape) for name, array in outputs.items()}
    given = {name.replace("/out/", "/eager.ort_cpu.int8/"): array for name, array in off.items()}
    np.savez(path := tmp_path / "golden.npz", **arrays, **given)
    found = read_goldens(path, tiny.IO, {"fp32", "int8"}, {"int8": "ort_cpu.int8"})
    assert not [*bounds_missing(GoldenRecord("goldens", found.bounds), {"hidden", "pooled"}, {"fp32", "int8"})]
    for bound in found.bounds:
        expected, valid = (found.arrays[f"{bound.case}/{kind}/{bound.output}"] for kind in ("out", "valid"))
        case = bound.case.removesuffix(".int8")
        assert (case != bound.case) == (bound.plan == "int8")
        ours = off if bound.plan == "int8" else outputs
        np.testing.assert_array_equal(expected, ours[f"{case}/out/{bound.output}"])
        if bound.plan == "int8":
            error = (expected - outputs[f"{case}/out/{bound.output}"])[valid]
            assert bound.rms_bound == pytest.approx(1.5 * np.sqrt(np.mean(error**2)), rel=1e-3)
            assert bound.max_bound == pytest.approx(1.5 * np.abs(error).max(), rel=1e-3)
    own = read_goldens(path, tiny.IO, {"int8"}, {"int8": "ort_cpu.int8"})
    assert {name.split("/")[0].rpartition(".")[2] for name in own.arrays} == {"int8"}, "of other plans there is nothing"


@pytest.mark.parametrize("shape", [(0, 4), (2, 0), (2, 3, 0)])
def test_an_output_that_is_empty_at_the_sizes_of_a_case_passes_by_its_shape_alone(shape: tuple[int, ...]) -> None:
    empty, valid = np.zeros(shape), np.ones(shape[:1], bool)
    result = compare(dataclasses.replace(BOUND, rms_bound=0.0, max_bound=0.0), empty, empty, valid)
    assert (result.passed, result.rms_error, result.max_error) == (True, 0.0, 0.0)
    for wrong in (np.zeros((2, 5)), np.zeros((*shape, 1)), None):
        assert not compare(BOUND, wrong, empty, valid).passed


def test_a_form_whose_golden_outputs_are_all_empty_proves_nothing(app: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cases = GoldenCases(app, read(app))
    arrays = {name: array[:0] if "/out/" in name else array for name, array in cases._arrays.items()}
    monkeypatch.setattr(cases, "_arrays", arrays)
    with pytest.raises(BundleError, match="has an output with an element to compare"):
        list(cases.check("ort_cpu", lambda **feeds: {}))


def test_a_model_that_drifts_fails_the_selftest_with_exit_4(app: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import onnxruntime

    right = onnxruntime.InferenceSession.run
    monkeypatch.setattr(
        onnxruntime.InferenceSession, "run", lambda self, *given: [array + 1e-5 for array in right(self, *given)]
    )
    report = selftest(app)
    assert report.exit_code == 4
    assert [row.verdict for row in report.rows] == ["NOT_RUN", "PASS", *["FAIL"] * 6]


@pytest.mark.parametrize(("about", "exit_code"), [("the same", 0), ("numbers", 4), ("an input", 4), ("a precision", 2)])
def test_a_bundle_is_compared_with_an_earlier_one(
    app: Path, made_bundle: Path, tmp_path: Path, about: str, exit_code: int
) -> None:
    arrays, found = load_file(app / "goldens.safetensors"), manifest(app)
    if about == "numbers":  # as of other weights
        arrays = {name: array * 1.01 if "/out/" in name else array for name, array in arrays.items()}
    if about == "an input":
        arrays = {name.replace("/in/ids", "/in/words"): array for name, array in arrays.items()}
        found = json.loads(json.dumps(found).replace('"ids"', '"words"'))
    if about == "a precision":
        found = json.loads(json.dumps(found).replace('"plan": "fp32"', '"plan": "bf16"'))
    save_file(arrays, app / "goldens.safetensors")
    seal(app, found)
    result = verify(made_bundle, against=app)
    against = [row for row in result.rows if row.check.endswith(f" against {app.name}")]
    verdict = {0: "PASS", 4: "FAIL", 2: "NOT_RUN"}[exit_code]
    assert (result.exit_code, result.verdict, {row.verdict for row in against}) == (exit_code, verdict, {verdict})
    if about == "a precision":
        assert {row.detail for row in against} == {"no golden case is in fp32, the precision of model.ort_cpu.onnx."}
    if exit_code:
        kind, said = (ParityFailed, "not give the numbers of") if exit_code == 4 else (ArtifactError, "not be compared")
        with pytest.raises(kind, match=f"{said}"):
            raise_for(result)
    else:
        raise_for(result)


def test_an_earlier_bundle_that_was_changed_is_no_measure(app: Path, made_bundle: Path) -> None:
    (app / "goldens.safetensors").write_bytes(b"other")
    with pytest.raises(IntegrityError, match="goldens"):
        verify(made_bundle, against=app)


def test_a_model_that_cannot_run_fails_the_selftest(app: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import onnxruntime

    def broken(self: Any, *given: Any) -> None:
        raise RuntimeError("kernel gone")

    monkeypatch.setattr(onnxruntime.InferenceSession, "run", broken)
    report = selftest(app)
    assert report.exit_code == 4
    assert "kernel gone" in report.rows[2].detail


def test_every_golden_case_is_run(app: Path) -> None:
    with load(app) as model:
        results = list(GoldenCases(app, read(app)).check(model.form, model.run))
    assert [(one.case, one.output) for one in results] == [
        (f"golden-{case}", output) for case in range(3) for output in ("hidden", "pooled")
    ]
    assert all(one.passed and one.rms_error is not None and one.rms_error > 0 for one in results)


@dataclass(frozen=True)
class Answering:
    """Stands in for a model that is open: what it answers in each case."""

    answers: Mapping[str, Mapping[str, Any]]

    def run(self, **feeds: Any) -> Mapping[str, Any]:
        size = feeds["ids"].shape
        return next(found for case, found in self.answers.items() if self.answers[case]["hidden"].shape[:2] == size)


def halved(app: Path, arrays: Mapping[str, Any], profiles: tuple[Profile, ...] = ()) -> tuple[Manifest, Any]:
    """The manifest with a form `half` more, in float16, and what PyTorch answers in float16."""
    found = read(app)
    form = dataclasses.replace(
        found.forms["ort_cpu"],
        plan="fp16",
        profiles=profiles,
        **({"runtime": "tensorrt", "provider": None, "external": ()} if profiles else {}),  # type: ignore[arg-type]  # of several types
        requires=Requires("1", bool(profiles), None if profiles else 23, ()),
    )
    bounds = (*found.goldens.bounds, *golden_bounds(arrays, tiny.IO, "fp16"))
    made = dataclasses.replace(
        found,
        forms={**found.forms, "half": form},
        order=(*found.order, "half"),
        goldens=dataclasses.replace(found.goldens, bounds=bounds),
    )
    answers = {
        case: {spec.name: arrays[f"{case}/eager.fp16/{spec.name}"].astype(np.float32) for spec in tiny.IO.outputs}
        for case in tiny.LENGTHS
    }
    return made, answers


def verdicts(app: Path, manifest: Manifest, form: str, answers: Any) -> list[tuple[str, bool]]:
    results = GoldenCases(app, manifest).check(form, Answering(answers).run)
    return [(result.case, result.passed) for result in results if result.output == "hidden"]


def test_a_form_is_judged_by_the_bounds_of_its_own_plan(app: Path, arrays: dict[str, Any]) -> None:
    manifest, answers = halved(app, arrays)
    cases = list(tiny.LENGTHS)
    assert verdicts(app, manifest, "half", answers) == [(case, True) for case in cases]
    assert verdicts(app, manifest, "ort_cpu", answers) == [(case, False) for case in cases]
    off = {case: {name: array + 0.05 for name, array in found.items()} for case, found in answers.items()}
    assert verdicts(app, manifest, "half", off) == [(case, False) for case in cases]


def test_an_engine_is_asked_only_for_cases_that_its_profiles_admit(app: Path, arrays: dict[str, Any]) -> None:
    small = Profile(
        (Dim("batch", 1, 1, 2), Dim("seq", 1, 5, 5))
    )  # golden-0 is 2 by 5, golden-1 1 by 7, golden-2 3 by 4
    manifest, answers = halved(app, arrays, (small,))
    assert verdicts(app, manifest, "half", answers) == [("golden-0", True)]
    more = Profile((Dim("batch", 3, 3, 3), Dim("seq", 1, 4, 4)))
    manifest, answers = halved(app, arrays, (small, more))
    assert verdicts(app, manifest, "half", answers) == [("golden-0", True), ("golden-2", True)]
    manifest, answers = halved(app, arrays, (Profile((Dim("batch", 8, 8, 8), Dim("seq", 1, 4, 16))),))
    with pytest.raises(BundleError, match=r"no golden case in fp16 has sizes that \S+ takes"):
        verdicts(app, manifest, "half", answers)


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("golden-0/out/hidden", lambda array: array.astype(np.float32)),
        ("golden-0/valid/hidden", lambda array: array.astype(np.int64)),
        ("golden-0/in/ids", lambda array: array.astype(np.int32)),
    ],
)
def test_golden_arrays_of_another_type_are_refused_by_name(app: Path, name: str, wrong: Any) -> None:
    arrays = load_file(app / "goldens.safetensors")
    save_file({**arrays, name: wrong(arrays[name])}, app / "goldens.safetensors")
    with pytest.raises(IntegrityError, match=f"'{name}': got dtype"):
        GoldenCases(app, read(app))


def test_golden_files_that_are_no_arrays_or_other_arrays_are_refused(app: Path) -> None:
    manifest, path = read(app), app / "goldens.safetensors"
    arrays = load_file(path)
    for changed in ({**arrays, "golden-9/in/ids": arrays["golden-0/in/ids"]}, {}):
        save_file(changed, path)
        with pytest.raises(IntegrityError, match="on one side only"):
            GoldenCases(app, manifest)
    path.write_bytes(b"PK\x05\x06" + bytes(18))
    with pytest.raises(IntegrityError, match=r"goldens\.safetensors: it is cut short, or its header is longer"):
        GoldenCases(app, manifest)
    path.unlink()
    with pytest.raises(IntegrityError, match="cannot be read"):
        GoldenCases(app, manifest)


def test_a_golden_file_that_is_too_large_is_refused_before_it_is_read(
    app: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(goldens, "MAX_BYTES", (app / "goldens.safetensors").stat().st_size - 1)
    with pytest.raises(IntegrityError, match="expected at most"):
        GoldenCases(app, read(app))


def test_a_manifest_without_golden_cases_is_refused(app: Path) -> None:
    with pytest.raises(ValueError, match="no golden case"):
        dataclasses.replace(read(app), goldens=GoldenRecord("goldens.safetensors", ()))


# --- JSON ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Leaf:
    size: float
    kind: Literal["a", "b"]


@dataclass(frozen=True)
class Tree:
    leaves: tuple[Leaf, ...]
    by_name: Mapping[str, int]
    note: str | None
    leaf: Leaf | None


GOOD = {"leaves": [{"size": 1, "kind": "a"}], "by_name": {"x": 1}, "note": None, "leaf": {"size": 0.5, "kind": "b"}}


def test_good_json_becomes_values() -> None:
    value = decode(Tree, parse(json.dumps(GOOD).encode(), "here"), "here")
    assert value == Tree((Leaf(1.0, "a"),), {"x": 1}, None, Leaf(0.5, "b"))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"leaves": {}}, "here.leaves: got {}"),
        ({"leaves": [{"size": "1", "kind": "a"}]}, "here.leaves[0].size: got '1'; expected float"),
        ({"leaves": [{"size": True, "kind": "a"}]}, "here.leaves[0].size: got True"),
        ({"leaves": [{"size": 1, "kind": "c"}]}, "here.leaves[0].kind: got 'c'"),
        ({"leaves": [{"size": 1 << 60, "kind": "a"}]}, "here.leaves[0].size"),
        ({"by_name": {"x": 1.0}}, "here.by_name.x: got 1.0; expected int"),
        ({"by_name": [["x", 1]]}, "here.by_name"),
        ({"note": 7}, "here.note: got 7"),
        ({"leaf": []}, "here.leaf: got []"),
        ({"more": 1}, "unknown key 'more'"),
    ],
)
def test_other_types_are_refused_with_their_place(change: dict[str, Any], words: str) -> None:
    with pytest.raises(IntegrityError) as caught:
        decode(Tree, {**GOOD, **change}, "here")
    assert words in str(caught.value)


@pytest.mark.parametrize(
    "text",
    ["", "{", '{"a": 1, "a": 1}', "NaN", "[-Infinity]", "1e400", '{"a": [{"b": 1, "b": 2}]}', "\x00", "9" * 5000],
)
def test_text_that_is_not_strict_json_is_refused(text: str) -> None:
    with pytest.raises(IntegrityError, match="here is not valid"):
        parse(text.encode(), "here")


@pytest.mark.parametrize("text", ['{"KEY": 1}', '{"KEY": 1, "KEY": 2}', "KEY.5"])
def test_what_is_wrong_is_said_in_few_words_however_long_it_is(text: str) -> None:
    with pytest.raises(IntegrityError) as caught:
        decode(Tree, parse(text.replace("KEY", "1" * 100_000).encode(), "here"), "here")
    assert len(str(caught.value)) < 150


def test_nesting_has_a_limit_that_brackets_in_texts_do_not_count_for() -> None:
    assert parse(("[" * MAX_DEPTH + "]" * MAX_DEPTH).encode(), "here")
    assert parse(b'"\\"' + b"[" * 10_000 + b'"', "here")
    for depth in (MAX_DEPTH + 1, 200_000):
        with pytest.raises(IntegrityError, match="nested deeper"):
            parse(b"[" * depth + b"]" * depth, "here")


# --- ONNX ---------------------------------------------------------------------------------------------------------
