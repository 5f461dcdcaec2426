"""Small transformers models with random weights, as modules with their contract and the attentions they hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from attnport.artifacts import IOContract
from attnport.dims import Dim, TensorSpec
from attnport.masks import MaskSpec

TEXT = {
    "vocab_size": 60, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24,
    "max_position_embeddings": 40, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
GROUPED = {**TEXT, "hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
IMAGE = {"image_size": 8, "patch_size": 2, "num_channels": 3, "hidden_size": 16, "num_attention_heads": 2}
BATCH, SEQ = Dim("batch", 1, 2, 8), Dim("seq", 1, 5, 32)
Arrays = dict[str, np.ndarray[Any, Any]]


@dataclass(frozen=True)
class Kind:
    """A model of transformers: its classes, its configuration, and what it attends with.

    Attributes:
        attentions: Module path and mask of each; the mask without the name of the input that carries it.
        takes: `text`, `pixels` or `sound`.
        only: The one implementation of attention it has, where it has not both.
        encoder: Take its encoder alone.
    """

    model: str
    config: str
    values: dict[str, Any]
    attentions: tuple[tuple[str, str], ...]
    takes: str = "text"
    only: str = ""
    encoder: bool = False


def layers(path: str, mask: str, number: int = 2) -> tuple[tuple[str, str], ...]:
    return tuple((path.format(layer), mask) for layer in range(number))


SLIDING = ["sliding_attention", "full_attention"]
KINDS: dict[str, Kind] = {
    "bert": Kind("BertModel", "BertConfig", TEXT, layers("model.encoder.layer.{}.attention.self", "padding")),
    "roberta": Kind(
        "RobertaModel", "RobertaConfig", {**TEXT, "type_vocab_size": 1},
        layers("model.encoder.layer.{}.attention.self", "padding"),
    ),
    "gpt2": Kind(
        "GPT2Model", "GPT2Config",
        {"vocab_size": 60, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 40, "bos_token_id": 1,
         "eos_token_id": 2},
        layers("model.h.{}.attn", "causal+padding"),
    ),
    "llama": Kind("LlamaModel", "LlamaConfig", GROUPED, layers("model.layers.{}.self_attn", "causal+padding")),
    "qwen3": Kind("Qwen3Model", "Qwen3Config", GROUPED, layers("model.layers.{}.self_attn", "causal+padding")),
    "mistral": Kind(
        "MistralModel", "MistralConfig", {**GROUPED, "sliding_window": 3},
        layers("model.layers.{}.self_attn", "causal+window+padding"),
    ),
    "gemma2": Kind(
        "Gemma2Model", "Gemma2Config",
        {**GROUPED, "sliding_window": 3, "attn_logit_softcapping": 2.0, "query_pre_attn_scalar": 8,
         "layer_types": SLIDING},
        (("model.layers.0.self_attn", "causal+window+padding"), ("model.layers.1.self_attn", "causal+padding")),
        only="eager",
    ),
    "gpt_oss": Kind(
        "GptOssModel", "GptOssConfig",
        {**GROUPED, "sliding_window": 3, "num_local_experts": 2, "num_experts_per_tok": 1, "layer_types": SLIDING},
        (("model.layers.0.self_attn", "causal+window+padding"), ("model.layers.1.self_attn", "causal+padding")),
        only="eager",
    ),
    "llama4_text": Kind(  # its rotary positions are complex numbers
        "Llama4TextModel", "Llama4TextConfig",
        {**GROUPED, "intermediate_size_mlp": 24, "num_local_experts": 2, "layer_types": ["full_attention"] * 2},
        layers("model.layers.{}.self_attn", "causal+padding"),
        only="sdpa",
    ),
    "bloom": Kind(
        "BloomModel", "BloomConfig",
        {"vocab_size": 60, "hidden_size": 16, "n_layer": 2, "n_head": 2, "bos_token_id": 1, "eos_token_id": 2,
         "pad_token_id": 0},
        layers("model.h.{}.self_attention", "causal+padding+bias"),
        only="eager",
    ),
    "t5": Kind(
        "T5EncoderModel", "T5Config",
        {"vocab_size": 60, "d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_heads": 2, "pad_token_id": 0},
        layers("model.encoder.block.{}.layer.0.SelfAttention", "padding+bias"),
    ),
    "vit": Kind(
        "ViTModel", "ViTConfig", {**IMAGE, "num_hidden_layers": 2, "intermediate_size": 24},
        layers("model.layers.{}.attention", "none"), takes="pixels",
    ),
    "whisper": Kind(
        "WhisperModel", "WhisperConfig",
        {"vocab_size": 60, "d_model": 16, "encoder_layers": 2, "decoder_layers": 1, "encoder_attention_heads": 2,
         "decoder_attention_heads": 2, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24, "num_mel_bins": 8,
         "max_source_positions": 16, "max_target_positions": 16, "pad_token_id": 0, "bos_token_id": 1,
         "eos_token_id": 2, "decoder_start_token_id": 1},
        layers("model.layers.{}.self_attn", "none"), takes="sound", encoder=True,
    ),
    "swin": Kind(
        "SwinModel", "SwinConfig",
        {"image_size": 16, "patch_size": 2, "num_channels": 3, "embed_dim": 8, "depths": [2], "num_heads": [2],
         "window_size": 4},
        (("model.encoder.layers.0.blocks.0.attention", "bias"),
         ("model.encoder.layers.0.blocks.1.attention", "bias")),
        takes="pixels", only="eager",
    ),
    "longformer": Kind(
        "LongformerModel", "LongformerConfig", {**TEXT, "attention_window": 4, "type_vocab_size": 1},
        layers("model.encoder.layer.{}.attention.self", "padding"), only="eager",
    ),
}  # fmt: skip


class Hidden(nn.Module):
    """A transformers model as a function from its one or two inputs to its last hidden state."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, **inputs: Any) -> Any:
        return self.model(**inputs).last_hidden_state


class Text(Hidden):
    def forward(self, input_ids: Any, attention_mask: Any) -> Any:  # type: ignore[override]
        return self.model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state


class Pixels(Hidden):
    def forward(self, pixel_values: Any) -> Any:  # type: ignore[override]
        return self.model(pixel_values=pixel_values).last_hidden_state


class Sound(Hidden):
    def forward(self, input_features: Any) -> Any:  # type: ignore[override]
        return self.model(input_features=input_features).last_hidden_state


@dataclass(frozen=True)
class Pretrained:
    """A model of `KINDS` with attention implemented one `way`; asked for what `library_modules.Library` is."""

    kind: str
    way: str

    @property
    def attentions(self) -> tuple[tuple[str, str, str], ...]:
        """By attention: its name, the call that is counted, and its mask with the input that carries the padding."""
        call = "softmax" if self.way == "eager" else "scaled_dot_product_attention"
        masks = [f"{mask}(attention_mask)" if "padding" in mask else mask for _, mask in KINDS[self.kind].attentions]
        return tuple((path, call, mask) for (path, _), mask in zip(KINDS[self.kind].attentions, masks, strict=True))

    def make(self) -> nn.Module:
        """The same weights each time, for both ways."""
        import transformers

        kind = KINDS[self.kind]
        torch.manual_seed(0)
        config = getattr(transformers, kind.config)(**kind.values)
        config._attn_implementation = self.way
        config.use_cache = False
        config._experts_implementation = "batched_mm"  # the usual one is an operator of transformers' own
        model = getattr(transformers, kind.model)(config)
        with torch.no_grad():
            for parameter in model.parameters():  # some begin as zeros or ones, and would vanish from the graph
                parameter.add_(torch.randn_like(parameter) * 0.1)
        model = model.get_encoder() if kind.encoder else model
        return {"text": Text, "pixels": Pixels, "sound": Sound}[kind.takes](model).eval()

    @property
    def io(self) -> IOContract:
        kind, values = KINDS[self.kind], KINDS[self.kind].values
        if kind.takes == "text":
            inputs = (
                TensorSpec("input_ids", "int64", ("batch", "seq"), high=60),
                TensorSpec("attention_mask", "int64", ("batch", "seq")),
            )
            width = values.get("hidden_size") or values.get("n_embd") or values["d_model"]
            return IOContract(
                inputs, (TensorSpec("y", "float32", ("batch", "seq", width)),), (BATCH, SEQ),
                (MaskSpec(("padding",), "attention_mask"),),
            )  # fmt: skip
        size = values.get("image_size")
        shape = ("batch", 3, size, size) if kind.takes == "pixels" else ("batch", 8, 32)
        spec = TensorSpec("pixel_values" if kind.takes == "pixels" else "input_features", "float32", shape)
        with torch.no_grad():
            out = self.make()(torch.zeros(spec.shape({"batch": 1})))
        return IOContract((spec,), (TensorSpec("y", "float32", ("batch", *out.shape[1:])),), (BATCH,))

    def feeds(self, sizes: dict[str, int], seed: int = 0) -> Arrays:
        """Random inputs; padding stands at the right, and the last batch row has none."""
        random, made = np.random.default_rng(seed), Arrays()
        for spec in self.io.inputs:
            shape = spec.shape(sizes)
            if spec.name == "input_ids":
                made[spec.name] = random.integers(3, 60, shape)
            elif spec.name == "attention_mask":
                made[spec.name] = np.ones(shape, np.int64)
                made[spec.name][:-1, -max(1, shape[1] // 3) :] = shape[1] == 1
            else:
                made[spec.name] = random.standard_normal(shape).astype(np.float32)
        return made

    def reference(self, feeds: Arrays) -> list[np.ndarray[Any, Any]]:
        """The model in float64."""
        given = {name: torch.from_numpy(array) for name, array in feeds.items()}
        given = {name: each.double() if each.is_floating_point() else each for name, each in given.items()}
        with torch.no_grad():
            return [self.make().double()(**given).numpy()]

    def compared(self, feeds: Arrays, outputs: Sequence[Any]) -> list[np.ndarray[Any, Any]]:
        """Real tokens alone: with every key hidden, an eager model attends to all."""
        if "attention_mask" not in feeds:
            return list(outputs)
        return [each[feeds["attention_mask"].astype(bool)] for each in outputs]


CASES = {
    f"{name}-{way}": Pretrained(name, way)
    for name, kind in KINDS.items()
    for way in ("eager", "sdpa")
    if kind.only in ("", way)
}
