"""Small encoder-decoders of transformers with random weights, saved as users have them, and artifacts of both parts."""

from __future__ import annotations

import functools
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from decoders import END, VOCABULARY, letters
from kept import kept_folder

from attnport.verbs.export import export
from attnport.verbs.fuse import fuse

_TOKENS = {"vocab_size": VOCABULARY, "pad_token_id": 0, "eos_token_id": END, "decoder_start_token_id": 2}
_BART = {
    **_TOKENS, "bos_token_id": 1, "forced_eos_token_id": None, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2,
    "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
    "max_position_embeddings": 64,
}  # fmt: skip
KINDS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "t5": ("T5ForConditionalGeneration", "T5Config",
           {**_TOKENS, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4,
            "decoder_start_token_id": 0}),
    "bart": ("BartForConditionalGeneration", "BartConfig", _BART),
    "marian": ("MarianMTModel", "MarianConfig", {**_BART, "decoder_vocab_size": VOCABULARY}),
    "whisper": ("WhisperForConditionalGeneration", "WhisperConfig",
                {**_BART, "max_source_positions": 20, "max_target_positions": 64, "num_mel_bins": 16,
                 "suppress_tokens": None, "begin_suppress_tokens": None}),
}  # fmt: skip
"""By name, the class in transformers, its config's, and the config."""
FRAMES = (16, 40)
"""The bins and frames of Whisper's input."""


def model(kind: str, **changed: Any) -> Any:
    """A model with random weights large enough that tokens differ, and with changes of its config."""
    class_name, config, values = KINDS[kind]
    torch.manual_seed(0)
    made = getattr(transformers, class_name)(getattr(transformers, config)(**{**values, **changed}))
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.mul_(3.0) if parameter.ndim > 1 else None
    return made.eval()


def saved(kind: str, folder: Path, **changed: Any) -> Path:
    """A model with a tokenizer of letters, written by `save_pretrained`."""
    model(kind, **changed).save_pretrained(folder)
    letters().save(str(folder / "tokenizer.json"))
    return folder


def pair(kind: str, folder: Path, **how: Any) -> tuple[Path, Path]:
    """The artifacts of a decoder and of its encoder, fused for ONNX Runtime, beside their weights.

    Without `how` they are copies of those that are made once for all tests.

    Args:
        how: What the model's generation config says besides.
    """
    if how:
        _export(kind, folder, **how)
    else:
        shutil.copytree(kept_folder(kind, functools.partial(_export, kind)), folder, dirs_exist_ok=True)
    return folder / "decoder", folder / "encoder"


def _export(kind: str, folder: Path, **how: Any) -> None:
    path = saved(kind, folder / "weights") / "generation_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | how))
    for name, part in (("decoder", "with-past"), ("encoder", "encoder-with-past")):
        export(f"hf:{folder / 'weights'}", folder / name, part=part)
        fuse(folder / name, targets=["ort_cpu"])


class Once:
    """Makes the two artifacts of each model once."""

    def __init__(self, factory: pytest.TempPathFactory) -> None:
        self._factory, self._made = factory, dict[str, tuple[Path, Path]]()

    def __call__(self, kind: str) -> tuple[Path, Path]:
        if kind not in self._made:
            self._made[kind] = pair(kind, self._factory.mktemp(kind))
        return self._made[kind]


def sounds(count: int) -> np.ndarray[Any, Any]:
    """What Whisper hears, float32 `[count, bins, frames]`."""
    return np.random.default_rng(0).standard_normal((count, *FRAMES)).astype(np.float32)


def answered(weights: Path, kind: str, prompts: Any, new: int, **options: Any) -> list[list[int]]:
    """What `generate` of transformers finds, for prompts that it is given one by one: token ids, or sounds."""
    made: Any = getattr(transformers, KINDS[kind][0]).from_pretrained(weights, trust_remote_code=False).eval()
    found = []
    for prompt in prompts:
        if kind == "whisper":
            given = {"input_features": torch.from_numpy(prompt)[None]}
        else:
            ids = torch.tensor([prompt])
            given = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        out = made.generate(**given, max_new_tokens=new, do_sample=False, **options)[0].tolist()
        found.append(out[1:] if out[:1] == [KINDS[kind][2]["decoder_start_token_id"]] and kind != "whisper" else out)
    return found
