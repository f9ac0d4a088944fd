"""Name or path -> checked torch model. Nothing of a checkpoint is trusted before it is checked here.

Only safetensors are read, nothing is unpickled, no code of a checkpoint runs (`trust_remote_code` stays off).
"""

from __future__ import annotations

import difflib
import json
import logging
import os
import re
import textwrap
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import SafetensorError, safe_open
from transformers.generation.configuration_utils import METADATA_FIELDS
from transformers.utils import logging as transformers_logging

from tightbeam.export.errors import ExportError
from tightbeam.export.families import FAMILIES, Family
from tightbeam.graph_passes import Sizes

DEMO = "demo"
DEMO_FOLDER = Path(__file__).resolve().parent.parent / "demo"
ALIASES: dict[str, str] = {alias: hub_id for family in FAMILIES for alias, hub_id in family.aliases.items()}
"""Short name -> hub id, over all families."""

CONFIG_FILE = "config.json"
GENERATION_FILE = "generation_config.json"
WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
DOWNLOAD_PATTERNS = ["*.json", "*.safetensors", "*.spm", "*.model", "merges.txt", "vocab.txt", "*.tokenizer"]
HUB_TIMEOUT_S = 5.0
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]*\w")

TOKENIZER_SETS: tuple[tuple[str, ...], ...] = (
    ("tokenizer.json",),
    ("vocab.json", "merges.txt"),
    ("vocab.json", "source.spm", "target.spm"),
    ("vocab-src.json", "vocab-tgt.json", "merges.txt"),
    ("spiece.model",),
    ("sentencepiece.bpe.model",),
    ("sentencepiece.model",),
    ("tokenizer.model",),
    ("vocab.txt",),
    ("prophetnet.tokenizer",),
)
"""Each is a complete tokenizer; a folder with some of these files and no complete set is broken."""
TOKENIZER_SIGNS = {name for files in TOKENIZER_SETS for name in files} | {"tokenizer_config.json"}

SPECIAL_IDS = (
    "pad_token_id",
    "bos_token_id",
    "eos_token_id",
    "decoder_start_token_id",
    "forced_bos_token_id",
    "forced_eos_token_id",
)
NOT_ABOUT_TOKENS = frozenset(
    {
        "use_cache",
        "output_attentions",
        "output_hidden_states",
        "output_scores",
        "output_logits",
        "return_dict_in_generate",
    }
)
"""Generation settings that change what `generate` returns beside the tokens, never which tokens."""

BOOKKEEPING = re.compile(r"(^|\.)(encoder|decoder)\.version$|\.attn\.masked_bias$|\.rotary_emb\.inv_freq$")
"""fairseq's version counters, GPT-2's score of what is masked, Llama's frequencies: still in some old checkpoints; no
model reads them."""


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that was read and checked.

    `model` is the family's transformers class in eval mode, float32, with SDPA attention if it has any; `config` is its
    config, and `sizes` its sizes in the letters of docs/design.md. `generation_config` holds the fields that the
    checkpoint sets, as JSON values, also those that an old checkpoint sets in config.json; it is what `model.generate`
    starts from. `tokenizer` is None where the checkpoint ships none.
    """

    name: str
    path: Path
    family: Family
    model: Any
    config: Any
    sizes: Sizes
    generation_config: dict[str, Any]
    tokenizer: Any | None


def load_checkpoint(name_or_path: str | os.PathLike[str]) -> Checkpoint:
    """The checkpoint behind an alias, a hub id, a local folder or `demo`.

    Raises ExportError, always with one line that names the fault and the fix: unknown model, another family or
    architecture, contradicting config values, no or damaged weights, a missing, extra or wrongly shaped tensor, NaN or
    infinite weights, a special id outside the vocabulary, a tokenizer that cannot be read or does not belong to it.
    """
    folder = resolve(name_or_path)
    config_json = _read_json(folder / CONFIG_FILE)
    family = _family_of(config_json, folder)
    _check_weight_files(folder)
    for name in family.source_files:
        _read_json(folder / name)
    if (folder / GENERATION_FILE).exists():  # transformers would pass over a broken one in silence
        _read_json(folder / GENERATION_FILE)
    with quiet_transformers():
        config = _load_config(family, config_json, folder)
        model = _load_model(family, config, folder)
        sizes = family.sizes(model.config)
        tokenizer = _load_tokenizer(folder, sizes.source_vocabulary)
    return Checkpoint(
        name=checkpoint_name(name_or_path),
        path=folder,
        family=family,
        model=model,
        config=model.config,
        sizes=sizes,
        generation_config=_generation_settings(family, model, folder, sizes.vocabulary),
        tokenizer=tokenizer,
    )


def checkpoint_name(name_or_path: str | os.PathLike[str]) -> str:
    """The last component of an alias, hub id or path: what the output folder is called after."""
    text = os.fspath(name_or_path)
    return text if text in ALIASES or text == DEMO else Path(text).expanduser().resolve().name


def resolve(name_or_path: str | os.PathLike[str]) -> Path:
    """The local folder of a model: `demo`, an alias, a folder, or a hub id (downloaded once, then from the cache).

    A checkpoint folder in the current folder goes before an alias of its name, as in transformers.
    Raises ExportError if there is no such model or the hub cannot be reached.
    """
    text = os.fspath(name_or_path)
    if text and (Path(text) / CONFIG_FILE).is_file():
        return _checked_folder(Path(text))
    if text == DEMO:
        return _checked_folder(DEMO_FOLDER)
    if text in ALIASES:
        return _download(ALIASES[text])
    path = Path(text).expanduser()
    if text and path.exists():
        return _checked_folder(path)
    is_path = path.is_absolute() or text.startswith((".", "~")) or text.count("/") > 1 or "\\" in text or not text
    if is_path:
        raise ExportError(f"{text!r}: no such folder; give a checkpoint folder, a hub id (owner/name), or an alias")
    if HUB_ID.fullmatch(text):
        return _download(text)
    raise ExportError(
        f"{text!r} is neither a folder, nor a hub id (owner/name), nor an alias; "
        f"{_close_aliases(text)} or give the path of a checkpoint folder"
    )


def _close_aliases(text: str) -> str:
    known = [DEMO, *ALIASES]
    wanted = text.rpartition("/")[2].lower()
    close = difflib.get_close_matches(wanted, known, n=3, cutoff=0.5)
    close = close or sorted(alias for alias in known if wanted and alias.startswith(wanted[:4]))[:3]
    return "did you mean " + " or ".join(close) + "?" if close else "aliases: " + ", ".join(known[:5]) + ", ...;"


def _checked_folder(path: Path) -> Path:
    if not path.is_dir():
        raise ExportError(f"{path}: expected a checkpoint folder; give the folder that holds {CONFIG_FILE}")
    if not (path / CONFIG_FILE).is_file():
        raise ExportError(
            f"{path}: no {CONFIG_FILE}; give a folder with {CONFIG_FILE} and {WEIGHTS_FILE}, "
            "as transformers' save_pretrained writes it"
        )
    return path.resolve()


def _download(hub_id: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import GatedRepoError, HFValidationError, RepositoryNotFoundError

    try:
        folder = snapshot_download(
            hub_id, allow_patterns=DOWNLOAD_PATTERNS, ignore_patterns=["*/*"], etag_timeout=HUB_TIMEOUT_S
        )
    except Exception as error:  # the hub's client raises its own, httpx's, OSError and ValueError alike
        chain = list(_causes(error))
        hint = "" if hub_id in ALIASES.values() else f"; {_close_aliases(hub_id)}"
        if any(isinstance(cause, GatedRepoError) for cause in chain):
            fault = "is gated: accept its terms on the hub and log in (`hf auth login`)"
        elif any(isinstance(cause, RepositoryNotFoundError | HFValidationError) for cause in chain):
            fault = f"does not exist on the hub, or is private; {_close_aliases(hub_id)}"
        else:
            fault = (
                f"could not be fetched from the model hub ({_first_line(chain[-1])}); check the network, "
                f"or give the path of a checkpoint folder{hint}"
            )
        raise ExportError(f"{hub_id}: {fault}") from error
    return _checked_folder(Path(folder))


def _causes(error: BaseException) -> Iterator[BaseException]:
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__ or cause.__context__


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0][:300]}" if lines else type(error).__name__


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ExportError(f"{path}: not readable as JSON ({_first_line(error)}); restore the file") from error
    if not isinstance(content, dict):
        raise ExportError(f"{path}: expected a JSON object, found {type(content).__name__}; restore the file")
    return content


def _family_of(config_json: dict[str, Any], folder: Path) -> Family:
    model_type = config_json.get("model_type")
    by_type = {family.model_type: family for family in FAMILIES}
    family = by_type.get(model_type) if isinstance(model_type, str) else None
    if family is None:
        raise ExportError(
            f"{folder / CONFIG_FILE}: model_type is {model_type!r}; supported families: {', '.join(sorted(by_type))}"
        )
    architectures = config_json.get("architectures")
    if architectures and (not isinstance(architectures, list) or family.architecture not in architectures):
        raise ExportError(
            f"{folder / CONFIG_FILE}: architectures is {architectures}; only {family.architecture} generates text; "
            f"load it with transformers.{family.architecture}.from_pretrained and save it with save_pretrained"
        )
    if config_json.get("quantization_config"):
        raise ExportError(f"{folder / CONFIG_FILE}: a quantized checkpoint; give the original float weights")
    return family


def _check_weight_files(folder: Path) -> None:
    """Every weight file is there, inside the folder, and whole."""
    if (folder / WEIGHTS_FILE).exists():
        shards = {WEIGHTS_FILE}
    elif (folder / INDEX_FILE).exists():
        shards = _shards_of(folder)
    else:
        pickled = sorted(path.name for path in folder.glob("*.bin") if path.name.startswith("pytorch_model"))
        if pickled:
            raise ExportError(
                f"{folder}: only {pickled[0]}, and pickled weights are not read; convert them on a machine where you "
                "trust the file: load with transformers' from_pretrained, then save_pretrained writes safetensors"
            )
        raise ExportError(
            f"{folder}: no weights; expected {WEIGHTS_FILE}, or shards with {INDEX_FILE} (where the hub has pickled "
            "weights alone, convert them: from_pretrained, then save_pretrained, and export that folder)"
        )
    if (folder / "adapter_config.json").exists():
        raise ExportError(f"{folder}: holds an adapter (adapter_config.json); merge it into the model and save that")
    for shard in sorted(shards):
        try:
            with safe_open(folder / shard, framework="pt") as file:
                file.keys()
        except (SafetensorError, OSError, ValueError) as error:
            raise ExportError(
                f"{folder / shard}: damaged or truncated safetensors file ({_first_line(error)}); fetch it again"
            ) from error


def _shards_of(folder: Path) -> set[str]:
    index = folder / INDEX_FILE
    weight_map = _read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map or not all(isinstance(v, str) for v in weight_map.values()):
        raise ExportError(f"{index}: weight_map must map tensor names to shard files; restore the file")
    shards = set(weight_map.values())
    for shard in sorted(shards):
        if shard != Path(shard).name or "\\" in shard or shard in ("", ".", ".."):
            raise ExportError(f"{index}: {shard!r} points outside the folder; shards must be plain file names")
        if not shard.endswith(".safetensors"):
            raise ExportError(f"{index}: {shard!r} is not a safetensors file; only safetensors are read")
        if not (folder / shard).is_file():
            raise ExportError(f"{index}: names {shard}, which is missing; fetch it again")
    return shards


def _load_config(family: Family, config_json: dict[str, Any], folder: Path) -> Any:
    path = folder / CONFIG_FILE
    model_class = getattr(transformers, family.architecture)
    try:
        config = model_class.config_class.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # the strict config classes raise types of their own for wrong values
        reason = textwrap.shorten(_first_line(list(_causes(error))[-1]), 300, placeholder=" ...")
        zeros = [name for name, value in config_json.items() if type(value) is int and value == 0 and "_id" not in name]
        if isinstance(error, ZeroDivisionError) and zeros:
            reason = f"{' or '.join(zeros)} is 0, by which transformers divides"
        raise ExportError(f"{path}: {reason}; correct the value") from error

    for fault in family.config_faults(config):
        raise ExportError(f"{path}: {fault}")
    _check_special_ids(path, vars(config), family.sizes(config).vocabulary)
    return config


def _check_special_ids(path: Path, settings: Mapping[str, Any], vocabulary: int) -> None:
    for field in SPECIAL_IDS:
        value = settings.get(field)
        for token_id in value if isinstance(value, list) else [value]:
            if token_id is not None and not (isinstance(token_id, int) and 0 <= token_id < vocabulary):
                raise ExportError(
                    f"{path}: {field} is {token_id!r}, outside the vocabulary of {vocabulary}; correct the id"
                )


def _load_model(family: Family, config: Any, folder: Path) -> Any:
    model_class = getattr(transformers, family.architecture)
    try:
        model, report = model_class.from_pretrained(
            folder,
            config=config,
            dtype=torch.float32,
            attn_implementation="sdpa" if model_class._supports_sdpa else "eager",
            use_safetensors=True,
            trust_remote_code=False,
            local_files_only=True,
            ignore_mismatched_sizes=True,  # reported below, with all other faults at once
            output_loading_info=True,
        )
    except Exception as error:
        raise ExportError(
            f"{folder}: transformers cannot load it ({_first_line(error)}); restore the checkpoint"
        ) from error
    faults = [
        f"{name} has shape {list(found)}, expected {list(expected)}"
        for name, found, expected in sorted(report["mismatched_keys"])
    ]
    faults += [
        f"{name} is missing, expected shape {list(model.get_parameter_or_buffer(name).shape)}"
        for name in sorted(set(report["missing_keys"]) - set(family.computed_weights))
    ]
    faults += [
        f"{name} is not part of {family.architecture}"
        for name in sorted(report["unexpected_keys"])
        if not BOOKKEEPING.search(name)
    ]
    if faults:
        raise ExportError(
            f"{folder}: weights do not fit {CONFIG_FILE}: {_listed(faults)}; restore the weights or the config"
        )
    not_finite = [name for name, tensor in model.state_dict().items() if not torch.isfinite(tensor).all()]
    if not_finite:
        raise ExportError(
            f"{folder}: NaN or infinite weights in {_listed(not_finite)}; restore or retrain the checkpoint"
        )
    return model.eval().requires_grad_(False)


def _listed(items: Iterable[str], shown: int = 3) -> str:
    listed = list(items)
    rest = len(listed) - shown
    return "; ".join(listed[:shown]) + (f"; and {rest} more" if rest > 0 else "")


def _generation_settings(family: Family, model: Any, folder: Path, vocabulary: int) -> dict[str, Any]:
    # transformers folds the settings of an old-style config.json into model.generation_config
    settings: dict[str, Any] = json.loads(model.generation_config.to_json_string(use_diff=True, ignore_metadata=True))
    source = folder / CONFIG_FILE
    if (folder / GENERATION_FILE).exists():
        source = folder / GENERATION_FILE
        for name, value in _read_json(source).items():  # it drops names that it does not know; the runner must see them
            if value is not None and name not in METADATA_FIELDS:
                settings.setdefault(name, value)
    for fault in family.generation_faults(model.generation_config):
        raise ExportError(f"{source}: {fault}")
    if getattr(model.config, "forced_decoder_ids", None):  # Whisper's prompt, where old checkpoints have it
        settings.setdefault("forced_decoder_ids", model.config.forced_decoder_ids)
    _check_special_ids(source, settings, vocabulary)
    return {name: value for name, value in settings.items() if name not in NOT_ABOUT_TOKENS}


def _load_tokenizer(folder: Path, vocabulary: int) -> Any | None:
    present = {name for name in TOKENIZER_SIGNS if (folder / name).exists()}
    if not present:
        return None
    if not any(present.issuperset(files) for files in TOKENIZER_SETS):
        raise ExportError(
            f"{folder}: an incomplete tokenizer ({', '.join(sorted(present))}); restore its vocabulary files, "
            "or remove these to export without a tokenizer"
        )
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
        ids = dict(tokenizer.get_vocab())
        sample = tokenizer("a text")["input_ids"]
    except Exception as error:  # the readers behind it raise anything, bare Exception included
        raise ExportError(
            f"{folder}: the tokenizer cannot be read ({_first_line(error)}); restore its files, "
            "or remove them to export without a tokenizer"
        ) from error
    if not sample:
        raise ExportError(f"{folder}: the tokenizer gives no ids for a text; restore its files, or remove them")
    # bart-large-cnn itself has one row less than its tokenizer has ids: <mask>, which a text does not hold.
    outside = {token: i for token, i in ids.items() if i >= vocabulary and token != tokenizer.mask_token}
    if outside:
        token, largest = max(outside.items(), key=lambda item: item[1])
        raise ExportError(
            f"{folder}: the tokenizer has ids up to {largest} ({token!r}), but vocab_size is {vocabulary}; "
            "give the tokenizer that belongs to these weights"
        )
    return tokenizer


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """No log lines, progress bars or warnings of transformers, as it was before when left."""
    verbosity = transformers_logging.get_verbosity()
    bars = transformers_logging.is_progress_bar_enabled()
    transformers_logging.set_verbosity(logging.CRITICAL)
    transformers_logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        transformers_logging.set_verbosity(verbosity)
        if bars:
            transformers_logging.enable_progress_bar()
