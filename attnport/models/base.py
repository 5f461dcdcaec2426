"""Defines the built-in models and finds them by name: a model is a class that is decorated with `model`.

    @model("strided_attention", lambda sizes: sequence_contract(sizes.width))
    class StridedAttention(nn.Module):
        def __init__(self, width: int = 64, heads: int = 4, stride: int = 8) -> None: ...

The parameters of the class are its sizes, each with a default. Defaults are small and weights are random: models are
for trying and testing. `get("bert_encoder", layers=12, width=768, heads=12, hidden=3072)` has other sizes.
"""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

from attnport.artifacts import Dim, IOContract, MaskSpec, ModelSpec, Source, TensorSpec
from attnport.errors import SpecError, nearest
from attnport.registry import files

if TYPE_CHECKING:
    from torch import nn

M = TypeVar("M", bound="nn.Module")
Contract = Callable[[Any], IOContract]

BATCH = Dim("batch", 1, 8, 32)
PADDING = MaskSpec(kinds=("padding",), input="attention_mask")
CAUSAL = MaskSpec(kinds=("causal",))
BIAS = MaskSpec(kinds=("bias",))

_defined: dict[str, tuple[Callable[..., nn.Module], Contract]] = {}


# --- names --------------------------------------------------------------------------------------------------------


def names() -> list[str]:
    """The names of all models, in alphabetical order."""
    return list(_in_files())


def descriptions() -> dict[str, str]:
    """The first line of each model's docstring, by name, in alphabetical order; nothing is imported."""
    return {name: place.description for name, place in _in_files().items()}


def get(name: str, seed: int = 0, **sizes: Any) -> ModelSpec:
    """Returns a built-in model, without making its module.

    Args:
        name: One of `names`; a hyphen means an underscore.
        seed: The seed of the random weights.
        sizes: Sizes in place of the default ones: arguments of the model's class.

    Raises:
        SpecError: there is no such model; the message lists the models.
        TypeError: the model has no such size.
    """
    known, own_name = _in_files(), name.replace("-", "_")
    if own_name not in known:
        raise SpecError(
            f"{name!r} is no model of attnport; there are {', '.join(known)}.",
            hint=f"{nearest(own_name, known)} On the hub, it is hf:{name}; a folder, a file or a function is named by "
            "its path: net.py:make.".lstrip(),
        )
    importlib.import_module(f"{__package__}.{known[own_name].file}")
    module, contract = _defined[own_name]
    every_size = inspect.signature(module).bind(**sizes)
    every_size.apply_defaults()
    return ModelSpec(
        name=own_name,
        source=Source(text=own_name),
        io=contract(SimpleNamespace(**every_size.arguments)),
        make=lambda: build(lambda: module(**sizes), seed),
    )


def model(name: str, contract: Contract) -> Callable[[type[M]], type[M]]:
    """Registers a module class as a built-in model. Its docstring has the formula, its source and the cost.

    Args:
        name: The model's name, a literal: files are searched for it without importing them.
        contract: Given the model's sizes as attributes, returns its inputs, outputs, dims and masks.
    """

    def define(module: type[M]) -> type[M]:
        _defined[name] = module, contract
        return module

    return define


class _Place(NamedTuple):
    """The file of a model, without its suffix, and the first line of the model's docstring."""

    file: str
    description: str


@functools.cache
def _in_files() -> dict[str, _Place]:
    """Every model by its name, in alphabetical order. Files are not imported, which would take seconds, for torch."""
    found = {}
    for path in files(__package__):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for definition in (node for node in tree.body if isinstance(node, ast.ClassDef)):
            description = (ast.get_docstring(definition) or "").partition("\n")[0]
            for decorator in definition.decorator_list:
                match decorator:
                    case ast.Call(func=ast.Name(id="model"), args=[ast.Constant(value=str(name)), *_]):
                        found[name] = _Place(path.stem, description)
    return dict(sorted(found.items()))


# --- weights ------------------------------------------------------------------------------------------------------


def build(construct: Callable[[], M], seed: int = 0) -> M:
    """A module in float32 and eval mode with random weights; a seed always gives the same weights.

    A part whose weights are drawn otherwise in its paper has a method `adjust_random_weights`, which is called after
    the weights of all parts are drawn. The state of the global generator does not change.

    Args:
        construct: Makes the module: a model's class, or a function that calls it with other sizes.
        seed: The seed.
    """
    import torch

    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        module = randomise(construct()).eval()
        for part in module.modules():
            if adjust := getattr(part, "adjust_random_weights", None):
                adjust()
    return module


def randomise(module: M) -> M:
    """Draws the weights of every projection and convolution from a normal distribution, in place; returns `module`.

    Weights have the variance of 1 / fan-in (LeCun et al. 1998, "Efficient BackProp") and not BERT's 0.02, with which
    untrained attention is nearly uniform and a wrong mask or scale would hardly show. Biases have a deviation of 0.1.
    Embeddings, norms and parameters of other modules stay as they are.
    """
    from torch import nn

    for part in module.modules():
        if isinstance(part, nn.Linear | nn.Conv1d | nn.Conv2d):
            nn.init.normal_(part.weight, std=part.weight[0].numel() ** -0.5)
            if part.bias is not None:
                nn.init.normal_(part.bias, std=0.1)
    return module


# --- contracts ----------------------------------------------------------------------------------------------------


def length(name: str = "seq", limit: int = 512) -> Dim:
    """The length of a sequence, up to `limit`, usually 128."""
    return Dim(name, 1, min(128, limit), limit)


def sequence_contract(
    width: int,
    *,
    inputs: tuple[str, ...] = ("attention_mask",),
    masks: tuple[MaskSpec, ...] = (PADDING,),
    positions: Literal["absolute", "none"] = "absolute",
    limit: int = 512,
) -> IOContract:
    """`x` float32 [batch, seq, E] to `y` of the same shape.

    Args:
        width: E.
        inputs: Further inputs, each int64 [batch, seq] of zeros and ones.
        masks: What these mean, and the masks that the layer itself has.
        positions: `none` if padding on the left changes nothing, because it changes all positions but no distance.
        limit: The longest sequence.
    """
    tokens = ("batch", "seq")
    return IOContract(
        inputs=(
            TensorSpec("x", "float32", (*tokens, width)),
            *(TensorSpec(name, "int64", tokens, high=2) for name in inputs),
        ),
        outputs=(TensorSpec("y", "float32", (*tokens, width)),),
        dims=(BATCH, length(limit=limit)),
        masks=masks,
        positions=positions,
    )
