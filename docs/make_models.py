"""Makes `models.md` of the results of `benchmarks/sweep_hf.py`.

python docs/make_models.py
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
RESULTS = HERE.parent / "benchmarks" / "sweep_hf.json"
PAGE = HERE / "models.md"
LONGEST = 160
PEERS = {"torch": "torch.onnx alone", "exporters": "transformers.exporters"}
CACHED, OTHER_CONFIG, ENGINE = "cached", "other", "engine"
OURS = ("attnport", OTHER_CONFIG)
"""What attnport gives in one pass, on a type's first config and on another one."""
NOT_CAUSAL = "attend to what comes behind them"

VALUES, RANDOM, TIME, OTHER = "values", "random", "time", "other"
CAUSES = {
    "Values of the inputs decide sizes or branches": VALUES,
    "Random numbers": RANDOM,
    "Not finished in time": TIME,
    "Other reasons": OTHER,
}
"""The headings of the reasons."""

INTRODUCTION = """\
# Hugging Face models

Measured with {versions}. {day}

Every model type below was made tiny from its own config, with random weights, and exported by `attnport export
hf:FOLDER` without a flag; by `torch.onnx.export` alone, with the shapes by hand, at opset 23 and at its own; and by
transformers' own `transformers.exporters`, with every axis automatic and with the shapes by hand. Of two ways, the
better counts. **right**: ONNX Runtime on CPU gives the numbers of the transformers module
itself at five sets of sizes (batch, sequence, padding), within {bound} of their RMS. **fused**: attentions that one
kernel of ONNX Runtime covers, of those counted in the torch graph. **s**: the seconds of one processor, of the whole:
the model made, exported, fused and compared. A dim behind "right", such as `seq=128`, has this
one size, as the type's code makes a constant of it; `export` says so, and `--dim` chooses another. With `--input`
behind "right", no inputs are found, and they were declared by hand, as they are for torch.onnx; with `--examples`,
random values do not fit them, and they were found from example tensors, which torch.onnx always has. A type that is not
right has its first reason below the table.

**other config**: the same once more, where heads of the type can share keys and values or attend within a window: heads
share them if they did not, and the reverse; a window is longer than the texts if it was shorter, and the reverse.

**cache** and **generate** are of types that write text: whether `attnport export --with-past` takes them, and whether
24 tokens of `attnport generate` for three prompts are those of the module, run on all tokens at every step. Of an
encoder-decoder, both parts are exported. See [decode.md](decode.md).

**engine**: attentions that one kernel of TensorRT-RTX covers, of those counted, by the text of an engine that `attnport
build --target tensorrt_rtx` built in fp16, without a GPU; no engine was run. An empty cell was not tried.

`python benchmarks/sweep_hf.py` measures what is not known yet, `python docs/make_models.py` makes this page of
`benchmarks/sweep_hf.json`.

"""


def page(found: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> str:
    """The page of these results, by type and side."""
    tried = {kind: sides for kind, sides in found.items() if "attnport" in sides}
    # A side that could not make the type was measured before the type's tiny config was found.
    made = {
        kind: {name: side for name, side in sides.items() if side["made"]}
        for kind, sides in tried.items()
        if sides["attnport"]["made"]
    }
    versions = sorted({word for sides in tried.values() for word in named_versions(sides["attnport"]["of"])})
    codes = Counter(side["of"] for sides in tried.values() for name, side in sides.items() if name in OURS)
    day = (
        f"Of {codes.total()} results of attnport, {max(codes.values())} were measured with one version of its code, "
        "the rest with others."
    )
    text = INTRODUCTION.format(versions=", ".join(versions), day=day, bound="1e-3")
    text += "".join(f"{line}\n" for line in [*counts(made, len(tried) - len(made)), "", *table(made)])
    for title, cause in CAUSES.items():
        found_reasons = [f"{line}\n" for line in reasons(made, cause)]
        text += f"\n## {title}\n\n{''.join(found_reasons)}" if found_reasons else ""
    for title, state in (("Without a cache", (False, False)), ("Not right with a cache", (True, False))):
        text += listed(title, {kind: sides[CACHED]["reason"] for kind, sides in made.items() if cached(sides) == state})
    engines = {kind: sides[ENGINE] for kind, sides in made.items() if ENGINE in sides}
    short = {kind: engine["reason"] for kind, engine in engines.items() if not engine["right"]}
    text += listed("No engine, or attentions that are not fused in it", short)
    others = {kind: sides[OTHER_CONFIG] for kind, sides in made.items() if OTHER_CONFIG in sides}
    different = {
        kind: other["reason"] for kind, other in others.items() if made[kind]["attnport"]["right"] > other["right"]
    }
    text += listed("Right, and not on the other config", different)
    missing = {kind: sides["attnport"]["reason"] for kind, sides in tried.items() if kind not in made}
    text += listed(
        "Could not be made",
        missing,
        "No tiny config was found, or the model runs on none of the inputs that were tried.",
    )
    return text


def listed(title: str, reasons: Mapping[str, str], introduction: str = "") -> str:
    """A section with a type's reason in each line; "" if there is none."""
    lines = "".join(f"- `{kind}`: {brief(reason)}\n" for kind, reason in sorted(reasons.items()))
    return "\n".join(["", f"## {title}", *filter(None, [introduction]), "", lines]) if lines else ""


def named_versions(of: str) -> Iterator[str]:
    """`transformers 5.23.0` and `torch 2.13.0`, of what a result depends on."""
    for name in ("transformers", "torch", "onnxruntime"):
        if match := re.search(rf"\b{name} [\d.]+", of):
            yield match[0]


def counts(made: Mapping[str, Mapping[str, Mapping[str, Any]]], missing: int) -> list[str]:
    """How many are right on each side, and what one gets right and the other does not."""
    right = sum(sides["attnport"]["right"] for sides in made.values())
    no_graph = sum(cause_of(sides["attnport"]) in (VALUES, RANDOM) for sides in made.values())
    attending = [sides["attnport"] for sides in made.values() if sides["attnport"].get("attentions")]
    whole = sum(one["fused"] == one["attentions"] for one in attending)
    lines = [
        f"- {len(made) + missing} types were tried; {missing} could not be made. Of the {len(made)} others, attnport "
        f"gets **{right}** right. {no_graph} do not fit into a graph: values of their inputs decide sizes or branches, "
        f"or they draw random numbers. Of the rest, {100 * right / max(1, len(made) - no_graph):.1f} % are right.",
        *(against(made, side) for side in PEERS if any(side in sides for sides in made.values())),
        f"- Of {len(attending)} types with attention, every attention is fused in {whole}.",
        *on_other_configs(made),
        *as_engines([sides[ENGINE] for sides in made.values() if ENGINE in sides]),
    ]
    states = [state for sides in made.values() if (state := cached(sides)) is not None]
    lines += (
        [
            f"- Of {len(states)} types that write text, {sum(taken for taken, _ in states)} go with `--with-past`; "
            f"{sum(right for _, right in states)} give the module's tokens."
        ]
        if states
        else []
    )
    return lines


def on_other_configs(made: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> Iterator[str]:
    """How many are right on another config too."""
    both = [
        (sides["attnport"]["right"], sides[OTHER_CONFIG]["right"]) for sides in made.values() if OTHER_CONFIG in sides
    ]
    if both:
        right = (
            sum(first for first, _ in both),
            sum(other for _, other in both),
            sum(first and other for first, other in both),
        )
        yield (
            f"- Types with another config that could be made: {len(both)}. Right on the first config: {right[0]}; on "
            f"the other one: {right[1]}; on both: {right[2]}."
        )


def as_engines(results: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """How many engines were built, and in how many all attentions are fused."""
    if built := [one for one in results if "attentions" in one]:
        whole = sum(one["fused"] == one["attentions"] for one in built)
        versions = " and ".join(sorted({one["version"] for one in built}))
        yield (
            f"- TensorRT-RTX {versions} builds an engine of {len(built)} of {len(results)} types that were tried; every"
            f" attention is fused in {whole}."
        )


def against(made: Mapping[str, Mapping[str, Mapping[str, Any]]], peer: str) -> str:
    """How many are right by a peer and here, of those that both were measured on."""
    both = [(kind, sides[peer]["right"], sides["attnport"]["right"]) for kind, sides in made.items() if peer in sides]
    lost = sorted(kind for kind, there, here in both if there and not here)
    said = f": {', '.join(f'`{kind}`' for kind in lost)}" if lost else ""
    return (
        f"- {PEERS[peer]} was measured on {len(both)} of them: it gets {sum(there for _, there, _ in both)} right, "
        f"attnport {sum(here for _, _, here in both)}. Right there and not here: {len(lost)}{said}."
    )


def table(made: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> Iterator[str]:
    """A row for each type."""
    peers = [peer for peer in PEERS if any(peer in sides for sides in made.values())]
    engines = any(ENGINE in sides for sides in made.values())
    yield (
        f"| type |{''.join(f' {PEERS[peer]} | s |' for peer in peers)} attnport | fused | s | other config "
        f"| cache | generate |{' engine |' * engines}"
    )
    yield f"|{'-|' * (7 + engines + 2 * len(peers))}"
    for kind, sides in sorted(made.items()):
        ours, cells = sides["attnport"], [f"`{kind}`"]
        for peer in (sides.get(name) for name in peers):
            cells += [cell(peer), seconds(peer)] if peer else ["", ""]
        cells.append(cell(ours))
        state = cached(sides)
        cells += [fused(ours), seconds(ours), cell(sides[OTHER_CONFIG]) if OTHER_CONFIG in sides else ""]
        cells += [("refused", "yes")[state[0]], ("", ("**wrong**", "right")[state[1]])[state[0]]] if state else ["", ""]
        cells += [fused(sides[ENGINE]) or "**none**" if ENGINE in sides else ""] if engines else []
        yield f"| {' | '.join(cells)} |"


def fused(result: Mapping[str, Any]) -> str:
    """`2/2`, the attentions that are fused of those counted; "" where there is nothing in which to count them."""
    return f"{result['fused']}/{result['attentions']}" if result.get("attentions") is not None else ""


def seconds(result: Mapping[str, Any]) -> str:
    """The processor's seconds; "" of an older result, whose seconds are the clock's."""
    return format(result["processor_s"], ".0f") if "processor_s" in result else ""


def cached(sides: Mapping[str, Mapping[str, Any]]) -> tuple[bool, bool] | None:
    """Whether a type goes with its cache, and whether its tokens are right; None where that was not tried.

    An encoder whose class for writing text is not told to be a decoder writes none.
    """
    side = sides.get(CACHED)
    return (side["exported"], side["right"]) if side and NOT_CAUSAL not in side["reason"] else None


def cell(result: Mapping[str, Any]) -> str:
    """right, with the dims of one size alone; exported and wrong; or refused."""
    if result["right"]:
        how = "`--examples`" if result.get("examples") else "`--input`" if result.get("declared") else ""
        return ", ".join(["right", *filter(None, [how]), *result.get("fixed", ())])
    return "**wrong**" if result["exported"] else "refused"


def reasons(made: Mapping[str, Mapping[str, Mapping[str, Any]]], cause: str) -> Iterator[str]:
    """The reason of each type that attnport does not get right for this cause."""
    for kind, sides in sorted(made.items()):
        if cause_of(sides["attnport"]) == cause:
            yield f"- `{kind}`: {brief(sides['attnport']['reason'])}"


def cause_of(result: Mapping[str, Any]) -> str:
    """Why a type is not right; "" if it is."""
    if result["right"]:
        return ""
    reason = result["reason"]
    if re.search(r"data-dependent|needs the values of a tensor|depends? on (the )?values|by a float of a size", reason):
        return VALUES
    if re.search(r"Random(Uniform|Normal)|not deterministic|randn", reason):
        return RANDOM
    return TIME if reason.startswith("it took more than") else OTHER


def brief(reason: str) -> str:
    """A reason's beginning, without paths and with nothing that Markdown reads."""
    text = re.sub(r"hf:\S+: ", "", reason.split(" <- ")[0])
    text = re.sub(r"\S*/(?:tmp|site-packages)/\S*", "...", text)
    text = text.replace("`", "'").replace("|", "/").replace("<", "&lt;").replace(">", "&gt;")
    return text if len(text) <= LONGEST else text[:LONGEST].rsplit(" ", 1)[0] + " ..."


def main() -> None:
    """Writes the page."""
    PAGE.write_text(page(json.loads(RESULTS.read_text("utf-8"))), "utf-8")


if __name__ == "__main__":
    main()
