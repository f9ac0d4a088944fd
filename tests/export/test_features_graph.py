"""Whisper's features in a graph of standard operators."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from support.tolerance import assert_close
from tightbeam.deploy.audio.features import DECADES, SMALLEST_POWER, LogMel
from tightbeam.export.one_graph.features import features_graph

RATE_HZ = 16000
EXTRACTOR = LogMel(80, RATE_HZ, 160, 400, 2, 0.0)


@pytest.fixture(scope="module")
def session() -> ort.InferenceSession:
    model = features_graph(EXTRACTOR)
    onnx.checker.check_model(model, full_check=True)
    return ort.InferenceSession(model.SerializeToString())


def exact(samples: np.ndarray) -> np.ndarray:
    """The features of a window in float64, by numpy's Fourier transform."""
    padded = np.full(EXTRACTOR.samples, EXTRACTOR.padding)
    padded[: len(samples)] = samples
    padded = np.pad(padded, EXTRACTOR.window // 2, mode="reflect")
    frames = np.lib.stride_tricks.sliding_window_view(padded, EXTRACTOR.window)[:: EXTRACTOR.hop][: EXTRACTOR.frames]
    spectrum = np.fft.rfft(frames * np.hanning(EXTRACTOR.window + 1)[:-1])
    logs = np.log10(np.maximum(np.abs(spectrum) ** 2 @ EXTRACTOR.filters.astype(np.float64), SMALLEST_POWER))
    return ((np.maximum(logs, logs.max() - DECADES) + 4) / 4).T


@pytest.mark.parametrize("count", [1, 7001, EXTRACTOR.samples])
def test_as_far_from_the_truth_as_the_runners(session: ort.InferenceSession, count: int) -> None:
    noise = np.random.default_rng(count).standard_normal(count)
    tone = np.sin(np.arange(count) * (2 * np.pi * 440 / RATE_HZ))
    for samples in (noise / 10, tone / 2, tone * noise / 1000, np.zeros(count)):
        heard = samples.astype(np.float32)
        (found,) = session.run(None, {"audio": heard[None]})
        assert_close(found[0], exact(heard), EXTRACTOR.features(heard))


def test_each_recording_of_a_batch_is_scaled_by_itself(session: ort.InferenceSession) -> None:
    audio = np.random.default_rng(0).standard_normal((2, 9000)).astype(np.float32) * [[1.0], [0.001]]
    audio = audio.astype(np.float32)
    (both,) = session.run(None, {"audio": audio})
    for row, samples in zip(both, audio, strict=True):
        np.testing.assert_allclose(row, session.run(None, {"audio": samples[None]})[0][0], atol=1e-6)


def test_what_is_beyond_a_window_is_not_read(session: ort.InferenceSession) -> None:
    audio = np.random.default_rng(0).standard_normal((1, EXTRACTOR.samples + 500)).astype(np.float32)
    (found,) = session.run(None, {"audio": audio})
    np.testing.assert_array_equal(found, session.run(None, {"audio": audio[:, : EXTRACTOR.samples]})[0])
