"""Calibration with recordings: what a speech model is measured on."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from support.audio import RATE_HZ, chirp
from support.checkpoints.families import ONE_LAYER, CheckpointCache
from support.checkpoints.speech import RECORDING_FAMILIES
from tightbeam.export import ExportError, export_model
from tightbeam.export.accuracy import calibration
from tightbeam.export.accuracy.calibration import calibrate, calibration_samples
from tightbeam.export.accuracy.calibration_run import CalibrationRun
from tightbeam.export.accuracy.reference import Generation, Reference, greedy
from tightbeam.export.checkpoint.audio import SpeechSamples
from tightbeam.export.checkpoint.load import Checkpoint, load_checkpoint
from tightbeam.export.checkpoint.recordings import MAX_RECORDINGS, find_recordings

SECONDS = (0.4, 0.7, 1.6)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three recordings and a text."""
    made = tmp_path / "recordings"
    made.mkdir()
    for number, seconds in enumerate(SECONDS):
        soundfile.write(made / f"{number}.wav", chirp(seconds, low_hz=100 * (number + 1)), RATE_HZ, subtype="PCM_16")
    (made / "0.txt").write_text("one")
    return made


def samples(checkpoint: Checkpoint, folder: Path) -> SpeechSamples:
    found = calibration_samples(checkpoint, find_recordings(folder))
    assert isinstance(found, SpeechSamples)
    return found


def test_a_model_of_windows_takes_the_first_window_of_each(checkpoints: CheckpointCache, folder: Path) -> None:
    checkpoint = load_checkpoint(checkpoints("whisper"))
    found = samples(checkpoint, folder)
    window = 2 * checkpoint.config.max_source_positions * 160
    for number, row in enumerate(found.rows):
        wanted, _ = soundfile.read(folder / f"{number}.wav", dtype="int16")
        assert np.array_equal(row, wanted[:window])
    assert len(found.rows) == len(SECONDS) and len(found.rows[2]) == window
    run = CalibrationRun(found, checkpoint.generation_config, folder, decoder_only=False)
    assert np.array_equal(run.inputs["input_features"], found.features)  # all of them, and not two


@pytest.mark.parametrize("family", RECORDING_FAMILIES)
def test_recordings_that_run_whole_have_one_length(checkpoints: CheckpointCache, folder: Path, family: str) -> None:
    checkpoint = load_checkpoint(checkpoints(family))
    found = samples(checkpoint, folder)
    assert {len(row) for row in found.rows} == {int(SECONDS[0] * RATE_HZ)}
    soundfile.write(folder / "short.wav", np.zeros(8), RATE_HZ)
    with pytest.raises(ExportError, match=r"short.wav has 8 samples, expected \d+ or more; leave it out"):
        samples(checkpoint, folder)


def test_files_that_are_no_recordings_are_refused(checkpoints: CheckpointCache, folder: Path) -> None:
    for place in (folder / "0.txt", folder / "gone.wav", folder.parent / "empty"):
        (folder.parent / "empty").mkdir(exist_ok=True)
        with pytest.raises(ExportError, match=f"{place.name} is not a recording or a folder of recordings"):
            find_recordings(place)
    assert find_recordings(folder / "1.wav") == (str(folder / "1.wav"),)
    for number in range(MAX_RECORDINGS + 2):
        shutil.copy(folder / "0.wav", folder / f"more-{number}.wav")
    assert len(find_recordings(folder)) == MAX_RECORDINGS
    (folder / "0.wav").write_bytes(b"RIFF")
    with pytest.raises(ExportError, match=r"calibration: .*0.wav cannot be read as audio"):
        samples(load_checkpoint(checkpoints("whisper")), folder)


def test_generations_of_the_comparison_are_used_for_the_same_recordings(
    checkpoints: CheckpointCache, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = load_checkpoint(checkpoints("whisper"))
    own = samples(checkpoint, folder)
    reference = Reference(checkpoint.path, own, (Generation({"num_beams": 1}, greedy(checkpoint, own), None, None),))
    calls: list[Any] = []
    monkeypatch.setattr(calibration, "greedy", lambda *given: calls.append(given) or greedy(*given))
    calibrate(checkpoint, find_recordings(folder), reference)
    assert not calls
    calibrate(checkpoint, None, reference)
    assert len(calls) == 1


@pytest.mark.slow
def test_an_export_measures_int8_on_recordings(checkpoints: CheckpointCache, folder: Path, tmp_path: Path) -> None:
    checkpoint = checkpoints("whisper", **ONE_LAYER)
    found = [
        export_model(checkpoint, tmp_path / name, precision="int8", calibration=given, check=given is not None).manifest
        for name, given in (("synthetic", None), ("given", folder))
    ]
    assert found[1].parity is not None and found[1].parity.samples == len(SECONDS)
    assert found[0].divergences[0].divergence != found[1].divergences[0].divergence
