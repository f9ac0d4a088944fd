"""Outputs that begin with given tokens: equal to `model.generate` for each sample alone, in any company."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch

from support.bundles.cache import BundleCache
from support.commands import caller
from support.references.generate_runs import batch
from tightbeam.deploy import Runner
from tightbeam.deploy.errors import GenerationError, InputError

BEGINNINGS = ([9, 4, 17], [5], [2, 8, 7, 6, 12])  # the last with the start token, which is the end token
SETTINGS: tuple[dict[str, Any], ...] = (
    {"max_new_tokens": 7},
    {"max_new_tokens": 7, "num_beams": 3, "no_repeat_ngram_size": 2, "length_penalty": 2.0},
    {"max_length": 9, "min_length": 8, "repetition_penalty": 1.4, "num_beams": 2, "num_return_sequences": 2},
)


@pytest.fixture(scope="module")
def runner(bundles: BundleCache) -> Runner:
    return Runner.load(bundles("dedup"), threads=1)


@pytest.mark.parametrize("settings", SETTINGS, ids=repr)
def test_each_sample_gets_what_it_gets_alone(
    runner: Runner,
    bundles: BundleCache,
    settings: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    model = bundles.trace("bart")[0].model
    assert model.generation_config.decoder_start_token_id == 2
    ids, mask = batch(runner.manifest.sizes.source_vocabulary, 1)
    rows = [row[own > 0].tolist() for row, own in zip(ids, mask, strict=True)]
    returned = settings.get("num_return_sequences", 1)
    expected = [
        model.generate(torch.tensor([row]), decoder_input_ids=torch.tensor([given]), **settings).tolist()
        for row, given in zip(rows, BEGINNINGS, strict=True)
    ]
    for found in (
        runner.generate(ids, mask, decoder_input_ids=BEGINNINGS, **settings),
        runner.generate(rows, decoder_input_ids=[np.array(each) for each in BEGINNINGS], **settings),
    ):
        for sample, wanted in enumerate(expected):
            width = len(wanted[0])
            assert found.of(sample, returned).sequences[:, :width].tolist() == wanted
    lines = [{"ids": row, "decoder_input_ids": given} for row, given in zip(rows, BEGINNINGS, strict=True)]
    options = [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]
    stdin = "".join(f"{json.dumps(line)}\n" for line in lines).encode()
    done = caller(monkeypatch, capsys)(
        runner.bundle.path, "--json", "--ids", "--json-input", "ids", *options, stdin=stdin
    ).succeeded()
    for record, wanted, given in zip(done.records, expected, BEGINNINGS, strict=True):
        assert wanted[0][: len(record["tokens"])] == record["tokens"]
        assert len(record["tokens"]) > len(given)


def test_errors_name_the_beginning(runner: Runner, bundles: BundleCache) -> None:
    two = [[5, 6], [7, 8]]
    with pytest.raises(InputError, match="decoder_input_ids has 1 rows, expected 2; pass a row of token ids for each"):
        runner.generate(two, decoder_input_ids=[[4]])
    with pytest.raises(InputError, match="decoder_input_ids is int, expected 2 rows of token ids"):
        runner.generate(two, decoder_input_ids=4)
    with pytest.raises(InputError, match="row 1 of decoder_input_ids is int, expected token ids"):
        runner.generate(two, decoder_input_ids=[[4], 4])
    with pytest.raises(GenerationError, match=r"^row 1: decoder_input_ids=\[-3\].* holds -3, which is outside the"):
        runner.generate(two, decoder_input_ids=[[4], [-3]])
    with pytest.raises(GenerationError, match=r"decoder_input_ids=\[-3\].* holds -3, which is outside the vocabulary"):
        runner.generate([[5, 6]], decoder_input_ids=[[-3]])
    with pytest.raises(GenerationError, match=r"decoder_input_ids=\[\].* is not a list of token ids"):
        runner.generate([[5, 6]], decoder_input_ids=[[]])
