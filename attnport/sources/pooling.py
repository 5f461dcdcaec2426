"""The pooling and normalisation of a sentence-transformers folder, as an exportable module."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import nn

from attnport.errors import SpecError
from attnport.sources.hf_files import check_link

MODES = ("mean", "cls", "max")
_ALONE = "Export the transformer alone: hf: with a copy of the folder without modules.json."


class Pooling(nn.Module):
    """One vector per sentence: the mean or maximum of the real tokens' vectors, or the first one; normalised or not.

    Source: sentence-transformers' `Pooling` and `Normalize`. A row without a real token, whose result is undefined
    there, gives zero here (for `cls` the first vector).
    """

    def __init__(self, mode: str, *, normalise: bool) -> None:
        super().__init__()
        self.mode = mode
        self.normalise = normalise

    def forward(self, hidden_BTE: torch.Tensor, attention_mask_BT: torch.Tensor) -> torch.Tensor:
        """`[B,T,E]` and a keep-mask `[B,T]` to `[B,E]`."""
        keep_BT1 = attention_mask_BT.to(torch.bool).unsqueeze(-1)
        if self.mode == "cls":
            pooled = hidden_BTE[:, 0]
        elif self.mode == "max":
            low = torch.finfo(hidden_BTE.dtype).min
            pooled = torch.where(keep_BT1.any(1), torch.where(keep_BT1, hidden_BTE, low).amax(1), 0.0)
        else:
            # `where`, not a product: padded rows may be large, and in half precision the sum could overflow.
            total = torch.where(keep_BT1, hidden_BTE, 0.0).sum(1)
            pooled = total / keep_BT1.sum(1).clamp(min=1).to(hidden_BTE.dtype)
        if not self.normalise:
            return pooled
        # The norm is in float32, since a sum of squares overflows in half precision. The minimum is for a zero vector.
        wide = pooled if pooled.dtype == torch.float64 else pooled.float()
        norm = wide.square().sum(-1, keepdim=True).sqrt().clamp(min=1e-12)
        return (wide / norm).to(pooled.dtype)


def read_pooling(folder: Path) -> Pooling | None:
    """The pooling that `modules.json` and the pooling's `config.json` describe; None for a folder without them.

    Raises:
        SpecError: a module or mode of sentence-transformers is not supported, or the files have another format.
    """
    if not (folder / "modules.json").is_file():
        return None
    modules = _json(folder / "modules.json")
    if not isinstance(modules, list) or not all(isinstance(module, dict) for module in modules):
        raise SpecError(
            f"{folder / 'modules.json'} is not what sentence-transformers writes: it is not a list of modules."
        )
    kinds = [str(module.get("type", "")).rpartition(".")[2] for module in modules]
    unknown = [kind for kind in kinds if kind not in ("Transformer", "Pooling", "Normalize")]
    if unknown:
        raise SpecError(f"{folder}: sentence-transformers module {unknown[0]} is not supported.", hint=_ALONE)
    if kinds == ["Transformer"]:
        return None
    if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        raise SpecError(
            f"{folder}: got modules {', '.join(kinds) or 'none'}; expected Transformer, Pooling, optionally Normalize.",
            hint=_ALONE,
        )
    return Pooling(_mode(folder, str(modules[1].get("path", "1_Pooling"))), normalise="Normalize" in kinds)


def _mode(folder: Path, path: str) -> str:
    if Path(path).is_absolute() or ".." in Path(path).parts:
        raise SpecError(f"{folder / 'modules.json'} names {path!r}, which is outside the folder.")
    check_link(folder, folder / path / "config.json")
    config = _json(folder / path / "config.json")
    if not isinstance(config, dict):
        raise SpecError(f"{folder / path / 'config.json'} is not what sentence-transformers writes.")
    prefix = "pooling_mode_"
    if isinstance(config.get("pooling_mode"), str):
        modes = [config["pooling_mode"]]
    else:
        modes = [
            name.removeprefix(prefix).removesuffix("_tokens").removesuffix("_token")
            for name, on in config.items()
            if name.startswith(prefix) and on
        ]
    if len(modes) != 1 or modes[0] not in MODES:
        raise SpecError(
            f"{folder}: got pooling {', '.join(modes) or 'none'}; expected one of {', '.join(MODES)}.", hint=_ALONE
        )
    return str(modes[0])


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as err:
        raise SpecError(f"{path} cannot be read: {err}", hint="Fetch the folder again.") from err
