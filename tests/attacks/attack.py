"""Carries out an attack that a JSON file describes, on a copy of a bundle, of an artifact or of an `hf:` folder.

A description: `about` (one sentence), `on` (`bundle`, `artifact`, `hf` or `server`), `do` (steps, see `STEPS`; of a
server see `body`), `reseal` (the attacker can write the manifest too: sizes and digests are made to fit afterwards),
`exit` (2 or 6; of a server the status of HTTP), `says` (a part of the message). It may have `readers` (the exit code of
a reader inside of an application for what only `attnport verify` looks for: 2 where the runtime refuses it, 0 where
nobody uses it; see FORMAT.md, Verify), `signed` (the bundle is
signed before the attack), `key` (what the reader checks it with: `right`, `other`, `small_order`, `inside` the bundle,
`linked` into it; else nothing) and `found` (`open` or `run`: what has to happen before a reader can know; else nothing
has to).
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hostile_models
import keys
import numpy as np
from safetensors.numpy import load_file, save_file

from attnport.bundling.signing import sign

ENGINE = "engines/fake.engine"
MANIFESTS = {"bundle": "bundle.json", "artifact": "attnport.json", "hf": "config.json"}


@dataclass(frozen=True)
class Attack:
    """One attack: what it does, and the answer that every reader owes it."""

    name: str
    about: str
    on: str
    do: list[dict[str, Any]]
    reseal: bool
    exit: int
    says: str
    signed: bool = False
    key: str | None = None
    found: str = "files"
    readers: int = -1

    def __post_init__(self) -> None:
        if self.readers < 0:
            object.__setattr__(self, "readers", self.exit)


def read(path: Path) -> Attack:
    return Attack(name=path.stem, **json.loads(path.read_text()))


def body(attack: Attack) -> bytes:
    """What is sent to a server: pieces, each so many times, of text with "#" for its number, or for gRPC in hex."""
    (step,) = attack.do
    if step["by"] == "grpc":
        return b"".join(bytes.fromhex(piece) * times for piece, times in step["body"])
    return "".join(
        "".join(piece.replace("#", str(at)) for at in range(times)) if "#" in piece else piece * times
        for piece, times in step["body"]
    ).encode()


def carry_out(attack: Attack, folder: Path) -> None:
    """Attacks the folder."""
    manifest = folder / MANIFESTS[attack.on]
    if attack.signed:
        secret = folder.parent / "private.pem"
        secret.write_text(keys.private_pem(keys.SEED))
        sign(folder, secret)
    for step in attack.do:
        arguments = dict(step)
        STEPS[arguments.pop("step")](folder, manifest, **arguments)
    if attack.reseal:
        reseal(folder, manifest)


def reseal(folder: Path, manifest: Path) -> None:
    """Makes the manifest's digests fit the files, as somebody does who can write both."""
    value = json.loads(manifest.read_text())
    for name in value["files"]:
        path = folder / name
        if path.is_file():
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            is_bundle = manifest.name == MANIFESTS["bundle"]
            value["files"][name] = {"bytes": path.stat().st_size, "sha256": digest} if is_bundle else digest
    manifest.write_text(json.dumps(value))


def flip(folder: Path, manifest: Path, file: str, at: float) -> None:
    """One bit of the byte at the fraction `at` of the file."""
    data = bytearray((folder / file).read_bytes())
    data[int(at * (len(data) - 1))] ^= 1
    (folder / file).write_bytes(data)


def truncate(folder: Path, manifest: Path, file: str, to: float) -> None:
    os.truncate(folder / file, int(to * (folder / file).stat().st_size))


def delete(folder: Path, manifest: Path, file: str) -> None:
    (folder / file).unlink()


def add(folder: Path, manifest: Path, file: str, text: str = "") -> None:
    (folder / file).parent.mkdir(parents=True, exist_ok=True)
    (folder / file).write_text(text)


def add_folder(folder: Path, manifest: Path, name: str) -> None:
    (folder / name).mkdir()


def move_out(folder: Path, manifest: Path, file: str, link: str, to: str = "../outside") -> None:
    """The file goes beside the folder, and a `symbolic` link, `hard` link or `fifo` takes its place."""
    outside = folder / to
    outside.parent.mkdir(parents=True, exist_ok=True)
    (folder / file).rename(outside)
    if link == "symbolic":
        (folder / file).symlink_to(outside, target_is_directory=outside.is_dir())
    elif link == "fifo":
        os.mkfifo(folder / file)


def edit(folder: Path, manifest: Path, at: list[str | int], to: Any = None, remove: bool = False) -> None:
    """Sets a value inside the manifest, or removes it; `at` is the way to it."""
    value = json.loads(manifest.read_text())
    place = value
    for key in at[:-1]:
        place = place[key]
    if remove:
        del place[at[-1]]
    else:
        place[at[-1]] = to
    manifest.write_text(json.dumps(value))


def multiply(folder: Path, manifest: Path, forms: int, cases: int) -> None:
    """So many copies of the first form, each with a plan of its own, and so many golden cases of one output each."""
    value = json.loads(manifest.read_text())
    first, bound = next(iter(value["forms"].values())), value["goldens"]["bounds"][0]
    value["forms"] = {f"form{number}": {**first, "plan": f"plan{number}"} for number in range(forms)}
    value["order"] = list(value["forms"])
    value["goldens"]["bounds"] = [{**bound, "case": f"case{number}", "plan": "plan0"} for number in range(cases)]
    manifest.write_text(json.dumps(value))


def rekey(folder: Path, manifest: Path, key: str, to: str) -> None:
    """Gives a file another name in the manifest."""
    value = json.loads(manifest.read_text())
    value["files"][to] = value["files"].pop(key)
    manifest.write_text(json.dumps(value))


def replace(folder: Path, manifest: Path, old: str, new: str, times: int = 1) -> None:
    """Replaces text of the manifest once; `new` is repeated `times` times."""
    text = manifest.read_text()
    assert old in text
    manifest.write_text(text.replace(old, new * times, 1))


def replace_bytes(folder: Path, manifest: Path, hex: str) -> None:  # noqa: A002 - the key in the data
    manifest.write_bytes(bytes.fromhex(hex))


def external(folder: Path, manifest: Path, file: str, key: str, value: str) -> None:
    """Sets a key of the external data of the first tensor that has some."""
    import onnx

    model = onnx.load(folder / file, load_external_data=False)
    tensor = next(tensor for tensor in model.graph.initializer if tensor.external_data)
    for entry in list(tensor.external_data):
        if entry.key == key:
            tensor.external_data.remove(entry)
    tensor.external_data.add(key=key, value=value)
    (folder / file).write_bytes(model.SerializeToString())


def hidden_external(folder: Path, manifest: Path, file: str, location: str) -> None:
    """A tensor with external data in a node's attribute, where few look."""
    import onnx

    model = onnx.load(folder / file, load_external_data=False)
    tensor = onnx.TensorProto(data_type=onnx.TensorProto.FLOAT, dims=[4], data_location=onnx.TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value=location)
    node = onnx.helper.make_node("Constant", [], ["unused"], value=tensor)
    model.graph.node.insert(0, node)
    (folder / file).write_bytes(model.SerializeToString())


def wrapped_enum(folder: Path, manifest: Path, file: str) -> None:
    """A tensor whose `data_location` is 2**32 + 1, which protobuf cuts to 1: external data not every reader sees."""
    import onnx

    tensor = onnx.TensorProto(data_type=onnx.TensorProto.FLOAT, dims=[4], name="unused")
    tensor.external_data.add(key="location", value="../outside")
    field = tensor.SerializeToString() + bytes([14 << 3, 0x81, 0x80, 0x80, 0x80, 0x10])
    graph = bytes([5 << 3 | 2, len(field)]) + field
    # Protobuf joins a message that is there twice, so the file may end with one more piece of the graph.
    with (folder / file).open("ab") as model:
        model.write(bytes([7 << 3 | 2, len(graph)]) + graph)


def wrapped_tag(folder: Path, manifest: Path, file: str) -> None:
    """A graph behind a tag of 35 bits, of which some parsers keep 32: field 7 for them, an unknown one for others."""
    import onnx

    tensor = onnx.TensorProto(data_type=onnx.TensorProto.FLOAT, dims=[4], name="unused", data_location=1)
    tensor.external_data.add(key="location", value="../outside")
    field = tensor.SerializeToString()
    graph = bytes([5 << 3 | 2, len(field)]) + field
    with (folder / file).open("ab") as model:
        model.write(bytes([0xBA, 0x80, 0x80, 0x80, 0x10, len(graph)]) + graph)


def append(folder: Path, manifest: Path, file: str, model: str, size: int = 0) -> None:
    """Adds one of `hostile_models` to a model file."""
    with (folder / file).open("ab") as out:
        out.write(hostile_models.BUILDERS[model](size))


def rename(folder: Path, manifest: Path, file: str, to: str) -> None:
    """Gives a file of the bundle another name, and the forms that open it too."""
    (folder / file).rename(folder / to)
    value = json.loads(manifest.read_text())
    value["files"][to] = value["files"].pop(file)
    for form in value["forms"].values():
        form["file"] = to if form["file"] == file else form["file"]
    manifest.write_text(json.dumps(value))


def retext(folder: Path, manifest: Path, file: str, old: str, hex: str) -> None:  # noqa: A002 - the key in the data
    """Puts bytes in place of a text of as many, wherever a model file has it whole: a name, an operator."""
    data, new = (folder / file).read_bytes(), bytes.fromhex(hex)
    assert len(new) == len(old)
    length = bytes([len(new)])
    assert length + old.encode() in data
    (folder / file).write_bytes(data.replace(length + old.encode(), length + new))


GOLDENS = "goldens.safetensors"


def golden(folder: Path, manifest: Path, name: str, dtype: str) -> None:
    """Gives one array of the goldens another dtype."""
    arrays = load_file(folder / GOLDENS)
    save_file({**arrays, name: arrays[name].astype(dtype)}, folder / GOLDENS)


def add_golden(folder: Path, manifest: Path, name: str, like: str) -> None:
    """Adds an array to the goldens: the values of another one under a name of its own."""
    arrays = load_file(folder / GOLDENS)
    save_file({**arrays, name: arrays[like]}, folder / GOLDENS)


def remove_golden(folder: Path, manifest: Path, name: str) -> None:
    """Takes an array out of the goldens, data and all."""
    arrays = load_file(folder / GOLDENS)
    del arrays[name]
    save_file(arrays, folder / GOLDENS)


def edit_header(folder: Path, manifest: Path, at: list[str | int], to: Any) -> None:
    """Sets a value inside the header of the goldens; `at` is the way to it."""
    header, data = _parts(folder)
    value = json.loads(header)
    place = value
    for key in at[:-1]:
        place = place[key]
    place[at[-1]] = to
    _join(folder, json.dumps(value).encode(), data)


def move_data(folder: Path, manifest: Path, name: str, by: int) -> None:
    """An array of the goldens has its data so many bytes further on, and the file is as much longer."""
    header, data = _parts(folder)
    value = json.loads(header)
    value[name]["data_offsets"] = [offset + by for offset in value[name]["data_offsets"]]
    _join(folder, json.dumps(value).encode(), data + bytes(by))


def replace_in_header(folder: Path, manifest: Path, old: str, hex: str) -> None:  # noqa: A002 - the key in the data
    """Replaces a text of the header of the goldens by bytes, once."""
    header, data = _parts(folder)
    assert old.encode() in header
    _join(folder, header.replace(old.encode(), bytes.fromhex(hex), 1), data)


def replace_header(folder: Path, manifest: Path, text: str, times: int = 1) -> None:
    """The goldens have another header, of a text that is there so many times."""
    _join(folder, text.encode() * times, _parts(folder)[1])


def surround(folder: Path, manifest: Path, file: str, before: str = "", behind: str = "") -> None:
    """Adds text in front of what a file has, and behind it."""
    data = (folder / file).read_bytes()
    (folder / file).write_bytes(before.encode() + data + behind.encode())


def pickle_goldens(folder: Path, manifest: Path) -> None:
    """The goldens become an archive as NumPy writes it, with an object in it that only unpickling brings back."""
    arrays = load_file(folder / GOLDENS)
    objects = {name: array.astype(object) if name.endswith("/ids") else array for name, array in arrays.items()}
    with (folder / GOLDENS).open("wb") as file:
        np.savez(file, **objects)  # type: ignore[arg-type]  # NumPy's stub takes a keyword for an option


def _parts(folder: Path) -> tuple[bytes, bytes]:
    """The header and the data of the goldens."""
    whole = (folder / GOLDENS).read_bytes()
    end = 8 + int.from_bytes(whole[:8], "little")
    return whole[8:end], whole[end:]


def _join(folder: Path, header: bytes, data: bytes) -> None:
    (folder / GOLDENS).write_bytes(len(header).to_bytes(8, "little") + header + data)


def add_engine(folder: Path, manifest: Path) -> None:
    """A form more: an engine of TensorRT-RTX 1.7.1.116 for SM 86 by its header, garbage behind it; all of it agrees."""
    body = bytes(range(200))
    head = b"vtrt" + bytes(12) + struct.pack("<Q", 36 + len(body)) + bytes([1, 7, 1, 116]) + bytes(4) + b"\4\0\0\0"
    value = json.loads(manifest.read_text())
    form = json.loads(json.dumps(value["forms"]["ort_cpu"]))
    form |= {"file": ENGINE, "external": [], "runtime": "tensorrt_rtx", "provider": None, "proof": "graph-only"}
    form |= {"profiles": [{"dims": value["io"]["dims"]}], "fusion": None}
    form["requires"] = {"runtime": "1.7.1.116", "exact": True, "opset": None, "sm": [86]}
    form["parity"] |= {"runtime": "NOT_RUN"}
    value["forms"]["tensorrt_rtx"] = form
    value["order"].append("tensorrt_rtx")
    value["files"][ENGINE] = {"bytes": 0, "sha256": "0" * 64}
    (folder / ENGINE).parent.mkdir()
    (folder / ENGINE).write_bytes(head + body)
    manifest.write_text(json.dumps(value))
    reseal(folder, manifest)


def overwrite(folder: Path, manifest: Path, file: str, at: int, hex: str) -> None:  # noqa: A002 - the key in the data
    """Writes bytes over those of a file; `at` counts from its end where it is below zero."""
    data = bytearray((folder / file).read_bytes())
    new = bytes.fromhex(hex)
    at = at + len(data) if at < 0 else at
    data[at : at + len(new)] = new
    (folder / file).write_bytes(data)


STEPS: dict[str, Callable[..., None]] = {
    step.__name__: step
    for step in (
        flip,
        truncate,
        delete,
        add,
        add_folder,
        move_out,
        edit,
        multiply,
        rekey,
        replace,
        replace_bytes,
        external,
        hidden_external,
        wrapped_enum,
        wrapped_tag,
        append,
        rename,
        retext,
        golden,
        add_golden,
        remove_golden,
        edit_header,
        move_data,
        replace_in_header,
        replace_header,
        surround,
        pickle_goldens,
        add_engine,
        overwrite,
    )
}
