"""Tokens that the C++ reader generates are Python's."""

from __future__ import annotations

import dataclasses
import functools
import json
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from cpp_builds import Build
from cpp_engines import OnCuda
from decoders import END, Once
from encoder_decoders import pair

import attnport_bundle as reader
from attnport.verbs.bundle import bundle
from attnport.verbs.check import check
from attnport.verbs.fuse import fuse
from attnport_bundle.errors import FeedError
from attnport_bundle.format.decoder import Rules

Apps = Callable[[str], Path]
PROMPTS = [[5, 17, 60, 3], [44], [9, 9, 30, 71, 12, 50, 2]]
FORMS = ["ort_cpu", "openvino"]
QUICK = ("llama",)


def of_kinds(*cases: tuple[str, dict[str, Any]]) -> list[Any]:
    """The cases for parametrize; a decoder that is not in QUICK takes ten seconds to be made."""
    return [pytest.param(*case, marks=() if case[0] in QUICK else pytest.mark.slow) for case in cases]


@pytest.fixture(scope="module")
def apps(tmp_path_factory: pytest.TempPathFactory) -> Apps:
    """The bundle of a decoder, made once; with `fp16` behind its kind, of its form in half precision."""
    artifacts = Once(tmp_path_factory)

    @functools.cache
    def of(kind: str) -> Path:
        kind, _, precision = kind.partition(".")
        forms = [f"ort_cpu.{precision}"] if precision else FORMS
        return bundled(artifacts(kind), artifacts(kind).parent / f"app{precision}", forms)

    return of


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The bundles of a decoder and of its encoder."""
    folder = tmp_path_factory.mktemp("t5")
    decoder, encoder = (bundled(part, folder / f"{part.name}-app") for part in pair("t5", folder))
    return decoder, encoder


def bundled(artifact: Path, folder: Path, forms: Sequence[str] = FORMS) -> Path:
    fuse(artifact, targets=forms)
    check(artifact, forms)
    return bundle(artifact, folder, forms=forms)


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


def written(options: dict[str, Any]) -> dict[str, Any]:
    """Options as the program reads them."""
    return {
        name: ",".join(map(str, value)) or "none" if isinstance(value, list) else value
        for name, value in options.items()
    }


@pytest.mark.parametrize(
    ("kind", "options"),
    of_kinds(
        ("llama", {"max_tokens": 20}),
        ("llama", {"max_tokens": 80, "stop": []}),
        ("llama", {"max_tokens": 6, "temperature": 2.0, "top_k": 1, "seed": 4}),
        ("gpt2", {"max_tokens": 1}),
        ("gpt2", {"max_tokens": 30, "stop": [7, 9, END]}),
        ("lfm2", {"max_tokens": 12}),
        ("mamba", {"max_tokens": 12}),
        ("mistral", {"max_tokens": 160, "stop": []}),
        ("gemma3", {"max_tokens": 160, "stop": []}),
    ),
)
def test_tokens_are_pythons(cpp_build: Build, apps: Apps, kind: str, options: dict[str, Any]) -> None:
    app = apps(kind)
    with reader.load(app, form="ort_cpu", threads=1) as model:
        expected = model.generate(PROMPTS, **options)
    texts, streams = told(cpp_build, app, PROMPTS, **written(options))
    assert texts == expected
    assert streams == expected


def test_the_cache_is_written_in_place_and_moves_only_to_grow(cpp_build: Build, apps: Apps) -> None:
    done = cpp_build.run("steps_in_place", apps("llama"), "ort_cpu", "75", "5", "17", "60")
    assert done.returncode == 0, done.stderr
    # A buffer has 64 places behind its tokens: 3 of the prompt, and 67 when it is full.
    moved, filled = ["moved 67"], ["in place 67"] * 63
    assert done.stdout.splitlines() == ["copied", *moved, *filled, "moved 131", *["in place 131"] * 9]


@pytest.mark.parametrize("form", ["ort_cpu", "ort_cpu.fp16"])
def test_caches_on_a_device_stay_there(cpp_build: Build, apps: Apps, form: str) -> None:
    """The processor stands for a GPU; a form in fp16 has caches in other types than the contract."""
    app = apps("llama.fp16" if form.endswith("fp16") else "llama")
    with reader.load(app, form=form, threads=1) as model:
        (expected,) = model.generate([[5, 17, 60]], max_tokens=75, stop=[])
        caches = len(model.io.decoder.caches)
    done = cpp_build.run("steps_in_place", "carried", app, form, "75", "5", "17", "60")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[:75] == ["copied", "carried 0", *[f"carried {caches}"] * 73]
    assert list(map(int, lines[75:])) == expected


def test_on_cuda_a_step_brings_no_cache_to_the_host_and_is_no_graph(
    cpp_build: Build, apps: Apps, tmp_path: Path
) -> None:
    app = Path(shutil.copytree(apps("llama"), tmp_path / "app"))
    expected = cpp_build.run("generate", app, "ort_cpu", "max_tokens", "12", "stop", "none", given="5 17 60\n").stdout
    on_cuda = OnCuda(cpp_build, app, tmp_path)
    found, noted = on_cuda.run("generate", "max_tokens", "12", "stop", "none", given="5 17 60\n")
    assert found == expected
    # Runs before these are golden cases, which prove the form when the bundle is opened for the first time.
    assert noted[-12:] == ["plain", *["bound"] * 11]


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
        ("gpt2", {"max_tokens": 30, "stop": [7, 9, END]}),
        ("lfm2", {"max_tokens": 12}),
        ("mistral", {"max_tokens": 160, "stop": []}),
        ("gemma3", {"max_tokens": 160, "stop": []}),
    ),
)
def test_openvino_gives_pythons_tokens(cpp_build: Build, apps: Apps, kind: str, options: dict[str, Any]) -> None:
    app = apps(kind)
    with reader.load(app, form="openvino", threads=1) as model:
        expected = model.generate(PROMPTS, **options)
    texts, streams = told(cpp_build, app, PROMPTS, "openvino", **written(options))
    assert texts == expected
    assert streams == expected


def test_drawn_tokens_come_as_often_as_they_are_likely(cpp_build: Build, apps: Apps) -> None:
    """And the same seed draws the same ones."""
    app = apps("llama")
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
        ([[5] * 60], {"max_tokens": 1000}),
        ([[5, 101]], {}),
    ],
)
def test_what_python_refuses_is_refused(
    cpp_build: Build, apps: Apps, prompts: list[list[int]], options: dict[str, Any]
) -> None:
    app = apps("llama")
    with reader.load(app, form="ort_cpu", threads=1) as model, pytest.raises(FeedError):
        model.generate(prompts, **options)
    words = [str(word) for pair in written(options).items() for word in pair]
    given = "".join(" ".join(map(str, prompt)) + "\n" for prompt in prompts)
    done = cpp_build.run("generate", app, "ort_cpu", *words, given=given)
    assert (done.returncode, done.stdout) == (2, "")


def test_rules_that_would_change_the_tokens_are_refused_unless_they_are_to_be_ignored(
    cpp_build: Build, apps: Apps, tmp_path: Path
) -> None:
    app = shutil.copytree(apps("llama"), tmp_path / "app")
    manifest = json.loads((app / "bundle.json").read_text())
    usual = {field.name: field.default for field in dataclasses.fields(Rules)} | {"length_penalty": 2.0}

    def given(*options: str, **rules: Any) -> tuple[int, str]:
        manifest["io"]["decoder"]["rules"] = usual | rules
        (app / "bundle.json").write_text(json.dumps(manifest))
        done = cpp_build.run("generate", app, "ort_cpu", "max_tokens", "3", *options, given="5 17\n")
        return done.returncode, done.stdout + done.stderr

    code, by_scores = given()
    assert code == 0
    for name, value in (("beams", 3), ("suppress", [5]), ("bad_words", [[5]]), ("min_tokens", 2)):
        code, said = given(**{name: value})
        assert (code, f" {name}." in said) == (2, True)
        assert given("ignore_rules", "True", **{name: value}) == (0, by_scores)
    assert given("temperature", "1e-9", beams=3) == (0, by_scores)
    assert given("temperature", "1e-9", min_tokens=3)[0] == 2


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_a_decoder_behind_an_encoder_gives_pythons_tokens(cpp_build: Build, both: tuple[Path, Path], form: str) -> None:
    decoder, encoder = both
    with reader.load(decoder, form=form, threads=1) as model, reader.load(encoder, form=form, threads=1) as reads:
        expected = model.generate(PROMPTS, encoder=reads, max_tokens=20)
    assert told(cpp_build, decoder, PROMPTS, form, encoder=encoder, max_tokens=20)[0] == expected


@pytest.mark.slow
def test_a_decoder_without_its_encoder_says_so(cpp_build: Build, both: tuple[Path, Path]) -> None:
    done = cpp_build.run("generate", both[0], "ort_cpu", given="0\n")
    assert done.returncode == 2
    assert done.stderr.startswith("context: got nothing; expected ")


def test_a_model_without_a_cache_says_so(cpp_build: Build, app: Path) -> None:
    done = cpp_build.run("generate", app, "", given="1 2\n")
    assert done.returncode == 2
    assert "does not generate" in done.stderr


def test_it_leaves_no_memory_behind(cpp_build: Build, apps: Apps) -> None:
    for form in FORMS:
        assert told(cpp_build, apps("llama"), PROMPTS, form, max_tokens=4)[0]
