"""A page of the sample's values, and its text as a reader sees it."""

from __future__ import annotations

import html
import re
from typing import Any

import page_sample as sample

from attnport.reporting.html import page as whole
from attnport.reporting.report import document


def full(**changes: Any) -> str:
    """The sample's page with other values."""
    return whole(document(sample.findings(**changes)))


def words(page: str) -> str:
    """The page without its style and script, tags kept and what is escaped read."""
    body = re.sub(r"<(style|script)>.*?</\1>", "", page, flags=re.S)
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<wbr>|</?code>", "", body).replace("<", " <").replace(">", "> ")))


def text_of(page: str) -> str:
    """The text of a page, or a part of it, as a reader sees it."""
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", words(page)))
