"""A strict reading of HTML: balanced tags, unique ids, links that lead somewhere, nothing fetched from elsewhere."""

from __future__ import annotations

from html.parser import HTMLParser

VOID = frozenset({"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"})


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.faults: list[str] = []
        self.ids: list[str] = []
        self.targets: list[str] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in VOID:
            self.open.append(tag)
        names = [name for name, _ in attrs]
        self.faults += [f"<{tag}> has {name} twice" for name in set(names) if names.count(name) > 1]
        for name, value in attrs:
            value = value or ""
            if name.startswith("on"):
                self.faults.append(f"<{tag}> has an event handler {name}")
            if name == "id":
                self.ids.append(value)
            if name in ("src", "href", "srcset", "action", "poster", "data") and not value.startswith(("#", "data:")):
                self.faults.append(f"<{tag}> leads out of the page: {name}={value[:60]}")
            if name == "href" and value.startswith("#"):
                self.targets.append(value[1:])
            if name == "style" and "url(" in value:
                self.faults.append(f"<{tag}> fetches from its style")
        if tag == "img" and "alt" not in names:
            self.faults.append("<img> without alt")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.faults.append(f"<{tag}/> closes itself")

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open[-1] != tag:
            self.faults.append(f"</{tag}> inside {self.open[-3:]}")
        else:
            self.open.pop()


def faults(page: str) -> list[str]:
    """What is wrong with a page; empty when nothing is."""
    reader = _Reader()
    reader.feed(page)
    reader.close()
    found = list(reader.faults)
    found += [f"<{tag}> is never closed" for tag in reader.open]
    found += [f"id {key!r} is not unique" for key in set(reader.ids) if reader.ids.count(key) > 1]
    found += [f"nothing has the id {key!r}" for key in set(reader.targets) - set(reader.ids)]
    return found


def tags(page: str) -> list[str]:
    """Every tag that opens, in order."""
    reader = _Reader()
    reader.feed(page)
    return reader.tags
