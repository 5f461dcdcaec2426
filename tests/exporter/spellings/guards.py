"""Between the scores and v: guards against NaN, zeroed rows, dropout, casts, weights that are returned."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from attnport.dims import TensorSpec
from spellings.case import MASK, PADDED, PADDING, PLAIN, Case, D, H, Projected, X, Y, contract, projected, scores


def _filled(q: Any, k: Any, mask: Any) -> Any:
    return scores(q, k).masked_fill(mask[:, None, None, :] == 0, -math.inf)


def _nan_to_num(q: Any, k: Any, v: Any, mask: Any) -> Any:
    return torch.nan_to_num(_filled(q, k, mask).softmax(-1)) @ v


def _finite_scores(q: Any, k: Any, v: Any, mask: Any) -> Any:
    """torchscale's: the scores are guarded before a mask is added."""
    attn = torch.nan_to_num(scores(q, k))
    return (attn + torch.zeros_like(mask, dtype=q.dtype).masked_fill(mask == 0, -math.inf)[:, None, None]).softmax(
        -1
    ) @ v


def _isnan(q: Any, k: Any, v: Any, mask: Any) -> Any:
    attn = _filled(q, k, mask).softmax(-1)
    return torch.where(torch.isnan(attn), torch.zeros_like(attn), attn) @ v


def _nan_filled(q: Any, k: Any, v: Any, mask: Any) -> Any:
    attn = _filled(q, k, mask).softmax(-1)
    return attn.masked_fill(attn != attn, 0.0) @ v


def _filled_after(q: Any, k: Any, v: Any, mask: Any) -> Any:
    """ESPnet's: hidden probabilities are made zero once more."""
    hidden = mask[:, None, None, :].eq(0)
    attn = scores(q, k).masked_fill(hidden, torch.finfo(q.dtype).min)
    return torch.softmax(attn, dim=-1).masked_fill(hidden, 0.0) @ v


def _multiplied_after(q: Any, k: Any, v: Any, mask: Any) -> Any:
    keep = mask[:, None, None, :].to(q.dtype)
    attn = (scores(q, k) + (1 - keep) * -1e9).softmax(dim=-1)
    return (attn * keep) @ v


def _rows_zeroed(q: Any, k: Any, v: Any, mask: Any) -> Any:
    """Rows that see nothing are given zero probabilities, as torch's own guarded softmax does."""
    hidden = (mask == 0)[:, None, None, :].expand(-1, -1, q.shape[2], -1)
    attn = scores(q, k).masked_fill(hidden, -math.inf)
    empty = hidden.all(dim=-1, keepdim=True)
    return torch.where(empty, 0.0, attn.softmax(-1)) @ v


class Dropout(Projected):
    """A dropout module, asleep in eval."""

    def __init__(self) -> None:
        super().__init__(self.attention)
        self.attn_dropout, self.resid_dropout = nn.Dropout(0.1), nn.Dropout(0.1)

    def attention(self, q: Any, k: Any, v: Any, mask: Any) -> Any:
        return self.resid_dropout(self.attn_dropout(nn.functional.softmax(_filled(q, k, mask), dim=-1)) @ v)


class FunctionalDropout(Projected):
    """Dropout that asks the module whether it trains."""

    def __init__(self) -> None:
        super().__init__(self.attention)

    def attention(self, q: Any, k: Any, v: Any) -> Any:
        attn = nn.functional.softmax(scores(q, k), dim=-1)
        return torch.matmul(nn.functional.dropout(attn, p=0.5, training=self.training), v)


def _log_softmax(q: Any, k: Any, v: Any, mask: Any) -> Any:
    return torch.log_softmax(_filled(q, k, mask), dim=-1).exp() @ v


def _softmax_module(q: Any, k: Any, v: Any) -> Any:
    return nn.Softmax(dim=3)(scores(q, k)).matmul(v)


def _float_softmax(q: Any, k: Any, v: Any, mask: Any) -> Any:
    """transformers' eager attention: the softmax asks for float32 and gives back the queries' type."""
    attn = _filled(q, k, mask)
    return nn.functional.softmax(attn, dim=-1, dtype=torch.float32).to(q.dtype) @ v


def _half_products(q: Any, k: Any, v: Any, mask: Any) -> Any:
    """Products in half precision inside a float32 model, the softmax between them in float32."""
    q, k, v = q.half(), k.half(), v.half()
    attn = torch.matmul(q, k.transpose(-1, -2)).float() * D**-0.5
    attn = attn.masked_fill(mask[:, None, None, :] == 0, -1e9)
    return torch.matmul(attn.softmax(-1).half(), v).float()


def _weights_too(q: Any, k: Any, v: Any, mask: Any) -> Any:
    weights = _filled(q, k, mask).softmax(-1)
    return weights @ v, weights


def _weights_averaged(q: Any, k: Any, v: Any, mask: Any) -> Any:
    weights = _filled(q, k, mask).softmax(-1)
    return weights @ v, weights.mean(dim=1)


def _weights_kept_by_dropout(q: Any, k: Any, v: Any, mask: Any) -> Any:
    """The weights that are returned were guarded and went through dropout."""
    weights = torch.nan_to_num(_filled(q, k, mask).softmax(-1), nan=0.0)
    weights = nn.functional.dropout(weights, 0.1, training=False)
    return torch.matmul(weights, v), weights


def _scores_too(q: Any, k: Any, v: Any) -> Any:
    """The scores before the softmax are returned."""
    attn = scores(q, k)
    return attn.softmax(-1) @ v, attn


_WEIGHTS = TensorSpec("weights", "float32", ("batch", H, "seq", "seq"))
_AVERAGE = TensorSpec("weights", "float32", ("batch", "seq", "seq"))
_RETURNED = contract(X, MASK, outputs=(Y, _WEIGHTS), masks=(PADDING,))
CASES: dict[str, Case] = {
    **{
        name: projected(attend, PADDED, "padding(mask)")
        for name, attend in {
            "nan_to_num": _nan_to_num,
            "finite_scores": _finite_scores,
            "isnan": _isnan,
            "nan_filled": _nan_filled,
            "filled_after": _filled_after,
            "multiplied_after": _multiplied_after,
            "rows_zeroed": _rows_zeroed,
            "log_softmax": _log_softmax,
            "float_softmax": _float_softmax,
        }.items()
    },
    "half_products": projected(_half_products, PADDED, "padding(mask)", within=4e-3),
    "dropout": Case(Dropout, PADDED, "padding(mask)"),
    "functional_dropout": Case(FunctionalDropout, PLAIN, "none"),
    "softmax_module": projected(_softmax_module),
    "weights_too": projected(_weights_too, _RETURNED, "padding(mask)"),
    "weights_averaged": projected(
        _weights_averaged, contract(X, MASK, outputs=(Y, _AVERAGE), masks=(PADDING,)), "padding(mask)"
    ),
    "weights_guarded": projected(_weights_kept_by_dropout, _RETURNED, "padding(mask)"),
    "scores_too": projected(_scores_too, contract(X, outputs=(Y, _WEIGHTS))),
}
