"""`attnport gpu-check`: parity and latency of every GPU runtime that is there, on models of usual sizes.

Step by step, each kept when it is done: peak rates; then for each model and precision plan files, parity and one call
after the other. A run that is ended, or out of time, is gone on with by the next.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from attnport.errors import UnavailableError, UsageError
from attnport.folder.machine import find_gpus
from attnport.parity.evaluate import Progress
from attnport.runtimes import base
from attnport.runtimes.base import physical_cores
from attnport.verbs.gpu import peaks as gpu_peaks
from attnport.verbs.gpu.report import GpuReport, file_name
from attnport.verbs.gpu.run import ELEMENT_BYTES, PLANS, Ground, Run
from attnport.verbs.gpu.subjects import Subject


def found_gpu() -> tuple[str, int]:
    """The first GPU.

    Raises:
        UnavailableError: no driver, or no GPU; says what was looked for.
    """
    gpus, note, _ = find_gpus()
    if gpus:
        return gpus[0].name, gpus[0].sm
    torch_says = base.get("torch_eager_cuda").probe()
    raise UnavailableError(
        f"there is no CUDA GPU here. The driver: {note.rstrip('.')}. PyTorch: {torch_says.reason}",
        hint="Run on a machine with an NVIDIA GPU and its driver; docs/gpu.md says what to install there.",
    )


def _torch_device() -> gpu_peaks.Timer:
    from attnport.runtimes._torch_device import TorchDevice

    return TorchDevice()


GPU = Ground(found_gpu, _torch_device, "torch_eager_cuda", lambda: [n for n in base.names() if base.get(n).gpu])


def gpu_check(
    output: Path = Path("benchmarks"),
    work: Path = Path("out/gpu-check"),
    *,
    only: Sequence[str] = (),
    dtypes: Sequence[str] = (),
    runtimes: Sequence[str] = (),
    budget_s: float | None = None,
    threads: int | None = None,
    force: bool = False,
    progress: Progress = lambda message: None,
    tell: Callable[[str], None] = lambda message: None,
    ground: Ground = GPU,
) -> GpuReport:
    """Measures and writes `gpu-NAME.json` into `output`; what an earlier run did with the same versions stays.

    Args:
        output: Where the report goes.
        work: Where artifact folders are made: several gigabytes, kept for the next run.
        only: Models; none = all there are.
        dtypes: Precision plans; none = fp16 and bf16.
        runtimes: Names; none = every GPU runtime. PyTorch eager on the GPU is always among them.
        budget_s: No step is begun after so many seconds; None = no limit.
        threads: Threads on the host.
        force: Do everything again.
        tell: Is given one line about a step that was left out or failed.
        ground: What is measured on.

    Raises:
        UnavailableError: there is no GPU, or PyTorch cannot use it.
        UsageError: an unknown model, plan or runtime.
    """
    subjects = _chosen(ground.subjects, only)
    plans = _plans(dtypes)
    names = _runtimes(ground, runtimes)
    device, sm = ground.find()
    until = None if budget_s is None else time.monotonic() + budget_s
    path, cores = output / file_name(device), threads or physical_cores()
    run = Run(ground, device, sm, names, path, work, cores, until, progress, tell, force)
    return run.all(subjects, plans)


def _chosen(subjects: Sequence[Subject], only: Sequence[str]) -> list[Subject]:
    known = {subject.name: subject for subject in subjects}
    wanted = [name.replace("-", "_") for name in only]
    for name in wanted:
        if name not in known:
            raise UsageError(f"model {name!r}: gpu-check has {', '.join(known)}.")
    return [subject for name, subject in known.items() if name in wanted or not wanted]


def _plans(dtypes: Sequence[str]) -> list[str]:
    for plan in dtypes:
        if plan not in ELEMENT_BYTES:
            raise UsageError(f"--dtype {plan!r}: expected one of {', '.join(ELEMENT_BYTES)}.")
    return list(dict.fromkeys(dtypes)) or list(PLANS)


def _runtimes(ground: Ground, wanted: Sequence[str]) -> list[str]:
    there = list(ground.runtimes())
    for name in wanted:
        if base.get(name).name not in there:
            raise UsageError(f"runtime {name!r}: gpu-check measures {', '.join(there)}.")
    asked = [base.get(name).name for name in wanted] or there
    return [ground.eager, *(name for name in there if name in asked and name != ground.eager)]
