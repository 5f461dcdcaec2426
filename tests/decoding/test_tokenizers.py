"""Texts through the tokenizers that transformers' models come with, trained here: what comes out is what transformers
makes of the same text, model and tokenizer."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import transformers
from decoders import saved as saved_decoder
from encoder_decoders import saved as saved_pair
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers.processors import TemplateProcessing

import attnport
from attnport.verbs.export import export
from attnport.verbs.fuse import fuse
from attnport_bundle.format import files, manifest

WORDS = 300
LINES = ["the port of call", "ports are open", "a tanker calls at ports, and leaves them", "Größe, naïve; 東京"] * 40
PROMPTS = ["the port of", "Größe", "a tanker calls at 東京, and"]
CHAT = "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}{% endfor %}<|assistant|>"


def trained(tokenizer: tokenizers.Tokenizer, trainer: Any) -> tokenizers.Tokenizer:
    tokenizer.train_from_iterator(LINES, trainer)
    return tokenizer


def bytes_of_gpt2() -> Any:
    made = tokenizers.Tokenizer(models.BPE())
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=WORDS, special_tokens=["<|endoftext|>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    found = transformers.GPT2TokenizerFast(tokenizer_object=trained(made, trainer), eos_token="<|endoftext|>")
    found.chat_template = CHAT
    return found


def pieces_of_llama() -> Any:
    made = tokenizers.Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
    made.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    strip = decoders.Strip(content=" ", left=1)
    made.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), strip])
    special = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trained(made, trainers.BpeTrainer(vocab_size=WORDS, special_tokens=special))
    made.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    found = transformers.PreTrainedTokenizerFast(tokenizer_object=made, bos_token="<s>", eos_token="</s>")
    found.chat_template = CHAT
    return found


def pieces_of_t5() -> Any:
    made = tokenizers.Tokenizer(models.Unigram())
    made.normalizer = normalizers.NFKC()
    made.pre_tokenizer, made.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    special = ["<pad>", "</s>", "<unk>"]
    trained(made, trainers.UnigramTrainer(vocab_size=WORDS, special_tokens=special, unk_token="<unk>"))
    made.post_processor = TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="<pad>", eos_token="</s>", unk_token="<unk>"
    )


def with_tokenizer(weights: Path, tokenizer: Any) -> Path:
    (weights / "tokenizer.json").unlink()
    tokenizer.save_pretrained(weights)
    return weights


@pytest.mark.parametrize(
    ("kind", "make"), [("gpt2", bytes_of_gpt2), pytest.param("llama", pieces_of_llama, marks=pytest.mark.slow)]
)
def test_a_decoder_continues_texts_as_transformers_does(tmp_path: Path, kind: str, make: Callable[[], Any]) -> None:
    tokenizer = make()
    weights = with_tokenizer(saved_decoder(kind, tmp_path / "weights", vocab_size=len(tokenizer)), tokenizer)
    export(f"hf:{weights}", tmp_path / "out", part="with-past")
    fuse(tmp_path / "out", targets=["ort_cpu"])
    artifact = attnport.open(tmp_path / "out")
    pieces: list[list[str]] = [[] for _ in PROMPTS]
    found = artifact.generate(PROMPTS, max_tokens=16, on_token=lambda row, piece: pieces[row].append(piece))
    assert found == ["".join(one) for one in pieces]
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(weights, trust_remote_code=False)
    for prompt, text in zip(PROMPTS, found, strict=True):
        given = tokenizer(prompt, return_tensors="pt")
        made = model.generate(**given, max_new_tokens=16, do_sample=False)[0, given["input_ids"].shape[1] :]
        assert text == tokenizer.decode(made, skip_special_tokens=True)
    talk = [{"role": "user", "content": "ports?"}]
    ids = tokenizer.apply_chat_template(talk, tokenize=True, return_dict=False)
    answer = artifact.generate([ids], max_tokens=8)[0]
    given = tokenizer.apply_chat_template(talk, tokenize=True, return_dict=True, return_tensors="pt")
    assert answer == model.generate(**given, max_new_tokens=8, do_sample=False)[0, len(ids) :].tolist()
    artifact.bundle(tmp_path / "app", unverified=True)  # which keeps the template for servers
    kept = json.loads((tmp_path / "app" / "chat.json").read_text("utf-8"))
    assert kept == {"template": CHAT, "tokens": tokenizer.special_tokens_map}
    assert files.check(tmp_path / "app", manifest.read(tmp_path / "app")) == []


@pytest.mark.slow
def test_an_encoder_reads_texts_as_transformers_does(tmp_path: Path) -> None:
    tokenizer = pieces_of_t5()
    weights = with_tokenizer(
        saved_pair("t5", tmp_path / "weights", vocab_size=len(tokenizer), eos_token_id=1), tokenizer
    )
    for name, part in (("decoder", "with-past"), ("encoder", "encoder-with-past")):
        export(f"hf:{weights}", tmp_path / name, part=part)
        fuse(tmp_path / name, targets=["ort_cpu"])
    encoder = attnport.open(tmp_path / "encoder")
    found = attnport.open(tmp_path / "decoder").generate(PROMPTS, encoder=encoder, max_tokens=16)
    model: Any = transformers.AutoModelForSeq2SeqLM.from_pretrained(weights, trust_remote_code=False)
    for prompt, text in zip(PROMPTS, found, strict=True):
        made = model.generate(**tokenizer(prompt, return_tensors="pt"), max_new_tokens=16, do_sample=False)[0]
        assert text == tokenizer.decode(made, skip_special_tokens=True)
