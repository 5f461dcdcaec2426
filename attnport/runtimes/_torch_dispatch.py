"""The base of dispatch modes, which see every operator that a module calls."""

# torch leaves its mode classes untyped.
# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

from torch.utils._python_dispatch import TorchDispatchMode


class DispatchMode(TorchDispatchMode):
    """A dispatch mode that torch does not wrap for its compiler: nothing is compiled while one is active, and the
    wrapper imports `torch._dynamo`, which takes a second."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False
