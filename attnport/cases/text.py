"""Test inputs from sentences, tokenised with the model's own tokenizer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from attnport.artifacts import IOContract
from attnport.cases.inputs import Array, Case, case
from attnport.decoders import decoder_roles
from attnport.dims import TensorSpec
from attnport.errors import ArtifactError, UsageError
from attnport.masks.numpy_builders import encode_mask, numpy_dtype
from attnport.optional import require
from attnport_bundle.decoding.caches import positions
from attnport_bundle.errors import BundleError
from attnport_bundle.text import PackageTokenizer, told

SENTENCES = "sentences "
"""How the name of a batch of them begins."""
_TEXT_INPUTS = ("input_ids", "attention_mask", "token_type_ids")


def reads_text(io: IOContract) -> bool:
    """Whether the inputs are those that a tokenizer fills with a whole text, and caches that may be empty."""
    names = {spec.name for spec in io.inputs}
    masks = {str(mask.input) for mask in io.padding_masks()}
    single = any(spec.name == "input_ids" and spec.dims[1:] == (1,) for spec in io.inputs)
    filled = {*_TEXT_INPUTS, *masks, *_empty_caches(io), _positions(io)}
    return "input_ids" in names and not single and names <= filled


def _empty_caches(io: IOContract) -> dict[str, TensorSpec]:
    """The caches of a decoder that may be empty, and whose mask is of all tokens."""
    roles = decoder_roles(io)
    return (
        {spec.name: spec for spec, _, _ in roles.caches}
        if roles and roles.mask_covers != "past" and not roles.start
        else {}
    )


def _positions(io: IOContract) -> str | None:
    """The input of a decoder's positions, where there is one."""
    roles = decoder_roles(io)
    return roles.positions.name if roles and roles.positions else None


def read_sentences(path: Path) -> list[str]:
    """The sentences of a UTF-8 text file, one in each line; empty lines are skipped.

    Raises:
        UsageError: the file cannot be read, is not UTF-8, or holds no sentence.
    """
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    except OSError as err:
        raise UsageError(f"{path} cannot be read: {err.strerror}.") from err
    except UnicodeDecodeError as err:
        raise UsageError(f"{path} is not UTF-8 text: {err.reason} at byte {err.start}.") from err
    sentences = [line for line in lines if line]
    if not sentences:
        raise UsageError(f"{path} holds no sentence.", hint="Write one sentence in each line.")
    return sentences


def text_cases(io: IOContract, sentences: Sequence[str], tokenizer_path: Path, batch: int = 32) -> list[Case]:
    """Sentences in their order, in batches padded to the longest of each batch, on the side that the tokenizer pads.

    They are not sorted by length, which would leave hardly any padding: batches in use are not sorted either. Sentences
    longer than the model takes are truncated. A decoder's cache is empty, and its batches are padded on the left.

    Raises:
        MissingDependency: the tokenizers package is not installed.
        UsageError: there are no sentences, or the model has inputs that text does not fill.
        ArtifactError: the tokenizer file cannot be read.
    """
    if not sentences:
        raise UsageError("there are no sentences to tokenise.")
    if not reads_text(io):
        names = ", ".join(spec.name for spec in io.inputs)
        raise UsageError(
            f"the model does not read text in one pass: it takes {names}; a tokenizer fills {', '.join(_TEXT_INPUTS)}.",
            hint="Leave --text out, or give tensors with --inputs.",
        )
    ids = next(spec for spec in io.inputs if spec.name == "input_ids")
    B, T = (io.dim(dim) if isinstance(dim, str) else None for dim in ids.dims)
    longest = T.max if T else int(ids.dims[1])
    rows, pad_id, left = _tokenise(sentences, tokenizer_path, longest)
    batch = min(batch, B.max) if B else int(ids.dims[0])
    batches = []
    for start in range(0, len(rows), batch):
        part = rows[start : start + batch]
        name = f"{SENTENCES}{start + 1}-{start + len(part)}"
        while len(part) < (B.at_least(len(part)) if B else batch):
            part = [*part, part[-1]]
        width = max(len(row[0]) for row in part)
        width = T.at_least(width) if T else longest
        batches.append(case(io, name, "text", _feeds(io, part, width, pad_id, left or bool(_empty_caches(io)))))
    return batches


def _tokenise(
    sentences: Sequence[str], tokenizer_path: Path, longest: int
) -> tuple[list[tuple[list[int], list[int]]], int, bool]:
    """Token ids and type ids of each sentence, the id of padding, and whether it stands on the left."""
    require("tokenizers")
    with tokenizers_errors(tokenizer_path, "cannot tokenise these sentences"):
        tokenizer = PackageTokenizer(tokenizer_path, longest)
        rows = [(list(row.ids), list(row.type_ids)) for row in tokenizer.encode_batch(sentences)]
    if tokenizer.around > longest:
        raise UsageError(f"got {longest} positions; expected {tokenizer.around} or more for the tokens around a text.")
    empty = next((index for index, row in enumerate(rows) if not row[0]), None)
    if empty is not None:
        raise UsageError(f"sentence {empty + 1} has no token: {sentences[empty][:60]!r}.")
    return rows, tokenizer.pad_id, tokenizer.left


@contextmanager
def tokenizers_errors(tokenizer_path: Path, what: str) -> Iterator[None]:
    """Turns what the package `tokenizers` raises in the block into an error that names the tokenizer file.

    Raises:
        ArtifactError: the package raised, because of the rules in the file.
    """
    try:
        with told(tokenizer_path, what):
            yield
    except BundleError as err:
        raise ArtifactError(
            str(err), hint="Its rules are at fault; take the tokenizer.json that came with the model."
        ) from err


def _feeds(
    io: IOContract, rows: Sequence[tuple[list[int], list[int]]], width: int, pad_id: int, left: bool
) -> dict[str, Array]:
    filled = {name: np.zeros((len(rows), width), dtype=np.int64) for name in _TEXT_INPUTS}
    filled["input_ids"][:] = pad_id
    for index, (ids, types) in enumerate(rows):
        place = slice(width - len(ids), width) if left else slice(len(ids))
        filled["input_ids"][index, place] = ids
        filled["token_type_ids"][index, place] = types
        filled["attention_mask"][index, place] = 1
    masks = {mask.input: mask for mask in io.padding_masks()}
    caches = _empty_caches(io)
    sizes = {dim.name: dim.min for dim in io.dims} | {str(caches[name].dims[0]): len(rows) for name in caches}
    found: dict[str, Array] = {}
    for spec in io.inputs:
        if spec.name in caches:
            found[spec.name] = np.zeros(spec.shape(sizes), numpy_dtype(spec.dtype))
        elif spec.name in masks:
            found[spec.name] = encode_mask(masks[spec.name], spec.dtype, filled["attention_mask"] == 1)
        elif spec.name == _positions(io):
            found[spec.name] = positions(filled["attention_mask"]).astype(spec.dtype)
        else:
            found[spec.name] = filled[spec.name].astype(spec.dtype)
    return found
