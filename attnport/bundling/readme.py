"""The README.md of a bundle, for the team that receives it, with a program that runs unchanged."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from attnport.artifacts import INTEGERS, NO_PROMPTS, Prompts
from attnport.dims import values_of
from attnport_bundle import batches
from attnport_bundle.errors import FeedError
from attnport_bundle.format import manifest
from attnport_bundle.format.contract import IO, UNKNOWN_SIZE, MaskSpec, TensorSpec
from attnport_bundle.format.decoder import Roles
from attnport_bundle.text import reads_text

_COMPILED = (
    "Compile the engine's kernels before the first call, as the user who runs the program:",
    "    cd python && python -m attnport_bundle warm",
)


def package_of(runtime: str, provider: str | None) -> str:
    """The package that a form needs beside `numpy`."""
    on_gpu = runtime == "onnxruntime" and provider not in (None, "CPUExecutionProvider")
    return "onnxruntime-gpu[cuda,cudnn]" if on_gpu else manifest.package_of(runtime)


def readme(
    name: str,
    io: IO,
    tokenizer: str | None,
    folder: Path | None = None,
    packages: Sequence[str] = ("onnxruntime",),
    cpp: bool = False,
    prompts: Prompts = NO_PROMPTS,
    text_limit: int | None = None,
    plans: Mapping[str, str] | None = None,
) -> str:
    """The page.

    Args:
        name: The model's name.
        io: The contract; the program is made for it.
        tokenizer: The bundle's tokenizer file, for models that read text.
        folder: The folder with that file, to test whether the reader can read it without another package.
        packages: The packages of the forms, the preferred one first; one of them is enough.
        cpp: Whether the C++ reader is in the bundle too.
        prompts: What the model expects before a text.
        text_limit: The most tokens of a text for an embedder, if that is fewer than it takes.
        plans: The precision plan of each form, by its name, for what the page says of bounds.
    """
    wanted = list(dict.fromkeys(packages))
    runtime = f"`{wanted[0]}`" if len(wanted) == 1 else f"one of `{'`, `'.join(wanted)}`"
    parts = [
        f"# {name}: a model in a folder",
        f"Made by attnport. It needs Python 3.10 or later, `numpy` and {runtime}; nothing else, no PyTorch.",
        f"    pip install numpy {wanted[0]}",
        "Check it where it landed: every file against its digest, then known inputs against known outputs.",
        "    cd python && python -m attnport_bundle selftest",
        "(run in this folder; exit 0 = fine, 3 = no fitting runtime, 4 = the numbers are off, 6 = a file differs) "
        + _bounds(plans or {}),
        "How long a call takes here, with `--shape`, `--threads` and `--seconds`:",
        "    cd python && python -m attnport_bundle bench",
        *(_COMPILED if any(package.startswith("tensorrt-rtx") for package in packages) else ()),
        *(["For C++ there is a library in `cpp/`: see `cpp/README.md`."] if cpp else []),
        "## Use it",
        "Copy the folder as it is into your product, here as `app/`, and keep your own files out of it: an added file "
        "is refused like a changed one. Your program stands beside it.",
    ]
    if tokenizer and reads_text(io):
        parts += _from_text(io, tokenizer, folder, prompts, text_limit)
    decoder = io.decoder if isinstance(io, manifest.BundleIO) else None
    if decoder and not Roles(io, decoder).context:
        parts += _continued(tokenizer)
    parts += [
        "From arrays, here of the usual sizes:",
        indent(program(io)),
        "## What goes in and out",
        *contract(io),
        "A wrong name, dtype, rank or size raises `FeedError`, which says which tensor, what was got and what is "
        "expected. Rows of padded positions are unspecified but finite. `run` may be called from several threads.",
        "## Trust",
        "`load` compares every file with `bundle.json` before it opens the model. This catches accidents. Against "
        "somebody who can write to the folder, and so to `bundle.json` and to the reader too, check with a reader that "
        "does not come from the folder: `attnport verify app/ --key PUBLIC.pem` where the bundle is signed (there is a "
        "`bundle.sig`), with a key that does not come from the folder either; else keep the SHA-256 of `bundle.json` "
        'elsewhere. `load("app", require_signature="PUBLIC.pem")` opens nothing that is not signed with the key '
        "(`pip install cryptography`).",
    ]
    return "\n\n".join(parts) + "\n"


def _bounds(plans: Mapping[str, str]) -> str:
    """By what the self-test calls numbers off."""
    integers = [name for name, plan in plans.items() if plan in INTEGERS]
    parts = []
    if len(integers) < len(plans):
        parts.append(
            "The known outputs are those of a run in float64. A form may be off by a few times what PyTorch itself "
            "was, in the same precision."
        )
    if integers:
        parts.append(
            f"Of `{'`, `'.join(integers)}`, which computes in integers and has no counterpart in PyTorch, the known "
            "outputs are what the form itself gave where it was judged, and it may be off from them by 1.5 times what "
            "these are off from float64: its weights are rounded alike everywhere, and another processor rounds "
            "activations anew."
        )
    return " ".join(parts)


def program(io: IO) -> str:
    """A program, for the folder that contains `app/`, that opens the bundle and runs it once."""
    masked, lengths = made_by_masks(io)
    zeros = filled_with_zeros(io)
    lines = [f"    feeds = model.masks({lengths})  # the length of each item" if masked else "    feeds = {}"]
    for spec in io.inputs:
        if spec.name not in masked:
            fill = "zeros" if spec.name in zeros else "ones"
            lines.append(f'    feeds["{spec.name}"] = np.{fill}({usual_shape(spec, io)}, dtype="{spec.dtype}")')
    lines += ["    outputs = model.run(**feeds)", "for name, array in outputs.items():", "    print(name, array.shape)"]
    return _program("import numpy as np\nfrom attnport_bundle import load", *lines)


def _program(imports: str, *lines: str) -> str:
    """A program that imports the reader of the bundle in `app/`, and opens the bundle for the lines that follow."""
    head = ("import sys", "", "sys.path.append('app/python')", imports, "", 'with load("app") as model:')
    return "\n".join((*head, *lines))


def made_by_masks(io: IO) -> tuple[set[str], list[int]]:
    """The inputs that a reader's `masks` makes, and the lengths to call it with; none if it cannot make them all."""
    padded = [mask for mask in io.masks if mask.input and "padding" in mask.kinds]
    carriers = [(mask, spec) for mask in padded for spec in io.inputs if spec.name == mask.input]
    counted = {(spec.dims[0], mask.keys or spec.dims[-1]) for mask, spec in carriers}
    if len(counted) != 1 or not all(_has_rule(mask, spec) for mask, spec in carriers):
        return set(), []
    sizes = {dim.name: dim.opt for dim in io.dims}
    batch, size = TensorSpec("", "int64", next(iter(counted))).shape(sizes)
    return {spec.name for _, spec in carriers}, [size] * batch


def filled_with_zeros(io: IO) -> set[str]:
    """The mask inputs for which zeros hide nothing, where ones do for the others; and types of tokens, of one text."""
    return {mask.input for mask in io.masks if mask.input and mask.polarity != "keep"} | {"token_type_ids"}


def usual_shape(spec: TensorSpec, io: IO) -> tuple[int, ...]:
    """An input's shape with every named dim at its usual size."""
    return spec.shape({dim.name: dim.opt for dim in io.dims})


def _from_text(io: IO, tokenizer: str, folder: Path | None, prompts: Prompts, limit: int | None) -> list[str]:
    install = "" if folder is not None and reads_by_itself(folder / tokenizer) else " (`pip install tokenizers`)"
    if scores := batches.scoring(io):
        output = next(spec for spec in io.outputs if spec.name == scores)
        what = "scores" if output.dims[1:] in _ONE else "a logit for each class"
        return [
            f"From texts, or pairs of texts, to {what}{install}. {cut_at(io, limit)}",
            indent(_scores_program(output)),
            *_probabilities(output),
        ]
    if (kind := batches.kind_of(io)) in (batches.SPARSE_ENCODER, batches.MULTI_VECTOR):
        uses = expected(prompts, 'prompt_name="{}"', "An `encode` method puts it there, or that of a")
        return [f"From text to what a {kind} makes of it{install}. {cut_at(io, limit)}", indent(_SEARCH), *uses]
    if not is_embedder(io):
        program = _tokenizer_program(tokenizer)
        return [f"From text{install}. {cut_at(io)}", indent(program)]
    return [f"From text to vectors{install}. {cut_at(io, limit)}", indent(_embed_program()), *expected(prompts)]


def reads_by_itself(tokenizer: Path) -> bool:
    """Whether the readers read a tokenizer's file without another package."""
    return tokenizer.with_suffix(".chars").is_file()


def is_embedder(io: IO) -> bool:
    """Whether the model has one output that is a vector for each text."""
    try:
        batches.embedding(io)
    except FeedError:
        return False
    return True


def expected(prompts: Prompts, argument: str = 'prompt="{}"', how: str = "`embed` puts it there by its") -> list[str]:
    """The prompts that a method puts before a text, by the text's use.

    Args:
        argument: How a call names one.
        how: The beginning of a sentence on who puts it there.
    """
    named = {name: text for name, text in prompts.named.items() if text}
    if not named:
        return []
    uses = "\n".join(
        f"- `{argument.format(name)}`: `{json.dumps(text, ensure_ascii=False)}`" for name, text in named.items()
    )
    rest = f"Without a name it is that of `{prompts.default}`." if prompts.usual else "Without a name there is none."
    return [f"The model was trained with a prompt before a text. {how} name:\n\n{uses}", rest]


def cut_at(io: IO, limit: int | None = None) -> str:
    """How texts are cut and padded."""
    longest = _longest(io)
    whose = "the model's limit" if limit is None or limit >= longest else "as in sentence-transformers"
    return (
        f"A text longer than {min(longest, limit or longest)} tokens, {whose}, is cut; a `max_length` in the "
        "tokenizer's file does not count. Rows are padded on the side that the file says."
    )


def _longest(io: IO) -> int:
    last = io.inputs[0].dims[-1]
    return last if isinstance(last, int) else next(dim.max for dim in io.dims if dim.name == last)


def _embed_program() -> str:
    return _program(
        "from attnport_bundle import load",
        '    vectors = model.embed(["A sentence.", "Another one, longer."])',
        "print(vectors.shape)",
    )


_SEARCH = _program(
    "from attnport_bundle import load",
    '    documents = model.encode_document(["A sentence.", "Another one, longer."])',
    '    print(model.similarity(model.encode_query("A sentence"), documents))',
)


_ONE = ((), (1,))
"""The dims of an output with one score for each text, behind the first."""


def _probabilities(scores: TensorSpec) -> list[str]:
    """What the numbers of a classifier are, and how they become probabilities."""
    if scores.dims[1:] in _ONE:
        return []
    whose = "are logits, which do not add up to 1"
    if scores.name == "scores":
        whose = "are those of `CrossEncoder.predict`: logits, unless the model's config names an activation"
    return [
        f"The numbers that `predict` gives {whose}. `predict(texts, apply_softmax=True)` gives probabilities that "
        'add up to 1. Where several classes may hold for a text, `activation_fn="Sigmoid"` gives that of each.'
    ]


def _scores_program(scores: TensorSpec) -> str:
    """The documents of a query, the best first; or the best class of each text, or pair of texts."""
    if scores.dims[1:] in _ONE:
        call = '    ranked = model.rank("A query", ["A document.", "Another one, longer."])'
        return _program("from attnport_bundle import load", call, "print(ranked)")
    return _program(
        "from attnport_bundle import load",
        f'    labels = next(spec.labels for spec in model.io.outputs if spec.name == "{scores.name}")',
        '    logits = model.predict(["A text.", ("A text", "and a second one, of a pair")])',
        "print([labels[best] if labels else best for best in logits.argmax(1)])",
    )


def _continued(tokenizer: str | None) -> list[str]:
    """How a decoder continues a text, or ids where it has no tokenizer."""
    prompt, how = ('"Once upon a time"', "Text (`pip install tokenizers`)") if tokenizer else ("[[1, 2, 3]]", "Ids")
    call = f"    print(model.generate({prompt}, max_tokens=20))"
    return [f"{how} that the model continues:", indent(_program("from attnport_bundle import load", call))]


def _tokenizer_program(tokenizer: str) -> str:
    return _program(
        "from attnport_bundle import Tokenizer, load",
        f'    tokenizer = Tokenizer("app/{tokenizer}", model.io)',
        '    outputs = model.run(**tokenizer.encode(["A sentence.", "Another one, longer."]))',
        "print({name: array.shape for name, array in outputs.items()})",
    )


def _has_rule(mask: MaskSpec, spec: TensorSpec) -> bool:
    """Whether `Model.masks` can make the input from the lengths of items."""
    if mask.carries != "mask":
        return True
    return mask.kinds == ("padding",) and (len(spec.dims) == 2 or (len(spec.dims) == 4 and spec.dims[1] == 1))


def indent(text: str) -> str:
    """Text as a code block in Markdown."""
    return "\n".join(f"    {line}".rstrip() for line in text.split("\n"))


def contract(io: IO) -> list[str]:
    """Inputs and outputs: a table, the ranges of named dims, the meaning of masks."""
    unknown = any(UNKNOWN_SIZE in spec.dims for spec in io.outputs)
    parts = [
        _table(io),
        "Named dims: " + "; ".join(f"`{dim.name}` from {dim.span}" for dim in io.dims) + "."
        + (" The values of inputs decide a size that is `?`: only a call tells it." if unknown else ""),
    ]  # fmt: skip
    masks = [_meaning(mask) for mask in io.masks if mask.input]
    return [*parts, f"Masks: {'; '.join(masks)}."] if masks else parts


def _table(io: IO) -> str:
    rows = [("in", spec) for spec in io.inputs] + [("out", spec) for spec in io.outputs]
    lines = ["| | name | dtype | dims | values |", "|-|-|-|-|-|"]
    lines += [
        f"| {way} | `{spec.name}` | {spec.dtype} | {', '.join(map(str, spec.dims))} | {_cell(values_of(spec, io))} |"
        for way, spec in rows
    ]
    return "\n".join(lines)


def _cell(text: str) -> str:
    """Text in a table of Markdown; labels are a model's own."""
    return " ".join(re.sub(r"([\\`*_{}\[\]<>|])", r"\\\1", text).split())


def _meaning(mask: MaskSpec) -> str:
    elements = {
        "keep": "nonzero may be attended",
        "hide": "nonzero is hidden",
        "additive": "added to the scores, -inf hides",
    }
    held = {
        "mask": elements[mask.polarity],
        "lengths": f"a number of positions of `{mask.keys}` for each item",
        "ids": "a number for each position, equal within a document"
        + (", 0 for padding" if "padding" in mask.kinds else ""),
        "marks": "nonzero for global positions",
    }
    return f"`{mask.input}` is {' and '.join(mask.kinds)}, {held[mask.carries]}"
