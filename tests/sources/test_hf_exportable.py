"""Models of transformers that run in every precision, and are traced, wherever they are in a module."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from loaded import load
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


def test_a_model_that_always_makes_its_mask_runs() -> None:
    config = transformers.DogeConfig(
        vocab_size=60, hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2,
    )  # fmt: skip
    model = transformers.DogeModel(config).eval()
    make_traceable(model)
    with torch.no_grad():
        assert model(input_ids=torch.arange(10).view(2, 5)).last_hidden_state.shape == (2, 5, 16)


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
    make_traceable(broken := transformers.CLIPTextModel(config).eval())
    with torch.no_grad():
        next(broken.parameters()).fill_(torch.nan)
        broken(input_ids=torch.arange(10).view(2, 5))
    assert mask_notes(broken) == ()


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


def test_a_model_computes_what_transformers_itself_loads(tmp_path: Path) -> None:
    """Grounding DINO has no scaled_dot_product_attention, and its BERT has: with eager attention, a mask that says who
    attends to whom becomes a number that is added to scores."""
    common: dict[str, Any] = {"num_attention_heads": 2, "intermediate_size": 16, "num_hidden_layers": 1}
    config = transformers.GroundingDinoConfig(
        backbone_config=transformers.SwinConfig(image_size=32, patch_size=2, embed_dim=8, depths=[1, 1, 1, 1],
                                                num_heads=[1, 1, 2, 2], window_size=2, out_indices=[2, 3, 4]),
        text_config=transformers.BertConfig(hidden_size=16, vocab_size=1100, **common),
        d_model=32, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2, decoder_attention_heads=2,
        encoder_ffn_dim=16, decoder_ffn_dim=16, num_queries=3, num_feature_levels=3, position_embedding_type="sine",
    )  # fmt: skip
    torch.manual_seed(0)
    transformers.GroundingDinoModel(config).save_pretrained(tmp_path)
    expected = transformers.GroundingDinoModel.from_pretrained(tmp_path, trust_remote_code=False).eval()
    spec = load(f"hf:{tmp_path}")
    feeds = {"input_ids": torch.tensor([[101, 7, 9, 1012, 11, 102]]), "attention_mask": torch.ones(1, 6).long(),
             "token_type_ids": torch.zeros(1, 6).long(), "pixel_values": torch.randn(1, 3, 32, 32)}  # fmt: skip
    with torch.no_grad():
        got = spec.make()(*(feeds[one.name] for one in spec.io.inputs))
        wanted = expected(**feeds)
    at = [one.name for one in spec.io.outputs].index("encoder_last_hidden_state_text")
    torch.testing.assert_close(got[at], wanted.encoder_last_hidden_state_text)
