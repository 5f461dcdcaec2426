"""What a user chooses of an `hf:` model."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Choices:
    """The options that only `hf:` models have.

    Attributes:
        trust_remote_code: Run the Python code that its `config.json` names instead of transformers' classes.
        task: The head: a pipeline's name such as `text-classification`, or an auto class; "" = the checkpoint's own.
        part: `encoder`, `decoder`, `text`, `vision`, ...; "" = the whole model.
    """

    trust_remote_code: bool = False
    task: str = ""
    part: str = ""
