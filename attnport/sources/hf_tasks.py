"""`--task`: the names of transformers' pipelines, and the auto classes that load the head for each."""

from __future__ import annotations

from typing import Any

from attnport.errors import UsageError
from attnport.optional import require

_PREFIX = "AutoModel"
TASKS: dict[str, tuple[str, ...]] = {
    "feature-extraction": ("",),
    "text-classification": ("ForSequenceClassification",),
    "zero-shot-classification": ("ForSequenceClassification",),
    "token-classification": ("ForTokenClassification",),
    "question-answering": ("ForQuestionAnswering",),
    "multiple-choice": ("ForMultipleChoice",),
    "next-sentence-prediction": ("ForNextSentencePrediction",),
    "fill-mask": ("ForMaskedLM",),
    "pretraining": ("ForPreTraining",),
    "text-generation": ("ForCausalLM",),
    "text2text-generation": ("ForSeq2SeqLM",),
    "summarization": ("ForSeq2SeqLM",),
    "translation": ("ForSeq2SeqLM",),
    "table-question-answering": ("ForTableQuestionAnswering",),
    "document-question-answering": ("ForDocumentQuestionAnswering", "ForQuestionAnswering"),
    "visual-question-answering": ("ForVisualQuestionAnswering",),
    "image-to-text": ("ForImageTextToText",),
    "image-text-to-text": ("ForImageTextToText",),
    "image-feature-extraction": ("",),
    "image-classification": ("ForImageClassification",),
    "zero-shot-image-classification": ("ForZeroShotImageClassification",),
    "image-segmentation": ("ForImageSegmentation", "ForUniversalSegmentation", "ForSemanticSegmentation"),
    "semantic-segmentation": ("ForSemanticSegmentation",),
    "image-to-image": ("ForImageToImage",),
    "masked-image-modeling": ("ForMaskedImageModeling",),
    "mask-generation": ("ForMaskGeneration",),
    "keypoint-detection": ("ForKeypointDetection",),
    "keypoint-matching": ("ForKeypointMatching",),
    "depth-estimation": ("ForDepthEstimation",),
    "object-detection": ("ForObjectDetection",),
    "zero-shot-object-detection": ("ForZeroShotObjectDetection",),
    "video-classification": ("ForVideoClassification",),
    "audio-classification": ("ForAudioClassification",),
    "audio-frame-classification": ("ForAudioFrameClassification",),
    "audio-xvector": ("ForAudioXVector",),
    "automatic-speech-recognition": ("ForCTC", "ForTDT", "ForSpeechSeq2Seq"),
    "text-to-audio": ("ForTextToWaveform", "ForTextToSpectrogram"),
    "time-series-prediction": ("ForTimeSeriesPrediction",),
}
"""By task, the auto classes, without `AutoModel`, in the order in which a pipeline tries them."""


def check_task(task: str) -> None:
    """Raises UsageError for a name that is neither a task nor an auto class."""
    if task and task not in TASKS and task.removeprefix(_PREFIX) not in _heads():
        raise UsageError(
            f"--task {task}: there is no such task; there are {', '.join(TASKS)}.",
            hint="Or give an auto class of transformers, such as AutoModelForSequenceClassification.",
        )


def class_of(task: str, place: str, config: Any) -> Any:
    """The transformers class of a model for a task.

    Raises:
        UsageError: the model's type has no such head; the message lists those that it has.
    """
    for head in TASKS.get(task) or (task.removeprefix(_PREFIX),):
        if (kind := _class(head, config)) is not None:
            return kind
    known = [name for name, heads in TASKS.items() if any(_class(head, config) is not None for head in heads)]
    raise UsageError(
        f"--task {task}: transformers has no such head for hf:{place}, a {config.model_type}; it has "
        f"{', '.join(known) or 'none'}.",
        hint="Name one of these, or leave --task out for the checkpoint's own.",
    )


def auto_name(task: str) -> str:
    """The first auto class of a task, for models with code of their own."""
    return _PREFIX + (TASKS.get(task) or (task.removeprefix(_PREFIX),))[0]


def _heads() -> list[str]:
    return [head for heads in TASKS.values() for head in heads]


def _class(head: str, config: Any) -> Any:
    mapping = getattr(getattr(require("transformers"), _PREFIX + head, None), "_model_mapping", {})
    if type(config) not in mapping:
        return None
    found = mapping[type(config)]
    if not isinstance(found, list | tuple):
        return found
    # As transformers chooses among the classes of one config: by its architectures.
    by_name = {kind.__name__: kind for kind in found}
    return next((by_name[name] for name in config.architectures or () if name in by_name), found[0])
