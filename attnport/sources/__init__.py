"""SPEC -> ModelSpec: a built-in model's name, `package.module:factory`, `file.py:factory` or `hf:folder-or-hub-id`."""

from attnport.sources.load import load

__all__ = ["load"]
