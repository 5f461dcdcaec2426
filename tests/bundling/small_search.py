"""Small sparse and multi-vector encoders and static tables, as sentence-transformers writes them, and their vectors.

sentence-transformers itself is not installed here; benchmarks/embedders.py compares with it.
"""

from __future__ import annotations

import functools
import json
import shutil
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from small_embedders import Embedder, save
from tokenizer_files import KINDS

from attnport.verbs.bundle import bundle
from attnport.verbs.export import export
from attnport.verbs.fuse import fuse

BERT = Embedder("word_pieces", "Bert", longest=24)
LENGTH = 12
"""Tokens of a query of ColBERT's kind."""
Array = np.ndarray[Any, Any]


def write(folder: Path, name: str, values: Any) -> None:
    """Writes a file of JSON."""
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(json.dumps(values))


def listed(*modules: tuple[str, str]) -> list[dict[str, Any]]:
    """What `modules.json` has, of paths and classes."""
    return [{"idx": at, "path": path, "type": f"a.{kind}"} for at, (path, kind) in enumerate(modules)]


def random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


def transformer(folder: Path, kind: str = "BertModel") -> Any:
    """Writes a small BERT with its tokenizer, and returns it."""
    import transformers

    save(BERT, folder)
    shutil.rmtree(folder / "1_Pooling")
    config = transformers.AutoConfig.from_pretrained(folder, trust_remote_code=False)
    torch.manual_seed(0)
    model = getattr(transformers, kind)(config).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.ndim > 1:
                weight.normal_(0, 1.0 if "embed" in name else 0.3)
    model.save_pretrained(folder)
    return model


def save_splade(folder: Path, **settings: Any) -> None:
    transformer(folder, "BertForMaskedLM")
    write(folder, "modules.json", listed(("", "Transformer"), ("1_SpladePooling", "SpladePooling")))
    write(folder, "1_SpladePooling/config.json", {"pooling_strategy": "max", "activation_function": "relu"})
    write(folder, "sentence_bert_config.json", {"transformer_task": "fill-mask", "max_seq_length": 24})
    write(folder, "config_sentence_transformers.json", {"model_type": "SparseEncoder", **settings})


def save_colbert(folder: Path, *, attend: bool = False, strategy: str = "fixed") -> None:
    transformer(folder)
    steps = ("1_Dense", "Dense"), ("2_MultiVectorMask", "MultiVectorMask"), ("3_Normalize", "Normalize")
    write(folder, "modules.json", listed(("", "Transformer"), *steps))
    to_tokens = {"module_input_name": "token_embeddings", "module_output_name": "token_embeddings"}
    dense = {"in_features": 16, "out_features": 8, "bias": False, "activation_function": "torch.nn.Identity"}
    write(folder, "1_Dense/config.json", {**dense, **to_tokens})
    save_file({"linear.weight": random(8, 16)}, folder / "1_Dense" / "model.safetensors")
    write(folder, "2_MultiVectorMask/config.json", {"skiplist_words": [".", ",", "no token"]})
    write(folder, "3_Normalize/config.json", to_tokens)
    expansion = {"strategy": strategy, "attend": attend, "token": None, "length": LENGTH}
    own = {"max_seq_length": 24, "document_length": 20, "query_expansion": expansion}
    write(folder, "sentence_bert_config.json", own)
    prompts = {"query": "who: ", "document": ""}
    write(folder, "config_sentence_transformers.json", {"model_type": "MultiVectorEncoder", "prompts": prompts})


def save_router(folder: Path) -> torch.Tensor:
    """An inference-free SPLADE: numbers of words for queries, which are returned, and a transformer for documents."""
    save_splade(folder / "document_0_Transformer")
    inner = folder / "document_0_Transformer"
    (inner / "1_SpladePooling").rename(folder / "document_1_SpladePooling")
    for name in ("modules.json", "config_sentence_transformers.json"):
        (inner / name).unlink()
    write(folder, "modules.json", listed(("", "Router")))
    types = {"query_0_SparseStaticEmbedding": "a.SparseStaticEmbedding", "document_0_Transformer": "a.Transformer",
             "document_1_SpladePooling": "a.SpladePooling"}  # fmt: skip
    structure = {way: [name for name in types if name.startswith(way)] for way in ("query", "document")}
    write(folder, "router_config.json", {"types": types, "structure": structure, "parameters": {}})
    write(folder, "config_sentence_transformers.json", {"model_type": "SparseEncoder", "similarity_fn_name": "dot"})
    query = folder / "query_0_SparseStaticEmbedding"
    query.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(inner / name, query)
    weights = random(KINDS["word_pieces"]().get_vocab_size()).abs()
    save_file({"weight": weights}, query / "model.safetensors")
    write(query, "config.json", {"frozen": True})
    return weights


def save_static(folder: Path) -> torch.Tensor:
    """The mean of a table's rows, which are returned."""
    tokenizer = KINDS["word_pieces"]()
    (folder / "0_StaticEmbedding").mkdir(parents=True)
    tokenizer.save(str(folder / "0_StaticEmbedding" / "tokenizer.json"))
    table = random(tokenizer.get_vocab_size(), 8)
    save_file({"embedding.weight": table}, folder / "0_StaticEmbedding" / "model.safetensors")
    write(folder, "modules.json", listed(("0_StaticEmbedding", "StaticEmbedding")))
    return table


def bundled(folder: Path, out: Path, part: str = "") -> Path:
    """The model of a folder as a bundle for ONNX Runtime, which nothing checked."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        export(f"hf:{folder}", out / f"out{part}", part=part)
    fuse(out / f"out{part}", targets=["ort_cpu"])
    return bundle(out / f"out{part}", out / f"app{part}", forms=["ort_cpu"], unverified=True)


@functools.cache
def opened(folder: Path, kind: str) -> tuple[Any, Any]:
    """The tokenizer and the model of a folder, as transformers loads them."""
    import transformers

    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    return tokenizer, getattr(transformers, kind).from_pretrained(folder, trust_remote_code=False).eval()


def splade(folder: Path, texts: Sequence[str]) -> Array:
    """What `SparseEncoder.encode` gives, a text at a time."""
    tokenizer, model = opened(folder, "AutoModelForMaskedLM")
    rows = []
    for text in texts:
        with torch.no_grad():
            fed = tokenizer(text, truncation=True, max_length=24, return_tensors="pt")
            rows.append(torch.log1p(torch.relu(model(**fed).logits[0])).amax(0).numpy())
    return np.stack(rows)


def colbert(folder: Path, text: str, role: str, *, attend: bool, fixed: bool) -> Array:
    """What `MultiVectorEncoder.encode_query` or `encode_document` gives of one text."""
    tokenizer, model = opened(folder, "AutoModel")
    most = 20 if role == "document" else LENGTH if fixed else 24
    ids = tokenizer(text, truncation=True, max_length=most)["input_ids"]
    mask = [1] * len(ids)
    if role == "query":
        more = max(LENGTH - len(ids), 0)
        ids, mask = ids + [tokenizer.mask_token_id] * more, mask + [int(attend)] * more
    with torch.no_grad():
        fed = {"input_ids": torch.tensor([ids]), "attention_mask": torch.tensor([mask])}
        vectors = model(**fed).last_hidden_state[0] @ random(8, 16).T
    skipped = tokenizer.convert_tokens_to_ids([".", ","]) if role == "document" else []
    vectors = vectors[[one not in skipped for one in ids]]
    return (vectors / vectors.norm(dim=1, keepdim=True)).numpy()
