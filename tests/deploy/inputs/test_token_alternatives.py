"""Alternatives of tokens are lists for their readers, and arrays in memory."""

from __future__ import annotations

import pickle
import sys

import numpy as np

from support.bundles.cache import BundleCache
from tightbeam.deploy import Runner
from tightbeam.deploy.inputs.token_alternatives import TokenAlternatives
from tightbeam.deploy.serving.protocol.messages import Row

NONE = float("-inf")


def alternatives(given: int, tokens: list[list[int]]) -> TokenAlternatives:
    ids = np.array(tokens, np.int64)
    return TokenAlternatives.behind(given, ids, np.where(ids < 0, NONE, -ids / 4).astype(np.float32))


def test_of_sequences_in_a_row() -> None:
    first, second = alternatives(2, [[5, 6, -1], [6, -1, -1]]), alternatives(1, [[7, 8]])
    joined = TokenAlternatives.join([first, second])
    assert list(joined) == [None, None, [(5, -1.25), (6, -1.5)], [(6, -1.5)], None, [(7, -1.75), (8, -2.0)]]
    assert joined[2:4] == list(joined)[2:4] and joined[-1] == [(7, -1.75), (8, -2.0)]
    assert (joined.most, first.most, len(joined)) == (2, 2, 6)
    assert joined == list(joined) and joined != list(first) and joined != 3


def test_a_row_holds_few_objects(bundles: BundleCache) -> None:
    """Small objects leave pieces of the heap behind, which grew by 10 MB in a backend under attack."""
    runner = Runner.load(bundles("dedup", "bart", tokenizer=True), threads=1)
    settings = {"num_beams": 4, "num_return_sequences": 4, "max_new_tokens": 9, "min_new_tokens": 9}
    plain, scored = (
        pickle.dumps(Row(1, 0, runner.generate_outputs(["A short sentence."], **settings, **asked)[0], fill=1))
        for asked in ({}, {"return_alternatives": 90})
    )
    before = sys.getallocatedblocks()
    one = pickle.loads(plain)
    middle = sys.getallocatedblocks()
    other = pickle.loads(scored)
    assert sys.getallocatedblocks() - middle < 3 * (middle - before) + 100
    assert len(other.output.alternatives[3][5]) == 90 and one.output.alternatives is None
