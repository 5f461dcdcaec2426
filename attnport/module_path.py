"""Keeps the current folder off the module path of our Python processes, as it may have come from elsewhere.

If the current folder were on the module path, `cd FOLDER; attnport bench .` would run a `numpy.py` in a downloaded
folder. The same is true for empty or relative entries of `PYTHONPATH`, which Python resolves in the current folder.
Absolute entries are the user's own choice and are kept.
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

ROOT = str(Path(__file__).parent.parent.absolute())
"""The folder from which `attnport` is imported. It stays even if it is the current folder, as its code runs anyway."""


def child_command(*arguments: str) -> list[str]:
    """The command line of a Python process, such as `child_command("-m", "attnport.processes.worker")`."""
    return [sys.executable, "-P", *arguments]


def child_environment() -> dict[str, str]:
    """The environment for a Python process that should import the same attnport.

    It also protects processes that this process starts: inductor runs `python -c` without `-P`.
    """
    absolute, _ = _entries()
    return {**os.environ, "PYTHONSAFEPATH": "1", "PYTHONPATH": os.pathsep.join([ROOT, *absolute])}


def leave_current_folder() -> None:
    """Removes the current folder and relative entries of `PYTHONPATH` from this process's module path.

    Only the command line calls this; an application decides about its own module path. Modules imported before this
    call stay; Python itself imports some before any program starts.
    """
    absolute, relative = _entries()
    # A current folder that was deleted has no path, and nothing to import.
    with contextlib.suppress(FileNotFoundError):
        here = str(Path.cwd())
        kept = {ROOT, *map(os.path.normpath, absolute)}
        # `python -m` puts the current folder first; at another place, something else has put it there.
        if not sys.flags.safe_path and sys.path[:1] == [here] and here not in kept:
            del sys.path[0]
        # Python made relative entries absolute when it started.
        left = {os.path.normpath(Path(here, entry)) for entry in relative} - kept
        # An editable install puts a name on the path that is not a folder, but may be one in the current folder.
        sys.path[:] = [
            entry for entry in sys.path if entry not in left and (Path(entry).is_absolute() or not Path(entry).exists())
        ]


def _entries() -> tuple[list[str], list[str]]:
    """The absolute entries of `PYTHONPATH`, and the others."""
    value = os.environ.get("PYTHONPATH", "")
    entries = value.split(os.pathsep) if value else []
    absolute = [entry for entry in entries if Path(entry).is_absolute()]
    return absolute, [entry for entry in entries if not Path(entry).is_absolute()]
