"""The sources of the site, made of the pages of this repository, and a check of the site that is built of them.

The pages stay where a code host shows them. For the site they are copied to one folder, links between them are changed
to fit, a page is made of every other file that one links to, and the pages of the reference are added.

    python tools/make_site.py make     # into build/pages, which mkdocs.yml reads
    python tools/make_site.py check    # build/site: every link and anchor, and that nothing is loaded from elsewhere
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path, PurePosixPath
from posixpath import normpath, relpath
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).resolve().parent.parent
PAGES, SITE = ROOT / "build" / "pages", ROOT / "build" / "site"
ELSEWHERE = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changes.md",
    "SECURITY.md": "security.md",
    "examples/README.md": "examples.md",
    "attnport/bundling/FORMAT.md": "format.md",
}
"""Pages that are not under docs/, and their places on the site."""
SHOWN_AS_THEY_ARE = {".png", ".svg", ".json", ".css"}
_FENCE = re.compile(r"^( *)(```+)[^\n]*\n.*?^\1\2 *$", re.DOTALL | re.MULTILINE)
_CODE_OR_LINK = re.compile(rf"{_FENCE.pattern}|`[^`\n]*`|(?<=\]\()(?P<target>[^)\s]+)(?=\))", re.DOTALL | re.MULTILINE)
_ITEM = re.compile(r" *([-*]|\d+\.) ")


def places(root: Path) -> dict[str, str]:
    """The place on the site of every page and picture, by its name in the repository."""
    found = {name: place for name, place in ELSEWHERE.items() if (root / name).is_file()}
    for path in sorted((root / "docs").rglob("*")):
        if path.suffix == ".md" or path.suffix in SHOWN_AS_THEY_ARE:
            found[path.relative_to(root).as_posix()] = path.relative_to(root / "docs").as_posix()
    return found


def linked(name: str, text: str, known: dict[str, str], root: Path) -> tuple[str, set[str]]:
    """A page's text with links as on the site, and the files that it links to and that are no pages.

    Args:
        name: The page in the repository.
        known: What `places` returns.
    """
    sources: set[str] = set()
    here = known[name]

    def changed(match: re.Match[str]) -> str:
        target = match["target"]
        if target is None or "://" in target or target.startswith("#"):
            return match[0]
        path, mark, fragment = target.partition("#")
        wanted = normpath(PurePosixPath(name).parent / path)
        if wanted not in known and not (root / wanted).is_file():
            return target  # mkdocs says that it leads nowhere
        if wanted not in known:
            sources.add(wanted)
        place = known.get(wanted, f"source/{wanted}.md")
        return relpath(place, PurePosixPath(here).parent) + mark + fragment

    return _CODE_OR_LINK.sub(changed, text), sources


def spaced(text: str) -> str:
    """A page with a blank line around tables, lists and code, which code hosts do without and Python-Markdown needs."""
    kept: list[str] = []

    def keep(match: re.Match[str]) -> str:
        kept.append(match[0])
        return f"\n\0{len(kept) - 1}\n"

    lines: list[str] = []
    for line in _FENCE.sub(keep, text).split("\n"):
        before = lines[-1] if lines else ""
        begins = _ITEM.match(line) and not _within_list(lines)
        if before.strip() and (begins or (line.startswith("|") and not before.startswith("|"))):
            lines.append("")
        lines.append(line)
    return re.sub(r"\0(\d+)", lambda match: kept[int(match[1])], "\n".join(lines))


def _within_list(lines: list[str]) -> bool:
    """Whether the block that the last of these lines belongs to has begun an item."""
    for line in reversed(lines):
        if not line.strip():
            return False
        if _ITEM.match(line):
            return True
    return False


def source_page(name: str, root: Path) -> str:
    """A page of a file of the repository; of a notebook, its cells."""
    path = root / name
    text = path.read_text("utf-8")
    if path.suffix == ".ipynb":
        cells = ((cell["cell_type"], "".join(cell["source"])) for cell in json.loads(text)["cells"])
        text = "\n\n".join(code if kind == "markdown" else f"```python\n{code}\n```" for kind, code in cells)
    else:
        language = path.suffix.removeprefix(".") if path.suffix in {".py", ".cpp", ".hpp", ".h"} else "text"
        text = f"````{language}\n{text}\n````"
    return f"---\nsearch:\n  exclude: true\n---\n# {name}\n\n{text}\n"


def decisions(folder: Path) -> str:
    """The list of what was decided, by the titles of the pages."""
    titles = {path.name: path.read_text("utf-8").partition("\n")[0].lstrip("# ") for path in folder.glob("*.md")}
    listed = "\n".join(f"- [{title}]({name})" for name, title in sorted(titles.items()))
    return f"# Decisions\n\nWhat was decided about the design, why, and what else was considered.\n\n{listed}\n"


def make(root: Path, out: Path) -> None:
    """Writes every page and picture of the site into `out`, a folder that it replaces."""
    from reference import reference_pages

    shutil.rmtree(out, ignore_errors=True)
    known, wanted = places(root), set()
    for name, place in known.items():
        (out / place).parent.mkdir(parents=True, exist_ok=True)
        if name.endswith(".md"):
            text, sources = linked(name, (root / name).read_text("utf-8"), known, root)
            (out / place).write_text(spaced(text), "utf-8")
            wanted |= sources
        else:
            shutil.copyfile(root / name, out / place)
    made = {f"source/{name}.md": source_page(name, root) for name in wanted} | reference_pages(root)
    made["adr/index.md"] = decisions(out / "adr")
    for place, text in made.items():
        (out / place).parent.mkdir(parents=True, exist_ok=True)
        (out / place).write_text(text, "utf-8")


class _Page(HTMLParser):
    """What a page of HTML links to, loads and can be linked to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Notes one element."""
        values = {key: value or "" for key, value in attrs}
        self.anchors |= {values[key] for key in ("id", "name") if key in values}
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        elif tag == "link" and values.get("rel", "") not in {"canonical", "prev", "next"}:
            self.loaded.append(values.get("href", ""))
        elif "src" in values:
            self.loaded.append(values["src"])


def problems(site: Path) -> Iterator[str]:
    """Links of a built site that lead nowhere, and what its pages and styles load from other hosts."""
    pages = {path: _Page(path.read_text("utf-8")) for path in sorted(site.rglob("*.html"))}
    for path, page in pages.items():
        where = path.relative_to(site).as_posix()
        for target in page.loaded:
            if urlsplit(target).netloc:
                yield f"{where} loads {target}"
        for target in [*page.links, *page.loaded]:
            if (parts := urlsplit(target)).scheme or parts.netloc:
                continue
            base = site if parts.path.startswith("/") else path.parent  # 404.html is shown in place of any page
            file = (base / unquote(parts.path).lstrip("/")).resolve() if parts.path else path
            file = file / "index.html" if file.is_dir() else file
            if not file.is_file():
                yield f"{where} links to {target}, which is not there"
            elif parts.fragment and file in pages and unquote(parts.fragment) not in pages[file].anchors:
                yield f"{where} links to {target}, which has no such anchor"
    for path in sorted(site.rglob("*.css")):
        for target in re.findall(r"(?:url\(|@import )['\"]?((?:https?:)?//[^'\")\s]+)", path.read_text("utf-8")):
            yield f"{path.relative_to(site).as_posix()} loads {target}"


def main(command: str) -> None:
    """Makes the sources, or checks the site and exits with 1 where something is wrong."""
    if command == "make":
        make(ROOT, PAGES)
        return
    found = sorted(set(problems(SITE)))
    count = len(list(SITE.rglob("*.html")))
    if found or not count:
        print(*found, sep="\n")
        sys.exit(f"error: {len(found)} problems in {count} pages of {SITE.relative_to(ROOT)}.")
    print(f"{count} pages: every link and anchor leads somewhere, and nothing is loaded from another host.")


if __name__ == "__main__":
    main(*sys.argv[1:])
