"""Encoder-decoders whose encoder shortens sounds: of any length, and padded to the longest of a batch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from decoders import END, VOCABULARY
from loaded import load
from torch import nn

import attnport
from attnport.artifacts import UNKNOWN_SIZE
from attnport.dims import Dim, TensorSpec
from attnport.sources.declare import observe_outputs
from attnport.verbs.check import check
from attnport.verbs.export import export
from attnport.verbs.fuse import fuse

_TOKENS = {
    "vocab_size": VOCABULARY, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": END, "decoder_start_token_id": 2,
}  # fmt: skip


def from_frames() -> Any:
    """A model that makes one token of four frames, and whose decoder is given the mask of the frames."""
    return transformers.Speech2TextForConditionalGeneration(transformers.Speech2TextConfig(
        **_TOKENS, d_model=32, encoder_layers=1, decoder_layers=1, encoder_ffn_dim=64, decoder_ffn_dim=64,
        encoder_attention_heads=4, decoder_attention_heads=4, max_source_positions=640, max_target_positions=64,
        input_feat_per_channel=8, conv_channels=16, tie_word_embeddings=False,
    ))  # fmt: skip


def from_samples() -> Any:
    """A model that makes one token of 384 samples, and whose encoder gives the mask of its tokens."""
    return transformers.MoonshineForConditionalGeneration(transformers.MoonshineConfig(
        **_TOKENS, hidden_size=32, intermediate_size=64, encoder_num_hidden_layers=1, decoder_num_hidden_layers=1,
        encoder_num_attention_heads=4, decoder_num_attention_heads=4, max_position_embeddings=64,
        tie_word_embeddings=False,
    ))  # fmt: skip


SOUNDS = {
    "frames": (from_frames, "input_features", (90, 8), 51),
    "samples": (from_samples, "input_values", (16000,), 2000),
}
"""By what a sound is of: the model, its input, the shape of a sound, and how much of the second one is no padding."""


def saved(make: Callable[[], Any], folder: Path) -> Any:
    """A model with random weights large enough that tokens differ, written by `save_pretrained`."""
    torch.manual_seed(0)
    model = make().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3.0) if parameter.ndim > 1 else None
    model.save_pretrained(folder)
    return model


@pytest.mark.slow
@pytest.mark.parametrize("kind", SOUNDS)
def test_sounds_of_several_lengths_are_answered_as_by_transformers(kind: str, tmp_path: Path) -> None:
    make, name, shape, real = SOUNDS[kind]
    model = saved(make, tmp_path / "weights")
    for folder, part in (("decoder", "with-past"), ("encoder", "encoder-with-past")):
        export(f"hf:{tmp_path / 'weights'}", tmp_path / folder, part=part)
        table = fuse(tmp_path / folder, targets=["ort_cpu"]).targets["ort_cpu"]
        assert table.fused == table.attentions > 0
        rows = check(tmp_path / folder, ["ort_cpu", "torch_eager"]).runtimes
        assert {row.verdict for row in rows.values()} == {"PASS"}, {name: row.reason for name, row in rows.items()}
    sound = np.random.default_rng(0).standard_normal((2, *shape)).astype(np.float32)
    mask = np.ones((2, shape[0]), np.int64)
    mask[1, real:] = 0
    decoder, encoder = attnport.open(tmp_path / "decoder"), attnport.open(tmp_path / "encoder")
    feeds = {name: sound, "attention_mask": mask}
    found = decoder.generate(feeds, encoder=encoder, max_tokens=16, stop=[], start=[2])
    given = {key: torch.from_numpy(value) for key, value in feeds.items()}
    expected = model.generate(**given, max_new_tokens=16, min_new_tokens=16, do_sample=False, num_beams=1)
    assert found == expected[:, 1:].tolist()
    full = {**feeds, "attention_mask": np.ones_like(mask)}
    assert decoder.generate(full, encoder=encoder, max_tokens=16, stop=[], start=[2])[1] != found[1]


@pytest.mark.parametrize(("kind", "most"), [("frames", 512), ("samples", 415)])
def test_a_decoder_takes_as_many_tokens_as_the_encoder_gives_and_their_mask(
    kind: str, most: int, tmp_path: Path
) -> None:
    saved(SOUNDS[kind][0], tmp_path)
    for part in ("decoder", "with-past"):
        io = load(f"hf:{tmp_path}", part=part).io
        assert str(io.dim("seq")) == f"seq=1:128:{most}"
        assert "encoder_attention_mask=int64[batch,seq]" in map(str, io.inputs)
        assert "encoder_attention_mask" in [mask.input for mask in io.masks]


def test_states_that_a_few_samples_more_do_not_add_to_have_several_lengths(tmp_path: Path) -> None:
    """Moonshine Streaming, which also writes positions into the states that it is given."""
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4,
             "num_key_value_heads": 4, "head_dim": 8}  # fmt: skip
    saved(lambda: transformers.MoonshineStreamingForConditionalGeneration(transformers.MoonshineStreamingConfig(
        **_TOKENS, **sizes, max_position_embeddings=64, encoder_config={**sizes, "sliding_windows": [[16, 4]]},
    )), tmp_path)  # fmt: skip
    io = load(f"hf:{tmp_path}", part="with-past").io
    assert "cross_key_0=float32[batch,4,seq,8]" in map(str, io.inputs)
    assert "decoder_input_ids=int64[batch,decoder_seq]" in map(str, io.inputs)


def test_a_size_that_many_samples_share_is_not_taken_for_the_only_one() -> None:
    convolution = nn.Conv1d(1, 4, 400, stride=320)
    (found,) = observe_outputs(
        lambda sound: {"found": convolution(sound)}, [TensorSpec("sound", "float32", ("batch", 1, "samples"))],
        [Dim("batch", 1, 2, 4), Dim("samples", 400, 800, 8000)], "convolution",
    )  # fmt: skip
    assert found.dims == ("batch", 4, UNKNOWN_SIZE)
