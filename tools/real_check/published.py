"""A list of published checkpoints, each pinned to the commit that was first fetched.

``published.json`` names them. It did not run where this was written, since no hub was reached there, and so has no
commits: the first run that reaches a hub resolves each, and writes it to ``published.lock.json``. Later runs fetch that
commit, whatever has changed on the hub.
"""

from __future__ import annotations

import json
from pathlib import Path

from huggingface_hub import snapshot_download

from tightbeam.export.checkpoint.resolve import DOWNLOAD_PATTERNS
from tools.real_check.errors import CheckError

__all__ = ["PUBLISHED", "fetched", "listed"]

PUBLISHED = "published"
"""The word for all checkpoints of the list."""
LIST = Path(__file__).with_name("published.json")
LOCK = Path(__file__).with_name("published.lock.json")


def listed() -> dict[str, str | None]:
    """The ids of the list, and the commit of each, if one was written there by hand."""
    return {entry["id"]: entry["revision"] for entry in json.loads(LIST.read_text("utf-8"))}


def fetched(hub_id: str, revision: str | None) -> str:
    """Fetch a checkpoint at its pinned commit, which is written down if it was unknown.

    Returns
    -------
    str
        Its folder.

    Raises
    ------
    CheckError
        The hub cannot be reached, or does not have the commit.
    """
    locked = json.loads(LOCK.read_text("utf-8")) if LOCK.exists() else {}
    wanted = locked.get(hub_id, revision)
    try:
        folder = snapshot_download(
            hub_id, revision=wanted, allow_patterns=list(DOWNLOAD_PATTERNS), ignore_patterns=["*/*"]
        )
    except Exception as error:  # the hub's client raises its own, httpx's, OSError and ValueError alike
        reason = str(error).strip().partition("\n")[0]
        raise CheckError(
            f"{hub_id}{f' at {wanted}' if wanted else ''} could not be fetched from the model hub ({reason}); check "
            "the network, or name the folders of checkpoints"
        ) from None
    if hub_id not in locked:
        pins = dict(sorted({**locked, hub_id: Path(folder).name}.items()))
        LOCK.write_text(json.dumps(pins, indent=1) + "\n", encoding="utf-8")
    return folder
