"""``tokenizer.json`` for ProphetNet's tokenizer, which transformers has in Python alone: BERT's word pieces."""

from __future__ import annotations

from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

__all__ = ["is_wordpiece", "tokenizer_from_wordpiece"]

CLEAN_UP = (
    *((" .", "."), (" ?", "?"), (" !", "!"), (" ,", ","), (" ' ", "'")),
    *((" n't", "n't"), (" 'm", "'m"), (" 's", "'s"), (" 've", "'ve"), (" 're", "'re")),
)
"""What transformers' `clean_up_tokenization` replaces in a text, in order."""


def is_wordpiece(tokenizer: Any) -> bool:
    """Whether transformers' class splits texts as BERT does, without the tokenizers library."""
    return all(hasattr(tokenizer, name) for name in ("vocab", "basic_tokenizer", "wordpiece_tokenizer"))


def tokenizer_from_wordpiece(slow: Any) -> Tokenizer:
    """The same tokenizer in the tokenizers library; a text ends with the separator, and begins with nothing."""
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
