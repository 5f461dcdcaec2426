"""The page on where it runs names each file that asks the system for something that not every system has."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from scripts import ROOT

PAGE = ROOT / "docs" / "portability.md"
OF_A_SYSTEM = re.compile(
    r"\bfcntl\b|/proc/|/sys/(?:devices|fs)|signal\.SIGHUP|killpg|sigaltstack|malloc_trim|ld\.so\.cache|renameat2|prctl"
    r"|setitimer|getuid|O_NOFOLLOW|RTLD_GLOBAL|nvcuda"
)
POSIX = {"fcntl", "grp", "posix", "pty", "pwd", "resource", "termios"}


def asking(folder: Path) -> set[str]:
    """The files below a folder that ask for such a thing, named from its parent."""
    found = (path for path in folder.rglob("*.py") if OF_A_SYSTEM.search(path.read_text("utf-8")))
    return {path.relative_to(folder.parent).as_posix() for path in found}


def imported(code: str) -> set[str]:
    """The top-level modules that a piece of Python imports anywhere."""
    names = set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.split(".")[0])
    return names


def test_the_page_names_each_file_that_depends_on_the_system() -> None:
    named = set(re.findall(r"^\| `([\w/.]+\.py)` ", PAGE.read_text("utf-8"), re.MULTILINE))
    assert named == asking(ROOT / "attnport") | asking(ROOT / "attnport_bundle")


def test_the_reader_imports_no_module_of_one_system_alone() -> None:
    used = {name for path in (ROOT / "attnport_bundle").rglob("*.py") for name in imported(path.read_text("utf-8"))}
    assert used & POSIX == set()
    assert "ctypes" in used


def test_a_file_that_asks_the_system_is_found(tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "one.py").write_text("import fcntl\n")
    (tmp_path / "package" / "other.py").write_text("import json\n")
    assert asking(tmp_path / "package") == {"package/one.py"}
    assert imported("def f():\n    from fcntl import flock\n    import a.b\n") == {"fcntl", "a"}
