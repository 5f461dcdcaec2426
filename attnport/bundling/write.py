"""Writes a bundle into an empty folder, as described in FORMAT.md. Equal inputs give equal bytes."""

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
from attnport.bundling.characters import character_table
from attnport.bundling.commands import commands, without_folders
from attnport.bundling.model_file import dtypes, external_files, oldest_onnxruntime
from attnport.bundling.readme import package_of, readme
from attnport.bundling.readme_cpp import readme_cpp
from attnport.decoders import decoder_of, is_declared
from attnport.errors import ArtifactError, IntegrityError, UsageError
from attnport.example_values import without_examples
from attnport.masks import MaskSpec
from attnport.version import __version__
from attnport_bundle.errors import FeedError
from attnport_bundle.format import manifest as spec
from attnport_bundle.format.decoder import Decoder
from attnport_bundle.format.strict_json import MAX_TEXT
from attnport_bundle.runtimes import OLDEST
from attnport_bundle.runtimes.tensorrt import read_header

PACKAGE = "python/attnport_bundle"
CPP = ("CMakeLists.txt", "cmake/*", "include/attnport/*.h*", "src/*.cpp", "src/*/*.[ch]pp", "programs/*.cpp")
"""The files of the C++ reader."""
GOLDENS = "goldens.safetensors"
README = "README.md"

_NO_BYTECODE = (
    "Python keeps compiled code in a folder of this name. As a file it keeps Python from writing or reading any here,\n"
    "so that every byte of code that runs is one that bundle.json has the digest of.\n"
)


@dataclass(frozen=True)
class Judged:
    """A form or engine with its parity and fusion.

    Attributes:
        runtime: The verdict on its own runtime.
        graph: The verdict on its graph.
        measured: The parity that passed: that on the runtime, or else that of the graph.
    """

    backend: Backend
    verdict: Verdict
    runtime: Verdict
    graph: Verdict
    reason: str
    measured: RuntimeParity | None
    fusion: FusionTable | None


def needed_files(folder: Path, manifest: Manifest, backends: Iterable[Backend]) -> list[str]:
    """The artifact's files from which a bundle is made; for an engine also its form, which has the dtypes.

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
        cpp: Add the C++ reader too.

    Raises:
        UsageError: a bundle cannot have this input or output, or no golden case fits the profiles of an engine.
        ArtifactError, IntegrityError: a file of the artifact is damaged.
    """
    contract = _contract(manifest)
    backends = [judged.backend for judged in forms]
    bundled = {judged.backend.name: _form(folder, judged) for judged in forms}
    for name, form in bundled.items():
        _check_profiles(name, form, manifest.io, goldens.arrays)
    for name in sorted({name for backend in backends for name in backend.copied(folder)} | _tokenizer(manifest)):
        _copy(folder / name, target / name, manifest.files.get(name, ""))
    tokenizer = _tokenizer_files(target, manifest.tokenizer)
    golden.write(target / GOLDENS, goldens.arrays)
    _copy_reader(target / PACKAGE, bundled.values(), tokenizer is not None, contract.decoder is not None)
    packages = [package_of(form.runtime, form.provider) for form in bundled.values()]
    prompts, limit = manifest.prompts, manifest.text_limit
    page = readme(manifest.name, contract, manifest.tokenizer, target, packages, cpp, prompts, limit)
    (target / README).write_text(page, encoding="utf-8")
    if cpp:
        _copy_cpp(target / "cpp")
        page = readme_cpp(manifest.name, contract, manifest.tokenizer, target, bundled, prompts, limit)
        (target / "cpp" / README).write_text(page, encoding="utf-8")
    bundle_manifest = spec.Manifest(
        format=spec.FORMAT,
        version=spec.VERSION,
        name=manifest.name,
        unverified=any(judged.verdict == "NOT_RUN" for judged in forms),
        io=contract,
        order=tuple(bundled),
        forms=bundled,
        goldens=spec.Goldens(GOLDENS, goldens.bounds),
        tokenizer=tokenizer,
        provenance=_provenance(manifest, backends),
        files={
            path.relative_to(target).as_posix(): _record(path) for path in sorted(target.rglob("*")) if path.is_file()
        },
        prompts=prompts,
        text_limit=limit,
    )
    text = json.dumps(dataclasses.asdict(bundle_manifest), indent=1, allow_nan=False, ensure_ascii=False)
    (target / spec.MANIFEST).write_text(text + "\n", encoding="utf-8")
    return bundle_manifest


def _tokenizer(manifest: Manifest) -> set[str]:
    return {manifest.tokenizer} if manifest.tokenizer else set()


def _tokenizer_files(target: Path, name: str | None) -> spec.TokenizerFiles | None:
    """The tokenizer's files in the bundle; writes what characters become beside a file of BERT's kind."""
    if name is None:
        return None
    table = character_table(target / name)
    if table is None:
        return spec.TokenizerFiles(name, None)
    path = (target / name).with_suffix(".chars")
    path.write_text(table, encoding="ascii")
    return spec.TokenizerFiles(name, path.relative_to(target).as_posix())


def _provenance(manifest: Manifest, backends: Sequence[Backend]) -> spec.Provenance:
    return spec.Provenance(
        source=without_folders(manifest.source.text),
        inputs=tuple(map(without_examples, manifest.source.inputs)),
        code_sha256=manifest.source.code_digest,
        weights_sha256=manifest.source.weights_digest,
        opset=manifest.opset,
        commands=commands(manifest, backends),
        versions=dict(sorted({**manifest.versions, "attnport": __version__}.items())),
    )


def _contract(manifest: Manifest) -> spec.BundleIO:
    """The contract in the bundle. Raises UsageError if a bundle cannot have it."""
    io = manifest.io
    masks = tuple(dataclasses.replace(mask, keys=_counted(io, mask)) for mask in io.masks)
    outputs = tuple(dataclasses.replace(tensor, high=None) for tensor in io.outputs)
    contract = spec.BundleIO(io.inputs, outputs, io.dims, masks, _decoder(io))
    for tensor in (*io.inputs, *io.outputs):
        if tensor.dtype not in spec.ARRAYS:
            raise UsageError(
                f"{tensor.name}: got dtype {tensor.dtype}; a bundle's inputs and outputs are {', '.join(spec.ARRAYS)}.",
                hint="Cast inside the module, so that its inputs and outputs are arrays that NumPy has.",
            )
    try:
        contract.check()
    except UsageError as err:  # the ModelSpec of a factory may contradict itself
        raise UsageError(f"{manifest.name}: {err}", hint="Correct the ModelSpec, and export again.") from err
    return contract


def _decoder(io: IOContract) -> Decoder | None:
    """What the inputs and outputs of a model that generates are for; None for another model."""
    try:
        return decoder_of(io)
    except FeedError as err:
        if not is_declared(io):
            return None
        raise UsageError(str(err), hint="Its contract says how tokens are chosen; export it without that.") from err


def _counted(io: IOContract, mask: MaskSpec) -> str | None:
    """The dim whose positions an input's lengths count; by default the only one beside that of items."""
    if mask.carries != "lengths" or mask.keys is not None:
        return mask.keys
    items = next(tensor.dims[0] for tensor in io.inputs if tensor.name == mask.input)
    named = [dim for dim in io.given() if dim != items]
    if len(named) != 1:
        raise UsageError(
            f"{mask.input}: got lengths of one of {', '.join(named) or 'no dim'}; a bundle has to name it.",
            hint="Declare the input with :keys=DIM.",
        )
    return named[0]


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
        return spec.Requires(OLDEST[backend.runtime] or release, False, opset, ())
    if engine.target != "tensorrt_rtx":  # the header of these engines is not documented
        return spec.Requires(engine.version, True, None, tuple(sorted(engine.sm)))
    try:
        header = read_header(folder / engine.file)
    except (OSError, ValueError) as err:
        raise ArtifactError(str(err), hint="Build it again.") from err
    if header.version != engine.version:
        raise IntegrityError(
            f"{folder / engine.file} is of TensorRT-RTX {header.version}; its record says {engine.version}.",
            hint="Build it again.",
        )
    return spec.Requires(header.version, True, None, tuple(sorted(header.sm)))


def _check_profiles(name: str, form: spec.Form, io: IOContract, arrays: Mapping[str, golden.Array]) -> None:
    """Raises UsageError for an engine whose profiles admit no golden case, as no reader could test it."""
    case_sizes = [golden.sizes(arrays, io, case) for case in golden.cases(arrays)]
    if form.profiles and not any(profile.admits(sizes) for profile in form.profiles for sizes in case_sizes):
        wanted = ",".join(f"{dim}={size}" for dim, size in case_sizes[0].items())
        raise UsageError(
            f"engine {name}: no golden case has sizes inside one of its profiles, so that no reader could test it.",
            hint=f"Build it with a profile that admits {wanted}.",
        )


def _parity(judged: Judged) -> spec.Parity:
    measured = judged.measured
    results = [
        spec.Measured(
            result.case, result.output, result.rms_error, result.rms_bound, result.max_error, result.max_bound
        )
        for result in (measured.cases if measured else ())
        if result.rms_error is not None and result.max_error is not None
    ]
    ran = measured.ran if measured else None
    return spec.Parity(judged.verdict, judged.runtime, judged.graph, _line(judged.reason), tuple(results), ran)


def _fusion(table: FusionTable | None) -> spec.Fusion | None:
    if table is None:
        return None
    items = tuple(
        spec.FusionItem(
            item.attention, item.fused, None if item.kernel is None else _line(item.kernel), _line(item.reason)
        )
        for item in table.items
    )
    return spec.Fusion(table.attentions, table.fused, table.proved_by, items)


def _line(text: str) -> str:
    """Text of a runtime as one line that a reader accepts: printable and not too long."""
    printable = "".join(letter if letter.isprintable() else " " for letter in text)
    line = " ".join(printable.split())
    return line if len(line) <= MAX_TEXT else line[: MAX_TEXT - 3] + "..."


def _copy(source: Path, target: Path, sha256: str) -> None:
    """Copies a file (no hard link: the bundle must not change with the artifact) and checks the copy's digest."""
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target, follow_symlinks=False)
    if target.is_symlink() or _record(target).sha256 != sha256:
        raise IntegrityError(
            f"{source} is not the file that was written: its digest differs.",
            hint="It was changed or cut short, or another verb wrote to the folder meanwhile; run it again.",
        )


def _copy_reader(target: Path, forms: Iterable[spec.Form], tokenizer: bool, decoder: bool) -> None:
    """Copies the parts of the Python reader that the bundle can use."""
    patterns = {"*.py", "py.typed", "format/*.py", "runtimes/__init__.py"}
    for form in forms:
        if form.runtime in spec.ENGINES:
            patterns |= {f"runtimes/{name}.py" for name in ("tensorrt", "cuda", "kernels")}
            continue
        patterns.add(f"runtimes/{form.runtime}.py")
        if form.provider == "CUDAExecutionProvider":
            patterns.add("runtimes/cuda.py")
    patterns |= {"text/*.py"} if tokenizer or decoder else set()
    patterns |= {"decoding/*.py"} if decoder else set()
    reader = Path(attnport_bundle.__file__).parent
    for source in sorted(path for pattern in patterns for path in reader.glob(pattern)):
        copy = target / source.relative_to(reader)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, copy)
        (copy.parent / "__pycache__").write_text(_NO_BYTECODE)


def _copy_cpp(target: Path) -> None:
    reader = Path(__file__).parent / "cpp"
    for source in sorted(path for pattern in CPP for path in reader.glob(pattern)):
        copy = target / source.relative_to(reader)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, copy)


def _record(path: Path) -> spec.File:
    with path.open("rb") as file:
        return spec.File(path.stat().st_size, hashlib.file_digest(file, "sha256").hexdigest())
