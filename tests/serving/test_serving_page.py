"""What docs/serve.md shows: its command, its client's program, its curl, and the configurations of both engines."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from loads.server import Server, environment, free_port, serving

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "serve.md").read_text("utf-8")
pytestmark = pytest.mark.timeout(300)


def block(language: str, words: str) -> str:
    """The fenced block of a language that has these words."""
    blocks = re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    (found,) = (text for text in blocks if words in text)
    return str(found)


def curl(words: str, server: Server, name: str = "NAME") -> str:
    """What the curl of the page that has these words prints, asking a server."""
    (line,) = (line for line in re.findall(r"^curl .*?(?=^```)", PAGE, re.DOTALL | re.MULTILINE) if words in line)
    line = line.replace("8080", str(server.port)).replace("NAME", name)
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_programs_and_curls_of_the_page_are_answered(minilm: Path) -> None:
    assert "attnport serve app/" in PAGE
    with serving("kserve", {}, command=["attnport", "serve", str(minilm)]) as server:
        for client in ("tritonclient", "openai"):
            program = block("python", client)
            done = subprocess.run(
                [sys.executable, "-c", program.replace("8080", str(server.port))], capture_output=True, text=True
            )
            assert done.stdout.strip() == program.rpartition("  # ")[2].strip(), done.stderr
        assert json.loads(curl("/infer", server))["outputs"][0]["shape"] == [1, 384]
        assert len(json.loads(curl("/v1/embeddings", server))["data"][0]["embedding"]) == 128


def test_the_chat_of_the_page_is_answered(speaker: Path) -> None:
    with serving("kserve", {"speaker": speaker}) as server:
        assert curl("/v1/chat/completions", server, "speaker").endswith("data: [DONE]\n\n")


def test_the_application_of_the_configuration_is_one_that_ray_builds(minilm: Path) -> None:
    (told,) = yaml.safe_load(block("yaml", "import_path"))["applications"]
    module, _, name = told["import_path"].partition(":")
    arguments = {**told["args"], "models": {"minilm": str(minilm)}}
    # In a process of its own: the messages of kserve and of tritonclient cannot be in one.
    program = f"from {module} import {name}; print(type({name}({arguments!r})).__name__)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment())
    assert done.stdout == "Application\n", done.stderr


def test_the_container_of_the_service_runs_the_readers_command(minilm: Path) -> None:
    (container,) = yaml.safe_load(block("yaml", "InferenceService"))["spec"]["predictor"]["containers"]
    python, *words = container["command"]
    assert python == "python"
    assert words[:3] == ["-m", "attnport_bundle", "serve"]
    words = [sys.executable, *(word.replace("/mnt/models", str(minilm)) for word in words)]
    with serving("kserve", {}, command=words) as server:
        assert container["readinessProbe"]["httpGet"]["path"] == "/v2/health/ready"
        assert server.process.poll() is None


def test_a_port_that_is_taken_ends_the_server_with_an_error(minilm: Path) -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        command = [sys.executable, "-m", "attnport_bundle", "serve", str(minilm), "--grpc-port", str(free_port())]
        done = subprocess.run(
            [*command, "--port", str(taken.getsockname()[1])], capture_output=True, text=True, env=environment()
        )
    assert done.returncode == 2
    assert "nothing can listen there: [Errno 98] Address already in use" in done.stderr
    assert "--port chooses another port." in done.stderr
    assert "Traceback" not in done.stderr
