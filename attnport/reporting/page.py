"""Renders a report as one HTML file that needs no other files."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable
from pathlib import Path

from attnport.reporting import summary
from attnport.reporting.blocks import html
from attnport.reporting.document import Section
from attnport.reporting.findings import Findings
from attnport.reporting.markup import Html, el
from attnport.reporting.sections import sections

_FOLDER = Path(__file__).parent


def _asset(file: str) -> Html:
    """A style sheet or script of this package."""
    return Html((_FOLDER / file).read_text(encoding="utf-8"))


def code_digest() -> str:
    """SHA-256 over this package's files; a page made by other code is made again."""
    sha = hashlib.sha256()
    for path in sorted(_FOLDER.iterdir()):
        if path.suffix in (".py", ".css", ".js"):
            sha.update(hashlib.sha256(path.read_bytes()).digest())
    return sha.hexdigest()


def render(findings: Findings) -> str:
    """Makes the page of an artifact folder."""
    manifest = findings.manifest
    heading = summary.header(
        manifest, findings.fusion, findings.parity, findings.latency, findings.recommendation, findings.quoted
    )
    end = el("footer", f"Made by attnport {manifest.attnport}.")
    return whole(f"{manifest.name} · attnport report", heading, sections(findings), end)


def whole(title: str, heading: Html, parts: Iterable[Section], end: Html) -> str:
    """Makes a page.

    Args:
        heading: What stands above the sections.
        end: What stands below them.

    Returns:
        HTML without references to other files or hosts. Its content security policy allows only the page's own script,
        whatever the names in it contain.
    """
    shown = [(part.key, part.title, html(part.blocks)) for part in parts]
    contents = el("nav", *(el("a", name, href=f"#{key}") for key, name, _ in shown), aria_label="Sections")
    made = (
        el("section", el("h2", name, id_=f"{key}-title"), inside, id_=key, aria_labelledby=f"{key}-title")
        for key, name, inside in shown
    )
    script = _asset("page.js")
    allowed = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{allowed}'"
    head = el(
        "head",
        el("meta", charset="utf-8"),
        el("meta", http_equiv="Content-Security-Policy", content=policy),
        el("meta", name="viewport", content="width=device-width, initial-scale=1"),
        el("meta", name="color-scheme", content="light dark"),
        el("title", title),
        el("link", rel="icon", href="data:,"),
        el("style", _asset("style.css")),
    )
    body = el(
        "body",
        el("a", "Skip to the findings", href="#main", class_="skip-link"),
        heading,
        contents,
        el("main", *made, id_="main", tabindex="-1"),
        end,
        el("script", script),
    )
    return "<!doctype html>\n" + el("html", head, body, lang="en") + "\n"
