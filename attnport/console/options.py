"""The longer lists of options: those of a module's source, of `ship`, `check`, `bench`, `tune` and `gpu-check`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from attnport.console.arguments import FOLDER

F = TypeVar("F", bound=Callable[..., Any])

_WITH_COMPARE = ("compare", "fail_on_regression", "as_json", "verbose", "traceback")
"""The options of `bench` that go with --compare."""
_SOURCE_OPTIONS = (
    click.argument("spec"),
    click.option("-o", "--output", type=FOLDER, required=True, help="The artifact folder."),
    click.option(
        "--input",
        "inputs",
        multiple=True,
        help='"x=float32[batch,seq,256]", "mask=int64[batch,seq]:padding", "ids=int64[batch,seq]:high=30522"; '
        '"past.0=float32[batch,heads,past,16]" of a tuple, list or dict; "use_cache=false" for a constant.',
    ),
    click.option(
        "--dim",
        "dims",
        multiple=True,
        help='Smallest, usual and largest size of a dim, "seq=1:128:512"; a fourth number is the step of its sizes.',
    ),
    click.option(
        "--examples",
        type=FOLDER,
        metavar="FILE",
        help="An .npz with an array for each argument of the forward, by which inputs and dims are found.",
    ),
    click.option("--outputs", multiple=True, metavar="NAME", help="An output to keep; several allowed; default: all."),
    click.option(
        "--task",
        default="",
        metavar="NAME",
        help="The head of an hf: model: text-classification, fill-mask, ...; default: the checkpoint's own.",
    ),
    click.option(
        "--part",
        default="",
        metavar="NAME",
        help="A part of an hf: model: encoder, decoder, encoder-with-past, text, vision, audio, video; default: all.",
    ),
    click.option(
        "--with-past",
        "part",
        flag_value="with-past",
        help="A decoder of hf: with its cache of keys and values, which `generate` runs token by token.",
    ),
    click.option("--with-weights", is_flag=True, help="Keep outputs that are attention weights."),
    click.option(
        "--trust-remote-code",
        is_flag=True,
        help="Run the Python code that an hf: model's config.json names, its own or another repository's. Without this "
        "option, a model that needs such code is refused.",
    ),
    click.option("--force", is_flag=True, help="Run again even if nothing has changed."),
)


_LIMITS = (
    click.option(
        "--timeout",
        "timeout_s",
        type=click.FloatRange(min=0, min_open=True),
        help="Seconds for each step of reading an ONNX file; default: 120, and 100 more for each GB.",
    ),
    click.option(
        "--memory",
        "memory_gib",
        type=click.FloatRange(min=0, min_open=True),
        metavar="GIB",
        help="Memory that reading an ONNX file may take; default: nine tenths of what is free.",
    ),
)


def limit_options(work: F) -> F:
    """The limits of a process that reads what a stranger sent."""
    return _with(work, _LIMITS)


def source_options(work: F) -> F:
    """SPEC, -o, what says how its module is taken, and the limits of a file of ONNX."""
    return _with(work, (*_SOURCE_OPTIONS, *_LIMITS))


_SHIP_OPTIONS = (
    click.option("--text", type=FOLDER, help="Sentences, one in each line, for models that read text."),
    click.option("--require", is_flag=True, help="Exit 5 if a target whose fusion can be proved is not fused."),
    click.option(
        "--budget", type=click.FloatRange(min=1), default=60.0, show_default=True, help="Seconds for latency."
    ),
    click.option("--shape", "shapes", multiple=True, help="Sizes to time, as in bench: batch=1/8,seq=64/128."),
    click.option("--tune", is_flag=True, help="Try int8 and 4 bits as well, judged by the sentences; see tune."),
)


def ship_options(work: F) -> F:
    """The options of `ship` besides those of a module's source."""
    return _with(work, _SHIP_OPTIONS)


_GENERATE_OPTIONS = (
    click.argument("folder", type=FOLDER),
    click.option("--prompt", "prompts", multiple=True, help="A text to continue; several allowed."),
    click.option("--encoder", type=FOLDER, help="Of an encoder-decoder: the artifact that reads the prompts."),
    click.option("--inputs", type=FOLDER, metavar="FILE", help="An .npz of the encoder's inputs, in place of prompts."),
    click.option("--runtime", default="ort_cpu", show_default=True, help="A runtime, or a form such as openvino.bf16."),
    click.option("--max-tokens", type=click.IntRange(min=1), default=64, show_default=True, help="New tokens."),
    click.option("--temperature", type=click.FloatRange(min=0), default=0.0, help="Above 0, tokens are drawn."),
    click.option("--top-k", type=click.IntRange(min=0), default=0, help="Draw among so many of the likeliest."),
    click.option("--top-p", type=click.FloatRange(0, 1, min_open=True), default=1.0,
                 help="Draw among the likeliest that together have this probability."),
    click.option("--seed", type=int, help="Of the draws."),
    click.option("--beams", type=click.IntRange(min=1), help="Above 1: beam search; default: the model's own number."),
    click.option("--min-tokens", type=click.IntRange(min=0), help="New tokens before which no text ends."),
    click.option("--repetition-penalty", type=click.FloatRange(min=0, min_open=True),
                 help="Above 1, tokens that a text has become less likely."),
    click.option("--no-repeat-ngram", type=click.IntRange(min=0), metavar="N",
                 help="No N tokens in a row are twice in a text."),
    click.option("--start", multiple=True, metavar="TOKEN",
                 help="The first token of a text behind an encoder, in place of the model's own; several allowed."),
    click.option("--stop", multiple=True, metavar="TOKEN",
                 help="A token behind which a text ends, in place of the model's own; several allowed."),
    click.option("--threads", type=click.IntRange(min=1), help="Compute threads; default: the runtime's choice."),
)  # fmt: skip


def generate_options(work: F) -> F:
    """The options of `generate`."""
    return _with(work, _GENERATE_OPTIONS)


_CHECK_OPTIONS = (
    click.argument("folder", type=FOLDER, nargs=-1, required=True),
    click.option(
        "--runtime",
        "runtimes",
        multiple=True,
        help="A runtime; default: all but torch_compile. The report keeps others.",
    ),
    click.option("--text", type=FOLDER, help="Sentences, one in each line."),
    click.option("--inputs", type=FOLDER, help="An .npz with an array for each input."),
    click.option("--shape", "shapes", multiple=True, help='Further cases, full batches of "batch=1/8,seq=512".'),
    click.option("--dtype", "plan", help="One precision plan alone, modules cast to it; writes parity.PLAN.json."),
    click.option(
        "--eager",
        default="torch_eager",
        show_default=True,
        help="What makes the reference and bounds the others; with --dtype also torch_eager_cuda, on a GPU.",
    ),
    click.option("--bundle", type=FOLDER, help="A bundle of this folder, checked through its own reader."),
    click.option(
        "--timeout",
        type=click.FloatRange(min=0, min_open=True),
        default=600.0,
        show_default=True,
        help="Seconds for each answer of a runtime's process.",
    ),
    click.option(
        "--isolate", is_flag=True, help="Give every runtime a process of its own, also those that do not need it."
    ),
    click.option("--bisect", "search", is_flag=True, help="For each that fails, find the layer where it goes wrong."),
    click.option(
        "--format",
        "kind",
        type=click.Choice(["table", "github"]),
        default="table",
        show_default=True,
        help="github: lines that GitHub Actions shows as annotations.",
    ),
    click.option("--junit", type=FOLDER, metavar="FILE", help="Write the results as JUnit XML too."),
    click.option(
        "--trust-source", is_flag=True, help="Run the code that a folder from elsewhere names, now and later."
    ),
    click.option(
        "--thorough",
        is_flag=True,
        help="Run every batch of the sentences, each item alone and with more padding too; by default four batches and "
        "eight items. The cases made from the contract are run in any case.",
    ),
    click.option("--force", is_flag=True, help="Check even if nothing has changed."),
)


def check_options(work: F) -> F:
    """FOLDER and every option of `check`."""
    return _with(work, _CHECK_OPTIONS)


_BENCH_OPTIONS = (
    click.argument("folder", type=FOLDER, nargs=-1),
    click.option(
        "--runtime",
        "runtimes",
        multiple=True,
        help="A runtime; default: all but torch_compile. The report has only these.",
    ),
    click.option("--shape", "shapes", multiple=True, help='"batch=8,seq=128"; a grid: "batch=1/8,seq=64/128".'),
    click.option("--text", type=FOLDER, help="Sentences, one in each line."),
    click.option("--lengths", type=FOLDER, help="Lengths for ragged batches, one in each line, or LENGTH:COUNT."),
    click.option(
        "--batch",
        type=click.IntRange(min=1),
        default=32,
        show_default=True,
        help="Sentences or lengths in a padded batch.",
    ),
    click.option("--dtype", "plan", help="One precision plan alone, modules cast to it; writes latency.PLAN.json."),
    click.option(
        "--baseline", default="torch_eager", show_default=True, help="The runtime that others are compared with."
    ),
    click.option("--bundle", type=FOLDER, help="A bundle of this folder, measured through its own reader."),
    click.option("--threads", type=click.IntRange(min=1), help="Compute threads; default: the physical cores."),
    click.option("--pin/--no-pin", default=True, show_default=True, help="Keep processes on as many cores as threads."),
    click.option(
        "--cold/--no-cold",
        default=True,
        show_default=True,
        help="Measure load, first call and memory in new processes.",
    ),
    click.option(
        "--precision",
        type=click.FloatRange(min=0, min_open=True, max=1),
        default=0.03,
        show_default=True,
        help="Measure until every ratio is known within this share.",
    ),
    click.option(
        "--samples", type=click.IntRange(min=0), default=0, help="The fewest calls, if there is time; p99 needs 1000."
    ),
    click.option(
        "--starts",
        type=click.IntRange(min=1, max=50),
        default=1,
        show_default=True,
        help="Starts of each process; with several, intervals include how much they differ.",
    ),
    click.option(
        "--budget",
        type=click.FloatRange(min=1),
        default=60.0,
        show_default=True,
        help="Seconds in total, starts included; each workload has 12 rounds at least in each start.",
    ),
    click.option(
        "--timeout",
        "timeout_s",
        type=click.FloatRange(min=0, min_open=True),
        default=600.0,
        show_default=True,
        help="Seconds for each answer of a runtime's process.",
    ),
    click.option("--save", type=FOLDER, metavar="FILE", help="Write the report to FILE too."),
    click.option(
        "--compare",
        type=FOLDER,
        nargs=2,
        multiple=True,
        metavar="BEFORE AFTER",
        help="Measure nothing; show what became slower between two saved reports. Given again for each further pair "
        "of runs, each pair is one observation.",
    ),
    click.option("--fail-on-regression", is_flag=True, help="With --compare: exit 7 if something became slower."),
    click.option(
        "--trust-source", is_flag=True, help="Run the code that a folder from elsewhere names, now and later."
    ),
    click.option("--force", is_flag=True, help="Measure even if nothing has changed."),
)


def bench_options(work: F) -> F:
    """FOLDER and every option of `bench`."""
    return _with(work, _BENCH_OPTIONS)


class Percent(click.ParamType[float]):
    """A share, written as `0.5%` or `0.005`."""

    name = "share"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The share as a number."""
        if isinstance(value, float):
            return value
        text = str(value).strip()
        try:
            return float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
        except ValueError:
            self.fail(f"{value!r} is no share; write 0.5% or 0.005", param, ctx)


_TUNE_OPTIONS = (
    click.argument("folder", type=FOLDER, nargs=-1, required=True),
    click.option("--runtime", "runtimes", multiple=True, help="ort_cpu or openvino; default: both."),
    click.option("--text", type=FOLDER, help="Sentences, one in each line: to time, and to judge integers by."),
    click.option("--inputs", type=FOLDER, help="Instead, an .npz of many items, an array for each input."),
    click.option("--shape", "shapes", multiple=True, help='Sizes to time, as in bench: "batch=1/8,seq=64/128".'),
    click.option("--lengths", type=FOLDER, help="Lengths to time, one in each line, or LENGTH:COUNT."),
    click.option(
        "--batch",
        type=click.IntRange(min=1),
        default=32,
        show_default=True,
        help="Sentences or lengths in a padded batch.",
    ),
    click.option(
        "--metric", metavar="FILE.py:FUNCTION", help="Your own measure, the larger the better; it judges all of them."
    ),
    click.option(
        "--max-drop", type=Percent(), default="0.5%", show_default=True, help="How much worse the metric may be."
    ),
    click.option("--threads", type=click.IntRange(min=1), multiple=True, help="Compute threads; several allowed."),
    click.option(
        "--budget",
        type=click.FloatRange(min=1),
        default=300.0,
        show_default=True,
        help="Seconds for the search and the timing.",
    ),
    click.option(
        "--trust-source", is_flag=True, help="Run the code that a folder from elsewhere names, now and later."
    ),
    click.option("--force", is_flag=True, help="Try everything again even if nothing has changed."),
)


def tune_options(work: F) -> F:
    """FOLDER and every option of `tune`."""
    return _with(work, _TUNE_OPTIONS)


_BUNDLE_OPTIONS = (
    click.argument("folder", type=FOLDER),
    click.option("-o", "--output", type=FOLDER, required=True, help="The bundle's folder."),
    click.option(
        "--lang", multiple=True, default=("python",), help="A reader: python, which is always included, or cpp."
    ),
    click.option(
        "--form",
        "forms",
        multiple=True,
        help="Forms and engines, the preferred one first.  [default: ort_cpu, or what the layout reads]",
    ),
    click.option("--layout", default="", help="Lay the files out for what reads them instead: triton, ovms or hub."),
    click.option("--sign", type=FOLDER, help="An Ed25519 private key (PEM) outside of both folders."),
    click.option("--unverified", is_flag=True, help="Accept forms whose parity was not run; the bundle says so."),
    click.option("--force", is_flag=True, help="Replace a bundle even if its files were changed."),
)


def bundle_options(work: F) -> F:
    """FOLDER and every option of `bundle`."""
    return _with(work, _BUNDLE_OPTIONS)


def check_together(folder: Path | None, compare: tuple[tuple[Path, Path], ...], fail_on_regression: bool) -> None:
    """Refuses combinations of options that make no sense.

    Raises:
        click.UsageError: neither or both of FOLDER and --compare are given, --fail-on-regression is without --compare,
            or --compare is with an option for measuring.
    """
    if not compare:
        if folder is None:
            raise click.UsageError("Missing argument 'FOLDER' (or --compare BEFORE AFTER).")
        if fail_on_regression:
            raise click.UsageError("--fail-on-regression goes with --compare BEFORE AFTER.")
        return
    if folder is not None:
        raise click.UsageError(f"--compare measures nothing, so it takes no folder; got {folder}.")
    context = click.get_current_context()
    for parameter in context.command.params:
        name = parameter.name or ""
        if name in _WITH_COMPARE or context.get_parameter_source(name) != click.core.ParameterSource.COMMANDLINE:
            continue
        raise click.UsageError(f"--compare measures nothing, so it takes no {parameter.opts[0]}.")


_GPU_OPTIONS = (
    click.option("-o", "--output", type=FOLDER, default=Path("benchmarks"), show_default=True, help="gpu-NAME.json."),
    click.option(
        "--work", type=FOLDER, default=Path("out/gpu-check"), show_default=True, help="Artifacts, several GB; kept."
    ),
    click.option("--only", multiple=True, help="A model, bert_encoder or llama_decoder; default: both."),
    click.option("--dtype", "dtypes", multiple=True, help="A precision plan, fp16, bf16 or fp32; default: fp16, bf16."),
    click.option("--runtime", "runtimes", multiple=True, help="A runtime; default: all but torch_compile_tuned_cuda."),
    click.option(
        "--shape", "shapes", multiple=True, help='With one --only: other calls, "batch=8,seq=512"; grids as in bench.'
    ),
    click.option(
        "--budget", type=click.FloatRange(min=0, min_open=True), help="Seconds; what is not done by then is left."
    ),
    click.option(
        "--cold/--no-cold",
        default=True,
        show_default=True,
        help="Measure load, first call and memory in new processes.",
    ),
    click.option("--threads", type=click.IntRange(min=1), help="Threads on the host; default: the physical cores."),
    click.option("--force", is_flag=True, help="Measure again what was measured before."),
)


def gpu_options(work: F) -> F:
    """Every option of `gpu-check`."""
    return _with(work, _GPU_OPTIONS)


def _with(work: F, options: Sequence[Callable[[F], F]]) -> F:
    for option in reversed(options):
        work = option(work)
    return work
