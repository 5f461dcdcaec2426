"""Tiny configs of transformers' types: their own defaults, shrunk by the names of the fields.

Presets shrink less and less. What no rule can know is in `EXCEPTIONS`.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

VOCABULARY, FIRST_SPECIAL, ORDINARY = 160, 140, (10, 130)
"""Ids from 10 to 130 are words; the special ones of a config come after."""

EXCEPTIONS: dict[str, dict[str, Any]] = {
    "big_bird": {"attention_type": "original_full"},  # sparse attention needs long sequences and random numbers
    "bigbird_pegasus": {"attention_type": "original_full"},
    "reformer": {"axial_pos_embds": False, "attn_layers": ["local", "local"], "is_decoder": True},
    "dpr": {"projection_dim": 0},
    "esm": {
        "vocab_size": 160,
        "pad_token_id": 1,
        "mask_token_id": 32,
        "hidden_size": 64,
        "token_dropout": False,
        "max_position_embeddings": 66,
        "num_attention_heads": 4,
    },
}
"""Fields of a config that no rule can know."""

_LAYERS = re.compile(
    r"(^|_)(num_hidden_layers|n_layers?|num_layers|depth|(en|de)coder_layers|num_(en|de)coder_layers|num_blocks"
    r"|(en|de)coder_num_hidden_layers|num_encoder_blocks_|conf_num_hidden_layers|conv_layers|resampler_depth)$"
)
_HEADS = re.compile(r"(^|_)(num_attention_heads|num_heads|n_heads?|attention_heads|heads|resampler_n_heads)$")
_KV_HEADS = re.compile(r"(num_key_value_heads|num_kv_heads|n_kv_heads|num_key_value_groups)$")
_HIDDEN = re.compile(
    r"^((\w+_)?hidden_size|d_model|dim|n_embd|embed_dim|embedding_size|out_hidden_size|(\w+_)?projection_dim"
    r"|hidden_dim|emb_dim|word_embed_proj_dim|encoder_hidden_dim|decoder_hidden_dim|feature_size|output_dim)$"
)
_WIDE = re.compile(r"((^|_)intermediate_size|ffn_dim|ffn_hidden_size|d_ff|d_inner|n_inner|ffn_size|mlp_dim)$")
_EXPERTS = re.compile(r"(num_experts|num_local_experts|n_routed_experts|moe_num_experts|num_routed_experts)$")
_CHOSEN = re.compile(r"(num_experts_per_tok|num_experts_per_token|moe_topk|top_k_experts|moe_k|experts_top_k)$")
_EXACT = {
    "head_dim": 16, "attention_head_dim": 16, "d_kv": 16, "d_head": 16, "kv_channels": 16, "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 16, "v_head_dim": 16, "qk_head_dim": 32, "kv_lora_rank": 32, "q_lora_rank": 32, "n_group": 1,
    "rotary_dim": 8, "d_latents": 64, "num_latents": 8,
    "topk_group": 1, "linear_key_head_dim": 16, "linear_value_head_dim": 16, "linear_num_key_heads": 2,
    "linear_num_value_heads": 4, "sliding_window": 8, "num_mel_bins": 16, "max_source_positions": 32,
    "num_conv_pos_embedding_groups": 4, "num_conv_pos_embeddings": 16, "first_k_dense_replace": 1,
    "n_shared_experts": 1, "hidden_size_per_layer_input": 16, "global_head_dim": 16, "attention_chunk_size": 8,
    "index_topk": 8, "index_head_dim": 16, "index_n_heads": 4, "swa_head_dim": 16, "num_kv_shared_layers": 0,
}  # fmt: skip
_PICTURE = re.compile(r"^(image_size|img_size|input_size|crop_size|pretrain_image_size)$")
_PER_LAYER = ("layer_types", "mlp_layer_types", "layers_block_type", "attention_types", "indexer_types")


@dataclasses.dataclass(frozen=True)
class Preset:
    """What is shrunk: widths of plain models, lists of widths of staged ones, pictures to this size (0 = stays)."""

    widths: bool
    lists: bool
    picture: int
    heads: bool = True


PRESETS = tuple(
    Preset(widths, lists, picture, heads)
    for picture in (32, 64, 224, 0)
    for widths, lists, heads in (
        (True, True, True), (True, False, True), (True, False, False), (False, True, False), (False, False, False)
    )
)  # fmt: skip


def tiny_config(kind: str, preset: Preset) -> Any:
    """The config of a type, shrunk."""
    import transformers

    cls = transformers.CONFIG_MAPPING[kind]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        values = cls().to_dict()
    shrunk = shrink(values, preset)
    shrunk.update(EXCEPTIONS.get(kind, {}))
    for key in (
        "out_features",
        "out_indices",
        "stage_names",
        "transformers_version",
        "model_type",
        "architectures",
        "dtype",
        "rope_scaling",
    ):
        shrunk.pop(key, None)
    return cls(**shrunk)


def shrink(values: Mapping[str, Any], preset: Preset, vocabulary: int = VOCABULARY) -> dict[str, Any]:
    """A config's fields, smaller, and those of every config inside it."""
    kept = _kept_layers(values)
    special = itertools.count(FIRST_SPECIAL)
    found: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping) and key not in ("id2label", "label2id"):
            found[key] = _rope(value) if "rope" in key else shrink(value, preset, vocabulary)
        elif isinstance(value, list):
            found[key] = _list(key, value, kept, preset)
        elif isinstance(value, bool) or not isinstance(value, int):
            found[key] = value
        elif re.search(r"_token_(id|index)$|_(index|id)$", key) and value >= VOCABULARY:
            found[key] = min(next(special), VOCABULARY - 1)
        else:
            found[key] = _number(key, value, values, kept, preset)
    if "vocab_size" in found and found["vocab_size"] is None:
        found["vocab_size"] = vocabulary
    if preset.widths:
        _settle_heads(found)
    return found


def _settle_heads(found: dict[str, Any]) -> None:
    """Numbers that follow from others: heads of state spaces, and the width of models whose heads grow by stage."""
    width, heads = found.get("hidden_size") or found.get("d_model"), found.get("num_heads")
    for expand, count, size in (
        ("expand", "num_heads", "head_dim"),
        ("mamba_expand", "mamba_n_heads", "mamba_d_head"),
        ("expand", "mamba_num_heads", "mamba_head_dim"),
        ("mamba_expand", "n_mamba_heads", "mamba_headdim"),
    ):
        if isinstance(width, int) and isinstance(found.get(expand), int | float) and isinstance(found.get(count), int):
            if found.get(size) is not None:
                found[size] = 16
                found[count] = int(width * found[expand]) // 16
            for groups in ("n_groups", "mamba_n_groups"):
                if isinstance(found.get(groups), int):
                    found[groups] = min(found[groups], 2)
    if isinstance(found.get("mamba_d_ssm"), int) and isinstance(width, int):
        found["mamba_d_ssm"] = int(width * found.get("mamba_expand", 2))
    if isinstance(heads, list) and isinstance(found.get("embed_dim"), int) and isinstance(heads[0], int):
        found["embed_dim"] = 8 * heads[0]


def _kept_layers(values: Mapping[str, Any]) -> tuple[int, ...]:
    """Layers to keep: one of each kind, or the first two."""
    lists = [values[key] for key in _PER_LAYER if isinstance(values.get(key), list) and values[key]]
    count = next((value for key, value in values.items() if key == "num_hidden_layers" and isinstance(value, int)), 0)
    lists = [found for found in lists if len(found) == count]
    if not lists:
        return (0, 1)
    first = {key: at for at, key in reversed(list(enumerate(zip(*lists, strict=True))))}
    at = sorted(first.values())[:4]
    return tuple(at) if len(at) > 1 else (0, min(1, count - 1)) if count > 1 else (0,)


def _number(key: str, value: int, values: Mapping[str, Any], kept: Sequence[int], preset: Preset) -> int:
    if "vocab_size" in key:
        return min(value, VOCABULARY)
    if _LAYERS.search(key):
        return min(value, len(kept) if key == "num_hidden_layers" else 2)
    if _EXPERTS.search(key):
        return min(value, 4)
    if _CHOSEN.search(key):
        return min(value, 2)
    if _PICTURE.match(key) and preset.picture:
        return min(value, preset.picture)
    if key == "patch_size" and preset.picture == 32:
        return min(value, 8)
    if preset.heads and _KV_HEADS.search(key):
        whole = values.get("num_attention_heads") or values.get("num_heads")
        return min(value, 4) if value == whole else min(value, 2)
    if preset.heads and _HEADS.search(key):
        return 4 if value >= 4 else value
    if preset.widths and key in _EXACT:
        return min(value, _EXACT[key])
    if preset.widths and _WIDE.search(key):
        return min(value, 96)
    if preset.widths and _HIDDEN.match(key):
        return min(value, 64)
    return value


def _list(key: str, value: list[Any], kept: Sequence[int], preset: Preset) -> list[Any]:
    if _PICTURE.match(key) and preset.picture:
        return [min(int(size), preset.picture) for size in value]
    if key in _PER_LAYER or (key.endswith(("_layers", "layer_types")) and len(value) > 8):
        return [value[at] for at in kept if at < len(value)]
    numbers = bool(value) and all(isinstance(one, int) and not isinstance(one, bool) for one in value)
    if numbers and key in ("depths", "layer_depths", "stage_depths", "num_blocks_per_stage"):
        return [min(one, 1) for one in value]
    if numbers and preset.lists and re.search(r"(hidden_sizes|embed_dims?|channels|conv_dim|widths?)$", key):
        share = max(1, min(value) // 16) if min(value) >= 16 else 1
        return [max(4, one // share) for one in value]
    return list(value)


def _rope(value: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters of rotary positions; their sections are of a head of 16."""
    found = dict(value)
    section = found.get("mrope_section")
    if isinstance(section, list) and sum(section) > 8:
        found["mrope_section"] = [4, 2, 2] if len(section) == 3 else [8 // len(section)] * len(section)
    return {key: _rope(one) if isinstance(one, Mapping) else one for key, one in found.items()}
