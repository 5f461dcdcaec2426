"""Finds the attentions of a graph, and gives each the name under which it was counted at export."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import TYPE_CHECKING

from attnport import registry
from attnport.artifacts import SourceAttention
from attnport.exporter.counting import counts
from attnport.exporter.fusion.attention import Context, Miss, NotRecognised, Recognised
from attnport.exporter.naming import module_of
from attnport.masks import MaskSpec

if TYPE_CHECKING:
    import onnx_ir as ir


@dataclass(frozen=True)
class Recognition:
    """The attentions in graph order, and the reason for each counted attention that is not among them."""

    attentions: tuple[Recognised, ...]
    reasons: dict[str, str]


def rule_modules() -> list[ModuleType]:
    """The rules: files in `rules/` with `OP_TYPE`, `applies(node)` and `match(node, context) -> Recognised`."""
    package = "attnport.exporter.fusion.rules"
    return [registry.module(package, name, "rule") for name in registry.names(package)]


def recognise(model: ir.Model, counted: Sequence[SourceAttention], *, masks: Collection[MaskSpec] = ()) -> Recognition:
    """Recognises the attentions of `model`; each of `counted` is either recognised or has a reason.

    Args:
        model: As exported; shapes of the values are used.
        counted: The attentions counted in the torch graph.
        masks: The mask contracts of the graph's inputs.
    """
    rules = {rule.OP_TYPE: rule for rule in rule_modules()}
    context = Context(tuple(masks))
    matches: list[_Match] = []
    for node in model.graph:
        rule = rules.get(node.op_type) if node.domain == "" else None
        if rule is None or not rule.applies(node):
            continue
        module = module_of(node)
        item: Recognised | Miss
        try:
            item = rule.match(node, context)
        except NotRecognised as err:
            item = Miss(node.name or "", module or "", str(err), err.change)
        matches.append(_Match(module, item, counts(node)))
    return _assign(matches, counted, _in_branches(model, rules))


@dataclass(frozen=True)
class _Match:
    """A rule's result for a node, the node's module path if it has one, and whether the count would count the node."""

    module: str | None
    item: Recognised | Miss
    counts: bool


def _without_surplus(matches: list[_Match], paths: list[str], *, with_path: bool) -> list[_Match]:
    """Removes unrecognised nodes, such as a gate beside an attention, while there are more nodes than were counted.

    Nodes that the count would not count go first, then the others from the last one back.
    """
    kept = list(matches)
    for path in dict.fromkeys(paths) if with_path else (None,):
        here = [match for match in kept if not with_path or match.module == path]
        surplus = len(here) - (paths.count(str(path)) if with_path else len(paths))
        misses = [(match.counts, -place, match) for place, match in enumerate(here) if isinstance(match.item, Miss)]
        going = [match for *_, match in sorted(misses, key=lambda entry: entry[:2])[: max(surplus, 0)]]
        kept = [match for match in kept if all(match is not gone for gone in going)]
    return kept


def _in_branches(model: ir.Model, operators: Collection[str]) -> dict[str, str]:
    """The control flow operators that have attentions in their branches, by the module path of the attention."""
    import onnx_ir as ir

    operator_of: dict[str, str] = {}
    for node in model.graph:
        for attribute in node.attributes.values():
            if attribute.type == ir.AttributeType.GRAPH:
                for inner in ir.traversal.RecursiveGraphIterator(attribute.as_graph()):
                    if inner.op_type in operators:
                        operator_of[module_of(inner) or ""] = node.op_type
    return operator_of


def _assign(
    matches: Sequence[_Match],
    counted: Sequence[SourceAttention],
    branches: dict[str, str],
) -> Recognition:
    """Matches nodes with counted attentions by module path and order; nodes without a path by order alone."""
    open_names = {attention.name: attention.module for attention in counted}
    attentions: list[Recognised] = []
    reasons: dict[str, str] = {}
    counted_modules = set(open_names.values())
    for with_path in (True, False):
        # A node with the path of a counted module can stand only for an attention of that module.
        several = [match for match in matches if (match.module in counted_modules) is with_path]
        for match in _without_surplus(several, list(open_names.values()), with_path=with_path):
            module, item = match.module, match.item
            name = next((name for name, path in open_names.items() if not with_path or path == module), None)
            if name is None:
                continue  # the exporter added or split off this node: it stands for no counted attention
            del open_names[name]
            if isinstance(item, Miss):
                reasons[name] = f"{item.reason} (node {item.node}){f'; {item.change}' if item.change else ''}"
            else:
                attentions.append(replace(item, name=name))
    for name, module in open_names.items():
        operator = branches.get(module) or (branches.get("") if len(branches) == 1 else None)
        reasons[name] = (
            f"it lies inside a branch of the control flow operator {operator}, where nothing is lowered"
            if operator
            else f"nothing in the exported graph stands for it (module {module or 'outermost'})"
        )
    return Recognition(tuple(attentions), reasons)
