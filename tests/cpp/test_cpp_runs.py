"""The C++ reader runs what a bundle holds: its selftest, and outputs equal to Python's bit for bit."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bundle_forms import manifest, seal
from cpp_builds import Build
from safetensors.numpy import load_file

import attnport_bundle as reader
from attnport.bundling.golden import cases

BUNDLING = Path(__file__).resolve().parents[1] / "bundling"
if str(BUNDLING) not in sys.path:
    sys.path.append(str(BUNDLING))  # where a bundle is changed so that its model gives an input on

import wide_integers  # noqa: E402 - see above
from giving_on import give_on, turn  # noqa: E402 - see above
from test_giving_on import TURNED  # noqa: E402 - see above

FORMS = ["ort_cpu", "openvino"]


def run(build: Build, app: Path, form: str, feeds: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The outputs of the C++ reader."""
    folder.mkdir(parents=True)
    told = []
    for number, (name, array) in enumerate(feeds.items()):
        (folder / str(number)).write_bytes(array.tobytes())
        told.append(f"{name}:{array.dtype}:{','.join(map(str, array.shape))}")
    done = build.run("run_files", app, form, "1", folder, *told)
    assert done.returncode == 0, done.stderr
    outputs = {}
    for number, line in enumerate(done.stdout.splitlines()[1:]):
        name, dtype, *shape = line.split()
        data = (folder / f"{number}.out").read_bytes()
        outputs[name] = np.frombuffer(data, dtype).reshape([int(size) for size in shape])
    return outputs


def golden_feeds(app: Path) -> dict[str, dict[str, Any]]:
    """The inputs of every golden case."""
    arrays = load_file(app / "goldens.safetensors")
    inputs = [one["name"] for one in manifest(app)["io"]["inputs"]]
    return {case: {name: arrays[f"{case}/in/{name}"] for name in inputs} for case in cases(arrays)}


def assert_equal_bits(build: Build, app: Path, form: str, folder: Path) -> None:
    with reader.load(app, form=form, threads=1) as model:
        for case, feeds in golden_feeds(app).items():
            expected = model.run(**feeds)
            found = run(build, app, form, feeds, folder / case)
            assert list(found) == list(expected)
            for name, array in expected.items():
                assert found[name].dtype == array.dtype
                assert found[name].shape == array.shape
                assert found[name].tobytes() == array.tobytes(), f"{case} {name}"


def test_the_selftest_passes(cpp_build: Build, app: Path) -> None:
    done = cpp_build.run("attnport-selftest", app)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("OK\n")


def test_a_wrong_weight_under_a_fitting_digest_is_found(cpp_build: Build, app: Path) -> None:
    weights = np.fromfile(app / "weights.bin", np.uint8)
    weights[3::4] ^= 0x80  # the sign of every float32
    weights.tofile(app / "weights.bin")
    seal(app, manifest(app))
    done = cpp_build.run("attnport-selftest", app)
    assert done.returncode == 4, done.stdout + done.stderr
    assert "FAIL" in done.stdout


def test_outputs_are_pythons_bit_for_bit(cpp_build: Build, app: Path, tmp_path: Path) -> None:
    assert_equal_bits(cpp_build, app, "ort_cpu", tmp_path / "arrays")


def test_outputs_stay_where_the_memory_of_the_feeds_is_gone(cpp_build: Build, app: Path) -> None:
    give_on(app)
    done = cpp_build.run("feeds_go", app)
    assert (done.returncode, done.stdout) == (0, "1 1 0 \n" * 2), done.stderr


@pytest.mark.parametrize("name", TURNED)
def test_an_output_of_another_shape_is_refused(app: Path, tmp_path: Path, cpp_build: Build, name: str) -> None:
    operator, dims, shape, _ = TURNED[name]
    turn(app, operator, dims)
    for number in range(2):
        (tmp_path / str(number)).write_bytes(np.ones(shape, np.int64).tobytes())
    told = [f"{one}:int64:{shape[0]},{shape[1]}" for one in ("ids", "attention_mask")]
    done = cpp_build.run("run_files", app, "ort_cpu", "1", tmp_path, *told)
    assert done.returncode == 2
    assert "output 'turned'" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("build", ["cpp_shared", "cpp_asan", "cpp_clang"])
def test_minilm_passes_its_selftest(build: str, minilm_app: Path, request: pytest.FixtureRequest) -> None:
    done = request.getfixturevalue(build).run("attnport-selftest", minilm_app)
    assert done.returncode == 0, done.stdout + done.stderr
    passed = {
        name for name in FORMS if any(line.startswith(name) and "PASS" in line for line in done.stdout.splitlines())
    }
    assert passed == set(FORMS[:1] if build == "cpp_clang" else FORMS), done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_minilms_outputs_are_pythons_bit_for_bit(cpp_build: Build, form: str, minilm_app: Path, tmp_path: Path) -> None:
    assert_equal_bits(cpp_build, minilm_app, form, tmp_path / "arrays")


@pytest.mark.parametrize("value", wide_integers.BEYOND.values(), ids=list(wide_integers.BEYOND))
def test_an_integer_beyond_32_bits_is_refused_on_openvino(
    app: Path, tmp_path: Path, cpp_build: Build, value: int
) -> None:
    wide_integers.make(app)
    (tmp_path / "0").write_bytes(np.array([[1, value]], np.int64).tobytes())
    done = cpp_build.run("run_files", app, "ort_cpu", "1", tmp_path, "x:int64:1,2")
    assert done.returncode == 2
    assert "OpenVINO computes int64 in 32 bits" in done.stderr
