"""Files judged where they run: in node, in Chromium by WebAssembly, and by WebGPU."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import ROOT, Vectors, missing
from programs import HERE, ran

from attnport.errors import ParityFailed, UsageError
from attnport.folder.workspace import open_folder
from attnport.runtimes import base
from attnport.runtimes._javascript import Chromium
from attnport.verbs.bench import bench
from attnport.verbs.build import build
from attnport.verbs.bundle import bundle
from attnport.verbs.check import check
from attnport.verbs.export import export
from attnport.verbs.fuse import fuse

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.fixture(autouse=True)
def _packages(node_modules: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NODE_PATH", str(node_modules / "node_modules"))
    for name in ("ort_node", "ort_web"):
        if not (found := base.get(name).probe()).available:
            missing(found.reason)


def test_numbers_are_within_the_bound(tiny_artifact: Path) -> None:
    report = check(tiny_artifact, ["ort_node", "ort_web", "ort_webgpu"])
    assert {name: report.runtimes[name].verdict for name in ("ort_node", "ort_web")} == {
        "ort_node": "PASS",
        "ort_web": "PASS",
    }
    on_gpu = report.runtimes.get("ort_webgpu")
    assert on_gpu.verdict == "PASS" if on_gpu is not None else "adapter" in report.absent["ort_webgpu"]
    ran_in = report.runtimes["ort_web"].ran
    assert ran_in is not None
    assert "wasm, Chrom" in ran_in.provider


def test_what_a_gpu_leaves_to_the_processor_is_named(tiny_artifact: Path) -> None:
    runtime, manifest = base.get("ort_webgpu"), open_folder(tiny_artifact)
    found = runtime.probe()
    if not found.available:
        assert "adapter" in found.reason  # Chromium brings its own, where the machine lets it
        pytest.skip(found.reason)
    with contextlib.closing(runtime.open(base.Opening(manifest.io, model=tiny_artifact / "model.onnx"))) as session:
        # onnxruntime-web 1.30 has kernels of WebGPU for products and norms, and none for the standard's Attention.
        told = session.ran.provider.partition("; on the CPU: ")[2]
        assert re.search(r"\d+ Attention \(", told)
        assert "MatMul" not in told
        assert "LayerNormalization" not in told


def test_times_are_those_of_the_calls_alone(tiny_artifact: Path) -> None:
    runtime, manifest = base.get("ort_web"), open_folder(tiny_artifact)
    session: Any = runtime.open(base.Opening(manifest.io, model=tiny_artifact / "model.onnx", threads=1))
    feeds = base.usual_feeds(manifest.io)
    session.run(feeds)
    began_ns = time.perf_counter_ns()
    session.run(feeds)
    with_the_way_there_ns = time.perf_counter_ns() - began_ns
    assert 0 < session.last_ns < with_the_way_there_ns
    assert session.peak_bytes() > 10 << 20
    session.close()
    report = bench(tiny_artifact, ["ort_web", "torch_eager"], shapes=["batch=2,seq=8"], budget_s=5.0)
    assert all(row.median_ns for rows in report.shapes.values() for row in rows.values())


def test_a_model_that_it_cannot_open_is_an_error_with_its_words(tiny_artifact: Path) -> None:
    import onnx

    model = onnx.load(tiny_artifact / "model.onnx")
    model.graph.node[0].op_type = "NoSuchOperator"
    onnx.save(model, tiny_artifact / "other.onnx")
    for name in ("ort_node", "ort_web"):
        with pytest.raises(Exception, match="NoSuchOperator"):
            base.get(name).open(base.Opening(open_folder(tiny_artifact).io, model=tiny_artifact / "other.onnx"))


def test_chromium_ends_with_the_process_that_started_it(tmp_path: Path, tiny_artifact: Path) -> None:
    program = (
        "import sys, time\nfrom pathlib import Path\nfrom attnport.folder.workspace import open_folder\n"
        "from attnport.runtimes import base\nfolder = Path(sys.argv[1])\n"
        "session = base.get('ort_web').open(base.Opening(open_folder(folder).io, model=folder / 'model.onnx'))\n"
        "print('open', flush=True)\ntime.sleep(600)\n"
    )
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    child = subprocess.Popen(
        [sys.executable, "-c", program, str(tiny_artifact)], env=environment, stdout=subprocess.PIPE, text=True
    )
    with child:
        assert child.stdout is not None
        assert child.stdout.readline() == "open\n"
        assert of_profile(tmp_path)
        child.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 30
    while of_profile(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not of_profile(tmp_path)


def of_profile(folder: Path) -> list[str]:
    """The processes of Chromium whose profile lies in a folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes()
        except OSError:
            continue
        if b"chrom" in words and str(folder).encode() in words:
            found.append(path.parent.name)
    return found


def test_transformers_js_reads_the_layout(
    out: Path, node_modules: Path, texts: list[str], wanted: Vectors, tmp_path: Path
) -> None:
    web = bundle(out, tmp_path / "web", layout="web")
    got = np.asarray(json.loads(ran(["node", HERE / "embed.mjs", node_modules, web], texts)))
    assert got.shape == wanted.shape
    assert float(np.abs(got - wanted).max()) < 1e-6


def test_transformers_js_reads_half_precision(
    out: Path, node_modules: Path, texts: list[str], wanted: Vectors, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(out, tmp_path / "out"))
    fuse(folder, targets=["ort_cpu"], precision="fp16")
    check(folder, ["ort_cpu"], precision="fp16")
    web = bundle(folder, tmp_path / "web", layout="web")
    files = {path.name: path.stat().st_size for path in (web / "onnx").iterdir()}
    assert files["model_fp16.onnx"] < 0.51 * files["model.onnx"]
    got = np.asarray(json.loads(ran(["node", HERE / "embed.mjs", node_modules, web, "fp16"], texts)))
    assert 1e-6 < float(np.abs(got - wanted).max()) < 1e-3


def test_transformers_js_reads_four_bits_with_half_precision(
    out: Path, node_modules: Path, texts: list[str], wanted: Vectors, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(out, tmp_path / "out"))
    build(folder, "ort_cpu", "int4_fp16", text=ROOT / "examples" / "sentences.txt", max_drop="3%")
    check(folder, ["ort_cpu"])
    web = bundle(folder, tmp_path / "web", layout="web")
    files = {path.name: path.stat().st_size for path in (web / "onnx").iterdir()}
    assert files["model_q4f16.onnx"] < 0.36 * files["model.onnx"]
    got = np.asarray(json.loads(ran(["node", HERE / "embed.mjs", node_modules, web, "q4f16"], texts)))
    assert float(np.abs(got - wanted).max()) > 1e-3
    assert float((got * wanted).sum(-1).min()) > 0.85


def decoder(config: Any, minilm: Path, folder: Path) -> Path:
    """A tiny decoder of transformers with MiniLM's tokenizer."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    sizes = {"vocab_size": 30522, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    made = config(**sizes, num_attention_heads=4, num_key_value_heads=2, bos_token_id=101, eos_token_id=102)
    AutoModelForCausalLM.from_config(made).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(minilm / name, folder / name)
    return folder


def test_transformers_js_generates_with_a_cache(
    node_modules: Path, minilm: Path, texts: list[str], tmp_path: Path
) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig

    source, folder = decoder(LlamaConfig, minilm, tmp_path / "llama"), tmp_path / "out"
    export(f"hf:{source}", folder, with_past=True)
    fuse(folder, targets=["ort_cpu"])
    check(folder, ["ort_cpu"])
    fuse(folder, targets=["ort_cpu"], precision="fp16")
    check(folder, ["ort_cpu"], precision="fp16")
    web = bundle(folder, tmp_path / "web", layout="web")
    got, half = (
        json.loads(ran(["node", HERE / "generate.mjs", node_modules, web, dtype], texts[:3]))
        for dtype in ("fp32", "fp16")
    )
    tokens = AutoTokenizer.from_pretrained(source, trust_remote_code=False)(
        texts[:3], padding=True, padding_side="left", return_tensors="pt"
    )
    tokens.pop("token_type_ids", None)
    with torch.no_grad():
        rows = AutoModelForCausalLM.from_pretrained(source, trust_remote_code=False).generate(
            **tokens, max_new_tokens=12, do_sample=False
        )
    assert got == rows[:, tokens["input_ids"].shape[1] :].tolist()
    assert len({token for row in got for token in row}) > 12  # and not one token again and again
    assert np.mean(np.equal(got, half)) > 0.8  # some scores of random weights are almost equal


def test_a_decoder_with_a_window_is_refused(minilm: Path, tmp_path: Path) -> None:
    from transformers import MistralConfig

    def windowed(**settings: Any) -> MistralConfig:
        return MistralConfig(**settings, sliding_window=8)

    source, folder = decoder(windowed, minilm, tmp_path / "mistral"), tmp_path / "out"
    export(f"hf:{source}", folder, with_past=True)
    fuse(folder, targets=["ort_cpu"])
    check(folder, ["ort_cpu"])
    with pytest.raises(UsageError, match="hold all tokens"):
        bundle(folder, tmp_path / "web", layout="web")


def test_what_the_page_shows_runs(out: Path, node_modules: Path, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "web.md").read_text("utf-8")
    (tmp_path / "out").mkdir()
    shutil.copytree(out, tmp_path / "out" / "minilm")
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    commands = re.findall(r"^attnport .*$", page, re.MULTILINE)
    assert len(commands) == 4
    for command in commands:
        _, *arguments = command.split()
        quick = ["--budget", "5"] if arguments[0] == "bench" else []
        inside(tmp_path, sys.executable, "-m", "attnport.cli", *arguments, *quick)
    program, _ = re.findall(r"^```js\n(.*?)^```", page, re.DOTALL | re.MULTILINE)  # test_web_reader.py has the other
    (tmp_path / "node_modules").symlink_to(node_modules / "node_modules")
    printing = "\nconsole.log(JSON.stringify(vectors.dims));\n"
    (tmp_path / "page.mjs").write_text(program.replace("'/models/'", "'web'") + printing)
    assert json.loads(inside(tmp_path, "node", "page.mjs").splitlines()[-1]) == [1, 384]


def inside(folder: Path, *command: str) -> str:
    """What a command prints that is run in a folder."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_a_file_that_computes_something_else_in_the_browser_is_not_written(
    out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = Chromium.ask

    def off(self: Chromium, op: str, arrays: Any = None, **fields: Any) -> Any:
        answer, outputs = honest(self, op, arrays, **fields)
        return answer, {name: array + np.float32(0.01) for name, array in outputs.items()}

    monkeypatch.setattr(Chromium, "ask", off)
    with pytest.raises(ParityFailed, match="onnxruntime-web computes other numbers"):
        bundle(out, tmp_path / "web", layout="web")
    assert not (tmp_path / "web").exists()


def test_a_form_that_transformers_js_does_not_read_is_refused(out: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="layout web"):
        bundle(out, tmp_path / "web", layout="web", forms=["openvino"])
