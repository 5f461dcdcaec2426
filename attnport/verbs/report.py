"""`attnport report`: writes a page about an artifact folder, as HTML or Markdown, from what the other verbs wrote."""

from __future__ import annotations

import datetime
import json
import platform
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from attnport.artifacts import FusionReport, LatencyReport, Manifest, ModelSpec, TuneReport
from attnport.cases.choosing import read_sentences, reads_text, text_cases, tokenizers_errors
from attnport.cases.inputs import batch_dim, full_case
from attnport.decoders import decoder_roles
from attnport.errors import AttnportError
from attnport.folder.machine import machine
from attnport.folder.workspace import check_files, load_spec, open_folder, read_parity, read_report, stage, toolchain
from attnport.jsonfile import digest_text
from attnport.optional import require
from attnport.options import Folder, Force, Option, Progress
from attnport.parity.layers import read_layers
from attnport.reporting import document as doc
from attnport.reporting import html, markdown
from attnport.reporting.report import Findings, document
from attnport.runtimes.torch_eager import attention_weights
from attnport.verbs._arguments import verb
from attnport.verbs._deployables import advise
from attnport.version import __version__

FILES = {"html": "report.html", "md": "report.md"}
"""The report's files; each is a stage of its own, so that a folder may have both."""
STAGES = {"html": "report", "md": "report:md"}
FILE = FILES["html"]
Kind = Literal["html", "md"]

_SENTENCE = "The ferry that crosses the river at dawn carries letters, bread and anyone who cannot sleep."
"""The sentence for the attention maps if no text is given."""
_MOST_TOKENS = 40
_POSITIONS = 20
_PADDING = 4
"""The number of padded keys that are shown."""


@verb
def report(
    folder: Folder,
    *,
    kind: Annotated[
        Kind, Option("report.html, a page with charts, or report.md, the same as Markdown.", "--format")
    ] = "html",
    maps: Annotated[bool, Option("Show attention maps too, for which the model's code is run.")] = False,
    text: Annotated[Path | None, Option("Sentences, one in each line: as --maps, of the first.")] = None,
    force: Force = False,
    progress: Progress = lambda message: None,
) -> Path:
    """Writes `report.html` or `report.md`; keeps the earlier one if nothing that it shows has changed.

    For stages that have not run, the page names the command that runs them.

    If the source is missing or has changed, or is not trusted, the page says so instead of showing attention maps.

    Returns:
        The path of the page.

    Raises:
        ArtifactError, IntegrityError: it is not an artifact folder, or a report in it is not what was written.
        UsageError: the text file cannot be read.
    """
    manifest = open_folder(folder)
    sentence = next(filter(str.strip, read_sentences(text)), "") if text else ""
    maps = kind == "html" and (maps or text is not None)
    digest = _inputs_digest(folder, manifest, f"{maps} {sentence}")
    with stage(folder, STAGES[kind], digest, force=force) as run:
        if run.kept:
            return folder / FILES[kind]
        manifest = run.manifest
        fusion = read_report(FusionReport, folder, manifest, "fusion.json")
        parity = read_parity(folder, manifest)
        latency = read_report(LatencyReport, folder, manifest, "latency.json")
        findings = Findings(
            manifest,
            fusion,
            parity,
            latency,
            read_layers(folder, manifest),
            advise(folder, manifest, parity, latency),
            environment=_environment(),
            folder=str(folder),
            tuning=read_report(TuneReport, folder, manifest, "tune.json"),
        )
        if maps:
            progress("reading the attention weights of one sentence")
            findings = replace(findings, maps=_maps(folder, manifest, sentence))
        page = html.page if kind == "html" else markdown.render
        run.path(FILES[kind]).write_text(page(document(findings)), encoding="utf-8")
        # A page that lacks its maps is not final, as the source may be available next time.
        run.record(final=findings.maps is None or bool(findings.maps.heatmaps))
    return folder / FILES[kind]


def _inputs_digest(folder: Path, manifest: Manifest, maps: str) -> str:
    """The digest of everything that the page shows, except the machine and the time."""
    described = asdict(manifest)
    for kind, file in FILES.items():
        described["files"].pop(file, None)
        described["stages"].pop(STAGES[kind], None)
    return digest_text(toolchain(), str(folder), json.dumps(described, sort_keys=True), maps)


def _maps(folder: Path, manifest: Manifest, sentence: str) -> doc.Maps:
    """The attention maps of the module for a sentence, or for random inputs if it does not read text."""
    try:
        spec = load_spec(manifest)
        if manifest.tokenizer and reads_text(manifest.io):
            check_files(folder, manifest, manifest.tokenizer)
            inputs, feeds, tokens = _sentence(spec, folder / manifest.tokenizer, sentence or _SENTENCE)
        else:
            sentence = ""
            inputs, feeds, tokens = _random(spec)
        weights_by_name = attention_weights(spec, feeds)
    except AttnportError as err:
        return doc.Maps(note=f"There are no attention maps: {err.message} {err.hint}".strip())
    heatmaps = [_heatmap(name, _of_first(weights), tokens) for name, weights in weights_by_name.items()]
    return doc.Maps(heatmaps, inputs, quoted=bool(sentence))


def _sentence(spec: ModelSpec, tokenizer_file: Path, sentence: str) -> tuple[str, dict[str, Any], tuple[str, ...]]:
    """The beginning of a sentence whose map can be read, its feeds and its tokens."""
    tokenizers = require("tokenizers")
    with tokenizers_errors(tokenizer_file, "cannot tokenise this sentence"):
        tokenizer: Any = tokenizers.Tokenizer.from_file(str(tokenizer_file))
        tokenizer.no_padding()
        tokenizer.no_truncation()
        while len(tokenizer.encode(sentence).ids) > _MOST_TOKENS and len(sentence) > 1:
            sentence = sentence[: len(sentence) * 3 // 4].rstrip()
        tokens = tuple(readable(token) for token in tokenizer.encode(sentence).tokens)
    # A longer sentence in the batch makes padding for the mask to hide. A decoder is padded on the left, where the map
    # has its first tokens, so that it gets none.
    padded = f"{sentence} {' '.join(sentence.split()[:3])}"
    both = [sentence, padded] if spec.io.padding_masks() and decoder_roles(spec.io) is None else [sentence]
    feeds = dict(text_cases(spec.io, both, tokenizer_file, batch=len(both))[0].feeds)
    return sentence, feeds, tokens


def _random(spec: ModelSpec) -> tuple[str, dict[str, Any], tuple[str, ...]]:
    """Random inputs of a moderate size for models that do not read text, with positions instead of tokens."""
    counted = batch_dim(spec.io)
    sizes = {dim.name: dim.at_least(1 if dim.name == counted else _POSITIONS) for dim in spec.io.dims}
    case = full_case(spec.io, sizes)
    return f"random, {case.name}", dict(case.feeds), ()


def readable(token: str) -> str:
    """A token without its tokenizer's marks for a space (byte-level BPE's `Ġ`, SentencePiece's `▁`)."""
    bare = token.replace("Ċ", "↵").lstrip("Ġ▁")
    return bare or "␣"


def _of_first(weights: Any) -> Any:
    """The heads of the first item, [H,S,T]; of weights without a batch or heads, as one head."""
    return (weights[0] if weights.ndim > 2 else weights).reshape(-1, *weights.shape[-2:])


def _heatmap(name: str, weights_HST: Any, tokens: tuple[str, ...]) -> doc.Heatmap:
    """The weights between real tokens; positions are numbered if the tokens do not fit the axis.

    A weight of exactly 0 in every head is taken as hidden by the mask.
    """
    count = len(tokens)
    rows, columns = weights_HST.shape[1:]
    if count and rows == columns >= count:
        # Some of the padding after the sentence shows that it gets no attention; padded queries mean nothing.
        rows, columns = count, min(columns, count + _PADDING)
        queries, keys = tokens, (*tokens, *["padding"] * (columns - count))
    else:
        rows, columns = min(rows, _MOST_TOKENS), min(columns, _MOST_TOKENS)
        queries, keys = tuple(map(str, range(rows))), tuple(map(str, range(columns)))
    part = weights_HST[:, :rows, :columns]
    return doc.Heatmap(name, queries, keys, part, (part == 0).all(axis=0))


def _environment() -> dict[str, str]:
    """The machine that makes the page, and the time."""
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
