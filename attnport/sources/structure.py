"""Adapts a module that takes or returns structures to flat tensors: by keyword in, a tuple of tensors out.

A structure is a tuple, list, dict, dataclass, named tuple, whatever `torch.utils._pytree` knows (transformers registers
its ModelOutput there), or a cache of transformers. A tensor in it is named by its path, joined by `_`: `past.0.key`
becomes `past_0_key`.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
import keyword
import re
import types
from collections import deque
from collections.abc import Callable, Collection, Mapping, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any

from attnport.errors import SpecError, first_line
from attnport.sources.annotations import is_cache, parameter_types, structure_of

if TYPE_CHECKING:
    import torch
    from torch import nn

Path = tuple[str, ...]
NARROW = {"uint8": 2**8, "int8": 2**7, "uint16": 2**16, "int16": 2**15}
"""Types of whole numbers that inputs of a contract do not have, and how many numbers from 0 on each of them has."""
_PLAIN = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


@dataclasses.dataclass(frozen=True)
class Leaf:
    """The place of a tensor, by its flat name.

    Attributes:
        dtype: The type that the module is given; "" = that of the input. Types of whole numbers that no contract has,
            such as uint8, come in as int32.
    """

    name: str
    dtype: str = ""


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
        nodes[name] = take_apart(value, () if variable else (name,), found, read=_plain)
    _check_names(module, list(found))
    return Arguments(signature, nodes, tuple(map(flat_name, found))), found


def _plain(value: Any) -> Any:
    """An example as the module is exported: a tensor on the processor, not in half precision; a number of Python."""
    import numpy as np
    import torch

    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        try:
            value = torch.from_numpy(np.ascontiguousarray(value) if value.ndim else value)
        except TypeError as err:
            raise SpecError(
                f"an example is an array of {value.dtype}: {first_line(err)}", hint="Give numbers."
            ) from err
    if not isinstance(value, torch.Tensor):
        return value
    value = value.detach().cpu()
    return value.float() if value.dtype in (torch.float16, torch.bfloat16) else value


def _check_names(module: nn.Module, paths: Sequence[Path]) -> None:
    """Raises SpecError for inputs whose flat names are one, or are no names that a module can be called with."""
    by_name: dict[str, Path] = {}
    for path in paths:
        name, text = flat_name(path), ".".join(path)
        if name in by_name:
            raise SpecError(
                f"{type(module).__name__}: {'.'.join(by_name[name])} and {text} would both be the input {name}.",
                hint="Rename one of them: a parameter of the forward, or a key.",
            )
        if name == "self" or not name.isidentifier() or keyword.iskeyword(name):
            raise SpecError(
                f"{type(module).__name__}: {text} cannot be the name of an input: modules are called by keyword.",
                hint="Rename it, to a name of Python other than self.",
            )
        by_name[name] = path


def of_declarations(
    module: nn.Module, paths: Sequence[Path], constants: Mapping[Path, Any], dtypes: Mapping[str, str] | None = None
) -> Arguments:
    """The arguments that declarations such as `past.0=...` stand for.

    What a structure is follows from the annotation of the forward; without one, names make a dict and numbers a tuple.

    Args:
        paths: Of the tensors.
        constants: Values that are the same in every call, by path.
        dtypes: By flat name, the types that the module is given where inputs have others, see `Leaf`.

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
        name = flat_name(path)
        held: Node = Leaf(name, (dtypes or {}).get(name, ""))
        tree[inside[-1]] = Constant(as_constant(constants[path])) if path in constants else held
    _check_names(module, paths)
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


def take_apart(
    value: Any, path: Path, found: dict[Path, torch.Tensor], read: Callable[[Any], Any] = lambda value: value
) -> Node:
    """A value as a node; its tensors are added to `found` by their paths.

    Args:
        read: What a tensor, an array or a number is taken as.

    Raises:
        SpecError: it is an object that holds tensors and is no structure that is known.
    """
    import torch

    value = read(value)
    if isinstance(value, torch.Tensor):
        found[path] = value
        dtype = str(value.dtype).removeprefix("torch.")
        return Leaf(flat_name(path), dtype if dtype in NARROW else "")
    opened = _opened(value)
    if opened is not None:
        parts, make = opened
        keys = tuple(name for name, _ in parts)
        return Branch(keys, tuple(take_apart(part, (*path, name), found, read) for name, part in parts), make)
    if held := _tensor_in(value):
        raise SpecError(
            f"{'.'.join(path) or 'the result'} is a {type(value).__name__}, which holds tensors ({held}) and is no "
            "structure that is known.",
            hint="Make it a dataclass, or register it with torch.utils._pytree.register_pytree_node.",
        )
    return Constant(value)


def _tensor_in(value: Any) -> str:
    """The place of a tensor inside of an object, however deep, as `.state.0`; "" for none."""
    import torch

    pending, seen = [("", value)], set[int]()
    while pending:
        place, held = pending.pop()
        if isinstance(held, torch.Tensor):
            return place.lstrip(".")
        if id(held) in seen or isinstance(held, str | bytes | int | float | type | torch.nn.Module | types.ModuleType):
            continue
        seen.add(id(held))
        names = [*getattr(held, "__dict__", ()), *(name for kind in type(held).__mro__ for name in _slots(kind))]
        pending += [(f"{place}.{name}", getattr(held, name)) for name in names if hasattr(held, name)]
        if isinstance(held, Mapping):
            pending += [(f"{place}.{key}", part) for key, part in held.items()]
        elif isinstance(held, list | tuple | set | frozenset | deque):
            pending += [(f"{place}.{at}", part) for at, part in enumerate(held)]
    return ""


def _slots(kind: type) -> tuple[str, ...]:
    slots = kind.__dict__.get("__slots__", ())
    return (slots,) if isinstance(slots, str) else tuple(map(str, slots))


def _opened(value: Any) -> tuple[list[tuple[str, Any]], Callable[[list[Any]], Any]] | None:
    """The parts of a structure by name, and what makes such a structure of others; None for anything else."""
    import torch.utils._pytree as pytree

    layers = getattr(value, "layers", None)
    if is_cache(type(value)) and isinstance(layers, list) and all(map(_keys_and_values_alone, layers)):
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
    if isinstance(value, MutableMapping):

        def filled(parts: list[Any]) -> Any:
            made = copy.copy(value)
            for key, part in zip(held, parts, strict=True):
                made[key] = part
            return made

        held = list(value)
        return [(str(key), value[key]) for key in held], filled
    return None


def _keys_and_values_alone(layer: Any) -> bool:
    """Whether a layer of a cache has keys and values, and no other tensors."""
    others = {name: held for name, held in vars(layer).items() if name not in ("keys", "values")}
    return hasattr(layer, "keys") and hasattr(layer, "values") and not _tensor_in(others)


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


def _built(node: Node, tensors: Mapping[str, torch.Tensor]) -> Any:
    import torch

    if isinstance(node, Leaf):
        tensor = tensors[node.name]
        return tensor.to(getattr(torch, node.dtype)) if node.dtype else tensor
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
