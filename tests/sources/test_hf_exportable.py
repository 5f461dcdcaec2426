"""Models of transformers that run in every precision, and are traced, wherever they are in a module."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
from torch import nn

from attnport.sources.hf.modules import make_traceable, mask_notes
from attnport.sources.memory import kept_copy

transformers: Any = pytest.importorskip("transformers")


class Around(nn.Module):
    """A model of experts inside of a user's module."""

    def __init__(self) -> None:
        super().__init__()
        config = transformers.MixtralConfig(
            vocab_size=60, hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2,
            num_key_value_heads=1, num_local_experts=3, use_cache=False,
        )  # fmt: skip
        torch.manual_seed(0)
        self.inner = transformers.MixtralModel(config)

    def forward(self, ids: torch.Tensor) -> Any:
        return self.inner(input_ids=ids).last_hidden_state


def test_a_copy_with_experts_runs_in_float64_and_the_callers_module_stays_as_it_is() -> None:
    module, ids = Around().eval(), torch.arange(10).view(2, 5)
    before = module.inner.get_experts_implementation()
    copied = kept_copy(module)
    with torch.no_grad():
        expected, got = module(ids), copied.double()(ids)
    torch.testing.assert_close(got.float(), expected, rtol=1e-4, atol=1e-5)
    assert module.inner.get_experts_implementation() == before


def test_modules_without_experts_are_left() -> None:
    make_traceable(nn.Sequential(nn.Linear(2, 2)))
    bert = transformers.BertConfig(hidden_size=16, num_attention_heads=2, num_hidden_layers=1, intermediate_size=8)
    make_traceable(transformers.BertModel(bert))


def test_tensors_are_not_kept_from_one_run_to_the_next() -> None:
    config = transformers.DINOv3ViTConfig(
        hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2, image_size=16, patch_size=4
    )
    torch.manual_seed(0)
    model = transformers.DINOv3ViTModel(config).eval()
    make_traceable(model)
    pixels = torch.randn(1, 3, 16, 16, generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        expected = model(pixel_values=pixels).last_hidden_state
    with torch.no_grad():  # which refuses a tensor that was made in inference mode
        got = model(pixel_values=pixels).last_hidden_state
    torch.testing.assert_close(got, expected)


def test_what_a_token_attends_to_does_not_depend_on_the_padding_of_others() -> None:
    """Without `make_traceable`, transformers leaves AIMv2's causal mask out where nothing is padding."""
    config = transformers.Aimv2TextConfig(
        vocab_size=60, hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2,
        max_position_embeddings=8, eos_token_id=59,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.Aimv2TextModel(config).eval()
    make_traceable(model)
    ids = torch.arange(10).view(2, 5)
    mask = torch.ones_like(ids)
    padded = mask.clone()
    padded[1, 3:] = 0
    with torch.no_grad():
        whole = model(input_ids=ids, attention_mask=mask).last_hidden_state
        other = model(input_ids=ids, attention_mask=padded).last_hidden_state
    torch.testing.assert_close(whole[0], other[0])
    assert "leaves out a causal mask of Aimv2TextModel" in mask_notes(model)[0]


def test_no_note_where_the_mask_counts_for_nothing() -> None:
    """CLIP's attentions are told to be causal in the call."""
    config = transformers.CLIPTextConfig(
        vocab_size=60, hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2,
        max_position_embeddings=8, eos_token_id=59,
    )  # fmt: skip
    model = transformers.CLIPTextModel(config).eval()
    make_traceable(model)
    with torch.no_grad():
        model(input_ids=torch.arange(10).view(2, 5))
    assert mask_notes(model) == ()


def test_transformers_itself_is_as_it_was_while_nothing_runs() -> None:
    config = transformers.BertConfig(hidden_size=16, num_attention_heads=2, num_hidden_layers=1, intermediate_size=8)
    model = transformers.BertModel(config).eval()
    file = sys.modules[type(model).__module__]
    before = dict(vars(file))
    copied = kept_copy(model)
    assert type(model) is transformers.BertModel
    assert isinstance(copied, transformers.BertModel)
    with torch.no_grad():
        copied(torch.ones(1, 3, dtype=torch.int64))
        with pytest.raises(IndexError):
            copied(torch.full((1, 3), -1))
    assert all(vars(file)[name] is value for name, value in before.items())
