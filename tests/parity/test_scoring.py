"""Metrics: agreement with float32 falls with what a user would notice, and a user's function is called as it is."""

from __future__ import annotations

import dataclasses
import math
import tracemalloc
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attnport.artifacts import Candidate, IntegerPlan, IOContract, Ran, Score, TuneReport, drop
from attnport.cases.inputs import Array, Case, case
from attnport.console.terminal import shown as as_text
from attnport.dims import Dim, TensorSpec
from attnport.errors import SpecError, UsageError
from attnport.parity import scoring
from attnport.parity.scoring import FEWEST, Agreement, UserMetric, items_of
from attnport.reporting import document as doc

ITEMS, WIDTH = 40, 8


def contract(name: str, *dims: str | int) -> IOContract:
    return IOContract(
        inputs=(TensorSpec("x", "float32", ("batch", WIDTH)),),
        outputs=(TensorSpec(name, "float32", ("batch", *dims)),),
        dims=(Dim("batch", 1, 4, 64),),
    )


class Fake:
    """A session that computes its one output by a function of `x`."""

    ran = Ran("CPU", "fake", "fp32")

    def __init__(self, name: str, compute: Callable[[Array], Array]) -> None:
        self._name, self._compute = name, compute

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        return {self._name: self._compute(feeds["x"])}

    def close(self) -> None:
        pass


def items(io: IOContract, count: int = ITEMS) -> list[Case]:
    rows = np.random.default_rng(0).normal(size=(count, 1, WIDTH)).astype(np.float32)
    return [case(io, f"{at}", "given", {"x": row}) for at, row in enumerate(rows)]


def scores(name: str, dims: tuple[int, ...], *functions: Callable[[Array], Array]) -> list[Score]:
    io = contract(name, *dims)
    metric = Agreement(io, items(io))
    return [metric(Fake(name, function)) for function in functions]


def test_a_session_agrees_with_itself() -> None:
    for name in ("logits", "embedding"):
        first, again = scores(name, (WIDTH,), lambda x: x, lambda x: x)
        assert first.value == again.value == pytest.approx(1)


def test_logits_over_a_vocabulary_are_not_kept_of_every_item() -> None:
    io, words = contract("logits", 16, 4096), 16 * 4096
    for near in (False, True):
        metric = Agreement(io, items(io), near=near)
        session = Fake("logits", lambda x: np.resize(x.ravel(), words).reshape(1, 16, 4096))
        tracemalloc.start()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(scoring, "_MOST_NUMBERS", ITEMS * 100)
            assert metric(session).value == metric(session).value == 1
        assert tracemalloc.get_traced_memory()[1] < 4 * words * 8  # 40 items
        tracemalloc.stop()


def test_a_difference_of_very_many_numbers_is_measured_by_some_of_each_item(monkeypatch: pytest.MonkeyPatch) -> None:
    io, random = contract("hidden", 8, 512), np.random.default_rng(0)
    table, off = random.normal(size=(2, 8, 512))
    monkeypatch.setattr(scoring, "_MOST_NUMBERS", ITEMS * 400)
    metric = Agreement(io, items(io))
    metric(Fake("hidden", lambda x: table[None] * x[0, 0]))
    assert metric(Fake("hidden", lambda x: (table + off / 10)[None] * x[0, 0])).value == pytest.approx(0.9, abs=0.01)
    not_finite = np.where(np.arange(512) == 511, np.nan, table)
    assert metric(Fake("hidden", lambda x: not_finite[None])).value == -np.inf


def test_logits_count_the_positions_with_the_same_largest() -> None:
    def other_for_some(x: Array) -> Array:
        return -x if x[0, 0] > 0 else x

    _, score = scores("logits", (WIDTH,), lambda x: x, other_for_some)
    assert 0.2 < score.value < 0.8
    ((same, every),) = score.counts.values()
    assert score.same == f"{same} of {every} largest logits the same"
    assert same / every == score.value
    _, scaled = scores("logits", (WIDTH,), lambda x: x, lambda x: 3 * x)
    assert scaled.value == 1


def test_one_logit_is_judged_by_its_order_and_distances() -> None:
    _, same, scaled, turned, noisy = scores(
        "logits",
        (1,),
        lambda x: x[:, :1],
        lambda x: x[:, :1],
        lambda x: 3 * x[:, :1] + 1,
        lambda x: -x[:, :1],
        lambda x: x[:, :1] + 0.2 * x[:, 1:2],
    )
    assert (same.value, scaled.value) == pytest.approx((1, 1))
    assert turned.value == pytest.approx(-1)
    assert 0.9 < noisy.value < 0.995
    first, other = scores("logits", (1,), lambda x: np.ones((1, 1)), lambda x: np.full((1, 1), 0.9))
    assert (first.value, other.value) == pytest.approx((1, 0.9))


def test_the_documents_of_each_query_are_judged_by_their_order() -> None:
    io = contract("logits", 1)
    rows = np.random.default_rng(0).normal(size=(ITEMS, 1, WIDTH)).astype(np.float32)
    rows[:, 0, 2] = 5 * (np.arange(ITEMS) // 10)  # one query's documents have larger numbers than another's
    given = [case(io, f"{at}", "given", {"x": row}) for at, row in enumerate(rows)]

    def noisy(x: Array) -> Array:
        return x[:, :1] + 0.3 * x[:, 1:2] + x[:, 2:3]

    def scored(queries: list[str]) -> tuple[Agreement, list[Score]]:
        metric = Agreement(io, given, queries=queries)
        functions = (lambda x: x[:, :1] + x[:, 2:3], lambda x: 3 * x[:, :1] + 3 * x[:, 2:3] + 1, noisy)
        return metric, [metric(Fake("logits", function)) for function in functions]

    alone, (_, _, by_correlation) = scored([str(at) for at in range(ITEMS)])
    assert alone.name == "correlation of scores"
    assert by_correlation.value > 0.99
    metric, (first, same, other) = scored([f"query {at // 10}" for at in range(ITEMS)])
    assert metric.name == "order of each query's documents"
    assert (first.value, same.value) == pytest.approx((1, 1))
    assert same.counts == {"first documents": (4, 4)}
    assert other.value == other.parts["nDCG at 10"] < by_correlation.value == other.parts["correlation"]


def test_vectors_of_tokens_are_judged_as_vectors() -> None:
    def tokens(share: float) -> Callable[[Array], Array]:
        return lambda x: np.stack([x + share * np.roll(x, 1, axis=-1), 2 * x], 1)

    first, near, far = scores("token_embeddings", (2, WIDTH), tokens(0), tokens(0.02), tokens(0.5))
    assert first.value == pytest.approx(1)
    assert 0.999 < near.value < 1  # though outputs differ by 1 %
    assert far.value < 0.97
    assert near.counts["nearest neighbours"][1] == 2 * ITEMS


def test_vectors_lose_by_direction_and_by_other_neighbours() -> None:
    def turned(x: Array) -> Array:
        return x + 0.5 * np.roll(x, 1, axis=-1)

    _, score = scores("embedding", (WIDTH,), lambda x: x, turned)
    assert score.value < 0.95
    assert score.parts["neighbours unchanged"] < 1
    assert score.value == min(score.parts["mean cosine"], score.parts["likeness of neighbours"])
    _, longer = scores("embedding", (WIDTH,), lambda x: x, lambda x: 7 * x)
    assert longer.value == pytest.approx(1)


def test_neighbours_that_are_less_alike_cost_what_they_are_less_alike() -> None:
    def two_channels(x: Array) -> Array:
        return np.concatenate([x[:, :2], np.zeros_like(x[:, 2:])], axis=1)

    _, score = scores("embedding", (WIDTH,), lambda x: x, two_channels)
    assert score.parts["neighbours unchanged"] < 0.5
    ((same, every),) = score.counts.values()
    assert same / every == score.parts["neighbours unchanged"]
    assert score.same == f"{same} of {every} nearest neighbours the same"
    assert 0 < score.value == score.parts["likeness of neighbours"] < 0.5


def test_other_outputs_count_by_their_difference() -> None:
    _, score = scores("hidden", (2, WIDTH), lambda x: np.stack([x, x], 1), lambda x: np.stack([x, x * 0.9], 1))
    assert score.value == pytest.approx(1 - (0.01 / 2) ** 0.5, abs=1e-3)


def test_no_number_is_an_infinite_drop() -> None:
    first, score = scores("embedding", (WIDTH,), lambda x: x, lambda x: x * np.nan)
    assert drop(score, first) == np.inf


def test_too_few_items_are_refused() -> None:
    io = contract("embedding", WIDTH)
    with pytest.raises(UsageError, match=f"at least {FEWEST}"):
        Agreement(io, items(io, FEWEST - 1))


def test_items_are_batches_of_one() -> None:
    io = contract("embedding", WIDTH)
    rows = np.arange(3 * WIDTH, dtype=np.float32).reshape(3, WIDTH)
    found = items_of(io, "all", {"x": rows})
    assert [one.feeds["x"].tolist() for one in found] == [[row.tolist()] for row in rows]


class Folder:
    """As much of a manifest as a user's metric needs."""

    io = contract("embedding", WIDTH)
    tokenizer = None


def metric(text: str, folder: Path) -> UserMetric:
    given: Any = Folder()
    return UserMetric(text, folder, given)


def test_a_users_function_gets_a_model_to_run(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "import numpy as np\n"
        "def total(model):\n"
        "    x = np.ones((3, 8), np.float32)\n"
        "    return model.run(x=x)['embedding'].sum() + model.map({'x': x})['embedding'].sum()\n"
    )
    score = metric(f"{file}:total", tmp_path)(Fake("embedding", lambda x: 2 * x))
    assert score.value == 2 * 2 * 3 * WIDTH


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("return None", "expected a number"),
        ("return 'much'", "expected a number"),
        ("raise KeyError('lost')", "KeyError"),
        ("return model.embed(['a'])", "no tokenizer"),
    ],
)
def test_a_users_function_that_fails_is_named(tmp_path: Path, body: str, said: str) -> None:
    file = tmp_path / "mine.py"
    file.write_text(f"def mine(model):\n    {body}\n")
    with pytest.raises((SpecError, UsageError), match=said):
        metric(f"{file}:mine", tmp_path)(Fake("embedding", lambda x: x))


@pytest.mark.parametrize("text", ["nothing", "lost.py:mine", "mine.py:", "json:lost"])
def test_a_function_that_is_not_there_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(SpecError):
        metric(text, tmp_path)


@pytest.mark.parametrize("feeds", [{}, {"x": np.zeros((0, WIDTH), np.float32)}])
def test_arrays_without_items_are_refused(feeds: dict[str, Array]) -> None:
    with pytest.raises(UsageError, match="expected the same number for each"):
        items_of(contract("embedding", WIDTH), "mine.npz", feeds)


def test_tune_shows_what_the_metric_is_in_float32_and_of_each_candidate() -> None:
    scored = Candidate("ort_cpu", "ort_cpu.int8", "int8", 1, "slower", "", Score(0.9126), 0.0031, Score(0.9154),
                       size_bytes=45 << 19)  # fmt: skip
    plain = Candidate("ort_cpu", "ort_cpu", "fp32", 1, "chosen", "", Score(0.9154), 0.0, Score(0.9154))
    other = Candidate("openvino", "openvino", "fp32", 1, "slower", "", Score(0.9155), 0.0, Score(0.9155))
    shown = " ".join(as_text(TuneReport("f.py:accuracy", 0.005, (plain, scored, other), {})).split())
    assert "ort_cpu.int8 22.5 0.9126 -0.31% slower" in shown
    assert "against float32 (0.9154 on ort_cpu, 0.9155 on openvino)" in shown
    perplexity = dataclasses.replace(scored, score=Score(-12.4, {"perplexity": 12.4}), reference=None)
    assert "ort_cpu.int8 22.5 12.40 -0.31%" in " ".join(
        as_text(TuneReport("perplexity", 0.005, (perplexity,), {})).split()
    )
    unscored = Candidate("ort_cpu", "ort_cpu", "fp32", 1, "chosen", "")
    assert "metric" not in as_text(TuneReport("", 0.005, (unscored,), {}))


def test_a_form_in_integers_says_how_many_answers_stay_the_same_beside_the_drop() -> None:
    reference, counted = Score(1.0), Score(0.9984, counts={"nearest neighbours": (184, 200)})
    plan = IntegerPlan(8, "agreement", counted, reference, 0.005, 6, (), 0.0016, (200, 200), 1, "")
    said = "6 of 6 layers in int8; agreement: worse by 0.16% (0.50% allowed)"
    assert str(plan) == f"{said}; 184 of 200 nearest neighbours the same"
    assert str(dataclasses.replace(plan, score=Score(0.9984))) == said
    few = dataclasses.replace(plan, score=Score(0.9984), kept=("head",), drop_of_all=0.034)
    said = "5 of 6 layers in int8; with all 6 in int8 the metric is worse by 3.40%"
    assert str(few) == f"{said}; agreement: worse by 0.16% (0.50% allowed)"
    assert "with all 6 in int8 the metric is no finite number" in str(dataclasses.replace(few, drop_of_all=math.inf))
    plain, tried = (Candidate(f"form{number}", f"form{number}", "int8", 1, "slower", "", score, 0.0016)
                    for number, score in enumerate((Score(0.9984), counted)))  # fmt: skip
    report = TuneReport(metric="agreement", max_drop=0.005, candidates=(tried, plain), latency={})
    for shown in (as_text(report), str(list(doc.blocks(report, "page")))):
        assert "-0.16%" in shown
        assert "184 of 200 nearest neighbours the same" in " ".join(shown.split())
    vectors = dataclasses.replace(tried, score=dataclasses.replace(counted, parts={"least cosine": 0.98}))
    shown = as_text(dataclasses.replace(report, candidates=(vectors,)))
    assert "least cosine 0.9800 of the 200 that were judged" in " ".join(shown.split())
    alone = dataclasses.replace(report, candidates=(plain,))
    assert "the same" not in as_text(alone)


def test_the_table_of_tune_has_its_verdicts_whole_on_80_columns() -> None:
    ms = {"1 sentence": 1.37, "32 sentences": 19.9, "batch=8,seq=128": 83.2}
    for threads in ((2,), (1, 2)):
        tried = [
            Candidate("openvino", "openvino.int8_bf16", "int8_bf16", number, verdict, "", Score(0.99), 0.01, Score(1.0),
                      ms, 24 << 20)
            for number in threads for verdict in ("chosen", "no faster")
        ]  # fmt: skip
        shown = as_text(TuneReport("f.py:accuracy", 0.005, tuple(tried), {}))
        assert shown.count("faster") == len(threads), shown
