"""Summaries of texts that are longer than a model's positions."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from tightbeam.deploy.documents.summary import chunks_of, summary


def short(most: int) -> Callable[[str], bool]:
    return lambda text: len(text) <= most


def test_chunks_overlap_and_hold_every_sentence() -> None:
    text = " ".join(f"Sentence number {number:02}." for number in range(40))
    chunks = chunks_of(text, "en", short(200))
    assert all(len(chunk) <= 200 for chunk in chunks)
    assert all(f"number {number:02}." in " ".join(chunks) for number in range(40))
    assert all(chunk.startswith(before[-19:]) for before, chunk in pairwise(chunks))


@settings(max_examples=100, deadline=None)
@given(st.text("ab. ,\n", max_size=200), st.integers(1, 40))
def test_chunks_of_any_text_fit(text: str, most: int) -> None:
    chunks = chunks_of(text, "en", short(most))
    assert all(len(chunk) <= most for chunk in chunks)
    assert "".join("".join(chunks).split()).startswith("".join(text.split())[:1])


def run(text: str, function: Callable[[str], str], most: int = 200) -> tuple[list[str], list[int]]:
    rounds, counts = summary(text, "en", short(most)), []
    try:
        chunks = next(rounds)
        while True:
            counts.append(len(chunks))
            chunks = rounds.send([function(chunk) for chunk in chunks])
    except StopIteration as end:
        return end.value, counts


def test_summaries_are_summarised_until_one_is_left() -> None:
    text = " ".join(f"Sentence number {number:02}." for number in range(60))
    made, counts = run(text, lambda chunk: chunk[: len(chunk) // 2].rsplit(".", 1)[0] + ".")
    assert len(made) == 1 and counts[-1] == 1 and sorted(counts, reverse=True) == counts and counts[0] > 5


def test_a_model_that_does_not_shorten_ends() -> None:
    text = " ".join(f"Sentence number {number:02}." for number in range(60))
    made, counts = run(text, str)
    assert len(made) == counts[0] and len(counts) == 1
