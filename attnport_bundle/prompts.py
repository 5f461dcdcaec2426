"""What a model expects before a text, as sentence-transformers keeps it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from .arguments import shown
from .decode import STRICT, AnyText
from .errors import FeedError

USUAL = ("query", "document")
"""Names that every model takes, as in sentence-transformers: where it has no such prompt, nothing is put before."""


@dataclass(frozen=True)
class Prompts:
    """What a model expects before a text, by the text's use, as `query: ` before a question.

    Attributes:
        named: The prompts by name, as `query` and `document`.
        default: The name of the one before every text for which no other was chosen; "" = none.
    """

    named: Mapping[str, AnyText] = field(default_factory=dict)
    default: str = ""

    __pydantic_config__ = STRICT

    def __post_init__(self) -> None:
        if self.default and self.default not in self.named:
            raise ValueError(f"got default {self.default!r}; expected one of {', '.join(self.named) or 'no name'}")

    @property
    def usual(self) -> str:
        """The prompt before a text of no named use, or ""."""
        return self.named.get(AnyText(self.default), AnyText(""))

    def chosen(self, name: str | None) -> str:
        """The prompt of a name: None = the default one, "" = none.

        Raises:
            FeedError: there is no such prompt.
        """
        if name is None:
            return self.usual
        if not isinstance(name, str):
            raise FeedError(f'prompt: got {shown(name)}; expected the name of a prompt, None or "".')
        if name in self.named:
            return self.named[name]
        if name == "" or name in USUAL:
            return ""
        known = ", ".join(map(repr, {**self.named, **dict.fromkeys(USUAL)}))
        raise FeedError(
            f"prompt: got {name!r:.60}; expected the name of one: {known}. Put a prompt of your own before the texts."
        )
