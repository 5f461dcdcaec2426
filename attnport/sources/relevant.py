"""The part of a Python file that some of its names depend on, without comments: what a change has to be in to matter.

Kept are the names themselves, all that they refer to in the file, and whatever runs when the file is imported. Left out
are functions and classes that nothing of this refers to. A reference is a name, or a string that reads like the name of
a definition; where code may reach the others in another way (`globals()`, `exec`, ...), all of them are kept.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Iterator

_REACHING = frozenset(
    ("globals", "locals", "vars", "eval", "exec", "compile", "__import__", "import_module", "modules", "__dict__",
     "getmembers", "__subclasses__", "inspect")
)  # fmt: skip
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def relevant(source: bytes, names: Collection[str]) -> bytes:
    """What of a file `names` depend on, in one spelling; the file as it is, if it is no Python or lacks a name."""
    try:
        tree = ast.parse(source)
        defined = [node for node in tree.body if isinstance(node, _DEFINITIONS)]
        known = {node.name for node in defined}
        if not known.issuperset(names) and not _assigned(tree).issuperset(set(names) - known):
            return source
        # A decorator may have put a definition where others find it.
        run = [node for node in tree.body if not isinstance(node, _DEFINITIONS) and not _is_main(node)]
        run += [node for node in defined if node.decorator_list]
        reached = _reached(run, defined, known, set(names))
        kept = [node for node in tree.body if node in reached]
        if any(_REACHING.intersection(_words(node)) for node in kept):
            kept = [node for node in tree.body if not _is_main(node)]
        for node in kept:
            _without_docstrings(node)
        return "\n".join(ast.unparse(node) for node in kept if not _is_text(node)).encode()
    except (SyntaxError, ValueError, RecursionError):
        return source


def _reached(
    run: Iterable[ast.stmt], defined: Iterable[ast.stmt], known: Collection[str], names: set[str]
) -> list[ast.stmt]:
    """The statements that run on import, the definitions of `names`, and all definitions that these refer to."""
    pending, found = list(run), list(run)
    wanted = set(names)
    while True:
        for node in pending:
            wanted |= _words(node) & set(known)
        pending = [node for node in defined if getattr(node, "name", "") in wanted and node not in found]
        if not pending:
            return found
        found += pending


def _words(node: ast.AST) -> set[str]:
    """The names that code has in it, and its strings."""
    words = set()
    for part in ast.walk(node):
        if isinstance(part, ast.Name):
            words.add(part.id)
        elif isinstance(part, ast.Attribute):
            words.add(part.attr)
        elif isinstance(part, ast.Constant) and isinstance(part.value, str):
            words.update(part.value.replace(".", " ").split() if len(part.value) < 200 else ())
        elif isinstance(part, ast.alias):
            words.add(part.name.rpartition(".")[2])
    return words


def _assigned(tree: ast.Module) -> set[str]:
    return {part.id for node in tree.body for part in ast.walk(node) if isinstance(part, ast.Name)} | {
        alias.asname or alias.name for node in tree.body for alias in getattr(node, "names", ()) if _is_import(node)
    }


def _is_import(node: ast.AST) -> bool:
    return isinstance(node, ast.Import | ast.ImportFrom)


def _is_main(node: ast.stmt) -> bool:
    """Whether it is `if __name__ == "__main__":`, which is not run on import."""
    return isinstance(node, ast.If) and not node.orelse and ast.unparse(node.test) == "__name__ == '__main__'"


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _without_docstrings(node: ast.AST) -> None:
    for part in _definitions(node):
        part.body = [item for item in part.body if not _is_text(item)] or [ast.Pass()]


def _definitions(node: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef]:
    for part in ast.walk(node):
        if isinstance(part, _DEFINITIONS):
            yield part
