"""Why sequences ended, and how many tokens they have: in Python and on the command line, in every search."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.bundles.cache import BundleCache
from support.bundles.demo import demo_bundle
from support.commands import DEFAULT_LENGTH, caller
from support.references.generate_runs import batch
from tightbeam.deploy import Runner

SEARCHES: tuple[dict[str, Any], ...] = (
    {"num_beams": 1},
    {"num_beams": 3, "num_return_sequences": 3},
    {"do_sample": True, "num_return_sequences": 4, "seed": 3},
    {"do_sample": True, "num_beams": 2, "num_return_sequences": 2, "seed": 3},
    {"num_beams": 4, "num_beam_groups": 2, "diversity_penalty": 1.0, "num_return_sequences": 3},
    {"num_beams": 3, "force_words_ids": [[50], [51, 52]], "num_return_sequences": 2},
)


@pytest.fixture(scope="module", params=["bart", "gpt2"])
def runner(bundles: BundleCache, request: pytest.FixtureRequest) -> Runner:
    return Runner.load(bundles("dedup", request.param), threads=1)


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return demo_bundle(tmp_path_factory.mktemp("demo") / "bundle")


def test_every_sequence_has_its_reason_and_its_new_tokens(runner: Runner) -> None:
    seen: list[str] = []
    for seed, search in enumerate(SEARCHES):
        ids, mask = batch(runner.manifest.sizes.source_vocabulary, seed, (9, 4, 6, 2))
        settings = {**search, "max_new_tokens": 7, "pad_token_id": 1, "forced_eos_token_id": None}
        free = runner.generate(ids, mask, **settings, min_new_tokens=7, eos_token_id=2).sequences
        ends = np.unique(free[::2, -4:-2])
        found = runner.generate(ids, mask, **settings, eos_token_id=ends.tolist())
        first = ids.shape[1] if runner.decoder_only else 1
        assert len(found.finish_reasons) == len(found.new_tokens) == len(found.sequences)
        for row, reason, new in zip(found.sequences, found.finish_reasons, found.new_tokens, strict=True):
            made, padding = row[first : first + new], row[first + new :]
            assert not np.isin(made[:-1], ends).any() and (padding == 1).all()
            assert reason == ("end_token" if made[-1] in ends else "length")
            assert reason == "end_token" or new == 7
        seen += found.finish_reasons
    assert seen.count("end_token") > 9 and seen.count("length") > 4


def test_an_end_token_that_the_limit_forces_is_an_end_by_length(runner: Runner) -> None:
    found = runner.generate([[5, 6, 7]], max_new_tokens=3, eos_token_id=2, forced_eos_token_id=2, min_new_tokens=2)
    assert (found.sequences[0, -1], found.finish_reasons, found.new_tokens) == (2, ("length",), (3,))


def test_a_cancelled_sample_has_its_reason(runner: Runner) -> None:
    class CancelSecond:
        def on_step(self, samples: Any, tokens: Any) -> Any:
            return samples == 1

        def on_finished(self, sample: int, result: Any) -> None:
            assert sample == 0 and set(result.finish_reasons) == {"length"}

    settings: dict[str, Any] = {"max_new_tokens": 3, "min_new_tokens": 3, "num_beams": 2, "num_return_sequences": 2}
    found = runner.generate([[5, 6, 7], [8, 9]], callback=CancelSecond(), **settings)
    assert found.finish_reasons == ("length", "length", "cancelled", "cancelled")
    assert found.new_tokens == (3, 3, 0, 0)


def test_the_tokens_of_a_source_are_counted_without_padding(runner: Runner) -> None:
    ids, mask = batch(runner.manifest.sizes.source_vocabulary, 0, (9, 4))
    samples = [runner.model.sample(0, ids[1], {}, mask[1]), runner.model.sample(0, ids[0], {}, mask[0])]
    assert [sample.source_tokens for sample in samples] == [4, 9]


def test_lines_of_json_and_the_note_about_the_default_length(
    demo: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = caller(monkeypatch, capsys)
    several, longer = ("--num-beams=3", "--num-return-sequences=2"), '{"text": "A town.", "max_new_tokens": 2}'
    lines = b'{"text": "A town hall opens in March."}\n' + longer.encode() + b"\n"
    done = command(demo, "--json", "--json-input=text", *several, "--max-length=9", stdin=lines).succeeded()
    whole, short = map(json.loads, done.out.splitlines())
    assert short["finish_reasons"] == ["length"] * 2 and short["finish_reason"] == "length"
    assert short["new_tokens"] == 4 and short["source_tokens"] == len(Runner.load(demo).encode("A town.")[0])
    assert whole["new_tokens"] == sum(len(row) - 1 for row in whole["sequences"])
    assert "default length" not in done.err


def test_the_note_is_said_once_and_names_the_option(
    bundles: BundleCache, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command, lines = caller(monkeypatch, capsys), b"[5, 6, 7]\n[8, 9]\n"
    bundle = bundles("dedup", "gpt2")
    done = command(bundle, "--ids", stdin=lines)
    assert done.code == 0 and done.err.count(f"{DEFAULT_LENGTH}\n") == 1
    assert "default length" not in command(bundle, "--ids", "--max-new-tokens=3", stdin=lines).succeeded().err
    assert "default length" not in command(bundle, "--ids", "--quiet", stdin=lines).err
