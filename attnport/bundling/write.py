"""Writes a bundle into an empty folder: FORMAT.md says what it holds. Equal inputs give equal bytes."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from attnport import __version__
from attnport.artifacts import Form, FusionTable, IOContract, Manifest, RuntimeParity, Verdict
from attnport.bundling import golden
from attnport.bundling.model_file import dtypes, external_files, oldest_onnxruntime
from attnport.bundling.python import manifest as spec
from attnport.bundling.readme import readme
from attnport.errors import IntegrityError, UsageError
from attnport.masks.spec import MaskSpec

PACKAGE = "python/attnport_bundle"
GOLDENS = "goldens.npz"
README = "README.md"
RUNS: dict[str, tuple[spec.Runtime, str]] = {"ort_cpu": ("onnxruntime", "CPUExecutionProvider")}
"""Form targets that the reader has a runtime for, with the execution provider."""

_NO_BYTECODE = (
    "Python keeps compiled code in a folder of this name. As a file it keeps Python from writing or reading any here,\n"
    "so that every byte of code that runs is one that bundle.json has the digest of.\n"
)


@dataclass(frozen=True)
class Judged:
    """What was found about a form.

    Attributes:
        runtime: The verdict on its own runtime.
        graph: The verdict on the graph alone.
        measured: The one of the two that has the evidence: the runtime's where it passed.
    """

    verdict: Verdict
    runtime: Verdict
    graph: Verdict
    reason: str
    measured: RuntimeParity | None
    fusion: FusionTable | None


def needed_files(folder: Path, manifest: Manifest, forms: Iterable[str]) -> list[str]:
    """The artifact's files that a bundle of `forms` is made from.

    Raises:
        ArtifactError, IntegrityError: a form is not an ONNX file, or takes weights from outside the folder.
    """
    names = {"golden.npz"}
    for form in (manifest.forms[name] for name in forms):
        names |= {form.file, *external_files(folder, form.file)}
    if manifest.tokenizer:
        names.add(manifest.tokenizer)
    return sorted(names)


def write(target: Path, folder: Path, manifest: Manifest, forms: Mapping[str, Judged], *, unverified: bool) -> None:
    """Fills the empty folder `target` with a bundle of an artifact.

    Args:
        folder: The artifact folder; its files are compared with the manifest while they are copied.
        forms: The forms to bundle, the preferred one first.
        unverified: Whether some form's parity was not run; the bundle says so.

    Raises:
        UsageError: an input or output that a bundle cannot carry.
        ArtifactError, IntegrityError: a file of the artifact is damaged.
    """
    contract = _contract(manifest)
    bundled = {name: _form(folder, manifest.forms[name], judged) for name, judged in forms.items()}
    for name in needed_files(folder, manifest, forms):
        if name != "golden.npz":
            _copy(folder / name, target / name, manifest.files.get(name, ""))
    arrays = golden.read(folder / "golden.npz", manifest.io)
    golden.write(target / GOLDENS, arrays)
    _copy_reader(target / PACKAGE)
    (target / README).write_text(readme(manifest.name, contract, manifest.tokenizer), encoding="utf-8")
    made = spec.Manifest(
        format=spec.FORMAT,
        version=spec.VERSION,
        name=manifest.name,
        unverified=unverified,
        io=contract,
        order=tuple(forms),
        forms=bundled,
        goldens=spec.Goldens(GOLDENS, golden.bounds(arrays, manifest.io)),
        tokenizer=manifest.tokenizer,
        provenance=spec.Provenance(
            source=_without_folders(manifest.source.text),
            inputs=manifest.source.inputs,
            code_sha256=manifest.source.code_digest,
            weights_sha256=manifest.source.weights_digest,
            opset=manifest.opset,
            commands=(),
            versions=dict(sorted({**manifest.versions, "attnport": __version__}.items())),
        ),
        files={
            path.relative_to(target).as_posix(): _record(path) for path in sorted(target.rglob("*")) if path.is_file()
        },
    )
    text = json.dumps(dataclasses.asdict(made), indent=1, allow_nan=False, ensure_ascii=False)
    (target / spec.MANIFEST).write_text(text + "\n", encoding="utf-8")


def _without_folders(source: str) -> str:
    """A SPEC with the last part of a path only: the builder's folders are nobody else's business."""
    return re.sub(r"(?<![\w.])~?/(?:[^/:]*/)*(?=[^/:])", "", source)


def _contract(manifest: Manifest) -> spec.IO:
    """The contract as the bundle states it."""
    for tensor in (*manifest.io.inputs, *manifest.io.outputs):
        if tensor.dtype not in spec.DTYPES:
            raise UsageError(
                f"{tensor.name}: got dtype {tensor.dtype}; a bundle's inputs and outputs are {', '.join(spec.DTYPES)}.",
                hint="Cast inside the module, so that its inputs and outputs are arrays that NumPy has.",
            )
    return spec.IO(
        inputs=tuple(spec.Tensor(one.name, one.dtype, one.dims, one.high) for one in manifest.io.inputs),
        outputs=tuple(spec.Tensor(one.name, one.dtype, one.dims, one.high) for one in manifest.io.outputs),
        dims=tuple(spec.Dim(one.name, one.min, one.opt, one.max) for one in manifest.io.dims),
        masks=tuple(
            spec.Mask(
                one.kinds,
                one.input,
                cast(spec.Polarity, one.polarity),
                cast(spec.Alignment, one.alignment),
                one.window,
                cast(spec.Content, one.carries),
                _counted(manifest.io, one),
            )
            for one in manifest.io.masks
        ),
    )


def _counted(io: IOContract, mask: MaskSpec) -> str | None:
    """The dim whose positions an input's lengths count: where it is not said, the only one beside the items'."""
    if mask.carries != "lengths" or mask.keys is not None:
        return mask.keys
    items = next(tensor.dims[0] for tensor in io.inputs if tensor.name == mask.input)
    named = dict.fromkeys(dim for tensor in io.inputs for dim in tensor.dims if isinstance(dim, str) and dim != items)
    if len(named) != 1:
        raise UsageError(
            f"{mask.input}: got lengths of one of {', '.join(named) or 'no dim'}; a bundle says of which.",
            hint="Declare the input with :keys=DIM.",
        )
    return next(iter(named))


def _form(folder: Path, form: Form, judged: Judged) -> spec.Form:
    runtime, provider = RUNS[form.target]
    release, opset = oldest_onnxruntime(folder / form.file)
    return spec.Form(
        file=form.file,
        external=external_files(folder, form.file),
        plan=form.plan,
        runtime=runtime,
        provider=provider,
        dtypes=dtypes(folder / form.file),
        profiles=(),
        requires=spec.Requires(release, False, opset, ()),
        proof="device" if judged.runtime == "PASS" else "graph-only",
        parity=_parity(judged),
        fusion=_fusion(judged.fusion),
    )


def _parity(judged: Judged) -> spec.Parity:
    found = judged.measured
    results = [
        spec.Measured(one.case, one.output, one.rms_error, one.rms_bound, one.max_error, one.max_bound)
        for one in (found.cases if found else ())
        if one.rms_error is not None and one.max_error is not None
    ]
    ran = spec.Ran(found.ran.device, found.ran.provider, found.ran.precision) if found and found.ran else None
    return spec.Parity(judged.verdict, judged.runtime, judged.graph, judged.reason, tuple(results), ran)


def _fusion(table: FusionTable | None) -> spec.Fusion | None:
    if table is None:
        return None
    items = tuple(spec.FusionItem(one.attention, one.fused, one.kernel, one.reason) for one in table.items)
    return spec.Fusion(table.attentions, table.fused, table.proved_by, items)


def _copy(source: Path, target: Path, sha256: str) -> None:
    """Copies bytes (never a hard link: the bundle must not change with the artifact) and compares what was copied."""
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target, follow_symlinks=False)
    if target.is_symlink() or _record(target).sha256 != sha256:
        raise IntegrityError(
            f"{source} is not the file that was written: its digest differs.",
            hint="It was changed or cut short, or another verb wrote to the folder meanwhile; run it again.",
        )


def _copy_reader(target: Path) -> None:
    target.mkdir(parents=True)
    for source in sorted((Path(__file__).parent / "python").glob("*.py")):
        shutil.copyfile(source, target / source.name)
    (target / "py.typed").write_text("")
    (target / "__pycache__").write_text(_NO_BYTECODE)


def _record(path: Path) -> spec.File:
    with path.open("rb") as file:
        return spec.File(path.stat().st_size, hashlib.file_digest(file, "sha256").hexdigest())
