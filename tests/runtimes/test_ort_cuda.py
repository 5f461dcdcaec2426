"""ONNX Runtime on CUDA: what can be shown without a GPU. Where CUDA is needed, the CPU provider stands in for it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx.parser
import pytest
from pretended_gpu import HostDevice

from attnport.artifacts import MANY, IOContract, Ran
from attnport.dims import Dim, TensorSpec
from attnport.errors import ArtifactError, FeedError, UnavailableError
from attnport.runtimes import _ort, ort_cuda
from attnport.runtimes.base import Opening
from attnport_bundle.errors import RuntimeMissing
from attnport_bundle.runtimes import cuda as reader_cuda

ort = pytest.importorskip("onnxruntime")
onnxruntime_pybind11_state = pytest.importorskip("onnxruntime.capi.onnxruntime_pybind11_state")
CPU = "CPUExecutionProvider"
IO = IOContract(
    (TensorSpec("q", "float32", ("B", "S", 16)),),
    (TensorSpec("y", "float32", ("B", "S", 16)),),
    (Dim("B", 1, 2, 8), Dim("S", 1, 8, 32)),
)
ATTENTION = "[in] r = Relu(q) [att] y = com.microsoft.MultiHeadAttention<num_heads=2>(r, r, r)"


def saved(folder: Path, body: str = ATTENTION, kind: str = "float") -> Path:
    text = (
        f'<ir_version: 10, opset_import: ["" : 23, "com.microsoft" : 1]> g ({kind}[B,S,16] q) => ({kind}[B,S,16] y) '
        f"{{ {body} }}"
    )
    path = folder / "model.onnx"
    onnx.save(onnx.parser.parse_model(text), path)
    return path


@pytest.fixture
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA is there, and is the CPU."""
    monkeypatch.setattr(ort_cuda, "PROVIDER", CPU)
    monkeypatch.setattr(ort_cuda, "provider_options", lambda sm: {})
    monkeypatch.setattr(ort_cuda._cuda, "Device", HostDevice)


def event(op: str, provider: str, inputs: list[dict[str, list[int]]], outputs: list[dict[str, list[int]]]) -> Any:
    ran = {"op_name": op, "provider": provider, "input_type_shape": inputs, "output_type_shape": outputs}
    return {"name": f"{op.lower()}_kernel_time", "args": ran}


def test_a_build_without_cuda_says_so_and_how_to_get_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ort, "get_available_providers", lambda: [CPU])
    found = ort_cuda.RUNTIME.probe()
    assert not found.available
    assert "CUDAExecutionProvider" in found.reason
    assert 'pip install "onnxruntime-gpu[cuda,cudnn]"' in found.hint


def test_a_provider_that_is_only_built_in_is_not_available(monkeypatch: pytest.MonkeyPatch) -> None:
    class FellBack:
        def __init__(self, *args: Any, **options: Any) -> None:
            ((provider, own),) = options["providers"]
            assert (provider, own["use_tf32"]) == ("CUDAExecutionProvider", "0")

        def get_providers(self) -> list[str]:
            return [CPU]

    monkeypatch.setattr(ort, "get_available_providers", lambda: ["CUDAExecutionProvider", CPU])
    monkeypatch.setattr(ort_cuda._cuda, "Device", HostDevice)
    monkeypatch.setattr(ort, "InferenceSession", FellBack)
    found = ort_cuda.RUNTIME.probe()
    assert not found.available
    assert f"the session runs on {CPU}" in found.reason


def test_cuda_libraries_that_came_as_wheels_are_loaded_before_the_provider_is_asked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    done: list[str] = []

    def preload(**options: Any) -> None:
        print("Failed to load libcudnn.so.9")
        done.append(f"preloaded from {options['directory']!r}")

    def refusal(*given: Any) -> str:
        done.append("asked")
        return "no"

    monkeypatch.setattr(ort, "get_available_providers", lambda: ["CUDAExecutionProvider", CPU])
    monkeypatch.setattr(ort_cuda._cuda, "Device", HostDevice)
    monkeypatch.setattr(ort, "preload_dlls", preload)
    monkeypatch.setattr(_ort, "refusal", refusal)
    assert not ort_cuda.RUNTIME.probe().available
    assert done == ["preloaded from ''", "asked"]
    assert capsys.readouterr().out == ""


def test_a_machine_without_a_driver_is_told_apart_from_a_wrong_build(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> None:
        raise UnavailableError("no NVIDIA driver.", hint="Get one.")

    monkeypatch.setattr(ort, "get_available_providers", lambda: ["CUDAExecutionProvider", CPU])
    monkeypatch.setattr(ort_cuda._cuda, "Device", none)
    found = ort_cuda.RUNTIME.probe()
    assert (found.available, found.reason, found.hint) == (False, "no NVIDIA driver.", "Get one.")


def test_opening_without_a_device_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ort, "get_available_providers", lambda: [CPU])
    with pytest.raises(UnavailableError, match="built without CUDAExecutionProvider"):
        ort_cuda.RUNTIME.open(Opening(IO, model=saved(tmp_path)))
    with pytest.raises(UnavailableError, match="built without CUDAExecutionProvider"):
        ort_cuda.RUNTIME.fusion_evidence(saved(tmp_path), {"a": ("att",)})


def test_floating_point_work_outside_the_provider_is_misplaced() -> None:
    large, scalar, numbers = {"float16": [2, 3]}, {"float": [1]}, {"int64": [4]}
    events = [
        event("MatMul", "CUDAExecutionProvider", [large, large], [large]),
        event("Softmax", CPU, [large], [large]),
        event("Cast", CPU, [large], [numbers]),
        event("Shape", CPU, [large], [numbers]),
        event("Concat", CPU, [numbers, numbers], [numbers]),
        event("Sqrt", CPU, [scalar, {"float": []}], [scalar]),
    ]
    assert _ort.misplaced(events, "CUDAExecutionProvider") == [f"softmax (Softmax, {CPU})", f"cast (Cast, {CPU})"]


def test_what_really_ran_elsewhere_is_found_in_the_profile(tmp_path: Path) -> None:
    body = "s = Shape(q) [one] z = ConstantOfShape(s) [sum] y = Add(q, z)"
    events, optimised = _ort.profiled(saved(tmp_path, body), CPU)
    assert _ort.misplaced(events, CPU) == []
    assert f"sum (Add, {CPU})" in _ort.misplaced(events, "CUDAExecutionProvider")
    assert {node.name for node in optimised.graph.node} >= {"sum"}


class Failing:
    """A session of ONNX Runtime, in C, on a provider that fails when it runs."""

    def __init__(self, real: Any) -> None:
        self.real = real

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    def run(self, *given: Any) -> None:
        raise onnxruntime_pybind11_state.EPFail("CUDA failure 700")

    def run_with_ort_values(self, *given: Any) -> None:
        self.run()


@pytest.mark.parametrize("kind", ["float", "bfloat16"])
@pytest.mark.parametrize("plugin", [False, True])
def test_a_call_that_failed_on_the_provider_is_not_run_again_on_the_cpu(
    kind: str, plugin: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = "f = Cast<to=1>(q) r = Relu(f) y = Cast<to=16>(r)" if kind == "bfloat16" else "y = Relu(q)"
    found = tuple(device for device in ort.get_ep_devices() if device.ep_name == CPU)[:1]
    provider = _ort.Plugin(CPU, found, {}) if plugin else CPU
    session = _ort.open_session(saved(tmp_path, body, kind), _ort.options(1), provider)
    monkeypatch.setattr(session, "_sess", Failing(session._sess))
    opened = _ort.OrtSession(IO, session, Ran("CUDA", CPU, "fp32"))
    with pytest.raises(FeedError, match="CUDA failure 700"):
        opened.run({"q": np.ones((2, 5, 16), np.float32)})


def test_a_model_of_which_a_part_fell_back_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_cpu: None
) -> None:
    real = _ort.profiled

    def one_elsewhere(*given: Any) -> Any:
        events, optimised = real(*given)
        for each in events:
            if each["name"] == "in_kernel_time":
                each["args"]["provider"] = "SomeExecutionProvider"
        return events, optimised

    path = saved(tmp_path)
    ort_cuda.RUNTIME.open(Opening(IO, model=path)).close()
    monkeypatch.setattr(_ort, "profiled", one_elsewhere)
    with pytest.raises(UnavailableError, match=r"1 nodes did not run on CPU.*: in \(Relu, SomeExecutionProvider\)"):
        ort_cuda.RUNTIME.open(Opening(IO, model=path))


def test_the_probe_tells_cudnn_and_the_kernels_of_attention_that_run_here(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, dict[str, str]]] = []
    kernels = {"17": "FLASH_ATTENTION", "18": "EFFICIENT_ATTENTION", "24": "CUDNN_FLASH_ATTENTION"}

    def refusal(text: str, provider: Any) -> str:
        options = provider[1]
        asked.append((text, options))
        if "att" not in text:
            return ""
        if "bias" in text and options["sdpa_kernel"] == "24":
            return "Failed to build cuDNN graph"
        unfused = "bias" in text and options["sdpa_kernel"] == "17"
        os.write(1, line("att", "MATH" if unfused else kernels[options["sdpa_kernel"]]).encode())
        return ""

    monkeypatch.setattr(ort, "get_available_providers", lambda: ["CUDAExecutionProvider", CPU])
    monkeypatch.setattr(ort_cuda._cuda, "Device", HostDevice)
    monkeypatch.setattr(ort_cuda, "cudnn_version", lambda: "9.13.1")
    monkeypatch.setattr(_ort, "refusal", refusal)
    found = ort_cuda.RUNTIME.probe()
    assert found.available
    assert found.devices == ("Pretended GPU (SM 89)",)
    assert found.details == {
        "cuDNN": "9.13.1",
        "attention": "flash and memory-efficient and cuDNN without a mask, memory-efficient with a bias",
    }
    assert all(options["use_tf32"] == "0" for _, options in asked)


def test_before_ampere_nothing_computes_in_bfloat16(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_cpu: None
) -> None:
    monkeypatch.setattr(HostDevice, "sm", 75)
    monkeypatch.setattr(ort, "get_available_providers", lambda: [CPU])
    monkeypatch.setattr(ort_cuda, "attention_kernels", lambda options: "")
    assert ort_cuda.RUNTIME.probe().plans == ("fp32", "fp16")
    with pytest.raises(UnavailableError, match="is SM 75; ort_cuda computes in bf16 from SM 80 on"):
        ort_cuda.RUNTIME.open(Opening(IO, plan="bf16", model=saved(tmp_path, kind="bfloat16")))


@pytest.mark.parametrize(
    ("sm", "cudnn", "kernels"),
    [(75, True, None), (80, True, "27"), (89, True, "27"), (89, False, None), (90, True, None), (120, True, None)],
)
def test_the_kernels_of_attention_are_asked_for_by_compute_capability(
    sm: int, cudnn: bool, kernels: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader_cuda, "_loads", lambda library: cudnn)
    options = reader_cuda.provider_options(sm)
    assert options.get("sdpa_kernel") == kernels
    assert options["cudnn_conv_algo_search"] == "HEURISTIC"


def test_options_that_a_session_does_not_have_are_no_options() -> None:
    class Session:
        def get_provider_options(self) -> dict[str, dict[str, str]]:
            return {"CUDAExecutionProvider": {"use_tf32": "1", "sdpa_kernel": "27"}}

    reader_cuda.require_options(Session(), "CUDAExecutionProvider", {"sdpa_kernel": "27", "not told": "1"})
    with pytest.raises(RuntimeMissing, match="it has use_tf32=1"):
        reader_cuda.require_options(Session(), "CUDAExecutionProvider", {"use_tf32": "0", "sdpa_kernel": "27"})


@pytest.mark.usefixtures("on_cpu")
def test_a_half_precision_form_takes_what_the_contract_says(tmp_path: Path) -> None:
    given = {"q": np.random.default_rng(0).standard_normal((2, 5, 16), np.float32)}
    whole = ort_cuda.RUNTIME.open(Opening(IO, model=saved(tmp_path))).run(given)["y"]
    session = ort_cuda.RUNTIME.open(Opening(IO, plan="fp16", model=saved(tmp_path, kind="float16")))
    assert (session.ran.provider, session.ran.precision) == (CPU, "fp16")
    got = session.run(given)["y"]
    assert got.dtype == np.float16
    assert 0 < np.abs(got.astype(np.float32) - whole).max() < 5e-3


@pytest.mark.usefixtures("on_cpu")
def test_a_form_of_another_plan_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="FLOAT16"):
        ort_cuda.RUNTIME.open(Opening(IO, plan="fp32", model=saved(tmp_path, kind="float16")))
    with pytest.raises(UnavailableError, match="fp16_islands"):
        ort_cuda.RUNTIME.open(Opening(IO, plan="fp16_islands", model=saved(tmp_path)))


@pytest.fixture
def printing(monkeypatch: pytest.MonkeyPatch, on_cpu: None) -> Callable[[str], list[dict[str, list[int]]]]:
    """A way to say what the CPU, in CUDA's place, prints when it runs; returns the shapes of the runs to come."""
    real, shapes = _ort.profiled, []

    def pretend(text: str) -> list[dict[str, list[int]]]:
        def profiled(model: Any, provider: Any, feeds: Any = None, *given: Any, **options: Any) -> Any:
            assert os.environ[_ort.VARIABLE] == "1"
            os.write(1, text.encode())
            shapes.append({name: list(array.shape) for name, array in feeds.items()})
            return real(model, provider, feeds, *given, **options)

        monkeypatch.setattr(_ort, "profiled", profiled)
        return shapes

    return pretend


def line(node: str, kernel: str) -> str:
    return f"\x1b[36mOperator=MultiHeadAttention Node={node} DataType=fp32 SdpaKernel={kernel}\x1b[0m\n"


def test_the_kernel_that_onnx_runtime_printed_is_evidence(tmp_path: Path, printing: Any) -> None:
    shapes = printing(line("att", "CUDNN_FLASH_ATTENTION") + line("in", "FLASH_ATTENTION"))
    found = ort_cuda.RUNTIME.fusion_evidence(saved(tmp_path), {"layer": ("att",), "wrong operator": ("in",)})
    assert list(found) == ["layer"]
    assert found["layer"].kernel == "MultiHeadAttention CUDNN_FLASH_ATTENTION"
    assert "com.microsoft.MultiHeadAttention" in found["layer"].text
    assert "SdpaKernel=CUDNN_FLASH_ATTENTION" in found["layer"].text
    assert "copies" not in found["layer"].text
    assert ort_cuda.RUNTIME.fusion_evidence(saved(tmp_path), {"layer": ("att",)}, io=IO)
    odd = IOContract(IO.inputs, IO.outputs, (Dim("B", 1, 1, 1), Dim("S", 9, 12, 30)))
    assert ort_cuda.RUNTIME.fusion_evidence(saved(tmp_path), {"layer": ("att",)}, io=odd)
    assert "no multiple of 8" not in found["layer"].text
    # At odd lengths too, where the contract has such.
    assert shapes[::2] == [{"q": [8, 8, 16]}, {"q": [8, 8, 16]}, {"q": [1, 16, 16]}]
    assert shapes[1::2] == [{"q": [9, 9, 16]}, {"q": [8, 9, 16]}, {"q": [1, 17, 16]}]


def test_what_is_several_kernels_at_odd_lengths_is_told_with_the_evidence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_cpu: None
) -> None:
    real = _ort.profiled

    def profiled(model: Any, provider: Any, feeds: Any, *given: Any, **options: Any) -> Any:
        os.write(1, line("att", "MATH" if feeds["q"].shape[1] % 8 else "EFFICIENT_ATTENTION").encode())
        return real(model, provider, feeds, *given, **options)

    monkeypatch.setattr(_ort, "profiled", profiled)
    found = ort_cuda.RUNTIME.fusion_evidence(saved(tmp_path), {"layer": ("att",)}, io=IO)
    assert found["layer"].kernel == "MultiHeadAttention EFFICIENT_ATTENTION"
    assert found["layer"].text.endswith("; at lengths that are no multiple of 8 it printed MATH")


def test_where_nothing_is_printed_nothing_is_known(tmp_path: Path, printing: Any) -> None:
    printing("")
    with pytest.raises(UnavailableError, match="printed no kernel"):
        ort_cuda.RUNTIME.fusion_evidence(saved(tmp_path), {"layer": ("att",)})
    assert ort_cuda.RUNTIME.fusion_evidence(saved(tmp_path), {}) == {}


@pytest.mark.parametrize("printed", [line("att", "MATH"), line("other", "FLASH_ATTENTION")])
def test_an_operator_of_several_kernels_or_of_an_unknown_one_is_no_evidence(
    printed: str, tmp_path: Path, printing: Any
) -> None:
    printing(printed)
    assert ort_cuda.RUNTIME.fusion_evidence(saved(tmp_path), {"layer": ("att",)}) == {}


@pytest.mark.parametrize(("other", "fused"), [("CUDNN_FLASH_ATTENTION", True), ("MATH", False), ("", False)])
def test_both_ways_of_a_decoder_must_be_fused(other: str, fused: bool, tmp_path: Path, printing: Any) -> None:
    call = "com.microsoft.MultiHeadAttention<num_heads=2>"
    path = saved(tmp_path, f"[att] a = {call}(q, q, q) [att_many] y = {call}(a, a, a)")
    model = onnx.load(path)
    model.graph.node[1].name = f"att{MANY}"
    onnx.save(model, path)
    printing(line("att", "FLASH_ATTENTION") + (line(f"att{MANY}", other) if other else ""))
    assert bool(ort_cuda.RUNTIME.fusion_evidence(path, {"layer": ("att",)})) is fused


def test_copies_between_the_devices_are_told_with_the_evidence(
    tmp_path: Path, printing: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    printing(line("att", "FLASH_ATTENTION"))
    real = _ort.profiled

    def copying(*given: Any, **options: Any) -> Any:
        events, optimised = real(*given, **options)
        return [*events, *(event(op, CPU, [], []) for op in ("MemcpyToHost", "MemcpyFromHost"))], optimised

    monkeypatch.setattr(_ort, "profiled", copying)
    found = ort_cuda.RUNTIME.fusion_evidence(saved(tmp_path), {"layer": ("att",)})
    assert "2 copies between CPU and device" in found["layer"].text


STATE = onnxruntime_pybind11_state
OF_THE_DEVICE = [
    STATE.NotImplemented("[ONNXRuntimeError] : 9 : NOT_IMPLEMENTED : Could not find an implementation for Pad(18)"),
    STATE.RuntimeException("[ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : CUDA failure 35: driver is insufficient"),
    STATE.EPFail("[ONNXRuntimeError] : 11 : EP_FAIL : CUDNN_FE failure 11: CUDNN_BACKEND_API_FAILED"),
    STATE.Fail("[ONNXRuntimeError] : 1 : FAIL : CUBLAS failure 3: CUBLAS_STATUS_ALLOC_FAILED"),
    STATE.EPFail("[ONNXRuntimeError] : 11 : EP_FAIL : Failed to build cuDNN graph for Flash Attention: No engine."),
    STATE.Fail("[ONNXRuntimeError] : 1 : FAIL : cudaErrorMisalignedAddress: misaligned address"),
    STATE.Fail("Failed to load library libonnxruntime_providers_cuda.so with error: libcublasLt.so.13: no such file"),
]
NO_MEMORY = STATE.RuntimeException("BFCArena: Failed to allocate memory for requested buffer of size 17179869184")
OF_THE_MODEL = [
    STATE.InvalidProtobuf("[ONNXRuntimeError] : 7 : INVALID_PROTOBUF : Load model failed: Protobuf parsing failed."),
    STATE.InvalidGraph("[ONNXRuntimeError] : 10 : INVALID_GRAPH : This is an invalid model."),
]


def failing(err: Exception) -> Callable[..., Any]:
    def fail(*given: Any, **options: Any) -> Any:
        raise err

    return fail


@pytest.mark.parametrize(
    ("err", "error"),
    [
        *((one, UnavailableError) for one in OF_THE_DEVICE),
        *((one, ArtifactError) for one in OF_THE_MODEL),
        (NO_MEMORY, MemoryError),
    ],
)
@pytest.mark.parametrize("where", ["opening", "running"])
def test_a_fault_of_the_device_is_told_apart_from_a_broken_model(
    err: Exception, error: type[Exception], where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Pretended:
        def get_providers(self) -> list[str]:
            return [ort_cuda.PROVIDER]

        def get_inputs(self) -> list[Any]:
            return []

        get_outputs = get_inputs
        run = failing(err)

    path = saved(tmp_path)
    monkeypatch.setattr(ort, "InferenceSession", failing(err) if where == "opening" else lambda *a, **o: Pretended())
    with pytest.raises(error) as caught:
        _ort.refuse_fallback(path, (ort_cuda.PROVIDER, {}))
    assert str(err) in caught.value.args[0]
    assert caught.value.__cause__ is err


@pytest.mark.parametrize("err", OF_THE_DEVICE)
def test_on_the_cpu_a_missing_kernel_is_a_fault_of_the_model(
    err: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = saved(tmp_path)
    monkeypatch.setattr(ort, "InferenceSession", failing(err))
    with pytest.raises(ArtifactError):
        _ort.open_session(path, _ort.options(1), CPU)


@pytest.mark.usefixtures("on_cpu")
def test_a_form_of_which_the_device_lacks_a_kernel_is_not_run_and_the_reason_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_ort, "CPU", "another")
    body = "y = com.microsoft.MultiHeadAttention<num_heads=2>(q, q, q)"  # in half precision, the CPU has none
    with pytest.raises(UnavailableError, match=r"NOT_IMPLEMENTED.*MultiHeadAttention"):
        ort_cuda.RUNTIME.open(Opening(IO, plan="bf16", model=saved(tmp_path, body, "bfloat16")))


@pytest.mark.usefixtures("on_cpu")
def test_bfloat16_goes_in_and_comes_out(tmp_path: Path) -> None:
    given = {"q": np.random.default_rng(0).standard_normal((2, 5, 16), np.float32)}
    whole = ort_cuda.RUNTIME.open(Opening(IO, model=saved(tmp_path))).run(given)["y"]
    body = "f = Cast<to=1>(q) r = Relu(f) a = com.microsoft.MultiHeadAttention<num_heads=2>(r, r, r) y = Cast<to=16>(a)"
    got = ort_cuda.RUNTIME.open(Opening(IO, plan="bf16", model=saved(tmp_path, body, "bfloat16"))).run(given)["y"]
    assert got.dtype == ml_dtypes.bfloat16
    assert 0 < np.abs(got.astype(np.float32) - whole).max() < 5e-2
