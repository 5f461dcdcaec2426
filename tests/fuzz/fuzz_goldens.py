"""Any bytes as the goldens of a manifest that is fine: refused with a BundleError, or compared without a crash."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import mutate as mutations
import numpy as np
from safetensors.numpy import load_file
from scratch import scratch

from attnport_bundle import feeds
from attnport_bundle.errors import BundleError
from attnport_bundle.format.manifest import from_bytes
from attnport_bundle.goldens import GoldenCases

mutate = mutations.safetensors_file
MANIFEST = from_bytes((Path(__file__).parent / "corpus" / "manifest" / "valid").read_bytes(), "bundle.json")
_FOLDER = scratch()


def one(data: bytes) -> bool:
    """Whether `data` is accepted, and a model that answers with the references passes."""
    (_FOLDER / MANIFEST.goldens.file).write_bytes(data)
    try:
        goldens = GoldenCases(_FOLDER, MANIFEST)
        return all(result.passed for result in goldens.check(MANIFEST.order[0], _perfect(goldens)))
    except BundleError:
        return False


def _perfect(goldens: GoldenCases) -> Callable[..., Mapping[str, Any]]:
    """The `run` of a model that takes what the contract allows and answers with the reference of that case."""
    cases = list(dict.fromkeys(bound.case for bound in MANIFEST.goldens.bounds))
    arrays = load_file(_FOLDER / MANIFEST.goldens.file)

    def run(**given: Any) -> Mapping[str, Any]:
        feeds.check_feeds(MANIFEST.io, given)
        case = next(one for one in cases if all(given[key] is value for key, value in goldens.inputs(one).items()))
        with np.errstate(over="ignore"):  # a reference that is too large for the output's dtype
            return {spec.name: arrays[f"{case}/out/{spec.name}"].astype(spec.dtype) for spec in MANIFEST.io.outputs}

    return run
