"""Runs bundles over a corpus: `Embed` and `Run` are callables for batches of rows, for Ray Data and others.

They are in `jobs`; `rows` reads columns, and writes those of outputs. This is part of the installed reader alone; no
bundle carries it.
"""

from .jobs import Embed, Run

__all__ = ["Embed", "Run"]
