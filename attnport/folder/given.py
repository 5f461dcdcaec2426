"""What `export` is given: a SPEC, a module or a ModelSpec, with examples or declarations, as one ModelSpec."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from attnport.artifacts import IOContract, ModelSpec, Source
from attnport.cases.choosing import read_feeds
from attnport.dims import Dim, Symbol, said_by
from attnport.errors import ExportError, UsageError
from attnport.folder.loading import load, with_outputs
from attnport.options import Note, Option, Progress, advised
from attnport.sources.code import Code, code_of, runs_code
from attnport.sources.declare import called, declared_arguments, likely, narrow, refuse_inputs, steps_note
from attnport.sources.digests import reading
from attnport.sources.examples import (
    dim_ranges,
    named_dims,
    refuse_other_sizes,
    vocabularies,
    with_dims,
    with_needed_values,
    within,
)
from attnport.sources.load import factory_of
from attnport.sources.memory import hold, kept_copy, memory_spec
from attnport.sources.onnx_file import is_onnx
from attnport.sources.package import with_prefix
from attnport.sources.parsing import (
    Beside,
    declarations,
    marks_by_name,
    parse_beside,
    parse_dims,
    parse_leaves,
    text_of,
)
from attnport.sources.plain import in_float32, plain_module, precision_of
from attnport.sources.ranges import found_ranges
from attnport.sources.seeds import seeded
from attnport.sources.structure import Arguments, Input, Observed, adapted, of_examples, own_copy

if TYPE_CHECKING:
    import torch
    from torch import nn

Axis = tuple[str, int]
"""The name of an input, and the number of its axis."""


@dataclasses.dataclass(frozen=True)
class Given:
    """The arguments of `export`, see there."""

    model: Annotated[
        "str | nn.Module | ModelSpec",  # noqa: UP037  # evaluated without torch
        Option(
            "A folder of transformers, owner/name on its hub, an ONNX file, file.py:function, package.module:function, "
            "or a built-in model; in Python also an nn.Module, which is copied and stays as it is, or a ModelSpec.",
            "MODEL",
        ),
    ]
    args: Annotated[
        Any,
        Note(
            "Examples of what the module's forward is called with, by position: tensors, structures of tensors, and "
            "values that are the same in every call. Names and dims are found from them."
        ),
    ] = ()
    kwargs: Annotated[Mapping[str, Any] | None, Note("Examples by name.")] = None
    inputs: Annotated[
        Sequence[str] | Mapping[str, str],
        Option(
            '"x=float32[batch,seq,256]", "mask=int64[batch,seq]:padding", "ids=int64[batch,seq]:high=30522"; '
            '"past.0=float32[batch,heads,past,16]" of a tuple, list or dict; "use_cache=false" for a constant.',
            "--input",
        ),
    ] = ()
    outputs: Annotated[
        Sequence[str], Option("An output to keep; several allowed; default: all.", "--outputs", metavar="NAME")
    ] = ()
    dims: Annotated[
        Sequence[str] | Mapping[str, Any],
        Option(
            'Smallest, usual and largest size of a dim, "seq=1:128:512"; a fourth number is the step of its sizes.',
            "--dim",
        ),
    ] = ()
    dynamic_shapes: Annotated[
        Any, Note("Beside examples, which dims are dynamic, as torch.export takes it; None = all that can be.")
    ] = None
    trust_remote_code: Annotated[
        bool,
        Option(
            "Run the Python code that an hf: model's config.json names, its own or another repository's. Without this "
            "option, a model that needs such code is refused."
        ),
    ] = False
    task: Annotated[
        str,
        Option(
            "The head of an hf: model: text-classification, fill-mask, ...; default: the checkpoint's own.",
            metavar="NAME",
        ),
    ] = ""
    part: Annotated[
        str,
        Option(
            "A part of an hf: model: encoder, decoder, encoder-with-past, text, vision, audio, video, or a way of "
            "a Router of sentence-transformers, such as query; default: all.",
            metavar="NAME",
        ),
    ] = ""
    with_past: Annotated[
        bool, Option("A decoder of hf: with its cache of keys and values, which `generate` runs token by token.")
    ] = False
    examples: Annotated[
        Path | None,
        Option(
            "An .npz with an array for each argument of the forward, by which inputs and dims are found.",
            metavar="FILE",
        ),
    ] = None

    def __post_init__(self) -> None:
        """Writes a SPEC in full. Raises UsageError where `with_past` is given beside a part."""
        if isinstance(self.model, str):
            object.__setattr__(self, "model", with_prefix(self.model))
        if self.with_past and self.part not in ("", PAST):
            raise UsageError(
                f"got part={self.part!r} and with_past; the cache is of a whole decoder.", hint="Leave out one."
            )

    @cached_property
    def _named(self) -> dict[str, Any]:
        """The examples by name."""
        return {**(read_feeds(self.examples) if self.examples is not None else {}), **(self.kwargs or {})}

    @property
    def _part(self) -> str:
        return PAST if self.with_past else self.part

    @property
    def name(self) -> str:
        """What messages call it."""
        if isinstance(self.model, str):
            return self.model
        return self.model.name if isinstance(self.model, ModelSpec) else type(self.model).__name__

    @property
    def file_of_onnx(self) -> str | None:
        """The SPEC of a file of ONNX; None for any other model."""
        is_file = isinstance(self.model, str) and is_onnx(self.model) and not self._examples
        return str(self.model) if is_file else None

    def as_json(self) -> dict[str, Any]:
        """The arguments for a file of ONNX, for another process."""
        return {
            "model": self.model,
            "inputs": _input_texts(self.inputs),
            "outputs": listed(self.outputs),
            "dims": listed(self.dims),
            "trust_remote_code": self.trust_remote_code,
            "task": self.task,
            "part": self._part,
        }

    def check_declarations(self) -> None:
        """Raises UsageError for declarations that cannot be read, before anything slow is imported."""
        inputs, dims = _input_texts(self.inputs), listed(self.dims)
        if self._examples:  # which may have further dims, as a graph may
            parse_beside(inputs)
        elif inputs and not (isinstance(self.model, str) and is_onnx(self.model)):
            declarations(inputs, dims)
        else:
            parse_leaves(inputs)
        parse_dims(dims)

    def code(self) -> Code | None:
        """The code that loading a SPEC runs; None if there is none."""
        source = self._source
        return code_of(source) if source is not None and runs_code(source) else None

    @property
    def _source(self) -> Source | None:
        """A SPEC and what is given beside it; None of a module or a ModelSpec."""
        if not isinstance(self.model, str):
            return None
        return Source(
            self.model,
            _input_texts(self.inputs),
            listed(self.dims),
            trust_remote_code=self.trust_remote_code,
            outputs=listed(self.outputs),
            task=self.task,
            part=self._part,
        )

    def spec(self, progress: Progress = lambda message: None) -> ModelSpec:
        """The model.

        Raises:
            UsageError, SpecError: as `export`.
            ExportError: torch cannot trace the module on the examples.
        """
        from torch import nn

        inputs, dims, outputs = _input_texts(self.inputs), listed(self.dims), listed(self.outputs)
        for option, value in (("task", self.task), ("part", self._part)):
            if value and not isinstance(self.model, str):
                raise UsageError(f"{self.name} is not an hf: model; {option}={value!r} does not apply.")
        if isinstance(self.model, ModelSpec):
            return self._of_spec(self.model, dims, outputs)
        if (source := self._source) is not None:
            notes, fixable, seen = tuple[str, ...](), tuple[Dim, ...](), dict[str, int]()
            if self._examples:
                with reading(source.text):
                    module = self._made(source)
                arguments, ranges, notes, fixable, seen = self._from_examples(module, inputs, dims, progress)
                # As later commands load it, from the manifest.
                inputs, dims = tuple(map(text_of, arguments.leaves)), tuple(map(str, ranges.values()))
                source = dataclasses.replace(source, inputs=inputs, dims=dims)
            spec = load(source)
            return dataclasses.replace(spec, notes=(*spec.notes, *notes), fixable=(*spec.fixable, *fixable), seen=seen)
        if not isinstance(self.model, nn.Module):
            raise UsageError(
                f"got {type(self.model).__name__} for the model; expected a torch.nn.Module, a SPEC or a ModelSpec.",
                hint="Give a module whose forward calls it." if callable(self.model) else "",
            )
        if not inputs and not self._examples:
            declared = likely(kept_copy(self.model))
            names = [text.partition("=")[0] for text in declared]
            args = f"({names[0]},)" if len(names) == 1 else f"({', '.join(names)})"
            raise UsageError(
                f"the inputs of {self.name} are not known.",
                hint=f"Give examples, args={args}, or declare them: {advised('inputs', declared)}",
            )
        module, notes, fixable = kept_copy(self.model), tuple[str, ...](), tuple[Dim, ...]()
        seen = {}
        if self._examples:
            arguments, ranges, notes, fixable, seen = self._from_examples(own_copy(module), inputs, dims, progress)
        else:
            arguments, ranges = declared_arguments(self.name, module, inputs, dims)
        return memory_spec(module, arguments, ranges, outputs, precision_of(self.model), notes, fixable, seen)

    @property
    def _examples(self) -> bool:
        return bool(self._positional) or bool(self._named)

    @property
    def _positional(self) -> tuple[Any, ...]:
        """The examples by position. One that is no tuple or list is the only one."""
        if isinstance(self.args, Mapping):
            raise UsageError(
                f"args: got a dict with {', '.join(map(str, self.args)) or 'nothing'}; expected a tuple.",
                hint="Give names as kwargs={...}; a dict that the forward itself takes as args=({...},).",
            )
        if self.args is None:
            return ()
        return tuple(self.args) if isinstance(self.args, tuple | list) else (self.args,)

    def _of_spec(self, spec: ModelSpec, dims: Sequence[str], outputs: Sequence[str]) -> ModelSpec:
        refuse_inputs(spec.name, _input_texts(self.inputs))
        if self._examples:
            raise UsageError(f"{spec.name} declares its own inputs; examples do not apply.", hint="Leave them out.")
        source = dataclasses.replace(spec.source, dims=tuple(dims), outputs=tuple(outputs))
        alike = dataclasses.replace(narrow(spec, dims), make=seeded(spec.make))
        return hold(dataclasses.replace(with_outputs(alike, outputs), source=source))

    def _made(self, source: Source) -> nn.Module:
        """The plain module that a source names."""
        from torch import nn

        text = source.text
        if text.startswith("hf:") and not source.part:
            from attnport.sources.hf.load import model_of

            found: nn.Module = model_of(source)
            return found
        module = factory_of(text)() if ":" in text and not text.startswith(("hf:", "onnx:")) else None
        if not isinstance(module, nn.Module):
            raise UsageError(f"{text} declares its own inputs; examples do not apply.", hint="Leave them out.")
        return in_float32(plain_module(text, module)).eval()

    def _from_examples(
        self, module: nn.Module, inputs: Sequence[str], dims: Sequence[str], progress: Progress
    ) -> tuple[Arguments, dict[str, Dim], tuple[str, ...], tuple[Dim, ...], dict[str, int]]:
        """What the forward is called with by the examples, the ranges of dims, what users are told, the dims that
        torch's trace freezes or limits, with the sizes that it takes, for the case that no graph has more, and the
        sizes of the examples.

        Dims are first those that torch's trace keeps dynamic; then runs of the module at other sizes decide. Dims get
        names, inputs get marks and, if they need them, the values of their examples. Further runs give the ranges.
        """
        from attnport.exporter.capture import refuse_frozen
        from attnport.sources.moving import Trials, from_zero, frozen, grown, hiding, immovable, in_truth, joined, ones

        arguments, examples = of_examples(module, self._positional, self._named)
        beside = parse_beside(inputs)
        unknown = [name for name in beside if name not in examples]
        if unknown:
            raise UsageError(
                f"inputs: got {unknown[0]}; the examples have {', '.join(examples) or 'no tensor'}.",
                hint="Declare what is among the examples, or leave the examples out.",
            )
        progress("finding the dims that can be dynamic")
        call = Observed(module, arguments, listed(self.outputs), self.name)
        hint = "Give examples with which the module runs."
        names = list(called(self.name, "the examples", hint, lambda: call(**examples)))
        declared = {name: each.declared.spec.dims for name, each in beside.items() if each.declared}
        refuse_other_sizes(declared, examples)
        chosen = _chosen(self.dynamic_shapes, arguments, examples)
        kept = [axis for axis, dim in chosen.items() if isinstance(dim, int)]
        kept += [(name, axis) for name, own in declared.items() for axis, dim in enumerate(own) if isinstance(dim, int)]
        tensors = grown(Trials(examples, call), kept)
        trials = hiding(Trials(tensors, call))
        highs = called(self.name, "the examples", hint, lambda: vocabularies(call, tensors))
        known = immovable(trials, [*kept, *chosen])
        traced = _traced(adapted(module, arguments, names), tensors, chosen, [*kept, *known])
        padding = [*_named_masks(tensors, beside), *(name for name in ones(tensors) if tensors[name].dim() == 2)]
        sizes, limited, notes = in_truth(joined(traced, trials, padding), trials, kept, known)
        sizes = joined(sizes, trials, padding)  # those that torch froze may have to be equal too
        own = named_dims(from_zero(sizes, examples), tensors, declared)
        arguments = with_dims(arguments, own, highs, beside)
        arguments = with_needed_values(arguments, call, tensors, [name for name in beside if beside[name].forced])
        ranges, start = parse_dims(dims), trials.sizes(own)
        usual = dim_ranges({name: each for name, each in own.items() if name not in declared}, tensors, ranges)
        tried, limits = found_ranges(
            list(start), ranges, lambda sizes: trials.shapes(own, sizes) is not None, start=start, limits=usual
        )
        if frozen(sizes) and not _by_runs(tensors):
            specs = tuple(held.spec for held in arguments.inputs)
            masks = tuple(held.mask for held in arguments.inputs if held.mask)
            # The example's sizes may be special: that of a whole table, or the usual one, which has a branch.
            others = {dim.name: size for dim in tried
                      for size in (start[dim.name] + dim.step, start[dim.name] - dim.step)[::-1]
                      if dim.takes(size) and size > 1}  # fmt: skip
            here = tuple(
                dataclasses.replace(dim, opt=start[dim.name]) if dim.takes(start[dim.name]) else dim for dim in tried
            )
            contract = IOContract(specs, (), here, masks)
            refuse_frozen(adapted(module, arguments, names), contract, trials.feeds(own, others))
        further = [dim for dim in tried if dim.name not in ranges]
        froze = {str(getattr(dim, "name", "")) for each in own.values() for dim in each if said_by(dim) == "module"}
        fixable = [Dim(name, *[start[name]] * 3) for name in start if name in froze - set(ranges)]
        as_traced = {dim.name: limited[symbol.name] for name, each in own.items()
                     for dim, symbol in zip(each, sizes[name], strict=True)
                     if isinstance(dim, Symbol) and isinstance(symbol, Symbol) and symbol.name in limited}  # fmt: skip
        fixable += [within(dim, as_traced[dim.name]) for dim in further if dim.name in as_traced]
        told = (*notes, *steps_note(further), *limits)
        return arguments, ranges | {dim.name: dim for dim in further}, told, tuple(fixable), start


PAST = "with-past"


def _input_texts(inputs: Sequence[str] | Mapping[str, str]) -> tuple[str, ...]:
    """Declarations as `--input` takes them, of a list, one text, or a dict by name."""
    if isinstance(inputs, Mapping):
        for name, text in inputs.items():
            if not isinstance(text, str):
                raise UsageError(
                    f"inputs: got {type(text).__name__} for {name}; expected a declaration such as "
                    "'float32[batch,seq,256]'.",
                    hint="Examples are given as args=(...) or kwargs={...}.",
                )
    return listed(inputs)


def listed(value: Sequence[str] | Mapping[str, Any] | None) -> tuple[str, ...]:
    """A list of texts, of one text, a list, or a dict such as `{"seq": (1, 128, 512)}`."""
    if isinstance(value, str):
        return (value,)
    if isinstance(value, Mapping):
        return tuple(
            f"{name}={':'.join(map(str, size)) if isinstance(size, tuple | list) else size}"
            for name, size in value.items()
        )
    return tuple(value or ())


def _traced(
    module: nn.Module,
    tensors: Mapping[str, torch.Tensor],
    chosen: Mapping[Axis, int | Symbol],
    kept: Collection[Axis],
) -> dict[str, tuple[int | Symbol, ...]]:
    """The dims of each input: those chosen, else those that torch finds; all fixed if it cannot trace the module.

    Tracing it for export, which has further ways, then says what is wrong.
    """
    from attnport.exporter.capture import dynamic_dims

    fixed = {*chosen, *kept}
    found: Mapping[str, tuple[int | Symbol, ...]] = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    if len(fixed) < sum(tensor.dim() for tensor in tensors.values()) and not _by_runs(tensors):
        with contextlib.suppress(ExportError):
            found = dynamic_dims(module, tensors, fixed)
    return {name: tuple(chosen.get((name, axis), dim) for axis, dim in enumerate(own)) for name, own in found.items()}


def _named_masks(tensors: Mapping[str, torch.Tensor], beside: Mapping[str, Beside]) -> list[str]:
    """The inputs that are masks of padding by what is declared of them or by their names."""
    return [
        name
        for name, tensor in tensors.items()
        if "padding" in (beside[name].marks if name in beside else ())
        or marks_by_name(name, str(tensor.dtype).removeprefix("torch."), tensor.dim())
    ]


def _by_runs(tensors: Mapping[str, torch.Tensor]) -> bool:
    """Whether runs alone say which dims are dynamic: those of one picture. Of its sides, torch has to think for up to a
    minute, at the sizes of the example and again at those of the export, and small sides limit what it finds."""
    return len(tensors) == 1 and all(tensor.dim() > 3 for tensor in tensors.values())


def _chosen(shapes: Any, arguments: Arguments, examples: Mapping[str, torch.Tensor]) -> dict[Axis, int | Symbol]:
    """The axes of inputs of which `dynamic_shapes` says what they are; others are found."""
    from torch.export import Dim

    found: dict[Axis, int | Symbol] = {}
    parameters = list(arguments.nodes)
    for path, held in arguments.leaves if shapes is not None else ():
        if not isinstance(held, Input):
            continue
        entry = shapes
        for number, part in enumerate(path if path[0] in parameters else (parameters[-1], *path)):
            if isinstance(entry, Mapping):
                entry = entry.get(part, entry.get(int(part)) if part.isdigit() else None)
            elif isinstance(entry, list | tuple):
                at = parameters.index(part) if number == 0 else int(part) if part.isdigit() else len(entry)
                entry = entry[at] if at < len(entry) else None
        name = held.spec.name
        for axis, size in enumerate(examples[name].shape):
            of_axes = entry if isinstance(entry, Mapping) else dict(enumerate(entry or ()))
            dim = of_axes.get(axis)
            if dim is None or dim is Dim.STATIC or isinstance(dim, int):
                found[name, axis] = int(size)
            elif isinstance(dim, Dim) and hasattr(dim, "root"):
                found[name, axis] = Symbol(str(dim.__name__).replace(" ", ""), by="user")
            elif isinstance(dim, Dim):
                largest = int(dim.max) if str(dim.max).isdigit() else None
                found[name, axis] = Symbol(str(dim.__name__), max(1, int(dim.min)), largest, by="user")
            elif dim not in (Dim.AUTO, Dim.DYNAMIC):
                raise UsageError(
                    f"dynamic_shapes of {'.'.join(path)}: got {dim!r}; expected a torch.export.Dim, Dim.AUTO, a size "
                    "or None."
                )
    return found
