"""`bundle.json`: the manifest of a bundle, read strictly. The meaning of every key is in FORMAT.md."""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from .decode import decode, parse
from .errors import BundleError, IntegrityError

MANIFEST = "bundle.json"
FORMAT = "attnport-bundle"
VERSION = 1
MAX_BYTES = 4 << 20
DTYPES = ("float32", "float16", "float64", "int32", "int64", "bool")
KINDS = ("none", "padding", "causal", "window", "prefix", "documents", "global", "bias", "explicit")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_RELEASE = re.compile(r"\d+(\.\d+){0,3}")

Verdict = Literal["PASS", "FAIL", "NOT_RUN"]
Polarity = Literal["keep", "hide", "additive"]
Alignment = Literal["upper_left", "lower_right"]
Content = Literal["mask", "lengths", "ids", "marks"]


@dataclass(frozen=True)
class File:
    """The size and SHA-256 of a file."""

    bytes: int
    sha256: str

    def __post_init__(self) -> None:
        if self.bytes < 0 or not _DIGEST.fullmatch(self.sha256):
            raise ValueError("a size below zero, or a digest that is not 64 lower-case hex digits")


@dataclass(frozen=True)
class Dim:
    """A named dimension: the model takes sizes from `min` to `max`."""

    name: str
    min: int
    opt: int
    max: int

    def __post_init__(self) -> None:
        if not self.name.isidentifier() or not 1 <= self.min <= self.opt <= self.max:
            raise ValueError(f"dim {self.name!r}: expected a name and 1 <= min <= opt <= max")


@dataclass(frozen=True)
class Tensor:
    """An input or output. `dims`: names of dims, or fixed sizes. `high` bounds an integer input's values, exclusive."""

    name: str
    dtype: str
    dims: tuple[str | int, ...]
    high: int | None

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise ValueError(f"tensor {self.name!r}: dtype {self.dtype!r} is not one of {', '.join(DTYPES)}")

    def __str__(self) -> str:
        return f"{self.name}={self.dtype}[{','.join(map(str, self.dims))}]"


@dataclass(frozen=True)
class Mask:
    """What a mask means.

    Attributes:
        polarity: Of a `mask`: `keep` (nonzero may be attended), `hide` (nonzero is hidden) or `additive`.
        carries: What the input holds: a `mask`, `lengths` [B], `ids` of documents [B,T] or `marks` of global tokens.
        keys: The dim whose positions `lengths` count; None for everything else.
    """

    kinds: tuple[str, ...]
    input: str | None
    polarity: Polarity
    alignment: Alignment
    window: int
    carries: Content = "mask"
    keys: str | None = None

    def __post_init__(self) -> None:
        unknown = [kind for kind in self.kinds if kind not in KINDS]
        if unknown or not self.kinds:
            raise ValueError(f"mask kind {', '.join(unknown) or 'missing'} is not one of {', '.join(KINDS)}")
        if self.window < 0:
            raise ValueError(f"got window {self.window}; expected 0 or more")
        if (self.keys is None) is (self.carries == "lengths"):
            raise ValueError(f"a mask that carries {self.carries} has keys {self.keys!r}; lengths alone count a dim")


@dataclass(frozen=True)
class IO:
    """The contract of inputs and outputs."""

    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    dims: tuple[Dim, ...]
    masks: tuple[Mask, ...]

    def __post_init__(self) -> None:
        for names in ([x.name for x in self.inputs], [x.name for x in self.outputs], [dim.name for dim in self.dims]):
            if len(set(names)) != len(names):
                raise ValueError(f"a name is there twice among {', '.join(names)}")
        known = {dim.name for dim in self.dims}
        for tensor in (*self.inputs, *self.outputs):
            for dim in tensor.dims:
                if dim not in known if isinstance(dim, str) else dim < 0:
                    raise ValueError(f"tensor {tensor.name!r}: got dim {dim!r}; known are {', '.join(sorted(known))}")
        for mask in self.masks:
            self._check_mask(mask)
        if not self.inputs or not self.outputs:
            raise ValueError("a model has at least one input and one output")

    def _check_mask(self, mask: Mask) -> None:
        carrier = next((tensor for tensor in self.inputs if tensor.name == mask.input), None)
        if carrier is None and (mask.input is not None or mask.carries != "mask"):
            raise ValueError(f"a mask is carried by {mask.input!r}, which is no input")
        rank = {"lengths": 1, "ids": 2, "marks": 2}.get(mask.carries)
        if carrier is not None and rank is not None and len(carrier.dims) != rank:
            raise ValueError(f"{carrier} carries {mask.carries}, which have rank {rank}")
        if mask.keys is not None and mask.keys not in {dim.name for dim in self.dims}:
            raise ValueError(f"{mask.input!r} counts {mask.keys!r}, which is no dim")


@dataclass(frozen=True)
class Requires:
    """What a form needs to be opened: the least release of its runtime, and the opset that it is written in."""

    runtime: str
    opset: int

    def __post_init__(self) -> None:
        if not _RELEASE.fullmatch(self.runtime):
            raise ValueError(f"{self.runtime!r} is not a release such as 1.26")


@dataclass(frozen=True)
class Parity:
    """The verdict on a form where it was made: on its runtime, and of its graph run numerically."""

    verdict: Verdict
    runtime: Verdict
    graph: Verdict
    reason: str


@dataclass(frozen=True)
class FusionItem:
    """What became of one attention; `reason` says why when it is not fused."""

    attention: str
    fused: bool
    kernel: str | None
    reason: str


@dataclass(frozen=True)
class Fusion:
    """How many attentions the model has, and how many run as one kernel."""

    attentions: int
    fused: int
    items: tuple[FusionItem, ...]


@dataclass(frozen=True)
class Form:
    """A model file, the runtime that opens it, and what was found about it. `external`: its weights files."""

    file: str
    external: tuple[str, ...]
    plan: str
    runtime: str
    provider: str
    requires: Requires
    parity: Parity
    fusion: Fusion | None


@dataclass(frozen=True)
class Bound:
    """How far one output of one golden case may be from the float64 reference, over its valid elements."""

    case: str
    output: str
    rms_bound: float
    max_bound: float


@dataclass(frozen=True)
class Goldens:
    """The file with golden inputs and outputs, and the bound of each output."""

    file: str
    bounds: tuple[Bound, ...]


@dataclass(frozen=True)
class Provenance:
    """Where the model came from: the SPEC, digests of its code and weights, and the versions that made it."""

    source: str
    inputs: tuple[str, ...]
    code_sha256: str
    weights_sha256: str
    opset: int
    versions: Mapping[str, str]


@dataclass(frozen=True)
class Manifest:
    """The whole of `bundle.json`. `order`: the forms, the one to be preferred first; `tokenizer`: of text models."""

    format: str
    version: int
    name: str
    unverified: bool
    io: IO
    order: tuple[str, ...]
    forms: Mapping[str, Form]
    goldens: Goldens
    tokenizer: str | None
    provenance: Provenance
    files: Mapping[str, File]

    def __post_init__(self) -> None:
        check_names(self.files)
        used = [self.goldens.file, *([] if self.tokenizer is None else [self.tokenizer])]
        for form in self.forms.values():
            used += [form.file, *form.external]
        for name in used:
            if name not in self.files:
                raise ValueError(f"{name!r} is used, but not among the files")
        if not self.forms or sorted(self.order) != sorted(self.forms):
            raise ValueError(f"order {list(self.order)} is not an order of the forms {sorted(self.forms)}")


def check_names(names: Mapping[str, Any]) -> None:
    """Raises ValueError for a name that leaves the folder, or that some file system takes for another one."""
    seen: dict[str, str] = {MANIFEST: MANIFEST}
    for name in names:
        for part in name.split("/"):
            plain = part not in ("", ".", "..") and part.isprintable() and not set(part) & set('\\:*?"<>|')
            if not plain or part[-1] in " ." or len(os.fsencode(part)) > 255:
                raise ValueError(f"{name!r} is not a plain path inside the folder")
        key = unicodedata.normalize("NFC", name).casefold()
        if key in seen:
            raise ValueError(f"{name!r} and {seen[key]!r} may be one file")
        seen[key] = name


def from_bytes(data: bytes, where: str) -> Manifest:
    """Reads a manifest.

    Raises:
        BundleError: it is of another format, or of a version that this reader does not know.
        IntegrityError: it is malformed, or names what it must not.
    """
    value = parse(data, where)
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        raise BundleError(f"{where} is not the manifest of a bundle.")
    if type(value.get("version")) is not int or value["version"] != VERSION:
        raise BundleError(f"{where}: got version {value.get('version')!r}; this reader knows version {VERSION}.")
    return decode(Manifest, value, where)


def read(folder: Path) -> Manifest:
    """Reads the manifest of the bundle in `folder`; raises as `from_bytes`."""
    path = folder / MANIFEST
    if not folder.is_dir():
        raise BundleError(f"{folder} is not a folder.")
    if path.is_symlink():
        raise IntegrityError(f"{path} is a link.")
    if not path.is_file():
        raise BundleError(f"{folder} is no bundle: it has no {MANIFEST}.")
    with path.open("rb") as file:
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise IntegrityError(f"{path} has more than {MAX_BYTES} bytes.")
    return from_bytes(data, str(path))
