"""Adapts a module that takes or returns structures to flat tensors: by keyword in, a tuple of tensors out.

A structure is a tuple, list, dict, dataclass, named tuple, whatever `torch.utils._pytree` knows (transformers registers
its ModelOutput there), or a cache of transformers. A tensor in it is named by its path, joined by `_`: `past.0.key`
becomes `past_0_key`.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
import re
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attnport.errors import SpecError
from attnport.sources.annotations import parameter_types, structure_of

if TYPE_CHECKING:
    import torch
    from torch import nn

Path = tuple[str, ...]
_PLAIN = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


@dataclasses.dataclass(frozen=True)
class Leaf:
    """The place of a tensor, by its flat name."""

    name: str


@dataclasses.dataclass(frozen=True)
class Constant:
    """A value that is the same in every call."""

    value: Any


@dataclasses.dataclass(frozen=True)
class Branch:
    """A structure: its parts by key, and what makes it of them."""

    keys: tuple[str, ...]
    parts: tuple[Node, ...]
    make: Callable[[list[Any]], Any]


Node = Leaf | Constant | Branch


@dataclasses.dataclass(frozen=True)
class Arguments:
    """What a forward is called with: a node for each of its parameters, with the tensors' flat names in order."""

    signature: inspect.Signature
    nodes: Mapping[str, Node]
    names: tuple[str, ...]

    @property
    def flat(self) -> bool:
        """Whether the forward takes the flat tensors as they are, by keyword."""
        return all(
            node == Leaf(name) and name in self.signature.parameters and self.signature.parameters[name].kind in _PLAIN
            for name, node in self.nodes.items()
        )

    def bound(self, tensors: Mapping[str, torch.Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of a call, positional and by keyword."""
        values = {name: _built(node, tensors) for name, node in self.nodes.items()}
        positional: list[Any] = []
        # Names that the forward does not take are passed as well: Python's own error names them.
        by_keyword = {name: value for name, value in values.items() if name not in self.signature.parameters}
        last = _last_positional(self.signature, values)
        for at, (name, parameter) in enumerate(self.signature.parameters.items()):
            if parameter.kind is inspect.Parameter.VAR_KEYWORD:
                by_keyword.update(values.get(name, {}))
            elif parameter.kind is inspect.Parameter.VAR_POSITIONAL:
                positional.extend(values.get(name, ()))
            elif at <= last:
                positional.append(values.get(name, parameter.default))
            elif name in values:
                by_keyword[name] = values[name]
        return tuple(positional), by_keyword


def of_examples(
    module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[Arguments, dict[Path, torch.Tensor]]:
    """The arguments of a call, and the tensors among them by path.

    Raises:
        SpecError: the forward does not take them, or one holds tensors in a way that cannot be seen.
    """
    signature = inspect.signature(module.forward)
    try:
        given = signature.bind(*args, **kwargs).arguments
    except TypeError as err:
        raise SpecError(
            f"the forward of {type(module).__name__} does not take these examples: {err}.",
            hint=f"It is forward{signature}.",
        ) from err
    nodes: dict[str, Node] = {}
    found: dict[Path, torch.Tensor] = {}
    for name, value in given.items():
        # A name in **kwargs is one that users would write at the top.
        variable = signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD
        nodes[name] = take_apart(value, () if variable else (name,), found)
    return Arguments(signature, nodes, tuple(map(flat_name, found))), found


def of_declarations(module: nn.Module, paths: Sequence[Path], constants: Mapping[Path, Any]) -> Arguments:
    """The arguments that declarations such as `past.0=...` stand for.

    What a structure is follows from the annotation of the forward; without one, names make a dict and numbers a tuple.

    Raises:
        SpecError: two declarations contradict each other, or the places in a sequence are not 0, 1, 2, ...
    """
    from attnport.known import as_constant

    signature = inspect.signature(module.forward)
    kinds = {parameter.kind: name for name, parameter in signature.parameters.items()}
    rest = kinds.get(inspect.Parameter.VAR_KEYWORD)
    types = parameter_types(module)
    trees: dict[str, Any] = {}
    for path in (*paths, *constants):
        inside = path if path[0] in signature.parameters or rest is None else (rest, *path)
        tree = trees
        for part in inside[:-1]:
            tree = tree.setdefault(part, {})
            if not isinstance(tree, dict):
                break
        if not isinstance(tree, dict) or inside[-1] in tree:
            raise SpecError(f"--input {'.'.join(path)}: another --input declares it, or a part of it.")
        tree[inside[-1]] = Constant(as_constant(constants[path])) if path in constants else Leaf(flat_name(path))
    nodes: dict[str, Node] = {}
    for name, tree in trees.items():
        variable = name == rest
        nodes[name] = _declared(tree, dict if variable else types.get(name), name)
    return Arguments(signature, nodes, tuple(map(flat_name, paths)))


def _declared(tree: Any, annotation: Any, path: str) -> Node:
    if not isinstance(tree, dict):
        node: Node = tree
        return node
    make, types = structure_of(annotation, tuple(tree), path)
    keys = sorted(tree, key=int) if all(key.isdigit() for key in tree) else list(tree)
    parts = tuple(_declared(tree[key], types.get(key), f"{path}.{key}") for key in keys)
    return Branch(tuple(keys), parts, lambda values: make(dict(zip(keys, values, strict=True))))


def take_apart(value: Any, path: Path, found: dict[Path, torch.Tensor]) -> Node:
    """A value as a node; its tensors are added to `found` by their paths.

    Raises:
        SpecError: it is an object that holds tensors and is no structure that is known.
    """
    import torch

    if isinstance(value, torch.Tensor):
        found[path] = value
        return Leaf(flat_name(path))
    opened = _opened(value)
    if opened is not None:
        parts, make = opened
        keys = tuple(name for name, _ in parts)
        return Branch(keys, tuple(take_apart(part, (*path, name), found) for name, part in parts), make)
    held = [name for name, inner in getattr(value, "__dict__", {}).items() if isinstance(inner, torch.Tensor)]
    if held and not isinstance(value, torch.nn.Module):
        raise SpecError(
            f"{'.'.join(path) or 'the result'} is a {type(value).__name__}, which holds tensors ({held[0]}) and is no "
            "structure that is known.",
            hint="Make it a dataclass, or register it with torch.utils._pytree.register_pytree_node.",
        )
    return Constant(value)


def _opened(value: Any) -> tuple[list[tuple[str, Any]], Callable[[list[Any]], Any]] | None:
    """The parts of a structure by name, and what makes such a structure of others; None for anything else."""
    import torch.utils._pytree as pytree

    layers = getattr(value, "layers", None)
    if isinstance(layers, list) and all(hasattr(layer, "keys") and hasattr(layer, "values") for layer in layers):
        return _cache(value, layers)
    known = pytree.SUPPORTED_NODES.get(pytree._get_node_type(value))
    if known is not None:
        children, context = known.flatten_fn(value)
        keyed = known.flatten_with_keys_fn(value)[0] if known.flatten_with_keys_fn else enumerate(children)
        names = [_key(key) for key, _ in keyed]
        return list(zip(names, children, strict=True)), lambda parts: known.unflatten_fn(parts, context)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = [field.name for field in dataclasses.fields(value) if hasattr(value, field.name)]

        def make(parts: list[Any]) -> Any:
            made = copy.copy(value)  # not by calling the class, which may compute some of its fields
            for field, part in zip(fields, parts, strict=True):
                object.__setattr__(made, field, part)
            return made

        return [(field, getattr(value, field)) for field in fields], make
    return None


def _cache(value: Any, layers: list[Any]) -> tuple[list[tuple[str, Any]], Callable[[list[Any]], Any]]:
    """A cache of transformers: `0.key`, `0.value`, `1.key`, ... of the layers that hold something."""
    filled = [at for at, layer in enumerate(layers) if layer.keys is not None and layer.values is not None]

    def make(pairs: list[Any]) -> Any:
        made = copy.copy(value)
        made.layers = [copy.copy(layer) for layer in layers]
        for at, pair in zip(filled, pairs, strict=True):
            made.layers[at].keys, made.layers[at].values = pair["key"], pair["value"]
        return made

    return [(str(at), {"key": layers[at].keys, "value": layers[at].values}) for at in filled], make


def _key(key: Any) -> str:
    """The name of one step of torch's key paths."""
    found = next((getattr(key, name) for name in ("key", "idx", "name") if hasattr(key, name)), key)
    return str(found)


def flat_name(path: Path) -> str:
    """The flat name of a path; letters that no name may have become `_`."""
    return re.sub(r"\W", "_", "_".join(path), flags=re.ASCII)


def flat_outputs(result: Any, taken: Collection[str] = ()) -> dict[str, torch.Tensor]:
    """The tensors of a module's result by name: `output`, `output_0`, ..., or the keys and fields of the result.

    Args:
        taken: Names of inputs; an output of that name gets `_out` behind it.
    """
    found: dict[Path, torch.Tensor] = {}
    take_apart(result, (), found)
    named: dict[str, torch.Tensor] = {}
    for path, tensor in found.items():
        name = flat_name(path)
        name = name if name and not name[0].isdigit() else "_".join(filter(None, ("output", name)))
        while name in taken or name in named:
            name += "_out"
        named[name] = tensor
    return named


def _other(result: Any) -> str:
    """What a result holds that is neither a tensor nor None, and where; "" for nothing."""
    pending: list[tuple[str, Node]] = [("", take_apart(result, (), {}))]
    for name, node in pending:
        if isinstance(node, Constant) and node.value is not None:
            return f"{name.lstrip('.')}={node.value!r:.40}"
        if isinstance(node, Branch):
            pending += [(f"{name}.{key}", part) for key, part in zip(node.keys, node.parts, strict=True)]
    return ""


class Observed:
    """Calls a module with flat tensors by keyword, and returns those outputs by name that are wanted.

    Attributes:
        adapts: Whether the module must be `adapted` to be called so; known after a call.
    """

    def __init__(self, module: nn.Module, arguments: Arguments, outputs: Sequence[str], text: str) -> None:
        self._module, self._arguments, self._wanted, self._text = module, arguments, tuple(outputs), text
        self.adapts = not arguments.flat

    def __call__(self, **tensors: torch.Tensor) -> dict[str, torch.Tensor]:
        """The outputs by name.

        Raises:
            SpecError: there is no such output, or there is none at all.
        """
        import torch

        args, kwargs = self._arguments.bound(tensors)
        result = self._module(*args, **kwargs)
        found = flat_outputs(result, self._arguments.names)
        if not found:
            raise SpecError(
                f"{self._text}: its forward returns {type(result).__name__} without a tensor in it.",
                hint="Return a tensor, or a structure that has one.",
            )
        if not self._wanted and (other := _other(result)):
            raise SpecError(
                f"{self._text}: its forward returns {type(result).__name__} with {other}, which is no tensor.",
                hint=f"Choose the outputs: --outputs {' --outputs '.join(found)}.",
            )
        values = (result,) if isinstance(result, torch.Tensor) else result
        flat = isinstance(values, tuple | list) and all(isinstance(value, torch.Tensor) for value in values)
        for name in self._wanted:
            if name not in found:
                raise SpecError(
                    f"{self._text}: got --outputs {name}; its forward returns {', '.join(found)}.",
                    hint="Name one of these.",
                )
        chosen = {name: found[name] for name in self._wanted or found}
        self.adapts = self.adapts or not flat or list(chosen) != list(found)
        return chosen


def adapted(module: nn.Module, arguments: Arguments, outputs: Sequence[str]) -> nn.Module:
    """`module` with another forward: the flat tensors of `arguments` by keyword in, those called `outputs` out.

    It is a shallow copy, whose class is a subclass with the name of the module's own. So paths of modules, names of
    parameters, deep copies, casts and `isinstance` stay what they were. Hooks of the module itself see its own
    arguments and results.
    """
    from attnport.known import computing

    kind, names, chosen = type(module), arguments.names, tuple(outputs)
    made = copy.copy(module)
    own = made.__dict__.pop("forward", None)  # somebody replaced the forward of this one instance
    hooks = _Hooks(made)

    def forward(self: nn.Module, *positional: torch.Tensor, **tensors: torch.Tensor) -> Any:
        tensors = {**dict(zip(names, positional, strict=False)), **tensors}
        args, kwargs = arguments.bound(tensors)
        with computing(args, kwargs):
            result = hooks.run(self, own or kind.forward.__get__(self), args, kwargs)
        found = flat_outputs(result, names)
        missing = [name for name in chosen if name not in found]
        if missing:
            raise SpecError(f"{kind.__name__}: its forward returned no {missing[0]}; it returned {', '.join(found)}.")
        return found[chosen[0]] if chosen == ("output",) else tuple(found[name] for name in chosen)

    keyword = inspect.Parameter.POSITIONAL_OR_KEYWORD
    forward.__signature__ = inspect.Signature(  # type: ignore[attr-defined]  # torch.export binds by it
        [inspect.Parameter(name, keyword) for name in ("self", *names)]
    )
    space = {"forward": forward, "__module__": kind.__module__, "__qualname__": kind.__qualname__}
    meta: Any = type(kind)
    made.__class__ = meta(kind.__name__, (kind,), space)
    return made


def own_copy(module: nn.Module) -> nn.Module:
    """A shallow copy, whose hooks are its own: what is registered on it does not reach `module`."""
    made = copy.copy(module)
    for name in _Hooks.KEPT:
        made.__dict__[name] = OrderedDict(made.__dict__.get(name, {}))
    return made


class _Hooks:
    """The hooks of a module's own forward, taken from it."""

    KEPT = ("_forward_pre_hooks", "_forward_pre_hooks_with_kwargs", "_forward_hooks", "_forward_hooks_with_kwargs")

    def __init__(self, module: nn.Module) -> None:
        self._before, self._before_with, self._after, self._after_with = (getattr(module, name) for name in self.KEPT)
        for name in self.KEPT:
            module.__dict__[name] = OrderedDict()

    def run(self, module: nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Calls `forward` between the hooks, as torch does."""
        for number, before in self._before.items():
            if number in self._before_with:
                args, kwargs = before(module, args, kwargs) or (args, kwargs)
            elif (changed := before(module, args)) is not None:
                args = changed if isinstance(changed, tuple) else (changed,)
        result = forward(*args, **kwargs)
        for number, after in self._after.items():
            given = (args, kwargs) if number in self._after_with else (args,)
            replaced = after(module, *given, result)
            result = result if replaced is None else replaced
        return result


def _built(node: Node, tensors: Mapping[str, torch.Tensor]) -> Any:
    if isinstance(node, Leaf):
        return tensors[node.name]
    if isinstance(node, Constant):
        return node.value
    return node.make([_built(part, tensors) for part in node.parts])


def _last_positional(signature: inspect.Signature, values: Mapping[str, Any]) -> int:
    """The place of the last parameter that must be given by position; -1 if there is none."""
    last = -1
    for at, (name, parameter) in enumerate(signature.parameters.items()):
        if name in values and parameter.kind in (
            inspect.Parameter.POSITIONAL_ONLY,
            inspect.Parameter.VAR_POSITIONAL,
        ):
            last = at
    return last
