"""Attention weights as small images: one for each layer and head, on one scale.

The weight is the opacity of a pixel, so that the same image works on the light and the dark page.
"""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from attnport.reporting.markup import Html, el, join

if TYPE_CHECKING:
    import numpy as np

INK = (10, 58, 120)
"""The colour, opaque for weight 1; the style sheet inverts it on a dark page."""
VEIL = (150, 96, 30, 72)
"""Colour and opacity of hidden pairs."""
IMAGE_BUDGET_BYTES = 1_000_000
"""Beyond this size, whole attentions are left out, so that the page stays below two megabytes."""


@dataclass(frozen=True)
class Heatmap:
    """One attention's weights for one sentence.

    Attributes:
        attention: Its name, as in the manifest.
        queries: The S tokens that attend.
        keys: The T tokens that are attended to.
        weights_HST: Weights in 0..1; every row sums to 1.
        hidden_ST: True where the mask hides a key from a query; None if nothing is hidden.
    """

    attention: str
    queries: tuple[str, ...]
    keys: tuple[str, ...]
    weights_HST: np.ndarray[Any, Any]  # noqa: N815 - the shape suffix
    hidden_ST: np.ndarray[Any, Any] | None = None  # noqa: N815 - the shape suffix

    def __post_init__(self) -> None:
        expected = (len(self.queries), len(self.keys))
        if 0 in expected or self.weights_HST.ndim != 3 or self.weights_HST.shape[1:] != expected:
            raise ValueError(
                f"{self.attention}: got weights of shape {list(self.weights_HST.shape)}; "
                f"expected [heads, {expected[0]}, {expected[1]}] for its tokens, at least one each."
            )
        if self.hidden_ST is not None and self.hidden_ST.shape != expected:
            raise ValueError(
                f"{self.attention}: got a mask of shape {list(self.hidden_ST.shape)}; expected {expected}."
            )


def png(weights_ST: np.ndarray[Any, Any], hidden_ST: np.ndarray[Any, Any] | None = None) -> bytes:
    """A PNG (RFC 2083) of S x T pixels: constant colour, opacity the square root of the weight.

    The root keeps weights near 1/T visible beside those near 1; 8 bits resolve a weight to 0.004. Hidden pairs have
    another colour.
    """
    import numpy as np

    rows, columns = weights_ST.shape
    pixels = np.empty((rows, columns, 4), np.uint8)
    pixels[..., :3] = INK
    pixels[..., 3] = np.rint(np.sqrt(np.clip(np.nan_to_num(weights_ST), 0, 1)) * 255)
    if hidden_ST is not None:
        pixels[hidden_ST] = VEIL
    # Each line starts with its filter type; 0 is none.
    lines = b"".join(b"\0" + line.tobytes() for line in pixels)
    header = struct.pack(">IIBBBBB", columns, rows, 8, 6, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(lines, 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )


def data_url(image: bytes) -> str:
    """A PNG as a data URL."""
    return "data:image/png;base64," + base64.b64encode(image).decode()


def short_names(names: Sequence[str]) -> list[str]:
    """Dotted names without their common last parts, and without their common first parts except the last of these."""
    parts = [item.split(".") for item in names]
    if len(parts) < 2:
        return list(names)
    limit = min(map(len, parts)) - 1
    first = next((i for i in range(limit) if len({item[i] for item in parts}) > 1), limit)
    last = next((i for i in range(limit - first) if len({item[-1 - i] for item in parts}) > 1), limit - first)
    short = [".".join(item[max(0, first - 1) : len(item) - last]) for item in parts]
    return short if len(set(short)) == len(names) else list(names)


def _images(heatmaps: Sequence[Heatmap]) -> tuple[list[Heatmap], list[list[str]]]:
    """The attentions that fit the budget, spread evenly over the depth, and their images as data URLs by head."""
    urls = [[data_url(png(weights, item.hidden_ST)) for weights in item.weights_HST] for item in heatmaps]
    total = sum(len(url) for item in urls for url in item)
    keep = len(heatmaps)
    if total > IMAGE_BUDGET_BYTES:
        keep = max(1, int(keep * IMAGE_BUDGET_BYTES / total))
    chosen = sorted({round(i * (len(heatmaps) - 1) / max(1, keep - 1)) for i in range(keep)})
    return [heatmaps[i] for i in chosen], [urls[i] for i in chosen]


def _strongest(item: Heatmap, head: int) -> str:
    """The largest weight of a head in words, for readers who do not see the image."""
    flat = int(item.weights_HST[head].argmax())
    query, key = divmod(flat, len(item.keys))
    return f"strongest: {item.queries[query]} to {item.keys[key]}, {item.weights_HST[head][query, key]:.2f}"


def _axes(shown: Sequence[Heatmap], labels: Sequence[str]) -> Html:
    """The tokens of the maps, in order; where attentions differ in them, those of the first with each."""
    lines: dict[tuple[str, ...], str] = {}
    for item, label in zip(shown, labels, strict=True):
        if item.queries == item.keys[: len(item.queries)]:
            lines.setdefault(item.keys, f"Rows of {label} from the top, and columns from the left")
        else:
            lines.setdefault(item.queries, f"Rows of {label} from the top")
            lines.setdefault(item.keys, f"Columns of {label} from the left")
    return join(el("p", f"{words}: ", el("code", " ".join(tokens)), class_="quiet") for tokens, words in lines.items())


def _scale() -> Html:
    steps = join(
        el("span", el("i", el("b", style=f"opacity:{w**0.5:.2f}")), f"{w:g}") for w in (0, 0.06, 0.25, 0.56, 1)
    )
    return el("p", "Weight ", steps, el("span", el("i", class_="hidden"), "hidden by the mask"), class_="scale")


def section(heatmaps: Sequence[Heatmap], sentence: str, note: str) -> Html:
    """Images of the attention weights of every layer and head.

    Args:
        heatmaps: An item for each attention; may be empty.
        sentence: The sentence, or a description of the inputs.
        note: Why there are none.
    """
    if not heatmaps or not any(len(item.weights_HST) for item in heatmaps):
        return el("p", note or "The model has no attention to show.", class_="pending")
    shown, urls = _images([item for item in heatmaps if len(item.weights_HST)])
    labels = short_names([item.attention for item in shown])
    heads = max(len(item.weights_HST) for item in shown)
    rows = []
    for item, label, of_heads in zip(shown, labels, urls, strict=True):
        size = {"width": len(item.keys), "height": len(item.queries)}
        cells = (
            el("td", el("img", src=url, alt=f"{label}, head {head}; {strongest}", title=strongest, **size))
            for head, url in enumerate(of_heads)
            if (strongest := _strongest(item, head))
        )
        rows.append(el("tr", el("th", el("span", label, title=item.attention), scope="row"), *cells))
    header = el("tr", el("th", "head", scope="col"), *(el("th", head, scope="col") for head in range(heads)))
    caption = el("caption", f"{len(shown)} attentions by {heads} heads")
    grid = el("table", caption, el("thead", header), el("tbody", *rows), class_="heads")
    left_out = f"{len(heatmaps) - len(shown)} of {len(heatmaps)} attentions are left out to keep the page small."
    return join(
        (
            el("p", "Sentence: ", el("q", sentence)) if sentence else None,
            el("p", _describe_masks(shown)),
            el("p", left_out) if len(shown) < len(heatmaps) else None,
            _scale(),
            el("div", grid, class_="scroll", role="region", tabindex="0", aria_label="Attention maps by head"),
            _axes(shown, labels),
        )
    )


def _describe_masks(shown: Sequence[Heatmap]) -> str:
    """A sentence about how much the masks hide."""
    shares = [float(item.hidden_ST.mean()) for item in shown if item.hidden_ST is not None and item.hidden_ST.any()]
    if not shares:
        return "The masks hide no key from any query here."
    of = "each attention" if len(shares) == len(shown) else f"{len(shares)} of {len(shown)} attentions"
    least, most = (f"{100 * share:.0f} %" for share in (min(shares), max(shares)))
    return f"Masks hide {least if least == most else f'{least} to {most}'} of the pairs of {of}: in another colour."
