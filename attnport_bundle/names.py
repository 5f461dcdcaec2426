"""Checks the names of files in a bundle: each must be plain, and a different file, on every file system."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from .printable import is_printable
from .signature import SIGNATURE

MANIFEST = "bundle.json"
RESERVED = (MANIFEST, SIGNATURE)
"""Files that describe all the others, and so are not listed among them."""

# ASCII only: which other letters name the same file depends on the system and its release of Unicode.
_LETTERS = frozenset(map(chr, range(0x20, 0x7F))) - set('\\/:*?"<>|')
_DIGITS = "0123456789"
_DEVICES = {
    *("con", "prn", "aux", "nul", "conin$", "conout$"),
    *(f"{port}{digit}" for port in ("com", "lpt") for digit in _DIGITS),
}
"""Windows opens a device for these, in any case and with any ending: `nul.txt` is no file there."""
_PYTHON = "python/"
_READER = "python/attnport_bundle/"
_NO_BYTECODE = f"{_READER}__pycache__"


def shown(name: str) -> str:
    """The name of a file on disk for a message; escaped if it holds anything that is not printable."""
    return name if is_printable(name) else ascii(name)


def check_names(names: Iterable[str]) -> None:
    """Raises ValueError for a name that leaves the folder, or that may be the same file as another name."""
    seen: dict[str, str] = {name: name for name in RESERVED}
    for name in names:
        for part in name.split("/"):
            plain = part not in ("", ".", "..") and set(part) <= _LETTERS
            if not plain or part[-1] in " ." or len(part) > 255:
                raise ValueError(f"{name!r} is not a plain path inside the folder")
            if part.partition(".")[0].rstrip(" ").lower() in _DEVICES:
                raise ValueError(f"{name!r} is not a plain path: Windows has a device of that name")
        key = name.lower()
        if key in seen:
            raise ValueError(f"{name!r} and {seen[key]!r} may be one file")
        seen[key] = name


def check_reader(names: Collection[str]) -> None:
    """Raises ValueError for code beside the Python reader, and if Python could cache compiled code of the reader.

    Python searches `python/` first when the reader is run: a `numpy.py` there would replace NumPy. The file that takes
    the place of the folder for compiled code keeps Python from loading code that is not in the manifest.
    """
    for name in names:
        if name.lower().startswith(_PYTHON) and not name.startswith(_READER):
            raise ValueError(f"{name!r} is not of the reader, and {_PYTHON} holds nothing else")
    if _NO_BYTECODE not in names and any(name.startswith(_READER) for name in names):
        raise ValueError(f"{_NO_BYTECODE!r} is not among the files of the reader")
