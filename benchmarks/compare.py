"""attnport's forms beside other tools, each tool in an environment, a process and a schedule of its own.

The sides take turns in random order, pinned to one core (some works also to two). Each runs a batch padded to its
longest row, one row at a time, or in groups of 2 to 16 of like length, and attnport's also in the batches that its
`Model.map` makes; its outputs come in the order of the batch, and tokenising is not timed. A ratio of attnport's best
to the fastest peer's is sampled until its bootstrap interval is within 1 %, or its time is over. A side whose outputs
are not those of PyTorch in float32 is refused; a side that fails is a row with its reason.

    python benchmarks/compare.py [--only minilm ...] [--seconds 1500] [--json FILE] [--docs]
    python benchmarks/compare.py --quick          # MiniLM beside what the project's own environment has
    python benchmarks/compare.py --make           # converts the models for every peer; `make bench-env` does

Each work is saved as it is done, in a file that the next run goes on with if nothing of attnport, and no option, has
changed; `--fresh` begins anew. The peers are the files of benchmarks/peers.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from beside import floor, page, sampling
from beside.models import MODELS, Model, accuracy_work, code_digest, described
from beside.sampling import Trial
from beside.schedules import MAPPED, PADDED, Work
from beside.side import CACHE, PEERS, ROOT, Named, SideFailed, adapter, peers, sides_of
from beside.table import Table, table, written

from attnport.folder.machine import machine, versions
from attnport.parity.scoring import vectors_agree

JSON = ROOT / "benchmarks" / "compare.json"
PARTIAL = CACHE / "partial.json"
REFERENCE = Named("torch_eager", "fp32", "fp32")
USUALLY_QUICK = ("attnport", "torch_eager", "torch_compile", "onnxruntime", "openvino", "optimum_onnx")
"""The peers of models that are not run by all."""
TWO_THREADS = ("32 sentences, 26% real", "dense 8x128")
QUICK = ("32 sentences, 26% real", "dense 1x128", "dense 8x128")
IMAGE_TOKENS = 197
NEAR, FAR = 1.1, 2.0
"""A peer that takes this many times as long as the quickest peer of its precision is not run on two threads or with a
longer input (near), nor on any other work of the model (far)."""
KEPT = 3
"""The schedules of a side that a work is tried in, after another work of the kind was tried in all."""


@dataclass
class Run:
    """What one call of this script measures, and what it has so far."""

    seconds: float
    quick: bool
    result: dict[str, Any]
    end: float = field(init=False)

    def __post_init__(self) -> None:
        self.end = time.perf_counter() + self.seconds

    def save(self, model: str, key: str, row: Mapping[str, Any]) -> None:
        """Keeps a work's result."""
        self.result["models"].setdefault(model, {"works": {}})["works"][key] = row
        if not self.quick:
            PARTIAL.parent.mkdir(parents=True, exist_ok=True)
            PARTIAL.write_text(json.dumps(self.result, indent=1) + "\n", encoding="utf-8")

    def done(self, model: str, key: str) -> bool:
        """Whether it is there already."""
        return key in self.result["models"].get(model, {"works": {}})["works"]


def named_sides(model: Model, told: Mapping[str, Any], quick: bool) -> list[Named]:
    """All sides of a model, the reference first, attnport next."""
    names = peers() if model.everything else [name for name in peers() if name in USUALLY_QUICK]
    if quick:
        names = [name for name in names if not adapter(name).ENVIRONMENT and name != "torch_compile"]
    found = [side for name in names for side in sides_of(name, told)]
    return [REFERENCE, *(side for side in found if side != REFERENCE)]


def accuracy(sides: Table, model: Model) -> dict[str, Any]:
    """By side, on all sentences: the least cosine to float32, and how far they agree by attnport's metric."""
    found: dict[str, Any] = {}
    with written(accuracy_work(), model) as (file, _):

        def vectors(named: Named) -> Any:
            try:
                sides.open[named].work(accuracy_work(), file)
                return sides.open[named].outputs("all sentences", "groups of 16")
            except SideFailed as err:
                return err

        with ThreadPoolExecutor(2) as pool:  # nothing is timed here
            every = dict(zip(list(sides.open), pool.map(vectors, list(sides.open)), strict=True))
        expected = every[REFERENCE]
        for named, got in every.items():
            if isinstance(got, SideFailed):
                sides.drop(named, str(got))
                continue
            cosine = sampling.least_cosine(got, expected)
            reason = sampling.refusal(named, cosine)
            if reason:
                sides.drop(named, reason)
            else:
                score = vectors_agree(got, expected)
                found[str(named)] = {
                    "cosine": round(cosine, 6),
                    "agreement": round(score.value, 6),
                    "neighbours_changed": round(1 - score.parts["neighbours unchanged"], 4),
                }
    return found


def in_class(named: Named, accuracy: Mapping[str, Any], sides: Table) -> Named:
    """The side, as one that is in no class if it loses more than int8 may."""
    if named.precision != "int8" or accuracy.get(str(named), {}).get("agreement", 1) >= 1 - sampling.MOST_DROP:
        return named
    coarse = replace(named, precision=sampling.COARSE)
    for kept in (sides.open, sides.failed):
        if named in kept:
            kept[coarse] = kept.pop(named)
    return coarse


def tried(named: Named, sides: Table, work: Work, file: Path, schedules: Sequence[str], seen: dict[str, Any]) -> Trial:
    """One side's outputs, judged, and a first time of each schedule.

    Args:
        seen: What sides before it left: `expected`, and by class the `quickest` nanoseconds.
    """
    side = sides.open[named]
    side.work(work, file)
    got = side.outputs(work.name, schedules[0])
    seen.setdefault("expected", got)
    cosine = sampling.least_cosine(got, seen["expected"])
    if reason := sampling.refusal(named, cosine):
        raise SideFailed(reason)
    quickest = seen.setdefault("quickest", {}).get(named.precision, float("inf"))
    trial = sampling.try_side(named, schedules, lambda one, way: sides.open[one].run(work.name, way), quickest,
                              side.outputs_ns)  # fmt: skip
    trial.cosine = cosine
    if not named.ours:
        seen["quickest"][named.precision] = min(quickest, trial.typical_ns)
    return trial


def measure(
    model: Model, work: Work, sides: Table, wanted: Sequence[Named], until: float, before: dict[Named, list[str]]
) -> dict[str, Any]:
    """All sides on one work.

    Args:
        before: By side, the schedules to try where an earlier work has told; those of this work are put there.
    """
    trials: dict[Named, Trial] = {}
    memory: dict[Named, float] = {}
    seen: dict[str, Any] = {}
    began = time.perf_counter()
    with written(work, model) as (file, schedules):
        for named in wanted:
            if named not in sides.open and (named in sides.failed or not sides.add(named)):
                continue
            ways = [way for way in before.get(named, schedules) if way in schedules and (named.ours or way != MAPPED)]
            try:
                trials[named] = tried(named, sides, work, file, ways or [PADDED], seen)
                memory[named] = sides.open[named].memory_mb()
            except SideFailed as err:
                sides.drop(named, str(err))
                continue
            if model.lean:
                sides.drop(named)
        if model.lean:
            reopen(sides, trials, work, file)
        ready = {named: trial for named, trial in trials.items() if named in sides.open}
        sampling_since = time.perf_counter()
        sampling.settle(ready, lambda named, way: sides.open[named].run(work.name, way))
        ratios = sampling.sample(ready, lambda named, way: sides.open[named].run(work.name, way), until,
                                 least=3 if any(map(slow, ready.values())) else 5)  # fmt: skip
    if work.share < 1:
        for named, trial in trials.items():
            before[named] = sorted(trial.ns, key=lambda way: min(trial.ns[way]))[:KEPT]
    rows = {str(named): _row(named, trial, memory[named] if model.lean else None) for named, trial in trials.items()}
    rows |= {str(named): {"precision": named.precision, "failed": reason}
             for named, reason in sides.failed.items() if str(named) not in rows}  # fmt: skip
    took = {"trying": round(sampling_since - began, 1), "sampling": round(time.perf_counter() - sampling_since, 1)}
    return {
        "share": round(work.share, 3), "threads": sides.threads, "seconds": took, "sides": rows, "ratios": ratios,
    }  # fmt: skip


def slow(trial: Trial) -> bool:
    """Whether a run takes so long that fewer have to do."""
    return trial.typical_ns > sampling.SLOW_NS


def reopen(sides: Table, trials: Mapping[Named, Trial], work: Work, file: Path) -> None:
    """Opens the finalists again, all others being closed, and warms them up where a run is short."""
    for named in dict.fromkeys(named for named, _ in sampling.finalists(trials)):
        try:
            if sides.add(named):
                sides.open[named].work(work, file)
                if not slow(trials[named]):
                    sides.open[named].run(work.name, PADDED)
        except SideFailed as err:
            sides.drop(named, str(err))


def _row(named: Named, trial: Trial, memory_mb: float | None) -> dict[str, Any]:
    found = {
        "precision": named.precision,
        "ms": round(trial.typical_ns / 1e6, 3),
        "schedule": trial.best,
        "samples": len(trial.ns[trial.best]),
        "cosine": None if trial.cosine is None else round(trial.cosine, 6),
        "schedules_ms": {way: round(float(np.median(taken)) / 1e6, 3) for way, taken in trial.ns.items()},
    }
    if memory_mb is not None:
        found["peak_mb"] = round(memory_mb)
    return found | ({"failed": trial.failed} if trial.failed else {})


def report(model: Model, key: str, row: Mapping[str, Any]) -> None:
    """A line a ratio, and where the time went."""
    took = row["seconds"]
    print(f"{model.name}, {key}: tried in {took['trying']:.0f} s, sampled in {took['sampling']:.0f} s", flush=True)
    for name, ratio in row["ratios"].items():
        low, high = ratio["interval"]
        ours, peer = (row["sides"][ratio[side]] for side in ("ours", "peer"))
        print(f"{model.name}, {key}, {name}: {ratio['ratio']:.3f} [{low:.3f}, {high:.3f}] of {ratio['samples']} "
              f"({ratio['ours']} {ours['ms']:.1f} ms, {ours['schedule']}; {ratio['peer']} {peer['ms']:.1f} ms, "
              f"{peer['schedule']})", flush=True)  # fmt: skip


def measure_model(run: Run, model: Model, share: Mapping[str, float]) -> None:
    """All works of a model that are not done."""
    works = [work for work in model.works() if not run.quick or work.name in QUICK]
    left = [work for work in works if not run.done(model.name, work.name)]
    double = [] if run.quick or not model.everything else [
        work for work in works if work.name in TWO_THREADS and not run.done(model.name, f"{work.name}, two threads")
    ]  # fmt: skip
    if not left and not double:
        return
    told = described(model)
    rates = floor.rates(model.shape, 512, 0.2)
    wanted = named_sides(model, told, run.quick)
    before: dict[Named, list[str]] = {}
    kept = run.result["models"].setdefault(model.name, {"works": {}})
    kept["rates"] = rates
    with table(told, 1) as sides:
        began = time.perf_counter()
        if not model.lean:
            sides.add_all(wanted)
        if model.everything:
            kept["accuracy"] = accuracy(sides, model)
            wanted = [in_class(named, kept["accuracy"], sides) for named in wanted]
        print(f"{model.name}: opened and judged in {time.perf_counter() - began:.0f} s", flush=True)
        for work in left:
            until = time.perf_counter() + _time(run, share, model.name, work.name)
            if model.lean:
                sides.close()
            row = measure(model, work, sides, wanted, until, before)
            wanted = near(wanted, row["sides"], NEAR if model.lean else FAR)
            lengths = [length or IMAGE_TOKENS for length in work.tokens]
            row["floor"] = floor.multiples(model.shape.operations(lengths), rates, row["sides"])
            run.save(model.name, work.name, row)
            report(model, work.name, row)
    if double:
        _on_two_threads(run, model, told, double, share)


def _on_two_threads(
    run: Run, model: Model, told: Mapping[str, Any], works: Sequence[Work], share: Mapping[str, float]
) -> None:
    """The sides that were near the quickest on one thread, on two."""
    kept = run.result["models"][model.name]
    with table(told, 2) as sides:
        every = [in_class(named, kept["accuracy"], sides) for named in named_sides(model, told, run.quick)]
        near_ones = {work.name: near(every, kept["works"][work.name]["sides"], NEAR) for work in works}
        sides.add_all([named for named in every if any(named in wanted for wanted in near_ones.values())])
        for work in works:
            single, wanted = kept["works"][work.name]["sides"], near_ones[work.name]
            before = {named: sorted(row["schedules_ms"], key=row["schedules_ms"].get)[:KEPT] for named in wanted
                      if "ms" in (row := single.get(str(named), {}))}  # fmt: skip
            key = f"{work.name}, two threads"
            until = time.perf_counter() + _time(run, share, model.name, key)
            row = measure(model, work, sides, wanted, until, before)
            run.save(model.name, key, row)
            report(model, key, row)


def near(every: Sequence[Named], rows: Mapping[str, Any], times: float) -> list[Named]:
    """The reference, attnport's sides, and the peers that were not much slower than the quickest of their precision."""
    quickest: dict[str, float] = {}
    for name, row in rows.items():
        if "ms" in row and not name.startswith("attnport"):
            quickest[row["precision"]] = min(row["ms"], quickest.get(row["precision"], row["ms"]))
    return [
        named for named in every
        if named == REFERENCE or named.ours
        or rows.get(str(named), {}).get("ms", float("inf")) <= times * quickest.get(named.precision, 0)
    ]  # fmt: skip


def _time(run: Run, share: Mapping[str, float], model: str, key: str) -> float:
    """The seconds of a work: its part of what is left for all that are not done."""
    waiting = sum(part for name, part in share.items() if not run.done(*name.split("/", 1)))
    left = max(0.0, run.end - time.perf_counter())
    return left * share[f"{model}/{key}"] / max(waiting, 1e-9)


def shares(models: Sequence[Model], quick: bool) -> dict[str, float]:
    """By work, how much of the time it may take: more where calls or schedules are many."""
    found: dict[str, float] = {}
    for model in models:
        for work in model.works():
            if not quick or work.name in QUICK:
                found[f"{model.name}/{work.name}"] = 2.5 if work.share < 1 or model.lean else 1.0
            if not quick and model.everything and work.name in TWO_THREADS:
                found[f"{model.name}/{work.name}, two threads"] = 1.0
    return found


def begun(given: argparse.Namespace) -> dict[str, Any]:
    """The result to go on with: that of an interrupted run of the same code, options and machine, or a new one."""
    found = machine()
    new = {
        "command": f"python benchmarks/compare.py --seconds {given.seconds:.0f}",
        "machine": found.cpu,
        "features": list(found.features),
        "cores": found.cores,
        "code": code_digest(),
        "versions": versions(("torch", "onnxruntime", "openvino", "transformers", "numpy")),
        "environments": {path.stem: path.read_text().split() for path in sorted(PEERS.glob("*.txt"))},
        "models": {},
    }
    if given.fresh or given.quick or not PARTIAL.exists():
        return new
    old: dict[str, Any] = json.loads(PARTIAL.read_text(encoding="utf-8"))
    return old if all(old.get(key) == new[key] for key in ("command", "machine", "code")) else new


def main() -> None:
    """Measures, prints a line for each ratio, and writes what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=sorted(MODELS), help="a model; several allowed")
    parser.add_argument("--seconds", type=float, default=1500.0, help="of all measuring together")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--make", action="store_true")
    parser.add_argument("--fresh", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--docs", action="store_true")
    given = parser.parse_args()
    models = [MODELS[name] for name in (["minilm"] if given.quick else given.only or list(MODELS))]
    if given.make:
        make(models)
        return
    run = Run(given.seconds, given.quick, begun(given))
    share = shares(models, given.quick)
    for model in models:
        measure_model(run, model, share)
    if given.json:
        merged = run.result
        if given.only and given.json.exists():
            earlier = json.loads(given.json.read_text(encoding="utf-8"))
            merged = run.result | {"models": earlier["models"] | run.result["models"]}
        given.json.write_text(json.dumps(merged, indent=1) + "\n", encoding="utf-8")
        PARTIAL.unlink(missing_ok=True)
    if given.docs:
        page.write_page(json.loads((given.json or JSON).read_text(encoding="utf-8")))


def make(models: Sequence[Model]) -> None:
    """Opens every side once, so that conversions and compiled code are kept."""
    for model in models:
        told = described(model)
        for named in named_sides(model, told, quick=False):
            for threads in (1, 2) if model.everything else (1,):  # what torch.compile makes is for a number of them
                with table(told, threads) as sides:
                    began = time.perf_counter()
                    if sides.add(named):
                        print(f"{model.name}: {named}: {time.perf_counter() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
