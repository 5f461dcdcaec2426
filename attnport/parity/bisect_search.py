"""The search for where one runtime or form goes wrong: probe models are made, run and judged tensor by tensor."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from attnport.artifacts import RuntimeParity
from attnport.cases.inputs import Array, Case
from attnport.errors import AttnportError
from attnport.exporter.probing import operators_between, parents_among
from attnport.folder.portable import portable
from attnport.parity import integers
from attnport.parity.bisect_ground import Ground
from attnport.parity.bound import FACTORS_OF_ONE_RUN, Errors, Yardstick
from attnport.parity.comparing import TYPED_EVALUATOR
from attnport.parity.eager import EAGER
from attnport.parity.probes import Probes
from attnport.parity.searching import (
    Ancestry,
    Excess,
    Reading,
    SearchResult,
    errors_at,
    excess,
    locate,
    odd_one,
    reading,
)
from attnport.runtimes import base

_BYTES = 24  # an element of a tensor at most: in float64, of eager, and of the runtime, all int64


class Search:
    """The search for one row of the report."""

    def __init__(self, run: Ground, name: str, row: RuntimeParity, scratch: Path) -> None:
        self._run, self._name, self._row, self._scratch = run, name, row, scratch
        self._probes = run.probes(name, row, scratch)
        failing = {result.case for result in row.cases if result.verdict == "FAIL" and result.rms_error is not None}
        # NaN has no error, but it diverges too.
        failing |= {result.case for result in row.cases if result.verdict == "FAIL" and result.nonfinite}
        # Extreme values last: they are seldom what a user meets, and large errors go with them.
        by_size = sorted(run.cases, key=lambda case: (case.group == "extremes", _elements(case)))
        self._cases = [case for case in by_size if case.name in failing][: run.samples]
        self._plain: list[dict[str, Array]] = []
        self._starts: list[str | None] = []
        self._changed = 0
        self._healed: set[str] = set()
        self._truths: dict[tuple[str, str], tuple[Array, Array | None]] = {}

    def finding(self) -> SearchResult:
        """Searches; says why where there is nothing to search."""
        run = self._run
        if not self._cases:
            return SearchResult(self._name, reason=f"no case failed by its numbers ({self._row.reason})")
        outputs = [spec.name for spec in run.io.outputs if spec.name in self._probes.made]
        with self._probes.open(()) as session:
            self._plain = [session.run(case.feeds) for case in self._cases]
        measured = self._measured(outputs, self._plain)
        self._starts = [
            next((name for name in outputs if (measured[name][place] or 0.0) > 1), None)
            for place in range(len(self._cases))
        ]
        if not any(self._starts):
            return SearchResult(self._name, reason="no output diverges when the failing cases are run again")
        notes: list[str] = []
        comparable = self._comparable(outputs, notes)
        graph = Ancestry(parents_among(self._probes.made, comparable))
        sizes = {name: size * _BYTES for name, size in self._sizes(comparable).items()}
        places = locate(graph, self._starts, self._evaluate, dataclasses.replace(run.budget, size_bytes=sizes))
        ends = {case.name: end for case, end in zip(self._cases, places, strict=True) if end}
        # The tensor of most samples; of several such, the first in the graph.
        counts = Counter(ends.values())
        tensor = max(graph.parents, key=lambda name: (counts[name], -list(graph.parents).index(name)))
        case = next(case for case in self._cases if ends.get(case.name) == tensor)
        fine = graph.parents[tensor]
        readings, odd = self._readings(tensor, case, notes)
        made = self._probes.made[tensor]
        return SearchResult(
            self._name,
            tensor=tensor,
            operator=made.operator,
            difference=self._difference(tensor, case, readings),
            module=run.traced("fp32", float64=True).modules()[tensor],
            between=operators_between(self._probes.made, tensor, comparable),
            fine=fine,
            samples=tuple(name for name, end in ends.items() if end == tensor),
            elsewhere={name: end for name, end in ends.items() if end != tensor},
            sample=case.name,
            readings=readings,
            odd=odd,
            fusion=self._fusion([*fine, tensor]),
            runs=self._probes.runs,
            notes=tuple(notes),
        )

    def _comparable(self, outputs: Sequence[str], notes: list[str]) -> list[str]:
        """Tensors of the file that torch's graph has too, in the same module, without those over the memory cap.

        Integers that were made of floats, such as an argmax, are left out: a rounding may change them, and no bound
        says how many of them.
        """
        modules = self._run.traced("fp32", float64=True).modules()
        found = [
            name
            for name, tensor in self._probes.made.items()
            if name in modules
            and (name in outputs or ((tensor.floating or tensor.exact) and tensor.module in (None, modules[name])))
        ]
        sizes = self._sizes(found)
        cap = self._run.budget.cap_bytes
        large = [name for name in found if sizes.get(name, 0) * _BYTES > cap and name not in outputs]
        if large:
            notes.append(f"{len(large)} tensors over {cap / 2**20:.0f} MiB were not probed, such as {large[0]}")
        return [name for name in found if name not in large and (name in sizes or name in outputs)]

    def _sizes(self, names: Sequence[str]) -> dict[str, int]:
        """Elements of each tensor in all samples together, whose results are held at once."""
        module = self._run.traced("fp32", float64=True)
        shapes = [module.shapes(case.feeds) for case in self._cases]
        known = [name for name in names if all(name in one for one in shapes)]
        return {name: sum(math.prod(one[name]) for one in shapes) for name in known}

    def _evaluate(self, names: Sequence[str]) -> Mapping[str, Sequence[Excess]]:
        """One probe model with `names` marked, on every sample."""
        self._run.progress(f"{self._name}: bisecting, run {self._probes.runs + 1}: {', '.join(names)}")
        with self._probes.open(names) as session:
            results = [session.run(case.feeds) for case in self._cases]
        self._watch(names, results)
        return self._measured(names, results)

    def _watch(self, names: Sequence[str], results: Sequence[Mapping[str, Array]]) -> None:
        """Notes what marking did to the outputs themselves."""
        outputs = [spec.name for spec in self._run.io.outputs if spec.name in self._probes.made]
        same = all(
            np.array_equal(got[name], plain[name], equal_nan=True)
            for got, plain in zip(results, self._plain, strict=True)
            for name in outputs
        )
        if same:
            return
        self._changed += 1
        again = self._measured(outputs, results)
        for place, start in enumerate(self._starts):
            if start is not None and (now := again[start][place]) is not None and now <= 1:
                self._healed |= set(names)

    def _measured(self, names: Sequence[str], results: Sequence[Mapping[str, Array]]) -> dict[str, list[Excess]]:
        """The excess of each tensor by sample."""
        found = [self._excesses(case, names, got) for case, got in zip(self._cases, results, strict=True)]
        return {name: [one[name] for one in found] for name in names}

    def _excesses(self, case: Case, names: Sequence[str], got: Mapping[str, Array]) -> dict[str, Excess]:
        """The excess of each tensor on one sample."""
        found: dict[str, Excess] = {}
        for name, (expected, own) in self._module_at(case, names).items():
            valid = self._run.valid(case, name, self._probes, expected.shape)
            if self._probes.made[name].exact:
                found[name] = integers.excess(integers.difference(got.get(name), expected, own, valid))
            else:
                by = self._yardstick(case, name, errors_at(own, expected, valid, name))
                found[name] = excess(case.name, name, errors_at(got.get(name), expected, valid, name), by)
        return found

    def _yardstick(self, case: Case, name: str, eager: Errors | None) -> Yardstick:
        """For one tensor on one sample."""
        by_case = {case.name: {name: eager}} if eager else {}
        return Yardstick(self._row.plan, by_case, factors=FACTORS_OF_ONE_RUN)

    def _module_at(self, case: Case, names: Sequence[str]) -> dict[str, tuple[Array, Array | None]]:
        """The module's own tensors, in float64 and at the plan; those of outputs are kept: each run asks again."""
        known = {name: self._truths[case.name, name] for name in names if (case.name, name) in self._truths}
        if missing := [name for name in names if name not in known]:
            expected = self._run.traced("fp32", float64=True).run(case.feeds, missing)
            own = self._run.traced(self._row.plan).run(case.feeds, missing)
            known |= {name: (expected[name], own.get(name)) for name in missing}
        outputs = {spec.name for spec in self._run.io.outputs}
        self._truths |= {(case.name, name): pair for name, pair in known.items() if name in outputs}
        return known

    def _readings(self, tensor: str, case: Case, notes: list[str]) -> tuple[tuple[Reading, ...], str]:
        """Every runtime's errors at the tensor, and which of those of one plan lies apart."""
        run = self._run
        expected, own = self._module_at(case, [tensor])[tensor]
        valid = run.valid(case, tensor, self._probes, expected.shape)
        by = self._yardstick(case, tensor, errors_at(own, expected, valid, tensor))

        def read(subject: str, got: Array | None) -> Reading:
            if self._probes.made[tensor].exact:
                return integers.reading(subject, integers.difference(got, expected, own, valid))
            return reading(subject, case.name, tensor, errors_at(got, expected, valid, tensor), by)

        results = {EAGER: own} if own is not None else {}
        found = [read(EAGER, own)]
        rows = {self._name: self._row} | {
            name: row for name, row in run.report.runtimes.items() if name in run.openings() and name != self._name
        }
        for name, row in rows.items():
            if row.plan != self._row.plan:
                found.append(Reading(name, "NOT_RUN", f"it computes in {row.plan}"))
                continue
            got = self._value(name, row, tensor, case)
            if isinstance(got, str):
                found.append(Reading(name, "NOT_RUN", got))
            else:
                results[name] = got
                found.append(read(name, got))
        odd = odd_one(results, valid)
        evaluated = self._evaluator(tensor, case)
        if evaluated is not None:
            label = f"{self._probes.file.name} in {TYPED_EVALUATOR}"
            found.append(read(label, evaluated))
            wrong = found[-1].verdict == "FAIL"
            notes.append(
                f"{self._probes.file.name} itself is wrong there: ONNX's reference evaluator diverges too"
                if wrong
                else f"{self._probes.file.name} is right there, evaluated by ONNX's reference: the runtime is wrong"
            )
        return tuple(found), odd

    def _difference(self, tensor: str, case: Case, readings: Sequence[Reading]) -> str:
        """What differs in a tensor of integers, of the runtime that was searched; "" for a tensor of floats."""
        if not self._probes.made[tensor].exact:
            return ""
        told = next(row.reason for row in readings if row.subject == self._name)
        return f"{self._module_at(case, [tensor])[tensor][0].dtype}: {told}; integers must be exact"

    def _value(self, name: str, row: RuntimeParity, tensor: str, case: Case) -> Array | str:
        """A runtime's tensor, or why there is none."""
        try:
            probes = self._run.probes(name, row, self._scratch)
            if tensor not in probes.made:
                return "its form has no such tensor"
            with probes.open([tensor]) as session:
                return session.run(case.feeds)[tensor]
        except (AttnportError, MemoryError) as err:
            return portable(str(err), self._run.folder)

    def _evaluator(self, tensor: str, case: Case) -> Array | None:
        """The same file's tensor by the standard's own arithmetic; None where it is what was searched, or cannot."""
        runtime = base.get(TYPED_EVALUATOR)
        if self._probes.runtime.name == runtime.name:
            return None
        try:
            probes = Probes(
                self._name, runtime, self._probes.opening, self._run.manifest, self._scratch, self._run.limits
            )
            with probes.open([tensor]) as session:
                return session.run(case.feeds)[tensor]
        except (AttnportError, MemoryError):
            return None

    def _fusion(self, names: Sequence[str]) -> str:
        """What marking tensors changed: the proof of fusion, and the outputs themselves."""
        told = []
        lost = self._probes.unfused_by(names)
        if lost:
            told.append(f"marking {', '.join(names)} broke the fusion of {', '.join(lost)}")
        if self._healed:
            told.append(
                f"with {', '.join(sorted(self._healed))} marked an output no longer diverges: "
                "the fault lies in what the runtime fuses there"
            )
        elif self._changed:
            told.append(
                f"in {self._changed} of {self._probes.runs} runs marking changed bits of the outputs, not the verdict"
            )
        return "; ".join(told)


def _elements(case: Case) -> int:
    return sum(array.size for array in case.feeds.values())
