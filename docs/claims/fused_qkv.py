"""One product for queries, keys and values against three."""

from __future__ import annotations

import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from attnport.artifacts import LatencyRow
from attnport.reporting.document import milliseconds
from claims._artifacts import BOTH, ORT, absent, exported, here, model
from claims._findings import Findings, Progress, of_ratio, shown, table
from claims._models import ENCODER
from claims._ratios import ratios
from claims._runs import Effort, race, ratio

TITLE = "One fused QKV product against three"
CLAIM = """One product with [Wq Wk Wv] is faster than three, since it reads the tokens once and is one larger product
(Shoeybi et al., "Megatron-LM", 2019; the layout of GPT-2's and BERT's fast implementations)."""
THREE, ONE = "three_products", "one_product"


@dataclass(frozen=True)
class Sizes:
    """`shapes` are batches and lengths; `longest` is what the export covers."""

    runtimes: tuple[str, ...]
    longest: int
    shapes: tuple[tuple[int, int], ...]
    effort: Effort


FULL = Sizes(BOTH, 512, ((1, 1), (1, 16), (1, 128), (8, 128)), Effort(2.0))
TOY = Sizes((ORT,), 16, ((1, 2),), Effort(0.0, 2, 2))


def measure(sizes: Sizes, progress: Progress) -> Findings:
    """Times both layers, which have the same weights, on every runtime."""
    runtimes = here(sizes.runtimes)
    dims = (f"seq=1:{min(128, sizes.longest)}:{sizes.longest}",)
    timed: dict[str, dict[str, LatencyRow]] = {}
    with tempfile.TemporaryDirectory(prefix="attnport-claims-") as scratch:
        folders = {name: exported(name, Path(scratch) / name, dims, runtimes, progress) for name in (THREE, ONE)}
        for runtime in runtimes:
            models = {name: model(folder, runtime) for name, folder in folders.items()}
            feeds = {
                f"{runtime}, {B} x {T}": {name: one.feeds({"batch": B, "seq": T}) for name, one in models.items()}
                for B, T in sizes.shapes
            }
            timed |= race(feeds, models, sizes.effort, progress)
    found = {setting: ratio(rows[ONE]) for setting, rows in timed.items()}
    width, heads = ENCODER["width"], ENCODER["heads"]
    how = f"""A self-attention layer of E = {width} and H = {heads}, once as `bert_encoder` has it, with
three projections, and once with the same weights in one. Both are exported and lowered alike. A setting is a runtime
and batch x tokens; 1 x 1 is the size of one decoding step."""
    return Findings(
        how=how,
        tables=(
            table(
                ("setting", "three products, ms", "one product, ms", "one / three"),
                [
                    (
                        setting,
                        milliseconds(timed[setting][THREE].median_ns),
                        milliseconds(timed[setting][ONE].median_ns),
                        shown(found[setting]),
                    )
                    for setting in timed
                ],
            ),
        ),
        pictures={"fused_qkv": ratios(found, "Time of the layer: one product / three")},
        verdicts=[*(of_ratio(setting, each) for setting, each in found.items()), *absent(sizes.runtimes)],
        figures={setting: {name: asdict(row) for name, row in rows.items()} for setting, rows in timed.items()},
    )
