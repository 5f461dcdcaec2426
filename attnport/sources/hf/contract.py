"""The inputs, ranges, masks and outputs of transformers models: of text models, and of every other kind and part."""

# torch leaves its mode classes untyped.
# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from attnport.artifacts import IOContract
from attnport.budget import Budget
from attnport.dims import Dim, TensorSpec
from attnport.errors import SpecError, UsageError
from attnport.masks import MaskSpec
from attnport.sources.declare import example, narrow_dims, observe_outputs
from attnport.sources.hf.files import TokenizerOf
from attnport.sources.hf.inputs import FORMS, SMALL, Inputs, Numbers, Trial, choose, usual_dims
from attnport.sources.hf.modules import (
    ENCODER_MASK,
    ENCODER_WITH_PAST,
    TOWERS,
    Kind,
    TextModel,
    kind_of,
    parameters,
    reads_text,
    with_inputs,
)
from attnport.sources.parsing import parse_dims
from attnport.sources.ranges import range_by_trying

_NOT_TRIED = ("batch", "choices")
_MOST_TRIED = 4096
"""A longer sequence takes too much memory to be tried; the config is believed."""
_IMAGE = ("height", "width")
_MAIN = {"text": "input_ids", "vision": "pixel_values", "audio": "input_features", "video": "pixel_values"}


@dataclasses.dataclass(frozen=True)
class Text:
    """What is known of a model's texts: the sizes of its tables, and how long its sequences may be."""

    vocab: int | None
    types: int | None
    decoder_vocab: int | None
    longest: Mapping[str, int]


def text_of(config: Any, *, types: bool) -> Text:
    """What the configs say of a model's texts, of those that it reads and those that it writes.

    Args:
        types: Whether the model's tokenizer makes type ids.
    """
    reads = _inside(config, "text_config", "encoder", "encoder_config")
    writes = _inside(config, "decoder", "text_config", "decoder_config")
    reads = reads if hasattr(reads, "vocab_size") else writes
    rows = getattr(reads, "type_vocab_size", None)
    return Text(
        getattr(reads, "vocab_size", None),
        rows if types and isinstance(rows, int) and rows > 0 else None,
        getattr(writes, "vocab_size", None),
        {"seq": _positions(reads), "decoder_seq": _positions(writes)},
    )


def _first_width(model: Any) -> int | None:
    """The features that a model's first linear layer takes."""
    widths = (getattr(module, "in_features", None) for module in model.modules())
    return next((width for width in widths if isinstance(width, int)), None)


def _inside(config: Any, *names: str) -> Any:
    """The first of these configs inside a config that is one, or else the config itself."""
    inner = (getattr(config, name, None) for name in names)
    return next((each for each in inner if hasattr(each, "to_dict")), config)


def _positions(config: Any) -> int:
    """How many positions a config has, at most; the tables may have fewer that can be used."""
    names = ("max_target_positions", "max_position_embeddings", "n_positions", "max_text_positions", "max_length")
    found = [getattr(config, name, None) for name in names]
    return min(next((each for each in found if isinstance(each, int) and each > 1), 512), MAX_POSITIONS)


def is_plain_text(model: Any, numbers: Numbers) -> bool:
    """Whether a model takes token ids with their mask and types, and nothing else."""
    others = FORMS.keys() - {"input_ids", "token_type_ids", "encoder_hidden_states"}
    accepted = set(parameters(model.forward))
    if _main(model) != "input_ids" or "input_ids" not in accepted:
        return False
    if type(model).__name__.endswith("ForMultipleChoice"):
        return False
    # A model that marks the places of pictures or sound in its text by placeholders can run on text alone.
    return numbers.placeholders or not others & accepted


def kind_contract(
    place: str, kind: Kind, part: str, numbers: Numbers, text: Text, declared: Sequence[str], *, flexible: bool = True
) -> IOContract:
    """Finds the contract of a model from its forward, its configs and runs of it; sets the inputs of `kind` to it.

    Args:
        declared: `--dim` declarations; those of images make an image's sides dynamic, or fix them.
        flexible: Let an image's sides be dynamic where the model takes other sizes than that of its config.

    Raises:
        SpecError: it does not run on inputs as its forward and its configs suggest.
        UsageError: a declared dim is unknown, or the model does not take its sizes.
    """
    name = f"hf:{place}"
    wanted = parse_dims(declared)
    model: Any = kind.model
    numbers.further |= {"vocab": text.vocab, "types": text.types, "decoder_vocab": text.decoder_vocab}
    numbers.further["first_width"] = _first_width(model)
    accepted = parameters(_called(kind, part))
    image = numbers.image_size
    sides = {side: dim.opt for side, dim in wanted.items() if side in _IMAGE}
    given: dict[str, Sequence[str]] = {}
    if part == "decoder":
        encoded = _encoded(place, model, numbers, text)
        accepted = ["encoder_hidden_states", *accepted, *([ENCODER_MASK] if encoded.masked else [])]
        given = {each: () for each in FORMS if not each.startswith("decoder_")}
        given["encoder_hidden_states"] = (encoded.form,)
        text = dataclasses.replace(text, longest={**text.longest, "seq": encoded.longest})
    if any(side in wanted and wanted[side].min < wanted[side].max for side in _IMAGE) and (
        "interpolate_pos_encoding" in accepted
    ):
        kind.constants["interpolate_pos_encoding"] = True
    multiple = type(model).__name__.endswith("ForMultipleChoice")
    if multiple:
        given = {each: [form.replace("[batch,", "[batch,choices,") for form in FORMS[each]]
                 for each in ("input_ids", "token_type_ids")}  # fmt: skip
    reader = model.get_encoder() if part == ENCODER_WITH_PAST else model
    main = "decoder_input_ids" if part == "decoder" else _MAIN.get(part) or _main(reader)
    main = main if main in accepted or part == "decoder" else next((each for each in FORMS if each in accepted), main)
    trial, inputs = _started(name, kind, accepted, main, numbers, given, image, sides)
    inputs, freed = _images(inputs, trial, wanted, image, flexible=flexible and numbers.convolves_images)
    dims = tuple(
        dim
        if dim.name in _NOT_TRIED or (dim.name in text.longest and dim.max > _MOST_TRIED)
        else _tried(dim, wanted.get(dim.name), inputs, trial)
        for dim in usual_dims(inputs, text.longest, trial.usual)
    )
    dims = narrow_dims(dims, [each for each in declared if _declared_name(each) in {dim.name for dim in dims}
                              or _declared_name(each) not in _IMAGE])  # fmt: skip
    if "samples" in inputs.dims and inputs.masks:
        samples = trial.usual["samples"]
        # A shorter item has no frame, and the model looks up one before its first.
        kind.least = range_by_trying(
            Dim("samples", 1, samples, samples), samples, partial(_runs, trial, inputs, "samples")
        ).min
    try:
        outputs = observe_outputs(kind.named, inputs.tensors, dims, name)
    except SpecError:
        if not freed:
            raise
        return kind_contract(place, kind, part, numbers, text, declared, flexible=False)
    with_inputs(kind, [spec.name for spec in inputs.tensors])
    return IOContract(inputs.tensors, outputs, dims, inputs.masks, positions="absolute")


def _started(
    name: str,
    kind: Kind,
    accepted: Sequence[str],
    main: str,
    numbers: Numbers,
    given: Mapping[str, Sequence[str]],
    image: tuple[int, int] | None,
    declared: Mapping[str, int],
) -> tuple[Trial, Inputs]:
    """The inputs, and a trial with sizes at which the model runs: the declared sides of images, or else `image`."""
    # What a config calls the size of images may be that of something else.
    pairs = [*((image,) if image else ()), *((side, side) for side in (224, 64, 32, 512))]
    problem: SpecError | None = None
    for side in ({**dict(zip(_IMAGE, pair, strict=True)), **declared} for pair in pairs):
        trial = Trial(kind.named, {"samples": 50 * numbers.samples_per_frame, "frames": 256, **side})
        try:
            return trial, choose(name, accepted, main, numbers, trial, given)
        except SpecError as err:
            problem = problem or err
    assert problem is not None
    raise problem


def _images(
    inputs: Inputs, trial: Trial, wanted: Mapping[str, Dim], image: tuple[int, int] | None, *, flexible: bool
) -> tuple[Inputs, bool]:
    """With the sides of images fixed where the model takes no others, or where that is declared."""
    if "height" not in inputs.dims:
        return inputs, False
    sides = {side: trial.usual[side] for side in _IMAGE}
    declared = [wanted[side] for side in _IMAGE if side in wanted]
    free = [dim for dim in declared if dim.min < dim.max]
    takes = not declared and flexible and all(
        trial.runs(inputs, **{**sides, side: sides[side] + more}) for side in _IMAGE for more in (1, 6)
    )  # fmt: skip
    if takes:
        return inputs, True
    for side in _IMAGE:
        if side not in {dim.name for dim in free}:
            inputs = inputs.renamed("", side, sides[side])
    return inputs, False


def _tried(dim: Dim, declared: Dim | None, inputs: Inputs, trial: Trial) -> Dim:
    """The part of a usual range, or of a declared one, at which the model runs.

    Raises:
        UsageError: it does not run at declared sizes.
    """

    budget = Budget(["batch"])

    def runs(size: int) -> bool:
        # A size that does not fit is left to the trial of the graph, which says so.
        return (
            budget.reach({dim.name: size}, lambda sizes: _runs(trial, inputs, dim.name, sizes[dim.name])) is not False
        )

    start = trial.usual.get(dim.name, min(SMALL, dim.max))
    if declared is None:
        return range_by_trying(dim, start, runs)
    for size in (declared.min, declared.max):
        if not runs(size):
            raise UsageError(f"--dim {declared}: the model does not run at {dim.name}={size}: {trial.problem}")
    return declared


def _runs(trial: Trial, inputs: Inputs, dim: str, size: int) -> bool:
    return trial.runs(inputs, **{"batch": 1, dim: size})


@dataclasses.dataclass(frozen=True)
class _Encoded:
    """What an encoder gives to its decoder.

    Attributes:
        form: That of its hidden states, as an input.
        masked: Whether the decoder takes a mask of them.
        longest: How many there are at most.
    """

    form: str
    masked: bool
    longest: int


def _encoded(place: str, model: Any, numbers: Numbers, text: Text) -> _Encoded:
    """What the encoder gives."""
    encoder = kind_of(place, model, "encoder")
    contract = kind_contract(place, encoder, "encoder", numbers, text, (), flexible=False)
    hidden = next(spec for spec in contract.outputs if spec.name == "last_hidden_state")
    length = hidden.dims[1] if isinstance(hidden.dims[1], int) else "seq"
    form, longest = f"float32[batch,{length},{hidden.dims[-1]}]", text.longest["seq"]
    if reads_text(model):
        return _Encoded(form, "attention_mask" in parameters(model.forward), longest)
    if length == "seq":
        most = {dim.name: 1 if dim.name == "batch" else dim.max for dim in contract.dims}
        found = Trial(encoder.named, most).outputs({spec.name: example(spec, most) for spec in contract.inputs})
        longest = found["last_hidden_state"].shape[1] if found else longest
    return _Encoded(form, bool(contract.masks) and ENCODER_MASK in parameters(model.get_decoder().forward), longest)


def _called(kind: Kind, part: str) -> Callable[..., Any]:
    """What is called with the inputs."""
    model: Any = kind.model
    if part == ENCODER_WITH_PAST:
        model = model.get_encoder()
    method = next((name for name in TOWERS.get(part, ()) if hasattr(model, name)), "forward")
    called: Callable[..., Any] = getattr(model, method)
    return called


def _main(model: Any) -> str:
    return str(getattr(model, "main_input_name", "input_ids"))


def _declared_name(declaration: str) -> str:
    return declaration.partition("=")[0].strip()


TOKENS = ("batch", "seq")
MAX_POSITIONS = 131072
_LIMITS = (
    "max_position_embeddings",
    "n_positions",
    "max_sequence_length",
    "max_seq_len",
    "max_seq_length",
    "seq_length",
    "context_length",
    "n_ctx",
)
"""What configs call the longest sequence."""
_CODE_POINTS = 0x110000
"""The ids of a model without a vocabulary, which reads letters: CANINE."""
_UNLIMITED = 512
"""The longest sequence by default where nothing limits it: relative positions, or ALiBi."""


def text_contract(
    config: Any, module: TextModel, tokenizer: TokenizerOf, declared: Sequence[str]
) -> tuple[tuple[TensorSpec, ...], tuple[Dim, ...], tuple[MaskSpec, ...]]:
    """The inputs of a text model, the ranges of their dims, and its masks.

    Type ids are an input where the model's tokenizer makes them, and the model takes them; else the model runs with its
    own default.

    Args:
        config: The model's config.
        module: The model.
        tokenizer: The tokenizer beside its weights.
        declared: `--dim` declarations.

    Raises:
        UsageError: a declared dim is unknown, or beyond the model's limit.
    """
    text = getattr(config, "text_config", config)
    vocab = getattr(text, "vocab_size", None) or _words(module.model) or _CODE_POINTS
    seen = see(module.named, vocab, getattr(text, "pad_token_id", None))
    longest = _longest(text, seen.positions)
    inputs = [
        TensorSpec("input_ids", "int64", TOKENS, high=vocab),
        TensorSpec("attention_mask", "int64", TOKENS, high=2),
    ]
    masks = [MaskSpec(("padding",), "attention_mask")]  # of the input alone; a bundle makes it from lengths
    types = _types(text, module, tokenizer)
    if types:
        inputs.append(TensorSpec("token_type_ids", "int64", TOKENS, high=types))
    if module.pools_some:
        inputs.append(TensorSpec("pooled_mask", "int64", TOKENS, high=2))
        masks.append(MaskSpec(("padding",), "pooled_mask"))
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


def _types(config: Any, module: TextModel, tokenizer: TokenizerOf) -> int:
    """The number of token types, 0 where they are no input."""
    types = getattr(config, "type_vocab_size", None)
    takes = "token_type_ids" in inspect.signature(module.model.forward).parameters
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


def see(run: Callable[[torch.Tensor, torch.Tensor], dict[str, torch.Tensor]], vocab: int, padding: int | None) -> Seen:
    """Runs a model on a few tokens, and looks at the tables that it reads and the masks that it makes.

    Args:
        run: Token ids and padding mask `[B,T]` to outputs by name.
        vocab: The number of ids.
        padding: The id of padding, which does not occur, since positions may depend on it.
    """
    known = [each for each in range(vocab) if each != padding]
    ids_BT = torch.tensor([[known[(5 * at + 3) % len(known)] for at in range(_LENGTH)]])
    mask_BT = torch.ones_like(ids_BT)
    tables = _Tables()
    try:
        with torch.no_grad(), _mask_functions() as functions:
            with tables:
                first = run(ids_BT, mask_BT)
            changed_BT = ids_BT.clone()
            changed_BT[0, -1] = next((each for each in known if each != int(ids_BT[0, -1])), known[0])
            second = run(changed_BT, mask_BT)
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


@contextmanager
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
