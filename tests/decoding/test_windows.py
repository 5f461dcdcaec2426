"""Layers with a sliding window keep what can still be seen, and every token is as if they kept all."""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from decoders import Once, continued, exported, saved
from loaded import load
from representatives import representatives

import attnport
from attnport.artifacts import Window
from attnport.cases.choosing import PROMPT, decoding_cases, in_steps, stepped
from attnport.decoders import roles_in
from attnport.errors import AttnportError
from attnport.folder.workspace import open_folder, opened
from attnport.sources.hf import decoding
from attnport.verbs.bundle import bundle
from attnport.verbs.check import check
from attnport.verbs.fuse import fuse
from attnport_bundle.decoding.caches import Decoding, steps_of

KINDS = {
    "mistral": Window("past", 5, "position_ids"),
    "phi3": Window("past", 6, "position_ids"),
    "gemma3": Window("kept", 7),
    "gemma2": Window("kept", 7),
    "qwen2": Window("kept", 8),
}
QUICK = ("gemma3",)
RUNTIMES = ("ort_cpu", "openvino")
LONG = [int(token) for token in np.random.default_rng(0).integers(1, 95, 50)]
"""A prompt of several windows."""
PROMPTS = [LONG[:30], [44], LONG]


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> Once:
    made = Once(tmp_path_factory)

    def of(kind: str) -> Path:
        folder = made(kind)
        if "openvino" not in open_folder(folder).forms:
            fuse(folder, targets=RUNTIMES)
        return folder

    return of  # type: ignore[return-value]


@pytest.mark.parametrize("kind", representatives(KINDS, QUICK))
def test_tokens_behind_many_windows_are_those_of_transformers(artifacts: Once, kind: str) -> None:
    folder = artifacts(kind)
    artifact = attnport.open(folder)
    assert artifact.manifest.io.window == KINDS[kind]
    wanted = continued(folder.parent / "weights", PROMPTS, 100, eos_token_id=None)
    beams = continued(folder.parent / "weights", PROMPTS[:2], 80, eos_token_id=None, num_beams=2)
    for runtime in RUNTIMES:
        assert artifact.generate(PROMPTS, runtime, max_tokens=100, stop=[]) == wanted, runtime
        assert artifact.generate(PROMPTS[:2], runtime, max_tokens=80, stop=[], beams=2) == beams, runtime


@pytest.mark.parametrize(
    ("kind", "runtime"), representatives(itertools.product(KINDS, RUNTIMES), [("gemma3", "ort_cpu")])
)
def test_every_step_of_256_is_what_a_pass_over_all_tokens_gives(artifacts: Once, kind: str, runtime: str) -> None:
    folder = artifacts(kind)
    manifest = open_folder(folder)
    *_, case = decoding_cases(manifest.io)
    assert case.name == "decode, 264 tokens"
    session: Any = opened(folder, manifest, runtime)
    whole, found = session.run(case.feeds), in_steps(session, manifest.io, case.feeds)
    for name, array in found.items():
        real = case.valid[name]
        np.testing.assert_allclose(array[real], whole[name][real], atol=2e-3, err_msg=name)
    assert manifest.io.window
    # A place more that is let go is seen.
    short = dataclasses.replace(manifest.io.window, places=manifest.io.window.places - 1)
    io = dataclasses.replace(manifest.io, window=short)
    wrong = stepped(lambda **feeds: session.run(feeds), io, case.feeds, PROMPT)
    assert np.abs(wrong["logits"] - whole["logits"]).max() > 2e-3


@pytest.mark.parametrize(
    ("kind", "runtime"),
    representatives(itertools.product(KINDS, [*RUNTIMES, ""]), [("gemma3", "openvino"), ("gemma3", "")]),
)
def test_caches_hold_what_can_be_seen_and_no_more(artifacts: Once, kind: str, runtime: str) -> None:
    """Where the runtime keeps them, and where they are given at every step."""
    folder = artifacts(kind)
    manifest = open_folder(folder)
    session: Any = opened(folder, manifest, runtime or "ort_cpu")
    roles = roles_in(manifest.io)
    decoding = Decoding(lambda **feeds: session.run(feeds), manifest.io, roles, steps_of(session) if runtime else None)
    keep = np.ones((2, 50), dtype=bool)
    keep[1, :45] = False
    decoding.push(np.array([LONG, LONG]), keep)
    lengths: dict[str, list[int]] = {spec.name: [] for spec, _, _ in roles.caches}
    for token in range(150):
        decoding.push(np.full((2, 1), token % 90), np.ones((2, 1), dtype=bool))
        for name, found in lengths.items():
            found.append(decoding.cache(name).shape[2])
    window = KINDS[kind]
    for spec, _, _ in roles.caches:
        if window.dim in spec.dims:
            assert max(lengths[spec.name]) <= window.places + 1 + (64 if runtime else 0)
            assert min(lengths[spec.name]) >= window.places
        else:
            assert lengths[spec.name] == [*range(51, 201)]


@pytest.mark.slow
def test_a_bundle_of_it_gives_the_same_tokens(artifacts: Once, tmp_path: Path) -> None:
    import attnport_bundle

    folder = artifacts("gemma3")
    report = check(folder, list(RUNTIMES))
    assert {row.verdict for row in report.runtimes.values()} == {"PASS"}
    app = bundle(folder, tmp_path / "app", forms=list(RUNTIMES))
    expected = attnport.open(folder).generate(PROMPTS, max_tokens=90, stop=[])
    for form in RUNTIMES:
        with attnport_bundle.load(app, form=form) as model:
            assert model.generate(PROMPTS, max_tokens=90, stop=[]) == expected


@pytest.mark.slow
def test_a_text_may_be_as_long_as_the_model_has_positions(artifacts: Once, tmp_path: Path) -> None:
    """And no longer, also where the caches take fewer places than a window has."""
    artifact = attnport.open(artifacts("mistral"))
    assert len(artifact.generate([LONG], max_tokens=271, stop=[])[0]) == 271
    with pytest.raises(AttnportError, match="50 tokens and 272 new ones"):
        artifact.generate([LONG], max_tokens=272)
    small = attnport.open(exported("mistral", tmp_path, dims=["past=0:2:4"]))
    assert small.generate([LONG[:2]], max_tokens=4, stop=[]) == artifact.generate([LONG[:2]], max_tokens=4, stop=[])
    with pytest.raises(AttnportError, match="at most 4"):
        small.generate([LONG[:2]], max_tokens=5)


@pytest.mark.parametrize("kind", ["mistral", pytest.param("gemma2", marks=pytest.mark.slow)])
def test_a_window_that_hides_nothing_keeps_all(tmp_path: Path, kind: str) -> None:
    assert load(f"hf:{saved(kind, tmp_path / 'weights', sliding_window=320)}", part="with-past").io.window is None


def test_a_window_in_a_config_that_no_mask_applies_keeps_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Moshi, whose cache would be cut by transformers too, and whose mask hides nothing."""
    from transformers.models.mistral import modeling_mistral

    weights = saved("mistral", tmp_path)
    assert load(f"hf:{weights}", part="with-past").io.window == KINDS["mistral"]
    full = modeling_mistral.create_causal_mask
    monkeypatch.setattr(modeling_mistral, "create_sliding_window_causal_mask", full)
    assert load(f"hf:{weights}", part="with-past").io.window is None


def test_a_model_that_makes_something_of_how_much_a_layer_keeps_keeps_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights, cached = saved("gemma2", tmp_path), decoding.run_with_cache
    assert load(f"hf:{weights}", part="with-past").io.window == KINDS["gemma2"]

    def counts_places(model: Any, tensors: dict[str, Any], **constants: Any) -> Any:
        """As a model whose positions follow the first layer's cache."""
        made = cached(model, tensors, **constants)
        before = tensors["attention_mask"].shape[1] - tensors["input_ids"].shape[1]
        return {**made, "logits": made["logits"] * (1 + before - tensors["past_key_0"].shape[2])}

    monkeypatch.setattr(decoding, "run_with_cache", counts_places)
    io = load(f"hf:{weights}", part="with-past").io
    assert io.window is None
    assert {spec.dims[2] for spec in io.inputs if spec.name.startswith("past_")} == {"past"}
