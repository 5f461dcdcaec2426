"""Constants that look like data are found; tables, positions, indices and quantised weights are not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from attnport.auditing.onnx_file import audit_constants
from attnport.auditing.text import Finding

RANDOM = np.random.default_rng(0)
SECRET = b"Dear Dr. Miller, thank you for your letter of May; the results of Mr. Jones are with us. Yours, B."


def model(tensor: TensorProto, *nodes: onnx.NodeProto, constant: bool = False) -> onnx.ModelProto:
    """A graph that does `nodes` with the constant `c`, an initializer or a node's value."""
    out = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    tensor.name = "" if constant else "c"
    first = [helper.make_node("Constant", [], ["c"], value=tensor)] if constant else []
    graph = helper.make_graph([*first, *nodes], "main", [], [out], [] if constant else [tensor])
    made: onnx.ModelProto = helper.make_model(graph)
    return made


def used(array: Any, *nodes: onnx.NodeProto, constant: bool = False, folder: Path = Path("/")) -> list[Finding]:
    return list(audit_constants("m.onnx", model(numpy_helper.from_array(array), *nodes, constant=constant), folder))


def node(operator: str, *inputs: str) -> onnx.NodeProto:
    made: onnx.NodeProto = helper.make_node(operator, list(inputs), ["y"])
    return made


ROWS = RANDOM.integers(0, 30000, (8, 64))
DATA = {
    "token ids added": (ROWS, node("Add", "c", "x")),
    "token ids looked up in": (ROWS, node("Gather", "c", "x")),  # the table itself, not the index
    "token ids picked from": (ROWS, node("GatherElements", "c", "x")),
    "bytes of an image": (RANDOM.integers(0, 256, (16, 16), np.uint8), node("Cast", "c")),
    "text in bytes": (np.frombuffer(SECRET, np.uint8), node("Cast", "c")),
    "text in floats": (np.frombuffer(SECRET[:96], np.float32), node("Add", "c", "x")),
    "text in signed bytes": (np.frombuffer(SECRET, np.int8), node("Cast", "c")),
    "strings": (np.array(["Dear Dr. Miller"], object), node("Identity", "c")),
    "used by nothing": (ROWS, node("Identity", "x")),
}
NO_DATA = {
    "weights": (RANDOM.normal(size=(64, 64)).astype(np.float32), node("MatMul", "x", "c")),
    "zeros": (np.zeros((64, 64), np.uint8), node("Cast", "c")),
    "positions": (np.arange(512)[None], node("Add", "c", "x")),
    "distances": (np.arange(40)[:, None] - np.arange(40), node("Add", "c", "x")),
    "an index": (RANDOM.integers(0, 200, (49, 49)), node("Gather", "x", "c")),
    "a shape": (RANDOM.integers(0, 200, 64), node("Reshape", "x", "c")),
    "few values": (RANDOM.integers(0, 8, (64, 64)), node("Add", "c", "x")),
    "a short list": (RANDOM.integers(0, 30000, 16), node("Add", "c", "x")),
    "quantised weights": (RANDOM.integers(0, 256, (64, 64), np.uint8), node("DequantizeLinear", "c", "x")),
    "quantised integers": (RANDOM.integers(-128, 127, (64, 64), np.int8), node("MatMulInteger", "x", "c")),
    "a mask": (np.tri(64).astype(np.bool_), node("Where", "c", "x", "x")),
}


@pytest.mark.parametrize("constant", [False, True], ids=["initializer", "node"])
@pytest.mark.parametrize("name", DATA)
def test_what_looks_like_data(name: str, constant: bool) -> None:
    array, user = DATA[name]
    (finding,) = used(array, user, constant=constant)
    assert (finding.kind, finding.fixable) == ("data_constant", False)
    assert finding.advice
    if "text" in name or name == "strings":
        assert "Dear Dr. Miller" in finding.evidence


@pytest.mark.parametrize("constant", [False, True], ids=["initializer", "node"])
@pytest.mark.parametrize("name", NO_DATA)
def test_what_does_not(name: str, constant: bool) -> None:
    array, user = NO_DATA[name]
    assert not used(array, user, constant=constant)


def test_an_index_that_is_cast_and_laid_out_first() -> None:
    steps = [helper.make_node("Cast", ["c"], ["d"], to=7), helper.make_node("Reshape", ["d", "s"], ["e"])]
    assert not used(ROWS, *steps, node("Gather", "x", "e"))
    assert used(ROWS, *steps, node("Gather", "e", "x"))


def test_a_tensor_without_a_name_is_not_the_inputs_that_are_left_out() -> None:
    unnamed = helper.make_node("Own", [], ["z"], domain="own", table=numpy_helper.from_array(ROWS))
    left_out = helper.make_node("Resize", ["x", "", "s"], ["y"])  # its second input would be a size
    (finding,) = audit_constants("m.onnx", model(numpy_helper.from_array(np.zeros(1)), unnamed, left_out), Path("/"))
    assert finding.where.endswith("attribute[table].t")


def test_a_constant_inside_a_branch() -> None:
    inner = model(numpy_helper.from_array(ROWS), node("Add", "c", "x")).graph
    choice = helper.make_node("If", ["x"], ["z"], then_branch=inner, else_branch=inner)
    outer = helper.make_graph([choice], "outer", [], [helper.make_tensor_value_info("z", 7, None)])
    assert len(list(audit_constants("m.onnx", helper.make_model(outer), Path("/")))) == 2


def test_data_beside_the_file_is_read_and_nothing_outside_the_folder(tmp_path: Path) -> None:
    inside, outside = tmp_path / "in", tmp_path / "secret"
    inside.mkdir()
    for path in (inside / "w.bin", outside):
        path.write_bytes(b"\0" * 8 + SECRET)
    tensor = TensorProto(data_type=TensorProto.UINT8, dims=[len(SECRET)], data_location=TensorProto.EXTERNAL)
    for location, times in (("w.bin", 1), ("../secret", 0), (str(outside), 0), ("gone.bin", 0)):
        del tensor.external_data[:]
        for key, value in (("location", location), ("offset", "8"), ("length", str(len(SECRET)))):
            tensor.external_data.add(key=key, value=value)
        assert len(list(audit_constants("m", model(tensor, node("Cast", "c")), inside))) == times


def test_tensors_in_the_older_spelling() -> None:
    tensor = TensorProto(data_type=TensorProto.INT64, dims=[512], int64_data=[int(one) for one in ROWS.flat])
    assert list(audit_constants("m", model(tensor, node("Add", "c", "x")), Path("/")))
    tensor.dims[0] = 7  # says another size than it has
    assert not list(audit_constants("m", model(tensor, node("Add", "c", "x")), Path("/")))
