"""A prompt that continues an earlier one: the tokens of the whole, and only what differs is encoded."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from support.bundles.cache import BundleCache
from tightbeam.deploy import KeptPrompt, Runner
from tightbeam.deploy.errors import InputError
from tightbeam.deploy.runtimes import onnxruntime_cpu

TURNS = ((1, 2, 3, 4, 5, 6, 7, 8), (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11), (1, 2, 3, 90), (1, 2, 3, 90), (50,), (1, 2, 3))
REUSED = [0, 7, 3, 3, 0, 0]
"""Of each turn. Its last token is the first one that the decoder reads, and is not encoded."""


def run(runner: Runner, tokens: Any, kept: KeptPrompt | None, **settings: Any) -> list[list[int]]:
    sample = runner.sample(0, [token + 3 for token in tokens], {"max_new_tokens": 7, **settings}, kept)
    found: list[list[int]] = runner.scheduler(8).run([sample])[0].sequences.tolist()
    return found


@pytest.mark.parametrize("settings", [{"num_beams": 3}, {"do_sample": True, "seed": 5, "num_return_sequences": 1}])
@pytest.mark.parametrize("family", ["llama", "gemma2", "bloom"])
def test_turns_have_the_tokens_of_whole_prompts(
    bundles: BundleCache, family: str, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onnxruntime_cpu, "ENCODED_TOGETHER", 5)
    runner = Runner.load(bundles("dedup", family), threads=1)
    kept, reused = KeptPrompt(), []
    for turn in TURNS:
        assert run(runner, turn, kept, **settings) == run(runner, turn, None, **settings)
        reused.append(kept.reused)
    assert reused == REUSED
    assert kept.nbytes > 0
    kept.clear()
    assert (kept.nbytes, kept.reused) == (0, 0)


def test_it_is_locked_while_it_is_written(bundles: BundleCache, monkeypatch: pytest.MonkeyPatch) -> None:
    locked, keep = [], KeptPrompt.keep

    def watched(self: KeptPrompt, *given: Any) -> None:
        locked.append(self.lock.locked())
        keep(self, *given)

    monkeypatch.setattr(KeptPrompt, "keep", watched)
    kept = KeptPrompt()
    run(Runner.load(bundles("dedup", "llama"), threads=1), TURNS[0], kept)
    assert locked == [True] and not kept.lock.locked()


def test_another_runtime_forgets_it(bundles: BundleCache) -> None:
    first, second = (Runner.load(bundles("dedup", family), threads=1) for family in ("llama", "bloom"))
    kept = KeptPrompt()
    for runner in (first, second, first):
        assert run(runner, TURNS[0], kept) == run(runner, TURNS[0], None)
        assert kept.reused == 0


@pytest.mark.parametrize("variant", ["baseline", "xcache"])
def test_other_caches_encode_the_prompt_again(bundles: BundleCache, variant: str) -> None:
    runner = Runner.load(bundles(variant, "gpt2"), threads=1)
    kept = KeptPrompt()
    for turn in TURNS[:2]:
        assert run(runner, turn, kept) == run(runner, turn, None)
    assert (kept.nbytes, kept.reused) == (0, 0)


def test_conversations_run_beside_other_prompts(bundles: BundleCache) -> None:
    """Each is encoded alone. A sample that fails to be encoded leaves what was kept as it can be used."""
    runner = Runner.load(bundles("dedup", "llama"), threads=1)
    kept = [KeptPrompt(), None, KeptPrompt(), None]
    for turn in TURNS[:3]:
        tokens = [[token + 3 + index for token in turn] for index in range(4)]
        samples = [runner.sample(index, row, {"max_new_tokens": 5}, kept[index]) for index, row in enumerate(tokens)]
        together = runner.scheduler(8).run(samples)
        for sample in samples:
            alone = runner.scheduler(8).run([replace(sample, kept=None)])
            np.testing.assert_array_equal(together[sample.number].sequences, alone[sample.number].sequences)
    assert [one and one.reused for one in kept] == [3, None, 3, None]


def test_a_prompt_that_fails_leaves_what_it_shares(bundles: BundleCache, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = Runner.load(bundles("dedup", "llama"), threads=1)
    kept = KeptPrompt()
    run(runner, TURNS[0], kept)
    with monkeypatch.context() as broken:
        broken.setattr(KeptPrompt, "keep", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            run(runner, TURNS[2], kept)
    assert run(runner, TURNS[1], kept) == run(runner, TURNS[1], None)
    assert kept.reused == 3


@pytest.mark.parametrize("wrong", [KeptPrompt, {}, "kept"])
def test_another_object_is_an_error(bundles: BundleCache, wrong: Any) -> None:
    runner = Runner.load(bundles("dedup", "llama"), threads=1)
    with pytest.raises(InputError, match=r"kept is .*, expected a KeptPrompt; pass the same KeptPrompt"):
        run(runner, TURNS[0], wrong)
