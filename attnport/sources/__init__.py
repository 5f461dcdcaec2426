"""SPEC -> ModelSpec.

A SPEC is a built-in model's name, `package.module:factory`, `file.py:factory`, `hf:folder-or-hub-id` or `onnx:file`.
"""

from attnport.sources.load import load

__all__ = ["load"]
