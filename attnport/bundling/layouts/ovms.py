"""A folder for OpenVINO Model Server: `config.json`, and the model as `NAME/1/model.onnx`.

Source: docs.openvino.ai, "Model Server Parameters" and "Preparing a Model Repository".
"""

from __future__ import annotations

import json
from pathlib import Path

from attnport.bundling.layouts._opened import in_openvino
from attnport.bundling.layouts.base import Layout, Packed
from attnport_bundle.format.manifest import Manifest
from attnport_bundle.runtimes.openvino import PRECISIONS


class ModelServer(Layout):
    """The server's own configuration; it reads ONNX as it is, weights beside it."""

    forms = ("openvino",)

    def write(self, packed: Packed, target: Path) -> None:
        """Fills `target`; see the base class. The path in `config.json` is relative to it."""
        name = packed.only_form("ovms", "openvino")
        form = packed.manifest.forms[name]
        # Without it, the plugin computes float32 in bfloat16 where the CPU can.
        settings = {"INFERENCE_PRECISION_HINT": PRECISIONS[form.plan]}
        version = target / packed.name / "1"
        packed.move(form.file, version / "model.onnx")
        for file in form.external:
            packed.move(file, version / file)
        config = {"name": packed.name, "base_path": packed.name, "target_device": "CPU", "plugin_config": settings}
        text = json.dumps({"model_config_list": [{"config": config}]}, indent=2) + "\n"
        (target / "config.json").write_text(text, encoding="utf-8")
        path = version / "model.onnx"
        packed.proved(name, "OpenVINO", lambda: in_openvino(packed.manifest, name, path, settings))

    def next(self, manifest: Manifest, out: Path) -> str:
        """The command of the server."""
        return f"ovms --config_path {out / 'config.json'} --port 9000 --rest_port 8000"


LAYOUT = ModelServer()
