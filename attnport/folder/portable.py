"""Reasons that are kept in reports, without the paths of the machine that they come from."""

from __future__ import annotations

import contextlib
import re
import shlex
import sysconfig
import tempfile
from pathlib import Path

from attnport.module_path import ROOT


def portable(text: str, folder: Path) -> str:
    """A text with paths in `folder` told from there, and those of Python, attnport, HOME and TMPDIR likewise.

    Only these places are cut off: what else begins with a slash may well be the name of a node.
    """
    own = {folder.absolute(), folder.resolve()}
    places = {folder, *own, Path(ROOT), Path(tempfile.gettempdir())}
    places |= {Path(path) for path in sysconfig.get_paths().values()}
    with contextlib.suppress(RuntimeError):  # a user without a home
        places.add(Path.home())
    for place in map(str, own):  # the folder itself, as in a command
        text = re.sub(rf"(?<![\w./-]){re.escape(place)}(?![\w/-])", "FOLDER", text)
    for place in sorted((str(place) for place in places if place.name), key=len, reverse=True):
        text = re.sub(rf"(?<![\w./-]){re.escape(place)}/", "", text)
    return text


def as_command(text: str, folder: Path) -> str:
    """A text with commands for FOLDER as they can be given for `folder`: to a shell or, in brackets, to Python."""
    text = text.replace("(FOLDER)", f"({str(folder)!r})")
    return re.sub(r"(?<![\w:/.-])FOLDER(?![\w/-]|\.\w)", lambda found: shlex.quote(str(folder)), text)
