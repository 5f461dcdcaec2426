"""`bundle.json`: the manifest of a bundle, read strictly. The meaning of every key is in FORMAT.md."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

from ..arguments import shown
from ..errors import BundleError, FeedError, IntegrityError, UsageError, is_printable
from .contract import DTYPES, IO, Profile, Ran, Verdict
from .decoder import Decoder, Roles
from .strict_json import AnyText, decode, parse

CHAT = "chat.json"
"""The chat template of a decoder, and the special tokens that it may name."""
MANIFEST = "bundle.json"
SIGNATURE = "bundle.sig"
RESERVED = (MANIFEST, SIGNATURE)
"""Files that describe all the others, and so are not listed among them."""

# ASCII only: which other letters name the same file depends on the system and its release of Unicode.
_LETTERS = frozenset(map(chr, range(0x20, 0x7F))) - set('\\/:*?"<>|')
_PYTHON = "python/"
_READER = "python/attnport_bundle/"
_NO_BYTECODE = "__pycache__"


def shown_name(name: str) -> str:
    """The name of a file on disk for a message; escaped if it holds anything that is not printable."""
    return name if is_printable(name) else ascii(name)


def check_names(names: Iterable[str]) -> None:
    """Raises ValueError for a name that leaves the folder, or that may be the same file as another name."""
    seen: dict[str, str] = {name: name for name in RESERVED}
    for name in names:
        for part in name.split("/"):
            plain = part not in ("", ".", "..") and set(part) <= _LETTERS
            if not plain or part[-1] in " ." or len(part) > 255:
                raise ValueError(f"{name!r} is not a plain path inside the folder")
        key = name.lower()
        if key in seen:
            raise ValueError(f"{name!r} and {seen[key]!r} may be one file")
        seen[key] = name


def check_reader(names: Collection[str]) -> None:
    """Raises ValueError for code beside the Python reader, and if Python could cache compiled code of the reader.

    Python searches `python/` first when the reader is run: a `numpy.py` there would replace NumPy. A file that takes
    the place of each folder for compiled code keeps Python from loading code that is not in the manifest.
    """
    for name in names:
        if name.lower().startswith(_PYTHON) and not name.startswith(_READER):
            raise ValueError(f"{name!r} is not of the reader, and {_PYTHON} holds nothing else")
    for folder in {name.rpartition("/")[0] for name in names if name.startswith(_READER)}:
        if f"{folder}/{_NO_BYTECODE}" not in names:
            raise ValueError(f"'{folder}/{_NO_BYTECODE}' is not among the files of the reader")


USUAL = ("query", "document")
"""Names that every model takes, as in sentence-transformers: where it has no such prompt, nothing is put before."""


@dataclass(frozen=True)
class Prompts:
    """What a model expects before a text, by the text's use, as `query: ` before a question.

    Attributes:
        named: The prompts by name, as `query` and `document`.
        default: The name of the one before every text for which no other was chosen; "" = none.
    """

    named: Mapping[str, AnyText] = field(default_factory=dict)
    default: str = ""

    def __post_init__(self) -> None:
        if self.default and self.default not in self.named:
            raise ValueError(f"got default {self.default!r}; expected one of {', '.join(self.named) or 'no name'}")

    @property
    def usual(self) -> str:
        """The prompt before a text of no named use, or ""."""
        return self.named.get(AnyText(self.default), AnyText(""))

    def chosen(self, name: str | None) -> str:
        """The prompt of a name: None = the default one, "" = none.

        Raises:
            FeedError: there is no such prompt.
        """
        if name is None:
            return self.usual
        if not isinstance(name, str):
            raise FeedError(f'prompt: got {shown(name)}; expected the name of a prompt, None or "".')
        if name in self.named:
            return self.named[name]
        if name == "" or name in USUAL:
            return ""
        known = ", ".join(map(repr, {**self.named, **dict.fromkeys(USUAL)}))
        raise FeedError(
            f"prompt: got {name!r:.60}; expected the name of one: {known}. Put a prompt of your own before the texts."
        )


FORMAT = "attnport-bundle"
VERSION = 1
MAX_BYTES = 4 << 20
MODEL = ".onnx"
"""The suffix of every model file that is not an engine."""
ARRAYS = tuple(dtype for dtype in DTYPES if dtype != "bfloat16")
"""The dtypes that a bundle's inputs and outputs may have: those of NumPy."""
ENGINES = ("tensorrt", "tensorrt_rtx")
"""Runtimes that open an engine, a file for one release and certain devices. The others open an ONNX file."""

_FLOATS = ("float16", "bfloat16", "float32", "float64")
DIGEST = re.compile(r"[0-9a-f]{64}")
_RELEASE = re.compile(r"\d{1,9}(\.\d{1,9}){0,3}", re.ASCII)

Runtime = Literal["onnxruntime", "openvino", "tensorrt", "tensorrt_rtx"]
RUNTIMES: tuple[Runtime, ...] = get_args(Runtime)
"""What opens a form; each is named as the module that is imported for it."""
Proof = Literal["device", "graph-only"]


def package_of(runtime: str) -> str:
    """The package that a runtime is installed by."""
    return runtime.replace("_", "-")


@dataclass(frozen=True)
class File:
    """The size and SHA-256 of a file."""

    bytes: int
    sha256: str

    def __post_init__(self) -> None:
        if self.bytes < 0 or not DIGEST.fullmatch(self.sha256):
            raise ValueError("a size below zero, or a digest that is not 64 lower-case hex digits")


@dataclass(frozen=True)
class Requires:
    """What a form needs to be opened.

    Attributes:
        runtime: The release of its runtime: the earliest one, or the only one if `exact`.
        exact: Whether no other release will do; true for engines and for nothing else.
        opset: The opset of an ONNX file; None for engines.
        sm: Compute capabilities that an engine runs on (`86` is 8.6), increasing; empty = its file does not tell.
    """

    runtime: str
    exact: bool
    opset: int | None
    sm: tuple[int, ...]

    def __post_init__(self) -> None:
        if not _RELEASE.fullmatch(self.runtime):
            raise ValueError(f"{self.runtime!r} is not a release such as 1.26")
        if self.opset is not None and self.opset < 1:
            raise ValueError(f"got opset {self.opset}; expected 1 or more")
        if list(self.sm) != sorted(set(self.sm)) or (self.sm and self.sm[0] < 1):
            raise ValueError(f"got compute capabilities {list(self.sm)}; expected increasing numbers above 0")


@dataclass(frozen=True)
class Measured:
    """The errors of one output in one parity case against the float64 reference, each within its bound."""

    case: str
    output: str
    rms_error: float
    rms_bound: float
    max_error: float
    max_bound: float


@dataclass(frozen=True)
class Parity:
    """The parity verdict on a form where the bundle was made. A form that failed is never in a bundle.

    Attributes:
        verdict: PASS if `runtime` or `graph` is PASS; NOT_RUN if neither ran.
        runtime: The verdict on the form on its own runtime and device.
        graph: The verdict on its graph, computed without that runtime.
        results: What was measured: on the runtime if it ran there, otherwise on the graph.
        ran: What computed `results`; None if nothing ran.
    """

    verdict: Verdict
    runtime: Verdict
    graph: Verdict
    reason: str
    results: tuple[Measured, ...]
    ran: Ran | None

    def __post_init__(self) -> None:
        parts = (self.runtime, self.graph)
        if "FAIL" in (self.verdict, *parts):
            raise ValueError("parity failed; such a form is never in a bundle")
        if self.verdict != ("PASS" if "PASS" in parts else "NOT_RUN"):
            raise ValueError(f"got verdict {self.verdict} of runtime {self.runtime} and graph {self.graph}")


@dataclass(frozen=True)
class FusionItem:
    """Whether one attention is fused, and into which kernel; `reason` says why if it is not."""

    attention: str
    fused: bool
    kernel: str | None
    reason: str


@dataclass(frozen=True)
class Fusion:
    """How many attentions the model has, and how many run as one kernel.

    Attributes:
        proved_by: The runtime or engine that the evidence comes from; None if there is no evidence.
    """

    attentions: int
    fused: int
    proved_by: str | None
    items: tuple[FusionItem, ...]


@dataclass(frozen=True)
class Form:
    """A model file or an engine, the runtime that opens it, and its parity and fusion.

    Attributes:
        external: The weights files of an ONNX file.
        plan: The precision plan; the goldens have bounds for it.
        provider: ONNX Runtime's execution provider; None for the other runtimes.
        dtypes: The dtype of every input and output in the file; the contract's may be wider.
        profiles: The optimization profiles of an engine; a call must fit one of them.
        proof: `device` if parity passed on the runtime itself, otherwise `graph-only`.
    """

    file: str
    external: tuple[str, ...]
    plan: str
    runtime: Runtime
    provider: str | None
    dtypes: Mapping[str, str]
    profiles: tuple[Profile, ...]
    requires: Requires
    proof: Proof
    parity: Parity
    fusion: Fusion | None

    def __post_init__(self) -> None:
        engine, requires = self.runtime in ENGINES, self.requires
        if (self.provider is not None) is not (self.runtime == "onnxruntime"):
            raise ValueError(f"got provider {self.provider!r} for {self.runtime}; onnxruntime alone has one")
        if engine is not bool(self.profiles) or engine is not requires.exact:
            raise ValueError(f"{self.runtime}: an engine, and nothing else, has profiles and an exact release")
        if engine is not (requires.opset is None) or (self.external if engine else requires.sm):
            raise ValueError(f"{self.runtime}: an ONNX file has an opset, an engine has none and no external data")
        # Runtimes recognise other formats by the suffix, and would then read other content than was checked.
        if not engine and not self.file.endswith(MODEL):
            raise ValueError(f"got file {self.file!r} for {self.runtime}; expected a name that ends in {MODEL}")
        if (self.proof == "device") is not (self.parity.runtime == "PASS"):
            raise ValueError(f"got proof {self.proof}; parity on the runtime is {self.parity.runtime}")

    def check(self, io: IO) -> None:
        """Raises ValueError unless dtypes and profiles fit the contract."""
        specs = (*io.inputs, *io.outputs)
        for spec in specs:
            got = self.dtypes.get(spec.name)
            if got != spec.dtype and not (got in _FLOATS and spec.dtype in _FLOATS):
                raise ValueError(f"{self.file}: {spec.name!r} is {got} in the file; the contract says {spec.dtype}")
        if len(self.dtypes) != len({spec.name for spec in specs}):
            raise ValueError(f"{self.file}: dtypes has a name that is no input or output")
        for profile in self.profiles:
            profile.check(io)


@dataclass(frozen=True)
class Bound:
    """The largest allowed errors of one output in one golden case at a plan, over the valid elements."""

    case: str
    output: str
    plan: str
    rms_bound: float
    max_bound: float

    def __post_init__(self) -> None:
        if self.rms_bound < 0 or self.max_bound < 0:
            raise ValueError(f"case {self.case!r}, output {self.output!r}: a bound is below zero")


@dataclass(frozen=True)
class Goldens:
    """The file with golden inputs and outputs, and the bounds for each case, output and plan."""

    file: str
    bounds: tuple[Bound, ...]

    def __post_init__(self) -> None:
        if not self.bounds:
            raise ValueError("there is no golden case")


@dataclass(frozen=True)
class Provenance:
    """Where the model came from.

    Attributes:
        source: The SPEC, without folders.
        inputs: The input declarations given with it.
        code_sha256: The digest of the code that the module's classes and its factory depend on in their files.
        weights_sha256: The digest of the parameters and buffers.
        commands: The commands that made it, in order, each as its arguments without folders.
        versions: The versions of the packages that made it.
    """

    source: str
    inputs: tuple[str, ...]
    code_sha256: str
    weights_sha256: str
    opset: int
    commands: tuple[tuple[str, ...], ...]
    versions: Mapping[str, str]


@dataclass(frozen=True)
class BundleIO(IO):
    """The contract of inputs and outputs, and what they are for in a model that generates.

    Attributes:
        decoder: None for a model that does not generate.
    """

    decoder: Decoder | None = None

    def check(self) -> None:
        """Raises UsageError for a contract that contradicts itself, or that a bundle cannot have."""
        super().check()
        if self.decoder is not None:
            Roles(self, self.decoder)  # which refuses a decoder that does not fit
        for tensor in (*self.inputs, *self.outputs):
            if tensor.dtype not in ARRAYS:
                known = ", ".join(ARRAYS)
                raise UsageError(f"{tensor.name}: got dtype {tensor.dtype}; a bundle takes and gives {known}.")
        for mask in self.masks:
            if mask.carries == "lengths" and mask.keys is None:
                raise UsageError(f"{mask.input!r} holds lengths of no dim; in a bundle, keys names the dim.")


@dataclass(frozen=True)
class TokenizerFiles:
    """The files of a tokenizer.

    Attributes:
        file: The `tokenizer.json`.
        chars: What each character becomes, beside it; None where only the package `tokenizers` reads the file.
    """

    file: str
    chars: str | None

    def __post_init__(self) -> None:
        expected = self.file.removesuffix(".json") + ".chars"
        if self.chars not in (None, expected):
            raise ValueError(f"got chars {self.chars!r}; expected {expected!r}")

    @property
    def names(self) -> tuple[str, ...]:
        """The files, by name."""
        return (self.file,) if self.chars is None else (self.file, self.chars)


@dataclass(frozen=True)
class Manifest:
    """The content of `bundle.json`.

    Attributes:
        order: The forms, the preferred first.
        tokenizer: The tokenizer's files; None for a model that does not read text.
        prompts: What an embedder expects before a text.
        text_limit: The most tokens of a text for an embedder, if that is fewer than it takes.
    """

    format: str
    version: int
    name: str
    unverified: bool
    io: BundleIO
    order: tuple[str, ...]
    forms: Mapping[str, Form]
    goldens: Goldens
    tokenizer: TokenizerFiles | None
    provenance: Provenance
    files: Mapping[str, File]
    prompts: Prompts
    text_limit: int | None

    @property
    def needs_tokenizers(self) -> bool:
        """Whether texts need the package `tokenizers`: those of decoders, and of tokenizers not of BERT's kind."""
        return self.tokenizer is not None and (self.tokenizer.chars is None or self.io.decoder is not None)

    def __post_init__(self) -> None:
        self.io.check()
        if self.text_limit is not None and self.text_limit < 1:
            raise ValueError(f"got text_limit {self.text_limit}; expected 1 or more")
        check_names(self.files)
        check_reader(self.files)
        used = [self.goldens.file, *(self.tokenizer.names if self.tokenizer else ())]
        for form in self.forms.values():
            used += [form.file, *form.external]
            form.check(self.io)
        for name in used:
            if name not in self.files:
                raise ValueError(f"{name!r} is used, but not among the files")
        if not self.forms or sorted(self.order) != sorted(self.forms):
            raise ValueError(f"order {list(self.order)} is not an order of the forms {sorted(self.forms)}")
        if self.unverified is not any(form.parity.verdict == "NOT_RUN" for form in self.forms.values()):
            raise ValueError(f"got unverified {self.unverified}, which is not what the forms' parity says")


def from_bytes(data: bytes, where: str) -> Manifest:
    """Reads a manifest.

    Raises:
        BundleError: it has another format, or a version that this reader does not know.
        IntegrityError: it is malformed, or has a value that is not allowed.
    """
    value = parse(data, where)
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        raise BundleError(f"{where} is not the manifest of a bundle: its format is not {FORMAT!r}.")
    version = value.get("version")
    if type(version) is not int or version != VERSION:
        raise BundleError(
            f"{where}: got version {version!r:.60}; this reader knows version {VERSION}. "
            "Take a newer reader, or have it bundled again."
        )
    return decode(Manifest, value, where)


def read_bytes(folder: Path) -> bytes:
    """The bytes of the manifest in `folder`, unchecked.

    Raises:
        BundleError: the folder is not a bundle, or the manifest cannot be read.
        IntegrityError: the manifest is a link, or larger than `MAX_BYTES`.
    """
    path = folder / MANIFEST
    try:
        if not folder.is_dir():
            raise BundleError(f"{folder} is not a folder.")
        if path.is_symlink():
            raise IntegrityError(f"{path} is a link.")
        if not path.is_file():
            raise BundleError(f"{folder} is no bundle: it has no {MANIFEST}; attnport bundle makes one of an artifact.")
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as err:
        raise BundleError(f"{path} cannot be read: {err.strerror}.") from err
    if len(data) > MAX_BYTES:
        raise IntegrityError(f"{path} has more than {MAX_BYTES} bytes.")
    return data


def read(folder: Path) -> Manifest:
    """Reads the manifest of the bundle in `folder`; raises as `from_bytes` and `read_bytes`."""
    return from_bytes(read_bytes(folder), str(folder / MANIFEST))
