"""A job of Ray Data, texts to vectors, that can kill an actor or a worker of its own, once, in the middle of its work.

python corpus_job.py APP TEXTS VECTORS [actor|writing MARK]
"""

from __future__ import annotations

import sys
from typing import Any

import ray
from mortal import Mortal, MortalFiles

from attnport_bundle.corpus import Embed


def main() -> None:
    app, texts, vectors, *kill = sys.argv[1:]
    ray.init("local", num_cpus=4, include_dashboard=False, logging_level="ERROR", log_to_driver=False)
    how: dict[str, Any] = {"fn_constructor_args": [app], "fn": Embed}
    if kill[:1] == ["actor"]:
        how = {"fn_constructor_args": [app, kill[1]], "fn": Mortal}
    actors = ray.data.ActorPoolStrategy(size=2)
    blocks = ray.data.read_parquet(texts).repartition(target_num_rows_per_block=500)
    rows = blocks.map_batches(**how, compute=actors, batch_size=100)
    files = MortalFiles(kill[1]) if kill[:1] == ["writing"] else None
    rows.write_parquet(vectors, filesystem=files, max_rows_per_file=500)


if __name__ == "__main__":
    main()
