"""ONNX Runtime with TensorRT, both flavours: what can be shown without a GPU, whose place the CPU takes."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest

from attnport.artifacts import IOContract
from attnport.dims import Dim, TensorSpec
from attnport.errors import ArtifactError, UnavailableError
from attnport.runtimes import _cuda, _ort, ort_tensorrt, ort_tensorrt_rtx
from attnport.runtimes.base import Opening
from attnport_bundle.runtimes.cuda import needed
from attnport_bundle.runtimes.kernels import VARIABLE

ort = pytest.importorskip("onnxruntime")
CPU = "CPUExecutionProvider"
IO = IOContract(
    (TensorSpec("q", "float32", ("B", "S", 16)), TensorSpec("n", "int64", ("B",))),
    (TensorSpec("y", "float32", ("B", "S", 16)),),
    (Dim("B", 2, 3, 8), Dim("S", 1, 8, 32)),
)
FEEDS = {"q": np.random.default_rng(0).standard_normal((2, 5, 16), np.float32), "n": np.zeros(2, np.int64)}


def saved(folder: Path, kind: str = "float16") -> Path:
    text = (
        f'<ir_version: 10, opset_import: ["" : 23]> g ({kind}[B,S,16] q, int64[B] n) => ({kind}[B,S,16] y) '
        f"{{ r = Relu(q) c = CastLike(n, q) s = ReduceSum<keepdims=0>(c) y = Add(r, s) }}"
    )
    path = folder / "model" / "model.onnx"
    path.parent.mkdir(exist_ok=True)
    onnx.save(onnx.parser.parse_model(text), path)
    return path


@pytest.fixture
def on_cpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Both providers are there, and are the CPU's; nothing is kept outside of the test's folder."""
    for module in (ort_tensorrt, ort_tensorrt_rtx):
        monkeypatch.setattr(module, "PROVIDER", CPU)
        monkeypatch.setattr(module, "profile_options", lambda io, option: {})
    monkeypatch.setattr(ort_tensorrt, "load_driver", lambda: None)
    monkeypatch.setattr(ort_tensorrt_rtx, "require", lambda name: SimpleNamespace(__version__="9.9"))
    monkeypatch.setenv(VARIABLE, str(tmp_path / "cache"))


RUNTIMES = [ort_tensorrt.RUNTIME, ort_tensorrt_rtx.RUNTIME]


@pytest.fixture(params=RUNTIMES, ids=lambda runtime: runtime.name)
def runtime(request: pytest.FixtureRequest, on_cpu: None, monkeypatch: pytest.MonkeyPatch) -> Any:
    # The CPU provider compiles nothing that an engine context file could hold: the model stands in for it.
    monkeypatch.setattr(ort_tensorrt_rtx, "compiled_context", lambda path, provider: path.read_bytes())
    return request.param


def test_a_build_without_the_provider_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ort, "get_available_providers", lambda: [CPU])
    found = ort_tensorrt.RUNTIME.probe()
    assert (found.available, found.reason) == (False, "this onnxruntime is built without TensorrtExecutionProvider.")
    assert 'pip install "onnxruntime-gpu[cuda,cudnn]"' in found.hint


def test_the_library_that_is_wanted_and_not_there_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    provider = tmp_path / "libonnxruntime_providers_tensorrt.so"
    provider.write_bytes(
        b"\x7fELF\x00libnvinfer.so.10\x00libc.so.6\x00libcudart.so.13\x00libnvinfer_none.txt\x00libcudnn.so\x00"
    )
    monkeypatch.setattr(ort, "get_available_providers", lambda: [ort_tensorrt.PROVIDER, CPU])
    monkeypatch.setattr(ort_tensorrt, "load_driver", lambda: None)
    monkeypatch.setattr(_cuda, "beside", lambda package, pattern: provider)
    monkeypatch.setattr(_cuda, "path_of", lambda name: "" if "nvinfer" in name else f"/lib/{name}")
    found = ort_tensorrt.RUNTIME.probe()
    assert not found.available
    assert found.reason == "TensorrtExecutionProvider wants libnvinfer.so.10, which the loader does not find."
    assert found.hint == 'pip install "tensorrt-cu13==10.*"'
    assert found.libraries == {"libnvinfer.so.10": "", "libcudart.so.13": "/lib/libcudart.so.13"}


def test_a_library_that_the_loader_finds_is_told_with_its_path() -> None:
    assert Path(_cuda.path_of("libc.so.6")).name.startswith("libc")
    assert _cuda.path_of("libnvinfer.so.99") == ""
    assert needed(Path("/nowhere")) == ()
    assert _cuda.beside("onnxruntime", "capi/no_such_library*") is None


def test_without_its_package_the_plug_in_names_the_line_that_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ort_tensorrt_rtx, "PACKAGE", "no_such_package_of_a_provider")
    found = ort_tensorrt_rtx.RUNTIME.probe()
    assert not found.available
    assert "no_such_package_of_a_provider is not installed" in found.reason
    assert found.hint == "pip install no_such_package_of_a_provider"


def test_a_library_that_cannot_be_registered_is_not_available(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    library = tmp_path / "libprovider.so"
    library.write_bytes(b"no library")
    package = SimpleNamespace(get_ep_name=lambda: "Some", get_library_path=lambda: str(library), __version__="1")
    monkeypatch.setattr(ort_tensorrt_rtx, "require", lambda name: package)
    with pytest.raises(UnavailableError, match=r"cannot be registered: .*libprovider\.so"):
        ort_tensorrt_rtx.registered_devices()


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_the_cuda_runtime_that_lies_in_the_plug_in_is_loaded_for_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A library that is needed by its short name alone, and lies in the package under its full name."""
    package = tmp_path / "pretended_plug_in"
    package.mkdir()
    package.joinpath("__init__.py").write_text("__version__ = '1'\n")
    name, needs = "libcudart.so.99", ["-Wl,--no-as-needed", "-L.", "-l:libcudart.so.99.1"]
    for output, source, options in (
        (f"{name}.1", "int pretended(void) { return 99; }", [f"-Wl,-soname,{name}"]),
        ("libonnxruntime_providers_pretended.so", "int pretended(void); int call(void) { return pretended(); }", needs),
    ):
        package.joinpath("source.c").write_text(source)
        subprocess.run(["cc", "-shared", "-fPIC", "-o", output, "source.c", *options], cwd=package, check=True)
    provider = str(package / "libonnxruntime_providers_pretended.so")
    registered = []

    def register(ep_name: str, library: str) -> None:
        registered.append(ctypes.CDLL(library).call())

    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(ort_tensorrt_rtx, "PACKAGE", package.name)
    plug_in = SimpleNamespace(__version__="1", get_ep_name=lambda: "Some", get_library_path=lambda: provider)
    monkeypatch.setattr(ort_tensorrt_rtx, "require", lambda name: plug_in)
    monkeypatch.setattr(ort, "register_execution_provider_library", register)
    with pytest.raises(OSError, match=name):
        ctypes.CDLL(provider)
    found = ort_tensorrt_rtx.RUNTIME.probe()
    assert registered == [99]
    assert found.libraries == {name: str(package / f"{name}.1")}
    assert (found.available, "finds no device" in found.reason) == (False, True)


def test_a_gpu_that_the_plug_in_passes_over_is_told_which_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    plug_in = SimpleNamespace(__version__="1", get_ep_name=lambda: "Some", get_library_path=lambda: "")
    monkeypatch.setattr(ort_tensorrt_rtx, "require", lambda name: plug_in)
    monkeypatch.setattr(ort, "register_execution_provider_library", lambda name, library: None)
    found = ort_tensorrt_rtx.RUNTIME.probe()
    assert (found.available, found.reason) == (False, f"{ort_tensorrt_rtx.PROVIDER} finds no device.")
    assert "8.6, 8.9, 12.0 or newer" in found.hint  # its library's own words


def test_why_the_library_cannot_be_registered_is_told_behind_any_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """The path of the library, with the package's name in it, stands in the message twice."""
    path = f"/{'deep/' * 40}{ort_tensorrt_rtx.PACKAGE}/libprovider.so"

    def refuses(name: str, library: str) -> None:
        raise RuntimeError(f"Failed to load library {path} with error: {path}: undefined symbol: cuInit")

    plug_in = SimpleNamespace(__version__="1", get_ep_name=lambda: "Some", get_library_path=lambda: path)
    monkeypatch.setattr(ort_tensorrt_rtx, "require", lambda name: plug_in)
    monkeypatch.setattr(ort, "register_execution_provider_library", refuses)
    found = ort_tensorrt_rtx.RUNTIME.probe()
    assert found.reason.endswith("undefined symbol: cuInit")
    assert found.hint == "It wants an NVIDIA GPU and its driver."  # not the line for a package that is there


def test_of_several_gpus_the_first_is_given_alone(
    on_cpu: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = [device for device in ort.get_ep_devices() if device.ep_name == CPU][:1]
    monkeypatch.setattr(ort, "get_ep_devices", lambda: [*real, SimpleNamespace(ep_name=CPU)])
    monkeypatch.setattr(ort_tensorrt_rtx, "compiled_context", lambda path, provider: path.read_bytes())
    assert ort_tensorrt_rtx.registered_devices() == tuple(real)
    ort_tensorrt_rtx.RUNTIME.open(Opening(IO, plan="fp16", model=saved(tmp_path))).close()


def test_profiles_are_the_contracts_sizes() -> None:
    assert ort_tensorrt.profile_options(IO, "trt_profile_{}_shapes") == {
        "trt_profile_min_shapes": "q:2x1x16,n:2",
        "trt_profile_opt_shapes": "q:3x8x16,n:3",
        "trt_profile_max_shapes": "q:8x32x16,n:8",
    }


def test_a_form_opens_on_the_provider_and_gives_its_numbers(runtime: Any, tmp_path: Path) -> None:
    assert runtime.probe().available
    session = runtime.open(Opening(IO, plan="fp16", model=saved(tmp_path)))
    assert (session.ran.provider, session.ran.precision) == (CPU, "fp16")
    np.testing.assert_allclose(session.run(FEEDS)["y"], np.maximum(FEEDS["q"], 0), atol=2e-3)
    session.close()


def test_a_provider_that_compiles_is_not_asked_to_write_its_nodes(
    runtime: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ONNX Runtime: "Unable to serialize model as it contains compiled nodes"."""
    real = ort.InferenceSession

    def compiles(model: Any, settings: Any, **given: Any) -> Any:
        if settings.optimized_model_filepath:
            raise RuntimeError("Unable to serialize model as it contains compiled nodes.")
        return real(model, settings, **given)

    monkeypatch.setattr(ort, "InferenceSession", compiles)
    runtime.open(Opening(IO, plan="fp16", model=saved(tmp_path))).close()


def test_nodes_that_run_elsewhere_are_refused(runtime: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = _ort.profiled

    def elsewhere(*given: Any) -> Any:
        events, optimised = real(*given)
        for each in events:
            each["args"]["provider"] = "CUDAExecutionProvider"
        return events, optimised

    monkeypatch.setattr(_ort, "profiled", elsewhere)
    with pytest.raises(UnavailableError, match=r"did not run on CPU.*CUDAExecutionProvider"):
        runtime.open(Opening(IO, plan="fp16", model=saved(tmp_path)))
    assert not list((tmp_path / "cache").glob("*.rtxcache"))  # what was refused is not kept


def test_fp32_is_refused_since_it_would_be_tf32(runtime: Any, tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match="fp32 was asked for") as caught:
        runtime.open(Opening(IO, model=saved(tmp_path, "float")))
    assert "TF32" in caught.value.hint
    with pytest.raises(ArtifactError, match="FLOAT16"):
        runtime.open(Opening(IO, plan="bf16", model=saved(tmp_path)))


def test_a_context_file_is_used_again_for_the_same_model_and_for_no_other(
    on_cpu: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = []
    monkeypatch.setattr(
        ort_tensorrt_rtx, "compiled_context", lambda path, provider: compiled.append(path) or path.read_bytes()
    )
    path, cache = saved(tmp_path), tmp_path / "cache"

    def opened() -> int:
        ort_tensorrt_rtx.RUNTIME.open(Opening(IO, plan="fp16", model=path)).close()
        return len(compiled)

    assert [opened(), opened()] == [1, 1]
    (kept,) = cache.glob("*.rtxcache")
    kept.write_bytes(kept.read_bytes()[:-1])  # damaged: its digest says so
    assert opened() == 2
    model = onnx.load(path)
    model.graph.name = "another"
    onnx.save(model, path)
    assert opened() == 3
    assert len(list(cache.glob("*.rtxcache"))) == 2


def test_a_model_without_anything_to_compile_is_an_error_that_names_it(on_cpu: None, tmp_path: Path) -> None:
    devices = ort_tensorrt_rtx.registered_devices()
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"\xff" * 50)
    with pytest.raises(ArtifactError, match=r"broken\.onnx"):
        ort_tensorrt_rtx.compiled_context(broken, _ort.Plugin(CPU, devices, {}))
