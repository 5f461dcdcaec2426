"""The machine that a number was measured on: processor, memory, disk, GPUs, versions, read without heavy imports."""

from __future__ import annotations

import ctypes
import fnmatch
import functools
import importlib.metadata
import os
import platform
import re
import shutil
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from attnport.errors import UnavailableError
from attnport.runtimes.base import physical_cores
from attnport_bundle.runtimes.cuda import load_driver

# What decides which kernels a runtime picks; the rest of a processor's flags says nothing here.
FEATURES = ("avx2", "avx512f", "avx512_bf16", "avx512_vnni", "avx_vnni", "amx_bf16", "amx_int8", "asimd", "bf16", "sve")
_CAPABILITY_MAJOR, _CAPABILITY_MINOR = 75, 76  # CUdevice_attribute of the CUDA driver API


@dataclass(frozen=True)
class Gpu:
    """A CUDA device; `sm` is its compute capability, `86` for 8.6."""

    name: str
    sm: int
    memory_bytes: int


@dataclass(frozen=True)
class Machine:
    """What a measurement depends on.

    Attributes:
        cores: Physical cores that this process may run on.
        threads: Logical processors that this process may run on.
        memory_bytes: What this process may use: the machine's memory, or its control group's limit where lower.
        free_disk_bytes: Free space where the report was asked for.
        gpus: The CUDA devices that the driver shows.
        gpu_note: Why there are none; empty when there are.
        cuda: The CUDA version that the driver supports, such as `13.0`; empty without a driver.
    """

    platform: str
    python: str
    cpu: str
    features: tuple[str, ...]
    cores: int
    threads: int
    memory_bytes: int
    free_disk_bytes: int
    gpus: tuple[Gpu, ...]
    gpu_note: str
    cuda: str


def machine(folder: Path | None = None) -> Machine:
    """Describes this machine; free disk space is that of `folder` (default: the current one)."""
    usable = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    processor = parse_cpuinfo(_text("/proc/cpuinfo"))
    flags = set((processor.get("flags") or processor.get("Features") or "").split())
    gpus, note, cuda = find_gpus()
    return Machine(
        platform=platform.platform(),
        python=platform.python_version(),
        cpu=processor.get("model name") or platform.processor() or platform.machine(),
        features=tuple(feature for feature in FEATURES if feature in flags),
        cores=physical_cores(),
        threads=len(usable),
        memory_bytes=_memory_bytes(),
        free_disk_bytes=shutil.disk_usage(folder or Path.cwd()).free,
        gpus=gpus,
        gpu_note=note,
        cuda=cuda,
    )


def version(package: str) -> str | None:
    """The installed version of a distribution; None when it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def versions(packages: Iterable[str]) -> dict[str, str]:
    """The versions of those of `packages` that are installed, by distribution name; patterns such as `onnxruntime-*`
    are those of `Runtime.distributions`."""
    folders = [Path(place) for place in sys.path]
    installed = _installed(tuple((str(place), place.stat().st_mtime_ns) for place in folders if place.is_dir()))
    return {
        name: installed[name]
        for pattern in map(normal, packages)
        for name in sorted(fnmatch.filter(installed, pattern) if "*" in pattern else {pattern} & installed.keys())
    }


@functools.lru_cache(maxsize=2)
def _installed(state: tuple[tuple[str, int], ...]) -> dict[str, str]:
    """The versions of all distributions, as long as nothing comes or goes in the folders of the module path."""
    found = [*importlib.metadata.distributions(path=[place for place, _ in state])]
    return {normal(str(each.name)): each.version for each in reversed(found) if each.name}


def normal(distribution: str) -> str:
    """The name of a distribution as package indexes compare it: `ml_dtypes` and `ML-dtypes` are one."""
    return re.sub(r"[-_.]+", "-", distribution).lower()


def parse_cpuinfo(text: str) -> dict[str, str]:
    """The first processor of Linux's /proc/cpuinfo; empty for text that holds none."""
    for block in text.split("\n\n"):
        pairs = (line.partition(":") for line in block.splitlines() if ":" in line)
        entry = {key.strip(): value.strip() for key, _, value in pairs}
        if "processor" in entry:
            return entry
    return {}


def find_gpus() -> tuple[tuple[Gpu, ...], str, str]:
    """The CUDA devices, why there are none, and the driver's CUDA version.

    Asks the driver's library directly: it is there whenever a GPU can be used, whatever framework is installed.
    """
    try:
        cuda = load_driver()
    except UnavailableError as err:
        return (), err.message, ""
    status = cuda.cuInit(0)
    if status:
        return (), f"the NVIDIA driver is there but does not start (cuInit returned {status})", ""
    version, count = ctypes.c_int(), ctypes.c_int()
    cuda.cuDriverGetVersion(ctypes.byref(version))
    cuda.cuDeviceGetCount(ctypes.byref(count))
    found = []
    for index in range(count.value):
        device, major, minor = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
        memory, name = ctypes.c_size_t(), ctypes.create_string_buffer(256)
        cuda.cuDeviceGet(ctypes.byref(device), index)
        cuda.cuDeviceGetName(name, len(name), device)
        cuda.cuDeviceTotalMem_v2(ctypes.byref(memory), device)
        cuda.cuDeviceGetAttribute(ctypes.byref(major), _CAPABILITY_MAJOR, device)
        cuda.cuDeviceGetAttribute(ctypes.byref(minor), _CAPABILITY_MINOR, device)
        found.append(Gpu(name.value.decode(errors="replace"), major.value * 10 + minor.value, memory.value))
    note = "" if found else "the NVIDIA driver shows no device"
    return tuple(found), note, f"{version.value // 1000}.{version.value % 1000 // 10}"


def _text(path: str) -> str:
    """A file's text; empty where there is none, as on other systems."""
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""


def _memory_bytes() -> int:
    try:
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return 0
    limit = _text("/sys/fs/cgroup/memory.max").strip()
    return min(total, int(limit)) if limit.isdigit() else total
