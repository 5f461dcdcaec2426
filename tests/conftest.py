"""Fixtures that several folders of tests share."""

from __future__ import annotations

import atexit
import contextlib
import copy
import functools
import gc
import importlib
import os
import shutil
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import pytest

from attnport.artifacts import FORMAT, Form, Manifest
from attnport.folder.loading import require
from attnport.folder.workspace import create

HERE = Path(__file__).parent
LONG = ("cpp", "decoding", "door", "exporter", "contract", "parity", "latency", "verbs")
WORDS = ("the", "a", "cat", "dog", "sat", "ran", "on", "under", "mat", "tree", "quick", "slow", "red", "blue")


def _stay_on_own_processors() -> None:
    """Gives each of the parallel runs of tests its own processors.

    If the threads of two runs wait for the same processors, both runs take two to three times as long: OpenMP's threads
    keep a processor busy while they wait. `tools/test_all.py` sets ATTNPORT_TEST_RUN to "number/runs".
    """
    worker = os.environ.get("PYTEST_XDIST_WORKER", "").removeprefix("gw")
    given = f"{worker}/{os.environ['PYTEST_XDIST_WORKER_COUNT']}" if worker.isdecimal() else ""
    number, _, runs = (os.environ.get("ATTNPORT_TEST_RUN") or given or "0/1").partition("/")
    if hasattr(os, "sched_setaffinity"):
        usable = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, set(usable[int(number) :: int(runs)]) or set(usable))


_stay_on_own_processors()  # before a library counts the processors
os.environ["HF_HUB_OFFLINE"] = "1"  # no test downloads, and a request without a network takes minutes to fail

# What `attnport.folder.loading` records lies in a folder of this run's own; set before any file of tests copies the
# environment for its child processes.
_STATE = tempfile.TemporaryDirectory(prefix="attnport-tests-state-")
atexit.register(_STATE.cleanup)
os.environ["XDG_STATE_HOME"] = _STATE.name

if str(HERE) not in sys.path:
    sys.path.insert(0, str(HERE))  # so that a child process and a SPEC find the same tiny_model


_probed: dict[object, Any] = {}
"""What probes found in processes of their own, by all that such a process is given."""


@pytest.fixture(autouse=True)
def _probes_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests pretend to have other machines and runtimes: what is found in this process is neither kept nor believed.

    A process of its own knows nothing of what is pretended here but by its environment: its answer is asked for once.
    """
    isolated = sys.modules.get("attnport.processes.isolated")
    if isolated is None:
        return
    monkeypatch.setattr(isolated, "kept_probe", lambda runtime: None)
    monkeypatch.setattr(isolated, "keep_probe", lambda found: None)
    probe = isolated._probed

    def once(runtime: Any, limits: Any) -> Any:
        if not runtime.isolated and not limits.every:
            return probe(runtime, limits)
        child = sys.modules["attnport.processes.isolated"]
        environment = tuple(sorted(item for item in os.environ.items() if item[0] != "PYTEST_CURRENT_TEST"))
        given = (type(runtime), type(runtime).probe, type(limits).start, isolated.Child, child.WORKER, limits)
        key = (*given, environment, tuple(sys.path), Path.cwd())
        found = _probed.get(key) or probe(runtime, limits)
        if not found.failed:
            _probed[key] = found
        return found

    monkeypatch.setattr(isolated, "_probed", once)


@pytest.fixture
def idle(monkeypatch: pytest.MonkeyPatch) -> None:
    """The processes that `bench` starts run nothing, see `idle_worker`: a runtime's own take seconds to start."""
    from attnport.latency import measuring

    monkeypatch.setattr(measuring, "WORKER", (str(HERE / "idle_worker.py"),))


@pytest.fixture
def unconfined(monkeypatch: pytest.MonkeyPatch) -> None:
    """`audit`, and `export` of a file of ONNX, work in this process: one of their own takes seconds to import PyTorch.

    What limits the process is tested by `tests/attacks`.
    """
    from attnport.folder.refusals import as_attnport_error

    def here(verb: str, what: str, files: Any, *limits: Any, **arguments: Any) -> Any:
        *_, listeners = limits
        try:
            return sys.modules[f"attnport.verbs.{verb}"]._carry_out(arguments, listeners)
        except Exception as err:  # as the process would tell it
            if (known := as_attnport_error(err)) is None:
                raise
            raise known from err

    for verb in ("audit", "export"):
        monkeypatch.setattr(importlib.import_module(f"attnport.verbs.{verb}"), "confined", here)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts folders of long files first: with many short ones at the end, parallel runs end at about the same time."""

    def place(item: pytest.Item) -> int:
        folder = item.path.relative_to(HERE).parts[0] if item.path.is_relative_to(HERE) else ""
        return LONG.index(folder) if folder in LONG else len(LONG)

    items.sort(key=place)


def pytest_collection_finish() -> None:
    """Makes exports take a third less, where tests export again and again in one process.

    The collector looks at what the imports made no more, and more rarely at the rest; torch's exporter is given the
    table of ONNX functions that the first export made. It parses the source of 500 functions to make one.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    if "torch" in sys.modules:
        with contextlib.suppress(ImportError, AttributeError):  # another version of torch has it elsewhere
            from torch.onnx._internal.exporter._registration import ONNXRegistry

            made = functools.cache(ONNXRegistry.from_torchlib)
            ONNXRegistry.from_torchlib = classmethod(lambda cls, **given: _copied(made(**given)))


def _copied(registry: Any) -> Any:
    """A registry to which an export may add functions of its own."""
    copied = copy.copy(registry)
    copied.functions = {target: list(known) for target, known in registry.functions.items()}
    return copied


@pytest.fixture(scope="session")
def _tiny_exported() -> Path:
    """A folder as a user would have it: exported, one form a target (each as exported), a tokenizer."""
    from kept import kept_folder
    from loaded import load

    spec = load(f"{HERE / 'tiny_model.py'}:spec")
    require(spec.source, given=True)
    return kept_folder("tiny_exported", functools.partial(_export_tiny, spec)) / "tiny"


def _export_tiny(spec: Any, folder: Path) -> None:
    import tiny_model
    import tokenizers
    import torch

    assert spec.io == tiny_model.IO
    folder = folder / "tiny"
    sample = (torch.ones(2, 5, dtype=torch.int64), torch.ones(2, 5, dtype=torch.int64))
    dynamic = {dim.name: torch.export.Dim(dim.name, min=1, max=dim.max) for dim in spec.io.dims}
    axes = {0: dynamic["batch"], 1: dynamic["seq"]}
    names = [[one.name for one in side] for side in (spec.io.inputs, spec.io.outputs)]
    tokenizer = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({"[PAD]": 0, "[UNK]": 1, **{w: i + 2 for i, w in enumerate(WORDS)}}, "[UNK]")
    )
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    files = {"onnx": "model.onnx", "ort_cpu": "model.ort_cpu.onnx", "openvino": "model.openvino.onnx"}
    forms = {target: Form(target, "fp32", file, 23) for target, file in files.items()}
    forms["tensorrt_rtx"] = Form("tensorrt_rtx", "fp16", "model.tensorrt_rtx.fp16.onnx", 23)
    manifest = Manifest(FORMAT, "0", spec.name, spec.source, spec.io, 23, (), "tokenizer.json", {}, {}, forms=forms)
    with create(folder, manifest) as edit, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's exporter warns about itself
        for file, module in (("model.onnx", spec.make()), ("model.tensorrt_rtx.fp16.onnx", spec.make().half())):
            torch.onnx.export(
                module,
                sample,
                str(edit.path(file)),
                dynamo=True,
                opset_version=23,
                input_names=names[0],
                output_names=names[1],
                dynamic_shapes=(axes, axes),
                external_data=False,
                verbose=False,
            )
        for target in ("ort_cpu", "openvino"):
            shutil.copy(edit.path("model.onnx"), edit.path(f"model.{target}.onnx"))
        tokenizer.save(str(edit.path("tokenizer.json")))
        edit.finish("export", "by hand")


@pytest.fixture
def tiny_artifact(_tiny_exported: Path, tmp_path: Path) -> Path:
    """A copy of a small exported artifact folder that a test may change."""
    return Path(shutil.copytree(_tiny_exported, tmp_path / "tiny"))
