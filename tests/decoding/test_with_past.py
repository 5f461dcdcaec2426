"""Decoders with their cache through every verb: exported, fused, checked step by step, bundled."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from decoders import KINDS, QUICK, continued, exported, saved
from refusing import call
from representatives import representatives

from attnport.artifacts import ParityReport
from attnport.cases.choosing import PROMPT, STEPS, decoding_cases, in_steps, stepped
from attnport.errors import SpecError, UsageError
from attnport.folder.workspace import open_folder
from attnport.jsonfile import read
from attnport.verbs.check import check
from attnport.verbs.export import export
from attnport.verbs.fuse import fuse

RUNTIMES = ["ort_cpu", "openvino", "torch_eager"]
FUSED = {"gpt2": 2, "llama": 2, "mistral": 2, "gemma3": 2, "gemma2": 2, "qwen2": 2, "phi3": 2, "bloom": 2, "opt": 2,
         "granite_swa": 2}  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "runtimes"),
    [(QUICK[0], ["ort_cpu"]), *(pytest.param(kind, RUNTIMES, marks=pytest.mark.slow) for kind in KINDS)],
)
def test_every_step_is_what_a_pass_over_all_tokens_gives_in_every_runtime(
    kind: str, runtimes: list[str], tmp_path: Path
) -> None:
    folder = exported(kind, tmp_path)
    table = fuse(folder, targets=[name for name in runtimes if name != "torch_eager"])
    for name, one in table.targets.items():
        assert (one.fused, one.attentions) == (FUSED[kind], 2), (name, one.items)
    report = check(folder, runtimes)
    rows = report.runtimes
    assert {row.verdict for row in rows.values()} == {"PASS"}, {name: row.reason for name, row in rows.items()}
    tried = {case.case for row in rows.values() for case in row.cases}
    assert any(name.startswith("decode, ") for name in tried)


def test_a_cache_that_loses_a_token_is_found_by_the_steps_alone(tmp_path: Path) -> None:
    folder = exported("llama", tmp_path)
    io = open_folder(folder).io
    (case, *_) = decoding_cases(io)
    from attnport.folder.workspace import opened

    session = opened(folder, open_folder(folder), "ort_cpu")
    whole = session.run(case.feeds)
    steps = stepped(lambda **feeds: session.run(feeds), io, case.feeds, PROMPT)
    np.testing.assert_allclose(steps["logits"], whole["logits"], atol=2e-4)
    real = case.valid["present_key_0"]
    assert real.shape[-1] == whole["present_key_0"].shape[2] or real.ndim == 1

    def forgets(**feeds: Any) -> dict[str, Any]:
        given = session.run(feeds)
        return {
            name: np.where(np.arange(array.shape[2])[:, None] == 9, 0, array).astype(array.dtype)
            if name.startswith("present") and array.shape[2] > 9
            else array
            for name, array in given.items()
        }

    assert np.abs(stepped(forgets, io, case.feeds, PROMPT)["logits"] - whole["logits"]).max() > 1e-3


@pytest.mark.parametrize("runtime", representatives(["ort_cpu", "openvino"], ["openvino"]))
def test_steps_are_checked_as_they_are_generated_by_the_runtime_that_keeps_the_caches(
    tmp_path: Path, runtime: str
) -> None:
    from attnport.folder.workspace import opened

    folder = exported("llama", tmp_path)
    fuse(folder, targets=[runtime])
    manifest = open_folder(folder)
    (case, *_) = decoding_cases(manifest.io)
    session: Any = opened(folder, manifest, runtime)
    whole, calls = session.run(case.feeds), []

    class Counted:
        run = session.run

        def new_steps(self, roles: Any) -> Any:
            steps = session.new_steps(roles)
            run = steps.run
            steps.run = lambda feeds: calls.append(sorted(feeds)) or run(feeds)
            return steps

    found = in_steps(Counted(), manifest.io, case.feeds)
    assert calls == [["attention_mask", "input_ids"]] * STEPS[0]
    for name, array in found.items():
        np.testing.assert_allclose(array, whole[name], atol=2e-4)


@pytest.mark.parametrize("kind", representatives(KINDS, QUICK))
def test_openvino_keeps_caches_as_states_in_every_text_and_beam(kind: str, tmp_path: Path) -> None:
    import attnport

    folder = exported(kind, tmp_path)
    fuse(folder, targets=["ort_cpu", "openvino"])
    artifact = attnport.open(folder)
    prompts = [[5, 17, 60, 3], [44], [9, 9, 30, 71, 12, 50, 2]]
    for options in ({"max_tokens": 20, "stop": []}, {"max_tokens": 12, "beams": 3}):
        assert artifact.generate(prompts, "openvino", **options) == artifact.generate(prompts, "ort_cpu", **options)


@pytest.mark.slow
def test_a_mask_whose_places_in_the_cache_are_taken_for_pictures_is_no_input(tmp_path: Path) -> None:
    import transformers

    widths = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4}
    config = transformers.GitConfig(
        vision_config={**widths, "image_size": 16, "patch_size": 8}, vocab_size=101, max_position_embeddings=64,
        pad_token_id=0, bos_token_id=1, eos_token_id=100, **widths,
    )  # fmt: skip
    torch.manual_seed(0)
    transformers.GitForCausalLM(config).save_pretrained(tmp_path / "weights")
    manifest = export(f"hf:{tmp_path / 'weights'}", tmp_path / "out", part="with-past")
    assert [spec.name for spec in manifest.io.inputs] == ["input_ids", "past_key_0", "past_value_0"]
    assert {dim.name: dim.max for dim in manifest.io.dims} == {"batch": 64, "seq": 8, "past": 56}
    fuse(tmp_path / "out", targets=["ort_cpu"])
    import attnport

    prompts = [[5, 17, 60], [44, 3, 9]]
    found = attnport.open(tmp_path / "out").generate(prompts, max_tokens=12, stop=[])
    assert found == continued(tmp_path / "weights", prompts, 12, min_new_tokens=12)


@pytest.mark.slow
def test_a_branch_at_a_length_limits_the_cache_and_the_new_tokens_to_half_of_it(tmp_path: Path) -> None:
    import transformers

    config = transformers.DogeConfig(
        vocab_size=101, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=2048, keep_window_size=2048, eos_token_id=100, pad_token_id=0,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.DogeForCausalLM(config)
    attention = model.model.layers[0].self_attn
    torch.nn.init.constant_(attention.A, -1.0)  # as made, it ranks all keys alike, and may drop any of them
    torch.nn.init.normal_(attention.dt_proj.weight, std=20.0)
    model.save_pretrained(tmp_path / "weights")
    manifest = export(f"hf:{tmp_path / 'weights'}", tmp_path / "out", part="with-past")
    assert {dim.name: (dim.min, dim.max) for dim in manifest.io.dims if dim.name != "batch"} == {
        "seq": (1, 1024), "past": (0, 1023),
    }  # fmt: skip


def test_models_that_keep_no_cache_of_every_token_are_refused_with_a_reason(tmp_path: Path) -> None:
    import transformers

    transformers.BertModel(
        transformers.BertConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32)
    ).save_pretrained(tmp_path / "bert")
    with pytest.raises(UsageError, match=r"--part with-past.*has no such part"):
        export(f"hf:{tmp_path / 'bert'}", tmp_path / "out", part="with-past")
    small = transformers.BertConfig(
        hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, is_decoder=False
    )
    transformers.BertLMHeadModel(small).save_pretrained(tmp_path / "both_ways")
    with pytest.raises(SpecError, match="attend to what comes behind them"):
        export(f"hf:{tmp_path / 'both_ways'}", tmp_path / "out", part="with-past")


def test_the_command_line_exports_and_continues(tmp_path: Path) -> None:
    weights, out = saved("gpt2", tmp_path / "weights"), tmp_path / "out"

    def generated(*options: object, code: int = 0) -> Any:
        done = call("generate", out, "--prompt", "ab", *options)
        assert done.exit_code == code, done.output
        return done.stderr if code else json.loads(done.stdout) if "--json" in options else done.stdout

    assert call("export", f"hf:{weights}", "-o", out, "--with-past").exit_code == 0
    assert call("fuse", out, "--target", "ort_cpu").exit_code == 0
    told = generated("--prompt", "c d", "--max-tokens", 5, "--json")
    assert told["prompts"] == ["ab", "c d"]
    assert told["tokens"] == 10
    assert all(told["texts"])
    command = [sys.executable, "-m", "attnport.cli", "generate", str(out), "--prompt", "ab", "--max-tokens", "5"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == f"ab{told['texts'][0]}\n"
    assert "5 tokens in ort_cpu" in done.stderr
    options = ("--min-tokens", 4, "--repetition-penalty", 1.5, "--no-repeat-ngram", 1, "--beams", 2)
    (text,) = generated("--max-tokens", 30, "--json", *options)["texts"]
    assert len(set(text)) == len(text) >= 4
    assert "the model keeps at most" in generated("--max-tokens", 500, code=2)
    for form, reason in (("ort_cpu.bf16", "not in bf16"), ("ort_cpu.int8", "attnport tune")):
        assert reason in generated("--runtime", form, code=3)


def test_texts_are_printed_as_the_model_wrote_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import attnport.verbs.generate as verb

    lines = [
        "one paragraph that no terminal is as wide as, " * 4,
        "  FOLDER\u3000\tand a table  ",
        "",
        "::error::\x1b[31m",
    ]
    found = verb.Generated("ort_cpu", "cpu", ("Say: ",), ("\n".join(lines),), 9, 1.0, 0.1)
    monkeypatch.setattr(verb, "generate", functools.wraps(verb.generate)(lambda **given: found))
    done = call("generate", tmp_path, "--prompt", "Say: ")
    assert done.exit_code == 0, done.output
    assert done.stdout.split("\n") == ["Say: " + lines[0], *lines[1:3], "\\x3a:error::\\x1b[31m", ""]
    assert done.stderr == "9 tokens in ort_cpu: the first after 100 ms, then 112.5 ms a step\n"


def test_no_prompt_is_refused(tmp_path: Path) -> None:
    from attnport.verbs.generate import generate

    with pytest.raises(UsageError, match="got neither"):
        generate(exported("gpt2", tmp_path), [])


def test_a_bundle_generates_without_torch(tmp_path: Path) -> None:
    from attnport.verbs.bundle import bundle

    folder = exported("llama", tmp_path)
    check(folder, ["ort_cpu"])
    app = bundle(folder, tmp_path / "app", forms=("ort_cpu",))
    script = (
        "import sys; sys.path.insert(0, 'python'); sys.modules['torch'] = None\n"
        "from attnport_bundle import load\n"
        "with load() as model: print(model.generate([[5, 17, 60, 3], [44]], max_tokens=6))"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=app, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    import attnport

    assert json.loads(done.stdout) == attnport.open(folder).generate([[5, 17, 60, 3], [44]], max_tokens=6)
    first = (app / "README.md").read_text("utf-8").split("that the model continues:\n\n")[1].split("\n\nFrom")[0]
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(first)], cwd=tmp_path, capture_output=True, text=True)
    text = attnport.open(folder).generate("Once upon a time", max_tokens=20)
    assert done.stdout == f"{text}\n", done.stderr
    assert read(ParityReport, folder / "parity.json").verdict == "PASS"
