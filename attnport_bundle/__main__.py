"""The command line: `python -m attnport_bundle selftest` checks the bundle, `bench` times it, `warm` compiles ahead.

`serve` answers requests.

Exit codes (see errors.py): 0 success, 2 not a bundle or wrong usage, 3 no runtime, 4 wrong numbers, 6 a file differs.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median, quantiles
from typing import TYPE_CHECKING, Any

from . import feeds as feeding
from .arguments import integer, mapping, number
from .errors import BundleError, FeedError, RuntimeMissing
from .format.contract import IO
from .model import HERE, Model, load, selftest

if TYPE_CHECKING:
    import numpy as np

Verb = Callable[[argparse.Namespace], int]
WINDOW = 5
"""Calls in a window; the median of each window is compared with that of the window before."""
AGREE = 0.05
MOST_SECONDS = 3600.0
P90_SAMPLES = 20
"""The fewest samples from which a 90th percentile is computed."""


def main(arguments: list[str] | None = None) -> int:
    """Runs the command line and returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m attnport_bundle", description="Checks this bundle, or times it.")
    verbs = parser.add_subparsers(dest="verb", required=True)
    test = _verb(verbs, "selftest", _selftest, "compare every file and run the golden cases")
    test.add_argument("--key", type=Path, help="public key (PEM, from outside) that the bundle must be signed with")
    timed = _verb(verbs, "bench", _bench, "time one shape")
    timed.add_argument("--shape", type=_shape, default={}, metavar="batch=8,seq=128", help="default: the usual sizes")
    timed.add_argument("--seconds", type=float, default=2.0, help="how long samples are taken (default: 2)")
    timed.add_argument("--form", help="which form (default: the first that can be opened)")
    about = "compile and keep what a TensorRT-RTX engine needs on this device, so that no request waits for it"
    ready = _verb(verbs, "warm", _warm, about)
    ready.add_argument(
        "--shape", type=_shape, action="append", default=[], metavar="batch=8,seq=128",
        help="sizes to run beside the usual ones of each profile; several allowed",
    )  # fmt: skip
    ready.add_argument("--form", help="which form (default: the first that can be opened)")
    ready.add_argument(
        "--cache", type=Path, help="where to keep it (default: $ATTNPORT_CACHE, or the user's own folder)"
    )
    _serve_arguments(verbs)
    options = parser.parse_args(arguments)
    try:
        return int(options.run(options))
    except BundleError as err:
        print(f"error: {err}", *[f"hint: {err.hint}"] * bool(err.hint), sep="\n", file=sys.stderr)
        return err.exit_code


def _verb(verbs: Any, name: str, run: Verb, description: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = verbs.add_parser(name, help=description, description=description)
    parser.set_defaults(run=run)
    parser.add_argument("folder", nargs="?", type=Path, default=HERE, help="another bundle (default: this one)")
    parser.add_argument("--threads", type=int, help="compute threads (default: the runtime's own choice)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def _serve_arguments(verbs: Any) -> None:
    about = "answer requests over the open inference protocol"
    parser = verbs.add_parser("serve", help=about, description=f"{about}, until SIGTERM or Ctrl-C")
    try:
        from .serve import add_arguments
    except ModuleNotFoundError:  # of a copy in a bundle
        parser.set_defaults(run=_no_serving)
        parser.add_argument("rest", nargs="*", help=argparse.SUPPRESS)
        return
    parser.set_defaults(run=_serve)
    add_arguments(parser)


def _shape(text: str) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for part in text.split(","):
        name, _, size = part.partition("=")
        if not (size.isascii() and size.isdigit() and len(size) < 16) or name in sizes:
            raise argparse.ArgumentTypeError(f"got {text!r}; expected one size a dim, as in batch=8,seq=128")
        sizes[name] = int(size)
    return sizes


def _serve(options: argparse.Namespace) -> int:
    from . import serve

    folder = HERE if options.folder is None and not options.model else options.folder
    served = serve.named(options.model, folder)
    tell = partial(print, file=sys.stderr, flush=True)
    chosen = serve.Options(**{each.name: getattr(options, each.name) for each in dataclasses.fields(serve.Options)})
    serve.serve(served, options.engine, chosen, options.key, tell)
    return 0


def _no_serving(options: argparse.Namespace) -> int:
    raise RuntimeMissing("bundles are served by the installed reader, attnport-bundle, as in: attnport serve.")


def _selftest(options: argparse.Namespace) -> int:
    report = selftest(options.folder, options.threads, options.key)
    if options.json:
        print(json.dumps(dataclasses.asdict(report), indent=1))
        return report.exit_code
    width = max(len(row.check) for row in report.rows)
    for row in report.rows:
        print(f"{row.check:<{width}}  {row.verdict:<7}  {row.detail}")
    if report.unverified:
        print("This bundle is UNVERIFIED: a form in it was not compared with its source when it was made.")
    print("OK" if report.exit_code == 0 else f"NOT OK (exit {report.exit_code})")
    return report.exit_code


def _bench(options: argparse.Namespace) -> int:
    start = time.perf_counter_ns()
    with load(options.folder, form=options.form, threads=options.threads) as model:
        load_ns = time.perf_counter_ns() - start
        report = bench(model, options.shape, options.seconds)
    if options.json:
        print(json.dumps({"load_ns": load_ns, "threads": options.threads, **dataclasses.asdict(report)}, indent=1))
        return 0
    settled = "settled" if report.settled else "NOT settled: medians still differ by more than 5 %"
    rows = {
        "form": report.form,
        "runtime": f"{report.runtime} {report.version}, {report.provider}",
        "threads": "the runtime's own choice" if options.threads is None else str(options.threads),
        "shape": ", ".join(f"{name}={size}" for name, size in report.sizes.items()),
        "load": f"{_milliseconds(load_ns)}, files compared and model opened",
        "warm-up": f"{report.warmup_runs} calls, {settled}",
        "samples": str(len(report.samples_ns)),
        "median": _milliseconds(report.median_ns),
        "p90": "too few samples" if report.p90_ns is None else _milliseconds(report.p90_ns),
    }
    for name, row in rows.items():
        print(f"{name:<8} {row}")
    return 0


def _warm(options: argparse.Namespace) -> int:
    start = time.perf_counter_ns()
    with load(options.folder, form=options.form, threads=options.threads, cache=options.cache) as model:
        load_ns = time.perf_counter_ns() - start
        calls = warm(model, options.shape)
    if options.json:
        told = {"form": model.form, "load_ns": load_ns, "calls": [dataclasses.asdict(call) for call in calls]}
        print(json.dumps(told, indent=1))
        return 0
    print(f"{model.form}: {_milliseconds(load_ns)} to load")
    for call in calls:
        sizes = ", ".join(f"{name}={size}" for name, size in call.sizes.items())
        print(f"{sizes}: {_milliseconds(call.first_ns)}, again {_milliseconds(call.again_ns)}")
    return 0


@dataclass(frozen=True)
class Warmed:
    """A call that was run twice: the size of each named dim, and how long the first and the second time took."""

    sizes: Mapping[str, int]
    first_ns: int
    again_ns: int


def warm(
    model: Model,
    shapes: Sequence[Mapping[str, int]] = (),
    clock: Callable[[], int] = time.perf_counter_ns,
) -> list[Warmed]:
    """Runs each optimization profile of an engine, and `shapes`; what TensorRT-RTX compiles is kept when it is closed.

    A profile is run at its usual sizes, or at its largest where a smaller profile takes these.

    Args:
        shapes: Sizes of named dims; a dim that is not named has its usual size.

    Raises:
        BundleError: the form is no engine of TensorRT-RTX, no cache can be kept, or the runtime failed.
        FeedError: a dim is unknown, or its size is out of range.
    """
    form, session = model.manifest.forms[model.form], model._session
    if form.runtime != "tensorrt_rtx":
        raise BundleError(f"{model.form}: nothing is compiled for it.", hint="Name an engine of TensorRT-RTX: --form.")
    if session is None or not session.keeps:
        raise BundleError(f"{model.form}: what is compiled cannot be kept.", hint="Name a folder of your own: --cache.")
    from .runtimes.tensorrt import choose_profile  # a bundle without an engine has no such file

    usual: list[Mapping[str, int]] = []
    for index, profile in enumerate(form.profiles):
        sizes = {dim.name: dim.opt for dim in profile.dims}
        given = {name: array.shape for name, array in sample_feeds(model.io, sizes).items()}
        if choose_profile(session.profiles, given) != index:
            sizes = {dim.name: dim.max for dim in profile.dims}
        usual.append(sizes)
    calls = []
    for wanted in [*usual, *shapes]:
        feeds = sample_feeds(model.io, wanted)
        times = [clock()]
        for _ in range(2):
            model.run(**feeds)
            times.append(clock())
        calls.append(Warmed(feeding.check_feeds(model.io, feeds), times[1] - times[0], times[2] - times[1]))
    return calls


def _milliseconds(duration_ns: float) -> str:
    return f"{duration_ns / 1e6:.3f} ms"


@dataclass(frozen=True)
class Report:
    """What was measured.

    Attributes:
        sizes: The size of each named dim.
        settled: Whether the last two medians of the warm-up agreed within 5 % before its time was over.
        p90_ns: None with fewer than `P90_SAMPLES` samples.
    """

    form: str
    runtime: str
    version: str
    provider: str
    sizes: Mapping[str, int]
    warmup_runs: int
    settled: bool
    samples_ns: tuple[int, ...]
    median_ns: float
    p90_ns: float | None


def bench(
    model: Model,
    sizes: Mapping[str, int] | None = None,
    seconds: float = 2.0,
    clock: Callable[[], int] = time.perf_counter_ns,
) -> Report:
    """Times `model.run` for about `seconds`, after a warm-up of at most as long.

    Args:
        model: An open model; load it with the number of threads that is to be measured.
        sizes: Sizes of named dims; a dim that is not named has its usual size.
        seconds: How long samples are taken, at most `MOST_SECONDS`; at least one is taken.
        clock: Returns the time in nanoseconds.

    Raises:
        FeedError: a dim is unknown, or its size or the time is out of range.
        BundleError: the runtime failed.
    """
    seconds = number("seconds", seconds, 0, MOST_SECONDS, above=True)
    feeds = sample_feeds(model.io, mapping("sizes", {} if sizes is None else sizes, "the size of each dim"))
    checked_sizes = feeding.check_feeds(model.io, feeds)

    def call() -> int:
        start = clock()
        model.run(**feeds)
        return clock() - start

    limit_ns = int(seconds * 1e9)
    warmup_runs, settled = _warm_up(call, limit_ns)
    samples = [call()]
    spent = samples[0]
    while spent < limit_ns:
        samples.append(call())
        spent += samples[-1]
    return Report(
        form=model.form,
        runtime=model.manifest.forms[model.form].runtime,
        version=model.version,
        provider=model.provider,
        sizes=checked_sizes,
        warmup_runs=warmup_runs,
        settled=settled,
        samples_ns=tuple(samples),
        median_ns=float(median(samples)),
        p90_ns=quantiles(samples, n=10, method="inclusive")[-1] if len(samples) >= P90_SAMPLES else None,
    )


def _warm_up(call: Callable[[], int], limit_ns: int) -> tuple[int, bool]:
    """Runs windows of calls until two medians in a row agree: the first calls allocate memory and are slower."""
    spent, runs, before = 0, 0, 0.0
    while True:
        window = [call() for _ in range(WINDOW)]
        spent, runs, now = spent + sum(window), runs + WINDOW, float(median(window))
        if abs(now - before) <= AGREE * now:
            return runs, True
        if spent >= limit_ns:
            return runs, False
        before = now


def sample_feeds(io: IO, sizes: Mapping[str, int]) -> dict[str, np.ndarray[Any, Any]]:
    """Random inputs that the contract allows, without padding or hidden positions. Every call gives the same.

    Raises:
        FeedError: `sizes` names an unknown dim, or a size out of its dim's range.
    """
    import numpy as np

    known = {dim.name: dim for dim in io.dims}
    for name, size in sizes.items():  # before anything is allocated: a size out of range may not fit into memory
        if name not in known:
            raise FeedError(f"dim {name!r}: the model has no such dim; expected {', '.join(known)}.")
        if not known[name].takes(integer(f"dim {name!r}", size, 0)):
            raise FeedError(f"dim {name!r}: got {size}; expected {known[name].span}.")
    all_sizes = {dim.name: dim.opt for dim in io.dims} | dict(sizes)
    masks, feeds = {mask.input: mask for mask in io.masks if mask.input}, {}
    random = np.random.default_rng(0)
    for spec in io.inputs:
        shape, mask = spec.shape(all_sizes), masks.get(spec.name)
        if mask is not None:  # full lengths, ids of one document, or marks that make every position global
            value = all_sizes[mask.keys] if mask.keys else int(mask.carries != "mask" or mask.polarity == "keep")
            feeds[spec.name] = np.full(shape, value, dtype=spec.dtype)
        elif spec.dtype.startswith("float"):
            feeds[spec.name] = random.standard_normal(shape).astype(spec.dtype)
        else:  # without a limit of integers, the valid range is unknown: models are tried with 0 and 1
            feeds[spec.name] = random.integers(0, spec.high or 2, shape).astype(spec.dtype)
    return feeds


if __name__ == "__main__":
    sys.exit(main())
