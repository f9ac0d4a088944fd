"""A bundle's tokenizer as a graph's nodes need it: rules that can be read, and what the nodes are compared with."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, processors
from transformers import MarianTokenizer

from tightbeam.export.errors import ExportError
from tightbeam.export.one_graph.tokenizer import CODE, FIX, UNDERLINE, UNKNOWN_CODE, Pieces

__all__ = ["GraphTokenizer", "of_class", "of_file"]


@dataclass(frozen=True)
class GraphTokenizer:
    """The rules of a tokenizer, and the tokenizer itself."""

    rules: Tokenizer
    """without truncation and padding; with ``pieces`` its model has the names of ids alone"""
    pieces: Pieces | None
    """SentencePiece's own model, if ``rules`` cannot have it"""
    encode: Callable[[str, int | None], list[int]]
    """the ids of a text, cut to so many"""
    decode: Callable[[Sequence[int]], str]
    """the text of ids, without special tokens"""


def of_file(tokenizer: Tokenizer) -> GraphTokenizer:
    """Describe the tokenizer of a ``tokenizer.json``, which is changed."""
    tokenizer.no_truncation()
    tokenizer.no_padding()
    cutting = Tokenizer.from_str(tokenizer.to_str())

    def encode(text: str, most: int | None) -> list[int]:
        if most is not None:
            cutting.enable_truncation(most)
        return list(cutting.encode(text).ids)

    return GraphTokenizer(tokenizer, None, encode, lambda ids: tokenizer.decode(ids, skip_special_tokens=True))


def of_class(tokenizer: Any) -> GraphTokenizer:
    """Describe a tokenizer that is a class of transformers alone: Marian's, of the pieces of a SentencePiece model, the
    ids of a vocabulary, and the code of a language in front.

    Raises
    ------
    ExportError
        The tokenizer is of another class, or its ids have gaps.
    """
    if not isinstance(tokenizer, MarianTokenizer):
        raise ExportError(f"the tokenizer cannot be put into a graph: it is a class of transformers alone; {FIX}")
    protobuf: Any = importlib.import_module("sentencepiece.sentencepiece_model_pb2")
    model = protobuf.ModelProto.FromString(Path(tokenizer.spm_files[0]).read_bytes())
    count = len(tokenizer.decoder)
    if {*tokenizer.decoder, *tokenizer.added_tokens_decoder} != set(range(count)):
        raise ExportError(f"the tokenizer cannot be put into a graph: its ids have gaps; {FIX}")
    names = [str(tokenizer.decoder[token]) for token in range(count)]
    unknown = tokenizer.encoder[tokenizer.unk_token]
    rules = Tokenizer(models.Unigram([(name, 0.0) for name in names], unk_id=unknown))
    spec = model.normalizer_spec
    spaces = [normalizers.Strip(), normalizers.Replace(Regex(" {2,}"), " ")] if spec.remove_extra_whitespaces else []
    charsmap = [normalizers.Precompiled(spec.precompiled_charsmap)] if spec.precompiled_charsmap else []
    prefix = [normalizers.Prepend(UNDERLINE)] if spec.add_dummy_prefix else []
    rules.normalizer = normalizers.Sequence([*charsmap, *spaces, *prefix])
    rules.decoder = decoders.Sequence([decoders.Replace(UNDERLINE, " "), decoders.Strip(" ", count, count)])
    end = tokenizer.eos_token
    rules.post_processor = processors.TemplateProcessing(
        single=f"$A {end}", special_tokens=[(end, tokenizer.eos_token_id)]
    )
    special = set(tokenizer.all_special_tokens)
    for token in tokenizer.added_tokens_decoder.values():
        places = {name: getattr(token, name) for name in ("single_word", "lstrip", "rstrip", "normalized")}
        added = AddedToken(token.content, **places)
        (rules.add_special_tokens if token.content in special else rules.add_tokens)([added])

    def encode(text: str, most: int | None) -> list[int]:
        return list(tokenizer(text, truncation=most is not None, max_length=most, verbose=False).input_ids)

    def decode(ids: Sequence[int]) -> str:
        return str(tokenizer.decode(ids, skip_special_tokens=True))

    return GraphTokenizer(rules, _pieces(model, tokenizer, unknown), encode, decode)


def _pieces(model: Any, tokenizer: Any, unknown: int) -> Pieces:
    """The pieces of a model, and behind them those that a text is never split within."""
    codes = tuple(tokenizer.supported_language_codes)
    added = {token.content: number for number, token in tokenizer.added_tokens_decoder.items()}
    whole = {**added, **{CODE + code: tokenizer.encoder[code] for code in codes}, UNKNOWN_CODE: unknown}
    kinds = type(model).SentencePiece
    ids = []
    for piece in model.pieces:
        ids.append(tokenizer.encoder.get(piece.piece, unknown))
        if piece.piece in whole:  # a name of the model's own, which no text has
            piece.piece = f"{UNKNOWN_CODE}{len(ids)}"
    for name, number in whole.items():
        model.pieces.add(piece=name, score=0.0, type=kinds.USER_DEFINED)
        ids.append(number)
    model.normalizer_spec.add_dummy_prefix = model.normalizer_spec.remove_extra_whitespaces = False
    return Pieces(model.SerializeToString(), np.array(ids, np.int64), codes)
