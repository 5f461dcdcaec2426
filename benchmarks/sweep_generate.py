"""Tokens that a decoder gives with its cache, beside those of the module itself without one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sweep_contract import of_contract

NEW = 24
PROMPTS = (9, 1, 4)
"""How many tokens each of the prompts has; in one batch, the shorter ones are padded."""


def class_of(kind: str) -> str | None:
    """The class of a type that generates text, from text or from sound; None if there is none."""
    import transformers.models.auto.modeling_auto as auto

    for name in ("SEQ_TO_SEQ_CAUSAL_LM", "SPEECH_SEQ_2_SEQ", "CAUSAL_LM"):
        found = getattr(auto, f"MODEL_FOR_{name}_MAPPING_NAMES").get(kind)
        if found:
            return found if isinstance(found, str) else str(found[0])
    return None


def compared_tokens(made: Any, folder: Path, result: dict[str, Any]) -> str:
    """Exports a tiny model with its cache, and says where its tokens differ from those of the module; "" if nowhere.

    Args:
        folder: Holds the saved model, and gets the artifacts.
        result: Gets what was exported, and how much of it is fused.
    """
    import attnport

    parts = ["encoder-with-past", "with-past"] if made.model.config.is_encoder_decoder else ["with-past"]
    artifacts = [_exported(folder, part, result) for part in parts]
    result["exported"] = True
    decoder = attnport.open(artifacts[-1])
    io = decoder.manifest.io
    options = {"max_tokens": NEW + 1, "stop": [], "beams": 1, "runtime": "ort_cpu"}
    if len(artifacts) == 1:
        prompts = _prompts(next(one.high for one in io.inputs if one.name == "input_ids"))
        if not any(mask.input for mask in io.masks):  # texts of one length alone
            prompts = [prompt * (PROMPTS[0] // len(prompt)) for prompt in prompts if PROMPTS[0] % len(prompt) == 0]
        got = decoder.generate(prompts, **options)
        return _first(_differs(made.model, [], prompt, {}, each) for prompt, each in zip(prompts, got, strict=True))
    encoder = attnport.open(artifacts[0])
    start = list(io.start) or [0]
    options |= {"encoder": encoder, "start": start}
    ids = next((one for one in encoder.manifest.io.inputs if one.name == "input_ids"), None)
    if ids is not None:
        prompts = _prompts(ids.high)
        got = decoder.generate(prompts, **options)
        pairs = zip(prompts, got, strict=True)
        return _first(_differs(made.model, prompt, start, {}, each) for prompt, each in pairs)
    feeds = of_contract(encoder.manifest.io, made, made.sizes[0])
    got = decoder.generate({name: value.numpy() for name, value in feeds.items()}, **options)
    rows = ({name: value[at : at + 1] for name, value in feeds.items()} for at in range(len(got)))
    return _first(_differs(made.model, [], start, row, each) for row, each in zip(rows, got, strict=True))


def _exported(folder: Path, part: str, result: dict[str, Any]) -> Path:
    from attnport.verbs.export import export
    from attnport.verbs.fuse import fuse

    out = folder / part
    export(f"hf:{folder / 'model'}", out, part=part)
    table = fuse(out, targets=["ort_cpu"]).targets["ort_cpu"]
    result["attentions"] = result.get("attentions", 0) + table.attentions
    result["fused"] = result.get("fused", 0) + table.fused
    return out


def _prompts(vocabulary: int | None) -> list[list[int]]:
    import torch

    generator = torch.Generator().manual_seed(0)
    return [torch.randint(0, vocabulary or 2, (count,), generator=generator).tolist() for count in PROMPTS]


def _first(problems: Iterable[str]) -> str:
    return next((f"prompt {number}: {problem}" for number, problem in enumerate(problems) if problem), "")


def _differs(
    model: Any, read: Sequence[int], start: Sequence[int], feeds: Mapping[str, Any], tokens: Sequence[int]
) -> str:
    """Says where tokens are not those of the module, run on one text without padding, and on all tokens at every step.

    Args:
        read: What the encoder reads, if it reads text.
        start: What is there before the tokens.
        feeds: What else the module takes.
    """
    import torch

    if len(tokens) != NEW + 1:
        return f"{len(tokens)} tokens; expected {NEW + 1}"
    given, name = dict(feeds), "decoder_input_ids" if read or feeds else "input_ids"
    if read:
        given |= {"input_ids": torch.tensor([read]), "attention_mask": torch.ones(1, len(read), dtype=torch.int64)}
    for at, token in enumerate(tokens[:NEW]):  # the generation config may say what the last one is
        ids = torch.tensor([[*start, *tokens[:at]]])
        masked = {"attention_mask": torch.ones_like(ids)} if name == "input_ids" else {}
        with torch.no_grad():
            scores = model(**{name: ids}, **masked, **given).logits[0, -1].double()
        # Where two tokens have nearly the same score, either is right.
        behind = float(scores.max() - scores[token]) / max(float(scores.std()), 1e-30)
        if behind > 1e-3:
            return f"token {at} is {token}; expected {int(scores.argmax())}"
    return ""
