"""A module of ours and one of transformers with the same weights."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

ATTENTION = {"project.query": "q", "project.key": "k", "project.value": "v", "out": "o"}
"""The projections of our attentions, and the letters that T5 and LLaMA have for them."""


def renamed(ours: nn.Module, names: Mapping[str, str], prefix: str = "") -> dict[str, torch.Tensor]:
    """Weights under the other side's names, by the paths of the modules that own them; "-" leaves a module out."""
    split = ((key.rpartition("."), value) for key, value in ours.state_dict().items())
    return {f"{prefix}{names[own]}.{leaf}": value for (own, _, leaf), value in split if names[own] != "-"}


def filled(theirs: nn.Module, weights: Mapping[str, torch.Tensor]) -> nn.Module:
    """The other module in eval mode, with these weights; every one of its parameters must be set."""
    missing, unexpected = theirs.load_state_dict(weights, strict=False)
    assert not unexpected
    assert not [name for name in missing if name in dict(theirs.named_parameters())]
    return theirs.eval()
