"""Libraries that stand in for the driver's, for TensorRT's, and for ONNX Runtime's with a CUDA provider."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

import onnxruntime
from bundle_forms import manifest, seal
from cpp_builds import Build


def pretended(build: Build, folder: Path) -> Path:
    """A folder for the loader, with the pretended libraries under the names of the real ones."""
    folder.mkdir()
    shutil.copy(build.module("pretended_cuda"), folder / "libcuda.so.1")
    (folder / "libnvidia-ml.so.1").symlink_to("libcuda.so.1")
    shutil.copy(build.module("pretended_tensorrt"), folder / "libtensorrt_rtx.so.1")
    return folder


class OnCuda:
    """A bundle whose form `ort_cuda` is that of the processor, on a pretended CUDA provider that is the processor's."""

    def __init__(self, build: Build, app: Path, folder: Path) -> None:
        self._build, self.app, self._log = build, app, folder / "log"
        self._drivers = pretended(build, folder / "drivers")
        found = manifest(app)
        cpu = found["forms"]["ort_cpu"]
        forms = {"ort_cpu": cpu, "ort_cuda": {**cpu, "provider": "CUDAExecutionProvider"}}
        seal(app, {**found, "forms": forms, "order": list(forms)})

    def run(self, program: str, *arguments: str, given: str | None = None, **settings: str) -> tuple[str, list[str]]:
        """What a program prints, and what was noted of sessions and runs."""
        (real,) = (Path(onnxruntime.__file__).parent / "capi").glob("libonnxruntime.so.*")
        env: Mapping[str, str] = {
            "LD_LIBRARY_PATH": str(self._drivers),
            "ATTNPORT_ONNXRUNTIME": str(self._build.module("pretended_onnxruntime")),
            "PRETENDED_ONNXRUNTIME": str(real),
            "PRETENDED_LOG": str(self._log),
            **settings,
        }
        self._log.unlink(missing_ok=True)
        done = self._build.run(program, self.app, "ort_cuda", *arguments, env=env, given=given)
        assert done.returncode == 0, done.stderr
        noted = self._log.read_text().splitlines()
        return done.stdout, [line for line in noted if line.split()[0] in ("session", "plain", "bound", "graph")]
