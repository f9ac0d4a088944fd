"""Name of a model -> local folder: `demo`, an alias, a folder, or a hub id."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Sequence
from pathlib import Path

from tightbeam.export.checkpoint.config import CONFIG_FILE
from tightbeam.export.checkpoint.weight_files import WEIGHTS_FILE
from tightbeam.export.errors import ExportError, causes, first_line
from tightbeam.export.families.table import FAMILIES

__all__ = ["ALIASES", "DOWNLOAD_PATTERNS", "SNAPSHOT", "cached_id", "checkpoint_name", "hub_id_of", "resolve"]

DEMO = "demo"
DEMO_FOLDER = Path(__file__).resolve().parents[1] / "demo"
ALIASES: dict[str, str] = {alias: hub_id for family in FAMILIES for alias, hub_id in family.aliases.items()}
"""Short name -> hub id, over all families."""
DOWNLOAD_PATTERNS = ("*.json", "*.safetensors", "*.spm", "*.model", "merges.txt", "vocab.txt", "*.tokenizer")
HUB_TIMEOUT_S = 5.0
SNAPSHOT = re.compile(r"[0-9a-f]{40}")
"""Name of a snapshot's folder in the hub's cache: the commit."""
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]*\w")


def checkpoint_name(name_or_path: str | os.PathLike[str]) -> str:
    """The last component of an alias, hub id or path, or of the hub id that a path in the hub's cache is a snapshot of;
    the default name of the bundle begins with it."""
    text = os.fspath(name_or_path)
    if text in ALIASES or text == DEMO:
        return text
    folder = Path(text).expanduser().resolve()
    return (cached_id(folder) or folder.name).rpartition("/")[2]


def cached_id(folder: Path) -> str | None:
    """The hub id of a snapshot in the hub's cache, ``models--<owner>--<name>/snapshots/<commit>``; None for another
    folder."""
    if folder.parent.name != "snapshots" or not SNAPSHOT.fullmatch(folder.name):
        return None
    kind, _, hub_id = folder.parent.parent.name.partition("--")
    return hub_id.replace("--", "/", 1) if kind == "models" and hub_id else None


def resolve(name_or_path: str | os.PathLike[str], patterns: Sequence[str] = DOWNLOAD_PATTERNS) -> Path:
    """The local folder of a model, downloaded once if it is on the hub.

    A checkpoint folder in the current folder takes precedence over an alias of the same name, as in transformers.

    Parameters
    ----------
    name_or_path
        `demo`, an alias, the path of a checkpoint folder, or a hub id (owner/name).
    patterns
        Files to download of a model on the hub.

    Raises
    ------
    ExportError
        The model does not exist, or the hub cannot be reached.
    """
    place = _place(os.fspath(name_or_path))
    return _checked_folder(place) if isinstance(place, Path) else _download(place, patterns)


def hub_id_of(name_or_path: str | os.PathLike[str]) -> str | None:
    """The hub id (owner/name) of a model that ``resolve`` downloads; None for a folder. Raises ExportError."""
    place = _place(os.fspath(name_or_path))
    return None if isinstance(place, Path) else place


def _place(text: str) -> Path | str:
    """A local path, or a hub id. Raises ExportError for a name that can be neither."""
    if text and (Path(text) / CONFIG_FILE).is_file():
        return Path(text)
    if text == DEMO:
        return DEMO_FOLDER
    if text in ALIASES:
        return ALIASES[text]
    path = Path(text).expanduser()
    if text and path.exists():
        return path
    is_path = path.is_absolute() or text.startswith((".", "~")) or text.count("/") > 1 or "\\" in text or not text
    if is_path:
        raise ExportError(f"{text!r}: no such folder; give a checkpoint folder, a hub id (owner/name), or an alias")
    if HUB_ID.fullmatch(text):
        return text
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


def _download(hub_id: str, patterns: Sequence[str]) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import GatedRepoError, HFValidationError, RepositoryNotFoundError

    try:
        folder = snapshot_download(
            hub_id, allow_patterns=list(patterns), ignore_patterns=["*/*"], etag_timeout=HUB_TIMEOUT_S
        )
    except Exception as error:  # the hub's client raises its own, httpx's, OSError and ValueError alike
        chain = list(causes(error))
        hint = "" if hub_id in ALIASES.values() else f"; {_close_aliases(hub_id)}"
        if any(isinstance(cause, GatedRepoError) for cause in chain):
            reason = "is gated: accept its terms on the hub and log in (`hf auth login`)"
        elif any(isinstance(cause, RepositoryNotFoundError | HFValidationError) for cause in chain):
            reason = f"does not exist on the hub, or is private; {_close_aliases(hub_id)}"
        else:
            reason = (
                f"could not be fetched from the model hub ({first_line(chain[-1])}); check the network, "
                f"or give the path of a checkpoint folder{hint}"
            )
        raise ExportError(f"{hub_id}: {reason}") from error
    return _checked_folder(Path(folder))
