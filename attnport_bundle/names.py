"""Names of files inside a bundle: plain on every file system, and none that another name may be taken for."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from .printable import is_printable
from .signature import SIGNATURE

MANIFEST = "bundle.json"
RESERVED = (MANIFEST, SIGNATURE)
"""Files that speak of all the others, and so are not among them."""

# Two names of other letters may be one file in ways that depend on the system and its release of Unicode.
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
    """A name of a file on disk, as a terminal may see it: escaped where it holds anything that is not printable."""
    return name if is_printable(name) else ascii(name)


def check_names(names: Iterable[str]) -> None:
    """Raises ValueError for a name that leaves the folder, or that some file system takes for another one."""
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
    """Raises ValueError for code beside the Python reader, and for a reader that Python could cache compiled code of.

    `python/` is where Python looks first when the reader is run: a `numpy.py` in it would run in NumPy's place.
    """
    for name in names:
        if name.lower().startswith(_PYTHON) and not name.startswith(_READER):
            raise ValueError(f"{name!r} is not of the reader, and {_PYTHON} holds nothing else")
    if _NO_BYTECODE not in names and any(name.startswith(_READER) for name in names):
        raise ValueError(f"{_NO_BYTECODE!r} is not among the files of the reader")
