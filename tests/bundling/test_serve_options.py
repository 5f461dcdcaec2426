"""What `serve` refuses before an engine starts."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnx
import pytest
from click.testing import CliRunner
from onnx import TensorProto, helper

import attnport_bundle.serve as serving
from attnport.cli import cli
from attnport.errors import UsageError
from attnport.verbs import serve as verb
from attnport_bundle.errors import BundleError, RuntimeMissing
from attnport_bundle.format.manifest import Manifest, TokenizerFiles
from attnport_bundle.serve import ENGINES, Options, address, is_local, named, serve, tell_open, url

ROOT = Path(__file__).resolve().parents[2]


def test_bundles_are_named_by_their_manifest_or_by_the_caller(app: Path) -> None:
    (own,) = named([], app)
    assert named([f"v1={app}", "v2=elsewhere"], app) == {own: app, "v1": app, "v2": Path("elsewhere")}


@pytest.mark.parametrize("wrong", ["app", "=app", "v1=", "a/b=app", "a b=app", "é=app", "..=app", ".=app", "-v=app"])
def test_a_name_that_does_not_fit_into_an_address_is_refused(wrong: str) -> None:
    with pytest.raises(BundleError, match="NAME=FOLDER"):
        named([wrong])


def test_no_bundle_and_two_of_one_name_are_refused(app: Path) -> None:
    with pytest.raises(BundleError, match="no bundle to serve"):
        named([])
    (own,) = named([], app)
    with pytest.raises(BundleError, match="that no other has"):
        named([f"{own}=elsewhere"], app)


def test_numbers_out_of_range_are_refused_by_name() -> None:
    with pytest.raises(BundleError, match=r"replicas: got 0; expected 1 or more\."):
        Options(replicas=0)
    with pytest.raises(BundleError, match=r"threads: got -1; expected 0 or more\."):
        Options(threads=-1)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [("port", 70000, "1 to 65535"), ("grpc_port", 65536, "0 to 65535"), ("metrics_port", -1, "0 to 65535")],
)
def test_a_port_that_is_none_is_refused_by_name(name: str, value: int, expected: str) -> None:
    with pytest.raises(BundleError, match=rf"{name}: got {value}; expected {expected}\."):
        Options(**{name: value})


def test_a_port_that_is_none_is_refused_on_the_command_line(app: Path) -> None:
    result = CliRunner().invoke(cli, ["serve", str(app), "--port", "70000"])
    assert result.exit_code == 2
    assert "port: got 70000; expected 1 to 65535." in result.stderr
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    ("host", "local"),
    [("127.0.0.1", True), ("127.0.0.9", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("::", False)],
)
def test_whoever_reaches_a_host_is_told_of_before_it_is_opened(host: str, local: bool) -> None:
    told: list[str] = []
    tell_open(host, told.append)
    assert [line.partition(":")[0] for line in told] == ["warning"] * (not local)
    assert is_local(host) == local


def test_a_host_that_is_none_is_refused() -> None:
    for host in ("300.1.1.1", "a" * 300, ""):
        with pytest.raises(BundleError, match=r"host: got .* no address of this machine"):
            is_local(host)


def test_the_address_of_a_host_has_the_brackets_that_it_needs() -> None:
    assert url(Options(port=1)) == "http://127.0.0.1:1/v2"
    assert address("::1", 8081) == "[::1]:8081"


def test_an_engine_that_is_not_installed_is_named_with_its_packages(app: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for engine, extra in ENGINES.items():
        monkeypatch.setitem(sys.modules, engine, None)
        with pytest.raises(RuntimeMissing, match=f"^{engine} is not installed") as caught:
            serve({"app": app}, engine)
        # The command of docs/serve.md, which makes an environment for the server.
        install = f'serving/bin/pip install "{ROOT / "attnport_bundle"}[onnxruntime,{extra}]"'
        assert caught.value.hint.startswith(f"python -m venv serving && {install} && serving/bin/python")
        assert f"serve {shlex.quote(str(app))}" in caught.value.hint
        other: Any = SimpleNamespace(forms={"openvino": SimpleNamespace(runtime="openvino")})
        with pytest.raises(RuntimeMissing) as caught:
            serving.engine_of(engine, {Path("other"): other})
        assert f"[openvino,{extra}]" in caught.value.hint
    with pytest.raises(BundleError, match="expected kserve or ray"):
        serve({"app": app}, "other")


@pytest.mark.usefixtures("unconfined")
def test_a_model_is_exported_checked_and_bundled_once_before_it_is_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 4]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Add", ["x", "x"], ["y"])], "twice", sizes[:1], sizes[1:])
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10), tmp_path / "small.onnx"
    )
    served: list[dict[str, Path]] = []
    monkeypatch.setattr(verb.serving, "engine_of", lambda name, bundles=(): None)
    monkeypatch.setattr(verb.serving, "serve", lambda models, *more: served.append(dict(models)))
    monkeypatch.chdir(tmp_path)
    told: list[str] = []
    times = []
    for _ in range(2):
        verb.serve("small.onnx", tell=told.append)
        times.append({path: path.stat().st_mtime_ns for path in Path("out/small").glob("*.onnx")})
    assert served == [{"small": Path("out/small/bundle")}] * 2
    assert times[0] == times[1] != {}  # what is there is kept
    assert any("out/small" in line for line in told)
    with pytest.raises(UsageError, match="are for a model"):
        verb.serve("out/small", out="elsewhere")


def test_a_module_of_ones_own_is_served_or_refused_with_the_command_that_takes_its_inputs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exported: list[tuple[Any, ...]] = []
    monkeypatch.setattr(serving, "engine_of", lambda name, bundles=(): None)
    monkeypatch.setattr(serving, "serve", lambda *given: None)
    monkeypatch.setattr(serving, "named", lambda *given: {})
    monkeypatch.setattr(verb, "bundle", lambda *given, **options: given[1])
    monkeypatch.chdir(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(verb, "export", lambda *given, **options: exported.append(given))
        verb.serve("bert-encoder")  # a name of ours, for which there is no folder
    assert exported == [("bert-encoder", Path("out/bert-encoder"))]
    Path("own.py").write_text("from torch import nn\n\n\ndef make() -> nn.Module:\n    return nn.Linear(2, 2)\n")
    with pytest.raises(UsageError, match="inputs are not known") as caught:
        verb.serve("own.py:make", out="elsewhere")
    assert "inputs=" in caught.value.hint
    assert "attnport export own.py:make -o elsewhere" in caught.value.hint


def test_what_a_server_needs_is_named_by_its_packages(app: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kserve", None)
    result = CliRunner().invoke(cli, ["serve", str(app)])
    assert result.exit_code == 3
    assert "kserve is not installed" in result.stderr
    assert "hint: python -m venv serving && serving/bin/pip install" in result.stderr


def test_a_bundle_whose_texts_need_a_package_is_not_served_without_it(
    app: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other"
    shutil.copytree(app, other)
    told = json.loads((other / "bundle.json").read_text("utf-8"))
    (other / "tokenizer.json").write_text("{}")
    told["files"]["tokenizer.json"] = {"sha256": "0" * 64, "bytes": 2}
    told["tokenizer"] = {"file": "tokenizer.json", "chars": None}
    (other / "bundle.json").write_text(json.dumps(told))
    served: list[object] = []
    engine = SimpleNamespace(run=lambda models, *more: served.append(models))
    monkeypatch.setattr(serving, "engine_of", lambda name, bundles=(): engine)
    serve({"other": other})
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    serve({"app": app})
    assert served == [{"other": other}, {"app": app}]
    with pytest.raises(RuntimeMissing, match="texts need the package tokenizers") as caught:
        serve({"app": app, "other": other})
    assert caught.value.hint == "pip install tokenizers"


@pytest.mark.parametrize(
    ("chars", "decoder", "needed"),
    [(None, None, True), ("tokenizer.chars", None, False), ("tokenizer.chars", object(), True)],
)
def test_texts_of_decoders_and_of_other_tokenizers_than_berts_need_the_package(
    chars: str | None, decoder: object, needed: bool
) -> None:
    tokenizer = TokenizerFiles("tokenizer.json", chars)
    manifest = SimpleNamespace(tokenizer=tokenizer, io=SimpleNamespace(decoder=decoder))
    needs: Any = vars(Manifest)["needs_tokenizers"]
    assert needs.fget(manifest) is needed
