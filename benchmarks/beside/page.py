"""The section of docs/performance.md, and its pictures, from the JSON of benchmarks/compare.py."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from beside.models import MODELS
from beside.schedules import PADDED
from beside.side import ROOT

PAGE = ROOT / "docs" / "performance.md"
PICTURES = ROOT / "docs" / "images"
WORDS = {"fp32": "float32", "half": "float32 or half", "any": "any precision within a drop of 0.5 %"}
FLOOR = 1.3
"""The multiple of the floor that is asked of float32."""


def asked(model: str, work: str, precision: str) -> float | None:
    """The ratio that is asked for; None where none is."""
    if model != "minilm" or "real" not in work:
        return 1.0 if model != "bert" or "real" not in work else None
    if "60%" in work:
        return 0.95 if precision == "fp32" else None
    return 0.9


def verdict(interval: Sequence[float], wanted: float) -> str:
    """Whether what is asked is reached: for the whole interval, for none of it, or not known."""
    low, high = interval
    return "yes" if high <= wanted else "no" if low > wanted else "not shown"


def write_page(result: Mapping[str, Any]) -> None:
    """Rewrites the section between its marks, and the pictures."""
    for name, found in result["models"].items():
        (PICTURES / f"compare_{name}.svg").write_text(picture(name, found), encoding="utf-8")
    replace_section("compare", section(result))


def replace_section(name: str, text: str, page: Path = PAGE) -> None:
    """Puts the text between the marks of a section of a page, by default docs/performance.md."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    head, _, rest = page.read_text(encoding="utf-8").partition(begin)
    page.write_text(f"{head}{begin}\n{text}\n{end}{rest.partition(end)[2]}", encoding="utf-8")


def section(result: Mapping[str, Any]) -> str:
    """The Markdown."""
    packages = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    lines = [
        f"Measured by `{result['command']}` (`make bench`) on {result['machine']}, with {packages}.",
        "Each side runs in a process of its own, on one core where two threads are not named, in its best schedule:",
        "the padded batch, one row at a time, groups of 2, 4, 8 or 16 of like length, and for attnport also its own",
        "batches, those of a bundle's `Model.map`. A ratio is attnport's best time divided by that of the fastest",
        "peer, with its 99 % interval, sampled until that is within 1 %, or its time is over. The floor is the time of",
        "the products of the real tokens at the best rate that PyTorch or oneDNN reaches for these shapes on one",
        "thread. A peer that took more than twice as long as the quickest peer of its precision (1.2 times for longer",
        "inputs and for two threads) is not measured in the next columns.",
    ]
    for name, found in result["models"].items():
        lines += ["", f"### {MODELS[name].said}", "", *ratio_table(name, found)]
        lines += [
            "",
            f"![{MODELS[name].said}: attnport's time divided by the fastest peer's](images/compare_{name}.svg)",
        ]
        lines += ["", *side_table(found), *failures(found)]
    return "\n".join(lines)


def ratio_table(model: str, found: Mapping[str, Any]) -> list[str]:
    """A row a work and precision."""
    lines = [
        "| work | | attnport, ms | fastest peer, ms | ratio | asked | reached | times the floor |",
        "|-|-|-|-|-|-|-|-|",
    ]
    for work, row in found["works"].items():
        for precision, word in _told(row["ratios"]).items():
            ratio = row["ratios"][precision]
            low, high = ratio["interval"]
            wanted = asked(model, work, precision)
            target = ("| " if wanted is None else f"{wanted:.2f} | {verdict(ratio['interval'], wanted)}") + " |"
            ours, peer = (_side(row["sides"], ratio[side], found) for side in ("ours", "peer"))
            middle = f"{ratio['ratio']:.2f} ({low:.2f} to {high:.2f})"
            floor = _floor(row, ratio, precision)
            lines.append(f"| {work} | {word} | {ours} | {peer} | {middle} | {target} {floor} |")
        lines += _memory(row)
    return lines


def _told(ratios: Mapping[str, Any]) -> dict[str, str]:
    """The classes of precision that differ: one that compares the same two sides as that before it says nothing."""
    found: dict[str, str] = {}
    last = None
    for precision, word in WORDS.items():
        pair = (ratios[precision]["ours"], ratios[precision]["peer"]) if precision in ratios else last
        if pair != last:
            found[precision] = word
        last = pair
    return found


def _side(sides: Mapping[str, Any], name: str, found: Mapping[str, Any]) -> str:
    """Time, name, schedule, and the share of sentences with another nearest neighbour where that is not none."""
    row = sides[name]
    schedule = "" if row["schedule"] == PADDED else f", {row['schedule']}"
    changed = found.get("accuracy", {}).get(name, {}).get("neighbours_changed", 0)
    return f"{_ms(row['ms'])} ({name}{schedule}{f'; {changed:.1%} other neighbours' if changed else ''})"


def _ms(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}"


def _floor(row: Mapping[str, Any], ratio: Mapping[str, Any], precision: str) -> str:
    """Of the float32 row, its multiple of the floor in float32; of the other, that in bfloat16 where it is that."""
    key = "fp32" if precision == "fp32" else row["sides"][ratio["ours"]]["precision"]
    found = row.get("floor", {}).get(key)
    if found is None:
        return ""
    return f"{found['ours']:.2f}" + (f" ({FLOOR} asked)" if key == "fp32" else "")


def _memory(row: Mapping[str, Any]) -> list[str]:
    """The least memory of attnport's forms and of the peers, where it was measured."""
    known = {name: one["peak_mb"] for name, one in row["sides"].items() if "peak_mb" in one and "failed" not in one}
    ours = {name: peak for name, peak in known.items() if name.startswith("attnport")}
    peers = {name: peak for name, peak in known.items() if name not in ours}
    if not ours or not peers:
        return []
    # That of the form whose time is compared, not of another that happens to be lean.
    mine = row["ratios"]["fp32"]["ours"] if "fp32" in row["ratios"] else min(ours, key=lambda name: ours[name])
    least = min(peers, key=lambda name: peers[name])
    ratio = ours[mine] / peers[least]
    return [f"| | peak memory, MB | {ours[mine]} ({mine}) | {peers[least]} ({least}) | {ratio:.2f} | 1.00 | "
            f"{'yes' if ratio <= 1 else 'no'} | |"]  # fmt: skip


def side_table(found: Mapping[str, Any]) -> list[str]:
    """A row a side: ms of every work in its best schedule, and what its outputs are worth."""
    works = list(found["works"])
    exact = found.get("accuracy", {})
    names = list(dict.fromkeys(name for row in found["works"].values() for name in row["sides"]))
    more = ["least cosine", "agreement", "other nearest neighbour"] if exact else ["least cosine"]
    lines = [
        "All sides, ms:",
        "",
        f"| side | {' | '.join([*works, *more])} |",
        "|-" * (1 + len(works) + len(more)) + "|",
    ]
    for name in names:
        rows = [found["works"][work]["sides"].get(name, {}) for work in works]
        if not any("ms" in row for row in rows):
            continue
        cells = [_ms(row["ms"]) if "ms" in row else "" for row in rows]
        cosine = min(row["cosine"] for row in rows if row.get("cosine") is not None)
        worth = [f"{exact[name][key]:.4f}" for key in ("cosine", "agreement")] if name in exact else None
        changed = [f"{exact[name]['neighbours_changed']:.1%}"] if worth else [""] * (len(more) - 1)
        cells += [*(worth or [f"{cosine:.4f}"]), *changed]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def failures(found: Mapping[str, Any]) -> list[str]:
    """A line for each side that did not run, with its reason."""
    reasons = {
        name: row["failed"]
        for work in found["works"].values()
        for name, row in work["sides"].items()
        if "failed" in row
    }
    return ["", "Not measured:", *(f"- {name}: {reason}" for name, reason in reasons.items())] if reasons else []


def picture(model: str, found: Mapping[str, Any]) -> str:
    """The ratios of a model as an SVG file."""
    sys.path.append(str(ROOT / "docs"))
    from claims._ratios import ratios

    rows = {}
    for work, row in found["works"].items():
        for precision, word in _told(row["ratios"]).items():
            low, high = row["ratios"][precision]["interval"]
            rows[f"{work}, {word}"] = (low, row["ratios"][precision]["ratio"], high)
    return ratios(rows, "attnport's time divided by the fastest peer's")
