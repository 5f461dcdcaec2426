"""Writes a bundle into an empty folder, as described in FORMAT.md. Equal inputs give equal bytes.

Its backends are forms of an artifact, or engines with the forms that they were built from; their parity and fusion
decide if they may be bundled. The commands that make a bundle come from the artifact, not from the shell that ran them.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shlex
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import attnport_bundle
from attnport.artifacts import (
    INTEGERS,
    EngineRecord,
    Form,
    FusionReport,
    FusionTable,
    IOContract,
    Manifest,
    MaskSpec,
    ParityReport,
    RuntimeParity,
    Search,
    Verdict,
    key_of,
)
from attnport.bundling import golden
from attnport.bundling.characters import character_table
from attnport.bundling.model_file import dtypes, external_files, oldest_onnxruntime
from attnport.bundling.readme import package_of, readme
from attnport.bundling.readme_cpp import readme_cpp
from attnport.decoders import decoder_of, is_declared
from attnport.errors import ArtifactError, IntegrityError, ParityFailed, UsageError, nearest, refuse_list
from attnport.example_values import without_examples
from attnport.jsonfile import read
from attnport.version import __version__
from attnport_bundle.errors import FeedError
from attnport_bundle.format import manifest as spec
from attnport_bundle.format.decoder import Decoder
from attnport_bundle.format.manifest import ENGINES, RUNTIMES, Runtime
from attnport_bundle.format.search import SEARCH
from attnport_bundle.format.strict_json import MAX_TEXT
from attnport_bundle.runtimes import OLDEST
from attnport_bundle.runtimes.tensorrt import read_header

RUNS: dict[str, tuple[Runtime, str | None]] = {
    **{runtime: (runtime, None) for runtime in RUNTIMES if runtime != "onnxruntime"},
    "ort_cpu": ("onnxruntime", "CPUExecutionProvider"),
    "ort_cuda": ("onnxruntime", "CUDAExecutionProvider"),
    "onnx": ("onnxruntime", "CPUExecutionProvider"),
    "onnx_18": ("onnxruntime", "CPUExecutionProvider"),
}
"""For each lowering target, the runtime that opens its forms or engines, and ONNX Runtime's execution provider.

A target is named as its runtime; those that are not have a line here."""

_STANDARD = ("onnx", "onnx_18")


@dataclass(frozen=True)
class Backend:
    """One entry of a bundle's order.

    Attributes:
        form: The form, or the one from which the engine was built.
        engine: The engine; None for a form.
        measured_as: Its name among the runtimes in `parity.json`; None if no runtime there opens such a form.
    """

    name: str
    form: Form
    engine: EngineRecord | None
    measured_as: str | None

    @property
    def file(self) -> str:
        """The file that the runtime opens."""
        return self.engine.file if self.engine else self.form.file

    @property
    def runtime(self) -> Runtime:
        """The runtime that opens it."""
        return RUNS[self.form.target][0]

    @property
    def provider(self) -> str | None:
        """ONNX Runtime's execution provider; None for other runtimes."""
        return RUNS[self.form.target][1]

    def copied(self, folder: Path) -> list[str]:
        """The artifact's files that go into the bundle; raises as `model_file.external_files`."""
        return [self.engine.file] if self.engine else [self.form.file, *external_files(folder, self.form.file)]

    def table(self, report: FusionReport | None) -> FusionTable | None:
        """Its fusion table; None if there is none for this file."""
        for table in report.targets.values() if report else ():
            if table.proved_by == self.engine.file if self.engine else table.file == self.form.file:
                return table
        return None


def choose_backends(folder: Path, manifest: Manifest, names: Iterable[str]) -> list[Backend]:
    """The backends of these names, in order and without duplicates.

    Args:
        names: Keys of forms and engines, or targets or forms of which there is one engine.

    Raises:
        ArtifactError: there is no such form or engine.
        UsageError: no runtime opens the form, or there are several engines of a target or a form.
    """
    backends = {backend.name: backend for backend in (_backend(folder, manifest, name) for name in names)}
    return list(backends.values())


def _made_by(key: str, folder: Path, manifest: Manifest) -> str:
    """How a form that a folder lacks is made, or which one may be meant."""
    known = (*manifest.forms, *manifest.engines)
    named_otherwise = [name for name, form in manifest.forms.items() if key in (form.file, form.plan)]
    if named_otherwise:
        return f"Is it {' or '.join(named_otherwise)}?"
    target, _, plan = key.partition(".")
    if target not in RUNS:
        return nearest(key, (*known, *RUNS))
    quoted = shlex.quote(str(folder))
    if target in ENGINES:
        of_plan = f" --precision {plan}{' --text FILE' * (plan in INTEGERS)}" if plan else ""
        return f"Build an engine with: attnport build {quoted} --target {target}{of_plan}"
    if plan in INTEGERS:
        return f"Made by attnport tune {quoted} --runtime {target} --text FILE, which keeps it if it is the fastest."
    return nearest(key, known) or f"Make it with: attnport fuse {quoted} --target {target}"


def _backend(folder: Path, manifest: Manifest, name: str) -> Backend:
    if name in manifest.engines:
        return _engine(folder, manifest, name)
    refuse_list("--form", name)
    key = key_of(name)
    engines = {each: record.form for each, record in manifest.engines.items() if key in (record.target, record.form)}
    if len(engines) == 1:
        return _engine(folder, manifest, *engines)
    if engines:
        forms = list(engines.values())
        names = [one_form if forms.count(one_form) == 1 else each for each, one_form in engines.items()]
        raise UsageError(
            f"{'target' if key in RUNS else 'form'} {key} has {len(engines)} engines.",
            hint=f"Choose: {' or '.join(f'--form {each}' for each in names)}",
        )
    form = manifest.forms.get(key)
    if form is None:
        raise ArtifactError(
            f"{folder} has no form {key!r}; it has {', '.join((*manifest.forms, *manifest.engines)) or 'none'}.",
            hint=_made_by(key, folder, manifest),
        )
    if form.target not in RUNS or form.target in ENGINES:
        raise UsageError(
            f"form {key!r} is for {form.target}; a bundle's reader opens an engine of it, not its ONNX file."
            if form.target in ENGINES
            else f"form {key!r} is for {form.target}; a bundle's reader runs {', '.join(RUNS)}.",
            hint=f"Build one with: attnport build {shlex.quote(str(folder))} --target {form.target} "
            f"--precision {form.plan}"
            if form.target in ENGINES
            else "Bundle a form for one of these targets.",
        )
    measured_as = form.target if form.plan == "fp32" else f"{form.target}.{form.plan}"
    return Backend(key, form, None, None if form.target in _STANDARD else measured_as)


def _engine(folder: Path, manifest: Manifest, name: str) -> Backend:
    record = manifest.engines[name]
    form = manifest.forms.get(record.form)
    if form is None or record.target not in ENGINES:
        raise ArtifactError(
            f"{folder}: engine {name} was built from the form {record.form!r} for {record.target}, which is not there.",
            hint=f"Build it again with: attnport build {shlex.quote(str(folder))} --target {record.target}",
        )
    alone = sum(other.target == record.target for other in manifest.engines.values()) == 1
    return Backend(name, form, record, record.target if alone else f"{record.target}.{name}")


PARITY, FUSION = "parity.json", "fusion.json"


def judge(folder: Path, manifest: Manifest, backends: Sequence[Backend], parity: ParityReport | None) -> list[Judged]:
    """The backends with their verdicts; raises as `jsonfile.read`.

    Args:
        parity: As `folder.workspace.read_parity` returns it: rows that are no longer true of the folder are NOT_RUN.
    """
    fusion = read(FusionReport, folder / FUSION) if FUSION in manifest.files else None
    judged = []
    for backend in backends:
        runtime, graph = _verdicts(manifest, parity, backend)
        verdicts = (runtime.verdict, graph.verdict)
        verdict: Verdict = "FAIL" if "FAIL" in verdicts else "PASS" if "PASS" in verdicts else "NOT_RUN"
        decided = [parity_of_backend for parity_of_backend in (runtime, graph) if parity_of_backend.verdict == verdict]
        # Where both have the verdict, the graph says the same again; why neither was run may be two things.
        told = decided if verdict == "NOT_RUN" else decided[:1]
        reason = "; ".join(dict.fromkeys(one.reason for one in told if one.reason))
        measured = decided[0] if verdict == "PASS" else None
        judged.append(Judged(backend, verdict, *verdicts, reason, measured, backend.table(fusion)))
    return judged


def gate(folder: Path, judged: Sequence[Judged], unverified: bool, hint: str = "") -> None:
    """Raises ParityFailed if one failed, or if one was not run and `unverified` is false.

    Args:
        hint: What makes a check possible that was tried and could not be made.
    """
    for backend_judged in judged:
        kind = "engine" if backend_judged.backend.engine else "form"
        if backend_judged.verdict == "FAIL":
            raise ParityFailed(
                f"{kind} {backend_judged.backend.name} failed parity: {backend_judged.reason}.",
                hint=f"It is never bundled. What is known of the cause: attnport check {shlex.quote(str(folder))}",
            )
        if backend_judged.verdict == "NOT_RUN" and not unverified:
            raise ParityFailed(
                f"{kind} {backend_judged.backend.name} has no parity verdict: {backend_judged.reason}.",
                hint=hint
                or f"Run: attnport check {shlex.quote(str(folder))}; or bundle with --unverified, which the bundle "
                "then states.",
            )


def _verdicts(manifest: Manifest, parity: ParityReport | None, backend: Backend) -> tuple[RuntimeParity, RuntimeParity]:
    """The parity of a backend on its runtime, and that of its graph."""

    def not_run(reason: str) -> RuntimeParity:
        return RuntimeParity("NOT_RUN", reason, backend.form.plan)

    if parity is None:
        return (not_run("parity was not checked"),) * 2
    unknown = "it is not in the parity report"
    key = _key(manifest, backend)
    graph = parity.forms.get(key, not_run(unknown))
    if backend.measured_as is None:
        # No runtime is for this form alone, but its graph may have been run by the runtime that will open it.
        same = graph.ran is not None and graph.ran.provider == backend.provider
        return graph if same else not_run("its graph was run by another runtime"), graph
    absent = parity.absent.get(backend.measured_as.partition(".")[0], unknown)
    return parity.runtimes.get(backend.measured_as, not_run(absent)), graph


def _key(manifest: Manifest, backend: Backend) -> str:
    return next(key for key, form in manifest.forms.items() if form == backend.form)


_OUT = "out/"


def commands(manifest: Manifest, backends: Iterable[Backend]) -> tuple[tuple[str, ...], ...]:
    """The commands that make this artifact's backends, in order, each as its arguments.

    A module in memory is exported by a program, not by a command.

    Folders are removed as in `Source.without_folders`.
    """
    source = manifest.source
    lines = [] if source.in_memory else [["export", source.without_folders, *source.options, "-o", _OUT]]
    for backend in backends:
        lines += [command for command in _of(backend) if command not in lines]
    return tuple(("attnport", *command) for command in lines)


def _of(backend: Backend) -> list[list[str]]:
    form, engine = backend.form, backend.engine
    dtype = [] if form.plan == "fp32" else ["--precision", form.plan]
    fuse = ["fuse", _OUT, "--target", form.target, *dtype]
    if engine is None:
        return [fuse]
    build = ["build", _OUT, "--target", engine.target, "--precision", engine.plan]
    for profile in engine.profiles:
        build += ["--profile", str(profile)]
    for capability in engine.sm:
        build += ["--sm", str(capability)]
    return [fuse, build]


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
    return sorted(names | _of_text(manifest))


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
    for name in sorted({name for backend in backends for name in backend.copied(folder)} | _of_text(manifest)):
        _copy(folder / name, target / name, manifest.files.get(name, ""))
    tokenizer = _tokenizer_files(target, manifest.tokenizer)
    if manifest.search not in (None, Search()):
        (target / SEARCH).write_text(json.dumps(dataclasses.asdict(manifest.search), indent=1) + "\n", encoding="utf-8")
    golden.write(target / GOLDENS, goldens.arrays)
    _copy_reader(target / PACKAGE, bundled.values(), tokenizer is not None, contract.decoder is not None)
    packages = [package_of(form.runtime, form.provider) for form in bundled.values()]
    prompts, limit = manifest.prompts, manifest.text_limit
    plans = {name: form.plan for name, form in bundled.items()}
    page = readme(manifest.name, contract, manifest.tokenizer, target, packages, cpp, prompts, limit, plans)
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


def _of_text(manifest: Manifest) -> set[str]:
    """The files by which a model reads text."""
    chat = {spec.CHAT} & manifest.files.keys()
    return chat | ({manifest.tokenizer} if manifest.tokenizer else set())


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
        source=manifest.source.without_folders,
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
        # A case without a bound was not judged, and its errors may be over what stands for one.
        if result.verdict == "PASS" and result.rms_error is not None and result.max_error is not None
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
            patterns |= {f"runtimes/{name}.py" for name in ("tensorrt", "cuda", "kernels", "dlpack")}
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
