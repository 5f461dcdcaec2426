"""`onnx:`: files that other exporters made go through export, fuse and check as their module does."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from cached_nodes import COMPUTED
from foreign_exports import exported, scripted
from representatives import representatives
from test_known_modules import CASES

import attnport
from attnport.errors import SpecError, UsageError
from attnport.example_values import packed
from attnport.sources import load
from attnport.sources.onnx_file import beside, files_of, graph_of, read
from attnport.verbs.check import check
from attnport.verbs.export import export
from attnport.verbs.fuse import fuse

SCRIPT, DYNAMO = "TorchScript", "dynamo"
DECLARED = {"hide": "hide=bool[batch,seq]:padding:hide", "hide_memory": "hide_memory=bool[batch,mem]:padding:hide"}
ARCHITECTURES = ("bert-eager", "roberta-sdpa", "gpt2-sdpa", "llama-sdpa", "qwen3-sdpa", "mistral-eager", "gemma2-eager",
                 "transformer", "attention_bias_kv", "bloom-eager", "t5-sdpa", "vit-sdpa", "whisper-sdpa",
                 "swin-eager", "attention_cross_padding", "attention_weights_causal_padding", "encoder_causal_padding",
                 "decoder_all_masks", "attention_bias", "differential")  # fmt: skip
QUICK = {("bert-eager", SCRIPT, 17), ("llama-sdpa", DYNAMO, 23)}
OLDER = ("bert-eager", "gpt2-sdpa", "llama-sdpa", "t5-sdpa", "vit-sdpa", "bloom-eager")
"""Those that the older exporter can export with free lengths."""
EACH = [
    pytest.param(name, exporter, opset, marks=() if (name, exporter, opset) in QUICK else pytest.mark.slow)
    for name in ARCHITECTURES
    for exporter, opset in ((SCRIPT, 17), (DYNAMO, 18), (DYNAMO, 23))
    if exporter == DYNAMO or name in OLDER
]


def written(model: ir.Model | onnx.ModelProto, folder: Path, name: str = "theirs.onnx") -> Path:
    proto = model if isinstance(model, onnx.ModelProto) else ir.to_proto(model)
    (folder / name).write_bytes(proto.SerializeToString())
    return folder / name


@pytest.mark.parametrize(("name", "exporter", "opset"), EACH)
def test_a_file_of_an_architecture_is_fused_as_its_module_and_passes(
    name: str, exporter: str, opset: int, tmp_path: Path
) -> None:
    case = CASES[name]
    made = exported(case.make(), case.io, opset) if exporter == DYNAMO else scripted(case.make(), case.io, opset)
    inputs = [DECLARED[spec.name] for spec in case.io.inputs if spec.name in DECLARED]
    dims = [str(dim) for dim in case.io.dims]
    manifest = export(f"onnx:{written(made, tmp_path)}", tmp_path / "out", inputs=inputs, dims=dims)
    expected = {attention: mask for attention, _, mask in case.attentions}
    assert {each.name for each in manifest.attentions} == set(expected)
    report = fuse(tmp_path / "out", targets=["ort_cpu"])
    assert {item.attention: item.mask for item in report.targets["ort_cpu"].items} == expected
    assert check(tmp_path / "out", ["ort_cpu"]).verdict == "PASS"


def by_hand(width: int = 8, mask: str = "attention_mask") -> onnx.ModelProto:
    """Attention as somebody writes it with `MatMul`, `Softmax` and `Where`, one head, weights for q, k and v."""
    text = f"""
        <ir_version: 8, opset_import: ["" : 13]>
        theirs (float[N,L,{width}] hidden, int64[N,L] {mask}) => (float[N,L,{width}] y)
        <float[{width},{width}] wq, float[{width},{width}] wk, float[{width},{width}] wv,
         float scale = {{0.5}}, float low = {{-1e9}}>
        {{
            q = MatMul(hidden, wq)
            k = MatMul(hidden, wk)
            v = MatMul(hidden, wv)
            kt = Transpose<perm = [0, 2, 1]>(k)
            products = MatMul(q, kt)
            scaled = Mul(products, scale)
            kept = Cast<to = 9>({mask})
            axis = Constant<value_ints = [1]>()
            keys = Unsqueeze(kept, axis)
            masked = Where(keys, scaled, low)
            weights = Softmax<axis = -1>(masked)
            y = MatMul(weights, v)
        }}"""
    model = onnx.parser.parse_model(text)
    model.graph.node[-1].output[0] = model.graph.output[0].name = "out.1"
    random = np.random.default_rng(0)
    filled = {"wq", "wk", "wv"}
    for tensor in [each for each in model.graph.initializer if each.name in filled]:
        model.graph.initializer.remove(tensor)
    for name in sorted(filled):
        array = random.standard_normal((width, width)).astype(np.float32) / 3
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return model


def test_a_file_written_by_hand_is_recognised_with_its_mask(tmp_path: Path) -> None:
    artifact = attnport.export(f"onnx:{written(by_hand(), tmp_path)}", tmp_path / "out")
    assert [str(spec) for spec in artifact.manifest.io.inputs] == [
        "hidden=float32[batch,L,8]", "attention_mask=int64[batch,L]",
    ]  # fmt: skip
    assert [spec.name for spec in artifact.manifest.io.outputs] == ["out_1"]
    report = artifact.fuse(["ort_cpu", "openvino"])
    for table in report.targets.values():
        assert [(item.mask, item.fused) for item in table.items] == [("padding(attention_mask)", True)]
    assert artifact.check(["ort_cpu", "openvino"]).verdict == "PASS"


@pytest.mark.slow
def test_a_file_in_half_precision_is_widened_with_the_same_weights(tmp_path: Path) -> None:
    from onnxruntime.transformers.float16 import convert_float_to_float16

    half = convert_float_to_float16(by_hand())
    told: list[str] = []
    manifest = export(f"onnx:{written(half, tmp_path)}", tmp_path / "out", tell=told.append)
    assert manifest.io.inputs[0].dtype == "float32"
    assert any("float16" in line for line in told)
    expected = {each.name: onnx.numpy_helper.to_array(each) for each in half.graph.initializer}
    stored = ir.load(tmp_path / "out" / "model.onnx").graph.initializers
    assert np.array_equal(stored["wq"].const_value.numpy(), expected["wq"].astype(np.float32))


def hand(text: str, opset: int = 17, ir_version: int = 9, **weights: np.ndarray[Any, Any]) -> onnx.ModelProto:
    """A graph of one body: `float[N,L,4] x -> float[N,L,4] y: y = Relu(x)`."""
    declared, body = text.split(": ", 1)
    inputs, outputs = declared.split(" -> ")
    model = onnx.parser.parse_model(
        f'<ir_version: {ir_version}, opset_import: ["" : {opset}]> g ({inputs}) => ({outputs}) {{ {body} }}'
    )
    model.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in weights.items())
    return model


ATTENDS = "t = Transpose<perm=[0,2,1]>(r) p = MatMul(r, t) s = Softmax<axis=-1>(p) y = MatMul(s, r)"
FROZEN = {
    "a length": ("r = Reshape(x, to)", {"to": np.int64([-1, 9, 4])}, {"L": 9}),
    "a length, the batch copied": ("r = Reshape(x, to)", {"to": np.int64([0, 9, 4])}, {"L": 9}),
    "batch and length": ("r = Reshape(x, to)", {"to": np.int64([2, 9, 4])}, {"batch": 2, "L": 9}),
    "by a table of positions": ("r = Add(x, table)", {"table": np.zeros((1, 13, 4), np.float32)}, {"L": 13}),
    "at a usual size": ("r = Add(x, table)", {"table": np.zeros((1, 128, 4), np.float32)}, {"L": 128}),
}


@pytest.mark.parametrize("kind", FROZEN)
def test_a_size_that_an_exporter_froze_is_fixed_and_told(kind: str, tmp_path: Path) -> None:
    body, weights, sizes = FROZEN[kind]
    model = hand(f"float[N,L,4] x -> float[N,L,4] y: {body} {ATTENDS}", **weights)
    spec = load(f"onnx:{written(model, tmp_path)}")
    fixed = {dim.name: dim.opt for dim in spec.io.dims if dim.min == dim.max}
    assert fixed == sizes
    told = " and ".join(f"{name} to {size}" for name, size in sizes.items())
    assert f"fixed {told} (--dim chooses another)" in spec.notes[-1]


def test_a_file_that_is_wrong_at_every_size_has_none_fixed(tmp_path: Path) -> None:
    model = hand("float[N,L,4] x, int64[N,L,4] z -> float[N,L,4] y: r = MatMul(x, z) y = Relu(r)")
    with pytest.raises(SpecError, match="its forward raised"):
        load(f"onnx:{written(model, tmp_path)}")


def test_weights_are_no_inputs_in_the_oldest_files(tmp_path: Path) -> None:
    model = hand("float[N,4] x, float[4,4] w -> float[N,4] y: y = MatMul(x, w)", 9, 3, w=np.eye(4, dtype=np.float32))
    told: list[str] = []
    manifest = export(f"onnx:{written(model, tmp_path)}", tmp_path / "out", tell=told.append)
    assert ([spec.name for spec in manifest.io.inputs], told) == (["x"], [])
    model.ir_version = 4  # from here on an input may have a value that it keeps where none is given
    assert "keep it: w" in load(f"onnx:{written(model, tmp_path)}").notes[0]


@pytest.mark.parametrize("half", ["float16", "bfloat16"])
@pytest.mark.parametrize("where", ["everywhere", "inside"])
def test_half_precision_is_found_without_weights_in_it(half: str, where: str, tmp_path: Path) -> None:
    if where == "everywhere":
        attends = "y = Attention<q_num_heads=2,kv_num_heads=2>(x, x, x)"
        model = hand(f"{half}[N,L,16] x -> {half}[N,L,16] y: {attends}", 23, 11)
    else:
        kind = onnx.TensorProto.DataType.Value(half.upper())
        casts = f"r = Cast<to={kind}>(x) {ATTENDS.replace('y =', 'z =')} y = Cast<to=1>(z)"
        model = hand(f"float[N,L,16] x -> float[N,L,16] y: {casts}")
    model = load(f"onnx:{written(model, tmp_path)}")
    assert [spec.dtype for spec in (*model.io.inputs, *model.io.outputs)] == ["float32", "float32"]
    assert half in model.notes[0]
    kinds = {value.dtype for node in read(model.source.text).model.graph for value in node.outputs}
    assert not kinds & {ir.DataType.FLOAT16, ir.DataType.BFLOAT16}


def test_a_file_in_double_precision_keeps_it_and_passes(tmp_path: Path) -> None:
    attends = "r = MatMul(x, w) y = Attention<q_num_heads=2,kv_num_heads=2>(r, x, r)"
    weight = np.random.default_rng(0).standard_normal((16, 16))
    file = written(hand(f"double[N,L,16] x -> double[N,L,16] y: {attends}", 23, 11, w=weight), tmp_path)
    manifest = export(f"onnx:{file}", tmp_path / "out")
    assert manifest.io.inputs[0].dtype == "float64"
    fuse(tmp_path / "out", targets=["ort_cpu"])
    assert check(tmp_path / "out", ["ort_cpu"]).verdict == "PASS"


def test_an_operator_is_computed_as_the_standard_defines_it(tmp_path: Path) -> None:
    """ONNX Runtime's own gives NaN where all elements are equal."""
    file = written(hand("float[N,L,16] x -> float[N,L,16] y: y = MeanVarianceNormalization<axes=[2]>(x)", 13), tmp_path)
    export(f"onnx:{file}", tmp_path / "out")
    assert "MeanVarianceNormalization" not in {node.op_type for node in ir.load(tmp_path / "out" / "model.onnx").graph}
    fuse(tmp_path / "out", targets=["ort_cpu"])
    assert check(tmp_path / "out", ["ort_cpu"]).verdict == "PASS"


def test_names_that_collide_are_told_apart(tmp_path: Path) -> None:
    model = hand("float[N,4] x_1, float[N,4] self -> float[N,4] class: r = Sub(x_1, self) class = Relu(r)")
    for node in model.graph.node:
        node.input[:] = ["x.1" if name == "self" else "x_1/inner" if name == "r" else name for name in node.input]
        node.output[:] = ["x_1/inner" if name == "r" else name for name in node.output]
    model.graph.input[1].name = "x.1"
    manifest = export(f"onnx:{written(model, tmp_path)}", tmp_path / "out")
    assert [spec.name for spec in manifest.io.inputs] == ["x_1", "x_1_"]
    assert [spec.name for spec in manifest.io.outputs] == ["class_"]
    sizes = hand("float[N,L,4] x, float[5,N,é,4] z -> float[N,L,4] y: y = Relu(x)".replace("é", "L_"))
    sizes.graph.input[1].type.tensor_type.shape.dim[2].dim_param = "L."
    sizes.graph.input[0].type.tensor_type.shape.dim[1].dim_param = "L_"
    found = load(f"onnx:{written(sizes, tmp_path)}")
    assert [spec.dims for spec in found.io.inputs] == [("batch", "L_", 4), (5, "batch", "L__", 4)]


def changed(change: Callable[[onnx.GraphProto], object]) -> onnx.ModelProto:
    model = hand("float[N,4] x, float[N,4] z -> float[N,4] y: r = Add(x, z) y = Relu(r)")
    change(model.graph)
    return model


LISTED = onnx.helper.make_tensor_sequence_value_info("z", onnx.TensorProto.FLOAT, None)
MAYBE = onnx.helper.make_value_info("z", onnx.helper.make_optional_type_proto(LISTED.type.sequence_type.elem_type))
TEXTS = onnx.helper.make_node("Constant", [], ["texts"], value_strings=["a"])
REFUSED = {
    "a list as input": (lambda graph: graph.input[1].CopyFrom(LISTED), "input z is a list of tensors"),
    "a list as output": (lambda graph: (graph.output[0].CopyFrom(LISTED), setattr(graph.output[0], "name", "y")),
                         "output y is a list of tensors"),
    "an optional input": (lambda graph: graph.input[1].CopyFrom(MAYBE), "input z is a tensor that may be missing"),
    "two inputs of one name": (lambda graph: setattr(graph.input[1], "name", "x"), "two inputs are called 'x'"),
    "an input without a name": (lambda graph: setattr(graph.input[1], "name", ""), "input 2 of the graph has no name"),
    "a name that nothing makes": (lambda graph: setattr(graph.input[1], "name", "w"), "reads 'z', which nothing"),
    "an unknown operator": (lambda graph: setattr(graph.node[0], "op_type", "Own"), "these operators compute.*Own"),
    "no inputs": (lambda graph: (graph.ClearField("input"), graph.node[0].input.__setitem__(slice(None), ["c", "c"]),
                                 graph.initializer.append(onnx.numpy_helper.from_array(np.ones((2, 4), "f"), "c"))),
                  "the graph has no inputs"),
    "texts": (lambda graph: graph.node.append(TEXTS), "constant texts of the graph is given as value_strings"),
    "a type of no tensor here": (lambda graph: setattr(graph.input[1].type.tensor_type, "elem_type", 4),
                                 "input z has type uint16"),
}  # fmt: skip


@pytest.mark.parametrize("kind", REFUSED)
def test_what_cannot_be_computed_is_refused_in_words(kind: str, tmp_path: Path) -> None:
    change, told = REFUSED[kind]
    with pytest.raises(SpecError, match=told):
        load(f"onnx:{written(changed(change), tmp_path)}")


@pytest.mark.slow
def test_a_tokenizer_beside_the_file_is_its_tokenizer(tmp_path: Path) -> None:
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        theirs (int64[batch,seq] input_ids) => (float[batch,seq,2] y)
        <float[3,2] table = {0., 1., 2., 3., 4., 5.}>
        { y = Gather(table, input_ids) }""")
    file = written(model, tmp_path)
    assert export(f"onnx:{file}", tmp_path / "out").tokenizer is None
    (tmp_path / "tokenizer.json").write_text("{}")
    manifest = export(f"onnx:{file}", tmp_path / "out", force=True)
    assert manifest.tokenizer == "tokenizer.json"
    assert manifest.io.inputs[0].high == 3


@pytest.mark.slow
def test_an_output_may_be_an_input_too(tmp_path: Path) -> None:
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        theirs (float[batch,seq] x) => (float[batch,seq] x, float[batch,seq] y)
        { y = Relu(x) }""")
    manifest = export(f"onnx:{written(model, tmp_path)}", tmp_path / "out")
    assert [spec.name for spec in manifest.io.outputs] == ["x_out", "y"]


def test_operators_that_stay_are_named(tmp_path: Path) -> None:
    told: list[str] = []
    file = written(COMPUTED["sink"].model(), tmp_path)
    fixed = []
    for name, array in COMPUTED["sink"].feeds.items():
        sizes = ",".join(map(str, array.shape))
        fixed.append(f"{name}={array.dtype}[{sizes}]:example={packed(array)}")
    export(f"onnx:{file}", tmp_path / "out", inputs=fixed, tell=told.append)
    assert any("GroupQueryAttention" in line for line in told)


@pytest.mark.slow
def test_weights_beside_the_file_go_into_the_artifact(tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    onnx.save(by_hand(width=24), theirs / "theirs.onnx", save_as_external_data=True, location="data", size_threshold=0)
    export(f"onnx:{theirs / 'theirs.onnx'}", tmp_path / "out")
    shutil.rmtree(theirs)
    graph = ir.load(tmp_path / "out" / "model.onnx").graph
    stored = {str(value.const_value.location) for value in graph.initializers.values()
              if isinstance(value.const_value, ir.ExternalTensor)}  # fmt: skip
    assert stored == {"weights.bin"}
    fuse(tmp_path / "out", targets=["ort_cpu"])


def test_weights_outside_the_folder_are_not_read(tmp_path: Path) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    model = by_hand()
    (tmp_path / "secret").write_bytes(bytes(8 * 8 * 4))
    tensor = next(each for each in model.graph.initializer if each.name == "wq")
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in (("location", "../secret"), ("offset", "0"), ("length", "256")):
        tensor.external_data.add(key=key, value=value)
    with pytest.raises(SpecError, match=re.escape("'../secret', outside")):
        export(f"onnx:{written(model, inside)}", tmp_path / "out")
    next(entry for entry in tensor.external_data if entry.key == "location").value = "gone"
    with pytest.raises(SpecError, match="'gone', which is missing"):
        export(f"onnx:{written(model, inside)}", tmp_path / "out")


def cached(folder: Path) -> Path:
    """A file with its weights as a hub's cache lays them: links into the folder of blobs."""
    blobs, snapshot = folder / "models--a--b" / "blobs", folder / "models--a--b" / "snapshots" / "abc" / "onnx"
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    onnx.save(by_hand(width=24), blobs / "m.onnx", save_as_external_data=True, location="model.data", size_threshold=0)
    (blobs / "m.onnx").rename(blobs / "11")
    (blobs / "model.data").rename(blobs / "22")
    (blobs / "33").write_text("{}")
    for name, blob in (("model.onnx", "11"), ("model.data", "22"), ("tokenizer.json", "33")):
        (snapshot / name).symlink_to(Path("../../../blobs") / blob)
    return snapshot


def test_a_file_and_its_weights_may_be_links_of_a_hubs_cache(tmp_path: Path) -> None:
    snapshot = cached(tmp_path)
    held = {
        name: array.const_value.numpy()
        for name, array in graph_of(f"onnx:{snapshot}/model.onnx").graph.initializers.items()
    }
    for tensor in by_hand(width=24).graph.initializer:
        assert np.array_equal(held[tensor.name], onnx.numpy_helper.to_array(tensor))
    assert beside(f"onnx:{snapshot}/model.onnx", "tokenizer.json") == snapshot / "tokenizer.json"


def test_blobs_that_models_of_a_cache_share_are_read(tmp_path: Path) -> None:
    snapshot, digest = cached(tmp_path), "ab" * 32
    shared = tmp_path / "blobs" / "ab" / digest
    shared.parent.mkdir(parents=True)
    (snapshot.parents[2] / "blobs" / "22").rename(shared)
    (snapshot.parents[2] / "blobs" / "22").symlink_to(shared)
    assert len(files_of(f"onnx:{snapshot}/model.onnx")) == 2


@pytest.mark.parametrize("name", ["model.data", "tokenizer.json"])
def test_a_link_out_of_the_folder_is_not_read(name: str, tmp_path: Path) -> None:
    """Whoever sends a folder must not have other files read: not of a plain folder, and not of a cache."""
    snapshot = cached(tmp_path)
    (tmp_path / "secret").write_bytes(bytes(10**5))
    plain = tmp_path / "plain"
    plain.mkdir()
    for each in snapshot.iterdir():
        (plain / each.name).write_bytes(each.read_bytes())
    for folder in (plain, snapshot):
        (folder / name).unlink()
        (folder / name).symlink_to(tmp_path / "secret")
        with pytest.raises(SpecError, match=f"'{name}' is a link to '{tmp_path}/secret', outside the file's folder"):
            beside(f"onnx:{folder}/model.onnx", name)
    if name == "model.data":
        with pytest.raises(SpecError, match="outside the file's folder"):
            graph_of(f"onnx:{plain}/model.onnx")


def test_weights_that_were_cut_short_are_named(tmp_path: Path) -> None:
    onnx.save(by_hand(width=24), tmp_path / "m.onnx", save_as_external_data=True, location="data", size_threshold=0)
    (tmp_path / "data").write_bytes((tmp_path / "data").read_bytes()[:100])
    with pytest.raises(SpecError, match=r"weight '\w+' cannot be read from 'data'"):
        graph_of(f"onnx:{tmp_path}/m.onnx")


def test_what_is_no_file_of_onnx_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text.onnx").write_text("this is no protobuf")
    (tmp_path / "empty.onnx").write_bytes(b"")
    (tmp_path / "cut.onnx").write_bytes(by_hand().SerializeToString()[:200])
    for name in ("text.onnx", "empty.onnx", "cut.onnx", "none.onnx", "."):
        with pytest.raises(SpecError, match=r"not a readable file|not there|a folder|has no outputs"):
            export(f"onnx:{tmp_path / name}", tmp_path / "out")
    with pytest.raises(SpecError) as raised:
        export("theirs.onnx", tmp_path / "out")
    assert "written onnx:theirs.onnx" in str(raised.value.hint)


def test_inputs_are_declared_where_the_file_does_not_tell(tmp_path: Path) -> None:
    model = by_hand(mask="valid")
    file = written(model, tmp_path)
    with pytest.raises(UsageError, match="the graph's inputs are hidden, valid"):
        export(f"onnx:{file}", tmp_path / "out", inputs=["other=int64[batch,L]"])
    manifest = export(f"onnx:{file}", tmp_path / "out", inputs=["valid=int64[batch,L]:padding"])
    assert [mask.input for mask in manifest.io.masks] == ["valid"]
    model.graph.input[0].type.tensor_type.ClearField("shape")
    with pytest.raises(SpecError, match="does not say how many dims input hidden has"):
        export(f"onnx:{written(model, tmp_path)}", tmp_path / "other")


def test_random_operators_are_refused(tmp_path: Path) -> None:
    model = by_hand()
    model.graph.node[-1].input[0] = "noisy"
    model.graph.node.insert(
        len(model.graph.node) - 1, onnx.helper.make_node("RandomNormalLike", ["weights"], ["noise"], name="noise")
    )
    model.graph.node.insert(len(model.graph.node) - 1, onnx.helper.make_node("Add", ["weights", "noise"], ["noisy"]))
    with pytest.raises(SpecError, match=r"deterministic|noise"):
        export(f"onnx:{written(model, tmp_path)}", tmp_path / "out")


def test_nothing_that_the_file_says_is_run(tmp_path: Path) -> None:
    from attnport.artifacts import Source
    from attnport.sources.code import runs_code

    assert not runs_code(Source(f"onnx:{tmp_path / 'theirs.onnx'}"))


@pytest.mark.slow
def test_branches_and_loops_are_computed(tmp_path: Path) -> None:
    text = """
        <ir_version: 8, opset_import: ["" : 17]>
        theirs (float[batch,seq] x) => (float[batch,seq] y)
        {
            size = Shape<start = 1, end = 2>(x)
            zero = Constant<value_ints = [0]>()
            count = Squeeze(size, zero)
            total = ReduceSum<keepdims = 0>(x)
            none = Constant<value_float = 0.0>()
            positive = Greater(total, none)
            chosen = If(positive) <
                then_branch = positive_branch () => (float[batch,seq] same) { same = Identity(x) },
                else_branch = negative_branch () => (float[batch,seq] other) { other = Neg(x) }
            >
            y = Loop(count, , chosen) <
                body = body (int64 at, bool going, float[batch,seq] held) => (bool on, float[batch,seq] next)
                { half = Constant<value_float = 0.5>() next = Mul(held, half) on = Identity(going) }
            >
        }"""
    artifact = attnport.export(f"onnx:{written(onnx.parser.parse_model(text), tmp_path)}", tmp_path / "out",
                               dims=["seq=1:3:9"])  # fmt: skip
    artifact.fuse(["ort_cpu"])
    assert artifact.check(["ort_cpu"]).verdict == "PASS"


@pytest.mark.parametrize("name", representatives(["bert-eager", "bert-sdpa"], ["bert-eager"]))
def test_what_onnx_runtimes_optimiser_made_is_read_back(name: str, tmp_path: Path) -> None:
    from onnxruntime.transformers import optimizer

    case = CASES[name]
    plain = written(scripted(case.make(), case.io, 17), tmp_path)
    fused = optimizer.optimize_model(str(plain), model_type="bert", num_heads=2, hidden_size=16, opt_level=0)
    own = {node.op_type for node in fused.model.graph.node if node.domain == "com.microsoft"}
    assert {"SkipLayerNormalization", "BiasGelu"} <= own
    fused.save_model_to_file(str(tmp_path / "fused.onnx"))
    manifest = export(f"onnx:{tmp_path / 'fused.onnx'}", tmp_path / "out", dims=list(map(str, case.io.dims)))
    assert len(manifest.attentions) == 2
    graph = ir.load(tmp_path / "out" / "model.onnx").graph
    assert {node.domain for node in graph} == {""}
    report = fuse(tmp_path / "out", targets=["ort_cpu", "openvino"])
    for table in report.targets.values():
        assert [item.fused for item in table.items] == [True, True]
    assert check(tmp_path / "out", ["ort_cpu", "openvino"]).verdict == "PASS"
