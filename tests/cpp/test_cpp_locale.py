"""The C++ reader in an application that took the locale of its user, where numbers have another decimal point."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from cpp_builds import Build, tool

SOURCE = 'LC_NUMERIC\ndecimal_point "<U{:04X}>"\nthousands_sep "<U002E>"\ngrouping 3\nEND LC_NUMERIC\n'


def locale(point: str, folder: Path) -> dict[str, str]:
    """The environment of a locale with this decimal point, which is made here: few machines have one installed."""
    (folder / "source").write_text(SOURCE.format(ord(point)))
    charmap = [] if point.isascii() else ["-f", "UTF-8"]
    command = [tool("localedef"), "-c", "--no-archive", *charmap, "-i", str(folder / "source"), str(folder / "made")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # it warns of what the locale lacks
    if not (folder / "made" / "LC_NUMERIC").is_file():
        pytest.skip(f"localedef makes no locale here: {done.stderr}")
    return {"LOCPATH": str(folder), "LC_ALL": "made"}


@pytest.mark.parametrize("point", [",", "\N{ARABIC DECIMAL SEPARATOR}"])
def test_a_bundle_is_read_and_reported_as_in_every_locale(
    cpp_build: Build, app: Path, tmp_path: Path, point: str
) -> None:
    plain = cpp_build.run("localised", app, env={"LC_ALL": "C"})
    assert plain.returncode == 0, plain.stdout + plain.stderr
    assert " MB, as they were bundled" in plain.stdout
    _, *rows, _ = plain.stdout.splitlines()
    (tmp_path / "locale").mkdir()
    done = cpp_build.run("localised", app, env=locale(point, tmp_path / "locale"))
    assert (done.returncode, done.stdout.splitlines()) == (0, [point, *rows, point])
