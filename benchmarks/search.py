"""Reranking, sparse vectors and vectors of tokens beside other tools, from texts; and a server beside a process.

100 passages of 1 to 5 sentences of examples/sentences.txt, sorted by length, are given a score for a query by a
cross-encoder, or become sparse vectors, or the vectors of their tokens. The encoder is MiniLM with its weights; the
heads behind it, of the sizes that are usual, have random ones, as no package has theirs. Each side has a process of its
own on one core, takes the texts themselves, and has the batch size that is its quickest; attnport makes its own
batches. All take turns in random order. A float32 side has to give the numbers of sentence-transformers in PyTorch. Of
the others, the metric is the nDCG at 10 of five queries, whose gains are the first ten passages of float32.

Vectors of `/v1/embeddings`, asked for by 16 clients, stand beside those of `Model.embed` in a process with as many
threads. The clients are threads of the measuring process, which take some of the server's processors.

    python benchmarks/search.py [--only rerank|sparse|tokens|server ...] [--seconds 60] [--json FILE] [--docs]
    python benchmarks/search.py --make            # models, exports, bundles and the peers' files, which are kept

It needs what `make bench-env`, `make embedders` and, for the server, `make serve-test` set up, and nothing else that
computes beside it. A side that is not there is a row with its reason.
"""

from __future__ import annotations

import argparse
import base64
import functools
import http.client
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from beside.models import MODELS, code_digest, sentences
from beside.page import replace_section, verdict
from beside.sampling import MOST_DROP
from beside.side import CACHE, PEERS, ROOT, Named, Side, SideFailed, folder_of, sides_of

from attnport.folder.machine import machine, versions
from attnport.latency.statistics import ratio_interval
from attnport_bundle import load

Array = np.ndarray[Any, Any]
KINDS = {
    "rerank": "A query and 100 passages, cross-encoder",
    "sparse": "100 passages to sparse vectors, SPLADE",
    "tokens": "100 passages to vectors of tokens, ColBERT",
}
ORDER = ("attnport", "sentence_transformers_6", "sentence_transformers", "fastembed", "llama_cpp")
"""The sides; fastembed takes what the one before it exports."""
LIBRARY = Named("sentence_transformers_6", "torch", "fp32")
FORMS = ("ort_cpu", "ort_cpu.int8", "openvino", "openvino.bf16", "openvino.int8", "openvino.int8_bf16")
ASKED = {"rerank": {"fp32": 0.85, "any": 0.75}, "sparse": {"library": 0.9}, "tokens": {"library": 0.9}}
CLASSES = {
    "library": "float32, beside sentence-transformers in PyTorch",
    "fp32": "float32, beside the fastest other",
    "any": "any precision within a drop of 0.5 %, beside the fastest other",
}
BATCHES = (4, 16, 64)
ACTIVE = 200
"""The words of a sparse vector that are not zero."""
CLOSE = 1e-3
"""The largest difference of float32 sides, as a share of the largest number: llama.cpp has a table for GELU."""
QUERIES, CLIENTS, TEXTS = 5, 16, (1, 8, 32)
SERVER_PYTHON = ROOT / ".venv-serve" / "bin" / "python"


def passages() -> list[str]:
    """100 passages, the longest first: sides that keep the order of texts have batches of like length, too."""
    lines = sentences()
    made = [
        " ".join(lines[at + step] for step in range(min(1 + at // 2 % 5, len(lines) - at))) for at in range(0, 200, 2)
    ]
    return sorted(made, key=len, reverse=True)


def queries() -> list[str]:
    """The first words of some sentences."""
    return [" ".join(line.split()[:7]) for line in sentences()[5::20]][:QUERIES]


def write_model(kind: str, folder: Path) -> None:
    """A folder as sentence-transformers writes it, of versions that every side reads.

    llama.cpp knows one type of tokens, so that here both types are alike.
    """
    import torch
    import transformers
    from safetensors.torch import save_file

    source = MODELS["minilm"].folder()
    classes = {"rerank": "BertForSequenceClassification", "sparse": "BertForMaskedLM", "tokens": "BertModel"}
    torch.manual_seed(0)
    made = getattr(transformers, classes[kind]).from_pretrained(
        source, trust_remote_code=False, **({"num_labels": 1} if kind == "rerank" else {})
    )
    with torch.no_grad():
        for name, weight in made.named_parameters():
            if name.endswith("token_type_embeddings.weight"):
                weight[1] = weight[0]
            elif name.startswith("classifier."):
                weight.normal_(0, 0.2)
        if kind == "sparse":  # trained ones give a text so many words, and a random head gives it half of all
            words = transformers.AutoTokenizer.from_pretrained(source, trust_remote_code=False)
            fed = words(passages()[::10], padding=True, truncation=True, max_length=512, return_tensors="pt")
            scores = made(**fed).logits.masked_fill(fed["attention_mask"].unsqueeze(-1) == 0, -torch.inf).amax(1)
            made.cls.predictions.bias -= torch.quantile(scores, 1 - ACTIVE / scores.shape[1])
    folder.mkdir(parents=True)
    made.save_pretrained(folder)
    for file in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt"):
        shutil.copy(source / file, folder / file)

    def write(name: str, values: Any) -> None:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(json.dumps(values))

    write("sentence_bert_config.json", {"max_seq_length": 512})
    if kind == "rerank":
        write("config_sentence_transformers.json", {"model_type": "CrossEncoder"})
        return
    old = "sentence_transformers.sparse_encoder.models"
    listed = [("", f"{old}.MLMTransformer"), ("1_SpladePooling", f"{old}.SpladePooling")]
    if kind == "tokens":
        listed = [("", "sentence_transformers.models.Transformer"), ("1_Dense", "sentence_transformers.models.Dense"),
                  ("2_MultiVectorMask", "sentence_transformers.multi_vector_encoder.modules.MultiVectorMask"),
                  ("3_Normalize", "sentence_transformers.models.Normalize")]  # fmt: skip
    write("modules.json", [
        {"idx": at, "name": str(at), "path": path, "type": type_} for at, (path, type_) in enumerate(listed)
    ])  # fmt: skip
    name = "SparseEncoder" if kind == "sparse" else "MultiVectorEncoder"
    write("config_sentence_transformers.json", {"model_type": name})
    write("1_SpladePooling/config.json", {"pooling_strategy": "max", "activation_function": "relu"})
    if kind == "tokens":
        shutil.rmtree(folder / "1_SpladePooling")
        to_tokens = {"module_input_name": "token_embeddings", "module_output_name": "token_embeddings"}
        dense = {"in_features": 384, "out_features": 128, "bias": False, "activation_function": "torch.nn.Identity"}
        write("1_Dense/config.json", {**dense, **to_tokens})
        save_file({"linear.weight": torch.randn(128, 384)}, folder / "1_Dense" / "model.safetensors")
        write("2_MultiVectorMask/config.json", {"skiplist_words": list(".,?!")})
        write("3_Normalize/config.json", to_tokens)


def run(*command: str) -> None:
    """An attnport command, which has to end well."""
    done = subprocess.run(
        [sys.executable, "-m", "attnport.cli", *command], capture_output=True, text=True, check=False, cwd=ROOT
    )
    if done.returncode:
        raise SystemExit(f"attnport {' '.join(command)}: exit {done.returncode}\n{done.stderr[-2000:]}")


def made(kind: str) -> dict[str, Any]:
    """What a side is told of a model; its folder and attnport's bundle are made where they are not there."""
    base = CACHE / f"search-{kind}"
    folder, out, app = base / "model", base / f"out-{code_digest()}", base / f"app-{code_digest()}"
    if not folder.is_dir():
        write_model(kind, folder)
    if not (app / "bundle.json").is_file():
        for old in [*base.glob("out-*"), *base.glob("app-*")]:
            shutil.rmtree(old)
        text = base / "texts.txt"
        lines = passages()[::2]
        if kind == "rerank":
            lines = [f"{query}\t{each}" for query in queries() for each in lines]
        text.write_text("\n".join(lines), encoding="utf-8")
        run("export", f"hf:{folder}", "-o", str(out))
        # Which writes every form of these runtimes, also those in integers.
        run("tune", str(out), "--text", str(text), "--budget", "10", "--threads", "1")
        manifest = json.loads((out / "attnport.json").read_text())
        forms = [word for form in FORMS if form in manifest["forms"] for word in ("--form", form)]
        run("bundle", str(out), "-o", str(app), *forms)
    return {"name": f"search-{kind}", "kind": kind, "folder": str(folder), "ours": str(out), "bundle": str(app)}


def sides(told: dict[str, Any]) -> list[Named]:
    """All sides of a model."""
    forms = json.loads((Path(told["bundle"]) / "bundle.json").read_text())["order"]
    ours = [Named("attnport", form, _precision(form)) for form in FORMS if form in forms]
    return [*ours, *(each for peer in ORDER[1:] for each in sides_of(peer, told))]


def _precision(form: str) -> str:
    return "int8" if "int8" in form else "half" if "bf16" in form else "fp32"


class Metric:
    """The nDCG at 10 of a side's numbers for all passages; its gains are the first ten of float32, 10 down to 1."""

    def __init__(self, told: dict[str, Any]) -> None:
        self.kind, ask, texts = told["kind"], queries(), passages()
        with load(told["bundle"], form="ort_cpu", threads=1) as model:
            self._similarity = model.similarity
            if self.kind == "rerank":
                self.pairs: list[Any] = [[query, each] for query in ask for each in texts]
                self._right = model.predict([tuple(pair) for pair in self.pairs]).reshape(QUERIES, -1)
                return
            self.pairs, self._asked = texts, model.encode_query(ask)
            found = model.encode_document(texts)
            self._counts = [len(each) for each in found] if self.kind == "tokens" else []
            self._right = self.scores(found.dense() if self.kind == "sparse" else np.concatenate(found))

    def scores(self, rows: Array) -> Array:
        """The score of each passage for each query, `[queries, passages]`."""
        if self.kind == "rerank":
            return rows.reshape(QUERIES, -1)
        if self.kind == "sparse":
            return np.asarray(self._asked.dense() @ rows.T)
        return np.asarray(self._similarity(self._asked, np.split(rows, np.cumsum(self._counts)[:-1])))

    def of(self, rows: Array) -> float:
        """The mean of the queries; 1 = the same first ten passages in the same order."""
        discounts = 1 / np.log2(np.arange(2, 12))
        best, total = np.arange(10, 0, -1), 0.0
        for got, right in zip(self.scores(rows), self._right, strict=True):
            gains = np.zeros(len(right))
            gains[(-right).argsort(kind="stable")[:10]] = best
            total += float((gains[(-got).argsort(kind="stable")[:10]] * discounts).sum() / (best * discounts).sum())
        return total / len(self._right)


class Sides:
    """The open sides of a kind, their samples, and why others are not open."""

    def __init__(self, told: dict[str, Any], work: Path) -> None:
        self.told, self.work, self.open = told, work, dict[Named, Side]()
        self.rows: dict[Named, dict[str, Any]] = {}
        self.samples: dict[Named, list[int]] = {}
        texts = passages()
        self.texts, self.all = work / "texts.json", work / "all.json"
        self.metric = Metric(told)
        ask = queries()[0]
        self.texts.write_text(json.dumps([[ask, each] for each in texts] if told["kind"] == "rerank" else texts))
        self.all.write_text(json.dumps(self.metric.pairs))

    def add(self, named: Named) -> None:
        """Opens a side, looks at what it gives, and finds its best batch size."""
        row = self.rows[named] = {"precision": named.precision}
        try:
            make(named, self.told)
            side = self.open[named] = Side(named, self.told, 1)
            batches = (0,) if named.peer in ("attnport", "llama_cpp") else BATCHES
            got = self._rows(side, self.texts, 16)
            difference = float(np.abs(got - self.right(got)).max() / np.abs(self.right(got)).max())
            row["difference"] = float(f"{difference:.1e}")
            if named.precision == "fp32" and difference > CLOSE:
                raise SideFailed(f"its numbers are others: they differ by {difference:.1e} of the largest")
            if named.precision != "fp32":
                every = self._rows(side, self.all, 16) if self.told["kind"] == "rerank" else got
                row["ndcg"] = round(self.metric.of(every), 5)
            tried = {batch: min(side.embed(self.texts, batch or 1) for _ in range(2)) for batch in batches}
            row["batch"] = min(tried, key=lambda batch: tried[batch])
            if len(batches) > 1:  # what a large batch took, a process keeps, and all are open at once
                side.close()
                self.open[named] = Side(named, self.told, 1)
        except SideFailed as err:
            row["failed"] = str(err)
            side = self.open.pop(named, None)
            if side is not None:
                side.close()
        print(f"  {named}: {row}", flush=True)

    def _rows(self, side: Side, texts: Path, batch: int) -> Array:
        file = self.work / "rows.npz"
        side.embed(texts, batch, file)
        return np.asarray(np.load(file)["output"])

    @functools.cache  # noqa: B019 - one object for a run
    def _library(self) -> Array:
        """What sentence-transformers gives in PyTorch."""
        side = Side(LIBRARY, self.told, 1)
        try:
            return self._rows(side, self.texts, 16)
        finally:
            side.close()

    def right(self, got: Array) -> Array:
        """The right numbers. Raises SideFailed where a side's have another shape."""
        expected = self._library()
        if got.shape != expected.shape:
            raise SideFailed(f"got {got.shape}; sentence-transformers gives {expected.shape}")
        return expected

    def sample(self, seconds: float) -> None:
        """Rounds of the sides that are not far behind, in random order, until the time is over; five at least."""
        random, begin, rounds = np.random.default_rng(0), time.perf_counter(), 0
        self.samples = {named: [] for named in self.open}
        while self.open and (rounds < 5 or time.perf_counter() - begin < seconds):
            names, rounds = list(self.open), rounds + 1
            for at in random.permutation(len(names)):
                named = names[at]
                self.samples[named].append(self.open[named].embed(self.texts, self.rows[named]["batch"] or 1))
            quickest = min(map(median, self.samples.values()))
            for named in [one for one in self.open if len(self.samples[one]) == 3]:
                if median(self.samples[named]) > 4 * quickest and named != LIBRARY:
                    self._note(named)
        for named in list(self.open):
            self._note(named)

    def _note(self, named: Named) -> None:
        side, taken = self.open.pop(named), self.samples[named]
        self.rows[named] |= {"ms": round(median(taken) / 1e6, 1), "samples": len(taken),
                             "peak_mb": round(side.resident_mb())}  # fmt: skip
        side.close()

    def ratios(self) -> dict[str, Any]:
        """By class, attnport's best to the other's best, with its 99 % interval."""
        whole = max(map(len, self.samples.values()))

        def best(ours: bool, precisions: Sequence[str]) -> Named | None:
            fitting = [
                named for named, taken in self.samples.items()
                if named.ours == ours and named.precision in precisions and len(taken) == whole
                and (named.precision == "fp32" or self.rows[named]["ndcg"] >= 1 - MOST_DROP)
            ]  # fmt: skip
            return min(fitting, key=lambda named: median(self.samples[named]), default=None)

        found = {}
        for name in CLASSES:
            precisions = ("fp32", "half", "int8") if name == "any" else ("fp32",)
            ours = best(True, precisions)
            other = best(False, precisions) if name != "library" else LIBRARY if LIBRARY in self.samples else None
            if ours is None or other is None:
                continue
            mine, theirs = ([[ns] for ns in self.samples[one]] for one in (ours, other))
            low, middle, high = ratio_interval(mine, theirs)
            found[name] = {"ratio": round(middle, 4), "interval": [round(low, 4), round(high, 4)],
                           "ours": str(ours), "peer": str(other)}  # fmt: skip
        return found


def make(named: Named, told: dict[str, Any]) -> None:
    """Converts a model for a side that wants that, once."""
    from beside.side import adapter

    if hasattr(adapter(named.peer), "make") and not (folder_of(named, told) / ".made").exists():
        maker = Side(named, told, 1)
        try:
            maker.make()
        finally:
            maker.close()


def measured(kind: str, seconds: float) -> dict[str, Any]:
    """All sides of a kind."""
    print(f"{kind}: {KINDS[kind]}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        all_sides = Sides(told := made(kind), Path(folder))
        for named in sides(told):
            all_sides.add(named)
        all_sides.sample(seconds)
    found = all_sides.ratios()
    for name, row in found.items():
        print(f"  {name}: {row}", flush=True)
    return {"sides": {str(named): row for named, row in all_sides.rows.items()}, "ratios": found}


# --- a server ----------------------------------------------------------------------------------------------------


def asked(port: int, bodies: Sequence[bytes]) -> list[bytes]:
    """The answers to requests, which 16 clients send, each over a connection of its own."""
    answers: list[bytes] = [b""] * len(bodies)

    def client(first: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        for at in range(first, len(bodies), CLIENTS):
            connection.request("POST", "/v1/embeddings", bodies[at], {"content-type": "application/json"})
            answer = connection.getresponse()
            answers[at] = answer.read()
            assert answer.status == 200, answers[at]
        connection.close()

    with ThreadPoolExecutor(CLIENTS) as clients:
        list(clients.map(client, range(CLIENTS)))
    return answers


def vectors(answers: Sequence[bytes]) -> Array:
    """The vectors of answers, in their order."""
    found = [each["embedding"] for answer in answers for each in json.loads(answer)["data"]]
    return np.array([np.frombuffer(base64.b64decode(each), "<f4") for each in found])


def served(app: Path, threads: int, seconds: float) -> list[dict[str, Any]]:
    """A server's texts a second beside those of `embed`, for each number of texts of a request."""
    from loads.server import processes, serving  # of the servers' environment alone

    lines, rows = (sentences() * 6)[:512], []
    options = ("--threads", str(threads))
    with load(app, threads=threads) as model, serving("kserve", {"minilm": app}, *options) as server:
        right = model.embed(lines)
        for texts in TEXTS:
            parts = [lines[at : at + texts] for at in range(0, len(lines), texts)]
            bodies = [
                json.dumps({"model": "minilm", "input": part, "encoding_format": "base64"}).encode() for part in parts
            ]
            over_http: list[int] = []
            own: list[int] = []
            begin = time.perf_counter()
            while len(own) < 6 or time.perf_counter() - begin < seconds / len(TEXTS):
                at = time.perf_counter_ns()
                model.embed(lines)
                own.append(time.perf_counter_ns() - at)
                at = time.perf_counter_ns()
                answers = asked(server.port, bodies)
                over_http.append(time.perf_counter_ns() - at)
                assert np.abs(vectors(answers) - right).max() < 2e-5
            # The first of both counts for neither.
            low, middle, high = ratio_interval([[ns] for ns in own[1:]], [[ns] for ns in over_http[1:]])
            rows.append(
                {
                    "texts_of_a_request": texts,
                    "server_texts_per_s": round(len(lines) / median(over_http[1:]) * 1e9, 1),
                    "process_texts_per_s": round(len(lines) / median(own[1:]) * 1e9, 1),
                    "ratio": round(middle, 3),
                    "interval": [round(low, 3), round(high, 3)],
                    "server_mb": round(sum(one.memory_info().rss for one in processes(server)) / 2**20),
                }
            )
    return rows


def measured_server(seconds: float) -> dict[str, Any]:
    """`served`, in the environment of the servers."""
    app = CACHE / "search-server" / f"app-{code_digest()}"
    if not (app / "bundle.json").is_file():
        shutil.rmtree(app.parent, ignore_errors=True)
        out = app.parent / "out"
        run("export", f"hf:{MODELS['minilm'].folder()}", "-o", str(out))
        run("fuse", str(out), "--target", "ort_cpu")
        run("bundle", str(out), "-o", str(app), "--form", "ort_cpu")
    if not SERVER_PYTHON.is_file():
        return {"failed": "make serve-test makes the environment of servers"}
    command = [str(SERVER_PYTHON), __file__, "--served", str(app), "--seconds", str(seconds)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    if done.returncode:
        return {"failed": (done.stderr.strip().splitlines() or ["no word"])[-1][:200]}
    rows = json.loads(done.stdout.splitlines()[-1])
    print("\n".join(map(str, rows)), flush=True)
    return {"clients": CLIENTS, "threads": 2, "rows": rows}


def pinned() -> dict[str, str]:
    """The versions of the peers, by what each is here."""
    installed = (ROOT / ".venv" / "peers").glob("sentence_transformers-*.dist-info")
    found = {f"{LIBRARY.peer}": path.name.split("-")[1].removesuffix(".dist") for path in installed}
    for file, package in {
        "sentence_transformers": "sentence-transformers",
        "fastembed": "fastembed",
        "llama": "llama_cpp_python",
    }.items():
        lines = dict(line.split("==") for line in (PEERS / f"{file}.txt").read_text("utf-8").split())
        found[package] = lines[package]
    return found


# --- the page ----------------------------------------------------------------------------------------------------


def section(result: dict[str, Any]) -> str:
    """The Markdown."""
    packages = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    lines = [
        f"Measured by `{result['command']}` on {result['machine']}, with {packages}: from texts,",
        "on one core, each side in the batch size that suits it best, attnport in batches of its own. A ratio is",
        "attnport's time divided by the other's, with its 99 % interval. nDCG: of five queries, by the first ten",
        "passages of float32.",
    ]
    for kind, row in result["kinds"].items():
        lines += ["", f"### {KINDS[kind]}", "", "| | attnport | the other | ratio | asked | reached |", "|-|-|-|-|-|-|"]
        for name, ratio in row["ratios"].items():
            wanted = ASKED[kind].get(name)
            low, high = ratio["interval"]
            reached = f"{wanted:.2f} | {verdict(ratio['interval'], wanted)}" if wanted else "- | -"
            said = f"{ratio['ratio']:.2f} ({low:.2f} to {high:.2f})"
            lines.append(f"| {CLASSES[name]} | {ratio['ours']} | {ratio['peer']} | {said} | {reached} |")
        lines += ["", "| side | ms | batch | nDCG | peak of the process, MB |", "|-|-|-|-|-|"]
        failed = [f"- {name}: {one['failed']}" for name, one in row["sides"].items() if "failed" in one]
        for name, one in row["sides"].items():
            if "ms" in one:
                batch = one["batch"] or "its own"
                metric = f"{one['ndcg']:.4f}" if "ndcg" in one else ""
                lines.append(f"| {name} | {one['ms']:.0f} | {batch} | {metric} | {one['peak_mb']} |")
        lines += ["", "Not measured:", *failed] if failed else []
    server = result.get("server", {})
    if "rows" in server:
        lines += ["", f"### A server beside a process, {server['clients']} clients, {server['threads']} threads", "",
                  "| texts of a request | server, texts a second | process | ratio (0.90 asked) | server, MB |",
                  "|-|-|-|-|-|"]  # fmt: skip
        for one in server["rows"]:
            low, high = one["interval"]
            lines.append(
                f"| {one['texts_of_a_request']} | {one['server_texts_per_s']:.0f} | {one['process_texts_per_s']:.0f} "
                f"| {one['ratio']:.2f} ({low:.2f} to {high:.2f}) | {one['server_mb']} |"
            )
    return "\n".join(lines)


def main() -> None:
    """Measures, prints a line for each side, and writes what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=[*KINDS, "server"], default=[*KINDS, "server"])
    parser.add_argument("--seconds", type=float, default=60, help="of the rounds of each kind")
    parser.add_argument("--make", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--docs", action="store_true")
    parser.add_argument("--served", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.served:
        print(json.dumps(served(given.served, 2, given.seconds)))
        return
    if given.make:
        for kind in KINDS:
            told = made(kind)
            for named in sides(told):
                try:
                    make(named, told)
                except SideFailed as err:
                    print(f"{kind}, {named}: {err}")
        return
    result: dict[str, Any] = json.loads(given.json.read_text()) if given.json and given.json.is_file() else {}
    result |= {
        "command": f"python benchmarks/search.py --seconds {given.seconds:.0f}",
        "machine": machine().cpu,
        "versions": {**versions(("torch", "transformers", "onnxruntime", "openvino")), **pinned()},
    }
    for kind in KINDS:
        if kind in given.only:
            result.setdefault("kinds", {})[kind] = measured(kind, given.seconds)
            if given.json:
                given.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    if "server" in given.only:
        result["server"] = measured_server(given.seconds)
    if given.json:
        given.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    if given.docs:
        replace_section("search", section(result), ROOT / "docs" / "search.md")


if __name__ == "__main__":
    main()
