"""llama.cpp's file of a decoder of GPT-2's or Llama's kind, and its steps by the library's own functions."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
GPT2 = {
    "wte": "token_embd",
    "wpe": "position_embd",
    "ln_f": "output_norm",
    "ln_1": "attn_norm",
    "attn.c_attn": "attn_qkv",
    "attn.c_proj": "attn_output",
    "ln_2": "ffn_norm",
    "mlp.c_fc": "ffn_up",
    "mlp.c_proj": "ffn_down",
}
LLAMA = {
    "embed_tokens": "token_embd",
    "norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
"""llama.cpp's names by transformers', as its converter has them."""


def weights(file: Path) -> dict[str, Array]:
    """The float32 tensors of a safetensors file."""
    data = file.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    return {
        name: np.frombuffer(data[8 + size :][slice(*row["data_offsets"])], "<f4").reshape(row["shape"])
        for name, row in header.items()
        if name != "__metadata__" and row["dtype"] == "F32"
    }


def write_decoder(source: Path, folder: Path, variant: str) -> None:
    """Writes `model.gguf` with matrices in the variant's type, without a vocabulary: tokens are given as ids."""
    import gguf

    config = json.loads((source / "config.json").read_text())
    kind = getattr(gguf.GGMLQuantizationType, variant.upper())
    writer = gguf.GGUFWriter(str(folder / "model.gguf"), config["model_type"])
    gpt2 = config["model_type"] == "gpt2"
    width, heads = (config["n_embd"], config["n_head"]) if gpt2 else (
        config["hidden_size"], config["num_attention_heads"])  # fmt: skip
    writer.add_context_length(config["n_positions" if gpt2 else "max_position_embeddings"])
    writer.add_embedding_length(width)
    writer.add_feed_forward_length(4 * width if gpt2 else config["intermediate_size"])
    writer.add_block_count(config["n_layer" if gpt2 else "num_hidden_layers"])
    writer.add_head_count(heads)
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("no_vocab")
    if gpt2:
        writer.add_layer_norm_eps(config["layer_norm_epsilon"])
    else:
        writer.add_head_count_kv(config["num_key_value_heads"])
        writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
        writer.add_rope_dimension_count(width // heads)
        writer.add_rope_freq_base(config.get("rope_theta") or config["rope_parameters"]["rope_theta"])
    for name, array in _tensors(weights(source / "model.safetensors"), config, heads):
        exact = array.ndim == 1 or name.startswith("position_embd")
        stored = np.ascontiguousarray(array) if exact else gguf.quants.quantize(np.ascontiguousarray(array), kind)
        writer.add_tensor(name, stored, raw_dtype=None if exact else kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _tensors(given: Mapping[str, Array], config: Mapping[str, Any], heads: int) -> Iterator[tuple[str, Array]]:
    """Names and tensors as llama.cpp has them."""
    gpt2 = config["model_type"] == "gpt2"
    names = GPT2 if gpt2 else LLAMA
    for name, array in given.items():
        own = name.removeprefix("transformer." if gpt2 else "model.")
        prefix = ""
        if own.startswith(("h.", "layers.")):
            _, layer, own = own.split(".", 2)
            prefix = f"blk.{layer}."
        stem, _, kind = own.rpartition(".")
        if stem not in names or (gpt2 and stem == "lm_head"):
            continue
        if gpt2 and array.ndim == 2 and prefix:
            array = array.T  # its linear layers have their weights as [in, out]
        if stem in ("self_attn.q_proj", "self_attn.k_proj"):
            # The halves that transformers rotates together are neighbours in llama.cpp.
            count = heads if stem.endswith("q_proj") else config["num_key_value_heads"]
            array = array.reshape(count, 2, -1, array.shape[1]).swapaxes(1, 2).reshape(array.shape)
        yield f"{prefix}{names[stem]}.{kind}", array


def begun(file: Path, threads: int) -> Callable[[int], Any]:
    """Begins so many texts: a function that takes ids `[texts, new]` and gives the last ones' logits."""
    import llama_cpp

    llama_cpp.llama_backend_init()
    settings = llama_cpp.llama_model_default_params()
    settings.n_gpu_layers = 0
    model = llama_cpp.llama_model_load_from_file(str(file).encode(), settings)
    if not model:
        raise RuntimeError(f"llama.cpp does not read {file}")
    words = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
    places = llama_cpp.llama_model_n_ctx_train(model)
    kept: list[Any] = []

    def begin(batch: int) -> Callable[[Array], Array]:
        if kept:
            llama_cpp.llama_free(kept.pop())
        wanted = llama_cpp.llama_context_default_params()
        wanted.n_ctx, wanted.n_seq_max = places * batch, batch
        wanted.n_batch = wanted.n_ubatch = min(places * batch, 2048)
        wanted.n_threads = wanted.n_threads_batch = threads
        context = llama_cpp.llama_init_from_model(model, wanted)
        kept.append(context)
        at = [0]

        def step(ids: Array) -> Array:
            rows, count = ids.shape
            given = llama_cpp.llama_batch_init(rows * count, 0, 1)
            given.n_tokens = rows * count
            for row in range(rows):
                for place in range(count):
                    number = row * count + place
                    given.token[number], given.pos[number] = int(ids[row, place]), at[0] + place
                    given.n_seq_id[number], given.seq_id[number][0] = 1, row
                    given.logits[number] = place + 1 == count
            failed = llama_cpp.llama_decode(context, given)
            if failed:
                raise RuntimeError(f"llama_decode gave {failed}")
            at[0] += count
            last = [llama_cpp.llama_get_logits_ith(context, (row + 1) * count - 1) for row in range(rows)]
            found = np.stack([np.ctypeslib.as_array(each, (words,)).copy() for each in last])
            llama_cpp.llama_batch_free(given)
            return found

        return step

    return begin
