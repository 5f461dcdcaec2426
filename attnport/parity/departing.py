"""Names the first module of torch whose output an exported graph does not give, where an export is refused for it."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from attnport.artifacts import Manifest
from attnport.cases.inputs import Array, Case
from attnport.parity.bound import NO_ROUNDING, floor
from attnport.parity.layers import Probes
from attnport.parity.metrics import rms
from attnport.processes.isolated import Limits
from attnport.runtimes import base
from attnport.runtimes.base import Opening
from attnport.runtimes.torch_eager import to_array

if TYPE_CHECKING:
    from torch import nn


def departure(model: Path, manifest: Manifest, case: Case, eager: Callable[[Mapping[str, Array]], object]) -> str:
    """The path of the first module, in the order in which they end, whose output the graph does not give; "" = unknown.

    Args:
        model: The graph, whose nodes tell their modules.
        eager: Runs the module in float32, once.
    """
    try:
        with tempfile.TemporaryDirectory(prefix="attnport-layers-") as scratch:
            probes = Probes(base.get("ort_cpu"), Opening(manifest.io, model=model), manifest, Path(scratch), Limits())
            last: dict[str, str] = {}
            for name, tensor in probes.made.items():
                parts = tensor.module.split(".") if tensor.module and tensor.floating else []
                last |= {".".join(parts[: count + 1]): name for count in range(len(parts))}
            own = {path: arrays for path, arrays in _outputs(eager, case).items() if path in last}
            with probes.open({last[path] for path in own}) as session:
                got = session.run(case.feeds)
    except Exception:  # torch and runtimes raise errors of any type; the export is refused without the name
        return ""
    shown = {path: _alike(got[last[path]], arrays) for path, arrays in own.items()}
    # A module's last tensor may be another than its output, so the modules that contain it have to differ as well.
    around = {path: [shown[each] for each in _around(path) if shown.get(each) is not None] for path in shown}
    return next((path for path, alike in shown.items() if alike is False and True not in around[path]), "")


def _outputs(eager: Callable[[Mapping[str, Array]], object], case: Case) -> dict[str, list[Array]]:
    """The floating-point outputs of every module that runs once, by path, in the order in which they end."""
    from torch import Tensor
    from torch.nn.modules.module import register_module_forward_hook
    from torch.utils._pytree import tree_leaves

    seen: list[tuple[nn.Module, list[Array]]] = []

    def see(module: nn.Module, given: Any, result: Any) -> None:
        leaves = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor) and leaf.is_floating_point()]
        seen.append((module, [to_array(leaf).copy() for leaf in leaves]))

    hook = register_module_forward_hook(see)
    try:
        eager(case.feeds)
    finally:
        hook.remove()
    names = {id(module): name for name, module in seen[-1][0].named_modules()}  # the outermost ends last
    calls = Counter(id(module) for module, _ in seen)
    return {names[id(module)]: arrays for module, arrays in seen if calls[id(module)] == 1 and names.get(id(module))}


def _alike(got: Array, own: Sequence[Array]) -> bool | None:
    """Whether a tensor is one of the outputs of a module but for rounding; None where none has its shape."""
    fitting = [array for array in own if array.shape == got.shape]
    if not fitting:
        return None
    differences = (
        (np.abs(got.astype(np.float64) - array).max(initial=0.0), NO_ROUNDING * floor("fp32", rms(array)))
        for array in fitting
    )
    return any(largest <= allowed for largest, allowed in differences)


def _around(path: str) -> list[str]:
    parts = path.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts))]
