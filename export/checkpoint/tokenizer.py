"""The checkpoint's tokenizer: read, checked against the vocabulary, and written as a folder of the bundle."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import transformers
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from tightbeam.deploy.bundle.manifest import TokenizerEntry
from tightbeam.deploy.bundle.writer import file_entry
from tightbeam.export.checkpoint.quiet import PanicError, panics_as_errors
from tightbeam.export.checkpoint.sample_texts import TOKENIZER_TEXTS
from tightbeam.export.checkpoint.tokenizer_files import tokenizer_files
from tightbeam.export.errors import ExportError, first_line

__all__ = ["load_tokenizer", "write_tokenizer"]

FOLDER = "tokenizer"
CLEAN_UP = (
    *((" .", "."), (" ?", "?"), (" !", "!"), (" ,", ","), (" ' ", "'")),
    *((" n't", "n't"), (" 'm", "'m"), (" 's", "'s"), (" 've", "'ve"), (" 're", "'re")),
)
"""Replacements of transformers' `clean_up_tokenization`, in order."""


def load_tokenizer(folder: Path, vocabulary: int) -> Any | None:
    """transformers' tokenizer of a checkpoint; None if the folder has no file of one.

    Parameters
    ----------
    folder
        The checkpoint.
    vocabulary
        Rows of the source embedding; ids beyond them are an error, except for added tokens.

    Raises
    ------
    ExportError
        The tokenizer is incomplete, cannot be read, panics, or belongs to another model.
    """
    if not tokenizer_files(folder):
        return None
    try:
        with panics_as_errors():
            tokenizer = transformers.AutoTokenizer.from_pretrained(
                folder, trust_remote_code=False, local_files_only=True
            )
            ids = dict(tokenizer.get_vocab())
            sample = tokenizer("a text")["input_ids"]
            tokenizer.decode(sample, skip_special_tokens=True)
            for text in TOKENIZER_TEXTS:  # what would fail when the bundle is written fails now
                tokenizer.decode(tokenizer(text, verbose=False)["input_ids"], skip_special_tokens=True)
    except Exception as error:  # the readers behind it raise anything, bare Exception included
        raise ExportError(
            f"{folder}: the tokenizer cannot be read ({_reason(folder, error)}, or remove them to export without a "
            "tokenizer"
        ) from error
    if not sample:
        raise ExportError(f"{folder}: the tokenizer gives no ids for a text; restore its files, or remove them")
    # Published tokenizers have added tokens beyond the embeddings: <mask> of bart-large-cnn, <image_soft_token> of
    # Gemma 3, [PAD] of tuned Llamas. A text that holds one is an error when it is run.
    outside = {token: i for token, i in ids.items() if i >= vocabulary and i not in tokenizer.added_tokens_decoder}
    if outside:
        token, largest = max(outside.items(), key=lambda item: item[1])
        raise ExportError(
            f"{folder}: the tokenizer has ids up to {largest} ({token!r}), but vocab_size is {vocabulary}; "
            "give the tokenizer that belongs to these weights"
        )
    return tokenizer


def _reason(folder: Path, error: Exception) -> str:
    """The reason why transformers cannot read a tokenizer's files, a bracket, and what to do."""
    if not (folder / "tokenizer.json").exists():
        if any(folder.glob("*.model")) and (reason := _sentencepiece_error()):
            return f"{reason}); pip install 'sentencepiece<0.2.3', add tokenizer.json to its files"
        if "instantiate the backend tokenizer" in first_line(error):
            fix = (
                "load its files with the class that they are of, such as transformers.T5Tokenizer, and save them again"
            )
            return f"transformers reads it from tokenizer.json alone, which is missing); {fix}"
    return f"{first_line(error)}); restore its files"


def _sentencepiece_error() -> str:
    """The reason why sentencepiece's description of its models cannot be imported; "" if it can."""
    try:
        importlib.import_module("sentencepiece.sentencepiece_model_pb2")
    except Exception as error:  # protobuf raises a type of its own for a package made for a newer protobuf
        return first_line(error)
    return ""


def write_tokenizer(tokenizer: Any | None, folder: Path) -> TokenizerEntry | None:
    """Save a tokenizer's files for a bundle, and describe them; None if the checkpoint has no tokenizer.

    The bundle reads ``tokenizer.json`` without transformers if it yields the same ids and texts as transformers'
    class on ``TOKENIZER_TEXTS``.

    Parameters
    ----------
    tokenizer
        Result of :func:`load_tokenizer`.
    folder
        The bundle's folder; the files go to ``tokenizer/`` in it.

    Raises
    ------
    ExportError
        The tokenizers library panics on one of the texts.
    """
    if tokenizer is None:
        return None
    try:
        with panics_as_errors():
            kind = _save(tokenizer, folder / FOLDER)
    except PanicError as error:
        raise ExportError(
            f"the checkpoint's tokenizer fails on a text ({first_line(error)}); restore its files, "
            "or remove them to export without a tokenizer"
        ) from error
    names = sorted(path.relative_to(folder).as_posix() for path in (folder / FOLDER).rglob("*") if path.is_file())
    return TokenizerEntry.model_validate(
        {"kind": kind, "folder": FOLDER, "files": [file_entry(folder, name) for name in names]}
    )


def _save(tokenizer: Any, folder: Path) -> str:
    """Write the tokenizer's files; returns the kind of TokenizerEntry."""
    tokenizer.save_pretrained(folder)
    alone = folder / "tokenizer.json"
    if not alone.exists() and _is_wordpiece(tokenizer):
        _tokenizer_from_wordpiece(tokenizer).save(str(alone))
        if not _alone_suffices(tokenizer, alone):
            alone.unlink()
    return "tokenizers" if _alone_suffices(tokenizer, alone) else "transformers"


def _alone_suffices(tokenizer: Any, file: Path) -> bool:
    """True if ``tokenizer.json``, read by the tokenizers library, agrees with transformers' class."""
    if not file.is_file():
        return False
    alone = Tokenizer.from_file(str(file))
    alone.no_truncation()
    alone.no_padding()
    for text in TOKENIZER_TEXTS:
        ids = list(tokenizer(text, verbose=False).input_ids)
        if list(alone.encode(text).ids) != ids:
            return False
        if alone.decode(ids, skip_special_tokens=True) != tokenizer.decode(ids, skip_special_tokens=True):
            return False
    return True


def _is_wordpiece(tokenizer: Any) -> bool:
    """True for ProphetNet's tokenizer, which transformers has in Python alone: BERT's word pieces."""
    return all(hasattr(tokenizer, name) for name in ("vocab", "basic_tokenizer", "wordpiece_tokenizer"))


def _tokenizer_from_wordpiece(slow: Any) -> Tokenizer:
    """The same tokenizer in the tokenizers library; a text ends with the separator, and has no start token."""
    basic, pieces = slow.basic_tokenizer, slow.wordpiece_tokenizer
    tokenizer = Tokenizer(
        models.WordPiece(
            slow.vocab, unk_token=pieces.unk_token, max_input_chars_per_word=pieces.max_input_chars_per_word
        )
    )
    tokenizer.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=basic.tokenize_chinese_chars,
        strip_accents=basic.strip_accents,
        lowercase=basic.do_lower_case,
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"$A {slow.sep_token}", special_tokens=[(slow.sep_token, slow.sep_token_id)]
    )
    clean_up = CLEAN_UP if slow.clean_up_tokenization_spaces else ()
    replaced = [decoders.Replace(old, new) for old, new in clean_up]
    tokenizer.decoder = decoders.Sequence([decoders.WordPiece(cleanup=False), decoders.Fuse(), *replaced])
    special = set(slow.all_special_ids)
    for index, token in sorted(slow.added_tokens_decoder.items()):
        places = {name: getattr(token, name) for name in ("single_word", "lstrip", "rstrip", "normalized")}
        added = AddedToken(token.content, **places)
        (tokenizer.add_special_tokens if index in special else tokenizer.add_tokens)([added])
    return tokenizer
