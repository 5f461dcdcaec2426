"""A folder for transformers.js: that of layout `hub`, with a file of ONNX for each `dtype` that it asks for.

Each file has passed its golden cases in onnxruntime-web itself, where that is here, and `check` judged its form before.

Source: transformers.js, `utils/dtypes.js`: the file's name by dtype.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from attnport.bundling.layouts._opened import Run, running
from attnport.bundling.layouts.base import Packed
from attnport.bundling.layouts.hub import Hub
from attnport.errors import UsageError

PACKAGE = "onnxruntime-web"
FILES = {"fp32": "onnx/model.onnx", "int8": "onnx/model_quantized.onnx", "int4": "onnx/model_q4.onnx"}
"""By precision of the form; transformers.js calls them fp32, q8 and q4."""


class Web(Hub):
    """The source's folder, with a form in each precision."""

    name = "web"
    runtimes = ("onnxruntime",)

    def file(self, packed: Packed, name: str) -> str:
        """As of layout `hub`, by the form's precision."""
        super().file(packed, name)
        plan = packed.manifest.forms[name].plan
        if plan not in FILES:
            raise UsageError(
                f"form {name} is in {plan}; layout web has files in {', '.join(FILES)}.",
                hint="Name another one with --form.",
            )
        return FILES[plan]

    def write_onnx(self, packed: Packed, name: str, path: Path) -> None:
        """As of layout `hub`; then the file is run in the browser."""
        super().write_onnx(packed, name, path)
        beside = {file.name: file for file in path.parent.glob(f"{path.name}_data")}
        with contextlib.ExitStack() as stack:

            def opened() -> Run:
                return running(packed.manifest, name, stack.enter_context(packed.in_browser(path, beside)), PACKAGE)

            packed.proved(name, PACKAGE, opened)


LAYOUT = Web()
