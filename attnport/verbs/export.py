"""`attnport export`: exports a module to an artifact folder, checks its dims, and stores golden outputs in float64."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from attnport.artifacts import FORMAT, IOContract, Manifest, ModelSpec, Session, Source
from attnport.cases.inputs import Case, full_case
from attnport.errors import AttnportError, ExportError
from attnport.folder.loading import load, without_outputs
from attnport.folder.machine import versions
from attnport.folder.refusals import refuse_stranger
from attnport.folder.trust import remember
from attnport.folder.workspace import change, fresh, open_if_there, toolchain
from attnport.jsonfile import digest_text, to_json
from attnport.parity.bound import Errors, Yardstick, judge, measure_all, within_rounding
from attnport.parity.golden import write_golden
from attnport.runtimes import base
from attnport.runtimes.base import Opening
from attnport.sources.code import code_of, runs_code
from attnport.version import __version__

if TYPE_CHECKING:
    from attnport.exporter.capture import Capture

STAGE = "export"
MODEL, WEIGHTS, GOLDEN = "model.onnx", "weights.bin", "golden.npz"
_PACKAGES = ("torch", "onnx", "onnx_ir", "onnxscript", "onnxruntime", "openvino", "transformers", "numpy")
_CHECKERS = ("ort_cpu", "onnx_reference")


def export(
    text: str,
    folder: Path,
    *,
    inputs: Sequence[str] = (),
    dims: Sequence[str] = (),
    with_weights: bool = False,
    trust_remote_code: bool = False,
    force: bool = False,
    progress: Callable[[str], None] = lambda message: None,
    tell: Callable[[str], None] = lambda message: None,
) -> Manifest:
    """Exports a SPEC into `folder`; an earlier export there is replaced all at once.

    The code that was run to load it is recorded for this user; later verbs run no other code (see `trust`).

    Args:
        text: The SPEC.
        inputs: `--input` declarations, for factories that return a plain module.
        dims: `--dim` declarations.
        with_weights: Keep outputs that are attention weights, which can reveal what the model reads. By default the
            module is exported without them.
        trust_remote_code: For `hf:`, run the Python code that the model's `config.json` names instead of that of
            transformers; it may be in another repository.
        force: Export even if nothing has changed.
        tell: Called with a line if outputs were left out.

    Raises:
        UsageError: the folder has other files and is not an artifact.
        SpecError: there is no such module, or it does not load.
        ExportError: torch cannot export the module, a dim froze, the graph computes something else, or every output is
            attention weights.
    """
    began_s = time.monotonic()
    refuse_stranger(folder)
    code = code_of(Source(text)) if runs_code(Source(text)) else None
    progress(f"loading {text}")
    spec = load(text, inputs=inputs, dims=dims, trust_remote_code=trust_remote_code)
    declared = spec.io.outputs
    digest = digest_text(
        toolchain("torch", "onnx", "onnxscript", "transformers"),
        to_json(spec.source),
        to_json(spec.io),
        "with weights" if with_weights else "without weights",
    )
    earlier = open_if_there(folder)
    if earlier is None or force or not fresh(folder, earlier, STAGE, digest):
        progress("tracing the module")
        spec, captured = _capture(spec, with_weights)
        earlier = _export(spec, captured, folder, digest, progress, began_s)
    if code is not None:
        remember(code)
    kept = {output.name for output in earlier.io.outputs}
    hidden = [output.name for output in declared if output.name not in kept]
    if hidden:
        tell(f"outputs that are attention weights were left out (--with-weights keeps them): {', '.join(hidden)}")
    return earlier


def _capture(spec: ModelSpec, with_weights: bool) -> tuple[ModelSpec, Capture]:
    """The module and its graph; without `with_weights`, both have no outputs that are attention weights."""
    from attnport.exporter.capture import capture
    from attnport.exporter.weights_out import leave_out, weights_out

    captured = capture(spec.make(), spec.io)
    hidden = () if with_weights else weights_out(captured.model)
    if not hidden:
        return spec, captured
    if len(hidden) == len(spec.io.outputs):
        raise ExportError(
            f"every output of the module is attention weights: {', '.join(hidden)}.",
            hint="They can reveal what the model reads; if that is wanted, export with --with-weights.",
        )
    leave_out(captured.model, hidden)
    return without_outputs(spec, hidden), captured


def _export(
    spec: ModelSpec, captured: Capture, folder: Path, digest: str, progress: Callable[[str], None], began_s: float
) -> Manifest:
    from attnport.exporter import storage
    from attnport.exporter.capture import OPSET

    with change(folder) as changing:
        changing.began(began_s)
        for name in tuple(changing.manifest.files) if changing.manifest else ():
            changing.remove(name)  # forms, engines and reports of the earlier module are no longer valid
        storage.save_exported(captured.model, changing.path(MODEL), WEIGHTS)
        with _sessions(spec) as (reference, eager):
            _check_dims(spec.io, changing.path(MODEL), reference, eager, progress)
        progress("golden outputs in float64")
        write_golden(spec, changing.path(GOLDEN))
        if spec.tokenizer is not None:
            changing.path("tokenizer.json").write_bytes(spec.tokenizer.read_bytes())
        changing.manifest = Manifest(
            format=FORMAT,
            attnport=__version__,
            name=spec.name,
            source=spec.source,
            io=spec.io,
            opset=OPSET,
            attentions=captured.attentions,
            tokenizer="tokenizer.json" if spec.tokenizer is not None else None,
            versions=versions(_PACKAGES),
            files={},
        )
        return changing.finish(STAGE, digest)


@contextmanager
def _sessions(spec: ModelSpec) -> Iterator[tuple[Session, Session]]:
    """The unchanged module in float64 as the reference, and in float32 as the measure of error."""
    torch_eager = base.get("torch_eager")
    reference = torch_eager.open(Opening(spec.io, spec=spec, float64=True))
    eager = torch_eager.open(Opening(spec.io, spec=spec))
    try:
        yield reference, eager
    finally:
        reference.close()
        eager.close()


def size_cases(io: IOContract) -> list[tuple[str | None, Case]]:
    """The sizes at which an export is checked, each with the dim that it varies.

    These are a base of primes, other primes, and for each dim its smallest and its largest size. With the largest size
    of a dim, the others are small, as all largest sizes together would take too long.
    """
    from attnport.exporter.capture import example_sizes

    start = example_sizes(io)
    primes = {dim.name: max(min(prime, dim.max), dim.min) for dim, prime in zip(io.dims, (2, 13, 17, 19), strict=False)}
    small = {dim.name: max(min(2, dim.max), dim.min) for dim in io.dims}
    plans: list[tuple[str | None, Mapping[str, int]]] = [(None, start)]
    plans += [(dim.name, {**start, dim.name: size}) for dim in io.dims for size in (dim.min, primes[dim.name])]
    # These change several dims, so they come after those that change only one and therefore name the right dim.
    plans += [(dim.name, {**small, dim.name: dim.max}) for dim in io.dims]
    plans.append((None, primes))  # last, as it does not show which dim froze
    unique: dict[tuple[tuple[str, int], ...], tuple[str | None, Mapping[str, int]]] = {}
    for tried, sizes in plans:
        unique.setdefault(tuple(sizes.items()), (tried, sizes))
    return [(tried, full_case(io, sizes)) for tried, sizes in unique.values()]


def _check_dims(
    io: IOContract, model: Path, reference: Session, eager: Session, progress: Callable[[str], None]
) -> None:
    """Runs the exported graph at every size of `size_cases` against the module.

    What rounding might explain is not refused here: `check` judges it.

    Raises:
        ExportError: the graph fails or differs; names the dim and the inputs that have it.
    """
    tried = size_cases(io)
    checker, session = _checker(io, model, tried[0][1])
    with contextlib.closing(session):
        for number, (dim, case) in enumerate(tried, start=1):
            progress(f"checking sizes {number}/{len(tried)}: {case.name}")
            got, expected = _outputs(session, case), reference.run(case.feeds)
            by = Yardstick("fp32", {case.name: measure_all(eager.run(case.feeds), expected, case, io)})
            problem = got if isinstance(got, str) else _problem(case, measure_all(got, expected, case, io), by)
            if problem:
                having = ", ".join(repr(spec.name) for spec in io.inputs if dim in spec.dims)
                where = f"dim {dim!r} of input {having} froze" if dim else "the exported graph is not the module"
                raise ExportError(
                    f"{where}: at {case.name} {checker} gives {problem}.",
                    hint="Look for sizes that the code turns into Python numbers or constants." if dim else "",
                )


def _checker(io: IOContract, model: Path, case: Case) -> tuple[str, Session]:
    """The first runtime that runs the exported graph; ONNX Runtime refuses some masks that the standard broadcasts."""
    problems = []
    for name in _CHECKERS:
        runtime = base.get(name)
        if not runtime.probe().available:
            continue
        try:
            session = runtime.open(Opening(io, model=model))
        except AttnportError as err:
            problems.append(f"{name}: {err.message}")
            continue
        got = _outputs(session, case)
        if not isinstance(got, str):
            return name, session
        problems.append(f"{name}: {got}")
        session.close()
    raise ExportError(f"the exported graph runs nowhere, at {case.name}: {'; '.join(problems)}")


def _outputs(session: Session, case: Case) -> dict[str, np.ndarray[Any, Any]] | str:
    """The outputs of a case, or why there are none."""
    try:
        return session.run(case.feeds)
    except AttnportError as err:
        return err.message


def _problem(case: Case, errors: Mapping[str, Errors], by: Yardstick) -> str:
    results = [judge(case.name, output, error, by) for output, error in errors.items()]
    wrong = [result for result in results if result.verdict == "FAIL" and not within_rounding(result)]
    return "; ".join(f"{result.output}: {result.reason}" for result in wrong)
