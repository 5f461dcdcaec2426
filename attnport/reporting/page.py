"""The report: one HTML file that needs nothing else, made from the values that the verbs saved."""

from __future__ import annotations

import base64
import hashlib
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from attnport.artifacts import FusionReport, LatencyReport, Manifest, ParityReport
from attnport.reporting import fusion as fusion_part
from attnport.reporting import heatmap as heatmap_part
from attnport.reporting import holdings, summary
from attnport.reporting import latency as latency_part
from attnport.reporting import parity as parity_part
from attnport.reporting.heatmap import Heatmap
from attnport.reporting.markup import Html, el, join

_FOLDER = Path(__file__).parent


def _asset(file: str) -> Html:
    """A style sheet or script of this package."""
    return Html((_FOLDER / file).read_text(encoding="utf-8"))


def code_digest() -> str:
    """SHA-256 over this package's files: a page made by other code is made again."""
    sha = hashlib.sha256()
    for path in sorted(_FOLDER.iterdir()):
        if path.suffix in (".py", ".css", ".js"):
            sha.update(hashlib.sha256(path.read_bytes()).digest())
    return sha.hexdigest()


def render(
    manifest: Manifest,
    fusion: FusionReport | None,
    parity: ParityReport | None,
    latency: LatencyReport | None,
    heatmaps: Sequence[Heatmap],
    environment: Mapping[str, str],
    *,
    folder: str = "out/",
    sentence: str = "",
    heatmap_note: str = "",
) -> str:
    """Makes the page.

    Args:
        manifest: The folder's manifest.
        fusion: None when `fuse` has not run; the page then says how to run it. So for the next two.
        parity: Of `check`.
        latency: Of `bench`.
        heatmaps: The attention weights of one sentence, an item an attention.
        environment: What to say about the machine and the moment, by label.
        folder: The artifact folder, for the commands that the page shows.
        sentence: What the heatmaps were made from.
        heatmap_note: Why there are no heatmaps.

    Returns:
        HTML without any reference to another file or host. Its content security policy lets nothing run but the
        page's own script, whatever the names in it contain.
    """
    folder = shlex.quote(folder)
    parts: tuple[tuple[str, str, Html], ...] = (
        ("fusion", "Fusion", fusion_part.section(manifest.attentions, fusion, folder)),
        ("parity", "Parity", parity_part.section(parity, folder)),
        ("latency", "Latency", latency_part.section(latency, folder)),
        ("attention", "Attention maps", heatmap_part.section(heatmaps, sentence, heatmap_note)),
        (
            "files",
            "Model and files",
            join((holdings.contract(manifest), holdings.forms(manifest), holdings.engines(manifest, folder))),
        ),
        ("environment", "Environment", holdings.environment(environment, manifest)),
        ("next", "Run again, embed", holdings.commands(manifest, folder)),
    )
    contents = el("nav", *(el("a", title, href=f"#{key}") for key, title, _ in parts), aria_label="Sections")
    sections = (
        el("section", el("h2", title, id_=f"{key}-title"), body, id_=key, aria_labelledby=f"{key}-title")
        for key, title, body in parts
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
        el("title", f"{manifest.name} · attnport report"),
        el("link", rel="icon", href="data:,"),
        el("style", _asset("style.css")),
    )
    body = el(
        "body",
        summary.header(manifest, fusion, parity, latency, folder),
        contents,
        el("main", *sections),
        el("footer", f"Made by attnport {manifest.attnport}."),
        el("script", script),
    )
    return "<!doctype html>\n" + el("html", head, body, lang="en") + "\n"
