"""What PyTorch eager makes of the cases at each precision plan: its errors are what others are judged by.

A GPU makes the float64 reference in slices of one batch item, since a processor would take the longest part of the
time for it. The reference is itself compared with the processor's on the first case. See ADR 11.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from attnport.artifacts import AUTO, CaseResult, IOContract, ModelSpec, Session
from attnport.cases.decoding import of_all_tokens
from attnport.cases.inputs import Array, Case, batch_dim
from attnport.parity import bound as parity
from attnport.parity.evaluate import Progress, References, SessionErrors, measure_session
from attnport.runtimes import base
from attnport.runtimes.base import Opening

EAGER = "torch_eager"
EAGER_ON_GPU = "torch_eager_cuda"
DRAWS = 32
"""How often eager is run again at most, where a result is over its bound: see docs/adr/0017."""


@dataclass
class Eager:
    """PyTorch eager, run when it is asked for.

    Attributes:
        io: The contract of `spec`.
        cases: Every case; the references of those that are run are in `store`.
        runtime: The name of the runtime that is eager on this device.
        items: How many batch items are also run alone and with more padding, in float32.
    """

    io: IOContract
    spec: ModelSpec
    cases: Sequence[Case]
    store: References
    threads: int | None
    progress: Progress
    runtime: str = EAGER
    items: int = 1 << 30

    def __post_init__(self) -> None:
        self._found: dict[str, SessionErrors] = {}
        self._worst: dict[str, dict[str, dict[str, parity.Errors]]] = {}
        self._draws: dict[tuple[str, str], int] = {}

    @contextlib.contextmanager
    def session(
        self,
        plan: str,
        *,
        float64: bool = False,
        step_by_step: bool = False,
        nudged: int | None = None,
    ) -> Iterator[Session]:
        """The module, opened at a plan; the arguments are those of `Opening`. On a GPU in float64, item by item."""
        given = Opening(of_all_tokens(self.io), plan=plan, spec=self.spec, threads=self.threads, contract=True)
        opening = replace(given, float64=float64, step_by_step=step_by_step, nudged=nudged)
        with contextlib.closing(base.get(self.runtime).open(opening)) as session:
            yield Sliced(session, self.io) if float64 and self.runtime != EAGER else session

    @property
    def extremes(self) -> list[str]:
        """The cases with extreme values."""
        return [case.name for case in self.cases if case.group == "extremes"]

    @functools.cached_property
    def _module(self) -> Any:
        """Made once for all draws, since some modules are read from a disk; a session copies what it changes."""
        return self.spec.make()

    def measured(self, plan: str, names: Collection[str] | None = None) -> SessionErrors:
        """Eager's errors on the named cases, or on all, and on whichever it had before; each is run once."""
        had = self._found.get(plan)
        asked = {case.name for case in self.cases} if names is None else set(names)
        todo = [case for case in self.cases if case.name in asked and not (had and case.name in had.errors)]
        if todo:
            items = self.items if plan == "fp32" else 0
            with self._own_way(plan) as session:
                found = measure_session(session, self.io, todo, self.store, self._saying(plan), items=items)
            self._found[plan] = replace(had, errors={**had.errors, **found.errors}) if had else found
            self._worst.setdefault(plan, {}).update(found.errors)
        return self._found[plan]

    def yardstick(self, plan: str) -> parity.Yardstick:
        """The bounds at a plan, by the errors on every case that was measured."""
        if plan == AUTO:
            return parity.Yardstick.of_auto(self._worst["fp16"], self._worst[AUTO], self.extremes)
        return parity.Yardstick(plan, self._worst[plan], self.extremes)

    def judged(self, plan: str, found: parity.ByCase, left_out: Collection[tuple[str, str]] = ()) -> list[CaseResult]:
        """The verdicts of another's errors, on cases that were measured; `left_out` are cases and outputs.

        Where a result is over its bound, eager is run again on that case until it is not, or `DRAWS` times: one run is
        a single draw of what rounding does there.
        """
        while True:
            by = self.yardstick(plan)
            results = [
                parity.judge(case, output, errors, by)
                for case, by_output in found.items()
                for output, errors in by_output.items()
                if (case, output) not in left_out
            ]
            over = {
                result.case
                for result in results
                if (result.used or 0.0) > 1
                and parity.within_rounding(result)
                and by.errors(result.case, result.output).rms is not None
            }
            drawn = [self.draw(each, over) for each in (("fp16", AUTO) if plan == AUTO else (plan,))]
            if not any(drawn):
                return results

    def notes(self) -> list[str]:
        """Whose bounds are by more than one run of eager: a note for each plan and number of runs."""
        cases: dict[tuple[str, int], list[str]] = {}
        for (plan, case), count in sorted(self._draws.items()):
            cases.setdefault((plan, count), []).append(case)
        return [
            f"{plan}, {', '.join(names)}: something was over its bound by one run of eager, so the bound is by {count} "
            f"further {'run' if count == 1 else 'runs'}, with weights and inputs moved by one rounding"
            for (plan, count), names in cases.items()
        ]

    def redrawn(self) -> dict[str, parity.ByCase]:
        """The worst errors on the cases that were run more than once, by plan, case and output."""
        found: dict[str, dict[str, Mapping[str, parity.Errors]]] = {}
        for plan, case in self._draws:
            found.setdefault(plan, {})[case] = self._worst[plan][case]
        return dict(found)

    def _own_way(self, plan: str, nudged: int | None = None) -> contextlib.AbstractContextManager[Session]:
        """Attention in half precision step by step, also where the module casts itself: its one kernel keeps the scores
        in float32, which a graph that is run node by node does not."""
        return self.session(plan, step_by_step=True, nudged=nudged)

    def draw(self, plan: str, names: Collection[str]) -> bool:
        """Runs eager once more on cases, with weights and inputs moved by one rounding; keeps the larger errors.

        Returns:
            Whether any case had fewer than `DRAWS` such runs.
        """
        drawn = {name: self._draws.get((plan, name), 0) for name in names}
        number = min(drawn.values(), default=DRAWS)
        if number == DRAWS:
            return False
        todo = [case for case in self.cases if drawn.get(case.name) == number]
        once = replace(self, spec=replace(self.spec, make=lambda: self._module))
        with once._own_way(plan, nudged=number) as session:
            label = self._saying(f"{plan}, draw {number + 1} of at most {DRAWS}")
            errors = measure_session(session, self.io, todo, self.store, label).errors
        kept = self._worst[plan]
        for case, by_output in errors.items():
            kept[case] = {name: parity.worse(kept[case][name], error) for name, error in by_output.items()}
            self._draws[plan, case] = number + 1
        return True

    def _saying(self, label: str) -> Progress:
        return lambda message: self.progress(f"{self.runtime} {label}: {message}")


class Sliced:
    """A session that is given one batch item after the other: in float64 a whole batch of scores may not fit.

    Attributes:
        ran: As the session's.
        undefined: As of a session of PyTorch eager, for the last call.
        gave_numbers: The same.
    """

    def __init__(self, session: Session, io: IOContract) -> None:
        self._session, self._io, self.ran = session, io, session.ran
        self.undefined: frozenset[str] = frozenset()
        self.gave_numbers = False
        batch = batch_dim(io)
        self._batch = batch if all(batch in spec.dims for spec in io.outputs) else None

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Outputs by name, as of the whole batch where no item sees another."""
        batch = self._batch
        axes = {
            spec.name: spec.dims.index(batch) for spec in self._io.inputs if batch is not None and batch in spec.dims
        }
        counts = {feeds[name].shape[axis] for name, axis in axes.items()}
        self.undefined, self.gave_numbers = frozenset(), False
        if batch is None or len(counts) != 1 or counts == {1}:
            return self._ran(feeds)
        parts = []
        for item in range(counts.pop()):
            taken = {name: feeds[name].take([item], axis) for name, axis in axes.items()}
            parts.append(self._ran({**feeds, **taken}))
        return {
            spec.name: np.concatenate([part[spec.name] for part in parts], spec.dims.index(batch))
            for spec in self._io.outputs
        }

    def _ran(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        outputs = self._session.run(feeds)
        self.undefined |= getattr(self._session, "undefined", frozenset())
        self.gave_numbers |= getattr(self._session, "gave_numbers", False)
        return outputs

    def close(self) -> None:
        """Closes the session."""
        self._session.close()
