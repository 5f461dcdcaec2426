"""The files that describe an `hf:` model beside its weights, for who reads its folder: config, tokenizer, pooling."""

from __future__ import annotations

from pathlib import Path

from attnport.errors import SpecError
from attnport.sources.hf_files import WEIGHTS, check_link, find
from attnport.sources.sentence import check_inside, folder_of, steps_of

_NAMES = (
    "config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    "sentencepiece.bpe.model",
    "spiece.model",
    "tokenizer.model",
    "chat_template.jinja",
    "modules.json",
    "config_sentence_transformers.json",
    "sentence_bert_config.json",
    "sentence_roberta_config.json",
    "sentence_distilbert_config.json",
    "sentence_camembert_config.json",
    "sentence_albert_config.json",
    "sentence_xlm-roberta_config.json",
    "sentence_xlnet_config.json",
    "README.md",
    "LICENSE",
    "LICENSE.txt",
)
"""The settings of the transformer have had a name a model type in sentence-transformers. The card and the licence go
where the model goes."""


def describing_files(place: str) -> dict[str, Path]:
    """The files of an `hf:` folder or hub id by their names in it; those of sentence-transformers' steps with weights.

    Raises:
        SpecError: one is outside the folder.
    """
    folder = folder_of(place)
    names = list(_NAMES)
    for step in filter(None, steps_of(folder)):
        check_inside(folder, step)
        names += [f"{step}/config.json", f"{step}/{WEIGHTS}"]
    found = {name: path for name in names if (path := _file(folder, place, name)) is not None}
    if "config.json" not in found:
        raise SpecError(f"hf:{place}: it has no config.json.", hint="Give the folder that save_pretrained wrote.")
    return found


def _file(folder: Path, place: str, name: str) -> Path | None:
    if not Path(place).is_dir():
        return find(place, name)
    path = folder / name
    check_link(folder, path)
    return path if path.is_file() else None
