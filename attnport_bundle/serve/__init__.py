"""Serves bundles over the open inference protocol (v2). It is part of the installed reader alone; no bundle carries it.

Here are the names of bundles and the choice of an engine. `options` are those of the command line, `protocol` reads
requests and writes answers, `bundles` runs them together. KServe's package speaks the protocol, over HTTP and gRPC, in
both engines: `package` is what is used of it, `kserve` is one process, and `ray` has replicas of it.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ..errors import BundleError, RuntimeMissing
from ..format.files import read_trusted
from .options import ENGINES, Options

_LETTERS = frozenset(string.ascii_letters + string.digits + "-_.")


def named(models: Sequence[str], folder: Path | None = None) -> dict[str, Path]:
    """The bundles by the names that they are served under.

    Args:
        models: `NAME=FOLDER` of each.
        folder: A bundle that is served under its own name.

    Raises:
        BundleError: there is no bundle, two have one name, or a name does not fit into an address.
    """
    found: dict[str, Path] = {}
    if folder is not None:
        manifest, _ = read_trusted(folder, None)
        found[manifest.name.rpartition("/")[2]] = folder
    for text in models:
        name, given, path = text.partition("=")
        if not given or not path or name in found:
            raise BundleError(f"--model: got {text!r}; expected NAME=FOLDER, and a name that no other has.")
        found[name] = Path(path)
    if not found:
        raise BundleError("there is no bundle to serve; name a folder, or --model NAME=FOLDER.")
    for name in found:
        if not name[:1].isalnum() or not set(name) <= _LETTERS:
            raise BundleError(
                f"got the name {name!r}; expected a letter or digit, and then letters, digits, '-', '_' and '.': "
                "--model NAME=FOLDER."
            )
    return found


def serve(
    models: Mapping[str, Path],
    engine: str = "kserve",
    options: Options | None = None,
    key: Path | None = None,
    tell: Callable[[str], None] = print,
) -> None:
    """Serves bundles until the process is told to stop, and answers what was accepted before it ends.

    Args:
        models: The bundles by the names that clients ask for; see `named`.
        engine: `kserve`, one process, or `ray`, replicas on a cluster.
        key: The public key (PEM) that every bundle must be signed with.
        tell: Called with lines about what is served, and where.

    Raises:
        RuntimeMissing: a package is not installed.
        BundleError: there is no such engine, nothing can listen there, or a bundle does not pass its self-test; see
            `selftest.load_tested`.
    """
    if engine not in ENGINES:
        raise BundleError(f"engine: got {engine!r:.60}; expected {' or '.join(ENGINES)}.")
    chosen = options or Options()
    try:
        if engine == "ray":
            from .ray import run
        else:
            from .kserve import run
    except ModuleNotFoundError as err:
        raise RuntimeMissing(f'{err.name} is not installed; pip install "attnport-bundle[{ENGINES[engine]}]".') from err
    run(models, chosen, key, tell)
