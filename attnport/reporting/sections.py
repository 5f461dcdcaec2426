"""The report as a document: its sections in order."""

from __future__ import annotations

from attnport.reporting import advice, along, fusion, holdings, latency, parity, tuning
from attnport.reporting import document as doc
from attnport.reporting.absences import absent
from attnport.reporting.facts import again
from attnport.reporting.findings import Findings


def sections(findings: Findings) -> tuple[doc.Section, ...]:
    """The sections of the report; stages that have not run are named with their command."""
    manifest, folder = findings.manifest, findings.quoted
    timed = [findings.latency, *(findings.tuning.latency.values() if findings.tuning else ())]
    baseline = next((report.baseline for report in timed if report), "")
    more = again(manifest, folder)[-1]
    lacking = list(absent(findings.parity, findings.latency))
    advised = [advice.section(findings.recommendation, baseline, lacking)] if findings.recommendation else []
    maps = doc.Maps(findings.heatmaps, findings.sentence, findings.heatmap_note)
    files = (*holdings.contract(manifest), holdings.forms(manifest), holdings.engines(manifest, folder))
    return (
        *(doc.Section("recommendation", "Recommendation", blocks) for blocks in advised),
        doc.Section("fusion", "Fusion", fusion.section(manifest.attentions, findings.fusion, folder)),
        doc.Section("parity", "Parity", parity.section(findings.parity, folder)),
        doc.Section("layers", "Error by layer", along.layers(findings.layers, folder)),
        doc.Section("latency", "Latency", latency.section(findings.latency, findings.parity, folder, more)),
        *([doc.Section("tuning", "Tuning", tuning.section(findings.tuning))] if findings.tuning else []),
        doc.Section("attention", "Attention maps", (maps,)),
        doc.Section("files", "Model and files", (doc.Only("page", files),)),
        doc.Section("environment", "Environment", holdings.environment(findings.environment, manifest)),
        doc.Section("next", "Run again, embed", holdings.commands(manifest, folder)),
    )
