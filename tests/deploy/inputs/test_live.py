"""Live recognition: what is settled stays, the end settles everything, and the sound that is held is bounded."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from support.audio import RATE_HZ, chirp
from support.bundles.cache import BundleCache
from support.recordings_command import load_words
from tightbeam.deploy import GenerationError, InputError, Runner
from tightbeam.deploy.inputs.live import HeardSegment, LiveRun, LiveText, LiveUpdate, LiveWord, Revision

HZ = 100
"""Samples a second of scripted sound."""


def segment(text: str, start_s: float, end_s: float) -> HeardSegment:
    """A segment whose words take equal times."""
    words = text.split()
    each_s = (end_s - start_s) / max(1, len(words))
    starts_s = [start_s + place * each_s for place in range(len(words))]
    return HeardSegment(
        end_s, tuple(LiveWord(f" {word}", own, own + each_s) for word, own in zip(words, starts_s, strict=True))
    )


class Script:
    """Runs that give scripted texts, one after the other."""

    def __init__(self, *texts: str, window_s: float = 8) -> None:
        self.live, self.texts, self.updates = LiveText(HZ, window_s), list(texts), list[LiveUpdate]()
        self.runs: list[LiveRun] = []

    def take(self, run: LiveRun) -> LiveUpdate:
        """The change that the next text makes. Parts between bars are segments of equal length."""
        parts = self.texts.pop(0).split("|")
        each_s = len(run.samples) / HZ / len(parts)
        self.runs.append(run)
        return self.live.take([segment(own, i * each_s, (i + 1) * each_s) for i, own in enumerate(parts)], "en")

    def hear(self, seconds: float = 1) -> LiveUpdate:
        """The update of one run over more sound."""
        self.live.add(np.zeros(round(seconds * HZ), np.float32))
        run = self.live.next_run()
        assert run is not None
        self.updates.append(self.take(run))
        return self.updates[-1]

    def end(self) -> str:
        """The whole text."""
        self.updates.append(self.live.settle_rest())
        assert not self.updates[-1].pending
        return "".join(update.text for update in self.updates).strip()


def test_words_on_which_two_runs_agree_are_settled() -> None:
    script = Script(
        "the painter draws the how", "the painter draws the house the", "the painter draws the house. The old"
    )
    assert [(update.text, update.pending) for update in (script.hear(), script.hear(), script.hear())] == [
        ("", " the painter draws the how"),
        (" the painter draws the", " house the"),
        ("", " house. The old"),
    ]
    assert script.end() == "the painter draws the house. The old"
    assert [word.start_s for word in script.updates[1].words] == [0.0, 0.33, 0.67, 1.0]


def test_settled_words_stay_when_a_later_run_says_them_otherwise_and_that_is_told() -> None:
    script = Script("a tall boy", "a tall boy sells", "a small boy sells ten", "the small boy sells ten hats")
    for _ in range(4):
        script.hear()
    assert script.end() == "a tall boy sells ten hats"
    revisions = script.updates[-1].revisions
    assert [(each.settled, each.later) for each in revisions] == [("a tall", "the small")]


def test_a_run_without_some_settled_words_does_not_say_them_again() -> None:
    script = Script("one two three", "one two three four", "two three four five", "two three four five six")
    for _ in range(4):
        script.hear()
    assert script.end() == "one two three four five six"


def test_repeated_words_are_not_taken_for_those_that_are_settled() -> None:
    script = Script("no no", "no no no", "no no no no", "no no no no yes")
    for _ in range(4):
        script.hear()
    assert script.end() == "no no no no yes"


def test_sound_is_cut_at_the_end_of_a_segment_that_is_settled() -> None:
    first, second = "The cat sleeps.", "A dog"
    texts = [first, f"{first}|{second}", f"{first}|{second} barks", "A dog barks loud", "A dog barks loudly."]
    script = Script(*texts)
    script.hear(3)
    script.hear(1)
    script.hear(2)  # six seconds, of which the first three are the first segment
    script.hear(1)
    script.hear(1)
    assert [len(run.samples) / HZ for run in script.runs] == [3, 4, 6, 4, 5]
    assert script.end() == "The cat sleeps. A dog barks loudly."
    assert script.updates[-1].revisions == []
    times = [word.start_s for update in script.updates for word in update.words]
    assert times == sorted(times)


def test_earlier_text_and_the_language_go_with_a_run() -> None:
    script = Script("Cats sleep.|A", "Cats sleep.|A dog", "A dog barks")
    script.live = LiveText(HZ, 8, context_characters=6)
    script.hear(4)
    script.hear(1)
    script.hear(1)
    assert [(run.language, run.context) for run in script.runs] == [(None, ""), (None, ""), ("en", "sleep.")]


@pytest.mark.parametrize("text", ["", "on and on and on it goes", "x"])
def test_the_sound_that_is_held_has_an_end(text: str) -> None:
    """Silence, one segment without end, and a text that never changes."""
    script = Script(*[text] * 60)
    for _ in range(60):
        assert script.hear().heard_s <= 60
        assert len(script.live._sound) <= 7 * HZ  # room for a step
    assert script.end().split()[:1] == text.split()[:1]


def test_a_run_that_took_long_lets_the_next_one_take_more() -> None:
    script = Script()
    script.live.add(np.zeros(20 * HZ, np.float32))
    for took_s, seconds in ((0.0, 1), (0.4, 2), (1.5, 5)):
        run = script.live.next_run(took_s)
        assert run is not None and len(run.samples) == seconds * HZ
        script.live.take([])


def test_more_sound_than_a_window_is_run_in_several_runs() -> None:
    script = Script("a b", "c d", "e f", "g h", "i j", "k l", "m n")
    script.live.add(np.zeros(20 * HZ, np.float32))
    script.live.end()
    while (run := script.live.next_run()) is not None:
        assert 0 < len(run.samples) <= 8 * HZ
        script.updates.append(script.take(run))
    script.end()
    assert script.updates[-1].heard_s == 20 and script.live.unread_s == 0


def random_runs(seed: int) -> Callable[[int], str]:
    draws = np.random.default_rng(seed)

    def text(seconds: int) -> str:
        words = [f"w{draws.integers(4)}" for _ in range(draws.integers(0, 2 * seconds + 1))]
        return " ".join(own + ("|" if draws.random() < 0.2 else "") for own in words)

    return text


@pytest.mark.parametrize("seed", range(8))
def test_times_do_not_go_back_and_sound_has_an_end_whatever_the_runs_say(seed: int) -> None:
    script, text = Script(), random_runs(seed)
    for second in range(50):
        script.texts.append(text(1 + second % 8))
        script.hear()
        assert len(script.live._sound) <= 7 * HZ
    script.end()
    times = [each for update in script.updates for word in update.words for each in (word.start_s, word.end_s)]
    assert times == sorted(times)


def said(updates: Sequence[LiveUpdate]) -> str:
    return "".join(update.text for update in updates).strip()


@pytest.fixture(scope="module")
def runner(bundles: BundleCache) -> Runner:
    with pytest.MonkeyPatch.context() as patch:
        return load_words(bundles, patch)


def test_the_text_of_live_sound_is_that_of_its_runs(runner: Runner) -> None:
    """Sound of less than a step has one run, which is what the whole recording gives, with the same times of words
    within the sound."""
    wave = chirp(0.24)
    expected = runner.transcribe_segments([wave], return_token_timestamps=True)[0]
    live = runner.live()
    assert [live.add(wave[: RATE_HZ // 100]), live.add(wave[:0])] == [[], []]
    live.settle_rest()
    live = runner.live()
    updates = [*live.add(wave), *live.finish()]
    words = [(word.word, min(word.start_s, 0.24)) for own in expected for word in own.words or []]
    assert [(word.word, word.start_s) for update in updates for word in update.words] == words != []


def test_live_sound_of_many_windows_in_small_pieces(runner: Runner) -> None:
    wave, live = np.concatenate([chirp(1.3), np.zeros(RATE_HZ, np.float32), chirp(1.1, low_hz=900)]), runner.live()
    updates = [update for start in range(0, len(wave), 1600) for update in live.add(wave[start : start + 1600])]
    updates += live.finish()
    assert updates[-1].heard_s == pytest.approx(len(wave) / RATE_HZ) and updates[-1].pending == ""
    times = [each for update in updates for word in update.words for each in (word.start_s, word.end_s)]
    assert times == sorted(times) and said(updates)


def test_what_is_not_for_live_sound_is_an_error_of_one_line(runner: Runner) -> None:
    for settings, reason in (
        ({"clip_timestamps": (0.0, 1.0)}, "clip_timestamps is for recordings"),
        ({"num_beams": 0}, "num_beams"),
        ({"return_token_scores": True}, "return_token_scores=True is not for live"),
    ):
        with pytest.raises(GenerationError, match=reason):
            runner.live(**settings)
    for step_s in (0, 5, True, "1", float("nan")):
        with pytest.raises(InputError, match="step_s is"):
            runner.live(step_s=step_s)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="holds NaN"):
        runner.live().add(np.full(9, np.nan))
    with pytest.raises(InputError, match="float"):
        runner.live().add(np.zeros((2, 9)))


def test_a_text_model_has_no_live_sound(bundles: BundleCache) -> None:
    with pytest.raises(InputError, match="needs a Whisper model"):
        Runner.load(bundles("dedup", tokenizer=True), threads=1).live()


def test_a_revision_names_its_times() -> None:
    script = Script("a b c", "a b c", "a x c")
    for _ in range(3):
        script.hear()
    script.end()
    assert script.updates[-1].revisions == [Revision(0.67, 1.33, "b", "x")]
