"""A bundle of an engine, and libraries that stand in for the driver's and TensorRT's."""

from __future__ import annotations

import shutil
from pathlib import Path

from cpp_builds import Build


def pretended(build: Build, folder: Path) -> Path:
    """A folder for the loader, with the pretended libraries under the names of the real ones."""
    folder.mkdir()
    shutil.copy(build.module("pretended_cuda"), folder / "libcuda.so.1")
    (folder / "libnvidia-ml.so.1").symlink_to("libcuda.so.1")
    shutil.copy(build.module("pretended_tensorrt"), folder / "libtensorrt_rtx.so.1")
    return folder
