"""Opening a bundle's model, and running it."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import feeds as feeding
from . import files
from .errors import BundleError, RuntimeMissing
from .manifest import IO, Form, Manifest, read

if TYPE_CHECKING:
    import numpy as np

HERE = Path(__file__).resolve().parent.parent
"""The bundle that this package was copied into."""


class Model:
    """A model that is open. `run` may be called from several threads at once.

    Attributes:
        manifest: Everything that the bundle says about itself.
        form: The name of the form that is open.
        provider: The execution provider that really runs, as the runtime tells.
    """

    def __init__(self, manifest: Manifest, form: str, session: Any) -> None:
        self.manifest = manifest
        self.form = form
        self.provider: str = session.get_providers()[0]
        self._session = session
        self._outputs = [spec.name for spec in manifest.io.outputs]

    @property
    def io(self) -> IO:
        """The contract: inputs, outputs, named dims with their ranges, masks."""
        return self.manifest.io

    def run(self, **feeds: np.ndarray[Any, Any]) -> dict[str, np.ndarray[Any, Any]]:
        """Runs the model: an array for each input by name, an array for each output by name.

        Raises:
            FeedError: a missing or unknown name, a wrong dtype, rank, size or value; names tensor, got and expected.
            BundleError: the model is closed, or the runtime failed.
        """
        feeding.check(self.io, feeds)
        if self._session is None:
            raise BundleError("the model is closed.")
        try:
            found = self._session.run(self._outputs, feeds)
        except Exception as err:  # a runtime's own exceptions share no base
            raise BundleError(f"{self.manifest.forms[self.form].runtime} failed: {err}") from err
        return dict(zip(self._outputs, found, strict=True))

    def masks(self, lengths: Sequence[int], size: int | None = None) -> dict[str, np.ndarray[Any, Any]]:
        """Every input that says what is padding, for items of `lengths` padded on the right to `size`.

        Raises:
            FeedError: the model takes no padding mask, one without a rule, or lengths beyond the size.
        """
        return feeding.padding_masks(self.io, lengths, size)

    def close(self) -> None:
        """Frees the model; closing twice is fine."""
        self._session = None

    def __enter__(self) -> Model:
        return self

    def __exit__(self, *args: object) -> None:
        self.close()


def load(
    folder: str | os.PathLike[str] | None = None,
    *,
    form: str | None = None,
    threads: int | None = None,
    check_files: bool = True,
) -> Model:
    """Checks a bundle and opens its model.

    Args:
        folder: The bundle; None = the one that this package stands in.
        form: Which form to open; None = the first of the bundle's order that can be opened here.
        threads: Compute threads; None = the runtime's own choice.
        check_files: Compare every file with its digest first. False trusts the disk and saves the time to read it.

    Raises:
        BundleError: no bundle, or of a version that this reader does not know; or an unknown form.
        IntegrityError: a file was changed, is missing or was added.
        RuntimeMissing: no form's runtime is installed, or each is older than the bundle needs.
    """
    path = HERE if folder is None else Path(folder)
    manifest = read(path)
    if check_files:
        files.require(path, manifest)
    return open_form(path, manifest, form, threads)


def open_form(folder: Path, manifest: Manifest, form: str | None = None, threads: int | None = None) -> Model:
    """Opens one form of a bundle whose files were checked; raises as `load`."""
    if form is not None and form not in manifest.forms:
        raise BundleError(f"form {form!r}: the bundle has {', '.join(manifest.order)}.")
    reasons = []
    for name in manifest.order if form is None else (form,):
        try:
            return Model(manifest, name, _session(folder, manifest.forms[name], threads))
        except RuntimeMissing as err:
            reasons.append(f"{name}: {err}")
    raise RuntimeMissing(" ".join(reasons))


def _release(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version.partition("+")[0])[:3])


def _session(folder: Path, form: Form, threads: int | None) -> Any:
    if form.runtime != "onnxruntime":
        raise RuntimeMissing(f"this reader has no way to run {form.runtime}.")
    try:
        import onnxruntime
    except ImportError as err:
        raise RuntimeMissing("onnxruntime is not installed; pip install onnxruntime.") from err
    least = form.requires.runtime
    if _release(onnxruntime.__version__) < _release(least):
        raise RuntimeMissing(
            f'got onnxruntime {onnxruntime.__version__}; expected {least} or later; pip install "onnxruntime>={least}".'
        )
    if form.provider not in onnxruntime.get_available_providers():
        raise RuntimeMissing(f"this onnxruntime was built without {form.provider}.")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # errors are raised; they need not be printed as well
    if threads is not None:
        options.intra_op_num_threads = threads
    try:
        session = onnxruntime.InferenceSession(folder / form.file, options, providers=[form.provider])
    except Exception as err:  # a runtime's own exceptions share no base
        raise BundleError(f"{folder / form.file} cannot be opened: {err}") from err
    # onnxruntime goes on with another provider and a warning when the one that was asked for does not start.
    if session.get_providers()[0] != form.provider:
        raise RuntimeMissing(f"got provider {session.get_providers()[0]}; expected {form.provider}.")
    return session
