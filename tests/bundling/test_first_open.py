"""A form that never ran on its device is proved when it is opened, and the bundle's order is gone along aloud."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import tiny_attention as tiny
from bundle_forms import manifest, reform, wrong_model

from attnport_bundle import BundleError, IntegrityError, NumbersOff, RuntimeMissing, load
from attnport_bundle.errors import BundleWarning
from attnport_bundle.format.manifest import read
from attnport_bundle.goldens import GoldenCases
from attnport_bundle.runtimes import Machine
from attnport_bundle.runtimes.tensorrt import entry

UNPROVED = {"proof": "graph-only"}


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The forms whose goldens ran."""
    found, check = [], GoldenCases.check

    def counted(self, form, run):  # type: ignore[no-untyped-def]  # stands in for a method
        found.append(form)
        return check(self, form, run)

    monkeypatch.setattr(GoldenCases, "check", counted)
    return found


def test_a_form_that_ran_on_its_device_is_opened_as_it_is(app: Path, cache: Path, runs: list[str]) -> None:
    load(app, cache=cache).close()
    assert runs == []


def test_a_form_that_did_not_is_proved_each_time(app: Path, cache: Path, runs: list[str]) -> None:
    reform(app, {"new": UNPROVED})
    for check_files in (True, False):
        model = load(app, cache=cache, check_files=check_files)
        np.testing.assert_equal(model.run(**tiny.feeds([4], 1))["hidden"].shape, (1, 4, 8))
        model.close()
    assert runs == ["new", "new"]
    assert not cache.exists()


def test_another_device_driver_release_or_model_has_other_kernels(app: Path) -> None:
    reform(app, {"new": UNPROVED, "other": UNPROVED})
    known, gpu = read(app), Machine("GPU", "ab", 86, "580.1")
    changed = dataclasses.replace(known, files={**known.files, "weights.bin": known.files["goldens.safetensors"]})
    names = [
        entry(known, "new", "1.31", gpu),
        entry(known, "other", "1.31", gpu),
        entry(known, "new", "1.32", gpu),
        entry(changed, "new", "1.31", gpu),
        *(
            entry(known, "new", "1.31", dataclasses.replace(gpu, **{field: value}))  # type: ignore[arg-type]
            for field, value in (("device", "B"), ("uuid", "cd"), ("sm", 89), ("driver", "580.2"))
        ),
    ]
    assert len(set(names)) == 8
    assert entry(read(app), "new", "1.31", gpu) == names[0]


def test_one_that_computes_something_else_is_passed_over_aloud(app: Path, cache: Path) -> None:
    reform(app, {"bad": UNPROVED | {"file": wrong_model(app)}, "good": {}})
    words = r"good runs; passed over: bad: bad does not pass the goldens on .*: golden-0, hidden: RMS error"
    with pytest.warns(BundleWarning, match=words):
        model = load(app, cache=cache)
    assert model.form == "good"
    assert len(model.passed_over) == 1
    assert model.passed_over[0].startswith("bad: ")
    assert not cache.exists()


@pytest.mark.parametrize("form", [None, "bad"])
def test_one_that_was_asked_for_or_is_the_last_is_refused(app: Path, cache: Path, form: str | None) -> None:
    bad = UNPROVED | {"file": wrong_model(app)}
    reform(app, {"bad": bad, **({"good": {}} if form else {})})
    with pytest.raises(NumbersOff, match="does not pass the goldens") as caught:
        load(app, form=form, cache=cache)
    assert caught.value.exit_code == 4


def test_one_that_its_runtime_refuses_is_passed_over_only_if_it_never_ran(app: Path, cache: Path) -> None:
    import onnx

    model = onnx.load(app / wrong_model(app), load_external_data=False)
    model.graph.node[0].op_type = "NoSuchOperator"
    onnx.save(model, app / "model.wrong.onnx")
    reform(app, {"bad": UNPROVED | {"file": "model.wrong.onnx"}, "good": {}})
    with pytest.warns(BundleWarning, match="NoSuchOperator"):
        assert load(app, cache=cache).form == "good"
    reform(app, {"ort_cpu": {"file": "model.wrong.onnx"}, "good": {}})
    with pytest.raises(BundleError, match="NoSuchOperator"):
        load(app, cache=cache)


def test_a_runtime_that_is_not_here_is_passed_over_aloud(app: Path, cache: Path) -> None:
    later = manifest(app)["forms"]["ort_cpu"]["requires"] | {"runtime": "999.1"}
    cuda = {"provider": "NoSuchExecutionProvider"}
    reform(app, {"later": {"requires": later}, "cuda": cuda, "ort_cpu": {}})
    with pytest.warns(BundleWarning, match=r"expected 999\.1 or later.*built without NoSuchExecutionProvider"):
        model = load(app, cache=cache)
    assert [text.partition(":")[0] for text in model.passed_over] == ["later", "cuda"]
    with pytest.raises(RuntimeMissing, match=r"expected 999\.1"):
        load(app, form="later")


def test_of_several_reasons_numbers_that_are_off_count_most(app: Path, cache: Path) -> None:
    later = manifest(app)["forms"]["ort_cpu"]["requires"] | {"runtime": "999.1"}
    reform(app, {"bad": UNPROVED | {"file": wrong_model(app)}, "later": {"requires": later}})
    with pytest.raises(NumbersOff, match=r"bad: .*goldens.*later: .*999\.1"):
        load(app, cache=cache)


def test_a_file_that_is_not_the_bundled_one_is_never_passed_over(app: Path, cache: Path) -> None:
    dtypes = manifest(app)["forms"]["ort_cpu"]["dtypes"] | {"pooled": "float16"}
    reform(app, {"new": UNPROVED | {"dtypes": dtypes}, "good": {}})
    with pytest.raises(IntegrityError, match="'pooled' is float32; the manifest says float16"):
        load(app, cache=cache)


def test_openvino_is_a_runtime_like_another(app: Path, cache: Path, runs: list[str]) -> None:
    pytest.importorskip("openvino")
    requires = manifest(app)["forms"]["ort_cpu"]["requires"] | {"runtime": "2024.0"}
    reform(app, {"openvino": UNPROVED | {"runtime": "openvino", "provider": None, "requires": requires}, "ort_cpu": {}})
    feeds = tiny.feeds([4, 6], 3)
    with load(app, cache=cache, threads=1) as model, load(app, form="ort_cpu") as other:
        assert (model.form, model.provider, model.passed_over) == ("openvino", "OpenVINO CPU", ())
        assert runs == ["openvino"]
        found, wanted = model.run(**feeds), other.run(**feeds)
        for name in ("hidden", "pooled"):
            np.testing.assert_allclose(found[name], wanted[name], rtol=0, atol=1e-5)
        on_device = model.run_device(feeds)
        np.testing.assert_array_equal(on_device["hidden"], found["hidden"])
    reform(
        app,
        {
            "openvino": UNPROVED
            | {"runtime": "openvino", "provider": None, "requires": requires | {"runtime": "9999.1"}}
        },
    )
    with pytest.raises(RuntimeMissing, match=r'pip install "openvino>=9999\.1"'):
        load(app, cache=cache)
