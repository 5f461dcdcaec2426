"""Sizes as formulas: what shape arithmetic gives, and what it must not claim."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from running import on_reference
from written_graphs import written

from attnport.errors import ExportError
from attnport.exporter.graph.sizes import settle_sizes
from attnport.exporter.imported import index_by_grid, prepare
from attnport.exporter.naming import MAY_BE_EMPTY, SCOPES, module_of

CONSTS = {
    "zero": np.int64(0), "one": np.int64(1), "two": np.int64(2), "last": np.int64([-1]), "first": np.int64([0]),
    "at1": np.int64([1]), "four": np.int64([4]), "head": np.int64([2, 8]), "end": np.int64([2**63 - 1]),
    "low": np.int64([-(2**63)]), "minus2": np.int64([-2]), "ones2": np.int64([1, 1]), "forty": np.int64([40]),
    "table": np.zeros((1, 40, 16), np.float32), "half": np.int64([0, 0, 2, 8]), "negatives": np.int64([-1, -1]),
    "flat": np.int64([-1, 1]), "open": np.int64([-1]), "two1": np.int64([2]),
}  # fmt: skip
INPUTS = "float[batch,seq,16] x, bool[batch,seq] m, int64[3] target, int64[k] n, float[batch,mem,16] z"


def model(body: str, output: str = "y") -> ir.Model:
    proto = written(body, INPUTS, f"float {output}", infer=False, **CONSTS)
    del proto.graph.output[:]
    proto.graph.output.extend(onnx.ValueInfoProto(name=name) for name in output.split(","))
    return ir.from_proto(proto)


def shape(body: str) -> list[str]:
    """The shape of y after inference."""
    found = model(f"{body} yy = Identity(y)", "yy")
    settle_sizes(found)
    value = next(value for node in found.graph for value in node.outputs if value.name == "yy")
    return [str(dim) for dim in value.shape or ()]


BATCH = "s = Shape(x) b = Gather(s, first) "
SEQ = "s = Shape(x) b = Gather(s, first) t = Gather(s, at1) "
KNOWN = {
    "heads split": (SEQ + "to = Concat<axis=0>(b, t, head) y = Reshape(x, to)", ["batch", "seq", "2", "8"]),
    "zeros copy": ("y = Reshape(x, half)", ["batch", "seq", "2", "8"]),
    "the rest is computed": (SEQ + "to = Concat<axis=0>(b, last, head) y = Reshape(x, to)", ["batch", "seq", "2", "8"]),
    "heads merged with the batch and split again": (
        SEQ + "f = CastLike(four, four) n4 = Mul(b, four) to = Concat<axis=0>(n4, t, four) w = Reshape(x, to) "
        "back = Concat<axis=0>(b, four, last, four) y = Reshape(w, back)", ["batch", "4", "seq", "4"]),
    "a size that -1 stands for in Expand": (
        SEQ + "to = Concat<axis=0>(b, t) w = Shape(to) c = ConstantOfShape<value: tensor = int64[1] {1}>(w) "
        "e = Equal(to, negatives) q = Where(e, c, to) y = Expand(one, q)", ["batch", "seq"]),
    "a table cut at the length, added": (
        SEQ + "p = Slice(table, first, t, at1) y = Add(x, p)", ["batch", "seq", "16"]),
    "a range": ("s = Shape(x) t = Gather(s, one) y = Range(zero, t, one)", ["seq"]),
    "twice a half": (SEQ + "n4 = Mul(t, four) h = Div(n4, four) y = ConstantOfShape(h)", ["seq"]),
    "the rows of whole windows": (
        SEQ + "r = Mod(t, four) l = Sub(four, r) p = Mod(l, four) w = Add(t, p) c = Div(w, four) h = Div(w, c) "
        "y = ConstantOfShape(h)", ["4"]),
    "a shape without its end": (
        "s = Shape(x) p = Slice(s, low, last) to = Concat<axis=0>(p, head) y = Reshape(x, to)",
        ["batch", "seq", "2", "8"]),
    "a whole slice": ("y = Slice(x, first, end, at1)", ["batch", "seq", "16"]),
    "a slice that ends before it begins": ("y = Slice(x, four, two1, last)", ["batch", "seq", "0"]),
    "by the standard's inference": ("w = Transpose<perm=[0,2,1]>(x) y = MatMul(x, w)", ["batch", "seq", "seq"]),
    "several outputs": ("y, w = Split<axis=2,num_outputs=2>(x)", ["batch", "seq", "8"]),
}  # fmt: skip
NOT_CLAIMED = {
    "the rows of windows that are not whole": SEQ
    + "c = Div(t, four) d = Add(c, at1) h = Div(t, d) y = ConstantOfShape(h)",
    "a length that may be cut": "y = Slice(x, minus2, end, at1)",
    "a length that may be shorter than a bound": "y = Slice(x, two1, end, at1)",
    "two lengths that broadcast": "w = ReduceSum<keepdims=1>(x, last) v = ReduceSum<keepdims=1>(z, last) y = Add(w, v)",
    "a rest that may not be whole": "to = Concat<axis=0>(open, forty) y = Reshape(x, to)",
    "a target that is an input": "y = Reshape(x, target)",
    "a table cut at a length that may be longer": SEQ + "y = Slice(table, first, t, at1)",
    "a choice that a length decides": SEQ + "e = Equal(t, four) q = Where(e, two1, t) to = Concat<axis=0>(b, q) "
    "y = Expand(one, to)",
}
"""The axis that a wrong inference would name is a size of its own."""


@pytest.mark.parametrize("name", KNOWN)
def test_a_size_is_followed_through_shape_arithmetic(name: str) -> None:
    body, expected = KNOWN[name]
    assert shape(body) == expected


@pytest.mark.parametrize("name", NOT_CLAIMED)
def test_a_size_that_nothing_proves_has_a_name_of_its_own(name: str) -> None:
    found = shape(NOT_CLAIMED[name])
    assert any(dim.startswith(("size", "unk__")) for dim in found)
    assert not {"seq", "mem"} & set(found)


def test_a_dim_that_may_be_empty_is_not_taken_for_positive() -> None:
    body = (
        SEQ
        + "top = Max(t, at1) y = ConstantOfShape(top) e = Equal(t, first) q = Where(e, four, t) u = ConstantOfShape(q)"
    )
    for empty, claimed in (("", True), ("past seq", False)):
        found = model(body, "y,u")
        found.metadata_props[MAY_BE_EMPTY] = empty
        settle_sizes(found)
        assert ["seq" in map(str, value.shape or ()) for value in found.graph.outputs] == [claimed, claimed]


def test_a_product_over_no_axes_is_no_product() -> None:
    taken = "s = Shape(z) w = ReduceProd<noop_with_empty_axes=1>(s) y = ConstantOfShape(w) yy = Identity(y)"
    found = model(taken, "yy")
    settle_sizes(found)
    assert list(map(str, found.graph.outputs[0].shape or ())) == ["batch", "mem", "16"]


def test_equal_sizes_have_one_name_and_others_have_not() -> None:
    found = model(
        SEQ + "f = Mul(b, four) g = Mul(four, b) h = Mul(t, four) u = ConstantOfShape(f) v = ConstantOfShape(g) "
        "w = ConstantOfShape(h) y = Concat<axis=0>(u, v, w)"
    )
    settle_sizes(found)
    names = [str((node.outputs[0].shape or [""])[0]) for node in found.graph if node.op_type == "ConstantOfShape"]
    assert names[0] == names[1] != names[2]


def test_a_name_that_the_exporter_gave_is_read_as_what_it_stands_for() -> None:
    found = model(SEQ + "to = Concat<axis=0>(b, t, head) w = Reshape(x, to) v = stranger.Relu(w) y = Identity(v)")
    for node in found.graph:
        if node.op_type in ("Reshape", "Relu"):
            node.outputs[0].shape = ir.Shape(["batch", "expr", 2, 8])
    settle_sizes(found)
    shapes = [[str(dim) for dim in node.outputs[0].shape or ()] for node in found.graph]
    assert shapes[-3:-1] == [["batch", "seq", "2", "8"]] * 2


def test_integers_that_are_known_become_constants() -> None:
    found = model("s = Shape(x) d = Gather(s, two) f = Cast<to=1>(d) r = Sqrt(f) y = Div(x, r)")
    ready = prepare(found)
    assert [node.op_type for node in ready.graph] in (["Div"], ["Mul"])
    feeds = {"x": np.ones((2, 3, 16), np.float32)}
    np.testing.assert_allclose(on_reference(ready)({**feeds, **_others()})[0], np.full((2, 3, 16), 0.25), rtol=1e-6)


def _others() -> dict[str, np.ndarray[Any, Any]]:
    return {
        "m": np.ones((2, 3), bool), "target": np.int64([2, 3, 16]), "n": np.int64([1]),
        "z": np.ones((2, 4, 16), np.float32),
    }  # fmt: skip


GRID = (
    "s = Shape(m) b = Gather(s, zero) t = Gather(s, one) i0 = Range(zero, b, one) i = Unsqueeze(i0, at1) "
    "j = Range(zero, t, one) f = Reshape(m, flat) "
)
LOOKED_UP = {
    "rows and columns": "r = Mul(i, t) at = Add(j, r) ",
    "the other way round": "r = Mul(t, i) at = Add(r, j) ",
}
LEFT = {
    "rows of another width": "w = Add(t, one) r = Mul(i, w) at = Add(j, r) ",
    "columns that begin later": "j1 = Range(one, t, one) r = Mul(i, t) at = Add(j1, r) ",
    "indices from outside": "r = Mul(i, t) at = Add(n, r) ",
}


@pytest.mark.parametrize("name", [*LOOKED_UP, *LEFT])
def test_a_flat_lookup_over_whole_axes_becomes_one_by_axes(name: str) -> None:
    found = model(GRID + {**LOOKED_UP, **LEFT}[name] + "y = Gather(f, at)")
    raw = ir.from_proto(ir.to_proto(found))
    settle_sizes(found)
    assert index_by_grid(found) == (name in LOOKED_UP)
    assert ("GatherND" in [node.op_type for node in found.graph]) is (name in LOOKED_UP)
    feeds = {"x": np.ones((2, 3, 16), np.float32), **_others(), "m": np.array([[1, 0, 1], [0, 0, 1]], bool)}
    if name != "rows of another width":  # which leaves the tensor
        np.testing.assert_array_equal(on_reference(found)(feeds)[0], on_reference(raw)(feeds)[0])


def test_a_graph_is_raised_and_its_scopes_stay() -> None:
    proto = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 14]> g (float[B,4] x) => (float[B,1] y) '
        "{ a = Relu(x) y = ReduceMean<axes=[1],keepdims=1>(a) }"
    )
    proto.graph.node[0].name, proto.graph.node[1].name = "relu", "/norm/ReduceMean"
    entry = proto.graph.node[0].metadata_props.add()
    entry.key, entry.value = SCOPES, "['', 'act', 'relu']"
    ready = prepare(ir.from_proto(proto))
    onnx.checker.check_model(ir.to_proto(ready), full_check=True)
    assert ready.graph.opset_imports[""] == 23
    assert [module_of(node) for node in ready.graph] == ["act", "norm"]


def test_an_operator_that_no_newer_opset_has_is_an_export_error() -> None:
    proto = onnx.parser.parse_model(
        '<ir_version: 4, opset_import: ["": 9]> g (float[4] x) => (float[4] y) { y = Affine(x) }'
    )
    with pytest.raises(ExportError, match="of opset 9, has no form at opset 23"):
        prepare(ir.from_proto(proto))
