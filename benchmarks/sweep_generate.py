"""Tokens that a decoder gives with its cache, beside those of the module itself without one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

NEW = 24
PROMPTS = (9, 1, 4)
"""How many tokens each of the prompts has; in one batch, the shorter ones are padded."""


def class_of(kind: str) -> str | None:
    """The class of a type that generates text, from text or from sound; None if there is none."""
    import transformers.models.auto.modeling_auto as auto

    for name in ("CAUSAL_LM", "SEQ_TO_SEQ_CAUSAL_LM", "SPEECH_SEQ_2_SEQ"):
        found = getattr(auto, f"MODEL_FOR_{name}_MAPPING_NAMES").get(kind)
        if found:
            return found if isinstance(found, str) else str(found[0])
    return None


def wrong_tokens(model: Any, out: Path, vocabulary: int) -> str:
    """Says where the tokens of an artifact differ from those of the module; "" if they do not.

    The module runs on each text by itself, without padding, and on all of its tokens at every step.
    """
    import torch

    import attnport

    generator = torch.Generator().manual_seed(0)
    prompts = [torch.randint(0, vocabulary, (count,), generator=generator).tolist() for count in PROMPTS]
    got = attnport.open(out).generate(prompts, max_tokens=NEW, stop=[], runtime="ort_cpu")
    for number, (prompt, tokens) in enumerate(zip(prompts, got, strict=True)):
        problem = _differs(model, prompt, tokens)
        if problem:
            return f"prompt {number}: {problem}"
    return ""


def _differs(model: Any, prompt: Sequence[int], tokens: Sequence[int]) -> str:
    import torch

    if len(tokens) != NEW:
        return f"{len(tokens)} tokens; expected {NEW}"
    ids = torch.tensor([[*prompt, *tokens[:-1]]])
    for at, token in enumerate(tokens):
        seen = ids[:, : len(prompt) + at]
        with torch.no_grad():
            scores = model(input_ids=seen, attention_mask=torch.ones_like(seen)).logits[0, -1].double()
        # Where two tokens have nearly the same score, either is right.
        behind = float(scores.max() - scores[token]) / max(float(scores.std()), 1e-30)
        if behind > 1e-3:
            return f"token {at} is {token}; expected {int(scores.argmax())}"
    return ""
