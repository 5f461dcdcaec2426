"""Small embedders with random weights, as sentence-transformers writes them, and their vectors by transformers.

sentence-transformers itself is not installed here; benchmarks/embedders.py compares with it.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from hf_folders import TEXT, add_pooling
from tokenizer_files import KINDS

from attnport.verbs.bundle import bundle
from attnport.verbs.export import export
from attnport.verbs.fuse import fuse

PROMPTS = {"query": "Find\nan answer: ", "document": ""}


@dataclass(frozen=True)
class Embedder:
    """A kind of tokenizer, the class of its model, and what sentence-transformers says of it."""

    tokenizer: str
    model: str
    mode: str = "mean"
    left: bool = False
    include_prompt: bool = True
    default: str | None = None
    longest: int = 24


def save(embedder: Embedder, folder: Path) -> Path:
    """Writes the model."""
    import torch
    import transformers

    torch.manual_seed(0)
    tokenizer = KINDS[embedder.tokenizer]()
    values = {**TEXT, "vocab_size": tokenizer.get_vocab_size(), "type_vocab_size": 2}
    if embedder.model == "Qwen2":
        values |= {"num_key_value_heads": 1}
    if embedder.model in ("Roberta", "XLMRoberta"):
        values |= {"type_vocab_size": 1, "pad_token_id": 1}
    config = getattr(transformers, f"{embedder.model}Config")(**values)
    model: Any = getattr(transformers, f"{embedder.model}Model")(config).eval()
    with torch.no_grad():  # random weights of 0.02 make no difference between tokens
        for name, weight in model.named_parameters():
            if weight.ndim > 1:
                weight.normal_(0, 1.0 if "embed" in name else 0.2)
    model.save_pretrained(folder)
    is_bert = embedder.tokenizer == "word_pieces"
    names = ["input_ids", "attention_mask", *(["token_type_ids"] if is_bert else [])]
    special = ("[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]") if is_bert else ("<pad>", "<s>", "</s>", "<unk>", "<mask>")
    wrapped = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        padding_side="left" if embedder.left else "right",
        model_input_names=names,
        **{f"{name}_token": token for name, token in zip(("pad", "cls", "sep", "unk", "mask"), special, strict=True)},
    )
    wrapped.model_max_length = 512
    wrapped.save_pretrained(folder)
    add_pooling(folder, embedder.mode, normalise=True)
    pooling = json.loads((folder / "1_Pooling" / "config.json").read_text())
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling | {"include_prompt": embedder.include_prompt}))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": embedder.longest}))
    (folder / "config_sentence_transformers.json").write_text(
        json.dumps({"prompts": PROMPTS, "default_prompt_name": embedder.default})
    )
    return folder


def bundled(
    folder: Path, out: Path, forms: Sequence[str] = ("ort_cpu", "openvino"), lang: Sequence[str] = ("python",)
) -> Path:
    """The model of a folder as a bundle, which nothing checked."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        export(f"hf:{folder}", out / "out")
    fuse(out / "out", targets=list(forms))
    return bundle(out / "out", out / "app", forms=forms, lang=lang, unverified=True)


def expected(embedder: Embedder, folder: Path, texts: Sequence[str], prompt: str = "") -> np.ndarray[Any, Any]:
    """What `encode` of sentence-transformers gives, a text at a time, so that there is no padding."""
    import torch
    import transformers

    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    model = transformers.AutoModel.from_pretrained(folder, trust_remote_code=False).eval()
    before = len(tokenizer(prompt)["input_ids"]) - (embedder.tokenizer != "bare_byte_pairs") if prompt else 0
    rows = []
    for text in texts:
        fed = tokenizer(prompt + text, truncation=True, max_length=embedder.longest, return_tensors="pt")
        with torch.no_grad():
            hidden = model(**fed).last_hidden_state[0]
        kept = hidden if embedder.include_prompt else hidden[before:]
        pooled = {"mean": kept.mean(0), "cls": kept[0], "lasttoken": kept[-1]}[embedder.mode]
        rows.append((pooled / pooled.norm()).numpy())
    return np.stack(rows)


def save_cross(folder: Path, kind: Embedder, labels: int) -> Path:
    """A cross-encoder: the small embedder's model and tokenizer with a head of classes."""
    import torch
    import transformers

    save(kind, folder)
    for name in ("modules.json", "sentence_bert_config.json"):
        (folder / name).unlink()
    (folder / "config_sentence_transformers.json").write_text(json.dumps({"model_type": "CrossEncoder"}))
    config = transformers.AutoConfig.from_pretrained(folder, trust_remote_code=False)
    config.num_labels = labels
    torch.manual_seed(1)
    made: Any = getattr(transformers, f"{kind.model}ForSequenceClassification")
    model = made.from_pretrained(folder, config=config, ignore_mismatched_sizes=True, trust_remote_code=False)
    with torch.no_grad():
        for weight in model.classifier.parameters():
            weight.normal_(0, 0.5)
    model.save_pretrained(folder)
    return folder
