"""`attnport list`: lists models, runtimes, targets or rules, with the first line of each one's docstring."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from attnport import registry
from attnport.errors import UsageError
from attnport.models import base as models
from attnport.options import Option
from attnport.printed import Printed
from attnport.reporting import document as doc
from attnport.verbs._arguments import verb

PACKAGES = {
    "runtimes": "attnport.runtimes",
    "targets": "attnport.exporter.targets",
    "rules": "attnport.exporter.fusion.rules",
}


_USE = {
    "models": "small, with random weights, to try: attnport export NAME -o out/; a model of yours needs no name here",
    "runtimes": "for --runtime of ship, check, bench, tune and generate; attnport doctor says which can run here",
    "targets": "for --target of fuse and build",
    "rules": "by which attention is recognised in a graph; there is nothing to choose",
}


@dataclass(frozen=True, repr=False)
class Listing(Printed):
    """Descriptions by name, sorted."""

    schema: Literal["attnport/list/1"] = field(default="attnport/list/1", kw_only=True)
    what: str
    items: Mapping[str, str]


@verb
def listing(what: Annotated[Literal["models", "runtimes", "targets", "rules"], Option("What to list.")]) -> Listing:
    """Lists models, runtimes, targets or rules without importing them.

    Raises:
        UsageError: `what` is none of these.
    """
    if what == "models":
        return Listing(what, models.descriptions())
    if what not in PACKAGES:
        raise UsageError(f"got {what!r}; expected one of {', '.join(('models', *PACKAGES))}.")
    return Listing(what, {path.stem: _first_line(path) for path in registry.files(PACKAGES[what])})


def _first_line(path: Path) -> str:
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return text.partition("\n")[0]


@doc.blocks.register(Listing)
def _blocks(listing: Listing, detail: doc.Detail = "brief") -> Iterator[doc.Block]:
    """Names and descriptions, and what they are for."""
    yield doc.Table(listing.what, doc.columns("name", "what it is"), doc.rows(listing.items.items()))
    yield from doc.quiet(_USE[listing.what])
