"""Files of tf2onnx: Keras' `MultiHeadAttention`, and BERT's attention as Google and transformers wrote it.

`tf2onnx/*.txt` are what tf2onnx 1.17 made of TensorFlow 2.21, with short names and without weights: products by
`Einsum` or by what stands for it, sizes by `Shape`, `Cast` to int32 and `Slice`, a causal mask by counting.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from attnport.exporter.counting import count_in_graph
from attnport.exporter.imported import prepare
from attnport.exporter.targets import base
from attnport.verbs.check import check
from attnport.verbs.export import export
from attnport.verbs.fuse import fuse

pytestmark = pytest.mark.usefixtures("unconfined")

FOLDER = Path(__file__).parent / "tf2onnx"
PADDING = "padding(attention_mask)"
MASKS = {"mha_pad_13": PADDING, "mha_causal_18": "causal", "bert_google_18": PADDING, "bert_hf_13": PADDING}


def made(name: str) -> onnx.ModelProto:
    """The graph, with weights in place of its inputs of that name."""
    model = onnx.parser.parse_model((FOLDER / f"{name}.txt").read_text())
    random = np.random.default_rng(0)
    for given in [each for each in model.graph.input if each.name.startswith("weight")]:
        shape = [dim.dim_value for dim in given.type.tensor_type.shape.dim]
        array = (random.standard_normal(shape) / max(shape) ** 0.5).astype(np.float32)
        model.graph.input.remove(given)
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, given.name))
    return model


def test_every_file_is_tried() -> None:
    assert {file.stem for file in FOLDER.iterdir()} == set(MASKS)


def test_a_causal_mask_that_counts_is_read() -> None:
    model = made("mha_causal_18")
    ready = prepare(ir.from_proto(model))
    assert base.get("onnx").lower(ready, count_in_graph(ready), masks=(), plan="fp32").masks == {"module": "causal"}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == "bert_hf_13" else pytest.mark.slow) for name in MASKS]
)
def test_attention_is_fused_with_its_mask_and_passes(name: str, tmp_path: Path) -> None:
    (tmp_path / "theirs.onnx").write_bytes(made(name).SerializeToString())
    inputs = ["attention_mask=int32[batch,seq]:high=2"] if MASKS[name] == "causal" else []  # the graph adds zeros of it
    export(f"onnx:{tmp_path / 'theirs.onnx'}", tmp_path / "out", inputs=inputs, dims=["batch=1:2:4", "seq=1:5:16"])
    (item,) = fuse(tmp_path / "out", targets=["ort_cpu"]).targets["ort_cpu"].items
    assert (item.fused, item.mask) == (True, MASKS[name]), item.reason
    assert check(tmp_path / "out", ["ort_cpu"]).verdict == "PASS"
