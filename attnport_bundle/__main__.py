"""The command line: `python -m attnport_bundle selftest` checks the bundle, `bench` times it, `serve` answers requests.

Exit codes (see errors.py): 0 success, 2 not a bundle or wrong usage, 3 no runtime, 4 wrong numbers, 6 a file differs.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from . import bench as timing
from .errors import BundleError, RuntimeMissing
from .model import HERE, load, selftest

Verb = Callable[[argparse.Namespace], int]


def main(arguments: list[str] | None = None) -> int:
    """Runs the command line and returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m attnport_bundle", description="Checks this bundle, or times it.")
    verbs = parser.add_subparsers(dest="verb", required=True)
    test = _verb(verbs, "selftest", _selftest, "compare every file and run the golden cases")
    test.add_argument("--key", type=Path, help="public key (PEM, from outside) that the bundle must be signed with")
    bench = _verb(verbs, "bench", _bench, "time one shape")
    bench.add_argument("--shape", type=_shape, default={}, metavar="batch=8,seq=128", help="default: the usual sizes")
    bench.add_argument("--seconds", type=float, default=2.0, help="how long samples are taken (default: 2)")
    bench.add_argument("--form", help="which form (default: the first that can be opened)")
    _serve_arguments(verbs)
    options = parser.parse_args(arguments)
    try:
        return int(options.run(options))
    except BundleError as err:
        print(f"error: {err}", file=sys.stderr)
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
    serve.serve(served, options.engine, serve.chosen(options), options.key, tell)
    return 0


def _no_serving(options: argparse.Namespace) -> int:
    raise RuntimeMissing('bundles are served by the installed reader; pip install "attnport-bundle[kserve]".')


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
        report = timing.bench(model, options.shape, options.seconds)
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


def _milliseconds(duration_ns: float) -> str:
    return f"{duration_ns / 1e6:.3f} ms"


if __name__ == "__main__":
    sys.exit(main())
