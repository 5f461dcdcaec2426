"""Steps that write to a cache in place compute what `Concat` does, and no size comes from a buffer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from decoders import KINDS, QUICK, VOCABULARY, Once
from representatives import representatives

from attnport.artifacts import Session
from attnport.decoders import roles_in
from attnport.exporter import storage
from attnport.exporter.targets import base as lowerings
from attnport.exporter.targets.base import Lowering
from attnport.exporter.targets.ort_cpu import update_in_place
from attnport.folder.workspace import open_folder, opened
from attnport.verbs.fuse import fuse
from attnport_bundle.decoding.caches import Buffers, Decoding, steps_of
from attnport_bundle.errors import FeedError
from attnport_bundle.format.decoder import IN_PLACE

pytest.importorskip("onnxruntime")
Array = np.ndarray[Any, Any]


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> Once:
    return Once(tmp_path_factory)


def session_of(folder: Path) -> Session:
    return opened(folder, open_folder(folder), "ort_cpu", 1)


def begun(folder: Path, *, in_place: bool) -> Decoding:
    session, io = session_of(folder), open_folder(folder).io
    make_steps = steps_of(session)
    assert make_steps(roles_in(io)) is not None
    return Decoding(lambda **feeds: session.run(feeds), io, roles_in(io), make_steps if in_place else None)


def tokens(batch: int, count: int) -> Array:
    return np.random.default_rng(count).integers(0, VOCABULARY, (batch, count))


@pytest.mark.parametrize("kind", representatives(KINDS, (*QUICK, "granite_swa")))  # with the mean of all values
def test_a_graph_has_both_ways_and_is_proved_fused(artifacts: Once, kind: str) -> None:
    folder = artifacts(kind)
    model = onnx.load(folder / "model.ort_cpu.onnx", load_external_data=False)
    branches = [node for node in model.graph.node if node.op_type == "If"]
    assert len(branches) == len(open_folder(folder).attentions)
    assert not [node for node in model.graph.node if node.op_type in ("Attention", "GroupQueryAttention")]
    assert {prop.key for prop in model.metadata_props} >= {IN_PLACE}
    caches = {value.name for value in model.graph.input if value.name.startswith("past_")}
    sizes = [node for node in model.graph.node if node.op_type == "Shape" and node.input[0] in caches]
    assert {onnx.helper.get_attribute_value(one.attribute[0]) for one in sizes} <= {0, 1}
    kernels = {item.kernel for item in fuse(folder, targets=["ort_cpu"]).targets["ort_cpu"].items}
    assert kernels == {"GroupQueryAttention"}


@pytest.mark.parametrize("kind", representatives(KINDS, QUICK))
@pytest.mark.parametrize("batch", [1, 3])
def test_steps_are_those_of_a_copied_cache(artifacts: Once, kind: str, batch: int) -> None:
    """Also as a buffer grows, with padding at the left, and with several new tokens between the steps."""
    folder = artifacts(kind)
    one, other = (begun(folder, in_place=which) for which in (True, False))
    keep = np.ones((batch, 7), dtype=bool)
    keep[batch - 1, :4] = batch == 1
    prompt = tokens(batch, 7)
    np.testing.assert_array_equal(one.push(prompt, keep), other.push(prompt, keep))
    for at, count in enumerate([1] * 20 + [3] + [1] * 20):
        new, real = tokens(batch, 100 + at)[:, :count], np.ones((batch, count), dtype=bool)
        found, wanted = one.push(new, real), other.push(new, real)
        np.testing.assert_allclose(found, wanted, rtol=2e-4, atol=2e-4)
    io = open_folder(folder).io
    for spec, _, _ in roles_in(io).caches:
        real = np.concatenate([keep, np.ones((batch, 43), dtype=bool)], axis=1)
        caches = [decoding.cache(spec.name).swapaxes(1, 2) for decoding in (one, other)]
        last = min(cache.shape[1] for cache in caches)  # what no token sees is let go at different times
        found, wanted = (cache[:, -last:][real[:, -last:]] for cache in caches)
        np.testing.assert_allclose(found, wanted, rtol=2e-4, atol=2e-4)


def test_the_buffer_itself_is_written_to(artifacts: Once) -> None:
    """Its address stays, and all but the new place too."""
    folder = artifacts("gpt2")
    session, io = session_of(folder), open_folder(folder).io
    roles = roles_in(io)
    steps = steps_of(session)(roles)
    assert isinstance(steps, Buffers)
    random = np.random.default_rng(0)
    sizes = {"batch": 2, "past": 16}
    buffers = {
        spec.name: (output, random.normal(size=spec.shape(sizes)).astype(np.float32))
        for spec, output, _ in roles.caches
    }
    before = {name: buffer.copy() for name, (_, buffer) in buffers.items()}
    feeds = {"input_ids": tokens(2, 1), "attention_mask": np.ones((2, 10), np.int64)}
    outputs = steps._run(feeds, buffers)
    assert list(outputs) == ["logits"]
    exact = {name: array[:, :, :9] for name, array in before.items()}
    wanted = session.run({**feeds, **{name: np.ascontiguousarray(array) for name, array in exact.items()}})
    np.testing.assert_allclose(outputs["logits"], wanted["logits"], rtol=1e-4, atol=1e-5)
    for name, (output, buffer) in buffers.items():
        np.testing.assert_array_equal(buffer[:, :, :9], before[name][:, :, :9])
        np.testing.assert_array_equal(buffer[:, :, 10:], before[name][:, :, 10:])
        np.testing.assert_allclose(buffer[:, :, 9], wanted[output][:, :, 9], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", representatives(["gpt2", "mistral"], ["gpt2"]))
def test_a_prompt_of_one_token(artifacts: Once, kind: str) -> None:
    folder = artifacts(kind)
    session = session_of(folder)
    manifest = open_folder(folder)
    feeds: dict[str, Array] = {"input_ids": tokens(2, 1), "attention_mask": np.ones((2, 1), np.int64)}
    if any(spec.name == "position_ids" for spec in manifest.io.inputs):
        feeds["position_ids"] = np.zeros((2, 1), np.int64)
    for spec, _, _ in roles_in(manifest.io).caches:
        feeds[spec.name] = np.zeros(spec.shape({"batch": 2, "past": 0}), np.float32)
    found = session.run(feeds)
    reference = opened(folder, manifest, "torch_eager", 1).run(feeds)
    for name, array in reference.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-4, atol=1e-4)


def lowered(folder: Path) -> ir.Model:
    """As every target lowers it, before steps write in place."""
    lowering, manifest = lowerings.get("ort_cpu"), open_folder(folder)
    model = storage.load(folder / "model.onnx")
    result = lowering.fuse_graph(model, manifest.attentions, plan="fp32", masks=manifest.io.masks)
    Lowering.finish(lowering, result.model, "fp32")
    return result.model


def test_a_cache_that_something_else_reads_is_left_alone(artifacts: Once) -> None:
    model = lowered(artifacts("gpt2"))
    past = next(value for value in model.graph.inputs if value.name == "past_key_0")
    reads = ir.node("Abs", [past], name="reads")
    reads.outputs[0].name, reads.outputs[0].dtype = "read", ir.DataType.FLOAT
    model.graph.append(reads)
    update_in_place(model)
    assert IN_PLACE not in model.metadata_props
    model.graph.remove(reads, safe=True)
    update_in_place(model)
    assert IN_PLACE in model.metadata_props


@pytest.mark.parametrize("kind", ["gpt2", "gemma3"])
def test_all_caches_are_written_in_place_or_none(artifacts: Once, kind: str) -> None:
    """`generate` gives buffers for all of them; those of gemma3 have two lengths."""
    model = lowered(artifacts(kind))
    last = [node for node in model.graph if node.op_type == "Attention"][-1]
    last.attributes["is_causal"] = ir.AttrInt64("is_causal", 1)
    update_in_place(model)
    assert IN_PLACE not in model.metadata_props
    assert not [node for node in model.graph if node.op_type == "If"]


def test_a_mask_of_fewer_axes_is_left_alone(artifacts: Once) -> None:
    model = lowered(artifacts("gpt2"))
    for node in model.graph:
        if node.op_type == "Attention":
            assert node.inputs[3] is not None
            node.inputs[3].shape = ir.Shape(["seq", "past+seq"])
    update_in_place(model)
    assert IN_PLACE not in model.metadata_props


@pytest.mark.parametrize("token", [-1, VOCABULARY, 10**9])
def test_an_id_that_is_none_is_refused_as_in_a_prompt(artifacts: Once, token: int) -> None:
    decoding = begun(artifacts("gpt2"), in_place=True)
    decoding.push(tokens(1, 3), np.ones((1, 3), dtype=bool))
    with pytest.raises(FeedError, match="input_ids"):
        decoding.push(np.array([[token]]), np.ones((1, 1), dtype=bool))


def test_what_is_no_number_is_not_hidden(artifacts: Once) -> None:
    """A row without a key is zero; a NaN in the cache stays one."""
    one, other = (begun(artifacts("gpt2"), in_place=which) for which in (True, False))
    for decoding in (one, other):
        decoding.push(tokens(2, 3), np.ones((2, 3), dtype=bool))
        name = roles_in(open_folder(artifacts("gpt2")).io).caches[1][0].name
        decoding.cache(name)[0, 0, 1] = np.nan
    found, wanted = (decoding.push(tokens(2, 1), np.ones((2, 1), dtype=bool)) for decoding in (one, other))
    assert np.isnan(wanted[0]).all()
    assert np.isnan(found[0]).all()
    np.testing.assert_allclose(found[1], wanted[1], rtol=1e-4, atol=1e-4)
