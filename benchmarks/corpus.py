"""Texts to vectors through Ray Data beside a bare loop, and the memory of an actor over many texts.

Both sides read the same Parquet files, make vectors with one bundle and write Parquet files: two actors of one CPU, and
two processes of one thread that share the files. They take turns. Counted are the seconds from the first batch, the
opening of the model included, until the last file is written; what Ray takes to start is apart. The CPU time of a row
in the batches themselves says whether the two differ there, also on a machine that has other work.

    python benchmarks/corpus.py BUNDLE [--texts 10000] [--rounds 3] [--short 200000] [--json FILE]

BUNDLE is one of an embedder, such as `attnport bundle out/minilm -o app/` writes after `make demo`. It needs what
`make serve-test` installs.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet as parquet
import ray

from attnport.folder.machine import machine
from attnport_bundle.corpus import Embed

ROOT = Path(__file__).resolve().parent.parent
ACTORS, BATCH, FILES = 2, 512, 8
ASKED = 0.95
"""Of the bare loop's rows a second."""


class Timed(Embed):
    """An Embed that keeps, of each batch, when it began and ended, its CPU time, and the most its process had held."""

    def __init__(self, folder: str, log: str, **options: Any) -> None:
        super().__init__(folder, **options)
        self.log = Path(log)

    def __call__(self, batch: Any) -> Any:
        """As Embed's."""
        began_s, cpu_s = time.time(), time.process_time()
        found = super().__call__(batch)
        spent_s, peak = time.process_time() - cpu_s, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        line = json.dumps({"began_s": began_s, "ended_s": time.time(), "cpu_s": spent_s, "peak": peak})
        with (self.log / f"{id(self)}.{began_s}").open("w") as file:
            file.write(line)
        return found


def lay(folder: Path, texts: list[str]) -> Path:
    """Writes texts as Parquet files."""
    folder.mkdir()
    table = pyarrow.table({"key": range(len(texts)), "text": texts})
    size = -(-len(texts) // FILES)
    for at in range(FILES):
        parquet.write_table(table.slice(at * size, size), folder / f"{at}.parquet")
    return folder


def sentences(count: int, least: int, most: int) -> list[str]:
    """Made-up texts of the words of examples/sentences.txt."""
    draw = random.Random(0)
    words = (ROOT / "examples" / "sentences.txt").read_text("utf-8").split()
    return [" ".join(draw.choices(words, k=draw.randint(least, most))) for _ in range(count)]


def bare(app: str, texts: str, vectors: str, log: str, own: str) -> None:
    """One of the processes without Ray, with its share of the files."""
    embed = Timed(app, log, threads=1)
    for path in sorted(Path(texts).glob("*.parquet"))[int(own) :: ACTORS]:
        batches = parquet.ParquetFile(path).iter_batches(BATCH)
        tables = [embed(pyarrow.Table.from_batches([batch])) for batch in batches]
        parquet.write_table(pyarrow.concat_tables(tables), Path(vectors) / path.name)


def through_processes(app: Path, texts: Path, vectors: Path, log: Path) -> None:
    """The side without Ray."""
    vectors.mkdir()
    given = [sys.executable, __file__, "--bare", *map(str, (app, texts, vectors, log))]
    running = [subprocess.Popen([*given, str(own)]) for own in range(ACTORS)]
    assert [process.wait() for process in running] == [0] * ACTORS


def through_ray(app: Path, texts: Path, vectors: Path, log: Path, **options: Any) -> None:
    """The side of Ray, which is running."""
    # Ray makes one block of small files, and gives a block to one actor.
    rows = ray.data.read_parquet(str(texts)).repartition(target_num_rows_per_block=BATCH).map_batches(
        Timed, fn_constructor_args=[str(app), str(log)], fn_constructor_kwargs=options, batch_size=BATCH,
        compute=ray.data.ActorPoolStrategy(size=ACTORS), batch_format="pyarrow",
    )  # fmt: skip
    rows.write_parquet(str(vectors))


def measured(run: Any, app: Path, texts: Path, folder: Path, **options: Any) -> dict[str, Any]:
    """Runs one side; returns its seconds and memory, and its vectors in the order of the keys."""
    log = folder / "log"
    log.mkdir(parents=True)
    began_s = time.time()
    run(app, texts, folder / "vectors", log, **options)
    ended_s = time.time()
    batches = [json.loads(path.read_text()) for path in log.iterdir()]
    first_s = min(batch["began_s"] for batch in batches)
    table = parquet.read_table(folder / "vectors").sort_by("key")
    assert table["key"].to_pylist() == list(range(table.num_rows)), "a row is lost or twice"
    assert set(table["error"].to_pylist()) == {""}, "a row failed"
    vectors = np.stack([np.asarray(row) for chunk in table["embedding"].chunks for row in chunk.to_numpy(False)])
    return {
        "rows_per_s": round(table.num_rows / (ended_s - first_s), 1),
        "start_s": round(first_s - began_s, 1),
        "cpu_ms_per_row": round(sum(batch["cpu_s"] for batch in batches) / table.num_rows * 1e3, 3),
        "peak_mb": round(max(batch["peak"] for batch in batches) / 1e6),
        "vectors": vectors,
    }


def main() -> None:
    """Measures, prints a line for each run, and writes what is asked for."""
    if sys.argv[1:2] == ["--bare"]:
        return bare(*sys.argv[2:])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--texts", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--short", type=int, default=200_000)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    app = given.bundle.resolve()
    options = [f"--{name} {getattr(given, name)}" for name in ("texts", "rounds", "short")]
    # Reading and writing have CPUs of Ray's own, as the actors would have them all on a small machine.
    ray.init("local", num_cpus=2 * ACTORS, include_dashboard=False, logging_level="ERROR", log_to_driver=False)
    sides: dict[str, Any] = {"bare": through_processes, "ray": through_ray}
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in sides}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        texts = lay(folder / "texts", sentences(given.texts, 4, 40))
        for turn in range(given.rounds):
            for name, run in sides.items():
                row = measured(run, app, texts, folder / f"{name}{turn}")
                found[name].append(row)
                print(name, {key: value for key, value in row.items() if key != "vectors"}, flush=True)
        difference = float(np.abs(found["bare"][0]["vectors"] - found["ray"][0]["vectors"]).max())
        short = lay(folder / "short", sentences(given.short, 1, 4))
        memory = measured(through_ray, app, short, folder / "many")
    for row in (memory, *found["bare"], *found["ray"]):
        del row["vectors"]
    rates = {name: statistics.median(row["rows_per_s"] for row in rows) for name, rows in found.items()}
    result = {
        "command": " ".join(["python benchmarks/corpus.py app", *options]),
        "machine": machine().cpu,
        "ray": ray.__version__,
        "texts": given.texts,
        "ratio": round(rates["ray"] / rates["bare"], 3),
        "asked": ASKED,
        "largest_difference": difference,
        "runs": found,
        "short_texts": {"texts": given.short, **memory},
    }
    print(json.dumps({key: value for key, value in result.items() if key != "runs"}, indent=1))
    if given.json:
        given.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return None


if __name__ == "__main__":
    main()
