"""OpenVINO has one kernel for an attention and its cache, with grouped heads too: nothing of the past is copied."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from decoders import exported
from representatives import representatives

from attnport.decoders import roles_in
from attnport.folder.workspace import open_folder
from attnport.verbs.fuse import fuse
from attnport_bundle.runtimes.openvino import with_states

openvino = pytest.importorskip("openvino")


@pytest.mark.parametrize("name", representatives(["gpt2", "llama", "mistral"], ["gpt2"]))
def test_attention_and_cache_are_one_kernel(name: str, tmp_path: Path) -> None:
    folder = exported(name, tmp_path)
    fuse(folder, targets=["openvino"])
    manifest, core = open_folder(folder), openvino.Core()
    graph = with_states(core.read_model(folder / manifest.forms["openvino"].file), roles_in(manifest.io))
    made = core.compile_model(graph, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    kinds = Counter(str(node.get_rt_info()["layerType"].astype(str)) for node in made.get_runtime_model().get_ops())
    assert kinds["ScaledDotProductAttention"] == 2
    assert kinds["Softmax"] == kinds["Tile"] == 0
