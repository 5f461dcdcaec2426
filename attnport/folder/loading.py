"""From a SPEC to a ModelSpec: where `sources`, which reads SPECs, meets the project's own `models`.

Loading takes seconds and gigabytes. What was found by it, that code and weights are those of the export, stays true for
as long as no file that it depends on changed its size or its times, and no file came or went beside one: who finds the
files as they were need not load the model. The records lie in this user's cache, since paths of this machine do not
belong into an artifact.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnport.artifacts import ModelSpec, Source
from attnport.errors import SpecError
from attnport.jsonfile import digest_text, to_json
from attnport.sources import memory
from attnport.sources.digests import state_of
from attnport.user_cache import cache

if TYPE_CHECKING:
    from torch import nn


def load(text: str, **options: Any) -> ModelSpec:
    """Loads the model that a SPEC names, the project's own ones included.

    Args:
        text: The SPEC.
        options: As of `attnport.sources.load`, which raises what this does.
    """
    from attnport.models import base
    from attnport.sources import load as read

    return read(text, own=base.get, **options)


def with_outputs(spec: ModelSpec, names: Collection[str]) -> ModelSpec:
    """`spec` with the outputs called `names` alone; all of them if there are no names.

    Raises:
        SpecError: it has no such output.
    """
    known = [output.name for output in spec.io.outputs]
    for name in names:
        if name not in known:
            raise SpecError(
                f"{spec.source.text}: got --outputs {name}; its outputs are {', '.join(known)}.",
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
    """Records the files of a source that this process has just loaded.

    Args:
        read: As of `ModelSpec`.
    """
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
        and all(_as_read(path) == state for path, state in seen["files"].items())
    )


def _record(source: Source) -> str:
    return f"seen.{digest_text(str(Path.cwd()), to_json(source))[:32]}.json"


def _as_read(path: str) -> list[int] | None:
    state = state_of(path)
    return None if state is None else list(state)


def _listing(folder: str) -> str:
    """A digest of the names of the files in a folder."""
    try:
        return digest_text(*sorted(path.name for path in Path(folder).iterdir() if path.is_file()))
    except OSError:
        return ""
