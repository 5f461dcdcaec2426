"""`onnx:` files as they are read: sizes that froze, weights beside them, half precision, names, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnx_ir.passes.common as passes
import pytest
from loaded import load

from attnport.errors import SpecError
from attnport.patches import patched
from attnport.sources.onnx_file import beside, files_of, read, unique_names
from attnport.verbs.check import check
from attnport.verbs.export import export
from attnport.verbs.fuse import fuse

pytestmark = pytest.mark.usefixtures("unconfined")


def written(model: onnx.ModelProto, folder: Path) -> Path:
    (folder / "theirs.onnx").write_bytes(model.SerializeToString())
    return folder / "theirs.onnx"


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
    theirs = {"x_1": "x.1", "self": "x_1", "r": "x_1/inner"}  # as input.1 and input_1 of torch's older exporter
    for node in model.graph.node:
        node.input[:] = [theirs.get(name, name) for name in node.input]
        node.output[:] = [theirs.get(name, name) for name in node.output]
    for value in model.graph.input:
        value.name = theirs[value.name]
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


WIDE = "float[N,24] x -> float[N,24] y: y = MatMul(x, w)"
WEIGHT = np.random.default_rng(0).standard_normal((24, 24)).astype(np.float32)


def cached(folder: Path) -> Path:
    """A file with its weights as a hub's cache lays them: links into the folder of blobs."""
    blobs, snapshot = folder / "models--a--b" / "blobs", folder / "models--a--b" / "snapshots" / "abc" / "onnx"
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    onnx.save(
        hand(WIDE, w=WEIGHT), blobs / "m.onnx", save_as_external_data=True, location="model.data", size_threshold=0
    )
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
        for name, array in read(f"onnx:{snapshot}/model.onnx").model.graph.initializers.items()
    }
    assert np.array_equal(held["w"], WEIGHT)
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
            read(f"onnx:{plain}/model.onnx")


def test_weights_that_were_cut_short_are_named(tmp_path: Path) -> None:
    onnx.save(hand(WIDE, w=WEIGHT), tmp_path / "m.onnx", save_as_external_data=True, location="data", size_threshold=0)
    (tmp_path / "data").write_bytes((tmp_path / "data").read_bytes()[:100])
    with pytest.raises(SpecError, match=r"weight '\w+' cannot be read from 'data'"):
        read(f"onnx:{tmp_path}/m.onnx")


def of_calls(levels: int) -> ir.Model:
    """A model with functions, each of which calls the one before twice."""
    opsets = [onnx.helper.make_opsetid("", 18), onnx.helper.make_opsetid("own", 1)]
    make = onnx.helper.make_node
    first = onnx.helper.make_function("own", "f0", ["a"], ["b"], [make("Neg", ["a"], ["b"])], opsets)
    functions = [
        onnx.helper.make_function(
            "own", f"f{n}", ["a"], ["b"],
            [make(f"f{n - 1}", ["a"], ["c"], domain="own"), make(f"f{n - 1}", ["c"], ["b"], domain="own")], opsets,
        )
        for n in range(1, levels)
    ]  # fmt: skip
    x, y = (onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [4]) for name in "xy")
    graph = onnx.helper.make_graph([make(f"f{levels - 1}", ["x"], ["y"], domain="own")], "g", [x], [y])
    model = onnx.helper.make_model(graph, opset_imports=opsets, functions=[first, *functions])
    return ir.from_proto(model)


def test_inlined_functions_have_the_names_of_the_inliner_in_a_time_that_does_not_grow() -> None:
    names = []
    for tables in ((), (unique_names,)):
        model = of_calls(8)
        with patched(*tables):
            passes.InlinePass()(model)
        names.append([(node.name, node.outputs[0].name) for node in model.graph])
    assert len(set(names[0])) == len(names[0]) == 128
    assert names[0] == names[1]


class Counted(set[str]):
    """Names, which count how often one is looked for."""

    looked = 0

    def __contains__(self, name: object) -> bool:
        Counted.looked += 1
        return super().__contains__(name)


def test_a_name_is_found_without_trying_those_before() -> None:
    (patch,) = unique_names()
    used = Counted()
    assert [patch.value("a", [], used) for _ in range(3)] == ["a", "a_2", "a_3"]
    Counted.looked = 0
    for _ in range(500):
        patch.value("a", [], used)
    assert Counted.looked <= 1000
