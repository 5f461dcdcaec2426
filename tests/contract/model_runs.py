"""Models run for the contract: feeds, the module in float64, its export on ONNX Runtime, padding beside an item."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import torch

from attnport.artifacts import IOContract, SourceAttention
from attnport.cases.inputs import Case, cases, full_case
from attnport.cases.mask_cases import keys_dim
from attnport.exporter.capture import capture
from attnport.exporter.targets import base as lowerings
from attnport.masks import MaskSpec
from attnport.masks.numpy_builders import encode_mask, numpy_dtype
from attnport.models import base

Array = np.ndarray[Any, Any]
Arrays = dict[str, Array]
Run = Callable[[Mapping[str, Array]], list[Array]]

LENGTHS = {"one token": (1, 1, 1, 1), "small": (2, 5, 7, 3), "odd": (3, 37, 19, 11)}
"""The batch and then the other dims, in order; each as far as its range allows."""


def sizes(io: IOContract, which: str) -> dict[str, int]:
    """A size for every dim."""
    wanted = LENGTHS[which] + LENGTHS[which][1:] * len(io.dims)
    return {dim.name: max(dim.min, min(size, dim.max)) for dim, size in zip(io.dims, wanted, strict=False)}


def unpadded(io: IOContract, which: str) -> Case:
    """Random feeds in which nothing is padding."""
    return full_case(io, sizes(io, which), seed=len(which))


def layouts(io: IOContract) -> list[Case]:
    """Feeds for each layout of the masks that come in: padding on each side, inside, everywhere, documents, ..."""
    return [case for case in cases(io) if case.group == "masks"]


def run_module(module: torch.nn.Module, feeds: Mapping[str, Array], dtype: torch.dtype = torch.float64) -> list[Array]:
    """The outputs of a module whose weights are of `dtype`, as float64 where they are floats."""
    given = {name: torch.from_numpy(np.array(array)) for name, array in feeds.items()}
    given = {name: each.to(dtype) if each.is_floating_point() else each for name, each in given.items()}
    with torch.no_grad():
        found = module(**given)
    found = found if isinstance(found, tuple) else (found,)
    return [(each.double() if each.is_floating_point() else each).numpy() for each in found]


@functools.cache
def in_float64(name: str) -> Run:
    """The model `name` in float64: the reference."""
    return functools.partial(run_module, base.get(name).make().double())


@functools.cache
def captured(name: str) -> tuple[bytes, tuple[SourceAttention, ...]]:
    """The model `name` as exported, once a process."""
    spec = base.get(name)
    found = capture(spec.make(), spec.io)
    return ir.to_proto(found.model).SerializeToString(), found.attentions


@functools.cache
def on_ort(name: str, target: str = "ort_cpu") -> Run:
    """The model `name` lowered for `target` in a session of ONNX Runtime CPU."""
    import onnxruntime

    data, attentions = captured(name)
    io = base.get(name).io
    model = ir.from_proto(onnx.load_model_from_string(data))
    usual = {dim.name: dim.opt for dim in io.dims}
    low = lowerings.get(target).lower(model, attentions, masks=io.masks, plan="fp32", sizes=usual)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    proto = ir.to_proto(low.model).SerializeToString()
    session = onnxruntime.InferenceSession(proto, options, providers=["CPUExecutionProvider"])
    taken = {value.name for value in session.get_inputs()}

    def run(feeds: Mapping[str, Array]) -> list[Array]:
        return list(session.run(None, {key: array for key, array in feeds.items() if key in taken}))

    return run


def error(io: IOContract, case: Case, got: Sequence[Array], expected: Sequence[Array]) -> float:
    """The largest error of a compared element by its output's RMS; infinite for another shape, or one not finite."""
    worst = 0.0
    for output, one, other in zip(io.outputs, got, expected, strict=True):
        if one.shape != other.shape or not np.isfinite(one).all():
            return np.inf
        valid = case.valid[output.name]
        if not valid.any():
            continue
        if not np.isfinite(other[valid]).all():
            return np.inf
        difference = np.abs(one.astype(np.float64) - other)[valid].max()
        worst = max(worst, float(difference / max(float(np.sqrt(np.mean(np.square(other[valid])))), 1e-3)))
    return worst


def with_padding(io: IOContract, mask: MaskSpec, feeds: Mapping[str, Array], more: int, side: str) -> Arrays:
    """The same feeds with `more` hidden keys beside them, and other numbers than zero there in every other input.

    Needs a mask input with an axis of keys, or lengths.
    """
    keys, random = keys_dim(io, mask), np.random.default_rng(more)
    padded: Arrays = {}
    for spec in io.inputs:
        array = feeds[spec.name]
        for axis, dim in enumerate(spec.dims):
            if dim != keys:
                continue
            shape = (*array.shape[:axis], more, *array.shape[axis + 1 :])
            if spec.name == mask.input and mask.carries == "mask":
                extra = encode_mask(mask, spec.dtype, np.zeros(shape, dtype=bool))
            elif _is_mask(io, spec.name):
                extra = np.zeros(shape)
            elif spec.dtype.startswith("int"):
                extra = random.integers(0, spec.high or 2, shape)
            else:
                extra = random.standard_normal(shape) * 3
            extra = extra.astype(numpy_dtype(spec.dtype))
            array = np.concatenate([array, extra] if side == "right" else [extra, array], axis=axis)
        padded[spec.name] = array
    return padded


def without_padding(io: IOContract, mask: MaskSpec, outputs: Sequence[Array], more: int, side: str) -> list[Array]:
    """The outputs without what belongs to the padding."""
    keys = keys_dim(io, mask)
    kept = slice(0, -more) if side == "right" else slice(more, None)
    return [
        array[tuple(kept if dim == keys else slice(None) for dim in spec.dims)]
        for spec, array in zip(io.outputs, outputs, strict=True)
    ]


def with_another_end(io: IOContract, feeds: Mapping[str, Array], dim: str) -> Arrays:
    """The same feeds, but for the last position along `dim` of every input that is no mask."""
    made = dict(feeds)
    for spec in io.inputs:
        if dim not in spec.dims or _is_mask(io, spec.name):
            continue
        array = np.moveaxis(feeds[spec.name].copy(), spec.dims.index(dim), 0)
        array[-1] = (array[-1] + 1) % (spec.high or 2) if array.dtype.kind == "i" else array[-1] + 3
        made[spec.name] = np.moveaxis(array, 0, spec.dims.index(dim))
    return made


def with_equal_tokens(io: IOContract, feeds: Mapping[str, Array]) -> Arrays:
    """The same feeds, but every position of an item is like its first, in every input that is no mask."""
    made = dict(feeds)
    for spec in io.inputs:
        array = feeds[spec.name]
        for axis, dim in enumerate(spec.dims):
            if isinstance(dim, str) and dim != "batch" and not _is_mask(io, spec.name):
                array = np.repeat(array.take([0], axis), array.shape[axis], axis)
        made[spec.name] = array
    return made


def _is_mask(io: IOContract, name: str) -> bool:
    return any(mask.input == name for mask in io.masks)
