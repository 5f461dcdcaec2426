"""The command line: calls verbs, and prints what they find. Their options are those of their signatures."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import click

from attnport.console.arguments import refuse
from attnport.console.command import Finish, Verbs
from attnport.console.run import Reporter, complain, start
from attnport.errors import UsageError
from attnport.module_path import leave_current_folder
from attnport.options import Option, command_line
from attnport.version import __version__

Run = partial[Any]
"""A verb with its arguments."""


MAKE, JUDGE, DEPLOY, TRUST, MACHINE = "Make", "Judge", "Deploy", "Trust", "This machine"


@click.group(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="attnport")
def cli() -> None:
    """Port PyTorch attention to ONNX Runtime, OpenVINO and TensorRT, with proof."""


def main() -> None:
    """The console script."""
    leave_current_folder()
    start(cli)


@cli.verb(MAKE, "attnport ship path/to/model -o out/ --text sentences.txt")
def ship(out: Reporter, run: Run) -> Finish:
    """Do everything: export, fuse, build, check, bench, bundle, report.

    MODEL is a folder of transformers, OWNER/NAME on its hub, a file of ONNX, file.py:function, package.module:function,
    or a name of `list models`. Where a name is two things, hf: or onnx: before it says which.
    """
    result = run()

    def finish() -> None:
        out.show(result)
        for stage in result.stages:
            if stage.exit_code:
                complain(f"{stage.stage}: {stage.detail}")
        sys.exit(result.exit_code)

    return finish


@cli.verb(MAKE, 'attnport export net.py:make -o out/ --input "x=float32[batch,seq,256]"')
def export(out: Reporter, run: Run) -> Finish:
    """Export a module to ONNX with dynamic dims and masks.

    MODEL is a folder of transformers, OWNER/NAME on its hub, a file of ONNX, file.py:function, package.module:function,
    or a name of `list models`. Where a name is two things, hf: or onnx: before it says which.
    """
    return out.finish(run())


@cli.verb(MAKE, "attnport fuse out/ --target ort_cpu --explain")
def fuse(
    out: Reporter,
    run: Run,
    *,
    explain: Annotated[bool, Option("Say for each attention what happened and why.")] = False,
) -> Finish:
    """Write attention as each target fuses it, and prove that it does.

    What a target gets is a form: a graph of its own, model.TARGET.onnx, on the weights that all share. Its precision is
    behind a dot: model.openvino.bf16.onnx.
    """
    from attnport.verbs import fuse as fusing

    targets, required = run.keywords["targets"], run.keywords.pop("require")
    keys = [lowering.table_key(plan) for lowering, plan in fusing.asked(targets, run.keywords["precision"])]
    report = run()

    def finish() -> None:
        tables = {key: report.targets[key] for key in keys}
        # The file keeps the tables of other targets from earlier runs; a terminal only shows the requested ones.
        out.show(
            replace(report, targets=tables) if targets and not out.as_json else report,
            "whole" if explain else "brief",
        )
        if required:
            fusing.require_fused({key: table for key, table in tables.items() if targets or table.proved_by})

    return finish


@cli.verb(MAKE, "attnport build out/ --target tensorrt_rtx --precision fp16")
def build(out: Reporter, run: Run) -> Finish:
    """Build a TensorRT engine, and prove its attention fused."""
    from attnport.verbs.fuse import require_fused

    record, table = run()

    def finish() -> None:
        out.show(record or table)
        if record and not out.as_json:
            out.show(table)
        require_fused({record.form if record else table.file: table})

    return finish


@cli.verb(MAKE, "attnport tune out/ --text sentences.txt", several=True)
def tune(out: Reporter, run: Run) -> Finish:
    """Try every precision on your data; keep the fastest.

    float32 and bf16 must pass the check. int8 is made of half of the given sentences or items, judged on the others by
    a metric, and kept only where it is shown to be faster on this machine.
    """
    return out.finish(run())


@cli.verb(JUDGE, "attnport check out/ --text sentences.txt --bisect", several=True)
def check(
    out: Reporter,
    run: Run,
    *,
    bisect: Annotated[bool, Option("For each that fails, find the layer where it goes wrong.")] = False,
    kind: Annotated[
        Literal["table", "github"], Option("github: lines that GitHub Actions shows as annotations.", "--format")
    ] = "table",
    junit: Annotated[Path | None, Option("Write the results as JUnit XML too.", metavar="FILE")] = None,
) -> Finish:
    """Compare the numbers of all runtimes with a float64 run.

    Every form is compared too, by running its graph in ONNX Runtime or ONNX's reference evaluator; with --runtime, the
    form that this runtime opens. A runtime that crashes, hangs or takes all memory in its process is NOT_RUN; the
    others are still reported.
    """
    from attnport.parity.evaluate import Means
    from attnport.processes.isolated import Limits
    from attnport.verbs import check as checking

    options = run.keywords
    if out.as_json and kind != "table":
        raise click.UsageError(f"--json and --format {kind} both print on stdout; give one of them.")
    if junit is not None:
        check_target(junit, "--junit", "junit.xml")
    whole = run()
    report = checking.of_named(whole, options["runtimes"])
    bisected = None
    if bisect:
        cases = checking.CaseOptions(options["text"], options["inputs"], options["shapes"])
        means = Means(None, Limits(options["timeout_s"], every=options["isolate"]), options["progress"])
        half = bool(options["precision"])
        bisected = checking.bisect(
            options["folder"],
            whole,
            cases,
            means,
            named=options["runtimes"],
            half=half,
            force=options["force"],
            tell=out.tell,
        )
    if junit is not None:
        from attnport.reporting.ci import junit as as_junit

        write(as_junit(report, f"attnport check {options['folder']}"), junit)

    def finish() -> None:
        if kind == "github":
            from attnport.reporting.ci import workflow_commands
            from attnport.reporting.layers import annotated

            out.print(workflow_commands(report, annotated(bisected) if bisected else ()))
        else:
            out.show(bisected or report, "whole" if out.verbose else "brief")
        again = command_line("check", checking.check, **options | {"runtimes": (), "force": False})
        checking.raise_for(whole, options["runtimes"], "" if bisect else again)

    return finish


@cli.verb(JUDGE, "attnport bench out/ --shape batch=8,seq=128 --budget 60", several=True, needs_folder=False)
def bench(
    out: Reporter,
    run: Run,
    *,
    save: Annotated[Path | None, Option("Write the report to FILE too.", metavar="FILE")] = None,
    compare: Annotated[
        Sequence[tuple[Path, Path]],
        Option(
            "Measure nothing; show what became slower between two saved reports. Given again for each further pair of "
            "runs, each pair is one observation.",
            metavar="BEFORE AFTER",
        ),
    ] = (),
    fail_on_regression: Annotated[
        bool, Option("With --compare: exit 7 if something became slower, 8 if that could not be told.")
    ] = False,
    limit: Annotated[
        float | None,
        Option("With --compare: a slowdown that may not go unseen, as a factor; default 1.5.", "--slowdown", above=1),
    ] = None,
) -> Finish:
    """Compare the latency of runtimes, with intervals.

    FOLDER is measured. With --compare, reports of earlier runs are compared instead, for example of two versions.
    """
    from attnport.latency import regression
    from attnport.verbs.bench import raise_for

    folder = run.keywords["folder"]
    if compare:
        if folder is not None:
            raise click.UsageError(f"--compare measures nothing, so it takes no folder; got {folder}.")
        refuse([*run.keywords, "save"], "--compare measures nothing, so it takes no {}.")
        return out.finish(
            regression.compare(*compare[0], *compare[1:], limit=limit or regression.UNSEEN),
            *([regression.raise_for] if fail_on_regression else []),
        )
    if folder is None:
        raise click.UsageError("Missing argument 'FOLDER' (or --compare BEFORE AFTER).")
    if fail_on_regression or limit is not None:
        option = "--fail-on-regression" if fail_on_regression else "--slowdown"
        raise click.UsageError(f"{option} goes with --compare BEFORE AFTER.")

    from attnport.jsonfile import to_json

    if save is not None:
        check_target(save, "--save", regression.FILE)
    report = run()
    if save is not None:
        write(to_json(report), save)
    return out.finish(report, partial(raise_for, named=run.keywords["runtimes"]))


@cli.verb(JUDGE, "attnport report out/ --text sentences.txt")
def report(out: Reporter, run: Run) -> Finish:
    """Write a report: recommendation, fusion, parity, latency, maps."""
    return out.finish(run())


@cli.verb(DEPLOY, "attnport bundle out/ -o app/ --lang python")
def bundle(out: Reporter, run: Run) -> Finish:
    """Pack a folder that runs without PyTorch and re-checks itself."""
    return out.finish(run())


@cli.verb(DEPLOY, "attnport serve app/")
def serve(out: Reporter, run: Run) -> Finish:
    """Answer requests for bundles, on KServe or Ray Serve.

    FOLDER is a bundle; or an artifact folder or a model, of which one is made. Requests are those of the open inference
    protocol v2, over HTTP and gRPC, and of OpenAI's.
    """
    return run


@cli.verb(DEPLOY, 'attnport generate text/ --prompt "Ports are"')
def generate(out: Reporter, run: Run) -> Finish:
    """Continue texts with a decoder exported by --with-past.

    The texts go to stdout as the model wrote them; how fast that was, to stderr.
    """
    from attnport.console.streams import prose
    from attnport.verbs.generate import speed, whole_texts

    result = run()

    def finish() -> None:
        if out.as_json:
            out.show(result)
            return
        for text in whole_texts(result):
            out.print(f"{prose(text)}\n")
        click.echo(speed(result), err=True)

    return finish


@cli.verb(TRUST, "attnport verify app/")
def verify(out: Reporter, run: Run) -> Finish:
    """Check files, signature and golden outputs.

    PATH is a bundle, or an artifact folder, of which files alone are checked: attnport check judges its numbers.
    """
    from attnport.verbs.verify import raise_for

    return out.finish(run(), raise_for)


@cli.verb(TRUST, "attnport audit out/model.onnx")
def audit(out: Reporter, run: Run) -> Finish:
    """Find what a file gives away: paths, people, notes, weights, data.

    PATH is an ONNX file, an engine, an artifact folder or a bundle. Exits with 6 if something is found (and is not
    removed by --fix).
    """
    from attnport.verbs.audit import raise_for

    return out.finish(run(), raise_for)


@cli.verb(TRUST, "attnport inspect app/")
def inspect(out: Reporter, run: Run) -> Finish:
    """Describe a folder, ONNX file, engine or bundle."""
    return out.finish(run())


@cli.verb(MACHINE, "attnport doctor")
def doctor(out: Reporter, run: Run) -> Finish:
    """Show what is installed, what it can do here, and how to fix it."""
    return out.finish(run())


@cli.verb(MACHINE, "attnport list targets", "list")
def listing(out: Reporter, run: Run) -> Finish:
    """List models, runtimes, targets or rules."""
    return out.finish(run())


@cli.verb(MACHINE, "attnport gpu-check -o out/gpu-check")
def gpu_check(out: Reporter, run: Run) -> Finish:
    """Measure every GPU runtime: parity and latency.

    BERT base, and a decoder that prefills and decodes. Finished steps are kept; the same command continues.
    """
    from attnport.verbs.gpu_check import raise_for

    return out.finish(run(), raise_for)


def check_target(path: Path, option: str, example: str) -> None:
    """Refuses a file that the result cannot be saved in, before the work begins.

    Args:
        option: What named the file, such as `--save`.
        example: A name for the file, for the hint.

    Raises:
        UsageError: `path` is a folder, its folder is missing, or no file can be made there.
    """
    if path.is_dir():
        raise UsageError(f"{option} {path}: it is a folder.", hint=f"Name a file, for example {path / example}.")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"{option} {path}: there is no folder {path.parent}.", hint="Create it first.")
    staged = _staged(path)
    try:
        if _in_place(path):
            path.open("a").close()
        else:
            staged.touch()
            staged.unlink()
    except OSError as err:
        raise UsageError(
            f"{option} {path}: {err.strerror}.", hint="Name a file in a folder that you may write to."
        ) from err


def write(text: str, path: Path) -> None:
    """Writes a file, whole or not at all; a device such as `/dev/stdout` is written to. Raises OSError."""
    if _in_place(path):
        path.write_text(text, encoding="utf-8")
        return
    staged = _staged(path)
    try:
        staged.write_text(text, encoding="utf-8")
        staged.replace(path)
    finally:
        staged.unlink(missing_ok=True)


def _in_place(path: Path) -> bool:
    """Whether it is something that a new file must not replace."""
    return path.exists() and not path.is_file()


def _staged(path: Path) -> Path:
    return path.with_name(f".{path.name}.staged")


if __name__ == "__main__":
    main()
