"""Small decoders of transformers with random weights, saved as users have them, and artifacts of them."""

from __future__ import annotations

import functools
import shutil
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
import transformers
from kept import kept_folder
from tokenizers import models, pre_tokenizers

from attnport.verbs.export import export
from attnport.verbs.fuse import fuse

VOCABULARY, END = 101, 100
_SMALL = {
    "vocab_size": VOCABULARY, "num_hidden_layers": 2, "bos_token_id": None, "eos_token_id": END, "pad_token_id": 0,
}  # fmt: skip
_WIDTHS = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("GPT2", {"n_embd": 32, "n_head": 4, "n_layer": 2, "n_positions": 64, "vocab_size": VOCABULARY,
                      "bos_token_id": None, "eos_token_id": END, "pad_token_id": 0}),
    "llama": ("Llama", {**_SMALL, **_WIDTHS, "num_key_value_heads": 2, "max_position_embeddings": 320}),
    "mistral": ("Mistral", {**_SMALL, **_WIDTHS, "num_key_value_heads": 2, "sliding_window": 6,
                            "max_position_embeddings": 320}),
    "gemma3": ("Gemma3Text", {**_SMALL, **_WIDTHS, "num_key_value_heads": 2, "sliding_window": 8, "head_dim": 8,
                              "max_position_embeddings": 320,
                              "layer_types": ["sliding_attention", "full_attention"]}),
    "gemma2": ("Gemma2", {**_SMALL, **_WIDTHS, "num_key_value_heads": 2, "sliding_window": 8, "head_dim": 8,
                          "max_position_embeddings": 320, "attn_logit_softcapping": 2.0, "query_pre_attn_scalar": 8}),
    "qwen2": ("Qwen2", {**_SMALL, **_WIDTHS, "num_key_value_heads": 2, "use_sliding_window": True, "sliding_window": 9,
                        "max_window_layers": 1, "max_position_embeddings": 320}),
    "phi3": ("Phi3", {**_SMALL, **_WIDTHS, "num_key_value_heads": 2, "sliding_window": 7,
                      "max_position_embeddings": 320}),
    "granite_swa": ("GraniteSWA", {**_SMALL, **_WIDTHS, "num_key_value_heads": 2, "sliding_window": 8,
                                   "max_position_embeddings": 320, "layer_types": ["full_attention"] * 2}),
    "bloom": ("Bloom", {"vocab_size": VOCABULARY, "hidden_size": 32, "n_head": 4, "n_layer": 2, "eos_token_id": END,
                        "bos_token_id": None, "pad_token_id": 0}),
    "opt": ("OPT", {**_SMALL, "hidden_size": 32, "ffn_dim": 64, "num_attention_heads": 4,
                    "max_position_embeddings": 128, "word_embed_proj_dim": 32}),
}  # fmt: skip
"""By name, the beginning of the class in transformers, and its config."""
STATES: dict[str, tuple[str, dict[str, Any]]] = {
    "lfm2": ("Lfm2", {**_SMALL, **_WIDTHS, "num_key_value_heads": 2, "max_position_embeddings": 320,
                      "layer_types": ["conv", "full_attention"]}),
    "mamba": ("Mamba", {**_SMALL, "hidden_size": 32, "state_size": 4}),
    "falcon_h1": ("FalconH1", {**_SMALL, **_WIDTHS, "num_key_value_heads": 2, "max_position_embeddings": 320,
                               "mamba_d_ssm": 32, "mamba_n_heads": 4, "mamba_d_head": 8, "mamba_d_state": 8,
                               "mamba_chunk_size": 8}),
}  # fmt: skip
"""As `KINDS`, of decoders with states: those of convolutions, of a state space alone, and both beside attention."""
QUICK = ("gpt2",)
"""A table of positions. Windows, grouped heads and rotary positions are in the quick tests of windows."""


def saved(kind: str, folder: Path, **changed: Any) -> Path:
    """A decoder with random weights and a tokenizer of letters, written by `save_pretrained`.

    Args:
        changed: Of its config.
    """
    name, config = {**KINDS, **STATES}[kind]
    config = {**config, **changed}
    torch.manual_seed(0)
    causal = "Gemma3ForCausalLM" if name == "Gemma3Text" else f"{name}{'LMHead' if name == 'GPT2' else 'ForCausalLM'}"
    causal += "Model" if name == "GPT2" else ""
    model = getattr(transformers, causal)(getattr(transformers, f"{name}Config")(**config))
    with torch.no_grad():  # the usual small weights make scores that hardly differ, of which the greatest is by chance
        for parameter in model.parameters():
            parameter.mul_(4.0) if parameter.ndim > 1 else None
    model.eval().save_pretrained(folder)
    letters().save(str(folder / "tokenizer.json"))
    return folder


def letters() -> tokenizers.Tokenizer:
    """A tokenizer whose tokens are letters, from the space on."""
    known = {chr(32 + at): at for at in range(95)} | {f"<{at}>": at for at in range(95, VOCABULARY)}
    made = tokenizers.Tokenizer(models.WordLevel(known, unk_token=" "))
    made.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    made.decoder = tokenizers.decoders.Fuse()
    return made


def exported(kind: str, folder: Path, **options: Any) -> Path:
    """An artifact of a decoder with its cache, fused for ONNX Runtime, beside its weights.

    Without options it is a copy of one that is made once for all tests.
    """
    if options:
        _export(kind, folder, **options)
    else:
        shutil.copytree(kept_folder(kind, functools.partial(_export, kind)), folder, dirs_exist_ok=True)
    return folder / "out"


def _export(kind: str, folder: Path, **options: Any) -> None:
    export(f"hf:{saved(kind, folder / 'weights')}", folder / "out", part="with-past", **options)
    fuse(folder / "out", targets=["ort_cpu"])


class Once:
    """Makes each decoder's artifact once."""

    def __init__(self, factory: pytest.TempPathFactory) -> None:
        self._factory, self._made = factory, dict[str, Path]()

    def __call__(self, kind: str) -> Path:
        if kind not in self._made:
            self._made[kind] = exported(kind, self._factory.mktemp(kind))
        return self._made[kind]


def continued(weights: Path, prompts: list[list[int]], new: int, **options: Any) -> list[list[int]]:
    """What `generate` of transformers finds, for prompts that it is given one by one."""
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(weights, trust_remote_code=False)
    found = []
    for prompt in prompts:
        ids = torch.tensor([prompt])
        made = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=new, do_sample=False, **options)
        found.append(made[0, len(prompt) :].tolist())
    return found
