"""Small tokenizers of every kind, trained on the sentences of examples/."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

SENTENCES = (Path(__file__).parents[2] / "examples" / "sentences.txt").read_text("utf-8").splitlines()
SPECIAL = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
ODD = (
    "Ünïcödé naïve café", "日本語 テスト 한국어", "a\u200bb\u00adc", "İstanbul ǅ ß ﬁ ΣΑΣ", "x" * 150, "emoji 😀👍🏽 ok",
    "don't—stop…", "\t a\r\nb\x00c\x0bd\x85e", "á̂ e\u0301", "１２３ Ⅷ ²", "<s> hi <mask></s>x<pad", "", " ", "  two  ",
    "\ufffd", "$5+`~^|<=>", "𠀀𪜀", "a\u2028b\u3000c", "\x1c\x1f", "word " * 200,
)  # fmt: skip


def word_pieces() -> Tokenizer:
    """BERT's, uncased."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    made = tokenizers.BertWordPieceTokenizer()
    made.train_from_iterator(SENTENCES, 400, special_tokens=special, show_progress=False)
    # The helper's own post-processor is BertProcessing, where files of transformers have a template.
    made.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0", pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[(token, special.index(token)) for token in ("[CLS]", "[SEP]")])  # fmt: skip
    return made._tokenizer


def byte_pairs() -> Tokenizer:
    """As of RoBERTa: bytes, `<s>` before a text and `</s>` behind it."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    train(made, trainers.BpeTrainer(vocab_size=500, special_tokens=SPECIAL, show_progress=False,
                                    initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))  # fmt: skip
    made.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=False)
    return made


def bare_byte_pairs() -> Tokenizer:
    """As of GPT-2: bytes, and no token around a text."""
    made = byte_pairs()
    made.post_processor = processors.ByteLevel(trim_offsets=False)
    return made


def unigram() -> Tokenizer:
    """As of XLM-RoBERTa: SentencePiece's pieces, `<s>` before a text and `</s>` behind it."""
    made = Tokenizer(models.Unigram())
    made.normalizer = normalizers.NFKC()
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    train(made, trainers.UnigramTrainer(vocab_size=300, special_tokens=SPECIAL, unk_token="<unk>", show_progress=False))
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    return made


def ending() -> Tokenizer:
    """As of Qwen3-Embedding: bytes, and a token behind a text, whose vector is taken."""
    made = byte_pairs()
    made.post_processor = processors.TemplateProcessing(
        single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", 2)]
    )
    return made


def train(made: Tokenizer, trainer: Any) -> None:
    made.train_from_iterator(SENTENCES, trainer)


KINDS: dict[str, Callable[[], Tokenizer]] = {
    "word_pieces": word_pieces,
    "byte_pairs": byte_pairs,
    "bare_byte_pairs": bare_byte_pairs,
    "unigram": unigram,
    "ending": ending,
}


def save(folder: Path, kind: str, *, left: bool = False) -> Path:
    """Writes a tokenizer with its padding; its own limit of 3 tokens, and 20 places, count for nothing."""
    made = KINDS[kind]()
    token = "[PAD]" if kind == "word_pieces" else "<pad>"
    made.enable_padding(
        direction="left" if left else "right", length=20, pad_id=made.token_to_id(token), pad_token=token
    )
    made.enable_truncation(3)
    path = folder / "tokenizer.json"
    made.save(str(path))
    return path
