"""What is checked before an engine is deserialised, and the session on top of a device that stands in for a GPU."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from pretended_engine import VERSION
from pretended_gpu import PROFILES, Config, Context, Engine, HostDevice, Kept, engine_bytes

from attnport.artifacts import EngineRecord, IOContract
from attnport.dims import Dim, Profile, TensorSpec
from attnport.errors import (
    ArtifactError,
    AttnportError,
    BundleError,
    FeedError,
    IntegrityError,
    UnavailableError,
    UsageError,
)
from attnport.runtimes import base
from attnport.runtimes import tensorrt as tensorrt_runtime
from attnport.runtimes.base import Opening
from attnport_bundle.errors import RuntimeMissing
from attnport_bundle.runtimes.tensorrt import EngineSession as ReaderSession
from attnport_bundle.runtimes.tensorrt import choose_profile, logger

RUNTIME = base.get("tensorrt_rtx")
IO = IOContract(
    (TensorSpec("x", "float32", ("n", 3)), TensorSpec("m", "bool", ("n",))),
    (TensorSpec("y", "bfloat16", ("n", 3)),),
    (Dim("n", 1, 4, 64),),
)


def recorded(path: Path, **changes: Any) -> EngineRecord:
    data = path.read_bytes()
    record = EngineRecord(
        target="tensorrt_rtx",
        plan="fp16",
        file=path.name,
        form="tensorrt_rtx",
        sm=(),
        profiles=tuple(Profile((Dim("n", *ranges),)) for ranges in PROFILES),
        version=VERSION,
        digest=hashlib.sha256(data).hexdigest(),
        size_bytes=len(data),
        scratch_bytes=0,
    )
    return dataclasses.replace(record, **changes)


def opening(path: Path, **changes: Any) -> Opening:
    return Opening(IO, "fp16", path, engine=recorded(path, **changes))


def feeds(n: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(n)
    return {"x": rng.standard_normal((n, 3), np.float32), "m": rng.random(n) < 0.5}


def test_an_engine_runs_at_every_size_of_its_profiles(engine: Path, device: HostDevice) -> None:
    session = RUNTIME.open(opening(engine))
    for n in (1, 8, 4, 64, 16, 2):
        given = feeds(n)
        y = session.run(given)["y"]
        assert y.dtype == ml_dtypes.bfloat16
        np.testing.assert_array_equal(y, (given["x"] * given["m"][:, None] * 2).astype(ml_dtypes.bfloat16))
    assert device.engine is not None
    contexts = device.engine.contexts
    assert [context.profile for context in contexts] == [0, 1]
    assert session.ran.device == "Pretended GPU (SM 89)"
    assert session.ran.provider == f"tensorrt_rtx {VERSION}"
    assert session.ran.precision == "fp16"


def test_floats_of_the_contract_are_cast_to_the_engines_own(engine: Path, device: HostDevice) -> None:
    io = dataclasses.replace(IO, inputs=(TensorSpec("x", "float64", ("n", 3)), IO.inputs[1]))
    given = feeds(4)
    expected = RUNTIME.open(opening(engine)).run(given)["y"]
    wide = given | {"x": given["x"].astype(np.float64)}
    np.testing.assert_array_equal(RUNTIME.open(dataclasses.replace(opening(engine), io=io)).run(wide)["y"], expected)


def test_results_of_an_engine_stay_when_it_runs_again(engine: Path, device: HostDevice) -> None:
    session = RUNTIME.open(opening(engine))
    first = session.run(feeds(4))["y"]
    kept = first.copy()
    session.run({name: np.zeros_like(array) for name, array in feeds(4).items()})
    np.testing.assert_array_equal(first, kept)


def no_context(monkeypatch: pytest.MonkeyPatch, device: HostDevice) -> None:
    def say(session: Any) -> str:
        return "Requested amount of GPU memory (4096 bytes) could not be allocated."

    monkeypatch.setattr(Engine, "create_execution_context", lambda self, config: None)
    monkeypatch.setattr(ReaderSession, "_complaint", say)


def no_buffer(monkeypatch: pytest.MonkeyPatch, device: HostDevice) -> None:
    def allocate(size_bytes: int) -> int:
        raise RuntimeMissing("the NVIDIA driver answers cuMemAlloc_v2 with CUDA_ERROR_OUT_OF_MEMORY.")

    monkeypatch.setattr(device, "allocate", allocate)


@pytest.mark.parametrize("full", [no_context, no_buffer])
def test_a_device_without_memory_left_is_no_fault_of_the_call(
    engine: Path, device: HostDevice, monkeypatch: pytest.MonkeyPatch, full: Callable[..., None]
) -> None:
    session = RUNTIME.open(opening(engine))
    session.run(feeds(4))
    full(monkeypatch, device)
    for call in (session.run, lambda given: session.run_timed(given, "stream")):
        with pytest.raises(MemoryError, match="not enough memory for x float32"):
            call(feeds(64))  # another profile, larger buffers
    session.close()
    assert device.memory == {}


def test_what_was_compiled_is_kept_for_the_next_process_and_for_no_other_driver(
    engine: Path, device: HostDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()

    def kernels_found(driver: str) -> set[int]:
        monkeypatch.setattr(tensorrt_runtime, "driver_release", lambda: driver)
        device.engine = Engine()
        session = RUNTIME.open(dataclasses.replace(opening(engine), cache=kept))
        (config,) = device.engine.configs
        assert config.cache is not None
        found = set(config.cache.kernels)
        session.run_timed(feeds(4), "stream")
        session.close()
        return found

    assert [kernels_found(driver) for driver in ("580", "580", "590")] == [set(), {1}, set()]
    assert len(list(kept.iterdir())) == 2


def test_without_a_place_nothing_is_kept(engine: Path, device: HostDevice) -> None:
    session = RUNTIME.open(opening(engine))
    session.run(feeds(4))
    session.close()
    assert device.engine is not None
    assert [config.cache for config in device.engine.configs] == [None]


def test_closing_twice_frees_all_device_memory_once(engine: Path, device: HostDevice) -> None:
    session = RUNTIME.open(opening(engine))
    session.run(feeds(8))
    assert len(device.memory) == 4  # of three tensors, and of the context
    session.close()
    session.close()
    assert device.memory == {}
    assert device.closed == 1


def test_a_shape_between_the_profiles_is_refused_with_the_ranges(engine: Path, device: HostDevice) -> None:
    with pytest.raises(FeedError, match=r"\[12.*\[1.*\[8.*\[16.*\[64"):
        RUNTIME.open(opening(engine)).run(feeds(12))


def test_of_several_fitting_profiles_the_closest_is_chosen() -> None:
    wide, close = {"x": ((1,), (64,))}, {"x": ((2,), (8,))}
    assert choose_profile([wide, close], {"x": (4,)}) == 1
    assert choose_profile([wide, close], {"x": (1,)}) == 0
    with pytest.raises(FeedError, match="'x'"):
        choose_profile([wide, close], {"x": (4, 4)})


def changed(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[50] ^= 1
    path.write_bytes(bytes(data))


def no_magic(path: Path) -> None:
    path.write_bytes(b"ptrt" + path.read_bytes()[4:])


def longer(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"x")


@pytest.mark.parametrize(
    ("damage", "words"),
    [(changed, "SHA-256"), (longer, "101 bytes"), (lambda path: path.write_bytes(b""), "got 0 bytes")],
)
def test_a_changed_engine_is_never_deserialised(
    engine: Path, device: HostDevice, damage: Callable[[Path], object], words: str
) -> None:
    given = opening(engine)
    damage(engine)
    with pytest.raises(IntegrityError, match=words):
        RUNTIME.open(given)
    assert device.deserialised == 0


@pytest.mark.parametrize("damage", [no_magic, longer, lambda path: path.write_bytes(b"vtrt")])
def test_a_file_that_is_no_engine_is_never_deserialised_even_if_its_record_says_so(
    engine: Path, device: HostDevice, damage: Callable[[Path], object]
) -> None:
    damage(engine)
    with pytest.raises(IntegrityError, match="header"):
        RUNTIME.open(opening(engine))
    assert device.deserialised == 0


def test_another_version_is_refused_by_both_names(engine: Path, device: HostDevice) -> None:
    with pytest.raises(IntegrityError, match=r"1\.2\.3.*9\.9\.9"):
        RUNTIME.open(opening(engine, version="1.2.3"))
    assert device.deserialised == 0


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"engine": None}, UsageError, "record"),
        ({"model": None}, UsageError, "file"),
        ({"model": Path("nowhere.engine")}, ArtifactError, "nowhere"),
        ({"plan": "bf16"}, UnavailableError, "bf16"),
        ({"io": dataclasses.replace(IO, inputs=IO.inputs[:1])}, ArtifactError, "inputs"),
        ({"io": dataclasses.replace(IO, outputs=(TensorSpec("y", "int32", ("n", 3)),))}, ArtifactError, "'y'"),
    ],
)
def test_an_opening_that_does_not_fit_the_engine_is_refused(
    engine: Path, device: HostDevice, change: dict[str, Any], error: type[AttnportError], words: str
) -> None:
    with pytest.raises(error, match=words):
        RUNTIME.open(dataclasses.replace(opening(engine), **change))


def test_a_gpu_that_the_engine_was_not_built_for_is_refused_by_number(engine: Path, device: HostDevice) -> None:
    RUNTIME.open(opening(engine, sm=(86, 89))).close()
    with pytest.raises(UnavailableError, match=r"SM 86; .* SM 89"):
        RUNTIME.open(opening(engine, sm=(86,)))


@pytest.mark.parametrize(("sm", "error"), [(89, BundleError), (87, UnavailableError), (90, UnavailableError)])
def test_a_gpu_that_is_not_on_the_default_list_is_tried_and_what_refuses_it_is_said(
    sm: int, error: type[Exception], engine: Path, device: HostDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.write_bytes(engine_bytes(mask=0b1111110))  # as a bfloat16 engine says: SM 80 and on, and what is to come
    monkeypatch.setattr(HostDevice, "sm", sm)
    RUNTIME.open(opening(engine)).close()
    device.engine = None
    with pytest.raises(error, match="pretended complaint") as caught:
        RUNTIME.open(opening(engine))
    named = f"is for SM 80, 86, 89, 120, 121; on Pretended GPU, which is SM {sm}," in str(caught.value)
    assert named == (error is UnavailableError)


def test_an_engine_that_cannot_be_deserialised_carries_the_reason(engine: Path, device: HostDevice) -> None:
    device.engine = None
    with pytest.raises(BundleError, match="pretended complaint"):
        RUNTIME.open(opening(engine))
    assert device.closed == 1


@pytest.mark.skipif(not find_spec("tensorrt_rtx"), reason="tensorrt_rtx is not installed")
def test_the_installed_tensorrt_has_every_name_that_a_session_uses() -> None:
    import tensorrt_rtx as trt

    pairs = (
        (trt.ICudaEngine, Engine),
        (trt.IExecutionContext, Context),
        (trt.IRuntimeConfig, Config),
        (trt.IRuntimeCache, Kept),
    )
    for kind, used in pairs:
        names = [name for name in vars(used) if not name.startswith("_") and name not in ("kinds", "factor")]
        assert [name for name in names if not hasattr(kind, name)] == []
    assert hasattr(trt.Runtime, "deserialize_cuda_engine")
    assert {"ERROR", "INTERNAL_ERROR"} <= set(dir(trt.ILogger))
    assert hasattr(trt.TensorIOMode, "INPUT")
    assert {"FLOAT", "HALF", "BF16", "INT32", "INT64", "BOOL"} <= set(trt.DataType.__members__)


@pytest.mark.skipif(not find_spec("tensorrt_rtx"), reason="tensorrt_rtx is not installed")
def test_errors_of_the_installed_tensorrt_are_kept_for_our_messages() -> None:
    import tensorrt_rtx as trt

    complaints: list[str] = []
    made = logger(trt, complaints)
    made.log(trt.ILogger.ERROR, "wrong")
    made.log(trt.ILogger.WARNING, "odd")
    assert complaints == ["wrong"]


@pytest.mark.gpu
@pytest.mark.skipif(not find_spec("tensorrt_rtx"), reason="tensorrt_rtx is not installed")
def test_an_engine_runs_on_a_real_gpu(tmp_path: Path) -> None:
    """Memory, stream and profile switches on a device: y = 2 x in half precision, built here, at two profiles."""
    import onnx.parser
    import tensorrt_rtx as trt

    if reason := RUNTIME.probe().reason:
        pytest.skip(reason)
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 23]> g (float16[n,3] x) => (float16[n,3] y) { y = Add(x, x) }'
    )
    logger = trt.Logger(trt.Logger.ERROR)
    builder = trt.Builder(logger)
    network = builder.create_network()
    assert trt.OnnxParser(network, logger).parse(model.SerializeToString())
    config = builder.create_builder_config()
    for low, best, high in PROFILES:
        profile = builder.create_optimization_profile()
        profile.set_shape("x", (low, 3), (best, 3), (high, 3))
        config.add_optimization_profile(profile)
    path = tmp_path / "one.engine"
    path.write_bytes(bytes(builder.build_serialized_network(network, config)))
    io = IOContract((TensorSpec("x", "float16", ("n", 3)),), (TensorSpec("y", "float16", ("n", 3)),), IO.dims)
    session = RUNTIME.open(Opening(io, "fp16", path, engine=recorded(path, version=trt.__version__)))
    for n in (1, 64, 8, 16):
        x = np.random.default_rng(n).standard_normal((n, 3)).astype(np.float16)
        np.testing.assert_array_equal(session.run({"x": x})["y"], x + x)
    session.close()
