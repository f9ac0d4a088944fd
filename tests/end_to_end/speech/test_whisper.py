"""Whisper: from audio to the tokens of ``model.generate``, whatever the variant and the prompt."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from support.audio import RATE_HZ, Array, chirp
from support.bundles.cache import BundleCache, with_generation
from support.checkpoints.edits import edit_json, refusal
from support.checkpoints.families import WHISPER_GENERATION, CheckpointCache
from support.inputs import read_features, run_windows, transcribe
from support.references.expected import Expected
from support.references.kept import kept
from support.slow_cases import slow_unless
from support.tolerance import allowed, assert_runs_close, error
from tightbeam.deploy import Runner
from tightbeam.deploy.audio.features import LogMel
from tightbeam.deploy.errors import BundleError, GenerationError, InputError
from tightbeam.deploy.generation.resolve import resolve_settings
from tightbeam.deploy.inputs.files.audio import read_audio
from tightbeam.deploy.runtimes.onnxruntime_cpu import CpuDecoding, OnnxRuntimeCpu
from tightbeam.export import export_model
from tightbeam.export.checkpoint.config import feature_settings
from tightbeam.export.checkpoint.load import Checkpoint
from tightbeam.export.checkpoint.quiet import quiet_transformers
from tightbeam.export.errors import ExportError
from tightbeam.graph_passes import PRESETS

soundfile = pytest.importorskip("soundfile")

SETTINGS: tuple[dict[str, Any], ...] = (
    {},
    {"max_new_tokens": 9},
    {"language": "de", "max_new_tokens": 12},
    {"task": "translate", "num_beams": 3, "length_penalty": 2.0},
    {"language": "<|fr|>", "task": "transcribe", "num_beams": 4, "early_stopping": True, "max_new_tokens": 14},
    {"num_beams": 2, "length_penalty": -1.0, "early_stopping": "never", "min_new_tokens": 6},
    {"num_beams": 5, "no_repeat_ngram_size": 2, "repetition_penalty": 1.3, "max_length": 60},
)


def extract(checkpoint: Checkpoint, waveforms: list[Array]) -> torch.Tensor:
    extractor = transformers.AutoFeatureExtractor.from_pretrained(checkpoint.path)
    return extractor(waveforms, sampling_rate=RATE_HZ, return_tensors="pt").input_features


def generate(model: Any, features: torch.Tensor, settings: dict[str, Any]) -> Any:
    with torch.no_grad(), quiet_transformers():
        return model.generate(features, return_dict_in_generate=True, output_scores=True, **settings)


def expected_of(model: Any, features: torch.Tensor, settings: dict[str, Any]) -> Expected:
    def make() -> Expected:
        found = generate(model, features, settings)
        if "sequences_scores" not in found:
            return Expected(found.sequences.numpy(), None, None)
        try:
            exact = generate(model.double(), features.double(), settings)
        finally:
            model.float()
        return Expected(found.sequences.numpy(), found.sequences_scores.numpy(), exact.sequences_scores.numpy())

    return kept(make, model, "windows", features.numpy(), settings)


def expect_equal(runner: Runner, checkpoint: Checkpoint, settings: tuple[dict[str, Any], ...]) -> None:
    scores = []
    for index, own in enumerate(settings):
        waveforms = [chirp(1.0), chirp(0.4, high_hz=900), chirp(0.7, low_hz=2000 - 300 * index, high_hz=100)]
        features = extract(checkpoint, [wave * (1 - 0.1 * index) for wave in waveforms])
        expected = expected_of(checkpoint.model, features, own)
        found = runner.generate_from_features(features.numpy(), **own)
        np.testing.assert_array_equal(found.sequences, expected.sequences, err_msg=str(own))
        assert (found.scores is None) == (expected.scores is None)
        if found.scores is not None:
            scores.append((found.scores, expected.exact, expected.scores))
    if scores:
        assert_runs_close(scores)


@pytest.mark.parametrize(
    ("variant",), slow_unless([(name,) for name in PRESETS], lambda name: name in ("dedup", "el", "hybrid"))
)
def test_tokens_and_scores_match_generate(bundles: BundleCache, variant: str) -> None:
    """Languages are chosen by the model where none is given."""
    arguments = {"generation": WHISPER_GENERATION}
    checkpoint = bundles.trace("whisper", **arguments)[0]
    runner = Runner.load(bundles(variant, "whisper", **arguments), threads=1)
    expect_equal(runner, checkpoint, SETTINGS)


PROMPTS: tuple[dict[str, Any], ...] = (
    {},  # neither languages nor tasks
    {
        "_from_model_config": False,
        "no_timestamps_token_id": 106,
        "forced_decoder_ids": [[1, 106]],
        "is_multilingual": False,
    },  # whisper-tiny.en
    {**WHISPER_GENERATION, "forced_decoder_ids": [[1, None], [2, 94]]},  # whisper-tiny
    {**WHISPER_GENERATION, "forced_decoder_ids": [[1, 91], [2, 93], [3, 106]]},
    {**WHISPER_GENERATION, "language": "fr", "task": "translate"},
)


@pytest.mark.parametrize("generation", PROMPTS, ids=lambda generation: str(generation.get("forced_decoder_ids")))
def test_prompts_of_old_and_new_checkpoints(
    bundles: BundleCache, monkeypatch: pytest.MonkeyPatch, generation: dict[str, Any]
) -> None:
    checkpoint = bundles.trace("whisper", generation=WHISPER_GENERATION)[0]
    folder = bundles("el", "whisper", generation=WHISPER_GENERATION)
    plain = {name: value for name, value in checkpoint.generation_config.items() if name not in WHISPER_GENERATION}
    monkeypatch.setattr(checkpoint.model, "generation_config", transformers.GenerationConfig(**plain, **generation))
    runner = with_generation(Runner.load(folder, threads=1), {**plain, **generation})
    settings = tuple({"max_new_tokens": 7 + beams, "num_beams": beams} for beams in range(1, 9))
    expect_equal(runner, checkpoint, settings)


def test_features_match_transformers(checkpoints: CheckpointCache, tmp_path: Path) -> None:
    """Features at Whisper's own sizes, next to the error that transformers makes in float32 too."""
    for mels in (80, 128):
        extractor = transformers.WhisperFeatureExtractor(feature_size=mels)
        extractor.save_pretrained(tmp_path)
        log_mel = LogMel.read(tmp_path / "preprocessor_config.json")
        np.testing.assert_allclose(log_mel.filters, extractor.mel_filters, rtol=1e-6, atol=1e-9)
        noise = np.random.default_rng(0).standard_normal(7 * RATE_HZ).astype(np.float32) / 9
        for wave in (chirp(30.0), chirp(3.3) + noise[: int(3.3 * RATE_HZ)], noise, np.zeros(5, np.float32), chirp(40)):
            cut = wave[: log_mel.samples]
            (naive,) = extractor(wave, sampling_rate=RATE_HZ, return_tensors="np").input_features
            padded = np.pad(cut.astype(np.float64), (0, log_mel.samples - len(cut)))
            exact = extractor._np_extract_fbank_features([padded], "cpu")[0]
            found = log_mel.features(cut)
            assert found.shape == (mels, 3000)
            assert error(found, exact) <= allowed(exact, naive)


@pytest.fixture
def three_files(tmp_path: Path) -> list[str]:
    """Files of one, three and two windows."""
    steps = np.round(chirp(3) * 32768).astype(np.int16)
    names = []
    for seconds in (0.5, 3, 1.5):
        names.append(str(tmp_path / f"{seconds}.wav"))
        soundfile.write(names[-1], steps[: int(seconds * RATE_HZ)], RATE_HZ)
    return names


def test_windows_of_several_files_share_steps(
    bundles: BundleCache, three_files: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = Runner.load(bundles("dedup", "whisper", generation=WHISPER_GENERATION, tokenizer=True), threads=1)
    settings: dict[str, Any] = {"num_beams": 2, "max_new_tokens": 8}
    expected = [transcribe(runner, read_features(runner, name), **settings) for name in three_files]
    step, steps = CpuDecoding.step, []
    monkeypatch.setattr(CpuDecoding, "step", lambda self: (steps.append(1), step(self))[1])
    paths = [three_files[0], InputError("no such file"), *three_files[1:]]
    done = list(run_windows(runner, paths, batch_size=6, **settings))
    assert [each.result.error for each in done] == [None, "no such file", None, None]
    assert [each.result.sequences for each in (done[0], *done[2:])] == [own.sequences for own in expected]
    together = len(steps)
    for name in three_files:
        list(run_windows(runner, [name], **settings))
    assert together < 0.6 * (len(steps) - together)


def test_a_window_of_nan_fails_its_file_alone(
    bundles: BundleCache, three_files: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The encoder makes NaN of the second window of the second file."""
    runner = Runner.load(bundles("dedup", "whisper", generation=WHISPER_GENERATION, tokenizer=True), threads=1)
    expected = runner.transcribe(three_files, max_new_tokens=8)
    marked = read_features(runner, three_files[1])[1]
    encode = OnnxRuntimeCpu._encode

    def overflowing(self: OnnxRuntimeCpu, source: Any, *args: Any, **named: Any) -> Any:
        encoded = encode(self, source, *args, **named)
        for name, array in encoded.items():
            if name != "attention_mask":
                array[np.isclose(source, marked, atol=1e-3).all(axis=(1, 2))] = np.nan
        return encoded

    monkeypatch.setattr(OnnxRuntimeCpu, "_encode", overflowing)
    first, bad, last = run_windows(runner, three_files, max_new_tokens=8)
    assert isinstance(bad.failure, BundleError) and "NaN or infinite" in str(bad.result.error)
    assert [first.result.texts, last.result.texts] == [[expected[0]], [expected[2]]]
    with pytest.raises(BundleError, match="NaN or infinite"):
        runner.transcribe(three_files, max_new_tokens=8)


def test_an_audio_file_is_transcribed(bundles: BundleCache, tmp_path: Path) -> None:
    """WAV and FLAC, two channels, another rate, longer than a window: the command prints one line for each."""
    arguments = {"generation": WHISPER_GENERATION, "tokenizer": True}
    folder = bundles("dedup", "whisper", **arguments)
    runner = Runner.load(folder, threads=1)
    steps = np.round(chirp(2.5) * 32768).astype(np.int16)
    wave = steps.astype(np.float32) / 32768
    soundfile.write(tmp_path / "a.wav", steps, RATE_HZ)
    soundfile.write(tmp_path / "a.flac", np.stack([steps, steps], axis=1), RATE_HZ)
    features = read_features(runner, str(tmp_path / "a.wav"))
    assert features.shape == (3, 9, 100)
    np.testing.assert_array_equal(features, read_features(runner, str(tmp_path / "a.flac")))
    checkpoint = bundles.trace("whisper", **arguments)[0]
    transcription = transcribe(runner, features, max_new_tokens=10)
    texts, tokens = [], []
    for window in (wave[:RATE_HZ], wave[RATE_HZ : 2 * RATE_HZ], wave[2 * RATE_HZ :]):
        row = generate(checkpoint.model, extract(checkpoint, [window]), {"max_new_tokens": 10}).sequences[0].tolist()
        tokens += row
        texts.append(checkpoint.tokenizer.decode([t for t in row if t <= 106], skip_special_tokens=True).strip())
    assert (transcription.texts, transcription.sequences) == ([" ".join(texts)], [tokens])

    command = [sys.executable, "-m", "tightbeam.deploy.commands.run_model", str(folder)]
    for name in ("a.wav", "a.flac"):
        done = subprocess.run(
            [*command, str(tmp_path / name), "--max-new-tokens", "10"], capture_output=True, text=True, check=True
        )
        assert done.stdout == " ".join(transcription.texts[0].splitlines()) + "\n"
    lines = f"{tmp_path}/a.wav\n{tmp_path}/none.wav\n"
    done = subprocess.run([*command, "--json"], input=lines, capture_output=True, text=True, check=False)
    good, bad = map(json.loads, done.stdout.splitlines())
    assert done.returncode == 1
    assert good["text"] == runner.transcribe([str(tmp_path / "a.wav")])[0]
    assert "none.wav" in bad["error"]
    soundfile.write(tmp_path / "short.wav", steps[:9000], RATE_HZ)
    options = ["--json", "--language", "de", "--task", "translate", "--num-beams", "2", "--max-new-tokens", "5"]
    done = subprocess.run([*command, str(tmp_path / "short.wav"), *options], capture_output=True, text=True, check=True)
    record = json.loads(done.stdout)
    settings = {"language": "de", "task": "translate", "num_beams": 2, "max_new_tokens": 5}
    expected = generate(checkpoint.model, extract(checkpoint, [wave[:9000]]), settings)
    assert record["tokens"][:4] == [3, 91, 94, 106]
    assert record["tokens"] == expected.sequences[0].tolist()
    assert record["score"] == pytest.approx(float(expected.sequences_scores[0]), rel=1e-4)


def test_other_rates_are_resampled(tmp_path: Path) -> None:
    expected = chirp(1.0, high_hz=3000)
    for rate_hz in (8000, 22050, 44100, 48000):
        soundfile.write(tmp_path / "r.wav", chirp(1.0, rate_hz, high_hz=3000), rate_hz, subtype="FLOAT")
        found = read_audio(str(tmp_path / "r.wav"), RATE_HZ)
        assert abs(len(found) - len(expected)) <= 1
        assert error(found[400:15600], expected[400:15600]) < 1e-3


def test_unreadable_audio_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "text.wav").write_text("no sound")
    (tmp_path / "bare.wav").touch()
    os.mkfifo(tmp_path / "pipe.wav")
    (tmp_path / "noise.mp3").write_bytes(np.random.default_rng(0).bytes(5000))
    soundfile.write(tmp_path / "empty.wav", np.zeros(0, np.float32), RATE_HZ)
    soundfile.write(tmp_path / "nan.wav", np.full(9, np.nan, np.float32), RATE_HZ, subtype="FLOAT")
    soundfile.write(tmp_path / "slow.wav", chirp(0.1, 8000), 8000)
    soundfile.write(tmp_path / "loud.wav", np.full(9, 3e38, np.float32), RATE_HZ, subtype="FLOAT")
    soundfile.write(tmp_path / "odd.wav", np.zeros(9, np.float32), 2**31 - 1)
    with pytest.raises(InputError, match="no file is named"):
        read_audio("", RATE_HZ)
    for name, expected in (
        ("none.wav", "there is no file"),
        (".", "is a folder"),
        ("pipe.wav", "is a pipe or a device, not a file; expected a sound or video file"),
        ("loud.wav", r"holds samples of up to 3\.0e\+38; expected -1 to 1"),
        ("odd.wav", r"has 2147483647 samples a second, expected 1,000 to 768,000"),
        ("text.wav", "cannot be read as audio"),
        ("noise.mp3", r"cannot be read as audio \(its format is not one that is read"),
        ("bare.wav", "is empty, it has no bytes"),
        ("empty.wav", "is empty; expected at least one sample"),
        ("nan.wav", "holds NaN or infinity"),
    ):
        with pytest.raises(InputError, match=expected):
            read_audio(str(tmp_path / name), RATE_HZ)
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(InputError, match=r"needs the package av, .*pip install"):
        read_audio(str(tmp_path / "slow.wav"), RATE_HZ)


@pytest.mark.usefixtures("own_processes")
def test_export_and_transcribe(checkpoints: CheckpointCache, tmp_path: Path) -> None:
    """Compare an export with torch on audio that goes through a file, the command and our own features; the prompt of
    language and task takes positions of the few that there are."""
    few = {**WHISPER_GENERATION, "max_length": 18}
    folder = checkpoints("whisper", generation=few, tokenizer=True, max_target_positions=20, encoder_layers=1)
    bundle = export_model(folder, tmp_path / "out", variant="slim")
    assert bundle.manifest.parity is not None
    assert bundle.manifest.parity.tokens > 100
    assert bundle.manifest.speech is not None
    (tmp_path / "out" / "preprocessor_config.json").write_text("{}")
    with pytest.raises(BundleError, match=r"preprocessor_config\.json"):
        Runner.load(tmp_path / "out")


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (
            {"language": "dutch"},
            "language='dutch' .* is not a language of this model, by its code or name; pass one of de ",
        ),
        ({"language": ["en", "de"]}, "is not a language of this model"),
        ({"task": "sing"}, "task='sing' .* is not a task of this model; pass one of transcribe, translate"),
        ({"num_return_sequences": 2}, "num_return_sequences=2 .* is not supported for Whisper"),
        ({"no_speech_threshold": 0.6}, "no_speech_threshold=0.6 .* needs logprob_threshold, as in transformers"),
        ({"max_new_tokens": 46}, "max_new_tokens=46 .from the call. makes sequences of 49 tokens, the model has 48"),
        ({"forced_decoder_ids": [[2, 5]]}, "is not a prompt; pass it as"),
        ({"forced_decoder_ids": [[1, 500]]}, "forced_decoder_ids=.* holds 500, which is outside the vocabulary"),
        ({"is_multilingual": False, "language": "en"}, "language='en' .* is for multilingual models"),
        ({"sing": 1}, "sing=1 .from the call. is not a generation setting"),
    ],
)
def test_invalid_settings_are_refused(settings: dict[str, Any], expected: str) -> None:
    defaults = {**WHISPER_GENERATION, "decoder_start_token_id": 3, "eos_token_id": 2}
    sizes = SimpleNamespace(vocabulary=107, max_target=48, decoder_only=False)
    with pytest.raises(GenerationError, match=expected):
        resolve_settings(defaults, settings, sizes, speech=True)


def test_input_of_another_kind_is_refused(bundles: BundleCache, checkpoints: CheckpointCache, tmp_path: Path) -> None:
    runner = Runner.load(bundles("el", "whisper", generation=WHISPER_GENERATION), threads=1)
    with pytest.raises(InputError, match="this is a speech model; pass audio instead of token ids"):
        runner.generate(np.array([[5]]))
    with pytest.raises(InputError, match="this is a speech model; pass audio instead of text"):
        runner.generate_text(["a text"])
    with pytest.raises(InputError, match=r"input_features is \[1, 9, 99\], expected \[B, 9, 100\]"):
        runner.generate_from_features(np.zeros((1, 9, 99), np.float32))
    with pytest.raises(InputError, match="NaN or infinity"):
        runner.generate_from_features(np.full((1, 9, 100), np.nan, np.float32))
    reader = Runner.load(bundles("el", "bart"), threads=1)
    with pytest.raises(InputError, match="this is a text model; pass text or token ids instead of audio"):
        reader.generate_from_features(np.zeros((1, 9, 100), np.float32))
    with pytest.raises(InputError, match="this is a text model; pass text or token ids instead of audio"):
        reader.transcribe(["a.wav"])

    folder = checkpoints.copy(tmp_path / "c", "whisper")
    edit_json(folder / "preprocessor_config.json", feature_size=80)
    with pytest.raises(ExportError, match=r"80 mels and 100 frames, config\.json expects 9 and 100"):
        export_model(folder, tmp_path / "out", check=False)
    edit_json(folder / "preprocessor_config.json", feature_size="many")
    with pytest.raises(ExportError, match="feature_size is 'many', expected a whole number"):
        export_model(folder, tmp_path / "out", check=False)
    shutil.copyfile(checkpoints("whisper") / "preprocessor_config.json", folder / "preprocessor_config.json")
    for name, value, expected in (
        ("n_fft", 1, "n_fft is 1, expected 2 to"),
        ("n_fft", None, "n_fft is None, expected a whole number"),
        ("padding_value", "x", "padding_value is 'x', expected a sample's"),
        ("padding_value", float("nan"), "padding_value is nan, expected a sample's"),
        ("padding_side", "left", "padding_side is 'left'; supported is 'right'"),
        ("dither", 0.1, "dither is 0.1, which adds noise"),
        ("feature_extractor_type", "Nope", "feature_extractor_type is 'Nope'"),
    ):
        before = json.loads((folder / "preprocessor_config.json").read_text())
        edit_json(folder / "preprocessor_config.json", **{name: value})
        with pytest.raises(ExportError, match=expected):
            export_model(folder, tmp_path / "out", check=False)
        (folder / "preprocessor_config.json").write_text(json.dumps(before))
    (folder / "preprocessor_config.json").unlink()
    assert "preprocessor_config.json: not readable" in refusal(folder)
    shutil.copyfile(checkpoints("whisper") / "preprocessor_config.json", folder / "preprocessor_config.json")
    edit_json(folder / "config.json", decoder_attention_heads=5)
    assert "not divisible by decoder_attention_heads 5" in refusal(folder)


def test_a_checkpoint_as_transformers_5_saves_it(
    bundles: BundleCache, checkpoints: CheckpointCache, tmp_path: Path
) -> None:
    """The feature extractor's settings are inside processor_config.json, as WhisperProcessor.save_pretrained puts them;
    those come first where both files are there. The bundle is the same."""
    folder = checkpoints.copy(tmp_path / "c", "whisper", generation=WHISPER_GENERATION)
    settings = json.loads((folder / "preprocessor_config.json").read_text())
    (folder / "preprocessor_config.json").unlink()
    processor = {"feature_extractor": settings, "processor_class": "WhisperProcessor"}
    (folder / "processor_config.json").write_text(json.dumps(processor))
    bundle = export_model(folder, tmp_path / "out", variant="dedup", max_new_tokens=8)
    assert bundle.manifest.parity is not None and bundle.manifest.parity.tokens > 0
    earlier = Runner.load(bundles("dedup", "whisper", generation=WHISPER_GENERATION), threads=1)
    assert Runner.load(bundle.path, threads=1).log_mel == earlier.log_mel

    edit_json(folder / "processor_config.json", feature_extractor={**settings, "feature_size": 80})
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))
    with pytest.raises(ExportError, match=r"processor_config\.json: makes features of 80 mels"):
        export_model(folder, tmp_path / "other", check=False)
    edit_json(folder / "processor_config.json", feature_extractor="none")
    with pytest.raises(ExportError, match=r"processor_config\.json: feature_extractor is not a JSON object"):
        export_model(folder, tmp_path / "other", check=False)
    (folder / "processor_config.json").write_text('{"processor_class": "WhisperProcessor"}')
    export_model(folder, tmp_path / "other", check=False)


def test_the_saved_processor_of_transformers_has_the_settings_inside(tmp_path: Path) -> None:
    """The settings that the export reads of processor_config.json are those that this transformers writes there."""
    extractor = transformers.WhisperFeatureExtractor(feature_size=9, chunk_length=1, hop_length=160)
    tokenizer = transformers.WhisperTokenizer(vocab={"<|endoftext|>": 0}, merges=[])
    transformers.WhisperProcessor(extractor, tokenizer).save_pretrained(tmp_path)
    assert not (tmp_path / "preprocessor_config.json").exists()
    path, settings = feature_settings(tmp_path, "preprocessor_config.json")
    assert path.name == "processor_config.json"
    assert (LogMel.of(settings, path).mels, LogMel.of(settings, path).chunk_s) == (9, 1)


def test_tables_that_transformers_drops_are_dropped(checkpoints: CheckpointCache, tmp_path: Path) -> None:
    """With ``_from_model_config`` transformers reads fields of GenerationConfig alone, so that Whisper has neither
    languages nor tasks; the comparison with torch passes."""
    folder = checkpoints.copy(tmp_path / "c", "whisper", generation=WHISPER_GENERATION)
    edit_json(folder / "generation_config.json", _from_model_config=True)
    bundle = export_model(folder, tmp_path / "out", max_new_tokens=8)
    assert not {"lang_to_id", "task_to_id", "is_multilingual"} & bundle.manifest.generation.keys()
    assert bundle.manifest.parity is not None and bundle.manifest.parity.tokens > 0
