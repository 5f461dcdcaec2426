"""`verify` ends, and says why, whatever a model does to the process that runs it."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import onnx
import pytest
from refusing import call, refused

from attnport.errors import IntegrityError, UnavailableError
from attnport.jsonfile import digest_file
from attnport.processes import isolated, worker
from attnport.processes.isolated import Child, Died
from attnport.verbs import verify as verifying
from attnport.verbs.verify import raise_for, verify
from attnport_bundle.format.manifest import MANIFEST

FILE = "model.ort_cpu.onnx"


def with_loop(app: Path, times: int) -> Path:
    """The bundle with a Loop in front of an output, which changes nothing of it; sealed again."""
    helper, kinds = onnx.helper, onnx.TensorProto
    model = onnx.load(app / FILE, load_external_data=False)
    output = model.graph.output[-1].name
    for node in model.graph.node:
        node.output[:] = ["before the loop" if name == output else name for name in node.output]
    flag = helper.make_tensor_value_info("go on", kinds.BOOL, [])
    value, after = (helper.make_tensor_value_info(name, kinds.FLOAT, None) for name in ("value", "value after"))
    nodes = [helper.make_node("Identity", ["go on"], ["still"]), helper.make_node("Abs", ["value"], ["a"])]
    nodes += [helper.make_node("Sub", ["a", "a"], ["0"]), helper.make_node("Add", ["value", "0"], ["value after"])]
    still = helper.make_tensor_value_info("still", kinds.BOOL, [])
    count = helper.make_tensor_value_info("count", kinds.INT64, [])
    body = helper.make_graph(nodes, "body", [count, flag, value], [still, after])
    model.graph.node.extend(
        [
            helper.make_node("Constant", [], ["times"], value=helper.make_tensor("", kinds.INT64, [], [times])),
            helper.make_node("Loop", ["times", "", "before the loop"], [output], body=body),
        ]
    )
    (app / FILE).write_bytes(model.SerializeToString())
    manifest = json.loads((app / MANIFEST).read_text())
    manifest["files"][FILE] = {"bytes": (app / FILE).stat().st_size, "sha256": digest_file(app / FILE)}
    (app / MANIFEST).write_text(json.dumps(manifest))
    return app


@pytest.fixture
def endless(app: Path) -> Path:
    return with_loop(app, 2**63 - 1)


def children() -> list[int]:
    """The processes that this one started and that are still there."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == os.getpid():
            found.append(int(path.parent.name))
    return found


def test_a_loop_that_ends_is_verified(app: Path) -> None:
    result = verify(with_loop(app, 3))
    raise_for(result)
    assert result.verdict == "PASS"


def test_an_endless_loop_is_refused_when_its_time_is_over(endless: Path) -> None:
    before = children()
    began = time.monotonic()
    with pytest.raises(IntegrityError, match=r"had 2.5 s; it did not answer in time\.") as raised:
        verify(endless, timeout_s=2.5)
    assert time.monotonic() - began < 30
    assert str(endless) in raised.value.message
    assert "--timeout" in raised.value.hint
    assert children() == before


def test_the_command_line_has_the_limit_too(endless: Path) -> None:
    refused(call("verify", endless, "--timeout", "2"), "had 2 s; it did not answer in time", code=6)


@pytest.mark.parametrize("seconds", ["0", "-1", "x"])
def test_a_limit_that_is_none_is_wrong_use(app: Path, seconds: str) -> None:
    refused(call("verify", app, "--timeout", seconds), "Invalid value for '--timeout'")


def test_a_limit_far_beyond_any_check_is_taken(app: Path) -> None:
    assert verify(app, timeout_s=1e300).verdict == "PASS"


def test_a_model_that_takes_more_memory_than_there_is_is_refused(
    endless: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(isolated, "memory_limit_bytes", lambda: 20 << 20)
    with pytest.raises(IntegrityError, match=r"GiB of memory; 0\.0 GiB is its limit"):
        verify(endless, timeout_s=60)


def instead(code: str) -> Callable[[float], SimpleNamespace]:
    """In place of `Limits`: a child that runs `code` once it is asked."""
    start = "import os, sys; from attnport.processes.worker import read_frame; read_frame(sys.stdin.buffer)\n"
    return lambda _: SimpleNamespace(start=lambda threads: Child(1, ("-c", start + code)))


def test_a_runtime_that_dies_is_an_answer(app: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "print('free(): invalid pointer', file=sys.stderr, flush=True); os.kill(os.getpid(), 11)"
    monkeypatch.setattr(verifying, "Limits", instead(code))
    with pytest.raises(IntegrityError, match=r"it ended by SIGSEGV: free\(\): invalid pointer"):
        verify(app)
    refused(call("verify", app), "it ended by SIGSEGV", code=6)


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's timer")
def test_a_check_that_nobody_waits_for_ends_by_itself(endless: Path) -> None:
    child = Child(1)
    try:
        with pytest.raises(Died, match="SIGALRM"):
            child.ask("selftest", 60.0, folder=str(endless), key=None, against=None, limit_s=2.0 - worker.GRACE_S)
    finally:
        child.kill()


def test_neither_models_nor_their_runtime_are_in_the_process_that_asks(
    app: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import onnxruntime

    monkeypatch.setattr(onnxruntime, "InferenceSession", lambda *args, **kwargs: pytest.fail("a session was made"))
    assert verify(app).verdict == "PASS"


def test_a_relative_folder_is_that_of_the_caller(app: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(app.parent)
    result = verify(Path(app.name))
    assert (result.path, result.verdict) == (app.name, "PASS")


def test_a_bundle_in_which_no_model_ran_is_not_passed(app: Path) -> None:
    manifest = json.loads((app / MANIFEST).read_text())
    manifest["forms"]["ort_cpu"]["requires"]["runtime"] = "999.0"
    (app / MANIFEST).write_text(json.dumps(manifest))
    found = verify(app)
    assert (found.verdict, found.exit_code) == ("NOT_RUN", 3)
    with pytest.raises(UnavailableError, match=r"no model of it can run here: .*: got onnxruntime .*; expected 999.0"):
        raise_for(found)
