"""`file.py:factory`: a factory in a file of the user's."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path

from attnport.artifacts import ModelSpec
from attnport.errors import SpecError
from attnport.sources.declare import plain_spec
from attnport.sources.package import SPEC_FORMS, attribute


def load_file(path: Path, factory: str, inputs: Sequence[str], dims: Sequence[str]) -> ModelSpec:
    """Loads `factory` from the Python file `path`.

    Raises:
        SpecError: there is no such file or factory.
    """
    if not path.is_file():
        raise SpecError(f"{path} is not a file.", hint=SPEC_FORMS)
    name = f"attnport_source_{path.stem}"
    loader = importlib.util.spec_from_file_location(name, path)
    if loader is None or loader.loader is None:
        raise SpecError(f"{path} is not a Python file.")
    module = importlib.util.module_from_spec(loader)
    sys.modules[name] = module  # so that the classes in it find their own source
    loader.loader.exec_module(module)
    text = f"{path}:{factory}"
    return plain_spec(text, attribute(module, factory, text), inputs, dims)
