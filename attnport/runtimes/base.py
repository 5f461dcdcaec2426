"""The interface of runtimes. A runtime is a file in this folder that defines `RUNTIME`; its name is the file's."""

from __future__ import annotations

import abc
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from attnport import registry
from attnport.artifacts import CASTS, Capabilities, EngineRecord, Evidence, IOContract, ModelSpec, Session
from attnport.errors import MissingDependency, UnavailableError, UsageError, first_line
from attnport.optional import require
from attnport_bundle import arguments

Kind = Literal["module", "onnx", "engine", "bundle"]

PROBE_FAILED = "its probe failed"
"""In a reason, that a probe may find something else the next time, so that the result is not kept."""


@dataclass(frozen=True)
class Opening:
    """What a runtime should open, and how.

    Attributes:
        io: The contract that feeds are checked against.
        plan: The precision plan to run in, one of `artifacts.PLANS`; a runtime that cannot compute in it refuses.
        model: The ONNX form, or the engine; None for runtimes that run the module itself.
        spec: The module, for the torch runtimes.
        engine: The engine's record, for the TensorRT runtimes; checked before the file is deserialised.
        threads: Compute threads, 1 or more; None = the physical cores.
        contract: torch eager only: where the module gives NaN, an attention row with no allowed key counts as zero.
        ordered: torch eager only: of equal elements `topk` takes the first, as ONNX does and torch leaves open; as
            with `contract` and in float64. Not where the module is timed.
        float64: torch only: computes in float64, as the reference.
        step_by_step: torch only: the scores of attention are rounded to the half type, as when product, softmax and
            product run one by one; a fused kernel keeps them in float32.
        nudged: torch only: the seed with which weights, and inputs that are not masks, are moved by one rounding in a
            random direction; None = unchanged.
        form: bundles only: the form to open; "" = the first that can be opened here.
        cache: only for runtimes with `Runtime.keeps`: a folder that only this user can write to, which keeps what was
            compiled on the device for the next process; None = it is not kept.
        lean: ort_cpu only: takes less memory and more time; weights have no second layout, and a run leaves nothing.
    """

    io: IOContract
    plan: str = "fp32"
    model: Path | None = None
    spec: ModelSpec | None = None
    engine: EngineRecord | None = None
    threads: int | None = None
    contract: bool = False
    ordered: bool = False
    float64: bool = False
    step_by_step: bool = False
    nudged: int | None = None
    form: str = ""
    cache: Path | None = None
    lean: bool = False

    def __post_init__(self) -> None:
        """Raises FeedError for a number of threads that is none."""
        arguments.threads(self.threads)


_GIVEN = {"module": "a module", "onnx": "an ONNX file", "engine": "an engine's file", "bundle": "a bundle's folder"}


class Runtime(abc.ABC):
    """One way to run a model.

    A runtime says what it is `able` to do, how it makes a `session`, and, if it can, what is the `evidence` of fusion.
    What all of them would repeat is here: a probe that never raises, and what is refused before anything is opened.

    Attributes:
        name: The file's name.
        opens: `module` (a ModelSpec), `onnx` (a lowered form), `engine`, or `bundle` (a folder that `bundle` wrote).
        package: The Python package that it needs, by the name that is imported.
        install: The command that installs what it needs, if it is not that of `optional.pip_line`.
        form: The lowering target whose form it runs; "" = the model as exported.
        plans: The precision plans that it opens; () = those of which it is given a file or a module.
        instead: What to use in the place of a plan that is not among them, for the hint.
        fragile: Whether it may fail although its package is installed, so that it is probed before it opens a model.
        timed: Whether its latency is worth measuring (that of the reference evaluator is not).
        isolated: Whether `check` runs it in a process of its own, so that a crash, a hang or a lack of memory does not
            affect other runtimes. False if this process has the library loaded anyway.
        gpu: Whether it computes on a CUDA GPU; `gpu-check` measures these.
        keeps: Whether it can keep what it compiles on the device; `bench` then measures opening without and with it.
        by_name: Whether verbs run it only where it is named, since it takes longer than all others together.
        distributions: What may be installed for it, as patterns such as `onnxruntime-*`: what it says depends on the
            versions of those that are.
    """

    name: ClassVar[str]
    opens: ClassVar[Kind]
    package: ClassVar[str] = ""
    install: ClassVar[str] = ""
    form: ClassVar[str] = ""
    plans: ClassVar[tuple[str, ...]] = ()
    instead: ClassVar[str] = ""
    fragile: ClassVar[bool] = False
    timed: ClassVar[bool] = True
    isolated: ClassVar[bool] = True
    gpu: ClassVar[bool] = False
    keeps: ClassVar[bool] = False
    by_name: ClassVar[bool] = False
    distributions: ClassVar[tuple[str, ...]] = ()

    def probe(self) -> Capabilities:
        """What the installed version can do here; never raises."""
        version, libraries = "", dict[str, str]()
        try:
            libraries = self.libraries()
            version = self.version()
            able = {"devices": ("CPU",), "plans": self.plans or CASTS} | self.able()
            return Capabilities(self.name, True, version=version, libraries=libraries, **able)
        except UnavailableError as err:
            hint = (isinstance(err, MissingDependency) and self.install) or err.hint
            return Capabilities(self.name, False, err.message, hint, version, libraries=libraries)
        except Exception as err:  # a half-installed wheel or driver fails anywhere
            reason = f"{self.package} does not work: {first_line(err)}"
            return Capabilities(self.name, False, reason, self.install, version, libraries=libraries)

    def version(self) -> str:
        """The installed version. Raises MissingDependency."""
        return str(self.module().__version__)

    def module(self) -> Any:
        """Imports `package`. Raises MissingDependency."""
        return require(self.package)

    def libraries(self) -> dict[str, str]:
        """The NVIDIA libraries that it needs, by name, with the path that the loader finds; "" if it finds none."""
        return {}

    def able(self) -> dict[str, Any]:
        """What it can do here, as fields of `Capabilities`; by default it computes on the CPU in its plans.

        Raises:
            UnavailableError: it does not work here. Any other exception counts as a damaged installation.
        """
        return {}

    def open(self, opening: Opening) -> Session:
        """Opens a model.

        Raises:
            UsageError: `opening` holds nothing that this runtime opens.
            UnavailableError: the runtime is not installed or does not work here, there is no device, it does not
                compute in the plan, or it would compute on another device.
            ArtifactError: the file is not a model that this runtime can read, or not of the contract or the plan.
            IntegrityError: the file is not the recorded one, or its data lies outside its folder.
        """
        if (opening.spec if self.opens == "module" else opening.model) is None:
            raise UsageError(f"{self.name} opens {_GIVEN[self.opens]}; got none.")
        plan = "fp64" if opening.float64 else opening.plan
        if self.plans and plan not in self.plans:
            raise UnavailableError(
                f"{self.name} computes in {', '.join(self.plans)}; {plan} was asked for.", hint=self.instead
            )
        self._require()
        return self.session(opening)

    @abc.abstractmethod
    def session(self, opening: Opening) -> Session:
        """Opens what `open` has checked: there is a model of this kind, and a plan that this runtime computes in."""

    def fusion_evidence(
        self,
        model: Path,
        anchors: Mapping[str, tuple[str, ...]],
        plan: str = "fp32",
        io: IOContract | None = None,
    ) -> dict[str, Evidence]:
        """The evidence for each attention that one kernel covers; attentions that are not fused are left out.

        Args:
            model: The ONNX form.
            anchors: Node names by attention: one attention operator, or (QK^T product, softmax, PV product).
            plan: The form's precision plan, for a runtime whose precision is a setting and not part of the graph.
            io: The inputs, for a runtime that runs the form once; None = what the file tells.

        Raises:
            UnavailableError: the runtime is not installed or does not work here, or it gives no evidence.
            ArtifactError: the model cannot be read or run.
        """
        self._require()
        return self.evidence(model, anchors, plan, io)

    def evidence(
        self, model: Path, anchors: Mapping[str, tuple[str, ...]], plan: str, io: IOContract | None
    ) -> dict[str, Evidence]:
        """As `fusion_evidence`, of a runtime that is there; by default there is none."""
        raise UnavailableError(f"{self.name} gives no fusion evidence.")

    def _require(self) -> None:
        """Raises UnavailableError if the runtime is not installed, or is `fragile` and does not work here."""
        if self.fragile:
            available(self)
        elif self.package:
            self.module()


def names() -> list[str]:
    """The names of all runtimes, sorted: every file of this folder except this one and those that begin with `_`."""
    return registry.names("attnport.runtimes")


@dataclass(frozen=True)
class Key:
    """A runtime with what it opens, as reports, tables and users name it: `openvino`, `openvino.bf16`.

    Attributes:
        precision: Of the form; of several engines, or of a bundle's forms, the name of one. In a report, "" is the
            usual precision; where a user names the runtime, every one.
    """

    runtime: str
    precision: str = ""

    @classmethod
    def parse(cls, text: str) -> Key:
        """The key that a text is; hyphens of the runtime are taken as underscores."""
        runtime, _, precision = text.partition(".")
        return cls(runtime.replace("-", "_"), precision)

    def __str__(self) -> str:
        return f"{self.runtime}.{self.precision}" if self.precision else self.runtime

    def covers(self, name: str, usual: str = "fp32") -> bool:
        """Whether a row of a report is of what a user named so: `openvino` is all of its rows.

        Args:
            name: What the report calls the row.
            usual: The precision that its name does not tell.
        """
        other = Key.parse(name)
        return self.runtime == other.runtime and self.precision in ("", other.precision or usual)


def chosen(named: Sequence[str] | None, *, bundle: bool = False) -> list[Runtime]:
    """The runtimes that are named; where none is, all but those that have to be (`Runtime.by_name`).

    Args:
        named: Names of runtimes, or of one of their forms as reports have it, such as `openvino.bf16`.
        bundle: Whether a bundle was named: without one, what opens bundles is left out too.

    Raises:
        UsageError: there is no such runtime, or it has no such precision.
    """
    if named:
        names_given = [named] if isinstance(named, str) else named
        return list(dict.fromkeys(map(_named, names_given)))
    return [one for one in map(get, names()) if not one.by_name and (bundle or one.opens != "bundle")]


def _named(text: str) -> Runtime:
    """The runtime of a key; those without a table of precisions have engines or forms with names of their own."""
    key = Key.parse(text)
    runtime = get(key.runtime)
    if text.endswith(".") or (key.precision and runtime.plans and key.precision not in runtime.plans):
        known = ", ".join(f"{runtime.name}.{plan}" for plan in runtime.plans) or runtime.name
        raise UsageError(f"--runtime {text}: {runtime.name} has no such precision; expected one of {known}.")
    return runtime


def get(name: str) -> Runtime:
    """The runtime called `name`; hyphens are taken as underscores.

    Raises:
        UsageError: there is no such runtime.
    """
    runtime: Runtime = registry.module("attnport.runtimes", name, "runtime").RUNTIME
    return runtime


def distributions(named: Iterable[str]) -> tuple[str, ...]:
    """What may be installed for the runtimes of these names, see `Runtime.distributions`; sorted."""
    return tuple(sorted({pattern for name in named for pattern in get(name).distributions}))


def physical_cores() -> int:
    """The number of physical cores that this process may use, which is the default number of threads.

    Hyper-threads of one core count once, as the second one does not make matrix products faster.
    """
    usable = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    siblings = set()
    for cpu in usable:
        siblings_file = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        siblings.add(siblings_file.read_text().strip() if siblings_file.is_file() else str(cpu))
    return max(1, len(siblings))


def available(runtime: Runtime) -> Capabilities:
    """The probe of a runtime that must be available.

    Raises:
        UnavailableError: it is not available; with the probe's reason and hint.
    """
    capabilities = runtime.probe()
    if not capabilities.available:
        raise UnavailableError(f"{runtime.name} is not available: {capabilities.reason}", hint=capabilities.hint)
    return capabilities
