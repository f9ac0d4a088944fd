"""Tries: what they allow, next to a dict of prefixes; their files, and errors for what is no trie."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tightbeam.deploy.errors import InputError
from tightbeam.deploy.search.processors.trie import next_nodes
from tightbeam.deploy.tries.build import build_trie
from tightbeam.deploy.tries.file import HEADER, read_trie, write_trie
from tightbeam.deploy.tries.trie import FREE, ROOT, Trie

ENTRIES = st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=5), min_size=1, max_size=12)


def allowed(entries: list[list[int]]) -> dict[tuple[int, ...], set[int]]:
    """The tokens that may follow each prefix of an entry."""
    found: dict[tuple[int, ...], set[int]] = {}
    for entry in entries:
        for length, token in enumerate(entry):
            found.setdefault(tuple(entry[:length]), set()).add(token)
    return found


def node_of(trie: Trie, prefix: tuple[int, ...]) -> int:
    node = np.array([ROOT], np.int32)
    for token in prefix:
        node = trie.follow(node, np.array([token]))
    return int(node[0])


@settings(deadline=None)
@given(entries=ENTRIES, others=ENTRIES)
def test_children_are_those_of_a_dict_of_prefixes(entries: list[list[int]], others: list[list[int]]) -> None:
    trie, expected = build_trie(entries), allowed(entries)
    assert trie.entries == len({tuple(entry) for entry in entries}) and trie.longest == max(map(len, entries))
    assert len(trie.tokens) == sum(map(len, expected.values()))
    for entry in [*entries, *others]:
        for length in range(len(entry) + 1):
            prefix = tuple(entry[:length])
            assert trie.children(node_of(trie, prefix)).tolist() == sorted(expected.get(prefix, ()))


@settings(deadline=None)
@given(entries=ENTRIES)
def test_end_tokens_follow_whole_entries_alone(entries: list[list[int]]) -> None:
    trie = build_trie(entries, end_token_id=5)
    whole = [entry if entry[-1] == 5 else [*entry, 5] for entry in entries]
    same = build_trie(whole)
    np.testing.assert_array_equal(trie.tokens, same.tokens)
    np.testing.assert_array_equal(trie.offsets, same.offsets)


def test_an_array_is_as_good_as_lists() -> None:
    generator = np.random.default_rng(0)
    array = generator.integers(0, 40, (300, 6))
    trie, same = build_trie(array.astype(np.int32)), build_trie(array.tolist())
    np.testing.assert_array_equal(trie.tokens, same.tokens)
    np.testing.assert_array_equal(trie.offsets, same.offsets)


def test_many_rows_follow_at_once() -> None:
    generator = np.random.default_rng(1)
    entries = generator.integers(0, 30, (500, 4)).tolist()
    trie, expected = build_trie(entries), allowed(entries)
    paths = [tuple(entry[: generator.integers(0, 5)]) for entry in entries]
    nodes = np.array([node_of(trie, path) for path in paths], np.int32)
    tokens = generator.integers(0, 32, len(paths))
    found = trie.follow(nodes, tokens)
    for path, token, node in zip(paths, tokens.tolist(), found.tolist(), strict=True):
        inside = token in expected.get(path, ())
        assert node == (node_of(trie, (*path, token)) if inside else trie.dead)
    assert len(trie.children(trie.dead)) == 0


def test_rows_are_free_until_the_trie_begins() -> None:
    trie = build_trie([[5, 7], [6]])
    begins, parents = np.array([3, 3, 3]), np.array([[FREE], [FREE], [ROOT]], np.int32)
    nodes = next_nodes(trie, parents, np.array([[5], [5], [5]]), np.array([2, 3, 4]), begins)
    assert nodes.tolist() == [[FREE], [ROOT], [node_of(trie, (5,))]]


def test_a_file_is_mapped_once_and_read_again_when_replaced(tmp_path: Path) -> None:
    path = tmp_path / "a.trie"
    write_trie(build_trie([[5, 7], [6]]), path)
    trie = read_trie(path)
    assert read_trie(str(path)) is trie and not trie.tokens.flags.writeable
    assert (trie.entries, trie.longest, trie.vocabulary) == (2, 2, 8) and trie.tokens.tolist() == [5, 6, 7]
    write_trie(build_trie([[5, 7], [6], [9]]), path)
    assert read_trie(path).tokens.tolist() == [5, 6, 9, 7] and trie.tokens.tolist() == [5, 6, 7]
    assert [file.name for file in tmp_path.iterdir()] == ["a.trie"]


def test_each_damaged_byte_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a.trie"
    write_trie(build_trie([[5, 7], [6]]), path)
    whole = path.read_bytes()
    for index in range(len(whole)):
        if 24 <= index < 64:  # facts that nothing follows: sizes of the entries, and what is kept free
            continue
        path.write_bytes(whole[:index] + bytes([whole[index] ^ 1]) + whole[index + 1 :])
        with pytest.raises(InputError, match=r"a\.trie is not a whole trie: .*; make it again with build-trie"):
            read_trie(path)
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(InputError, match="is not a whole trie"):
            read_trie(path)


@pytest.mark.parametrize(
    ("offsets", "tokens"),
    [
        ([0, 0, 2, 3, 3, 2], [5, 6, 7]),
        ([0, 1, 2, 3, 3, 3], [5, 6, 7]),
        ([1, 0, 2, 3, 3, 3], [5, 6, 7]),
        ([0, 0, 2, 1, 3, 3], [5, 6, 7]),
        ([0, 0, 2, 3, 3, 3], [6, 5, 7]),
        ([0, 0, 2, 3, 3, 3], [5, 6, -1]),
        ([0, 0, 0, 3, 3, 3], [5, 6, 7]),
        ([0, 0, 2, 3, 3, 3], [5, 6, 900]),
    ],
)
def test_arrays_that_are_no_trie_are_an_error(tmp_path: Path, offsets: list[int], tokens: list[int]) -> None:
    path = tmp_path / "a.trie"
    write_trie(Trie(np.array(offsets, np.int32), np.array(tokens, np.int32), 8, 2, 2), path)
    with pytest.raises(InputError, match="its arrays contradict each other"):
        read_trie(path)


def test_files_that_cannot_be_used(tmp_path: Path) -> None:
    for path, reason in ((tmp_path / "none", "no such file"), (tmp_path, "is a directory"), ("a\0b", "null")):
        with pytest.raises(InputError, match=f"(?i)cannot read the trie .*{reason}.*; make one with build-trie"):
            read_trie(path)
    with pytest.raises(InputError, match=r"cannot write .*: no such file or directory; choose another file"):
        write_trie(build_trie([[1]]), tmp_path / "none" / "a.trie")
    path = tmp_path / "new"
    write_trie(build_trie([[1]]), path)
    path.write_bytes(path.read_bytes()[:8] + b"\2" + path.read_bytes()[9:])
    with pytest.raises(InputError, match="it has version 2, expected 1"):
        read_trie(path)
    assert HEADER.size == 64


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ([], "a trie needs at least one entry"),
        ([[1], []], "entry 1 of the trie is empty"),
        (np.zeros((3, 0), np.int64), "entry 0 of the trie is empty"),
        ([[1, -2]], "hold -2, which is not a token id"),
        ([[1, 2**31]], "hold 2147483648, which is not a token id"),
        ([[1, "a"]], "hold values that are not integers"),
        ([[1, 2.5]], "hold values that are not integers"),
        ([1, 2], "hold values that are not integers"),
        ([[[1], [2, 3]]], "hold values that are not integers"),
    ],
)
def test_entries_that_are_none(entries: list[list[int]], message: str) -> None:
    with pytest.raises(InputError, match=message):
        build_trie(entries)


def test_a_written_file_follows_the_umask_and_removes_what_a_killed_writer_left(tmp_path: Path) -> None:
    path = tmp_path / "a.trie"
    abandoned, being_written = tmp_path / ".a.trie.partial--1", tmp_path / ".a.trie.partial--2"
    for partial in (abandoned, being_written):
        partial.touch()
    os.utime(abandoned, (0, 0))
    before = os.umask(0o077)
    try:
        write_trie(build_trie([[1]]), path)
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o600
    assert sorted(tmp_path.iterdir()) == [being_written, path]


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.trie")
    with pytest.raises(InputError, match="is not a regular file; make one with build-trie"):
        read_trie(tmp_path / "a.trie")
