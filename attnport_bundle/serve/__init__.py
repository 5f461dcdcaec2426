"""Serves bundles over the open inference protocol (v2) and OpenAI's. It is part of the installed reader alone.

Here are the options of both command lines, the names of bundles and the choice of an engine. `protocol` reads requests
and writes answers, `joining` makes one call of several, and `bundles` runs them. KServe's package speaks the protocol,
over HTTP and gRPC, in both engines: `kserve` is one process, and `ray` has replicas of it. `openai` has the routes of
the other protocol for both.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import importlib.util
import ipaddress
import shlex
import socket
import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ..arguments import LARGEST, integer, shown
from ..errors import BundleError, FeedError, RuntimeMissing
from ..format.files import read_trusted
from ..format.manifest import Manifest, package_of

ENGINES = {"kserve": "kserve", "ray": "ray-serve"}
"""The engines, each with the extra of this package that brings what it needs."""
MOST_NAMES = 1024
"""The most inputs of a request, and the most outputs that it names."""
MOST_DIMS = 32
"""The most dims of a tensor."""
MOST_PARTS = 1 << 18
"""The most `[`, `{` and `:` in the JSON of a request, and parts of a message of gRPC. Each takes a hundred bytes."""
LETTERS = 16
"""The letters of a request's texts, for each token that it may have. More would be read to be cut off."""
PLACES = 16
"""The places of a request's texts, each padded to the longest, for each token that it may have."""

_LAST_PORT = 65535
_LETTERS = frozenset(string.ascii_letters + string.digits + "-_.")


def _option(default: Any, text: str, least: int = 1, most: int = LARGEST) -> Any:
    return field(default=default, metadata={"help": text, "limits": (least, most)})


@dataclass(frozen=True)
class Options:
    """How bundles are served. Each attribute is an option of the command line, with its help in the metadata."""

    host: str = _option("127.0.0.1", "Where to listen; 0.0.0.0 = on every address of the machine.")
    port: int = _option(8080, "HTTP port.", 1, _LAST_PORT)
    grpc_port: int = _option(8081, "gRPC port; 0 = no gRPC.", 0, _LAST_PORT)
    threads: int = _option(0, "Compute threads; 0 = the runtime's choice, and 1 a replica on Ray.", 0)
    max_batch_tokens: int = _option(1024, "Requests are joined up to so many tokens; 0 = one at a time.", 0)
    wait_ms: int = _option(2, "How long a request waits for others to join it.", 0)
    max_waiting: int = _option(256, "Requests at a time; further ones are answered with 503.")
    max_request_tokens: int = _option(65536, "The most tokens of a request; items, for a model without.")
    max_request_bytes: int = _option(8 << 20, "The most bytes of a request; 413 beyond.")
    max_response_bytes: int = _option(64 << 20, "The most bytes of an answer; 413 to what asks for more.")
    max_new_tokens: int = _option(4096, "The most new tokens of a request to a decoder, of all its texts together.")
    generations: int = _option(4, "Requests that a decoder writes at a time; further ones wait.")
    client_s: int = _option(60, "Seconds in which a client has to send a request, and to take its answer.")
    grace_s: int = _option(30, "Seconds for the requests that were accepted, once the server is told to stop.")
    replicas: int = _option(1, "Ray: processes; each has every model.")
    address: str = _option("", "Ray: a cluster's address; default: RAY_ADDRESS, or a new cluster here.")
    metrics_port: int = _option(0, "Ray: port of a new cluster's metrics; 0 = any.", 0, _LAST_PORT)

    def __post_init__(self) -> None:
        """Raises FeedError for a number that is too small, or for a port too large."""
        for each in dataclasses.fields(self):
            if isinstance(each.default, int):
                integer(each.name, getattr(self, each.name), *each.metadata["limits"])


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds what is served, and every option with its help, to the command line."""
    parser.add_argument("folder", nargs="?", type=Path, help="a bundle (default: this one, if there is no --model)")
    parser.add_argument("--engine", choices=list(ENGINES), default="kserve", help="default: kserve")
    parser.add_argument("--model", action="append", default=[], metavar="NAME=FOLDER", help="a bundle, by its name")
    parser.add_argument("--key", type=Path, help="public key (PEM, from outside) that bundles must be signed with")
    for each in dataclasses.fields(Options):
        kind = type(each.default)
        parser.add_argument(
            f"--{each.name.replace('_', '-')}", type=kind, default=each.default,
            help=f"{each.metadata['help']} (default: %(default)s)" if each.default else each.metadata["help"],
        )  # fmt: skip


def within(got: int, most: int, what: str, advice: str) -> None:
    """Raises FeedError, with the advice, for a request that has more than the most of something."""
    if got > most:
        raise FeedError(f"got {got} {what}; expected at most {most}. {advice}")


def is_local(host: str) -> bool:
    """Whether only this machine reaches the host.

    Raises:
        BundleError: there is no such host.
    """
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as err:
        raise BundleError(f"host: got {shown(host)}, which is no address of this machine: {err}.") from err
    return all(ipaddress.ip_address(address[0]).is_loopback for *_, address in found)


def tell_open(host: str, tell: Callable[[str], None]) -> None:
    """Warns where others than this machine reach the host."""
    if not is_local(host):
        tell(f"warning: whoever reaches this machine at {host} is answered, without a password; see docs/serve.md")


def address(host: str, port: int) -> str:
    """`host:port`, with the brackets that an IPv6 address needs."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def url(options: Options) -> str:
    """Where HTTP is."""
    return f"http://{address(options.host, options.port)}/v2"


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
        RuntimeMissing: a package is not installed, that of a bundle's tokenizer among them.
        BundleError: there is no such engine, nothing can listen there, or a bundle does not pass its self-test; see
            `model.load_tested`.
    """
    manifests = {folder: read_trusted(folder, None)[0] for folder in models.values()}
    chosen = engine_of(engine, manifests)
    for folder, manifest in manifests.items():
        if manifest.needs_tokenizers and importlib.util.find_spec("tokenizers") is None:
            raise RuntimeMissing(
                f"{folder}: texts need the package tokenizers, which is not installed.", hint="pip install tokenizers"
            )
    chosen.run(models, options or Options(), key, tell)


def engine_of(name: str, bundles: Mapping[Path, Manifest] = MappingProxyType({})) -> Any:
    """The module of an engine.

    Args:
        bundles: What it is to serve, for the command that installs it.

    Raises:
        RuntimeMissing: a package that it needs is not installed.
        BundleError: there is no such engine.
    """
    if name not in ENGINES:
        raise BundleError(f"engine: got {name!r:.60}; expected {' or '.join(ENGINES)}.")
    try:
        return importlib.import_module(f"{__name__}.{name}")
    except ModuleNotFoundError as err:
        reader = Path(__file__).parents[1]  # pip takes a checkout by its folder, as the package is not on PyPI yet
        package = reader if (reader / "pyproject.toml").is_file() else "./attnport_bundle"
        missing = err.name if importlib.util.find_spec(name) else name
        needed = {package_of(form.runtime) for manifest in bundles.values() for form in manifest.forms.values()}
        extras = ",".join([*(sorted(needed & {"onnxruntime", "openvino"}) or ["onnxruntime"]), ENGINES[name]])
        place = shlex.quote(str(next(iter(bundles), "app/")))
        raise RuntimeMissing(
            f"{missing} is not installed. A server has an environment of its own: its packages replace those of an "
            "exporter.",
            hint=f'python -m venv serving && serving/bin/pip install "{package}[{extras}]" && '
            f"serving/bin/python -m attnport_bundle serve {place}{'' if name == 'kserve' else f' --engine {name}'}",
        ) from None
