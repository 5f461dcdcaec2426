"""The report as a document: its sections in order."""

from __future__ import annotations

from attnport.reporting import advice, along, fusion, holdings, latency, parity
from attnport.reporting import document as doc
from attnport.reporting.facts import again
from attnport.reporting.findings import Findings


def sections(found: Findings) -> tuple[doc.Section, ...]:
    """What the report says; a stage that has not run is named with the command that runs it."""
    manifest, folder = found.manifest, found.quoted
    baseline = found.latency.baseline if found.latency else ""
    more = again(manifest, folder)[-1]
    advised = found.recommendation
    maps = doc.Maps(found.heatmaps, found.sentence, found.heatmap_note)
    files = (*holdings.contract(manifest), holdings.forms(manifest), holdings.engines(manifest, folder))
    return (
        *([doc.Section("recommendation", "Recommendation", advice.section(advised, baseline))] if advised else []),
        doc.Section("fusion", "Fusion", fusion.section(manifest.attentions, found.fusion, folder)),
        doc.Section("parity", "Parity", parity.section(found.parity, folder)),
        doc.Section("layers", "Error by layer", along.layers(found.layers, folder)),
        doc.Section("latency", "Latency", latency.section(found.latency, found.parity, folder, more)),
        doc.Section("attention", "Attention maps", (maps,)),
        doc.Section("files", "Model and files", (doc.Only("page", files),)),
        doc.Section("environment", "Environment", holdings.environment(found.environment, manifest)),
        doc.Section("next", "Run again, embed", holdings.commands(manifest, folder)),
    )
