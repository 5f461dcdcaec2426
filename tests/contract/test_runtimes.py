"""What holds for every runtime. A new file in attnport/runtimes is tried on it by itself."""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import gc
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from one_attention import VOCAB, WIDTH, Model, contract
from representatives import representatives

from attnport.artifacts import PLANS, Capabilities, IOContract, Ran, Session
from attnport.budget import memory_bytes
from attnport.errors import ArtifactError, FeedError, UnavailableError, UsageError
from attnport.runtimes import base
from attnport.runtimes._javascript import JavaScriptRuntime
from attnport.runtimes.base import Opening, Runtime

WEIGHTS_BYTES = 4 * VOCAB * WIDTH
# What a plan's unit roundoff makes of an output of order one, with room: an error below it was not computed in it.
BAND = {"fp32": (0.0, 2e-5), "fp16": (5e-5, 2e-2), "bf16": (5e-4, 2e-1)}


# Those of npm are tried where `make test-all` has installed their packages.
NAMES = [
    name for name in base.names() if "NODE_PATH" in os.environ or not isinstance(base.get(name), JavaScriptRuntime)
]


@pytest.fixture(params=NAMES)
def runtime(request: pytest.FixtureRequest) -> Runtime:
    return base.get(request.param)


@functools.cache
def probed(name: str) -> Capabilities:
    return base.get(name).probe()


def there(name: str) -> Runtime:
    """The runtime, or the reason to skip."""
    if not probed(name).available:
        pytest.skip(probed(name).reason)
    return base.get(name)


# torch.compile compiles for seconds, in every test; tests/runtimes/test_torch_compile.py has quick ones.
@pytest.fixture(params=representatives(NAMES, set(NAMES) - {"torch_compile"}))
def usable(request: pytest.FixtureRequest) -> Runtime:
    """A runtime that can open a model here."""
    return there(request.param)


@pytest.fixture(params=[name for name in NAMES if base.get(name).opens == "onnx"])
def reader(request: pytest.FixtureRequest) -> Runtime:
    """A runtime that reads ONNX files and is there."""
    return there(request.param)


def usual(runtime: Runtime) -> str:
    """The plan that a runtime is tried in where a test is not about plans: attention in fp32 is no fused engine."""
    return "fp16" if runtime.opens == "engine" else "fp32"


def contract_of(runtime: Runtime, plan: str) -> IOContract:
    """The contract with the dtype in which outputs come back."""
    cast = runtime.name == "onnx_reference" or runtime.opens in ("module", "engine")
    dtype = {"fp16": "float16", "bf16": "bfloat16"}.get(plan, "float32")
    return contract(dtype if cast else "float32")


def opening(runtime: Runtime, exported: Model, plan: str = "", **changes: Any) -> Opening:
    """What the runtime opens the model with: an fp32 graph if half precision is a setting of it, as of OpenVINO."""
    plan = plan or usual(runtime)
    half = runtime.name != "openvino" and plan in exported.files
    given = {
        "io": contract_of(runtime, plan),
        "plan": plan,
        "model": {"onnx": exported.files[plan if half else "fp32"], "bundle": exported.bundle}.get(runtime.opens),
        "spec": exported.spec if runtime.opens == "module" else None,
        "threads": 1,
        "contract": True,
    }
    if runtime.opens == "engine":
        given["model"], given["engine"] = exported.engine(runtime.name, plan)
    return Opening(**(given | changes))


def plans(runtime: Runtime) -> tuple[str, ...]:
    """What a session of the model can be opened in: a bundle has the plans of its forms, here of one."""
    if runtime.opens == "engine":
        return ("fp16", "bf16")
    return ("fp32",) if runtime.opens == "bundle" else probed(runtime.name).plans


def grown_bytes(open_one: Callable[[], Session], times: int = 10) -> int:
    """How much more memory this process holds after sessions were opened, run and closed one after another."""

    def once() -> None:
        session = open_one()
        session.run(feeds())
        session.close()

    def held() -> int:
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)  # what is freed, and kept by the C library for later, is no leak
        return memory_bytes("VmRSS")

    for _ in range(3):
        once()  # pools and caches fill
    before = held()
    for _ in range(times):
        once()
    return held() - before


def feeds(batch: int = 3, seq: int = 7) -> dict[str, np.ndarray]:
    """Row 0 whole, row 1 padded on the right, row 2 with no key at all."""
    rng = np.random.default_rng(batch * 100 + seq)
    keep = np.ones((batch, seq), bool)
    keep[1 % batch, (seq + 1) // 2 :] = False
    if batch > 2:
        keep[2] = False
    return {"ids": rng.integers(0, VOCAB, (batch, seq)), "keep": keep}


def reference(model: Model, given: dict[str, np.ndarray]) -> np.ndarray:
    session = base.get("torch_eager").open(Opening(contract(), spec=model.spec, contract=True, float64=True))
    return session.run(given)["attended"]


def test_probe_says_why_a_runtime_is_not_available(runtime: Runtime) -> None:
    found = runtime.probe()
    assert found.runtime == runtime.name
    if found.available:
        assert found.version
        assert found.devices
        assert set(found.plans) <= PLANS.keys()
        assert found.plans
    else:
        assert found.reason
        with pytest.raises(UnavailableError) as caught:
            base.available(runtime)
        assert found.reason in caught.value.message


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"idz": np.zeros((2, 3), np.int64)}, ["'idz'", "ids, keep"]),
        ({"ids": None}, ["'ids'", "missing"]),
        ({"ids": np.zeros((3, 7), np.int32)}, ["'ids'", "int32", "int64"]),
        ({"keep": np.ones((3, 7), np.int64)}, ["'keep'", "int64", "bool"]),
        ({"ids": np.zeros((3, 7, 1), np.int64)}, ["'ids'", "rank 3", "rank 2"]),
        ({"keep": np.ones((3, 8), bool)}, ["'keep'", "seq=8", "seq=7"]),
        ({"ids": np.zeros((9, 7), np.int64)}, ["'ids'", "batch=9", "1 to 8"]),
        ({"ids": np.full((3, 7), VOCAB)}, ["'ids'", f"{VOCAB}", f"0 to {VOCAB - 1}"]),
        ({"ids": np.full((3, 7), -1)}, ["'ids'", "-1", f"0 to {VOCAB - 1}"]),
    ],
)
def test_feeds_that_do_not_fit_are_refused_by_name(
    usable: Runtime, model: Model, change: dict[str, np.ndarray | None], words: list[str]
) -> None:
    given = {name: array for name, array in (feeds() | change).items() if array is not None}
    session = usable.open(opening(usable, model))
    with pytest.raises(FeedError) as caught:
        session.run(given)
    for word in words:
        assert word in caught.value.message


def test_outputs_come_in_contract_order_with_their_dtypes(usable: Runtime, model: Model) -> None:
    io = contract_of(usable, usual(usable))
    if usable.opens == "onnx":  # a module's outputs have no names: there, position is all
        io = dataclasses.replace(io, outputs=io.outputs[::-1])
    outputs = usable.open(opening(usable, model, io=io)).run(feeds())
    assert list(outputs) == [spec.name for spec in io.outputs]
    assert {name: str(array.dtype) for name, array in outputs.items()} == {spec.name: spec.dtype for spec in io.outputs}
    assert outputs["lengths"].tolist() == [7, 4, 0]


@pytest.mark.parametrize("plan", BAND)
def test_what_ran_is_what_the_numbers_show(usable: Runtime, model: Model, plan: str) -> None:
    if plan not in plans(usable):
        if usable.opens == "engine":
            pytest.skip("a fused engine is in half precision")
        with pytest.raises(UnavailableError, match=plan):
            usable.open(opening(usable, model, plan))
        return
    session = usable.open(opening(usable, model, plan))
    given = feeds(4, 32)
    error = np.abs(session.run(given)["attended"].astype(np.float64) - reference(model, given)).max()
    low, high = BAND[plan]
    assert low <= error <= high
    assert session.ran.precision == plan
    # A bundle's device is that of its form, here of ONNX Runtime on the CPU.
    assert session.ran.device in (("CPU",) if usable.opens == "bundle" else probed(usable.name).devices)
    assert session.ran.provider


@pytest.mark.parametrize("seq", [1, 7, 32])
@pytest.mark.parametrize("batch", [1, 3])
def test_every_size_gives_the_references_numbers(usable: Runtime, model: Model, batch: int, seq: int) -> None:
    given = feeds(batch, seq)
    found = usable.open(opening(usable, model)).run(given)["attended"].astype(np.float64)
    np.testing.assert_allclose(found, reference(model, given), atol=BAND[usual(usable)][1])


@pytest.mark.parametrize("plan", BAND)
def test_an_attention_row_with_no_allowed_key_gives_zero(usable: Runtime, model: Model, plan: str) -> None:
    if plan not in plans(usable):
        pytest.skip(f"does not run {plan}")
    attended = usable.open(opening(usable, model, plan)).run(feeds())["attended"].astype(np.float64)
    assert (attended[2] == 0).all()
    assert (attended[:2] != 0).any(-1).all()


@pytest.mark.parametrize("plan", ["fp16", "bf16"])
def test_the_engine_that_runtimes_are_tried_on_is_built_without_a_gpu(model: Model, plan: str) -> None:
    pytest.importorskip("tensorrt_rtx")
    given = opening(base.get("tensorrt_rtx"), model, plan)
    assert given.engine is not None
    assert given.engine.plan == plan
    assert given.model is not None
    assert given.model.stat().st_size > WEIGHTS_BYTES / 2
    if not probed("tensorrt_rtx").available:
        with pytest.raises(UnavailableError):
            base.get("tensorrt_rtx").open(given)


def test_closing_twice_is_fine_and_running_afterwards_is_not(usable: Runtime, model: Model) -> None:
    for _ in range(2):
        session = usable.open(opening(usable, model))
        session.run(feeds())
        session.close()
        session.close()
        with pytest.raises(UsageError, match="closed"):
            session.run(feeds())


def test_ten_sessions_one_after_another_leave_nothing_behind(usable: Runtime, model: Model) -> None:
    grown = grown_bytes(lambda: usable.open(opening(usable, model)))
    assert grown < 5 * WEIGHTS_BYTES, f"{grown / 2**20:.0f} MiB"


def test_sessions_that_are_left_open_are_seen_in_memory(model: Model) -> None:
    kept = []

    def leak() -> Session:
        kept.append(base.get("torch_eager").open(opening(base.get("torch_eager"), model)))
        return Wrapped(kept[-1])

    assert grown_bytes(leak) > 7 * WEIGHTS_BYTES


@dataclasses.dataclass
class Wrapped:
    """A session that does not close."""

    session: Session

    @property
    def ran(self) -> Ran:
        return self.session.ran

    def run(self, given: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return self.session.run(given)

    def close(self) -> None:
        pass


def test_two_threads_get_what_one_gets(usable: Runtime, model: Model) -> None:
    session = usable.open(opening(usable, model))
    cases = [feeds(2, 5), feeds(3, 31)]
    alone = [session.run(case)["attended"] for case in cases]
    found: list[list[np.ndarray]] = [[], []]

    def work(which: int) -> None:
        for _ in range(10):
            found[which].append(session.run(cases[which])["attended"])

    threads = [threading.Thread(target=work, args=(which,)) for which in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for expected, results in zip(alone, found, strict=True):
        assert len(results) == 10
        for result in results:
            np.testing.assert_allclose(result, expected, atol=1e-6)


def test_results_stay_when_the_session_runs_again(usable: Runtime, model: Model) -> None:
    session = usable.open(opening(usable, model))
    first = session.run(feeds(2, 5))["attended"]
    kept = first.copy()
    session.run({name: array[::-1].copy() for name, array in feeds(2, 5).items()})
    session.close()
    np.testing.assert_array_equal(first, kept)


def test_feeds_that_are_views_or_read_only_run(usable: Runtime, model: Model) -> None:
    session = usable.open(opening(usable, model))
    given = feeds(2, 6)
    strided = {name: np.repeat(array, 2, axis=1)[:, ::2] for name, array in given.items()}
    for array in strided.values():
        array.flags.writeable = False
    np.testing.assert_array_equal(session.run(strided)["attended"], session.run(given)["attended"])


@pytest.mark.parametrize("damage", ["missing", "empty", "garbage", "cut short", "folder"])
def test_a_broken_file_is_an_error_that_names_it(reader: Runtime, model: Model, tmp_path: Path, damage: str) -> None:
    whole, path = model.files["fp32"].read_bytes(), tmp_path / "broken.onnx"
    if damage == "folder":
        path.mkdir()
    elif damage != "missing":
        path.write_bytes({"empty": b"", "garbage": b"\xff" * 500, "cut short": whole[: len(whole) // 2]}[damage])
    with pytest.raises(ArtifactError, match=r"broken\.onnx"):
        reader.open(opening(reader, model, model=path))


def test_a_model_of_another_contract_is_refused(reader: Runtime, model: Model) -> None:
    io = contract()
    other = dataclasses.replace(io, inputs=(dataclasses.replace(io.inputs[0], name="tokens"), io.inputs[1]))
    with pytest.raises(ArtifactError, match="tokens"):
        reader.open(opening(reader, model, io=other))


def test_a_model_of_another_precision_is_refused(reader: Runtime, model: Model) -> None:
    with pytest.raises(ArtifactError, match="FLOAT16"):
        reader.open(opening(reader, model, model=model.files["fp16"]))


def test_opening_without_a_model_is_refused(usable: Runtime, model: Model) -> None:
    with pytest.raises(UsageError):
        usable.open(opening(usable, model, model=None, spec=None))


def test_a_session_is_what_the_design_calls_a_session(usable: Runtime, model: Model) -> None:
    session: Session = usable.open(opening(usable, model))
    assert callable(session.run)
    assert callable(session.close)
