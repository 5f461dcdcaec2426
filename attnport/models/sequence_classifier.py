"""A classifier of sequences: BERT's encoder, pooling over the real tokens, and a head.

Devlin et al., "BERT" (2019), section 4.1, pools by taking the first token; Reimers and Gurevych, "Sentence-BERT"
(2019), by the mean over the real ones, which they found to be better for embeddings. On the encoder's y [B, T, E]:

    p = y[first real token]    or    sum over kept t of y[t] / kept        [B, E]
    scores = Wc tanh(Wp p + bp) + bc                                       [B, labels]

Padding never affects the scores, wherever it is. The mean is zero for an item without real tokens.

Cost: the encoder's, and B T E + 2 B E^2 floating-point operations for pooling and head.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import nn

from attnport.artifacts import IOContract, ModelSpec
from attnport.dims import TensorSpec
from attnport.errors import UsageError
from attnport.models import bert_encoder
from attnport.models.bert_encoder import BertConfig, BertEncoder
from attnport.models.blocks.model import build, model_spec

POOLINGS = ("mean", "first")


@dataclass(frozen=True)
class ClassifierConfig:
    """The encoder's sizes, how many labels there are, and the pooling: `mean` or `first`.

    Raises:
        UsageError: another pooling.
    """

    encoder: BertConfig = field(default_factory=BertConfig)
    labels: int = 5
    pooling: str = "mean"

    def __post_init__(self) -> None:
        if self.pooling not in POOLINGS:
            raise UsageError(f"sequence_classifier: got pooling {self.pooling!r}; expected {' or '.join(POOLINGS)}.")


class MeanPooling(nn.Module):
    """The mean over the tokens that a mask keeps; zero if it keeps none."""

    def forward(self, x_BTE: torch.Tensor, keep_BT: torch.Tensor) -> torch.Tensor:
        """Maps [B, T, E] to [B, E]; `keep_BT` is True for a real token."""
        kept_BTE = torch.where(keep_BT[:, :, None], x_BTE, torch.zeros_like(x_BTE))
        count_B1 = keep_BT.sum(dim=1, keepdim=True).clamp(min=1)
        return kept_BTE.sum(dim=1) / count_B1.to(x_BTE.dtype)


class FirstPooling(nn.Module):
    """The first token that a mask keeps; token 0 if it keeps none."""

    def forward(self, x_BTE: torch.Tensor, keep_BT: torch.Tensor) -> torch.Tensor:
        """Maps [B, T, E] to [B, E]; `keep_BT` is True for a real token."""
        first_B = keep_BT.long().argmax(dim=1)
        index_B1E = first_B[:, None, None].expand(-1, 1, x_BTE.shape[2])
        return x_BTE.gather(1, index_B1E).squeeze(1)


class SequenceClassifier(nn.Module):
    """Encoder, pooling and head."""

    def __init__(self, config: ClassifierConfig) -> None:
        super().__init__()
        width = config.encoder.width
        self.encoder = BertEncoder(config.encoder)
        self.pooling = MeanPooling() if config.pooling == "mean" else FirstPooling()
        self.dense = nn.Linear(width, width)
        self.classifier = nn.Linear(width, config.labels)

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, token_type_ids: torch.Tensor
    ) -> torch.Tensor:
        """Scores each label.

        Args:
            input_ids: int64 [B, T], below the vocabulary's size.
            attention_mask: int64 [B, T], 1 for a real token and 0 for padding, on either side or inside.
            token_type_ids: int64 [B, T], the segment of each token.

        Returns:
            Scores before the softmax, [B, labels].
        """
        y_BTE = self.encoder(input_ids, attention_mask, token_type_ids)
        pooled_BE = self.pooling(y_BTE, attention_mask.bool())
        scores_BL: torch.Tensor = self.classifier(torch.tanh(self.dense(pooled_BE)))
        return scores_BL


def make(config: ClassifierConfig = ClassifierConfig(), seed: int = 0) -> SequenceClassifier:
    """A classifier in float32 and eval mode with random weights; the same seed gives the same weights."""
    return build(lambda: SequenceClassifier(config), seed)


def spec(config: ClassifierConfig = ClassifierConfig(), seed: int = 0) -> ModelSpec:
    """The ModelSpec of a classifier of any size; its inputs are the encoder's."""
    encoder = bert_encoder.spec(config.encoder).io
    io = IOContract(
        inputs=encoder.inputs,
        outputs=(TensorSpec("logits", "float32", ("batch", config.labels)),),
        dims=encoder.dims,
        masks=encoder.masks,
    )
    return model_spec(__name__, io, lambda: make(config, seed))


SPEC = spec()
