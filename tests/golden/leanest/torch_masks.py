"""The blocks of `leanest_masks.py` as plain torch modules: what a user would write, for the project's own path."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from attention_block import MODEL_DIM, Sizes, dims
from leanest_masks import BUCKETS, CAP, LEANEST, WINDOW
from torch import nn
from torch.nn.functional import scaled_dot_product_attention as sdpa

from attnport.artifacts import EngineRecord, IOContract
from attnport.dims import TensorSpec
from attnport.masks import MaskSpec

INPUTS = {
    "mask": TensorSpec("mask", "int64", ("batch", "seq")),
    "n": TensorSpec("n", "int64", ("batch",)),
    "p": TensorSpec("p", "int64", ("batch",)),
    "documents": TensorSpec("documents", "int64", ("batch", "seq")),
    "chosen": TensorSpec("chosen", "int64", ("batch", "seq")),
    "allowed": TensorSpec("allowed", "bool", ("batch", 1, "seq", "seq")),
    "bias": TensorSpec("bias", "float32", ("batch", 1, "seq", "seq")),
}


class Masked(nn.Module):
    """Projections around `attend(q, k, v, ...)`."""

    def __init__(self, attend: Callable[..., Any], sizes: Sizes) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.attend, self.sizes = attend, sizes
        self.q = nn.Linear(MODEL_DIM, sizes.heads * sizes.depth)
        self.k = nn.Linear(MODEL_DIM, sizes.groups * sizes.depth)
        self.v = nn.Linear(MODEL_DIM, sizes.groups * sizes.value_depth)
        self.out = nn.Linear(sizes.heads * sizes.value_depth, MODEL_DIM)
        self.sinks = nn.Parameter(torch.randn(sizes.heads))
        self.table = nn.Parameter(torch.randn(sizes.heads, BUCKETS))

    def forward(
        self,
        x: Any,
        mask: Any = None,
        n: Any = None,
        p: Any = None,
        documents: Any = None,
        chosen: Any = None,
        allowed: Any = None,
        bias: Any = None,
    ) -> Any:
        given = (mask, n, p, documents, chosen, allowed, bias)
        batch, length, _ = x.shape
        heads = ((self.q, self.sizes.heads), (self.k, self.sizes.groups), (self.v, self.sizes.groups))
        q, k, v = (layer(x).view(batch, length, count, -1).transpose(1, 2) for layer, count in heads)
        known = {"sinks": self.sinks, "table": self.table, **dict(zip(INPUTS, given, strict=True))}
        found = self.attend(q, k, v, **{name: known[name] for name in _wanted(self.attend)})
        return self.out(found.transpose(1, 2).reshape(batch, length, -1))


def _wanted(attend: Callable[..., Any]) -> list[str]:
    """The names of what an attention takes behind q, k and v."""
    return list(inspect.signature(attend).parameters)[3:]


def _scores(q: Any, k: Any) -> Any:
    return q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])


def _indices(q: Any) -> tuple[Any, Any]:
    return torch.arange(q.shape[2])[:, None], torch.arange(q.shape[2])[None, :]


def _causal(q: Any) -> Any:
    return torch.ones(q.shape[2], q.shape[2], dtype=torch.bool).tril()


def _window(q: Any) -> Any:
    i, j = _indices(q)
    return (i - j <= WINDOW) & (j <= i)


def _padding(mask: Any) -> Any:
    return mask.bool()[:, None, None, :]


def _hide(keep: Callable[..., Any]) -> Callable[..., Any]:
    """Attention whose mask is `keep(q, ...)`, by `masked_fill`."""
    names = list(inspect.signature(keep).parameters)[1:]

    def attend(q: Any, k: Any, v: Any, **rest: Any) -> Any:
        return _scores(q, k).masked_fill(~keep(q, *rest.values()), -math.inf).softmax(-1) @ v

    attend.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in ("q", "k", "v", *names)]
    )
    return attend


def _grouped(q: Any, k: Any, v: Any, keep: Any = None, *, causal: bool = False) -> Any:
    return sdpa(q, k, v, attn_mask=keep, is_causal=causal, enable_gqa=True)


def _slopes(q: Any) -> Any:
    i, j = _indices(q)
    return 2.0 ** -torch.arange(1.0, q.shape[1] + 1)[:, None, None] * (j - i).to(q.dtype)


def _alibi(keep: Callable[..., Any]) -> Callable[..., Any]:
    names = list(inspect.signature(keep).parameters)[1:]

    def attend(q: Any, k: Any, v: Any, **rest: Any) -> Any:
        return (_scores(q, k) + _slopes(q)).masked_fill(~keep(q, *rest.values()), -math.inf).softmax(-1) @ v

    attend.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in ("q", "k", "v", *names)]
    )
    return attend


def _gathered(q: Any, k: Any, v: Any, table: Any) -> Any:
    i, j = _indices(q)
    scores = _scores(q, k) + table[:, (i - j).clamp(0, BUCKETS - 1)]
    return scores.masked_fill(~_causal(q), -math.inf).softmax(-1) @ v


def _capped(q: Any, k: Any, v: Any, mask: Any) -> Any:
    return (CAP * torch.tanh(_scores(q, k) / CAP)).masked_fill(~_padding(mask), -math.inf).softmax(-1) @ v


def _sunk(q: Any, k: Any, v: Any, sinks: Any, mask: Any) -> Any:
    scores = _scores(q, k).masked_fill(~(_causal(q) & _padding(mask)), -math.inf)
    column = sinks.view(1, -1, 1, 1).expand(q.shape[0], -1, q.shape[2], 1)
    return torch.cat([scores, column], -1).softmax(-1)[..., :-1] @ v


def _symmetric(q: Any) -> Any:
    i, j = _indices(q)
    return (i - j <= WINDOW) & (j - i <= WINDOW)


def _documents(q: Any, documents: Any) -> Any:
    return (documents[:, :, None] == documents[:, None, :])[:, None]


def _local_global(q: Any, chosen: Any) -> Any:
    either = chosen.bool()[:, None, :, None] | chosen.bool()[:, None, None, :]
    return _symmetric(q) | either


ATTENDS: dict[str, Callable[..., Any]] = {
    "none": lambda q, k, v: sdpa(q, k, v),
    "padding": _hide(lambda q, mask: _padding(mask)),
    "lengths": _hide(lambda q, n: (torch.arange(q.shape[2])[None] < n[:, None])[:, None, None]),
    "causal": _hide(lambda q: _causal(q)),
    "causal_padding": _hide(lambda q, mask: _causal(q) & _padding(mask)),
    "window": _hide(_symmetric),
    "window_causal": _hide(lambda q: _window(q)),
    "window_causal_padding": _hide(lambda q, mask: _window(q) & _padding(mask)),
    "prefix": _hide(lambda q, p: _causal(q) | (torch.arange(q.shape[2]) < p[:, None])[:, None, None]),
    "documents": _hide(_documents),
    "documents_causal": _hide(lambda q, documents: _causal(q) & _documents(q, documents)),
    "local_global": _hide(_local_global),
    "explicit": _hide(lambda q, allowed: allowed),
    "bias": lambda q, k, v, bias: sdpa(q, k, v, attn_mask=bias),
    "alibi": _alibi(lambda q, mask: _padding(mask)),
    "alibi_causal": _alibi(lambda q: _causal(q)),
    "alibi_causal_padding": _alibi(lambda q, mask: _causal(q) & _padding(mask)),
    "gathered": _gathered,
    "softcap": _capped,
    "sink": _sunk,
    "grouped": lambda q, k, v: _grouped(q, k, v),
    "grouped_padding": lambda q, k, v, mask: _grouped(q, k, v, _padding(mask).expand(-1, -1, q.shape[2], -1)),
    "grouped_causal": lambda q, k, v: _grouped(q, k, v, causal=True),
    "grouped_causal_padding": lambda q, k, v, mask: _grouped(q, k, v, _causal(q) & _padding(mask)),
    "one_head": _hide(lambda q, mask: _padding(mask)),
    "narrow_values": _hide(lambda q, mask: _padding(mask)),
}
"""By kind, as in `LEANEST`."""


def module(kind: str) -> tuple[nn.Module, tuple[TensorSpec, ...]]:
    """The block and its inputs."""
    attend, sizes = ATTENDS[kind], LEANEST[kind][1]
    x = TensorSpec("x", "float32", ("batch", "seq", MODEL_DIM))
    return Masked(attend, sizes).eval(), (x, *(INPUTS[name] for name in _wanted(attend) if name in INPUTS))


def engine_of_ours(
    kind: str, folder: Path, *, batch: int = 4, sequence: int = 4096
) -> tuple[EngineRecord, object, str]:
    """The project's own engine of the module: its record, the proof that it is fused, and its form's name."""
    from attnport.exporter import storage
    from attnport.exporter.capture import capture
    from attnport.exporter.engine.build import build_engine
    from attnport.exporter.engine.evidence import prove, read_engine_text
    from attnport.exporter.targets import base

    made, specs = module(kind)
    out = TensorSpec("y", "float32", ("batch", "seq", MODEL_DIM))
    masks = tuple(MaskSpec(("padding",), spec.name) for spec in specs if spec.name == "mask")
    io = IOContract(specs, (out,), dims(batch, sequence, specs), masks)
    found = capture(made, io)
    low = base.get("tensorrt_rtx").lower(found.model, found.attentions, masks=masks, plan="fp16")
    assert list(low.forms) == [attention.name for attention in found.attentions], low.notes
    storage.save_form(low.model, folder / "ours.onnx", "ours.bin")
    record = build_engine("tensorrt_rtx", folder / "ours.onnx", io, folder / "ours.engine")
    (name,) = low.anchors
    return record, prove(read_engine_text(folder / "ours.engine"), low.anchors[name], 1), low.forms[name]
