"""One ONNX file of an artifact, opened in a runtime with some of its tensors marked as outputs."""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from attnport.artifacts import MANIFEST, Evidence, IOContract, Manifest, Session
from attnport.dims import TensorSpec
from attnport.errors import AttnportError
from attnport.exporter import storage
from attnport.exporter.probing import Tensor, mark, tensors
from attnport.jsonfile import to_json
from attnport.processes.isolated import IsolatedSession, Limits
from attnport.runtimes._onnx_file import external_files, read_graph
from attnport.runtimes.base import Opening, Runtime

_PROBE, _WEIGHTS = "probe.onnx", "probe.bin"


class Probes:
    """A runtime on a file, whatever is marked in it.

    Attributes:
        name: As in the parity report.
        made: The file's tensors by name, in topological order.
        runs: Models that were opened with marks.
    """

    def __init__(
        self, name: str, runtime: Runtime, opening: Opening, manifest: Manifest, scratch: Path, limits: Limits
    ) -> None:
        """Reads the file.

        Args:
            opening: The file and its plan, without marks.
            scratch: A folder for probe models, which the caller deletes; those of other files of the artifact may lie
                there too, so that all share one copy of the weights.

        Raises:
            ArtifactError, IntegrityError: it is no model.
        """
        assert opening.model is not None
        self.name, self.runtime, self.opening = name, runtime, opening
        self._manifest, self._scratch, self._limits = manifest, scratch, limits
        self.file = opening.model
        self.made: Mapping[str, Tensor] = tensors(storage.load(self.file))
        self.runs = 0
        scratch.mkdir(parents=True, exist_ok=True)
        for weights in external_files(read_graph(self.file)):
            place = scratch / weights
            if not place.is_file():
                place.parent.mkdir(parents=True, exist_ok=True)
                # A copy: readers refuse a link, soft or hard, as an attack.
                shutil.copyfile(self.file.parent / weights, place)

    def open(self, names: Collection[str]) -> contextlib.closing[Session]:
        """A session that returns the tensors called `names` behind the outputs; without names, on the file as it is.

        Raises:
            AttnportError: what the runtime raises while opening.
        """
        io = self._io(names)
        if names:
            self.runs += 1
        opening = dataclasses.replace(self.opening, io=io, model=self._write(names))
        if not self.runtime.isolated and not self._limits.every:
            return contextlib.closing(self.runtime.open(opening))
        manifest = dataclasses.replace(
            self._manifest, io=io, files={_PROBE: ""}, forms={}, engines={}, stages={}, tokenizer=None
        )
        (self._scratch / MANIFEST).write_text(to_json(manifest), encoding="utf-8")
        session: Session = IsolatedSession(self.runtime, opening, self._scratch, manifest, self._limits)
        return contextlib.closing(session)

    def unfused_by(self, names: Sequence[str]) -> list[str]:
        """The attentions that one kernel covers in the file as it is, and no longer with `names` marked.

        Empty too where the runtime gives no evidence.
        """
        anchors = next((form.anchors for form in self._manifest.forms.values() if form.file == self.file.name), {})
        try:
            before = self._evidence((), anchors)
            return sorted(set(before) - set(self._evidence(names, anchors)))
        except AttnportError:
            return []

    def _evidence(self, names: Sequence[str], anchors: Mapping[str, tuple[str, ...]]) -> dict[str, Evidence]:
        return self.runtime.fusion_evidence(self._write(names), anchors, self.opening.plan, self.opening.io)

    def _io(self, names: Collection[str]) -> IOContract:
        known = {spec.name for spec in self.opening.io.outputs}
        # The dims are for the reader of an error alone: nothing checks outputs by them.
        added = [
            TensorSpec(name, "float32", tuple("?" if dim is None else dim for dim in self.made[name].dims or ()))
            for name in self.made
            if name in names and name not in known
        ]
        return dataclasses.replace(self.opening.io, outputs=(*self.opening.io.outputs, *added))

    def _write(self, names: Collection[str]) -> Path:
        model = storage.load(self.file)
        mark(model, names)
        path = self._scratch / _PROBE
        path.unlink(missing_ok=True)  # never written over: an open session may still have it mapped
        (self._scratch / _WEIGHTS).unlink(missing_ok=True)
        storage.save_form(model, path, _WEIGHTS)
        return path
