"""What every built-in model is made with: its ModelSpec, contracts, random weights, and heads split and merged.

The contracts hold inputs, outputs, named dims with their usual ranges, and masks. A ModelSpec is named after its file.
With the random weights, a wrong mask, scale or head changes the output visibly.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Literal, TypeVar

from attnport.artifacts import IOContract, ModelSpec, Source
from attnport.dims import Dim, TensorSpec
from attnport.masks import MaskSpec

if TYPE_CHECKING:
    from torch import Tensor, nn


BATCH = Dim("batch", 1, 8, 32)
PADDING = MaskSpec(kinds=("padding",), input="attention_mask")
SOURCE_PADDING = MaskSpec(kinds=("padding",), input="memory_mask")


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


def token_contract(inputs: Mapping[str, int], width: int, *, limit: int = 512) -> IOContract:
    """Token ids and other numbers of each token, to `last_hidden_state` float32 [batch, seq, E].

    Args:
        inputs: By name, the number below which all of an input's are; each is int64 [batch, seq], and one is
            `attention_mask`.
        width: E.
        limit: The longest sequence.
    """
    tokens = ("batch", "seq")
    return IOContract(
        inputs=tuple(TensorSpec(name, "int64", tokens, high=high) for name, high in inputs.items()),
        outputs=(TensorSpec("last_hidden_state", "float32", (*tokens, width)),),
        dims=(BATCH, length(limit=limit)),
        masks=(PADDING,),
    )


def source_target_contract(names: tuple[str, str, str], vocabulary: int, output: str, width: int) -> IOContract:
    """A source with its padding mask, and a target so far, to float32 [batch, target, width].

    Args:
        names: The names of the source's ids, int64 [batch, seq], of its mask, and of the target's ids [batch, target].
        vocabulary: The number below which all ids are.
        output: The output's name.
        width: The output's last dim.
    """
    source_ids, source_mask, target_ids = names
    return IOContract(
        inputs=(
            TensorSpec(source_ids, "int64", ("batch", "seq"), high=vocabulary),
            TensorSpec(source_mask, "int64", ("batch", "seq"), high=2),
            TensorSpec(target_ids, "int64", ("batch", "target"), high=vocabulary),
        ),
        outputs=(TensorSpec(output, "float32", ("batch", "target", width)),),
        dims=(BATCH, length(), length("target")),
        masks=(MaskSpec(("padding",), input=source_mask),),
    )


def alignment_contract(
    width: int,
    outputs: tuple[TensorSpec, ...],
    *,
    masks: tuple[MaskSpec, ...] = (SOURCE_PADDING,),
    positions: Literal["absolute", "none"] = "absolute",
) -> IOContract:
    """States `x` [batch, seq, E], a source `memory` [batch, mem, E], float32, and its `memory_mask` int64 [batch, mem].

    Args:
        width: E.
        outputs: The outputs.
        masks: The masks that hide words of the source.
        positions: `none` if padding on the left of the source changes nothing.
    """
    return IOContract(
        inputs=(
            TensorSpec("x", "float32", ("batch", "seq", width)),
            TensorSpec("memory", "float32", ("batch", "mem", width)),
            TensorSpec("memory_mask", "int64", ("batch", "mem"), high=2),
        ),
        outputs=outputs,
        dims=(BATCH, Dim("seq", 1, 16, 64), Dim("mem", 1, 64, 256)),
        masks=masks,
        positions=positions,
    )


def cache_contract(
    new: TensorSpec, output: TensorSpec, cached: tuple[int, ...], depth: int, *, limits: tuple[int, int] = (256, 512)
) -> IOContract:
    """New tokens [batch, seq, ...] with `past_keys`, `past_values` and `cache_mask`, to an output, `keys` and `values`.

    The cache is float32 [batch, *cached, past, D], the new keys and values [batch, *cached, seq, D]; `cache_mask` is
    int64 [batch, past]. The module's own mask is causal, with the last query at the last key.

    Args:
        new: The new tokens.
        output: The module's output for them.
        cached: The number of layers, if there are several, and of key and value heads.
        depth: Head dim D.
        limits: The largest numbers of new and of cached tokens.
    """
    past, added = (("batch", *cached, tokens, depth) for tokens in ("past", "seq"))
    most_new, most_past = limits
    return IOContract(
        inputs=(
            new,
            TensorSpec("past_keys", "float32", past),
            TensorSpec("past_values", "float32", past),
            TensorSpec("cache_mask", "int64", ("batch", "past"), high=2),
        ),
        outputs=(output, TensorSpec("keys", "float32", added), TensorSpec("values", "float32", added)),
        dims=(BATCH, Dim("seq", 1, min(16, most_new), most_new), length("past", most_past)),
        masks=(MaskSpec(("padding",), input="cache_mask"), MaskSpec(("causal",), alignment="lower_right")),
        positions="none",
    )


def model_spec(module: str, io: IOContract, make: Callable[[], nn.Module]) -> ModelSpec:
    """The ModelSpec for a model's file.

    Args:
        module: The file's `__name__`.
        io: The inputs and outputs.
        make: Makes the module.
    """
    name = module.rpartition(".")[2]
    return ModelSpec(name=name, source=Source(text=name), io=io, make=make)


M = TypeVar("M", bound="nn.Module")


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


def build(construct: Callable[[], M], seed: int) -> M:
    """The module that `construct` makes, with random weights, in eval mode; a seed always gives the same weights.

    The state of the global generator does not change.
    """
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return randomise(construct()).eval()


def split_heads(x_BTE: Tensor, heads: int) -> Tensor:
    """[B, T, H D] to [B, H, T, D]: the first D numbers of a token are those of head 0."""
    import torch

    return torch.unflatten(x_BTE, -1, (heads, -1)).transpose(1, 2)


def merge_heads(x_BHTD: Tensor) -> Tensor:
    """[B, H, T, D] to [B, T, H D], the reverse of `split_heads`."""
    return x_BHTD.transpose(1, 2).flatten(2)
