"""Collects the attention probabilities of a running torch module, with the path of the module that computes them."""

# torch leaves its mode classes untyped.
# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakTensorKeyDictionary

from attnport.masks import HIDDEN
from attnport.runtimes._torch_modes import ATTENTION_PRODUCTS, AttentionMode, operator_name

# fmt: off
# Operators that only change layout, type or a few elements between a softmax and the product that uses it.
_TRANSPARENT = {
    "view", "reshape", "_unsafe_view", "transpose", "permute", "unsqueeze", "squeeze", "expand", "clone", "contiguous",
    "to", "_to_copy", "type_as", "alias", "dropout", "native_dropout", "masked_fill", "where", "nan_to_num", "mul",
    "div", "add", "sub", "slice", "detach", "flatten", "unflatten", "repeat", "expand_as", "view_as", "cat", "split",
    "chunk",
}
# fmt: on


def attention_probabilities(
    q_BHSD: Tensor,
    k_BHTD: Tensor,
    mask: Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """The softmax of a scaled_dot_product_attention call, [B, H, S, T]; a row with no allowed key is zero.

    Source: the equivalent code in PyTorch's documentation of scaled_dot_product_attention.
    """
    if enable_gqa:
        k_BHTD = k_BHTD.repeat_interleave(q_BHSD.size(-3) // k_BHTD.size(-3), -3)
    scores = q_BHSD @ k_BHTD.transpose(-2, -1) * (q_BHSD.size(-1) ** -0.5 if scale is None else scale)
    if is_causal:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
    return torch.where(scores.amax(-1, keepdim=True) <= HIDDEN, torch.zeros_like(scores), scores.softmax(-1))


class Watch(AttentionMode):
    """Collects the probabilities of every attention, with the path of the module that called it.

    A softmax counts as attention if its result reaches a matrix product through only changes of layout and type and
    elementwise operators, as at export.
    """

    def __init__(self, path: Callable[[], str]) -> None:
        super().__init__()
        self._path = path
        self._calls: list[tuple[str, Tensor]] = []
        self._attentions: set[int] = set()
        self._origins: Any = WeakTensorKeyDictionary()  # the number of a call by what its probabilities became

    def found(self) -> Iterator[tuple[str, Tensor]]:
        """Module path and probabilities of each attention, in call order."""
        return (call for index, call in enumerate(self._calls) if index in self._attentions)

    def attention(self, func: Any, q: Tensor, k: Tensor, v: Tensor, *args: Any, **kwargs: Any) -> Any:
        """Records the probabilities; returns the call's own result."""
        call = dict(zip(("attn_mask", "dropout_p", "is_causal"), args, strict=False)) | kwargs
        self._attentions.add(len(self._calls))
        weights = attention_probabilities(
            q, k, call.get("attn_mask"), call.get("is_causal", False), call.get("scale"), call.get("enable_gqa", False)
        )
        self._calls.append((self._path(), weights))
        return func(q, k, v, *args, **kwargs)

    def softmax(self, func: Any, scores: Tensor, dim: int, *args: Any, **kwargs: Any) -> Any:
        """Records the probabilities, which count if a product follows."""
        result = func(scores, dim, *args, **kwargs)
        hidden = scores.amax(dim, keepdim=True) <= HIDDEN
        weights = torch.where(hidden, torch.zeros((), dtype=result.dtype), result)
        self._origins[result] = len(self._calls)
        self._calls.append((self._path(), weights.movedim(dim, -1)))
        return result

    def other(self, func: Any, *args: Any, **kwargs: Any) -> Any:
        """Follows probabilities to the product that uses them."""
        result = func(*args, **kwargs)
        tensors = (value for value in tree_leaves(args) if isinstance(value, Tensor))
        origins = {self._origins[tensor] for tensor in tensors if tensor in self._origins}
        name = operator_name(func).removesuffix("_")
        if name in ATTENTION_PRODUCTS:
            self._attentions |= origins
        elif origins and name in _TRANSPARENT:
            for value in tree_leaves(result):
                self._origins[value] = max(origins)
        return result


@contextmanager
def module_paths(module: torch.nn.Module) -> Iterator[Callable[[], str]]:
    """Yields a function that returns the path of the innermost module whose forward is running."""
    stack: list[str] = []
    handles = []
    for path, part in module.named_modules():
        handles.append(part.register_forward_pre_hook(lambda *_, path=path: stack.append(path)))
        handles.append(part.register_forward_hook(lambda *_: stack.pop() and None, always_call=True))
    try:
        yield lambda: stack[-1] if stack else ""
    finally:
        for handle in handles:
            handle.remove()


def numbered(attentions: Iterator[tuple[str, Tensor]], batch: int) -> Mapping[str, Tensor]:
    """Names attentions as at export: by module path, with `#1`, `#2` for the second and third of one module."""
    named: dict[str, Tensor] = {}
    seen: dict[str, int] = {}
    for path, weights in attentions:
        count = seen[path] = seen.get(path, 0) + 1
        name = path or "module"
        # Handwritten attention may fold heads into the batch (3-D) or have an axis for groups (5-D).
        shape = (batch, -1, *weights.shape[-2:])
        fits = weights.dim() >= 3 and weights.numel() % (batch * weights.shape[-2] * weights.shape[-1]) == 0
        named[name if count == 1 else f"{name}#{count - 1}"] = weights.reshape(shape) if fits else weights
    return named
