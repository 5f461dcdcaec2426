"""Nodes that hold graphs: branches and loops."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from attnport.sources.operators.base import Call

Run = Callable[[Sequence[Any]], list[Any]]
"""Runs a graph on its inputs and returns its outputs."""


def branch(call: Call, graphs: Mapping[str, Run], condition: Tensor) -> list[Any]:
    """`If`."""
    return graphs["then_branch" if bool(condition.item()) else "else_branch"](())


def loop(
    call: Call, graphs: Mapping[str, Run], most: Tensor | None, condition: Tensor | None, *carried: Any
) -> list[Any]:
    """`Loop`: what is carried from one round to the next, and what the rounds give, stacked."""
    state, given = list(carried), []
    going = True if condition is None else bool(condition.item())
    at = 0
    while going and (most is None or at < int(most.item())):
        found = graphs["body"]([call.whole([at]).reshape(()), torch.tensor(going, device=call.device), *state])
        going, state = bool(found[0].item()), found[1 : 1 + len(carried)]
        given.append(found[1 + len(carried) :])
        at += 1
    if not given and call.outputs > len(carried):
        raise NotImplementedError("a Loop without a round that gives outputs")
    return [*state, *(torch.stack(each) for each in zip(*given, strict=True))]


def scan(call: Call, graphs: Mapping[str, Run], *values: Tensor) -> list[Any]:
    """`Scan`, of opset 9 and later."""
    if call.opset < 9:
        raise NotImplementedError("Scan of opset 8")
    count = call.get("num_scan_inputs")
    state, scanned = list(values[: len(values) - count]), values[len(values) - count :]
    held, steps = len(state), call.outputs - len(state)
    axes = call.get("scan_input_axes", [0] * count)
    backwards = call.get("scan_input_directions", [0] * count)
    given: list[list[Tensor]] = []
    for at in range(scanned[0].shape[axes[0]]):
        parts = [
            one.select(axis, one.shape[axis] - 1 - at if back else at)
            for one, axis, back in zip(scanned, axes, backwards, strict=True)
        ]
        found = graphs["body"]([*state, *parts])
        state = found[:held]
        given.append(found[held:])
    out_axes, out_back = (call.get(name, [0] * steps) for name in ("scan_output_axes", "scan_output_directions"))
    stacked = [
        torch.stack(list(reversed(each)) if back else list(each), dim=axis)
        for each, axis, back in zip(zip(*given, strict=True), out_axes, out_back, strict=True)
    ]
    return [*state, *stacked]


CONTROL: dict[str, Callable[..., list[Any]]] = {"If": branch, "Loop": loop, "Scan": scan}
