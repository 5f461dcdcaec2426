"""An engine in a bundle, on a GPU that is pretended: what is checked before it is deserialised, and its first open.

No engine ran on a GPU for these tests: they show what the reader does, not what TensorRT does.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import bundle_forms
import numpy as np
import pretended_gpu
import pytest
from bundle_forms import ENGINE_VERSION, engine_bundle, manifest, reform, seal
from pretended_gpu import Context, Engine, HostDevice, engine_bytes, trt

from attnport_bundle import FeedError, IntegrityError, NumbersOff, RuntimeMissing, load
from attnport_bundle import __main__ as command
from attnport_bundle.errors import BundleWarning
from attnport_bundle.model import selftest
from attnport_bundle.runtimes import cuda as reader_cuda


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> HostDevice:
    made = HostDevice()
    monkeypatch.setitem(sys.modules, "tensorrt_rtx", trt(made, ENGINE_VERSION))
    monkeypatch.setattr(reader_cuda, "Device", lambda: made)
    monkeypatch.setattr(reader_cuda, "driver_release", lambda: "580.1")
    return made


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return engine_bundle(tmp_path / "engine")


def feeds(n: int) -> dict[str, np.ndarray[Any, Any]]:
    return {"x": np.arange(3 * n, dtype=np.float32).reshape(n, 3), "m": np.ones(n, np.bool_)}


def test_an_engine_runs_in_the_contracts_dtypes(bundle: Path, cache: Path, device: HostDevice) -> None:
    with load(bundle, cache=cache) as model:
        assert (model.provider, model.machine.sm) == (f"tensorrt_rtx {ENGINE_VERSION}", 89)
        for n in (1, 8, 32):
            y = model.run(**feeds(n))["y"]
            assert y.dtype == np.float32
            np.testing.assert_array_equal(y, 2 * feeds(n)["x"])
        with pytest.raises(FeedError, match=r"got shape \[12, 3\]; the engine's profiles take"):
            model.run(**feeds(12))
    assert device.memory == {}
    assert device.closed == 1


def test_all_profiles_share_one_memory_and_calls_are_captured_as_graphs(
    bundle: Path, cache: Path, device: HostDevice
) -> None:
    with load(bundle, cache=cache) as model:
        for n in (4, 32, 8):
            model.run(**feeds(n))
        assert device.engine is not None
        first, second = (context.memory for context in device.engine.contexts)
        assert first == second
        assert first is not None
        assert len(device.memory[first[0]]) == first[1] == Engine.device_memory_size_v2
        assert [config.cuda_graph_strategy for config in device.engine.configs] == ["whole graph"]
    assert device.memory == {}


def test_one_for_devices_still_to_come_is_tried_on_a_device_that_it_does_not_name(
    bundle: Path, cache: Path, device: HostDevice
) -> None:
    (bundle / "one.engine").write_bytes(engine_bytes(ENGINE_VERSION, 0b1001100))
    seal(bundle, manifest(bundle))
    device.sm = 130
    load(bundle, cache=cache).close()
    device.engine = None
    with pytest.raises(RuntimeMissing, match=r"is for SM 86, 89; it is SM 130 here: .*pretended complaint"):
        load(bundle, cache=cache)
    assert device.closed == 2


def test_it_is_proved_at_each_open(
    bundle: Path, cache: Path, device: HostDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = []
    for driver in ("580.1", "580.1", "580.2"):
        monkeypatch.setattr(reader_cuda, "driver_release", lambda driver=driver: driver)
        before = device.waits
        load(bundle, cache=cache).close()
        waits.append(device.waits - before)
    assert waits[0] == waits[1] == waits[2] > 0


def test_one_that_computes_something_else_here_is_refused(bundle: Path, cache: Path, device: HostDevice) -> None:
    assert device.engine is not None
    device.engine.factor = 2.1
    with pytest.raises(NumbersOff, match=r"engine does not pass the goldens on Pretended GPU: golden-0, y: "):
        load(bundle, cache=cache)
    assert device.closed == 1


@pytest.mark.parametrize(
    ("call", "words"), [("execute_async_v3", "did not run"), ("set_input_shape", r"TensorRT refuses shape \[4, 3\]")]
)
def test_one_that_cannot_execute_here_is_no_changed_file_and_the_next_is_taken(
    bundle: Path, cache: Path, device: HostDevice, monkeypatch: pytest.MonkeyPatch, call: str, words: str
) -> None:
    right = getattr(Context, call)
    refusals = iter([False])
    monkeypatch.setattr(Context, call, lambda self, *given: next(refusals, True) and right(self, *given))
    reform(bundle, {"engine": {}, "other": {}})
    with pytest.warns(BundleWarning, match=rf"other runs; passed over: engine: .*golden-0, y: .*{words}"):
        load(bundle, cache=cache).close()
    monkeypatch.setattr(Context, call, lambda self, *given: False)
    with pytest.raises(NumbersOff, match=words):
        load(bundle, form="engine", cache=cache)


def test_a_device_without_memory_for_it_says_nothing_about_its_numbers(
    bundle: Path, cache: Path, device: HostDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device, "allocate", _no_memory)
    with pytest.raises(RuntimeMissing, match="CUDA_ERROR_OUT_OF_MEMORY"):
        load(bundle, cache=cache)
    assert device.closed == 1
    report = selftest(bundle)
    assert report.exit_code == 3
    assert [(row.check, row.verdict) for row in report.rows[2:]] == [("engine", "NOT_RUN")]


def test_cases_that_could_not_run_are_not_taken_for_passed(
    bundle: Path, device: HostDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    reform(bundle, {"engine": {}, "other": {}})
    right, left = device.allocate, iter(["scratch", "x", "m", "y"])  # memory for the first form

    def filling(size_bytes: int) -> int:
        return right(size_bytes) if next(left, None) else _no_memory(size_bytes)

    monkeypatch.setattr(device, "allocate", filling)
    report = selftest(bundle)
    assert [row.verdict for row in report.rows[1:]] == ["PASS", "PASS", "NOT_RUN"]
    assert report.exit_code == 3


def test_what_was_compiled_is_there_the_next_time(bundle: Path, cache: Path, device: HostDevice) -> None:
    load(bundle, cache=cache).close()
    (kept,) = cache.glob("*.rtxcache")
    assert device.engine is not None
    device.engine = Engine()
    load(bundle, cache=cache).close()
    (config,) = device.engine.configs
    assert config.cache is not None
    assert config.cache.kernels == {1}
    kept.write_bytes(kept.read_bytes()[:-1] + b"\x07")
    device.engine = Engine()
    load(bundle, cache=cache).close()
    assert device.engine.configs[0].cache is not None
    assert 7 not in device.engine.configs[0].cache.kernels


def test_warm_compiles_each_profile_before_the_first_request(
    bundle: Path, cache: Path, device: HostDevice, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(["warm", str(bundle), "--cache", str(cache), "--shape", "n=2", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [call["sizes"]["n"] for call in told["calls"]] == [4, 32, 2]
    assert all(call["first_ns"] > 0 < call["again_ns"] for call in told["calls"])
    device.engine = Engine()
    with load(bundle, cache=cache):
        (config,) = device.engine.configs
        assert config.cache is not None
        assert config.cache.kernels == {1, 2}
    assert command.main(["warm", str(bundle), "--cache", str(cache)]) == 0
    assert re.search(r"(?m)^n=32: [\d.]+ ms, again [\d.]+ ms$", capsys.readouterr().out)


def test_warm_takes_the_largest_sizes_of_a_profile_whose_usual_ones_a_smaller_takes(
    tmp_path: Path, cache: Path, device: HostDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (pretended_gpu, bundle_forms):
        monkeypatch.setattr(module, "PROFILES", ((1, 4, 8), (1, 6, 64)))
    with load(engine_bundle(tmp_path / "nested"), cache=cache) as model:
        assert [call.sizes["n"] for call in command.warm(model)] == [4, 64]
        assert device.engine is not None
        assert len(device.engine.contexts) == 2


def test_warm_refuses_what_it_could_not_keep(
    app: Path, bundle: Path, cache: Path, device: HostDevice, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(["warm", str(app), "--form", "ort_cpu"]) == 2
    assert "ort_cpu: nothing is compiled for it.\nhint: Name an engine" in capsys.readouterr().err
    cache.mkdir(exist_ok=True)
    cache.chmod(0o777)
    with pytest.warns(BundleWarning, match="others may write to it"):
        assert command.main(["warm", str(bundle), "--cache", str(cache)]) == 2
    assert "what is compiled cannot be kept" in capsys.readouterr().err


def test_its_bytes_are_compared_also_where_files_are_not(bundle: Path, cache: Path, device: HostDevice) -> None:
    load(bundle, cache=cache, check_files=False).close()
    data = (bundle / "one.engine").read_bytes()
    (bundle / "one.engine").write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    words = re.escape(f"{bundle / 'one.engine'}: changed: its SHA-256 is not that of the manifest.")
    with pytest.raises(IntegrityError, match=words):
        load(bundle, cache=cache, check_files=False)
    assert device.closed == 2


def replaced(data: bytes) -> Callable[[Path, dict[str, Any]], None]:
    def change(bundle: Path, found: dict[str, Any]) -> None:
        (bundle / "one.engine").write_bytes(data)

    return change


def one_profile(bundle: Path, found: dict[str, Any]) -> None:
    del found["forms"]["engine"]["profiles"][1]


def wider_profile(bundle: Path, found: dict[str, Any]) -> None:
    found["forms"]["engine"]["profiles"][0]["dims"][0]["max"] = 9


def other_dtype(bundle: Path, found: dict[str, Any]) -> None:
    found["forms"]["engine"]["dtypes"]["y"] = "float16"


WHOLE = engine_bytes(ENGINE_VERSION, 0b1100)
BEFORE = {
    "another version": (replaced(engine_bytes("1.7.1.115", 0b1100)), r"got version .*1\.7\.1\.115"),
    "another target": (replaced(engine_bytes(ENGINE_VERSION, 0b1000)), r"got version .*\(89,\).*\(86, 89\)"),
    "cut short": (replaced(WHOLE[:-1]), "cut short"),
    "longer": (replaced(WHOLE + b"\0"), "behind its end"),
    "half a header": (replaced(WHOLE[:30]), "less than a header"),
    "no engine": (replaced(b"ptrt" + WHOLE[4:]), "no TensorRT-RTX engine"),
    "nothing": (replaced(b""), "no TensorRT-RTX engine"),
}
AFTER = {
    "a profile less": (one_profile, "has 2 optimization profiles; the manifest says 1"),
    "a wider profile": (wider_profile, r"profile 0 takes 'x' from \[1, 3\] to \[8, 3\]"),
    "another dtype": (other_dtype, "'y' is bfloat16; the manifest says float16"),
}


@pytest.mark.parametrize("name", [*BEFORE, *AFTER])
def test_an_engine_that_is_not_the_manifests_is_refused(
    bundle: Path, cache: Path, device: HostDevice, name: str
) -> None:
    change, words = {**BEFORE, **AFTER}[name]
    found = manifest(bundle)
    change(bundle, found)
    seal(bundle, found)
    with pytest.raises(IntegrityError, match=words):
        load(bundle, cache=cache)
    assert device.deserialised == (name in AFTER)
    assert device.closed == (name in AFTER)


def test_another_release_or_device_or_none_is_not_here(
    tmp_path: Path, bundle: Path, cache: Path, device: HostDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    pip = r'pip install "tensorrt-rtx==1\.7\.1\.116"'
    device.sm = 120
    with pytest.raises(RuntimeMissing, match=r"built for SM 86, 89; Pretended GPU is SM 120"):
        load(bundle, cache=cache)
    monkeypatch.setattr(reader_cuda, "Device", _no_driver)
    with pytest.raises(RuntimeMissing, match="no NVIDIA driver"):
        load(bundle, cache=cache)
    for version in ("1.7.1.117", "1.7.1", "2.0"):
        monkeypatch.setitem(sys.modules, "tensorrt_rtx", trt(device, version))
        with pytest.raises(RuntimeMissing, match=rf"expected 1\.7\.1\.116, that release exactly; {pip}"):
            load(bundle, cache=cache)
    monkeypatch.setitem(sys.modules, "tensorrt_rtx", None)
    with pytest.raises(RuntimeMissing, match=f"tensorrt_rtx is not installed; {pip}"):
        load(bundle, cache=cache)
    assert device.deserialised == 0


def test_a_runtime_whose_library_does_not_load_is_not_here(
    tmp_path: Path, bundle: Path, cache: Path, device: HostDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tensorrt_rtx.py").write_text("raise OSError('libnothing.so.1: cannot open shared object file')\n")
    monkeypatch.delitem(sys.modules, "tensorrt_rtx")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(RuntimeMissing, match=r"tensorrt_rtx cannot be imported: libnothing\.so\.1.*; pip install"):
        load(bundle, cache=cache)


def _no_memory(size_bytes: int) -> int:
    raise RuntimeMissing("the NVIDIA driver answers cuMemAlloc_v2 with CUDA_ERROR_OUT_OF_MEMORY.")


def _no_driver() -> None:
    raise RuntimeMissing("no NVIDIA driver: libcuda.so.1 cannot be loaded.")


def test_an_engine_that_tensorrt_refuses_gives_its_reason(bundle: Path, cache: Path, device: HostDevice) -> None:
    device.engine = None
    with pytest.raises(Exception, match="cannot deserialise it on Pretended GPU: pretended complaint"):
        load(bundle, cache=cache)
    assert device.closed == 1


@pytest.mark.skipif(Path("/dev/nvidia0").exists(), reason="there is a GPU")
def test_here_without_a_driver_it_is_said(bundle: Path, cache: Path) -> None:
    with pytest.raises(RuntimeMissing, match=r"NVIDIA driver|not installed|got tensorrt_rtx"):
        load(bundle, cache=cache)
