"""The values that flow between stages.

Every value is a frozen dataclass, saved as JSON (by `jsonfile`) beside the files that it describes. It is validated
strictly when it is read (unknown keys, wrong types and NaN are refused), as it may have been edited or cut short.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from attnport.dims import Dim as Dim
from attnport.dims import Profile as Profile
from attnport.dims import TensorSpec as TensorSpec
from attnport.errors import UsageError
from attnport.example_values import without_examples
from attnport.latencies import DEVICE_PARTS as DEVICE_PARTS
from attnport.latencies import Candidate as Candidate
from attnport.latencies import Interval as Interval
from attnport.latencies import LatencyReport as LatencyReport
from attnport.latencies import LatencyRow as LatencyRow
from attnport.latencies import TuneReport as TuneReport
from attnport.masks import MaskSpec as MaskSpec
from attnport.parities import Argmax as Argmax
from attnport.parities import CaseResult as CaseResult
from attnport.parities import InvarianceResult as InvarianceResult
from attnport.parities import Layer as Layer
from attnport.parities import LayerError as LayerError
from attnport.parities import LayerReport as LayerReport
from attnport.parities import LayerSeries as LayerSeries
from attnport.parities import NonFinite as NonFinite
from attnport.parities import PaddedRows as PaddedRows
from attnport.parities import ParityReport as ParityReport
from attnport.parities import RuntimeParity as RuntimeParity
from attnport.parities import Ulps as Ulps
from attnport.precisions import AUTO as AUTO
from attnport.precisions import CASTS as CASTS
from attnport.precisions import INTEGERS as INTEGERS
from attnport.precisions import PLANS as PLANS
from attnport.precisions import WEIGHT_PLANS as WEIGHT_PLANS
from attnport.precisions import IntegerPlan as IntegerPlan
from attnport.precisions import Island as Island
from attnport.precisions import PrecisionPlan as PrecisionPlan
from attnport.precisions import Score as Score
from attnport.precisions import drop as drop
from attnport.precisions import key_of as key_of
from attnport.precisions import plan_of as plan_of
from attnport.printed import Printed
from attnport_bundle.format.contract import IO
from attnport_bundle.format.contract import UNKNOWN_SIZE as UNKNOWN_SIZE
from attnport_bundle.format.contract import Ran as Ran
from attnport_bundle.format.contract import Verdict as Verdict
from attnport_bundle.format.decoder import Rules
from attnport_bundle.format.manifest import Prompts as Prompts
from attnport_bundle.format.search import Search as Search

if TYPE_CHECKING:
    import numpy as np
    from torch import nn

MANIFEST = "attnport.json"
FORMAT = 1
OWN_HALF = "attnport.own_half"
"""The key of a model's metadata that holds the half types in which it computes by itself, whatever its plan."""

MANY = "/many"
"""Ends the name of the operator for several new tokens in a form that writes to its caches; the anchor of the attention
is the operator for a single one."""

IN_MEMORY = " (in memory)"
"""Ends the text of a source that is no SPEC. There is no colon in it, so that it is never read as FILE.py:FUNCTION;
the code that is run for such a source is the program in the folder (`sources.program`)."""

# --- what goes in -------------------------------------------------------------------------------------------------


# OWNER/NAME of the hub; the path of a folder in a folder has the same form, and is kept too.
_HUB_ID = re.compile(r"hf:[A-Za-z0-9][\w.-]*/[\w.-]+(?<!\.onnx)", re.ASCII)


@dataclass(frozen=True)
class Source:
    """Where a model came from, so that later verbs can reload it and notice a change.

    Attributes:
        text: The SPEC as the user gave it.
        inputs: The `--input` declarations given with it.
        dims: The `--dim` declarations given with it.
        code_digest: SHA-256 over the files and packages that the model depends on, see `Manifest.depends`.
        weights_digest: SHA-256 over the parameters and buffers, in name order.
        graph_digest: SHA-256 of the graph of a module in memory; others may have the same weights and files. Else "".
        trust_remote_code: Whether `--trust-remote-code` allowed an `hf:` model's own Python code to run.
        outputs: The `--outputs` names given with it; none = all.
        task: The `--task` given with it, which chose the head of an `hf:` model; "" = the checkpoint's own.
        part: The `--part` given with it, as `encoder` or `vision`; "" = the whole model.
    """

    text: str
    inputs: tuple[str, ...] = ()
    dims: tuple[str, ...] = ()
    code_digest: str = ""
    weights_digest: str = ""
    graph_digest: str = ""
    trust_remote_code: bool = False
    outputs: tuple[str, ...] = ()
    task: str = ""
    part: str = ""

    @property
    def in_memory(self) -> bool:
        """Whether it was a module in a process's memory, which no SPEC names."""
        return self.text.endswith(IN_MEMORY)

    @property
    def without_folders(self) -> str:
        """The SPEC with only the last part of a path, as folders of the builder are private.

        A hub id keeps its owner: it has exactly one slash, and does not start at a root, a home, a drive or a dot.
        """
        if _HUB_ID.fullmatch(self.text):
            return self.text
        kind = next((kind for kind in ("hf:", "onnx:") if self.text.startswith(kind)), "")
        return kind + re.split(r"[\\/]", self.text.removeprefix(kind).rstrip("\\/"))[-1]

    @property
    def options(self) -> list[str]:
        """The options that `export` was given, as words of a command line, without the values of examples."""
        named = {"--input": tuple(map(without_examples, self.inputs)), "--dim": self.dims, "--outputs": self.outputs}
        named |= {option: (text,) for option, text in (("--task", self.task), ("--part", self.part)) if text}
        words = [word for option, texts in named.items() for text in texts for word in (option, text)]
        return [*words, *["--trust-remote-code"] * self.trust_remote_code]


@dataclass(frozen=True)
class Window:
    """What the layers of a decoder that have a sliding window keep of the past.

    Attributes:
        dim: The length of their caches. It may be less than the number of tokens before, by those that came first.
        places: So many places before a new token may be seen. Where there are more, the caches hold these at least.
        positions: The input `[batch, seq]` of the new tokens' positions; None where a mask of all tokens counts them.

    Raises:
        UsageError: the number of places is not 1 or more.
    """

    dim: str
    places: int
    positions: str | None = None

    def __post_init__(self) -> None:
        if self.places < 1:
            raise UsageError(f"window of {self.dim!r}: got {self.places} places; expected 1 or more.")


@dataclass(frozen=True)
class IOContract(IO):
    """Inputs and outputs, and what is known of the module. All shapes are derived from this declaration.

    Attributes:
        stop: Of a decoder, the token ids behind which a text ends.
        start: Of a decoder behind an encoder, the token ids that a text begins with.
        rules: Of a decoder, how its tokens are chosen unless a call says otherwise; None = by the scores alone.
        window: Of a decoder with caches that need not hold all tokens, what they hold.
        positions: `none` = `check` also pads on the left, where outputs should stay the same; `absolute` = it does not.
        examples: By name, inputs whose values in tests are those of an example (`example_values.packed`).
    """

    stop: tuple[int, ...] = ()
    start: tuple[int, ...] = ()
    rules: Rules | None = None
    window: Window | None = None
    positions: Literal["absolute", "none"] = "absolute"
    examples: Mapping[str, str] = field(default_factory=dict)

    def check(self) -> None:
        """Raises UsageError if names, dims, masks, dtypes and what is said of a decoder contradict each other."""
        super().check()
        if self.window is not None:
            if self.window.dim not in {dim.name for dim in self.dims}:
                raise UsageError(f"a window is of {self.window.dim!r}, which is no dim.")
            spec = next((spec for spec in self.inputs if spec.name == self.window.positions), None)
            if self.window.positions is not None and (spec is None or spec.high is None):
                raise UsageError(f"a window has its positions from {self.window.positions!r}, no input with a high.")
        for what, tokens in (("stop", self.stop), ("start", self.start)):
            if any(token < 0 for token in tokens):
                raise UsageError(f"got {what} {list(tokens)}; expected token ids of 0 or more.")

    def profile(self) -> Profile:
        """The profile that covers all sizes of the model."""
        return Profile(self.dims)

    def dim(self, name: str) -> Dim:
        """The dim called `name`."""
        return next(dim for dim in self.dims if dim.name == name)


NO_PROMPTS = Prompts()


@dataclass(frozen=True)
class ModelSpec:
    """A model before export: its contract and how to make its module.

    Attributes:
        make: Takes no arguments and returns the module, in float32 and in eval mode. The module takes the inputs by
            keyword, in `io.inputs` order, and returns a tensor or a tuple of tensors in `io.outputs` order.
        tokenizer: For models that read text: a `tokenizer.json`, or the text of one.
        chat: For decoders that answer messages: the text of a bundle's `chat.json`.
        observed: Whether the sizes of outputs come from a few runs of the module, and not from its author. Export takes
            what the torch graph says of them; declared ones it only checks.
        prompts: What belongs before a text.
        text_limit: The most tokens of a text for an embedder, if that is fewer than it takes.
        search: How its vectors of texts are chosen and compared; None of a model that is no embedder.
        notes: What a user should know of how the module is taken, a sentence each.
        fixable: Dims of one size each, that may be fixed to it if the graph turns out to be wrong for other sizes: the
            code is not the user's, who could change it.
        seen: By dim, the size of the user's example, which no limit leaves out.
        depends: As of `Manifest`.
        read: The absolute paths of the files among these.
    """

    name: str
    source: Source
    io: IOContract
    make: Callable[[], nn.Module]
    tokenizer: Path | str | None = None
    observed: bool = False
    prompts: Prompts = NO_PROMPTS
    text_limit: int | None = None
    chat: str | None = None
    search: Search | None = None
    notes: tuple[str, ...] = ()
    fixable: tuple[Dim, ...] = ()
    seen: Mapping[str, int] = field(default_factory=dict)
    depends: Mapping[str, str] = field(default_factory=dict)
    read: tuple[str, ...] = ()


# --- what comes out -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SourceAttention:
    """An attention counted in the torch graph at export, independently of recognition.

    Attributes:
        name: The module path, with `#1`, `#2`, ... for the second and later attention of one module.
        module: The module path that encloses the call.
        call: `scaled_dot_product_attention` or `softmax`.
    """

    name: str
    module: str
    call: str


@dataclass(frozen=True)
class Form:
    """One lowered form of the model: its file, target and plan, and the nodes of each attention.

    Attributes:
        anchors: For each attention, the names of the nodes that one kernel must cover to count as fused: a single
            attention operator, or the QK^T product, the softmax and the PV product.
        precision: For a form of the plan `auto`: what stays in float32, and why.
        integers: For a form in int8 or with weights of 4 bits: which layers are, and what that costs.
    """

    target: str
    plan: str
    file: str
    opset: int
    anchors: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    mask: Mapping[str, str] = field(default_factory=dict)
    precision: PrecisionPlan | None = None
    integers: IntegerPlan | None = None


@dataclass(frozen=True, repr=False)
class EngineRecord(Printed):
    """A TensorRT engine: its form, target, version, and memory.

    Attributes:
        scratch_bytes: Device memory that the engine needs in addition to weights and I/O, over all profiles; None if
            TensorRT does not tell.
        sm: Compute capabilities that were asked for (`86` is 8.6); empty = the builder's default.
        usual_sm: The builder's default as the engine's header has it, where nothing was asked for; empty = it is not
            known, or that of the GPU on which the engine was built.
        version: The TensorRT version, checked before anything else at open.
        precision: For the plan `auto`: what stays in float32, and why.
    """

    schema: Literal["attnport/engine/1"] = field(default="attnport/engine/1", kw_only=True)
    target: str
    plan: str
    file: str
    form: str
    sm: tuple[int, ...]
    profiles: tuple[Profile, ...]
    version: str
    digest: str
    size_bytes: int
    scratch_bytes: int | None
    precision: PrecisionPlan | None = None
    usual_sm: tuple[int, ...] = ()

    @property
    def gpus(self) -> str:
        """`86, 89`; `80, 86 and GPUs still to come`."""
        if self.sm or self.usual_sm:
            return ", ".join(map(str, self.sm or self.usual_sm)) + ("" if self.sm else " and GPUs still to come")
        return "that of the GPU that it was built on" if self.target == "tensorrt" else "the builder's default"


@dataclass(frozen=True)
class Evidence:
    """Proof that one runtime kernel covers an attention from QK^T to PV."""

    kernel: str
    text: str


@dataclass(frozen=True)
class FusionItem:
    """Whether one attention is fused on one target; `reason` is never empty if `fused` is false.

    `form` says in words how it is written. `cost` names costs beside the kernel, as a second branch for its weights.
    """

    attention: str
    form: str
    mask: str
    kernel: str | None
    fused: bool
    reason: str
    evidence: str = ""
    cost: str = ""


@dataclass(frozen=True, repr=False)
class FusionTable(Printed):
    """All attentions of the source on one target.

    Attributes:
        proved_by: The runtime or engine that the evidence comes from. None if none on this machine could give any; then
            an attention that is not fused here may be fused on the target's machine.
        padding: By padding mask: "" if the form computes the real tokens alone (its outputs are zero in rows of
            padding), otherwise why it computes padding as well. Empty for forms that always compute it.
        unavailable: Why nothing that could prove the form is available on this machine; "" if something is.
    """

    attentions: int
    fused: int
    items: tuple[FusionItem, ...]
    file: str
    plan: str
    proved_by: str | None
    padding: Mapping[str, str] = field(default_factory=dict)
    unavailable: str = ""

    def __str__(self) -> str:
        """`6/6`, or `not proven`."""
        return "not proven" if self.proved_by is None else f"{self.fused}/{self.attentions}"


@dataclass(frozen=True, repr=False)
class FusionReport(Printed):
    """`fusion.json`: a table for each target (`target`, or `target.plan` for a plan other than the default)."""

    schema: Literal["attnport/fusion/1"] = field(default="attnport/fusion/1", kw_only=True)
    targets: Mapping[str, FusionTable]


@dataclass(frozen=True)
class Stage:
    """The inputs (as a digest) and outputs of a verb, so that it need not run again if nothing has changed."""

    inputs: str
    files: tuple[str, ...]
    made: str
    seconds: float


@dataclass(frozen=True, repr=False)
class Manifest(Printed):
    """`attnport.json`: the content of a folder, with the SHA-256 of every file.

    Attributes:
        depends: What the model was made from: the SHA-256 of each file that was read ("" = it was not there), and the
            version of each package.
        notes: What `export` said of how it took the model, such as sizes that were not tried.
    """

    schema: Literal["attnport/manifest/1"] = field(default="attnport/manifest/1", kw_only=True)
    format: int
    attnport: str
    name: str
    source: Source
    io: IOContract
    opset: int
    attentions: tuple[SourceAttention, ...]
    tokenizer: str | None
    versions: Mapping[str, str]
    files: Mapping[str, str]
    forms: Mapping[str, Form] = field(default_factory=dict)
    engines: Mapping[str, EngineRecord] = field(default_factory=dict)
    stages: Mapping[str, Stage] = field(default_factory=dict)
    prompts: Prompts = NO_PROMPTS
    text_limit: int | None = None
    search: Search | None = None
    depends: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


# --- runtimes -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Capabilities:
    """What a runtime's probe found on the installed version; `reason` and `hint` say why it is not available.

    Attributes:
        failed: Whether the probe itself failed, so that the next one may find something else.
        libraries: The NVIDIA libraries that it needs, by name, with the path that the loader finds; "" if not found.
        details: What else a trial showed, in words, such as the kernels of attention that ran.
    """

    runtime: str
    available: bool
    reason: str = ""
    hint: str = ""
    failed: bool = False
    version: str = ""
    devices: tuple[str, ...] = ()
    plans: tuple[str, ...] = ()
    max_opset: int | None = None
    libraries: Mapping[str, str] = field(default_factory=dict)
    details: Mapping[str, str] = field(default_factory=dict)

    @property
    def absent(self) -> bool:
        """Whether the runtime is not installed, or needs hardware that this machine lacks."""
        return not (self.available or self.failed)

    @property
    def problem(self) -> str:
        """Why it cannot be used here, and how to get it."""
        return "; ".join(filter(None, (self.reason.rstrip("."), self.hint)))


class Session(Protocol):
    """A model opened in a runtime."""

    ran: Ran

    def run(self, feeds: Mapping[str, np.ndarray[Any, Any]]) -> dict[str, np.ndarray[Any, Any]]:
        """Outputs by name, in contract order. Raises FeedError for feeds that do not fit."""
        ...

    def close(self) -> None:
        """Frees the session; closing twice is fine."""
        ...
