"""Tiny configs of transformers' types: their own defaults, shrunk by the names of the fields.

Presets shrink less and less. What no rule can know is in `EXCEPTIONS`.
"""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import re
import warnings
from collections.abc import Collection, Mapping, Sequence
from typing import Any

VOCABULARY, FIRST_SPECIAL, ORDINARY = 160, 140, (10, 130)
"""Ids from 10 to 130 are words; the special ones of a config come after."""

_ROPE = {"full_attention": {"rope_type": "default", "rope_theta": 10000.0}}
_INDEXER = {
    "indexer_n_heads": 32, "indexer_kv_heads": 1, "indexer_head_dim": 16, "indexer_budget": 8,
    "indexer_compress_ratio": 4,
}  # fmt: skip
EXCEPTIONS: dict[str, dict[str, Any]] = {
    "big_bird": {"attention_type": "original_full"},  # sparse attention needs long sequences and random numbers
    "bigbird_pegasus": {"attention_type": "original_full"},
    "reformer": {"axial_pos_embds": False, "attn_layers": ["local", "local"], "is_decoder": True},
    "dbrx": {"attn_config": {"rope_theta": 10000.0, "clip_qkv": 8}},  # its default lacks a field that the model reads
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "attention_layers": ["global", "local"]},
    "xmod": {"default_language": "en_XX", "num_attention_heads": 4},
    "chameleon": {"vocabulary_map": {"<image>": 140, "IMGIMGAAZ": 141, "IMGIMGABZ": 142}},
    "emu3": {"vocabulary_map": {"<image>": 140, "<|visual token 000000|>": 141, "<|visual token 000001|>": 142}},
    "align": {"projection_dim": 80, "vision_config": {"hidden_dim": 320}},
    "efficientnet": {"hidden_dim": 320},
    "autoformer": {"num_time_features": 1},
    "informer": {"num_time_features": 1},
    "time_series_transformer": {"num_time_features": 1},
    "cohere_compass": {"text_config": {"rope_parameters": _ROPE}},
    "cohere_compass_text": {"rope_parameters": _ROPE},
    "deepseek_ocr2": {"text_config": {"mlp_layer_types": ["dense", "sparse"]}},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "bamba": {"attn_layer_indices": [1]},
    "granitemoehybrid": {"layer_types": ["linear_attention", "full_attention"]},
    "nemotron_h": {"layers_block_type": ["linear_attention", "full_attention"]},
    "moonshine_streaming": {"num_key_value_heads": 4},
    "muse_spark": {"audio_config": {"num_hidden_layers": 4}},
    "muse_spark_audio": {"num_hidden_layers": 4},
    "qwen4_exp": {"text_config": _INDEXER},
    "qwen4_exp_text": _INDEXER,
    "musicgen": {"decoder": {"num_codebooks": 1}},  # more of them are rows of a batch
    "musicgen_melody": {"decoder": {"num_codebooks": 1}},
    "ernie4_5_vl_moe": {"text_config": {"rope_parameters": {"mrope_section": [3, 3, 2]}}},
    "paddleocr_vl": {"text_config": {"rope_parameters": {"mrope_section": [2, 3, 3]}}},
    "vits": {"noise_scale": 0.0, "noise_scale_duration": 0.0, "upsample_initial_channel": 64},
    "lw_detr": {"backbone_config": {"image_size": 64}, "projector_scale_factors": [1.0]},
    "instructblipvideo": {"video_token_index": 140},
    "granite4_vision": {"deepstack_layer_map": [[0, 0]], "spatial_target_layers": [1], "downsample_rate": "1/2"},
    "tvp": {"visual_prompt_size": 8, "num_frames": 2},
    "zamba": {
        "attention_hidden_size": 128,
        "attention_head_dim": 32,
        "num_hidden_layers": 4,
        "layers_block_type": ["linear_attention", "hybrid"] * 2,
    },
    "shieldgemma2": {"yes_token_index": 20, "no_token_index": 30},
    "t5gemma2_encoder": {"text_config": {"dropout_rate": 0.0}},
    "sam2": {
        "vision_config": {
            "backbone_config": {"hidden_size": 96, "image_size": [64, 64]},
            "backbone_feature_sizes": [[16, 16], [8, 8], [4, 4]],
        },
        "prompt_encoder_config": {"image_size": 64},
    },
    # The 300 usual queries are nearly all of the 336 places of a tiny picture. Scores that are close then change order
    # by rounding, and with them whole rows of the outputs.
    **{kind: {"num_queries": 8} for kind in ("rt_detr", "rt_detr_v2", "d_fine", "deimv2")},
    "gemma4_audio": {"subsampling_conv_channels": [128, 32]},  # the first is also the number of bins
    "blip-2": {"image_token_index": 140},
    "instructblip": {"image_token_index": 140},
    "dpr": {"projection_dim": 0},
    "clvp": {"decoder_config": {"decoder_fixing_codes": [83, 45, 45, 148]}},  # token ids, of which the last is 248
    "efficientloftr": {"stage_num_blocks": [1, 1, 1, 1], "out_features": [16, 16, 32, 64]},
    "pp_ocrv5_mobile_det": {
        "backbone_config": {
            "block_configs": [
                [[3, 16, 32, 1, False]],
                [[3, 32, 64, 2, False]],
                [[3, 64, 128, 2, False]],
                [[3, 128, 256, 2, False]],
                [[5, 256, 512, 2, True]],
            ]
        }
    },
    "mgp-str": {"num_bpe_labels": 160, "num_wordpiece_labels": 150},
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
_WINDOW = re.compile(r"(sliding|attention)_window(_size)?$|^(local_attention|attention_chunk_size|index_topk)$")
SHORT, LONG, LONGEST_TEXT = 8, 48, 33
"""Windows shorter and longer than the texts at which a model is tried (`tiny_inputs.SIZES`)."""
_KV_HEADS = re.compile(r"(num_key_value_heads|num_kv_heads|n_kv_heads|num_key_value_groups)$")
_HIDDEN = re.compile(
    r"^((\w+_)?hidden_size|d_model|dim|n_embd|embed_dim|embedding_size|out_hidden_size|(\w+_)?projection_dim"
    r"|hidden_size_global|embedding_dim|hidden_dim|emb_dim|output_channels|word_embed_proj_dim|adapter_in_dim|adapter_out_dim|adapter_input_size|encoder_hidden_dim|decoder_hidden_dim|feature_size|output_dim)$"
)
_WIDE = re.compile(r"((^|_)intermediate_size|ffn_dim|ffn_hidden_size|d_ff|d_inner|n_inner|ffn_size|mlp_dim)$")
_EXPERTS = re.compile(r"((num|num_local|n_routed|moe_num|num_routed)_experts|zero_expert_num)$")
_CHOSEN = re.compile(r"(num_experts_per_tok|num_experts_per_token|moe_topk|top_k_experts|moe_k|experts_top_k)$")
# With few heads of an index many scores would be 0, and any of several equal scores may be taken as the best.
_EXACT = {
    "head_dim": 16, "attention_head_dim": 16, "d_kv": 16, "d_head": 16, "kv_channels": 16, "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 16, "v_head_dim": 16, "qk_head_dim": 32, "kv_lora_rank": 32, "q_lora_rank": 32, "n_group": 1,
    "num_expert_group": 1, "rotary_dim": 8, "d_latents": 64, "num_latents": 8, "topk_group": 1,
    "linear_key_head_dim": 16, "linear_value_head_dim": 16, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
    "sliding_window": 8, "num_mel_bins": 16, "max_source_positions": 32, "num_conv_pos_embedding_groups": 4,
    "num_conv_pos_embeddings": 16, "first_k_dense_replace": 1, "n_shared_experts": 1,
    "hidden_size_per_layer_input": 16, "global_head_dim": 16, "attention_chunk_size": 8, "index_topk": 8,
    "index_kpool": 4, "upsample_groups": 64, "num_pos_feats": 32, "num_queries": 8, "num_query_tokens": 8,
    "latent_query_num": 8, "index_head_dim": 16, "index_n_heads": 32, "swa_head_dim": 16, "num_kv_shared_layers": 0,
    "num_filters": 4, "base_channels": 32, "coordinate_size": 12, "shape_size": 8, "attention_window": 8,
    "num_layers_per_stack": 1, "hc_sinkhorn_iters": 3,
}  # fmt: skip
_FILLED = {
    "num_key_value_heads": 2, "head_dim": 16, "num_experts_per_tok": 2, "n_routed_experts": 4, "n_shared_experts": 1,
    "sliding_window": 8, "num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 32,
    "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1, "prediction_length": 8, "context_length": 16,
}  # fmt: skip
_SHARES = {"width_coefficient": 0.25, "depth_multiplier": 0.25, "depth_coefficient": 0.5}
_RESNET = {
    "model_type": "resnet", "embedding_size": 16, "hidden_sizes": [16, 32, 48, 64], "depths": [1, 1, 1, 1],
    "layer_type": "basic",
}  # fmt: skip
_PICTURE = re.compile(r"^(image_size|img_size|input_size|crop_size|pretrain_image_size|max_img_size)$")
_PER_LAYER = ("layer_types", "mlp_layer_types", "layers_block_type", "attention_types", "indexer_types")


@dataclasses.dataclass(frozen=True)
class Preset:
    """What is shrunk: widths of plain models, lists of widths of staged ones, pictures to this size (0 = stays)."""

    widths: bool
    lists: bool
    picture: int
    heads: bool = True
    filled: bool = False
    """Whether numbers that the config leaves open are given: the defaults of some types make no model."""
    other: bool = False
    """Whether heads share keys and values where they did not, and the reverse, and short windows are long."""


PRESETS = tuple(
    Preset(widths, lists, picture, heads, filled)
    for picture in (32, 64, 224, 0)
    for widths, lists, heads in (
        (True, True, True), (True, False, True), (True, False, False), (False, True, False), (False, False, False)
    )
    for filled in (False, True)
)  # fmt: skip


def tiny_config(kind: str, preset: Preset) -> Any:
    """The config of a type, shrunk."""
    import transformers

    cls = transformers.CONFIG_MAPPING[kind]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        values = cls().to_dict()
    shrunk = shrink(values, preset, cls)
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
    _merge(shrunk, EXCEPTIONS.get(kind, {}))
    return cls(**shrunk)


def has_other(kind: str) -> bool:
    """Whether a type has another config: heads that can share keys and values, or windows."""
    for preset in PRESETS:
        try:
            first, second = (tiny_config(kind, dataclasses.replace(preset, other=other)) for other in (False, True))
        except Exception:  # whatever a config raises of numbers that do not fit
            continue
        return bool(first.to_dict() != second.to_dict())
    return False


def _merge(into: dict[str, Any], values: Mapping[str, Any]) -> None:
    for key, value in values.items():
        if isinstance(value, Mapping) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        else:
            into[key] = value


def _worked_out(key: str, cls: Any) -> bool:
    """Whether a config works a field out from others: it is no parameter, and no other name of one."""
    names = getattr(cls, "attribute_map", {})
    if cls is None or key == "model_type" or key in names or key in names.values():
        return False
    return key not in inspect.signature(cls).parameters


def _class_within(cls: Any, key: str, values: Mapping[str, Any]) -> Any:
    """The class of a config inside another one; None if it is not known."""
    import transformers

    found = getattr(cls, "sub_configs", {}).get(key)
    if isinstance(found, type) and found.__name__ != "AutoConfig":
        return found
    try:
        return transformers.CONFIG_MAPPING[str(values.get("model_type"))]
    except KeyError:
        return None


def shrink(values: Mapping[str, Any], preset: Preset, cls: Any = None, vocabulary: int = VOCABULARY) -> dict[str, Any]:
    """A config's fields, smaller, and those of every config inside it; `cls` is the config's class if it is known."""
    kept = _kept_layers(values)
    special = itertools.count(FIRST_SPECIAL)
    found: dict[str, Any] = {}
    for key, value in values.items():
        if _worked_out(key, cls):
            continue
        if isinstance(value, Mapping) and all(isinstance(one, str) for one in value) and "2" not in key:
            if value.get("model_type") == "timm_backbone":  # of another package; its users' pictures are the same
                value = _RESNET | {"out_features": [f"stage{at}" for at in value.get("out_indices") or (4,) if at]}
            within = _class_within(cls, key, value)
            found[key] = _rope(value, cls) if "rope" in key else shrink(value, preset, within, vocabulary)
        elif value is None and preset.filled and key in _FILLED:
            found[key] = _FILLED[key]
        elif isinstance(value, list):
            found[key] = _list(key, value, values, kept, preset)
        elif key in _SHARES and preset.widths and isinstance(value, float):
            found[key] = min(value, _SHARES[key])
        elif isinstance(value, bool) or not isinstance(value, int):
            found[key] = value
        elif re.search(r"_token_(id|index)$|_(index|id)$", key) and value >= VOCABULARY:
            found[key] = min(next(special), VOCABULARY - 1)
        else:
            number = _number(key, value, values, kept, preset, vocabulary)
            found[key] = _other(key, number, values) if preset.other else number
    if "vocab_size" in found and found["vocab_size"] is None:
        found["vocab_size"] = vocabulary
    if preset.widths:
        _settle_heads(found)
    _settle_stages(values, found)
    return found


def _settle_stages(values: Mapping[str, Any], found: dict[str, Any]) -> None:
    """What a backbone gives: of staged ones the same stages; of plain ones as many layers as were given, in order."""
    given = values.get("out_features")
    for name in ("out_features", "out_indices", "stage_names"):
        found.pop(name, None)
    if not isinstance(given, list):
        return
    if any(isinstance(values.get(name), list) for name in ("depths", "layer_depths")):
        found["out_features"] = given
    elif "num_hidden_layers" in found:
        found["num_hidden_layers"] = max(2, len(given))
        found["out_indices"] = list(range(1, len(given) + 1)) if len(given) > 1 else [2]


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


def _number(
    key: str, value: int, values: Mapping[str, Any], kept: Sequence[int], preset: Preset, vocabulary: int
) -> int:
    if key == "vocab_size":
        return vocabulary
    if "vocab_size" in key or key.endswith("_vocab"):
        return min(value, vocabulary)
    if _LAYERS.search(key):
        return min(value, len(kept) if key == "num_hidden_layers" else 2)
    if _EXPERTS.search(key) or _CHOSEN.search(key):
        return min(value, 2) if not _EXPERTS.search(key) else 2 if value == 1 else min(value, 4)
    if _PICTURE.match(key) and preset.picture:
        return min(value, preset.picture)
    if key == "patch_size" and preset.picture == 32:
        return min(value, 8)
    if preset.heads and _KV_HEADS.search(key):
        whole = values.get("num_attention_heads") or values.get("num_heads")
        return min(value, 4) if value == whole else min(value, 2)
    if preset.heads and _HEADS.search(key) and key not in _EXACT:
        return 4 if value >= 4 else value
    if preset.widths and (key in _EXACT or _WIDE.search(key) or _HIDDEN.match(key)):
        return min(value, _EXACT.get(key, 96 if _WIDE.search(key) else 64))
    return value


def _other(key: str, number: int, values: Mapping[str, Any]) -> int:
    """The number of the other config of a type: of heads that share keys and values, or of a window."""
    heads = values.get("num_attention_heads") or values.get("num_heads")
    if _KV_HEADS.search(key) and not key.endswith("groups") and isinstance(heads, int):
        heads = min(heads, 4)
        return heads if number < heads else max(1, heads // 2)
    if _WINDOW.search(key):
        return LONG if number == SHORT else SHORT if number > LONGEST_TEXT else number
    return number


def _list(key: str, value: list[Any], values: Mapping[str, Any], kept: Sequence[int], preset: Preset) -> list[Any]:
    if _PICTURE.match(key) and preset.picture:
        return [min(int(size), preset.picture) for size in value]
    if key.endswith(("feature_layer", "feature_layers")):
        return [-1 - at for at in range(len(value))]
    if key in _PER_LAYER or (key.endswith(("_layers", "layer_types")) and len(value) > 8):
        return [value[at] for at in kept if at < len(value)]
    if len(value) == values.get("num_hidden_layers") and len(value) > 4:  # something of every layer
        one_each = [value[at] for at in kept]
        return [_number(key, one, values, kept, preset, 0) if type(one) is int else one for one in one_each]
    numbers = bool(value) and all(isinstance(one, int) and not isinstance(one, bool) for one in value)
    if numbers and key in ("depths", "layer_depths", "stage_depths", "num_blocks_per_stage"):
        return [min(one, 1) for one in value]
    if numbers and preset.lists and re.search(r"(hidden_sizes|embed_dims?|channels|conv_dim|widths?)$", key):
        least = min((one for one in value if one > 4), default=1)
        share = max(1, least // 16)
        return [one if one <= 4 else max(4, one // share) for one in value]  # up to 4 are those of pictures
    return list(value)


def _rope(value: Mapping[str, Any], cls: Any) -> dict[str, Any]:
    """Parameters of rotary positions; their sections are of a head of 16, also where only code has a default."""
    found = {key: _rope(one, None) if isinstance(one, Mapping) else one for key, one in value.items()}
    section = found.get("mrope_section")
    if section is None and "rope_theta" in found and "mrope_section" in _of_rope(cls):
        section = [16, 24, 24]
    if isinstance(section, list):
        half = int(16 * (found.get("partial_rotary_factor") or 1)) // 2
        if sum(section) > half:  # the same shares, of fewer numbers
            rest = [round(one * half / sum(section)) for one in section[1:]]
            rest = rest if sum(rest) < half else [0 for _ in rest]
            found["mrope_section"] = [half - sum(rest), *rest]
    return found


def _of_rope(cls: Any) -> Collection[str]:
    return getattr(cls, "ignore_keys_at_rope_validation", None) or ()
