"""What `generate` prints."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from attnport.reporting import document as doc

if TYPE_CHECKING:
    from attnport.verbs.generate import Generated


def show_generated(result: Generated) -> Iterator[doc.Block]:
    """Each prompt with its text, and how fast that was."""
    for prompt, text in zip(result.prompts or [""] * len(result.texts), result.texts, strict=True):
        yield doc.Text(text if result.answers else f"{prompt}{text}")
    steps = max(result.tokens - len(result.texts), 0)
    rest = result.seconds - result.first_s
    each = f", then {1000 * rest * len(result.texts) / steps:.1f} ms a step" if steps and rest > 0 else ""
    yield doc.Text(f"{result.tokens} tokens in {result.runtime}: the first after {1000 * result.first_s:.0f} ms{each}")
