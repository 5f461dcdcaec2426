"""Models of sentence-transformers without a transformer: a text's vector is made of rows of a table, by its tokens."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from attnport.artifacts import Dim, IOContract, MaskSpec, ModelSpec, Source, TensorSpec
from attnport.errors import SpecError, first_line
from attnport.sources.declare import narrow_dims
from attnport.sources.hf.files import WEIGHTS, TokenizerOf, check_link, kind_of, read_tokenizer
from attnport.sources.hf.sentence import SENTENCE, SPARSE, Head, read_head, read_prompts, read_search

STATIC, SPARSE_STATIC = "StaticEmbedding", "SparseStaticEmbedding"
_TOKENIZER = "tokenizer.json"
_LONGEST = 8192
"""The most tokens of a text, of which nothing limits the number."""
_SHORTEST = {
    "type": "TemplateProcessing",
    "single": [{"Sequence": {"id": "A", "type_id": 0}}],
    "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
    "special_tokens": {},
}
"""No tokens around a text."""


def load_static(
    name: str, place: str, folder: Path, modules: Sequence[Mapping[str, Any]], dims: Sequence[str]
) -> ModelSpec:
    """The ModelSpec of such a model.

    Args:
        name: The model's name.
        place: Its folder or hub id.
        folder: The folder with its files.
        modules: What `modules.json` lists, of which the first is the table.
        dims: `--dim` declarations.

    Raises:
        SpecError: a file is missing, damaged or outside the folder.
        UsageError: a declared dim is unknown, or beyond the limit.
    """
    inner, sparse = folder / str(modules[0].get("path", "")), kind_of(modules[0]) == SPARSE_STATIC
    for path in (inner / WEIGHTS, inner / _TOKENIZER):
        check_link(folder, path)
        if not path.is_file():
            raise SpecError(f"hf:{place}: there is no {path.relative_to(folder)}; pickled weights (.bin) are not read.")
    head = read_head(folder, None, modules)
    whole = TokenizerOf(inner / _TOKENIZER, ("input_ids", "attention_mask"), known=True)
    tokenizer = read_tokenizer(str(inner), SimpleNamespace(model_type="")) if sparse else whole
    table = _table(inner / WEIGHTS, sparse=sparse)
    most = min(tokenizer.longest or _LONGEST, _LONGEST)
    ranges = narrow_dims((Dim("batch", 1, 8, 64), Dim("seq", 1, min(128, most), most)), dims)
    inputs = (
        TensorSpec("input_ids", "int64", ("batch", "seq"), high=len(table)),
        TensorSpec("attention_mask", "int64", ("batch", "seq"), high=2),
    )
    output = SPARSE if sparse else SENTENCE
    module = StaticModel(table, head).eval()
    with torch.no_grad():
        (vector,) = module(torch.zeros(1, 1, dtype=torch.int64), torch.ones(1, 1, dtype=torch.int64))
    return ModelSpec(
        name,
        Source(f"hf:{place}"),
        IOContract(
            inputs,
            (TensorSpec(output, "float32", ("batch", vector.shape[-1])),),
            ranges,
            (MaskSpec(("padding",), "attention_mask"),),
        ),
        lambda: StaticModel(_table(inner / WEIGHTS, sparse=sparse), head).eval(),
        _without_special(tokenizer, inner),
        prompts=read_prompts(folder),
        search=read_search(folder, head, tokenizer, modules, sparse=sparse),
    )


class StaticModel(nn.Module):
    """The mean of the rows of a text's tokens; of a table of one number a token, those of the tokens that occur.

    Source: sentence-transformers' `StaticEmbedding` and `SparseStaticEmbedding`.
    """

    def __init__(self, table: torch.Tensor, head: Head | None) -> None:
        super().__init__()
        self.table = nn.Parameter(table)
        self.head = head

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> tuple[torch.Tensor]:
        """Ids and their mask `[B,T]` to vectors `[B,E]`."""
        if self.table.ndim == 1:
            counts_BV = torch.zeros(input_ids.shape[0], self.table.shape[0], dtype=torch.int64)
            counts_BV = counts_BV.scatter_add(1, input_ids, (attention_mask != 0).to(torch.int64))
            vector_BE = torch.where(counts_BV > 0, self.table, 0.0)
        else:
            keep_BT1 = (attention_mask != 0).unsqueeze(-1)
            kept_BTE = torch.where(keep_BT1, nn.functional.embedding(input_ids, self.table), 0.0)
            vector_BE = kept_BTE.sum(1) / keep_BT1.sum(1).clamp(min=1).to(self.table.dtype)
        if self.head is not None:
            vector_BE = self.head.named({SENTENCE: vector_BE}, attention_mask)[SENTENCE]
        return (vector_BE,)


def _table(path: Path, *, sparse: bool) -> torch.Tensor:
    """The rows by token: sentence-transformers' own, or those of model2vec, which may have fewer, and their weights."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        tensors = load_file(path)
        if sparse:
            return tensors["weight"].float()
        if "embedding.weight" in tensors:
            return tensors["embedding.weight"].float()
        rows = tensors["embeddings"]
        rows = rows[tensors["mapping"].long()] if "mapping" in tensors else rows
        weights = tensors.get("weights")
        return rows.float() if weights is None else rows.float() * weights.float().unsqueeze(-1)
    except (SafetensorError, KeyError, IndexError, RuntimeError, OSError) as err:
        raise SpecError(f"{path}: its weights cannot be loaded: {first_line(err)}") from err


def _without_special(tokenizer: TokenizerOf, inner: Path) -> str:
    """The text of a `tokenizer.json` that puts no tokens around a text, and does not cut it."""
    try:
        text = tokenizer.file.read_text(encoding="utf-8") if isinstance(tokenizer.file, Path) else tokenizer.file
        values = json.loads(text or "")
        return json.dumps({**values, "post_processor": _SHORTEST, "truncation": None}, ensure_ascii=False, indent=2)
    except (OSError, ValueError, TypeError) as err:
        raise SpecError(f"{inner / _TOKENIZER} cannot be read: {err}") from err
