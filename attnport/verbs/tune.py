"""`attnport tune`: tries every runtime and precision on the user's own data and lengths, and keeps the fastest."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from attnport.artifacts import Capabilities, Manifest, TuneReport
from attnport.cases.choosing import read_feeds
from attnport.cases.text import read_sentences, text_cases
from attnport.errors import UsageError
from attnport.exporter.lowering import base as lowerings
from attnport.folder.machine import machine
from attnport.folder.trust import require
from attnport.folder.workspace import check_source, fresh, open_folder, toolchain
from attnport.jsonfile import digest_file, digest_text, read
from attnport.latency.measuring import BASELINE
from attnport.latency.workloads import MANY, read_lengths, workloads
from attnport.options import Batch, Folder, Force, Lengths, Option, Progress, Seed, Shapes, Trust
from attnport.parity.scoring import items_of
from attnport.processes.isolated import Limits, probe_all
from attnport.runtimes import base
from attnport.runtimes.base import Runtime, physical_cores
from attnport.sources.code import file_of_module
from attnport.sources.digests import TOOLCHAIN
from attnport.sources.file import is_file_name
from attnport.verbs import fuse as fusing
from attnport.verbs._arguments import verb
from attnport.verbs._tuning import FILE, STAGE, Data, Tuning
from attnport.verbs.check import check
from attnport.verbs.export import MODEL, WEIGHTS

RUNTIMES = ("ort_cpu", "openvino")
_MOST_ITEMS = 400


@verb
def tune(
    folder: Folder,
    runtimes: Annotated[
        Sequence[str],
        Option("ort_cpu, openvino, or one precision, openvino.bf16; default: all that are installed.", "--runtime"),
    ] = (),
    shapes: Shapes = (),
    text: Annotated[
        Path | None,
        Option("Sentences, one in each line: to time, and to judge integers by; half of them make the integers."),
    ] = None,
    inputs: Annotated[Path | None, Option("Instead, an .npz of many items, an array for each input.")] = None,
    *,
    lengths: Lengths = None,
    batch: Batch = MANY,
    metric: Annotated[
        str | None,
        Option("Your own measure, the larger the better; it judges all of them.", metavar="FILE.py:FUNCTION"),
    ] = None,
    max_drop: Annotated[
        float | str, Option("How much worse the metric may be than in float32, 0.5% or 0.005.", metavar="SHARE")
    ] = "0.5%",
    threads: Annotated[
        Sequence[int], Option("Compute threads; several allowed; default: the physical cores.", "--threads", least=1)
    ] = (),
    budget_s: Annotated[
        float, Option("Seconds for the search for integers and the timing.", "--budget", least=1)
    ] = 300.0,
    trust_source: Trust = False,
    force: Force = False,
    seed: Seed = 0,
    progress: Progress = lambda message: None,
) -> TuneReport:
    """Writes and times every form of the runtimes on the processor, keeps the fastest, and writes `tune.json`.

    Tried are float32, bf16 where the processor has it, and integers: linear layers in int8 or, of decoders with a
    cache, with weights of 4 bits, but those layers that cost more accuracy than is allowed. float32 and bf16 must pass
    `check`, by whose bound they are judged, unless there is a metric. Integers have no such bound and are judged by the
    metric. They are kept only if they are shown to be faster here.

    What an interrupted run has found is used by the next.

    A metric is `FILE.py:FUNCTION` or `MODULE:FUNCTION`; it is called with a `parity.scoring.ScoredModel` and returns a
    number. Without one, integers are judged by how much of the answers stays the same, and those of decoders by their
    perplexity.

    Raises:
        ArtifactError, IntegrityError, SpecError: the folder, its files or its source are not what they were, or the
            metric cannot be loaded or fails.
        UsageError: an unknown runtime, or inputs, text or lengths that do not fit.
    """
    manifest = open_folder(folder)
    require(manifest.source, given=trust_source)
    most = parse_share(max_drop)
    keys = [base.Key.parse(name) for name in runtimes or RUNTIMES]
    chosen = base.chosen(runtimes or RUNTIMES)
    if other := [runtime.name for runtime in chosen if runtime.name not in RUNTIMES]:
        raise UsageError(f"--runtime {other[0]}: tune tries {' and '.join(RUNTIMES)}.")
    sentences = read_sentences(text) if text else []
    data = _data(folder, manifest, sentences, inputs)
    counts = tuple(dict.fromkeys(threads or (physical_cores(),)))
    progress("probing the runtimes")
    probed = probe_all([*chosen, base.get(BASELINE)], Limits())
    settings = [list(probed), list(map(str, keys)), list(shapes or ()), batch, metric, most, counts, budget_s, seed]
    digest = _digest(manifest, sentences, [inputs, lengths, _file_of(metric)], settings, probed)
    if not force and fresh(folder, manifest, STAGE, digest):
        check_source(manifest)
        return read(TuneReport, folder / FILE)
    ready = [runtime for runtime in chosen if probed[runtime.name].available]
    _write_plain(folder, ready, probed, keys, progress)
    names = [str(key) for key in keys if base.get(key.runtime) in ready]
    parity = check(folder, names, text, trust_source=trust_source, progress=progress) if ready else None
    manifest = open_folder(folder)
    todo = workloads(folder, manifest, shapes, sentences, seed, read_lengths(lengths) if lengths else {}, batch)
    run = Tuning(
        folder.resolve(),
        ready,
        probed,
        counts,
        most,
        data,
        todo,
        until_s=time.monotonic() + budget_s,
        seed=seed,
        progress=progress,
        keys=keys,
    )
    run.judge(parity.runtimes if parity else {}, metric)
    return run.finish(digest)


def parse_share(text: float | str) -> float:
    """A share such as `0.5%`, `0.005` or 0.005.

    Raises:
        UsageError: it is none between 0 and 1.
    """
    plain = str(text).strip()
    try:
        share = float(plain.removesuffix("%")) / (100 if plain.endswith("%") else 1)
    except ValueError:
        share = math.nan
    if not 0 < share < 1:  # false for a NaN too
        raise UsageError(f"--max-drop: got {plain}; expected a share between 0 and 1, such as 0.5% or 0.005.")
    return share


def _data(folder: Path, manifest: Manifest, sentences: Sequence[str], inputs: Path | None) -> Data | None:
    """The user's items, of which every second one is for ranges; None if there are none."""
    if inputs is not None:
        items = items_of(manifest.io, inputs.name, read_feeds(inputs))
    elif sentences and manifest.tokenizer:
        texts = [manifest.prompts.usual + sentence for sentence in sentences[:_MOST_ITEMS]]
        items = text_cases(manifest.io, texts, folder / manifest.tokenizer, batch=1)
    else:
        return None
    items = items[:_MOST_ITEMS]
    return Data(tuple(items[::2]), tuple(items[1::2]))


def _write_plain(
    folder: Path,
    runtimes: Sequence[Runtime],
    probed: Mapping[str, Capabilities],
    keys: Sequence[base.Key],
    progress: Progress,
) -> None:
    """Writes the forms that are not in integers, in every precision that is wanted and that the runtime has here."""
    for runtime in runtimes:
        usual, *further = lowerings.get(runtime.form).plans
        wanted = [plan for plan in further if any(key.covers(f"{runtime.name}.{plan}") for key in keys)]
        for plan in (usual, *wanted):  # integers are compared with the usual one
            if plan in probed[runtime.name].plans:
                fusing.fuse(folder, [f"{runtime.form}.{plan}"], progress=progress)


def _file_of(metric: str | None) -> Path | None:
    place = metric.rpartition(":")[0] if metric else ""
    file = place if is_file_name(place) else file_of_module(place) if place else None
    return Path(file) if file and Path(file).is_file() else None


def _digest(
    manifest: Manifest,
    sentences: Sequence[str],
    files: Sequence[Path | None],
    settings: Sequence[object],
    probed: Mapping[str, Capabilities],
) -> str:
    """All that the result depends on, but the forms, which the run itself writes."""
    here = machine()
    parts = [
        toolchain(*TOOLCHAIN, *base.distributions(probed)),
        [here.cpu, here.features],
        asdict(manifest.source),
        [manifest.files.get(MODEL), manifest.files.get(WEIGHTS)],
        settings,
        [asdict(found) for found in probed.values()],
        [digest_file(file) if file is not None and file.is_file() else "" for file in files],
    ]
    return digest_text(json.dumps(parts, sort_keys=True, default=str), *sentences)
