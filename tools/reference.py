"""The pages of the site's reference: of docstrings, which mkdocstrings reads, and of the command line's help."""

from __future__ import annotations

import ast
import importlib
import inspect
from collections.abc import Iterable
from pathlib import Path

import click

from attnport.cli import cli
from attnport.options import parameters

VALUES = {
    "What goes in": (
        "attnport.artifacts.ModelSpec",
        "attnport.artifacts.IOContract",
        "attnport_bundle.format.contract.TensorSpec",
        "attnport_bundle.format.contract.Dim",
        "attnport_bundle.format.contract.MaskSpec",
    ),
    "What comes out": (
        "attnport.artifacts.Manifest",
        "attnport.artifacts.FusionReport",
        "attnport.artifacts.FusionTable",
        "attnport.artifacts.FusionItem",
        "attnport.artifacts.EngineRecord",
        "attnport.parities.ParityReport",
        "attnport.parities.RuntimeParity",
        "attnport.parities.CaseResult",
        "attnport.latencies.LatencyReport",
        "attnport.latencies.LatencyRow",
        "attnport.latencies.TuneReport",
        "attnport.latencies.Candidate",
        "attnport.verbs.verify.VerifyResult",
        "attnport.verbs.audit.AuditReport",
        "attnport.verbs.inspect.Inspection",
    ),
}
MASKS = ("torch_builders", "torch_biases", "numpy_builders", "numpy_biases")
COMMAND_LINE = """# The command line

Every verb and its options, as `attnport VERB --help` says them. What a verb ends with is in
[the list of exit codes](../stable.md#exit-codes), and what `--json` prints in [the JSON](../json.md).
"""


def command_line(program: click.Group) -> str:
    """The page of the verbs, each as its --help has it."""
    parts = [COMMAND_LINE]
    for name, verb in sorted(program.commands.items()):
        context = click.Context(verb, info_name=f"attnport {name}")
        usage = " ".join([context.command_path, *verb.collect_usage_pieces(context)])
        told = inspect.cleandoc(verb.help or "").replace("\b\n", "")
        options = [one for one in verb.get_params(context) if isinstance(one, click.Option)]
        records = filter(None, (option.get_help_record(context) for option in options))
        rows = "\n".join(f"| `{option}` | {said} |".replace("\n", " ") for option, said in records)
        parts.append(f"## {name}\n\n```text\n{usage}\n```\n\n{told}\n\n| option | |\n|-|-|\n{rows}\n")
    return "\n".join(parts)


def homes(package: Path) -> dict[str, str]:
    """The module that each name of a package's `__all__` comes from, by the imports for type checkers."""
    tree = ast.parse((package / "__init__.py").read_text("utf-8"))
    found: dict[str, str] = {}
    names: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            home = f"{package.name}.{node.module}" if node.level else node.module
            found |= {alias.name: home for alias in node.names}
        elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            names = ast.literal_eval(node.value)
    return {name: found[name] for name in names}


def _one(path: str, shown: str, level: int = 2) -> str:
    """Where mkdocstrings puts one name."""
    options = f'      heading: "{shown}"\n      toc_label: "{shown}"\n      heading_level: {level}\n'
    return f"::: {path}\n    options:\n{options}"


def _package(package: Path) -> str:
    """What a package gives, but for its errors, which have a page of their own."""
    named = {name: home for name, home in homes(package).items() if not home.endswith(".errors")}
    return "\n".join(
        _one(f"{home}.{name}", f"{package.name}.{name}") + _taken(getattr(importlib.import_module(home), name))
        for name, home in named.items()
    )


def _taken(value: object) -> str:
    """The parameters of a verb, whose signature explains them; "" for anything else."""
    rows = [
        f"| `{one.name}` | {', '.join(f'`{flag}`' for flag in one.flags)} | {one.note.help} |"
        for one in (parameters(value).values() if inspect.isfunction(value) else ())
        if one.note is not None
    ]
    return "\n".join(["\n| parameter | option | |", "|-|-|-|", *rows, ""]) if rows else ""


def _values(paths: Iterable[str]) -> str:
    return "\n".join(_one(path, path.rpartition(".")[2], 3) for path in paths)


def reference_pages(root: Path) -> dict[str, str]:
    """The text of each page, by its place on the site."""
    values = "\n".join(f"## {title}\n\n{_values(paths)}" for title, paths in VALUES.items())
    masks = "\n".join(_one(f"attnport.masks.{name}", f"attnport.masks.{name}") for name in MASKS)
    errors = "\n".join(_one(f"{package}.errors", f"{package}.errors") for package in ("attnport_bundle", "attnport"))
    return {
        "reference/command-line.md": command_line(cli),
        "reference/attnport.md": "# Python: attnport\n\nWhat `import attnport` gives. The verbs take a folder first, "
        "and are methods of an `Artifact` too.\n\n"
        + _package(root / "attnport")
        + "\n"
        + _one("attnport.testing", "attnport.testing"),
        "reference/attnport_bundle.md": "# Python: attnport_bundle\n\nThe reader of bundles, installed or copied into "
        "a bundle. It raises [its errors](errors.md).\n\n" + _package(root / "attnport_bundle"),
        "reference/values.md": f"# Values\n\nWhat the verbs take and return. Each is a frozen dataclass.\n\n{values}",
        "reference/masks.md": f"# Masks\n\nWhat [the mask contract](../masks.md) is built with.\n\n{masks}",
        "reference/errors.md": f"# Errors\n\nEach class has the exit code of a verb that ends by it.\n\n{errors}",
    }
