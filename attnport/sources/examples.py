"""From examples of a forward's arguments to the declarations that `--input` and `--dim` would give."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attnport.errors import SpecError, UsageError
from attnport.sources.marks import marks_by_name
from attnport.sources.parsing import PATH, path_of
from attnport.sources.ranges import usual_range
from attnport.sources.structure import Arguments, Branch, Constant, Leaf, Node, Path, flat_name
from attnport_bundle.format.contract import dims_in

if TYPE_CHECKING:
    import torch

SYMBOL = re.compile(r"[A-Za-z_]\w*")


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
    text = SYMBOL.sub(lambda found: names.get(found[0], found[0]), formula).replace(" ", "")
    if re.fullmatch(r"[\w+]+", text):  # as sums are written elsewhere, so that equal ones have equal names
        text = "+".join(sorted(text.split("+"), key=lambda term: (term.isdigit(), term)))
    try:
        return text if set(SYMBOL.findall(formula)) <= set(names) and dims_in(text) else ""
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
            texts.append(f"{written(path)}={declared}")
            continue
        sizes = ",".join(dim.name if isinstance(dim, Range) else str(dim) for dim in dims[name])
        marks = declared or mask_marks(name, tensor)
        if name in highs and not marks:
            marks = f":high={highs[name]}"
        texts.append(f"{written(path)}={str(tensor.dtype).removeprefix('torch.')}[{sizes}]{marks}")
    return texts


def mask_marks(name: str, tensor: torch.Tensor) -> str:
    """The marks of a mask that is called as everybody calls it."""
    return marks_by_name(name, str(tensor.dtype).removeprefix("torch."), tensor.dim())


def dim_texts(dims: Mapping[str, Dims], tensors: Mapping[str, torch.Tensor], given: Sequence[str]) -> list[str]:
    """`--dim` declarations: those given, and others for dims whose sizes the examples or the module's code tell."""
    wanted = {text.partition("=")[0].strip() for text in given}
    limits: dict[str, tuple[int, int | None, int]] = {}
    for name, own in dims.items():
        for axis, dim in enumerate(own):
            if isinstance(dim, Range) and dim.name.isidentifier() and dim.name not in wanted:
                low, high, seen = limits.get(dim.name, (dim.smallest, None, 1))
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
    """Declarations of the constants among the arguments, such as `causal=true` or `dtype="<python> torch.float64"`.

    Args:
        variable: The name of `**kwargs`, whose names stand at the top.
    """
    texts: list[str] = []
    for name, node in nodes.items():
        _add_constants(node, () if name == variable else (name,), texts)
    return texts


def _add_constants(node: Node, path: Path, texts: list[str]) -> None:
    from attnport.known import PYTHON

    if isinstance(node, Constant):
        plain = isinstance(node.value, bool | int | float | str | None)
        text = json.dumps(node.value if plain else f"{PYTHON}{node.value!r}")
        # A bracket would be read as that of a shape.
        texts.append(f"{written(path)}={text.replace('[', chr(92) + 'u005b').replace(']', chr(92) + 'u005d')}")
    elif not isinstance(node, Leaf):
        for key, part in zip(node.keys, node.parts, strict=True):
            _add_constants(part, (*path, key), texts)


def written(path: Path) -> str:
    """A path as declarations have it; its flat name where a key is no name, such as `a:b[0]`."""
    text = ".".join(path)
    return text if PATH.fullmatch(text) and text.count(".") == len(path) - 1 else flat_name(path)


def refuse_unwritten(text: str, arguments: Arguments) -> None:
    """Raises SpecError for examples of a SPEC, which is loaded again later, that no declaration can hold."""
    from attnport.known import PYTHON, as_constant

    pending: list[tuple[Path, Node]] = [((name,), node) for name, node in arguments.nodes.items()]
    for path, node in pending:
        if isinstance(node, Branch):
            pending += [((*path, key), part) for key, part in zip(node.keys, node.parts, strict=True)]
            continue
        if written(path) != ".".join(path):
            what = f"the key {path[-1]!r} of {path[0]}"
        elif isinstance(node, Constant) and not isinstance(node.value, bool | int | float | str | None):
            try:
                as_constant(f"{PYTHON}{node.value!r}")
                continue
            except SpecError:
                what = f"{'.'.join(path)}, a {type(node.value).__name__},"
        else:
            continue
        raise SpecError(
            f"{text}: {what} cannot be declared, so that later commands could not load the model with it.",
            hint="Give the module itself to attnport.export, in place of its SPEC.",
        )


def given_inputs(inputs: Sequence[str] | Mapping[str, str]) -> tuple[str, ...]:
    """Declarations as `--input` takes them, of a list, one text, or a dict by name."""
    if isinstance(inputs, str):
        return (inputs,)
    if isinstance(inputs, Mapping):
        for name, text in inputs.items():
            if not isinstance(text, str):
                raise UsageError(
                    f"inputs: got {type(text).__name__} for {name}; expected a declaration such as "
                    "'float32[batch,seq,256]'.",
                    hint="Examples are given as args=(...) or kwargs={...}.",
                )
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
