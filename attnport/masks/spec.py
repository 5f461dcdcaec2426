"""MaskSpec: what a mask means.

Three classes of rows, the same on every runtime:

- *valid* rows equal the module's and never depend on how much padding stands beside them;
- an *attention row with no allowed key* gives zero as the attention's own output (the ONNX standard's answer);
- *padded query rows* are unspecified but finite.

What each kind allows, for query i of S, at position p(i), and key j of T, of batch item b. p(i) is i with alignment
`upper_left`, and i + T - S with `lower_right`, where the last query stands at the last key (a cache came before it).

==========  ====================================================================================================
none        every key
padding     the keys that item b has: `keep[b, j]`, or `j < lengths[b]`
causal      j <= p(i)
window      |p(i) - j| <= window; with `causal` that leaves the last window + 1 keys
prefix      j <= p(i) or j < prefix[b] (prefix-LM, Raffel et al. 2020): widens `causal`, which need not be named
documents   ids[b, p(i)] == ids[b, j]; with `padding` from the same ids, those of 0 are padding
global      widens `window`: keys and queries marked global see and are seen by all (Beltagy et al. 2020)
bias        every key; finite numbers are added to the scores
explicit    any other pattern over queries and keys
==========  ====================================================================================================

Kinds combine: a key is allowed where all of them allow it, after `prefix` has widened `causal` and `global` `window`.
"""

from __future__ import annotations

from dataclasses import dataclass

from attnport.dims import STRICT
from attnport.errors import UsageError

KINDS = ("none", "padding", "causal", "window", "prefix", "documents", "global", "bias", "explicit")
POLARITIES = ("keep", "hide", "additive")
ALIGNMENTS = ("upper_left", "lower_right")
CARRIES = {"mask": KINDS, "lengths": ("padding", "prefix"), "ids": ("documents",), "marks": ("global",)}
"""What an input may hold, and the kinds that it can say by that."""


@dataclass(frozen=True)
class MaskSpec:
    """The meaning of one mask: of an input tensor, or of the mask that an attention was found to have.

    Attributes:
        kinds: What it combines, of `KINDS`; the module's text says what each allows.
        input: The input that carries it; None when the model computes it, or when several inputs carry it.
        polarity: Of a `mask`: `keep` (nonzero or True may be attended), `hide` (nonzero is hidden) or `additive`.
        alignment: Where queries stand among the keys: `upper_left` (query i at i) or `lower_right` (the last query
            at the last key).
        window: For `window`: the largest distance of an allowed key; 0 elsewhere.
        carries: What the input holds: `mask` (an element for each key, `[B,T]`, or pair, `[B,1|H,1|S,T]`), `lengths`
            (integers `[B]`: of the items for `padding`, of the prefixes for `prefix`), `ids` (integers `[B,T]`, equal
            within a document) or `marks` (`[B,T]`, nonzero for global tokens).
        keys: For `lengths`: the dim that they count, where the inputs have several beside the batch.

    Raises:
        UsageError: an unknown kind, polarity, alignment or content, or parts that do not go together.
    """

    kinds: tuple[str, ...] = ("none",)
    input: str | None = None
    polarity: str = "keep"
    alignment: str = "upper_left"
    window: int = 0
    carries: str = "mask"
    keys: str | None = None

    __pydantic_config__ = STRICT

    def __post_init__(self) -> None:
        unknown = [kind for kind in self.kinds if kind not in KINDS]
        if unknown or not self.kinds:
            raise UsageError(f"mask kind {', '.join(unknown) or 'missing'}; expected one of {', '.join(KINDS)}.")
        for what, got, known in (
            ("polarity", self.polarity, POLARITIES),
            ("alignment", self.alignment, ALIGNMENTS),
            ("content", self.carries, tuple(CARRIES)),
        ):
            if got not in known:
                raise UsageError(f"mask {what} {got!r}; expected one of {', '.join(known)}.")
        problem = self._problem()
        if problem:
            raise UsageError(f"mask {self}: {problem}.")

    def _problem(self) -> str:
        """Why the parts do not go together, or ""."""
        if len(set(self.kinds)) != len(self.kinds):
            return "a kind is named twice"
        if "none" in self.kinds and len(self.kinds) > 1:
            return "none hides nothing; it does not combine with other kinds"
        if self.window < 0:
            return f"got window={self.window}; expected 0 or more"
        if self.window and "window" not in self.kinds:
            return f"got window={self.window} without the kind window"
        if self.carries == "mask":
            return "" if self.keys is None else f"got keys={self.keys!r}; only lengths count the keys of a dim"
        if self.input is None:
            return f"got {self.carries} without the input that holds them"
        said = [kind for kind in self.kinds if kind in CARRIES[self.carries]]
        if len(said) != 1:
            return f"got {self.carries} for {len(said)} kinds; expected one of {', '.join(CARRIES[self.carries])}"
        others = set(self.kinds) - {*said, "causal", "window", "bias", *["padding"] * (self.carries == "ids")}
        if others:
            return (
                f"{self.carries} of {said[0]} cannot say {', '.join(sorted(others))} as well; another input carries it"
            )
        if self.polarity != "keep":
            return f"got polarity {self.polarity} for {self.carries}; only a mask has one"
        if self.keys is not None and self.carries != "lengths":
            return f"got keys={self.keys!r}; only lengths count the keys of a dim"
        return ""

    def __str__(self) -> str:
        text = "+".join(self.kinds)
        return f"{text}({self.input})" if self.input else text
