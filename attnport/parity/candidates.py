"""The graphs that a search for islands tries: one lowered model, given types for each set of nodes that stays."""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from attnport.artifacts import AUTO, IOContract, Manifest, Session
from attnport.cases.inputs import Case
from attnport.dims import TensorSpec
from attnport.exporter import storage
from attnport.exporter.lowering.base import Lowering
from attnport.exporter.parts import Part, parts_of, scope_of
from attnport.exporter.ranges import PREFIX, measure_ranges
from attnport.folder.openings import MODEL
from attnport.runtimes._onnx_file import external_files, read_graph
from attnport.runtimes.base import Opening, Runtime


class Candidates:
    """One model, lowered once and written in float32.

    Attributes:
        parts: What may stay in float32, in topological order.
        attentions: By attention, the nodes that were written for it: what one kernel computes, and what feeds it.
    """

    def __init__(
        self, folder: Path, manifest: Manifest, lowering: Lowering, runtime: Runtime, scratch: Path, threads: int | None
    ) -> None:
        """Lowers the model.

        Args:
            scratch: An empty folder, which the caller deletes.
        """
        self._io, self._lowering, self._runtime, self._threads = manifest.io, lowering, runtime, threads
        self._scratch = scratch
        copy_weights(folder, scratch)
        model = storage.load(folder / MODEL)
        usual = manifest.io.profile().sizes("opt")
        written = lowering.written(model, manifest.attentions, plan=AUTO, masks=manifest.io.masks, sizes=usual)
        self.parts: tuple[Part, ...] = parts_of(model, written.anchors)
        names = [str(node.name) for node in model.graph]
        scopes = {attention: scope_of(nodes) for attention, nodes in written.anchors.items() if nodes}
        self.attentions: Mapping[str, tuple[str, ...]] = {
            attention: tuple(name for name in names if name.startswith(scope)) for attention, scope in scopes.items()
        }
        self._made = {str(node.name): [str(value.name) for value in node.outputs] for node in model.graph}
        self._lowered = scratch / "lowered.onnx"
        storage.save_form(model, self._lowered, "lowered.bin")

    def open(self, nodes: Collection[str]) -> contextlib.closing[Session]:
        """A session of the graph in half precision, but for `nodes`.

        Raises:
            ExportError: the graph does not fit the plan.
        """
        model = storage.load(self._lowered)
        self._lowering.typed(model, AUTO, nodes)
        path = self._scratch / "candidate.onnx"
        path.unlink(missing_ok=True)
        storage.save_form(model, path, "candidate.bin")
        return contextlib.closing(self._runtime.open(Opening(self._io, AUTO, path, threads=self._threads)))

    def ranges(self, cases: Sequence[Case]) -> dict[str, float]:
        """The largest finite magnitude of each tensor over `cases`, in float32."""
        model = storage.load(self._lowered)
        wanted = {name for part in self.parts for name in (*part.reads, *part.makes)}
        wanted |= {made for nodes in self.attentions.values() for node in nodes for made in self._made[node]}
        found = measure_ranges(model, wanted)
        path = self._scratch / "ranges.onnx"
        storage.save_form(model, path, "ranges.bin")
        outputs = (*self._io.outputs, *(TensorSpec(f"{PREFIX}{name}", "float32", ()) for name in found))
        io: IOContract = dataclasses.replace(self._io, outputs=outputs)
        largest = dict.fromkeys(found, 0.0)
        with contextlib.closing(self._runtime.open(Opening(io, "fp32", path, threads=self._threads))) as session:
            for case in cases:
                made = session.run(case.feeds)
                for name in found:
                    largest[name] = max(largest[name], float(made[f"{PREFIX}{name}"]))
        return largest

    def largest_in(self, attention: str, ranges: Mapping[str, float]) -> float:
        """The largest magnitude that an attention computes."""
        made = (name for node in self.attentions[attention] for name in self._made[node])
        return max((ranges.get(name, 0.0) for name in made), default=0.0)


def copy_weights(folder: Path, scratch: Path) -> None:
    """Copies the weights of an artifact's model beside graphs that are tried."""
    for weights in external_files(read_graph(folder / MODEL)):
        place = scratch / weights
        place.parent.mkdir(parents=True, exist_ok=True)
        # A copy: readers refuse a link, soft or hard, as an attack.
        shutil.copyfile(folder / weights, place)
