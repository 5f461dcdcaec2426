"""Values that print as the command line shows them, in Python and in a notebook."""

from __future__ import annotations

import html
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar


class Printed:
    """The result of a verb.

    Attributes:
        as_text: What the command line prints for a value. The package gives it: what makes the text is made of these
            values.
        about: The artifact folder that its commands are for; None if it is not known.
    """

    as_text: ClassVar[Callable[[Any], str]] = object.__repr__
    about: ClassVar[Path | None] = None

    def __repr__(self) -> str:  # what a prompt of Python shows of a value that is not kept
        return Printed.as_text(self)

    def _repr_html_(self) -> str:
        """The text with its lines as they are, for a notebook."""
        return f"<pre>{html.escape(str(self))}</pre>"
