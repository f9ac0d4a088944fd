"""Fuzzing of the reader of tries: what it accepts can be followed to any depth."""

from __future__ import annotations

import itertools
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

from support.fuzzing import bytes_like, corpus, fuzz
from tightbeam.deploy.tries.build import build_trie
from tightbeam.deploy.tries.file import HEADER, read_trie, write_trie
from tightbeam.deploy.tries.trie import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.fuzz]


def test_tries(tmp_path: Path) -> None:
    valid = []
    for entries in ([[5, 7, 9], [5, 8], [5, 7]], [[3]], [[a, b, 1] for a in range(9) for b in range(9)], [[1] * 40]):
        write_trie(build_trie(entries), tmp_path / "valid.trie")
        valid.append((tmp_path / "valid.trie").read_bytes())
    numbers = itertools.count()

    def run(example: tuple[bytes, bool]) -> None:
        data, fixed = example
        if fixed and len(data) > HEADER.size:  # past the checksum
            crc = zlib.crc32(data[HEADER.size :])
            data = data[:12] + crc.to_bytes(4, "little") + data[16:]
        path = tmp_path / f"{next(numbers)}.trie"
        path.write_bytes(data)
        try:
            follow(read_trie(path))
        finally:
            path.unlink()

    def follow(trie: Any) -> None:
        level = np.array([ROOT], np.int32)
        for _ in range(len(trie.tokens) + 1):
            nexts = [trie.follow(np.full(len(trie.children(node)), node), trie.children(node)) for node in level]
            assert all(len(nodes) == 0 or (nodes > node).all() for nodes, node in zip(nexts, level, strict=True))
            level = np.concatenate([np.zeros(0, np.int32), *nexts])
            if not len(level):
                break
        else:
            raise AssertionError("a path does not end")
        assert trie.follow(np.array([ROOT, trie.dead]), np.array([-1, 2**62])).tolist() == [trie.dead] * 2

    first = [(data, fixed) for data in (*valid, *corpus("tries")) for fixed in (True, False)]
    fuzz("tries", st.tuples(bytes_like(valid), st.booleans()), run, first=first)
