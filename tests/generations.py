"""A folder in generations: every file of generation n says n, so that a mixture is seen at once."""

from __future__ import annotations

import os
from pathlib import Path

from killing import in_child

from attnport.transaction import OWN, transaction

LAST = "manifest"
FILES = (LAST, "weights.bin", "engines/a/deep.engine")


def write(folder: Path, generation: int, size: int = 2000) -> None:
    """Generation n: every file says n; odd generations have `odd/only`, even ones `even`."""
    with transaction(folder, LAST) as staged:
        for name in (*FILES, "odd/only" if generation % 2 else "even"):
            staged.path(name).write_text(f"{generation:04d}" * size)
        staged.remove("even" if generation % 2 else "odd/only")


def stage(folder: Path, *names: str, error: BaseException | None = None) -> None:
    """Stages small files, then commits, or raises `error`."""
    with transaction(folder, LAST) as staged:
        for name in names:
            staged.path(name).write_text("staged")
        if error:
            raise error


def files(folder: Path) -> set[str]:
    found = set()
    for parent, _, names in os.walk(folder):  # which passes by a folder that a writer removes meanwhile
        found |= {(Path(parent) / name).relative_to(folder).as_posix() for name in names}
    return found - set(OWN)


def generation(folder: Path) -> int:
    """The one generation that the folder holds; 0 = nothing. Fails on a mixture."""
    found = files(folder)
    if not found:
        return 0
    texts = {(folder / name).read_text() for name in found}
    numbers = {text[:4] for text in texts}
    assert len(texts) == 1, f"a mixture of {sorted(numbers)}, or a file that is cut short"
    number = int(numbers.pop())
    assert found == {*FILES, "odd/only" if number % 2 else "even"}
    return number


def tidy(folder: Path) -> bool:
    return not any((folder / name).exists() for name in OWN)


def interrupted(folder: Path, generation: int = 2) -> None:
    """Leaves the folder as a writer does that was killed right before it renamed the manifest."""

    def stop() -> None:
        replace = Path.replace

        def guarded(self: Path, target: Path) -> Path:
            if Path(target) == folder / LAST:
                os._exit(9)
            return replace(self, target)

        Path.replace = guarded  # type: ignore[assignment,method-assign]
        write(folder, generation)

    assert in_child(stop) == 9
