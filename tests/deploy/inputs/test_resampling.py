"""Resampling: its cost is bounded by the rates, and the filter is made once for a file."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from tightbeam.deploy.errors import InputError
from tightbeam.deploy.inputs import audio_files
from tightbeam.deploy.inputs.audio_files import resampled

signal = pytest.importorskip("scipy.signal")


@pytest.mark.parametrize("found_hz", [767_999, 100_003, 192_001])
def test_a_rate_that_needs_a_huge_filter_is_refused(found_hz: int) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(
            InputError, match=rf"^the audio has {found_hz} samples a second, [^\n]+ -ar 16000 FILE.wav$"
        ):
            list(resampled([np.zeros(100, np.float32)], found_hz, 16_000))
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("found_hz", [8_000, 22_254, 44_100, 44_101, 47_952, 48_000, 96_000, 176_400, 192_000, 768_000])
def test_blocks_are_those_of_the_whole_file(found_hz: int, monkeypatch: pytest.MonkeyPatch) -> None:
    samples = np.random.default_rng(0).standard_normal(2 * found_hz).astype(np.float32)
    made: list[int] = []

    def firwin(count: int, *given: object, **options: object) -> object:
        made.append(count)
        return own(count, *given, **options)

    own = signal.firwin
    monkeypatch.setattr(signal, "firwin", firwin)
    found = np.concatenate(list(resampled(np.array_split(samples, 8), found_hz, 16_000)))
    assert len(made) == 1 and made[0] <= 20 * audio_files.MOST_PHASES + 1
    common = np.gcd(found_hz, 16_000)
    expected = signal.resample_poly(samples, 16_000 // common, found_hz // common)
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, atol=1e-6)
