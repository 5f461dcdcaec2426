"""Modules that people publish, through `attnport.export` and through `torch.onnx.export`.

    make .cache/published/.made
    .venv/bin/python benchmarks/sweep_packages.py [MODULE ...] [--side SIDE] [--again wrong|older|all] [--make]

`package_modules.py` has the modules, small and with random weights. The dims that a module takes in other sizes are
found by running it. Each side exports the module with these dims dynamic, and ONNX Runtime runs the graph at five sets
of sizes; the numbers are compared with those of the module. OpenVINO runs its own form of attnport's sides likewise.

- `torch`: `torch.onnx.export` alone, with the dynamic axes of each input, at its own opset and at 23: the better one.
- `examples`: `attnport.export(module, folder, args=...)`, with nothing declared.
- `declared`: with a declaration of each input, as a user writes them who knows which dims vary; and where no sizes are
  found with which it runs, with the range of each dim.

Each side of each module has a process of its own, with a limit of memory and time. Results are kept in
`sweep_packages.json`: what was measured with these versions is not measured again, unless `--again` says so.
`docs/make_packages.py` makes the page of it.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import importlib.metadata
import inspect
import json
import math
import resource
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path[:0] = [str(HERE), str(ROOT)]
sys.path.append(str(ROOT / ".cache" / "published" / "site-packages"))

from package_modules import MODULES, Given, Published  # noqa: E402  # it lies beside this file
from sweep_hf import due, locked, measured, preload, read, told, write  # noqa: E402  # likewise
from sweep_judge import wrong  # noqa: E402  # likewise

RESULTS = HERE / "sweep_packages.json"
TARGETS = {"ort_cpu": "ONNX Runtime", "openvino": "OpenVINO"}
NO_KERNEL = "no fused kernel computes"
"""Part of the reasons of attentions that no form could fuse."""
SETS = 5
"""Sets of sizes at which a graph is compared with the module."""

Sizes = Mapping[str, int]


def main() -> None:
    """Measures what is asked for and not yet known, and prints a line each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("modules", nargs="*", help="the beginnings of their names; without any, all of them")
    parser.add_argument("--side", choices=SIDES, action="append", help="one side alone")
    parser.add_argument("--again", choices=("wrong", "older", "all"), help="measure again what is known")
    parser.add_argument("--every", type=int, default=1, help="only each module of so many, as 3 for a third")
    parser.add_argument("--first", type=int, default=0, help="how many are left out before the first one")
    parser.add_argument("--make", action="store_true", help="only make the modules, and print the sizes that they take")
    parser.add_argument("--to", type=Path, default=RESULTS, help="the file of results")
    parser.add_argument("--limit-s", type=int, default=240)
    given = parser.parse_args()
    with_torchvision()
    preload()
    chosen = [name for name in MODULES if not given.modules or name.startswith(tuple(given.modules))]
    for name in chosen[given.first :: given.every]:
        if given.make:
            result = measured(functools.partial(made_alone, MODULES[name]), given.limit_s)
            print(f"{name:28} {result['processor_s']:5.1f} s  {result['reason']}", flush=True)
            continue
        for side in given.side or SIDES:
            of, known = digest(side), read(given.to).get(name, {}).get(side)
            if due(known, of, given.again or ("all" if given.modules else None)):
                result = measured(functools.partial(SIDES[side], MODULES[name]), given.limit_s)
                with locked(given.to.parent):
                    found = read(given.to)
                    found.setdefault(name, {})[side] = {"package": MODULES[name].package, **result, "of": of}
                    write(given.to, found)
                print(line(name, side, result), flush=True)


def line(name: str, side: str, result: Mapping[str, Any]) -> str:
    """A result as it is printed."""
    said = "right" if result["right"] else result["reason"][:300]
    fused = " ".join(f"{number}/{result['attentions']}" for number in result.get("fused", {}).values())
    return f"{name:28} {side:9} {result.get('export_s', 0):5.1f} s {result.get('peak_mib', 0):5} MiB {fused}  {said}"


@functools.cache
def digest(side: str) -> str:
    """What a result depends on, as text: versions, and the digest of the code."""
    files = [HERE / f"{name}.py" for name in ("package_modules", "sweep_judge", "sweep_packages")]
    if side != "torch":
        files += [*sorted((ROOT / "attnport").rglob("*.py")), *sorted((ROOT / "attnport_bundle").rglob("*.py"))]
    code = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:12]
    names = ("torch", "onnx", "onnxscript", "onnxruntime", "openvino")
    pins = hashlib.sha256((HERE / "packages.txt").read_bytes()).hexdigest()[:8]
    return " ".join([*(f"{name} {importlib.metadata.version(name)}" for name in names), f"packages {pins}", code])


def with_torchvision() -> None:
    """Has torchvision imported beside a PyTorch without CUDA, where its own operators are not there."""
    import torch

    if torch.version.cuda is None:
        library = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _KEPT.append(library)


_KEPT: list[Any] = []


class Made:
    """A published module with the sizes of its dims.

    Attributes:
        given: What is declared of each input, by parameter.
        fixed: The dims of which the module takes one size alone, with it.
        sizes: The example's sizes, and the sets at which graphs are compared.
    """

    def __init__(self, published: Published) -> None:
        self.published = published
        self.module = published.module()
        self.given: Mapping[str, Given] = published.declared(self.module.forward)
        named = {dim for each in self.given.values() for dim in each.dims}
        self.example: Sizes = {name: size for name, size in published.dims.items() if name in named}
        self.call(self.feeds(self.example))
        taken = {name: self._taken(name) for name in self.example}
        self.fixed = {name: self.example[name] for name, sizes in taken.items() if not sizes}
        self.sizes = [self.example, *self._sets({name: sizes for name, sizes in taken.items() if sizes})]

    def feeds(self, sizes: Sizes, seed: int = 0) -> dict[str, Any]:
        """Tensors of these sizes, by parameter."""
        return {name: each.tensor(sizes, seed + at) for at, (name, each) in enumerate(self.given.items())}

    def call(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """The module's outputs by name."""
        import torch

        from attnport.sources.structure import flat_outputs

        with torch.no_grad():
            return flat_outputs(self.module(**feeds, **self.published.constants), feeds)

    def _shapes(self, changed: Sizes) -> list[tuple[int, ...]] | None:
        """The shapes of the outputs at other sizes; None where the module does not run."""
        try:
            return [tuple(each.shape) for each in self.call(self.feeds({**self.example, **changed})).values()]
        except Exception:  # whatever a module raises
            return None

    def _taken(self, name: str) -> list[int]:
        """The other sizes that the module takes of a dim.

        A module that cuts off what is more than whole patches has the same output at a few more pixels: half, twice and
        thrice the size say whether the dim varies.
        """
        size, base = self.example[name], self._shapes({})
        far = [3 * size // 2, size // 2, 2 * size, 3 * size]
        near = [size + 1, size + 3, size - 1]
        shapes = {other: self._shapes({name: other}) for other in (*far, *near) if other > 0 and other != size}
        found = [other for other in far if shapes.get(other) is not None]
        return found + [other for other in near if found and shapes.get(other) not in (None, base)]

    def _sets(self, taken: Mapping[str, Sequence[int]]) -> Iterator[dict[str, int]]:
        """Sets of sizes: all dims with others where the module takes these together, else one dim after the other."""
        for number in range(SETS):
            together = {name: sizes[(number + at) % len(sizes)] for at, (name, sizes) in enumerate(taken.items())}
            if self._shapes(together) is not None:
                yield {**self.example, **together}
            elif taken:
                name, sizes = list(taken.items())[number % len(taken)]
                yield {**self.example, name: sizes[number % len(sizes)]}

    def named(self, names: Sequence[str]) -> Callable[..., dict[str, Any]]:
        """The module, called with its inputs by the names that a graph has for them, in the same order."""
        return lambda **values: self.call({mine: values[name] for mine, name in zip(self.given, names, strict=True)})

    def values(self, names: Sequence[str]) -> list[dict[str, Any]]:
        """Inputs at all sets of sizes, by these names."""
        return [dict(zip(names, self.feeds(sizes, 10 * at).values(), strict=True))
                for at, sizes in enumerate(self.sizes)]  # fmt: skip

    def arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The example as a user gives it: by position as far as that goes, else by name."""
        feeds, leading = self.feeds(self.example), []
        for name in inspect.signature(self.module.forward).parameters:
            if name not in feeds:
                break
            leading.append(feeds.pop(name))
        return tuple(leading), {**feeds, **self.published.constants}


class Watched:
    """Measures the processor's seconds of what runs in it, which other work on the machine does not change, and the
    most memory that this process has meanwhile."""

    def __enter__(self) -> Watched:
        self._over = threading.Event()
        self._most, self._began_s = 0, _spent_s()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def _watch(self) -> None:
        while not self._over.wait(0.05):
            pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
            self._most = max(self._most, pages * 4096)

    def measures(self) -> dict[str, Any]:
        """What was measured until now, or until the first call."""
        if not self._over.is_set():
            self._over.set()
            self._thread.join()
            self._seconds = round(_spent_s() - self._began_s, 2)
        return {"export_s": self._seconds, "peak_mib": self._most >> 20}

    def __exit__(self, *raised: object) -> None:
        self.measures()


def _spent_s() -> float:
    """The processor's seconds of this process and of those that it has started and waited for."""
    return time.process_time() + resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime


# --- the sides --------------------------------------------------------------------------------------------------------


def made_alone(published: Published) -> dict[str, Any]:
    """Makes a module, and says which sizes it takes."""
    made = Made(published)
    weights = sum(each.numel() for each in made.module.parameters())
    outputs = {name: list(each.shape) for name, each in made.call(made.feeds(made.example)).items()}
    varied = {name: sorted({sizes[name] for sizes in made.sizes}) for name in made.example if name not in made.fixed}
    return {"right": True, "reason": f"{weights} weights, {varied}, fixed {made.fixed}, {outputs}"}


def torch_alone(published: Published) -> dict[str, Any]:
    """torch.onnx.export with the dynamic axes, at its own opset and at 23; the better of both."""
    import torch

    made, first = Made(published), dict[str, Any]()
    automatic = {
        name: {axis: torch.export.Dim.AUTO for axis, dim in enumerate(each.dims) if dim in made.example and
               dim not in made.fixed}
        for name, each in made.given.items()
    }  # fmt: skip
    args, kwargs = made.arguments()
    shapes = automatic | dict.fromkeys(published.constants)
    for opset in ({}, {"opset_version": 23}):
        result: dict[str, Any] = {"exported": False, "right": False, "reason": "", **about(made)}
        with tempfile.TemporaryDirectory() as folder, Watched() as watched:
            path = Path(folder) / "model.onnx"
            try:
                with torch.no_grad():
                    torch.onnx.export(made.module, args, str(path), kwargs=kwargs, dynamic_shapes=shapes, dynamo=True,
                                      verbose=False, **opset)  # fmt: skip
                result["exported"] = True
            except Exception as err:  # whatever the exporter raises
                result["reason"] = told(err)
            result |= watched.measures()
            if result["exported"]:
                result["reason"] = judged(path, made)
        result["right"] = not result["reason"]
        if result["right"] or "TorchExportError" in result["reason"]:
            return first or result if not result["right"] else result
        first = first or result
    return first


def judged(
    path: Path,
    made: Made,
    names: Sequence[str] = (),
    outputs: Sequence[str] | None = None,
    values: Sequence[Mapping[str, Any]] | None = None,
    runtime: str = "ONNX Runtime",
) -> str:
    """What is wrong with a graph; "" if nothing is. `values`: the inputs that it takes; None = those of all sizes."""
    import onnx

    names = names or [value.name for value in onnx.load(path, load_external_data=False).graph.input]
    if len(names) != len(made.given):
        return f"the graph has the inputs {', '.join(names)}; expected {', '.join(made.given)}"
    masks = [name for name, each in zip(names, made.given.values(), strict=True) if "padding" in each.marks]
    feeds = made.values(names) if values is None else values
    return wrong(path, made.named(names), feeds, outputs, masks, runtime)


def about(made: Made) -> dict[str, Any]:
    """What a result says of the module."""
    return {"made": True, "inputs": [f"{name}={each.text({})}" for name, each in made.given.items()],
            "fixed": dict(made.fixed)}  # fmt: skip


def from_examples(published: Published) -> dict[str, Any]:
    """`attnport.export` with an example alone."""
    made = Made(published)
    args, kwargs = made.arguments()
    return through_attnport(made, args=args, kwargs=kwargs)


def declared(published: Published) -> dict[str, Any]:
    """`attnport.export` with declarations."""
    made = Made(published)
    inputs = {name: each.text(made.fixed) for name, each in made.given.items()}
    constants = dict(published.constants)
    for name, value in published.constants.items():
        if isinstance(value, Mapping):
            constants |= {f"{name}.{key}": part for key, part in constants.pop(name).items()}
    inputs |= {name: json.dumps(value) for name, value in constants.items()}
    found = through_attnport(made, inputs=inputs)
    if found["exported"]:
        return found
    taken = {name: sorted({sizes[name] for sizes in made.sizes}) for name in made.example if name not in made.fixed}
    dims = {name: (sizes[0], made.example[name], sizes[-1], math.gcd(*sizes)) for name, sizes in taken.items()}
    again = through_attnport(made, inputs=inputs, dims=dims)
    return {**again, "dims": dims} if again["exported"] else found


def through_attnport(made: Made, **given: Any) -> dict[str, Any]:
    """What `attnport.export`, `fuse` and, where the numbers are wrong, `check` make of a module."""
    import attnport

    result: dict[str, Any] = {"exported": False, "right": False, "reason": "", **about(made)}
    notes: list[str] = []
    with tempfile.TemporaryDirectory() as folder, Watched() as watched:
        out = Path(folder) / "out"
        try:
            artifact = attnport.export(made.module, out, **given, tell=notes.append, progress=lambda message: None)
        except Exception as err:  # a bug of attnport is a result too
            return {**result, "reason": told(err), **watched.measures()}
        result |= {"exported": True, "notes": notes, **watched.measures()}
        try:
            io = artifact.manifest.io
            result["contract"] = [*map(str, io.inputs), *map(str, io.dims)]
            tables = artifact.fuse(tuple(TARGETS)).targets
            result["attentions"] = len(artifact.manifest.attentions)
            result["fused"] = {target: tables[target].fused for target in TARGETS}
            result["no_kernel"] = {target: sum(NO_KERNEL in item.reason for item in tables[target].items)
                                   for target in TARGETS}  # fmt: skip
            result["reasons"] = sorted({str(item.reason) for each in tables.values() for item in each.items
                                        if not item.fused})[:4]  # fmt: skip
            names = [each.name for each in io.inputs]
            outputs = [each.name for each in io.outputs if "float" in each.dtype]
            result["limited"], taken = limits(io, made, names, notes)
            for target, runtime in TARGETS.items():
                result["reason"] = judged(out / f"model.{target}.onnx", made, names, outputs, taken, runtime)
                if result["reason"]:
                    result["reason"] = f"{runtime}: {result['reason']}"
                    result["verdict"] = str(artifact.check(target).verdict)
                    break
        except Exception as err:  # as above
            result["reason"] = result["reason"] or told(err)
    result["reason"] = result["reason"] or "; ".join(result["limited"])
    result["right"] = not result["reason"]
    result["silent"] = bool(result.get("limited")) and any("without a note" in each for each in result["limited"])
    return result


def limits(
    io: Any, made: Made, names: Sequence[str], notes: Sequence[str]
) -> tuple[list[str], list[Mapping[str, Any]]]:
    """The sizes that the module takes and the contract does not, `without a note` where nothing was said of it; and the
    inputs that the contract takes."""
    from attnport_bundle.errors import FeedError
    from attnport_bundle.feeds import check_shapes

    found: list[str] = []
    taken: list[Mapping[str, Any]] = []
    for values in made.values(names):
        try:
            check_shapes(io, {name: value.numpy() for name, value in values.items()},
                         {name: str(value.dtype).removeprefix("torch.") for name, value in values.items()})  # fmt: skip
        except FeedError as err:
            names_of = {dim.name for dim in io.dims if dim.name in str(err)}
            axes = {f"axis {axis} of {spec.name}": dim for spec in io.inputs for axis, dim in enumerate(spec.dims)
                    if dim in names_of or (isinstance(dim, int) and dim != values[spec.name].shape[axis])}  # fmt: skip
            noted = all(any(axis in note or (str(dim) in names_of and str(dim) in note) for note in notes)
                        for axis, dim in axes.items())  # fmt: skip
            found.append(f"{err}" + ("" if noted else " (without a note)"))
        else:
            taken.append(values)
    return list(dict.fromkeys(found)), taken


SIDES: dict[str, Callable[[Published], dict[str, Any]]] = {
    "torch": torch_alone,
    "examples": from_examples,
    "declared": declared,
}


if __name__ == "__main__":
    main()
