"""The sizes of outputs in a torch graph, as expressions of the contract's dims."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from operator import add, floordiv, mod, mul, sub
from typing import TYPE_CHECKING, Any

from attnport.artifacts import UNKNOWN_SIZE, IOContract, TensorSpec
from attnport_bundle.format.contract import dims_in, evaluate
from attnport_bundle.format.contract import steps as steps_of

if TYPE_CHECKING:
    import torch

_SUM, _PRODUCT, _VALUE = 0, 1, 2
"""How strongly an expression holds together; a weaker one needs parentheses."""
_SIZES = 10_000
"""The most sizes of a dim that are gone through."""
_CALLS = {"Min": "min", "Max": "max"}
_DIVISIONS = {"FloorDiv": "//", "CleanDiv": "//", "Mod": "%", "PythonMod": "%"}


def traced_outputs(program: torch.export.ExportedProgram, contract: IOContract) -> tuple[TensorSpec, ...]:
    """Returns the contract's outputs with the sizes that the graph gives them.

    A size that depends on values becomes unknown, even if the runs agreed on one. A size that no expression can state
    stays as declared.
    """
    from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

    values: dict[Any, Any] = {node.name: node.meta.get("val") for node in program.graph.nodes}
    made = [values.get(getattr(output.arg, "name", None)) for output in program.graph_signature.output_specs]
    kinds = [output.kind.name for output in program.graph_signature.output_specs]
    made = [value for value, kind in zip(made, kinds, strict=True) if kind == "USER_OUTPUT"]
    names, follow = _symbols(program, values, contract)
    if len(made) != len(contract.outputs):
        return contract.outputs
    outputs = []
    for spec, value in zip(contract.outputs, made, strict=True):
        shape = getattr(value, "shape", ())
        if len(shape) != len(spec.dims):
            outputs.append(spec)
            continue
        exact = (getattr(getattr(size, "node", None), "expr", size) for size in shape)
        sizes = (size_text(size if isinstance(size, int) else size.subs(follow), names) for size in exact)
        axes = tuple(
            _dim(size, contract) if size is not None else UNKNOWN_SIZE if free_unbacked_symbols(traced) else dim
            for dim, size, traced in zip(spec.dims, sizes, shape, strict=True)
        )
        outputs.append(dataclasses.replace(spec, dims=axes))
    return tuple(outputs)


def _dim(size: str | int, contract: IOContract) -> str | int:
    """The dim that a size is at all sizes that it takes; else the size as it is.

    Of blocks of 16, torch has `(seq//(seq//16))*(seq//16)`. Which rows are padding is told by dims.
    """
    dim = next((dim for dim in contract.dims if isinstance(size, str) and dims_in(size) == {dim.name}), None)
    if dim is None or (dim.max - dim.min) // dim.step > _SIZES:
        return size
    try:
        same = all(evaluate(str(size), {dim.name: own}) == own for own in range(dim.min, dim.max + 1, dim.step))
    except ValueError:  # it has no value at one of them
        return size
    return dim.name if same else size


def _symbols(
    program: torch.export.ExportedProgram, values: Mapping[Any, Any], contract: IOContract
) -> tuple[dict[Any, str], dict[Any, Any]]:
    """The graph's symbols by the dims that the inputs have them for, and formulas for those that follow from others."""
    dims = {spec.name: spec.dims for spec in contract.inputs}
    steps = {dim.name: dim.step for dim in contract.dims}
    names: dict[Any, str] = {}
    order = [item for item in program.graph_signature.input_specs if item.kind.name == "USER_INPUT"]
    for declared, item in zip(dims.values(), order, strict=False):
        shape = getattr(values.get(getattr(item.arg, "name", None)), "shape", ())
        for dim, size in zip(declared, shape, strict=False):
            exact = getattr(getattr(size, "node", None), "expr", None)
            if isinstance(dim, str) and exact is not None and _is_dim(exact, steps.get(dim, 1)):
                names.setdefault(exact, dim)
    symbols = {name: exact for exact, name in names.items()}
    follow = {
        exact: formula(name, symbols.__getitem__)
        for exact, name in names.items()
        if not name.isidentifier() and dims_in(name) <= symbols.keys()
    }
    names = {exact: name for exact, name in names.items() if name.isidentifier()}
    parts = {exact / (steps[name] // part): f"({name}//{steps[name] // part})" for exact, name in names.items()
             for part in range(1, steps[name]) if not exact.is_Symbol and steps[name] % part == 0}  # fmt: skip
    return parts | names, follow


def as_multiple(size: Any, step: int) -> Any:
    """The symbol of which a size of a trace is so many times; None if it is another expression."""
    if step == 1:
        return size if size.is_Symbol else None
    symbol = size / step
    return symbol if symbol.is_Symbol else None


def _is_dim(size: Any, step: int) -> bool:
    """Whether a size of a trace is a symbol of its own, or the multiple of one."""
    return as_multiple(size, 1) is not None or as_multiple(size, step) is not None


def formula(text: str, symbol: Callable[[str], Any]) -> Any:
    """An expression of dims, as a contract has it, in sympy. Raises ValueError for text that is none."""
    import sympy  # type: ignore[import-untyped]  # it has no types

    values: list[Any] = []
    for step in steps_of(text):
        if isinstance(step, tuple):
            second, first = values.pop(), values.pop()
            values.append(_operation(sympy, step[0])(first, second))
        else:
            values.append(symbol(step) if isinstance(step, str) else sympy.Integer(step))
    return values[0]


def _operation(sympy: Any, name: str) -> Callable[[Any, Any], Any]:
    own: dict[str, Any] = {"+": add, "-": sub, "*": mul, "//": floordiv, "%": mod, "min": sympy.Min, "max": sympy.Max}
    found: Callable[[Any, Any], Any] = own[name]
    return found


def size_text(size: Any, names: Mapping[Any, str]) -> str | int | None:
    """A size of torch (an integer or a sympy expression) as a contract has it, or None where it has no such form."""
    if isinstance(size, int) or getattr(size, "is_Integer", False):
        return int(size)
    try:
        text, _ = _written(size, names)
        return text if dims_in(text) else None
    except ValueError:
        return None


def _written(size: Any, names: Mapping[Any, str]) -> tuple[str, int]:
    """An expression and how strongly it holds together. Raises ValueError where it has no form."""
    kind = type(size).__name__
    if size.is_Integer and size >= 0:
        return str(int(size)), _VALUE
    if size in names:
        return names[size], _VALUE
    if size.is_Add:
        return _sum(size, names), _SUM
    if size.is_Mul:
        return _product(size, names)
    if size.is_Pow and size.args[1].is_Integer and size.args[1] > 0:
        return "*".join([_within(size.args[0], names, _VALUE)] * int(size.args[1])), _PRODUCT
    if kind in _DIVISIONS and len(size.args) == 2:
        return _divided(size.args[0], _DIVISIONS[kind], size.args[1], names)
    if kind == "floor":
        above, below = size.args[0].as_numer_denom()
        return _divided(above, "//", below, names)
    if kind in _CALLS and len(size.args) > 1:
        found = _within(size.args[0], names, _SUM)
        for other in size.args[1:]:
            found = f"{_CALLS[kind]}({found},{_within(other, names, _SUM)})"
        return found, _VALUE
    raise ValueError(f"{size} has no form")


def _sum(size: Any, names: Mapping[Any, str]) -> str:
    """What is added stands before what is subtracted, and numbers stand last."""
    added: list[str] = []
    taken: list[str] = []
    for term in sorted(size.args, key=lambda term: (term.is_Integer, str(names.get(term, term)))):
        less = bool(term.is_Integer and term < 0) or bool(term.is_Mul and term.args[0].is_Integer and term.args[0] < 0)
        text, strength = _written(-term if less else term, names)
        (taken if less else added).append(f"({text})" if less and strength == _SUM else text)
    return "+".join(added or ["0"]) + "".join(f"-{text}" for text in taken)


def _product(size: Any, names: Mapping[Any, str]) -> tuple[str, int]:
    above, below = size.as_numer_denom()
    if below != 1:  # a division that leaves no rest
        return _divided(above, "//", below, names)
    if size.args[0].is_Integer and size.args[0] < 0:
        return f"0-{_within(-size, names, _PRODUCT)}", _SUM
    # A division among factors has parentheses: 2*(seq//2) is not 2*seq//2.
    parts = [
        f"({text})" if strength < _PRODUCT or "//" in text or "%" in text else text
        for text, strength in (_written(factor, names) for factor in size.args)
    ]
    return "*".join(sorted(parts)), _PRODUCT  # numbers come first


def _divided(above: Any, operation: str, below: Any, names: Mapping[Any, str]) -> tuple[str, int]:
    return f"{_within(above, names, _VALUE)}{operation}{_within(below, names, _VALUE)}", _PRODUCT


def _within(size: Any, names: Mapping[Any, str], least: int) -> str:
    text, strength = _written(size, names)
    return text if strength >= least else f"({text})"
