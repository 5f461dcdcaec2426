"""The data that a report is made from, in any format."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from attnport.artifacts import FusionReport, LatencyReport, LayerReport, Manifest, ParityReport, TuneReport
from attnport.reporting.heatmap import Heatmap
from attnport.reporting.recommendation import Recommendation


@dataclass(frozen=True)
class Findings:
    """The results of verbs in a folder. None if a verb has not run; the report then says how to run it.

    Attributes:
        recommendation: What to embed; None = the report has no such section.
        heatmaps: The attention weights for one sentence, an item for each attention.
        environment: Facts about the machine and the time, by label.
        folder: The artifact folder.
        sentence: The sentence, or a description of the inputs, for the heatmaps.
        heatmap_note: Why there are no heatmaps.
        tuning: What `tune` tried; None = the report has no such section.
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
    tuning: TuneReport | None = None

    @property
    def quoted(self) -> str:
        """The folder, quoted for a shell."""
        return shlex.quote(self.folder)
