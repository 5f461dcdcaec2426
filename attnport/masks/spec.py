"""The type that describes a mask, re-exported from `attnport_bundle.contract`."""

from __future__ import annotations

from attnport_bundle.format.contract import ALIGNMENTS as ALIGNMENTS
from attnport_bundle.format.contract import CARRIES as CARRIES
from attnport_bundle.format.contract import COMPUTED as COMPUTED
from attnport_bundle.format.contract import KINDS as KINDS
from attnport_bundle.format.contract import OF_INTEGERS as OF_INTEGERS
from attnport_bundle.format.contract import POLARITIES as POLARITIES
from attnport_bundle.format.contract import RANKS as RANKS
from attnport_bundle.format.contract import MaskSpec as MaskSpec
