"""What a model depends on: the files that were read to make it, the packages that its code imports, and its weights.

A model depends on the bytes of every Python module outside the standard library and installed packages that its code
imports, on the version of every installed package that this code imports, and on every file that was opened for reading
while the module was made. A comment counts: to tell what matters from what does not is what went wrong before.

Modules are those that were imported while the SPEC was loaded, those that define the classes of the module, and what
the text of these imports, whether it was imported before or not: so that a process that has imported more finds the
same. Opened files are told by Python's audit event `open`, and by safetensors, which opens files in native code. Other
native code (HDF5, SentencePiece) is not seen; weights that it reads are, by their own digest.
"""

from __future__ import annotations

import ast
import contextlib
import contextvars
import functools
import hashlib
import importlib.metadata
import os
import sys
import sysconfig
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnport.errors import SpecError
from attnport.jsonfile import digest_file, digest_text
from attnport.module_path import ROOT
from attnport.sources.code import file_of_module
from attnport.sources.file import is_file_name, module_name
from attnport.sources.onnx_file import files_of, is_onnx

if TYPE_CHECKING:
    from torch import nn

TOOLCHAIN = ("torch", "onnx", "onnx_ir", "onnxscript", "transformers", "numpy")
"""Packages that attnport works with itself: a new version exports anew, and makes no other model of a source."""

State = tuple[int, int, int] | None
"""A file's size, time of change, and time of change of its entry; None where there is no file."""

_INSTALLED = {"site-packages", "dist-packages"}
_METADATA = (".egg-info", ".dist-info")
"""Endings of folders that installers write; a package of a checkout has one beside its code."""
_STANDARD = tuple(
    f"{place}{os.sep}"
    for path in (Path(sysconfig.get_paths()[name]) for name in ("stdlib", "platstdlib"))
    for place in (path, path.resolve())
)
_SYSTEM = ("/proc/", "/dev/", "/sys/", "/run/", "/etc/", "/lib/", "/lib64/", "/usr/lib/", "/usr/share/",
           "/usr/include/")  # fmt: skip
_NO_PART = (".pyc", ".pyo", ".lock", ".ttf", ".otf", ".ttc", ".afm", ".pfb")
"""Endings of files that are no part of a model: bytecode, locks, fonts."""
_OURS = ("attnport", "attnport_bundle")
_SHOWING_CODE = ("linecache", "tokenize")
"""Modules that open Python files to show their lines, of whoever called."""


# --- files that are opened while a module is made -----------------------------------------------------------------


@dataclass
class Reading:
    """What a load opens.

    Attributes:
        opened: Absolute paths, each with whether there was such a file.
        written: Absolute paths of what was opened for writing.
        before: The Python modules that were there when it began.
    """

    opened: dict[str, bool] = field(default_factory=dict)
    written: set[str] = field(default_factory=set)
    before: frozenset[str] = field(default_factory=lambda: frozenset(sys.modules))

    def files(self) -> set[str]:
        """The opened files, also those that were not there; without those that were made and removed meanwhile."""
        temporary = f"{tempfile.gettempdir()}{os.sep}"
        stays = {path for path, was_there in self.opened.items() if Path(path).is_file() or not was_there}
        gone = {path for path in self.written if path.startswith(temporary) or not Path(path).is_file()}
        return stays - gone


@dataclass
class _Kept:
    """What loads of one SPEC in this process found: what Python keeps in memory is neither imported nor read again."""

    opened: set[str] = field(default_factory=set)
    modules: set[str] = field(default_factory=set)
    states: dict[str, State] = field(default_factory=dict)


_kept: dict[str, _Kept] = {}
_current: contextvars.ContextVar[Reading | None] = contextvars.ContextVar("attnport_reading", default=None)
_open: list[Reading] = []
_lock = threading.Lock()


@contextlib.contextmanager
def reading(text: str) -> Iterator[None]:
    """Notes the files that are opened for reading in the block, also by threads that are started in it.

    Inside another such block, it is that block. Python modules that an earlier load imported are imported anew if a
    file that it depended on has changed: else the code in memory would run under the digest of the new file.
    """
    if _current.get() is not None:
        yield
        return
    _forget_changed()
    _hook()
    mine = Reading()
    token = _current.set(mine)
    with _lock:
        _open.append(mine)
        _see_safetensors(len(_open) == 1)
    try:
        yield
    finally:
        _current.reset(token)
        with _lock:
            _open.remove(mine)
            if not _open:
                _unsee_safetensors()
            kept = _kept_of(text)
            kept.opened |= mine.files()
            kept.modules |= {name for name in sys.modules.keys() - mine.before if is_own(name)}


@functools.cache
def _hook() -> None:
    """Installs the audit hook, which Python cannot take away. It does nothing outside `reading`."""
    sys.addaudithook(_audit)


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if event != "open" or not _open or isinstance(arguments[0], int):
        return
    with contextlib.suppress(Exception):  # an error would be raised where the user's code opens its file
        path, mode, flags = arguments
        writes = any(letter in mode for letter in "wax+") if mode else (flags or 0) & (os.O_WRONLY | os.O_RDWR)
        if sys._getframe(1).f_globals.get("__name__") not in _SHOWING_CODE:
            _note(path, writes=bool(writes))


def _note(path: Any, *, writes: bool = False) -> None:
    """Notes a file for the load of this thread; for every load that goes on, if the thread has none of its own."""
    place = _absolute(os.fsdecode(path))
    mine = _current.get()
    for each in (mine,) if mine is not None else tuple(_open):
        if writes:
            each.written.add(place)
        else:
            each.opened.setdefault(place, Path(place).is_file())


def _see_safetensors(first: bool) -> None:
    """Notes what safetensors opens, in native code that raises no audit event: its `safe_open` is wrapped meanwhile."""
    with contextlib.suppress(ImportError):
        from safetensors import safe_open as real

        if first:

            def safe_open(filename: Any, *args: Any, **options: Any) -> Any:
                with contextlib.suppress(Exception):  # as in `_audit`
                    _note(filename)
                return real(filename, *args, **options)

            safe_open.__wrapped__ = real  # type: ignore[attr-defined]
            _replace(lambda held: safe_open if held is real else None)


def _unsee_safetensors() -> None:
    """Puts `safe_open` back, also where code of the model took the wrapped one."""
    _replace(lambda held: getattr(held, "__wrapped__", None) if getattr(held, "__module__", "") == __name__ else None)


def _replace(other: Callable[[Any], Any]) -> None:
    for module in list(sys.modules.values()):
        held = getattr(module, "__dict__", {}).get("safe_open")
        if held is not None and (wanted := other(held)) is not None:
            module.__dict__["safe_open"] = wanted


def _kept_of(text: str) -> _Kept:
    """What was found of a SPEC, which may be another one in another folder."""
    return _kept.setdefault(f"{Path.cwd()}:{text}", _Kept())


def _forget_changed() -> None:
    """Forgets what earlier loads imported and read if one of their files is not what it was then."""
    if all(state_of(path) == state for kept in _kept.values() for path, state in kept.states.items()):
        return
    for name in {name for kept in _kept.values() for name in kept.modules}:
        sys.modules.pop(name, None)
    _kept.clear()


def _absolute(path: str) -> str:
    """The path from the root, as it is reached from here: links are not followed."""
    return os.path.normpath(Path(path).absolute())


def state_of(path: str) -> State:
    """What tells cheaply whether a file is what it was."""
    try:
        found = Path(path).stat()
    except OSError:
        return None
    return found.st_size, found.st_mtime_ns, found.st_ctime_ns


# --- what a model depends on --------------------------------------------------------------------------------------


def dependencies(text: str, module: nn.Module) -> tuple[dict[str, str], tuple[str, ...]]:
    """What a module depends on, to be called at the end of the `reading` in which it was made.

    Args:
        text: The SPEC; of a module in memory no opened files are known.

    Returns:
        By name, the SHA-256 of each file ("" for one that was looked for and is not there) and the version of each
        package; and the absolute paths of the files. A file is named from the folder of the SPEC, a Python module from
        the folder of its package, others by the last part of their path: the same on every machine.
    """
    current, kept = _current.get(), _kept_of(text)
    if current is not None:
        kept.opened |= current.files()
        kept.modules |= {name for name in sys.modules.keys() - current.before if is_own(name)}
    named = {kind.__module__ for part in module.modules() for kind in type(part).__mro__}
    code, packages = _code_of({*named, *_factory(text), *kept.modules})
    files = {path for path in kept.opened if _counts(path)}
    if is_onnx(text):
        files |= {str(path.absolute()) for path in files_of(text)}
    root = _root(text, code)
    found: dict[str, list[str]] = {}
    for path in sorted(files | code.keys()):
        if not (text.startswith("hf:") and path.endswith(".safetensors")):  # which the digest of the weights covers
            digest = _digest(path, state_of(path)) if Path(path).is_file() else ""
            found.setdefault(_name(path, root, code.get(path, "")), []).append(digest)
    kept.states = {path: state_of(path) for path in (*files, *code)}
    digests = {name: own[0] if len(own) == 1 else digest_text(*own) for name, own in found.items()}
    versions = {name: _version(name) for name in sorted(packages)}
    return {**digests, **versions}, tuple(sorted(kept.states))


def code_digest(depends: Mapping[str, str]) -> str:
    """SHA-256 over what `dependencies` found."""
    return digest_text(*(f"{name} {value}" for name, value in sorted(depends.items())))


def changes(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """What became of dependencies, in words: a file or a package that is another, is gone or came."""
    told = []
    for name in sorted({*before, *now}):
        old, new = before.get(name), now.get(name)
        if old == new:
            continue
        if new is None:
            told.append(f"{name} is no longer read")
        elif old is None:
            told.append(f"{name} is read, and was not")
        elif not old or not new:
            told.append(f"{name} is {'there' if new else 'gone'}")
        elif " " in old and " " in new:
            versions = old.split()[0], new.split()[0]
            same = versions[0] == versions[1]
            told.append(f"{name} {versions[0]} {'has other code' if same else f'became {versions[1]}'}")
        else:
            told.append(f"{name} is another")
    return told


def _factory(text: str) -> tuple[str, ...]:
    """The Python module of a SPEC's factory, if it has one."""
    place, _, name = text.rpartition(":")
    if not place or place in ("hf", "onnx") or place.startswith(("hf:", "onnx:")) or not name.isidentifier():
        return ()
    return (module_name(Path(place)) if is_file_name(place) else place,)


def _root(text: str, code: Mapping[str, str]) -> str:
    """The folder from which the files of a SPEC are named; "" if there is none."""
    place = text.partition(":")[2] if text.startswith(("hf:", "onnx:")) else text.rpartition(":")[0]
    if text.startswith("hf:"):
        return _absolute(place) if Path(place).is_dir() else ""
    if is_onnx(text) or is_file_name(place):
        return str(Path(_absolute(place)).parent)
    path = next((path for path, name in code.items() if name == place), None)
    levels = place.count(".") + (path is not None and Path(path).stem == "__init__")
    return str(Path(path).parents[levels]) if path is not None else ""


def _name(path: str, root: str, module: str) -> str:
    if root and Path(path).is_relative_to(root):
        return Path(path).relative_to(root).as_posix()
    parts = Path(path).parts
    if "snapshots" in parts:  # of a hub's cache, behind the revision
        return "/".join(parts[parts.index("snapshots") + 2 :])
    folders = module.count(".") + (Path(path).stem == "__init__") if module else 0
    return "/".join(parts[-1 - folders :])


def _counts(path: str) -> bool:
    """Whether an opened file is a part of a model."""
    return not (
        any(Path(path).is_relative_to(Path(ROOT, name)) for name in _OURS)
        or path.endswith(_NO_PART)
        or path.startswith((*_SYSTEM, *_STANDARD))
        or path in sys.path  # which may name a file of modules
        or _INSTALLED.intersection(Path(path).parts)
        or any(part.endswith(_METADATA) for part in Path(path).parts)
        or (Path(path).exists() and not Path(path).is_file())
    )


def _code_of(modules: Iterable[str]) -> tuple[dict[str, str], set[str]]:
    """The files of Python modules, and of all that they import, by path with their dotted names; and the installed
    packages among these."""
    files: dict[str, str] = {}
    packages: set[str] = set()
    pending, met = list(modules), set[str]()
    while pending:
        name = pending.pop()
        if name in met:
            continue
        met.add(name)
        pending += [name.rpartition(".")[0]] * ("." in name)  # importing it runs the packages around it
        kind = _kind(name)
        if kind == "installed":
            packages.update(each for each in _distributions(name) if each.replace("-", "_") not in TOOLCHAIN)
        if kind == "own" and (file := _file(name)) is not None and Path(file).is_file():
            files.setdefault(_absolute(file), name)
            pending += _imports(file, name)
    return files, packages


def is_own(module: str) -> bool:
    """Whether a Python module is neither installed nor of the standard library: its files are the user's."""
    return _kind(module) == "own"


def _kind(module: str) -> str:
    """`own` for code whose bytes count, `installed` for a package whose version does, "" for what does not count."""
    top = module.partition(".")[0]
    if top == "__mp_main__" or top in sys.stdlib_module_names or top in _OURS or top in TOOLCHAIN:
        return ""
    file = _file(module)
    if file is None:
        return ""
    parts = Path(file).parts
    if installed := _INSTALLED.intersection(parts):
        # Its folder tells what it came with; some libraries give modules inside of it names of their own.
        folder = parts[parts.index(installed.pop()) + 1]
        return "installed" if _distributions(module) or _distributions(folder) else "own"
    return "" if file.startswith(_STANDARD) else "own"


def _file(module: str) -> str | None:
    """The file of a Python module, if there is one."""
    try:
        return file_of_module(module)
    except Exception:  # what finders of import hooks raise
        return None


def _imports(file: str, module: str) -> list[str]:
    """The names of modules that the text of a Python file imports, anywhere in it; and maybe of what is in these."""
    try:
        tree = ast.parse(Path(file).read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return []
    package = module if Path(file).stem == "__init__" else module.rpartition(".")[0]
    spec = getattr(sys.modules.get(module), "__spec__", None)
    package = getattr(spec, "parent", None) or package
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            around = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*around, *filter(None, [node.module])])
            names += [base, *(f"{base}.{alias.name}" for alias in node.names if alias.name != "*")]
    return [name for name in names if name]


@functools.cache
def _owners() -> Mapping[str, list[str]]:
    return importlib.metadata.packages_distributions()


def _distributions(module: str) -> list[str]:
    """The installed packages that a Python module may have come with."""
    return _owners().get(module.partition(".")[0], [])


def _version(distribution: str) -> str:
    """The version of an installed package, and a digest of its code, as it may be installed again under one version."""
    found = importlib.metadata.distribution(distribution)
    code = sorted(line for line in (found.read_text("RECORD") or "").splitlines() if ".py,sha256=" in line)
    return f"{found.version} {digest_text(*code)[:16]}"


@functools.lru_cache(maxsize=4096)
def _digest(path: str, state: State) -> str:
    return digest_file(Path(path))


# --- weights --------------------------------------------------------------------------------------------------------


def weights_digest(text: str, module: nn.Module) -> str:
    """SHA-256 over all parameters and buffers, by name, dtype, shape and bytes.

    Buffers that a checkpoint leaves out are not among them: the code makes them, some models at their first long input.

    Raises:
        SpecError: a weight holds NaN; the message names it.
    """
    import torch

    sha = hashlib.sha256()
    made_by_code = {
        f"{path}.{name}" if path else name
        for path, part in module.named_modules()
        for name in part._non_persistent_buffers_set
    }
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    for name, tensor in sorted(tensors.items()):
        data = tensor.detach().cpu().to_dense().contiguous()  # a buffer may be sparse, as Whisper's
        if data.dtype.is_floating_point and torch.isnan(data).any():
            count = int(torch.isnan(data).sum())
            raise SpecError(
                f"{text}: weight {name} holds {count} NaN of {data.numel()} values.",
                hint="The checkpoint is damaged or its training diverged; use an earlier one.",
            )
        if name in made_by_code:
            continue
        sha.update(f"{name} {data.dtype} {tuple(data.shape)}\n".encode())
        sha.update(data.reshape(-1).view(torch.uint8).numpy().data if data.numel() else b"")
    return sha.hexdigest()
