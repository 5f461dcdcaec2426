"""MaskSpec: what a mask means.

Three classes of rows, the same on every runtime:

- *valid* rows equal the module's and never depend on how much padding stands beside them;
- an *attention row with no allowed key* gives zero as the attention's own output (the ONNX standard's answer);
- *padded query rows* are unspecified but finite.
"""

from __future__ import annotations

from dataclasses import dataclass

from attnport.dims import STRICT
from attnport.errors import UsageError

KINDS = ("none", "padding", "causal", "window", "bias", "explicit")
POLARITIES = ("keep", "hide", "additive")


@dataclass(frozen=True)
class MaskSpec:
    """The meaning of one mask: of an input tensor, or of the mask that an attention was found to have.

    Attributes:
        kinds: What it combines, of `KINDS`: `padding` hides keys a batch row does not have, `causal` hides later
            keys, `window` hides keys further than `window` away, `bias` adds finite numbers to the scores,
            `explicit` is any other boolean mask over queries and keys.
        input: The input that carries it; None when the model computes it.
        polarity: `keep` (nonzero or True may be attended), `hide` (True is hidden) or `additive`.
        alignment: For `causal`: `upper_left` (query i sees keys 0..i) or `lower_right` (the last query sees all).
        window: For `window`: the largest distance of an allowed key; 0 elsewhere.
    """

    kinds: tuple[str, ...] = ("none",)
    input: str | None = None
    polarity: str = "keep"
    alignment: str = "upper_left"
    window: int = 0

    __pydantic_config__ = STRICT

    def __post_init__(self) -> None:
        unknown = [kind for kind in self.kinds if kind not in KINDS]
        if unknown or not self.kinds:
            raise UsageError(f"mask kind {', '.join(unknown) or 'missing'}; expected one of {', '.join(KINDS)}.")
        if self.polarity not in POLARITIES:
            raise UsageError(f"mask polarity {self.polarity!r}; expected one of {', '.join(POLARITIES)}.")

    def __str__(self) -> str:
        text = "+".join(self.kinds)
        return f"{text}({self.input})" if self.input else text
