"""llama.cpp through llama-cpp-python: weights in its own format, float16, Q8_0 or Q4_0; BERT's rows without padding."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from peer_gguf import begun, weights, write_decoder

ENVIRONMENT = "llama"
VARIANTS = {"f16": "half", "q8_0": "int8"}
TYPES = {"f32": "F32", "f16": "F16", "q8_0": "Q8_0"}
TENSORS = {
    "embeddings.word_embeddings": "token_embd",
    "embeddings.position_embeddings": "position_embd",
    "embeddings.token_type_embeddings": "token_types",
    "embeddings.LayerNorm": "token_embd_norm",
    "attention.self.query": "attn_q",
    "attention.self.key": "attn_k",
    "attention.self.value": "attn_v",
    "attention.output.dense": "attn_output",
    "attention.output.LayerNorm": "attn_output_norm",
    "intermediate.dense": "ffn_up",
    "output.dense": "ffn_down",
    "output.LayerNorm": "layer_output_norm",
    "pooler.dense": "cls",
    "classifier": "cls.output",
}
"""llama.cpp's names, as its converter of BertModel gives them."""


def variants(model: Mapping[str, Any]) -> dict[str, str]:
    """Of models for search, rerankers alone, also in float32."""
    if "kind" not in model:
        return VARIANTS
    return {"f32": "fp32", **VARIANTS} if model["kind"] == "rerank" else {}


def imports() -> None:
    """What is imported before memory counts."""
    import llama_cpp  # noqa: F401


def _name(name: str) -> str | None:
    prefix = ""
    if name.startswith("encoder.layer."):
        _, _, layer, name = name.split(".", 3)
        prefix = f"blk.{layer}."
    stem, _, kind = name.rpartition(".")
    return f"{prefix}{TENSORS[stem]}.{kind}" if stem in TENSORS else None


def make(model: Mapping[str, Any], folder: Path, variant: str) -> None:
    """Writes the GGUF file."""
    import gguf

    if "vocabulary" in model:
        write_decoder(Path(model["folder"]), folder, variant)
        return

    source = Path(model["folder"])
    config = json.loads((source / "config.json").read_text())
    writer = gguf.GGUFWriter(str(folder / "model.gguf"), "bert")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_layer_norm_eps(config["layer_norm_eps"])
    writer.add_causal_attention(False)
    reranks = model.get("kind") == "rerank"
    writer.add_pooling_type(gguf.PoolingType.RANK if reranks else gguf.PoolingType.MEAN)
    if reranks:
        writer.add_classifier_output_labels(["score"])
    vocabulary = sorted(
        json.loads((source / "tokenizer.json").read_text())["model"]["vocab"].items(), key=lambda x: x[1]
    )
    words = [word for word, _ in vocabulary]
    special = {word: at for word, at in vocabulary if word in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")}
    writer.add_tokenizer_model("bert")
    writer.add_tokenizer_pre("default")
    writer.add_token_type_count(config["type_vocab_size"])
    writer.add_token_list(
        [word if word in special else word[2:] if word.startswith("##") else f"\u2581{word}" for word in words]
    )
    writer.add_token_types([gguf.TokenType.CONTROL if word in special else gguf.TokenType.NORMAL for word in words])
    for mark, add in (("CLS", "bos"), ("SEP", "eos"), ("SEP", "sep"), ("UNK", "unk"), ("PAD", "pad"), ("MASK", "mask")):
        getattr(writer, f"add_{add}_token_id")(special[f"[{mark}]"])
    kind = gguf.GGMLQuantizationType[TYPES[variant]]
    for name, array in weights(source / "model.safetensors").items():
        wanted = _name(name.removeprefix("bert."))
        if wanted is None or (wanted.startswith("cls") and not reranks):
            continue
        # Its converter keeps vectors, positions and types in float32.
        exact = array.ndim == 1 or wanted.startswith(("position_embd", "token_types", "cls"))
        stored = np.ascontiguousarray(array) if exact else gguf.quants.quantize(array, kind)
        writer.add_tensor(wanted, stored, raw_dtype=None if exact else kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def opened(model: Mapping[str, Any], folder: Path, variant: str, threads: int) -> Callable[[Any], Any]:
    """One decode a call, each row a sequence of its own."""
    import llama_cpp

    made = llama_cpp.Llama(
        str(folder / "model.gguf"), embedding=True, n_ctx=0, n_batch=8192, n_ubatch=8192, n_threads=threads,
        n_threads_batch=threads, n_gpu_layers=0, verbose=False,
    )  # fmt: skip
    # Tokens are given as they are: `embed` asks for them by a text, which is the row's number here.
    rows: list[list[int]] = []
    made.tokenize = lambda text, *_, **__: rows[int(text)]

    def run(feeds: Any) -> Any:
        rows[:] = [
            ids[mask > 0].tolist() for ids, mask in zip(feeds["input_ids"], feeds["attention_mask"], strict=True)
        ]
        return np.asarray(made.embed([str(at) for at in range(len(rows))], normalize=True), np.float32)

    return run


def embedder(model: Mapping[str, Any], folder: Path, variant: str, threads: int) -> Callable[[list[Any], int], Any]:
    """The scores of pairs: as its server does, a query and a document are one text of their tokens."""
    import llama_cpp

    made = llama_cpp.Llama(
        str(folder / "model.gguf"), embedding=True, n_ctx=0, n_batch=8192, n_ubatch=8192, n_threads=threads,
        n_threads_batch=threads, n_gpu_layers=0, verbose=False, pooling_type=llama_cpp.LLAMA_POOLING_TYPE_RANK,
    )  # fmt: skip
    words, rows = made.tokenize, [[0]]
    made.tokenize = lambda text, *_, **__: rows[int(text)]
    made.n_embd = lambda: 1  # a text has a score alone, behind which `embed` would read on

    def run(texts: list[Any], batch: int) -> Any:
        # Each is between [CLS] and [SEP], and the second without the former.
        rows[:] = [words(query.encode()) + words(document.encode())[1:] for query, document in texts]
        scores = np.asarray(made.embed([str(at) for at in range(len(rows))]), np.float32)[:, 0]
        return 1 / (1 + np.exp(-scores))

    return run


def decoder(model: Mapping[str, Any], folder: Path, variant: str, threads: int) -> Callable[[int], Any]:
    """Begins texts of a decoder, a sequence each."""
    return begun(folder / "model.gguf", threads)
