"""Whose code a verb may run to load a source again: only what this user asked for, by `export` or `--trust-source`.

A manifest is text that anybody can write, so that a folder from elsewhere may name any file or package of this machine.
Whoever exports names the code by hand; that is recorded, and `check`, `bench` and `build --precision auto` compare it
with what they would run, before they import any of it. What counts is the file that would be run (where it lies and
what it says) and the factory in it, never the artifact's folder or its digests: a folder may be moved, and digests be
copied.

The records lie in this user's folder for state, one file each; names begin alike for all states of one source (a place
and a factory). A folder that others may write to is not believed.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from dataclasses import asdict
from pathlib import Path

from attnport.artifacts import ModelSpec, Source
from attnport.errors import SpecError
from attnport.folder.loading import load
from attnport.jsonfile import digest_text
from attnport.sources import memory
from attnport.sources.code import Code, code_of, runs_code
from attnport_bundle.errors import escaped
from attnport_bundle.runtimes.kernels import Cache, find

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
    return load(
        source.text,
        inputs=source.inputs,
        dims=source.dims,
        outputs=source.outputs,
        trust_remote_code=source.trust_remote_code,
        task=source.task,
        part=source.part,
    )


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
