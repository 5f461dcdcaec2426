"""PyTorch on a GPU, on a pretended one: what goes there and back, what is timed, what is captured, what is refused."""

from __future__ import annotations

import contextlib
import dataclasses
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tiny_model
import torch
from pretended_torch import RUNTIMES, HostDevice, pretend

from attnport.artifacts import CASTS, DEVICE_PARTS, ModelSpec, Source
from attnport.errors import FeedError, UnavailableError, UsageError
from attnport.models.base import get
from attnport.runtimes import _torch_device, base, torch_compile, torch_compile_tuned_cuda
from attnport.runtimes._torch_modes import modes_for
from attnport.runtimes.base import Opening, Runtime
from attnport.runtimes.torch_eager import EagerCall, matmul_precision

SPEC = ModelSpec("tiny", Source("tiny"), tiny_model.IO, tiny_model.make)


def opening(**changes: Any) -> Opening:
    return Opening(**({"io": tiny_model.IO, "spec": SPEC, "threads": 1, "contract": True} | changes))


def feeds(batch: int = 3, seq: int = 5) -> dict[str, np.ndarray]:
    mask = np.ones((batch, seq), np.int64)
    mask[0, seq // 2 :] = 0
    return {
        "input_ids": np.random.default_rng(seq).integers(0, tiny_model.VOCAB, (batch, seq)),
        "attention_mask": mask,
    }


@pytest.fixture
def devices(monkeypatch: pytest.MonkeyPatch) -> list[HostDevice]:
    return pretend(monkeypatch)


@pytest.mark.parametrize("name", RUNTIMES)
def test_without_a_cuda_build_the_probe_says_so_and_how_to_get_one(name: str) -> None:
    if torch.version.cuda is not None:
        pytest.skip("this PyTorch has CUDA")
    found = base.get(name).probe()
    assert not found.available
    assert found.version == torch.__version__
    assert f"torch {torch.__version__} is built without CUDA" in found.reason
    assert "pip install" in found.hint
    with pytest.raises(UnavailableError, match="without CUDA"):
        base.get(name).open(opening())


@pytest.mark.parametrize("name", RUNTIMES)
def test_a_cuda_build_without_a_driver_says_what_is_missing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_driver() -> None:
        raise UnavailableError("no NVIDIA driver: libcuda.so.1 cannot be loaded.", hint="Run on another machine.")

    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(_torch_device, "load_driver", no_driver)
    assert "libcuda.so.1" in base.get(name).probe().reason
    monkeypatch.setattr(_torch_device, "load_driver", lambda: None)
    monkeypatch.setattr(torch.cuda, "init", lambda: (_ for _ in ()).throw(RuntimeError("No CUDA GPUs are available")))
    assert base.get(name).probe().reason == "torch.cuda finds no GPU: No CUDA GPUs are available"


@pytest.mark.parametrize(("major", "plans"), [(7, ("fp32", "fp16", "fp16_islands")), (9, CASTS)])
def test_a_gpu_is_named_with_its_capability_and_has_bf16_from_ampere_on(
    major: int, plans: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    properties = SimpleNamespace(name="NVIDIA Something", major=major, minor=0)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(_torch_device, "load_driver", lambda: None)
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties)
    found = base.get("torch_eager_cuda").probe()
    assert found.available
    assert found.devices == (f"NVIDIA Something (SM {major}0)",)
    assert found.plans == plans


@pytest.mark.parametrize(
    ("name", "plan"),
    [
        ("torch_eager_cuda", "fp32"),
        ("torch_eager_cuda", "bf16"),
        pytest.param("torch_compile_cuda", "fp32", marks=pytest.mark.slow),
    ],
)
def test_what_comes_back_is_what_the_module_gives(name: str, plan: str, devices: list[HostDevice]) -> None:
    on_cpu = base.get("torch_eager").open(opening(plan=plan))
    session: Any = base.get(name).open(opening(plan=plan))
    got, expected = session.run(feeds()), on_cpu.run(feeds())
    for key, array in expected.items():
        assert got[key].dtype == array.dtype
        atol = 2e-6 if plan == "fp32" else 4e-2
        np.testing.assert_allclose(got[key].astype(np.float64), array.astype(np.float64), atol=atol)
    assert session.ran.device == HostDevice.name
    assert session.ran.precision == plan
    assert devices[-1].done.count("put") >= 3  # the module and both inputs
    if name == "torch_compile_cuda":
        assert "inductor" in session.ran.provider
        assert session.run_timed(feeds(), "graph")
    session.close()
    assert devices[-1].done[-1] == "free"


def test_the_float64_reference_is_computed_there_too(devices: list[HostDevice]) -> None:
    there = base.get("torch_eager_cuda").open(opening(float64=True)).run(feeds())
    here = base.get("torch_eager").open(opening(float64=True)).run(feeds())
    assert there["last_hidden_state"].dtype == np.float64
    np.testing.assert_allclose(there["last_hidden_state"], here["last_hidden_state"], rtol=1e-12)


def test_copies_and_computing_are_told_apart_and_graphs_are_captured_once_a_shape(devices: list[HostDevice]) -> None:
    session: Any = base.get("torch_eager_cuda").open(opening())
    device = devices[-1]
    assert session.modes == ("stream", "graph")
    device.done.clear()
    parts = session.run_timed(feeds(), "stream")
    assert tuple(parts) == DEVICE_PARTS
    assert all(isinstance(ns, int) and ns > 0 for ns in parts.values())
    assert device.done == ["mark", "put", "put", "mark", "mark", "mark", "wait"]
    device.done.clear()
    for sizes in ((3, 5), (3, 5), (2, 7), (3, 5)):
        assert tuple(session.run_timed(feeds(*sizes), "graph")) == DEVICE_PARTS
    assert device.done.count("captured") == 3
    assert device.done.count("replayed") == 4
    with pytest.raises(UsageError, match="stream, graph"):
        session.run_timed(feeds(), "later")


def test_a_graph_computes_on_the_inputs_of_each_call(devices: list[HostDevice]) -> None:
    session: Any = base.get("torch_eager_cuda").open(opening())
    session.run_timed(feeds(), "graph")
    other = {**feeds(), "input_ids": feeds()["input_ids"][::-1].copy()}
    session.run_timed(other, "graph")
    expected = base.get("torch_eager").open(opening()).run(other)["last_hidden_state"]
    np.testing.assert_allclose(session._graph[3][0].numpy(), expected, atol=1e-6)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*script_method:DeprecationWarning")  # of inductor, where it is first imported
def test_tuned_code_computes_what_the_module_does() -> None:
    module = tiny_model.make().eval()
    tensors = {name: torch.from_numpy(array) for name, array in feeds().items()}
    with torch.inference_mode():
        got, expected = torch_compile_tuned_cuda.tuned(module)(tensors), module(**tensors)
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5)


def test_what_no_graph_can_hold_is_refused_and_runs_as_a_stream(
    devices: list[HostDevice], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HostDevice, "waits_inside", True)
    session: Any = base.get("torch_eager_cuda").open(opening())
    with pytest.raises(UnavailableError, match="captured as a CUDA graph"):
        session.run_timed(feeds(), "graph")
    assert session.run_timed(feeds(), "stream")


def test_feeds_that_do_not_fit_are_refused_before_they_are_timed(devices: list[HostDevice]) -> None:
    session: Any = base.get("torch_eager_cuda").open(opening())
    with pytest.raises(FeedError, match="input_ids"):
        session.run_timed({**feeds(), "input_ids": np.zeros((3, 5), np.int32)}, "stream")
    session.close()
    with pytest.raises(UsageError, match="closed"):
        session.run_timed(feeds(), "stream")


def test_inductor_that_does_not_compile_there_is_no_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch)
    torch_compile.cannot_compile.cache_clear()
    monkeypatch.setattr(
        torch, "compile", lambda *args, **options: lambda x: (_ for _ in ()).throw(OSError("no triton"))
    )
    found = base.get("torch_compile_cuda").probe()
    torch_compile.cannot_compile.cache_clear()
    assert not found.available
    assert "no triton" in found.reason
    assert "gcc" in found.hint


def test_products_are_added_up_whole_where_outputs_are_compared(
    devices: list[HostDevice], monkeypatch: pytest.MonkeyPatch
) -> None:
    products: Any = torch.backends.cuda.matmul
    seen: set[bool] = set()
    call = EagerCall.__call__

    def watched(self: EagerCall, tensors: dict[str, torch.Tensor]) -> Any:
        seen.add(products.allow_fp16_reduced_precision_reduction)
        return call(self, tensors)

    assert products.allow_fp16_reduced_precision_reduction  # PyTorch's default
    monkeypatch.setattr(EagerCall, "__call__", watched)
    with contextlib.closing(base.get("torch_eager_cuda").open(opening(plan="fp16"))) as session:
        session.run(feeds())
    assert seen == {False}
    assert products.allow_fp16_reduced_precision_reduction


@pytest.mark.parametrize(("setting", "said"), [("highest", "fp32"), ("high", "fp32 (matmul high)")])
def test_tf32_is_no_fp32(setting: str, said: str) -> None:
    had = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(setting)
    try:
        assert matmul_precision("fp32", on_gpu=True) == said
        assert matmul_precision("fp16", on_gpu=True) == "fp16"
    finally:
        torch.set_float32_matmul_precision(had)


@pytest.mark.parametrize("plan", [*CASTS, "float64"])
@pytest.mark.parametrize("name", ["bert_encoder", "llama_decoder"])
def test_nothing_that_a_run_makes_stays_on_the_host(name: str, plan: str) -> None:
    """PyTorch's `meta` device has no memory, but refuses tensors of the host beside its own as a GPU does."""
    float64 = plan == "float64"
    model = get(name)
    given = Opening(model.io, plan="fp32" if float64 else plan, float64=float64)
    dtype = torch.float64 if float64 else {"fp16": torch.half, "bf16": torch.bfloat16}.get(plan, torch.float32)
    call = EagerCall(given, model.make().to(dtype).to("meta"))
    sizes = {dim.name: dim.min + 2 for dim in model.io.dims}
    tensors = {}
    for spec in model.io.inputs:
        kind = torch.int64 if spec.dtype == "int64" else dtype
        tensors[spec.name] = torch.empty(spec.shape(sizes), dtype=kind, device="meta")
    result = call(tensors)
    assert {tensor.device.type for tensor in (result if isinstance(result, tuple) else (result,))} == {"meta"}


def test_a_tensor_that_stays_on_the_host_is_noticed() -> None:
    class Forgets(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + torch.arange(x.shape[-1])

    call = EagerCall(Opening(tiny_model.IO), Forgets())
    with pytest.raises(RuntimeError, match="device"):
        call({"x": torch.empty(2, 3, device="meta")})


def test_every_plan_has_its_modes_whatever_the_device() -> None:
    assert all(len(modes_for(plan, float64=False)) == plan.endswith("islands") for plan in CASTS)


def needs(name: str) -> Runtime:
    """The runtime on a GPU, or the reason to skip."""
    found = base.get(name).probe()
    if not found.available:
        pytest.skip(found.reason)
    return base.get(name)


@pytest.mark.gpu
@pytest.mark.parametrize("name", RUNTIMES)
def test_a_gpu_gives_the_numbers_of_the_processor(name: str) -> None:
    runtime = needs(name)
    session: Any = runtime.open(opening())
    expected = base.get("torch_eager").open(opening()).run(feeds())["last_hidden_state"]
    np.testing.assert_allclose(session.run(feeds())["last_hidden_state"], expected, atol=2e-5)
    for mode in session.modes:
        parts = session.run_timed(feeds(), mode)
        assert tuple(parts) == DEVICE_PARTS
        assert parts["device"] > 0
    np.testing.assert_allclose(session._graph[3][0].cpu().numpy(), expected, atol=2e-5)
    assert "SM" in session.ran.device


@pytest.mark.gpu
def test_a_call_that_waits_for_the_gpu_is_not_captured_and_breaks_nothing() -> None:
    class Waits(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = tiny_model.make()

        def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> Any:
            return self.inner(input_ids, attention_mask * int(attention_mask.max().item()))

    needs("torch_eager_cuda")
    spec = dataclasses.replace(SPEC, make=Waits)
    session: Any = base.get("torch_eager_cuda").open(opening(spec=spec))
    with pytest.raises(UnavailableError, match="captured as a CUDA graph"):
        session.run_timed(feeds(), "graph")
    assert session.run_timed(feeds(), "stream")["device"] > 0
