"""The command line: reads arguments, calls a verb, prints. Heavy imports are inside the verb that needs them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from attnport.console import options as taken
from attnport.console.arguments import FOLDER
from attnport.console.run import Reporter, Verbs, complain, start, verb
from attnport.console.serve_command import serve
from attnport.console.spread import several
from attnport.module_path import leave_current_folder
from attnport.version import __version__


@click.group(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="attnport")
def cli() -> None:
    """Port PyTorch attention to ONNX Runtime, OpenVINO and TensorRT, with proof."""


def main() -> None:
    """The console script."""
    leave_current_folder()
    start(cli)


@cli.command()
@taken.source_options
@taken.ship_options
@verb
def ship(out: Reporter, spec: str, output: Path, budget: float, **options: Any) -> Callable[[], None]:
    """Do everything: export, fuse, build, check, bench, bundle, report.

    SPEC is hf:FOLDER, hf:OWNER/NAME, onnx:FILE, file.py:function, package.module:function, or a name of `list models`.
    """
    from attnport.verbs.ship import ship as run

    options |= {"progress": out.progress, "tell": out.tell, "on_bug": out.bug, "begin": out.stage}
    result = run(spec, output, budget_s=budget, **options)

    def finish() -> None:
        out.show(result)
        for stage in result.stages:
            if stage.exit_code:
                complain(f"{stage.stage}: {stage.detail}")
        sys.exit(result.exit_code)

    return finish


@cli.command()
@taken.source_options
@verb
def export(out: Reporter, spec: str, output: Path, **options: Any) -> Callable[[], None]:
    """Export a module to ONNX with dynamic dims and masks.

    SPEC is hf:FOLDER, hf:OWNER/NAME, onnx:FILE, file.py:function, package.module:function, or a name of `list models`.
    """
    from attnport.verbs.export import export as run

    manifest = run(spec, output, progress=out.progress, tell=out.tell, **options)
    return lambda: out.show(manifest)


@cli.command()
@click.argument("folder", type=FOLDER)
@click.option("--target", "targets", multiple=True, help="A lowering target; default: all.")
@click.option("--dtype", "plan", help="Precision plan of the targets that support it; default: each target's own.")
@click.option("--explain", is_flag=True, help="Say for each attention what happened and why.")
@click.option("--require", is_flag=True, help="Exit 5 if an attention is not fused.")
@click.option("--force", is_flag=True, help="Run again even if nothing has changed.")
@verb
def fuse(
    out: Reporter, folder: Path, targets: tuple[str, ...], plan: str | None, explain: bool, require: bool, force: bool
) -> Callable[[], None]:
    """Write attention as each target fuses it, and prove that it does."""
    from attnport.verbs import fuse as fusing

    chosen, plans = fusing.asked(targets, plan)
    names = [lowering.name for lowering in chosen]
    report = fusing.fuse(folder, targets=names, plans=plans, force=force, progress=out.progress)

    def finish() -> None:
        keys = [lowering.table_key(plans.get(lowering.name, lowering.plans[0])) for lowering in chosen]
        # The file keeps the tables of other targets from earlier runs; a terminal only shows the requested ones.
        requested = (
            report
            if out.as_json or not targets
            else replace(report, targets={key: report.targets[key] for key in keys})
        )
        out.show(requested, "whole" if explain else "brief")
        if require:
            fusing.require_fused(report, chosen, plans, named=bool(targets))

    return finish


@cli.command()
@click.argument("folder", type=FOLDER)
@click.option("--target", required=True, help="tensorrt_rtx (builds without a GPU) or tensorrt.")
@click.option("--dtype", "plan", default="fp16", show_default=True, help="fp16, bf16, fp32, *_islands or auto.")
@click.option("--budget", help="With --dtype auto: allowed error, as a multiple of PyTorch's own in fp16; default 2x.")
@click.option(
    "--profile",
    "profiles",
    multiple=True,
    help='Sizes, smallest:usual:largest, "batch=1:8:64,seq=1:128:512"; several allowed.',
)
@click.option("--sm", multiple=True, type=int, help="Compute capability, 86 for 8.6; several allowed.")
@click.option(
    "--trust-source", is_flag=True, help="With --dtype auto: run the code that a folder from elsewhere names."
)
@click.option("--force", is_flag=True, help="Build even if nothing has changed.")
@verb
def build(
    out: Reporter, folder: Path, target: str, plan: str, profiles: tuple[str, ...], sm: tuple[int, ...], **options: Any
) -> Callable[[], None]:
    """Build a TensorRT engine, and prove its attention fused."""
    from attnport.verbs.build import build as run
    from attnport.verbs.build import require_fused

    record, table = run(folder, target, plan.replace("-", "_"), profiles, sm, progress=out.progress, **options)

    def finish() -> None:
        out.show(record)
        if not out.as_json:
            out.show(table)
        require_fused(table)

    return finish


@cli.command()
@taken.check_options
@verb
@several
def check(
    out: Reporter, folder: Path, runtimes: tuple[str, ...], text: Path | None, inputs: Path | None, timeout: float,
    search: bool, kind: str, junit: Path | None, **options: Any,
) -> Callable[[], None]:  # fmt: skip
    """Compare the numbers of all runtimes with a float64 run.

    Every lowered form is compared too, by running its graph in ONNX Runtime or ONNX's reference evaluator; with
    --runtime, the form that this runtime opens. A runtime that crashes, hangs or takes all memory in its process is
    NOT_RUN; the others are still reported.
    """
    from attnport.verbs import check as checking
    from attnport.verbs._saving import check_target, save

    if out.as_json and kind != "table":
        raise click.UsageError(f"--json and --format {kind} both print on stdout; give one of them.")
    if junit is not None:
        check_target(junit, "--junit", "junit.xml")
    arguments: Any = {"text": text, "inputs": inputs, "timeout_s": timeout, "progress": out.progress, **options}
    bisected = checking.check_and_bisect(folder, runtimes or None, tell=out.tell, **arguments) if search else None
    report = bisected.parity if bisected else checking.check(folder, runtimes or None, **arguments)
    if junit is not None:
        from attnport.reporting.ci import junit as as_junit

        save(as_junit(report, f"attnport check {folder}"), junit)

    def finish() -> None:
        if kind == "github":
            from attnport.parity.bisect import annotated
            from attnport.reporting.ci import workflow_commands

            out.print(workflow_commands(report, annotated(bisected) if bisected else ()))
        else:
            out.show(bisected or report, "whole" if out.verbose else "brief")
        searchable = not (search or options["plan"])
        checking.raise_for(report, runtimes, checking.command(folder, text, inputs) if searchable else "")

    return finish


@cli.command()
@taken.bench_options
@verb
@several
def bench(
    out: Reporter, folder: Path | None, compare: tuple[tuple[Path, Path], ...], fail_on_regression: bool,
    save: Path | None, budget: float, **options: Any,
) -> Callable[[], None]:  # fmt: skip
    """Compare the latency of runtimes, with intervals.

    FOLDER is measured. With --compare, reports of earlier runs are compared instead, for example of two versions.
    """
    from attnport.verbs import compare as regression

    taken.check_together(folder, compare, fail_on_regression)
    if compare:
        changes = regression.compare(*compare[0], *compare[1:])

        def judge() -> None:
            out.show(changes)
            if fail_on_regression:
                regression.raise_for(changes)

        return judge

    from attnport.jsonfile import to_json
    from attnport.verbs._saving import check_target
    from attnport.verbs._saving import save as write
    from attnport.verbs.bench import bench as run
    from attnport.verbs.bench import raise_for

    if save is not None:
        check_target(save, "--save", regression.FILE)
    assert folder is not None
    report = run(folder, budget_s=budget, progress=out.progress, **options)
    if save is not None:
        write(to_json(report), save)

    def finish() -> None:
        out.show(report, "whole" if out.verbose else "brief")
        raise_for(report, options["runtimes"])

    return finish


@cli.command()
@taken.tune_options
@verb
@several
def tune(out: Reporter, folder: Path, budget: float, **options: Any) -> Callable[[], None]:
    """Try every precision on your data; keep the fastest.

    float32 and bf16 must pass the check. int8 is made of half of the given sentences or items, judged on the others by
    a metric, and kept only where it is shown to be faster on this machine.
    """
    from attnport.verbs.tune import tune as run

    report = run(folder, budget_s=budget, progress=out.progress, **options)
    return lambda: out.show(report)


@cli.command()
@taken.bundle_options
@verb
def bundle(
    out: Reporter, folder: Path, output: Path, lang: tuple[str, ...], forms: tuple[str, ...], **options: Any
) -> Callable[[], None]:
    """Pack a folder that runs without PyTorch and re-checks itself."""
    from attnport.verbs.bundle import bundle as run

    path = run(folder, output, lang=lang, forms=forms or None, progress=out.progress, tell=out.tell, **options)
    return lambda: out.show_path(path)


@cli.command()
@click.argument("path", type=FOLDER)
@click.option("--key", type=FOLDER, help="The Ed25519 public key (PEM) that a bundle must be signed with.")
@click.option(
    "--timeout", type=click.FloatRange(min=0, min_open=True), default=600.0, show_default=True,
    help="Seconds for the check of a bundle; one that takes longer is refused.",
)  # fmt: skip
@verb
def verify(out: Reporter, path: Path, key: Path | None, timeout: float) -> Callable[[], None]:
    """Check files, signature and golden outputs.

    PATH is a bundle or an artifact folder.
    """
    from attnport.verbs.verify import raise_for
    from attnport.verbs.verify import verify as run

    result = run(path, key, timeout)

    def finish() -> None:
        out.show(result)
        raise_for(result)

    return finish


@cli.command()
@click.argument("path", type=FOLDER)
@click.option("--fix", is_flag=True, help="Remove notes, doc strings and unknown fields of ONNX files.")
@taken.limit_options
@verb
def audit(out: Reporter, path: Path, fix: bool, **limits: Any) -> Callable[[], None]:
    """Find what a file gives away: paths, people, notes, weights, data.

    PATH is an ONNX file, an engine, an artifact folder or a bundle. Exits with 6 if something is found (and is not
    removed by --fix).
    """
    from attnport.verbs.audit import audit as run
    from attnport.verbs.audit import raise_for

    result = run(path, fix, progress=out.progress, **limits)

    def finish() -> None:
        out.show(result)
        raise_for(result)

    return finish


@cli.command()
@click.argument("path", type=FOLDER)
@verb
def inspect(out: Reporter, path: Path) -> Callable[[], None]:
    """Describe a folder, ONNX file, engine or bundle."""
    from attnport.verbs.inspect import inspect as run

    inspection = run(path)
    return lambda: out.show(inspection)


@cli.command()
@taken.generate_options
@verb
def generate(out: Reporter, folder: Path, prompts: tuple[str, ...], runtime: str, **options: Any) -> Callable[[], None]:
    """Continue texts with a decoder exported by --with-past."""
    from attnport.verbs.generate import generate as run

    result = run(folder, prompts, runtime, progress=out.progress, **options)
    return lambda: out.show(result)


@cli.command()
@click.option("--refresh", is_flag=True, help="Probe every runtime again; kept answers are otherwise believed.")
@verb
def doctor(out: Reporter, refresh: bool) -> Callable[[], None]:
    """Show what is installed, what it can do here, and how to fix it."""
    from attnport.verbs.doctor import doctor as run

    report = run(refresh=refresh)
    return lambda: out.show(report)


@cli.command("gpu-check")
@taken.gpu_options
@verb
def gpu_check(out: Reporter, runtimes: tuple[str, ...], budget: float | None, **options: Any) -> Callable[[], None]:
    """Measure every GPU runtime: parity and latency.

    BERT base, and a decoder that prefills and decodes. Finished steps are kept; the same command continues.
    """
    from attnport.verbs.gpu_check import gpu_check as run
    from attnport.verbs.gpu_check import raise_for

    report = run(runtimes=runtimes, budget_s=budget, progress=out.progress, tell=out.tell, **options)

    def finish() -> None:
        out.show(report)
        raise_for(report, runtimes)

    return finish


@cli.command(name="list")
@click.argument("what", type=click.Choice(["models", "runtimes", "targets", "rules"]))
@verb
def list_(out: Reporter, what: str) -> Callable[[], None]:
    """List models, runtimes, targets or rules."""
    from attnport.verbs.listing import listing

    names = listing(what)
    return lambda: out.show(names)


@cli.command()
@click.argument("folder", type=FOLDER)
@click.option(
    "--format", "kind", type=click.Choice(["html", "md"]), default="html", show_default=True,
    help="report.html, a page with charts, or report.md.",
)  # fmt: skip
@click.option("--text", type=FOLDER, help="Sentences, one in each line; the attention maps show one of them.")
@click.option("--force", is_flag=True, help="Write it even if nothing has changed.")
@verb
def report(out: Reporter, folder: Path, kind: Any, text: Path | None, force: bool) -> Callable[[], None]:
    """Write a report: recommendation, fusion, parity, latency, maps."""
    from attnport.verbs.report import report as run

    path = run(folder, kind=kind, text=text, force=force, progress=out.progress)
    return lambda: out.show_path(path)


cli.add_command(serve)

if __name__ == "__main__":
    main()
