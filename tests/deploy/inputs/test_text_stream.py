"""Texts in pieces: they join to the whole text, come while the search runs, and leaving them ends it."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from support.bundles.cache import BundleCache
from support.checkpoints.families import SENTENCES
from tightbeam.deploy import Runner
from tightbeam.deploy.errors import BundleError, ExecutionError, GenerationError, InputError
from tightbeam.deploy.runtimes.onnxruntime_cpu import CpuDecoding

LONG: dict[str, Any] = {"max_new_tokens": 24, "min_new_tokens": 20}
SETTINGS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampling": {"do_sample": True, "seed": 3, "top_k": 20},
    "beams": {"num_beams": 3},
    "beams, never": {"num_beams": 4, "early_stopping": "never", "length_penalty": 2.0, "min_new_tokens": 1},
    "sampled beams": {"num_beams": 3, "do_sample": True, "seed": 1},
    "groups": {"num_beams": 4, "num_beam_groups": 2, "diversity_penalty": 0.4, "early_stopping": True},
    "forced words": {"num_beams": 3, "force_words_ids": [[40], [41, 42]]},
}


@pytest.fixture(scope="module", params=["bart", "llama"])
def runner(bundles: BundleCache, request: pytest.FixtureRequest) -> Runner:
    return Runner.load(bundles("dedup", request.param, tokenizer=True), threads=1)


@pytest.fixture
def closed(monkeypatch: pytest.MonkeyPatch) -> list[CpuDecoding]:
    """The decodings whose buffers were returned."""
    found: list[CpuDecoding] = []
    close = CpuDecoding.close
    monkeypatch.setattr(CpuDecoding, "close", lambda self: (found.append(self), close(self))[1])
    return found


@pytest.mark.parametrize("kind", SETTINGS)
def test_pieces_join_to_the_whole_text(runner: Runner, kind: str) -> None:
    settings = {**LONG, **SETTINGS[kind]}
    for text in SENTENCES[:3]:
        whole = runner.generate_outputs([text], **settings)
        with runner.stream_text(text, **settings) as stream:
            assert stream.result is None
            pieces = list(stream)
        assert all(pieces)
        assert stream.result == whole[0] and whole[0].texts == ["".join(pieces)]
        assert list(runner.stream_text(runner.encode(text)[0], **settings)) == pieces
        assert asyncio.run(collected(runner, text, settings)) == pieces
        if kind in ("greedy", "sampling"):
            assert len(pieces) > 10


async def collected(runner: Runner, text: str, settings: dict[str, Any]) -> list[str]:
    return [piece async for piece in runner.stream_text_async(text, **settings)]


def test_beams_give_their_common_beginning(bundles: BundleCache) -> None:
    """As in most models, whose beams soon agree on their beginning."""
    runner = Runner.load(bundles("dedup", "bart", tokenizer=True), threads=1)
    settings = {"num_beams": 2, "max_new_tokens": 40, "min_new_tokens": 40}
    assert any(len(list(runner.stream_text(text, **settings))) > 2 for text in SENTENCES)


def test_ids_in_an_array(runner: Runner) -> None:
    ids = np.array(runner.encode(SENTENCES[0])[0], np.int32)
    assert list(runner.stream_text(ids, **LONG)) == list(runner.stream_text(SENTENCES[0], **LONG))  # type: ignore[arg-type]


def test_scores_are_in_the_result(runner: Runner) -> None:
    settings = {**LONG, "return_token_scores": True, "return_alternatives": 2}
    stream = runner.stream_text(SENTENCES[0], **settings)
    list(stream)
    assert stream.result == runner.generate_outputs([SENTENCES[0]], **settings)[0]


def test_a_piece_is_made_when_it_is_asked_for(runner: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[int] = []
    step = CpuDecoding.step
    monkeypatch.setattr(CpuDecoding, "step", lambda self, *given: (steps.append(1), step(self, *given))[1])
    stream = runner.stream_text(SENTENCES[0], **LONG)
    assert steps == []
    assert next(stream) and len(steps) < 10 and stream.result is None
    before = len(steps)
    runner.generate_text(SENTENCES[:2], **LONG)  # in between
    del steps[before:]
    list(stream)
    assert len(steps) == 24 and stream.result is not None


def test_leaving_the_loop_ends_the_search(runner: Runner, closed: list[CpuDecoding]) -> None:
    for _ in runner.stream_text(SENTENCES[0], **LONG):
        break
    assert len(closed) == 1
    with pytest.raises(KeyError):
        for _ in runner.stream_text(SENTENCES[0], **LONG):
            raise KeyError
    assert len(closed) == 2
    stream = runner.stream_text(SENTENCES[0], **LONG)
    next(stream)
    stream.close()
    assert len(closed) == 3 and list(stream) == [] and stream.result is None
    stream.close()
    runner.stream_text(SENTENCES[0], **LONG).close()  # one that has not begun
    assert len(closed) == 3
    assert "".join(runner.stream_text(SENTENCES[0], **LONG)) == runner.generate_text(SENTENCES[:1], **LONG)[0]


def test_streams_and_other_calls_share_a_runner(runner: Runner) -> None:
    whole = runner.generate_text(SENTENCES, **LONG)
    streams: list[Iterator[str]] = [runner.stream_text(text, **LONG) for text in SENTENCES]
    pieces: list[list[str]] = [[] for _ in streams]
    with ThreadPoolExecutor(2) as pool:
        others = [pool.submit(runner.generate_text, SENTENCES, num_beams=2, **LONG) for _ in range(2)]
        for _ in range(30):
            for own, stream in zip(pieces, streams, strict=True):
                own += [piece for piece in [next(stream, "")] if piece]
        assert others[0].result() == others[1].result() == runner.generate_text(SENTENCES, num_beams=2, **LONG)
    assert ["".join(own) for own in pieces] == whole


def test_a_failure_reaches_the_consumer(runner: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(self: CpuDecoding, *given: Any) -> Any:
        raise ExecutionError("no memory")

    with monkeypatch.context() as patch:
        patch.setattr(CpuDecoding, "step", fails)
        with pytest.raises(BundleError, match="no memory"):
            list(runner.stream_text(SENTENCES[0], **LONG))
        with pytest.raises(BundleError, match="no memory"):
            asyncio.run(collected(runner, SENTENCES[0], LONG))
    assert list(runner.stream_text(SENTENCES[0], **LONG))


def test_async_streams_leave_the_event_loop_free(runner: Runner) -> None:
    async def main() -> tuple[list[str], list[str], int]:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0)

        ticking = asyncio.create_task(tick())
        first, second = await asyncio.gather(*(collected(runner, text, LONG) for text in SENTENCES[:2]))
        ticking.cancel()
        return first, second, ticks

    first, second, ticks = asyncio.run(main())
    assert ["".join(first), "".join(second)] == runner.generate_text(SENTENCES[:2], **LONG)
    assert ticks > len(first)


def test_two_tasks_that_read_one_stream_are_refused(runner: Runner) -> None:
    async def main() -> list[str | BaseException]:
        stream = runner.stream_text_async(SENTENCES[0], **LONG)
        return await asyncio.gather(anext(stream), anext(stream), return_exceptions=True)

    first, second = asyncio.run(main())
    assert isinstance(first, str)
    assert isinstance(second, InputError) and "two tasks read one stream" in str(second)


def test_a_cancelled_task_ends_the_search(
    runner: Runner, closed: list[CpuDecoding], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also while a step runs; the thread goes back to the executor behind it."""
    running, go = threading.Event(), threading.Event()
    step = CpuDecoding.step

    def slow(self: CpuDecoding, *given: Any) -> Any:
        running.set()
        assert go.wait(60)
        return step(self, *given)

    async def main() -> None:
        task = asyncio.create_task(collected(runner, SENTENCES[0], LONG))
        await asyncio.to_thread(running.wait, 60)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        go.set()

    with monkeypatch.context() as patch:
        patch.setattr(CpuDecoding, "step", slow)
        asyncio.run(main())  # waits for the executor's threads
    assert len(closed) == 1
    assert list(runner.stream_text(SENTENCES[0], **LONG))


def test_leaving_an_async_loop_ends_the_search(runner: Runner, closed: list[CpuDecoding]) -> None:
    async def main() -> None:
        async for _ in runner.stream_text_async(SENTENCES[0], **LONG):
            break
        assert len(closed) == 1
        async with runner.stream_text_async(SENTENCES[0], **LONG) as stream:
            assert await anext(stream)
        assert len(closed) == 2 and stream.result is None
        assert [piece async for piece in stream] == []

    asyncio.run(main())
    gc.collect()
    assert len(closed) == 2


@pytest.mark.parametrize(
    ("text", "settings", "message"),
    [
        ("a town", {"num_beams": 2, "num_return_sequences": 2}, "num_return_sequences=2 is for several texts"),
        ("a town", {"num_beems": 2}, "num_beems"),
        ("", {}, "empty text"),
        ([], {}, "no token ids"),
        ([10**6], {}, "token id 1000000 is outside the vocabulary"),
        ([[5]], {}, "the token ids hold list"),
        (["a town"], {}, "the token ids hold str, expected integers [N]; pass one text, not a list"),
        (None, {}, "the token ids are NoneType"),
        (b"a town", {}, "the token ids are bytes"),
        ("a " * 500, {}, "text of "),
    ],
)
def test_bad_input_is_refused_by_the_call(runner: Runner, text: Any, settings: dict[str, Any], message: str) -> None:
    for stream in (runner.stream_text, runner.stream_text_async):
        with pytest.raises((InputError, GenerationError)) as caught:
            stream(text, **settings)
        assert message in str(caught.value) and "\n" not in str(caught.value)
    assert list(runner.stream_text("a " * 500, truncate=True, max_new_tokens=3)) is not None


def test_models_without_text(bundles: BundleCache) -> None:
    ids: Any = [5, 6]
    with pytest.raises(InputError, match="has no tokenizer"):
        Runner.load(bundles("dedup"), threads=1).stream_text(ids)
    whisper = Runner.load(bundles("dedup", "whisper"), threads=1)
    for text in (ids, "a town"):
        with pytest.raises(InputError, match="this is a speech model"):
            whisper.stream_text(text)
