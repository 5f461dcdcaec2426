"""From a SPEC to a ModelSpec, by `sources` and the project's own `models`; and whose code may run for that.

Loading takes seconds and gigabytes. A model that was loaded and had the code and weights of the export need not be
loaded again for as long as no file that it depends on changes its size or its times, and no file comes or goes beside
one. The records lie in this user's cache, since paths of this machine do not belong into an artifact.

A manifest is text that anybody can write, so that a folder from elsewhere may name any file or package of this machine.
Whoever exports names the code by hand; that is recorded, and `check`, `bench` and `build --precision auto` compare it
with what they would run, before they import any of it. What counts is the file that would be run (where it lies and
what it says) and the factory in it, never the artifact's folder or its digests: a folder may be moved, and digests be
copied. These records lie in this user's folder for state, one file each; names begin alike for all states of one source
(a place and a factory). A folder that others may write to is not believed.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import warnings
from collections.abc import Collection
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnport.artifacts import ModelSpec, Source
from attnport.errors import SpecError
from attnport.jsonfile import digest_text, to_json
from attnport.sources import memory
from attnport.sources.code import Code, code_of, runs_code
from attnport.sources.digests import state_of
from attnport.sources.file import is_file_name
from attnport.sources.package import hub_id
from attnport.user_cache import cache
from attnport_bundle.errors import escaped
from attnport_bundle.runtimes.kernels import Cache, find

if TYPE_CHECKING:
    from torch import nn


VARIABLE = "ATTNPORT_TRUSTED"
"""Names of the records that could not be written: this process and those that it starts know them by this."""
_HEX = 32


def reload(source: Source) -> ModelSpec:
    """Loads a source again.

    Raises:
        SpecError: as `require` and `load`.
    """
    if (kept := memory.held(source)) is not None:
        return kept
    require(source)
    if source.in_memory:
        return memory.stored(source)
    if gone := _gone(source.text):
        kind = "folder" if source.text.startswith("hf:") else "file"
        raise SpecError(
            f"{gone} is not a {kind}, and the artifact was exported from it.",
            hint="Put it back, or export again."
            if Path(gone).is_absolute()
            else f"The path is from the folder in which export was run, and this is {Path.cwd()}: run this there, or "
            "export again.",
        )
    return load(source)


def _gone(text: str) -> str:
    """The path of a SPEC, if it names a file or a folder that is not there; "" otherwise."""
    kind, _, place = text.partition(":")
    if kind not in ("hf", "onnx"):
        place = text.rpartition(":")[0]
    named = is_file_name(place) if kind != "hf" else not hub_id(text)
    return place if (named or kind == "onnx") and not Path(place).exists() else ""


def require(source: Source, *, given: bool = False) -> None:
    """Checks that this user asked to run what loading a source would run; nothing is imported.

    Args:
        given: The user asks for it now, which is recorded.

    Raises:
        SpecError: it was not asked for, or is not as it was then; names the file or package, and the factory.
    """
    code = code_of(source) if runs_code(source) and memory.held(source) is None else None
    if code is None:
        return  # nothing of others is run: there is none, or it is not there, as loading says
    if given:
        remember(code)
    name, kept = _name(code), _records()
    if name in os.environ.get(VARIABLE, "").split() or (kept is not None and kept.read(name) == _text(code)):
        return
    what, file = escaped(source.text), escaped(code.place)
    once = "once" if kept is not None else "each time, since nothing can be written into your folder for state"
    command = f"give --trust-source {once}: attnport check FOLDER --trust-source"
    if kept is not None and any(kept.folder.glob(f"{_same(code)}.*")):
        raise SpecError(
            f"the code of {what} changed since export: {file} is not what you exported or trusted on this machine.",
            hint=f"Export again, or bring the earlier state back; or, if the folder is to run it as it is, {command}",
        )
    raise SpecError(
        f"the source of this folder was not exported by you on this machine, and would be run: {escaped(code.factory)} "
        f"of {file} (it names {what}).",
        hint=f"It may be anything. Read it first; if you trust it, {command}",
    )


def passes(source: Source) -> str:
    """What `VARIABLE` holds for another process to load a source that was required here.

    It names the place, the factory and the content of the code, so that elsewhere other code under the same name is
    refused.
    """
    code = code_of(source) if runs_code(source) and memory.held(source) is None else None
    return "" if code is None else _name(code)


def remember(code: Code) -> None:
    """Records that this user asked to run `code`."""
    kept = _records()
    if kept is None or not kept.write(_name(code), _text(code)):
        names = {*os.environ.get(VARIABLE, "").split(), _name(code)}
        os.environ[VARIABLE] = " ".join(sorted(names))


def folder() -> Path | None:
    """Where the records lie; None on a system without a home folder."""
    base = os.environ.get("LOCALAPPDATA") if sys.platform == "win32" else os.environ.get("XDG_STATE_HOME")
    # XDG: a path that is not absolute is to be ignored.
    if base and Path(base).is_absolute():
        return Path(base) / "attnport"
    try:
        home = Path.home()
    except RuntimeError:
        return None
    return home / ".local" / "state" / "attnport" if home.is_absolute() else None


def _records() -> Cache | None:
    """The folder of records; None where there is none to write into, or others may write there."""
    if (place := folder()) is None:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an error says it, where it matters
        return find(Path(__file__).parent, place)


def _same(code: Code) -> str:
    return f"source.{digest_text(json.dumps([code.place, code.factory]))[:_HEX]}"


def _name(code: Code) -> str:
    return f"{_same(code)}.{code.digest[:_HEX] or '-'}.json"


def _text(code: Code) -> bytes:
    return f"{json.dumps(asdict(code), indent=1)}\n".encode()


def load(source: Source) -> ModelSpec:
    """Loads the model that a source names, the project's own ones included; raises as `attnport.sources.load`."""
    from attnport.models import base
    from attnport.sources import load as read

    return read(source, base.get)


def with_outputs(spec: ModelSpec, names: Collection[str]) -> ModelSpec:
    """`spec` with the outputs called `names` alone; all of them if there are no names.

    Raises:
        SpecError: it has no such output.
    """
    known = [output.name for output in spec.io.outputs]
    for name in names:
        if name not in known:
            raise SpecError(
                f"{spec.source.text}: got output {name}; its outputs are {', '.join(known)}.",
                hint="Name one of these.",
            )
    return without_outputs(spec, [name for name in known if names and name not in names])


def without_outputs(spec: ModelSpec, names: Collection[str]) -> ModelSpec:
    """`spec` without the outputs called `names`.

    The module drops them itself, in a hook behind its forward, so that module paths and parameters keep their names,
    and reference, twins and goldens all see one module.
    """
    kept = [index for index, output in enumerate(spec.io.outputs) if output.name not in names]
    if len(kept) == len(spec.io.outputs):
        return spec

    def keep(module: nn.Module, arguments: Any, outputs: Any) -> Any:
        if not isinstance(outputs, (tuple, list)):
            return outputs  # whoever names a module's outputs refuses it with words
        return outputs[kept[0]] if len(kept) == 1 else tuple(outputs[index] for index in kept)

    def make() -> nn.Module:
        module = spec.make()
        module.register_forward_hook(keep)
        return module

    io = dataclasses.replace(spec.io, outputs=tuple(spec.io.outputs[index] for index in kept))
    return dataclasses.replace(spec, io=io, make=make)


def note_read(source: Source, read: Collection[str]) -> None:
    """Records the files of a source that this process has just loaded: `ModelSpec.read`."""
    if not source.in_memory and (kept := cache()) is not None:
        folders = {str(Path(path).parent) for path in read}
        seen = {
            "files": {path: state_of(path) for path in read},
            "folders": {folder: _listing(folder) for folder in sorted(folders)},
        }
        kept.write(_record(source), f"{json.dumps(seen, indent=1)}\n".encode())


def unchanged(source: Source) -> bool:
    """Whether a source is what it was when it was last loaded, as far as its files tell; False where nobody knows."""
    if source.in_memory:
        return memory.held(source) is not None
    if source.text.startswith("hf:") and not Path(source.text.removeprefix("hf:")).is_dir():
        return False  # a hub id, of which the hub decides
    kept = cache()
    data = kept.read(_record(source)) if kept is not None else None
    try:
        seen: dict[str, dict[str, Any]] = json.loads(data) if data else {}
    except ValueError:
        return False
    return (
        "folders" in seen
        and all(_listing(folder) == names for folder, names in seen["folders"].items())
        and all(list(state_of(path) or ()) == (state or []) for path, state in seen["files"].items())
    )


def _record(source: Source) -> str:
    return f"seen.{digest_text(str(Path.cwd()), to_json(source))[:32]}.json"


_WEIGHTS = {".pt", ".pth", ".bin", ".ckpt", ".h5", ".hdf5", ".keras", ".npz", ".npy", ".safetensors", ".parquet",
            ".arrow", ".msgpack", ".model", ".so"}  # fmt: skip
"""Endings of files that native code may read while a module is made."""


def _listing(folder: str) -> str:
    """A digest of the names of the files in a folder, and of the states of weights: native code may have read them."""
    try:
        files = [path for path in Path(folder).iterdir() if path.is_file()]
        return digest_text(
            *sorted(f"{path.name} {state_of(str(path)) if path.suffix in _WEIGHTS else ''}" for path in files)
        )
    except OSError:
        return ""
