"""One attention, as a module and as the ONNX file that its export gives: what every runtime is tried on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from attnport.artifacts import IOContract, ModelSpec
from attnport.dims import Dim, TensorSpec
from attnport.masks.spec import MaskSpec

VOCAB, WIDTH, HEADS = 11, 64, 2


def contract(dtype: str = "float32") -> IOContract:
    """Token ids and a padding mask in; the attention's own output and the lengths out."""
    return IOContract(
        inputs=(
            TensorSpec("ids", "int64", ("batch", "seq"), VOCAB),
            TensorSpec("keep", "bool", ("batch", "seq")),
        ),
        outputs=(
            TensorSpec("attended", dtype, ("batch", "seq", WIDTH)),
            TensorSpec("lengths", "int64", ("batch",)),
        ),
        dims=(Dim("batch", 1, 2, 8), Dim("seq", 1, 8, 32)),
        masks=(MaskSpec(("padding",), "keep"),),
        positions="none",
    )


class OneAttention(nn.Module):
    """Embedding, projections, one attention whose output is the model's."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCAB, WIDTH)
        self.project = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, ids: torch.Tensor, keep: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        B, S = ids.shape
        q, k, v = self.project(self.words(ids)).view(B, S, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4).unbind(0)
        mask_B1SS = keep[:, None, None, :].expand(B, 1, S, S)
        mixed_BHSD = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask_B1SS)
        return mixed_BHSD.transpose(1, 2).reshape(B, S, WIDTH), keep.sum(1)


def make() -> OneAttention:
    """The module, the same every time, with values of order one."""
    torch.manual_seed(0)
    module = OneAttention().eval()
    with torch.no_grad():
        module.project.weight.mul_(3)
    return module


@dataclass(frozen=True)
class Model:
    """The module's spec and its exports by plan."""

    spec: ModelSpec
    files: dict[str, Path]
