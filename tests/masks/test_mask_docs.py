"""What docs/masks.md shows works as it stands."""

from __future__ import annotations

import re
from pathlib import Path

import torch

from attnport.masks import CARRIES, KINDS
from attnport.sources.parsing import parse_input

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "masks.md").read_text()


def test_the_example_attends_with_a_cache_and_lengths() -> None:
    code = re.search(r"```python\n(.*?)```", TEXT, re.DOTALL)
    assert code is not None
    names: dict[str, object] = {}
    exec(code[1], names)
    torch.manual_seed(0)
    q, k = torch.randn(2, 3, 4, 8), torch.randn(2, 3, 6, 8)
    out = names["attend"](q, k, k, torch.tensor([6, 3]))  # type: ignore[operator]
    keep = torch.ones(4, 6, dtype=torch.bool).tril(2)
    expected = torch.nn.functional.scaled_dot_product_attention(q[0], k[0], k[0], attn_mask=keep)
    torch.testing.assert_close(out[0], expected)
    # The second item has three keys, and every query stands at the third or later.
    expected = torch.nn.functional.scaled_dot_product_attention(q[1], k[1, :, :3], k[1, :, :3])
    torch.testing.assert_close(out[1], expected)


def test_every_declaration_shown_is_read() -> None:
    declared = [parse_input(text).mask for text in re.findall(r'--input "([^"]+)"', TEXT)]
    assert len(declared) == 7
    assert all(declared)


def test_every_kind_and_content_has_its_row_and_the_table_its_place() -> None:
    rows = re.findall(r"^\| `(\w+)`", TEXT, re.MULTILINE)
    assert set(KINDS) | set(CARRIES) <= set(rows)
    assert TEXT.index("<!-- table -->") < TEXT.index("<!-- /table -->")


def test_the_format_of_bundles_names_every_kind_and_content() -> None:
    text = (ROOT / "attnport" / "bundling" / "FORMAT.md").read_text()
    row = next(line for line in text.splitlines() if line.startswith("| `io.masks` |"))
    assert re.search(r"`kinds` \(([a-z, ]+);", row)[1].split(", ") == list(KINDS)  # type: ignore[index]
    assert all(f"`{content}`" in text for content in CARRIES)
