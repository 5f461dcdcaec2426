"""Makes small decoders with random weights that read words, with a chat template or without one."""

from __future__ import annotations

from pathlib import Path

WORDS = [f"{letter}{vowel}" for letter in "bdfghjklmnprstvwz" for vowel in "aeiou"]
SPECIAL = ["<unk>", "<s>", "</s>", "<|user|>", "<|assistant|>", "<|system|>"]
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{% if message['role'] not in ['user', 'assistant', 'system'] %}"
    "{{ raise_exception('no such role: ' + message['role']) }}{% endif %}"
    "{{ '<|' + message['role'] + '|>' }} {{ message['content'] | trim }} {% endfor %}"
    "{% if add_generation_prompt %}<|assistant|> {% endif %}"
)


def save(folder: Path, template: str | None = TEMPLATE) -> Path:
    """Saves the model as transformers does; gives the folder."""
    import tokenizers
    import torch
    import transformers

    words = {word: at for at, word in enumerate([*SPECIAL, *WORDS])}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<unk>"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    made.add_special_tokens(SPECIAL)
    made.post_processor = tokenizers.processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", words["<s>"])]
    )
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )
    fast.chat_template = template
    fast.save_pretrained(folder)
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=len(words), hidden_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=64, max_position_embeddings=512, bos_token_id=1, eos_token_id=2, initializer_range=0.3,
    )  # fmt: skip
    transformers.LlamaForCausalLM(config).eval().save_pretrained(folder)
    return folder
