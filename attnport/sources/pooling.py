"""The pooling and normalisation of a sentence-transformers folder, as a module that can be exported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import nn

from attnport.errors import SpecError

MODES = ("mean", "cls", "max")


class Pooling(nn.Module):
    """One vector a sentence: the mean, the maximum or the first of the real tokens' vectors, normalised or not."""

    def __init__(self, mode: str, *, normalise: bool) -> None:
        super().__init__()
        self.mode = mode
        self.normalise = normalise

    def forward(self, hidden_BTE: torch.Tensor, attention_mask_BT: torch.Tensor) -> torch.Tensor:
        """`[B,T,E]` and a keep-mask `[B,T]` to `[B,E]`; a row without a real token gives zero."""
        keep_BT1 = attention_mask_BT.to(torch.bool).unsqueeze(-1)
        if self.mode == "cls":
            pooled = hidden_BTE[:, 0]
        elif self.mode == "max":
            low = torch.finfo(hidden_BTE.dtype).min
            pooled = torch.where(keep_BT1, hidden_BTE, low).amax(1)
        else:
            # `where`, not a product: a padded row may hold anything finite, and in half precision its sum may not be.
            total = torch.where(keep_BT1, hidden_BTE, 0.0).sum(1)
            pooled = total / keep_BT1.sum(1).clamp(min=1).to(hidden_BTE.dtype)
        if not self.normalise:
            return pooled
        # The norm in float32: a sum of squares leaves the range of half precision. The floor is for a zero vector.
        wide = pooled if pooled.dtype == torch.float64 else pooled.float()
        norm = wide.square().sum(-1, keepdim=True).sqrt().clamp(min=1e-12)
        return (wide / norm).to(pooled.dtype)


def read_pooling(folder: Path) -> Pooling | None:
    """The pooling that `modules.json` and `1_Pooling/config.json` describe; None for a folder without.

    Raises:
        SpecError: a module or a mode of sentence-transformers that is not supported.
    """
    if not (folder / "modules.json").is_file() or not (folder / "1_Pooling" / "config.json").is_file():
        return None
    modules, config = _json(folder / "modules.json"), _json(folder / "1_Pooling" / "config.json")
    if not isinstance(modules, list) or not isinstance(config, dict):
        raise SpecError(f"{folder}: modules.json or 1_Pooling/config.json is not what sentence-transformers writes.")
    kinds = [str(module.get("type", "")).rpartition(".")[2] for module in modules if isinstance(module, dict)]
    unknown = [kind for kind in kinds if kind not in ("Transformer", "Pooling", "Normalize")]
    if unknown:
        raise SpecError(f"{folder}: sentence-transformers module {unknown[0]} is not supported.")
    if isinstance(config.get("pooling_mode"), str):
        modes = [config["pooling_mode"]]
    else:
        modes = [
            name.removeprefix("pooling_mode_").removesuffix("_tokens").removesuffix("_token")
            for name, on in config.items()
            if name.startswith("pooling_mode_") and on
        ]
    if len(modes) != 1 or modes[0] not in MODES:
        raise SpecError(
            f"{folder}: got pooling {', '.join(modes) or 'none'}; expected one of {', '.join(MODES)}.",
            hint="Export the transformer alone, from a copy of the folder without 1_Pooling.",
        )
    return Pooling(modes[0], normalise="Normalize" in kinds)


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except (ValueError, OSError) as err:
        raise SpecError(f"{path} cannot be read: {err}") from err
