"""Batches by key: groups, their order and their sizes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tightbeam.deploy.text.batching import batches

WORDS = ["aa", "b", "cccc", "dd", "e", "ff", "g"]


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (lambda _: 9, [["aa", "dd", "ff"], ["b", "e", "g"], ["cccc"]]),
        (lambda _: 2, [["aa", "dd"], ["ff"], ["b", "e"], ["g"], ["cccc"]]),
        (len, [["aa", "dd"], ["ff"], ["b"], ["e"], ["g"], ["cccc"]]),
    ],
)
def test_groups_are_cut_in_the_order_of_their_first_items(
    size: Callable[[str], int], expected: list[list[str]]
) -> None:
    assert list(batches(WORDS, key=len, size=size)) == expected


def test_order_within_a_group_is_stable() -> None:
    found = batches(WORDS, key=lambda _: None, size=lambda _: 3, order=lambda word: -len(word))
    assert list(found) == [["cccc", "aa", "dd"], ["ff", "b", "e"], ["g"]]


def test_no_items_make_no_batch() -> None:
    assert list(batches([], key=len, size=len)) == []
