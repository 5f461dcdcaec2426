"""How often the rule of parity fails a result that is as exact as PyTorch's, and how often it lets a fault pass.

    python benchmarks/parity_rule.py [--modules 240] [--plan fp32]

Each module is an attention, a transformer layer, two of them, or a layer without attention, of another size and seed,
and is run on every case of its contract. It is computed again by arithmetic that is as good as PyTorch's own (products
added up in blocks or one after the other, scales folded, softmax in tiles, every operation in float64) and by one that
has a fault. A line of the table is a rule, and says of how many modules `check` would say FAIL: the rule of before
(docs/adr/0010, 0012, 0014), and that of docs/adr/0017 by so many further runs of PyTorch. An hour on one processor.
"""

from __future__ import annotations

import argparse
import copy
import math
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import parity_arithmetic as arithmetic
import torch

from attnport.artifacts import PLANS, IOContract, ModelSpec, Source
from attnport.cases.inputs import Case, cases
from attnport.dims import Dim, TensorSpec
from attnport.masks import MaskSpec
from attnport.parity.bound import FACTORS, NO_ROUNDING
from attnport.parity.comparing import DRAWS, Eager
from attnport.parity.evaluate import References, make_references, measure_session
from attnport.parity.metrics import Errors, measure_all

TYPES = {"fp32": torch.float32, "fp16": torch.float16}
RUNS = (0, 1, 4, 8, 16, DRAWS)
Results = Mapping[str, Errors]
"""One output's errors by case."""


class Measured:
    """What was measured of one module.

    Attributes:
        kernel: PyTorch's own run with its one kernel for attention, which only the rule of before used.
        runs: PyTorch's own runs, the first as it is, the others with weights and inputs moved by one rounding.
        others: The results of other arithmetic, by name.
        extremes: The cases with extreme values.
    """

    def __init__(self, seed: int, plan: str) -> None:
        module = arithmetic.Module(seed).eval()
        io = contract(module, seed)
        tried = cases(io, seed)
        self.plan = plan
        self.extremes = {case.name for case in tried if case.group == "extremes"}
        with tempfile.TemporaryDirectory() as scratch:
            spec = ModelSpec("module", Source("module"), io, lambda: copy.deepcopy(module))
            eager = Eager(io, spec, tried, References(Path(scratch)), 1, lambda message: None)
            with eager.session("fp32", float64=True) as session:
                make_references(session, io, tried, eager.store, eager.progress)
            self.kernel = self._run(eager, step_by_step=False)
            steps = plan != "fp32"
            self.runs = [self._run(eager, step_by_step=steps)]
            self.runs += [self._run(eager, step_by_step=steps, nudged=draw) for draw in range(DRAWS)]
            named = {**arithmetic.CORRECT, **arithmetic.FAULTS}
            self.others = {name: self._other(module, make(), eager) for name, make in named.items()}

    def _run(self, eager: Eager, **options: Any) -> Results:
        with eager.session(self.plan, **options) as session:
            found = measure_session(session, eager.io, eager.cases, eager.store, eager.progress)
        return {case: by_output["y"] for case, by_output in found.errors.items()}

    def _other(self, module: torch.nn.Module, by: arithmetic.Arithmetic, eager: Eager) -> Results:
        other: Any = copy.deepcopy(module).to(TYPES[self.plan])
        other.by = by
        return {case.name: self._errors(other, case, eager) for case in eager.cases}

    def _errors(self, module: torch.nn.Module, case: Case, eager: Eager) -> Errors:
        x, keep = (torch.from_numpy(case.feeds[name]) for name in ("x", "keep"))
        with torch.inference_mode():
            result = module(x.to(TYPES[self.plan]), keep).float().numpy()
        return measure_all({"y": result}, eager.store.load(case.name, ["y"]), case, eager.io)["y"]


def contract(module: arithmetic.Module, seed: int) -> IOContract:
    """The contract of a module: `x` [B, T, E] and what `keep` [B, T] hides."""
    usual = (6, 13, 24)[seed // 16 % 3]
    output = ("batch", 3) if module.kind == "pooled" else ("batch", "seq", module.width)
    return IOContract(
        (TensorSpec("x", "float32", ("batch", "seq", module.width)), TensorSpec("keep", "int64", ("batch", "seq"))),
        (TensorSpec("y", "float32", output),),
        (Dim("batch", 1, 3, 3), Dim("seq", 1, usual, 2 * usual)),
        (MaskSpec(("padding",), "keep"),),
    )


def wrong_anyway(found: Measured, case: str, errors: Errors, own: Errors) -> bool | None:
    """The verdict where no bound is asked: True fails, False passes or is not run; None where the bound decides."""
    if errors.problem:
        return True
    return case not in found.extremes if own.rms is None else None


def fails_now(found: Measured, results: Results, further: int) -> bool:
    """Whether some case fails by the worst of so many further runs."""
    for case, errors in results.items():
        first = found.runs[0][case]
        verdict = wrong_anyway(found, case, errors, first)
        if verdict is None:
            floor = 4 * PLANS[found.plan].eps * errors.reference_rms
            shares = []
            for number in range(further + 1):
                runs = [run[case] for run in found.runs[: number + 1] if run[case].rms is not None]
                kinds = zip(("rms", "max"), FACTORS, strict=True)
                bounds = (factor * max(getattr(run, kind) for run in runs) + floor for kind, factor in kinds)
                shares.append(max(map(share, (errors.rms, errors.max), bounds)))
                if shares[0] > NO_ROUNDING:
                    break
            verdict = min(shares) > 1
        if verdict:
            return True
    return False


def failed_before(found: Measured, results: Results) -> bool:
    """Whether some case failed by the rule of before: 32 further runs where nothing but extreme cases was over."""
    own = {case: [found.kernel[case], found.runs[0][case]] for case in results}
    worst = {
        case: tuple(max(getattr(run, kind) or 0.0 for run in runs) for kind in ("rms", "max"))
        for case, runs in own.items()
    }
    usual = max(largest for case, (_, largest) in worst.items() if case not in found.extremes)
    over = set()
    for case, errors in results.items():
        verdict = wrong_anyway(found, case, errors, found.kernel[case])
        if verdict:
            return True
        if verdict is None:
            floor = 4 * PLANS[found.plan].eps * errors.reference_rms
            rms_bound, max_bound = 2 * worst[case][0] + floor, 4 * usual + floor
            if case in found.extremes:
                max_bound = max(4 * worst[case][1] + floor, rms_bound * math.sqrt(errors.elements))
            if share(errors.rms, rms_bound) > 1 or share(errors.max, max_bound) > 1:
                over.add(case)
    if not over or not over <= found.extremes:
        return bool(over)
    widest = {case: max(run[case].rms or 0.0 for run in found.runs) for case in over}
    return any(
        share(results[case].rms, 2 * widest[case] + 4 * PLANS[found.plan].eps * results[case].reference_rms) > 1
        for case in over
    )


def share(error: float | None, bound: float) -> float:
    """An error as a multiple of its bound."""
    return (error or 0.0) / bound if bound > 0 else math.inf if error else 0.0


def main() -> None:
    """Prints how many modules fail by each rule, and how much wider a bound gets by every further run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--modules", type=int, default=240)
    parser.add_argument("--plan", choices=TYPES, default="fp32")
    options = parser.parse_args()
    torch.set_num_threads(1)
    every = [Measured(seed, options.plan) for seed in range(options.modules)]
    rules: dict[str, Callable[[Measured, Results], bool]] = {"before": failed_before}
    rules |= {f"now, {runs}": lambda found, results, runs=runs: fails_now(found, results, runs) for runs in RUNS}
    for title, names in (("as exact", arithmetic.CORRECT), ("faults", arithmetic.FAULTS)):
        print(f"{title}, of {len(every)} modules at {options.plan} so many fail:")
        print(f"{'':10}" + "".join(f"{name:>14}" for name in names))
        for rule, failing in rules.items():
            counts = [sum(failing(found, found.others[name]) for found in every) for name in names]
            print(f"{rule:10}" + "".join(f"{count:14}" for count in counts))


if __name__ == "__main__":
    main()
