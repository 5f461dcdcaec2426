"""attnport ports PyTorch attention and transformer modules to ONNX Runtime, OpenVINO and TensorRT, with proof.

`attnport.export(model, "out")` and `attnport.open("out")` return an `Artifact`, which has the verbs of the command line
as methods. The verbs are functions here too: `attnport.fuse("out")` does the same. Each is imported on first use;
`import attnport` imports nothing heavy. On a terminal and in a notebook, a line says what a verb does and how far it
is; `attnport.quiet = True` turns it off, as `progress=None` does for one call.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attnport.printed import Printed
from attnport.version import __version__ as __version__

if TYPE_CHECKING:
    from attnport.artifact import Artifact, export, open  # noqa: A004  # attnport.open, as in `PIL.Image.open`
    from attnport.verbs.audit import audit
    from attnport.verbs.bench import bench
    from attnport.verbs.build import build
    from attnport.verbs.bundle import bundle
    from attnport.verbs.check import check
    from attnport.verbs.doctor import doctor
    from attnport.verbs.fuse import fuse
    from attnport.verbs.generate import generate
    from attnport.verbs.gpu_check import gpu_check
    from attnport.verbs.inspect import inspect
    from attnport.verbs.report import report
    from attnport.verbs.serve import serve
    from attnport.verbs.ship import ship
    from attnport.verbs.tune import tune
    from attnport.verbs.verify import verify

quiet = False
_DOOR = ("Artifact", "export", "open")
"""Found in `artifact`, whose `export` returns an Artifact; all others are found in `verbs`."""
__all__ = [
    "Artifact", "audit", "bench", "build", "bundle", "check", "doctor", "export", "fuse", "generate",
    "gpu_check", "inspect", "open", "report", "serve", "ship", "tune", "verify",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'attnport' has no attribute {name!r}")
    import importlib

    from attnport.verbs import _arguments

    _arguments.showing = _line
    found = getattr(importlib.import_module("attnport.artifact" if name in _DOOR else f"attnport.verbs.{name}"), name)
    globals()[name] = found
    return found


def _as_text(value: Any) -> str:
    from attnport.console.arguments import about
    from attnport.console.terminal import shown

    with about({"folder": value.about}):
        return shown(value).rstrip("\n")


def _line() -> Any:
    from attnport.console.progress import line

    return line()


Printed.as_text = _as_text


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
