"""The checkpoint's tokenizer, as a folder of the bundle."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tightbeam.deploy.bundle.reader import TokenizerEntry, file_entry
from tightbeam.export.accuracy.sample_texts import TOKENIZER_TEXTS
from tightbeam.export.checkpoint.load import Checkpoint
from tightbeam.export.checkpoint.wordpiece import is_wordpiece, tokenizer_from_wordpiece

FOLDER = "tokenizer"


def write_tokenizer(checkpoint: Checkpoint, folder: Path) -> TokenizerEntry | None:
    """Save the tokenizer's own files; None where the checkpoint has none.

    ``tokenizer.json`` alone serves where it gives the very ids and texts of transformers' class, which is compared.
    """
    if checkpoint.tokenizer is None:
        return None
    checkpoint.tokenizer.save_pretrained(folder / FOLDER)
    alone = folder / FOLDER / "tokenizer.json"
    if not alone.exists() and is_wordpiece(checkpoint.tokenizer):
        tokenizer_from_wordpiece(checkpoint.tokenizer).save(str(alone))
        if not _alone_suffices(checkpoint.tokenizer, alone):
            alone.unlink()
    names = sorted(path.relative_to(folder).as_posix() for path in (folder / FOLDER).rglob("*") if path.is_file())
    kind = "tokenizers" if _alone_suffices(checkpoint.tokenizer, alone) else "transformers"
    return TokenizerEntry.model_validate(
        {"kind": kind, "folder": FOLDER, "files": [file_entry(folder, name) for name in names]}
    )


def _alone_suffices(tokenizer: Any, file: Path) -> bool:
    if not file.is_file():
        return False
    from tokenizers import Tokenizer

    alone = Tokenizer.from_file(str(file))
    alone.no_truncation()
    alone.no_padding()
    for text in TOKENIZER_TEXTS:
        ids = list(tokenizer(text).input_ids)
        if list(alone.encode(text).ids) != ids:
            return False
        if alone.decode(ids, skip_special_tokens=True) != tokenizer.decode(ids, skip_special_tokens=True):
            return False
    return True
