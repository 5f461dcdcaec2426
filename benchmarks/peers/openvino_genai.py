"""OpenVINO GenAI: optimum-intel's export, float32, bf16 or weights of 4 bits in groups of 32, in its pipeline."""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

ENVIRONMENT = "genai"
VARIANTS: dict[str, str] = {}
"""Of encoders: there are none."""
MOST_TOKENS = 512
PRECISIONS = {
    "fp32": {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"},
    "bf16": {"INFERENCE_PRECISION_HINT": "bf16", "KV_CACHE_PRECISION": "bf16"},
    "int4": {},
}
"""With weights of 4 bits, its own choice: a cache of 8 bits, among others."""


def make(model: Mapping[str, Any], folder: Path, variant: str) -> None:
    """Exports, and quantises the weights."""
    from optimum.intel import OVModelForCausalLM, OVWeightQuantizationConfig

    four = OVWeightQuantizationConfig(bits=4, sym=True, group_size=32, ratio=1.0) if variant == "int4" else None
    read = OVModelForCausalLM.from_pretrained
    made = read(model["folder"], export=True, load_in_8bit=False, quantization_config=four, trust_remote_code=False)
    made.save_pretrained(folder)
    # It refuses a model without a token that ends texts; which one it is does not matter, as it is told to ignore it.
    for path in (folder / "config.json", folder / "generation_config.json"):
        path.write_text(json.dumps({**json.loads(path.read_text()), "eos_token_id": 0}))


def decoder(model: Mapping[str, Any], folder: Path, variant: str, threads: int) -> Callable[[int], Any]:
    """`LLMPipeline`, which gives tokens and no scores: the token found has the only score above zero."""
    import openvino_genai

    settings = {"INFERENCE_NUM_THREADS": threads, "ATTENTION_BACKEND": "SDPA", **PRECISIONS[variant]}
    pipeline = openvino_genai.LLMPipeline(str(folder), "CPU", **settings)
    running: list[_Text] = []

    def begin(batch: int) -> Callable[[Any], Any]:
        if batch > 1:
            raise NotImplementedError("it gives the tokens of one text alone while it runs")
        while running:
            running.pop().end()
        text = _Text(pipeline)
        running.append(text)

        def step(ids: Any) -> Any:
            scores = np.zeros((1, model["vocabulary"]), np.float32)
            scores[0, text.next(ids)] = 1
            return scores

        return step

    return begin


class _Text:
    """A text that a thread continues: one token each time that it is asked for one, so that what is timed is a step."""

    def __init__(self, pipeline: Any) -> None:
        self.pipeline = pipeline
        self.found: queue.Queue[Any] = queue.Queue()
        self.asked = threading.Semaphore(0)
        self.thread: threading.Thread | None = None
        self.over = False

    def next(self, prompt: Any) -> int:
        """The next token. The first call reads the prompt.

        Raises:
            Exception: what the pipeline raised.
        """
        if self.thread is None:
            self.thread = threading.Thread(target=self._run, args=(prompt,), daemon=True)
            self.thread.start()
        else:
            self.asked.release()
        found = self.found.get()
        if isinstance(found, Exception):
            raise found
        return int(found)

    def end(self) -> None:
        """Ends the thread behind its token."""
        self.over = True
        self.asked.release()
        if self.thread is not None:
            self.thread.join()

    def _run(self, ids: Any) -> None:
        import openvino
        import openvino_genai

        text = self

        class Streamer(openvino_genai.StreamerBase):  # type: ignore[misc]  # the package has no types
            def write(self, token: Any) -> Any:
                for one in [token] if isinstance(token, int) else token:
                    text.found.put(one)
                text.asked.acquire()
                status = openvino_genai.StreamingStatus
                return status.STOP if text.over else status.RUNNING

            def end(self) -> None:
                pass

        options = openvino_genai.GenerationConfig(max_new_tokens=MOST_TOKENS, ignore_eos=True, do_sample=False)
        tokens = openvino_genai.TokenizedInputs(openvino.Tensor(ids), openvino.Tensor(np.ones_like(ids)))
        try:
            self.pipeline.generate(tokens, options, Streamer())
        except Exception as err:  # told where the token is awaited
            self.found.put(err)
