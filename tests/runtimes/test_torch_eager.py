"""The module as it is, and the four ways in which its attention is run differently."""

from __future__ import annotations

import threading
from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from attnport.artifacts import IOContract, ModelSpec, Source
from attnport.dims import Dim, TensorSpec
from attnport.errors import SpecError, UsageError
from attnport.runtimes._torch_modes import Ties, active, modes_for
from attnport.runtimes.base import Opening
from attnport.runtimes.torch_eager import RUNTIME, EagerCall, attention_weights, to_array, to_tensor

B, H, S, D = 3, 2, 6, 8
E = H * D


def io_of(*outputs: TensorSpec) -> IOContract:
    return IOContract(
        (TensorSpec("x", "float32", ("batch", "seq", E)), TensorSpec("keep", "bool", ("batch", "seq"))),
        outputs or (TensorSpec("y", "float32", ("batch", "seq", E)),),
        (Dim("batch", 1, 2, 8), Dim("seq", 1, 8, 64)),
    )


def spec_of(module: nn.Module, *outputs: TensorSpec) -> ModelSpec:
    return ModelSpec("m", Source("m"), io_of(*outputs), module.eval)


def feeds() -> dict[str, np.ndarray]:
    keep = np.ones((B, S), bool)
    keep[1, 4:] = False
    keep[2] = False
    return {"x": np.random.default_rng(0).standard_normal((B, S, E), np.float32), "keep": keep}


def run(module: nn.Module, given: dict[str, np.ndarray] | None = None, **options: object) -> np.ndarray:
    spec = spec_of(module)
    return RUNTIME.open(Opening(spec.io, spec=spec, threads=1, **options)).run(given or feeds())["y"]  # type: ignore[arg-type]


def heads(x: Tensor) -> Tensor:
    return x.unflatten(-1, (H, D)).transpose(1, 2)


class Sdpa(nn.Module):
    """Self-attention without weights, its mask written as `mask_of` says."""

    def __init__(self, mask_of: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.mask_of = mask_of

    def forward(self, x: Tensor, keep: Tensor) -> Tensor:
        q = heads(x)
        y = functional.scaled_dot_product_attention(q, q, q, attn_mask=self.mask_of(keep[:, None, None, :]))
        return y.transpose(1, 2).flatten(2)


class ByHand(nn.Module):
    """The same with a product, a softmax called as `softmax` says, and a product."""

    def __init__(self, softmax: Callable[[Tensor], Tensor], hidden: float = -torch.inf) -> None:
        super().__init__()
        self.softmax, self.hidden = softmax, hidden

    def forward(self, x: Tensor, keep: Tensor) -> Tensor:
        q = heads(x)
        scores = q @ q.transpose(-1, -2) * D**-0.5
        scores = scores + torch.where(keep[:, None, None, :], 0.0, self.hidden).to(scores.dtype)
        return (self.softmax(scores) @ q).transpose(1, 2).flatten(2)


def additive(value: float) -> Callable[[Tensor], Tensor]:
    return lambda keep: torch.where(keep, 0.0, value)


SDPAS = {
    "bool": lambda keep: keep,
    "-inf": additive(-torch.inf),
    "finfo.min": additive(torch.finfo(torch.float32).min),
    "-1e4": additive(-1e4),
}
SOFTMAXES = {
    "F.softmax": lambda s: functional.softmax(s, -1),
    "torch.softmax": lambda s: torch.softmax(s, -1),
    "Tensor.softmax": lambda s: s.softmax(-1),
    "torch._softmax": lambda s: torch._softmax(s, -1, False),
    "special.softmax": lambda s: torch.special.softmax(s, -1),
    "nn.Softmax": nn.Softmax(-1),
}


def expected() -> np.ndarray:
    """Attention that gives zero in a row without a key, by plain numpy in float64."""
    given = feeds()
    q = given["x"].astype(np.float64).reshape(B, S, H, D).transpose(0, 2, 1, 3)
    weights = np.exp(q @ q.swapaxes(-1, -2) * D**-0.5) * given["keep"][:, None, None, :]
    weights /= np.maximum(weights.sum(-1, keepdims=True), 1e-300)
    return (weights @ q).transpose(0, 2, 1, 3).reshape(B, S, E)


@pytest.mark.parametrize("softmax", SOFTMAXES)
def test_where_the_module_gives_nan_a_row_without_a_key_gives_zero(softmax: str) -> None:
    module = ByHand(SOFTMAXES[softmax], -torch.inf)
    assert np.isnan(run(module)[2]).all()
    y = run(module, contract=True)
    np.testing.assert_allclose(y, expected(), atol=1e-6)
    assert (y[2] == 0).all()


@pytest.mark.parametrize("mask", SDPAS)
def test_numbers_of_the_module_stay_bit_for_bit_also_in_a_row_without_a_key(mask: str) -> None:
    y = run(Sdpa(SDPAS[mask]), contract=True)
    np.testing.assert_array_equal(y, run(Sdpa(SDPAS[mask])))
    np.testing.assert_allclose(y[:2], expected()[:2], atol=1e-6)
    finite = mask in ("finfo.min", "-1e4")
    assert (y[2] != 0).any() == finite  # the mean of v, or PyTorch's own zero


@pytest.mark.parametrize("hidden", [torch.finfo(torch.float32).min, -1e4])
def test_so_do_those_of_attention_by_hand(hidden: float) -> None:
    module = ByHand(SOFTMAXES["F.softmax"], hidden)
    np.testing.assert_array_equal(run(module, contract=True), run(module))


class LaterLayer(ByHand):
    """Rows of NaN that the next layer takes as values, whose weight is zero."""

    def forward(self, x: Tensor, keep: Tensor) -> Tensor:
        hidden = super().forward(x, keep & (torch.arange(S) > 0))
        pairs = keep[:, None, None, :] & keep[:, None, :, None]
        scores = heads(hidden) @ heads(hidden).mT
        weights = scores.masked_fill(~pairs, -torch.inf).softmax(-1)
        return (weights @ heads(hidden)).transpose(1, 2).flatten(2)


def test_a_valid_row_is_defined_where_nan_of_a_row_without_a_key_would_reach_it() -> None:
    given = feeds()
    given["keep"][1, 1:] = False  # the first layer hides its only key
    module = LaterLayer(SOFTMAXES["F.softmax"])
    assert np.isnan(run(module, given)[1, 0]).all()
    assert np.isfinite(run(module, given, contract=True)[1, 0]).all()


def test_the_contract_does_not_hide_a_nan() -> None:
    given = feeds()
    given["x"][0, 0, 0] = np.nan
    for module in (Sdpa(SDPAS["bool"]), ByHand(SOFTMAXES["F.softmax"])):
        assert np.isnan(run(module, given, contract=True)[0]).any()


class Encoder(nn.Module):
    """torch's own layers, which take a fused fast path unless told otherwise."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(E, H, 32, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, x: Tensor, keep: Tensor) -> Tensor:
        return self.layers(x, src_key_padding_mask=~keep)


class Attentive(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.attention = nn.MultiheadAttention(E, H, batch_first=True, bias=False)

    def forward(self, x: Tensor, keep: Tensor) -> Tensor:
        return self.attention(x, x, x, key_padding_mask=~keep, need_weights=False)[0]


def test_torchs_own_attention_module_gives_what_it_gives() -> None:
    y = run(Attentive(), contract=True)
    assert (y != 0).any(-1)[:2].all()
    np.testing.assert_allclose(y[:2], run(Attentive())[:2], atol=1e-6)


def test_torchs_own_encoder_is_finite() -> None:
    assert np.isfinite(run(Encoder(), contract=True)).all()
    np.testing.assert_allclose(run(Encoder(), contract=True)[:1], run(Encoder())[:1], atol=1e-5)


class Opaque(nn.Module):
    def forward(self, x: Tensor, keep: Tensor) -> Tensor:
        q = heads(x)
        return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, q, q)[0].transpose(1, 2).flatten(2)


def test_attention_that_cannot_be_reached_is_an_error_and_not_passed_over() -> None:
    run(Opaque())
    with pytest.raises(SpecError, match="flash"):
        run(Opaque(), contract=True)


class CastsItself(nn.Module):
    """A softmax that its author pinned to float32."""

    def forward(self, x: Tensor, keep: Tensor) -> Tensor:
        q = heads(x)
        scores = (q @ q.transpose(-1, -2)).float() * D**-0.5
        weights = functional.softmax(scores.masked_fill(~keep[:, None, None, :], -torch.inf), -1, dtype=torch.float32)
        return (weights.to(q.dtype) @ q + torch.zeros(1)).transpose(1, 2).flatten(2)


class DetachesItsTable(CastsItself):
    """With a table that is no buffer, as VideoMAE's positions."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.full((1,), 0.5)

    def forward(self, x: Tensor, keep: Tensor) -> Tensor:
        return super().forward(x, keep) + self.table.detach()


def test_a_table_that_is_no_buffer_can_be_detached_in_float64() -> None:
    y = run(DetachesItsTable(), contract=True, float64=True)
    np.testing.assert_array_equal(y, run(CastsItself(), contract=True, float64=True) + 0.5)


class FillsWithTheLowest(Sdpa):
    """Makes the lowest number a tensor without a type, as transformers' XGLM does."""

    def forward(self, x: Tensor, keep: Tensor) -> Tensor:
        lowest = torch.finfo(x.dtype).min
        return torch.max(super().forward(x, keep), torch.tensor(lowest)) + torch.full((1,), lowest) * 0


def test_float64_has_room_for_the_lowest_number_of_its_type() -> None:
    y = run(FillsWithTheLowest(SDPAS["bool"]), float64=True)
    np.testing.assert_array_equal(y, run(Sdpa(SDPAS["bool"]), float64=True))


def test_float64_reaches_where_the_module_names_float32() -> None:
    y = run(CastsItself(), contract=True, float64=True)
    assert y.dtype == np.float64
    assert np.abs(y - expected()).max() < 1e-14
    assert np.abs(run(CastsItself(), contract=True) - expected()).max() > 1e-9


@pytest.mark.parametrize(("plan", "eps"), [("fp16_islands", 2**-11), ("bf16_islands", 2**-8)])
@pytest.mark.parametrize("module", [Sdpa(SDPAS["bool"]), *map(ByHand, SOFTMAXES.values())])
def test_islands_round_attention(module: nn.Module, plan: str, eps: float) -> None:
    whole, islands = run(module), run(module, plan=plan)
    assert islands.dtype == np.float32
    assert eps / 8 < np.abs(whole - islands)[:2].max() < 8 * eps


def test_a_float64_reference_has_no_islands() -> None:
    by_hand = ByHand(SOFTMAXES["F.softmax"])
    float64 = {"contract": True, "float64": True}
    np.testing.assert_array_equal(run(by_hand, plan="fp16_islands", **float64), run(by_hand, **float64))


def test_islands_keep_a_hidden_but_finite_mask_finite() -> None:
    """finfo.min of float32 cast to half precision is -inf, and would give zero: that is for the contract to do."""
    assert (run(Sdpa(SDPAS["finfo.min"]), plan="fp16_islands")[2] != 0).all()
    assert (run(Sdpa(SDPAS["-inf"]), plan="fp16_islands")[2] == 0).all()


@pytest.mark.parametrize(("plan", "dtype"), [("fp16", torch.float16), ("bf16", torch.bfloat16)])
@pytest.mark.parametrize("mask", ["bool", "-inf"])
def test_step_by_step_the_scores_are_rounded_too(mask: str, plan: str, dtype: torch.dtype) -> None:
    given = feeds() | {"x": 3 * feeds()["x"]}
    q = heads(torch.from_numpy(given["x"]).to(dtype))
    part = q * D**-0.25

    def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a @ b if dtype == torch.bfloat16 else (a.float() @ b.float()).half()  # rounded once, as torch does

    keep = torch.from_numpy(given["keep"])[:, None, None, :]
    scores = product(part, part.transpose(-1, -2)).masked_fill(~keep, -torch.inf)
    steps = to_array(product(scores.softmax(-1), q).transpose(1, 2).flatten(2).float())[:2]
    for cast in (plan, f"{plan}_islands"):
        options = {"plan": cast, "contract": True}
        found = run(Sdpa(SDPAS[mask]), given, step_by_step=True, **options).astype(np.float32)
        one_kernel = run(Sdpa(SDPAS[mask]), given, **options).astype(np.float32)
        # A product adds in the order that its operands' layout asks for, which now and then rounds another way.
        assert 2 * (found[:2] != steps).sum() < (one_kernel[:2] != steps).sum()
        assert (found[2] == 0).all()
    assert not torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed()  # as it was


@pytest.mark.parametrize("plan", ["fp16_islands", "bf16_islands"])
def test_step_by_step_so_are_those_of_attention_by_hand(plan: str) -> None:
    by_hand = ByHand(SOFTMAXES["F.softmax"])
    large = feeds() | {"x": 3 * feeds()["x"]}
    kernel, steps = (run(by_hand, large, plan=plan, contract=True, step_by_step=on) for on in (False, True))
    assert 0 < np.abs(kernel - steps).max() < 0.5


@pytest.mark.parametrize(("plan", "dtype"), [("fp16", np.float16), ("bf16", ml_dtypes.bfloat16)])
def test_a_cast_module_answers_in_its_precision(plan: str, dtype: type) -> None:
    assert run(Attentive(), plan=plan).dtype == dtype


def test_a_cast_leaves_the_makers_module_alone() -> None:
    module = Attentive()
    run(module, plan="fp16")
    assert {p.dtype for p in module.parameters()} == {torch.float32}


def test_an_unknown_plan_is_refused() -> None:
    with pytest.raises(UsageError, match="int8"):
        run(Attentive(), plan="int8")


def test_the_contract_holds_in_its_own_thread_alone() -> None:
    """Two sessions of one module at once: a mode that leaked would turn the other's NaN into zero."""
    module, seen = ByHand(SOFTMAXES["F.softmax"]), dict[bool, list[np.ndarray]]()

    def work(contract: bool) -> None:
        seen[contract] = [run(module, contract=contract)[2] for _ in range(20)]

    threads = [threading.Thread(target=work, args=(contract,)) for contract in (True, False)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all((y == 0).all() for y in seen[True])
    assert all(np.isnan(y).all() for y in seen[False])


class Returns(nn.Module):
    def __init__(self, what: Callable[[Tensor], object]) -> None:
        super().__init__()
        self.what = what

    def forward(self, x: Tensor, keep: Tensor) -> object:
        return self.what(x)


@pytest.mark.parametrize("what", [lambda x: {"y": x}, lambda x: (x, x), lambda x: [None]])
def test_a_result_that_is_not_the_contracts_is_refused(what: Callable[[Tensor], object]) -> None:
    with pytest.raises(SpecError, match="the module returned"):
        run(Returns(what))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64", "int64", "bool"])
def test_arrays_go_to_torch_and_back(dtype: str) -> None:
    array = np.arange(6).reshape(2, 3).astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)[:, ::2]
    back = to_array(to_tensor(array))
    assert back.dtype == array.dtype
    np.testing.assert_array_equal(back.astype(np.float64), array.astype(np.float64))
    assert to_tensor(np.ones((), np.float32)).shape == ()


class Model(nn.Module):
    """Attention twice in one submodule, once in another, and a softmax that is none."""

    def __init__(self) -> None:
        super().__init__()
        self.twice, self.once = Twice(), ByHand(SOFTMAXES["F.softmax"])

    def forward(self, x: Tensor, keep: Tensor) -> Tensor:
        return self.once(self.twice(x, keep), keep) * x.mean(-1, keepdim=True).softmax(1)


class Twice(nn.Module):
    def forward(self, x: Tensor, keep: Tensor) -> Tensor:
        q = heads(x)
        y = functional.scaled_dot_product_attention(q, q, q, is_causal=True)
        k = y[:, :1]
        y = functional.scaled_dot_product_attention(q, k, k, keep[:, None, None, :], scale=0.5, enable_gqa=True)
        return y.transpose(1, 2).flatten(2)


def test_attention_weights_are_named_and_counted_as_at_export() -> None:
    weights = attention_weights(spec_of(Model()), feeds())
    assert list(weights) == ["twice", "twice#1", "once"]
    for name, weights_BHST in weights.items():
        assert weights_BHST.shape == (B, H, S, S)
        assert weights_BHST.dtype == np.float32
        np.testing.assert_allclose(weights_BHST[:2].sum(-1), 1, atol=1e-5)
        assert name == "twice" or (weights_BHST[2] == 0).all()
    assert (np.triu(weights["twice"][0, 0], 1) == 0).all()


def test_attention_weights_are_those_that_made_the_output() -> None:
    given = feeds()
    v = given["x"].reshape(B, S, H, D).transpose(0, 2, 1, 3)
    for module in (Sdpa(SDPAS["bool"]), Sdpa(SDPAS["-inf"]), ByHand(SOFTMAXES["F.softmax"])):
        (weights,) = attention_weights(spec_of(module), given).values()
        np.testing.assert_allclose((weights @ v).transpose(0, 2, 1, 3).reshape(B, S, E), expected(), atol=1e-6)


def test_watching_leaves_the_module_as_it_was() -> None:
    module = Model()
    attention_weights(spec_of(module), feeds())
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in module.modules())


def test_a_session_reports_a_float32_product_that_runs_in_less() -> None:
    torch.set_float32_matmul_precision("medium")
    try:
        spec = spec_of(Attentive())
        assert "medium" in RUNTIME.open(Opening(spec.io, spec=spec)).ran.precision
    finally:
        torch.set_float32_matmul_precision("highest")


@pytest.mark.parametrize("given", [{}, {"largest": False}, {"dim": 0}, {"sorted": False}])
def test_equal_elements_are_taken_in_the_order_of_onnx(given: dict[str, object]) -> None:
    x = torch.tensor([[1.0, 2, 2, 2, 0, 2, 1, 0, 0]] * 3).repeat(1, 20)
    for float64 in (False, True):
        with active(Ties(), *modes_for("fp32", float64=float64)):
            values, at = torch.topk(x, 2, **given)
        dim, largest = given.get("dim", -1), given.get("largest", True)
        expected = torch.sort(x, dim=dim, descending=largest, stable=True).indices.narrow(dim, 0, 2)
        assert torch.equal(at, expected)
        assert torch.equal(values, x.to(values.dtype).gather(dim, at))


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("descending", [False, True])
def test_sorts_take_equal_elements_in_their_order_or_a_drawn_one(descending: bool, inference: bool) -> None:
    x = torch.tensor([[1.0, 2, 2, 2, 0, 2, 1, 0, 0]] * 3).repeat(1, 20)
    expected = torch.sort(x, descending=descending, stable=True)
    with torch.inference_mode(inference):
        with active(Ties()):
            found = torch.sort(x, descending=descending)
            assert torch.equal(x.argsort(descending=descending), expected.indices)
        assert torch.equal(found.indices, expected.indices)
        with active(Ties(0)):
            drawn = torch.sort(x, descending=descending)
            again = x.argsort(descending=descending)
            values, places = x.topk(7, largest=descending)
    assert torch.equal(drawn.values, expected.values)
    assert torch.equal(x.gather(-1, drawn.indices), expected.values)
    assert torch.equal(again, drawn.indices)
    assert not torch.equal(drawn.indices, expected.indices)
    assert torch.equal(values, expected.values[:, :7])
    assert torch.equal(x.gather(-1, places), values)


def test_a_module_that_is_timed_runs_without_a_mode_of_ours() -> None:
    """Each would slow its operators down, and turn off PyTorch's fused path."""
    spec = spec_of(Attentive())
    assert EagerCall(Opening(spec.io, spec=spec), Attentive())._modes == []
