"""SPEC -> ModelSpec.

A SPEC is a built-in model's name, `package.module:factory`, `file.py:factory`, `hf:folder-or-hub-id` or `onnx:file`.

What a user gives for a forward is in `structure` (a tree of arguments), which `parsing` reads and writes as text; what
runs of the module say of it is in `examples`, `moving` and `ranges`, and `declare` makes the ModelSpec.
"""

from attnport.sources.load import load

__all__ = ["load"]
