"""A new file in `attnport/models` is enough for new models: they are listed, and made in any size."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from attnport import models
from attnport.errors import SpecError
from attnport.models import base

TWO_MODELS = '''
import torch
from attnport.models.base import model, sequence_contract

@model("planted_sum", lambda sizes: sequence_contract(sizes.width, inputs=(), masks=()))
class Sum(torch.nn.Linear):
    """The first of two.

    And more of it.
    """

    def __init__(self, width: int = 4) -> None:
        super().__init__(width, width)

    def adjust_random_weights(self) -> None:
        self.bias.fill_(7.0)

@model("planted_identity", lambda sizes: sequence_contract(3, inputs=(), masks=()))
class Identity(torch.nn.Module):
    """The second."""

class Part(torch.nn.Module):
    """No model."""
'''


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file with two models beside the real ones."""
    (tmp_path / "planted.py").write_text(TWO_MODELS)
    real = base.files
    monkeypatch.setattr(base, "files", lambda package: [*real(package), tmp_path / "planted.py"])
    monkeypatch.setattr(models, "__path__", [*models.__path__, str(tmp_path)])
    monkeypatch.setattr(base, "_in_files", base._in_files.__wrapped__)
    monkeypatch.delitem(sys.modules, "attnport.models.planted", raising=False)


@pytest.mark.usefixtures("planted")
def test_the_models_of_a_new_file_are_listed_without_importing_it() -> None:
    found = {name: text for name, text in base.descriptions().items() if name.startswith("planted")}
    assert found == {"planted_identity": "The second.", "planted_sum": "The first of two."}
    assert "attnport.models.planted" not in sys.modules


@pytest.mark.usefixtures("planted")
def test_a_model_is_made_in_any_size_and_its_contract_follows() -> None:
    usual, wide, other = base.get("planted-sum"), base.get("planted_sum", width=6), base.get("planted_sum", seed=1)
    assert [spec.io.inputs[0].dims[-1] for spec in (usual, wide)] == [4, 6]
    assert wide.make()(torch.zeros(6)).tolist() == [7.0] * 6
    first, second = (spec.make().state_dict()["weight"] for spec in (usual, other))
    assert not torch.equal(first, second)


def test_a_size_that_a_model_does_not_have_is_refused() -> None:
    with pytest.raises(TypeError, match="depth"):
        base.get("masked_self_attention", depth=3)


def test_a_name_that_no_model_has_is_an_error_that_lists_those_there_are() -> None:
    with pytest.raises(SpecError, match=r"'blocks' is no model of attnport; there are additive_attention, .*t5"):
        base.get("blocks")
