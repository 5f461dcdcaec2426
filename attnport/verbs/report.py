"""`attnport report`: one page about an artifact folder, or its Markdown, from what the other verbs left in it."""

from __future__ import annotations

import datetime
import json
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from attnport.artifacts import FusionReport, LatencyReport, Manifest, ModelSpec, ParityReport
from attnport.errors import ArtifactError, AttnportError
from attnport.folder.machine import machine
from attnport.folder.workspace import change, check_files, fresh, load_spec, open_folder, read_report
from attnport.jsonfile import digest_text
from attnport.optional import require
from attnport.parity.evaluate import Progress
from attnport.parity.layers import read_layers
from attnport.reporting.findings import Findings
from attnport.reporting.heatmap import Heatmap
from attnport.reporting.markdown import render as markdown
from attnport.reporting.page import code_digest, render
from attnport.verbs._advice import advise
from attnport.version import __version__

FILES = {"html": "report.html", "md": "report.md"}
"""The report's forms; each is a stage of its own, so that both may lie in a folder."""
STAGES = {"html": "report", "md": "report:md"}
FILE = FILES["html"]
Kind = Literal["html", "md"]

SENTENCE = "The ferry that crosses the river at dawn carries letters, bread and anyone who cannot sleep."
"""What the attention maps are made from when no text is given."""
_TOKENS = range(14, 25)
_MOST_TOKENS = 40
RANDOM = "random inputs"
"""How the caption of the maps begins where a model reads no text."""
_READ_SENTENCES = 256
_POSITIONS = 20
_PADDING = 4
"""Padded keys that are shown."""


@dataclass(frozen=True)
class Maps:
    """The attention maps, what was read for them, and why there are none."""

    heatmaps: list[Heatmap] = field(default_factory=list)
    sentence: str = ""
    note: str = ""


def report(
    folder: Path,
    *,
    kind: Kind = "html",
    text: Path | None = None,
    force: bool = False,
    progress: Progress = lambda message: None,
) -> Path:
    """Writes `report.html` or `report.md`; leaves the earlier one when nothing that it shows has changed.

    Stages that have not run are named in the page with the command that runs them. When the source is gone or
    changed, the page says so in the place of the attention maps.

    Args:
        folder: An artifact folder.
        kind: `html`, a page with charts, or `md`, the same facts as GitHub-flavoured Markdown.
        text: A file of sentences, one a line; the first of moderate length is shown in the attention maps.
        force: Write the page even when nothing changed.

    Returns:
        The page.

    Raises:
        ArtifactError, IntegrityError: not an artifact folder, or a report in it is not what was written.
        UsageError: the text file cannot be read.
    """
    from attnport.cases.text import read_sentences

    open_folder(folder)
    sentences = read_sentences(text) if text else [SENTENCE]
    with change(folder) as edit:
        manifest = edit.manifest
        if manifest is None:
            raise ArtifactError(f"{folder} is no artifact.")
        digest = _inputs_digest(folder, manifest, sentences)
        if not force and fresh(folder, manifest, STAGES[kind], digest):
            return folder / FILES[kind]
        fusion = read_report(FusionReport, folder, manifest, "fusion.json")
        parity = read_report(ParityReport, folder, manifest, "parity.json")
        latency = read_report(LatencyReport, folder, manifest, "latency.json")
        found = Findings(
            manifest,
            fusion,
            parity,
            latency,
            read_layers(folder, manifest),
            advise(folder, manifest, parity, latency),
            environment=_environment(),
            folder=str(folder),
        )
        if kind == "md":  # pictures are the page's alone
            edit.path(FILES[kind]).write_text(markdown(found), encoding="utf-8")
            edit.finish(STAGES[kind], digest)
            return folder / FILES[kind]
        progress("reading the attention weights of one sentence")
        maps = _maps(folder, manifest, sentences)
        found = replace(found, heatmaps=maps.heatmaps, sentence=maps.sentence, heatmap_note=maps.note)
        edit.path(FILES[kind]).write_text(render(found), encoding="utf-8")
        # A page without its maps is not final: the source may be back the next time.
        edit.finish(STAGES[kind], digest if maps.heatmaps else "")
    return folder / FILES[kind]


def _inputs_digest(folder: Path, manifest: Manifest, sentences: Sequence[str]) -> str:
    """Everything that the page shows but the machine and the moment."""
    described = asdict(manifest)
    for kind, file in FILES.items():
        described["files"].pop(file, None)
        described["stages"].pop(STAGES[kind], None)
    return digest_text(__version__, code_digest(), str(folder), json.dumps(described, sort_keys=True), *sentences)


def _maps(folder: Path, manifest: Manifest, sentences: Sequence[str]) -> Maps:
    """The attention weights of the module for one sentence, or for random numbers when it reads no text."""
    from attnport.cases.text import reads_text
    from attnport.runtimes.torch_eager import attention_weights

    try:
        spec = load_spec(manifest)
        if manifest.tokenizer and reads_text(manifest.io):
            check_files(folder, manifest, manifest.tokenizer)
            sentence, feeds, tokens = _sentence(spec, folder / manifest.tokenizer, sentences)
            said = sentence
        else:
            said, feeds, tokens = _random(spec)
        found = attention_weights(spec, feeds)
    except AttnportError as err:
        return Maps(note=f"There are no attention maps: {err.message} {err.hint}".strip())
    return Maps([_heatmap(name, weights[0], tokens) for name, weights in found.items()], said)


def _sentence(
    spec: ModelSpec, tokenizer_file: Path, sentences: Sequence[str]
) -> tuple[str, dict[str, Any], tuple[str, ...]]:
    """The first sentence of moderate length (else the nearest to it), its feeds and its tokens."""
    from attnport.cases.text import text_cases, tokenizers_errors

    tokenizers = require("tokenizers")
    with tokenizers_errors(tokenizer_file, "is no tokenizer"):
        tokenizer: Any = tokenizers.Tokenizer.from_file(str(tokenizer_file))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    candidates = [sentence for sentence in sentences[:_READ_SENTENCES] if sentence.strip()]
    with tokenizers_errors(tokenizer_file, "cannot tokenise these sentences"):
        lengths = [len(encoding.ids) for encoding in tokenizer.encode_batch(candidates)]
        middle = (_TOKENS.start + _TOKENS.stop) // 2
        best = min(range(len(candidates)), key=lambda i: (0 if lengths[i] in _TOKENS else abs(lengths[i] - middle), i))
        sentence = candidates[best]
        # A longer one would give images too fine to read: shown is how it begins.
        while len(tokenizer.encode(sentence).ids) > _MOST_TOKENS and len(sentence) > 1:
            sentence = sentence[: len(sentence) * 3 // 4].rstrip()
        tokens = tuple(readable(token) for token in tokenizer.encode(sentence).tokens)
    # Beside a longer one, so that there is padding for the mask to hide.
    padded = f"{sentence} {' '.join(sentence.split()[:3])}"
    both = [sentence, padded] if spec.io.padding_masks() else [sentence]
    feeds = dict(text_cases(spec.io, both, tokenizer_file, batch=len(both))[0].feeds)
    return sentence, feeds, tokens


def _random(spec: ModelSpec) -> tuple[str, dict[str, Any], tuple[str, ...]]:
    """Random inputs of a moderate size, for models that read no text; positions stand for tokens."""
    from attnport.cases.inputs import batch_dim, full_case

    counted = batch_dim(spec.io)
    sizes = {dim.name: max(dim.min, min(dim.max, 1 if dim.name == counted else _POSITIONS)) for dim in spec.io.dims}
    made = full_case(spec.io, sizes)
    return f"{RANDOM}, {made.name}", dict(made.feeds), ()


def readable(token: str) -> str:
    """A token without its tokenizer's marks for a space (byte-level BPE's `Ġ`, SentencePiece's `▁`)."""
    bare = token.replace("Ċ", "↵").lstrip("Ġ▁")
    return bare or "␣"


def _heatmap(name: str, weights_HST: Any, tokens: tuple[str, ...]) -> Heatmap:
    """The weights between real tokens; positions are named by number where the tokens do not fit the axis."""
    count = len(tokens)
    queries, keys = weights_HST.shape[1:]
    if count and queries == keys >= count:
        # A few places of the padding behind the sentence show that nobody looks there; as queries they say nothing.
        shown = min(keys, count + _PADDING)
        part = weights_HST[:, :count, :shown]
        return Heatmap(name, tokens, (*tokens, *["padding"] * (shown - count)), part, _hidden(part))
    rows, columns = min(queries, _MOST_TOKENS), min(keys, _MOST_TOKENS)
    part = weights_HST[:, :rows, :columns]
    return Heatmap(name, tuple(map(str, range(rows))), tuple(map(str, range(columns))), part, _hidden(part))


def _hidden(weights_HST: Any) -> Any:
    """What the mask hides, by what the module made of it: a weight of exactly 0 in every head."""
    return (weights_HST == 0).all(axis=0)


def _environment() -> dict[str, str]:
    """The machine that makes the page, and when."""
    here = machine()
    now = datetime.datetime.now(datetime.UTC)
    gpus = ", ".join(f"{gpu.name} (SM{gpu.sm})" for gpu in here.gpus)
    return {
        "Made": f"{now:%Y-%m-%d %H:%M} UTC",
        "attnport": __version__,
        "CPU": here.cpu,
        "Physical cores": str(here.cores),
        "Features": ", ".join(here.features) or "none that matter here",
        "Memory": f"{here.memory_bytes / 2**30:.1f} GiB",
        "GPU": gpus or here.gpu_note,
        "System": f"{platform.system()} {platform.machine()}",
        "Python": here.python,
    }
