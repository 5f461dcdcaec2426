"""The interface of a lowering target. A target is one file in this folder that defines `LOWERING`."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from attnport import registry
from attnport.artifacts import AUTO, INTEGERS, PLANS, MaskSpec, SourceAttention
from attnport.errors import UsageError, whole_cause
from attnport.exporter.builder import Builder, CannotLower, clean_up, inline_functions
from attnport.exporter.forms.blocks import Local, to_blocks
from attnport.exporter.forms.canonical import Layouts, attention_of
from attnport.exporter.forms.operands import MaskWriter, repeated, with_sink_key
from attnport.exporter.forms.standard import decomposed
from attnport.exporter.fusion.indices import Located
from attnport.exporter.fusion.kinds import hides_padding
from attnport.exporter.fusion.recognise import Attention, Recognised, cost_of_weights, recognise
from attnport.exporter.fusion.rewrites import apply_all
from attnport.exporter.graph.opset import to_opset
from attnport.exporter.graph.sizes import infer_sizes
from attnport.exporter.precision.plan import apply_plan, widen
from attnport.exporter.tokens.padding import seen_without_key
from attnport.exporter.tokens.picked import compute_picked_rows
from attnport.exporter.tokens.real import run_real_tokens
from attnport.onnx_graph import dims_of, ir

REAL_TOKENS, BLOCKS = "the pass that leaves padding out", "attention in blocks"
"""Names of steps of a lowering that can be left out: they stand among those of attentions, and in messages."""


@dataclass(frozen=True)
class Written:
    """One attention in its lowered form.

    Attributes:
        output: What replaces the attention's output.
        form: The form's name, for reports.
        anchors: Names of the nodes that one kernel must cover for the attention to count as fused.
        note: Why this form and not another; "" if the form is the target's usual one.
        local: How the attention is computed in blocks, which is written last; None = as it is.
    """

    output: ir.Value
    form: str
    anchors: tuple[str, ...]
    note: str = ""
    local: Local | None = None


@dataclass(frozen=True)
class Lowered:
    """A lowered graph.

    Attributes:
        anchors: By attention, as in `Written`.
        forms: The form's name by attention.
        masks: The mask by attention, as text.
        notes: By attention: why it was not recognised or stays as exported, or the form's note.
        costs: By attention: what it costs in addition to its form.
        padding: By padding mask: "" if the graph computes its real tokens alone, otherwise why it computes padding.
    """

    model: ir.Model
    anchors: dict[str, tuple[str, ...]]
    forms: dict[str, str]
    masks: dict[str, str]
    notes: dict[str, str]
    costs: dict[str, str] = field(default_factory=dict)
    padding: dict[str, str] = field(default_factory=dict)


class Lowering(abc.ABC):
    """One target.

    Attributes:
        name: The file's name.
        opset: Of the graph that it writes.
        plans: The precision plans that it takes; the first is the default.
        proved_by: The runtimes that can prove fusion of this form, best first; "engine" = the TensorRT engine itself.
        integers: The plans with linear layers in integers, which `tune` writes; the runtime says which it can compute.
            Those of engines have weights alone in integers, and `build` writes them.
        widens: Whether what the module itself casts to half precision is computed in float32, as the runtime does.
        real_tokens: Whether the form computes the real tokens of padded batches alone, where that is proved right, and
            one position alone where nothing else is read.
    """

    name: ClassVar[str]
    opset: ClassVar[int]
    plans: ClassVar[tuple[str, ...]] = ("fp32",)
    proved_by: ClassVar[tuple[str, ...]] = ()
    integers: ClassVar[tuple[str, ...]] = ()
    real_tokens: ClassVar[bool] = False
    widens: ClassVar[bool] = False

    @abc.abstractmethod
    def write(self, build: Builder, masks: MaskWriter, attention: Attention, plan: str) -> Written:
        """Writes one attention in the target's form, before `build.before`.

        Args:
            attention: In one layout; a sink is already the bias of key 0.
            plan: The precision plan, whose types are written later.

        Raises:
            CannotLower: it has no form; it stays as exported.
        """

    def mask_writer(self, build: Builder) -> MaskWriter:
        """A writer for the masks of one graph."""
        return MaskWriter(build)

    def form_key(self, plan: str) -> str:
        """The key of a form in manifests: the target, and the plan unless it is fp32 and that is the default."""
        return self.name if plan == self.plans[0] == "fp32" else f"{self.name}.{plan}"

    def graph_plan(self, plan: str) -> str:
        """The plan that is written into the graph; it differs from `plan` if a setting of the runtime does the rest."""
        return plan

    def plan_beside(self, plan: str) -> str:
        """The plan of all that a form in integers has besides."""
        if not PLANS[plan].weights:
            return "fp32"
        return AUTO if self.searched else "fp16"

    def table_key(self, plan: str) -> str:
        """The key of a table in `fusion.json`: the target, and the plan if it is not the default, whichever that is."""
        return self.name if plan == self.plans[0] else f"{self.name}.{plan}"

    def lower(
        self,
        model: ir.Model,
        counted: Sequence[SourceAttention],
        *,
        plan: str,
        masks: Collection[MaskSpec] = (),
        sizes: Mapping[str, int] | None = None,
        islands: Collection[str] | None = None,
        without: Mapping[str, str] | None = None,
    ) -> Lowered:
        """Lowers a graph, in place.

        Args:
            model: As exported. It is changed, so pass a copy.
            plan: One of `plans`, or `auto` if the target's engine is built.
            sizes: The usual size of each named dim, by which a target may choose its form.
            islands: The names of the nodes that stay in float32 under the plan `auto`, as a search found them.
            without: The attentions that stay as exported, and `REAL_TOKENS` or `BLOCKS` if that step is left out, each
                with the reason.

        Raises:
            UsageError: the target does not take the plan.
            ExportError: the graph does not fit the plan or the target's opset.
        """
        if plan == AUTO and islands is None and self.searched:
            raise UsageError(
                f"target {self.name}: precision {AUTO} is searched when an engine is built.",
                hint=f"Run: attnport build FOLDER --target {self.name} --precision {AUTO}",
            )
        if plan in INTEGERS and plan in self.integers:
            verb = f"build FOLDER --target {self.name} --precision {plan}" if PLANS[plan].weights else "tune FOLDER"
            raise UsageError(
                f"target {self.name}: precision {plan} needs inputs of yours, by which it is written and judged.",
                hint=f"Run: attnport {verb} --text FILE",
            )
        if plan not in self.plans and not (plan == AUTO and self.searched):
            others = [name for name, each in zip(names(), map(get, names()), strict=True)
                      if plan in (*each.plans, *each.integers) or (plan == AUTO and each.searched)]  # fmt: skip
            raise UsageError(
                f"target {self.name}: got precision {plan!r}; expected one of {', '.join(self.plans)}.",
                hint=f"{plan} is a precision of {', '.join(others)}." if others else "",
            )
        result = self.fuse_graph(model, counted, plan=plan, masks=masks, sizes=sizes, without=without)
        self.finish(model, plan, islands or ())
        return result

    @property
    def searched(self) -> bool:
        """Whether the target takes the plan `auto`, which is searched when its engine is built."""
        return "engine" in self.proved_by

    def finish(self, model: ir.Model, plan: str, islands: Collection[str] = ()) -> None:
        """Gives a lowered graph the plan's types and the target's opset, in place; the second step of `lower`.

        Args:
            model: As `fuse_graph` leaves it.
            islands: The names of the nodes that stay in float32 under the plan `auto`.

        Raises:
            ExportError: the graph does not fit the plan or the opset.
        """
        apply_plan(model, self.graph_plan(plan), islands)
        to_opset(model, self.opset)
        clean_up(model)

    def fuse_graph(
        self,
        model: ir.Model,
        counted: Sequence[SourceAttention],
        *,
        plan: str,
        masks: Collection[MaskSpec] = (),
        sizes: Mapping[str, int] | None = None,
        without: Mapping[str, str] | None = None,
    ) -> Lowered:
        """The first step of `lower`, with its arguments: writes the attentions in the target's form.

        A search repeats only the second step. By its plan, a target may choose a form.
        """
        self._prepare(model)
        recognition = recognise(model, counted, masks=masks)
        build = Builder(model, sizes)
        writer = self.mask_writer(build)
        left_out = without or {}
        reasons = {name: f"not recognised: {reason}" for name, reason in recognition.reasons.items()}
        result = Lowered(model, {}, {}, {}, reasons)
        seen = seen_without_key(model.graph, recognition.attentions, masks)
        replaced: dict[ir.Value, ir.Value] = {}
        padding = [mask for mask in masks if mask.input and self.real_tokens and "padding" in mask.kinds]
        locals_: list[Local] = []
        hiding: dict[str, set[str]] = {str(mask.input): set() for mask in padding}
        for recognised in recognition.attentions:
            current = _current(recognised, replaced)
            own = seen.get(current.name, "")
            try:
                if current.name in left_out:
                    raise CannotLower(left_out[current.name])
                written, output = self._write(build, writer, current, plan, own)
            except CannotLower as err:
                result.notes[current.name] = f"it stays as exported: {err}"
                continue
            build.replace(current.output.value, output)
            replaced[current.output.value] = output
            result.anchors[current.name] = written.anchors
            result.forms[current.name] = written.form
            result.masks[current.name] = str(current.mask.spec)
            keeps = [factor.keep for factor in current.mask.factors]
            for hidden in (mask for mask in padding if hides_padding(keeps, mask)):
                hiding[str(hidden.input)] |= set(written.anchors)
            if written.local is not None:
                locals_.append(written.local)
            if written.note:
                result.notes[current.name] = written.note
            if own:
                result.costs[current.name] = (
                    f"a query whose keys are all hidden gets the mean of all values, as in the module: {own}"
                )
        clean_up(model)
        self._leave_out_rows(
            result, padding, hiding, left_out.get(REAL_TOKENS, ""), {str(one.node.name) for one in locals_}
        )
        if BLOCKS in left_out:
            whole = f"all queries with all keys, not in blocks: {left_out[BLOCKS]}"
            result.costs.update({local.attention.name: whole for local in locals_})
        elif locals_:
            to_blocks(model, locals_)
        for recognised in (each for each in recognition.attentions if each.name in result.forms):
            costs = result.costs.get(recognised.name, ""), cost_of_weights(model.graph, recognised, build.sizes)
            result.costs[recognised.name] = "; ".join(filter(None, costs))
        return result

    def _leave_out_rows(
        self,
        result: Lowered,
        padding: Sequence[MaskSpec],
        hiding: Mapping[str, Collection[str]],
        why_not: str,
        whole: Collection[str],
    ) -> None:
        """Leaves out rows that nothing reads and those of padding, unless there is a reason not to.

        Args:
            hiding: By padding mask, the nodes of attention that hide its keys.
            whole: The nodes of attention that are to be computed in blocks.
        """
        if self.real_tokens and not why_not:
            infer_sizes(result.model)
            compute_picked_rows(result.model, whole)
        for mask in padding:
            infer_sizes(result.model)
            result.padding[str(mask.input)] = why_not or run_real_tokens(result.model, mask, hiding[str(mask.input)])

    def _prepare(self, model: ir.Model) -> None:
        """Brings a graph, in place, into the form that recognition reads."""
        inline_functions(model)
        if self.widens:
            widen(model)
        apply_all(model)
        infer_sizes(model)

    def _write(
        self, build: Builder, masks: MaskWriter, recognised: Recognised, plan: str, own_rows: str
    ) -> tuple[Written, ir.Value]:
        """Writes one attention, before its last node; also returns its output in the layout that the graph has.

        Args:
            own_rows: What sees the module's rows without a key, so that they have to be its mean of all values; "" =
                nothing.

        Raises:
            CannotLower: it has no form that can be written. Nothing reads the nodes that were written so far.
        """
        if own_rows and recognised.mask.gives != "mean":
            raise CannotLower(f"no form has the module's numbers for a query whose keys are all hidden: {own_rows}")
        build.before, build.scope = recognised.last, recognised.name
        try:
            attention = attention_of(build, recognised)
            if attention.sink is not None:
                attention = with_sink_key(build, masks, attention)
            written = (
                _in_float64(build, masks, attention)
                if attention.q.dtype is not None and attention.q.dtype.name == "DOUBLE"
                else self.write(build, masks, attention, plan)
            )
            if own_rows:
                written = _with_mean(build, masks, attention, written)
            layouts = Layouts(build, recognised.layout, (recognised.q, recognised.k, recognised.v))
            return written, layouts.back(written.output, recognised.output)
        except CannotLower:
            raise
        except Exception as err:  # a fault of ours, which the reason tells
            fault = f"{type(err).__name__}: {whole_cause(err)}"
            raise CannotLower(f"writing its form failed, please report it: {fault}") from err


def _in_float64(build: Builder, masks: MaskWriter, attention: Attention) -> Written:
    """Attention that the module computes in float64: products and a softmax, which every runtime has in that type."""
    output, anchors = decomposed(build, masks, attention)
    return Written(output, "MatMul, Where, Softmax, MatMul", anchors, "attention in float64 has no fused kernel")


def _with_mean(build: Builder, masks: MaskWriter, attention: Attention, written: Written) -> Written:
    """A form whose rows without an allowed key have the mean of all values, as in the module."""
    keep = masks.keep(attention)
    assert keep is not None
    values = repeated(build, attention, attention.v)
    mean = build.op("ReduceMean", values, build.const([2], np.int64), name="mean_BH1D", keepdims=1)
    output = build.op(
        "Where", masks.any_key(keep), written.output, mean, name="own_rows", dtype=written.output.dtype,
        shape=dims_of(written.output),
    )  # fmt: skip
    return dataclasses.replace(written, output=output)


def _current(attention: Recognised, replaced: Mapping[ir.Value, ir.Value]) -> Recognised:
    """The attention with each input that earlier lowering replaced exchanged for its replacement."""

    def now(located: Located) -> Located:
        return Located(replaced.get(located.value, located.value), located.index)

    biases = tuple(dataclasses.replace(bias, at=now(bias.at)) for bias in attention.mask.biases)
    mask = dataclasses.replace(attention.mask, biases=biases)
    factors = tuple(dataclasses.replace(factor, at=now(factor.at)) for factor in attention.factors)
    return dataclasses.replace(
        attention, q=now(attention.q), k=now(attention.k), v=now(attention.v), mask=mask, factors=factors
    )


def names() -> list[str]:
    """The names of the targets, sorted: every file of this folder except this one and those that begin with `_`."""
    return registry.names("attnport.exporter.targets")


def get(name: str) -> Lowering:
    """The target called `name`, in which a hyphen means an underscore.

    Raises:
        UsageError: there is no such target.
    """
    lowering: Lowering = registry.module("attnport.exporter.targets", name, "target").LOWERING
    return lowering
