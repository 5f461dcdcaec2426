"""Everything that a report is made from, whatever its form."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from attnport.artifacts import FusionReport, LatencyReport, LayerReport, Manifest, ParityReport
from attnport.reporting.heatmap import Heatmap
from attnport.reporting.recommendation import Recommendation


@dataclass(frozen=True)
class Findings:
    """What the verbs left in a folder; None where a verb has not run, and the report then says how to run it.

    Attributes:
        recommendation: What to embed; None = nobody asked.
        heatmaps: The attention weights of one sentence, an item an attention.
        environment: What to say about the machine and the moment, by label.
        folder: The artifact folder.
        sentence: What the heatmaps were made from.
        heatmap_note: Why there are no heatmaps.
    """

    manifest: Manifest
    fusion: FusionReport | None = None
    parity: ParityReport | None = None
    latency: LatencyReport | None = None
    layers: LayerReport | None = None
    recommendation: Recommendation | None = None
    heatmaps: Sequence[Heatmap] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    folder: str = "out/"
    sentence: str = ""
    heatmap_note: str = ""

    @property
    def quoted(self) -> str:
        """The folder as a shell takes it, for commands."""
        return shlex.quote(self.folder)
