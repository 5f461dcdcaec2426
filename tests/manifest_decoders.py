"""Changes of a manifest that make it one of a decoder: those that are fine, and wrong ones."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from attnport_bundle.format.decoder import Rules

Edit = Callable[[dict[str, Any]], Any]
IDS, PAST, MANY = "batch,seq", "batch,past+seq", "batch,2,past,3"


def rules(**changed: object) -> dict[str, Any]:
    """How tokens are chosen, as a manifest has it."""
    return dataclasses.asdict(Rules()) | changed


def cache(name: str, axis: int | None = 2, holds: str | None = "all") -> dict[str, Any]:
    """A cache `name` that the output `new_name` follows."""
    return {"input": name, "output": f"new_{name}", "axis": axis, "holds": holds}


def dims_of(text: str) -> list[str | int]:
    return [int(dim) if dim.isdigit() else dim for dim in text.split(",")]


def decoder(found: dict[str, Any], inputs: dict[str, str] | None = None, **changed: Any) -> dict[str, Any]:
    """Makes it the manifest of a decoder with two caches; those of the window have the length `near`.

    Args:
        inputs: The dims of inputs besides, or in the place of, those of ids, mask and two caches; "" = without it.
        changed: Keys of `io.decoder`.
    """
    made = {"ids": IDS, "mask": PAST, "key": MANY, "value": MANY} | (inputs or {})
    io = found["io"]
    io["inputs"] = [
        {"name": name, "dtype": "int64" if dims.count(",") == 1 else "float32", "dims": dims_of(dims),
         "high": {"ids": 9, "positions": 64}.get(name), "labels": []}
        for name, dims in made.items() if dims
    ]  # fmt: skip
    io["masks"] = [
        {"kinds": ["padding"], "input": name, "polarity": "keep", "alignment": "upper_left", "window": 0,
         "carries": "mask", "keys": None}
        for name in ("mask", "near_mask") if made.get(name)
    ]  # fmt: skip
    sizes = {"batch": (1, 2, 8), "seq": (1, 5, 16), "past": (0, 5, 16), "near": (0, 5, 16)}
    io["dims"] = [{"name": name, "min": least, "opt": usual, "max": most, "step": 1}
                  for name, (least, usual, most) in sizes.items()]  # fmt: skip
    known: dict[str, Any] = {
        "ids": "ids", "mask": "mask", "mask_covers": "all", "positions": None, "logits": "logits",
        "caches": [cache("key"), cache("value")], "output_holds": "all", "window": None, "stop": [], "start": [],
        "rules": None,
    }  # fmt: skip
    io["decoder"] = known | changed
    taken = {spec["name"]: spec["dims"] for spec in io["inputs"]}
    outputs = {"logits": ["batch", 9]}
    for one in io["decoder"]["caches"]:
        dims = list(taken.get(one["input"], []))
        if one["axis"] is not None and one["axis"] < len(dims):
            grown = io["decoder"]["output_holds"] == "all"
            dims[one["axis"]] = f"{dims[one['axis']]}+seq" if grown else "seq"
        outputs[one["output"]] = dims
    io["outputs"] = [
        {"name": name, "dtype": "float32", "dims": dims, "high": None, "labels": []} for name, dims in outputs.items()
    ]
    (form,) = found["forms"].values()
    form["dtypes"] = {spec["name"]: spec["dtype"] for spec in (*io["inputs"], *io["outputs"])}
    form["parity"]["results"] = []
    bound = found["goldens"]["bounds"][0]
    found["goldens"]["bounds"] = [bound | {"output": name} for name in outputs]
    return known


def far_and_near(found: dict[str, Any], **changed: Any) -> None:
    """A cache of all tokens, and one of a window with a mask of its own."""
    window = {"mask": "near_mask", "places": 3} | changed.pop("window", {})
    known = {"caches": [cache("key"), cache("value", holds="window")], "window": window}
    decoder(found, {"value": "batch,2,near,3", "near_mask": "batch,near+seq"}, **known | changed)


def near_alone(found: dict[str, Any], **changed: Any) -> None:
    """All caches are of a window, and positions are an input."""
    known = {"caches": [cache("key", holds="window"), cache("value", holds="window")], "positions": "positions",
             "window": {"mask": None, "places": 3}}  # fmt: skip
    decoder(found, {"positions": IDS}, **known | changed)


def edited(make: Edit, change: Edit) -> Edit:
    """A change of what another one made."""

    def edit(found: dict[str, Any]) -> None:
        make(found)
        change(found)

    return edit


def of_output(dims: list[Any]) -> Edit:
    """Other dims of the last cache's output."""
    return edited(decoder, lambda m: m["io"]["outputs"][-1].update(dims=dims))


FINE_DECODERS: dict[str, Edit] = {
    "a decoder": decoder,
    "a decoder's ends": lambda m: decoder(m, stop=[2, 0]),
    "how a decoder begins": lambda m: decoder(m, start=[0]),
    "how its tokens are chosen": lambda m: decoder(m, rules=rules(bad_words=[[3], [4, 5]], length_penalty=2)),
    "a mask of the cache": lambda m: decoder(m, {"mask": "batch,past"}, mask_covers="past"),
    "no mask": lambda m: decoder(m, {"mask": ""}, mask=None, mask_covers=None),
    "states alone": lambda m: decoder(m, {"mask": IDS, "key": "batch,4", "value": "2,batch,4"}, mask_covers="new",
                                      caches=[cache("key", None, None), cache("value", None, None)],
                                      output_holds=None),
    "a state and a cache": lambda m: decoder(m, {"key": "2,batch"}, caches=[cache("key", None, None), cache("value")]),
    "new places alone": lambda m: decoder(m, output_holds="new"),
    "a context": lambda m: decoder(m, {"seen": "batch,2,4,3"}),
    "scores of every token": edited(decoder, lambda m: m["io"]["outputs"][0].update(dims=["batch", "seq", 9])),
    "the new tokens first": of_output(["batch", 2, "seq+past", 3]),
    "a window": far_and_near,
    "a window of all layers": near_alone,
}  # fmt: skip
WRONG_DECODERS: dict[str, tuple[Edit, str]] = {
    "a decoder with one missing": (edited(decoder, lambda m: m["io"]["decoder"].pop("mask")), "'mask' is missing"),
    "a decoder with more": (lambda m: decoder(m, more=1), "unknown key"),
    "end below 0": (lambda m: decoder(m, stop=[2, -1]), "stop"),
    "end that is no integer": (lambda m: decoder(m, stop=[2.5]), "stop"),
    "beginning below 0": (lambda m: decoder(m, start=[-1]), "start"),
    "rules with one missing": (lambda m: decoder(m, rules={"beams": 2}), "is missing"),
    "rules with one more": (lambda m: decoder(m, rules=rules(more=2)), "unknown key"),
    "no beam": (lambda m: decoder(m, rules=rules(beams=0)), "beams: got 0"),
    "beams without end": (lambda m: decoder(m, rules=rules(beams=10**9)), "beams: got 1000000000"),
    "a penalty of 0": (lambda m: decoder(m, rules=rules(repetition_penalty=0)), "repetition_penalty: got 0"),
    "rows below 0": (lambda m: decoder(m, rules=rules(no_repeat_ngram=-1)), "no_repeat_ngram: got -1"),
    "length below 0": (lambda m: decoder(m, rules=rules(min_length=-1)), "min_length: got -1"),
    "tokens below 0": (lambda m: decoder(m, rules=rules(min_tokens=-1)), "min_tokens: got -1"),
    "a word of nothing": (lambda m: decoder(m, rules=rules(bad_words=[[]])), "bad_words: got"),
    "a word below 0": (lambda m: decoder(m, rules=rules(bad_words=[[-1]])), "bad_words: got -1"),
    **{
        f"{name} of no token": (lambda m, name=name: decoder(m, rules=rules(**{name: [-1]})), f"{name}: got -1")
        for name in ("suppress", "suppress_first", "forced_first", "forced_last")
    },
    "ids of no input": (lambda m: decoder(m, ids="tokens"), "'tokens' is no input"),
    "ids without a high": (lambda m: decoder(m, {"key": IDS}, ids="key", caches=[cache("value")]), "with a high"),
    "ids of rank 3": (edited(decoder, lambda m: m["io"]["inputs"][0].update(dims=["batch", "seq", 1])), "with a high"),
    "ids of a batch of 2": (edited(decoder, lambda m: m["io"]["inputs"][0].update(dims=[2, "seq"])), "with a high"),
    "one input for two": (lambda m: decoder(m, caches=[cache("key"), cache("key")]), "the input 'key' is named"),
    "the mask as a cache": (lambda m: decoder(m, caches=[cache("key"), cache("mask", 1)]), "the input 'mask' is named"),
    "logits of no output": (lambda m: decoder(m, logits="key"), "'key' is no output"),
    "logits of a cache": (lambda m: decoder(m, logits="new_key"), "the output 'new_key' is named twice"),
    "scores of other ids": (
        edited(decoder, lambda m: m["io"]["outputs"][0].update(dims=["batch", 8])), "does not score the 9 ids"),
    "no cache": (lambda m: decoder(m, {"mask": IDS, "key": "", "value": ""}, caches=[], output_holds=None),
                 "it has no cache"),
    "a cache without axis": (lambda m: decoder(m, caches=[cache("key"), cache("value", None)]), "has no axis"),
    "a state with an axis": (lambda m: decoder(m, caches=[cache("key"), cache("value", 2, None)]), "has no axis"),
    "an axis of no length": (lambda m: decoder(m, caches=[cache("key"), cache("value", 1)]), "no dim of its own"),
    "an axis below 0": (lambda m: decoder(m, caches=[cache("key"), cache("value", -2)]), "no dim of its own"),
    "an axis beyond the rank": (lambda m: decoder(m, caches=[cache("key"), cache("value", 9)]), "no dim of its own"),
    "the batch as the length": (lambda m: decoder(m, caches=[cache("key"), cache("value", 0)]), "no dim of its own"),
    "a cache of no batch": (lambda m: decoder(m, {"value": "2,past,3"}, caches=[cache("key"), cache("value", 1)]),
                            "a cache has the dim batch"),
    "what follows no cache": (of_output(["batch", 2, "past", 3]), "does not follow"),
    "what follows another": (of_output(["batch", 2, "past+seq", 4]), "does not follow"),
    "lengths of two dims": (lambda m: decoder(m, {"value": "batch,2,near,3"}), "one length of their own"),
    "a window without caches": (lambda m: decoder(m, window={"mask": None, "places": 1}), "have a window"),
    "caches without their window": (lambda m: far_and_near(m) or m["io"]["decoder"].update(window=None), "a window"),
    "a window of nothing": (lambda m: far_and_near(m, window={"places": 0}), "got 0 places"),
    "a window of new places": (lambda m: far_and_near(m, output_holds="new"), "hold all of them"),
    "a window whose mask is the other": (lambda m: far_and_near(m, window={"mask": "mask"}), "named twice"),
    "a window without a mask": (lambda m: far_and_near(m, window={"mask": None}), "a mask of its own"),
    "a window with one missing": (edited(near_alone, lambda m: m["io"]["decoder"]["window"].pop("mask")), "missing"),
    "a window and no positions": (lambda m: near_alone(m, positions=None), "positions is an input"),
    "positions without a window": (lambda m: decoder(m, {"positions": IDS}, positions="positions"), "for models with"),
    "positions without end": (
        edited(near_alone, lambda m: m["io"]["inputs"][-1].update(high=None)), "expected positions with a high"),
    "a window that begins with more": (
        edited(far_and_near, lambda m: m["io"]["dims"][3].update(min=1)), "different numbers of places"),
    "a cache that begins with more, and no mask": (
        edited(FINE_DECODERS["no mask"], lambda m: m["io"]["dims"][2].update(min=1)), "no mask hides a place"),
    "a mask that covers nothing": (lambda m: decoder(m, mask_covers=None), "mask_covers is null where mask is"),
    "a mask that covers other tokens": (lambda m: decoder(m, mask_covers="past"), "expected a mask that keeps"),
    "a mask of new tokens and a cache": (lambda m: decoder(m, {"mask": IDS}, mask_covers="new"), "and nowhere else"),
    "a mask that hides": (
        edited(decoder, lambda m: m["io"]["masks"][0].update(polarity="hide")), "expected a mask that keeps"),
    "a mask that is none": (edited(decoder, lambda m: m["io"].update(masks=[])), "expected a mask that keeps"),
    "outputs of states that hold new places": (
        edited(FINE_DECODERS["states alone"], lambda m: m["io"]["decoder"].update(output_holds="new")),
        "output_holds is null"),
    "an input that grows, for nothing": (lambda m: decoder(m, {"bias": "batch,1,seq,4"}), "differs from step to step"),
}  # fmt: skip
