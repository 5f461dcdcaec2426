"""Dispatch modes that change how a torch module computes: zero in place of NaN, float64, and plans that are no cast.

A dispatch mode sees every call that the module really makes, wherever it comes from (functional, Tensor method,
`nn.MultiheadAttention`, a scripted part). Under `torch.inference_mode` it sees scaled_dot_product_attention and softmax
whole. A function mode would not be enough: composite functions such as `F.multi_head_attention_forward` run their body
with the mode turned off.
"""

# torch leaves its mode classes untyped.
# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map, tree_map_only
from torch.utils.weak import WeakTensorKeyDictionary

from attnport.artifacts import AUTO, PLANS
from attnport.errors import SpecError
from attnport.masks import HIDDEN

PRODUCTS = {"linear", "matmul", "mm", "bmm", "addmm", "baddbmm"}
SOFTMAXES = {"softmax", "_softmax", "_safe_softmax", "special_softmax"}
# Operators whose attention no mode can reach.
OPAQUE = {"_native_multi_head_attention", "_transformer_encoder_layer_fwd", "_triton_multi_head_attention"}
_WIDE = {
    **dict.fromkeys((torch.float16, torch.bfloat16, torch.float32), torch.float64),
    **dict.fromkeys((torch.complex32, torch.complex64), torch.complex128),
}


class DispatchMode(TorchDispatchMode):
    """A dispatch mode that torch does not wrap for its compiler: nothing is compiled while one is active, and the
    wrapper imports `torch._dynamo`, which takes a second."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


class _NoFastPath(TorchFunctionMode):
    """Does nothing itself. While any function mode is active, nn.TransformerEncoderLayer and nn.MultiheadAttention do
    not use their fused fast path in this thread."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class AttentionMode(DispatchMode):
    """Passes every attention call to `attention` and every softmax to `softmax`, which by default change nothing."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = operator_name(func)
        if name == "scaled_dot_product_attention":
            return self.attention(func, *args, **kwargs)
        if name in SOFTMAXES:
            return self.softmax(func, *args, **kwargs)
        if name in OPAQUE or name.startswith("_scaled_dot_product"):
            raise SpecError(
                f"the module calls {name}, whose attention cannot be reached.",
                hint="Run attention through scaled_dot_product_attention, without leaving inference mode.",
            )
        return self.other(func, *args, **kwargs)

    def attention(self, func: Any, q: Tensor, k: Tensor, v: Tensor, *args: Any, **kwargs: Any) -> Any:
        """One scaled_dot_product_attention call."""
        return func(q, k, v, *args, **kwargs)

    def softmax(self, func: Any, scores: Tensor, dim: int, *args: Any, **kwargs: Any) -> Any:
        """One softmax call, whether of an attention or not."""
        return func(scores, dim, *args, **kwargs)

    def other(self, func: Any, *args: Any, **kwargs: Any) -> Any:
        """Any other call."""
        return func(*args, **kwargs)


def _without_key(mask: Tensor) -> Tensor:
    """The rows `[..., S, 1]` for which an attention's mask `[..., S, T]` allows no key."""
    # "at or below" rather than "not above": NaN in a mask hides nothing, so that it stays visible in the output.
    hidden = ~mask if mask.dtype == torch.bool else mask <= HIDDEN
    return hidden.all(-1, keepdim=True)


class Hidden(AttentionMode):
    """Changes nothing.

    Attributes:
        gave_numbers: Whether attention, or any softmax, gave other numbers than zero in a row with no allowed key.
    """

    gave_numbers = False

    def attention(self, func: Any, q: Tensor, k: Tensor, v: Tensor, *args: Any, **kwargs: Any) -> Any:
        """Looks at the output rows whose mask allows no key."""
        output = func(q, k, v, *args, **kwargs)
        mask = args[0] if args else kwargs.get("attn_mask")
        if mask is not None:
            self._look(output, _without_key(mask))
        return output

    def softmax(self, func: Any, scores: Tensor, dim: int, *args: Any, **kwargs: Any) -> Any:
        """Looks at the probabilities of rows whose scores are all hidden."""
        probabilities = func(scores, dim, *args, **kwargs)
        if scores.is_floating_point() and scores.dim():
            self._look(probabilities, scores.amax(dim, keepdim=True) <= HIDDEN)
        return probabilities

    def _look(self, output: Tensor, rows: Tensor) -> None:
        self.gave_numbers = self.gave_numbers or bool((rows & output.isfinite() & (output != 0)).any())


class ZeroWithoutKey(AttentionMode):
    """Gives zero in an attention row with no allowed key for which PyTorch gives NaN. All other numbers are the
    module's own, from the same kernels, in any precision."""

    def attention(self, func: Any, q: Tensor, k: Tensor, v: Tensor, *args: Any, **kwargs: Any) -> Any:
        """Zeroes NaN in the output rows whose mask allows no key."""
        output = func(q, k, v, *args, **kwargs)
        mask = args[0] if args else kwargs.get("attn_mask")
        if mask is None:
            return output  # is_causal is aligned upper left: every query sees key 0
        return torch.where(_without_key(mask) & output.isnan(), torch.zeros_like(output), output)

    def softmax(self, func: Any, scores: Tensor, dim: int, *args: Any, **kwargs: Any) -> Any:
        """Zeroes NaN in the probabilities of rows whose scores are all hidden."""
        probabilities = func(scores, dim, *args, **kwargs)
        if not scores.is_floating_point() or scores.dim() == 0:
            return probabilities
        hidden = (scores.amax(dim, keepdim=True) <= HIDDEN) & probabilities.isnan()
        return torch.where(hidden, torch.zeros_like(probabilities), probabilities)


_SORTS = {
    "topk": ("self", "k", "dim", "largest"),
    "sort": ("self", "dim", "descending"),
    "argsort": ("self", "dim", "descending"),
}
"""The arguments of the operators that sort."""


class Ties(DispatchMode):
    """Makes `topk`, `sort` and `argsort` keep the order of equal elements, as ONNX's `TopK` does, or shuffle them.

    torch does not define their order. An untrained router gives all experts the same score.
    """

    def __init__(self, seed: int | None = None) -> None:
        """`seed` shuffles equal elements; None keeps their order."""
        super().__init__()
        self._seed = seed

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = kwargs or {}, operator_name(func)
        if name not in _SORTS or func._schema.is_mutable or func._overloadname != "default":
            return func(*args, **kwargs)
        given = dict(zip(_SORTS[name], args, strict=False)) | kwargs
        x, dim = given["self"], given.get("dim", -1)
        values, places = self._sorted(x, dim, given.get("largest" if name == "topk" else "descending", name == "topk"))
        if name == "topk":
            return values.narrow(dim, 0, given["k"]), places.narrow(dim, 0, given["k"])
        return places if name == "argsort" else (values, places)

    def _sorted(self, x: Tensor, dim: int, descending: bool) -> tuple[Tensor, Tensor]:
        if self._seed is None or x.dim() == 0:
            return torch.sort(x, dim=dim, descending=descending, stable=True)
        generator = torch.Generator().manual_seed(self._seed)
        order = torch.randperm(x.shape[dim], generator=generator).to(x.device)
        values, places = torch.sort(x.index_select(dim, order), dim=dim, descending=descending, stable=True)
        return values, order[places]


class SumsInOrder(DispatchMode):
    """Adds up the rows of a sum or mean one after the other, as ONNX Runtime, OpenVINO and NumPy do.

    torch adds them in pairs, with a smaller error. Both are right: nobody says in which order a sum is taken. The last
    axis is left to torch, as there others add in pairs or lanes too.
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        found = func(*args, **kwargs)
        name, dims = operator_name(func), args[1] if len(args) > 1 else kwargs.get("dim")
        if name not in ("sum", "mean") or func._schema.is_mutable or not dims or len(dims) != 1 or kwargs.get("dtype"):
            return found
        x, dim = args[0], dims[0] % args[0].dim()
        if not x.is_floating_point() or dim == x.dim() - 1 or x.shape[dim] < 2:
            return found
        total = x.select(dim, 0).clone()
        for row in range(1, x.shape[dim]):
            total += x.select(dim, row)
        return (total / x.shape[dim] if name == "mean" else total).reshape(found.shape)


class Islands(AttentionMode):
    """Casts q, k and v of scaled_dot_product_attention to half precision, and its output back.

    For attention that a module writes out, see `_Numbered`.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype

    def attention(self, func: Any, q: Tensor, k: Tensor, v: Tensor, *args: Any, **kwargs: Any) -> Any:
        """Runs the call in the half-precision dtype."""

        def narrowed(mask: Any) -> Any:
            if not isinstance(mask, Tensor) or not mask.is_floating_point():
                return mask
            # finfo.min of float32 would become -inf in half precision; clamping keeps a hidden score finite.
            low = torch.finfo(self.dtype).min
            return torch.where(mask.isneginf(), mask, mask.clamp(min=low)).to(self.dtype)

        args, kwargs = tuple(map(narrowed, args)), {key: narrowed(value) for key, value in kwargs.items()}
        return func(q.to(self.dtype), k.to(self.dtype), v.to(self.dtype), *args, **kwargs).to(q.dtype)


ATTENTION_PRODUCTS = {"matmul", "bmm", "mm", "baddbmm", "einsum"}
# The result of a layer with weights no longer counts as scores or probabilities.
LAYERS = {"linear", "conv1d", "conv2d", "embedding", "layer_norm"}


@dataclass(frozen=True)
class _Origin:
    """The products whose scores a tensor holds, and those whose probabilities, after a softmax."""

    scores: frozenset[int] = frozenset()
    probabilities: frozenset[int] = frozenset()

    def __or__(self, other: _Origin) -> _Origin:
        return _Origin(self.scores | other.scores, self.probabilities | other.probabilities)


class _Numbered(DispatchMode):
    """Numbers the products of a run, for the eager twin of `*_islands` where a module writes its attention out.

    A single call does not show that it belongs to an attention, so the module runs twice. In the first run, `Products`
    numbers the products, and records which of them compute scores for a softmax and which use its probabilities. In the
    second, `Rounded` computes these products as a half-precision kernel does.
    """

    def __init__(self) -> None:
        super().__init__()
        self._count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = operator_name(func)
        if name not in ATTENTION_PRODUCTS:
            return self.other(name, func, args, kwargs or {})
        number, self._count = self._count, self._count + 1
        return self.product(number, func, args, kwargs or {})

    def product(self, number: int, func: Any, args: Any, kwargs: Any) -> Any:
        """The product with this number."""
        return func(*args, **kwargs)

    def other(self, name: str, func: Any, args: Any, kwargs: Any) -> Any:
        """Any other call."""
        return func(*args, **kwargs)


class Products(_Numbered):
    """Finds the products of attentions; `scores` and `values` are the numbers of those before and after a softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.scores: set[int] = set()
        self.values: set[int] = set()
        self._origins: Any = WeakTensorKeyDictionary()

    def product(self, number: int, func: Any, args: Any, kwargs: Any) -> Any:
        """A product of probabilities is the last step of an attention."""
        multiplied = self._origin_of(args, kwargs).probabilities
        if multiplied:
            self.scores |= multiplied
            self.values.add(number)
        return self._marked(func(*args, **kwargs), _Origin(scores=frozenset({number})))

    def other(self, name: str, func: Any, args: Any, kwargs: Any) -> Any:
        """The result counts as scores if an argument does, and after a softmax as probabilities."""
        origin = self._origin_of(args, kwargs)
        if name in SOFTMAXES:
            origin = _Origin(probabilities=origin.scores)
        elif name in LAYERS:
            origin = _Origin()
        return self._marked(func(*args, **kwargs), origin)

    def _origin_of(self, *given: Any) -> _Origin:
        origin = _Origin()
        for value in _tensors(given):
            origin |= self._origins.get(value, _Origin())
        return origin

    def _marked(self, result: Any, origin: _Origin) -> Any:
        for value in _tensors(result):
            self._origins[value] = origin
        return result


class Rounded(_Numbered):
    """Runs the products that `Products` found as a half-precision kernel does: it rounds their operands and the final
    output, while scores and softmax are float32. With `step_by_step` it rounds the scores too."""

    def __init__(self, found: Products, dtype: torch.dtype, *, step_by_step: bool = False) -> None:
        super().__init__()
        self._found, self._dtype = found, dtype
        self._rounded = found.values | found.scores if step_by_step else found.values

    def product(self, number: int, func: Any, args: Any, kwargs: Any) -> Any:
        """Rounds the operands of every product of an attention, and the output of its last."""
        if number not in self._found.scores | self._found.values:
            return func(*args, **kwargs)
        result = func(*tree_map_only(Tensor, self._round, args), **tree_map_only(Tensor, self._round, kwargs))
        return self._round(result) if number in self._rounded else result

    def _round(self, value: Tensor) -> Tensor:
        return value.to(self._dtype).to(value.dtype) if value.is_floating_point() else value


class StepByStep(AttentionMode):
    """Runs scaled_dot_product_attention in half precision as product, softmax and product, with scores in that type."""

    def attention(self, func: Any, q: Tensor, k: Tensor, v: Tensor, *args: Any, **kwargs: Any) -> Any:
        """Runs PyTorch's own steps, and allows it to take them in half precision; by default it uses float32."""
        if q.dtype not in (torch.float16, torch.bfloat16):
            return func(q, k, v, *args, **kwargs)
        cuda = torch.backends.cuda  # in spite of its name, the setting applies to every device
        allowed = cuda.fp16_bf16_reduction_math_sdp_allowed()
        cuda.allow_fp16_bf16_reduction_math_sdp(True)
        try:
            with sdpa_kernel(SDPBackend.MATH):
                if not _slow_half(q):
                    return func(q, k, v, *args, **kwargs)
                with _QuickProducts():
                    return func.decompose(q, k, v, *args, **kwargs)
        finally:
            cuda.allow_fp16_bf16_reduction_math_sdp(allowed)

    def other(self, func: Any, *args: Any, **kwargs: Any) -> Any:
        """Products by `quick_product`, anything else as it is."""
        return quick_product(func, *args, **kwargs)


class _QuickProducts(DispatchMode):
    """Runs the products of one attention by `quick_product`."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if operator_name(func) == "_scaled_dot_product_attention_math":
            with self:
                return func.decompose(*args, **(kwargs or {}))
        return quick_product(func, *args, **(kwargs or {}))


def quick_product(func: Any, *args: Any, **kwargs: Any) -> Any:
    """Calls an operator; a product of float16 on the processor is computed in float32 and rounded once.

    That is what PyTorch's kernel does there too, adding in another order and, where the processor has no instructions
    for it, at less than a twentieth of the speed. A product that is written into a given tensor is left to it.
    """
    half = any(_slow_half(leaf) for leaf in tree_leaves((args, kwargs)))
    if not half or operator_name(func) not in PRODUCTS or func._schema.is_mutable:
        return func(*args, **kwargs)

    def wide(value: Any) -> Any:
        return value.float() if _slow_half(value) else value

    return func(*tree_map(wide, args), **tree_map(wide, kwargs)).half()


def _slow_half(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dtype == torch.float16 and value.device.type == "cpu"


class Double(DispatchMode):
    """Computes in float64 even where the module asks for float32 itself (a softmax in float32, rotary angles).
    Otherwise the reference would be no more precise than the results that it judges.

    With `widens`, the module is not cast: each weight is widened where it is used, so that there is never a second copy
    of them all.
    """

    def __init__(self, *, widens: bool = False) -> None:
        super().__init__()
        self._widens = widens

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if (
            self._widens
            and operator_name(func) == "_has_compatible_shallow_copy_type"
            and args[0].dtype != args[1].dtype
        ):
            raise SpecError("the module casts its weights.")  # what it then puts in their place would stay
        if not func._schema.is_mutable and any(value.alias_info is not None for value in func._schema.returns):
            return func(*tree_map(_wide_type, args), **tree_map(_wide_type, kwargs))  # a view shares memory
        widen = _wide_type
        if self._widens and operator_name(func) not in _PICKS:
            if func._schema.is_mutable and any(map(_narrow, (*args[:1], *kwargs.values()))):
                raise SpecError(f"the module writes to a float32 buffer by {operator_name(func)}.")
            if operator_name(func) == "linear" and args[1].nbytes > _BLOCK_BYTES and not kwargs:
                return _in_blocks(*args)
            widen = _wide_tensor
        result = func(*tree_map(widen, args), **tree_map(widen, kwargs))
        if (not types or self._widens) and _narrow(result):
            return _wide_tensor(result)  # a tensor created in the default dtype, or rows of a weight
        return result


def _in_blocks(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """A linear layer with a large weight, of which one block of rows at a time is widened."""
    x, rows = _wide_tensor(x), max(1, _BLOCK_BYTES * len(weight) // weight.nbytes)
    blocks = weight.split(rows)
    biases = [None] * len(blocks) if bias is None else bias.split(rows)
    linear = torch.nn.functional.linear
    return torch.cat(
        [linear(x, _wide_tensor(block), _wide_tensor(some)) for block, some in zip(blocks, biases, strict=True)], dim=-1
    )


_BLOCK_BYTES = 1 << 23
"""Of a weight, what is widened at once."""
_REPLACES = "_has_compatible_shallow_copy_type"
"""What `Module.to` asks of a weight and what it is about to put in its place."""
_PICKS = {"embedding", "index_select", "gather"}
"""Operators whose result is elements of a weight, so that only these have to be widened."""


def _narrow(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dtype in _WIDE


def _wide_type(value: Any) -> Any:
    return _WIDE.get(value, value) if isinstance(value, torch.dtype) else value


def _wide_tensor(value: Any) -> Any:
    return value.to(_WIDE[value.dtype]) if _narrow(value) else _wide_type(value)


class _WideNumbers(TorchFunctionMode):
    """Makes float64 tensors of numbers: float32 cannot hold `finfo(float64).min`, which many masks are filled with.

    A few functions, such as `grid_sample`, compare the types of their tensors before any operator is called. Where a
    weight in float32 meets a tensor in float64 there, both are in float64.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        of_numbers = func in (torch.tensor, torch.full) and kwargs.get("dtype") is None
        if of_numbers and any(isinstance(leaf, float) for leaf in tree_leaves((args, kwargs))):
            kwargs["dtype"] = torch.float64
        try:
            return func(*args, **kwargs)
        except RuntimeError as err:
            if "expected scalar type Double but found Float" not in str(err):
                raise
            return func(*tree_map(_wide_tensor, args), **tree_map(_wide_tensor, kwargs))


LARGEST = 65504.0
_BITS = 11


class HalfWithoutOverflow(DispatchMode):
    """The eager twin of the plan `auto`: PyTorch with the rounding of fp16, but without overflow.

    A module that overflows in fp16 gives no error to derive a bound from: its result is NaN, or finite and wrong, as
    when a variance of inf makes a norm zero. So the module runs in float32, and every result is rounded to fp16. Values
    above 65504, and those that fp16 would round to zero, are rounded to the same 11 significant bits instead. If
    nothing overflows, these are the roundings of the module cast to fp16, whose kernels compute in float32 and round
    once.

    An operator that works in place is rounded in place; views stay views. With `step_by_step` the scores and the
    probabilities of attention are rounded too, as in `Opening`.
    """

    def __init__(self, *, step_by_step: bool = False) -> None:
        super().__init__()
        self._steps = step_by_step

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = tree_map(_no_half, kwargs or {})
        args = tree_map(_no_half, args)
        if self._steps and func is torch.ops.aten.scaled_dot_product_attention.default:
            return _by_steps(*args, **kwargs)
        result = func(*args, **kwargs)
        storages = {_storage(tensor) for tensor in _tensors((args, kwargs))}
        if func._schema.is_mutable:
            for tensor in _tensors(result):
                tensor.copy_(rounded(tensor))
            return result
        return tree_map(lambda value: value if not _fresh(value, storages) else rounded(value), result)


def _by_steps(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Attention with every step rounded. Source: the equivalent code in PyTorch's documentation of
    scaled_dot_product_attention; like PyTorch, it multiplies both q and k by the root of the scale."""
    mask = attn_mask if mask is None else mask
    if enable_gqa:
        k, v = (tensor.repeat_interleave(q.size(-3) // tensor.size(-3), -3) for tensor in (k, v))
    root = math.sqrt(q.size(-1) ** -0.5 if scale is None else scale)
    scores = rounded(rounded(q * root) @ rounded(k * root).transpose(-2, -1))
    if is_causal:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).tril()
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else rounded(scores + mask)
    weights = torch.where(torch.isneginf(scores.amax(-1, keepdim=True)), 0.0, scores.softmax(-1))
    return rounded(rounded(weights) @ v)


def rounded(tensor: Tensor) -> Tensor:
    """A float32 tensor rounded to fp16, or to 11 significant bits outside its range; other tensors unchanged.

    Values that fp16 would round to zero count as outside its range: an epsilon of 1e-9 must keep a division finite.
    """
    if tensor.dtype != torch.float32:
        return tensor
    mantissa, exponent = torch.frexp(tensor)
    beyond = torch.ldexp(torch.round(mantissa * 2**_BITS), exponent - _BITS)
    beyond = torch.where(torch.isfinite(tensor), beyond, tensor)
    half = tensor.half().float()
    return torch.where((tensor.abs() <= LARGEST) & ((half != 0) | (tensor == 0)), half, beyond)


def round_parameters(module: torch.nn.Module) -> torch.nn.Module:
    """Rounds a module's parameters and buffers, in place."""
    with torch.no_grad():
        for tensor in (*module.parameters(), *module.buffers()):
            tensor.copy_(rounded(tensor))
    return module


def _no_half(value: Any) -> Any:
    """Replaces float16 by float32, so that a module that asks for float16 itself does not overflow either."""
    return torch.float32 if value is torch.float16 else value


def _fresh(value: Any, given: set[int]) -> bool:
    return isinstance(value, Tensor) and _storage(value) not in given


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _tensors(values: Any) -> Iterator[Tensor]:
    return (value for value in tree_leaves(values) if isinstance(value, Tensor))


def operator_name(func: Any) -> str:
    """`softmax` for `aten.softmax.int`."""
    return str(func._schema.name).split("::")[-1]


@contextmanager
def active(*modes: DispatchMode | TorchFunctionMode) -> Iterator[None]:
    """Enters inference mode, then `modes` in order; the last one sees a call first."""
    with ExitStack() as stack:
        stack.enter_context(torch.inference_mode())
        if modes:
            stack.enter_context(_NoFastPath())
        for mode in modes:
            stack.enter_context(mode)
        yield


def half_of_islands(plan: str) -> torch.dtype | None:
    """The type in which attention runs at a plan that leaves the rest of the module in float32; None at others."""
    half: torch.dtype | None = getattr(torch, PLANS[plan].half) if PLANS[plan].islands else None
    return half


def modes_for(
    plan: str, *, float64: bool, step_by_step: bool = False, widens: bool = False
) -> list[DispatchMode | TorchFunctionMode]:
    """The modes, in the order to enter them, that run a module already cast to `plan` (or, unless the mode `widens` its
    weights, to float64)."""
    chosen: list[DispatchMode | TorchFunctionMode] = [StepByStep()] if step_by_step and plan != AUTO else []
    if float64:
        chosen += [Double(widens=widens), _WideNumbers()]
    elif (half := half_of_islands(plan)) is not None:
        chosen.append(Islands(half))
    elif plan == AUTO:
        chosen.append(HalfWithoutOverflow(step_by_step=step_by_step))
    return chosen
