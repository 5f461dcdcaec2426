"""Graphs made elsewhere, by any exporter at any opset: prepared, counted, recognised, and the same numbers."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import tiny_attention
from foreign_exports import exported, scripted
from onnxscript import optimizer
from running import distance, on_ort
from test_known_modules import CASES, SIZES

from attnport.artifacts import IOContract, SourceAttention
from attnport.exporter.counting import count_in_graph
from attnport.exporter.imported import prepare
from attnport.exporter.inspect_graph import graph_facts
from attnport.exporter.patching import exact_rules
from attnport.exporter.targets import base
from attnport.patches import patched
from attnport.verbs.inspect import inspect

TRACED = {"batch": 3, "seq": 5, "mem": 7}
SCRIPT, DYNAMO = "TorchScript", "dynamo"
LENGTHS = ("seq", "mem")
"""What the older exporter freezes in nn.MultiheadAttention: it takes the number of keys for a constant."""
QUICK = {
    ("bert-sdpa", SCRIPT, 14), ("gpt2-sdpa", SCRIPT, 17), ("decoder_all_masks", SCRIPT, 18),
    ("attention_weights_causal_padding", DYNAMO, 21),
}  # fmt: skip
HF = ("bert-eager", "bert-sdpa", "gpt2-eager", "gpt2-sdpa", "llama-eager", "llama-sdpa", "t5-eager", "t5-sdpa",
      "vit-sdpa", "bloom-eager")  # fmt: skip
TORCH = ("attention_cross_padding", "attention_weights_causal_padding", "encoder_causal_padding", "decoder_all_masks",
         "attention_bias", "differential")  # fmt: skip
THOROUGH = ("bert-sdpa", "llama-eager", "decoder_all_masks")
EACH = [
    pytest.param(name, exporter, opset, marks=() if (name, exporter, opset) in QUICK else pytest.mark.slow)
    for exporter, opsets, usual in ((SCRIPT, (14, 15, 16, 17, 18), (17,)), (DYNAMO, (18, 20, 21, 23, 24), (18, 24)))
    for number, name in enumerate((*HF, *TORCH))
    for opset in opsets
    if opset == usual[number % len(usual)] or name in THOROUGH or (name, exporter, opset) in QUICK
]
each = pytest.mark.parametrize(("name", "exporter", "opset"), EACH)


@dataclass(frozen=True)
class Foreign:
    """A graph as another exporter left it, and what was prepared of it."""

    io: IOContract
    raw: bytes
    prepared: bytes
    counted: tuple[SourceAttention, ...]


@functools.cache
def made(name: str, exporter: str, opset: int) -> Foreign:
    module, io = CASES[name].make(), CASES[name].io
    fixed = LENGTHS if frozen(name) else ()
    model = exported(module, io, opset) if exporter == DYNAMO else scripted(module, io, opset, fixed=fixed)
    assert model.graph.opset_imports[""] == opset
    raw = ir.to_proto(model).SerializeToString()
    ready = prepare(model)
    return Foreign(io, raw, ir.to_proto(ready).SerializeToString(), count_in_graph(ready))


def frozen(name: str) -> bool:
    return name in TORCH and name != "differential"


def expected_masks(name: str) -> dict[str, str]:
    return {attention: mask for attention, _, mask in CASES[name].attentions}


def sizes_of(name: str, exporter: str) -> tuple[dict[str, int], ...]:
    traced = {each: TRACED[each] for each in LENGTHS} if exporter == SCRIPT and frozen(name) else {}
    return tuple({**sizes, **traced} for sizes in SIZES)


@each
def test_every_attention_is_counted_from_the_graph_alone(name: str, exporter: str, opset: int) -> None:
    assert {each.name for each in made(name, exporter, opset).counted} == set(expected_masks(name))


@each
def test_each_is_recognised_with_its_mask_and_computes_the_same(name: str, exporter: str, opset: int) -> None:
    foreign = made(name, exporter, opset)
    model = ir.from_proto(onnx.load_model_from_string(foreign.prepared))
    form = base.get("onnx").lower(model, foreign.counted, masks=foreign.io.masks, plan="fp32")
    assert form.masks == expected_masks(name), form.notes
    onnx.checker.check_model(ir.to_proto(form.model), full_check=True)
    run = on_ort(form.model)
    for seed, sizes in enumerate(sizes_of(name, exporter)):
        feeds = CASES[name].feeds(sizes, seed)
        got, expected = (CASES[name].compared(feeds, each) for each in (run(feeds), CASES[name].reference(feeds)))
        assert distance(got, expected) < 2e-5, sizes


@pytest.mark.parametrize(("name", "exporter", "opset"), [param for param in EACH if param.values in QUICK])
def test_the_shapes_that_were_inferred_are_those_of_a_run(name: str, exporter: str, opset: int) -> None:
    foreign = made(name, exporter, opset)
    model = ir.from_proto(onnx.load_model_from_string(foreign.prepared))
    named = check_shapes(model, [CASES[name].feeds(sizes) for sizes in sizes_of(name, exporter)])
    assert named > 20


def check_shapes(model: ir.Model, runs: list[dict[str, np.ndarray[Any, Any]]]) -> int:
    """That every inferred size is the one of a run, and that equal names are equal sizes; how many values it saw."""
    watched = [value for node in model.graph for value in node.outputs if value.shape is not None and value.consumers()]
    shapes = [list(value.shape or ()) for value in watched]
    del model.graph.outputs[:]
    model.graph.outputs.extend(watched)
    run = on_ort(model)
    for feeds in runs:
        sizes: dict[str, int] = {}
        for value, shape, array in zip(watched, shapes, run(feeds), strict=True):
            assert len(shape) == array.ndim, value.name
            for dim, size in zip(shape, array.shape, strict=True):
                known = dim if isinstance(dim, int) else sizes.setdefault(str(dim), size)
                assert known == size, f"{value.name}: {dim} is {size}, not {known}"
    return len(watched)


def test_a_shape_that_is_wrong_is_noticed() -> None:
    foreign = made("bert-sdpa", SCRIPT, 14)
    model = ir.from_proto(onnx.load_model_from_string(foreign.prepared))
    softmax = next(node for node in model.graph if node.op_type == "Softmax")
    softmax.outputs[0].shape = ir.Shape(["batch", 2, "seq", "batch"])
    with pytest.raises(AssertionError, match="batch is 7, not 2"):
        check_shapes(model, [CASES["bert-sdpa"].feeds(SIZES[0])])


def test_the_head_counts_that_the_older_exporter_computes_become_constants() -> None:
    foreign = made("bert-sdpa", SCRIPT, 14)
    raw, model = (ir.from_proto(onnx.load_model_from_string(data)) for data in (foreign.raw, foreign.prepared))
    before, after = ([node.outputs[0].shape for node in g.graph if node.op_type == "Softmax"] for g in (raw, model))
    assert before == [None, None]
    assert [[str(dim) for dim in shape or ()] for shape in after] == [["batch", "2", "seq", "seq"]] * 2
    assert len(model.graph) < len(raw.graph)


def sliced(pairs: int) -> ir.Model:
    """A model of pairs of Slices, of which each is a Split, in a row."""
    make, value = onnx.helper.make_node, onnx.helper.make_tensor_value_info
    numbers = {"n0": 0, "n4": 4, "n8": 8, "last": -1}
    weights = [onnx.numpy_helper.from_array(np.array([number]), name) for name, number in numbers.items()]
    nodes = []
    for n in range(pairs):
        nodes += [make("Slice", [f"x{n}", "n0", "n4", "last"], [f"a{n}"]),
                  make("Slice", [f"x{n}", "n4", "n8", "last"], [f"b{n}"]),
                  make("Concat", [f"b{n}", f"a{n}"], [f"x{n + 1}"], axis=-1)]  # fmt: skip
    x, y = (value(name, onnx.TensorProto.FLOAT, ["batch", 8]) for name in ("x0", f"x{pairs}"))
    shapes = [value(f"x{n}", onnx.TensorProto.FLOAT, ["batch", 8]) for n in range(1, pairs)]
    graph = onnx.helper.make_graph(nodes, "g", [x], [y], weights, value_info=shapes)
    return ir.from_proto(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)]))


def looked_at(pairs: int, monkeypatch: pytest.MonkeyPatch) -> tuple[int, list[str]]:
    """How often the rules ask a node what it is, and the operators that they leave."""
    count, asked = 0, ir.Node.op_identifier

    def counted(node: ir.Node) -> ir.OperatorIdentifier:
        nonlocal count
        count += 1
        return asked(node)

    model = sliced(pairs)
    with monkeypatch.context() as patch, patched(exact_rules):
        patch.setattr(ir.Node, "op_identifier", counted)
        optimizer.optimize_ir(model, num_iterations=1, onnx_shape_inference=False)
    return count, [node.op_type for node in model.graph]


def test_rules_look_at_a_number_of_nodes_in_proportion_to_the_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    few, kinds = looked_at(30, monkeypatch)
    many, _ = looked_at(120, monkeypatch)
    assert many < 5 * few
    default = sliced(30)
    optimizer.optimize_ir(default, num_iterations=1, onnx_shape_inference=False)
    assert kinds == [node.op_type for node in default.graph]


def test_inspect_tells_the_attentions_of_a_file_as_fuse_finds_them(tmp_path: Path) -> None:
    ir.save(scripted(tiny_attention.module(), tiny_attention.IO, 17), path := tmp_path / "theirs.onnx")
    (before,) = graph_facts(path).attentions
    assert "are not known" in before.reason, "the file itself leaves sizes open, or this shows nothing"
    found = inspect(path)
    assert found.graph is not None
    (attention,) = found.graph.attentions
    assert (attention.mask, attention.reason) == ("padding(attention_mask)", "")
    assert found.graph.opsets[""] == 17  # the rest is of the file as it is
