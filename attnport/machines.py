"""What a verb found on each machine of a cluster."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from attnport.latencies import LatencyReport, TuneReport
from attnport.parities import ParityReport
from attnport.printed import Printed


@dataclass(frozen=True)
class MachineResult:
    """One artifact on one machine.

    Attributes:
        machine: Its name in the cluster.
        folder: The artifact folder, as it was named.
        cpu: Its processor; "" where nothing could be run, and likewise 0 for `cores`.
        cores: Its physical cores.
        exit_code: With which the verb would end there.
        error: Why it is not 0, and how to fix it.
        report: None where the verb ended before there was one.
    """

    machine: str
    folder: str
    cpu: str
    cores: int
    exit_code: int
    error: str
    report: ParityReport | LatencyReport | TuneReport | None


@dataclass(frozen=True)
class MachinesReport(Printed):
    """A verb's results by machine, and for each machine by artifact.

    Attributes:
        verb: `check`, `bench` or `tune`.
        exit_code: The first of `errors.PRECEDENCE` that a result has; 0 if none has one.
    """

    schema: Literal["attnport/machines/1"] = field(default="attnport/machines/1", kw_only=True)
    verb: str
    exit_code: int
    results: tuple[MachineResult, ...]
