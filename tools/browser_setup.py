"""Installs Chromium, in which the tests of the report's page run, on a Debian machine where we are root.

It does nothing if a browser is installed. On any other machine it says what to install; the tests are then skipped.

    python tools/browser_setup.py
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

NAMES = ("chromium", "chromium-browser", "google-chrome")
PACKAGE = "chromium"


def setup() -> str:
    """Installs a browser if there is none. Returns the problem, or "" if there is a browser now."""
    if any(shutil.which(name) for name in NAMES):
        return ""
    if shutil.which("apt-get") is None or os.geteuid() != 0:
        return f"Chromium is not here, and only root of a Debian machine can install it: apt-get install {PACKAGE}"
    print(f"Installing {PACKAGE}; this takes a minute or more.")
    install = ["apt-get", "install", "--yes", "--quiet", "--no-install-recommends", PACKAGE]
    for command in (["apt-get", "update", "--quiet"], install):
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        done = subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        if done.returncode:
            return f"{' '.join(command)} failed: {done.stderr.strip()[-500:]}"
    return "" if shutil.which(PACKAGE) else f"{PACKAGE} was installed and is not on the path."


def main() -> None:
    """Exits with 1 and a message if there is no browser."""
    problem = setup()
    if problem:
        sys.exit(f"error: {problem}")


if __name__ == "__main__":
    main()
