"""Exports a torch module to an ONNX graph whose dimensions stay dynamic, and counts its attentions.

Torch's own obstacles to tracing are worked around, and what it refuses is explained. The attentions are counted in the
torch graph, before any ONNX exists, so that recognition can be compared with a number that it did not produce itself.
Of examples, a trace says which dims can be dynamic.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import itertools
import math
import re
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses import FakeTensor
from torch.export.graph_signature import InputKind

from attnport.artifacts import IOContract, SourceAttention, TensorSpec
from attnport.dims import Dim, Symbol
from attnport.errors import ExportError, first_line
from attnport.example_values import example
from attnport.exporter.complex_numbers import split_complex
from attnport.exporter.counting import count_attentions
from attnport.exporter.decomposing import node_by_node, write_out
from attnport.exporter.graph.sizes import settle_sizes
from attnport.exporter.guards import Guard, constants, guards, is_guarded, pinned
from attnport.exporter.multiples import joining, rejoin, split, split_axis, steps_of
from attnport.exporter.naming import name_dims, name_outputs, note_empty, strip
from attnport.exporter.output_sizes import traced_outputs
from attnport.exporter.patching import exact_rules, located, numbers_of_sizes, quiet, sizes_of_values, traceable
from attnport.exporter.portable import name_padded_axes, pair_einsums, write_out_rotary, write_out_spectra
from attnport.exporter.torch_graph import (
    choose_by_masks,
    name_squeezed_axes,
    promote,
    read_in_order,
    settle_dropout,
    share_heads,
    slice_from_the_front,
    slice_splits,
    to_rank_4,
    widen_masks,
)
from attnport.exporter.translations import tables
from attnport.known import Computing, known
from attnport.options import advised
from attnport.patches import Patch, forward_as, patched
from attnport.user_code import place_in_trace, raised_in

if TYPE_CHECKING:
    import onnx_ir as ir


_DECIDED = "decided"
"""The lines of code, in the data beside a torch graph, at which one of two ways was chosen; see `Computing`."""
_OF_SMALL = "of small"
"""In the same data, whether the trace is that of small feeds."""
_AGAIN = "again"
"""In the same data, how the module was traced: a function of a module and feeds, which traces it in the same way."""
_FEW = 16
"""The most numbers of a buffer that may decide sizes, such as a stride."""


def trace(
    module: torch.nn.Module,
    contract: IOContract,
    feeds: dict[str, torch.Tensor],
    small: Callable[[], dict[str, torch.Tensor]] | None = None,
) -> tuple[torch.export.ExportedProgram, tuple[Guard, ...]]:
    """Returns the module as a torch graph in which every named dim is dynamic, and what the graph needs of sizes.

    If torch cannot prove the graph for all sizes of the contract, it is traced again with dims of torch's choice; the
    caller has to try the graph at the sizes of the guards. With steps, which torch cannot be told, that is so at once.

    Args:
        small: Gives feeds for a trace that computes with their values; None = `feeds` are small.

    Raises:
        ExportError: torch cannot trace the module, or a dim froze; the message names the dim, its inputs, and the line
            of code.
    """
    try:
        try:
            if all(dim.step == 1 for dim in contract.dims):
                return _exported(module, feeds, contract, chosen=False), ()
            with patched(located):
                program = _exported(module, feeds, contract, chosen=True)
        except (torch._dynamo.exc.UserError, AssertionError):  # torch asserts that it has words for a guard
            with patched(located):
                program = _exported(module, feeds, contract, chosen=True)
    except Exception as err:  # torch.export raises whatever the module's own code raises under tracing
        # Strict mode takes a value of the example for a constant or a size, so it is no way around such a value.
        by_values = "data-dependent" in str(err)
        for way in [{"computing": True}, {"computing": True, "some": False}] if by_values else [{"strict": True}]:
            if (read := _retraced(module, contract, feeds, **way)) is not None:
                return read, guards(read, contract)
        few = small() if small and by_values else feeds
        if by_values and (read := _retraced(module, contract, few, computing=True, keeping=True, valued=True)):
            read.graph_module.meta[_OF_SMALL] = small is not None
            return read, guards(read, contract)
        lengths = [dim.name for dim in contract.dims if dim.name != "batch"]
        fixed = _one_size(contract, lengths) if _OF_FLOATS in str(err) and lengths else ""
        raise untraceable(err, "torch.export cannot trace the module", fixed) from err
    frozen = constants(program, contract)
    if frozen or pinned(program, contract):
        for way in ({"strict": True}, {"keeping": True}):
            if (read := _retraced(module, contract, feeds, **way)) is not None:
                return read, guards(read, contract)
    if frozen:
        problems = []
        for name, (size, place) in frozen.items():
            inputs = [f"{spec.name!r} (axis {spec.dims.index(name)})" for spec in contract.inputs if name in spec.dims]
            problems.append(
                f"dim {name!r} of input {', '.join(inputs)} froze at the traced size: "
                f"the module's code turns it into the constant {size}{place}"
            )
        advice = _advice(problems[0]) or _USUAL_ADVICE
        raise ExportError(f"{'; '.join(problems)}.", hint=f"{advice} {_one_size(contract, frozen)}", dims=tuple(frozen))
    return program, guards(program, contract)


def _retraced(
    module: torch.nn.Module,
    contract: IOContract,
    feeds: dict[str, torch.Tensor],
    *,
    strict: bool = False,
    computing: bool = False,
    some: bool = True,
    keeping: bool = False,
    valued: bool = False,
) -> torch.export.ExportedProgram | None:
    """Traces the module in another way; None if that fails too, or if the graph is right at one size alone.

    Both ways come last: reading the code takes fewer modules than running it, and computing makes constants of buffers.

    Args:
        strict: torch reads the code, in which `len(x)` and `int(x.shape[i])` stay sizes.
        computing: What follows from numbers alone is computed meanwhile, so that it can decide sizes; see `Computing`.
        some: Then also: what `any` gives in a condition, and `all` does not.
        keeping: `int`, `float` and `len` keep sizes; see `numbers_of_sizes`.
        valued: Operators ask the feeds' values for what they need of sizes that these give; see `sizes_of_values`.
    """
    mode = Computing(some)

    def traced(module: torch.nn.Module, feeds: dict[str, torch.Tensor]) -> torch.export.ExportedProgram:
        tables: list[Callable[[], Iterable[Patch]]] = [lambda: numbers_of_sizes(module)] if keeping else []
        tables += [lambda: sizes_of_values(mode.decided)] if valued else []
        values = torch._functorch.config.patch(fake_tensor_propagate_real_tensors=valued)
        with values, patched(*tables), _computing(module, mode) if computing else contextlib.nullcontext():
            program = _exported(module, feeds, contract, chosen=True, strict=strict)
        if valued:  # what is computed in the graph from now on has no example
            fake = next(value for node in program.graph.nodes if isinstance(value := node.meta.get("val"), FakeTensor))
            fake.fake_mode.propagate_real_tensors = False
        return program

    try:
        with patched(located):
            program = traced(module, feeds)
        program.graph_module.meta[_AGAIN] = traced
        program.graph_module.meta[_DECIDED] = tuple(mode.decided)
    except Exception:  # torch raises errors of any type; the first try's is the one to tell
        return None
    return None if constants(program, contract) or pinned(program, contract) else program


@contextlib.contextmanager
def _computing(module: torch.nn.Module, mode: Computing) -> Iterator[None]:
    """Has a module's forward compute what follows from numbers, and from its buffers of whole numbers, alone."""
    forward = module.forward

    def computed(*args: Any, **kwargs: Any) -> Any:
        with mode:
            return forward(*args, **kwargs)

    taken = []
    for part in module.modules():
        for name, buffer in list(part._buffers.items()):
            if buffer is not None and not buffer.is_floating_point() and buffer.numel() <= _FEW:
                taken.append((part, name, buffer))
                del part._buffers[name]
                vars(part)[name] = known(buffer)
    try:
        with patched(lambda: [forward_as(module, computed)]):
            yield
    finally:
        for part, name, buffer in taken:
            del vars(part)[name]
            part._buffers[name] = buffer


def _exported(
    module: torch.nn.Module, feeds: dict[str, torch.Tensor], contract: IOContract, *, chosen: bool, strict: bool = False
) -> torch.export.ExportedProgram:
    """The trace with dims of the contract's ranges, or `chosen` by torch."""
    steps = steps_of(contract, feeds)
    divisors = {dim: step for spec in contract.inputs for axis, step in steps.get(spec.name, {}).items()
                for dim in (spec.dims[axis],)}  # fmt: skip
    dims = {dim.name: _asked(dim, divisors.get(dim.name, 1), chosen) for dim in contract.dims}
    dynamic = {
        # torch finds out that a size is an expression of others.
        spec.name: {
            split_axis(steps, spec.name, axis): dims.get(dim, torch.export.Dim.AUTO)
            for axis, dim in enumerate(spec.dims)
            if isinstance(dim, str)
        }
        for spec in contract.inputs
    }
    with torch.no_grad(), traceable(module), joining(module, steps) if steps else contextlib.nullcontext():
        named = split(feeds, steps)
        program = torch.export.export(module, (), kwargs=named, dynamic_shapes=dynamic, strict=strict)
        if any("functorch" in getattr(node.target, "__module__", "") for node in program.graph.nodes):
            program = program.run_decompositions({})  # a vmap becomes operators of one rank more
    if steps:
        rejoin(program, steps, feeds)
    slice_from_the_front(program, functools.partial(is_guarded, contract=contract, program=program))
    program.graph_module.meta[_AGAIN] = functools.partial(_exported, contract=contract, chosen=chosen, strict=strict)
    return program


def _asked(dim: Dim, step: int, chosen: bool) -> Any:
    """What torch is told of a dim that is traced as multiples of a step."""
    if dim.min == dim.max:
        return torch.export.Dim.STATIC
    if not chosen:
        return torch.export.Dim(dim.name, min=dim.min // step, max=dim.max // step)
    if dim.max < 3 * dim.step:  # of a range of two patches, torch would take those that are not one for two
        return torch.export.Dim.AUTO
    return torch.export.Dim.AUTO(min=dim.min // step, max=dim.max // step)


def untraceable(err: Exception, what: str, hint: str = "") -> ExportError:
    """What torch raised in a trace, told with the line of the module's code and what to write in its place.

    Args:
        err: What torch raised.
        what: What failed.
        hint: What helps where nothing is known of the cause, or beside that; "" = torch's own message.
    """
    place, said = raised_in(err), str(err)
    floats = _OF_FLOATS in said
    reads = not floats and (
        type(err).__name__ == "DataDependentOutputException"
        or any(sign in said for sign in ("data-dependent", "FakeTensor", ".numpy()"))
    )
    cause = f"{type(err).__name__}: {first_line(err)}"
    if floats:
        cause = "its code decides by a float of a size, as a logarithm, and a graph has no such choice"
    if reads:
        cause = "its code needs the values of a tensor to go on, which a graph does not have"
    advice = _advice(place if reads else f"{cause}{place}", _VALUES if reads else _SIZES) or (_WHERE if reads else "")
    last = hint or "Run with --traceback for torch's full message."
    return ExportError(f"{what}: {cause}{place}", hint=f"{advice} {hint}".strip() if floats else advice or last)


_OF_FLOATS = "zuf"
"""How torch names a float of sizes that it cannot compute by, in its messages."""
_USUAL_ADVICE = "Look for int(x.shape[i]), x.view with a literal size, or Python control flow on a size."
_WHERE = "Compute both ways and choose with torch.where(condition, one, other), or multiply by a mask."
_MASK = "For a length, keep the whole size: torch.arange(x.shape[1]) < length is a mask, for torch.where."
_VALUES = (
    (
        r"pack_padded_sequence|pad_packed_sequence",
        "Give the padded batch to the recurrent layer as it is; what it gives behind an item's end can be ignored.",
    ),
    (r"\bassert\b", "Leave the check out of the export: `if not torch.compiler.is_exporting():` before the assert."),
    (r"\bwhile\b", f"A graph has no loop of as many steps as values say; take a fixed number. {_WHERE}"),
    (r"\b(if|elif)\b", _WHERE),
    (
        r"\.(item|tolist|numpy)\(",
        f"A number that is read out of a tensor is none in a graph; keep it a tensor. {_MASK}",
    ),
    (r"\b(int|float|bool|range)\(", f"int(), float() and range() need a number; keep it a tensor. {_MASK}"),
)
"""What to write in place of code that reads values, by what stands in it."""
_SIZES = (
    (r"unhashable", "A size cannot be a key, as of a dict or lru_cache; compute the table in every call."),
    (r"\b(max|min|sum)\(\w+\)", f"Python's max, min and sum go through a tensor; take torch.amax, amin, sum. {_MASK}"),
    (r"\.item\(|\.tolist\(", "A number read out of a tensor is a constant of the graph; keep it a tensor."),
    (r"\bint\(|\bfloat\(|\bround\(|math\.", "Use x.shape[i] as it is, with + - * // alone: int() and math freeze it."),
    (r"\.(view|reshape|expand|repeat|unflatten)\(", "Write -1 or x.shape[i] in place of a literal size."),
    (r"\brange\(|\bfor\b", "A Python loop over a size is unrolled; write it with tensor operations."),
    (r"\bif\b|\bwhile\b|\bassert\b", "Python cannot branch on a tensor in a graph; use torch.where."),
)
"""The same of code that depends on sizes."""


def _one_size(contract: IOContract, frozen: Collection[str]) -> str:
    """What to declare where one size is enough."""
    usual = [contract.dim(name) for name in frozen]
    return f"Where one size is enough: {advised('dims', [Dim(dim.name, *[dim.opt] * 3) for dim in usual])}"


def _advice(problem: str, table: Sequence[tuple[str, str]] = _SIZES) -> str:
    """What to write in place of the code that a message shows, or ""."""
    return next((advice for pattern, advice in table if re.search(pattern, problem)), "")


OPSET = 23
_LARGE = (521, 523, 541, 547, 557, 563, 569, 571, 577, 587)
_MIDDLE = (11, 137, 139, 149, 151, 157, 163, 167, 173, 179)
_SMALL = (5, 37, 41, 43, 47, 53, 59, 61, 67, 71)
"""Sizes to trace at where inputs of the large ones have more than `_ELEMENTS` elements; the first dim counts items."""
_ELEMENTS = 1 << 28


@dataclass(frozen=True)
class Trace:
    """A trace as torch made it, before the graph is rewritten for ONNX.

    Attributes:
        graph: With a placeholder for each weight and each input.
        weights: The tensors behind the first placeholders, as they are named in the graph; None where one is no tensor.
        inputs: The names of the inputs, in the order of their placeholders.
        again: Traces another module of the same code in the same way, in float64 if that is its type.
    """

    graph: torch.fx.Graph
    weights: Mapping[str, torch.Tensor | None]
    inputs: tuple[str, ...]
    again: Callable[[torch.nn.Module], Trace]

    def without(self, names: Collection[str], outputs: Sequence[TensorSpec]) -> Trace:
        """The trace without outputs of these names, of a module that drops them itself."""
        graph = copy.deepcopy(self.graph)
        output = graph.output_node()
        (values,) = output.args
        assert isinstance(values, Sequence)
        output.args = (tuple(value for value, spec in zip(values, outputs, strict=True) if spec.name not in names),)
        graph.eliminate_dead_code()

        def again(module: torch.nn.Module) -> Trace:
            trace = self.again(module)
            trace.graph.eliminate_dead_code()
            return trace

        return dataclasses.replace(self, graph=graph, again=again)


@dataclass(frozen=True)
class Capture:
    """An exported graph, and what was found in the torch graph before: attentions, sizes of outputs, and guards.

    torch did not prove a graph with guards for all sizes: the caller has to compare it at theirs with the module.

    Attributes:
        reads: The first line of code that makes sizes of values, as ` (model.py, line 7: x[mask])`; "" if none does.
        decided: Lines of code that ask for the values of a mask, and which of their two ways the graph has.
        trace: What torch traced; None of a file of ONNX.
        written: The buffers that the module writes to in its forward.
    """

    model: ir.Model
    attentions: tuple[SourceAttention, ...]
    outputs: tuple[TensorSpec, ...]
    guards: tuple[Guard, ...] = ()
    reads: str = ""
    decided: tuple[str, ...] = ()
    trace: Trace | None = None
    written: tuple[str, ...] = ()


def traced_sizes(io_contract: IOContract) -> dict[str, int]:
    """Sizes to trace at: large and odd ones, of which no part that the code computes is 0 or 1 (torch would freeze it).

    Halves, patches and windows of a small size are: 11 pixels have one patch of 8, and 137 positions one chunk of 256.
    A trace computes nothing, so that large sizes cost no time, as long as there is memory for the inputs. The largest
    size of a dim may be special, such as that of a whole table.
    """
    sizes: dict[str, int] = {}
    for large in (_LARGE, _MIDDLE, _SMALL):
        sizes = _distinct(io_contract, large)
        if sum(math.prod(spec.shape(sizes)) for spec in io_contract.inputs) <= _ELEMENTS:
            break
    return sizes


def _distinct(io_contract: IOContract, primes: tuple[int, ...]) -> dict[str, int]:
    """Different sizes for all dims, about as large as these primes."""
    sizes: dict[str, int] = {}
    for dim, large in zip(io_contract.dims, itertools.chain(primes, itertools.count(primes[-1] + 2, 2)), strict=False):
        wanted = large if dim.opt < large else large + dim.opt  # a second of sound has 16000 samples
        most = dim.max - dim.step if dim.max >= 3 * dim.step else dim.max  # one step is one patch
        size = max(dim.at_least(min(wanted, most)), min(2, dim.max))
        while size in sizes.values() and size - dim.step >= max(dim.min, 2 * dim.step):
            size -= dim.step
        sizes[dim.name] = size
    return sizes


def example_tensors(contract: IOContract, sizes: dict[str, int]) -> dict[str, torch.Tensor]:
    """A tensor for each input: masks that hide nothing, whole lengths, small token ids, normal floats, or an example's;
    the same each time."""
    named = contract.given()  # without another name, lengths count the dim beside that of items
    masks = {
        mask.input: sizes[mask.keys or named[-1]] if mask.carries == "lengths" else int(mask.polarity != "hide")
        for mask in contract.masks
    }
    return {
        spec.name: torch.full(spec.shape(sizes), masks[spec.name], dtype=getattr(torch, spec.dtype))
        if spec.name in masks
        else example(spec, sizes, contract.examples.get(spec.name, ""), least=None if spec.dtype == "bool" else 0)
        for spec in contract.inputs
    }


def capture(module: torch.nn.Module, contract: IOContract, *, opset: int = OPSET, observed: bool = False) -> Capture:
    """Exports `module` to ONNX with every named dim dynamic.

    Args:
        module: In eval mode; called with the contract's inputs by keyword.
        opset: 23 or later, so that scaled_dot_product_attention stays one `Attention` node.
        observed: The sizes of the contract's outputs come from runs; those of the torch graph replace them.

    Raises:
        ExportError: torch cannot export the module, or a dim froze (the message names the dim and its inputs).
    """
    exported = _graph_of(module, contract, opset)
    model: ir.Model = exported.onnx.model
    if len(model.graph.outputs) != len(contract.outputs):
        raise ExportError(
            f"the module returns {len(model.graph.outputs)} tensors; "
            f"{len(contract.outputs)} are declared: {', '.join(map(str, contract.outputs))}.",
            hint="Return a tensor or a flat tuple of tensors, one for each declared output.",
        )
    outputs = exported.outputs if observed else contract.outputs
    _register_constants(model)
    _free_names(model)
    write_out_rotary(model)
    write_out_spectra(model)
    pair_einsums(model)
    name_padded_axes(model)
    sized = dataclasses.replace(contract, outputs=outputs)
    name_dims(model, sized)
    note_empty(model, sized)
    settle_sizes(model)
    name_outputs(model, sized)
    strip(model)
    reads = _reads_values(exported.onnx.exported_program)
    found = (exported.guards, reads, exported.decided, exported.trace, exported.written)
    return Capture(model, exported.attentions, outputs, *found)


def _register_constants(model: ir.Model) -> None:
    """Adds constants that onnxscript forgot: where a tensor is clipped twice, its rules name both bounds alike."""
    initializers = model.graph.initializers
    for node in model.graph.all_nodes():
        for value in node.inputs:
            if value is None or value.const_value is None or value.producer() or value.is_initializer():
                continue
            while value.name in initializers:
                value.name = f"{value.name}_"
            initializers.add(value)


def _free_names(model: ir.Model) -> None:
    """Renames weights that are called as an output is, in place: a graph has each name once."""
    outputs = {value.name: value for value in model.graph.outputs}
    for name, weight in list(model.graph.initializers.items()):
        if name in outputs and outputs[name] is not weight:
            del model.graph.initializers[name]
            weight.name = f"{name}/weight"
            model.graph.register_initializer(weight)


def named_program(module: torch.nn.Module, contract: IOContract) -> torch.export.ExportedProgram:
    """The torch graph behind an export; its nodes have the names of the exported graph's values.

    Args:
        module: As for `capture`; one cast to half precision is traced with feeds in half precision.

    Raises:
        ExportError: as `capture`.
    """
    program = _graph_of(module, contract, OPSET).onnx.exported_program
    if program is None:
        raise ExportError("torch.onnx kept no torch graph.", hint="Use a version of torch as in constraints.txt.")
    return program


def _traced(
    module: torch.nn.Module, contract: IOContract
) -> tuple[torch.export.ExportedProgram, tuple[Guard, ...], dict[str, int]]:
    """The trace, and the sizes that it was made at: others if the usual ones happen to be special. 96 frames are two
    whole chunks of 48, and a graph that is traced there lacks the padding of any other number."""
    sizes = traced_sizes(contract)
    small = _distinct(contract, _SMALL)
    given = _example_feeds(module, contract, sizes)
    program, found = trace(module, contract, given, functools.partial(_example_feeds, module, contract, small))
    if program.graph_module.meta.get(_OF_SMALL):
        return program, found, small
    for others in _beside(contract, sizes, found):
        again = _again(program, module, _example_feeds(module, contract, sizes | others))
        if again is None or constants(again, contract) or pinned(again, contract):
            continue
        still = guards(again, contract)
        if not any(guard.special for guard in still):
            return again, still, sizes | others
    return program, found, sizes


def _again(
    program: torch.export.ExportedProgram, module: torch.nn.Module, feeds: dict[str, torch.Tensor]
) -> torch.export.ExportedProgram | None:
    """A trace with other feeds, in the way in which the program was traced; None if that fails."""
    with contextlib.suppress(Exception), patched(located):  # torch raises errors of any type
        again: torch.export.ExportedProgram = program.graph_module.meta[_AGAIN](module, feeds)
        return again
    return None


def _kept(program: torch.export.ExportedProgram, contract: IOContract, sizes: dict[str, int]) -> Trace:
    """A trace that was made at these sizes."""
    weights = {
        spec.arg.name: held if isinstance(held := _held(program, spec.target), torch.Tensor) else None
        for spec in program.graph_signature.input_specs
        if spec.kind != InputKind.USER_INPUT
    }
    called_with = program.call_spec.in_spec
    inputs = tuple(map(str, called_with.child(1).context)) if called_with is not None else ()
    traced = program.graph_module.meta[_AGAIN]

    def again(module: torch.nn.Module) -> Trace:
        with quiet(), torch.no_grad():
            feeds = _cast(example_tensors(contract, sizes), torch.float64)
            return _kept(traced(module, feeds), contract, sizes)

    return Trace(_without_regions(program.graph_module), weights, inputs, again)


def _without_regions(module: torch.fx.GraphModule) -> torch.fx.Graph:
    """A copy of a graph in which regions without gradients, and those where autocast is off, are no graphs of their
    own: they compute what is in them."""
    graph = copy.deepcopy(module.graph)
    regions = torch.ops.higher_order
    for node in list(graph.nodes):
        if node.target is regions.wrap_with_set_grad_enabled:
            _, body, *given = node.args
        elif node.target is regions.wrap_with_autocast and not node.args[2]:
            _, _, _, _, body, *given = node.args
        else:
            continue
        region = module.get_submodule(str(body.target))
        assert isinstance(region, torch.fx.GraphModule)
        inner = _without_regions(region)
        taken = dict(zip(inner.find_nodes(op="placeholder"), given, strict=True))
        with graph.inserting_before(node):
            results: Any = graph.graph_copy(inner, taken)
        for part in list(node.users):
            part.replace_all_uses_with(results[part.args[1]])
            graph.erase_node(part)
        graph.erase_node(node)
        if not body.users:
            graph.erase_node(body)
    return graph


def _held(program: torch.export.ExportedProgram, name: str | None) -> Any:
    """A weight, a buffer or a constant of a program."""
    found = program.state_dict.get(name) if name in program.state_dict else None
    return program.constants.get(str(name)) if found is None else found


def _beside(contract: IOContract, sizes: Mapping[str, int], guards: Sequence[Guard]) -> Iterator[dict[str, int]]:
    """Other sizes where some are special: one step less, and the smallest at which the first equality is false."""
    special = [guard for guard in guards if guard.special and min(guard.sizes.values()) > 1]
    names = {name for guard in special for name in guard.sizes}
    less = {dim.name: sizes[dim.name] - dim.step for dim in contract.dims if dim.name in names}
    for others in (less, *(dict(guard.sizes) for guard in special[:1])):
        if others and all(others[dim.name] >= max(dim.min, 2) for dim in contract.dims if dim.name in others):
            yield others


def _example_feeds(module: torch.nn.Module, contract: IOContract, sizes: dict[str, int]) -> dict[str, torch.Tensor]:
    """Example tensors at these sizes, in half precision for a module that is."""
    feeds = example_tensors(contract, sizes)
    narrow = next(
        (parameter.dtype for parameter in module.parameters() if parameter.dtype in (torch.float16, torch.bfloat16)),
        None,
    )
    return feeds if narrow is None else _cast(feeds, narrow)


def _cast(feeds: Mapping[str, torch.Tensor], dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """The feeds with those of floating point in another type."""
    return {name: feed.to(dtype) if feed.is_floating_point() else feed for name, feed in feeds.items()}


def _refuse_flex_attention(program: torch.export.ExportedProgram) -> None:
    """Raises ExportError for a call of `flex_attention`: neither torch.onnx nor ONNX has it."""
    flex = next(
        (node for node in program.graph.nodes if getattr(node.target, "__name__", "") == "flex_attention"), None
    )
    if flex is None:
        return
    place, after = "", list(flex.users)  # torch writes code of its own around the call, and keeps no line of the user's
    while after and not place:
        place = _place_of_node(after[0])
        after = [*after[1:], *after[0].users]
    used = f"; its result is used in {place[2:-1]}" if place else ""
    raise ExportError(
        f"the module calls flex_attention, which has no form in ONNX{used}.",
        hint="Call scaled_dot_product_attention(q, k, v, attn_mask=mask) there. In place of a block mask, mask is a "
        "bool tensor [batch, heads, queries, keys], True where mask_mod keeps a key; in place of a score_mod that "
        "adds, the float tensor that it adds. Another score_mod is written out: "
        "softmax(score_mod(q @ k.mT * scale)) @ v.",
    )


def _without_dead_code(graph: torch.fx.Graph) -> None:
    """Removes what no output needs: it is no part of the model."""
    for node in graph.nodes:
        for taken in node.all_input_nodes:
            taken.users.setdefault(node)  # torch 2.13 forgets some, and then fails to remove the node
    graph.eliminate_dead_code(_has_effect)


def _has_effect(node: torch.fx.Node) -> bool:
    """Whether a node does more than give a result: torch itself takes attention for such a node, as it may draw."""
    schema = getattr(node.target, "_schema", None)
    if schema is None or node.op != "call_function":
        return node.op in ("placeholder", "output")  # no calls, but the graph needs them
    return schema.is_mutable or (not schema.returns and schema.name != "aten::_assert_tensor_metadata")


@dataclass(frozen=True)
class _Exported:
    """What `Capture` has, before the graph's values have the contract's names."""

    onnx: torch.onnx.ONNXProgram
    attentions: tuple[SourceAttention, ...]
    outputs: tuple[TensorSpec, ...]
    guards: tuple[Guard, ...]
    decided: tuple[str, ...]
    trace: Trace
    written: tuple[str, ...]


def _graph_of(module: torch.nn.Module, contract: IOContract, opset: int) -> _Exported:
    with quiet(), torch.no_grad():
        program, guards, sizes = _traced(module, contract)
        decided = program.graph_module.meta.get(_DECIDED, ())
        trace = _kept(program, contract, sizes)
        _refuse_flex_attention(program)
        _without_dead_code(program.graph)
        write_out(program)
        settle_dropout(program)
        choose_by_masks(program)
        attentions = count_attentions(program.graph_module)
        outputs = traced_outputs(program, contract)
        # What is known of a node's layout is no longer true where pairs are computed: torch traces such a program anew.
        decomposing = () if split_complex(program) else (node_by_node,)
        to_rank_4(program)
        share_heads(program)
        widen_masks(program)
        name_squeezed_axes(program)
        promote(program)
        slice_splits(program)
        read_in_order(program)
        try:
            with patched(exact_rules, *decomposing):
                exported = torch.onnx.export(
                    program,
                    opset_version=opset,
                    verbose=False,
                    optimize=True,
                    input_names=[spec.name for spec in contract.inputs],
                    output_names=[spec.name for spec in contract.outputs],
                    custom_translation_table=tables(),
                )
        except torch.onnx.OnnxExporterError as err:
            raise ExportError(
                f"torch.onnx cannot express the module: {_root(err)}",
                hint="Write that line with operators that ONNX has, or compute it before the module and give what it "
                "is as an input.",
            ) from err
        except Exception as err:  # the exporter's decompositions raise errors of any type
            raise ExportError(
                f"torch.onnx cannot express the module: {type(err).__name__}: {first_line(err)}",
                hint="Run with --traceback for torch's full message.",
            ) from err
    if exported is None:
        raise ExportError("torch.onnx returned no model.")
    changed = exported.exported_program.graph_signature.buffers_to_mutate if exported.exported_program else {}
    return _Exported(exported, attentions, outputs, guards, decided, trace, tuple(sorted(set(changed.values()))))


def _root(err: BaseException) -> str:
    """The operator that failed, the line of code that it is from, and the first cause, which the exporter wraps in
    several errors with advice."""
    cause: BaseException = err
    node: torch.fx.Node | None = None
    while cause.__cause__ is not None:
        for frame, _ in traceback.walk_tb(cause.__traceback__):
            node = next((each for each in frame.f_locals.values() if isinstance(each, torch.fx.Node)), node)
        cause = cause.__cause__
    if node is None:
        return first_line(cause)
    why = "ONNX has no operator for it" if "No ONNX function found" in str(cause) else first_line(cause)
    return f"torch.ops.{node.target}{_place_of_node(node)}: {why}"


def _reads_values(program: torch.export.ExportedProgram | None) -> str:
    nodes = program.graph.nodes if program is not None else ()
    return next((_place_of_node(node) for node in nodes if node.meta.get("unbacked_bindings")), "")


def _place_of_node(node: torch.fx.Node) -> str:
    """The line of code that a node is from, as ` (model.py, line 7: code)`, or ""."""
    return place_in_trace(node.meta.get("stack_trace") or "")


def dynamic_dims(
    module: torch.nn.Module, feeds: Mapping[str, torch.Tensor], fixed: Collection[tuple[str, int]] = ()
) -> dict[str, tuple[Symbol | int, ...]]:
    """For each input, its dims: symbols, and the sizes of those that the module's code turns into constants.

    Args:
        module: Takes the feeds by keyword.
        feeds: Examples. torch makes constants of sizes of 0 and 1.
        fixed: Inputs and axes that are not to be dynamic.

    Raises:
        ExportError: torch cannot trace the module.
    """
    shapes = {
        name: {
            axis: torch.export.Dim.STATIC if (name, axis) in fixed else torch.export.Dim.AUTO
            for axis in range(feed.dim())
        }
        for name, feed in feeds.items()
    }
    try:
        with quiet(), torch.no_grad(), traceable(module):
            program = torch.export.export(module, (), kwargs=dict(feeds), dynamic_shapes=shapes, strict=False)
    except Exception as err:  # torch.export raises whatever the module's own code raises under tracing
        hint = "Declare the inputs instead, with the dims that vary: inputs={'x': 'float32[batch,seq,256]'}."
        raise untraceable(err, "torch.export cannot trace the module on the examples", hint) from err
    ranges = {str(symbol): found for symbol, found in program.range_constraints.items()}
    placed = {node.name: node.meta.get("val") for node in program.graph.nodes if node.op == "placeholder"}
    dims: dict[str, tuple[Symbol | int, ...]] = {}
    for name, user in zip(feeds, program.graph_signature.user_inputs, strict=True):
        value = placed.get(str(user))
        shape = value.shape if isinstance(value, torch.Tensor) else feeds[name].shape
        dims[name] = tuple(
            # A symbol that turned out to have one value prints as that.
            feeds[name].shape[axis] if str(size).isdigit() else _symbol(str(size), ranges)
            for axis, size in enumerate(shape)
        )
    return dims


def refuse_frozen(module: torch.nn.Module, contract: IOContract, feeds: Mapping[str, torch.Tensor]) -> None:
    """Raises ExportError, as `trace` does, where a dim of a contract freezes in every kind of trace.

    The sizes of examples are small: a trace at the sizes of an export is slow where a loop over a size is unrolled.
    """
    with quiet():
        trace(module, contract, dict(feeds))


def _symbol(name: str, ranges: Mapping[str, object]) -> Symbol:
    """The symbol of a size, which is an expression where one dim follows from others."""
    found = ranges.get(name)
    largest = str(getattr(found, "upper", ""))
    smallest = str(getattr(found, "lower", ""))
    # torch takes 2 for the smallest size of every dim.
    low = int(smallest) if smallest.isdigit() and int(smallest) > 2 else 1
    return Symbol(name, low, int(largest) if largest.isdigit() else None)
