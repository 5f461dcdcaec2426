"""The commands that make a bundle, derived from the artifact and not from the shell that ran them."""

from __future__ import annotations

import re
from collections.abc import Iterable

from attnport.artifacts import Manifest
from attnport.bundling.backends import Backend
from attnport.example_values import without_examples

_OUT = "out/"
_KINDS = ("hf:", "onnx:")
# OWNER/NAME of the hub. A folder within a folder looks the same, and is kept as well.
_HUB_ID = re.compile(r"hf:[A-Za-z0-9][\w.-]*/[\w.-]+(?<!\.onnx)", re.ASCII)


def commands(manifest: Manifest, backends: Iterable[Backend]) -> tuple[tuple[str, ...], ...]:
    """The commands that make this artifact's backends, in order, each as its arguments.

    A module in memory is exported by a program, not by a command.

    Folders are removed as in `without_folders`.
    """
    source = manifest.source
    export = ["export", without_folders(source.text)]
    inputs = tuple(map(without_examples, source.inputs))
    for option, values in (("--input", inputs), ("--dim", source.dims), ("--outputs", source.outputs)):
        for value in values:
            export += [option, value]
    for option, value in (("--task", source.task), ("--part", source.part)):
        if value:
            export += [option, value]
    if source.trust_remote_code:
        export.append("--trust-remote-code")
    lines = [] if source.in_memory else [[*export, "-o", _OUT]]
    for backend in backends:
        lines += [command for command in _of(backend) if command not in lines]
    return tuple(("attnport", *command) for command in lines)


def without_folders(source: str) -> str:
    """A SPEC with only the last part of a path, as the folders of the builder are private.

    A hub id keeps its owner: it has exactly one slash, and does not start at a root, a home, a drive or a dot.
    """
    if _HUB_ID.fullmatch(source):
        return source
    kind = next((kind for kind in _KINDS if source.startswith(kind)), "")
    return kind + re.split(r"[\\/]", source.removeprefix(kind).rstrip("\\/"))[-1]


def _of(backend: Backend) -> list[list[str]]:
    form, engine = backend.form, backend.engine
    dtype = [] if form.plan == "fp32" else ["--precision", form.plan]
    fuse = ["fuse", _OUT, "--target", form.target, *dtype]
    if engine is None:
        return [fuse]
    build = ["build", _OUT, "--target", engine.target, "--precision", engine.plan]
    for profile in engine.profiles:
        build += ["--profile", str(profile)]
    for capability in engine.sm:
        build += ["--sm", str(capability)]
    return [fuse, build]
