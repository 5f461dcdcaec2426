"""attnport ports PyTorch attention and transformer modules to ONNX Runtime, OpenVINO and TensorRT, with proof.

The verbs of the command line are functions here, on the same values: `attnport.export("bert_encoder", Path("out"))`.
Each is imported on first use; `import attnport` imports nothing heavy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attnport.version import __version__ as __version__

if TYPE_CHECKING:
    from attnport.verbs.audit import audit
    from attnport.verbs.bench import bench
    from attnport.verbs.build import build
    from attnport.verbs.bundle import bundle
    from attnport.verbs.check import check
    from attnport.verbs.doctor import doctor
    from attnport.verbs.export import export
    from attnport.verbs.fuse import fuse
    from attnport.verbs.gpu_check import gpu_check
    from attnport.verbs.inspect import inspect
    from attnport.verbs.report import report
    from attnport.verbs.ship import ship
    from attnport.verbs.verify import verify

__all__ = [
    "audit",
    "bench",
    "build",
    "bundle",
    "check",
    "doctor",
    "export",
    "fuse",
    "gpu_check",
    "inspect",
    "report",
    "ship",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'attnport' has no attribute {name!r}")
    import importlib

    verb = getattr(importlib.import_module(f"attnport.verbs.{name}"), name)
    globals()[name] = verb
    return verb


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
