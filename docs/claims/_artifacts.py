"""Models through attnport's own pipeline, as the claims run them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from attnport.runtimes import base
from attnport.verbs.export import export
from attnport.verbs.fuse import fuse
from claims import MODELS
from claims._findings import Progress, Verdict, unmeasured
from claims._runs import Model

ORT, OPENVINO = "ort_cpu", "openvino"
BOTH = (ORT, OPENVINO)
"""The runtimes that claims about time and memory are measured on, each with its own lowered form."""


def exported(factory: str, folder: Path, dims: Sequence[str], targets: Sequence[str], progress: Progress) -> Path:
    """The artifact folder of a factory of `_models`, with a form for each target."""
    progress(f"exporting {factory}")
    export(f"{MODELS}:{factory}", folder, dims=dims)
    fuse(folder, targets=targets)
    return folder


def model(folder: Path, runtime: str, plan: str = "fp32", target: str | None = None) -> Model:
    """A folder's form for a runtime, or that for another target in the same runtime."""
    return Model(folder, runtime, f"model.{target or runtime}.onnx", plan)


def here(runtimes: Sequence[str]) -> list[str]:
    """Those that are installed."""
    return [name for name in runtimes if base.get(name).probe().available]


def absent(runtimes: Sequence[str]) -> list[Verdict]:
    """The verdicts of those that are not."""
    return [unmeasured(name, base.get(name).probe().reason) for name in runtimes if name not in here(runtimes)]
