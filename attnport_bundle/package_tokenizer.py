"""Tokenizers of every kind that Hugging Face's package `tokenizers` reads: byte pairs, Unigram, WordPiece, ..."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .errors import BundleError
from .printable import escaped
from .wordpiece import PAD_TOKENS, Tokens, too_few_positions

_AT_ONCE = 64
"""Texts that are given to the package together. What it makes of one takes a hundred bytes a token."""


def installed() -> bool:
    """Whether the package can be imported."""
    try:
        import tokenizers  # noqa: F401 - only whether it is here
    except ImportError:
        return False
    return True


def open_file(path: Path) -> Any:
    """The package's tokenizer of a file.

    Raises:
        BundleError: the package is not installed, or does not read the file.
    """
    try:
        from tokenizers import Tokenizer
    except ImportError as err:
        raise BundleError(f"{path} needs the package tokenizers: pip install tokenizers.") from err
    with told(path, "is no tokenizer that the package tokenizers reads"):
        return Tokenizer.from_file(str(path))


class PackageTokenizer:
    """The tokenizer of one `tokenizer.json`, read by the package.

    Attributes:
        pad_id: The id of padding.
        left: Whether padding stands before a text.
        special: The ids of special tokens.
    """

    def __init__(self, path: Path, longest: int) -> None:
        """Reads the file.

        Args:
            longest: The most tokens of a text, those around it included.

        Raises:
            BundleError: as `open_file`; or the tokens around a text are more than `longest`.
        """
        self._path = path
        self._made = open_file(path)
        padding, truncation = self._made.padding or {}, self._made.truncation or {}
        known = [self._made.token_to_id(token) for token in PAD_TOKENS]
        self.pad_id = int(padding.get("pad_id", next((token for token in known if token is not None), 0)))
        self.left = padding.get("direction") == "left"
        added = self._made.get_added_tokens_decoder()
        self.special = frozenset(index for index, token in added.items() if token.special)
        around = self._made.num_special_tokens_to_add(is_pair=False)
        if around > longest:
            raise too_few_positions(longest, around)
        self._made.no_padding()
        self._made.enable_truncation(longest, direction=truncation.get("direction", "right"))

    def encode_batch(self, texts: Sequence[str]) -> list[Tokens]:
        """The ids of each text with the tokens around it, which stay if the text is cut.

        Raises:
            BundleError: the rules of the file cannot be applied to these texts.
        """
        rows: list[Tokens] = []
        for begin in range(0, len(texts), _AT_ONCE):
            with told(self._path, "cannot be applied to these texts"):
                found = self._made.encode_batch(list(texts[begin : begin + _AT_ONCE]))
            rows += [Tokens(tuple(row.ids), tuple(row.type_ids)) for row in found]
        return rows


@contextmanager
def told(path: Path, what: str) -> Iterator[None]:
    """Names the file in what the package raises in the block.

    Raises:
        BundleError: the package raised, because of the rules in the file.
    """
    try:
        yield
    except (KeyboardInterrupt, SystemExit, BundleError):
        raise
    # The package raises Exception for a malformed file. If it cannot apply a rule, such as a regular expression that
    # takes too many steps, it raises a panic, which does not derive from Exception.
    except BaseException as err:
        raise BundleError(f"{path} {what}: {escaped(str(err)).rstrip('.')}.") from err
