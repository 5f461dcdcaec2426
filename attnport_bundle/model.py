"""Opens a bundle's model and runs it; the self-test runs the golden cases on every form."""

from __future__ import annotations

import itertools
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import arguments, batches
from . import feeds as feeding
from .errors import BundleError, BundleWarning, IntegrityError, NumbersOff, RuntimeMissing, of_this_copy
from .feeds import described, from_file, to_file
from .format import files
from .format.contract import Verdict
from .format.decoder import not_generating
from .format.manifest import SIGNATURE, BundleIO, Manifest
from .goldens import GoldenCases
from .runtimes import Session, open_session, refusals
from .search import (
    Sparse,
    Texts,
    activation,
    check_options,
    prompt_of,
    read_search,
    shortened,
    similarity,
    softmax,
    tokenizer_of,
)

if TYPE_CHECKING:
    import numpy as np

    from .decoding.generate import Prompts
    from .text import Text, Tokenizer

HERE = Path(__file__).resolve().parents[2]
"""The bundle that this package was copied into, as `python/attnport_bundle`."""


class Model:
    """An open model. `run` may be called from several threads at once.

    Attributes:
        manifest: The content of `bundle.json`.
        form: The name of the form that is open.
        provider: What the form was opened with, as the runtime reports it: ONNX Runtime's first execution provider, or
            the runtime itself. ONNX Runtime does not report which operators a provider lacks and the CPU computes.
        version: The runtime's release.
        machine: The device that it runs on.
        passed_over: The forms that the bundle prefers to this one, each with the reason why it was not opened.
        search: How its vectors of texts are chosen and compared.
    """

    _in_eights = False

    def __init__(self, manifest: Manifest, form: str, session: Session, folder: Path | None = None) -> None:
        self.manifest = manifest
        self.form = form
        self.provider, self.version, self.machine = session.provider, session.version, session.machine
        self.passed_over: tuple[str, ...] = ()
        self._in_eights = session.wants_eights
        self._session: Session | None = session
        self._folder = folder
        self._tokenizers: dict[str, Tokenizer] = {}
        self.search = read_search(folder, manifest)

    @property
    def io(self) -> BundleIO:
        """The contract: inputs, outputs, named dims with their ranges, masks."""
        return self.manifest.io

    @property
    def _batch_io(self) -> BundleIO:
        """The contract of batches that are padded here."""
        return batches.in_eights(self.io) if self._in_eights else self.io

    @property
    def prompts(self) -> Mapping[str, str]:
        """What the model expects before a text, by the text's use, as `query`; see `embed`."""
        return self.manifest.prompts.named

    @property
    def default_prompt_name(self) -> str | None:
        """The prompt that `embed` puts before texts unless a call says otherwise; None = none."""
        return self.manifest.prompts.default or None

    @property
    def dtypes(self) -> Mapping[str, str]:
        """The dtypes of the open form, which `run_device` uses; `run` uses the contract's."""
        return self.manifest.forms[self.form].dtypes

    def run(self, **feeds: np.ndarray[Any, Any]) -> dict[str, np.ndarray[Any, Any]]:
        """Runs the model. Takes an array for each input by name, and returns an array for each output by name.

        Raises:
            FeedError: a missing or unknown name, a wrong dtype, rank, size or value; names tensor, got and expected.
            BundleError: the model is closed, the runtime failed, or the shape of an output breaks the contract.
        """
        sizes = feeding.check_feeds(self.io, feeds)
        outputs = self._ran(False, {name: to_file(array, self.dtypes[name]) for name, array in feeds.items()})
        feeding.check_outputs(self.io, sizes, {name: array.shape for name, array in outputs.items()})
        specs = self.io.outputs
        return {spec.name: from_file(outputs[spec.name], self.dtypes[spec.name], spec.dtype) for spec in specs}

    def run_device(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """Runs the model on tensors of other libraries (anything with `__dlpack__`) and on arrays.

        On ONNX Runtime and TensorRT nothing is copied, and outputs stay on the device; they have `__dlpack__`, so that
        `torch.from_dlpack(output)` takes them. OpenVINO copies, from and to the CPU. Dtypes are the file's
        (`dtypes`). Only the values of arrays are checked, as tensors would have to be copied for it: an id beyond the
        vocabulary is not noticed in a tensor.

        Raises:
            FeedError: as `run`; or a tensor is on another device, is not contiguous or carries gradients.
            RuntimeMissing: this onnxruntime is older than 1.28.
            BundleError: the model is closed, the runtime failed, or the shape of an output breaks the contract.
        """
        feeds = arguments.mapping("feeds", feeds, "a tensor for each input")
        shapes = {name: described(name, value) for name, value in feeds.items()}
        sizes = feeding.check_shapes(self.io, shapes, self.dtypes)
        feeding.check_arrays(self.io, feeds, sizes)
        outputs = self._ran(True, feeds)
        feeding.check_outputs(self.io, sizes, {name: described(name, value).shape for name, value in outputs.items()})
        return {spec.name: outputs[spec.name] for spec in self.io.outputs}

    def _ran(self, on_device: bool, feeds: Mapping[str, Any]) -> dict[str, Any]:
        session = self._session
        if session is None:
            raise BundleError("the model is closed.")
        with refusals(self.manifest.forms[self.form].runtime):
            return session.run_device(feeds) if on_device else session.run(feeds)

    def masks(self, lengths: Sequence[int], size: int | None = None) -> dict[str, np.ndarray[Any, Any]]:
        """Every input that says what is padding, for items of `lengths` padded on the right to `size`.

        Raises:
            FeedError: the model takes no padding mask, there is no rule for its mask, or a length exceeds the size.
        """
        return feeding.padding_masks(self.io, lengths, size)

    def map(
        self, feeds: Mapping[str, np.ndarray[Any, Any]], *, tokens: int = batches.TOKENS
    ) -> dict[str, np.ndarray[Any, Any]]:
        """Runs any number of items, in batches of like length; results are in the order of the items.

        Memory grows with `tokens`. In outputs with a row for each token, columns of padding in all of a batch are zero.

        Args:
            feeds: As of `run`, padded to the longest item, all at the end or all at the beginning.
            tokens: The most places of a batch, padding included.

        Raises:
            FeedError: as `run`; or the model's padding masks are not `[batch, seq]`, or it has an output without items.
            BundleError: as `run`.
        """
        return batches.mapped(self.run, self._batch_io, feeds, tokens)

    def embed(
        self, texts: Iterable[str], *, prompt: str | None = None, tokens: int = batches.TOKENS
    ) -> np.ndarray[Any, Any]:
        """The vectors of any number of texts, `[texts, width]` in their order; see `map`.

        Of a model of sentence-transformers, they are those of its `encode`: prompts, pooling, normalisation, and the
        tokens after which a text is cut, are the model's. Texts are read `batches.WINDOW` at a time.

        Args:
            prompt: The name of the prompt (`prompts`) to put before each text; None = the model's default one, if it
                has one; "" = none.

        Raises:
            FeedError: there is no text, something is no text, or there is no such prompt; the model has no output that
                is a vector for each text.
            BundleError: as `run`; or the bundle has no tokenizer, or one that needs the package `tokenizers`, which is
                not installed.
        """
        before = self.manifest.prompts.chosen(prompt)
        arguments.require(not isinstance(texts, str), "texts", texts, "several texts")
        return self._texts(texts, "", before, tokens).vectors()

    def encode(
        self,
        inputs: str | Iterable[str],
        prompt_name: str | None = None,
        prompt: str | None = None,
        *,
        normalize_embeddings: bool = False,
        truncate_dim: int | None = None,
        max_active_dims: int | None = None,
        task: str | None = None,
        tokens: int = batches.TOKENS,
        **options: Any,
    ) -> Any:
        """The vectors of a text, or of several, as `encode` of sentence-transformers gives them, in NumPy.

        Other arguments of theirs are taken where they change nothing, as `batch_size`, and refused where they would.

        Args:
            prompt_name: The name of the prompt (`prompts`) to put before each text; None = the default one, if any.
            prompt: The prompt itself; None = that of the name.
            normalize_embeddings: Give each vector the length 1.
            truncate_dim: Give the first numbers of each vector, as of an embedder that was trained for it.
            max_active_dims: As of `encode_sparse`.
            task: `query` or `document`, which a model may treat differently; see `encode_query`.

        Returns:
            Of an embedder, `[texts, width]`, or `[width]` of one text. Of a sparse encoder, as `encode_sparse`. Of a
            multi-vector encoder, an array `[tokens, width]` for each text, or that array of one text.

        Raises:
            FeedError: there is no text, something is no text, or there is no such prompt; the model makes no vectors of
                texts; an argument is unknown, or is not for this kind of model.
            BundleError: as `embed`.
        """
        kind, shorten = batches.kind_of(self.io), normalize_embeddings or truncate_dim is not None
        if kind == batches.MULTI_VECTOR and options.get("output_value") == batches.OF_TOKENS:
            del options["output_value"]
        check_options(options, "encode")
        if kind == batches.SPARSE_ENCODER:
            arguments.require(not shorten, "encode", "a sparse encoder", "no normalize_embeddings and no truncate_dim")
            return self.encode_sparse(
                inputs, prompt_name, prompt, max_active_dims=max_active_dims, task=task, tokens=tokens
            )
        arguments.require(
            max_active_dims is None, "max_active_dims", max_active_dims, "None: this is no sparse encoder"
        )
        texts = self._texts(inputs, task, prompt_of(self.manifest.prompts, "", prompt_name, prompt), tokens)
        if kind == batches.MULTI_VECTOR:
            arguments.require(truncate_dim is None, "truncate_dim", truncate_dim, "None: vectors of tokens are whole")
            each = [
                shortened(vectors, None, normalise=normalize_embeddings) for vectors in texts.of_tokens(self.search)
            ]
            return each[0] if texts.alone else each
        vectors = shortened(texts.vectors(), truncate_dim, normalise=normalize_embeddings)
        return vectors[0] if texts.alone else vectors

    def encode_query(self, inputs: str | Iterable[str], prompt_name: str | None = None, **options: Any) -> Any:
        """The vectors of queries: `encode` with the prompt `query` and, of ColBERT's kind, with tokens behind it.

        Raises as `encode`, whose arguments are the same.
        """
        return self._encode_as("query", inputs, prompt_name, options)

    def encode_document(self, inputs: str | Iterable[str], prompt_name: str | None = None, **options: Any) -> Any:
        """The vectors of documents: `encode` with the prompt `document`.

        Of ColBERT's kind, without those of punctuation. Raises as `encode`, whose arguments are the same.
        """
        return self._encode_as("document", inputs, prompt_name, options)

    def _texts(self, texts: str | Iterable[str], task: str | None, before: str, tokens: int) -> Texts:
        return Texts(texts, task or "", before, self.run, self._batch_io, self._text, tokens)

    def _encode_as(self, role: str, inputs: Any, name: str | None, options: dict[str, Any]) -> Any:
        before = prompt_of(self.manifest.prompts, role, name, options.pop("prompt", None))
        return self.encode(inputs, prompt=before, **{"task": role, **options})

    def encode_sparse(
        self,
        inputs: str | Iterable[str],
        prompt_name: str | None = None,
        prompt: str | None = None,
        *,
        max_active_dims: int | None = None,
        task: str | None = None,
        tokens: int = batches.TOKENS,
    ) -> Sparse:
        """The sparse vectors of a text, or of several, as `encode` of sentence-transformers' `SparseEncoder`.

        Args:
            prompt_name, prompt, task: As of `encode`.
            max_active_dims: Keep so many numbers of each, the largest; None = as the model says.

        Returns:
            Compressed rows; `rows()` are dicts, `dense()` all numbers, and `decode` gives words.

        Raises:
            FeedError: the model is no sparse encoder; else as `encode`.
            BundleError: as `embed`.
        """
        if batches.kind_of(self.io) != batches.SPARSE_ENCODER:
            raise batches.wrong_kind(self.io, "encode_sparse", f"{batches.SPARSE!r}, of a sparse encoder")
        most = None if max_active_dims is None else arguments.integer("max_active_dims", max_active_dims, 1)
        before = prompt_of(self.manifest.prompts, "", prompt_name, prompt)
        return self._texts(inputs, task, before, tokens).sparse(most or self.search.active)

    def decode(self, vectors: Sparse, top_k: int | None = None) -> list[list[tuple[str, float]]]:
        """The tokens of sparse vectors and their numbers, the largest first, for each row of `encode_sparse`.

        Args:
            top_k: Give so many of each row; None = all.

        Raises:
            FeedError: places are not those of tokens, as of CSR's features.
            BundleError: as `embed`.
        """
        most = None if top_k is None else arguments.integer("top_k", top_k, 1)
        arguments.require(isinstance(vectors, Sparse), "vectors", vectors, "what encode_sparse gives")
        words = next((spec.high for spec in self.io.inputs if spec.name == "input_ids"), None)
        arguments.require(vectors.shape[1] == words, "vectors", vectors.shape, f"a place for each of {words} tokens")
        token = self._text().token
        return [[(token(place), number) for place, number in list(row.items())[:most]] for row in vectors.rows()]

    def similarity(self, first: Any, second: Any) -> np.ndarray[Any, Any]:
        """How alike each text of one side is to each of the other, `[first, second]`, as sentence-transformers has it.

        The larger, the more alike: by `search.similarity`, the model's own measure.

        Args:
            first, second: What `encode` or one like it gave, of one text or several.

        Raises:
            FeedError: the vectors are not those of one model.
        """
        return similarity(self.search.similarity, first, second)

    def embed_query(self, text: str) -> list[float]:
        """The vector of a query as a list, as LangChain asks for it; raises as `encode`."""
        arguments.require(isinstance(text, str), "text", text, "a text")
        return self._lists("embed_query", [self.encode_query(text)])[0]

    def embed_documents(self, texts: Iterable[str]) -> list[list[float]]:
        """The vectors of documents as lists, as LangChain asks for them; raises as `encode`."""
        given = list(arguments.several("texts", texts, "several texts"))
        return self._lists("embed_documents", self.encode_document(given) if given else [])

    async def aembed_query(self, text: str) -> list[float]:
        """As `embed_query`, in a thread, for callers that await it."""
        import asyncio

        return await asyncio.to_thread(self.embed_query, text)

    async def aembed_documents(self, texts: Iterable[str]) -> list[list[float]]:
        """As `embed_documents`, in a thread, for callers that await it."""
        import asyncio

        return await asyncio.to_thread(self.embed_documents, texts)

    def _lists(self, method: str, vectors: Any) -> list[list[float]]:
        if batches.kind_of(self.io) != batches.EMBEDDER:
            raise batches.wrong_kind(self.io, method, "one vector for each text")
        return [vector.tolist() for vector in vectors]

    def predict(
        self,
        texts: Iterable[Text],
        prompt_name: str | None = None,
        prompt: str | None = None,
        *,
        activation_fn: Any = None,
        apply_softmax: bool = False,
        tokens: int = batches.TOKENS,
        **options: Any,
    ) -> np.ndarray[Any, Any]:
        """The scores of any number of pairs of texts, or of texts, in their order: `[texts]` or `[texts, classes]`.

        A tuple of two texts is one pair, whose score has no dim of pairs. Of a model with the output `scores`, a list
        that begins with a text is one pair too, as in sentence-transformers. Scores of its cross-encoders are those of
        their `predict`; so are those of a classifier with one logit, the sigmoid of it, without a dim of classes. Of
        another classifier, they are its logits. What the classes mean is in `labels` of the output.
        Other arguments of theirs are taken where they change nothing, as `batch_size`, and refused where they would.

        Args:
            prompt_name, prompt: As of `encode`; of a pair, the prompt stands before the first text.
            activation_fn: In place of the model's own, `Sigmoid` or `Identity`: its name, or torch's module.
            apply_softmax: Of several classes, give the probability of each in place of its logit; they add up to 1.

        Raises:
            FeedError: the model gives no scores, or an argument is unknown; else as `embed`.
            BundleError: as `embed`.
        """
        check_options(options, "predict")
        if not (output := batches.scoring(self.io)):
            raise batches.wrong_kind(self.io, "predict", "scores or logits, a row for each text")
        if activation_fn is None and output == "logits" and batches.has_one_logit(self.io):
            activation_fn = "Sigmoid"  # as sentence-transformers, where no config says otherwise; else there are scores
        activate = None if activation_fn is None else activation(activation_fn, self.io)
        pairs = (list, tuple) if output == "scores" else tuple
        alone = isinstance(texts, pairs) and isinstance(next(iter(texts), None), str)
        before = prompt_of(self.manifest.prompts, "", prompt_name, prompt)
        scores = batches.embedded(
            self.run,
            self._batch_io,
            output if activate is None else "logits",
            lambda part, first: self._text().encode(part, first, prompt=before),
            [tuple(texts)] if alone else texts,
            tokens,
        )
        if activate is not None:
            scores = activate(scores[:, 0] if scores.shape[1:] == (1,) else scores)
        scores = softmax(scores) if apply_softmax and scores.ndim > 1 else scores
        return scores[0] if alone else scores

    def rank(
        self,
        query: str,
        documents: Iterable[str],
        top_k: int | None = None,
        return_documents: bool = False,
        *,
        tokens: int = batches.TOKENS,
        **options: Any,
    ) -> list[dict[str, Any]]:
        """The documents by their score for a query, the best first, as sentence-transformers' `rank` gives them.

        Args:
            return_documents: Give each document itself too, as `text`.

        Returns:
            A dict for each of the best `top_k` documents: `corpus_id`, its place in `documents`, and `score`.

        Raises:
            FeedError: the model gives a score for each of several classes; else as `predict`.
            BundleError: as `embed`.
        """
        most = None if top_k is None else arguments.integer("top_k", top_k, 1)
        given = list(arguments.several("documents", documents, "several texts"))
        if not given:
            return []
        scores = self.predict(((query, document) for document in given), tokens=tokens, **options)
        arguments.require(scores[:1].size == 1, "rank", scores.shape, "one score for each document")
        found = scores.reshape(-1)
        best = (-found).argsort(kind="stable")[:most]
        texts = ({"text": given[at]} if return_documents else {} for at in best)
        return [{"corpus_id": int(at), "score": float(found[at]), **text} for at, text in zip(best, texts, strict=True)]

    def generate(self, prompts: Prompts, *, encoder: Model | None = None, **options: Any) -> Any:
        """Continues prompts token by token. All run as one batch, and the keys and values of earlier tokens are kept.

        Args:
            prompts: A text, several texts, or several lists of token ids. Their lengths may differ. With an encoder,
                also an array by name for each of its inputs.
            encoder: Of an encoder-decoder, whose decoder this is: what reads the prompts, which are then answered.
            context: In place of an encoder, or besides it: an array by name for each input that is the same at every
                step.
            start: With an encoder, the tokens or ids that a text begins with, and which are not part of it; None, the
                default, those that the model was exported with.
            max_tokens: The most new tokens of a prompt; 64 by default.
            temperature: 0, the default, takes the likeliest token; above it, tokens are drawn, by one beam, from
                flatter scores the higher it is.
            top_k: Draw among so many of the likeliest; 0, the default, is all.
            top_p: Draw among the likeliest that together have this probability.
            seed: Of the draws; None, the default, are others each time.
            beams: More than 1: beam search; None, the default, as many as the model was exported with.
            repetition_penalty, no_repeat_ngram, min_tokens, suppress, ...: Every attribute of `decoder.Rules`, of
                token ids; None, the default, as the model was exported.
            stop: A token, or tokens or ids, behind which a text ends; None, the default, those of the export.
            as_text: Give texts and not ids; None, the default, where the prompts are texts.
            on_token: Called with the prompt's number and each new token, or of texts each new piece of text.

        Returns:
            The new text of a text, or a list of them; of ids, a list of the new ids for each prompt.

        Raises:
            FeedError: the model does not generate (of `hf:`, export it with `--with-past`), or not from these prompts.
            BundleError: as `run`; or texts are given and there is no tokenizer, or not the package `tokenizers`.
        """
        arguments.require(isinstance(encoder, Model | None), "encoder", encoder, "an open model")
        if self.io.decoder is None:
            raise not_generating()
        with of_this_copy("decoding"):
            from .decoding.caches import steps_of
            from .decoding.generate import Opened, generate

        options["encoder"] = Opened(encoder.run, encoder.io, encoder._tokenizer_file()) if encoder else None
        own = Opened(self.run, self.io, self._tokenizer_file(), steps_of(self._session))
        return generate(own, self.io.decoder, prompts, **options)

    def _text(self, role: str = "") -> Tokenizer:
        """What makes the inputs of texts that are `query`, `document` or neither."""
        if role not in self._tokenizers:
            file = self._tokenizer_file()
            if file is None:
                raise BundleError("the bundle has no tokenizer; make the inputs yourself and use map.")
            self._tokenizers[role] = tokenizer_of(file, self._batch_io, self.manifest.text_limit, self.search, role)
        return self._tokenizers[role]

    def _tokenizer_file(self) -> Path | None:
        tokenizer = self.manifest.tokenizer
        return self._folder / tokenizer.file if self._folder and tokenizer else None

    def close(self) -> None:
        """Frees the model; closing twice is fine."""
        session, self._session = self._session, None
        if session is not None:
            session.close()

    def __enter__(self) -> Model:
        return self

    def __exit__(self, *args: object) -> None:
        self.close()


def load(
    folder: str | os.PathLike[str] | None = None,
    *,
    form: str | None = None,
    threads: int | None = None,
    check_files: bool = True,
    require_signature: str | os.PathLike[str] | None = None,
    cache: str | os.PathLike[str] | None = None,
) -> Model:
    """Checks a bundle and opens its model.

    A form that was never run on its device is proved each time: it runs the bundle's golden cases first. If a form
    cannot run here or fails its proof, the next one in the bundle's order is opened, with a BundleWarning and a line in
    `Model.passed_over`.

    Args:
        folder: The bundle; None = the one that contains this package.
        form: The only form to try; None = the first in the bundle's order that can be opened here.
        threads: Compute threads, 1 or more; None = the runtime's own choice.
        check_files: Compare every file with its digest first. False trusts the disk and saves the time to read it; an
            engine, which is code for a device, is compared all the same.
        require_signature: A public key, as a PEM file from outside the bundle; a bundle that is not signed with it is
            refused. With `check_files=False` this checks the manifest but not the files.
        cache: The folder for what TensorRT-RTX compiles; None = `$ATTNPORT_CACHE`, or the user's own.

    Raises:
        BundleError: the folder is no bundle, has an unknown version or no such form; or an argument has no meaning.
        IntegrityError: a file was changed, is missing or was added, or the signature is wrong.
        RuntimeMissing: no form's runtime is installed in a release that the bundle accepts.
        NumbersOff: a form that had to be proved computes other numbers here.
    """
    threads = arguments.threads(threads)
    path = HERE if folder is None else arguments.path("folder", folder)
    keep = None if cache is None else arguments.path("cache", cache)
    key = None if require_signature is None else arguments.path("require_signature", require_signature)
    manifest, _ = files.read_trusted(path, key)
    if arguments.flag("check_files", check_files):
        files.require(path, files.check(path, manifest))
    names, store = _candidates(manifest, form), None
    if any(manifest.forms[name].runtime == "tensorrt_rtx" for name in names):
        from .runtimes.kernels import find

        store = find(path, keep)
    errors: dict[str, BundleError] = {}
    for name in names:
        try:
            model = _proved(Model(manifest, name, open_session(path, manifest, name, threads, store), path), path)
        except BundleError as err:
            if not _may_pass_over(manifest, name, err):
                raise
            errors[name] = err
            continue
        model.passed_over = tuple(f"{missed}: {err}" for missed, err in errors.items())
        if errors:
            warnings.warn(f"{name} runs; passed over: {' '.join(model.passed_over)}", BundleWarning, stacklevel=2)
        return model
    if len(errors) == 1:
        raise next(iter(errors.values()))
    # The most telling error counts: wrong numbers before other failures, and a missing runtime last.
    kinds = {type(err) for err in errors.values()}
    worst = next((kind for kind in (NumbersOff, BundleError) if kind in kinds), RuntimeMissing)
    raise worst(" ".join(f"{name}: {err}" for name, err in errors.items()))


def open_form(folder: Path, manifest: Manifest, form: str, threads: int | None = None) -> Model:
    """Opens one form of a bundle whose files were checked; the caller runs the goldens. Raises as `load`."""
    (name,) = _candidates(manifest, form)
    return Model(manifest, name, open_session(folder, manifest, name, threads), folder)


def _proved(model: Model, folder: Path) -> Model:
    """The model, after the goldens if its form is `graph-only`. Closes it and raises NumbersOff if one fails."""
    if model.manifest.forms[model.form].proof == "device":
        return model
    try:
        results = list(GoldenCases(folder, model.manifest).check(model.form, model.run))
        failed = [result for result in results if not result.passed]
        if failed or not results:
            first = f"{failed[0].case}, {failed[0].output}: {failed[0].reason}" if failed else "there is no golden case"
            raise NumbersOff(f"{model.form} does not pass the goldens on {model.machine.device}: {first}.")
    except BaseException:
        model.close()
        raise
    return model


def _candidates(manifest: Manifest, form: str | None) -> tuple[str, ...]:
    if form is not None and form not in manifest.order:
        raise BundleError(f"form {arguments.shown(form)}: the bundle has {', '.join(manifest.order)}.")
    return manifest.order if form is None else (form,)


def _may_pass_over(manifest: Manifest, name: str, err: BundleError) -> bool:
    """Whether the next form may be opened after this error.

    Never after an IntegrityError. A form that ran on its device when it was bundled should run here too, so that only
    a missing runtime is accepted; a form that never ran may fail in any other way.
    """
    unproved = manifest.forms[name].proof != "device"
    return not isinstance(err, IntegrityError) and (unproved or isinstance(err, RuntimeMissing))


@dataclass(frozen=True)
class Row:
    """One line of the report: what was checked, the verdict (PASS, FAIL or NOT_RUN), and the evidence."""

    check: str
    verdict: Verdict
    detail: str


@dataclass(frozen=True)
class Report:
    """The result of a check. `exit_code` is 0, or that of the first problem."""

    rows: tuple[Row, ...]
    exit_code: int
    unverified: bool


def selftest(
    folder: Path,
    threads: int | None = None,
    key: Path | None = None,
    check: Callable[[Path, Manifest], Sequence[files.FileProblem]] = files.check,
    against: Path | None = None,
) -> Report:
    """Checks a bundle. The model is opened only if every file is as it was bundled.

    Args:
        threads, key: As `threads` and `require_signature` of `load`; without a key, that is a row of the report.
        check: Finds what is wrong before a model is opened; `attnport verify` looks for more.
        against: An earlier bundle, whose golden cases are run too: whether this one still gives its numbers.

    Raises:
        BundleError: as `files.read_trusted`; or an argument has no meaning.
    """
    threads = arguments.threads(threads)
    manifest, fingerprint = files.read_trusted(folder, key)
    problems = check(folder, manifest)
    if problems:
        found = tuple(Row(each.name, "FAIL", each.problem) for each in problems)
        return Report(found, IntegrityError.exit_code, manifest.unverified)
    size = sum(file.bytes for file in manifest.files.values())
    as_bundled = Row("files", "PASS", f"{len(manifest.files)} files, {size / 1e6:.1f} MB, as they were bundled")
    unchecked = "not checked: no --key" if (folder / SIGNATURE).exists() else "not signed"
    signed = Row("signature", "PASS", f"ed25519 {fingerprint}")
    rows = [signed if fingerprint else Row("signature", "NOT_RUN", unchecked), as_bundled]
    codes: dict[Verdict, int] = {"PASS": 0, "FAIL": 0, "NOT_RUN": 0}
    ran = False
    tried = _forms(folder, manifest, threads)
    if against is not None:
        earlier, _ = files.read_trusted(against, key)
        files.require(against, check(against, earlier))
        tried = itertools.chain(tried, _forms(folder, manifest, threads, against, earlier))
    for row, exit_code in tried:
        rows.append(row)
        codes[row.verdict] = codes[row.verdict] or exit_code
        ran = ran or row.verdict != "NOT_RUN"
    code = codes["FAIL"] or codes["NOT_RUN"]
    return Report(tuple(rows), code if ran else RuntimeMissing.exit_code, manifest.unverified)


def load_tested(folder: Path, threads: int | None = None, key: Path | None = None) -> Model:
    """Opens a bundle's model after its self-test, whose arguments are the same.

    Raises:
        BundleError: as `load`; or the self-test failed: IntegrityError, NumbersOff or RuntimeMissing, with its rows.
    """
    report = selftest(folder, threads, key)
    if report.exit_code:
        unsigned = ("signature", "NOT_RUN")  # which nobody asked about
        rows = [row for row in report.rows if row.verdict != "PASS" and (row.check, row.verdict) != unsigned]
        failed = "; ".join(f"{row.check}: {row.detail}" for row in rows)
        kinds: tuple[type[BundleError], ...] = (IntegrityError, NumbersOff, RuntimeMissing)
        kind = next((each for each in kinds if each.exit_code == report.exit_code), BundleError)
        says = "cannot be opened here" if kind is RuntimeMissing else "does not pass its self-test"
        raise kind(f"{folder} {says}: {failed.rstrip('.')}.")
    return load(folder, threads=threads, require_signature=key)


def _forms(
    folder: Path, manifest: Manifest, threads: int | None, against: Path | None = None, earlier: Manifest | None = None
) -> Iterator[tuple[Row, int]]:
    """Rows with their exit codes: one for each golden case of a form that runs, or one for a form that does not.

    Args:
        against, earlier: Another bundle with its manifest, whose golden cases are run in place of the own ones.
    """
    cases = "" if against is None else f" against {against.name}"
    try:
        goldens = GoldenCases(against or folder, earlier or manifest)
    except IntegrityError as err:
        yield Row(f"{manifest.goldens.file}{cases}", "FAIL", str(err)), err.exit_code
        return
    for name in manifest.order:
        opened = False
        try:
            with open_form(folder, manifest, name, threads) as model:
                opened = True
                for result in goldens.check(manifest.forms[name], model.run):
                    verdict: Verdict = "PASS" if result.passed else "FAIL"
                    detail = result.reason or f"max error {result.max_error:.1e}, bound {result.max_bound:.1e}"
                    row = Row(f"{name} {result.case} {result.output}{cases}", verdict, detail)
                    yield row, 0 if result.passed else NumbersOff.exit_code
        except RuntimeMissing as err:
            # If the form could be opened, all its cases must run; those that did not are not taken as passed.
            yield Row(f"{name}{cases}", "NOT_RUN", str(err)), RuntimeMissing.exit_code if opened else 0
        except BundleError as err:
            # An earlier bundle that has nothing to compare a form with says nothing about the form.
            compared = against is None or err.exit_code != BundleError.exit_code
            yield Row(f"{name}{cases}", "FAIL" if compared else "NOT_RUN", str(err)), err.exit_code
