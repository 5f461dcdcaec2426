"""The order of the layers, read from the imports of every file.

    attnport_bundle < bodies, budget, errors, jsonfile, module_path, onnx_graph, onnx_walk, optional, options,
        patches, printed, registry, transaction, user_cache, user_code, version
        < contrib, dims, example_values, known, masks < latencies, parities, precisions < artifacts < decoders
        < {sources | models | exporter | runtimes | cases | bundling | reporting | auditing}
        < folder < processes < parity < latency < verbs < console < artifact < testing < cli

`attnport_bundle`, the reader of bundles, imports nothing else of ours, and everything may use it. Siblings, in braces,
do not import each other, and no file imports one that, through others, imports it. Imports inside functions and those
for types alone count as well: they are where a circle would hide.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Collection, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "attnport"
READER_FOLDER = ROOT / "attnport_bundle"
SIBLINGS = ("sources", "models", "exporter", "runtimes", "cases", "bundling", "reporting", "auditing")
READER_UNIT = "reader"
INSIDE = "attnport_bundle"
LAYERS: tuple[tuple[str, ...], ...] = (
    (READER_UNIT,),
    (
        "bodies",
        "budget",
        "errors",
        "jsonfile",
        "module_path",
        "onnx_graph",
        "onnx_walk",
        "optional",
        "options",
        "patches",
        "printed",
        "registry",
        "transaction",
        "user_cache",
        "user_code",
        "version",
    ),
    ("contrib", "dims", "example_values", "known", "masks"),
    ("latencies", "parities", "precisions"),
    ("artifacts",),
    ("decoders",),
    SIBLINGS,
    ("folder",),
    ("processes",),
    ("parity",),
    ("latency",),
    ("verbs",),
    ("console",),
    ("artifact",),
    ("testing",),
    ("cli", "__init__"),
    ("__main__",),
)
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}
HEAVY = {
    "onnxruntime",
    "onnxscript",
    "openvino",
    "rich",
    "tensorrt",
    "tensorrt_rtx",
    "tokenizers",
    "torch",
    "transformers",
}
FOUND_BY_NAME = {
    *("runtimes", "bundling.layouts", "exporter.targets", "exporter.fusion.rules", "exporter.fusion.rewrites"),
}
"""Folders whose files are imported to be asked what they are."""
READER = {"cryptography", "numpy", "onnxruntime", "openvino", "pyarrow", "tensorrt", "tensorrt_rtx", "tokenizers"}
"""What a bundle's own reader may import beside the standard library, where it is used and not before."""

SERVED = {READER_FOLDER / "serve" / f"{name}.py" for name in ("bundles", "kserve", "openai", "protocol", "ray")}
"""The reader's files that derive from classes of servers or are called by them; `serve` imports them when asked."""
SERVERS = READER | {"batched", "fastapi", "google", "grpc", "grpc_interceptor", "kserve", "orjson", "pydantic", "ray"}
SERVERS |= {"jinja2", "starlette", "uvicorn"}
"""What those may import."""


def absolute(node: ast.ImportFrom, module: str) -> str:
    """The package or module that a `from ... import` names, relative ones resolved against `module`."""
    if not node.level:
        return node.module or ""
    return ".".join([*module.split(".")[: -node.level], *filter(None, [node.module])])


def by_call(node: ast.Call) -> str:
    """What `import_module("...")` or `__import__("...")` names (of an f-string, how it begins), else ""."""
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    first = node.args[0] if node.args and name in ("import_module", "__import__") else None
    if isinstance(first, ast.JoinedStr) and first.values:
        first = first.values[0]
    return str(first.value) if isinstance(first, ast.Constant) else ""


def imported(tree: ast.AST, module: str) -> Iterator[tuple[int, str]]:
    """Line and full dotted name of everything that a file imports; `module` is the file's own dotted name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            # The root comes with every part of it; what is taken from it is what counts.
            yield from ((node.lineno, alias.name) for alias in node.names if alias.name != "attnport")
        elif isinstance(node, ast.ImportFrom):
            # `from attnport import runtimes` imports attnport.runtimes, so the imported names belong to the path.
            yield from ((node.lineno, f"{absolute(node, module)}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "attnport":
            yield node.lineno, f"attnport.{node.attr}"
        elif isinstance(node, ast.Call) and by_call(node):
            yield node.lineno, by_call(node)


def unit(dotted: str) -> str:
    """The layer's member that a dotted name of the package belongs to: `attnport.runtimes.base` -> `runtimes`."""
    if f"{dotted}.".startswith(f"{INSIDE}."):
        return READER_UNIT
    parts = dotted.split(".")
    return parts[1] if len(parts) > 1 and parts[1] in RANK else "__init__"


def dotted_name(path: Path, root: Path) -> str:
    return ".".join(path.relative_to(root).with_suffix("").parts)


def violations(source: str, module: str) -> list[str]:
    """What a file imports against the order of the layers; `module` as in `attnport.runtimes.base`."""
    own, found = unit(module), []
    for line, name in imported(ast.parse(source), module):
        if name.split(".")[0] not in ("attnport", INSIDE):
            continue
        other = unit(name)
        allowed = (
            other == own or RANK[other] < RANK[own] or (RANK[other] == RANK[own] and RANK[own] < RANK["artifacts"])
        )
        if not allowed:
            found.append(f"{module}:{line} imports {name}: {own} may not use {other}")
    return found


def circle(sources: Mapping[str, str]) -> list[str]:
    """A circle of imports, as the modules along it; empty where there is none.

    Args:
        sources: The text of each module by its dotted name; a package is its `__init__`.
    """
    uses = {}
    for module, source in sources.items():
        uses[module] = {file_of(name, sources) for _, name in imported(ast.parse(source), module)} - {module, ""}
    try:
        TopologicalSorter(uses).prepare()
    except CycleError as err:
        return list(err.args[1])
    return []


def file_of(dotted: str, modules: Collection[str]) -> str:
    """The module, of those given, that a dotted name is, or is in; "" for one of others."""
    while dotted:
        for module in (dotted, f"{dotted}.__init__"):
            if module in modules:
                return module
        dotted = dotted.rpartition(".")[0]
    return ""


def reader_violations(source: str, module: str, allowed: Collection[str] = READER) -> list[str]:
    """What a file of the bundle's reader imports beside what is allowed, the standard library and its own files."""
    found = []
    for line, name in imported(ast.parse(source), module):
        top = name.split(".")[0]
        mine = f"{name}.".startswith(f"{INSIDE}.")
        if top not in allowed and top not in sys.stdlib_module_names and not mine:
            found.append(f"{module}:{line} imports {name}")
    return found


def reader_at_import(tree: ast.AST) -> set[str]:
    """The packages of `READER` that a file of the reader imports when it is imported: outside functions and types."""
    found = set[str]()
    for node in ast.iter_child_nodes(tree):
        typed = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) or typed:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found.add((node.module or "").split(".")[0])
        elif isinstance(node, ast.Call):
            found.add(by_call(node).split(".")[0])
        found |= reader_at_import(node)
    return found & READER


def bound(tree: ast.Module) -> dict[str, str]:
    """What the names that a file imports when it is imported stand for, as full dotted names."""
    found: dict[str, str] = {}
    for node in tree.body:
        if isinstance(node, ast.Import):
            found |= {alias.asname or alias.name.split(".")[0]: alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    return found


def heavy_at_import(source: str) -> list[str]:
    """Heavy packages that a file imports when it is imported."""
    return sorted({name.split(".")[0] for name in bound(ast.parse(source)).values()} & HEAVY)


def loaded(starts: Collection[str], sources: Mapping[str, str]) -> set[str]:
    """The modules that are imported with some others, those around them included; imports inside functions are not."""
    found, pending = set[str](), list(starts)
    while pending:
        name = file_of(pending.pop(), sources)
        if name and name not in found:
            found.add(name)
            pending += [*bound(ast.parse(sources[name])).values(), name.removesuffix(".__init__").rpartition(".")[0]]
    return found


def begins(module: str) -> bool:
    """Whether a module is imported before it is known what has to be done."""
    folder, _, name = module.removeprefix("attnport.").rpartition(".")
    own = folder.split(".")[0] or name
    return own in ("verbs", "console", "artifact", "testing", "cli", "__init__") or (
        folder in FOUND_BY_NAME and not name.startswith("_")
    )


def files(*, reader: bool = False) -> list[Path]:
    """The package's source files; the bundle's reader apart, which has rules of its own."""
    return sorted((READER_FOLDER if reader else PACKAGE).rglob("*.py"))


def test_every_file_belongs_to_a_layer() -> None:
    members = {READER_UNIT} | {
        path.stem if path.is_file() else path.name for path in PACKAGE.iterdir() if path.suffix in ("", ".py")
    }
    assert members - {"__pycache__"} <= RANK.keys()


def test_no_file_imports_against_the_order_of_the_layers() -> None:
    found = [text for path in files() for text in violations(path.read_text(), dotted_name(path, ROOT))]
    assert not found, "\n".join(found)


def test_there_is_no_circle_of_imports() -> None:
    paths = [*files(), *files(reader=True)]
    found = circle({dotted_name(path, ROOT): path.read_text() for path in paths})
    assert not found, " is imported by ".join(found)


def test_the_bundles_reader_imports_a_runtime_only_where_it_uses_it() -> None:
    found = [
        f"{path.name}: {names}"
        for path in files(reader=True)
        if path not in SERVED and (names := reader_at_import(ast.parse(path.read_text())))
    ]
    assert not found, "\n".join(found)


def test_the_bundles_reader_needs_numpy_and_runtimes_alone() -> None:
    found = [
        text
        for path in files(reader=True)
        for text in reader_violations(path.read_text(), dotted_name(path, ROOT), SERVERS if path in SERVED else READER)
    ]
    assert not found, "\n".join(found)


def test_nothing_heavy_is_imported_before_it_is_used() -> None:
    sources = {dotted_name(path, ROOT): path.read_text() for path in files()}
    modules = loaded([module for module in sources if begins(module)], sources)
    assert {"attnport.runtimes.ort_cpu", "attnport.verbs.ship", "attnport.exporter.fusion.mask"} <= modules
    found = [f"{module}: {name}" for module in sorted(modules) for name in heavy_at_import(sources[module])]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("attnport.errors", "import attnport.dims"),
        ("attnport.dims", "from attnport.artifacts import Form"),
        ("attnport.artifacts", "def f():\n    from attnport import runtimes"),
        ("attnport.exporter.engine.build", "from attnport.runtimes.base import names"),
        ("attnport.exporter.engine.build", "from ...runtimes import base"),
        ("attnport.cases.inputs", "if TYPE_CHECKING:\n    from attnport.reporting.html import page"),
        ("attnport.runtimes.ort_cpu", "import importlib\nimportlib.import_module('attnport.exporter.capture')"),
        ("attnport.sources.hf.load", "import importlib\nimportlib.import_module(f'attnport.models.{name}')"),
        ("attnport.bundling.write", "def f():\n    import attnport.folder.workspace as w"),
        ("attnport.runtimes.tensorrt", "from attnport.bundling.write import write"),
        ("attnport.verbs.ship", "from attnport.console import run"),
        ("attnport_bundle.model", "def f():\n    from attnport.errors import AttnportError"),
        ("attnport.verbs.ship", "from attnport.cli import main"),
        ("attnport.verbs.ship", "import attnport\nattnport.ship()"),
        ("attnport.verbs.ship", "from attnport import ship"),
        ("attnport.verbs.ship", "from attnport import __version__"),
        ("attnport.exporter.engine.build", "import attnport\nprint(attnport.__file__)"),
    ],
)
def test_an_import_against_the_order_is_found(module: str, source: str) -> None:
    assert len(violations(source, module)) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("attnport.optional", "from attnport.errors import MissingDependency"),
        ("attnport.masks", "from attnport.dims import Dim"),
        ("attnport.runtimes.ort_cpu", "from attnport.runtimes.base import Runtime\nfrom .base import names"),
        ("attnport.exporter.fusion.rules.bert", "from ..graph import walk\nfrom attnport.masks import MaskSpec"),
        ("attnport.verbs.ship", "from attnport.runtimes import base\nfrom attnport.version import __version__"),
        ("attnport.cli", "def f():\n    from attnport.verbs import ship"),
        ("attnport.cli", "import torch.nn"),
        ("attnport.runtimes._cuda", "from attnport_bundle import cuda"),
        ("attnport.errors", "from attnport_bundle.errors import BundleError"),
    ],
)
def test_an_import_along_the_order_is_fine(module: str, source: str) -> None:
    assert violations(source, module) == []


@pytest.mark.parametrize(
    "back",
    [
        "def f():\n    from attnport.runtimes._first import x",
        "if TYPE_CHECKING:\n    from ._first import x",
        "import attnport.runtimes._first as first",
        "import attnport\nprint(attnport.runtimes._first.x)",
        "from attnport.runtimes import x",
    ],
)
def test_a_circle_of_imports_is_found(back: str) -> None:
    sources = {
        "attnport.runtimes.__init__": "from attnport.runtimes._first import x",
        "attnport.runtimes._first": "from . import _second",
        "attnport.runtimes._second": "from attnport.runtimes._third import x\nimport os.path",
        "attnport.runtimes._third": "import attnport.dims",
    }
    assert circle(sources) == []
    along = circle({**sources, "attnport.runtimes._third": back})
    assert {"attnport.runtimes._first", "attnport.runtimes._second", "attnport.runtimes._third"} <= set(along)


def test_the_readers_check_finds_a_foreign_import() -> None:
    module = "attnport_bundle.reader"
    assert reader_violations("import json, numpy\nfrom . import digest\nimport hashlib", module) == []
    assert reader_violations("import onnxruntime as ort", module) == []
    assert len(reader_violations("def f():\n    import torch", module)) == 1
    assert len(reader_violations("import digest", module)) == 1
    assert len(reader_violations("from attnport.dims import check_feeds", module)) == 1
    assert len(reader_violations("from attnport_bundle_of_another_kind import x", module)) == 1


def test_the_readers_check_finds_a_runtime_that_comes_with_the_import() -> None:
    for source, names in {
        "import openvino": {"openvino"},
        "from onnxruntime.capi import onnxruntime_pybind11_state as s": {"onnxruntime"},
        "try:\n    import tensorrt as trt\nexcept ImportError:\n    pass": {"tensorrt"},
        "class A:\n    import numpy as np": {"numpy"},
        "import importlib\nm = importlib.import_module('tensorrt_rtx')": {"tensorrt_rtx"},
        "if TYPE_CHECKING:\n    import numpy as np\ndef f():\n    import openvino": set(),
        "import json\nfrom . import cuda": set(),
    }.items():
        assert reader_at_import(ast.parse(source)) == names


def test_a_heavy_import_is_found_behind_others() -> None:
    assert heavy_at_import("from rich.table import Table\nimport onnxruntime as ort") == ["onnxruntime", "rich"]
    assert heavy_at_import("def f():\n    import torch") == []
    assert heavy_at_import("if TYPE_CHECKING:\n    import torch") == []
    sources = {
        "attnport.__init__": "",
        "attnport.verbs.__init__": "import attnport.dims",
        "attnport.verbs.ship": "from attnport.verbs import _first\ndef f():\n    from attnport.sources import load",
        "attnport.verbs._first": "if TYPE_CHECKING:\n    import attnport.sources.load",
        "attnport.dims": "",
        "attnport.sources.load": "import torch",
    }
    assert loaded(["attnport.verbs.ship"], sources) == sources.keys() - {"attnport.sources.load"}
    behind = {**sources, "attnport.verbs._first": "from attnport.sources.load import load"}
    assert loaded(["attnport.verbs.ship"], behind) == sources.keys()
