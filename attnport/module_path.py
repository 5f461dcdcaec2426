"""What a Python process of ours imports from: never the current folder, which may have come from elsewhere.

A `numpy.py` in a folder that was downloaded would be run by `cd there; attnport bench .` if the current folder were on
the module path, or if `PYTHONPATH` had an entry that is empty or relative, which Python takes from the current folder.
Absolute entries are the user's own choice and stay.
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

ROOT = str(Path(__file__).parent.parent.absolute())
"""The folder that `attnport` is imported from. Where it is the current folder, it stays: its code is being run."""


def child_command(*arguments: str) -> list[str]:
    """The command line of a Python process, such as `child_command("-m", "attnport.processes.worker")`."""
    return [sys.executable, "-P", *arguments]


def child_environment() -> dict[str, str]:
    """This process's environment for a Python process that is to find the same attnport.

    What that process starts in turn is kept from the current folder as well: inductor runs `python -c` without `-P`.
    """
    absolute, _ = _entries()
    return {**os.environ, "PYTHONSAFEPATH": "1", "PYTHONPATH": os.pathsep.join([ROOT, *absolute])}


def leave_current_folder() -> None:
    """Takes the current folder, and what `PYTHONPATH` names by a relative path, off this process's module path.

    For the command line, whose process is ours: an application's module path is its own affair. What was imported
    before this call is not undone; Python itself imports some modules before any program begins.
    """
    absolute, relative = _entries()
    # A current folder that was deleted has nothing to import, and no path.
    with contextlib.suppress(FileNotFoundError):
        here = str(Path.cwd())
        kept = {ROOT, *map(os.path.normpath, absolute)}
        # What `python -m` puts first; the same folder further back was put there by something else.
        if not sys.flags.safe_path and sys.path[:1] == [here] and here not in kept:
            del sys.path[0]
        # Python made relative entries absolute when it started.
        left = {os.path.normpath(Path(here, entry)) for entry in relative} - kept
        # An editable install puts a name on the path that is no folder; one that is called so may lie here.
        sys.path[:] = [
            entry for entry in sys.path if entry not in left and (Path(entry).is_absolute() or not Path(entry).exists())
        ]


def _entries() -> tuple[list[str], list[str]]:
    """The absolute entries of `PYTHONPATH`, and the others."""
    given = os.environ.get("PYTHONPATH", "")
    entries = given.split(os.pathsep) if given else []
    absolute = [entry for entry in entries if Path(entry).is_absolute()]
    return absolute, [entry for entry in entries if not Path(entry).is_absolute()]
