"""What every runtime offers. A runtime is one file in this folder that defines `RUNTIME`, called by the file's name."""

from __future__ import annotations

import abc
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from attnport import registry
from attnport.artifacts import Capabilities, EngineRecord, Evidence, IOContract, ModelSpec, Session
from attnport.errors import UnavailableError

Kind = Literal["module", "onnx", "engine", "bundle"]


@dataclass(frozen=True)
class Opening:
    """What a runtime is asked to open.

    Attributes:
        io: The contract that feeds are checked against.
        plan: The precision plan to run in, one of `artifacts.PLANS`; a runtime that computes otherwise refuses.
        model: The ONNX form, or the engine; None for runtimes that run the module itself.
        spec: The module, for the torch runtimes.
        engine: The engine's record, for the TensorRT runtimes; checked before the file is deserialised.
        threads: Compute threads; None = the physical cores.
        contract: torch only: attention follows the mask contract (an attention row with no allowed key gives zero).
        float64: torch only: computes in float64, as the reference.
        step_by_step: torch only: the scores of attention are rounded to the half type, as they are where product,
            softmax and product run one by one, and not where one kernel keeps them in float32.
        nudged: torch only: weights and inputs that are no masks are moved by one rounding, each to the side that this
            seed draws; None = as they are.
        form: bundles only: which of its forms; "" = the first that can be opened here.
        cache: runtimes that keep (`Runtime.keeps`) only: where what was compiled on the device is kept for the next
            process, a folder that is this user's alone; None = nowhere.
    """

    io: IOContract
    plan: str = "fp32"
    model: Path | None = None
    spec: ModelSpec | None = None
    engine: EngineRecord | None = None
    threads: int | None = None
    contract: bool = False
    float64: bool = False
    step_by_step: bool = False
    nudged: int | None = None
    form: str = ""
    cache: Path | None = None


class Runtime(abc.ABC):
    """One way to run a model.

    Attributes:
        name: The file's name.
        opens: `module` (a ModelSpec), `onnx` (a lowered form), `engine`, or `bundle` (a folder that `bundle` wrote).
        form: The lowering target whose form it runs; "" = the model as exported.
        timed: Whether latency is worth measuring (the reference evaluator is not).
        isolated: Whether `check` runs it in a process of its own, so that a crash, a hang or a lack of memory is its
            own affair. Not so where the process has the library loaded anyway.
        gpu: Whether it computes on a CUDA GPU: these are what `gpu-check` measures.
        keeps: Whether what it compiles on the device can be kept: `bench` then opens it cold and from what it left.
    """

    name: ClassVar[str]
    opens: ClassVar[Kind]
    form: ClassVar[str] = ""
    timed: ClassVar[bool] = True
    isolated: ClassVar[bool] = True
    gpu: ClassVar[bool] = False
    keeps: ClassVar[bool] = False

    @abc.abstractmethod
    def probe(self) -> Capabilities:
        """What the installed version can do; never raises."""

    @abc.abstractmethod
    def open(self, opening: Opening) -> Session:
        """Opens a model.

        Raises:
            UnavailableError: not installed, no device.
            ArtifactError: the file is not a model this runtime can read.
            IntegrityError: the engine is not the one of its record.
        """

    def fusion_evidence(
        self, model: Path, anchors: Mapping[str, tuple[str, ...]], plan: str = "fp32"
    ) -> dict[str, Evidence]:
        """For each attention whose anchors one kernel covers, the proof; attentions that are not fused are left out.

        Args:
            model: The ONNX form.
            anchors: Node names by attention: one attention operator, or (QK^T product, softmax, PV product).
            plan: The form's precision plan, for a runtime that takes it from a setting and not from the graph.
        """
        raise UnavailableError(f"{self.name} gives no fusion evidence.")


def names() -> list[str]:
    """The runtimes there are, in name order: every file of this folder but this one and those that begin with `_`."""
    return registry.names("attnport.runtimes")


def get(name: str) -> Runtime:
    """The runtime called `name`; hyphens are taken as underscores.

    Raises:
        UsageError: there is none.
    """
    runtime: Runtime = registry.module("attnport.runtimes", name, "runtime").RUNTIME
    return runtime


def physical_cores() -> int:
    """How many physical cores this process may use: the threads of a runtime that is told no number.

    Hyper-threads of one core count once: matrix products gain nothing from the second one.
    """
    usable = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    siblings = set()
    for cpu in usable:
        listed = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        siblings.add(listed.read_text().strip() if listed.is_file() else str(cpu))
    return max(1, len(siblings))


def available(runtime: Runtime) -> Capabilities:
    """The probe of a runtime that must be there.

    Raises:
        UnavailableError: it is not; carries the probe's reason and hint.
    """
    found = runtime.probe()
    if not found.available:
        raise UnavailableError(f"{runtime.name} is not available: {found.reason}", hint=found.hint)
    return found
