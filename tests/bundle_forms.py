"""Bundles that the writer did not write so: forms added, changed or exchanged, and digests made to fit."""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from pretended_gpu import PROFILES, engine_bytes

from attnport.bundling import golden
from attnport_bundle.format import manifest as spec
from attnport_bundle.format.contract import Dim, Profile, TensorSpec

UNRUN: dict[str, Any] = {
    "verdict": "PASS",
    "runtime": "NOT_RUN",
    "graph": "PASS",
    "reason": "",
    "results": [],
    "ran": None,
}
ENGINE_VERSION = "1.7.1.116"
SM_86_AND_89 = 0b1100


def manifest(app: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((app / "bundle.json").read_text())
    return found


def seal(app: Path, found: dict[str, Any]) -> None:
    """Writes the manifest, with the digests of the files that are there."""
    found["files"] = {
        path.relative_to(app).as_posix(): {
            "bytes": path.stat().st_size,
            "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        }
        for path in sorted(app.rglob("*"))
        if path.is_file() and path != app / "bundle.json"
    }
    (app / "bundle.json").write_text(json.dumps(found))


def reform(app: Path, forms: Mapping[str, Mapping[str, Any]]) -> None:
    """Gives a bundle `forms`, in this order: each the last form that it has, with changes."""
    found = manifest(app)
    made, last = {}, found["forms"][found["order"][-1]]
    for name, changes in forms.items():
        made[name] = copy.deepcopy(last) | dict(changes)
        if made[name]["proof"] == "graph-only":
            made[name]["parity"] = UNRUN
    found |= {"forms": made, "order": list(made)}
    seal(app, found)


def wrong_model(app: Path, name: str = "model.wrong.onnx") -> str:
    """A model like the bundle's own that computes something else: its last addition subtracts."""
    import onnx

    model = onnx.load(app / manifest(app)["forms"]["ort_cpu"]["file"], load_external_data=False)
    next(node for node in reversed(model.graph.node) if node.op_type == "Add").op_type = "Sub"
    onnx.save(model, app / name)
    return name


def engine_bundle(app: Path) -> Path:
    """A bundle of one engine for the pretended GPU: y = 2 x where m, else 0, in bfloat16."""
    app.mkdir()
    (app / "one.engine").write_bytes(engine_bytes(ENGINE_VERSION, SM_86_AND_89))
    given = {"x": np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3), "m": np.array([True, False, True, True])}
    arrays = {f"golden-0/in/{name}": array for name, array in given.items()}
    arrays["golden-0/out/y"] = np.where(given["m"][:, None], given["x"], 0).astype(np.float64) * 2
    arrays["golden-0/valid/y"] = np.ones(4, np.bool_)
    golden.write(app / "goldens.safetensors", arrays)
    form = spec.Form(
        file="one.engine",
        external=(),
        plan="bf16",
        runtime="tensorrt_rtx",
        provider=None,
        dtypes={"x": "float32", "m": "bool", "y": "bfloat16"},
        profiles=tuple(Profile((Dim("n", *ranges),)) for ranges in PROFILES),
        requires=spec.Requires(ENGINE_VERSION, True, None, (86, 89)),
        proof="graph-only",
        parity=spec.Parity("PASS", "NOT_RUN", "PASS", "", (), None),
        fusion=None,
    )
    files = {
        name: spec.File((app / name).stat().st_size, hashlib.sha256((app / name).read_bytes()).hexdigest())
        for name in ("goldens.safetensors", "one.engine")
    }
    made = spec.Manifest(
        format=spec.FORMAT,
        version=spec.VERSION,
        name="pretended",
        unverified=False,
        io=spec.BundleIO(
            (TensorSpec("x", "float32", ("n", 3), None), TensorSpec("m", "bool", ("n",), None)),
            (TensorSpec("y", "float32", ("n", 3), None),),
            (Dim("n", 1, 4, 64),),
            (),
        ),
        order=("engine",),
        forms={"engine": form},
        goldens=spec.Goldens("goldens.safetensors", (spec.Bound("golden-0", "y", "bf16", 0.01, 0.02),)),
        tokenizer=None,
        provenance=spec.Provenance("pretended", (), "0" * 64, "0" * 64, 23, (), {}),
        files=files,
        prompts=spec.Prompts(),
        text_limit=None,
    )
    (app / "bundle.json").write_text(json.dumps(dataclasses.asdict(made)))
    return app
