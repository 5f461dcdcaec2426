"""What tests of bundles do alike: the files of a folder, Python in one, the program of a page, a session of a graph."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import onnx
import onnx.parser
import onnxruntime

from attnport_bundle.runtimes.onnxruntime import OnnxRuntimeSession


def tree(folder: Path) -> dict[str, bytes]:
    """The bytes of every file below a folder, by its name there."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def python(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs Python in a folder."""
    return subprocess.run([sys.executable, *arguments], cwd=folder, capture_output=True, text=True, check=False)


def program(page: str, behind: str = "") -> str:
    """The first Python, fenced or indented, that a page shows from the words `behind` on."""
    text = page[page.index(behind) :]
    fenced = re.search(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    indented = re.search(r"^    import sys\n(?:    .*\n|\n)*", text, re.MULTILINE)
    found = fenced or indented
    assert found, f"there is no program behind {behind!r}"
    return found[1] if fenced else re.sub(r"^    ", "", found[0], flags=re.MULTILINE)


def session(folder: Path, text: str) -> OnnxRuntimeSession:
    """A session of the bundle's reader for a graph in ONNX's text form."""

    class Form:
        provider = "CPUExecutionProvider"

    onnx.save(onnx.parser.parse_model(text), folder / "model.onnx")
    return OnnxRuntimeSession(onnxruntime, folder / "model.onnx", Form, 1)  # all that it reads
