"""What counts as an attention, in torch graphs and in ONNX graphs, before anything is recognised."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import torch
from spellings.case import E, contract
from torch import nn
from torch.nn.functional import scaled_dot_product_attention as sdpa
from written_graphs import written

from attnport.dims import TensorSpec
from attnport.exporter.capture import capture
from attnport.exporter.counting import count_attentions, count_in_graph
from attnport.exporter.imported import prepare
from attnport.exporter.naming import SCOPES

X = (2, 3, E)


class Of(nn.Module):
    """A module of one function of x `[B,S,E]` and of weights `w` `[E,E]`."""

    def __init__(self, function: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self.function = function
        self.w = nn.Parameter(torch.ones(E, E))
        self.mix = nn.Linear(3, 3)

    def forward(self, x: Any) -> Any:
        return self.function(self, x)


def count(function: Callable[[Any, Any], Any]) -> list[str]:
    program = torch.export.export(Of(function).eval(), (torch.ones(X),), strict=False)
    return [each.call for each in count_attentions(program.graph_module)]


def scores(x: Any) -> Any:
    return x @ x.transpose(1, 2)


def in_place(m: Any, x: Any) -> Any:
    p = scores(x).softmax(-1)
    p.mul_(0.5)
    p.masked_fill_(p > 0.9, 0)
    return p @ x


def chunked(m: Any, x: Any) -> Any:
    p = torch.nn.functional.pad(scores(x).softmax(-1), (0, 1)).unfold(-1, 2, 1).flatten(-2)
    return p[..., :3] @ x


def exponentials(x: Any) -> Any:
    return (scores(x) - scores(x).amax(-1, keepdim=True)).exp()


def features(x: Any) -> Any:
    """A linear attention whose features are exponentials; they are summed over the positions, and for each query."""
    phi = x.exp()
    return (phi @ (phi.transpose(1, 2) @ x)) / (phi * phi.sum(1, keepdim=True)).sum(-1, keepdim=True)


ATTENTIONS: dict[str, tuple[Callable[[Any, Any], Any], int]] = {
    "log_softmax and exp": (lambda m, x: torch.log_softmax(scores(x), -1).exp() @ x, 1),
    "special softmax": (lambda m, x: torch.special.softmax(scores(x), -1) @ x, 1),
    "differential": (lambda m, x: (scores(x).softmax(-1) - 0.2 * scores(2 * x).softmax(-1)) @ x, 2),
    "multiplied by a mask": (lambda m, x: (scores(x).softmax(-1) * (x[..., :3] > 0)) @ x, 1),
    "guarded": (lambda m, x: scores(x).softmax(-1).nan_to_num(0.0) @ x, 1),
    "in place": (in_place, 1),
    "chunked": (chunked, 1),
    "a sink cut off": (lambda m, x: torch.cat([scores(x), x[..., :1]], -1).softmax(-1)[..., :-1] @ x, 1),
    "tensordot": (lambda m, x: torch.tensordot(scores(x).softmax(-1)[0], x[0], 1), 1),
    "heads mixed by a layer": (lambda m, x: m.mix(scores(x).softmax(-1)) @ x, 1),
    "learned values": (lambda m, x: nn.functional.linear((x @ m.w).softmax(-1), m.w), 1),
    "weights returned too": (lambda m, x: ((p := scores(x).softmax(-1)) @ x, p.mean(1)), 1),
    "half and back": (lambda m, x: scores(x).softmax(-1).half().float() @ x, 1),
    "sdpa and softmax": (lambda m, x: sdpa(x, x, x) + scores(x).softmax(-1) @ x, 2),
    "divided by the sum": (lambda m, x: ((e := exponentials(x)) / e.sum(-1, keepdim=True)) @ x, 1),
    "divided after the product": (lambda m, x: ((e := exponentials(x)) @ x) / e.sum(-1, keepdim=True), 1),
    "less its logsumexp": (lambda m, x: (scores(x) - scores(x).logsumexp(-1, keepdim=True)).exp() @ x, 1),
    "logsumexp, unsqueezed": (lambda m, x: (scores(x) - scores(x).logsumexp(-1)[..., None]).exp() @ x, 1),
    "some exponentials set to zero": (
        lambda m, x: ((e := exponentials(x).masked_fill(x[..., :3] > 0, 0)) / e.sum(-1, keepdim=True)) @ x,
        1,
    ),
    "some multiplied by zero": (
        lambda m, x: ((e := exponentials(x) * (x[..., :3] > 0).float()) / e.sum(-1, keepdim=True)) @ x,
        1,
    ),
    "linear attention": (lambda m, x: x.softmax(-1) @ (x.softmax(1).transpose(1, 2) @ x), 2),
}
OTHERS: dict[str, Callable[[Any, Any], Any]] = {
    "a gate on features": lambda m, x: nn.functional.linear(x * x.softmax(-1), m.w),
    "a gate of one expert": lambda m, x: (x * (x[..., :2].softmax(-1)[..., :1])) @ x.transpose(1, 2),
    "a log-softmax": lambda m, x: torch.log_softmax(scores(x), -1) @ x,
    "classes": lambda m, x: (x @ m.w).softmax(-1),
    "a sum of parts": lambda m, x: (x[..., :1].softmax(1) * x).sum(1),
    "only compared": lambda m, x: (scores(x).softmax(-1) > 0.5).float() @ x,
    "features of a linear attention": lambda m, x: features(x),
    "exponentials alone": lambda m, x: scores(x).exp() @ x,
    "sigmoid": lambda m, x: scores(x).sigmoid() @ x,
}


@pytest.mark.parametrize("name", ATTENTIONS)
def test_every_softmax_that_reaches_a_product_is_counted(name: str) -> None:
    function, number = ATTENTIONS[name]
    assert len(count(function)) == number


@pytest.mark.parametrize("name", OTHERS)
def test_a_softmax_that_weighs_nothing_in_a_product_is_not(name: str) -> None:
    assert count(OTHERS[name]) == []


def graph(body: str, outputs: str = "float[B,2,S,4] y", **consts: Any) -> ir.Model:
    inputs = "float[B,2,S,4] q, float[B,2,4,T] k, float[B,2,T,4] v, bool c, float[4,4] w"
    return ir.from_proto(written(body, inputs, outputs, infer=False, **consts))


IN_GRAPHS = {
    "a softmax": ("s = MatMul(q, k) p = Softmax(s) y = MatMul(p, v)", 1),
    "a log-softmax and Exp": ("s = MatMul(q, k) l = LogSoftmax(s) p = Exp(l) y = MatMul(p, v)", 1),
    "a log-softmax alone": ("s = MatMul(q, k) p = LogSoftmax(s) y = MatMul(p, v)", 0),
    "behind a guard and a cast": (
        "s = MatMul(q, k) p0 = Softmax(s) n = IsNaN(p0) z = Sub(p0, p0) p1 = Where(n, z, p0) p = Cast<to=1>(p1) "
        "y = MatMul(p, v)", 1),
    "einsum": ('s = MatMul(q, k) p = Softmax(s) y = Einsum<equation="bhst,bhtd->bhsd">(p, v)', 1),
    "the operator": ("y = Attention(q, q, q)", 1),
    "a contrib operator": ("y = com.microsoft.MultiHeadAttention <num_heads=2> (q, q, q)", 1),
    "an operator of a stranger": ("y = Identity(q)", 0),
    "a gate": ("p = Softmax(q) y = Mul(p, q)", 0),
    "in a branch": (
        "y = If (c) <then_branch = a () => (float[B,2,S,4] t) { s = MatMul(q, k) p = Softmax(s) t = MatMul(p, v) },"
        " else_branch = b () => (float[B,2,S,4] e) { e = Attention(q, q, q) }>", 2),
}  # fmt: skip


@pytest.mark.parametrize("name", IN_GRAPHS)
def test_an_onnx_graph_is_counted_alike(name: str) -> None:
    body, number = IN_GRAPHS[name]
    assert len(count_in_graph(graph(body))) == number


def test_a_product_with_a_weight_counts_for_probabilities_as_they_are_alone() -> None:
    weight = np.eye(4, dtype=np.float32)
    for body, number in (
        ("p = Softmax(q) y = MatMul(p, w0)", 1),
        ("p = Softmax(q) g = Mul(p, q) y = MatMul(g, w0)", 0),
    ):
        assert len(count_in_graph(graph(body, w0=weight))) == number


def test_the_names_are_module_paths_from_metadata_or_from_node_names() -> None:
    model = graph("s = MatMul(q, k) p = Softmax(s) y0 = MatMul(p, v) y1 = Attention(y0, v, v) y = Attention(y1, v, v)")
    for node in model.graph:
        node.name = {"Softmax": "/layer.0/attention/self/Softmax", "Attention": "/Attention"}.get(node.op_type, "")
    model.graph.node(3).metadata_props[SCOPES] = "['', 'layer.1.attn', 'sdpa']"
    found = count_in_graph(prepare(model))
    assert [(each.name, each.module, each.call) for each in found] == [
        ("layer.0.attention.self", "layer.0.attention.self", "softmax"),
        ("layer.1.attn", "layer.1.attn", "scaled_dot_product_attention"),
        ("module", "", "scaled_dot_product_attention"),
    ]


def test_a_torch_graph_and_its_export_count_the_same() -> None:
    module = Of(ATTENTIONS["sdpa and softmax"][0]).eval()
    found = capture(module, contract(TensorSpec("x", "float32", ("batch", "seq", E))))
    in_onnx = count_in_graph(found.model)
    assert sorted(each.call for each in in_onnx) == sorted(each.call for each in found.attentions)
    assert len(in_onnx) == 2
