"""What a lowering target offers. A target is one file in this folder that defines `LOWERING`, called by its name."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from attnport import registry
from attnport.artifacts import AUTO, SourceAttention
from attnport.errors import UsageError
from attnport.exporter.builder import Builder
from attnport.exporter.forms.canonical import Layouts, attention_of
from attnport.exporter.forms.heads import CannotRepeat
from attnport.exporter.forms.masks import MaskWriter
from attnport.exporter.forms.sinks import with_sink_key
from attnport.exporter.fusion.attention import Attention, Recognised
from attnport.exporter.fusion.layout import Located
from attnport.masks.spec import MaskSpec

if TYPE_CHECKING:
    import onnx_ir as ir


@dataclass(frozen=True)
class Written:
    """One attention in its lowered form.

    Attributes:
        output: What replaces the attention's output.
        form: The form's name, for reports.
        anchors: Names of the nodes that one kernel must cover to count as fused.
        note: Why this form and not another; "" when the form is the target's usual one.
    """

    output: ir.Value
    form: str
    anchors: tuple[str, ...]
    note: str = ""


@dataclass(frozen=True)
class Lowered:
    """A lowered graph.

    Attributes:
        anchors: By attention, as in `Written`.
        forms: The form's name by attention.
        masks: The mask by attention, as text.
        notes: By attention: why it was not recognised or not lowered, or a form's note.
        costs: By attention: what it costs beside its form.
    """

    model: ir.Model
    anchors: dict[str, tuple[str, ...]]
    forms: dict[str, str]
    masks: dict[str, str]
    notes: dict[str, str]
    costs: dict[str, str] = field(default_factory=dict)


class Lowering(abc.ABC):
    """One target.

    Attributes:
        name: The file's name.
        opset: Of the graph that it writes.
        plans: Precision plans it takes; the first is the default.
        proved_by: The runtimes that can prove fusion of this form, best first; "engine" = the TensorRT engine itself.
        requires: Import name of the package that proves or runs it, for the reason when it is missing.
    """

    name: ClassVar[str]
    opset: ClassVar[int]
    plans: ClassVar[tuple[str, ...]] = ("fp32",)
    proved_by: ClassVar[tuple[str, ...]] = ()

    @abc.abstractmethod
    def write(self, build: Builder, masks: MaskWriter, attention: Attention, plan: str) -> Written:
        """Writes one attention in the target's form, before `build.before`; a sink has become the bias of key 0."""

    def mask_writer(self, build: Builder) -> MaskWriter:
        """What writes the masks of one graph."""
        return MaskWriter(build)

    def form_key(self, plan: str) -> str:
        """The key of a form in manifests: the target, with the plan where its default is not the plain fp32."""
        return self.name if plan == self.plans[0] == "fp32" else f"{self.name}.{plan}"

    def graph_plan(self, plan: str) -> str:
        """The plan that is written into the graph: another one where the runtime is told by a setting what it
        computes in."""
        return plan

    def table_key(self, plan: str) -> str:
        """The key of a table in `fusion.json`: the target, with the plan where it is not the default."""
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
    ) -> Lowered:
        """Lowers a graph, in place.

        Args:
            model: As exported (a copy: it is changed).
            counted: The attentions counted at export.
            plan: One of `plans`; or `auto`, of a target that takes fp16.
            masks: The mask contracts of the graph's inputs.
            sizes: The usual size of each named dim; a target may choose its form by them.
            islands: The names of the nodes that stay in float32 under the plan `auto`, as a search found them.

        Raises:
            UsageError: the target does not take the plan.
            ExportError: the graph does not fit the plan or the target's opset.
        """
        if plan == AUTO and islands is None and self.searched:
            raise UsageError(
                f"target {self.name}: plan {AUTO} is searched when an engine is built.",
                hint=f"Run: attnport build FOLDER --target {self.name} --dtype {AUTO}",
            )
        if plan not in self.plans and not (plan == AUTO and self.searched):
            raise UsageError(f"target {self.name}: got plan {plan!r}; expected one of {', '.join(self.plans)}.")
        result = self.written(model, counted, plan=plan, masks=masks, sizes=sizes)
        self.typed(model, plan, islands or ())
        return result

    @property
    def searched(self) -> bool:
        """Whether it takes the plan `auto`."""
        return "fp16" in self.plans

    def typed(self, model: ir.Model, plan: str, islands: Collection[str] = ()) -> None:
        """Gives a graph whose attentions are written its plan's types and the target's opset, in place."""
        from attnport.exporter import precision
        from attnport.exporter.passes.cleanup import clean_up
        from attnport.exporter.passes.opset import to_opset

        precision.apply(model, self.graph_plan(plan), islands)
        to_opset(model, self.opset)
        clean_up(model)

    def written(
        self,
        model: ir.Model,
        counted: Sequence[SourceAttention],
        *,
        plan: str,
        masks: Collection[MaskSpec] = (),
        sizes: Mapping[str, int] | None = None,
    ) -> Lowered:
        """As `lower`, but all in float32 still: what a search for islands starts from."""
        from attnport.exporter.fusion import rewrites, second_branch
        from attnport.exporter.fusion.recognise import recognise
        from attnport.exporter.passes.cleanup import clean_up, inline_functions
        from attnport.exporter.passes.sizes import infer_sizes

        inline_functions(model)
        rewrites.apply_all(model)
        infer_sizes(model)
        recognition = recognise(model, counted, masks=masks)
        build = Builder(model, sizes)
        writer = self.mask_writer(build)
        result = Lowered(model, {}, {}, {}, dict(recognition.reasons))
        replaced: dict[ir.Value, ir.Value] = {}
        for found in recognition.attentions:
            current = _current(found, replaced)
            build.before, build.scope = current.last, current.name
            try:
                attention = attention_of(build, current)
                if attention.sink is not None:
                    attention = with_sink_key(build, writer, attention)
                written = self.write(build, writer, attention, plan)
            except CannotRepeat as err:
                result.notes[current.name] = f"{err}; it stays as it is"
                continue
            layouts = Layouts(build, current.layout, (current.q, current.k, current.v))
            output = layouts.back(written.output, current.output)
            build.replace(current.output.value, output)
            replaced[current.output.value] = output
            result.anchors[current.name] = written.anchors
            result.forms[current.name] = written.form
            result.masks[current.name] = str(current.mask.spec)
            if written.note:
                result.notes[current.name] = written.note
        clean_up(model)
        for found in recognition.attentions:
            extra = second_branch.cost(model.graph, found, build.sizes) if found.name in result.forms else ""
            if extra:
                result.costs[found.name] = extra
        return result


def _current(found: Recognised, replaced: Mapping[ir.Value, ir.Value]) -> Recognised:
    """An attention whose inputs are outputs of attentions before it reads what these were replaced with."""

    def now(at: Located) -> Located:
        return Located(replaced.get(at.value, at.value), at.index)

    biases = tuple(dataclasses.replace(bias, at=now(bias.at)) for bias in found.mask.biases)
    mask = dataclasses.replace(found.mask, biases=biases)
    factors = tuple(dataclasses.replace(factor, at=now(factor.at)) for factor in found.factors)
    return dataclasses.replace(found, q=now(found.q), k=now(found.k), v=now(found.v), mask=mask, factors=factors)


def names() -> list[str]:
    """The targets there are, in name order: every file of this folder but this one and those that begin with `_`."""
    return registry.names("attnport.exporter.lowering")


def get(name: str) -> Lowering:
    """The target called `name`; hyphens are taken as underscores.

    Raises:
        UsageError: there is none.
    """
    lowering: Lowering = registry.module("attnport.exporter.lowering", name, "target").LOWERING
    return lowering
