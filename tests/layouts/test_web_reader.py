"""The reader of bundles in TypeScript: vectors, scores, words and refusals are those of the reader in Python."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import ROOT, missing
from programs import HERE, ran

from attnport.runtimes._javascript import CHROMIUM
from attnport.verbs.bundle import bundle
from attnport_bundle import load
from attnport_bundle.errors import FeedError

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
BAD = {"size": [1, 600], "value": [1, 3], "missing": [1, 3], "unknown": [1, 3]}
ODD = [
    "",
    "Déjà vu – naïve ☕",
    "日本語のテキスト",
    "a" * 300,
    "[MASK] is a token",
    "tabs\tand\nlines",
    "\U0001f600 end",
]


@pytest.fixture(scope="module")
def reader(node_modules: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The reader, compiled."""
    folder = tmp_path_factory.mktemp("reader")
    compiler = node_modules / "node_modules" / ".bin" / "tsc"
    if not compiler.exists():
        missing("TypeScript")
    subprocess.run([compiler, "-p", ROOT / "javascript", "--outDir", folder], check=True)
    return folder


@pytest.fixture(scope="module")
def app(out: Path) -> Path:
    return bundle(out, out.parent / "app-web", forms=["ort_cpu"])


@pytest.fixture
def read(node_modules: Path, reader: Path) -> Callable[..., dict[str, Any]]:
    def told(folder: Path, provider: str = "cpu", **given: Any) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(
            ran(["node", HERE / "read.mjs", node_modules, reader, folder, provider], given)
        )
        return found

    return told


@pytest.mark.parametrize("provider", ["cpu", "wasm"])
def test_vectors_are_those_of_python(
    provider: str, read: Callable[..., dict[str, Any]], app: Path, texts: list[str]
) -> None:
    told = read(app, provider, texts=texts + ODD)
    with load(app) as model:
        wanted = model.embed(texts + ODD)
    got = np.asarray(told["vectors"])
    assert got.shape == wanted.shape
    assert float(np.abs(got - wanted).max()) < 1e-6
    assert told["checks"] > 1


def test_mistakes_are_told_in_the_words_of_python(read: Callable[..., dict[str, Any]], app: Path) -> None:
    errors = read(app, bad=BAD)["errors"]
    with load(app) as model:
        for name, shape in BAD.items():
            feeds = {spec.name: np.full(shape, 99999 if name == "value" else 1, np.int64) for spec in model.io.inputs}
            if name == "missing":
                del feeds["input_ids"]
            if name == "unknown":
                feeds["other"] = feeds["input_ids"]
            with pytest.raises(FeedError) as caught:
                model.run(**feeds)
            # That an option of export allows more is said to Python alone.
            assert errors[name] == f"FeedError: {str(caught.value).partition(' At export')[0]}"
    assert "expected text" in errors["number"]
    assert "expected one or more" in errors["none"]
    assert "no such" in errors["prompt"]
    assert "neither scores nor logits" in errors["kind"]


def test_a_changed_file_and_other_numbers_are_refused(
    read: Callable[..., dict[str, Any]], app: Path, tmp_path: Path
) -> None:
    changed = Path(shutil.copytree(app, tmp_path / "changed"))
    with (changed / "weights.bin").open("r+b") as file:
        file.seek(1 << 20)
        file.write(b"\x01")
    assert read(changed)["refused"].startswith("IntegrityError: weights.bin: got ")
    other = Path(shutil.copytree(app, tmp_path / "other"))
    described = json.loads((other / "bundle.json").read_text())
    for bound in described["goldens"]["bounds"]:
        bound["rms_bound"] = 1e-12
    (other / "bundle.json").write_text(json.dumps(described))
    assert "computes other numbers here" in read(other)["refused"]
    described["order"], described["forms"] = ["x"], {"x": {**described["forms"]["ort_cpu"], "runtime": "openvino"}}
    (other / "bundle.json").write_text(json.dumps(described))
    assert "attnport bundle out/ -o app/ --form ort_cpu" in read(other)["refused"]


def test_scores_of_pairs_are_those_of_python(read: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    import text_artifact
    import torch
    from transformers import BertConfig, BertForSequenceClassification

    from attnport.verbs.export import export

    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
    torch.manual_seed(0)
    config = BertConfig(vocab_size=60, max_position_embeddings=40, num_labels=1, initializer_range=0.3, **sizes)
    BertForSequenceClassification(config).eval().save_pretrained(tmp_path / "source")
    text_artifact.write_tokenizer(tmp_path / "source" / "tokenizer.json")
    export(f"hf:{tmp_path / 'source'}", tmp_path / "out")
    packed = bundle(tmp_path / "out", tmp_path / "app")
    pairs = [["w1 w2", "w3"], ["w4 " * 30, "w5 w6 w7"], ["w8", "w9 " * 60], ["w4 " * 40, "w5 " * 50]]
    with load(packed) as model:
        wanted = model.predict([(first, second) for first, second in pairs])
    got = np.asarray(read(packed, pairs=pairs)["scores"])
    assert float(np.abs(got.reshape(wanted.shape) - wanted).max()) < 1e-6
    assert len(set(got.reshape(-1).tolist())) == 4
    described = json.loads((packed / "bundle.json").read_text())
    described["prompts"] = {"named": {"question": "w5 w6 "}, "default": "question"}
    (packed / "bundle.json").write_text(json.dumps(described))
    with load(packed) as model:
        prompted = model.predict([(first, second) for first, second in pairs])
    got = np.asarray(read(packed, pairs=pairs)["scores"])
    assert float(np.abs(got.reshape(wanted.shape) - prompted).max()) < 1e-6
    assert float(np.abs(prompted - wanted).max()) > 1e-4
    described["io"]["masks"] = []
    (packed / "bundle.json").write_text(json.dumps(described))
    assert "takes no padding mask" in read(packed, pairs=pairs)["refused"]


def test_the_page_of_the_example_finds_sentences_in_chromium(
    node_modules: Path, reader: Path, app: Path, tmp_path: Path
) -> None:
    browser = next((path for name in CHROMIUM if (path := shutil.which(name))), None) or missing("Chromium")
    page, modules = (
        Path(shutil.copytree(ROOT / "examples" / "web", tmp_path / "page")),
        tmp_path / "page" / "node_modules",
    )
    modules.mkdir()
    (modules / "onnxruntime-web").symlink_to(node_modules / "node_modules" / "onnxruntime-web")
    (modules / "attnport-bundle").mkdir()
    (modules / "attnport-bundle" / "dist").symlink_to(reader)
    (page / "app").symlink_to(app)
    shutil.copy(ROOT / "examples" / "sentences.txt", page)
    server = subprocess.Popen(
        ["python3", "-u", "-m", "http.server", "0", "--bind", "127.0.0.1"], cwd=page, stdout=subprocess.PIPE, text=True,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        assert server.stdout is not None
        port = re.findall(r"port (\d+)", server.stdout.readline())[0]
        flags = ["--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--virtual-time-budget=300000"]
        done = subprocess.run(
            [browser, *flags, f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", f"http://127.0.0.1:{port}/"],
            capture_output=True, text=True, check=True, timeout=300,
        )  # fmt: skip
    finally:
        server.kill()
        server.communicate()
    assert 'data-ready="yes"' in done.stdout
    items = re.findall(r"<li><span>(.*?)</span>", done.stdout)
    assert len(items) == 8
    assert "headache" in items[0]
