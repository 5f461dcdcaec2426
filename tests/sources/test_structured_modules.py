"""Modules that take or return structures: what they are called with, what their outputs are called."""

from __future__ import annotations

import copy
import inspect
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import structured_modules as modules
import torch
from loaded import load
from torch import nn

import attnport
from attnport.artifacts import ModelSpec
from attnport.errors import SpecError, UsageError
from attnport.sources.memory import kept_copy
from attnport.sources.structure import adapted, flat_outputs, of_examples

FILE = modules.__file__
DIMS = ["batch=1:2:4", "seq=1:5:9"]
X = "x=float32[batch,seq,16]"
PAST = ["past.0=float32[batch,2,past,8]", "past.1=float32[batch,2,past,8]"]

# inputs, outputs, and what the forward itself is called with at batch 2, seq 3
DECLARED: dict[str, tuple[list[str], list[str]]] = {
    "dict_out": ([X], ["hidden", "pooled", "more_0", "more_1_0"]),
    "dict_in": (["batch.input_ids=int64[batch,seq]:high=40", "batch.mask=int64[batch,seq]:padding"], ["output"]),
    "past": ([X, *PAST, "scale=0.5"], ["output_0", "output_1"]),
    "data_in": (["batch.ids=int64[batch,seq]:high=40"], ["hidden"]),
    "pairs": (
        [f"{name}=float32[batch,seq,16]" for name in ("pair.left", "pair.right", "others.0", "others.1", "more")],
        ["sum", "difference"],
    ),
    "layers": (["states.0=float32[batch,seq,16]", "states.1=float32[batch,seq,16]"], ["output"]),
}


def loaded(name: str, inputs: list[str], outputs: tuple[str, ...] = ()) -> ModelSpec:
    dims = [dim for dim in DIMS if dim.partition("=")[0] in " ".join(inputs)]
    return load(f"{FILE}:{name}", inputs=inputs, dims=dims, outputs=outputs)


def feeds(spec: ModelSpec) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    sizes = {"batch": 2, "seq": 3, "past": 4}
    return {
        each.name: torch.randn(each.shape(sizes), generator=generator)
        if each.dtype == "float32"
        else torch.randint(0, 2, each.shape(sizes), generator=generator)
        for each in spec.io.inputs
    }


def by_hand(name: str, tensors: dict[str, torch.Tensor]) -> Any:
    """What the module itself returns, called as its author calls it."""
    module = getattr(modules, name)()
    flat = list(tensors.values())
    if name == "dict_in":
        return module({"input_ids": flat[0], "mask": flat[1]})
    if name == "past":
        return module(flat[0], (flat[1], flat[2]), scale=0.5)
    if name == "data_in":
        return module(modules.Batch(flat[0]))
    if name == "pairs":
        return module(modules.Pair(flat[0], flat[1]), flat[2], flat[3], more=flat[4])
    return module(flat) if name == "layers" else module(*flat)


@pytest.mark.parametrize("name", DECLARED)
def test_declared_paths_reach_the_structures_of_the_forward(name: str) -> None:
    inputs, outputs = DECLARED[name]
    spec = loaded(name, inputs)
    assert [each.name for each in spec.io.outputs] == outputs
    tensors = feeds(spec)
    with torch.no_grad():
        got = spec.make()(**tensors)
        expected = list(flat_outputs(by_hand(name, tensors)).values())
    got = [got] if isinstance(got, torch.Tensor) else list(got)
    assert len(got) == len(expected)
    for mine, theirs in zip(got, expected, strict=True):
        assert torch.equal(mine, theirs)


def test_an_adapted_module_is_still_what_its_author_made() -> None:
    spec = loaded("dict_out", [X])
    made, own = spec.make(), modules.dict_out()
    assert isinstance(made, sys.modules["attnport_source_structured_modules"].DictOut)
    assert str(type(made)) == "<class 'attnport_source_structured_modules.DictOut'>"
    assert [name for name, _ in made.named_modules()] == [name for name, _ in own.named_modules()]
    assert list(made.state_dict()) == list(own.state_dict())
    assert list(inspect.signature(made.forward).parameters) == ["x"]
    wide = copy.deepcopy(made).to(torch.float64)
    assert wide(x=torch.randn(1, 2, 16, dtype=torch.float64))[0].dtype == torch.float64
    assert made(x=torch.randn(1, 2, 16))[0].dtype == torch.float32
    # Its digest is that of the same file without adaptation.
    assert spec.source.code_digest == loaded("layers", DECLARED["layers"][0]).source.code_digest


def test_an_instance_that_is_adapted_is_left_as_it_was() -> None:
    module = modules.DictOut()
    arguments, found = of_examples(module, (torch.randn(2, 3, 16),), {})
    assert list(found) == ["x"]
    other = adapted(module, arguments, ("pooled",))
    x = torch.randn(2, 3, 16)
    assert torch.equal(other(x=x)[0], module(x)["pooled"])
    other.register_forward_hook(lambda module, args, result: None)
    assert not module._forward_hooks
    assert type(module) is modules.DictOut


def test_a_hook_that_looks_at_arguments_by_position_finds_them(tmp_path: Path) -> None:
    module = nn.Linear(4, 4).eval()
    module.register_forward_pre_hook(lambda module, args: (args[0] + 1,))
    artifact = attnport.export(module, tmp_path / "out", args=(torch.zeros(3, 4),))
    artifact.fuse("ort_cpu")
    with artifact.open("ort_cpu") as session, torch.no_grad():
        expected = module(torch.zeros(2, 4)).numpy()
        assert abs(session.run(input=torch.zeros(2, 4))["output"] - expected).max() < 1e-6


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_nothing_is_compiled_for_each_size_that_is_tried() -> None:
    module = nn.Sequential(torch.compile(nn.Sequential(nn.Linear(4, 4))), nn.Linear(4, 4))
    module[1].compile()
    names = ["0._orig_mod.0.weight", "0._orig_mod.0.bias", "1.weight", "1.bias"]
    copied = kept_copy(module)
    assert list(copied.state_dict()) == [name.replace("_orig_mod.", "") for name in names]
    assert all(part._compiled_call_impl is None for part in copied.modules())
    assert list(module.state_dict()) == names
    assert module[1]._compiled_call_impl is not None


def test_hooks_of_the_module_see_its_own_arguments_and_result() -> None:
    spec = loaded("hooked", [X])
    assert [each.name for each in spec.io.outputs] == ["pooled"]
    x = torch.randn(2, 3, 16)
    (pooled,) = spec.make()(x=x)
    assert torch.equal(pooled, modules.dict_out()(x * 2)["pooled"] + 1)


def test_outputs_are_chosen_by_name_and_remembered() -> None:
    spec = loaded("dict_out", [X], ("more_0", "hidden"))
    assert [each.name for each in spec.io.outputs] == ["more_0", "hidden"]
    assert spec.source.outputs == ("more_0", "hidden")
    with pytest.raises(SpecError, match=r"got output hiden; its forward returns hidden, pooled, more_0"):
        loaded("dict_out", [X], ("hiden",))


def test_what_is_no_tensor_may_be_left_out_by_choosing_outputs() -> None:
    assert [each.name for each in loaded("counted", [X], ("hidden",)).io.outputs] == ["hidden"]


def test_examples_of_all_kinds_are_named_by_their_paths() -> None:
    x = torch.randn(2, 3, 16)
    module = modules.Pairs()
    arguments, found = of_examples(module, (modules.Pair(x, x + 1), x, x), {"more": x})
    assert arguments.names == ("pair_left", "pair_right", "others_0", "others_1", "more")
    made = adapted(module, arguments, ("difference",))
    assert torch.equal(
        made(**found)[0],
        module(modules.Pair(x, x + 1), x, x, more=x).difference,
    )


def test_a_dataclass_is_made_again_without_its_constructor() -> None:
    @modules.dataclass(frozen=True)
    class Computed:
        a: torch.Tensor
        twice: Any = modules.dataclass  # replaced

        def __post_init__(self) -> None:
            object.__setattr__(self, "twice", self.a * 2)

    class Takes(torch.nn.Module):
        def forward(self, data: Computed) -> torch.Tensor:
            return data.a + data.twice

    arguments, found = of_examples(Takes(), (Computed(torch.ones(2)),), {})
    assert [".".join(path) for path, _ in arguments.leaves] == ["data.a", "data.twice"]
    assert list(found) == ["data_a", "data_twice"]
    made = adapted(Takes(), arguments, ("output",))
    assert made(data_a=torch.ones(2), data_twice=torch.zeros(2)).tolist() == [1, 1]


def test_caches_and_results_of_transformers_are_taken_apart() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=40, hidden_size=16, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2
    )
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config).eval()
    ids = torch.randint(0, 40, (2, 3))
    with torch.no_grad():
        past = model(ids).past_key_values
        arguments, found = of_examples(model, (), {"input_ids": ids, "past_key_values": past, "use_cache": True})
        layers = [f"past_key_values_{at}_{part}" for at in (0, 1) for part in ("key", "value")]
        assert arguments.names == ("input_ids", *layers)
        outputs = flat_outputs(model(ids, past_key_values=copy.deepcopy(past)), arguments.names)
        assert list(outputs) == ["logits", *(f"{name}_out" for name in layers)]
        made = adapted(model, arguments, tuple(outputs))
        for _ in range(2):  # a cache is made anew in every call
            got = made(**found)
            assert torch.equal(got[0], outputs["logits"])
            assert got[1].shape[2] == 6


def test_the_two_caches_of_a_decoder_behind_an_encoder_are_taken_apart() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.T5Config(
        vocab_size=40, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2, decoder_start_token_id=0
    )
    torch.manual_seed(0)
    model, ids = transformers.T5ForConditionalGeneration(config).eval(), torch.randint(0, 40, (2, 3))
    with torch.no_grad():
        result = model(input_ids=ids, decoder_input_ids=ids)
        given = {"decoder_input_ids": ids, "past_key_values": result.past_key_values}
        given["encoder_outputs"] = (result.encoder_last_hidden_state,)
        arguments, found = of_examples(model, (), given)
        assert "past_key_values_cross_attention_cache_0_key" in arguments.names
        outputs = flat_outputs(model(**copy.deepcopy(given)), arguments.names)
        for _ in range(2):  # caches are made anew in every call
            torch.testing.assert_close(adapted(model, arguments, tuple(outputs))(**found)[0], outputs["logits"])


def test_a_declared_cache_of_transformers_is_made_from_keys_and_values(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    (tmp_path / "llama.py").write_text(
        "import torch, transformers\n"
        "def make():\n"
        "    torch.manual_seed(0)\n"
        "    return transformers.LlamaModel(transformers.LlamaConfig(vocab_size=40, hidden_size=16,\n"
        "        intermediate_size=16, num_hidden_layers=1, num_attention_heads=2))\n"
    )
    spec = load(
        f"{tmp_path / 'llama.py'}:make",
        inputs=[
            "input_ids=int64[batch,seq]:high=40",
            "past_key_values.0.key=float32[batch,2,8,8]",
            "past_key_values.0.value=float32[batch,2,8,8]",
        ],
        dims=DIMS,
        outputs=["last_hidden_state"],
    )
    assert [each.name for each in spec.io.inputs][1:] == ["past_key_values_0_key", "past_key_values_0_value"]
    assert spec.io.outputs[0].dims == ("batch", "seq", 16)


@pytest.mark.parametrize(
    ("name", "inputs", "message"),
    [
        ("past", [X, "past.0=float32[batch,2,seq,8]", "past.2=float32[batch,2,seq,8]"], r"got the places 0, 2"),
        (
            "past",
            [X, "past=float32[batch,2,seq,8]", "past.0=float32[batch,2,seq,8]"],
            "a part of it, is declared twice",
        ),
        (
            "past",
            [X, *(each.replace("past,", "seq,") for each in PAST), "scal=0.5"],
            "input scal: the module takes no input",
        ),
        ("past", [X], "no input is declared for 'past', which the module needs"),
        ("opaque_out", [X], r"the result is a Opaque, which holds tensors \(tensor\)"),
        ("words", [X], "returns str without a tensor"),
        ("counted", [X], "returns Result with steps=3, which is no tensor"),
        ("scripted", ["input=float32[batch,4]"], "TorchScript"),
    ],
)
def test_what_does_not_fit_is_refused_with_words(name: str, inputs: list[str], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        loaded(name, inputs)


def test_a_constant_that_cannot_be_read_is_refused() -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        loaded("past", [X, *PAST, "scale=half"])


def test_a_compiled_module_is_exported_as_the_module_itself() -> None:
    assert type(loaded("compiled", [X]).make()).__name__ == "DictOut"


class Keeps(nn.Module):
    """A module that keeps a result of its last run, as a loss that is added in training."""

    def __init__(self, held: Any = None) -> None:
        super().__init__()
        self.layer, self.held = nn.Linear(4, 4), held

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.layer(x)
        self.held = y.mean() if self.held is None else self.held
        return y


def test_what_a_run_with_gradients_left_in_a_module_is_copied() -> None:
    module = Keeps()
    module(torch.randn(2, 4))
    made = kept_copy(module)
    torch.testing.assert_close(made.held, module.held.detach())
    assert made.held.is_leaf
    torch.testing.assert_close(copy.deepcopy(made).held, made.held)


def test_what_cannot_be_copied_is_shared(tmp_path: Path) -> None:
    lock, static = threading.Lock(), staticmethod(torch.relu)
    made = kept_copy(nn.Sequential(Keeps(lock), Keeps([static, 3])))
    assert isinstance(made, nn.Sequential)
    assert made[0].held is lock
    assert made[1].held == [static, 3]
    report = attnport.export(Keeps(lock), tmp_path, args=(torch.randn(2, 4),)).check(["ort_cpu"])
    assert report.runtimes["ort_cpu"].verdict == "PASS"


def test_a_module_that_refuses_to_be_copied_is_refused() -> None:
    class Alone(nn.Module):
        def __deepcopy__(self, memo: dict[int, Any]) -> Any:
            raise NotImplementedError("there is one of it")

    with pytest.raises(SpecError, match="Alone cannot be copied: there is one of it"):
        kept_copy(Alone())
