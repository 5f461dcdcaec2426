"""The tiny attention as a model that reads text: BERT's names of inputs and outputs, and a tokenizer of fifty words."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx
import tiny_attention as tiny

from attnport.folder.workspace import change

NAMES = {"ids": "input_ids", "hidden": "last_hidden_state", "pooled": "sentence_embedding"}
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{at}" for at in range(40))]


def renamed(name: str) -> str:
    return "/".join(NAMES.get(part, part) for part in name.split("/"))


def write_tokenizer(path: Path) -> None:
    """BERT's way: [CLS] words [SEP]."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    made = Tokenizer(models.WordPiece({word: at for at, word in enumerate(WORDS)}, unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer()
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    made.add_special_tokens(WORDS[:5])
    made.save(str(path))


def make(folder: Path, exported: Path, arrays: Mapping[str, Any]) -> Path:
    """Writes the artifact folder; `exported` and `arrays` are those of the tiny attention."""
    own = folder.with_name(f"{folder.name}.export")
    own.mkdir()
    model = onnx.load(exported / "model.onnx", load_external_data=False)
    for value in (*model.graph.input, *model.graph.output):
        value.name = renamed(value.name)
    for node in model.graph.node:
        node.input[:] = map(renamed, node.input)
        node.output[:] = map(renamed, node.output)
    onnx.save(model, own / "model.onnx")
    (own / "weights.bin").write_bytes((exported / "weights.bin").read_bytes())
    tiny.make(folder, own, {renamed(name): array for name, array in arrays.items()})
    with change(folder) as edit:
        inputs, outputs = (
            tuple(dataclasses.replace(spec, name=renamed(spec.name)) for spec in specs)
            for specs in (tiny.IO.inputs, tiny.IO.outputs)
        )
        io = dataclasses.replace(tiny.IO, inputs=inputs, outputs=outputs)
        write_tokenizer(edit.path("tokenizer.json"))
        edit.manifest = dataclasses.replace(edit.manifest, io=io, tokenizer="tokenizer.json")
        edit.finish("again", "1")
    return tiny.judged(folder, tiny.parity())
