"""`attnport export`: exports a module to an artifact folder, checks its dims, and stores golden outputs in float64."""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np

from attnport.artifacts import FORMAT, UNKNOWN_SIZE, IOContract, Manifest, ModelSpec, Session
from attnport.cases.choosing import needed_tokenizer
from attnport.cases.inputs import Case, full_case
from attnport.dims import Dim
from attnport.errors import AttnportError, ExportError, FeedError, UsageError
from attnport.folder.given import Given, listed
from attnport.folder.loading import note_read, remember, without_outputs
from attnport.folder.machine import versions
from attnport.folder.workspace import Change, create, fresh, open_folder, open_if_there, refuse_stranger, toolchain
from attnport.jsonfile import digest_file, digest_text, to_json
from attnport.latency.workloads import parse_grid
from attnport.options import TYPED, Force, Option, Output, Progress, ReadMemory, ReadTimeout, Tell, advised, typed
from attnport.parity.golden import FILE as GOLDEN
from attnport.parity.golden import write_golden
from attnport.parity.metrics import without_fills
from attnport.parity.sizes import check_dims, size_cases
from attnport.patches import alone
from attnport.runtimes import base
from attnport.runtimes.base import Opening
from attnport.sources.code import code_of
from attnport.sources.digests import TOOLCHAIN
from attnport.sources.memory import hold_as
from attnport.sources.onnx_file import files_of, input_names, is_onnx, output_names, read
from attnport.sources.package import hub_id
from attnport.sources.parsing import called_a_mask, parse_dims, polarity_of
from attnport.sources.program import CODE, program_module
from attnport.sources.program import WEIGHTS as STORED_WEIGHTS
from attnport.transaction import undo_unfinished
from attnport.user_code import ONE_PART
from attnport.verbs._arguments import verb_of_fields
from attnport.verbs._confined import Told, carry_out, confined
from attnport.version import __version__
from attnport_bundle.feeds import padding_masks
from attnport_bundle.format.manifest import CHAT

if TYPE_CHECKING:
    from attnport.exporter.capture import Capture, Trace

STAGE = "export"
MODEL, WEIGHTS = "model.onnx", "weights.bin"
_LARGE_BYTES = 1 << 26


@dataclass(frozen=True)
class How:
    """The arguments of `export` that do not say what the model is."""

    with_weights: Annotated[
        bool, Option("Keep outputs that are attention weights, which can reveal what the model reads.")
    ] = False
    force: Force = False
    timeout_s: ReadTimeout = None
    memory_gib: ReadMemory = None


@verb_of_fields
def export(
    given: Given,
    folder: Output,
    how: How,
    *,
    progress: Progress = lambda message: None,
    tell: Tell = lambda message: None,
) -> Manifest:
    """Exports a model into `folder`; an earlier export there is replaced all at once.

    The code that was run to load it is recorded for this user; later verbs run no other code. A file of ONNX is read
    and computed in a process of its own, with limits of time and memory.

    Raises:
        UsageError: the folder has other files and is not an artifact; or a file of ONNX exceeds a limit.
        SpecError: there is no such module, or it does not load.
        ExportError: torch cannot export the module, a dim froze, the graph computes something else, or every output is
            attention weights.
    """
    return exported(given, folder, how, progress=progress, tell=tell)[0]


@contextlib.contextmanager
def _by_itself() -> Iterator[None]:
    """One export at a time in a process, for which Python's collector looks more rarely.

    Python 3.11 cannot parse code in two threads at once (https://github.com/python/cpython/issues/106905), as
    torch.onnx does. Imports and a trace make millions of objects that stay; looking at them again and again takes up to
    a quarter of the time.
    """
    with alone():
        thresholds = gc.get_threshold()
        try:
            gc.set_threshold(50_000, 20, 100)
            yield
        finally:
            gc.set_threshold(*thresholds)


@contextlib.contextmanager
def _telling_of_parts() -> Iterator[None]:
    """Says of an export that fails where splits of a size were taken as one part: a recurrence needs its parts."""
    places: list[str] = []
    before = ONE_PART.set(places)
    try:
        yield
    except ExportError as err:
        if places:
            own = (
                f"What is split is one part in the graph{places[0]}: if each part needs the one before it, as in a "
                f"recurrence, declare one size of that dim, as in {advised('dims', [Dim('seq', 64, 64, 64)])}."
            )
            err.hint = f"{err.hint} {own}".strip()
        raise
    finally:
        ONE_PART.reset(before)


def exported(
    given: Given,
    folder: Path,
    how: How,
    *,
    needs_text: bool = False,
    shapes: Sequence[str] = (),
    progress: Callable[[str], None] = lambda message: None,
    tell: Callable[[str], None] = lambda message: None,
) -> tuple[Manifest, ModelSpec | None]:
    """As `export`; also returns the model, unless another process made it.

    Later verbs use a module in memory while somebody in this process holds it, and its stored program otherwise.

    Args:
        needs_text: Refuse a model without a tokenizer before it is traced, which takes the longest.
        shapes: Grids of sizes, as of `bench`: those that the model does not take are refused then too.
    """
    if (text := given.file_of_onnx) is None:
        for option, value in (("timeout", how.timeout_s), ("memory", how.memory_gib)):
            if value is not None:
                raise UsageError(f"{given.name} is no onnx: file, so --{option} does not apply.", hint="Leave it out.")
        return exported_here(given, folder, how, needs_text=needs_text, shapes=shapes, progress=progress, tell=tell)
    given.check_declarations()
    refuse_stranger(folder)
    try:
        confined(
            *("export", text, files_of(text), how.timeout_s, how.memory_gib, {"progress": progress, "tell": tell}),
            given=given.as_json(),
            folder=str(folder),
            how=asdict(how),
            needs_text=needs_text,
            shapes=list(shapes),
            typed=TYPED.get(),
        )
    finally:
        if folder.is_dir():
            undo_unfinished(folder)  # what a process that was killed has left
    return open_folder(folder), None


@_by_itself()
@_telling_of_parts()
def exported_here(
    given: Given,
    folder: Path,
    how: How,
    *,
    needs_text: bool = False,
    shapes: Sequence[str] = (),
    progress: Callable[[str], None] = lambda message: None,
    tell: Callable[[str], None] = lambda message: None,
) -> tuple[Manifest, ModelSpec]:
    """As `exported`, in this process and without limits."""
    began_s = time.monotonic()
    tell = cache(tell)  # what a second trace finds too is told once
    given.check_declarations()
    refuse_stranger(folder)
    code = given.code()
    if place := hub_id(given.name):
        tell(f"there is no folder {place} here, so {place} is looked for on the hub")
    progress(f"loading {given.name}")
    whole = spec = given.spec(progress)
    _refuse(spec, needs_text, shapes)
    for note in spec.notes:
        tell(note)
    declared = spec.io.outputs
    digest = digest_text(
        toolchain(*TOOLCHAIN),
        to_json(spec.source),
        to_json(spec.io),
        "with weights" if how.with_weights else "without weights",
    )
    there = open_if_there(folder)
    if there is not None and there.source.text != spec.source.text:
        tell(f"{folder} held {there.name}, of {there.source.text}: it is replaced")
    manifest = earlier = there if there and not how.force and fresh(folder, there, STAGE, digest) else None
    # What a module in memory computes with besides weights and files, such as its attributes, its graph alone tells.
    if manifest is None or spec.source.in_memory:
        make = partial(_made, folder, digest, how.with_weights, progress, began_s, tell, earlier)
        manifest, whole = _made_or_fixed(make, given, spec, progress, tell)
    if manifest is earlier:
        for note in manifest.notes:
            if note not in spec.notes:
                tell(note)
    if manifest.source.in_memory:
        whole = hold_as(whole, manifest.source)
        code = code_of(open_folder(folder).source)  # the program that was written: open_folder makes it known
    if code is not None:
        remember(code)
    note_read(manifest.source, spec.read)
    for note in _undeclared(spec.io):
        tell(note)
    kept = {output.name for output in manifest.io.outputs}
    hidden = [output.name for output in declared if output.name not in kept]
    if hidden:
        tell(f"outputs that are attention weights were left out (--with-weights keeps them): {', '.join(hidden)}")
    return manifest, whole


def _refuse(spec: ModelSpec, needs_text: bool, shapes: Sequence[str]) -> None:
    """Raises UsageError, ProfileError for what the model does not take."""
    if needs_text:
        needed_tokenizer(spec.source.text, spec.tokenizer)
    for shape in shapes:
        parse_grid(shape, spec.io.dims)


def _undeclared(io: IOContract) -> Iterator[str]:
    """What is said of inputs that are tried less than they may be, as nobody says what they hold."""
    masks = {mask.input for mask in io.masks}
    free = [one for one in io.inputs if one.name not in masks and one.name not in io.examples]
    rest = []
    for one in free:
        batch, *between, keys = one.dims if len(one.dims) > 1 else (0, 0)
        of_padding = isinstance(keys, str) and keys != batch and set(between) <= {1}
        if one.high or not of_padding or not (called_a_mask(one.name) or (one.dtype == "bool" and not between)):
            rest.append(one)
            continue
        true = "true" if one.dtype == "bool" else "1"
        ways = {"keep": f"{true} is a real token", "hide": f"{true} is padding"}
        ways |= {"additive": "it is added to scores"} if "float" in one.dtype else {}
        usual = polarity_of(one.name) or "keep"
        others = [f", or {one}:padding:{way} where {means}" for way, means in ways.items() if way != usual]
        yield (
            f"{one} is not declared as a mask, so that no test has padding in it: if it is a mask of padding, declare "
            f"{one}:padding where {ways[usual]}{''.join(others)}"
        )
    if untold := [str(one) for one in rest if one.dtype in ("int32", "int64") and not one.high]:
        yield (
            f"no :high=N says which whole numbers {', '.join(untold)} may have, so 0 and 1 alone are tried; declare "
            f"{untold[0]}:high=N if they are ids, :padding if it is a mask of padding, where 1 stands for a real token"
        )


def _made_or_fixed(
    make: Callable[[ModelSpec], Manifest],
    given: Given,
    spec: ModelSpec,
    progress: Callable[[str], None],
    tell: Callable[[str], None],
) -> tuple[Manifest, ModelSpec]:
    """Exports a model; if dims of `spec.fixable` froze, again with these limited to the sizes that are right, or fixed.
    Where there are none, as in a module of the user's, the error is raised.
    """
    try:
        return make(spec), spec
    except ExportError as err:
        # What froze is not always known. An item by itself is the last thing to give up.
        fixed = [dim for dim in spec.fixable if (dim.name in err.dims if err.dims else dim.name != "batch")]
        free = {dim.name for dim in spec.io.dims} - {*parse_dims(listed(given.dims)), "batch"}
        free |= {dim.name for dim in fixed}
        # A limit keeps the example's size. Without an example it leaves out a size of 1 alone, as nothing says which
        # side of a branch is wanted; or, if no dim froze, the sizes at which the module returns nothing.
        kept = {dim.name: tuple(map(dim.at_least, (2, 3, dim.max) if err.dims else (dim.max,))) for dim in spec.io.dims}
        kept |= {dim.name: (dim.opt,) for dim in fixed} | {name: (size,) for name, size in spec.seen.items()}
        chosen: Sequence[Dim] = next(
            (part for part in err.one_way if all(dim.name in free for dim in part)
             and all(dim.takes(size) for dim in part for size in kept[dim.name])), fixed)  # fmt: skip
        if not chosen:
            raise
        narrow = replace(given, dims=(*listed(given.dims), *map(str, chosen)))
        progress("tracing the module with " + ", ".join(map(str, chosen)))
        try:
            made = _made_or_fixed(make, narrow, narrow.spec(progress), progress, tell)
        except UsageError:
            if not fixed:
                raise
            raise err from None  # of the errors, the first is the one that says what froze
        one = all(dim.min == dim.max for dim in chosen)
        sizes = ", ".join(f"{dim.name} to {dim.max if one or dim.min == 1 else dim.span}" for dim in chosen)
        how = "right at one size alone, and fixed" if one else "not right at every size, and limited"
        tell(f"the graph is {how} {sizes} (--dim chooses another): {err.message}")
        return made


def _capture(spec: ModelSpec, with_weights: bool) -> tuple[ModelSpec, ModelSpec, Capture]:
    """The model, the model with the one module that was traced, and its graph.

    Without `with_weights`, none of them has outputs that are attention weights.
    """
    from attnport.exporter.capture import capture
    from attnport.exporter.imported import imported
    from attnport.exporter.weights_out import leave_out, weights_out

    module = spec.make()
    if is_onnx(spec.source.text):
        graph = read(spec.source.text).model
        captured = imported(graph, input_names(graph), output_names(graph), spec.io)
    else:
        captured = capture(module, spec.io, observed=spec.observed)
    spec = replace(spec, io=replace(spec.io, outputs=captured.outputs))
    traced = replace(spec, make=lambda: module)
    hidden = () if with_weights else weights_out(captured.model)
    if not hidden:
        return spec, traced, captured
    if len(hidden) == len(spec.io.outputs):
        raise ExportError(
            f"every output of the module is attention weights: {', '.join(hidden)}.",
            hint="They can reveal what the model reads; if that is wanted, export with --with-weights.",
        )
    leave_out(captured.model, hidden)
    if captured.trace is not None:
        captured = replace(captured, trace=captured.trace.without(hidden, captured.outputs))
    traced = without_outputs(traced, hidden)
    return without_outputs(spec, hidden), replace(traced, make=cache(traced.make)), captured


def _made(
    folder: Path,
    digest: str,
    with_weights: bool,
    progress: Callable[[str], None],
    began_s: float,
    tell: Callable[[str], None],
    earlier: Manifest | None,
    spec: ModelSpec,
) -> Manifest:
    """Exports a model. `earlier`, which is of the same source, stays if the graph is the same too."""
    from attnport.exporter import storage
    from attnport.exporter.capture import OPSET
    from attnport.exporter.naming import note_own_half

    notes = list(spec.notes)

    def note(message: str) -> None:
        notes.append(message)
        tell(message)

    progress("tracing the module")
    spec, traced, captured = _capture(spec, with_weights)
    manifest = Manifest(
        format=FORMAT,
        attnport=__version__,
        name=spec.name,
        source=spec.source,
        io=spec.io,
        opset=OPSET,
        attentions=captured.attentions,
        tokenizer="tokenizer.json" if spec.tokenizer is not None else None,
        versions=versions([*TOOLCHAIN, *base.distributions(base.names())]),
        files={},
        prompts=spec.prompts,
        text_limit=spec.text_limit,
        search=spec.search,
        depends=spec.depends,
    )
    with create(folder, manifest, began_s) as changing:
        note_own_half(captured.model)
        storage.save_exported(captured.model, changing.path(MODEL), WEIGHTS)
        if spec.source.in_memory:
            files = (path for path in map(changing.path, (MODEL, WEIGHTS)) if path.is_file())
            source = replace(spec.source, graph_digest=digest_text(*map(digest_file, files)))
            if earlier is not None and earlier.source == source:
                return earlier  # without `finish`, nothing is changed
            changing.manifest = replace(changing.manifest, source=source)
        guards, decided, trace = captured.guards, captured.decided, captured.trace
        if captured.written:
            note(
                f"the module writes to {' and '.join(captured.written)}, and a graph keeps nothing: each call begins "
                "with what such a buffer holds now. To keep it from call to call, take it as an input and return it"
            )
        if unknown := [str(output) for output in spec.io.outputs if UNKNOWN_SIZE in output.dims]:
            why = f"depends on values{captured.reads}" if captured.reads else "is no expression of dims"
            note(f"the contract has ? for a size of {' and '.join(unknown)}, which {why}: only a call tells it")
        for place in decided:
            note(f"the graph has one of two ways {place}")
        if left := sorted({node.op_type for node in captured.model.graph if node.domain}):
            note(f"{', '.join(left)}: left as they are, so that only runtimes that have them run the graph")
        del captured  # the graph holds the module's weights
        model = changing.path(MODEL)
        size_bytes = sum(path.stat().st_size for path in (model, model.with_name(WEIGHTS)) if path.is_file())
        _collect(size_bytes)
        reference, eager = _Opened(traced, float64=True), _Opened(traced)
        with contextlib.closing(reference), contextlib.closing(eager):
            departs = partial(_departs, model, manifest, eager.run)
            runs = reference.run, eager.run
            check_dims(spec.io, guards, model, *runs, progress, _moved(traced), note, decided, departs)
            for name in _ignored_masks(spec.io, eager.run):
                note(f"no output depends on the padding mask {name!r}: padding beside an item changes its answers")
            if spec.source.in_memory and trace is not None:
                progress("storing the module")
                _store(spec, trace, changing, reference, note)
        del trace, traced, reference, eager  # they hold the module; golden outputs are those of one made anew
        _collect(size_bytes)
        progress("golden outputs in float64")
        write_golden(spec, changing.path(GOLDEN))
        if spec.tokenizer is not None:
            text = spec.tokenizer.read_bytes() if isinstance(spec.tokenizer, Path) else spec.tokenizer.encode()
            changing.path("tokenizer.json").write_bytes(text)
        if spec.chat is not None:
            changing.path(CHAT).write_text(spec.chat, encoding="utf-8")
        changing.manifest = replace(changing.manifest, notes=tuple(notes))
        return changing.finish(STAGE, digest)


def _departs(model: Path, manifest: Manifest, eager: Callable[[Mapping[str, Any]], object], case: Case) -> str:
    from attnport.parity.departing import departure

    return departure(model, manifest, case, eager)


def _collect(size_bytes: int) -> None:
    """Has weights freed that nothing but circles of objects holds; with PyTorch loaded, it takes as long as a trace."""
    if size_bytes > _LARGE_BYTES:
        gc.collect()


def _store(spec: ModelSpec, trace: Trace, changing: Change, reference: _Opened, tell: Callable[[str], None]) -> None:
    """Writes a module in memory as a program with its weights, for other processes; says so if that is not possible."""
    from attnport.exporter.program import write_program

    try:
        program = write_program(spec.name, spec.make(), trace)
        path, weights = changing.path(CODE), changing.path(STORED_WEIGHTS)
        path.write_text(program.text, encoding="utf-8")
        arrays: Any = program.arrays
        np.savez(weights, **arrays)
        written = replace(spec, make=lambda: program_module(path, weights))
        case = size_cases(spec.io)[-1][1]
        with contextlib.closing(base.get("torch_eager").open(Opening(spec.io, spec=written, float64=True))) as session:
            got, expected = session.run(case.feeds), reference.run(case.feeds)
        for name in expected:
            own, array = without_fills(got[name], expected[name])
            largest = float(np.abs(array[np.isfinite(array)]).max(initial=0.0))
            # The module gives NaN for rows without a key, as with a mask of the opposite meaning.
            if not np.allclose(own, array, rtol=1e-6, atol=1e-6 * largest, equal_nan=True):
                raise ExportError(f"the module cannot be written as a program: its {name} differs from the module's.")
    except AttnportError as err:
        for name in (CODE, STORED_WEIGHTS):
            changing.remove(name)
        tell(
            f"{err.message} Other processes, such as those of bench, cannot run it; check there needs the module again."
        )


def _moved(spec: ModelSpec) -> Callable[[int], Session]:
    """The unchanged module in float32 with weights and inputs moved by one rounding, by the seed of what is drawn."""
    return lambda seed: base.get("torch_eager").open(Opening(spec.io, spec=spec, nudged=seed))


def _ignored_masks(io: IOContract, run: Callable[[Mapping[str, Any]], Mapping[str, Any]]) -> list[str]:
    """The padding masks that change no bit of any output, wherever they hide half of the positions."""
    small = {dim.name: dim.at_least(4) for dim in io.dims}
    ignored = []
    for mask in io.padding_masks():
        try:
            feeds = dict(full_case(io, small).feeds)
            _, size = feeds[str(mask.input)].shape
            lengths = [size // 2] * len(feeds[str(mask.input)])
            half = [padding_masks(io, lengths, size, left=left) for left in (True, False)]
        except (FeedError, ValueError):  # a mask of another kind
            continue
        whole = run(feeds)
        hidden = [run({**feeds, str(mask.input): masks[str(mask.input)]}) for masks in half] if size > 1 else []
        same = [np.array_equal(whole[name], other[name]) for other in hidden for name in whole]
        if same and all(same):
            ignored.append(str(mask.input))
    return ignored


class _Opened:
    """The unchanged module, opened when it is first run: the reference in float64 is seldom asked."""

    def __init__(self, spec: ModelSpec, *, float64: bool = False) -> None:
        self._opening = Opening(spec.io, spec=spec, float64=float64, ordered=True)
        self._session: Session | None = None

    def run(self, feeds: Mapping[str, np.ndarray[Any, Any]]) -> dict[str, np.ndarray[Any, Any]]:
        """As of any session."""
        if self._session is None:
            self._session = base.get("torch_eager").open(self._opening)
        return self._session.run(feeds)

    def close(self) -> None:
        """Frees the module."""
        if self._session is not None:
            self._session.close()
        self._session = None


def _carry_out(message: Mapping[str, Any], listeners: Mapping[str, Told]) -> dict[str, Any]:
    progress, tell = listeners["progress"], listeners["tell"]
    given, folder = Given(**message["given"]), Path(message["folder"])
    with typed() if message["typed"] else contextlib.nullcontext():
        how, asked = How(**message["how"]), {name: message[name] for name in ("needs_text", "shapes")}
        exported_here(given, folder, how, **asked, progress=progress, tell=tell)
    return {}


if __name__ == "__main__":
    carry_out(_carry_out)
