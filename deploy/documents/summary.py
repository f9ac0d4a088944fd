"""Summaries of texts that are longer than a model's positions: summaries of chunks, summarised again."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence

from tightbeam.deploy.documents.sentences import most_that_fit, pieces_that_fit, split_sentences
from tightbeam.deploy.text.scripts import join_texts

__all__ = ["chunks_of", "summary"]

OVERLAP = 8
"""A chunk begins with as many sentences of the one before it as fit into this part of its length."""


def summary(text: str, language: str, fits: Callable[[str], bool]) -> Generator[list[str], Sequence[str], list[str]]:
    """Summarise a long text in rounds.

    Parameters
    ----------
    text
        The text.
    language
        Its language, such as "en", for the rules of sentences.
    fits
        Says whether the model has positions for a text.

    Yields
    ------
    list of str
        The texts to summarise next, whose summaries are sent in.

    Returns
    -------
    list of str
        The summaries of the last round: one, or several if those of a round are no shorter than their texts.
    """
    while True:
        chunks = chunks_of(text, language, fits)
        made = yield chunks
        joined = join_texts(made)
        if len(chunks) == 1 or not joined or len(joined) >= len(text):
            return list(made)
        text = joined


def chunks_of(text: str, language: str, fits: Callable[[str], bool]) -> list[str]:
    """Cut a text into chunks of whole sentences that fit, each of which repeats the end of the one before it."""
    if fits(text):
        return [text]
    sentences = [piece for each in split_sentences(text, language) for piece in pieces_that_fit(each, fits)]
    chunks, begin = [], 0
    while begin < len(sentences):
        end = begin + max(1, most_that_fit(sentences, begin, fits))
        chunks.append("".join(sentences[begin:end]).strip())
        size = len(chunks[-1])
        back, repeated = end, 0
        while end < len(sentences) and back - 1 > begin and repeated + len(sentences[back - 1]) <= size // OVERLAP:
            back -= 1
            repeated += len(sentences[back])
        begin = back
    return [chunk for chunk in chunks if chunk]
