"""Which code a SPEC names, found out without importing any of it."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

from attnport.artifacts import Source
from attnport.jsonfile import digest_file, digest_text
from attnport.sources.file import is_file_name

REMOTE = "the Python code that config.json names"


@dataclass(frozen=True)
class Code:
    """What is run to load a source.

    Attributes:
        place: The absolute path of the file that has the factory, or of the `hf:` folder, as the SPEC reaches it from
            here: links are not followed, since a file also sees what lies beside it. Of a package without such a file,
            its dotted name; of a hub id, the id.
        digest: SHA-256 of the file, or of the folder's code; "" where there is none.
        factory: The name in it that is called.
    """

    place: str
    digest: str
    factory: str


def runs_code(source: Source) -> bool:
    """Whether loading a source runs code that the source names.

    A model of ours (a name without a colon) runs our code alone. `hf:` reads a configuration and tensors of a folder
    into transformers' own classes; code that lies in the folder is run with `trust_remote_code` alone. Everything else
    names a factory.
    """
    return ":" in source.text and (source.trust_remote_code or not source.text.startswith("hf:"))


def code_of(source: Source) -> Code | None:
    """What would be run to load a source that `runs_code`; None where there is neither such a file nor such a package.

    Nothing is imported, not even the packages that a module lies in, whose own files would be run by that.
    """
    if source.text.startswith("hf:"):
        return _of_hf(source.text.removeprefix("hf:"))
    place, _, factory = source.text.rpartition(":")
    if is_file_name(place):
        path = Path(place)
        return _code(str(path.absolute()), factory) if path.is_file() else None
    if not all(part.isidentifier() for part in place.split(".")):
        return None  # no package's name, as loading says
    top = place.partition(".")[0]
    if top not in sys.modules and _find(top, None) is None:
        return None
    return _code(_file_of(place) or place, factory)


def _of_hf(place: str) -> Code:
    """The code of a folder; of a hub id, or where a config names another repository, only what names it is known."""
    folder = Path(place)
    if not folder.is_dir():
        return Code(place, "", REMOTE)
    read = sorted(path for path in folder.iterdir() if path.suffix == ".py" or path.name == "config.json")
    digest = digest_text(*(f"{path.name} {digest_file(path)}" for path in read if path.is_file()))
    return Code(str(folder.absolute()), digest, REMOTE)


def _code(place: str, factory: str) -> Code:
    try:
        return Code(place, digest_file(Path(place)) if Path(place).is_file() else "", factory)
    except OSError:  # it cannot be read
        return Code(place, "", factory)


def _file_of(module: str) -> str | None:
    """The file that importing a module by its dotted name would run."""
    if (loaded := sys.modules.get(module)) is not None:
        return getattr(loaded, "__file__", None)
    parts = module.split(".")
    found, path = None, None
    for count in range(1, len(parts) + 1):
        found = _find(".".join(parts[:count]), path)
        path = list(found.submodule_search_locations or ()) if found is not None else []
        if found is None or (count < len(parts) and not path):
            return None
    return found.origin if found is not None and found.has_location else None


def _find(module: str, path: list[str] | None) -> ModuleSpec | None:
    """As `importlib.util.find_spec`, which would import the packages that `module` lies in; `path` is where to look.

    Where no finder knows a module without a dot in its name, the current folder may have it, as in `package`.
    """
    for finder in sys.meta_path:
        find = getattr(finder, "find_spec", None)
        found: ModuleSpec | None = find(module, path) if find is not None else None
        if found is not None:
            return found
    return PathFinder.find_spec(module, [str(Path.cwd())]) if path is None else None
