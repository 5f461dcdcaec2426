"""From examples of a forward's arguments to the declarations that `--input` and `--dim` would give."""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attnport.dims import TensorSpec
from attnport.errors import UsageError
from attnport.sources.parsing import path_of
from attnport.sources.ranges import usual_range
from attnport.sources.structure import Constant, Leaf, Node, Path, flat_name
from attnport_bundle import expressions

if TYPE_CHECKING:
    import torch

_HIDES = re.compile(r"(^|_)(key_)?padding_mask$")
_KEEPS = re.compile(r"(^|_)attention_mask$")
_SYMBOL = re.compile(r"[A-Za-z_]\w*")


@dataclasses.dataclass(frozen=True)
class Range:
    """A dim by name, and the sizes that are known to be allowed; None = not known."""

    name: str
    smallest: int = 1
    largest: int | None = None


Dims = tuple[Range | int, ...]


def named_dims(
    dims: Mapping[str, Sequence[Any]],
    tensors: Mapping[str, torch.Tensor],
    declared: Mapping[str, Sequence[Any]],
) -> dict[str, Dims]:
    """Dims with names: `batch` for the first one that inputs share, `seq` for the second of sequences, else INPUT_AXIS.

    Args:
        dims: For each input, sizes, ranges that have their name, and symbols with `name`, `smallest` and `largest`;
            equal symbols are equal dims.
        tensors: The examples.
        declared: For inputs that were declared, their dims; the names in them go before those made here.
    """
    names = {dim.name: dim.name for own in dims.values() for dim in own if isinstance(dim, Range)}
    for name, own in declared.items():
        for symbol, dim in zip(dims.get(name, ()), own, strict=False):
            if not isinstance(symbol, int) and isinstance(dim, str):
                names.setdefault(symbol.name, dim)
    first = [own[0].name for own in dims.values() if own and not isinstance(own[0], int)]
    batches = [symbol for symbol in first if first.count(symbol) > 1 or len(dims) == 1]
    batches = batches or [own[0].name for own in dims.values() if len(own) > 1 and not isinstance(own[0], int)]
    if batches and "batch" not in names.values():
        names.setdefault(max(batches, key=batches.count), "batch")
    for name, own in dims.items():
        sequence = len(own) > 1 and names.get(getattr(own[0], "name", "")) == "batch" and not isinstance(own[1], int)
        whole = not tensors[name].is_floating_point()
        if sequence and (whole or len(own) == 3) and "seq" not in names.values():
            names.setdefault(own[1].name, "seq")
    # Sums of dims are named after the dims that are in them.
    placed = [(dim.name, f"{name}_{axis}") for name, own in dims.items() for axis, dim in enumerate(own)
              if not isinstance(dim, int)]  # fmt: skip
    for symbol, named in placed:
        if symbol.isidentifier():
            names.setdefault(symbol, named)
    for symbol, named in placed:
        names.setdefault(symbol, _renamed(symbol, names) or named)
    found: dict[str, Dims] = {}
    for name, own in dims.items():
        found[name] = tuple(
            dim if isinstance(dim, int) else Range(names[dim.name], dim.smallest, dim.largest) for dim in own
        )
    return found


def _renamed(formula: str, names: Mapping[str, str]) -> str:
    """A formula of torch's symbols as an expression of dims; "" if it is none, or has a symbol that is no dim."""
    text = _SYMBOL.sub(lambda found: names.get(found[0], found[0]), formula).replace(" ", "")
    if re.fullmatch(r"[\w+]+", text):  # as sums are written elsewhere, so that equal ones have equal names
        text = "+".join(sorted(text.split("+"), key=lambda term: (term.isdigit(), term)))
    try:
        return text if set(_SYMBOL.findall(formula)) <= set(names) and expressions.names(text) else ""
    except ValueError:
        return ""


def refuse_other_sizes(declared: Mapping[str, Sequence[str | int]], tensors: Mapping[str, torch.Tensor]) -> None:
    """Raises UsageError where the dims that inputs are declared with are not those of the examples."""
    sizes: dict[str, tuple[str, int]] = {}
    for name, dims in declared.items():
        shape = tuple(tensors[name].shape)
        if len(dims) != len(shape):
            raise UsageError(
                f"input {name}: it is declared with {len(dims)} dims; its example has shape {list(shape)}."
            )
        for axis, (dim, size) in enumerate(zip(dims, shape, strict=True)):
            if isinstance(dim, int) and dim != size:
                raise UsageError(f"input {name}: axis {axis} is declared as {dim}; in its example it is {size}.")
            other, known = sizes.setdefault(str(dim), (name, size))
            if known != size and isinstance(dim, str):
                raise UsageError(
                    f"dim {dim!r} of input {name} is {size}, of input {other} it is {known}.",
                    hint="Give an axis of another size another name.",
                )


def joined(
    dims: Mapping[str, Sequence[Any]], tensors: Mapping[str, torch.Tensor], call: Callable[..., Any]
) -> dict[str, tuple[Any, ...]]:
    """The dims, where those that have to be equal are one: the module fails with one of them larger, not with both.

    torch does not notice that the keys and values of a cache must be equally long.

    Args:
        dims, tensors: As of `named_dims`.
        call: Runs the module on tensors by name.
    """
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    sizes: dict[str, int] = {}
    kinds: dict[str, Any] = {}
    for name, own in dims.items():
        for dim, size in zip(own, tensors[name].shape, strict=True):
            if not isinstance(dim, int) and dim.name.isidentifier():
                sizes.setdefault(dim.name, int(size))
                kinds.setdefault(dim.name, dim)

    def runs(*larger: str) -> bool:
        grown = {name: size + (name in larger) for name, size in sizes.items()}
        try:
            # The fused kernel does not notice keys and values of different lengths.
            with torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
                call(**{name: _resized(tensor, dims[name], grown) for name, tensor in tensors.items()})
        except Exception:  # the user's forward may raise anything
            return False
        return True

    ranges_first = sorted((name for name, size in sizes.items() if size > 0),
                          key=lambda name: not isinstance(kinds[name], Range))  # fmt: skip
    same = _equal_dims(ranges_first, sizes, runs)

    def settled(dim: Any) -> Any:
        if isinstance(dim, int):
            return dim
        if dim.name in same:
            return kinds[same[dim.name]]
        return dataclasses.replace(dim, name=_SYMBOL.sub(lambda found: same.get(found[0], found[0]), dim.name))

    found = {name: tuple(map(settled, own)) for name, own in dims.items()}
    return {name: _beside(name, own, found, tensors) for name, own in found.items()}


def _beside(
    name: str, own: tuple[Any, ...], dims: Mapping[str, tuple[Any, ...]], tensors: Mapping[str, torch.Tensor]
) -> tuple[Any, ...]:
    """The dims of an input; of a mask, an axis that no other input has is as long as what the mask is for.

    A module may take a mask of more rows than it uses, as BERT of transformers does.
    """
    if not _mask_marks(name, tensors[name]):
        return own
    others = [(each, tensors[other].shape) for other, each in dims.items() if other != name]
    shared = {dim.name for each, _ in others for dim in each if not isinstance(dim, int)}

    def joint(axis: int, dim: Any) -> Any:
        if isinstance(dim, int) or dim.name in shared:
            return dim
        size = tensors[name].shape[axis]
        return next((each[axis] for each, shape in others if len(shape) > axis and shape[axis] == size), dim)

    return tuple(joint(axis, dim) for axis, dim in enumerate(own))


def _equal_dims(names: Sequence[str], sizes: Mapping[str, int], runs: Callable[..., bool]) -> dict[str, str]:
    """By dim, the one before it that it has to be equal to.

    Args:
        runs: Whether the module runs with the dims of these names larger by one.
    """
    same: dict[str, str] = {}
    for one, other in itertools.combinations(names, 2):
        apart = one not in same and other not in same
        if apart and sizes[one] == sizes[other] and not runs(one) and runs(one, other):
            same[other] = one
    # Where three have to be equal, no two of them can grow alone.
    groups = {name: [name, *(other for other in same if same[other] == name)] for name in names if name not in same}
    counts = Counter(sizes[name] for name in names)
    bound = [name for name, group in groups.items() if counts[sizes[name]] > 2 and not runs(*group)]
    for size in {sizes[name] for name in bound}:
        alike = [each for name in bound if sizes[name] == size for each in groups[name]]
        if len(alike) > 2 and runs(*alike):
            same |= dict.fromkeys(alike[1:], alike[0])
    return same


def _resized(tensor: torch.Tensor, dims: Sequence[Any], sizes: Mapping[str, int]) -> torch.Tensor:
    """A tensor of other sizes, its last part repeated."""
    import torch

    for axis, (dim, had) in enumerate(zip(dims, tensor.shape, strict=True)):
        size = had if isinstance(dim, int) else TensorSpec("", "int64", (dim.name,)).shape(sizes)[0]
        if size != had:
            tensor = tensor.index_select(axis, torch.arange(size).clamp(max=had - 1))
    return tensor


def input_texts(
    found: Mapping[Path, torch.Tensor],
    dims: Mapping[str, Dims],
    highs: Mapping[str, int],
    given: Mapping[str, str],
) -> list[str]:
    """An `--input` declaration for each tensor.

    Args:
        given: Declarations by flat name, which replace those made here; marks alone are added to them.
    """
    texts = []
    for path, tensor in found.items():
        name = flat_name(path)
        declared = given.get(name, "")
        if declared and not declared.startswith(":"):
            texts.append(f"{'.'.join(path)}={declared}")
            continue
        sizes = ",".join(dim.name if isinstance(dim, Range) else str(dim) for dim in dims[name])
        marks = declared or _mask_marks(name, tensor)
        if name in highs and not marks:
            marks = f":high={highs[name]}"
        texts.append(f"{'.'.join(path)}={str(tensor.dtype).removeprefix('torch.')}[{sizes}]{marks}")
    return texts


def _mask_marks(name: str, tensor: torch.Tensor) -> str:
    """The marks of masks that are called as everybody calls them: transformers' and torch's."""
    if tensor.dim() != 2 or tensor.is_floating_point():
        return ""
    return ":padding:hide" if _HIDES.search(name) else ":padding" if _KEEPS.search(name) else ""


def dim_texts(dims: Mapping[str, Dims], tensors: Mapping[str, torch.Tensor], given: Sequence[str]) -> list[str]:
    """`--dim` declarations: those given, and others for dims whose sizes the examples or the module's code tell."""
    wanted = {text.partition("=")[0].strip() for text in given}
    limits: dict[str, tuple[int, int | None, int]] = {}
    for name, own in dims.items():
        for axis, dim in enumerate(own):
            if isinstance(dim, Range) and dim.name.isidentifier() and dim.name not in wanted:
                low, high, seen = limits.get(dim.name, (1, None, 1))
                highs = [each for each in (high, dim.largest) if each is not None]
                seen = max(seen, tensors[name].shape[axis])
                limits[dim.name] = (max(low, dim.smallest), min(highs) if highs else None, seen)
    texts = list(given)
    for name, (low, high, seen) in limits.items():
        usual = usual_range(name)
        largest = max(usual.max, seen)
        largest = largest if high is None else min(largest, high)
        if (low, largest) != (usual.min, usual.max):
            texts.append(f"{name}={low}:{min(max(usual.opt, low), largest)}:{largest}")
    return texts


def constant_texts(nodes: Mapping[str, Node], variable: str | None = None) -> list[str]:
    """Declarations of the constants among the arguments.

    Args:
        variable: The name of `**kwargs`, whose names stand at the top.

    Raises:
        UsageError: one cannot be written as text.
    """
    texts: list[str] = []
    for name, node in nodes.items():
        _add_constants(node, () if name == variable else (name,), texts)
    return texts


def _add_constants(node: Node, path: Path, texts: list[str]) -> None:
    if isinstance(node, Leaf):
        return
    if isinstance(node, Constant):
        if not isinstance(node.value, bool | int | float | str | None):
            raise UsageError(
                f"{'.'.join(path)} is a {type(node.value).__name__}, which no declaration can hold.",
                hint="Leave it out if it has a default.",
            )
        texts.append(f"{'.'.join(path)}={json.dumps(node.value)}")
        return
    for key, part in zip(node.keys, node.parts, strict=True):
        _add_constants(part, (*path, key), texts)


def given_inputs(inputs: Sequence[str] | Mapping[str, str]) -> tuple[str, ...]:
    """Declarations as `--input` takes them, of a list, one text, or a dict by name."""
    if isinstance(inputs, str):
        return (inputs,)
    if isinstance(inputs, Mapping):
        return tuple(f"{name}={text}" for name, text in inputs.items())
    return tuple(inputs)


def by_flat_name(inputs: Sequence[str]) -> dict[str, str]:
    """Declarations by the flat name of their input, without the name."""
    return {flat_name(path_of(text)): text.partition("=")[2].strip() for text in inputs}


def vocabularies(call: Any, tensors: Mapping[str, torch.Tensor]) -> dict[str, int]:
    """For each integer input that is looked up in an embedding: how many rows that has."""
    import torch
    from torch.overrides import TorchFunctionMode

    found: dict[str, int] = {}

    class Watch(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func is torch.nn.functional.embedding:
                ids, table = (*args, *(kwargs or {}).values())[:2]
                for name, tensor in tensors.items():
                    if tensor.dtype in (torch.int32, torch.int64) and ids.data_ptr() == tensor.data_ptr():
                        found[name] = min(found.get(name, len(table)), len(table))
            return func(*args, **(kwargs or {}))

    with torch.no_grad(), Watch():
        call(**tensors)
    return found
