"""The inputs, ranges, masks and outputs of transformers models: of text models, and of every other kind and part."""

# torch leaves its mode classes untyped.
# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from attnport.artifacts import Dim, IOContract, MaskSpec, TensorSpec
from attnport.budget import Budget
from attnport.errors import SpecError, UsageError
from attnport.example_values import example
from attnport.sources.declare import narrow_dims, observe_outputs
from attnport.sources.hf.files import TokenizerOf
from attnport.sources.hf.inputs import (
    DECLARE,
    FORMS,
    MAX_POSITIONS,
    SMALL,
    Candidates,
    Inputs,
    Numbers,
    Trial,
    candidates,
    choose,
    usual_dims,
)
from attnport.sources.hf.modules import (
    DECODER_IDS,
    ENCODER_MASK,
    ENCODER_WITH_PAST,
    TOWERS,
    Call,
    HubModel,
    Run,
    accepted,
    main_input,
    parameters,
    part_of,
    reads_text,
    run_lengthened,
    run_whole,
    tower_of,
)
from attnport.sources.parsing import parse_dims
from attnport.sources.ranges import range_by_trying
from attnport_bundle.errors import escape_all
from attnport_bundle.format.strict_json import MAX_TEXT
from attnport_bundle.text import ATTENDED

_NOT_TRIED = ("batch", "choices")
_MOST_TRIED = 4096
"""A longer sequence takes too much memory to be tried; the config is believed."""
_IMAGE = ("height", "width")
_MAIN = {"text": "input_ids", "vision": "pixel_values", "audio": "input_features", "video": "pixel_values"}


@dataclass(frozen=True)
class Subject:
    """A model, or a part of it, and what is known of it before it runs.

    Attributes:
        place: Its folder or hub id.
        part: The part, "" for the whole model.
        model: What is run: the encoder itself for `encoder`, or else the whole model.
        run: How it is run.
        numbers: The numbers in the model's configs.
    """

    place: str
    part: str
    model: Any
    run: Run
    numbers: Numbers

    @property
    def reader(self) -> Any:
        """What takes the inputs: the model, or the encoder inside it."""
        return self.model.get_encoder() if self.part == ENCODER_WITH_PAST else self.model

    def arguments(self) -> list[str]:
        """The arguments of what is called with the inputs."""
        return parameters(tower_of(self.model, self.part) if self.part in TOWERS else self.reader.forward)

    def main(self, arguments: Sequence[str]) -> str:
        """The input that others stand beside: what transformers calls so, or the first that is known."""
        if self.part == "decoder":
            return DECODER_IDS
        main = _MAIN.get(self.part) or main_input(self.reader)
        return main if main in arguments else next((name for name in FORMS if name in arguments), main)


def subject_of(place: str, model: Any, part: str, numbers: Numbers) -> Subject:
    """A part of a model; raises UsageError as `part_of` does."""
    runs, run = part_of(place, model, part)
    widths = (getattr(module, "in_features", None) for module in runs.modules())
    width = next((width for width in widths if isinstance(width, int)), None)  # of its first linear layer
    numbers = dataclasses.replace(numbers, further={**numbers.further, "first_width": width})
    return Subject(place, part, runs, run, numbers)


def is_plain_text(model: Any, numbers: Numbers) -> bool:
    """Whether a model takes token ids with their mask and types, and nothing else."""
    others = FORMS.keys() - {"input_ids", "token_type_ids", "encoder_hidden_states"}
    takes = accepted(model)
    if main_input(model) != "input_ids" or "input_ids" not in takes:
        return False
    if type(model).__name__.endswith("ForMultipleChoice"):
        return False
    # A model that marks the places of pictures or sound in its text by placeholders can run on text alone.
    return numbers.placeholders or not others & takes


def contract_of(subject: Subject, declared: Sequence[str], *, free_sides: bool = True) -> tuple[Call, IOContract]:
    """How a model is run, and its contract, found in its forward, its configs and runs of it.

    Args:
        declared: `--dim` declarations; those of images make an image's sides dynamic, or fix them.
        free_sides: Let an image's sides be dynamic where the model takes other sizes than that of its config.

    Raises:
        SpecError: it does not run on inputs as its forward and its configs suggest.
        UsageError: a declared dim is unknown, or the model does not take its sizes.
    """
    name, numbers, run = f"hf:{subject.place}", subject.numbers, subject.run
    wanted = parse_dims(declared)
    arguments = subject.arguments()
    other: dict[str, Sequence[str]] = {}
    if subject.part == "decoder":
        hidden, masked, longest = _encoded(subject)
        arguments = ["encoder_hidden_states", *arguments, *([ENCODER_MASK] if masked else [])]
        other = {each: () for each in FORMS if not each.startswith("decoder_")}
        other["encoder_hidden_states"] = (hidden,)
        numbers = dataclasses.replace(numbers, longest={**numbers.longest, "seq": longest})
    if type(subject.model).__name__.endswith("ForMultipleChoice"):
        other = {each: [form.replace("[batch,", "[batch,choices,") for form in FORMS[each]]
                 for each in ("input_ids", "token_type_ids")}  # fmt: skip
    sides = {side: wanted[side] for side in _IMAGE if side in wanted}
    if any(dim.min < dim.max for dim in sides.values()) and "interpolate_pos_encoding" in arguments:
        run = partial(run, interpolate_pos_encoding=True)
    known = candidates(name, arguments, subject.main(arguments), numbers, other)
    trial, inputs = _started(name, HubModel(subject.model, run), known, numbers, sides)
    tries = _with_sides(inputs, trial, sides, free=free_sides and numbers.convolves_images)
    for inputs in tries[:-1]:
        with contextlib.suppress(SpecError):
            return _observed(name, inputs, trial, numbers.longest, declared)
    return _observed(name, tries[-1], trial, numbers.longest, declared)


def _started(
    name: str, module: HubModel, known: Candidates, numbers: Numbers, declared: Mapping[str, Dim]
) -> tuple[Trial, Inputs]:
    """The inputs, and a trial with sizes at which the model runs: declared sides of images, or those of its config."""
    # What a config calls the size of images may be that of something else.
    pairs = [*((numbers.image_size,) if numbers.image_size else ()), *((side, side) for side in (224, 64, 32, 512))]
    has_images = any("height" in spec.dims for specs in known.forms.values() for spec in specs)
    problem: SpecError | None = None
    for pair in pairs if has_images else pairs[:1]:
        sides = dict(zip(_IMAGE, pair, strict=True)) | {side: dim.opt for side, dim in declared.items()}
        trial = Trial(module, {"samples": 50 * numbers.samples_per_frame, "frames": 256, **sides})
        try:
            return trial, choose(name, known, trial)
        except SpecError as err:
            problem = problem or err
    assert problem is not None
    raise problem


def _with_sides(inputs: Inputs, trial: Trial, declared: Mapping[str, Dim], *, free: bool) -> list[Inputs]:
    """The inputs, with the sides of images fixed where that is declared, or where the model takes no others.

    Where it takes others, and nothing is declared: the inputs with dynamic sides, and with fixed ones.
    """
    if "height" not in inputs.dims:
        return [inputs]
    fixed = inputs
    for side in _IMAGE:
        if side not in declared or declared[side].min == declared[side].max:
            fixed = fixed.renamed("", side, trial.usual[side])
    sizes = {side: trial.usual[side] for side in _IMAGE}
    takes_others = not declared and free and all(
        trial.runs(inputs, **{**sizes, side: sizes[side] + more}) for side in _IMAGE for more in (1, 6)
    )  # fmt: skip
    return [inputs, fixed] if takes_others else [fixed]


def _observed(
    name: str, inputs: Inputs, trial: Trial, longest: Mapping[str, int], declared: Sequence[str]
) -> tuple[Call, IOContract]:
    """The contract of a model with these inputs, by runs of it: the ranges of dims, and the outputs."""
    wanted = parse_dims(declared)
    dims = tuple(
        dim
        if dim.name in _NOT_TRIED or (dim.name in longest and dim.max > _MOST_TRIED)
        else _tried(dim, wanted.get(dim.name), inputs, trial)
        for dim in usual_dims(inputs, longest, trial.usual)
    )
    here = {dim.name for dim in dims}
    dims = narrow_dims(dims, [each for each in declared if (side := declared_name(each)) in here or side not in _IMAGE])
    model, run = trial.module.model, trial.module.run
    if "samples" in inputs.dims and inputs.masks:
        samples = trial.usual["samples"]
        # A shorter item has no frame, and the model looks up one before its first.
        tried = Dim("samples", 1, samples, samples)
        fewest = range_by_trying(tried, samples, lambda size: trial.runs(inputs, batch=1, samples=size)).min
        run = partial(run_lengthened, run=run, fewest=fewest)
    outputs = observe_outputs(HubModel(model, run).named, inputs.tensors, dims, name)
    call = Call(run, tuple(spec.name for spec in inputs.tensors))
    return call, IOContract(inputs.tensors, outputs, dims, inputs.masks, positions="absolute")


def _tried(dim: Dim, declared: Dim | None, inputs: Inputs, trial: Trial) -> Dim:
    """The part of a usual range, or of a declared one, at which the model runs.

    Raises:
        UsageError: it does not run at declared sizes.
    """
    budget = Budget(["batch"])

    def runs(size: int) -> bool:
        # A size that does not fit is left to the trial of the graph, which says so.
        return budget.reach({dim.name: size}, lambda sizes: trial.runs(inputs, batch=1, **sizes)) is not False

    start = trial.usual.get(dim.name, min(SMALL, dim.max))
    if declared is None:
        return range_by_trying(dim, start, runs)
    for size in (declared.min, declared.max):
        if not runs(size):
            raise UsageError(f"--dim {declared}: the model does not run at {dim.name}={size}: {trial.problem}")
    return declared


def _encoded(subject: Subject) -> tuple[str, bool, int]:
    """The form of an encoder's hidden states, whether its decoder takes a mask of them, and how many there may be."""
    model, longest = subject.model, subject.numbers.longest["seq"]
    encoder = subject_of(subject.place, model, "encoder", subject.numbers)
    call, contract = contract_of(encoder, (), free_sides=False)
    hidden = next(spec for spec in contract.outputs if spec.name == "last_hidden_state")
    length = hidden.dims[1] if isinstance(hidden.dims[1], int) else "seq"
    if reads_text(model):
        return f"float32[batch,{length},{hidden.dims[-1]}]", "attention_mask" in accepted(model), longest
    most = {dim.name: 1 if dim.name == "batch" else dim.max for dim in contract.dims}
    trial = Trial(HubModel(encoder.model, call.run), most)
    if outputs := trial.outputs({spec.name: example(spec, most) for spec in contract.inputs}):
        longest = outputs["last_hidden_state"].shape[1]
        length = length if length == longest else "seq"  # a few samples more, as were tried, may give no state more
    form = f"float32[batch,{length},{hidden.dims[-1]}]"
    return form, bool(contract.masks) and ENCODER_MASK in accepted(model.get_decoder()), longest


def declared_name(declaration: str) -> str:
    """The dim of a `--dim` declaration."""
    return declaration.partition("=")[0].strip()


TOKENS = ("batch", "seq")
_LIMITS = ("max_position_embeddings", "n_positions", "max_sequence_length", "max_seq_len", "max_seq_length",
           "seq_length", "context_length", "n_ctx")  # fmt: skip
"""What configs call the longest sequence."""
_CODE_POINTS = 0x110000
"""The ids of a model without a vocabulary, which reads letters: CANINE."""
_UNLIMITED = 512
"""The longest sequence by default where nothing limits it: relative positions, or ALiBi."""


def text_contract(
    name: str, module: HubModel, config: Any, tokenizer: TokenizerOf, declared: Sequence[str]
) -> tuple[Call, IOContract]:
    """How a text model, called `name` in errors, is run, and its contract; all else as of `text_inputs`.

    Raises:
        SpecError: it does not run on the inputs of text models.
    """
    inputs, dims, masks = text_inputs(config, module, tokenizer, declared)
    try:
        outputs = observe_outputs(module.named, inputs, dims, name)
    except SpecError as err:
        raise SpecError(err.message.replace("the declared inputs", "the inputs of text models"), hint=DECLARE) from err
    call = Call(run_whole, tuple(spec.name for spec in inputs))
    return call, IOContract(inputs, outputs, dims, masks, positions="absolute")


def labelled(output: TensorSpec, model: Any) -> TensorSpec:
    """The output with the labels of its classes, if the model is a classifier whose config names every class.

    They are escaped and cut as text of a bundle has to be: a model is not refused for its labels.
    """
    names = getattr(model.config, "id2label", None) or {}
    labels = tuple(escape_all(str(names[place]))[:MAX_TEXT] for place in range(len(names)) if place in names)
    unnamed = all(label == f"LABEL_{place}" for place, label in enumerate(labels))
    if "Classification" not in type(model).__name__ or output.name not in ("logits", "scores") or unnamed:
        return output
    return dataclasses.replace(output, labels=labels) if output.dims[-1:] == (len(labels),) else output


def text_inputs(
    config: Any, module: HubModel, tokenizer: TokenizerOf, declared: Sequence[str]
) -> tuple[tuple[TensorSpec, ...], tuple[Dim, ...], tuple[MaskSpec, ...]]:
    """The inputs of a text model, the ranges of their dims, and its masks.

    Type ids are an input where the model's tokenizer makes them, and the model takes them; else the model runs with its
    own default.

    Raises:
        UsageError: a declared dim is unknown, or beyond the model's limit.
    """
    text = getattr(config, "text_config", config)
    vocab = getattr(text, "vocab_size", None) or _words(module.model) or _CODE_POINTS
    seen = see(HubModel(module.model, module.run).named, vocab, getattr(text, "pad_token_id", None))
    longest = _longest(text, seen.positions)
    inputs = [
        TensorSpec("input_ids", "int64", TOKENS, high=vocab),
        TensorSpec("attention_mask", "int64", TOKENS, high=2),
    ]
    masks = [MaskSpec(("padding",), "attention_mask")]  # of the input alone; a bundle makes it from lengths
    types = _types(text, module, tokenizer)
    if types:
        inputs.append(TensorSpec("token_type_ids", "int64", TOKENS, high=types))
    if module.head is not None and module.head.pooled_mask:
        inputs.append(TensorSpec("pooled_mask", "int64", TOKENS, high=2))
        masks.append(MaskSpec(("padding",), "pooled_mask"))
    if module.head is not None and module.head.attended_mask:
        inputs.append(TensorSpec(ATTENDED, "int64", TOKENS, high=2))
    most = longest or MAX_POSITIONS
    ranges = narrow_dims((Dim("batch", 1, 8, 64), Dim("seq", 1, min(128, most), most)), declared)
    if longest is None and "seq" not in parse_dims(declared):
        ranges = (ranges[0], Dim("seq", 1, 128, _UNLIMITED))
    masks += [MaskSpec(("causal",))] if seen.causal else []
    return tuple(inputs), ranges, (*masks, *windows(seen, ranges[1].max))


def _words(model: Any) -> int:
    """The rows of a model's table of words, for one whose config has no vocabulary itself; 0 if there is no table."""
    try:
        return int(getattr(model.get_input_embeddings(), "num_embeddings", 0))
    except (NotImplementedError, AttributeError):
        return 0


def _types(config: Any, module: HubModel, tokenizer: TokenizerOf) -> int:
    """The number of token types, 0 where they are no input."""
    types = getattr(config, "type_vocab_size", None)
    takes = "token_type_ids" in accepted(module.model)
    if not takes or types == 0 or "token_type_ids" not in tokenizer.makes:
        return 0
    # XLNet's types have no table; a tokenizer that makes them makes two. Of a tokenizer that is not there, only what
    # the config says is believed.
    return int(types or (2 if tokenizer.known else 0))


def _longest(config: Any, table: int | None) -> int | None:
    """The longest sequence of a model: what its config says, less where its table of positions has fewer to use.

    Positions of RoBERTa and the like start behind that of padding, so that the table has more rows than positions.
    """
    named = [getattr(config, name, None) for name in _LIMITS]
    said = next((each for each in named if isinstance(each, int) and not isinstance(each, bool) and each > 1), None)
    known = [each for each in (said, table) if each is not None]
    return min(*known, MAX_POSITIONS) if known else None


_LENGTH = 8
_KINDS = ("sdpa", "eager")
_LOOKED_UP = (torch.ops.aten.embedding.default, torch.ops.aten.index_select.default)


@dataclass(frozen=True)
class Seen:
    """What a run shows.

    Attributes:
        positions: The longest sequence for which a table has positions; None if no table was seen.
        causal: Whether every token attends to itself and what is before it alone; None if that cannot be said.
        functions: Each mask that transformers made: whether a query may attend to a key, of their positions.
    """

    positions: int | None = None
    causal: bool | None = None
    functions: tuple[Callable[..., Any], ...] = ()


def see(run: Callable[..., dict[str, torch.Tensor]], vocab: int, padding: int | None) -> Seen:
    """Runs a model on a few tokens, and looks at the tables that it reads and the masks that it makes.

    Args:
        run: `input_ids` and `attention_mask` `[B,T]` to outputs by name.
        padding: The id of padding, which does not occur, since positions may depend on it.
    """
    known = [each for each in range(vocab) if each != padding]
    ids_BT = torch.tensor([[known[(5 * at + 3) % len(known)] for at in range(_LENGTH)]])
    mask_BT = torch.ones_like(ids_BT)
    tables = _Tables()
    try:
        with torch.no_grad(), _mask_functions() as functions:
            with tables:
                first = run(input_ids=ids_BT, attention_mask=mask_BT)
            changed_BT = ids_BT.clone()
            changed_BT[0, -1] = next((each for each in known if each != int(ids_BT[0, -1])), known[0])
            second = run(input_ids=changed_BT, attention_mask=mask_BT)
    except Exception:  # some models take no sequence as short as this; observing their outputs says what is wrong
        return Seen(min(tables.found, default=None))
    return Seen(min(tables.found, default=None), _is_causal(first, second), tuple(functions))


def windows(seen: Seen, longest: int) -> tuple[MaskSpec, ...]:
    """The windows of a model's masks that hide something in a sequence of `longest` tokens."""
    found = []
    for function in seen.functions:
        reaches = [_reach(function, longest - 1 - back) for back in range(3) if longest - 1 - back > 0]
        # In chunks, how far a query reaches back depends on its place: that is no window.
        if not reaches or None in reaches or len(set(reaches)) != 1 or reaches[0] is None:
            continue
        before, after = reaches[0]
        if 0 < before < longest - 3 and after in (0, before):
            kinds = ("causal", "window") if after == 0 else ("window",)
            found.append(MaskSpec(kinds, window=before))
    return tuple(dict.fromkeys(found))


def _reach(function: Callable[..., Any], position: int) -> tuple[int, int] | None:
    """How many keys before and behind a query its mask allows; None if they are not all those between, or unknown."""
    zero = torch.tensor(0)
    try:
        allowed_T = function(zero, zero, torch.tensor(position), torch.arange(2 * position + 1))
        places = torch.broadcast_to(torch.as_tensor(allowed_T), (2 * position + 1,)).nonzero().flatten().tolist()
    except Exception:  # a function of transformers, which may look up the tokens of the run
        return None
    if not places or places != list(range(places[0], places[-1] + 1)) or not places[0] <= position <= places[-1]:
        return None
    return position - places[0], places[-1] - position


def _is_causal(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool | None:
    """Whether another last token left the outputs of all others as they were."""
    by_token = [name for name, value in first.items() if value.ndim > 2 and value.shape[1] == _LENGTH]
    if not by_token:
        return None
    return all(torch.allclose(first[name][:, :-1], second[name][:, :-1], rtol=1e-5, atol=1e-6) for name in by_token)


class _Tables(TorchDispatchMode):
    """Finds tables that are read at consecutive places, the same for every item: those of positions."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[int] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _LOOKED_UP:
            table, places = args[0], args[-1] if func is _LOOKED_UP[1] else args[1]
            rows = places.reshape(-1, places.shape[-1]) if places.ndim and places.shape[-1] == _LENGTH else None
            if rows is not None and (func is _LOOKED_UP[0] or args[1] == 0):
                start = int(rows[0, 0])
                if bool((rows == torch.arange(start, start + _LENGTH)).all()):
                    self.found.append(table.shape[0] - start)
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def _mask_functions() -> Iterator[list[Callable[..., Any]]]:
    """Notes the functions of which transformers makes masks in the block."""
    from transformers import masking_utils

    table, found = masking_utils.ALL_MASK_ATTENTION_FUNCTIONS, []
    before = {name: table[name] for name in _KINDS}

    def noting(original: Callable[..., Any]) -> Callable[..., Any]:
        def make(*args: Any, **kwargs: Any) -> Any:
            if "mask_function" in kwargs:
                found.append(kwargs["mask_function"])
            return original(*args, **kwargs)

        return make

    for name, original in before.items():
        table[name] = noting(original)
    try:
        yield found
    finally:
        for name, original in before.items():
            table[name] = original
