"""torch.onnx's decompositions, node by node: the graph computes the module, as that of a trace of the whole does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from representatives import representatives
from running import on_ort
from torch import nn

from attnport.artifacts import IOContract
from attnport.dims import Dim, TensorSpec
from attnport.exporter import capture as capturing
from attnport.exporter import decomposing
from attnport.exporter.capture import Capture, capture

DIMS = (Dim("batch", 1, 2, 4), Dim("seq", 1, 5, 16))
X = TensorSpec("x", "float32", ("batch", "seq", 8))


def hidden(x: torch.Tensor) -> torch.Tensor:
    return x.cumsum(1).masked_fill_(x > 0, 0.5)


def turned(x: torch.Tensor) -> torch.Tensor:
    heads = (x * 2).unflatten(-1, (2, 4)).transpose(1, 2)[:, :2]
    heads.masked_fill_(x[:, None, :, :1] > 0, 0.5).add_(1)
    return heads.transpose(1, 2).flatten(2)


def seen(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    y = x * 2
    part = y[:, :, 2:]
    y.mul_(0.5)
    return part, y.tanh_()


def written(x: torch.Tensor) -> torch.Tensor:
    y = torch.zeros_like(x)
    y[:, :, 2:4] = x[:, :, :2]
    return y


def chosen(x: torch.Tensor) -> torch.Tensor:
    return torch.cond(x.sum() > 0, lambda x: x.cos(), lambda x: x.sin(), (x,))


BY_NODES: dict[str, Callable[[torch.Tensor], Any]] = {
    "views": lambda x: x.unflatten(-1, (2, 4)).transpose(1, 2).flatten(2),
    "parts": lambda x: torch.stack([part.square() for part in x.chunk(2, -1)]),
    "parts of a size": lambda x: x.narrow(1, 0, 1) + x.mT.mT,
    "a cast that changes nothing": lambda x: (x + 1).to(torch.float32),
    "an input": lambda x: (x.to(torch.float32), x * 2),
    "an output twice": lambda x: (x.square(), x.square().mT.mT),
    "types": lambda x: (x.to(torch.float64).square() > 1) & (x < 2),
    "from nothing": lambda x: x + torch.ones(8),
    "a constant": lambda x: x * torch.tensor([0.5]).detach(),
    "sums of products": lambda x: torch.einsum("bse,bte->bst", x, x),
    "constants inside": lambda x: x.log().nan_to_num(0.0),
    "in place": hidden,
    "in place in a view": turned,
    "sizes": lambda x: x.mean(1) * (x.shape[0] * x.shape[1] + 1),
}
AS_A_WHOLE: dict[str, Callable[[torch.Tensor], Any]] = {
    "in a part": written,
    "in place, and read by a view": seen,
    "a graph inside": chosen,
    "in place inside": lambda x: nn.functional.cosine_similarity(x, x.flip(-1), -1),
    "rows in one": lambda x: x.mT.reshape(-1, 4).sum(1),
    "sizes that C++ reads as numbers": lambda x: nn.functional.conv1d(x.mT, torch.ones(8, 1, 4), None, 1, "same", 1, 8),
}


QUICK = ("views", "types", "an output twice", "in place in a view", "in a part", "in place, and read by a view")


class Module(nn.Module):
    def __init__(self, compute: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.compute = compute

    def forward(self, x: torch.Tensor) -> Any:
        return self.compute(x)


def both(
    compute: Callable[[torch.Tensor], Any], monkeypatch: pytest.MonkeyPatch
) -> tuple[Capture, Capture, list[bool]]:
    """The graphs with nodes decomposed one by one and by a trace of the whole, and whether the first were."""
    module, done = Module(compute).eval(), []
    given = module(torch.randn(2, 5, 8))
    outputs = given if isinstance(given, tuple) else (given,)
    axes = {2: "batch", 5: "seq", 10: "batch*seq", 20: "batch*seq*2"}
    io = IOContract((X,), tuple(TensorSpec(f"y{at}", str(each.dtype).removeprefix("torch."),
                                           tuple(axes.get(size, size) for size in each.shape))
                                for at, each in enumerate(outputs)), DIMS)  # fmt: skip
    decomposed = decomposing._decompose
    monkeypatch.setattr(decomposing, "_decompose", lambda *given: (done.append(decomposed(*given)), done[-1])[1])
    found = capture(module, io, observed=True)
    monkeypatch.setattr(capturing, "node_by_node", tuple)
    return found, capture(module, io, observed=True), done


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
@pytest.mark.parametrize("name", representatives([*BY_NODES, *AS_A_WHOLE], QUICK))
def test_the_graph_computes_the_module_and_has_the_operators_of_a_trace_of_the_whole(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    compute = {**BY_NODES, **AS_A_WHOLE}[name]
    found, whole, done = both(compute, monkeypatch)
    assert done == [name in BY_NODES]
    assert found.outputs == whole.outputs
    assert _operators(found) == _operators(whole)
    run = on_ort(found.model)
    for batch, seq in ((1, 1), (3, 4), (4, 16)):
        x = torch.randn(batch, seq, 8)
        expected = compute(x.clone())
        for got, right in zip(
            run({"x": x.numpy()}), expected if isinstance(expected, tuple) else (expected,), strict=True
        ):
            np.testing.assert_allclose(got, right.numpy(), atol=1e-5)


def _operators(found: Capture) -> Counter[str]:
    return Counter(node.op_type for node in found.model.graph.all_nodes())


def test_what_comes_out_of_another_size_or_type_is_left_to_a_trace_of_the_whole() -> None:
    x = torch.zeros(2, 3)
    described = decomposing._described
    assert described(x) == described((x + 1,)) == [(torch.float32, [2, 3])]
    assert described(x) != described(x.T)
    assert described(x) != described(x.double())
    assert described(x) != described((x, x))


def test_dead_code_is_removed_although_torch_forgot_who_uses_a_value() -> None:
    """As in the trace of a Jina v3, whose pooler nothing reads."""
    graph = torch.fx.Graph()
    kept = graph.call_function(torch.relu, (graph.placeholder("x"),))
    dead = graph.call_function(torch.neg, (kept,))
    graph.output(kept)
    del kept.users[dead]
    capturing._without_dead_code(graph)
    assert [node.op for node in graph.nodes] == ["placeholder", "call_function", "output"]
