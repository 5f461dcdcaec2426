"""Finds out what a SPEC is, loads it, and computes the digests by which later verbs notice changes."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnport.artifacts import MANIFEST, ModelSpec, Source
from attnport.errors import AttnportError, SpecError, UsageError, nearest
from attnport.sources.digests import code_digest, dependencies, reading, weights_digest
from attnport.sources.onnx_file import is_onnx
from attnport.sources.package import FACTORY, SPEC_FORMS, Wanted
from attnport.sources.seeds import made_alike, seeded, seeding
from attnport.user_code import raised_in
from attnport_bundle.format.manifest import MANIFEST as BUNDLE

if TYPE_CHECKING:
    from torch import nn


def load(source: Source, own: Callable[[str], ModelSpec] | None = None) -> ModelSpec:
    """Loads the model that a source names. The module that is made for the digests is kept for the first use.

    Args:
        source: Its digests are those of the model as it is now, whatever they are here. Inputs are declared for
            factories that return a plain module, for `hf:` models whose inputs are not to be found, and for inputs of
            `onnx:` files whose shapes the graph does not tell.
        own: Returns the ModelSpec of a name without a colon; None = there are no such names.

    Raises:
        SpecError: the SPEC names nothing, it is not a module, or loading it raised an error.
        UsageError: an option of the source does not apply to it.
        MissingDependency: it needs a package that is not installed.
    """
    with reading(source.text):
        try:
            spec = _resolve(source, own)
            module = spec.make()
        except AttnportError:
            raise
        except (Exception, SystemExit) as err:  # the user's code may raise anything; exit() must not end this process
            raise SpecError(_loading_error(source.text, err), hint=_advice(err)) from err
        return sealed(dataclasses.replace(spec, source=source), module)


def sealed(spec: ModelSpec, module: nn.Module) -> ModelSpec:
    """`spec` with what its module depends on and the digests of that; the first call of its `make` returns `module`.

    Raises:
        SpecError: it is not a module, a parameter has no data, or `make` gives other weights each time.
    """
    text = spec.source.text
    _check_module(text, module)
    depends, read = dependencies(text, module)
    source = dataclasses.replace(
        spec.source, code_digest=code_digest(depends), weights_digest=weights_digest(text, module)
    )
    made = made_alike(module, spec, source.weights_digest)
    return dataclasses.replace(spec, source=source, make=made, depends=depends, read=read)


def factory_of(text: str) -> Callable[[], Any]:
    """The factory that a SPEC names; its random numbers are the same each time.

    Raises:
        SpecError: as `function_of`.
    """
    return seeded(function_of(text))


def function_of(text: str, wanted: Wanted = FACTORY) -> Callable[..., Any]:
    """The function that `FILE.py:NAME` or `PACKAGE.MODULE:NAME` names.

    Args:
        wanted: What it is for.

    Raises:
        SpecError: it names none (`hf:`, `onnx:`, or a name without a colon), there is no such function, or loading its
            file raised an error.
    """
    place, _, factory = text.rpartition(":")
    if not place or not factory.isidentifier():
        kind = "model" if wanted is FACTORY else "function"
        raise SpecError(
            f"{text!r} names no {kind}: got {factory!r} after the colon; expected a function's name.",
            hint=wanted.forms,
        )
    from attnport.sources.file import file_factory, is_file_name
    from attnport.sources.package import package_factory

    try:
        with seeding():  # a file may make its module when it is loaded
            if is_file_name(place):
                return file_factory(Path(place), factory, wanted)
            return package_factory(place, factory, wanted)
    except AttnportError:
        raise
    except (Exception, SystemExit) as err:
        raise SpecError(_loading_error(text, err), hint=_advice(err)) from err


def _resolve(source: Source, own: Callable[[str], ModelSpec] | None) -> ModelSpec:
    from attnport.sources.declare import narrow, plain_spec, refuse_inputs

    text = source.text
    if text == "hf" or text.startswith("hf:"):
        from attnport.sources.hf.load import load_hf

        return load_hf(source)
    for option, value in (("--task", source.task), ("--part", source.part)):
        if value:
            raise UsageError(f"{text} is not an hf: model, so {option} {value} does not apply.", hint="Leave it out.")
    if source.trust_remote_code:
        raise UsageError(
            f"{text} is not an hf: model, so --trust-remote-code does not apply.",
            hint="Leave it out: an ONNX file has no code."
            if is_onnx(text)
            else "Leave it out: the model's code is run anyway.",
        )
    if is_onnx(text):
        from attnport.sources.onnx_spec import load_onnx

        return load_onnx(text, source.inputs, source.dims, source.outputs)
    if ":" not in text:
        if own is None or not text.replace("-", "_").isidentifier():
            why = "" if not text or Path(text).exists() else ": there is no such file"
            raise SpecError(f"{text!r} names no model{why}.", hint=_with_factory(text))
        try:
            spec = own(text)
        except SpecError as err:  # no model of ours has this name, and a folder may have it
            if not Path(text).exists():
                raise
            raise SpecError(f"{text!r} names no model.", hint=_with_factory(text)) from err
        refuse_inputs(text, source.inputs)
        return narrow(spec, source.dims)
    return plain_spec(text, factory_of(text), source.inputs, source.dims, source.outputs)


_WEIGHTS = (
    "Weights alone have no code: write a function that makes the module, loads them and returns it, and name that: "
    "attnport export net.py:make -o OUT"
)


def _with_factory(text: str) -> str:
    for manifest, what in ((MANIFEST, "an artifact folder"), (BUNDLE, "a bundle")):
        if (Path(text) / manifest).is_file():
            return f"It is {what}, which was exported before: attnport inspect {shlex.quote(text)}"
    if Path(text).is_dir():
        return f"{text} has no config.json, as a folder of transformers has. {_WEIGHTS}"
    if text.endswith(".py"):
        return f"Name the function in it that returns the module: {text}:factory."
    if Path(text).is_file():
        return f"A graph of ONNX ends in .onnx. {_WEIGHTS}"
    beside = Path(text).parent
    files = [path.name for path in beside.iterdir()] if beside.is_dir() else []
    return nearest(Path(text).name, files) or SPEC_FORMS


def _loading_error(text: str, err: BaseException) -> str:
    """The error that the user's code raised, and the file and line of that code."""
    what = f"{type(err).__name__}: {err}" if str(err) else type(err).__name__
    # A syntax error tells its file and line itself.
    return f"{text}: loading it raised {what}" + ("" if isinstance(err, SyntaxError) else raised_in(err))


def _advice(err: BaseException) -> str:
    if isinstance(err, ModuleNotFoundError):
        return f"Install what it imports, or put the folder of {err.name!r} on PYTHONPATH, by its absolute path."
    if isinstance(err, SystemExit):
        return "A file that is loaded must not end the process: put its script under if __name__ == '__main__'."
    if isinstance(err, TypeError) and "required" in str(err) and "argument" in str(err):
        return "It is called without arguments: name a function that gives them, as def make(): return Module(...)."
    return "Run with --traceback to see where."


def _check_module(text: str, module: object) -> None:
    import torch

    if not isinstance(module, torch.nn.Module):
        raise SpecError(
            f"{text}: got {type(module).__name__}; expected a torch.nn.Module or a ModelSpec.",
            hint="The factory must return the module itself.",
        )
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        if tensor.is_meta:
            raise SpecError(
                f"{text}: parameter {name} has no data (it is on the meta device).",
                hint="Load its weights in the factory.",
            )
