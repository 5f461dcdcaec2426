"""What a forward is called with, as a tree whose leaves are inputs of the graph and constants.

A structure is a tuple, list, dict, dataclass, named tuple, whatever `torch.utils._pytree` knows (transformers registers
its ModelOutput there), or a cache of transformers. A tensor in it is named by its path, joined by `_`: `past.0.key`
becomes `past_0_key`. Results of a forward are taken apart in the same way.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
import keyword
import re
import types
import typing
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Mapping, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from attnport.dims import TensorSpec
from attnport.errors import SpecError, UsageError, first_line
from attnport.masks import MaskSpec
from attnport.options import advised
from attnport.patches import Caches
from attnport.user_code import copy_of

if TYPE_CHECKING:
    import torch
    from torch import nn

Path = tuple[str, ...]
"""The place of a value among the arguments: `("past", "0", "key")`."""
NARROW = {"uint8": 2**8, "int8": 2**7, "uint16": 2**16, "int16": 2**15}
"""Types of whole numbers that inputs of a contract do not have, and how many numbers from 0 on each of them has."""


class Input(NamedTuple):
    """A tensor among the arguments.

    Attributes:
        spec: The input of the graph: its flat name, its type and its dims.
        mask: What it hides; None if it is no mask.
        dtype: The type that the module is given, where that is one of `NARROW`: the input is then int32.
        example: The values that it has in every test, as of `example_values.packed`; "" = random ones.
    """

    spec: TensorSpec
    mask: MaskSpec | None = None
    dtype: str = ""
    example: str = ""


@dataclasses.dataclass(frozen=True)
class Constant:
    """A value that is the same in every call."""

    value: Any


class Leaf(NamedTuple):
    """A value among the arguments, and its place."""

    path: Path
    held: Input | Constant


@dataclasses.dataclass(frozen=True)
class Branch:
    """A structure: its parts by key, and what makes it of them."""

    keys: tuple[str, ...]
    parts: tuple[Node, ...]
    make: Callable[[list[Any]], Any]


Node = Path | Branch
"""A structure, or the place of a value."""


@dataclasses.dataclass(frozen=True)
class Arguments:
    """What a forward is called with.

    Attributes:
        signature: That of the forward.
        nodes: For each of its parameters, a tree of places.
        leaves: What is at these places.
    """

    signature: inspect.Signature
    nodes: Mapping[str, Node]
    leaves: tuple[Leaf, ...]

    @property
    def inputs(self) -> tuple[Input, ...]:
        """The tensors, in order."""
        return tuple(leaf.held for leaf in self.leaves if isinstance(leaf.held, Input))

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the tensors, in order."""
        return tuple(each.spec.name for each in self.inputs)

    def with_inputs(self, inputs: Mapping[str, Input]) -> Arguments:
        """The same arguments, with other inputs by name."""
        leaves = tuple(
            Leaf(path, inputs.get(held.spec.name, held) if isinstance(held, Input) else held)
            for path, held in self.leaves
        )
        return dataclasses.replace(self, leaves=leaves)

    def bound(
        self, tensors: Mapping[str, torch.Tensor], *, by_position: bool = False
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of a call, positional and by keyword; with `by_position`, all that can be are positional."""
        import torch

        held: dict[Path, Any] = {}
        for path, each in self.leaves:
            if isinstance(each, Constant):
                held[path] = each.value
            else:
                tensor = tensors[each.spec.name]
                held[path] = tensor.to(getattr(torch, each.dtype)) if each.dtype else tensor
        values = {name: _built(node, held) for name, node in self.nodes.items()}
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
        if by_position:
            call = self.signature.bind(*positional, **by_keyword)
            return call.args, call.kwargs
        return tuple(positional), by_keyword


def of_examples(
    module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[Arguments, dict[str, torch.Tensor]]:
    """The arguments of a call, whose inputs have the sizes of the examples, and the tensors by the inputs' names.

    Raises:
        SpecError: the forward does not take them, or one holds tensors in a way that cannot be seen.
        UsageError: a tensor has a type that no input has.
    """
    import torch

    signature = inspect.signature(module.forward)
    try:
        given = signature.bind(*args, **kwargs).arguments
    except TypeError as err:
        raise SpecError(
            f"the forward of {type(module).__name__} does not take these examples: {err}.",
            hint=f"It is forward{signature}.",
        ) from err
    nodes: dict[str, Node] = {}
    values: dict[Path, Any] = {}
    for name, value in given.items():
        # A name in **kwargs is one that users would write at the top.
        variable = signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD
        nodes[name] = take_apart(value, () if variable else (name,), values, read=_plain)
    leaves = tuple(
        Leaf(path, _fixed_input(path, value) if isinstance(value, torch.Tensor) else Constant(value))
        for path, value in values.items()
    )
    check_names(leaves)
    return Arguments(signature, nodes, leaves), {flat_name(path): value for path, value in values.items()
                                                 if isinstance(value, torch.Tensor)}  # fmt: skip


def _fixed_input(path: Path, tensor: torch.Tensor) -> Input:
    """An example as an input of its sizes."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    narrow = dtype if dtype in NARROW else ""
    try:
        return Input(TensorSpec(flat_name(path), "int32" if narrow else dtype, tuple(tensor.shape)), dtype=narrow)
    except UsageError as err:
        raise UsageError(f"the example of {err}", hint="Take the parts of it as inputs, or cast it.") from err


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


def check_names(leaves: Iterable[Leaf]) -> None:
    """Raises SpecError for inputs whose flat names are one, or are no names that a module can be called with."""
    by_name: dict[str, str] = {}
    for path, held in leaves:
        if isinstance(held, Constant):
            continue
        name, place = held.spec.name, ".".join(path)
        if name in by_name:
            if by_name[name] == place:
                raise SpecError(f"input {name} is declared twice.", hint="Declare it once.")
            raise SpecError(
                f"{by_name[name]} and {place} would both be the input {name}.",
                hint="Rename one of them: a parameter of the forward, or a key.",
            )
        if name == "self" or not name.isidentifier() or keyword.iskeyword(name):
            raise SpecError(
                f"{place} cannot be the name of an input: modules are called by keyword.",
                hint="Rename it, to a name of Python other than self.",
            )
        by_name[name] = place


def of_leaves(module: nn.Module, leaves: Sequence[Leaf]) -> Arguments:
    """The arguments that declared leaves such as `past.0=...` stand for.

    What a structure is follows from the annotation of the forward; without one, names make a dict and numbers a tuple.

    Raises:
        SpecError: two leaves contradict each other, or the places in a sequence are not 0, 1, 2, ...; a constant cannot
            be made (`known.as_constant`).
    """
    from attnport.known import as_constant

    signature = inspect.signature(module.forward)
    kinds = {parameter.kind: name for name, parameter in signature.parameters.items()}
    rest = kinds.get(inspect.Parameter.VAR_KEYWORD)
    annotations = _parameter_types(module)
    trees: dict[str, Any] = {}
    for path, _ in leaves:
        inside = path if path[0] in signature.parameters or rest is None else (rest, *path)
        tree = trees
        for part in inside[:-1]:
            tree = tree.setdefault(part, {})
            if not isinstance(tree, dict):
                break
        if not isinstance(tree, dict) or inside[-1] in tree:
            raise SpecError(f"input {'.'.join(path)}: it, or a part of it, is declared twice.")
        tree[inside[-1]] = path
    made = tuple(
        Leaf(path, Constant(as_constant(held.value)) if isinstance(held, Constant) else held) for path, held in leaves
    )
    nodes = {name: _declared(tree, dict if name == rest else annotations.get(name), name)
             for name, tree in trees.items()}  # fmt: skip
    return Arguments(signature, nodes, made)


def _declared(tree: Any, annotation: Any, path: str) -> Node:
    if not isinstance(tree, dict):
        node: Node = tree
        return node
    make, types = _structure_of(annotation, tuple(tree), path)
    keys = sorted(tree, key=int) if all(key.isdigit() for key in tree) else list(tree)
    parts = tuple(_declared(tree[key], types.get(key), f"{path}.{key}") for key in keys)
    return Branch(tuple(keys), parts, lambda values: make(dict(zip(keys, values, strict=True))))


class Observed:
    """Calls a module with flat tensors by keyword, and returns those outputs by name that are wanted.

    Attributes:
        adapts: Whether the module must be `adapted` to be called so; known after a call.
    """

    def __init__(self, module: nn.Module, arguments: Arguments, outputs: Sequence[str], text: str) -> None:
        self._module, self._arguments, self._wanted, self._text = module, arguments, tuple(outputs), text
        self._caches = Caches(module)
        self.adapts = self._by_position = _looks_by_position(module)

    def __call__(self, /, **tensors: torch.Tensor) -> dict[str, torch.Tensor]:
        """The outputs by name.

        Raises:
            SpecError: there is no such output, or there is none at all.
        """
        import torch

        args, kwargs = self._arguments.bound(tensors, by_position=self._by_position)
        taken = [name for name in self._arguments.signature.parameters if kwargs.get(name) is tensors.get(name, self)]
        with self._caches.unused():
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
                hint=f"Choose the outputs: {advised('outputs', found)}.",
            )
        values = (result,) if isinstance(result, torch.Tensor) else result
        flat = isinstance(values, tuple | list) and all(isinstance(value, torch.Tensor) for value in values)
        for name in self._wanted:
            if name not in found:
                raise SpecError(
                    f"{self._text}: got output {name}; its forward returns {', '.join(found)}.",
                    hint="Name one of these.",
                )
        chosen = {name: found[name] for name in self._wanted or found}
        as_it_is = not args and set(taken) == set(kwargs) == set(tensors)
        self.adapts = self.adapts or not (as_it_is and flat and list(chosen) == list(found))
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
    by_position, hooks = _looks_by_position(module), _Hooks(made)

    def forward(self: nn.Module, *positional: torch.Tensor, **tensors: torch.Tensor) -> Any:
        tensors = {**dict(zip(names, positional, strict=False)), **tensors}
        args, kwargs = arguments.bound(tensors, by_position=by_position)
        with computing(args, kwargs):
            result = hooks.run(self, own or kind.forward.__get__(self), args, kwargs)
        found = flat_outputs(result, names)
        missing = [name for name in chosen if name not in found]
        if missing:
            raise SpecError(f"{kind.__name__}: its forward returned no {missing[0]}; it returned {', '.join(found)}.")
        return found[chosen[0]] if chosen == ("output",) else tuple(found[name] for name in chosen)

    takes(forward, names)
    space = {"forward": forward, "__module__": kind.__module__, "__qualname__": kind.__qualname__}
    meta: Any = type(kind)
    made.__class__ = meta(kind.__name__, (kind,), space)
    return made


def takes(forward: Any, names: Iterable[str]) -> None:
    """Gives a forward the signature of one that takes tensors of these names; torch.export binds arguments by it."""
    either = inspect.Parameter.POSITIONAL_OR_KEYWORD
    forward.__signature__ = inspect.Signature([inspect.Parameter(name, either) for name in ("self", *names)])


def own_copy(module: nn.Module) -> nn.Module:
    """A copy that shares the parameters alone: what is registered on it, or kept of a run, is not `module`'s."""
    return copy_of(module, list(module.parameters()))


def _looks_by_position(module: nn.Module) -> bool:
    """Whether a hook of the module is given no keywords, so that it sees positional arguments alone."""
    return bool(module._forward_pre_hooks.keys() - module._forward_pre_hooks_with_kwargs.keys())


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


def _other(result: Any) -> str:
    """What a result holds that is neither a tensor nor None, and where; "" for nothing."""
    import torch

    found: dict[Path, Any] = {}
    take_apart(result, (), found)
    others = {path: value for path, value in found.items() if not isinstance(value, torch.Tensor | None)}
    return next((f"{'.'.join(path)}={value!r:.40}" for path, value in others.items()), "")


def take_apart(
    value: Any, path: Path, leaves: dict[Path, Any], read: Callable[[Any], Any] = lambda value: value
) -> Node:
    """A value as a tree; the tensors and other values in it are added to `leaves` by their paths.

    Args:
        leaves: What is added to.
        read: What a tensor, an array or a number is taken as.

    Raises:
        SpecError: it is an object that holds tensors and is no structure that is known, or two parts have one path.
    """
    import torch

    value = read(value)
    plain = value is None or isinstance(value, torch.Tensor)
    opened = None if plain else _opened(value)
    if opened is not None:
        parts, make = opened
        keys = tuple(name for name, _ in parts)
        return Branch(keys, tuple(take_apart(part, (*path, name), leaves, read) for name, part in parts), make)
    if not plain and (held := _tensor_in(value)):
        raise SpecError(
            f"{'.'.join(path) or 'the result'} is a {type(value).__name__}, which holds tensors ({held}) and is no "
            "structure that is known.",
            hint="Make it a dataclass, or register it with torch.utils._pytree.register_pytree_node.",
        )
    if path in leaves:
        raise SpecError(f"two keys of {'.'.join(path[:-1])} are written {path[-1]}.", hint="Rename one of them.")
    leaves[path] = value
    return path


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

    # First, so that dynamo, which reads the code in strict mode, meets nothing further of the usual ones.
    if type(value) in (list, tuple):
        return [(str(at), each) for at, each in enumerate(value)], type(value)
    if type(value) is dict:
        return [(str(key), each) for key, each in value.items()], lambda parts: dict(zip(value, parts, strict=True))
    layers = getattr(value, "layers", None)
    if _is_cache(type(value)) and isinstance(layers, list) and all(map(_keys_and_values_alone, layers)):
        return _cache(value, layers)
    if _is_cache(type(value)) and (both := [getattr(value, name, None) for name in _TWO_CACHES]) and None not in both:
        return list(zip(_TWO_CACHES, both, strict=True)), lambda parts: type(value)(*parts)
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


_TWO_CACHES = ("self_attention_cache", "cross_attention_cache")
"""Of the decoder behind an encoder, in transformers' EncoderDecoderCache."""


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
    import torch

    found: dict[Path, Any] = {}
    take_apart(result, (), found)
    named: dict[str, torch.Tensor] = {}
    for path, tensor in found.items():
        if not isinstance(tensor, torch.Tensor):
            continue
        name = flat_name(path)
        name = name if name and not name[0].isdigit() else "_".join(filter(None, ("output", name)))
        while name in taken or name in named:
            name += "_out"
        named[name] = tensor
    return named


def _built(node: Node, held: Mapping[Path, Any]) -> Any:
    return node.make([_built(part, held) for part in node.parts]) if isinstance(node, Branch) else held[node]


def _last_positional(signature: inspect.Signature, values: Mapping[str, Any]) -> int:
    """The place of the last parameter that must be given by position; -1 if there is none."""
    last = -1
    for at, (name, parameter) in enumerate(signature.parameters.items()):
        if name in values and parameter.kind in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.VAR_POSITIONAL):
            last = at
    return last


def _parameter_types(module: nn.Module) -> Mapping[str, Any]:
    """The annotations of a module's forward by parameter; those that cannot be resolved are left out."""
    forward = inspect.unwrap(module.forward)
    try:
        return typing.get_type_hints(forward)
    except Exception:  # an annotation may name what is imported for type checkers alone
        found = getattr(forward, "__annotations__", {})
        return {name: kind for name, kind in found.items() if not isinstance(kind, str)}


def _structure_of(
    annotation: Any, keys: Sequence[str], path: str
) -> tuple[Callable[[dict[str, Any]], Any], Mapping[str, Any]]:
    """What makes a structure of parts by key, and the annotations of the parts.

    A dataclass, a named tuple, a TypedDict, a cache of transformers, lists, tuples and dicts are made as annotated.
    Without an annotation, numbers are the places of a tuple, and names the keys of a dict.

    Raises:
        SpecError: the places are not 0, 1, 2, ...
    """
    options = [each for each in _options(annotation) if _fits(each, keys)]
    kind: Any = options[0] if options else None
    origin = typing.get_origin(kind) or kind
    numbered = all(key.isdigit() for key in keys)
    if numbered and not _is_cache(origin) and sorted(map(int, keys)) != list(range(len(keys))):
        raise SpecError(f"input {path}: got the places {', '.join(keys)}; expected 0 to {len(keys) - 1}, each once.")
    if _is_cache(origin):
        return (lambda parts: _made_cache(origin, parts)), {}
    if dataclasses.is_dataclass(origin) or _is_named_tuple(origin):
        return (lambda parts: origin(**parts)), getattr(origin, "__annotations__", {})
    if numbered and origin is not dict:
        sequence = list if origin in (list, typing.get_origin(Sequence[Any])) else tuple
        part_types = [each for each in typing.get_args(kind) if each is not Ellipsis]
        repeated = len(part_types) == 1
        found = {key: part_types[0 if repeated else int(key)] for key in keys if repeated or int(key) < len(part_types)}
        return (lambda parts: sequence(parts.values())), found
    values = typing.get_args(kind)[1:] if origin in (dict, typing.get_origin(Mapping[str, Any])) else ()
    known = getattr(origin, "__annotations__", {}) if typing.is_typeddict(origin) else {}
    return dict, dict.fromkeys(keys, values[0]) if values else known


def _options(annotation: Any) -> tuple[Any, ...]:
    """The types that an annotation allows: those of a union, in order."""
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return tuple(each for each in typing.get_args(annotation) if each is not type(None))
    return () if annotation is None else (annotation,)


def _fits(kind: Any, keys: Sequence[str]) -> bool:
    origin = typing.get_origin(kind) or kind
    numbered = all(key.isdigit() for key in keys)
    if _is_cache(origin):
        return numbered
    if dataclasses.is_dataclass(origin):
        return {field.name for field in dataclasses.fields(origin)} >= set(keys)
    if _is_named_tuple(origin):
        return set(origin._fields) >= set(keys)
    if origin in (list, tuple, typing.get_origin(Sequence[Any])):
        return numbered
    return origin in (dict, typing.get_origin(Mapping[str, Any])) or typing.is_typeddict(origin)


def _is_named_tuple(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, tuple) and hasattr(kind, "_fields")


def _is_cache(kind: Any) -> bool:
    """Whether a class is a cache of transformers that takes keys and values."""
    return isinstance(kind, type) and any(
        base.__name__ == "Cache" and base.__module__ == "transformers.cache_utils" for base in kind.__mro__
    )


def _made_cache(kind: Any, parts: dict[str, Any]) -> Any:
    """A cache of transformers; of the class that only stands for all caches, the usual one."""
    if kind.__name__ == "Cache":
        from transformers import DynamicCache

        kind = DynamicCache
    return kind([_pair(part) for part in parts.values()])


def _pair(part: Any) -> tuple[Any, Any]:
    """Keys and values of a layer, declared as `key` and `value`, or as 0 and 1."""
    key, value = (part["key"], part["value"]) if isinstance(part, dict) else part
    return key, value
