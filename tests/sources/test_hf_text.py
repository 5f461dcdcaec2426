"""Text inputs as the tokenizer gives them, position limits, and masks read back from transformers' models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
import transformers
from hf_folders import TEXT, add_pooling
from loaded import load

from attnport.artifacts import ModelSpec
from attnport.errors import UsageError

GROUPED = {**TEXT, "hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}


def saved(folder: Path, name: str, **values: Any) -> Path:
    """A model of a transformers class, and a folder of its own."""
    torch.manual_seed(0)
    config = getattr(transformers, name.replace("TextModel", "TextConfig").replace("Model", "Config"))(**values)
    getattr(transformers, name)(config).eval().save_pretrained(folder)
    return folder


def add_tokenizer(folder: Path, kind: str = "BertTokenizer", **values: Any) -> Path:
    """A tokenizer of a transformers class, with a vocabulary of few words."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "c"]
    made = transformers.BertTokenizer(vocab={word: at for at, word in enumerate(words)})
    made.save_pretrained(folder)
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "tokenizer_class": kind, **values}))
    return folder


def spec(folder: Path, *dims: str) -> ModelSpec:
    return load(f"hf:{folder}", dims=list(dims))


def names(made: ModelSpec) -> list[str]:
    return [one.name for one in made.io.inputs]


@pytest.mark.parametrize(
    ("values", "typed"),
    [
        ({}, True),
        ({"model_input_names": ["input_ids", "attention_mask"]}, False),
        ({"tokenizer_class": "PreTrainedTokenizerFast", "model_input_names": ["input_ids", "attention_mask"]}, False),
    ],
)
def test_type_ids_are_an_input_where_the_tokenizer_makes_them(
    values: dict[str, Any], typed: bool, tmp_path: Path
) -> None:
    made = spec(add_tokenizer(saved(tmp_path, "BertModel", **TEXT), **values))
    assert ("token_type_ids" in names(made)) == typed
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path, trust_remote_code=False)
    assert ("token_type_ids" in tokenizer("a b")) == typed


@pytest.mark.parametrize(("kind", "typed"), [("BertModel", True), ("XLMRobertaModel", False), ("MPNetModel", False)])
def test_without_a_tokenizer_the_class_of_the_models_type_decides(kind: str, typed: bool, tmp_path: Path) -> None:
    values = {**TEXT, "type_vocab_size": 2, "pad_token_id": 1}
    assert ("token_type_ids" in names(spec(saved(tmp_path, kind, **values)))) == typed


@pytest.mark.parametrize("side", ["left", "right"])
def test_the_tokenizers_file_says_how_transformers_pads(side: str, tmp_path: Path) -> None:
    made = spec(add_tokenizer(saved(tmp_path, "BertModel", **TEXT), padding_side=side))
    assert isinstance(made.tokenizer, str)
    rows = tokenizers.Tokenizer.from_str(made.tokenizer).encode_batch(["a b c", "a"])
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path, trust_remote_code=False)(["a b c", "a"], padding=True)
    assert [row.ids for row in rows] == theirs["input_ids"]
    assert [row.attention_mask for row in rows] == theirs["attention_mask"]


def test_a_tokenizer_that_has_only_a_vocabulary_is_written_as_a_file(tmp_path: Path) -> None:
    saved(tmp_path, "BertModel", **TEXT)
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\nb\n")
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer"}')
    made = spec(tmp_path)
    assert isinstance(made.tokenizer, str)
    assert tokenizers.Tokenizer.from_str(made.tokenizer).encode("a b").ids == [2, 5, 6, 3]


def test_a_tokenizer_that_transformers_cannot_load_is_told(tmp_path: Path) -> None:
    add_tokenizer(saved(tmp_path, "BertModel", **TEXT))
    (tmp_path / "tokenizer.json").write_text("{ }")
    made = spec(tmp_path)
    assert made.tokenizer == tmp_path / "tokenizer.json"
    assert "token_type_ids" in names(made)
    assert made.notes[0].startswith("transformers cannot load the tokenizer")


def test_sentence_transformers_lower_case_is_in_the_file(tmp_path: Path) -> None:
    add_tokenizer(saved(tmp_path, "BertModel", **TEXT), do_lower_case=False)
    (tmp_path / "sentence_bert_config.json").write_text('{"do_lower_case": true}')
    made = spec(tmp_path)
    assert isinstance(made.tokenizer, str)
    assert tokenizers.Tokenizer.from_str(made.tokenizer).encode("A b").ids == [2, 5, 6, 3]


@pytest.mark.parametrize(
    ("kind", "values", "longest"),
    [
        ("XLMRobertaModel", {"pad_token_id": 1}, 38),
        ("Data2VecTextModel", {"pad_token_id": 1}, 38),  # of RoBERTa's family, with a name that does not say it
        ("LongformerModel", {"pad_token_id": 1, "attention_window": 4}, 38),
        ("MPNetModel", {"pad_token_id": 1}, 38),
        ("CamembertModel", {"pad_token_id": 4}, 35),
        ("OPTModel", {"word_embed_proj_dim": 16, "ffn_dim": 24}, 40),  # its table has two more rows, for the offset
        ("ElectraModel", {"embedding_size": 16}, 40),
        ("LlamaModel", {}, 40),
        (
            "MptModel",
            {"d_model": 16, "n_heads": 2, "n_layers": 2, "max_seq_len": 48, "max_position_embeddings": None},
            48,
        ),
    ],
)
def test_the_longest_sequence_is_that_of_the_table_of_positions(
    kind: str, values: dict[str, Any], longest: int, tmp_path: Path
) -> None:
    made = spec(saved(tmp_path, kind, **{**TEXT, **values}))
    assert made.io.dim("seq").max == longest


def test_a_model_without_a_limit_takes_what_is_declared(tmp_path: Path) -> None:
    saved(tmp_path, "BloomModel", vocab_size=60, hidden_size=16, n_layer=2, n_head=2)
    assert spec(tmp_path).io.dim("seq").max == 512
    assert spec(tmp_path, "seq=1:8:2000").io.dim("seq").max == 2000
    saved(tmp_path / "bert", "BertModel", **TEXT)
    with pytest.raises(UsageError, match="the model takes it from 1 to 40"):
        spec(tmp_path / "bert", "seq=1:8:41")


@pytest.mark.parametrize(
    ("kind", "values", "masks"),
    [
        ("BertModel", TEXT, ["padding(attention_mask)"]),
        ("LlamaModel", GROUPED, ["padding(attention_mask)", "causal"]),
        ("GPT2Model", {"vocab_size": 60, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 40},
         ["padding(attention_mask)", "causal"]),
        # The last four keys, the query's own among them.
        ("MistralModel", {**GROUPED, "sliding_window": 4}, ["padding(attention_mask)", "causal", "causal+window 3"]),
        ("MistralModel", {**GROUPED, "sliding_window": 4096}, ["padding(attention_mask)", "causal"]),
        ("Gemma3TextModel", {**GROUPED, "sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"]},
         ["padding(attention_mask)", "causal", "causal+window 3"]),
        # EmbeddingGemma's: transformers halves the window, and both ends of it are seen.
        ("Gemma3TextModel", {**GROUPED, "sliding_window": 8, "use_bidirectional_attention": True,
                             "layer_types": ["sliding_attention", "full_attention"]},
         ["padding(attention_mask)", "window 4"]),
        ("ModernBertModel", {**TEXT, "local_attention": 8, "global_attn_every_n_layers": 2, "pad_token_id": 0},
         ["padding(attention_mask)", "window 4"]),
    ],
)  # fmt: skip
def test_masks_are_read_back(kind: str, values: dict[str, Any], masks: list[str], tmp_path: Path) -> None:
    made = spec(saved(tmp_path, kind, **values))
    assert [f"{mask} {mask.window}" if mask.window else str(mask) for mask in made.io.masks] == masks


@pytest.mark.parametrize("window", [3, 4])
def test_a_window_that_is_read_back_is_the_modules_own(window: int, tmp_path: Path) -> None:
    made = spec(saved(tmp_path, "MistralModel", **{**GROUPED, "num_hidden_layers": 1, "sliding_window": window}))
    (read,) = [mask.window for mask in made.io.masks if mask.window]
    ids = torch.arange(3, 23)[None]
    mask = torch.ones_like(ids)
    last = made.make()(input_ids=ids, attention_mask=mask)[0][0, -1]
    for distance, reaches in ((read, True), (read + 1, False)):
        other = ids.clone()
        other[0, -1 - distance] = 2
        same = torch.equal(made.make()(input_ids=other, attention_mask=mask)[0][0, -1], last)
        assert same != reaches


def test_an_embedder_of_an_encoder_decoder_is_its_encoder(tmp_path: Path) -> None:
    values = {"vocab_size": 60, "d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 1, "num_heads": 2}
    made = spec(add_pooling(saved(tmp_path, "T5Model", **values), "mean", normalise=True))
    assert names(made) == ["input_ids", "attention_mask"]
    assert {one.name: one.dims for one in made.io.outputs} == {
        "last_hidden_state": ("batch", "seq", 16),
        "sentence_embedding": ("batch", 16),
    }


def test_tokens_of_a_prompt_that_are_not_pooled_have_a_mask_of_their_own(tmp_path: Path) -> None:
    add_pooling(saved(tmp_path, "BertModel", **TEXT), "mean", normalise=False)
    (tmp_path / "1_Pooling" / "config.json").write_text('{"pooling_mode": "mean", "include_prompt": false}')
    made = spec(tmp_path)
    assert names(made)[-1] == "pooled_mask"
    ids = torch.arange(5, 13)[None]
    pooled = torch.tensor([[0, 0, 0, 1, 1, 1, 1, 1]])
    hidden, vector = made.make()(input_ids=ids, attention_mask=torch.ones_like(ids), pooled_mask=pooled)
    torch.testing.assert_close(vector, hidden[:, 3:].mean(1))


def test_a_cross_encoder_has_logits_and_scores(tmp_path: Path) -> None:
    saved(tmp_path, "BertModel", **TEXT)
    torch.manual_seed(0)
    config = transformers.BertConfig(**TEXT, num_labels=1)
    config.sentence_transformers = {"version": "6"}
    transformers.BertForSequenceClassification(config).eval().save_pretrained(tmp_path)
    made = spec(tmp_path)
    assert {one.name: one.dims for one in made.io.outputs} == {"logits": ("batch", 1), "scores": ("batch",)}
    ids = torch.arange(5, 13)[None]
    logits, scores = made.make()(input_ids=ids, attention_mask=torch.ones_like(ids))
    torch.testing.assert_close(scores, torch.sigmoid(logits[:, 0]))


def test_lengths_around_a_window_are_cases(tmp_path: Path) -> None:
    from attnport.cases.inputs import cases

    made = spec(saved(tmp_path, "MistralModel", **{**GROUPED, "sliding_window": 8}))
    assert {"length 6", "length 7", "length 8", "length 14"} <= {case.name for case in cases(made.io)}


@pytest.mark.slow
def test_grouped_heads_of_transformers_load_in_openvino(tmp_path: Path) -> None:
    import onnx_ir as ir
    import openvino

    from attnport.exporter.capture import capture
    from attnport.exporter.targets import base

    made = spec(saved(tmp_path / "model", "Qwen3Model", **GROUPED))
    captured = capture(made.make(), made.io)
    lowering = base.get("openvino")
    lowered = lowering.lower(captured.model, captured.attentions, masks=made.io.masks, plan="fp32")
    assert len(lowered.anchors) == 2
    ir.save(lowered.model, tmp_path / "model.onnx")
    openvino.Core().compile_model(tmp_path / "model.onnx", "CPU")


def test_the_table_of_words_tells_the_vocabulary_that_a_config_does_not() -> None:
    from torch import nn

    from attnport.sources.hf.contract import _words

    class Inside(nn.Module):
        def get_input_embeddings(self) -> nn.Module:
            return nn.Embedding(7, 2)

    class Without(nn.Module):
        def get_input_embeddings(self) -> nn.Module:
            raise NotImplementedError

    assert [_words(Inside()), _words(Without()), _words(nn.Linear(1, 1))] == [7, 0, 0]
