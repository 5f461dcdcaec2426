"""How people write the two products: einsum in its letterings, bmm over merged heads, baddbmm, other orders of axes."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from attnport.dims import TensorSpec
from spellings.case import MASK, PADDED, PADDING, PLAIN, Case, D, E, H, contract, flat, heads, projected


def _einsum(q: Any, k: Any, v: Any, mask: Any) -> Any:
    attn = torch.einsum("bhid,bhjd->bhij", q, k) * D**-0.5
    attn = attn.masked_fill(~mask.bool()[:, None, None], -torch.finfo(attn.dtype).max)
    return torch.einsum("bhij,bhjd->bhid", attn.softmax(dim=-1), v)


def _einsum_ellipsis(q: Any, k: Any, v: Any) -> Any:
    attn = torch.einsum("...qd,...kd->...qk", q, k) / math.sqrt(D)
    return torch.einsum("...qk,...kd->...qd", torch.softmax(attn, -1), v)


def _einsum_swapped(q: Any, k: Any, v: Any, mask: Any) -> Any:
    """Keys and values as the first operands."""
    attn = torch.einsum("bhjd,bhid->bhij", k, q) / math.sqrt(D)
    attn = attn.masked_fill(mask[:, None, None] == 0, -1e9)
    return torch.einsum("bhjd,bhij->bhid", v, attn.softmax(dim=-1))


def _mT(q: Any, k: Any, v: Any) -> Any:  # noqa: N802
    return torch.softmax(q @ k.mT * D**-0.5, dim=-1) @ v


def _matmul(q: Any, k: Any, v: Any) -> Any:
    return torch.matmul(nn.functional.softmax(torch.matmul(q, k.permute(0, 1, 3, 2)) / D**0.5, dim=-1), v)


class Lettered(nn.Module):
    """Projections to `[B,S,H,D]` whose products are einsums; `letters` of the two."""

    def __init__(self, to_scores: str, to_out: str) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.to_q, self.to_k, self.to_v = (nn.Linear(E, E, bias=False) for _ in range(3))
        self.to_scores, self.to_out = to_scores, to_out

    def forward(self, x: Any, mask: Any) -> Any:
        q, k, v = (each(x).view(*x.shape[:2], H, D) for each in (self.to_q, self.to_k, self.to_v))
        sim = torch.einsum(self.to_scores, q * D**-0.5, k)
        sim = sim + torch.where(mask.bool(), 0.0, -1e9).to(sim.dtype)[:, None, None, :]
        return torch.einsum(self.to_out, sim.softmax(dim=-1), v).flatten(2)


class Flax(nn.Module):
    """Projections that are einsums too, as in models that came from JAX."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.w_qkv = nn.Parameter(torch.randn(3, E, H, D) / 4)
        self.w_o = nn.Parameter(torch.randn(H, D, E) / 4)

    def forward(self, x: Any) -> Any:
        q, k, v = torch.einsum("bse,cehd->cbshd", x, self.w_qkv)
        weights = torch.softmax(torch.einsum("bqhd,bkhd->bhqk", q / math.sqrt(D), k), dim=-1)
        return torch.einsum("bqhd,hde->bqe", torch.einsum("bhqk,bkhd->bqhd", weights, v), self.w_o)


class FusedOut(Flax):
    """The output projection in the same einsum: heads are summed there."""

    def forward(self, x: Any) -> Any:
        q, k, v = torch.einsum("bse,cehd->cbhsd", x, self.w_qkv)
        weights = torch.softmax(torch.einsum("bhqd,bhkd->bhqk", q, k) / math.sqrt(D), dim=-1)
        return torch.einsum("bhqk,bhkd,hde->bqe", weights, v, self.w_o)


class Merged(nn.Module):
    """fairseq's and BART's: batch and heads in one axis for bmm; the mask is added in between."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(6)
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Linear(E, E) for _ in range(4))

    def _shape(self, tensor: Any, length: int, batch: int) -> Any:
        return tensor.view(batch, length, H, D).transpose(1, 2).contiguous()

    def forward(self, x: Any, mask: Any) -> Any:
        bsz, tgt_len, _ = x.size()
        proj_shape = (bsz * H, -1, D)
        q = self._shape(self.q_proj(x) * D**-0.5, tgt_len, bsz).view(*proj_shape)
        k = self._shape(self.k_proj(x), tgt_len, bsz).view(*proj_shape)
        v = self._shape(self.v_proj(x), tgt_len, bsz).view(*proj_shape)
        src_len = k.size(1)
        attn_weights = torch.bmm(q, k.transpose(1, 2))
        low = (1.0 - mask[:, None, None, :].to(q.dtype)) * torch.finfo(torch.float32).min
        attn_weights = attn_weights.view(bsz, H, tgt_len, src_len) + low
        attn_weights = attn_weights.view(bsz * H, tgt_len, src_len)
        attn = torch.bmm(nn.functional.softmax(attn_weights, dim=-1), v)
        return self.out_proj(attn.view(bsz, H, tgt_len, D).transpose(1, 2).reshape(bsz, tgt_len, E))


class MergedPlain(Merged):
    """No mask: the scores stay of rank 3."""

    def forward(self, x: Any) -> Any:
        b, s, _ = x.shape
        q, k, v = (
            p(x).view(b, s, H, D).permute(0, 2, 1, 3).reshape(b * H, s, D)
            for p in (self.q_proj, self.k_proj, self.v_proj)
        )
        out = torch.bmm(torch.softmax(torch.bmm(q, k.transpose(1, 2)) / math.sqrt(D), dim=-1), v)
        return self.out_proj(out.reshape(b, H, s, D).permute(0, 2, 1, 3).reshape(b, s, E))


class TimeFirst(Merged):
    """fairseq's order `[S,B,E]`: batch and heads merge without a transposition; its mask hides and is boolean."""

    def forward(self, x: Any, mask: Any) -> Any:
        tgt_len, bsz, _ = x.size()
        q, k, v = (
            p(x).contiguous().view(-1, bsz * H, D).transpose(0, 1) for p in (self.q_proj, self.k_proj, self.v_proj)
        )
        attn_weights = torch.bmm(q * D**-0.5, k.transpose(1, 2))
        attn_weights = attn_weights.view(bsz, H, tgt_len, tgt_len)
        attn_weights = attn_weights.masked_fill((mask == 0).unsqueeze(1).unsqueeze(2), float("-inf"))
        attn_weights = attn_weights.view(bsz * H, tgt_len, tgt_len)
        attn = torch.bmm(attn_weights.softmax(-1), v)
        return self.out_proj(attn.transpose(0, 1).contiguous().view(tgt_len, bsz, E))


class StackedOnBatch(Merged):
    """The heads are cut from the last axis and stacked on the batch, as in early TensorFlow code; so is the mask."""

    def forward(self, x: Any, mask: Any) -> Any:
        q, k, v = (torch.cat(torch.chunk(p(x), H, dim=2), dim=0) for p in (self.q_proj, self.k_proj, self.v_proj))
        scores = torch.bmm(q, k.permute(0, 2, 1)) / math.sqrt(D)
        keep = mask.repeat(H, 1)[:, None, :]
        scores = torch.where(keep == 0, torch.ones_like(scores) * (-(2.0**32) + 1), scores)
        out = torch.bmm(scores.softmax(-1), v)
        return self.out_proj(torch.cat(out.view(H, *x.shape[:2], D).unbind(0), dim=2))


class Baddbmm(Merged):
    """BLOOM's: keys kept transposed, a bias of positions as baddbmm's input."""

    def forward(self, x: Any, mask: Any) -> Any:
        b, s, _ = x.shape
        q, v = (p(x).view(b, s, H, D).transpose(1, 2).reshape(b * H, s, D) for p in (self.q_proj, self.v_proj))
        k = self.k_proj(x).view(b, s, H, D).permute(0, 2, 3, 1).reshape(b * H, D, s)
        position = ((mask.cumsum(dim=-1) - 1) * mask)[:, None, :]
        alibi = torch.tensor([0.5, 0.25, 0.125, 0.0625], dtype=q.dtype)[None, :, None] * position
        scores = alibi.reshape(b * H, 1, s).baddbmm(batch1=q, batch2=k, beta=1.0, alpha=D**-0.5)
        scores = scores.view(b, H, s, s).masked_fill(mask[:, None, None, :] == 0, torch.finfo(q.dtype).min)
        context = torch.bmm(scores.softmax(-1).view(b * H, s, s), v)
        return self.out_proj(context.view(b, H, s, D).transpose(1, 2).reshape(b, s, E))


class BaddbmmMask(Merged):
    """The additive mask as baddbmm's input."""

    def forward(self, x: Any, mask: Any) -> Any:
        b, s, _ = x.shape
        q, k, v = (
            p(x).view(b, s, H, D).transpose(1, 2).reshape(b * H, s, D) for p in (self.q_proj, self.k_proj, self.v_proj)
        )
        low = torch.zeros(b, 1, 1, s, dtype=q.dtype).masked_fill(mask[:, None, None, :] == 0, -1e9)
        low = low.expand(b, H, s, s).reshape(b * H, s, s)
        probs = torch.baddbmm(low, q, k.transpose(1, 2), alpha=D**-0.5).softmax(dim=-1)
        return self.out_proj(torch.bmm(probs, v).view(b, H, s, D).transpose(1, 2).reshape(b, s, E))


class KeysTransposed(nn.Module):
    """Keys kept as `[B,H,D,T]`."""

    def forward(self, q: Any, k_t: Any, v: Any) -> Any:
        return torch.softmax(torch.matmul(q, k_t) * D**-0.5, dim=-1) @ v


class Convolved(nn.Module):
    """A diffusion model's: 1x1 convolutions over `[B,C,L]`, keys as columns, values too."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.qkv = nn.Conv1d(E, 3 * E, 1)

    def forward(self, x: Any) -> Any:
        bs, _, length = x.shape
        q, k, v = self.qkv(x).chunk(3, dim=1)
        scale = 1 / math.sqrt(math.sqrt(D))
        q, k, v = (each.reshape(bs * H, D, length) for each in (q * scale, k * scale, v))
        weight = torch.softmax(torch.einsum("bct,bcs->bts", q, k), dim=-1)
        return torch.einsum("bts,bcs->bct", weight, v).reshape(bs, -1, length)


class NonLocal(nn.Module):
    """SAGAN's over an image: values from the left, `v @ attention^T`."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(8)
        self.query, self.key, self.value = (nn.Conv2d(E, E, 1) for _ in range(3))

    def forward(self, x: Any) -> Any:
        b, c, height, width = x.shape
        q = self.query(x).view(b, -1, height * width).permute(0, 2, 1)
        k = self.key(x).view(b, -1, height * width)
        attention = torch.softmax(torch.bmm(q, k), dim=-1)
        out = torch.bmm(self.value(x).view(b, -1, height * width), attention.permute(0, 2, 1))
        return out.view(b, c, height, width) + x


def _scores_transposed(q: Any, k: Any, v: Any, mask: Any) -> Any:
    """`k q^T`: the softmax runs over the keys all the same, which are the rows here."""
    attn = k @ q.transpose(-1, -2) / math.sqrt(D)
    attn = attn.masked_fill(mask[:, None, :, None] == 0, -math.inf).softmax(dim=-2)
    return attn.transpose(-1, -2) @ v


def _all_transposed(q: Any, k: Any, v: Any) -> Any:
    attn = (k @ q.transpose(-1, -2) * D**-0.5).softmax(dim=2)
    return (v.transpose(-1, -2) @ attn).transpose(-1, -2)


class OneSequence(nn.Module):
    """No batch, one head: matrices."""

    def forward(self, q: Any, k: Any, v: Any) -> Any:
        return torch.softmax(torch.mm(q, k.t()) / math.sqrt(q.shape[1]), dim=1).mm(v)


class OneSequenceOfHeads(nn.Module):
    """No batch: `[H,S,D]`."""

    def forward(self, q: Any, k: Any, v: Any) -> Any:
        return torch.softmax(q @ k.transpose(1, 2) / math.sqrt(D), dim=2) @ v


class Decoder(nn.Module):
    """Luong's: one query a batch row, its axis added and removed around each product."""

    def forward(self, query: Any, keys: Any, mask: Any) -> Any:
        energy = torch.bmm(keys, query.unsqueeze(2)).squeeze(2)
        weights = torch.softmax(energy.masked_fill(mask == 0, -1e10), dim=1)
        return torch.bmm(weights.unsqueeze(1), keys).squeeze(1)


class OneHead(nn.Module):
    """Scores of rank 3, nothing but attention; its output is the graph's."""

    def forward(self, q: Any, k: Any, v: Any) -> Any:
        return (torch.bmm(q, k.transpose(1, 2)) / 3.0).softmax(-1) @ v


class OneHeadHidden(nn.Module):
    """Scores of rank 3 and a mask of that rank that is taken as it is."""

    def forward(self, q: Any, k: Any, v: Any, hidden: Any) -> Any:
        return (q @ k.transpose(1, 2)).masked_fill((hidden > 0.5)[:, None, :], -math.inf).softmax(-1) @ v


def _plain(*names: str) -> tuple[TensorSpec, ...]:
    return tuple(flat(name, "seq" if name == "q" else "mem") for name in names)


def _letters(to_scores: str, to_out: str) -> Case:
    return Case(lambda: Lettered(to_scores, to_out), PADDED, "padding(mask)")


_TIME_FIRST = contract(
    TensorSpec("x", "float32", ("seq", "batch", E)), MASK,
    outputs=(TensorSpec("y", "float32", ("seq", "batch", E)),), masks=(PADDING,),
)  # fmt: skip
_COLUMNS = (TensorSpec("x", "float32", ("batch", E, "seq")), TensorSpec("y", "float32", ("batch", E, "seq")))
_IMAGE = (
    TensorSpec("x", "float32", ("batch", E, "seq", "mem")),
    TensorSpec("y", "float32", ("batch", E, "seq", "mem")),
)
_LENGTHS = {"q": "seq", "k": "mem", "v": "mem", "y": "seq"}
_ROWS = tuple(TensorSpec(name, "float32", (length, D)) for name, length in _LENGTHS.items())
_NO_BATCH = tuple(TensorSpec(name, "float32", (H, length, D)) for name, length in _LENGTHS.items())
CASES: dict[str, Case] = {
    "einsum": projected(_einsum, PADDED, "padding(mask)"),
    "einsum_ellipsis": projected(_einsum_ellipsis),
    "einsum_bihd": _letters("bihd,bjhd->bhij", "bhij,bjhd->bihd"),
    "einsum_bshd_bthd": _letters("bshd,bthd->bhst", "bhst,bthd->bshd"),
    "einsum_bnqk": _letters("bqnh,bknh->bnqk", "bnqk,bknh->bqnh"),
    "einsum_swapped": projected(_einsum_swapped, PADDED, "padding(mask)"),
    "einsum_projections": Case(Flax, PLAIN, "none"),
    "einsum_with_output_projection": Case(FusedOut, PLAIN, "none"),
    "at_mT": projected(_mT),
    "matmul": projected(_matmul),
    "bmm_merged": Case(Merged, PADDED, "padding(mask)"),
    "bmm_merged_plain": Case(MergedPlain, PLAIN, "none"),
    "bmm_time_first": Case(TimeFirst, _TIME_FIRST, "padding(mask)"),
    "bmm_stacked_on_batch": Case(StackedOnBatch, PADDED, "padding(mask)"),
    "baddbmm_alibi": Case(Baddbmm, PADDED, "padding+bias(mask)"),
    "baddbmm_mask": Case(BaddbmmMask, PADDED, "padding(mask)"),
    "keys_transposed": Case(
        KeysTransposed,
        contract(heads("q", "seq"), TensorSpec("k_t", "float32", ("batch", H, D, "mem")), heads("v", "mem"),
                 outputs=(heads("y", "seq"),)),
        "none",
    ),
    "convolved": Case(Convolved, contract(_COLUMNS[0], outputs=_COLUMNS[1:]), "none"),
    "non_local": Case(NonLocal, contract(_IMAGE[0], outputs=_IMAGE[1:]), "none"),
    "scores_transposed": projected(_scores_transposed, PADDED, "padding(mask)"),
    "all_transposed": projected(_all_transposed),
    "one_sequence": Case(OneSequence, contract(*_ROWS[:3], outputs=_ROWS[3:]), "none"),
    "one_sequence_of_heads": Case(OneSequenceOfHeads, contract(*_NO_BATCH[:3], outputs=_NO_BATCH[3:]), "none"),
    "one_query": Case(
        Decoder,
        contract(TensorSpec("query", "float32", ("batch", E)), flat("keys", "seq"), MASK,
                 outputs=(TensorSpec("y", "float32", ("batch", E)),), masks=(PADDING,)),
        "padding(mask)",
    ),
    "one_head": Case(OneHead, contract(*_plain("q", "k", "v")), "none"),
    "one_head_hidden": Case(
        OneHeadHidden,
        contract(*_plain("q", "k", "v"), TensorSpec("hidden", "float32", ("batch", "mem"))),
        "padding(hidden)",
    ),
}  # fmt: skip
