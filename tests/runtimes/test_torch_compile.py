"""torch.compile: whole or not at all, compiled or refused, with the module's own numbers."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from representatives import representatives
from torch import nn

from attnport.artifacts import IOContract, ModelSpec, Source
from attnport.dims import Dim, TensorSpec
from attnport.errors import FeedError, UnavailableError, UsageError
from attnport.runtimes import torch_compile
from attnport.runtimes.base import Opening

RUNTIME = torch_compile.RUNTIME
IO = IOContract(
    (TensorSpec("x", "float32", ("B", "S", 8)), TensorSpec("keep", "bool", ("B", "S"))),
    (TensorSpec("y", "float32", ("B", "S", 8)),),
    (Dim("B", 1, 2, 4), Dim("S", 1, 6, 16)),
)


class Attention(nn.Module):
    """One head, written by `how`; a hidden key by a bool mask, by finfo.min, or written out."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how

    def forward(self, x: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
        B, S, _ = x.shape
        keep_BST = keep[:, None, :].expand(B, S, S)
        low_BST = torch.zeros_like(keep_BST, dtype=x.dtype).masked_fill(~keep_BST, torch.finfo(x.dtype).min)
        if self.how == "bool":
            return nn.functional.scaled_dot_product_attention(x, x, x, attn_mask=keep_BST)
        if self.how == "finfo.min":
            return nn.functional.scaled_dot_product_attention(x, x, x, attn_mask=low_BST)
        scores_BST = x @ x.transpose(1, 2) + low_BST
        if self.how == "method":
            return scores_BST.softmax(-1) @ x
        if self.how == "breaks":
            if float(x.sum()) > 1e9:
                return x
            return torch.softmax(scores_BST, dim=-1) @ x
        return nn.functional.softmax(input=scores_BST, dim=-1) @ x


def spec(how: str) -> ModelSpec:
    return ModelSpec(how, Source(how), IO, lambda: Attention(how))


def feeds(batch: int = 3, seq: int = 5) -> dict[str, np.ndarray]:
    keep = np.ones((batch, seq), bool)
    keep[0, seq // 2 + 1 :] = False
    keep[-1] = batch < 2
    return {"x": np.random.default_rng(seq).standard_normal((batch, seq, 8), np.float32), "keep": keep}


@pytest.fixture(scope="module", autouse=True)
def compiles() -> None:
    if not RUNTIME.probe().available:
        pytest.skip(RUNTIME.probe().reason)


@pytest.mark.parametrize("how", representatives(["finfo.min", "method", "functional"], ["finfo.min"]))
def test_the_module_is_compiled_as_it_is_written(how: str) -> None:
    session = RUNTIME.open(Opening(IO, spec=spec(how), contract=True, threads=1))
    raw = Attention(how)(**{name: torch.from_numpy(array) for name, array in feeds().items()})
    np.testing.assert_allclose(session.run(feeds())["y"], raw.numpy(), atol=2e-6)
    assert "inductor" in session.ran.provider
    with pytest.raises(FeedError, match="'keep'"):
        session.run({"x": feeds()["x"]})
    session.close()
    with pytest.raises(UsageError, match="closed"):
        session.run(feeds())


@pytest.mark.slow
def test_one_graph_serves_all_sizes_and_one_more_a_size_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    graphs, counted = [], torch_compile._counted
    monkeypatch.setattr(torch_compile, "_counted", lambda *given: graphs.append(1) or counted(*given))
    session = RUNTIME.open(Opening(IO, spec=spec("bool"), threads=1))
    for sizes in ((2, 6), (3, 5), (4, 16), (2, 2)):
        session.run(feeds(*sizes))
    assert len(graphs) == 1
    session.run(feeds(1, 5))
    session.run(feeds(1, 9))
    assert len(graphs) == 2


@pytest.mark.slow
def test_a_module_may_need_more_graphs_than_pytorch_makes_by_default() -> None:
    class Sum(nn.Module):
        def forward(self, **given: torch.Tensor) -> torch.Tensor:
            return sum((one.sum() for one in given.values()), torch.zeros(()))

    call = torch_compile.CompiledCall(Sum(), fast_path=True)
    sizes = list(itertools.product((1, 3), repeat=4))
    assert len(sizes) > 8
    for each in sizes:
        tensors = {str(place): torch.ones(size) for place, size in zip("abcd", each, strict=True)}
        with torch_compile.quiet():
            assert call(tensors).item() == sum(each)


def test_a_module_that_does_not_compile_whole_is_refused_with_what_stops_it() -> None:
    with pytest.raises(UnavailableError, match="does not compile as one graph") as caught:
        RUNTIME.open(Opening(IO, spec=spec("breaks"), threads=1))
    assert "torch_eager" in caught.value.hint
    assert "data-dependent" in caught.value.message.lower() or "break" in caught.value.message.lower()


def test_running_the_module_itself_in_place_of_compiled_code_is_an_error() -> None:
    session: Any = RUNTIME.open(Opening(IO, spec=spec("bool"), threads=1))
    session._call.compiled = Attention("bool")
    with pytest.raises(UnavailableError, match="ran the module itself"):
        session.run(feeds())


@pytest.mark.parametrize(("plan", "float64"), [("fp16_islands", False), ("fp32", True)])
def test_what_it_does_not_compute_in_is_refused(plan: str, float64: bool) -> None:
    with pytest.raises(UnavailableError, match="computes in fp32, fp16, bf16"):
        RUNTIME.open(Opening(IO, plan=plan, spec=spec("bool"), float64=float64))


NO_COMPILER = """
import os
os.environ["CXX"] = "no-such-compiler"
from attnport.runtimes.torch_compile import RUNTIME
found = RUNTIME.probe()
print(found.available, found.reason, found.hint)
"""


@pytest.mark.slow
def test_without_a_compiler_the_probe_says_how_to_get_one() -> None:
    run = subprocess.run([sys.executable, "-c", NO_COMPILER], capture_output=True, text=True, check=True)
    assert run.stdout.startswith("False")
    assert "g++" in run.stdout


def test_that_a_compiler_works_is_found_out_once_for_each_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[str] = []
    monkeypatch.setenv("ATTNPORT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(torch_compile, "_tried_compiling", lambda: tried.append("once") or None)
    for _ in range(2):
        torch_compile._why_not.cache_clear()
        assert torch_compile._why_not() is None
    assert tried == ["once"]
    other = tmp_path / "other"
    other.write_text("#!/bin/sh\n")
    other.chmod(0o755)
    monkeypatch.setenv("CXX", str(other))
    torch_compile._why_not.cache_clear()
    monkeypatch.setattr(torch_compile, "_tried_compiling", lambda: ("no", "hint"))
    assert torch_compile._why_not() == ("no", "hint")
    torch_compile._why_not.cache_clear()
    assert torch_compile._why_not() == ("no", "hint")
    torch_compile._why_not.cache_clear()
