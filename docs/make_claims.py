"""Makes `claims.md` and its pictures: what the literature says of attention, measured on attnport's own artifacts.

    python docs/make_claims.py [--json FILE] [--pictures FOLDER] [CLAIM ...]

With claims named, their sections are printed and the page stays as it is. A claim is one file in `docs/claims/`.
"""

from __future__ import annotations

import argparse
import json
import sys
import textwrap
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import claims
from claims._findings import FAILS, HOLDS, UNKNOWN, Findings, overall, table
from make_masks import made_on, place

PAGE = Path(__file__).resolve().parent / "claims.md"
PICTURES = claims.HERE
WIDTH = 120


def written(found: Mapping[str, Findings]) -> str:
    """A table of all claims, then a section each."""
    titles = {name: claims.get(name).TITLE for name in found}
    rows = [
        (f"[{titles[name]}](#{_anchor(titles[name])})", f"**{overall(each.verdicts)}**", _counted(each))
        for name, each in found.items()
    ]
    return "\n\n".join([table(("claim", "verdict", "settings"), rows), *(section(name, found[name]) for name in found)])


def section(name: str, found: Findings) -> str:
    """One claim: what is said, how it was measured, figures, pictures, and a verdict for each setting."""
    claim = claims.get(name)
    pictures = [f"![{claim.TITLE}: {picture}](claims/{picture}.svg)" for picture in found.pictures]
    verdicts = [(one.what, one.said, one.why) for one in found.verdicts]
    parts = [
        f"## {claim.TITLE}",
        paragraph(claim.CLAIM),
        paragraph(f"**{overall(found.verdicts).capitalize()}.** {found.how}"),
        *found.tables,
        *pictures,
        table(("setting", "verdict", "figure"), verdicts),
    ]
    return "\n\n".join(parts)


def paragraph(text: str) -> str:
    """Text in lines of the pages' width."""
    return textwrap.fill(" ".join(text.split()), WIDTH, break_long_words=False, break_on_hyphens=False)


def _counted(found: Findings) -> str:
    """How many settings the verdict is from: `8 hold, 2 do not, 1 not measurable`."""
    said = Counter(verdict.said for verdict in found.verdicts)
    words = {HOLDS: "hold", FAILS: "do not", UNKNOWN: "not measurable"}
    return ", ".join(f"{said[each]} {word}" for each, word in words.items() if said[each])


def _anchor(title: str) -> str:
    """The fragment that GitHub gives a heading."""
    kept = "".join(letter for letter in title.lower() if letter.isalnum() or letter in " -_")
    return kept.replace(" ", "-")


def measured(name: str) -> Findings:
    """One claim at the sizes of the page; what it does goes to standard error."""
    claim = claims.get(name)
    found: Findings = claim.measure(
        claim.FULL, lambda message: print(f"{name}: {message}", file=sys.stderr, flush=True)
    )
    return found


def draw(found: Mapping[str, Findings], folder: Path) -> None:
    """Writes every picture into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for each in found.values():
        for name, picture in each.pictures.items():
            (folder / f"{name}.svg").write_text(picture, encoding="utf-8")


def main() -> None:
    """Measures and writes."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("claims", nargs="*", metavar="CLAIM", help=f"of {', '.join(claims.names())}")
    arguments.add_argument("--json", type=Path, help="write every figure here as well")
    arguments.add_argument("--pictures", type=Path, help="write the pictures of named claims here")
    chosen = arguments.parse_args()
    found = {name: measured(name) for name in chosen.claims or claims.names()}
    if chosen.json:
        chosen.json.write_text(json.dumps({name: asdict(each) for name, each in found.items()}, indent=1) + "\n")
    if not chosen.claims:
        PAGE.write_text(place(PAGE.read_text(encoding="utf-8"), written(found), made_on("docs/make_claims.py")))
        draw(found, PICTURES)
        return
    print(written(found))
    if chosen.pictures:
        draw(found, chosen.pictures)


if __name__ == "__main__":
    main()
