"""Decoders of onnxruntime-genai's builder: their caches are read, their attention is fused, and they continue texts."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from genai_graphs import DEPTH, GROUPS, LAYERS, MASK, PLACES, decoder
from representatives import representatives

import attnport
from attnport.errors import AttnportError
from attnport.sources.onnx_decoder import prepare_decoder
from attnport.verbs.check import check
from attnport.verbs.export import export
from attnport.verbs.fuse import fuse

pytestmark = pytest.mark.usefixtures("unconfined")

ROOM = 6
"""Places of a cache of a window alone."""


def written(model: onnx.ModelProto, folder: Path) -> str:
    (folder / "theirs.onnx").write_bytes(model.SerializeToString())
    return f"onnx:{folder / 'theirs.onnx'}"


def continued(model: onnx.ModelProto, prompt: list[int], count: int) -> list[int]:
    """The likeliest tokens, by ONNX Runtime on the file itself."""
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    names = {given.name for given in session.get_inputs()}
    pasts = [f"past_key_values.{layer}.{kind}" for layer in range(LAYERS) for kind in ("key", "value")]
    sliding = {given.name for given in session.get_inputs() if "past_sliding_length" in given.shape}
    caches = {name: np.zeros((1, GROUPS, ROOM if name in sliding else 0, DEPTH), np.float32) for name in pasts}
    outputs = ["logits", *(name.replace("past_key_values", "present") for name in pasts)]
    ids, found = np.array([prompt]), list[int]()
    for _ in range(count):
        past = caches[pasts[-1]].shape[2]
        feeds = {"input_ids": ids, MASK: np.ones((1, past + ids.shape[1]), np.int64)}
        if "position_ids" in names:
            feeds["position_ids"] = past + np.arange(ids.shape[1])[None]
        logits, *grown = session.run(outputs, feeds | caches)
        found.append(int(logits[0, -1].argmax()))
        caches, ids = dict(zip(pasts, grown, strict=True)), np.array([found[-1:]])
    return found


@pytest.mark.parametrize(
    "options", representatives([{}, {"bits": True}, {"positions": True}], [{"bits": True}]), ids=str
)
def test_a_decoder_is_fused_and_continues_as_its_file_does(options: dict[str, bool], tmp_path: Path) -> None:
    model = decoder(**options)
    told: list[str] = []
    manifest = export(written(model, tmp_path), tmp_path / "out", tell=told.append)
    assert [spec.name for spec in manifest.io.inputs if spec.dtype == "int64"] == ["input_ids"]
    assert {str(spec.dims[3]) for spec in manifest.io.inputs if len(spec.dims) == 4} == {str(DEPTH)}
    assert [(dim.min, dim.max) for dim in manifest.io.dims[1:]] == [(1, PLACES // 2), (0, PLACES // 2)]
    assert any("attention_mask is left out" in line for line in told)
    report = fuse(tmp_path / "out", targets=["ort_cpu", "openvino"])
    for target in report.targets.values():
        assert [(item.fused, item.mask) for item in target.items] == [(True, "causal")] * LAYERS
    assert check(tmp_path / "out", ["ort_cpu", "openvino"]).verdict == "PASS"
    prompt = [5, 17, 30]
    assert attnport.open(tmp_path / "out").generate([prompt], max_tokens=8) == [continued(model, prompt, 8)]


@pytest.mark.slow
def test_prompts_of_several_lengths_are_refused(tmp_path: Path) -> None:
    export(written(decoder(), tmp_path), tmp_path / "out")
    fuse(tmp_path / "out", targets=["ort_cpu"])
    with pytest.raises(AttnportError, match="different lengths"):
        attnport.open(tmp_path / "out").generate([[5, 17], [5]], max_tokens=2)


@pytest.mark.slow
def test_one_input_may_be_declared_by_dims_of_others(tmp_path: Path) -> None:
    given = f"{MASK}=int64[batch,past_sequence_length+sequence_length]:high=2"
    manifest = export(written(decoder(reads_mask=True), tmp_path), tmp_path / "out", inputs=[given])
    assert str(manifest.io.inputs[1]) == given.removesuffix(":high=2")


@pytest.mark.slow
def test_a_mask_that_is_read_otherwise_stays_an_input(tmp_path: Path) -> None:
    manifest = export(written(decoder(reads_mask=True), tmp_path), tmp_path / "out")
    assert manifest.io.inputs[1].dims == ("batch", "past_sequence_length+sequence_length")
    assert not manifest.io.masks
    report = fuse(tmp_path / "out", targets=["ort_cpu"])
    assert [item.mask for item in report.targets["ort_cpu"].items] == ["explicit"] * LAYERS
    assert check(tmp_path / "out", ["ort_cpu"]).verdict == "PASS"


@pytest.mark.slow
def test_the_ends_of_texts_are_those_of_the_config_beside_it(tmp_path: Path) -> None:
    spec = written(decoder(), tmp_path)
    config = tmp_path / "genai_config.json"
    config.write_text(json.dumps({"model": {"eos_token_id": [2, 7]}}))
    assert export(spec, tmp_path / "out").io.stop == (2, 7)
    config.write_text("[]")
    with pytest.raises(AttnportError, match=r"genai_config\.json is no config"):
        export(spec, tmp_path / "other")


@pytest.mark.slow
def test_a_cache_of_a_window_alone_becomes_one_of_all_tokens(tmp_path: Path) -> None:
    model = decoder(window=4, tied=True)
    told: list[str] = []
    export(written(model, tmp_path), tmp_path / "out", tell=told.append)
    assert any("1 caches of a window alone" in line for line in told)
    report = fuse(tmp_path / "out", targets=["ort_cpu"])
    assert [item.mask for item in report.targets["ort_cpu"].items] == ["causal+window", "causal"]
    prompt = [5, 17, 30, 2, 8]
    assert attnport.open(tmp_path / "out").generate([prompt], max_tokens=8) == [continued(model, prompt, 8)]


def test_an_attribute_that_is_zero_says_that_a_cache_is_of_all_tokens() -> None:
    model = decoder()
    for node in model.graph.node:
        if node.op_type == "GroupQueryAttention":
            node.attribute.append(onnx.helper.make_attribute("sliding_window_cache", 0))
    found = prepare_decoder(ir.from_proto(model))
    assert found is not None
    assert found.forgetting == 0
