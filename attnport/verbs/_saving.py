"""Files that a user asks for by an option such as `--save FILE`: tried before the work, written whole or not at all."""

from __future__ import annotations

from pathlib import Path

from attnport.errors import UsageError


def check_target(path: Path, option: str, example: str) -> None:
    """Checks before the work whether its result can be saved.

    Args:
        option: What named the file, such as `--save`.
        example: A name for the file, for the hint.

    Raises:
        UsageError: `path` is a folder, its folder is missing, or no file can be made there.
    """
    if path.is_dir():
        raise UsageError(f"{option} {path}: it is a folder.", hint=f"Name a file, for example {path / example}.")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"{option} {path}: there is no folder {path.parent}.", hint="Create it first.")
    staged = _staged(path)
    try:
        if _in_place(path):
            path.open("a").close()
        else:
            staged.touch()
            staged.unlink()
    except OSError as err:
        raise UsageError(
            f"{option} {path}: {err.strerror}.", hint="Name a file in a folder that you may write to."
        ) from err


def save(text: str, path: Path) -> None:
    """Writes a file, whole or not at all; a device such as `/dev/stdout` is written to. Raises OSError."""
    if _in_place(path):
        path.write_text(text, encoding="utf-8")
        return
    staged = _staged(path)
    try:
        staged.write_text(text, encoding="utf-8")
        staged.replace(path)
    finally:
        staged.unlink(missing_ok=True)


def _in_place(path: Path) -> bool:
    """Whether it is something that a new file must not replace."""
    return path.exists() and not path.is_file()


def _staged(path: Path) -> Path:
    return path.with_name(f".{path.name}.staged")
