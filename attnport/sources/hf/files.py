"""Files of an `hf:` place: only those inside it are read, no pickled weights, no code unless it is trusted."""

from __future__ import annotations

import json
import os
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnport.errors import SpecError, first_line
from attnport.optional import require

WEIGHTS = "model.safetensors"
_TOKENIZER, _TOKENIZER_SETTINGS = "tokenizer.json", "tokenizer_config.json"
_ENDLESS = 1 << 31
"""transformers says 10**30 where it knows no limit."""
SETTINGS = "config_sentence_transformers.json"
TRANSFORMER_SETTINGS = "sentence_bert_config.json"
METADATA = "artifact.metadata"
"""The settings of Stanford's ColBERT."""
_INDEX = ".safetensors.index.json"
_ROUTERS, _ROUTES = ("Router", "Asym"), "router_config.json"
_OF_FIRST = ("config.json", WEIGHTS, f"{WEIGHTS}.index.json", TRANSFORMER_SETTINGS, _TOKENIZER, _TOKENIZER_SETTINGS,
             "special_tokens_map.json", "vocab.txt")  # fmt: skip
"""The files of a transformer, or of a table of static embeddings, that has a folder of its own."""
_READ = (".json", ".metadata", ".safetensors", ".md", ".py", ".txt", ".model", ".jinja")
"""The suffixes of files that transformers or attnport may open directly in a folder."""
_INSIDE = (
    "Put the file itself there. Links are followed inside the folder, and from a hub cache's snapshot to its blobs."
)
_CONVERT = "If you trust them: transformers.AutoModel.from_pretrained(OLD).save_pretrained(NEW), then hf:NEW."
_ADAPTER = "Load it with peft, merge it (merge_and_unload), save that with save_pretrained, and give the saved folder."


def check_links(folder: Path, root: Path | None = None) -> None:
    """Refuses entries of an `hf:` folder that link out of it or are no regular files; raises like `check_link`.

    Args:
        root: The folder that they may link into, if this one is inside of it.
    """
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if path.suffix in _READ:
            check_link(root or folder, path)


def check_link(folder: Path, path: Path) -> None:
    """Refuses a path in `folder` that leads out of it. A hard link is treated as the file that it is.

    Raises:
        SpecError: it is a link to elsewhere, or a pipe or device, which might never end.
    """
    root, real = Path(os.path.realpath(folder)), Path(os.path.realpath(path))
    name = str(path.relative_to(folder))
    if not (real.is_relative_to(root) or is_blob(root, real)):
        raise SpecError(f"hf:{folder}: {name!r} links to {str(real)!r}, outside the folder.", hint=_INSIDE)
    if real.exists() and not (real.is_file() or real.is_dir()):
        raise SpecError(f"hf:{folder}: {name!r} is a pipe or a device; expected a file.")


def is_blob(root: Path, real: Path) -> bool:
    """Whether `real` is a blob of the hub cache that has `root` as a snapshot.

    `CACHE/models--OWNER--NAME/snapshots/COMMIT` has links to `CACHE/models--OWNER--NAME/blobs/DIGEST`, which since
    huggingface_hub 2 may be a link to `CACHE/blobs/DI/DIGEST`, shared by the cache's models.
    """
    if len(root.parents) < 3 or root.parent.name != "snapshots" or not root.parents[1].name.startswith("models--"):
        return False
    shared = re.fullmatch("[0-9a-f]{64}", real.name) and real.parent == root.parents[2] / "blobs" / real.name[:2]
    return real.parent == root.parents[1] / "blobs" or bool(shared)


def find(place: str, name: str) -> Path | None:
    """A file of a folder or of a hub id, downloaded if it is not in the cache; None if it does not exist."""
    file = require("transformers").utils.hub.cached_file(place, name, _raise_exceptions_for_missing_entries=False)
    return Path(file) if file else None


def check_weights(place: str, config: Mapping[str, Any]) -> None:
    """Checks the weights.

    Raises:
        SpecError: they are pickled, they lie elsewhere, or an adapter changes them.
    """
    if find(place, "adapter_config.json"):
        # Only with peft installed does transformers add the adapter; it may then load the model that the adapter names.
        raise SpecError(f"hf:{place}: adapter_config.json makes it an adapter of another model.", hint=_ADAPTER)
    # Some models have their config inside another config, and look for this key there.
    named = {value for key, value in _items(config) if key == "transformers_weights" and value} or {WEIGHTS}
    indexes = {name for name in named if name.endswith(_INDEX)} or {f"{WEIGHTS}.index.json"}
    found_indexes = [path for path in (find(place, index) for index in sorted(indexes)) if path]
    for path in found_indexes:
        _check_index(place, path)
    folder = Path(place)
    shards = folder.is_dir() and any(folder.glob("*.safetensors"))  # a distributed checkpoint has shards and no index
    if not found_indexes and not shards and not any(find(place, name) for name in named):
        raise SpecError(f"hf:{place}: it has no {min(named)}; pickled weights (.bin) are not read.", hint=_CONVERT)


def _check_index(place: str, path: Path) -> None:
    try:
        shards = list(json.loads(path.read_text(encoding="utf-8"))["weight_map"].values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as err:
        raise SpecError(f"hf:{place}: {path.name} is not an index of weights: {err!r}.") from err
    wrong = next((shard for shard in shards if not _is_beside(shard, (".safetensors",))), None)
    if wrong is not None:
        raise SpecError(f"hf:{place}: {path.name} names {wrong!r}; expected .safetensors files beside it.")


def _is_beside(name: object, suffixes: tuple[str, ...]) -> bool:
    """Whether a file's name has no folder and has one of the suffixes."""
    return isinstance(name, str) and not re.search(r"[/\\\0]", name) and name.endswith(suffixes)


def check_config(place: str, config: Mapping[str, Any]) -> None:
    """Raises SpecError for a config that names files or models elsewhere, also in a config inside it."""
    for key, value in _items(config):
        if key == "transformers_weights" and value and not _is_beside(value, (".safetensors", _INDEX)):
            raise SpecError(f"hf:{place}: config.json names weights {value!r}; expected a .safetensors file beside it.")
        # transformers passes the name of an architecture to timm, which accepts `hf-hub:`, `local-dir:` and the like;
        # timm's `checkpoint_path` is a pickle.
        is_elsewhere = key in ("backbone", "architecture") and isinstance(value, str) and re.search("[/:]", value)
        if is_elsewhere or (key == "checkpoint_path" and value):
            raise SpecError(
                f"hf:{place}: config.json has {key} {value!r}, which would be loaded from elsewhere.",
                hint="Write a factory that returns the module, and declare its inputs with --input.",
            )


def _items(config: object) -> Iterator[tuple[str, Any]]:
    """The keys and values of a config and of everything inside it."""
    if isinstance(config, Mapping):
        for key, value in config.items():
            yield key, value
            yield from _items(value)
    elif isinstance(config, list):
        for part in config:
            yield from _items(part)


def refuse_code(place: str, config: Mapping[str, Any]) -> None:
    """Raises SpecError if `auto_map` names Python code; called for a model that transformers does not know."""
    named = config.get("auto_map")
    if not isinstance(named, Mapping) or not named:
        return
    values = [reference for value in named.values() for reference in (value if isinstance(value, list) else [value])]
    files = sorted({_file(reference) for reference in values if isinstance(reference, str)})
    raise SpecError(
        f"hf:{place}: transformers {require('transformers').__version__} has no model of model_type "
        f"{config.get('model_type')!r}; to load it, this Python code would be run: {', '.join(files)}.",
        hint="Nothing of it was run. Read it; if you trust it, --trust-remote-code runs it.",
    )


def _file(reference: str) -> str:
    """The file of an `auto_map` reference: `modeling.Class`, or `owner/name--modeling.Class` of another repository."""
    repository, dashes, rest = reference.rpartition("--")
    file = rest.rpartition(".")[0] or rest
    return repr(f"{file}.py") + (f" of the hub's {repository!r}" if dashes else "")


def auto_class(config: Mapping[str, Any], architecture: str) -> str:
    """The transformers auto class for which `auto_map` names `architecture`; by default AutoModel."""
    named = config.get("auto_map")
    kinds = [
        kind
        for kind, reference in (named.items() if isinstance(named, Mapping) else ())
        if kind.startswith("AutoModel") and str(reference).rpartition(".")[2] == architecture
    ]
    return kinds[0] if kinds else "AutoModel"


@contextmanager
def never_asking() -> Iterator[None]:
    """Makes transformers raise an error instead of asking on the terminal whether to run a model's own code.

    `trust_remote_code=False` is not enough, since transformers does not pass it on for a config inside a config.
    """
    module = require("transformers").dynamic_module_utils
    before = module.TIME_OUT_REMOTE_CODE
    module.TIME_OUT_REMOTE_CODE = 0
    try:
        yield
    finally:
        module.TIME_OUT_REMOTE_CODE = before


def folder_of(place: str) -> Path:
    """The folder of the files that sentence-transformers wrote: the place itself, or the hub cache's for a hub id.

    Raises:
        SpecError: `modules.json` cannot be read, or names a place outside the folder.
    """
    folder = Path(place)
    if folder.is_dir():
        return folder
    found = [find(place, name) for name in ("config.json", "modules.json", SETTINGS, TRANSFORMER_SETTINGS, METADATA)]
    folder = next((path.parent for path in found if path), folder)
    listed = _listed(folder)
    if listed and kind_of(listed[0]) in _ROUTERS:
        find(place, _ROUTES)
        routes = routes_of(folder).values()
        firsts, steps = [route[0] for route in routes], [step for route in routes for step in route[1:]]
    else:
        firsts, steps = listed[:1], listed[1:]
    for modules, names in ((firsts, _OF_FIRST), (steps, ("config.json", WEIGHTS))):
        for module in filter(lambda module: module.get("path"), modules):
            check_inside(folder, str(module["path"]))
            for name in names:
                find(place, f"{module['path']}/{name}")
    return folder


def kind_of(module: Mapping[str, Any]) -> str:
    """The class of a module in `modules.json`, without the module that it is in."""
    return str(module.get("type", "")).rpartition(".")[2]


def check_inside(folder: Path, place: str) -> None:
    """Checks that a path of `modules.json` stays inside the folder.

    Raises:
        SpecError: it leads out of it.
    """
    if Path(place).is_absolute() or ".." in Path(place).parts:
        raise SpecError(f"{folder / 'modules.json'} names {place!r}, which is outside the folder.")


def modules_of(folder: Path, route: str = "") -> list[dict[str, Any]]:
    """What `modules.json` of sentence-transformers lists, in order; [] without one.

    Args:
        route: Of a Router, in whose place are the modules of this way.

    Raises:
        SpecError: it cannot be read, or has a Router without this way.
    """
    modules = _listed(folder)
    if not modules or kind_of(modules[0]) not in _ROUTERS:
        return modules
    routes = routes_of(folder)
    if route not in routes:
        raise SpecError(
            f"{folder}: its Router leads to one of several models, by what a text is for: {', '.join(routes)}.",
            hint=f"Export each by itself: --part {next(iter(routes), 'query')}, and so on.",
        )
    return routes[route]


def routes_of(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """The modules of each way of a Router, which stands first in `modules.json`; {} where none does.

    Raises:
        SpecError: it cannot be read, or names a place outside the folder.
    """
    modules = _listed(folder)
    if not modules or kind_of(modules[0]) not in _ROUTERS:
        return {}
    place = str(modules[0].get("path", ""))
    check_inside(folder, place)
    check_link(folder, folder / place / _ROUTES)
    values = read_json(folder / place / _ROUTES)
    try:
        own = {name: {"type": kind, "path": str(Path(place, name))} for name, kind in values["types"].items()}
        found = {way: [*(own[name] for name in names), *modules[1:]] for way, names in values["structure"].items()}
    except (KeyError, TypeError, AttributeError) as err:
        raise SpecError(f"{folder / place / _ROUTES} is not what sentence-transformers writes: {err!r}.") from err
    if not all(found.values()):
        raise SpecError(f"{folder / place / _ROUTES} has a way without a module.")
    for module in own.values():
        check_inside(folder, str(module["path"]))
    return found


def _listed(folder: Path) -> list[dict[str, Any]]:
    if not (folder / "modules.json").is_file():
        return []
    modules = read_json(folder / "modules.json")
    if not isinstance(modules, list) or not modules or not all(isinstance(module, dict) for module in modules):
        raise SpecError(
            f"{folder / 'modules.json'} is not what sentence-transformers writes: it is not a list of modules."
        )
    return modules


def read_json(path: Path) -> Any:
    """What a file of a folder holds; raises SpecError if it cannot be read."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError, RecursionError) as err:
        raise SpecError(f"{path} cannot be read: {err}", hint="Fetch the folder again.") from err


_NAMES = (
    "config.json generation_config.json tokenizer.json tokenizer_config.json special_tokens_map.json added_tokens.json "
    "vocab.txt vocab.json merges.txt sentencepiece.bpe.model spiece.model tokenizer.model chat_template.jinja "
    f"modules.json {SETTINGS} README.md LICENSE LICENSE.txt"
).split() + [f"sentence_{kind}_config.json" for kind in
             ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")]  # fmt: skip
"""The settings of the transformer have had a name a model type in sentence-transformers. The card and the licence go
where the model goes."""


def describing_files(place: str) -> dict[str, Path]:
    """The files of an `hf:` folder or hub id by their names in it; those of sentence-transformers' steps with weights.

    Raises:
        SpecError: one is outside the folder.
    """
    folder = folder_of(place)
    names = list(_NAMES)
    for step in filter(None, (str(module.get("path", "")) for module in modules_of(folder)[1:])):
        check_inside(folder, step)
        names += [f"{step}/config.json", f"{step}/{WEIGHTS}"]
    found = {name: path for name in names if (path := _beside(folder, place, name)) is not None}
    if "config.json" not in found:
        raise SpecError(f"hf:{place}: it has no config.json.", hint="Give the folder that save_pretrained wrote.")
    return found


def _beside(folder: Path, place: str, name: str) -> Path | None:
    """A file of a folder or hub id; None if there is none."""
    if not Path(place).is_dir():
        return find(place, name)
    path = folder / name
    check_link(folder, path)
    return path if path.is_file() else None


@dataclass(frozen=True)
class TokenizerOf:
    """What is known of a model's tokenizer.

    Attributes:
        file: `tokenizer.json`, or its text; None where there is none.
        makes: The names of the inputs that it makes.
        known: Whether a tokenizer lies beside the weights; else `makes` is that of the class for the model's type.
        note: What a user should know of it, or "".
        longest: The most tokens of a text that it makes unless it is told otherwise; None = as many as there are.
        chat: As of `ModelSpec`.
        expanding: The id of the token that ColBERT makes queries longer with: that of a mask, or else of the end.
    """

    file: Path | str | None
    makes: tuple[str, ...]
    known: bool
    note: str = ""
    longest: int | None = None
    chat: str | None = None
    expanding: int | None = None


def read_tokenizer(place: str, config: Any, *, lower: bool = False, prefixes: Sequence[str] = ()) -> TokenizerOf:
    """The tokenizer of a folder or a hub id; none of its own Python code is run.

    What is written is the tokenizer as transformers sets it up, since `tokenizer_config.json` changes what is in
    `tokenizer.json`: special tokens, and the side and the token of padding. Where transformers cannot load it, the file
    is taken as it is.

    Args:
        lower: Texts are in lower case, as sentence-transformers' `do_lower_case` has it.
        prefixes: What becomes one token before a text where the vocabulary has it, as ColBERT's marks.
    """
    file = find(place, _TOKENIZER)
    if file is None and find(place, _TOKENIZER_SETTINGS) is None:
        return TokenizerOf(None, _usual_inputs(config.model_type), known=False)
    try:
        with never_asking(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tokenizer: Any = require("transformers").AutoTokenizer.from_pretrained(place, trust_remote_code=False)
            _register(tokenizer, prefixes)
            backend = tokenizer.backend_tokenizer
    except Exception as err:  # of a dozen types: a damaged file, a package that is missing, code of its own
        note = (
            f"transformers cannot load the tokenizer ({first_line(err)}); {_TOKENIZER} is taken as it is, and its "
            f"inputs are taken to be the usual ones of a {config.model_type}"
        )
        return TokenizerOf(file, _usual_inputs(config.model_type), known=False, note=note)
    names = tuple(tokenizer.model_input_names)
    if file is None and not any(find(place, name) for name in tokenizer.vocab_files_names.values()):
        return TokenizerOf(None, names, known=True)
    if tokenizer.pad_token_id is not None:
        backend.enable_padding(
            direction=tokenizer.padding_side,
            pad_id=tokenizer.pad_token_id,
            pad_type_id=tokenizer.pad_token_type_id,
            pad_token=tokenizer.pad_token,
        )
    if lower:
        _lower(backend)
    longest = int(tokenizer.model_max_length)
    limit = longest if longest < _ENDLESS else None
    expanding = tokenizer.mask_token_id if tokenizer.mask_token_id is not None else tokenizer.eos_token_id
    text = backend.to_str(pretty=True)
    return TokenizerOf(text, names, known=True, longest=limit, chat=_chat(tokenizer), expanding=expanding)


def _chat(tokenizer: Any) -> str | None:
    """The chat template of a tokenizer, of several the one that is used without tools, as `ModelSpec` has it."""
    template = tokenizer.chat_template
    if isinstance(template, dict):
        template = template.get("default")
    tokens = tokenizer.special_tokens_map
    texts = {name: token for name, token in tokens.items() if isinstance(token, str)}
    return None if not template else json.dumps({"template": template, "tokens": texts}, ensure_ascii=False, indent=1)


def _register(tokenizer: Any, prefixes: Sequence[str]) -> None:
    """Makes a prefix one token, where the vocabulary has it, or its first word, and the text would be split.

    Source: sentence-transformers' `MultiVectorEncoder._register_prefix_tokens`.
    """
    from tokenizers import AddedToken

    vocabulary, tokens = tokenizer.get_vocab(), []
    for prefix in filter(str.split, prefixes):
        known = next((text for text in (prefix, prefix.split(None, 1)[0]) if text in vocabulary), None)
        if known is not None and tokenizer.tokenize(known) != [known]:
            tokens.append(AddedToken(known, normalized=False, special=True))
    if tokens:
        tokenizer.add_special_tokens({"additional_special_tokens": tokens})


def _usual_inputs(model_type: str) -> tuple[str, ...]:
    """What the tokenizer class of a model's type makes by default."""
    transformers = require("transformers")
    named = transformers.models.auto.tokenization_auto.TOKENIZER_MAPPING_NAMES.get(model_type)
    name = next((each for each in (named if isinstance(named, tuple | list) else (named,)) if each), "")
    try:
        return tuple(getattr(transformers, name).model_input_names)
    except (AttributeError, ImportError):  # there is no such class, or a package that it needs is not installed
        return tuple(transformers.PreTrainedTokenizerBase.model_input_names)


def _lower(backend: Any) -> None:
    from tokenizers import normalizers

    before = backend.normalizer
    if before is not None and any(mark in _state(before) for mark in ('"Lowercase"', '"lowercase":true')):
        return
    backend.normalizer = normalizers.Sequence([normalizers.Lowercase(), *([before] if before is not None else [])])


def _state(normalizer: Any) -> str:
    state = normalizer.__getstate__()
    return (state.decode() if isinstance(state, bytes) else str(state)).replace(" ", "")
