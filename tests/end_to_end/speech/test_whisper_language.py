"""The language that Whisper finds in a recording, and its probability, beside torch's."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from support.audio import RATE_HZ, Array, chirp
from support.bundles.cache import BundleCache
from support.checkpoints.timestamps import TIMESTAMPS, with_timestamps
from support.recordings_command import Words
from tightbeam.deploy import Runner
from tightbeam.deploy.audio.stored_features import StoredFeatures
from tightbeam.deploy.commands import run_model
from tightbeam.deploy.inputs.output import Output
from tightbeam.deploy.model.model import Model
from tightbeam.deploy.runtimes.onnxruntime_cpu import OnnxRuntimeCpu
from tightbeam.deploy.serving.dispatch.tensors import tensors_of

soundfile = pytest.importorskip("soundfile")
TOKENS: dict[str, int] = TIMESTAMPS["lang_to_id"]


@pytest.fixture(scope="module")
def waves() -> list[Array]:
    """A window, and recordings of several."""
    return [chirp(0.7, high_hz=900), chirp(2.2, low_hz=200), chirp(1.7, low_hz=2000, high_hz=90)]


@pytest.fixture
def world(bundles: BundleCache) -> tuple[Any, Runner]:
    model, runner = with_timestamps(bundles, "el")
    runner.model.text._codec = Words()  # type: ignore[assignment]
    return model, runner


def in_torch(model: Any, runner: Runner, wave: Array) -> tuple[str, float]:
    """The language after the start token of the first window, and its probability among the languages."""
    log_mel = runner.log_mel
    assert log_mel is not None
    features = torch.from_numpy(StoredFeatures(log_mel, [wave]).window(0, log_mel.frames))[None]
    tokens = torch.tensor([[TIMESTAMPS["decoder_start_token_id"]]])
    with torch.no_grad():
        logits = model(input_features=features, decoder_input_ids=tokens).logits[0, -1]
        assert int(model.detect_language(features)) == max(TOKENS.values(), key=lambda token: float(logits[token]))
    probabilities = torch.softmax(logits[list(TOKENS.values())].double(), 0)
    best = int(probabilities.argmax())
    return list(TOKENS)[best].strip("<|>"), float(probabilities[best])


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"num_beams": 3},
        {"return_timestamps": True},
        {"condition_on_prev_tokens": True, "num_beams": 2},
        {"prompt_ids": [52, 7, 8], "temperature": (0.0, 0.6), "logprob_threshold": -0.1, "seed": 3},
    ],
)
def test_the_language_and_its_probability_are_torchs(
    world: tuple[Any, Runner], waves: list[Array], settings: dict[str, Any]
) -> None:
    model, runner = world
    for wave, output in zip(waves, runner.transcribe_outputs(waves, **settings), strict=True):
        language, probability = in_torch(model, runner, wave)
        assert output.language == language
        assert output.language_probability == pytest.approx(probability, abs=1e-5)
        assert 1 / len(TOKENS) < probability < 1


def test_windows_that_are_cut_have_the_first_ones_language(world: tuple[Any, Runner], waves: list[Array]) -> None:
    model, runner = world
    for wave, output in zip(waves, runner.transcribe_outputs(waves, return_timestamps=False), strict=True):
        assert (output.language, output.language_probability) == pytest.approx(in_torch(model, runner, wave[:RATE_HZ]))
        assert output.segments is None


def test_a_language_that_is_given_has_no_probability(world: tuple[Any, Runner], waves: list[Array]) -> None:
    for settings in ({"language": "French"}, {"language": "<|fr|>", "return_timestamps": True}):
        for output in world[1].transcribe_outputs(waves, **settings):
            assert (output.language, output.language_probability) == ("fr", None)


def test_silence_that_is_not_run_has_no_language(world: tuple[Any, Runner]) -> None:
    (output,) = world[1].transcribe_outputs([np.zeros(RATE_HZ, np.float32)], silence_threshold_db=-40)
    assert (output.language, output.language_probability, output.texts) == (None, None, [""])


def test_a_runtime_without_scores_tells_no_probability(
    world: tuple[Any, Runner], waves: list[Array], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, runner = world
    expected = runner.transcribe(waves[:1])
    monkeypatch.setattr(OnnxRuntimeCpu, "logits_obstacle", "was made before")
    (output,) = runner.transcribe_outputs(waves[:1])
    assert output.texts == expected
    assert (output.language, output.language_probability) == (in_torch(model, runner, waves[0])[0], None)


def test_the_command_tells_the_language(
    world: tuple[Any, Runner], waves: list[Array], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, runner = world
    monkeypatch.setattr(Model, "load", lambda *args, **options: runner.model)
    name = str(tmp_path / "talk.wav")
    soundfile.write(name, waves[1], RATE_HZ, subtype="FLOAT")
    language, probability = in_torch(model, runner, waves[1])
    note = f"note: {name}: found the language {language} ("
    done = CliRunner().invoke(run_model.app, ["bundle", name])
    assert note in done.stderr and f"with probability {probability:.2f}" in done.stderr
    done = CliRunner().invoke(run_model.app, ["bundle", name, "--json"])
    record = json.loads(done.stdout)
    assert record["language"] == language and "found the language" not in done.stderr
    assert math.isclose(record["language_probability"], probability, abs_tol=1e-4)
    done = CliRunner().invoke(run_model.app, ["bundle", name, "--language", "German"])
    assert "found the language" not in done.stderr and done.exit_code == 0
    done = CliRunner().invoke(run_model.app, ["bundle", name, "--json", "--language", "German"])
    record = json.loads(done.stdout)
    assert (record["language"], record["language_probability"]) == ("de", None)


def test_tensors_of_a_response() -> None:
    outputs = [Output([[1]], None, ["a"], language="en", language_probability=0.5), Output([[1]], None, ["b"])]
    tensors = tensors_of(outputs, 0)
    assert tensors["LANGUAGE"].tolist() == [[b"en"], [b""]]
    assert tensors["LANGUAGE_PROBABILITY"].tolist() == [[0.5], [0.0]]
    assert "LANGUAGE" not in tensors_of(outputs[1:], 0)
