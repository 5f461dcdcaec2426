"""SPEC -> ModelSpec: a model of ours by name, `package.module:factory`, `file.py:factory`, `hf:folder-or-hub-id`."""

from attnport.sources.load import load

__all__ = ["load"]
