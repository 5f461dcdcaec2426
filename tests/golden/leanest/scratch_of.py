"""Scratch memory of one encoder, twice: in the leanest form written by hand, and through the project's own path."""

from __future__ import annotations

import json
from pathlib import Path

from leanest_bert import INPUTS, Shape, Variant, anchors, save

from attnport.artifacts import EngineRecord, Evidence, FusionTable, IOContract
from attnport.dims import Dim, Profile, TensorSpec
from attnport.exporter.engine.build import build_engine
from attnport.exporter.engine.evidence import prove, read_engine_text

TARGET = "tensorrt_rtx"


def profile(batch: int, sequence: int) -> Profile:
    return Profile((Dim("batch", 1, batch, batch), Dim("seq", 1, sequence, sequence)))


def of_leanest(
    folder: Path, shape: Shape, largest: Profile, variant: Variant | None = None
) -> tuple[EngineRecord, int]:
    """The engine of the form written by hand, and how many of its attentions are fused."""
    variant = variant or Variant()
    model = save(folder / "leanest.onnx", shape, variant)
    io = IOContract(
        inputs=tuple(TensorSpec(name, "int64", ("batch", "seq")) for name in INPUTS), outputs=(), dims=largest.dims
    )
    record = build_engine(TARGET, model, io, folder / "leanest.engine")
    text = read_engine_text(folder / "leanest.engine")
    proofs = [prove(text, nodes, profiles=1) for nodes in anchors(shape, variant).values()]
    return record, sum(isinstance(proof, Evidence) for proof in proofs)


def save_random_bert(folder: Path, shape: Shape) -> Path:
    """A sentence-transformers folder of a BERT with random weights: what `hf:` reads."""
    import torch
    import transformers

    config = transformers.BertConfig(
        hidden_size=shape.hidden,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        intermediate_size=shape.feed_forward,
        vocab_size=shape.vocabulary,
        max_position_embeddings=shape.positions,
    )
    torch.manual_seed(0)
    transformers.BertModel(config).save_pretrained(folder)
    modules = [
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
        {"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"},
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    pooling = {"word_embedding_dimension": shape.hidden, "pooling_mode_mean_tokens": True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    return folder


def of_ours(folder: Path, shape: Shape, largest: Profile) -> tuple[EngineRecord, FusionTable]:
    """The engine of a random BERT, exported, lowered and built as a user does it."""
    from attnport.verbs.build import build
    from attnport.verbs.export import export

    source = save_random_bert(folder / "bert", shape)
    export(f"hf:{source}", folder / "out", dims=[str(dim) for dim in largest.dims])
    return build(folder / "out", TARGET, "fp16", profiles=(largest,))
