"""Tokens that the C++ reader generates are Python's, and so are its refusals."""

from __future__ import annotations

import functools
import json
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cpp_builds import Build
from decoders import END, Once
from encoder_decoders import pair

import attnport_bundle as reader
from attnport.verbs.bundle import bundle
from attnport.verbs.check import check
from attnport.verbs.fuse import fuse
from attnport_bundle.errors import FeedError

Apps = Callable[[str], Path]
PROMPTS = [[5, 17, 60, 3], [44], [9, 9, 30, 71, 12, 50, 2]]
ENDS = [*range(0, 101, 3), END]
"""So many that texts end soon without a rule."""
RULES: tuple[dict[str, Any], ...] = (
    {"repetition_penalty": 1.7},
    {"no_repeat_ngram": 1},
    {"no_repeat_ngram": 2, "suppress": [10**12, *range(30, 60)]},
    {"forced_first": [31], "suppress_first": [*range(0, 101, 2)], "forced_last": [END]},
    {"bad_words": [[10**12], [31], *([token, token] for token in range(101)), [END]], "renormalize": True},
    {"min_length": 9, "stop": ENDS},
    {"min_tokens": 5, "stop": ENDS, "early_stopping": True, "length_penalty": 2.0},
)


FORMS = ["ort_cpu", "openvino"]
QUICK = ("gpt2", "llama")


def of_kinds(*cases: tuple[str, dict[str, Any]]) -> list[Any]:
    """The cases for parametrize; a decoder that is not in QUICK takes ten seconds to be made."""
    return [pytest.param(*case, marks=() if case[0] in QUICK else pytest.mark.slow) for case in cases]


@pytest.fixture(scope="module")
def apps(tmp_path_factory: pytest.TempPathFactory) -> Apps:
    """The bundle of a decoder, made once."""
    artifacts = Once(tmp_path_factory)

    @functools.cache
    def of(kind: str) -> Path:
        return bundled(artifacts(kind), artifacts(kind).parent / "app")

    return of


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The bundles of a decoder and of its encoder."""
    folder = tmp_path_factory.mktemp("t5")
    decoder, encoder = (bundled(part, folder / f"{part.name}-app") for part in pair("t5", folder))
    return decoder, encoder


def bundled(artifact: Path, folder: Path) -> Path:
    fuse(artifact, targets=FORMS)
    check(artifact, FORMS)
    return bundle(artifact, folder, forms=FORMS)


def told(
    build: Build, app: Path, prompts: list[list[int]], form: str = "ort_cpu", **options: Any
) -> tuple[list[list[int]], list[list[int]]]:
    """What the reader returns, and what it told of each prompt before."""
    words = [word for name, value in options.items() for word in (name, value)]
    given = "".join(" ".join(map(str, prompt)) + "\n" for prompt in prompts)
    done = build.run("generate", app, form, *map(str, words), given=given)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    texts = [[int(token) for token in line.split(",") if token] for line in lines[-len(prompts) :]]
    streams: list[list[int]] = [[] for _ in prompts]
    for line in lines[: -len(prompts)]:
        row, token = map(int, line.split())
        streams[row].append(token)
    return texts, streams


def written(value: Any) -> Any:
    """An option as the program reads it."""
    if not isinstance(value, list):
        return value
    if value and isinstance(value[0], list):
        return ";".join(map(written, value))
    return ",".join(map(str, value)) or "none"


@pytest.mark.parametrize(
    ("kind", "options"),
    of_kinds(
        ("llama", {"max_tokens": 20}),
        *(("gpt2", {"max_tokens": 14, **rules, "beams": beams}) for rules in RULES for beams in (1, 3)),
        ("gpt2", {"max_tokens": 1}),
        ("llama", {"max_tokens": 12, "beams": 4, "length_penalty": 0.0}),
        ("llama", {"max_tokens": 12, "beams": 3, "length_penalty": 2.0}),
        ("gpt2", {"max_tokens": 30, "beams": 2, "stop": [7, 9, END]}),
        ("gpt2", {"max_tokens": 3, "beams": 2, "stop": [91], "early_stopping": True}),
        ("gpt2", {"max_tokens": 2, "beams": 3, "stop": [*range(101)], "length_penalty": -1e300}),
        ("llama", {"max_tokens": 30, "stop": []}),
        ("llama", {"max_tokens": 80, "stop": []}),
        ("llama", {"max_tokens": 80, "stop": [], "beams": 2}),
        ("llama", {"max_tokens": 6, "temperature": 2.0, "top_k": 1, "seed": 4}),
        *(("lfm2", {"max_tokens": 12, "beams": beams}) for beams in (1, 3)),
        ("mamba", {"max_tokens": 12}),
        ("mistral", {"max_tokens": 160, "stop": []}),
        ("gemma3", {"max_tokens": 160, "stop": [], "beams": 2}),
    ),
)
def test_tokens_are_pythons(cpp_build: Build, apps: Apps, kind: str, options: dict[str, Any]) -> None:
    app = apps(kind)
    with reader.load(app, form="ort_cpu", threads=1) as model:
        expected = model.generate(PROMPTS, **options)
    words = {name: written(value) for name, value in options.items()}
    texts, streams = told(cpp_build, app, PROMPTS, **words)
    assert texts == expected
    assert streams == expected


def test_the_cache_is_written_in_place_and_moves_only_to_grow(cpp_build: Build, apps: Apps) -> None:
    done = cpp_build.run("steps_in_place", apps("llama"), "ort_cpu", "75", "5", "17", "60")
    assert done.returncode == 0, done.stderr
    # A buffer has 64 places behind its tokens: 3 of the prompt, and 67 when it is full.
    moved, filled = ["moved 67"], ["in place 67"] * 63
    assert done.stdout.splitlines() == ["copied", *moved, *filled, "moved 131", *["in place 131"] * 9]


@pytest.mark.slow
def test_a_cache_of_the_last_places_stays_as_long_as_it_is(cpp_build: Build, apps: Apps) -> None:
    done = cpp_build.run("steps_in_place", apps("mistral"), "ort_cpu", "150", *map(str, range(5, 25)))
    assert done.returncode == 0, done.stderr
    # A window of 6 tokens: 5 places of the prompt's 20 and 64 behind them, from which the last 5 move when it is full.
    moved, filled = ["moved 69"], ["in place 69"] * 63
    assert done.stdout.splitlines() == ["copied", *(moved + filled) * 2, *moved, *filled[:20]]


def test_openvino_has_the_cache_from_the_second_token_on(cpp_build: Build, apps: Apps) -> None:
    done = cpp_build.run("steps_in_place", apps("llama"), "openvino", "9", "5", "17", "60")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["copied", *["kept"] * 8]


@pytest.mark.parametrize(
    ("kind", "options"),
    of_kinds(
        ("llama", {"max_tokens": 80, "stop": []}),
        ("llama", {"max_tokens": 40, "stop": [], "beams": 3}),
        ("gpt2", {"max_tokens": 30, "beams": 2, "stop": [7, 9, END]}),
        *(("lfm2", {"max_tokens": 12, "beams": beams}) for beams in (1, 3)),
        ("mistral", {"max_tokens": 160, "stop": []}),
        ("gemma3", {"max_tokens": 160, "stop": [], "beams": 2}),
    ),
)
def test_openvino_gives_pythons_tokens(cpp_build: Build, apps: Apps, kind: str, options: dict[str, Any]) -> None:
    app = apps(kind)
    with reader.load(app, form="openvino", threads=1) as model:
        expected = model.generate(PROMPTS, **options)
    words = {name: written(value) for name, value in options.items()}
    texts, streams = told(cpp_build, app, PROMPTS, "openvino", **words)
    assert texts == expected
    assert streams == expected


def test_drawn_tokens_come_as_often_as_they_are_likely(cpp_build: Build, apps: Apps) -> None:
    """And the same seed draws the same ones."""
    app = apps("gpt2")
    many = [[5, 17, 60, 3]] * 60
    options = {"max_tokens": 1, "temperature": 3.0, "top_k": 2, "stop": "none"}
    drawn = [told(cpp_build, app, many, seed=seed, **options)[0] for seed in range(8)]
    assert drawn[0] == told(cpp_build, app, many, seed=0, **options)[0]
    assert drawn[0] != drawn[1]
    counted = Counter(text[0] for texts in drawn for text in texts)
    with reader.load(app, form="ort_cpu", threads=1) as model:
        of_python = Counter(
            text[0] for seed in range(8) for text in model.generate(many, seed=seed, **options | {"stop": []})
        )
    assert counted.keys() == of_python.keys()
    assert len(counted) == 2
    first = next(iter(counted))
    assert abs(counted[first] - of_python[first]) < 90  # of 480; the spread of the difference is 15


@pytest.mark.parametrize(
    ("prompts", "options"),
    [
        ([[]], {}),
        ([[5, 3]], {"max_tokens": 0}),
        ([[5, 3]], {"temperature": -1.0}),
        ([[5, 3]], {"top_p": 0.0}),
        ([[5, 3]], {"beams": 2, "temperature": 1.0}),
        ([[5, 3]], {"beams": 0}),
        ([[5, 3]], {"repetition_penalty": 0.0}),
        ([[5, 3]], {"suppress": [*range(101)]}),
        ([[5, 3]], {"suppress": [*range(101)], "beams": 2}),
        ([[5] * 60], {"max_tokens": 60}),
        ([[5, 101]], {}),
    ],
)
def test_refusals_are_pythons(cpp_build: Build, apps: Apps, prompts: list[list[int]], options: dict[str, Any]) -> None:
    app = apps("gpt2")
    with reader.load(app, form="ort_cpu", threads=1) as model, pytest.raises(FeedError) as refused:
        model.generate(prompts, **options)
    words = [str(word) for name, value in options.items() for word in (name, written(value))]
    given = "".join(" ".join(map(str, prompt)) + "\n" for prompt in prompts)
    done = cpp_build.run("generate", app, "ort_cpu", *words, given=given)
    assert done.returncode == 2
    assert done.stderr.split(":")[0] == str(refused.value).split(":")[0]


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("options", [{"max_tokens": 20}, {"max_tokens": 12, "beams": 3}])
def test_a_decoder_behind_an_encoder_gives_pythons_tokens(
    cpp_build: Build, both: tuple[Path, Path], options: dict[str, Any], form: str
) -> None:
    decoder, encoder = both
    with reader.load(decoder, form=form, threads=1) as model, reader.load(encoder, form=form, threads=1) as reads:
        expected = model.generate(PROMPTS, encoder=reads, **options)
    assert told(cpp_build, decoder, PROMPTS, form, encoder=encoder, **options)[0] == expected


@pytest.mark.slow
def test_rules_of_a_contract_are_kept_unless_a_call_says_otherwise(
    cpp_build: Build, both: tuple[Path, Path], tmp_path: Path
) -> None:
    decoder, encoder = shutil.copytree(both[0], tmp_path / "app"), both[1]
    manifest = json.loads((decoder / "bundle.json").read_text())
    manifest["io"]["rules"] |= {"beams": 2, "forced_first": [33], "suppress": [5, 90], "repetition_penalty": 1.3}
    (decoder / "bundle.json").write_text(json.dumps(manifest))
    with reader.load(decoder, threads=1) as model, reader.load(encoder, threads=1) as reads:
        assert [text[0] for text in model.generate(PROMPTS, encoder=reads, max_tokens=2)] == [33] * 3
        for otherwise in ({}, {"beams": 1}, {"forced_first": []}, {"temperature": 1e-9}):
            options: dict[str, Any] = {"max_tokens": 9, **otherwise}
            expected = model.generate(PROMPTS, encoder=reads, **options)
            words = {name: written(value) for name, value in options.items()}
            assert told(cpp_build, decoder, PROMPTS, encoder=encoder, **words)[0] == expected


@pytest.mark.slow
def test_a_decoder_without_its_encoder_says_so(cpp_build: Build, both: tuple[Path, Path]) -> None:
    with reader.load(both[0]) as model, pytest.raises(FeedError) as refused:
        model.generate([[0]])
    done = cpp_build.run("generate", both[0], "ort_cpu", given="0\n")
    assert (done.returncode, done.stderr.strip()) == (2, str(refused.value))


def test_a_model_without_a_cache_says_so(cpp_build: Build, app: Path) -> None:
    with reader.load(app) as model, pytest.raises(FeedError) as refused:
        model.generate([[1, 2]])
    done = cpp_build.run("generate", app, "", given="1 2\n")
    assert (done.returncode, done.stderr.strip()) == (2, str(refused.value))


def test_it_leaves_no_memory_behind(cpp_build: Build, apps: Apps) -> None:
    for form in FORMS:
        assert told(cpp_build, apps("llama"), PROMPTS, form, max_tokens=4)[0]
        assert told(cpp_build, apps("llama"), PROMPTS, form, max_tokens=4, beams=2)[0]
    ruled = {name: written(value) for rules in RULES for name, value in rules.items()}
    assert told(cpp_build, apps("llama"), PROMPTS, **ruled | {"max_tokens": 4, "suppress": "5,10"})[0]
