"""How often a result that is as exact as PyTorch eager's fails at large values, by so many runs of eager.

    python benchmarks/extreme_draws.py [--attentions 1050]

Each attention is examples/custom_attention.py of another size and seed, in float32, with inputs 32 times the usual. Two
results are judged by the RMS bound of docs/parity.md: one whose scores are added up one after the other, in NumPy, and
eager's with the inner dim of its first product in another order. See docs/adr/0014. Minutes on one processor.
"""

from __future__ import annotations

import argparse
import copy
import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import torch

from attnport.cases.extremes import LARGE
from attnport.parity.bound import EPS
from attnport.runtimes._torch_nudge import draw, nudge_parameters, nudged

RUNS = (1, 2, 4, 8, 16, 32, 64)
CHOSEN = 32
Array = np.ndarray[Any, Any]


def attention_class() -> type[torch.nn.Module]:
    """The example's module; `examples` is no package."""
    path = Path(__file__).resolve().parent.parent / "examples" / "custom_attention.py"
    spec = importlib.util.spec_from_file_location("custom_attention", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found: type[torch.nn.Module] = module.SelfAttention
    return found


def run(module: torch.nn.Module, x: torch.Tensor) -> Array:
    """The module's result [B, T, E] without padding, as float64."""
    with torch.inference_mode():
        result: Array = module(x, torch.ones(x.shape[:2], dtype=torch.int64)).double().numpy()
    return result


def one_after_the_other(module: Any, x: Array) -> Array:
    """The same attention in NumPy, float32: each score is a sum from its first product to its last."""

    def linear(layer: Any, rows: Array) -> Array:
        return np.asarray(rows @ layer.weight.detach().numpy().T + layer.bias.detach().numpy())

    parts = np.split(linear(module.qkv, x), 3, -1)
    q, k, v = (part.reshape(*part.shape[:2], module.heads, -1).transpose(0, 2, 1, 3) for part in parts)
    scores = np.zeros((*q.shape[:-1], k.shape[-2]), np.float32)
    for at in range(q.shape[-1]):
        scores += q[..., :, None, at] * k[..., None, :, at]
    scores /= np.float32(q.shape[-1] ** 0.5)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    mixed = (weights / weights.sum(-1, keepdims=True)) @ v
    return linear(module.out, mixed.transpose(0, 2, 1, 3).reshape(x.shape)).astype(np.float64)


def rms(array: Array) -> float:
    """Root of the mean square."""
    return float(np.sqrt(np.mean(np.square(array))))


def measured(seed: int) -> tuple[list[float], dict[str, float], float]:
    """RMS errors of eager's runs, the first as it is, of the two others by name, and the bound's floor."""
    width, heads = [(64, 4), (128, 4), (256, 8)][seed % 3]
    torch.manual_seed(seed)
    module = attention_class()(width, heads).eval()
    length = [3, 6, 13][seed // 3 % 3]
    x = torch.from_numpy(np.random.default_rng(seed).standard_normal((3, length, width)).astype(np.float32) * LARGE)
    reference = run(copy.deepcopy(module).double(), x.double())
    runs = [rms(run(module, x) - reference)]
    for number in range(RUNS[-1] - 1):
        moved = nudge_parameters(copy.deepcopy(module), draw(number))
        runs.append(rms(run(moved, nudged(x, draw(number))) - reference))
    order = torch.randperm(width, generator=draw(seed))
    turned: Any = copy.deepcopy(module)
    turned.qkv.weight.data = turned.qkv.weight.data[:, order]
    others = {
        "one after the other": rms(one_after_the_other(module, x.numpy()) - reference),
        "eager, another order": rms(run(turned, x[..., order]) - reference),
    }
    return runs, others, 4 * EPS["fp32"] * rms(reference)


def main() -> None:
    """Prints how many fail by so many runs of eager, and how much wider the bound is by the chosen number."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--attentions", type=int, default=1050)
    count = parser.parse_args().attentions
    torch.set_num_threads(1)
    found = [measured(seed) for seed in range(count)]
    print(f"of {count} attentions over the bound, by so many runs of eager:")
    print(f"{'':22}" + "".join(f"{number:6}" for number in RUNS))
    for name in found[0][1]:
        over = [sum(others[name] > 2 * max(runs[:number]) + floor for runs, others, floor in found) for number in RUNS]
        print(f"{name:22}" + "".join(f"{number:6}" for number in over))
    wider = [(2 * max(runs[:CHOSEN]) + floor) / (2 * runs[0] + floor) for runs, _, floor in found]
    median, most = np.quantile(wider, [0.5, 0.9])
    print(f"the bound by {CHOSEN} runs over that by one: {median:.1f} at the median, {most:.1f} at 90 %")


if __name__ == "__main__":
    main()
