"""CUDA's libraries of wheels along the module path: which are loaded for ONNX Runtime, and from where."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from attnport.runtimes._cuda import path_of
from attnport_bundle.runtimes.cuda import needed

ROOT = Path(__file__).parents[2]
# Of versions that there are not, so that the machine's own are never taken.
RUNTIME, PRODUCTS, LIGHT, CUDNN, PART, OTHER = (
    f"lib{name}.so.99" for name in ("cudart", "cublas", "cublasLt", "cudnn", "cudnn_graph", "cufft")
)


@pytest.fixture
def compiled(tmp_path: Path) -> Callable[..., Path]:
    """Compiles a library into a folder; it needs others of that folder, by name."""
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    (tmp_path / "source.c").write_text("int pretended(void) { return 1; }")

    def compile_one(folder: str, name: str, *needs: str) -> Path:
        place = tmp_path / folder
        place.mkdir(parents=True, exist_ok=True)
        line = ["cc", "-shared", "-fPIC", "-o", name, str(tmp_path / "source.c"), f"-Wl,-soname,{name}"]
        subprocess.run([*line, "-Wl,--no-as-needed", "-L.", *(f"-l:{need}" for need in needs)], cwd=place, check=True)
        return place / name

    return compile_one


def loaded(tmp_path: Path, *entries: str, opener: str = "reader") -> dict[str, str]:
    """The made-up libraries in a process after they were loaded for the made-up ONNX Runtime: folder by name."""
    package = tmp_path / "packages" / "onnxruntime"
    (package / "__init__.py").write_text("")
    call = {
        "reader": "from attnport_bundle.runtimes.cuda import load_for_onnxruntime as f; f(onnxruntime)",
        "attnport": "from attnport.runtimes._cuda import load_cuda as f; f()",
    }[opener]
    code = f"""import sys
sys.path[:0] = {[str(tmp_path / entry) for entry in ("packages", *entries)]!r}
import onnxruntime
{call}
lines = [line.rstrip() for line in open('/proc/self/maps') if '.so.99' in line]
print({str(tmp_path)!r}, *{{line.split(maxsplit=5)[-1] for line in lines}}, sep=chr(10))"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    first, *paths = done.stdout.splitlines()
    return {Path(path).name: str(Path(path).parent.relative_to(first)) for path in paths}


def provider(compiled: Callable[..., Path], tmp_path: Path, *needs: str) -> None:
    """ONNX Runtime's CUDA provider, which needs libraries that do not lie beside it."""
    for need in needs:
        compiled("packages/onnxruntime/capi", need)
    compiled("packages/onnxruntime/capi", "libonnxruntime_providers_cuda.so", *needs)
    for need in needs:
        (tmp_path / "packages/onnxruntime/capi" / need).unlink()


@pytest.mark.parametrize("opener", ["reader", "attnport"])
def test_libraries_are_found_along_the_module_path_and_loaded_with_what_they_need(
    compiled: Callable[..., Path], tmp_path: Path, opener: str
) -> None:
    provider(compiled, tmp_path, RUNTIME, PRODUCTS, CUDNN)
    cuda, cudnn = "torch site/nvidia/cu99/lib", "torch site/nvidia/cudnn/lib"
    compiled(cuda, LIGHT)
    compiled(cuda, PRODUCTS, LIGHT)  # comes before what it needs
    compiled(cuda, RUNTIME)
    compiled(cuda, OTHER)
    compiled(cudnn, CUDNN)
    compiled(cudnn, PART)
    found = loaded(tmp_path, "torch site", opener=opener)
    # The provider does not need OTHER; what cuDNN opens later is there.
    assert found == {RUNTIME: cuda, PRODUCTS: cuda, LIGHT: cuda, CUDNN: cudnn, PART: cudnn}


def test_the_first_folder_of_the_module_path_is_taken(compiled: Callable[..., Path], tmp_path: Path) -> None:
    provider(compiled, tmp_path, RUNTIME, PRODUCTS)
    compiled("first/nvidia/cu99/lib", RUNTIME)
    compiled("second/nvidia/cu99/lib", RUNTIME)
    compiled("second/nvidia/cu99/lib", PRODUCTS)
    places = {RUNTIME: "first/nvidia/cu99/lib", PRODUCTS: "second/nvidia/cu99/lib"}
    assert loaded(tmp_path, "first", "nowhere", "second") == places


def test_what_the_loader_finds_by_itself_is_left_to_it(
    compiled: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider(compiled, tmp_path, RUNTIME)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(compiled("system", RUNTIME).parent))
    compiled("wheels/nvidia/cu99/lib", RUNTIME)
    assert loaded(tmp_path, "wheels") == {RUNTIME: "system"}


def test_cudnn_is_loaded_from_a_wheel_also_where_all_that_the_provider_is_linked_with_is_found(
    compiled: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if path_of("libcudnn.so.9"):
        pytest.skip("the loader finds a cuDNN here")
    provider(compiled, tmp_path, RUNTIME)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(compiled("system", RUNTIME).parent))
    compiled("wheels/nvidia/cudnn/lib", CUDNN)
    assert loaded(tmp_path, "wheels") == {RUNTIME: "system", CUDNN: "wheels/nvidia/cudnn/lib"}


def test_what_is_missing_or_needed_by_none_is_no_error(compiled: Callable[..., Path], tmp_path: Path) -> None:
    provider(compiled, tmp_path, RUNTIME)
    assert loaded(tmp_path) == {}
    (tmp_path / "packages/onnxruntime/capi/libonnxruntime_providers_cuda.so").unlink()
    compiled("wheels/nvidia/cu99/lib", RUNTIME)
    assert loaded(tmp_path, "wheels") == {}


def test_names_are_read_from_a_file_that_cannot_be_loaded(tmp_path: Path) -> None:
    library = tmp_path / "one.so"
    library.write_bytes(b"\x00libcufft.so.12\x00libcurand.so.10\x00libnvrtc.so.13\x00libnvrtc.so\x00libm.so.6\x00")
    assert needed(library) == ("libcufft.so.12", "libcurand.so.10", "libnvrtc.so.13")
    (tmp_path / "empty.so").touch()
    assert needed(tmp_path / "empty.so") == needed(tmp_path / "none.so") == ()


def test_the_path_of_a_library_in_a_folder_with_spaces_is_told_whole(compiled: Callable[..., Path]) -> None:
    library = compiled("a folder of/two spaces", "libpretended_for_a_path.so.99")
    ctypes.CDLL(str(library))
    assert path_of(library.name) == str(library)
