"""Weights given to another module under its names: what is missing or has no place is noticed."""

from __future__ import annotations

import pytest
import torch
from equal_weights import filled, renamed
from torch import nn


def pair(*names: str) -> nn.ModuleDict:
    return nn.ModuleDict({name: nn.Linear(2, 2) for name in names})


def test_weights_arrive_under_the_other_names() -> None:
    ours, theirs = pair("up", "down"), pair("first", "second")
    given, found = ours.state_dict(), filled(theirs, renamed(ours, {"up": "first", "down": "second"}))
    assert torch.equal(found.get_parameter("first.weight"), given["up.weight"])
    assert torch.equal(found.get_parameter("second.bias"), given["down.bias"])
    assert not found.training


def test_a_parameter_without_a_weight_is_noticed() -> None:
    with pytest.raises(AssertionError):
        filled(pair("first", "second"), renamed(pair("up", "down"), {"up": "first", "down": "-"}))


def test_a_weight_without_a_place_is_noticed() -> None:
    with pytest.raises(AssertionError):
        filled(pair("first"), renamed(pair("up", "down"), {"up": "first", "down": "third"}))


def test_a_module_that_has_no_name_there_is_noticed() -> None:
    with pytest.raises(KeyError, match="down"):
        renamed(pair("up", "down"), {"up": "first"})
