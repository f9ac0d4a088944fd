"""The files of a checkpoint's tokenizer, checked without transformers."""

from __future__ import annotations

from pathlib import Path

from tightbeam.export.errors import ExportError

__all__ = ["tokenizer_files"]

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
TOKENIZER_SIGNS = {name for files in TOKENIZER_SETS for name in files} | {"tokenizer_config.json"}


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
        The files are not a whole tokenizer.
    """
    present = {name for name in TOKENIZER_SIGNS if (folder / name).exists()}
    if present and not any(present.issuperset(files) for files in TOKENIZER_SETS):
        raise ExportError(
            f"{folder}: an incomplete tokenizer ({', '.join(sorted(present))}); restore its vocabulary files, "
            "or remove these to export without a tokenizer"
        )
    return present
