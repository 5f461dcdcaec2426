"""The interface of runtimes. A runtime is a file in this folder that defines `RUNTIME`; its name is the file's.

First the check of an ONNX file before a runtime opens it: it must be readable, self-contained, and fit contract and
precision. Then the base classes of sessions: feeds are checked, outputs come in contract order, calls are timed on a
device. Then runtimes themselves, and how one is found by its name.
"""

from __future__ import annotations

import abc
import os
import re
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from attnport import registry
from attnport.artifacts import (
    AUTO,
    CASTS,
    OWN_HALF,
    PLANS,
    Capabilities,
    EngineRecord,
    Evidence,
    IOContract,
    ModelSpec,
    Ran,
    Session,
    key_of,
)
from attnport.errors import (
    ArtifactError,
    AttnportError,
    FeedError,
    IntegrityError,
    MissingDependency,
    UnavailableError,
    UsageError,
    first_line,
    refuse_list,
    whole_cause,
)
from attnport.example_values import continued
from attnport.onnx_walk import walk
from attnport.optional import require
from attnport.user_code import raised_in
from attnport_bundle import arguments
from attnport_bundle.feeds import check_feeds
from attnport_bundle.format.contract import dims_in, evaluate

if TYPE_CHECKING:
    import onnx


_HALVES = ("float16", "bfloat16")


def read_graph(path: Path) -> onnx.ModelProto:
    """The model without its external data, so that it is small.

    Raises:
        ArtifactError: the file is missing or is not an ONNX model.
        IntegrityError: its external data lies outside its folder.
    """
    import onnx

    try:
        model = onnx.load_model(path, load_external_data=False)
    except OSError as err:
        raise ArtifactError(f"{path} cannot be read: {err.strerror}.") from err
    except Exception as err:  # protobuf's DecodeError; protobuf is not a dependency of ours
        raise broken(path, err) from err
    if not model.graph.node and not model.graph.output:
        raise ArtifactError(f"{path} is not an ONNX model: it has no graph.", hint="Make it again.")
    for tensor in _tensors(model.graph):
        for entry in tensor.external_data:
            place = PurePosixPath(entry.value)
            if entry.key == "location" and (place.is_absolute() or ".." in place.parts):
                raise IntegrityError(
                    f"{path}: tensor {tensor.name!r} takes its data from {entry.value!r}, outside the model's folder."
                )
    return model


def broken(path: Path, err: BaseException) -> ArtifactError:
    """The error of a file that a runtime cannot read."""
    return ArtifactError(
        f"{path} cannot be read as a model: {whole_cause(err)}",
        hint="It was cut short, changed, or made for another version; make it again.",
    )


def checked_model(opening: Opening) -> tuple[Path, onnx.ModelProto]:
    """The file of an opening and its graph, after checking them against the contract and the plan.

    Raises:
        ArtifactError: the file is unreadable, or its inputs, outputs or precision are not those of contract and plan.
        IntegrityError: its external data lies outside its folder.
    """
    assert opening.model is not None
    model = read_graph(opening.model)
    weights = {tensor.name for tensor in model.graph.initializer}
    inputs = [value.name for value in model.graph.input if value.name not in weights]
    check_names(opening.io, inputs, [value.name for value in model.graph.output], str(opening.model))
    declared = {spec.name for spec in (*opening.io.inputs, *opening.io.outputs) if spec.dtype in _HALVES}
    plan = PLANS[opening.plan]
    # Beside integers, bf16 is a setting of the runtime.
    wanted = {plan.half.upper()} if plan.half and (plan.weights or not plan.bits) else set()
    used = half_types(model, but=declared if half_types(model) != wanted else ())
    own = {kind for entry in model.metadata_props if entry.key == OWN_HALF for kind in entry.value.split(",")}
    wanted, used = wanted - own, used - own
    # Islands of a model without attention have nothing in half precision, and the plan auto may keep all in float32.
    if used != wanted and not ((plan.islands or plan.searched) and not used):
        raise ArtifactError(
            f"{opening.model} was opened as {opening.plan}, which has "
            f"{' and '.join(sorted(wanted)) or 'no half-precision'} tensors; it has "
            f"{' and '.join(sorted(used)) or 'none'}.",
            hint="Open the form that was made for this plan.",
        )
    return opening.model, model


def half_types(model: onnx.ModelProto, but: Collection[str] = ()) -> set[str]:
    """Those of FLOAT16 and BFLOAT16 that occur in weights, inputs, outputs, casts or constants, also in functions.

    Args:
        but: Inputs and outputs that do not count: a contract may have them in half precision at any plan.
    """
    import onnx

    kinds = {onnx.TensorProto.FLOAT16: "FLOAT16", onnx.TensorProto.BFLOAT16: "BFLOAT16"}
    types = {tensor.data_type for tensor in _tensors(model.graph)}
    ends = (*model.graph.input, *model.graph.output)
    types |= {value.type.tensor_type.elem_type for value in ends if value.name not in but}
    for node in _nodes(model):
        types |= {attribute.i for attribute in node.attribute if node.op_type == "Cast" and attribute.name == "to"}
        types |= {attribute.t.data_type for attribute in node.attribute if attribute.HasField("t")}
    return {kinds[kind] for kind in types if kind in kinds}


def external_files(model: onnx.ModelProto) -> tuple[str, ...]:
    """The names of the files beside a model that hold its weights."""
    entries = (entry for tensor in _tensors(model.graph) for entry in tensor.external_data)
    return tuple(sorted({entry.value for entry in entries if entry.key == "location"}))


def _tensors(graph: Any) -> Iterator[Any]:
    yield from graph.initializer
    for node in walk(graph.node):
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            if attribute.HasField("g"):
                yield from attribute.g.initializer


def _nodes(model: Any) -> Iterator[Any]:
    yield from walk(model.graph.node)
    for function in model.functions:
        yield from walk(function.node)


def small_feeds(
    model: onnx.ModelProto, io: IOContract | None = None, given: Mapping[str, int] | None = None
) -> dict[str, Any]:
    """Feeds that most models take: small sizes that `io` allows, 2 without it, zeros (valid ids), True for booleans.

    Whole numbers without a bound in `io` are 1: they may be lengths, and some runtimes refuse an empty sequence.

    Args:
        given: The sizes of some named dims.
    """
    import onnx

    weights = {tensor.name for tensor in model.graph.initializer}
    feeds: dict[str, Any] = {}
    sizes = {dim.name: dim.at_least(2) for dim in io.dims} if io is not None else {}
    sizes |= given or {}
    examples = io.examples if io is not None else {}
    counts = {spec.name for spec in io.inputs if "int" in spec.dtype and not spec.high} if io is not None else set()
    for value in model.graph.input:
        if value.name in weights:
            continue
        tensor = value.type.tensor_type
        shape = [
            dim.dim_value if dim.HasField("dim_value") else _small_size(dim.dim_param, sizes)
            for dim in tensor.shape.dim
        ]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        feeds[value.name] = np.full(shape, dtype == np.bool_ or value.name in counts, dtype)
        if value.name in examples:
            feeds[value.name] = continued(examples[value.name], tuple(shape)).astype(dtype)
    return feeds


def _small_size(dim: str, sizes: Mapping[str, int]) -> int:
    """The size of a named dim, 2 if there is none; its name may be an expression of others, such as `past+seq`."""
    try:
        return evaluate(dim, {name: sizes.get(name, 2) for name in dims_in(dim)})
    except ValueError:
        return 2


Array = np.ndarray[Any, Any]
STREAM, GRAPH = "stream", "graph"
"""Ways to run a call on a device: as `run` does, and as one captured CUDA graph."""

# Messages of NumPy, C++, PyTorch, ONNX Runtime, CUDA and TensorRT.
NO_MEMORY = re.compile(
    r"unable to allocate|bad[_ ]alloc|(failed|can't|cannot) (to )?allocate|out[ _]of[ _]memory"
    r"|not enough (free )?memory|memory \(\d+ bytes\) could not be allocated",
    re.I,
)


class CheckedSession(abc.ABC):
    """A session whose feeds are checked against the contract before the runtime sees them.

    So every runtime refuses the same feeds with the same message, and a token id out of range never makes it read
    memory outside an embedding table. Calls from several threads take turns.

    Attributes:
        ran: What really runs, as the runtime itself reports it.
    """

    def __init__(self, io: IOContract, ran: Ran) -> None:
        self.ran = ran
        self._io = io
        self._lock = threading.Lock()
        self._closed = False

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Outputs by name, in contract order.

        Args:
            feeds: An array for each input, of the dtype and shape that the contract declares.

        Raises:
            FeedError: a wrong name, dtype, rank or size, an integer out of range, or values that the runtime refuses.
            UsageError: the session is closed.
        """
        self._check(feeds)
        with self._open():
            outputs = self._run(feeds)
        return {spec.name: outputs[spec.name] for spec in self._io.outputs}

    def _check(self, feeds: Mapping[str, Array]) -> None:
        """Raises FeedError for feeds that do not fit."""
        check_feeds(self._io, feeds)

    @contextmanager
    def _open(self) -> Iterator[None]:
        """Holds the session's lock. Raises UsageError if the session is closed."""
        with self._lock:
            if self._closed:
                raise UsageError("the session is closed.", hint="Open the model again.")
            yield

    def close(self) -> None:
        """Frees the session; closing twice is fine."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._free()

    @abc.abstractmethod
    def _run(self, feeds: Mapping[str, Array]) -> Mapping[str, Array]:
        """Every output of the contract by name; the feeds fit it."""

    @abc.abstractmethod
    def _free(self) -> None:
        """Frees the session; called at most once."""


class DeviceTimed(CheckedSession):
    """A session that times the parts of a call by events.

    Inputs are converted to the session's types before the first part begins, and once for arrays that come again: an
    application whose model computes in half precision has its caches in half precision.

    Attributes:
        modes: The ways to run a call, that of `run` first, such as `stream` and `graph` (a captured CUDA graph). In
            `bench`, each mode after the first has a row of its own.
    """

    modes: tuple[str, ...] = (STREAM, GRAPH)
    _converted: tuple[dict[str, Array], Mapping[str, Any]] | None = None

    def run_timed(self, feeds: Mapping[str, Array], mode: str) -> Mapping[str, int]:
        """Times a call in one of `modes`: ns by part, from the device's events. Outputs are copied back and dropped.

        Arrays that come again must not have been changed: they are neither checked nor converted again.

        Raises:
            FeedError: as `run`.
            UsageError: the mode is unknown, or the session is closed.
            UnavailableError: the call cannot be captured as a graph.
        """
        if mode not in self.modes:
            raise UsageError(f"mode {mode!r}; expected one of {', '.join(self.modes)}.")
        with self._open(), refused(self.ran.provider, feeds):
            last = self._converted
            if (
                last is None
                or last[0].keys() != feeds.keys()
                or any(last[0][name] is not feeds[name] for name in feeds)
            ):
                self._check(feeds)
                self._converted = dict(feeds), self._in_own_types(feeds)
            assert self._converted is not None
            return self._timed(self._converted[1], mode)

    def close(self) -> None:
        """As of any session."""
        self._converted = None
        super().close()

    @abc.abstractmethod
    def _in_own_types(self, feeds: Mapping[str, Array]) -> Mapping[str, Any]:
        """The inputs on the host, as the device takes them."""

    @abc.abstractmethod
    def _timed(self, feeds: Mapping[str, Any], mode: str) -> Mapping[str, int]:
        """ns by part of `DEVICE_PARTS`; `feeds` are those of `_in_own_types`."""


@contextmanager
def refused(runtime: str, feeds: Mapping[str, Array]) -> Iterator[None]:
    """Turns what a runtime raises in the block into a FeedError that names the runtime and the shapes.

    Errors of this package are raised unchanged, unless their message says that memory ran out.

    Raises:
        MemoryError: the runtime says that there is not enough memory, so that the feeds are not at fault.
    """
    try:
        yield
    except FeedError:
        raise
    except Exception as err:  # a runtime's own exceptions share no base
        shapes = ", ".join(f"{name} {array.dtype}{list(array.shape)}" for name, array in feeds.items())
        if isinstance(err, MemoryError) or NO_MEMORY.search(str(err)):
            raise MemoryError(f"{runtime} has not enough memory for {shapes}: {whole_cause(err)}") from err
        if isinstance(err, AttnportError):
            raise
        place = raised_in(err) if runtime.startswith("torch") else ""
        raise FeedError(f"{runtime} failed on {shapes}: {whole_cause(err)}{place}") from err


def check_names(io: IOContract, inputs: list[str], outputs: list[str], where: str) -> None:
    """Compares a model's own inputs and outputs with the contract's.

    Raises:
        ArtifactError: they differ; names what is missing and what is unknown.
    """
    for kind, got, specs in (("inputs", inputs, io.inputs), ("outputs", outputs, io.outputs)):
        expected = [spec.name for spec in specs]
        if set(got) != set(expected):
            raise ArtifactError(
                f"{where} has the {kind} {', '.join(sorted(got)) or 'none'}; the contract says {', '.join(expected)}.",
                hint="The file and its manifest do not belong together; make the folder again.",
            )


def usual_feeds(io: IOContract) -> dict[str, Array]:
    """Zeros at each dim's usual size, or 2 instead of 1 if allowed, as some runtimes compile size 1 separately. Whole
    numbers without a bound are 1, since they may be lengths.
    """
    import ml_dtypes

    sizes = {dim.name: dim.at_least(max(2, dim.opt)) for dim in io.dims}
    feeds = {}
    for spec in io.inputs:
        shape, dtype = spec.shape(sizes), ml_dtypes.bfloat16 if spec.dtype == "bfloat16" else np.dtype(spec.dtype)
        example = io.examples.get(spec.name)
        feeds[spec.name] = continued(example, shape).astype(dtype) if example else np.zeros(shape, dtype)
        if spec.dtype in ("int32", "int64") and not spec.high and not example:
            feeds[spec.name] += 1
    return feeds


Kind = Literal["module", "onnx", "engine", "bundle"]


class ProbeFailed(UnavailableError):
    """A probe came to no end; the next one may find something else, so that its result is not kept."""


@dataclass(frozen=True)
class Opening:
    """What a runtime should open, and how.

    Attributes:
        plan: The precision plan to run in, one of `artifacts.PLANS`; a runtime that cannot compute in it refuses.
        model: The ONNX form, or the engine; None for runtimes that run the module itself.
        spec: The module, for the torch runtimes.
        engine: The engine's record, for the TensorRT runtimes; checked before the file is deserialised.
        threads: Compute threads, 1 or more; None = the physical cores.
        contract: torch eager only: where the module gives NaN, attention without an allowed key is computed as zero.
        ordered: torch eager only: `topk` and sorts take equal elements in their order, as ONNX does and torch leaves
            open; as with `contract` and in float64. Not where the module is timed.
        float64: torch only: computes in float64, as the reference.
        step_by_step: torch only: the scores of attention are rounded to the half type, as when product, softmax and
            product run one by one; a fused kernel keeps them in float32.
        nudged: torch only: the seed with which weights, and inputs that are not masks, are moved by one rounding in a
            random direction, and equal elements are sorted at random; None = unchanged.
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
            able = {"devices": ("CPU",), "plans": self.plans or (*CASTS, AUTO)} | self.able()
            return Capabilities(self.name, True, version=version, libraries=libraries, **able)
        except UnavailableError as err:
            hint = (isinstance(err, MissingDependency) and self.install) or err.hint
            failed = isinstance(err, ProbeFailed)
            return Capabilities(self.name, False, err.message, hint, failed, version, libraries=libraries)
        except Exception as err:  # a half-installed wheel or driver fails anywhere
            reason = f"{self.package} does not work: {first_line(err)}"
            return Capabilities(self.name, False, reason, self.install, version=version, libraries=libraries)

    def version(self) -> str:
        """The installed version. Raises MissingDependency."""
        return str(self.module().__version__)

    def module(self) -> Any:
        """Imports `package`. Raises MissingDependency."""
        return require(self.package)

    def libraries(self) -> dict[str, str]:
        """The NVIDIA libraries that it needs, by name, with the path that the loader finds; "" if it finds none."""
        return {}

    def depends(self) -> str:
        """What the result of a probe depends on beside `distributions`, as a text that is another where it is."""
        return ""

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
    """A runtime or target and a precision, as reports, tables and users name them: `openvino`, `openvino.bf16`.

    Attributes:
        precision: Of the form; of several engines, or of a bundle's forms, the name of one. In a report, "" is the
            usual precision; where a user names the runtime, every one.
    """

    runtime: str
    precision: str = ""

    @classmethod
    def parse(cls, text: str) -> Key:
        """The key that a text is, in any spelling that `key_of` takes."""
        runtime, _, precision = key_of(text).partition(".")
        return cls(runtime, precision)

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
    refuse_list("--runtime", text)
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
    return len(cores())


def cores() -> list[int]:
    """The first logical processor of each physical core that this process may use."""
    usable = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    first: dict[str, int] = {}
    for cpu in sorted(usable):
        siblings = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        first.setdefault(siblings.read_text().strip() if siblings.is_file() else str(cpu), cpu)
    return list(first.values())


def available(runtime: Runtime) -> Capabilities:
    """The probe of a runtime that must be available.

    Raises:
        UnavailableError: it is not available; with the probe's reason and hint.
    """
    capabilities = runtime.probe()
    if not capabilities.available:
        raise UnavailableError(f"{runtime.name} is not available: {capabilities.reason}", hint=capabilities.hint)
    return capabilities
