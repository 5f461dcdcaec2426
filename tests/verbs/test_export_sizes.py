"""Sizes of outputs that are expressions of dims: inferred, in the contract and the file, and right at every size."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from loaded import load
from torch import nn

from attnport.artifacts import UNKNOWN_SIZE, IOContract, ModelSpec, Source
from attnport.cases.inputs import Case
from attnport.dims import Dim, TensorSpec
from attnport.errors import ExportError, SpecError, UsageError
from attnport.exporter.capture import capture, traced_sizes
from attnport.exporter.output_sizes import size_text
from attnport.folder.workspace import load_spec, open_folder
from attnport.parity import sizes as tried_sizes
from attnport.parity.sizes import size_cases
from attnport.sources.declare import fit
from attnport.sources.parsing import parse_dim
from attnport.verbs.bundle import bundle
from attnport.verbs.check import check
from attnport.verbs.export import export
from attnport.verbs.fuse import fuse
from attnport_bundle import load as open_bundle
from attnport_bundle.errors import FeedError
from attnport_bundle.format.contract import evaluate

CACHE = """
import torch
from torch import nn
class Cache(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.mixed = nn.Linear(8, 24)
    def forward(self, x, past_keys, past_values):
        q, k, v = (part.unflatten(-1, (2, 4)).transpose(1, 2) for part in self.mixed(x).chunk(3, -1))
        k, v = torch.cat([past_keys, k], 2), torch.cat([past_values, v], 2)
        y = nn.functional.scaled_dot_product_attention(q, k, v)
        return y.transpose(1, 2).flatten(2), k, v
def factory():
    return Cache()
"""
SEVERAL = """
import torch
from torch import nn
class Several(nn.Module):
    def forward(self, x):
        twice = torch.cat([x, x[:, 1:]], 1)
        return twice, x[:, ::2], x.flatten(0, 1), x.unfold(1, 3, 2).sum(-1), nn.functional.pad(x, (0, 0, 2, 1))
def factory():
    return Several()
"""
PAST = ["past_keys=float32[batch,2,past,4]", "past_values=float32[batch,2,past,4]"]
SMALL = ["batch=1:2:4", "past=0:4:9"]


def write(folder: Path, body: str) -> str:
    path = folder / "model.py"
    path.write_text(body)
    return f"{path}:factory"


def test_runs_of_the_module_tell_sums_of_dims(tmp_path: Path) -> None:
    spec = load(write(tmp_path, CACHE), inputs=["x=float32[batch,seq,8]", *PAST])
    assert [one.dims for one in spec.io.outputs] == [("batch", "seq", 8), *[("batch", 2, "past+seq", 4)] * 2]
    assert spec.observed


def test_what_is_no_sum_is_left_to_the_torch_graph(tmp_path: Path) -> None:
    spec = load(write(tmp_path, SEVERAL), inputs=["x=float32[batch,seq,4]"], dims=["seq=5:16:64"])
    unknown = UNKNOWN_SIZE
    assert [one.dims[:-1] for one in spec.io.outputs] == [
        ("batch", "2*seq-1"), ("batch", unknown), (unknown,), ("batch", unknown), ("batch", "seq+3")
    ]  # fmt: skip
    captured = capture(spec.make(), spec.io, observed=True)
    assert [one.dims[:-1] for one in captured.outputs][:3] == [("batch", "2*seq-1"), ("batch", "(seq+1)//2"),
        ("batch*seq",)]  # fmt: skip
    strided = captured.outputs[3].dims[1]
    assert [evaluate(str(strided), {"seq": seq}) for seq in (5, 6, 7, 64)] == [2, 2, 3, 31]
    for value, output in zip(captured.model.graph.outputs, captured.outputs, strict=True):
        assert [dim if isinstance(dim, int) else dim.value for dim in value.shape or ()] == list(output.dims)


@pytest.mark.slow
def test_a_cache_of_one_new_token_grows_by_one_and_may_be_empty(tmp_path: Path) -> None:
    """Before, its outputs were exported as `past`, the name of the dim that changed."""
    declared = ["x=float32[batch,1,8]", *PAST]
    manifest = export(write(tmp_path, CACHE), tmp_path / "out", inputs=declared, dims=SMALL)
    assert manifest.io.outputs[1].dims == ("batch", 2, "past+1", 4)
    assert 0 in {case.feeds["past_keys"].shape[2] for _, case in size_cases(manifest.io)}
    assert load_spec(open_folder(tmp_path / "out")).io == manifest.io
    proto = onnx.load(tmp_path / "out" / "model.onnx", load_external_data=False)
    named = [dim.dim_param or dim.dim_value for dim in proto.graph.output[1].type.tensor_type.shape.dim]
    assert named == ["batch", 2, "past+1", 4]


class Grows(nn.Module):
    """Returns one position more than it takes, unless it takes `but`."""

    def __init__(self, but: int = 0) -> None:
        super().__init__()
        self.but = but

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x, x[:, :1]], 1)


def declared(size: str | int) -> ModelSpec:
    x, y = TensorSpec("x", "float32", ("batch", "seq", 4)), TensorSpec("y", "float32", ("batch", size, 4))
    io = IOContract((x,), (y,), (Dim("batch", 1, 2, 3), Dim("seq", 1, 5, 12)), positions="none")
    return ModelSpec("grows", Source("grows"), io, lambda: Grows().eval())


@pytest.mark.parametrize(("size", "said"), [
    ("seq", r"the module gives shape \[\d+, \d+, 4\]; the contract y=float32\[batch,seq,4\] says"),
    ("2*seq-4", "the contract|has no value"),  # right at the size that is traced, and nowhere else
    ("6*seq//(seq-1)", "the size '6.*' has no value at .*seq=1: it divides by 0"),
])  # fmt: skip
def test_a_contract_that_one_size_contradicts_is_not_exported(size: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=said):
        export(declared(size), tmp_path / "out")
    assert not (tmp_path / "out" / "attnport.json").exists()


def test_a_declared_expression_that_is_right_is_exported(tmp_path: Path) -> None:
    assert export(declared("1+seq"), tmp_path / "out").io.outputs[0].dims == ("batch", "1+seq", 4)


def test_an_output_that_changes_its_rank_is_refused(tmp_path: Path) -> None:
    body = CACHE.replace("return y.transpose(1, 2).flatten(2), k, v", "return y if y.shape[2] > 6 else y[0]")
    with pytest.raises(SpecError, match="gives other outputs: ranks"):
        load(write(tmp_path, body), inputs=["x=float32[batch,seq,8]", *PAST])


def test_a_sum_is_confirmed_by_a_run_in_which_all_dims_differ() -> None:
    base, alone = {"a": 3, "b": 5}, {"a": {"a": 4, "b": 5}, "b": {"a": 3, "b": 6}}
    last = {"a": 10, "b": 16}

    def fitted(size: object) -> str | int:
        value = lambda sizes: eval(str(size), {}, dict(sizes))  # noqa: E731
        return fit((base, value(base)), {dim: (at, value(at)) for dim, at in alone.items()}, (last, value(last)))

    assert fitted("7") == 7
    assert fitted("b") == "b"
    assert fitted("2*b-a-4") == "2*b-a-4"
    assert fitted("4-a+a+b*3") == "3*b+4"
    for nonlinear in ("a*b", "b//2", "b//8", "max(a,4)", "a*a"):
        assert fitted(nonlinear) == UNKNOWN_SIZE, nonlinear


def test_expressions_of_torch_have_the_same_values_in_the_contract() -> None:
    import sympy
    from torch.utils._sympy.functions import FloorDiv, Mod

    a, b = sympy.symbols("s0 s1", integer=True, positive=True)
    names = {a: "a", b: "b"}
    sizes = [a + b, 2 * a - b, (a + 1) * (b - 1), FloorDiv(a - 3, 2) + 1, 2 * FloorDiv(a, 2), a**2 - a, Mod(a, b) + 4]
    sizes += [sympy.Max(a, b, 6) - sympy.Min(a, 3), FloorDiv(a, 2) * FloorDiv(b, 3), a - 2 * (b + 1)]
    sizes += [sympy.floor((a + b) / 2), -FloorDiv(a, 4) + b, FloorDiv(2 * a, 3) * 5 - 1, 5 + a * b // 3 - b]
    for size in sizes:
        text = size_text(size, names)
        for values in ({a: 40, b: 16}, {a: 51, b: 17}, {a: 99, b: 31}):
            wanted = int(size.subs(values))
            assert evaluate(str(text), {"a": int(values[a]), "b": int(values[b])}) == wanted, (size, text)
    assert size_text(sympy.Symbol("u0"), names) is None
    assert size_text(sympy.Integer(7), names) == 7
    assert size_text(7, names) == 7


def test_only_the_smallest_size_of_a_dim_may_be_declared_as_zero() -> None:
    assert parse_dim("past=0:4:9") == Dim("past", 0, 4, 9)
    with pytest.raises(UsageError, match="usual size 0"):
        parse_dim("past=0:0:9")


def test_a_dim_from_zero_is_never_traced_at_zero_or_one() -> None:
    from attnport.dims import distinct_sizes

    io = dataclasses.replace(declared("seq").io, dims=(Dim("batch", 0, 2, 64), Dim("seq", 0, 1, 64)))
    assert min(distinct_sizes(io.dims).values()) > 1
    sizes = [case.feeds["x"].shape[:2] for _, case in size_cases(io)]
    assert np.min(sizes, axis=0).tolist() == [0, 0]


MASKED = CACHE.replace("past_keys, past_values", "mask, past_keys, past_values").replace(
    "(q, k, v)", "(q, k, v, mask[:, None, None] > 0)"
)


@pytest.mark.slow
def test_a_mask_over_the_cache_and_the_new_tokens_is_declared_as_their_sum(tmp_path: Path) -> None:
    inputs = ["x=float32[batch,seq,8]", "mask=int64[batch,past+seq]:padding", *PAST]
    manifest = export(write(tmp_path, MASKED), tmp_path / "out", inputs=inputs, dims=["seq=1:4:9", *SMALL])
    assert manifest.io.inputs[1].dims == ("batch", "past+seq")
    proto = onnx.load(tmp_path / "out" / "model.onnx", load_external_data=False)
    assert [dim.dim_param for dim in proto.graph.input[1].type.tensor_type.shape.dim] == ["batch", "past+seq"]
    folder = tmp_path / "out"
    fuse(folder, targets=["ort_cpu"])
    assert check(folder, runtimes=["ort_cpu"]).verdict == "PASS"
    with open_bundle(bundle(folder, tmp_path / "app", forms=["ort_cpu"])) as model:
        x, past, mask = np.ones((2, 3, 8), np.float32), np.ones((2, 2, 4, 4), np.float32), np.ones((2, 7), np.int64)
        assert model.run(x=x, mask=mask, past_keys=past, past_values=past)["output_1"].shape == (2, 2, 7, 4)
        with pytest.raises(FeedError, match=r"got size 6 on axis 1; expected past\+seq with batch=2, seq=3, past=4"):
            model.run(x=x, mask=mask[:, 1:], past_keys=past, past_values=past)


def test_examples_tell_sums_of_dims_and_dims_that_have_to_be_equal(tmp_path: Path) -> None:
    made: dict[str, type[nn.Module]] = {}
    exec(MASKED, made)
    past = torch.ones(2, 2, 5, 4)
    args = (torch.ones(2, 3, 8), torch.ones(2, 8, dtype=torch.int64), past, past)
    manifest = export(made["Cache"](), tmp_path / "out", args=args)
    assert [spec.dims for spec in manifest.io.inputs[1:]] == [
        ("batch", "past_keys_2+seq"), *[("batch", 2, "past_keys_2", 4)] * 2
    ]  # fmt: skip


class Twice(nn.Module):
    """The second input is twice as long as the first, of which torch sees nothing."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.cat([x, y], 1), y.unflatten(1, (-1, 2)).mean(2) + x


@pytest.mark.slow
def test_a_derived_dim_of_dynamic_shapes_is_an_expression(tmp_path: Path) -> None:
    from torch.export import Dim as TorchDim

    seq = TorchDim("seq", max=64)
    args = torch.ones(2, 3, 4), torch.ones(2, 6, 4)
    shapes = {"x": {0: TorchDim.AUTO, 1: seq}, "y": {0: TorchDim.AUTO, 1: 2 * seq}}
    manifest = export(Twice(), tmp_path / "out", args=args, dynamic_shapes=shapes)
    assert manifest.io.inputs[1].dims == ("batch", "2*seq", 4)
    assert [spec.dims for spec in manifest.io.outputs] == [("batch", "3*seq", 4), ("batch", "seq", 4)]


def test_an_expression_of_a_dim_that_no_input_has_alone_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no input has the dim past alone; they have batch, seq"):
        load(write(tmp_path, CACHE), inputs=["x=float32[batch,seq,8]", "past_keys=float32[batch,2,past+1,4]"])
    with pytest.raises(UsageError, match=r"dim 'past\+' is neither a name, a size, nor an expression"):
        load(write(tmp_path, CACHE), inputs=["x=float32[batch,past+,8]"])


@pytest.mark.slow
def test_a_growing_cache_is_bundled_and_runs_with_an_empty_cache(tmp_path: Path) -> None:
    """Export, one form and a bundle; then the reader takes any size of the cache, and refuses one beyond its range."""
    folder = tmp_path / "out"
    export(write(tmp_path, CACHE), folder, inputs=["x=float32[batch,seq,8]", *PAST], dims=["seq=1:4:9", *SMALL])
    fuse(folder, targets=["ort_cpu"])
    check(folder, runtimes=["ort_cpu"])
    app = bundle(folder, tmp_path / "app", forms=["ort_cpu"])
    with open_bundle(app) as model:
        for cached, new in ((0, 1), (0, 9), (5, 1), (9, 9)):
            past = np.ones((2, 2, cached, 4), np.float32)
            outputs = model.run(x=np.ones((2, new, 8), np.float32), past_keys=past, past_values=past)
            assert [outputs[name].shape for name in ("output_1", "output_2")] == [(2, 2, cached + new, 4)] * 2
        long = np.ones((2, 2, 10, 4), np.float32)
        with pytest.raises(FeedError, match="past=10"):
            model.run(x=np.ones((2, 1, 8), np.float32), past_keys=long, past_values=long)


@pytest.mark.slow
def test_a_size_without_memory_for_it_is_left_out_and_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, most = tried_sizes._outputs, 16

    def short(session: Any, case: Case) -> Any:
        if case.feeds["x"].shape[0] >= most:
            raise MemoryError("no memory")
        return run(session, case)

    monkeypatch.setattr(tried_sizes, "_outputs", short)
    told: list[str] = []
    export("self_attention", tmp_path / "out", tell=told.append)
    assert told == ["batch=32,seq=2 was not tried: there is not enough memory for it."]
    most = 1
    with pytest.raises(MemoryError):
        export("self_attention", tmp_path / "none")


CHUNKED = """
import torch
from torch import nn
from torch.nn.functional import pad
class Chunked(nn.Module):
    def forward(self, x):
        count = (x.shape[1] + 7) // 8
        if (missing := count * 8 - x.shape[1]) > 0:
            x = pad(x, (0, missing))
        return x.reshape(x.shape[0], count, 8).mean(dim=2)
factory = Chunked
"""


@pytest.mark.slow
def test_a_trace_at_a_size_of_whole_chunks_is_made_again_at_another(tmp_path: Path) -> None:
    source = write(tmp_path, CHUNKED)
    io = IOContract((TensorSpec("x", "float32", ("batch", "seq")),), (), (Dim("batch", 1, 2, 8), Dim("seq", 3, 12, 33)))
    assert traced_sizes(io)["seq"] % 8 == 0
    export(source, tmp_path / "out", inputs=["x=float32[batch,seq]"], dims=["seq=3:12:33", "batch=1:2:8"])
    session = onnxruntime.InferenceSession(tmp_path / "out" / "model.onnx")
    for seq in (3, 8, 9, 33):
        (got,) = session.run(None, {"x": np.ones((2, seq), np.float32)})
        assert got.shape == (2, -(-seq // 8))


def test_only_results_that_rounding_explains_in_any_case_are_taken_without_a_float64_run() -> None:
    own = np.random.default_rng(0).standard_normal((4, 8)).astype(np.float32)
    near, far, missing = own + np.float32(2e-5), own.copy(), own.copy()
    far[1, 2] += 1e-4
    missing[0, 0] = np.nan
    assert tried_sizes._alike({"y": near}, {"y": own})
    for other in (far, missing, own[:2], own.astype(np.float64), own[..., None]):
        assert not tried_sizes._alike({"y": other}, {"y": own})
    assert not tried_sizes._alike({"y": missing}, {"y": missing})
    ids = np.arange(3)
    assert tried_sizes._alike({"y": ids}, {"y": ids.copy()})
    assert not tried_sizes._alike({"y": ids + 1}, {"y": ids})
