"""Calls that are timed on a device: what their sessions share."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from typing import Any

from attnport.errors import UsageError
from attnport.runtimes._session import Array, CheckedSession, refused

STREAM, GRAPH = "stream", "graph"
"""Ways to run a call: as `run` does, and as one captured CUDA graph."""


class DeviceTimed(CheckedSession):
    """A session that times the parts of a call by events.

    Inputs are converted to the session's types before the first part begins, and once for arrays that come again: an
    application whose model computes in half precision has its caches in half precision.

    Attributes:
        modes: How a call can be timed on the device, see `artifacts.DeviceTimedSession`.
    """

    modes: tuple[str, ...] = (STREAM, GRAPH)
    _converted: tuple[dict[str, Array], Mapping[str, Any]] | None = None

    def run_timed(self, feeds: Mapping[str, Array], mode: str) -> Mapping[str, int]:
        """Times a call in one of `modes`: ns by part, from the device's events. Outputs are copied back and dropped.

        Arrays that come again must not have been changed: they are neither checked nor converted again.

        Raises:
            FeedError: as `run`.
            UsageError: the mode is unknown, or the session is closed.
            UnavailableError: the call cannot be captured as a graph.
        """
        if mode not in self.modes:
            raise UsageError(f"mode {mode!r}; expected one of {', '.join(self.modes)}.")
        with self._open(), refused(self.ran.provider, feeds):
            last = self._converted
            if (
                last is None
                or last[0].keys() != feeds.keys()
                or any(last[0][name] is not feeds[name] for name in feeds)
            ):
                self._check(feeds)
                self._converted = dict(feeds), self._in_own_types(feeds)
            assert self._converted is not None
            return self._timed(self._converted[1], mode)

    def close(self) -> None:
        """As of any session."""
        self._converted = None
        super().close()

    @abc.abstractmethod
    def _in_own_types(self, feeds: Mapping[str, Array]) -> Mapping[str, Any]:
        """The inputs on the host, as the device takes them."""

    @abc.abstractmethod
    def _timed(self, feeds: Mapping[str, Any], mode: str) -> Mapping[str, int]:
        """ns by part of `DEVICE_PARTS`; `feeds` are those of `_in_own_types`."""
