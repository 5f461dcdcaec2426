"""From a SPEC to a ModelSpec: where `sources`, which reads SPECs, meets the project's own `models`."""

from __future__ import annotations

from collections.abc import Sequence

from attnport.artifacts import ModelSpec


def load(
    text: str, *, inputs: Sequence[str] = (), dims: Sequence[str] = (), trust_remote_code: bool = False
) -> ModelSpec:
    """Loads the model that a SPEC names, the project's own ones included; as `attnport.sources.load`.

    Raises:
        SpecError: there is no such thing, it is not a module, or it raised while loading.
        UsageError: `inputs`, `dims` or `trust_remote_code` do not fit it.
        MissingDependency: it needs a package that is not installed.
    """
    from attnport.models import base
    from attnport.sources import load as read

    return read(text, inputs=inputs, dims=dims, trust_remote_code=trust_remote_code, own=base.get)
