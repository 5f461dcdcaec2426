"""Formulas mean what the graph computes: on random graphs, at every index, against ONNX's own evaluator."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from formula_values import value_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx.reference import ReferenceEvaluator

from attnport.exporter.fusion import indices
from attnport.exporter.fusion.elements import element
from attnport.exporter.fusion.formula import TRUE, ZERO, Axis, Const, Expr, Op, Read, Size, conjuncts, is_bool, op

I, J = Axis("i"), Axis("j")  # noqa: E741 - the names that formulas use
SIZES = {"S": 3, "T": 5}


class Graph:
    """A graph under construction; every value's shape is known, with S and T as named dims."""

    def __init__(self) -> None:
        self.text: list[str] = []
        self.values: list[tuple[str, str, tuple[int | str, ...]]] = []
        self.consts: dict[str, np.ndarray[Any, Any]] = {}

    def const(self, array: Any) -> str:
        name = f"c{len(self.consts)}"
        self.consts[name] = np.asarray(array)
        return name

    def add(self, line: str, kind: str, shape: tuple[int | str, ...]) -> str:
        name = f"v{len(self.values)}"
        self.text.append(f"{name} = {line}")
        self.values.append((name, kind, shape))
        return name

    def build(self, out: str | None = None) -> onnx.ModelProto:
        kinds = {"int64": "int64", "bool": "bool", "float": "float"}
        name, kind, shape = next(each for each in reversed(self.values) if out in (None, each[0]))
        dims = ",".join(map(str, shape))
        model = onnx.parser.parse_model(
            f'<ir_version: 10, opset_import: ["": 23]> g (int64[S,T] m, float[S,T] x, bool[T] k, int64[S] p)'
            f" => ({kinds[kind]}[{dims}] {name}) {{ {chr(10).join(self.text)} }}"
        )
        model.graph.initializer.extend(onnx.numpy_helper.from_array(a, n) for n, a in self.consts.items())
        return onnx.shape_inference.infer_shapes(model, data_prop=True, strict_mode=True)


def feeds(seed: int) -> dict[str, np.ndarray[Any, Any]]:
    random = np.random.default_rng(seed)
    s, t = SIZES["S"], SIZES["T"]
    x = random.integers(-4, 5, (s, t)) / np.float32(2)
    return {
        "m": random.integers(-2, 3, (s, t)),
        "x": x.astype(np.float32),
        "k": random.random(t) < 0.5,
        "p": random.integers(0, s, s),
    }


def check(proto: onnx.ModelProto, seed: int = 0) -> Expr:
    """Compares the formula of the output with what the evaluator computes, at every index; returns the formula."""
    model = ir.from_proto(proto)
    out = model.graph.outputs[0]
    given_feeds = feeds(seed)
    names = {v.name for node in model.graph for v in node.outputs} | set(given_feeds)
    names |= set(model.graph.initializers)
    probe = onnx.ModelProto()
    probe.CopyFrom(proto)
    del probe.graph.output[:]
    probe.graph.output.extend(onnx.helper.make_empty_tensor_value_info(str(n)) for n in names)
    with np.errstate(all="ignore"):
        values = dict(zip(names, ReferenceEvaluator(probe).run(None, given_feeds), strict=True))
    expected = values[out.name]
    axes = tuple(Axis(name) for name in "bhij"[4 - expected.ndim :])
    expr = element(out, axes)
    for index in itertools.product(*map(range, expected.shape)):
        at = {axis.name: n for axis, n in zip(axes, index, strict=True)}
        got, want = value_of(expr, at, {str(k): v for k, v in values.items()}, SIZES), expected[index].item()
        assert got == want or (np.isnan(got) and np.isnan(want)), (expr, index, got, want)
    return expr


def one(lines: str, kind: str, shape: tuple[int | str, ...], **consts: Any) -> onnx.ModelProto:
    graph = Graph()
    graph.consts.update({name: np.asarray(value) for name, value in consts.items()})
    graph.text = lines.strip().split("\n")
    graph.values = [(graph.text[-1].split("=")[0].strip(), kind, shape)]
    return graph.build()


RULES: dict[str, tuple[str, str, tuple[int | str, ...], dict[str, Any]]] = {
    "cast_to_bool": ("y = Cast<to=9>(m)", "bool", ("S", "T"), {}),
    "cast_of_bool": ("a = Cast<to=7>(k)\ny = Add(a, m)", "int64", ("S", "T"), {}),
    "cast_truncates": ("y = Cast<to=7>(x)", "int64", ("S", "T"), {}),
    "cast_to_eight_bits": ("a = Mul(m, c)\nb = Cast<to=3>(a)\ny = Cast<to=7>(b)", "int64", ("S", "T"), {"c": 100}),
    "cast_to_bytes": ("a = Cast<to=2>(m)\nb = Cast<to=7>(a)\ny = Add(b, m)", "int64", ("S", "T"), {}),
    "cast_constant": ("a = Cast<to=7>(c)\ny = Add(m, a)", "int64", ("S", "T"), {"c": np.float32(1.7)}),
    "cast_overflows": (
        "a = Cast<to=10>(c)\nb = Cast<to=1>(a)\ny = Add(x, b)",
        "float",
        ("S", "T"),
        {"c": np.float32(-3e38)},
    ),
    "concat": ("s = Shape(m)\nt = Concat<axis=0>(s, c)\ny = Gather(t, d)", "int64", (2,), {"c": [7], "d": [0, 2]}),
    "constant_of_shape": ("s = Shape(m)\ny = ConstantOfShape(s)", "float", ("S", "T"), {}),
    "expand": ("s = Shape(m)\nu = Cast<to=7>(k)\ny = Expand(u, s)", "int64", ("S", "T"), {}),
    "gather": ("y = Gather(m, p)", "int64", ("S", "T"), {}),
    "gather_second_axis": ("y = Gather<axis=1>(m, c)", "int64", ("S", 2), {"c": [1, 0]}),
    "gather_from_end": ("y = Gather<axis=1>(m, c)", "int64", ("S", 2), {"c": [-1, -2]}),
    "gather_shifted_before_start": (
        "s = Shape<start=1>(m)\nn = Squeeze(s)\nr = Range(z, n, u)\nt = Sub(r, d)\ny = Gather(r, t)",
        "int64",
        ("T",),
        {"z": 0, "u": 1, "d": 2},
    ),
    "gather_nd": ("r = Unsqueeze(p, a)\ny = GatherND(m, r)", "int64", ("S", "T"), {"a": [1]}),
    "range_of_step": (
        "s = Shape<start=1>(m)\nn = Squeeze(s)\nt = Mul(n, w)\ny = Range(z, t, w)",
        "int64",
        (None,),
        {"z": 0, "w": 3},
    ),
    "reshape_adds_ones": (
        "s = Shape(m)\nt = Concat<axis=0>(o, s)\ny = Reshape(m, t)",
        "int64",
        (1, "S", "T"),
        {"o": [1]},
    ),
    "shape_from_end": ("s = Shape<start=-1>(m)\ny = Add(m, s)", "int64", ("S", "T"), {}),
    "slice": ("y = Slice(m, a, e, x2, w)", "int64", ("S", 2), {"a": [1], "e": [5], "x2": [-1], "w": [2]}),
    "slice_from_end": (
        "n = Slice(c, a, e)\ny = Gather(n, d)",
        "int64",
        (1,),
        {"c": [3, 5, 7], "a": [-2], "e": [9], "d": [1]},
    ),
    "slice_from_end_of_named": ("y = Slice(m, a, e, x2)", "int64", ("S", 2), {"a": [-2], "e": [9], "x2": [1]}),
    "split": (
        "s = Shape(m)\nt = Concat<axis=0>(s, c)\nu, v, w = Split<num_outputs=3>(t)\ny = Gather(v, d)",
        "int64",
        (1,),
        {"c": [7], "d": [0]},
    ),
    "cumulated": ("s = Shape(m)\no = Expand(c, s)\ny = CumSum(o, a)", "int64", ("S", "T"), {"c": 2, "a": -1}),
    "cumulated_before": (
        "s = Shape(m)\no = Expand(c, s)\ny = CumSum<exclusive=1>(o, a)",
        "int64",
        ("S", "T"),
        {"c": 1, "a": 0},
    ),
    "cumulated_from_end": (
        "s = Shape(m)\no = Expand(c, s)\ny = CumSum<reverse=1>(o, a)",
        "int64",
        ("S", "T"),
        {"c": 1, "a": 1},
    ),
    "cumulated_inputs": ("y = CumSum(m, a)", "int64", ("S", "T"), {"a": 1}),
    "remainder": ("y = Mod(m, c)", "int64", ("S", "T"), {"c": 2}),
    "squeeze": ("u = Unsqueeze(m, a)\ny = Squeeze(u, a)", "int64", ("S", "T"), {"a": [0]}),
    "squeeze_all": ("u = Unsqueeze(k, a)\nv = Cast<to=7>(u)\ny = Squeeze(v)", "int64", ("T",), {"a": [0]}),
    "transpose": ("y = Transpose<perm=[1,0]>(m)", "int64", ("T", "S"), {}),
    "transpose_reverses": ("y = Transpose(m)", "int64", ("T", "S"), {}),
    "trilu_lower": ("y = Trilu<upper=0>(m, c)", "int64", ("S", "T"), {"c": 1}),
    "trilu_upper": ("y = Trilu(m, c)", "int64", ("S", "T"), {"c": -1}),
    "trilu_of_bool": ("s = Shape(m)\ne = Expand(k, s)\ny = Trilu<upper=0>(e)", "bool", ("S", "T"), {}),
    "unsqueeze": ("u = Unsqueeze(k, a)\nv = Cast<to=7>(u)\ny = Add(v, m)", "int64", ("S", "T"), {"a": [-2]}),
    "max_of_one": ("a = Max(c)\ny = Add(m, a)", "int64", ("S", "T"), {"c": 4}),
    "whole_division": ("y = Div(m, c)", "int64", ("S", "T"), {"c": 2}),
    "not_of_nan": ("n = Div(x, x)\nl = Less(n, x)\ny = Not(l)", "bool", ("S", "T"), {}),
}


@pytest.mark.parametrize("name", RULES)
def test_a_rule_gives_the_elements_that_the_evaluator_computes(name: str) -> None:
    lines, kind, shape, consts = RULES[name]
    shape = tuple(("N" if dim is None else dim) for dim in shape)
    check(one(lines, kind, shape, **consts))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("expand", Read), ("transpose", Read), ("trilu_lower", Op), ("cast_to_bool", Op), ("range_of_step", Op),
        ("constant_of_shape", Const), ("unsqueeze", Op), ("reshape_adds_ones", Read), ("squeeze_all", Read),
        ("slice_from_end", Const), ("cumulated", Op), ("cumulated_before", Axis), ("split", Size),
    ],
)  # fmt: skip
def test_a_rule_sees_through_its_operator(name: str, expected: type) -> None:
    lines, kind, shape, consts = RULES[name]
    expr = check(one(lines, kind, tuple(("N" if dim is None else dim) for dim in shape), **consts))
    assert isinstance(expr, expected)
    if isinstance(expr, Read):
        assert expr.value.is_graph_input()


def test_the_check_itself_notices_a_wrong_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(indices, "_MOVES", {**indices._MOVES, "Transpose": lambda node, index: index})
    with pytest.raises((AssertionError, IndexError)):
        check(one("t = Transpose<perm=[1,0]>(m)\ny = Identity(t)", "int64", ("T", "S")))


@st.composite
def graphs(draw: st.DrawFn) -> onnx.ModelProto:
    """Graphs of up to eight operators over [S,T], as masks are made of."""
    graph = Graph()
    graph.text = ["one = Shape<start=1>(m)", "n = Squeeze(one)", "s = Shape(m)", "r = Range(zero, n, step)"]
    graph.text += [
        "v0 = Identity(m)",
        "v1 = Identity(x)",
        "v2 = Expand(k, s)",
        "rm = Add(r, zero)",
        "v3 = Expand(rm, s)",
    ]
    graph.consts.update(zero=np.int64(0), step=np.int64(1))
    grid = ("S", "T")
    graph.values = [("v0", "int64", grid), ("v1", "float", grid), ("v2", "bool", grid), ("v3", "int64", grid)]
    for _ in range(draw(st.integers(1, 8))):
        kind = draw(st.sampled_from(["int64", "float", "bool"]))
        same = [name for name, each, _ in graph.values if each == kind]
        a, b = draw(st.sampled_from(same)), draw(st.sampled_from(same))
        truth = draw(st.sampled_from([name for name, each, _ in graph.values if each == "bool"]))
        if kind == "bool":
            line = draw(
                st.sampled_from([f"And({a}, {b})", f"Or({a}, {b})", f"Not({a})", f"Xor({a}, {b})", f"Equal({a}, {b})"])
            )
            graph.add(line, "bool", grid)
            continue
        number = graph.const(np.array(draw(st.integers(-3, 3)), np.int64 if kind == "int64" else np.float32))
        c = draw(st.sampled_from([b, number]))
        lines = {
            **{
                f"{name}({a}, {c})": kind
                for name in ("Add", "Sub", "Mul", "Max", "Min", "Div" if kind == "float" else "Add")
            },
            **{f"{name}({a}, {c})": "bool" for name in ("Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Equal")},
            f"Where({truth}, {a}, {c})": kind,
            f"Trilu<upper=0>({a})": kind,
            f"Cast<to=9>({a})": "bool",
            f"Cast<to=7>({a})": "int64",
            f"Cast<to=1>({truth})": "float",
            f"Neg({a})": kind,
            f"Abs({a})": kind,
        }
        line = draw(st.sampled_from(sorted(lines)))
        if "Cast<to=7>" in line and kind == "float":
            line = f"Cast<to=7>({draw(st.sampled_from(['v1']))})"  # NaN and inf have no integer
        graph.add(line, lines.get(line, "int64"), grid)
    return graph.build()


@settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(graphs(), st.integers(0, 3))
def test_formulas_of_random_graphs_give_what_the_evaluator_computes(proto: onnx.ModelProto, seed: int) -> None:
    check(proto, seed)


def test_a_shared_graph_of_exponential_formula_ends_soon() -> None:
    lines = ["v0 = Identity(m)", *(f"v{n + 1} = Add(v{n}, v{n})" for n in range(60))]
    model = ir.from_proto(one("\n".join(lines), "int64", ("S", "T")))
    assert isinstance(element(model.graph.outputs[0], (I, J)), Op)


def test_a_very_long_chain_is_read_without_running_out_of_stack() -> None:
    lines = ["v0 = Identity(m)", *(f"v{n + 1} = Add(v{n}, p1)" for n in range(500))]
    model = ir.from_proto(one("\n".join(lines), "int64", ("S", "T"), p1=[[1], [2], [3]]))
    assert isinstance(element(model.graph.outputs[0], (I, J)), Op)


def test_folding_keeps_truth_values_and_numbers_apart() -> None:
    assert Const(True) != Const(1)
    assert op("Ne", Const(1), ZERO) == TRUE
    assert op("And", TRUE, op("Less", I, J)) == op("Less", I, J)
    assert is_bool(op("Not", op("Less", I, J)))
    assert op("Not", op("Less", I, J)) == op("LessOrEqual", J, I)


def test_an_index_is_known_not_to_be_negative_and_a_difference_is_not() -> None:
    assert op("LessOrEqual", ZERO, I) == TRUE
    assert op("Less", I, ZERO) == Const(False)
    assert isinstance(op("LessOrEqual", ZERO, op("Sub", I, J)), Op)


def test_conjunctions_are_taken_apart_once_each() -> None:
    a, b = op("Less", I, J), op("Equal", I, J)
    assert conjuncts(op("And", op("And", a, b), a)) == (a, b)
    assert conjuncts(TRUE) == ()
