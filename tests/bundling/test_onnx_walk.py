"""What is found in an ONNX file without opening it: its external data, its opset, and how large a runtime makes it."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import onnx
import onnx.parser
import pytest
from onnx import TensorProto, helper

ATTACKS = Path(__file__).resolve().parents[1] / "attacks"
if str(ATTACKS) not in sys.path:
    sys.path.append(str(ATTACKS))  # where the pieces of models are

import hostile_models as pieces  # noqa: E402 - see above

from attnport.bundling.model_file import external_files  # noqa: E402 - behind those
from attnport.errors import ArtifactError  # noqa: E402 - behind those
from attnport.onnx_walk import Reference, opset, references  # noqa: E402 - behind those

AT_A_LIMIT = {
    "nested graphs": (pieces.nested_ifs, 32),
    "nested graphs in training": (pieces.nested_in_training, 32),
    "functions that call each other": (pieces.chain, 32),
    "nested graphs in two functions": (pieces.deep_by_parts, 15),
    "functions": (pieces.many_functions, 10_000),
    "graphs": (pieces.graphs_of_one_node, 49_999),
    # 2 nodes and then each time twice as many, with 2 calls more: 44 * 2**n - 42 nodes.
    "nodes of functions": (pieces.doubling, 15),
    "graphs in graphs": (pieces.tree_of_ifs, 14),
}


@pytest.mark.parametrize("what", AT_A_LIMIT)
def test_the_last_model_within_a_limit_is_taken_and_the_next_is_not(what: str, tmp_path: Path) -> None:
    make, size = AT_A_LIMIT[what]
    file = tmp_path / "model.onnx"
    file.write_bytes(make(size))
    assert references(file) == []
    file.write_bytes(make(size + 1))
    with pytest.raises(ValueError, match=r"more than|deeper than"):
        references(file)


FINE = {
    "a function that has the name of another domain's": pieces.function("F", pieces.call("F", domain=b"other")),
    "an overload that calls another": pieces.function("F", pieces.call("F", overload=b"a"))
    + pieces.function("F", pieces.node("Identity"), overload=b"a"),
    "a function that is called with a tensor": pieces.piece(
        pieces.GRAPH, pieces.call("F", pieces.piece(pieces.ATTRIBUTE, pieces.piece(5, b"")))
    )
    + pieces.function("F"),
    "a function that is called in a graph": pieces.doubling_in_loop(5),
    "an If that is no function": pieces.piece(pieces.GRAPH, pieces.node("If", pieces.graph(pieces.node("Identity")))),
}


@pytest.mark.parametrize("what", FINE)
def test_what_only_looks_like_a_circle_or_a_graph_handed_on_is_taken(what: str, tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(FINE[what])
    assert references(tmp_path / "model.onnx") == []


def test_the_writer_refuses_what_readers_would(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(pieces.circle(2))
    with pytest.raises(ArtifactError, match="functions that call themselves"):
        external_files(tmp_path, "model.onnx")


def tensor(location: str, **entries: int) -> TensorProto:
    made = TensorProto(name=location, data_type=TensorProto.FLOAT, dims=[1], data_location=TensorProto.EXTERNAL)
    for key, value in {"location": location, **entries}.items():
        made.external_data.add(key=key, value=str(value))
    return made


def test_external_data_is_found_wherever_a_tensor_can_stand(tmp_path: Path) -> None:
    inner = helper.make_graph([], "inner", [], [], initializer=[tensor("subgraph")])
    sparse = onnx.SparseTensorProto(values=tensor("sparse values"), indices=tensor("sparse indices"), dims=[4])
    nodes = [
        helper.make_node("Constant", [], ["a"], value=tensor("attribute")),
        helper.make_node("Constant", [], ["b"], sparse_value=sparse),
        helper.make_node("If", ["c"], ["d"], then_branch=inner, else_branch=inner),
    ]
    graph = helper.make_graph(nodes, "g", [], [], initializer=[tensor("initializer", offset=8, length=4)])
    graph.sparse_initializer.add().CopyFrom(sparse)
    function = helper.make_function(
        "d", "f", [], ["x"], [helper.make_node("Constant", [], ["x"], value=tensor("function"))], []
    )
    model = helper.make_model(graph, functions=[function])
    model.training_info.add().algorithm.initializer.add().CopyFrom(tensor("training"))
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    found = references(tmp_path / "m.onnx")
    assert {one.location for one in found} == {
        "initializer", "attribute", "sparse values", "sparse indices", "subgraph", "function", "training"
    }  # fmt: skip
    assert Reference("initializer", 8, 4) in found
    assert Reference("attribute", 0, None) in found


def test_it_sees_what_onnx_itself_sees(exported: Path) -> None:
    model = onnx.load(exported / "model.onnx", load_external_data=False)
    wanted = [
        {entry.key: entry.value for entry in one.external_data} for one in model.graph.initializer if one.external_data
    ]
    found = references(exported / "model.onnx")
    assert len(found) == len(wanted) > 3
    for one, entries in zip(found, wanted, strict=True):
        assert one == Reference(entries["location"], int(entries.get("offset", 0)), int(entries["length"]))


def test_damaged_models_give_an_error_or_an_answer_and_never_anything_else(exported: Path, tmp_path: Path) -> None:
    data, chance = (exported / "model.onnx").read_bytes(), random.Random(20261120)
    path, refused = tmp_path / "m.onnx", 0
    for _ in range(400):
        broken = bytearray(data)
        for _ in range(chance.randint(1, 4)):
            broken[chance.randrange(len(broken))] = chance.randrange(256)
        path.write_bytes(bytes(broken[: chance.choice([len(broken), chance.randrange(len(broken))])]))
        try:
            references(path)
        except ValueError:
            refused += 1
    assert refused > 50


def test_deep_subgraphs_have_a_limit(tmp_path: Path) -> None:
    def field(tag: int, inside: bytes) -> bytes:
        size, encoded = len(inside), bytearray()
        while size > 0x7F:
            encoded.append(size & 0x7F | 0x80)
            size >>= 7
        return bytes([tag << 3 | 2, *encoded, size]) + inside

    graph = b""
    for depth in range(1, 2001):
        graph = field(1, field(5, field(6, graph)))  # a node's attribute's graph
        if depth == 10:
            (tmp_path / "m.onnx").write_bytes(field(7, graph))
            assert references(tmp_path / "m.onnx") == []
    (tmp_path / "m.onnx").write_bytes(field(7, graph))
    with pytest.raises(ValueError, match="nested deeper"):
        references(tmp_path / "m.onnx")


def test_the_opset_is_that_of_onnxs_own_operators(tmp_path: Path) -> None:
    text = '<ir_version: 10, opset_import: ["com.microsoft" : 1, "" : 19]> g (float[B] x) => (float[B] y) {y = Relu(x)}'
    onnx.save(onnx.parser.parse_model(text), tmp_path / "a.onnx")
    assert opset(tmp_path / "a.onnx") == 19
    (tmp_path / "b.onnx").write_bytes(b"\x08\x0a")
    with pytest.raises(ValueError, match="imports no opset"):
        opset(tmp_path / "b.onnx")
