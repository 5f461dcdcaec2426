"""Collects the cases of a check: those of the contract, given inputs, sentences, and a decoder's steps.

Sentences are tokenised with the model's own tokenizer. A decoder with a cache is run token by token, and compared with
one pass over all tokens.
"""

from __future__ import annotations

import dataclasses
import math
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from attnport.artifacts import UNKNOWN_SIZE, Dim, IOContract, Manifest, TensorSpec
from attnport.cases.inputs import LONGEST, Array, Case, case, cases, full_case, largest_size, random_feeds
from attnport.cases.inputs import case as given_case
from attnport.decoders import decoder_roles, roles_in
from attnport.errors import ArtifactError, UsageError
from attnport.masks.numpy_builders import encode_mask, numpy_dtype
from attnport.onnx_graph import dims_of, ir
from attnport.optional import require
from attnport_bundle.batches import scoring
from attnport_bundle.decoding.caches import Decoding, MakeSteps, Run, positions, steps_of
from attnport_bundle.errors import BundleError
from attnport_bundle.format.contract import evaluate
from attnport_bundle.text import ATTENDED, PackageTokenizer, Text, told

SENTENCES = "sentences "
"""How the name of a batch of them begins."""
GRAPH = "model.onnx"
"""The file of the exported graph in an artifact folder."""
_MOST_ELEMENTS = 1 << 26
"""Of the largest tensor that a batch of sentences may make: 512 MB in float64, which several runtimes hold at once.

Logits over 30,000 words are so large for four texts of 512 tokens, the inner layer of BERT-large for 32 of them."""
_TEXT_INPUTS = ("input_ids", "attention_mask", "token_type_ids", ATTENDED)


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
        raise UsageError(
            f"{path} cannot be read: {err.strerror}.", hint="Give a text file of yours, one sentence in each line."
        ) from err
    except UnicodeDecodeError as err:
        raise UsageError(f"{path} is not UTF-8 text: {err.reason} at byte {err.start}.") from err
    sentences = [line for line in lines if line]
    if not sentences:
        raise UsageError(f"{path} holds no sentence.", hint="Write one sentence in each line.")
    return sentences


def text_cases(
    io: IOContract, sentences: Sequence[str], tokenizer_path: Path, batch: int = 32, graph: Path | None = None
) -> list[Case]:
    """Sentences in their order, in batches padded to the longest of each batch, on the side that the tokenizer pads.

    They are not sorted by length, which would leave hardly any padding: batches in use are not sorted either. Sentences
    longer than the model takes are truncated. A decoder's cache is empty, and its batches are padded on the left. For a
    model that gives scores, a tab in a sentence separates a pair of texts, such as a query and a document.

    Args:
        io: The contract, whose inputs are filled.
        sentences: The texts.
        tokenizer_path: The model's `tokenizer.json`.
        batch: Sentences in a batch; fewer where the model takes fewer.
        graph: The exported graph. Batches have fewer sentences where one of its tensors, or an output, would have more
            than `_MOST_ELEMENTS` elements for as many of the longest.

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
    texts = [_pair(each) for each in sentences] if scoring(io) else sentences
    rows, pad_id, left = _tokenise(texts, tokenizer_path, longest)
    batch = min(batch, B.max) if B else int(ids.dims[0])
    if B and graph and graph.is_file():
        length = {T.name: T.at_least(max(len(row[0]) for row in rows))} if T else {}
        batch = max(1, min(batch, _MOST_ELEMENTS // _largest_tensor(io, graph, {B.name: 1, **length})))
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


def _largest_tensor(io: IOContract, graph: Path, sizes: Mapping[str, int]) -> int:
    """The elements of the largest tensor whose size is known, of a graph and of a contract's outputs."""
    sizes = {dim.name: dim.min for dim in io.dims} | dict(sizes)
    shapes = [spec.shape(sizes) for spec in io.outputs if UNKNOWN_SIZE not in spec.dims]
    for value in (value for node in ir.load(graph).graph for value in node.outputs):
        with suppress(ValueError):  # a name that the exporter gave to a size
            dims = dims_of(value) or ()
            shapes.append(tuple(dim if isinstance(dim, int) else evaluate(str(dim), sizes) for dim in dims))
    return max(map(math.prod, shapes), default=0)


def _pair(sentence: str) -> Text:
    first, tab, second = sentence.partition("\t")
    return (first, second) if tab else sentence


def _tokenise(
    texts: Sequence[Text], tokenizer_path: Path, longest: int
) -> tuple[list[tuple[list[int], list[int]]], int, bool]:
    """Token ids and type ids of each sentence, the id of padding, and whether it stands on the left."""
    require("tokenizers")
    with tokenizers_errors(tokenizer_path, "cannot tokenise these sentences"):
        tokenizer = PackageTokenizer(tokenizer_path, longest)
        rows = [(list(row.ids), list(row.type_ids)) for row in tokenizer.encode_batch(texts)]
    if tokenizer.around > longest:
        raise UsageError(f"got {longest} positions; expected {tokenizer.around} or more for the tokens around a text.")
    empty = next((index for index, row in enumerate(rows) if not row[0]), None)
    if empty is not None:
        raise UsageError(f"sentence {empty + 1} has no token: {texts[empty]!r:.60}.")
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
    filled[ATTENDED][:] = 1
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


DECODING = "decode"
PROMPT = 8
STEPS = (32, 256)
_CONTEXT = 7
"""The size of what has another length than the tokens, such as what an encoder gave."""
_LEFT = 5
"""The padding at the left of the second text."""


def of_all_tokens(io: IOContract) -> IOContract:
    """The contract of the module itself, which takes all tokens in one pass also where its graph takes them one by one.

    Any other contract stays as it is.
    """
    roles = decoder_roles(io)
    if roles is None or isinstance(roles.ids.dims[1], str):
        return io
    seq = next(name for name in ("seq", "new_tokens", "seq_") if name not in {dim.name for dim in io.dims})
    pasts = [dim for dim in (roles.past, io.window and io.window.dim) if dim]
    lengths: dict[str | int, str] = {sum_: f"{past}+{seq}" for past in pasts for sum_ in (f"{past}+1", f"1+{past}")}
    by_token = (roles.ids, roles.mask, roles.positions, roles.window_mask)
    followed = {output for _, output, axis in roles.caches if axis is not None}

    def longer(spec: TensorSpec) -> TensorSpec:
        if spec not in by_token and spec.name not in followed:
            return spec
        alone = spec in by_token and spec.dims == roles.ids.dims
        dims = (spec.dims[0], seq) if alone else tuple(lengths.get(dim, dim) for dim in spec.dims)
        return dataclasses.replace(spec, dims=dims)

    inputs, outputs = (tuple(map(longer, specs)) for specs in (io.inputs, io.outputs))
    dims = (*io.dims, Dim(seq, 1, 1, min(LONGEST, roles.longest_past + 1)))
    return dataclasses.replace(io, inputs=inputs, outputs=outputs, dims=dims)


def in_steps(session: Any, io: IOContract, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """What a session gives for all tokens of a decoding case, run as `generate` does: a prompt, then token by token.

    Where the session keeps the caches, it does so here.
    """
    if hasattr(session, "in_steps"):
        return dict(session.in_steps(feeds))  # in the process that has the session
    return stepped(lambda **given: session.run(given), io, feeds, PROMPT, steps_of(session))


def stepped(
    run: Run, io: IOContract, feeds: Mapping[str, Array], prompt: int, make_steps: MakeSteps | None = None
) -> dict[str, Array]:
    """The outputs of one pass over all tokens, computed by a prompt and then one token at a time.

    Args:
        prompt: How many of the tokens the prompt has, where the model takes several at a time.
        feeds: The inputs of a pass with an empty cache.
        make_steps: As of `Decoding`.
    """
    import numpy as np

    roles = roles_in(io)
    ids_BS = feeds[roles.ids.name]
    keep_BS = np.ones(ids_BS.shape, dtype=bool)
    if roles.mask and roles.mask_covers_new:
        keep_BS = feeds[roles.mask.name][:, roles.start :].astype(bool)
    context = {spec.name: feeds[spec.name] for spec in roles.context}
    decoding = Decoding(run, io, roles, make_steps, context)
    ends = range(min(prompt, roles.longest_seq), ids_BS.shape[1] + 1)
    logits = []
    gone: dict[str, list[Array]] = {spec.name: [] for spec, _, _ in roles.caches}
    for start, end in zip([0, *ends[:-1]], ends, strict=True):
        if count := decoding.surplus:
            for spec, length_axis in roles.growing("window"):
                gone[spec.name].append(decoding.cache(spec.name).take(range(count), length_axis))
        decoding.push(ids_BS[:, start:end], keep_BS[:, start:end])
        logits.append(decoding.outputs[roles.logits.name])
    first = 0 if roles.returns_whole_cache else roles.start
    whole = {}
    for spec, output, axis in roles.caches:
        held = decoding.cache(spec.name)
        if axis is not None:
            held = np.concatenate([*gone[spec.name], held], axis).take(range(first, roles.start + ends[-1]), axis)
        whole[output] = held
    scores = np.concatenate(logits, axis=1) if roles.scores_every_token else logits[-1]
    made = {**whole, roles.logits.name: scores}
    return {spec.name: made[spec.name] for spec in io.outputs}


def decoding_cases(io: IOContract, seed: int = 0) -> Iterator[Case]:
    """Two texts, each a prompt and so many steps, one padded at the left where prompts may have several lengths.

    A model that does not generate has none.
    """
    io = of_all_tokens(io)
    roles = decoder_roles(io)
    if roles is None:
        return
    dims = {dim.name: dim for dim in io.dims}
    batch, seq = str(roles.ids.dims[0]), str(roles.ids.dims[1])
    most = largest_size(io, dims[seq])
    if roles.past:
        most = min(most, largest_size(io, dims[roles.past]) - roles.start + 1)
    for length in dict.fromkeys(min(PROMPT + steps, most) for steps in STEPS):
        name = f"decode, {length} tokens"
        rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
        sizes = {dim.name: dim.at_least(_CONTEXT) for dim in io.dims} | {batch: dims[batch].at_least(2), seq: length}
        sizes |= {dim: roles.start for dim in (roles.past, io.window and io.window.dim) if dim}
        feeds = random_feeds(io, sizes, "right padding", rng)
        for spec, _, _ in roles.caches:
            feeds[spec.name] = np.zeros(spec.shape(sizes), numpy_dtype(spec.dtype))
        if roles.mask:
            mask_BT = np.ones(roles.mask.shape(sizes), roles.mask.dtype)
            mask_BT[:, : roles.start] = 0
            if roles.mask_covers_new and not roles.context and len(mask_BT) > 1 and length > PROMPT:
                mask_BT[1, : roles.start + _LEFT] = 0
            feeds[roles.mask.name] = mask_BT
        if roles.window_mask and roles.mask:
            feeds[roles.window_mask.name] = feeds[roles.mask.name].astype(roles.window_mask.dtype)
        if roles.positions and roles.mask:
            feeds[roles.positions.name] = positions(feeds[roles.mask.name]).astype(roles.positions.dtype)
        yield case(io, name, DECODING, {spec.name: feeds[spec.name] for spec in io.inputs})


T = TypeVar("T")


def cases_of(
    folder: Path,
    manifest: Manifest,
    sentences: Sequence[str],
    inputs: Path | None,
    seed: int,
    batch: int,
    sizes: Sequence[Mapping[str, int]] = (),
) -> list[Case]:
    """The cases of a check, each name once.

    Args:
        sizes: Sizes of dims, of which full batches are further cases.

    Raises:
        UsageError: there are sentences and the folder has no tokenizer.
    """
    chosen = [*cases(manifest.io, seed), *decoding_cases(manifest.io, seed)]
    if inputs:
        chosen.append(given_case(manifest.io, inputs.name, "given", read_feeds(inputs)))
    if sentences:
        tokenizer = needed_tokenizer(str(folder), manifest.tokenizer)
        texts = [manifest.prompts.usual + sentence for sentence in sentences]
        whole = of_all_tokens(manifest.io)
        group = "text" if whole is manifest.io else DECODING
        read = text_cases(whole, texts, folder / tokenizer, batch, folder / GRAPH)
        chosen += [dataclasses.replace(one, group=group) for one in read]
    chosen += [full_case(manifest.io, each, seed) for each in sizes]
    return list({case.name: case for case in chosen}.values())


def needed_tokenizer(what: str, tokenizer: T | None) -> T:
    """The tokenizer of a model that is given text. Raises UsageError if it has none, which calls the model `what`."""
    if tokenizer is None:
        raise UsageError(
            f"{what} has no tokenizer, so it cannot read text.", hint="Leave --text out, or give tensors with --inputs."
        )
    return tokenizer


def few_batches(tried: Sequence[Case], count: int) -> list[Case]:
    """All cases, but of the batches of sentences only so many, from the shortest to the longest, evenly spread.

    Of the cases that are run token by token, the shorter one is kept.
    """
    decoding = [case for case in tried if case.group == DECODING and not _is_text(case)]
    tried = [case for case in tried if case not in decoding[1:]]
    text = sorted((case for case in tried if _is_text(case)), key=_size)
    if len(text) <= count:
        return list(tried)
    kept = {text[index * (len(text) - 1) // max(count - 1, 1)].name for index in range(count)}
    return [case for case in tried if not _is_text(case) or case.name in kept]


def _is_text(case: Case) -> bool:
    """Whether it is a batch of sentences, also of a model that runs them token by token."""
    return case.name.startswith(SENTENCES)


def _size(case: Case) -> int:
    return max(array.size for array in case.feeds.values())


def read_feeds(path: Path) -> dict[str, np.ndarray[Any, Any]]:
    """The arrays of an `.npz` by name; nothing is unpickled.

    Raises:
        UsageError: the file does not exist, is not an `.npz`, is cut short or holds Python objects.
    """
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            return dict(arrays)
    except OSError as err:
        raise UsageError(f"{path} cannot be read: {err.strerror or err}.", hint="Write it with numpy.savez.") from err
    # A single array (.npy) is not a context manager: AttributeError or TypeError.
    except (
        ValueError,
        EOFError,
        zipfile.BadZipFile,
        zlib.error,
        TypeError,
        AttributeError,
        NotImplementedError,
    ) as err:
        raise UsageError(
            # NumPy takes what it does not know for a pickle, and then says how to load one unsafely.
            f"{path} is not an .npz of arrays{'' if 'unsafely' in str(err) else f': {err}'}.",
            hint="Write it with numpy.savez, an array by name for each input.",
        ) from err
