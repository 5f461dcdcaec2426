"""Every model type of the installed transformers through `attnport export`, and through other exporters.

    python benchmarks/sweep_hf.py [TYPE ...] [--side SIDE] [--again wrong|older|all] [--jobs 2]

A type is made tiny, with random weights (`tiny_hf.py`), and saved as a folder. Each side makes a graph of it, which
ONNX Runtime runs at five sets of sizes; the numbers are compared with the transformers module itself. A type whose
heads can share keys and values, or that has windows, is made a second time, the other way about. A type that generates
text is also exported with its cache, and its tokens are compared. The side `engine` builds an engine of TensorRT-RTX,
which needs no GPU, and runs none. Each side of each type has a process of its own, with
one processor and a limit of memory and time. Results are kept in `sweep_hf.json` with the versions of the packages and
a digest of the code: what was measured with these versions is not measured again, unless `--again` says so.
`docs/make_models.py` makes the page of it.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import functools
import hashlib
import importlib
import importlib.metadata
import io
import json
import os
import pkgutil
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path[:0] = [str(HERE), str(ROOT)]

from sweep_contract import compared, of_contract  # noqa: E402  # it lies beside this file
from sweep_generate import class_of, compared_tokens  # noqa: E402  # it lies beside this file
from sweep_judge import wrong  # noqa: E402  # it lies beside this file
from tiny_configs import has_other  # noqa: E402  # it lies beside this file

RESULTS = HERE / "sweep_hf.json"
MEMORY_BYTES = 10 << 30
PATIENCE = 20
"""How many times its limit of the processor's seconds a process may take by the clock."""
PACKAGES = ("torch", "transformers", "onnx", "onnxscript", "onnxruntime")

USUAL = (HERE / "usual_types.txt").read_text("utf-8").split()
"""The types that most users have; they come first."""


def main() -> None:
    """Measures what is asked for and not yet known, and prints a line each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("types", nargs="*", help="types; without any, all of them, the usual ones first")
    parser.add_argument("--side", choices=SIDES, action="append", help="one side alone")
    parser.add_argument(
        "--again",
        choices=("wrong", "older", "all"),
        help="measure again what is known: what is not right, what was measured with other code, or all",
    )
    parser.add_argument("--usual", action="store_true", help="only the usual types")
    parser.add_argument("--to", type=Path, default=RESULTS, help="the file of results")
    parser.add_argument("--limit-s", type=int, default=180)
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="types at a time")
    given = parser.parse_args()
    preload()
    for side in SIDES:
        digest(side)
    import tiny_hf

    known = tiny_hf.types()
    named = given.types or [*(kind for kind in USUAL if kind in known), *(() if given.usual else known)]
    wanted = {kind: known[kind] for kind in named}
    processors = sorted(os.sched_getaffinity(0))
    workers = []
    for number in range(given.jobs):
        if worker := os.fork():
            workers.append(worker)
            continue
        # Threads of two runs that wait for the same processors make both of them twice as slow.
        os.sched_setaffinity(0, set(processors[number :: given.jobs]) or set(processors))
        measure(dict(list(wanted.items())[number :: given.jobs]), given)
        os._exit(0)
    for worker in workers:
        os.waitpid(worker, 0)


def measure(wanted: Mapping[str, str], given: argparse.Namespace) -> None:
    """Measures the types of one worker."""
    for kind, class_name in wanted.items():
        for side in given.side or SIDES:
            wanted_class = class_of(kind) if side == CACHED else class_name
            if wanted_class is None or (side == OTHER and not has_other(kind)):
                continue
            known = read(given.to).get(kind, {}).get(side)
            if not due(known, digest(side), given.again or ("all" if given.types else None)):
                continue
            result = measured(functools.partial(SIDES[side], kind, wanted_class), given.limit_s)
            with locked(given.to.parent):  # the other workers write too
                found = read(given.to)
                found.setdefault(kind, {})[side] = {**result, "of": digest(side)}
                write(given.to, found)
            print(line(kind, side, result), flush=True)


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keeps other processes that lock this folder waiting."""
    held = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield
    finally:
        os.close(held)


def line(kind: str, side: str, result: Mapping[str, Any]) -> str:
    """A result as it is printed."""
    said = "right" if result["right"] else result["reason"][:200]
    fused = f" {result['fused']}/{result['attentions']}" if result.get("attentions") is not None else ""
    return f"{kind:28} {side:9} {result['processor_s']:5.0f} s{fused}  {said}"


def due(result: Mapping[str, Any] | None, of: str, again: str | None) -> bool:
    """Whether a side is to be measured: it is not known, or known of other versions, or asked for again."""
    if result is None or again == "all" or (again == "wrong" and not result["right"]):
        return True
    if again == "older":
        return bool(result["of"] != of)
    return bool(result["of"].rpartition(" ")[0] != of.rpartition(" ")[0])  # the last word is that of the code


@functools.cache  # the code that was imported, also if files change meanwhile
def digest(side: str) -> str:
    """What a result depends on, as text: versions, and the digest of the code."""
    files = [HERE / f"{name}.py" for name in ("tiny_configs", "tiny_hf", "tiny_inputs", "sweep_judge", "sweep_hf")]
    if side not in ("torch", "exporters"):
        files = sorted((ROOT / "attnport").rglob("*.py")) + sorted((ROOT / "attnport_bundle").rglob("*.py")) + files[:4]
    code = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:12]
    return " ".join([f"{name} {importlib.metadata.version(name)}" for name in PACKAGES] + [code])


def read(path: Path) -> dict[str, Any]:
    """The results by type and side."""
    return json.loads(path.read_text("utf-8")) if path.is_file() else {}


def write(path: Path, found: Mapping[str, Any]) -> None:
    """Writes the results, a line for each type, all at once."""
    lines = [f"{json.dumps(kind)}: {json.dumps(found[kind], sort_keys=True)}" for kind in sorted(found)]
    beside = path.with_suffix(".tmp")
    beside.write_text("{\n" + ",\n".join(lines) + "\n}\n", "utf-8")
    beside.replace(path)


def preload() -> None:
    """Imports what every process needs once; they are forked from here."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ["OMP_NUM_THREADS"] = "1"
    warnings.simplefilter("ignore")
    import onnxruntime
    import onnxscript  # noqa: F401
    import torch
    import transformers

    import attnport

    for module in pkgutil.walk_packages(attnport.__path__, "attnport."):  # as the code is now, whatever is edited later
        if not module.name.endswith("__main__"):
            with contextlib.suppress(ImportError):  # of a runtime that is not installed
                importlib.import_module(module.name)

    torch.set_num_threads(1)
    onnxruntime.set_default_logger_severity(4)
    transformers.utils.logging.set_verbosity_error()


def measured(task: Callable[[], dict[str, Any]], limit_s: int) -> dict[str, Any]:
    """What one side makes of one type, in a process of its own, and the processor's seconds.

    Args:
        task: Makes the result.
        limit_s: The most seconds of the processor, which other work on the machine does not change.
    """
    began = time.monotonic()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.setsid()
        os.close(reading)
        _child(writing, task, limit_s)
    os.close(writing)
    text, late = _read_until(reading, began + PATIENCE * limit_s)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    _, status, used = os.wait4(child, 0)
    late = late or (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGXCPU)
    if text:
        result = json.loads(text)
    else:
        reason = f"it took more than {limit_s} s" if late else f"its process ended with status {status}"
        result = {"made": True, "exported": False, "right": False, "reason": reason}
    return {**result, "processor_s": round(used.ru_utime + used.ru_stime, 1)}


def _child(writing: int, task: Callable[[], dict[str, Any]], limit_s: int) -> None:
    """Runs a task in this forked process, and never returns."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (limit_s, limit_s + 1))
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 1)
    os.dup2(silent, 2)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            result = task()
    except BaseException as err:  # whatever it is, it is this type's result
        result = {"made": True, "exported": False, "right": False, "reason": told(err)}
    os.write(writing, json.dumps(result).encode())
    os._exit(0)


def _read_until(reading: int, until: float) -> tuple[str, bool]:
    """What a process wrote before it ended, and whether time was up."""
    import select

    parts: list[bytes] = []
    late = True
    while (rest := until - time.monotonic()) > 0:
        if select.select([reading], [], [], rest)[0]:
            part = os.read(reading, 1 << 16)
            if not part:
                late = False
                break
            parts.append(part)
    os.close(reading)
    return b"".join(parts).decode(), late


def told(err: BaseException) -> str:
    """An error and its first cause, and the last line of attnport that was running, in one line."""
    cause = err
    while cause.__cause__ is not None:
        cause = cause.__cause__
    words = [f"{type(err).__name__}: {' '.join(str(err).split())[:300]}"]
    if cause is not err:
        words.append(f"{type(cause).__name__}: {' '.join(str(cause).split())[:400]}")
    frames = [frame for frame in traceback.extract_tb(err.__traceback__) if "/attnport/" in frame.filename]
    words += [f"[{Path(frames[-1].filename).name}:{frames[-1].lineno}]"] if frames else []
    return re.sub(r"\x1b\[\d+m|/\S+/(?=[\w.-]+)", "", " <- ".join(words))  # no colours, no folders of this machine


# --- the sides --------------------------------------------------------------------------------------------------------


def torch_alone(kind: str, class_name: str) -> dict[str, Any]:
    """torch.onnx.export with the shapes by hand, at opset 23 and at its own; the better of both."""
    import torch

    def export(made: Any, path: Path, **opset: int) -> None:
        given = {"kwargs": feeds_of(made, made.sizes[0]), "dynamic_shapes": shapes_of(made), **opset}
        torch.onnx.export(made.model, (), str(path), dynamo=True, verbose=False, **given)

    return _better(kind, class_name, [functools.partial(export, opset_version=23), export])


def by_transformers(kind: str, class_name: str) -> dict[str, Any]:
    """`transformers.exporters` with every axis automatic, and with the shapes by hand; the better of both."""
    from transformers.exporters import OnnxConfig, OnnxExporter

    def export(made: Any, path: Path, *, automatic: bool) -> None:
        config = OnnxConfig(dynamic=True, dynamic_shapes=None if automatic else shapes_of(made))
        exporter = OnnxExporter()
        program, _ = exporter.export_program(made.model, dict(feeds_of(made, made.sizes[0])), config)
        exporter.save_program(program, path)

    return _better(kind, class_name, [functools.partial(export, automatic=True),
                                      functools.partial(export, automatic=False)])  # fmt: skip


def shapes_of(made: Any) -> dict[str, dict[int, Any]]:
    """The dims of a tiny model's inputs that vary among its sizes, as torch takes them."""
    import torch

    varied = {name for name in made.sizes[0] if len({sizes[name] for sizes in made.sizes}) > 1}
    return {
        one.name: {axis: torch.export.Dim.AUTO for axis, dim in enumerate(one.dims) if dim in varied}
        for one in made.inputs
    }


def _better(kind: str, class_name: str, ways: Sequence[Callable[[Any, Path], None]]) -> dict[str, Any]:
    """The result of the first way to write a graph of a type that is right, or else of the first way."""
    import torch

    with tiny(kind, class_name) as (made, _, failure):
        if failure:
            return failure
        first: dict[str, Any] = {}
        inputs = {"inputs": [f"{one.name}{list(one.dims)}" for one in made.inputs]}
        for export in ways:
            result = {"made": True, "exported": False, "right": False, "reason": "", **inputs}
            try:
                with tempfile.TemporaryDirectory() as folder, torch.no_grad():
                    path = Path(folder) / "model.onnx"
                    export(made, path)
                    result["exported"] = True
                    result["reason"] = wrong(path, made.model, [feeds_of(made, sizes) for sizes in made.sizes])
            except Exception as err:  # whatever the exporter raises
                result["reason"] = told(err)
            result["right"] = not result["reason"]
            if result["right"]:
                return result
            first = first or result
            if "TorchExportError" in result["reason"]:  # no graph, in any way
                break
        return first


def through_attnport(kind: str, class_name: str, *, other: bool = False) -> dict[str, Any]:
    """`attnport export hf:FOLDER` and `attnport fuse`, without a flag; with `--input` only if no inputs are found.

    Where random values do not fit what is declared, it is given examples, as torch.onnx alone always is.
    """
    from attnport.verbs.fuse import fuse

    def compare(made: Any, folder: Path, result: dict[str, Any]) -> str:
        out = folder / "out"
        manifest = exported(made, folder, out, result)
        result["inputs"] = [str(one) for one in manifest.io.inputs]
        result["fixed"] = [f"{dim.name}={dim.max}" for dim in manifest.io.dims if dim.min == dim.max]
        table = fuse(out, targets=["ort_cpu"]).targets["ort_cpu"]
        result.update(attentions=table.attentions, fused=table.fused)
        result["reasons"] = sorted({str(item.reason) for item in table.items if not item.fused})[:3]
        values = [
            {**(feeds_of(made, sizes) if "declared" in result else {}), **of_contract(manifest.io, made, sizes)}
            for sizes in made.sizes
        ]
        return wrong(out / "model.ort_cpu.onnx", made.model, values, compared(manifest.io.outputs))

    return _compared(kind, class_name, compare, other=other)


def exported(made: Any, folder: Path, out: Path, result: dict[str, Any]) -> Any:
    """The manifest of a tiny model's export; the result says how its inputs were found."""
    from attnport.errors import SpecError
    from attnport.verbs.export import export

    try:
        manifest = export(f"hf:{folder / 'model'}", out)
    except SpecError as err:
        if "--input" not in err.hint:
            raise
        result["declared"] = [one.declared() for one in made.inputs]
        used = {dim: [sizes[dim] for sizes in made.sizes] for one in made.inputs for dim in one.dims
                if isinstance(dim, str)}  # fmt: skip
        dims = [f"{dim}={min(sizes)}:{sizes[0]}:{max(sizes)}" for dim, sizes in used.items()]
        try:
            manifest = export(f"hf:{folder / 'model'}", out, inputs=result["declared"], dims=dims)
        except SpecError:  # random values do not fit its inputs
            result["examples"] = True
            manifest = export(f"hf:{folder / 'model'}", out, kwargs=feeds_of(made, made.sizes[0]))
    result["exported"] = True
    return manifest


def with_cache(kind: str, class_name: str) -> dict[str, Any]:
    """`attnport export hf:FOLDER --with-past` and `attnport fuse`, and tokens of `attnport generate`."""
    return _compared(kind, class_name, compared_tokens)


def _compared(
    kind: str, class_name: str, compare: Callable[[Any, Path, dict[str, Any]], str], *, other: bool = False
) -> dict[str, Any]:
    """The result of a type, with what `compare` adds to it; that returns what is wrong, or ""."""
    with tiny(kind, class_name, other=other) as (made, folder, failure):
        if failure:
            return failure
        result: dict[str, Any] = {"made": True, "exported": False, "right": False, "reason": ""}
        try:
            result["reason"] = compare(made, folder, result)
        except Exception as err:  # a bug of attnport is a result too
            result["reason"] = told(err)
        result["right"] = not result["reason"]
        return result


def on_other_config(kind: str, class_name: str) -> dict[str, Any]:
    """The same on the type's other config: heads that share keys and values where they did not, other windows."""
    return through_attnport(kind, class_name, other=True)


def as_engine(kind: str, class_name: str) -> dict[str, Any]:
    """`attnport export hf:FOLDER` and `attnport build --target tensorrt_rtx` in fp16, without a GPU; none is run.

    Right = it was built, and one kernel covers each attention by the engine's own text. Inputs as `through_attnport`.
    """
    from attnport.verbs.build import build

    def compare(made: Any, folder: Path, result: dict[str, Any]) -> str:
        out = folder / "out"
        exported(made, folder, out, result)
        record, table = build(out, "tensorrt_rtx")
        result.update(attentions=table.attentions, fused=table.fused, version=record.version)
        result.update(bytes=record.size_bytes, scratch_bytes=record.scratch_bytes)
        return "; ".join(sorted({f"not fused: {item.reason}" for item in table.items if not item.fused})[:3])

    return _compared(kind, class_name, compare)


CACHED, OTHER, ENGINE = "cached", "other", "engine"
SIDES: dict[str, Callable[[str, str], dict[str, Any]]] = {
    "torch": torch_alone,
    "exporters": by_transformers,
    "attnport": through_attnport,
    OTHER: on_other_config,
    CACHED: with_cache,
    ENGINE: as_engine,
}


@contextlib.contextmanager
def tiny(kind: str, class_name: str, *, other: bool = False) -> Iterator[tuple[Any, Path, dict[str, Any]]]:
    """The type made tiny, as it is after having been saved, its folder, and the result if that fails."""
    import tiny_hf
    import transformers

    folder = Path(tempfile.mkdtemp(prefix=f"{kind}-"))
    try:
        try:
            made = tiny_hf.make(kind, class_name, other=other)
            tiny_hf.save(made, folder / "model")
            cls = getattr(transformers, class_name)
            made.model = cls.from_pretrained(folder / "model", dtype="float32", trust_remote_code=False).eval()
            if getattr(made.model.config, "use_cache", None):
                made.model.config.use_cache = False
            tiny_hf.run(made.model, feeds_of(made, made.sizes[0]))
        except Exception as err:  # whatever a config or a model raises
            yield None, folder, {"made": False, "exported": False, "right": False, "reason": told(err)}
            return
        yield made, folder, {}
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def feeds_of(made: Any, sizes: Mapping[str, int]) -> dict[str, Any]:
    """The inputs of a tiny model at these sizes."""
    import tiny_hf

    return tiny_hf.feeds(made.inputs, sizes)


if __name__ == "__main__":
    main()
