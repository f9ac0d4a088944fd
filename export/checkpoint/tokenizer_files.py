"""The files of a checkpoint's tokenizer, checked without transformers."""

from __future__ import annotations

from pathlib import Path

from tightbeam.export.checkpoint.config import read_json
from tightbeam.export.errors import ExportError

__all__ = ["tokenizer_files"]

CONFIG = "tokenizer_config.json"
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
"""Complete tokenizers, each by its files; a folder with some of these files and no complete set is broken."""
TOKENIZER_SIGNS = {name for files in TOKENIZER_SETS for name in files} | {CONFIG}


def tokenizer_files(folder: Path) -> set[str]:
    """Find the files of a checkpoint's tokenizer.

    Parameters
    ----------
    folder
        The checkpoint.

    Returns
    -------
    set of str
        Their names; empty for a checkpoint without a tokenizer.

    Raises
    ------
    ExportError
        The files are not a whole tokenizer, or would have another file of this machine read.
    """
    present = {name for name in TOKENIZER_SIGNS if (folder / name).exists()}
    if present and not any(present.issuperset(files) for files in TOKENIZER_SETS):
        raise ExportError(
            f"{folder}: an incomplete tokenizer ({', '.join(sorted(present))}); restore its vocabulary files, "
            "or remove these to export without a tokenizer"
        )
    _check_contents(folder / CONFIG)
    return present


def _check_contents(path: Path) -> None:
    """Raise ExportError if a file of settings names a file in place of a vocabulary.

    transformers would read it, wherever it is, and its lines would get into the bundle.
    """
    named = [name for name in ("vocab", "merges") if path.exists() and isinstance(read_json(path).get(name), str)]
    if named:
        raise ExportError(
            f"{path}: {named[0]} names a file, expected its content; remove it, and put the tokenizer's files into the "
            "folder"
        )
