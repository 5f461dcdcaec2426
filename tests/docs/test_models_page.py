"""docs/models.md is what its script makes of the results, and says what is wrong."""

from __future__ import annotations

import json
from typing import Any

from scripts import ROOT, load

make = load("docs/make_models.py")
OF = "torch 2.13.0+cpu transformers 5.23.0 onnxruntime 1.31.1 abc"


def result(*, right: bool = True, **changed: Any) -> dict[str, Any]:
    known = {"made": True, "exported": True, "right": right, "reason": "" if right else "it is off", "processor_s": 3.2}
    return {**known, "of": OF, **changed}


def test_the_page_is_made_of_the_results() -> None:
    found = json.loads((ROOT / "benchmarks" / "sweep_hf.json").read_text("utf-8"))
    assert (ROOT / "docs" / "models.md").read_text("utf-8") == make.page(found)


def test_what_torch_gets_right_and_attnport_does_not_is_named() -> None:
    found = {
        "bert": {"torch": result(), "attnport": result(attentions=2, fused=2)},
        "odd": {"torch": result(), "attnport": result(right=False)},
        "hard": {"torch": result(right=False), "attnport": result(right=False, exported=False)},
        "two": {"attnport": result(), "other": result(right=False, reason="it is off at seq 33")},
        "lost": {"attnport": result(right=False, made=False, exported=False, reason="no config")},
    }
    text = make.page(found)
    assert "5 types were tried; 1 could not be made. Of the 4 others, attnport gets **2** right." in text
    assert "torch.onnx alone was measured on 3 of them: it gets 2 right, attnport 1." in text
    assert "Right there and not here: 1: `odd`." in text
    assert "every attention is fused in 1." in text
    assert "Types with another config that could be made: 1. Right on the first config: 1; on the other one: 0;" in text
    assert "| `odd` | right | 3 | **wrong** |  | 3 |  |  |  |" in text
    assert "| `hard` | **wrong** | 3 | refused |  | 3 |  |  |  |" in text
    assert "| `two` |  |  | right |  | 3 | **wrong** |  |  |" in text
    assert "## Right, and not on the other config\n\n- `two`: it is off at seq 33\n" in text
    assert "- `odd`: it is off" in text
    assert "- `lost`: no config" in text


def test_what_writes_text_says_whether_its_cache_gives_the_same_tokens() -> None:
    off = result(right=False)
    refused = {**off, "exported": False}
    encoder = {**refused, "reason": "its tokens attend to what comes behind them"}
    cached = {"a": result(), "b": off, "c": refused, "d": {**refused, "made": False}, "e": encoder}
    text = make.page({kind: {"attnport": result(), "cached": side} for kind, side in cached.items()})
    assert "Of 3 types that write text, 2 go with `--with-past`; 1 give the module's tokens." in text
    said = {"a": "yes | right", "b": "yes | **wrong**", "c": "refused | ", "d": " | ", "e": " | "}
    for kind, cells in said.items():
        assert f"| `{kind}` | right |  | 3 |  | {cells} |" in text
    assert "## Without a cache\n\n- `c`: it is off\n" in text
    assert "## Not right with a cache\n\n- `b`: it is off\n" in text


def test_engines_have_a_column_where_they_were_tried() -> None:
    engine = result(attentions=4, fused=4, version="1.7.1")
    part = {**engine, "fused": 1, "right": False, "reason": "not fused: why"}
    engines = {"a": engine, "b": part, "c": result(right=False)}
    sides = {kind: {"attnport": result(), "engine": side} for kind, side in engines.items()}
    text = make.page({"d": {"attnport": result()}, **sides})
    assert (
        "- TensorRT-RTX 1.7.1 builds an engine of 2 of 3 types that were tried; every attention is fused in 1." in text
    )
    for kind, cell in {"a": "4/4", "b": "1/4", "c": "**none**", "d": ""}.items():
        assert f"| `{kind}` | right |  | 3 |  |  |  | {cell} |" in text
    assert "attentions that are not fused in it\n\n- `b`: not fused: why\n- `c`: it is off\n" in text
    assert "engine |" not in make.page({"d": {"attnport": result()}})


def test_a_reason_is_short_and_has_no_path_of_a_machine() -> None:
    reason = f"SpecError: hf:/tmp/x/model: it is odd (/a/site-packages/b.py, line 3) <- {'cause ' * 99}"
    assert make.brief(reason) == "SpecError: it is odd ... line 3)"
    assert len(make.brief("word " * 99)) <= make.LONGEST + 4
