"""The interface of a layout. A layout is one file in this folder that defines `LAYOUT`."""

from __future__ import annotations

import abc
import re
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from attnport import registry
from attnport.errors import ParityFailed, UnavailableError, UsageError
from attnport_bundle.format.contract import IO, UNKNOWN_SIZE, Dim
from attnport_bundle.format.manifest import Manifest, package_of
from attnport_bundle.goldens import GoldenCases

PACKAGE = "attnport.bundling.layouts"
Run = Callable[..., Mapping[str, Any]]


@dataclass(frozen=True)
class Packed:
    """A bundle that was written and has passed its own check, whose files a layout takes.

    Attributes:
        folder: The bundle. It is removed afterwards: files are moved out of it.
        described: Gives the files that describe the model beside its weights, by their names in the source's folder.
        tell: Takes a line that the user should see.
        in_browser: Opens an ONNX file, with the files beside it by name, in onnxruntime-web, as long as the context
            lasts; gives what runs it, feeds by name to outputs by name.
        told: What the user was told of forms that were not run.
    """

    folder: Path
    manifest: Manifest
    described: Callable[[], Mapping[str, Path]]
    tell: Callable[[str], None]
    in_browser: Callable[
        [Path, Mapping[str, Path]], AbstractContextManager[Callable[[Mapping[str, Any]], dict[str, Any]]]
    ]
    told: set[str] = field(default_factory=set)

    @property
    def io(self) -> IO:
        """The contract."""
        return self.manifest.io

    @property
    def name(self) -> str:
        """The model's name, in letters that are safe in a path and in a URL."""
        return re.sub(r"[^A-Za-z0-9._-]", "_", self.manifest.name).lstrip(".") or "model"

    def move(self, file: str, target: Path) -> None:
        """Moves a file of the bundle."""
        target.parent.mkdir(parents=True, exist_ok=True)
        (self.folder / file).rename(target)

    def only_form(self, layout: str, *runtimes: str) -> str:
        """The name of the one form. Raises UsageError where there are several, or another runtime opens it."""
        if len(self.manifest.order) > 1:
            raise UsageError(
                f"got the forms {', '.join(self.manifest.order)}; a model of layout {layout} has one.",
                hint="Name one with --form.",
            )
        (name,) = self.manifest.order
        self.require_runtime(name, layout, *runtimes)
        return name

    def require_runtime(self, name: str, layout: str, *runtimes: str) -> None:
        """Raises UsageError unless one of these runtimes opens the form."""
        form = self.manifest.forms[name]
        if form.runtime not in runtimes:
            raise UsageError(
                f"form {name} is for {form.runtime}; what reads layout {layout} opens forms for {', '.join(runtimes)}.",
                hint="Name another one with --form.",
            )

    def proved(self, form: str, what: str, opened: Callable[[], Run]) -> Run | None:
        """Runs the golden cases on what was written, opened as its readers open it.

        Args:
            what: What opens it, for messages.
            opened: Opens it, and gives what runs it, as `Model.run` does.

        Returns:
            What runs it; None if that is not available here, which the user is told.

        Raises:
            ParityFailed: an output exceeds its bound.
        """
        try:
            run = opened()
        except UnavailableError as err:
            said = f"what was written for {what} was not run here: {err} {err.hint}".rstrip()
            if said not in self.told:  # as for each form
                self.told.add(said)
                self.tell(said)
            return None
        results = GoldenCases(self.folder, self.manifest).check(form, run)
        failed = next((result for result in results if not result.passed), None)
        if failed is not None:
            raise ParityFailed(
                f"{what} computes other numbers: {failed.case} {failed.output}: {failed.reason}.",
                hint="Nothing was written. Name another form with --form.",
            )
        self.tell(f"{form}: golden cases were run in {what} and are within the bound")
        return run

    def items(self, form: str, run: Run) -> Dim | None:
        """The dim of independent items: the first of every input and output, where each item alone gives the same.

        Without that, a server may not join the items of several clients. It is shown by the golden cases, item by item.

        Args:
            run: As `Model.run`.

        Returns:
            The dim; None if there is none, it needs more than one item, or no case has more than one.
        """
        import numpy as np

        first = {spec.dims[0] if spec.dims else None for spec in (*self.io.inputs, *self.io.outputs)}
        dim = next((dim for dim in self.io.dims if first == {dim.name}), None)
        unknown = any(UNKNOWN_SIZE in spec.dims for spec in self.io.outputs)
        if dim is None or dim.min > 1 or dim.step > 1 or unknown:
            return None
        counts = []

        def one_by_one(**feeds: Any) -> dict[str, Any]:
            counts.append(count := len(next(iter(feeds.values()))))
            alone = [run(**{name: array[at : at + 1] for name, array in feeds.items()}) for at in range(count)]
            return {spec.name: np.concatenate([each[spec.name] for each in alone]) for spec in self.io.outputs}

        same = all(result.passed for result in GoldenCases(self.folder, self.manifest).check(form, one_by_one))
        return dim if same and max(counts) > 1 else None

    def requirement(self, form: str) -> str:
        """What opens the form, as `onnxruntime 1.28 or later`."""
        requires = self.manifest.forms[form].requires
        release = f"{requires.runtime}, that release exactly" if requires.exact else f"{requires.runtime} or later"
        return f"{package_of(self.manifest.forms[form].runtime)} {release}"


class Layout(abc.ABC):
    """One layout.

    Attributes:
        forms: What is laid out if no form is named.
        also: What is laid out then besides, as far as the artifact folder has it.
    """

    forms: tuple[str, ...] = ("ort_cpu",)
    also: tuple[str, ...] = ()

    def usual(self, there: Collection[str]) -> tuple[str, ...]:
        """The forms if none is named, of an artifact folder that has the forms `there`."""
        return *self.forms, *(name for name in self.also if name in there)

    @abc.abstractmethod
    def write(self, packed: Packed, target: Path) -> None:
        """Fills the folder `target`.

        Raises:
            UsageError: the layout cannot have this model or form.
            ParityFailed: what was written computes other numbers than the bundle.
        """

    @abc.abstractmethod
    def next(self, manifest: Manifest, out: Path) -> str:
        """What opens the folder `out` that was written: a command, or a line of a program.

        Args:
            manifest: Of the bundle that was laid out.
        """


def names() -> list[str]:
    """The names of the layouts, sorted."""
    return registry.names(PACKAGE)


def get(name: str) -> Layout:
    """The layout called `name`. Raises UsageError where there is none; lists all."""
    layout: Layout = registry.module(PACKAGE, name, "layout").LAYOUT
    return layout
