"""What a model of transformers keeps between tokens, of any kind: found in runs of it, given to it, and taken from it.

Keys and values grow with every token. The states of convolutions, state spaces and linear attention have fixed sizes.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from attnport.dims import TensorSpec
from attnport.errors import first_line
from attnport.sources.hf_modules import accepted

if TYPE_CHECKING:
    import torch

ARGUMENTS = ("past_key_values", "cache_params", "state")
"""What forwards call it."""
_NAMES = {"keys": "key", "values": "value", "conv_states": "conv", "recurrent_states": "recurrent"}
_BATCH, _TOKENS = 5, 6
"""The sizes of the runs, of which no other size should be one by chance."""
Path = tuple[str | int, ...]


class NoMemory(Exception):
    """Why what a model keeps cannot be given to it, as the end of a sentence."""


@dataclass(frozen=True)
class Kept:
    """A tensor that a model keeps, `[batch, ...]`.

    Attributes:
        path: The attributes, keys and places that lead to it.
        name: What a graph calls it, behind `past_` and `present_`.
        axis: That of its tokens; None of a state.
        shape: As it is of `_BATCH` texts of `_TOKENS` tokens.
    """

    path: Path
    name: str
    axis: int | None
    shape: tuple[int, ...]
    dtype: str

    def spec(self) -> TensorSpec:
        """The input."""
        dims = ["batch" if at == 0 else "past" if at == self.axis else size for at, size in enumerate(self.shape)]
        return TensorSpec(f"past_{self.name}", self.dtype, tuple(dims))


@dataclass(frozen=True)
class Memory:
    """What a model keeps from one step to the next.

    Attributes:
        argument: The name of the forward's argument for it.
        made: The object that a run returned; the tensors in it that are `kept` are replaced by the graph's inputs.
    """

    argument: str
    made: Any
    kept: tuple[Kept, ...]

    @property
    def has_states(self) -> bool:
        """Whether something is not kept of every token."""
        return any(one.axis is None for one in self.kept)

    @property
    def past(self) -> tuple[str, int] | None:
        """An input with a length, and the axis of it; None if there is none."""
        return next(((f"past_{one.name}", one.axis) for one in self.kept if one.axis is not None), None)

    def filled(self, tensors: Mapping[str, torch.Tensor]) -> Any:
        """What the model is given: copies of tensors, as models write into them."""
        return _replaced(self.made, (), {one.path: tensors[f"past_{one.name}"].clone() for one in self.kept})

    def present(self, given: Any, out: Any, mask_BT: torch.Tensor | None) -> dict[str, torch.Tensor]:
        """What the model keeps after a pass, by the names of outputs. States stay zero until a text begins.

        Args:
            given: What the model was given.
            out: What it returned.
            mask_BT: Whether tokens are real; the last ones count.
        """
        import torch

        left = out.get(self.argument, given)
        found = dict(_tensors(left, ()))
        present: dict[str, torch.Tensor] = {}
        for one in self.kept:
            tensor = found[one.path]
            if one.axis is None and mask_BT is not None:
                real = (mask_BT[:, -1] != 0).reshape(-1, *[1] * (tensor.ndim - 1))
                tensor = torch.where(real, tensor, torch.zeros_like(tensor))
            present[f"present_{one.name}"] = tensor
        return present

    def empty(self, batch: int) -> dict[str, torch.Tensor]:
        """What is kept before the first token, by the names of inputs: nothing, and states of zero."""
        import torch

        sizes = {"batch": batch, "past": 0}
        specs = (one.spec() for one in self.kept)
        return {spec.name: torch.zeros(spec.shape(sizes), dtype=getattr(torch, spec.dtype)) for spec in specs}


def memory_of(model: Any, vocab: int) -> Memory:
    """Finds out what a model keeps, from two runs of it, one of them with one token more.

    Raises:
        NoMemory: it keeps nothing, or something that grows in another way.
    """
    argument = next((name for name in ARGUMENTS if name in accepted(model)), None)
    if argument is None:
        raise NoMemory("it does not take what it keeps")
    try:
        begin = _unbounded(_run(model, argument, vocab, 1, None), model)
        short, long = (_run(model, argument, vocab, tokens, copy.deepcopy(begin)) for tokens in (_TOKENS, _TOKENS + 1))
    except Exception as err:  # transformers raises whatever it likes where a cache is of another kind
        raise NoMemory(f"it does not run with a cache: {first_line(err)}") from err
    longer, kept, count = dict(_tensors(long, ())), list[Kept](), dict[str, int]()
    for path, tensor in _tensors(short, ()):
        if tensor.shape[:1] != (_BATCH,):
            continue  # a constant
        axis = _length(path, tuple(tensor.shape), tuple(longer[path].shape) if path in longer else ())
        attribute = next((part for part in reversed(path) if isinstance(part, str)), argument)
        base = _NAMES.get(attribute, attribute.strip("_"))
        number = count.setdefault(base, 0)
        count[base] += 1
        dtype = str(tensor.dtype).removeprefix("torch.")
        kept.append(Kept(path, f"{base}_{number}", axis, tuple(tensor.shape), dtype))
    if not kept:
        raise NoMemory("it keeps nothing between tokens")
    return Memory(argument, short, tuple(kept))


def _length(path: Path, shape: tuple[int, ...], longer: tuple[int, ...]) -> int | None:
    """The axis that grows with a token; None of a state. Raises NoMemory for another size."""
    if shape == longer:
        return None
    changed = [at for at, (one, other) in enumerate(zip(shape, longer, strict=False)) if one != other]
    if len(shape) == len(longer) and len(changed) == 1 and (shape[changed[0]], longer[changed[0]]) == (
        _TOKENS, _TOKENS + 1,
    ):  # fmt: skip
        return changed[0]
    what = ".".join(map(str, path))
    raise NoMemory(f"{what} in its cache is {list(shape)} of {_TOKENS} tokens and {list(longer)} of one more")


def _run(model: Any, argument: str, vocab: int, tokens: int, given: Any) -> Any:
    """What a model keeps after a run."""
    import torch

    ids_BS = (torch.arange(_BATCH * tokens).reshape(_BATCH, tokens) + 1) % vocab
    with torch.no_grad():
        out = model(input_ids=ids_BS, use_cache=True, **({} if given is None else {argument: given}))
    return out.get(argument, given)


def _unbounded(made: Any, model: Any) -> Any:
    """An empty cache whose layers keep also the tokens that a window hides; None where a model makes its own."""
    from transformers import cache_utils as kinds

    if type(made) is not kinds.DynamicCache:
        return None
    every: Any = kinds  # its constructors have no types
    cache = every.DynamicCache(config=model.config)
    for at, layer in enumerate(cache.layers):
        # A model's own subclass of one of these layers may hold more than the layer that would replace it.
        if type(layer) is every.LinearAttentionAndSlidingWindowAttentionLayer:
            cache.layers[at] = every.LinearAttentionAndFullAttentionLayer(number_of_states=layer.number_of_states)
        elif type(layer) is every.DynamicSlidingWindowLayer:
            cache.layers[at] = every.DynamicLayer()
    return cache


def _tensors(value: Any, path: Path) -> Iterator[tuple[Path, torch.Tensor]]:
    """The tensors inside, with the paths to them."""
    import torch

    if isinstance(value, torch.Tensor):
        yield path, value
    for key, part in _parts(value):
        yield from _tensors(part, (*path, key))


def _replaced(value: Any, path: Path, by: Mapping[Path, torch.Tensor]) -> Any:
    """A copy with tensors replaced; others are copied, as models write into them."""
    import torch

    if path in by or isinstance(value, torch.Tensor):
        return by[path] if path in by else value.clone()
    parts = {key: _replaced(part, (*path, key), by) for key, part in _parts(value)}
    if not parts:
        return value
    if isinstance(value, list | tuple):
        return type(value)(parts.values())
    if isinstance(value, dict):
        return parts
    copied = copy.copy(value)
    vars(copied).update(parts)
    return copied


def _parts(value: Any) -> list[tuple[str | int, Any]]:
    """What is inside of a list, a dict or a cache."""
    if isinstance(value, list | tuple):
        return list(enumerate(value))
    if isinstance(value, dict):
        return list(value.items())
    from torch import nn
    from transformers import PreTrainedConfig

    own = type(value).__module__.startswith("transformers.") and not isinstance(value, nn.Module | PreTrainedConfig)
    return list(vars(value).items()) if own and hasattr(value, "__dict__") else []
