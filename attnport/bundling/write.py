"""Writes a bundle into an empty folder: FORMAT.md says what it holds. Equal inputs give equal bytes."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import attnport_bundle
from attnport.artifacts import FusionTable, IOContract, Manifest, RuntimeParity, Verdict
from attnport.bundling import golden
from attnport.bundling.backends import Backend
from attnport.bundling.commands import commands, without_folders
from attnport.bundling.model_file import dtypes, external_files, oldest_onnxruntime
from attnport.bundling.readme import package_of, readme
from attnport.bundling.readme_cpp import readme_cpp
from attnport.errors import ArtifactError, IntegrityError, UsageError
from attnport.masks.spec import MaskSpec
from attnport.version import __version__
from attnport_bundle import engine_header
from attnport_bundle import manifest as spec
from attnport_bundle.contract import IO
from attnport_bundle.decode import MAX_TEXT

PACKAGE = "python/attnport_bundle"
CPP = ("CMakeLists.txt", "cmake/*", "include/attnport/*.h", "include/attnport/*.hpp", "src/*.[ch]pp", "programs/*.cpp")
"""The files of the C++ reader."""
GOLDENS = "goldens.safetensors"
README = "README.md"
OPENVINO = "2026.4"
"""The release of OpenVINO that forms were tried with; none before it was."""

_NO_BYTECODE = (
    "Python keeps compiled code in a folder of this name. As a file it keeps Python from writing or reading any here,\n"
    "so that every byte of code that runs is one that bundle.json has the digest of.\n"
)


@dataclass(frozen=True)
class Judged:
    """What was found about a form or engine.

    Attributes:
        runtime: The verdict on its own runtime.
        graph: The verdict on the graph alone.
        measured: The one of the two that has the evidence: the runtime's where it passed.
    """

    backend: Backend
    verdict: Verdict
    runtime: Verdict
    graph: Verdict
    reason: str
    measured: RuntimeParity | None
    fusion: FusionTable | None


def needed_files(folder: Path, manifest: Manifest, backends: Iterable[Backend]) -> list[str]:
    """The artifact's files that a bundle is made from; of an engine also the form, whose dtypes it has.

    Raises:
        ArtifactError, IntegrityError: a form is not an ONNX file, or takes weights from outside the folder.
    """
    names = {"golden.npz"}
    for backend in backends:
        names |= {backend.form.file, *backend.copied(folder)}
    if manifest.tokenizer:
        names.add(manifest.tokenizer)
    return sorted(names)


def write(
    target: Path,
    folder: Path,
    manifest: Manifest,
    forms: Sequence[Judged],
    goldens: golden.GoldenSet,
    cpp: bool = False,
) -> spec.Manifest:
    """Fills the empty folder `target` with a bundle of an artifact.

    Args:
        folder: The artifact folder; its files are compared with the manifest while they are copied.
        forms: The forms and engines to bundle, the preferred one first.
        cpp: Put the C++ reader in too.

    Raises:
        UsageError: an input or output that a bundle cannot carry, or an engine that no golden case fits.
        ArtifactError, IntegrityError: a file of the artifact is damaged.
    """
    contract = _contract(manifest)
    backends = [judged.backend for judged in forms]
    bundled = {judged.backend.name: _form(folder, judged) for judged in forms}
    for name, form in bundled.items():
        _check_profiles(name, form, manifest.io, goldens.arrays)
    for name in sorted({name for backend in backends for name in backend.copied(folder)} | _tokenizer(manifest)):
        _copy(folder / name, target / name, manifest.files.get(name, ""))
    golden.write(target / GOLDENS, goldens.arrays)
    _copy_reader(target / PACKAGE)
    packages = [package_of(form.runtime, form.provider) for form in bundled.values()]
    page = readme(manifest.name, contract, manifest.tokenizer, target, packages, cpp)
    (target / README).write_text(page, encoding="utf-8")
    if cpp:
        _copy_cpp(target / "cpp")
        page = readme_cpp(manifest.name, contract, manifest.tokenizer, target, bundled)
        (target / "cpp" / README).write_text(page, encoding="utf-8")
    made = spec.Manifest(
        format=spec.FORMAT,
        version=spec.VERSION,
        name=manifest.name,
        unverified=any(judged.verdict == "NOT_RUN" for judged in forms),
        io=contract,
        order=tuple(bundled),
        forms=bundled,
        goldens=spec.Goldens(GOLDENS, goldens.bounds),
        tokenizer=manifest.tokenizer,
        provenance=_provenance(manifest, backends),
        files={
            path.relative_to(target).as_posix(): _record(path) for path in sorted(target.rglob("*")) if path.is_file()
        },
    )
    text = json.dumps(dataclasses.asdict(made), indent=1, allow_nan=False, ensure_ascii=False)
    (target / spec.MANIFEST).write_text(text + "\n", encoding="utf-8")
    return made


def _tokenizer(manifest: Manifest) -> set[str]:
    return {manifest.tokenizer} if manifest.tokenizer else set()


def _provenance(manifest: Manifest, backends: Sequence[Backend]) -> spec.Provenance:
    return spec.Provenance(
        source=without_folders(manifest.source.text),
        inputs=manifest.source.inputs,
        code_sha256=manifest.source.code_digest,
        weights_sha256=manifest.source.weights_digest,
        opset=manifest.opset,
        commands=commands(manifest, backends),
        versions=dict(sorted({**manifest.versions, "attnport": __version__}.items())),
    )


def _contract(manifest: Manifest) -> IO:
    """The contract as the bundle states it. Raises UsageError where no bundle can have it."""
    io = manifest.io
    masks = tuple(dataclasses.replace(mask, keys=_counted(io, mask)) for mask in io.masks)
    outputs = tuple(dataclasses.replace(tensor, high=None) for tensor in io.outputs)
    contract = IO(io.inputs, outputs, io.dims, masks)
    for tensor in (*io.inputs, *io.outputs):
        if tensor.dtype not in spec.ARRAYS:
            raise UsageError(
                f"{tensor.name}: got dtype {tensor.dtype}; a bundle's inputs and outputs are {', '.join(spec.ARRAYS)}.",
                hint="Cast inside the module, so that its inputs and outputs are arrays that NumPy has.",
            )
    try:
        spec.check_contract(contract)
    except UsageError as err:  # a factory makes its ModelSpec itself, and may declare what makes no sense
        raise UsageError(f"{manifest.name}: {err}", hint="Mend the ModelSpec, and export again.") from err
    return contract


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


def _form(folder: Path, judged: Judged) -> spec.Form:
    backend, engine = judged.backend, judged.backend.engine
    return spec.Form(
        file=backend.file,
        external=() if engine else external_files(folder, backend.file),
        plan=backend.form.plan,
        runtime=backend.runtime,
        provider=backend.provider,
        dtypes=dict(sorted(dtypes(folder / backend.form.file).items())),
        profiles=engine.profiles if engine else (),
        requires=_requires(folder, backend),
        proof="device" if judged.runtime == "PASS" else "graph-only",
        parity=_parity(judged),
        fusion=_fusion(judged.fusion),
    )


def _requires(folder: Path, backend: Backend) -> spec.Requires:
    engine = backend.engine
    if engine is None:
        release, opset = oldest_onnxruntime(folder / backend.file)
        return spec.Requires(OPENVINO if backend.runtime == "openvino" else release, False, opset, ())
    if engine.target != "tensorrt_rtx":  # nothing is known of the header of the other flavour
        return spec.Requires(engine.version, True, None, tuple(sorted(engine.sm)))
    try:
        header = engine_header.read_header(folder / engine.file)
    except (OSError, ValueError) as err:
        raise ArtifactError(str(err), hint="Build it again.") from err
    if header.version != engine.version:
        raise IntegrityError(
            f"{folder / engine.file} is of TensorRT-RTX {header.version}; its record says {engine.version}.",
            hint="Build it again.",
        )
    return spec.Requires(header.version, True, None, tuple(sorted(header.sm)))


def _check_profiles(name: str, form: spec.Form, io: IOContract, arrays: Mapping[str, golden.Array]) -> None:
    """Raises UsageError for an engine that no golden case fits: nothing could ever show that it is right."""
    found = [golden.sizes(arrays, io, case) for case in golden.cases(arrays)]
    if form.profiles and not any(profile.admits(sizes) for profile in form.profiles for sizes in found):
        wanted = ",".join(f"{dim}={size}" for dim, size in found[0].items())
        raise UsageError(
            f"engine {name}: no golden case has sizes inside one of its profiles, so that no reader could test it.",
            hint=f"Build it with a profile that admits {wanted}.",
        )


def _parity(judged: Judged) -> spec.Parity:
    found = judged.measured
    results = [
        spec.Measured(one.case, one.output, one.rms_error, one.rms_bound, one.max_error, one.max_bound)
        for one in (found.cases if found else ())
        if one.rms_error is not None and one.max_error is not None
    ]
    ran = found.ran if found else None
    return spec.Parity(judged.verdict, judged.runtime, judged.graph, _line(judged.reason), tuple(results), ran)


def _fusion(table: FusionTable | None) -> spec.Fusion | None:
    if table is None:
        return None
    items = tuple(
        spec.FusionItem(one.attention, one.fused, None if one.kernel is None else _line(one.kernel), _line(one.reason))
        for one in table.items
    )
    return spec.Fusion(table.attentions, table.fused, table.proved_by, items)


def _line(text: str) -> str:
    """Text of a runtime as one line that a reader takes: printable, and not too long."""
    printable = "".join(letter if letter.isprintable() else " " for letter in text)
    line = " ".join(printable.split())
    return line if len(line) <= MAX_TEXT else line[: MAX_TEXT - 3] + "..."


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
    for source in sorted(Path(attnport_bundle.__file__).parent.glob("*.py")):
        shutil.copyfile(source, target / source.name)
    (target / "py.typed").write_text("")
    (target / "__pycache__").write_text(_NO_BYTECODE)


def _copy_cpp(target: Path) -> None:
    reader = Path(__file__).parent / "cpp"
    for source in sorted(path for pattern in CPP for path in reader.glob(pattern)):
        copy = target / source.relative_to(reader)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, copy)


def _record(path: Path) -> spec.File:
    with path.open("rb") as file:
        return spec.File(path.stat().st_size, hashlib.file_digest(file, "sha256").hexdigest())
