"""Finds the attentions of a graph and gives each the name under which it was counted at export."""

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
from attnport.masks.spec import MaskSpec

if TYPE_CHECKING:
    import onnx_ir as ir


@dataclass(frozen=True)
class Recognition:
    """Attentions by graph order, and for each counted one that is not among them the reason."""

    attentions: tuple[Recognised, ...]
    reasons: dict[str, str]


def rule_modules() -> list[ModuleType]:
    """Every rule: a file in `rules/` with `OP_TYPE` and `match(node, context) -> Recognised` (or NotRecognised)."""
    package = "attnport.exporter.fusion.rules"
    return [registry.module(package, name, "rule") for name in registry.names(package)]


def recognise(model: ir.Model, counted: Sequence[SourceAttention], *, masks: Collection[MaskSpec] = ()) -> Recognition:
    """Recognises the attentions of `model`; every one of `counted` ends in exactly one row.

    Args:
        model: As exported; shapes of the values are used.
        counted: The attentions counted in the torch graph.
        masks: The mask contracts of the graph's inputs.
    """
    rules = {rule.OP_TYPE: rule for rule in rule_modules()}
    context = Context(tuple(masks))
    found: list[_Found] = []
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
        found.append(_Found(module, item, counts(node)))
    return _assign(found, counted, _in_branches(model, rules))


@dataclass(frozen=True)
class _Found:
    """What a rule made of a node, the node's module path if it has one, and whether the count's rules count it."""

    module: str | None
    item: Recognised | Miss
    counts: bool


def _without_surplus(found: list[_Found], paths: list[str], *, with_path: bool) -> list[_Found]:
    """Where more was found than counted, what was not recognised goes: a gate beside an attention is none of them.

    First what the count's rules do not count, then the others, the last one first.
    """
    kept = list(found)
    for path in dict.fromkeys(paths) if with_path else (None,):
        here = [each for each in kept if not with_path or each.module == path]
        surplus = len(here) - (paths.count(str(path)) if with_path else len(paths))
        misses = [(each.counts, -place, each) for place, each in enumerate(here) if isinstance(each.item, Miss)]
        going = [each for *_, each in sorted(misses, key=lambda entry: entry[:2])[: max(surplus, 0)]]
        kept = [each for each in kept if all(each is not gone for gone in going)]
    return kept


def _in_branches(model: ir.Model, operators: Collection[str]) -> dict[str, str]:
    """By module path, the control flow operator inside which an attention of that module lies."""
    import onnx_ir as ir

    found: dict[str, str] = {}
    for node in model.graph:
        for attribute in node.attributes.values():
            if attribute.type == ir.AttributeType.GRAPH:
                for inner in ir.traversal.RecursiveGraphIterator(attribute.as_graph()):
                    if inner.op_type in operators:
                        found[module_of(inner) or ""] = node.op_type
    return found


def _assign(
    found: Sequence[_Found],
    counted: Sequence[SourceAttention],
    branches: dict[str, str],
) -> Recognition:
    """Matches by module path and order within it; what lost its path is matched by order over what is left."""
    open_names = {attention.name: attention.module for attention in counted}
    attentions: list[Recognised] = []
    reasons: dict[str, str] = {}
    counted_modules = set(open_names.values())
    for with_path in (True, False):
        # What has the path of a counted module stands for an attention of that module or for none.
        several = [each for each in found if (each.module in counted_modules) is with_path]
        for each in _without_surplus(several, list(open_names.values()), with_path=with_path):
            module, item = each.module, each.item
            name = next((name for name, path in open_names.items() if not with_path or path == module), None)
            if name is None:
                continue  # a node that the exporter added or split off: it stands for no counted attention
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
