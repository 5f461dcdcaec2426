"""attnport's forms of a model: each that its manifest has and a runtime here opens, in each plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

ENVIRONMENT = ""
RUNTIMES = ("ort_cpu", "openvino")


def _openings(model: Mapping[str, Any], threads: int | None) -> dict[str, tuple[Any, Any]]:
    """By name: the runtime, and what it opens."""
    from attnport.folder.workspace import model_openings, open_folder
    from attnport.runtimes import base

    folder = Path(model["ours"])
    manifest = open_folder(folder)
    found = {}
    for name in RUNTIMES:
        runtime = base.get(name)
        probed = runtime.probe()
        if probed.available:
            every = model_openings(runtime, folder, manifest, probed.plans, threads)
            found |= {key: (runtime, opening) for key, opening in every.items()}
    return found


def variants(model: Mapping[str, Any]) -> dict[str, str]:
    """The forms of this model."""
    return {name: _precision(opening.plan) for name, (_, opening) in _openings(model, None).items()}


def _precision(plan: str) -> str:
    return "fp32" if plan == "fp32" else "int8" if "int8" in plan else "half"


def embedder(model: Mapping[str, Any], folder: Path, variant: str, threads: int) -> Callable[[list[str], int], Any]:
    """`Model.embed` of a bundle, or its method for search, in batches of its own."""
    from attnport_bundle import load

    opened = load(model["bundle"], form=variant, threads=threads)
    if "kind" in model:
        from peer_search import encoder

        return encoder(opened, model["kind"])
    return lambda texts, batch: opened.embed(texts)


def decoder(model: Mapping[str, Any], folder: Path, variant: str, threads: int) -> Callable[[int], Any]:
    """Begins texts of a form of `--with-past`, as `generate` does."""
    import numpy as np

    from attnport.decoders import roles_in
    from attnport.folder.workspace import open_folder
    from attnport.folder.workspace import opened as form
    from attnport_bundle.decoding.caches import Decoding, steps_of

    manifest = open_folder(Path(model["ours"]))
    session, roles = form(Path(model["ours"]), manifest, variant, threads), roles_in(manifest.io)

    def begin(batch: int) -> Callable[[Any], Any]:
        decoding = Decoding(lambda **feeds: session.run(feeds), manifest.io, roles, steps_of(session))
        return lambda ids: decoding.push(ids, np.ones(ids.shape, dtype=bool))

    return begin


def imports() -> None:
    """What is imported before memory counts."""
    import onnx  # noqa: F401
    import onnxruntime  # noqa: F401
    import openvino  # noqa: F401


def opened(model: Mapping[str, Any], folder: Path, variant: str, threads: int) -> Callable[[Any], Any]:
    """Opens a form."""
    runtime, opening = _openings(model, threads)[variant]
    session, output = runtime.open(opening), model["output"]
    return lambda feeds: session.run(feeds)[output]
