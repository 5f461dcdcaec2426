"""Finds the code that a SPEC names, without importing any of it."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

from attnport.artifacts import Source
from attnport.jsonfile import digest_file, digest_text
from attnport.sources.file import is_file_name
from attnport.sources.program import place_of

REMOTE = "the Python code that config.json names"


@dataclass(frozen=True)
class Code:
    """The code that is run to load a source.

    Attributes:
        place: The absolute path of the factory's file or of the `hf:` folder, as the SPEC reaches it from here. Links
            are not followed, since code also reads the files beside it. For a package without such a file, its dotted
            name; for a hub id, the id.
        digest: SHA-256 of the whole file, since importing it runs more of it than the factory needs, or of the folder's
            code; "" if there is none.
        factory: The name in it that is called.
    """

    place: str
    digest: str
    factory: str


def runs_code(source: Source) -> bool:
    """Whether loading a source runs code that the source names.

    A built-in model (a name without a colon) runs only attnport's code. `hf:` loads a configuration and tensors into
    transformers' own classes, `onnx:` a graph and tensors; code in the folder is run only with `trust_remote_code`. A
    module in memory may be stored as a program. Everything else names a factory.
    """
    if source.in_memory:
        return place_of(source) is not None
    return ":" in source.text and (source.trust_remote_code or not source.text.startswith(("hf:", "onnx:")))


def code_of(source: Source) -> Code | None:
    """The code that loading a source would run, if `runs_code` is true; None if there is no such file or package.

    Nothing is imported, not even the packages around a module, since importing them would run their files.
    """
    if source.in_memory:
        program = place_of(source)
        return _code(str(program.absolute()), "forward") if program is not None and program.is_file() else None
    if source.text.startswith("hf:"):
        return _of_hf(source.text.removeprefix("hf:"))
    place, _, factory = source.text.rpartition(":")
    if is_file_name(place):
        path = Path(place)
        return _code(str(path.absolute()), factory) if path.is_file() else None
    if not all(part.isidentifier() for part in place.split(".")):
        return None  # loading refuses this name
    top = place.partition(".")[0]
    if top not in sys.modules and _find(top, None) is None:
        return None
    return _code(file_of_module(place) or place, factory)


def _of_hf(place: str) -> Code:
    """The code of a folder. Code in another repository is not known, and for a hub id only the id is."""
    folder = Path(place)
    if not folder.is_dir():
        return Code(place, "", REMOTE)
    read = sorted(path for path in folder.iterdir() if path.suffix == ".py" or path.name == "config.json")
    digest = digest_text(*(f"{path.name} {digest_file(path)}" for path in read if path.is_file()))
    return Code(str(folder.absolute()), digest, REMOTE)


def _code(place: str, factory: str) -> Code:
    try:
        path = Path(place)
        return Code(place, digest_file(path) if path.is_file() else "", factory)
    except OSError:
        return Code(place, "", factory)


def file_of_module(module: str) -> str | None:
    """The file that importing a module by its dotted name would run."""
    if (loaded := sys.modules.get(module)) is not None:
        return getattr(loaded, "__file__", None)
    parts = module.split(".")
    spec, path = None, None
    for count in range(1, len(parts) + 1):
        spec = _find(".".join(parts[:count]), path)
        path = list(spec.submodule_search_locations or ()) if spec is not None else []
        if spec is None or (count < len(parts) and not path):
            return None
    return spec.origin if spec is not None and spec.has_location else None


def _find(module: str, path: list[str] | None) -> ModuleSpec | None:
    """As `importlib.util.find_spec`, without importing the packages around `module`; `path` is where to look.

    If no finder knows a top-level module, it may be in the current folder, as in `package`.
    """
    for finder in sys.meta_path:
        find = getattr(finder, "find_spec", None)
        spec: ModuleSpec | None = find(module, path) if find is not None else None
        if spec is not None:
            return spec
    return PathFinder.find_spec(module, [str(Path.cwd())]) if path is None else None
