"""Runs of the command line that have to be refused, and the folders that they have to leave alone."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner, Result

from attnport.cli import cli
from attnport.jsonfile import digest_file


def call(*arguments: object) -> Result:
    return CliRunner().invoke(cli, [str(argument) for argument in arguments])


def refused(result: Result, *told: str, code: int = 2) -> None:
    """A run that had to fail cleanly: its exit code, all of `told` on stderr, nothing on stdout, no traceback."""
    assert result.exit_code == code, result.output
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    assert "bug in attnport" not in result.stderr
    for part in told:
        assert part in result.stderr, result.stderr


def contents(folder: Path) -> dict[str, str]:
    """Digest by name of everything below a folder."""
    return {str(path.relative_to(folder)): digest_file(path) for path in sorted(folder.rglob("*")) if path.is_file()}
