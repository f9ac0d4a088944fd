"""Speech models that take whole recordings: from samples and files to the tokens of ``model.generate``."""

from __future__ import annotations

import io
import itertools
import json
import re
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from support.audio import RATE_HZ, Array, chirp
from support.bundles.cache import BundleCache
from support.checkpoints.edits import edit_json, refusal
from support.checkpoints.families import CheckpointCache
from support.checkpoints.image import PATCHES
from support.checkpoints.speech import RECORDING_FAMILIES
from support.commands import SHORT, caller
from support.inputs import run_recordings
from support.loud_speech import Loud
from support.serving.triton_requests import audio_request
from support.serving.triton_requests import run as run_requests
from support.slow_cases import STOOD_FOR, slow_unless
from support.tolerance import assert_runs_close
from tightbeam.deploy import Runner
from tightbeam.deploy.audio.extractors import extractor_of
from tightbeam.deploy.errors import GenerationError, InputError
from tightbeam.deploy.inputs.open_input import PartedInput
from tightbeam.deploy.serving.protocol.messages import Request
from tightbeam.deploy.serving.worker.requests import RequestParser
from tightbeam.export import export_model
from tightbeam.export.checkpoint.languages import language_settings
from tightbeam.export.checkpoint.load import Checkpoint
from tightbeam.export.checkpoint.quiet import quiet_transformers
from tightbeam.export.errors import ExportError
from tightbeam.export.families.speech.fast_conformer import CANARY, COHERE_ASR
from tightbeam.export.tensorrt.build import build_engine
from tightbeam.export.tensorrt.options import EngineOptions
from tightbeam.graph_passes import PRESETS

soundfile = pytest.importorskip("soundfile")

QUICK = {"moonshine": "dedup", "speech_to_text": "el", "cohere_asr": "dedup", "canary": "slim"}
"""The variant of each family that one run stands for."""
SETTINGS: tuple[dict[str, Any], ...] = (
    {},
    {"num_beams": 1, "max_new_tokens": 30},
    {"num_beams": 3, "length_penalty": 2.0, "no_repeat_ngram_size": 2, "max_new_tokens": 14},
    {"num_beams": 4, "early_stopping": True, "repetition_penalty": 1.3, "num_return_sequences": 2},
    {"num_beams": 2, "length_penalty": -1.0, "early_stopping": "never", "min_new_tokens": 6, "max_length": 25},
)
LENGTHS_S = (0.41, 0.9, 0.2, 0.9)


def recordings(seed: int) -> list[Array]:
    """Recordings of several lengths, with noise."""
    generator = np.random.default_rng(seed)
    found = []
    for seconds in LENGTHS_S:
        wave = chirp(seconds, low_hz=generator.uniform(80, 900), high_hz=generator.uniform(1000, 6000))
        found.append(wave + 0.1 * generator.standard_normal(len(wave)).astype(np.float32))
    return found


def extracted(checkpoint: Checkpoint, waves: list[Array]) -> dict[str, torch.Tensor]:
    """Features by transformers' own extractor: a padded batch, and its mask."""
    extractor = transformers.AutoFeatureExtractor.from_pretrained(checkpoint.path)
    return dict(extractor(waves, sampling_rate=RATE_HZ, padding=True, return_tensors="pt"))


def generate(model: Any, inputs: dict[str, torch.Tensor], settings: dict[str, Any]) -> Any:
    with torch.no_grad(), quiet_transformers():
        return model.generate(**inputs, return_dict_in_generate=True, output_scores=True, **settings)


@pytest.mark.parametrize(
    ("family", "variant"),
    slow_unless(
        [each for each in itertools.product(RECORDING_FAMILIES, PRESETS) if each != ("moonshine", "xcache")],
        lambda family, variant: variant == QUICK[family] and family not in STOOD_FOR,
    ),
)
def test_tokens_and_scores_match_generate(bundles: BundleCache, family: str, variant: str) -> None:
    """A padded batch of several lengths, and recordings of one length without a mask."""
    checkpoint = bundles.trace(family)[0]
    model, runner = checkpoint.model, Runner.load(bundles(variant, family), threads=1)
    scores, seen = [], set()
    for index, own in enumerate(SETTINGS):
        waves = recordings(index)
        inputs = extracted(checkpoint, waves if index % 2 else [waves[1], waves[3]])
        if not index % 2:
            inputs.pop("attention_mask", None)
        expected = generate(model, inputs, own)
        name = model.main_input_name
        mask = inputs["attention_mask"].numpy() if "attention_mask" in inputs else None
        found = runner.generate_from_features(inputs[name].numpy(), mask, **own)
        np.testing.assert_array_equal(found.sequences, expected.sequences.numpy(), err_msg=str(own))
        seen |= set(map(tuple, found.sequences.tolist()))
        if found.scores is not None:
            exact_inputs = {key: value.double() if key == name else value for key, value in inputs.items()}
            try:
                exact = generate(model.double(), exact_inputs, own)
            finally:
                model.float()
            scores.append((found.scores, exact.sequences_scores.numpy(), expected.sequences_scores.numpy()))
    assert_runs_close(scores)
    assert len(seen) > 8  # the recordings matter


@pytest.mark.parametrize(
    ("family",), slow_unless([(each,) for each in RECORDING_FAMILIES], lambda family: family not in STOOD_FOR)
)
def test_each_recording_is_transcribed_as_alone(bundles: BundleCache, tmp_path: Path, family: str) -> None:
    """Files, arrays and other rates, in batches of three; the reference is transformers' extractor and model."""
    arguments = {"tokenizer": True}
    checkpoint = bundles.trace(family, **arguments)[0]
    runner = Runner.load(bundles(QUICK[family], family, **arguments), threads=1)
    waves = [np.round(wave * 32768).clip(-32768, 32767).astype(np.int16) for wave in recordings(7)]
    settings: dict[str, Any] = {"num_beams": 3, "max_new_tokens": 12}
    sources: list[Any] = []
    expected, tokens = [], []
    for index, steps in enumerate(waves):
        wave = steps.astype(np.float32) / 32768
        sources.append(wave if index % 2 else tmp_path / f"{index}.wav")
        if not index % 2:
            soundfile.write(sources[-1], np.stack([steps, steps], axis=1), RATE_HZ)
        alone = generate(checkpoint.model, extracted(checkpoint, [wave]), settings)
        tokens.append(alone.sequences[0].tolist())
        expected.append(checkpoint.tokenizer.decode(tokens[-1], skip_special_tokens=True))
    assert runner.transcribe(sources, batch_size=3, **settings) == expected
    assert len(set(map(tuple, tokens))) == len(tokens)
    assert runner.recordings is not None
    features = runner.recordings.features(waves[1].astype(np.float32) / 32768)
    several = runner.generate_from_features(features[None], num_return_sequences=2, **settings)
    assert several.sequences.shape[0] == 2


@pytest.mark.parametrize("family", ["moonshine", "speech_to_text"])
def test_features_match_transformers(checkpoints: CheckpointCache, bundles: BundleCache, family: str) -> None:
    """The numbers of transformers' extractor, bit for bit, normalised or not, at the published sizes too."""
    checkpoint = bundles.trace(family)[0]
    reference = transformers.AutoFeatureExtractor.from_pretrained(checkpoint.path)
    name = checkpoint.model.main_input_name
    published = [transformers.Speech2TextFeatureExtractor()] if family == "speech_to_text" else []
    for extractor, normalize in itertools.product([reference, *published], (False, True)):
        extractor.do_normalize = extractor.do_ceptral_normalize = normalize
        own = extractor_of(extractor.to_dict(), Path("preprocessor_config.json"))
        for wave in (*recordings(3), chirp(11.0), np.zeros(0 if normalize else 1000, np.float32)):
            if len(wave):
                expected = extractor(wave, sampling_rate=RATE_HZ, return_tensors="np")[name][0]
                np.testing.assert_array_equal(own.features(wave), expected)


NORMALIZED: tuple[dict[str, Any], ...] = (
    {},
    {"dither": 0.0},
    {"plain": True},
    {"feature_size": 12, "preemphasis": 0.0, "win_length": 320, "hop_length": 100, "n_fft": 400},
)


@pytest.mark.parametrize("settings", NORMALIZED)
def test_normalized_features_err_no_more_than_those_of_transformers(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]
) -> None:
    """The reference is transformers' extractor in float64, with the noise of torch's float32."""
    plain = settings.get("plain", False)
    reference = transformers.ParakeetFeatureExtractor() if plain else transformers.CohereAsrFeatureExtractor(**settings)
    own = extractor_of(reference.to_dict(), Path("preprocessor_config.json"))
    waves = [*recordings(3), chirp(11.0), np.zeros(1600, np.float32), recordings(4)[0][:320]]
    for wave in waves if getattr(reference, "dither", 0) else [wave for wave in waves if wave.any()]:
        found = own.features(wave)
        single = reference(wave, sampling_rate=RATE_HZ, return_tensors="pt")
        valid = int(single["attention_mask"].sum())
        exact = exact_features(reference, wave)[:valid]
        assert found.shape == exact.shape
        errors = [np.abs(each - exact) for each in (found, single["input_features"][0, :valid].numpy())]
        assert np.median(errors[0]) <= 2 * np.median(errors[1]) + 1e-7
        assert errors[0].max() <= 2 * errors[1].max() + 1e-6


def exact_features(extractor: Any, wave: Array) -> Array:
    """Features by transformers' code in float64 but for the noise, which is of float32."""
    samples = torch.tensor(wave)[None].clone()
    if hasattr(extractor, "dither"):
        samples = extractor._apply_dither(samples, torch.tensor([len(wave)]))
    samples = samples.double()
    samples = torch.cat([samples[:, :1], samples[:, 1:] - extractor.preemphasis * samples[:, :-1]], dim=1)
    hann = torch.hann_window(extractor.win_length, periodic=False, dtype=torch.float64)
    spectrum = torch.stft(
        samples[0],
        *(extractor.n_fft, extractor.hop_length, extractor.win_length),
        window=hann,
        return_complex=True,
        pad_mode="constant",
    )
    powers = extractor.mel_filters.double() @ (spectrum.abs() ** 2)
    logs = torch.log(powers + 2.0**-24).T[: len(wave) // extractor.hop_length]
    normalized: Array = ((logs - logs.mean(dim=0)) / (logs.std(dim=0) + 1e-5)).numpy()
    return normalized


def test_a_long_recording_is_cut_where_transformers_cuts_it(
    bundles: BundleCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In quiet places, also if a recording is digital silence or barely too long."""
    settings = {"feature_size": 12, "max_audio_clip_s": 1.1, "overlap_chunk_second": 0.45}
    reference = transformers.CohereAsrFeatureExtractor(**settings)
    own = extractor_of(reference.to_dict(), Path("preprocessor_config.json"))
    waves = [np.concatenate(recordings(seed)) for seed in range(4)]
    loudness = np.sin(np.arange(90_000) / 3000) ** 2
    for wave in (
        *waves,
        chirp(5.7)[:90_000] * loudness.astype(np.float32),
        np.zeros(40_000, np.float32),
        waves[0][:17_601],
    ):
        parts = reference._split_audio_chunks_energy(torch.tensor(wave))
        found = own.cut(len(wave), lambda part, wave=wave: wave[part])
        assert [part.stop - part.start for part in found] == list(map(len, parts)) and len(found) > 1
    runner = Runner.load(bundles("dedup", "cohere_asr", tokenizer=True), threads=1)
    assert runner.recordings is not None
    assert runner.recordings.longest < 35 * RATE_HZ  # 70 positions of 40 ms
    monkeypatch.setattr(runner.recordings, "_extractor", own)
    monkeypatch.setattr(runner.recordings, "longest", own.clip)
    pieces = reference._split_audio_chunks_energy(torch.tensor(waves[1]))
    alone = runner.transcribe([piece.numpy() for piece in pieces], max_new_tokens=5)
    assert runner.transcribe([waves[1]], max_new_tokens=5) == [" ".join(text.strip() for text in alone)]


def test_padding_of_a_fast_conformer_is_zeros(bundles: BundleCache) -> None:
    runner = Runner.load(bundles("dedup", "cohere_asr", tokenizer=True), threads=1)
    features, mask = np.ones((2, 20, 12), np.float32), np.ones((2, 20), np.int64)
    mask[1, 11:] = 0
    with pytest.raises(InputError, match="input_features is not 0 at padding; expected zeros where attention_mask is"):
        runner.generate_from_features(features, mask)
    with pytest.raises(InputError, match="the recording has 319 samples, expected at least 320, 20 ms"):
        runner.transcribe([np.zeros(319, np.float32)])


def test_a_prompt_begins_each_transcript(bundles: BundleCache) -> None:
    """Tokens of language and punctuation, as transformers' processor gives them to ``generate``."""
    checkpoint = bundles.trace("cohere_asr", tokenizer=True)[0]
    runner = Runner.load(bundles("dedup", "cohere_asr", tokenizer=True), threads=1)
    inputs = extracted(checkpoint, recordings(8))
    settings: dict[str, Any] = {"num_beams": 2, "max_new_tokens": 9}
    for prompt in ([4, 17, 20, 20, 31], [17, 20]):  # with the start token, and without
        given = torch.tensor([prompt] * len(LENGTHS_S))
        expected = generate(checkpoint.model, {**inputs, "decoder_input_ids": given}, settings).sequences.numpy()
        features, mask = inputs["input_features"].numpy(), inputs["attention_mask"].numpy()
        found = runner.generate_from_features(features, mask, decoder_input_ids=prompt, **settings)
        np.testing.assert_array_equal(found.sequences, expected)


def test_a_silent_recording_has_no_normalised_features(bundles: BundleCache) -> None:
    """transformers divides by the variance 0 there."""
    runner = Runner.load(bundles("el", "speech_to_text", tokenizer=True), threads=1)
    with pytest.raises(InputError, match="the recording is silent, or too short to be normalised"):
        runner.transcribe([np.zeros(3000, np.float32)])
    with pytest.raises(InputError, match="the recording has 399 samples, expected at least 400, 25 ms"):
        runner.transcribe([np.zeros(399, np.float32)])
    with pytest.raises(InputError, match=r"input_features is \[1, 9, 12\], expected \[B, X, 13\]"):
        runner.generate_from_features(np.zeros((1, 9, 12), np.float32))


def test_the_command_writes_a_line_for_each_file(
    bundles: BundleCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file that is too short fails alone; one that is too long is cut into parts of one length."""
    folder = bundles("dedup", "moonshine", tokenizer=True)
    runner = Runner.load(folder, threads=1)
    capsys.readouterr()  # of making the checkpoint
    run = caller(monkeypatch, capsys)
    wave = recordings(5)[1]
    for name, samples in (("a", wave), ("short", wave[:894]), ("shortest", wave[:895])):
        soundfile.write(tmp_path / f"{name}.wav", samples, RATE_HZ, subtype="FLOAT")
    names = [tmp_path / f"{name}.wav" for name in ("a", "short", "shortest")]
    texts = runner.transcribe([names[0], names[2]], max_new_tokens=5)
    done = run(folder, *names, "--json", *SHORT)
    done.failed("short.wav: the recording has 894 samples, expected at least 895, 56 ms")
    assert [record.get("text") for record in done.records] == [texts[0], None, texts[1]]
    run(folder, names[0], "--format", "srt").failed("--format srt needs times, which this model does not make", code=1)
    run(folder, names[0], "--language", "de", *SHORT).failed("language='de'", code=1)
    assert runner.recordings is not None
    monkeypatch.setattr(type(runner.recordings), "longest", 7_300, raising=False)
    parts = np.array_split(wave, 2)
    runner.recordings.longest = 7_300
    pieces = runner.transcribe(parts, max_new_tokens=5)
    assert runner.transcribe([wave], max_new_tokens=5) == [" ".join(piece.strip() for piece in pieces)]


def test_a_long_recording_is_on_disk_and_its_parts_are_read_as_they_are_run(
    bundles: BundleCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thirty parts, of which two have features at a time; the texts are those of the parts alone."""
    runner = Runner.load(bundles("dedup", "moonshine", tokenizer=True), threads=1)
    extractor = runner.recordings
    assert extractor is not None
    monkeypatch.setattr(extractor, "longest", 4_000)
    wave = np.tile(recordings(5)[1], 9)[:119_993]
    soundfile.write(tmp_path / "long.flac", wave, RATE_HZ)
    alive: list[weakref.ref[Any]] = []
    most = 0
    features = extractor.features

    def counted(samples: Array) -> Array:
        nonlocal most
        made = features(samples).copy()
        alive.append(weakref.ref(made))
        most = max(most, sum(each() is not None for each in alive))
        return made

    monkeypatch.setattr(extractor, "features", counted)
    found = list(run_recordings(runner, [str(tmp_path / "long.flac")], batch_size=2, max_new_tokens=4))
    assert len(alive) == 30 and most <= 4  # two that run, and two that are encoded
    assert "it is cut into 30 parts" in found[0].result.notes[0]
    parts = np.array_split(soundfile.read(tmp_path / "long.flac", dtype="float32")[0], 30)
    alone = runner.transcribe(parts, max_new_tokens=4)
    assert found[0].result.texts == [" ".join(text.strip() for text in alone)]
    assert found[0].result.seconds == pytest.approx(119_993 / RATE_HZ)


def test_a_part_without_sound_fails_its_recording_alone(bundles: BundleCache, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = Runner.load(bundles("el", "speech_to_text", tokenizer=True), threads=1)
    assert runner.recordings is not None
    monkeypatch.setattr(runner.recordings, "longest", 4_000)
    sound = np.tile(recordings(6)[1], 4)
    silent = np.concatenate([sound, np.zeros(20_000, np.float32), sound])
    found = list(run_recordings(runner, [sound, silent, sound[:4_000]], batch_size=2, max_new_tokens=4))
    assert [each.result.error for each in found] == [None, found[1].result.error, None]
    assert "the recording is silent, or too short" in (found[1].result.error or "")
    assert [each.result.texts for each in (found[0], found[2])] == [
        [text] for text in runner.transcribe([sound, sound[:4_000]], max_new_tokens=4)
    ]


def test_wrong_input_is_refused(bundles: BundleCache) -> None:
    runner = Runner.load(bundles("dedup", "moonshine", tokenizer=True), threads=1)
    values, mask = np.zeros((2, 2000), np.float32), np.ones((2, 2000), np.int64)
    for features, given, expected in (
        (values[0], None, r"input_values is \[2000\], expected \[B, X\]"),
        (values[:, :800], None, r"input_values is \[2, 800\], expected X from 895 to"),
        (values + np.nan, None, "NaN or infinity"),
        (values, mask[:, 1:], r"attention_mask is \[2, 1999\]"),
        (values, mask[:, ::-1] - np.eye(2, 2000, dtype=np.int64), "begin with ones and end with zeros"),
        (values, 0 * mask, "leaves a row without a position"),
    ):
        with pytest.raises(InputError, match=expected):
            runner.generate_from_features(features, given)
    with pytest.raises(InputError, match="this is a speech model; pass audio instead of token ids"):
        runner.generate(np.array([[5]]))
    with pytest.raises(GenerationError, match=r"language='en' .* is not a setting of this model: it is for Whisper"):
        runner.transcribe([chirp(0.3)], language="en")
    with pytest.raises(InputError, match="this is a speech model; pass audio instead of text"):
        runner.generate_text(["a text"])
    with pytest.raises(InputError, match="the recording holds NaN or infinity"):
        runner.transcribe([np.full(2000, np.nan, np.float32)])
    with pytest.raises(GenerationError, match="encoder_no_repeat_ngram_size=2 is about a source's tokens, and a"):
        runner.transcribe([values[0]], encoder_no_repeat_ngram_size=2)
    with pytest.raises(GenerationError, match="return_timestamps"):
        runner.transcribe_segments([values[0]])


def test_a_request_holds_samples_or_a_file(bundles: BundleCache) -> None:
    soundfile = pytest.importorskip("soundfile")
    runner = Runner.load(bundles("dedup", "moonshine", tokenizer=True), threads=1)
    parser = RequestParser(runner.model, max_rows=8)
    wave = recordings(2)[0]
    parsed = parser.parse(Request(1, {"AUDIO": np.stack([wave, wave])}, '{"num_beams": 2}'))
    data = io.BytesIO()
    soundfile.write(data, wave, 16000, format="WAV", subtype="FLOAT")
    file = parser.parse(Request(3, {"AUDIO_FILE": np.array([[data.getvalue()]], object)}, '{"num_beams": 2}'))
    assert runner.recordings is not None
    for row in parsed.rows + file.rows:
        assert isinstance(row, PartedInput) and (row.unread, row.samples) == (1, [])
        np.testing.assert_array_equal(row.read_part().source, runner.recordings.features(wave))
    with pytest.raises(InputError, match="the recording is longer than 3,600 seconds; cut it into pieces"):
        parser.parse(Request(4, {"AUDIO": np.zeros((1, 3600 * 16000 + 1), np.float32)}, "{}"))
    with pytest.raises(InputError, match="the recording has 9 samples, expected at least 895"):
        parser.parse(Request(2, {"AUDIO": wave[None, :9]}, "{}"))


def test_there_are_no_engines(bundles: BundleCache) -> None:
    for folder, kind in ((bundles("dedup", "moonshine"), "recordings"), (bundles("dedup", PATCHES), "images")):
        with pytest.raises(ExportError, match=f"takes {kind} of any .*, for which there are no engines"):
            build_engine(folder, EngineOptions(capabilities=["80"]))


@pytest.mark.slow
def test_an_export_is_compared_with_torch(checkpoints: CheckpointCache, tmp_path: Path) -> None:
    bundle = export_model(checkpoints("moonshine", tokenizer=True), tmp_path / "out", variant="slim")
    assert bundle.manifest.parity is not None and bundle.manifest.parity.tokens > 100
    assert bundle.manifest.convolutions == ((127, 64, 0), (7, 3, 0), (3, 2, 0))


def test_checkpoints_that_cannot_be_run_are_refused(checkpoints: CheckpointCache, tmp_path: Path) -> None:
    folder = checkpoints.copy(tmp_path / "c", "moonshine")
    before = (folder / "preprocessor_config.json").read_text()
    for name, value, expected in (
        ("feature_extractor_type", "Nope", "feature_extractor_type is 'Nope', expected Wav2Vec2Feat"),
        ("sampling_rate", "fast", "sampling_rate is 'fast', expected a whole number"),
        ("feature_size", 2, "feature_size is 2, expected 1"),
        ("do_normalize", "yes", "do_normalize is 'yes', expected true or false"),
        ("padding_side", "left", "padding_side is 'left'; supported is 'right'"),
    ):
        edit_json(folder / "preprocessor_config.json", **{name: value})
        with pytest.raises(ExportError, match=expected):
            export_model(folder, tmp_path / "out", check=False)
        (folder / "preprocessor_config.json").write_text(before)
    other = {"feature_extractor_type": "Speech2TextFeatureExtractor", "feature_size": 80}
    edit_json(folder / "preprocessor_config.json", **other)
    with pytest.raises(ExportError, match=r"makes features of 80 mels, config\.json expects samples"):
        export_model(folder, tmp_path / "out", check=False)
    edit_json(folder / "config.json", encoder_num_attention_heads=2)
    assert "encoder_num_attention_heads is 2, decoder_num_attention_heads is 3" in refusal(folder)
    edit_json(folder / "config.json", encoder_num_attention_heads=3, decoder_num_key_value_heads=1)
    assert "decoder_num_key_value_heads is 1, decoder_num_attention_heads is 3" in refusal(folder)
    for config, expected in (
        ({"conv_kernel_sizes": [5, 4]}, r"conv_kernel_sizes is \[5, 4\]; expected 2 odd numbers"),
        ({"conv_channels": 21}, "conv_channels is 21; expected an even number"),
        ({"pad_token_id": 48}, "pad_token_id is 48; expected 0 to 47"),
    ):
        wrong = checkpoints.copy(tmp_path / next(iter(config)), "speech_to_text")
        edit_json(wrong / "config.json", **config)
        assert re.search(expected, refusal(wrong))
    folder = checkpoints.copy(tmp_path / "cohere", "cohere_asr")
    before = json.loads((folder / "config.json").read_text())
    for part, expected in (
        ({"model_type": "wav2vec2"}, "encoder_config.model_type is 'wav2vec2'; expected 'parakeet_encoder'"),
        ({"subsampling_factor": 6}, "encoder_config: subsampling_factor is 6; expected a power of 2 of at least 2"),
        ({"num_mel_bins": 13}, "encoder_config: num_mel_bins is 13; expected a multiple of 4"),
        ({"conv_kernel_size": 4}, "encoder_config: conv_kernel_size is 4; expected an odd number"),
        ({"hidden_size": 33}, "encoder_config: hidden_size is 33; expected an even number"),
        ({"num_attention_heads": 4}, "encoder_config: hidden_size 30 is not divisible by num_attention_heads 4"),
    ):
        edit_json(folder / "config.json", encoder_config={**before["encoder_config"], **part})
        assert expected in refusal(folder)
    edit_json(folder / "config.json", encoder_config=before["encoder_config"], num_key_value_heads=1)
    assert "num_key_value_heads is 1, num_attention_heads is 3; key heads that query heads share" in refusal(folder)
    other = checkpoints.copy(tmp_path / "canary", "canary")
    config = json.loads((other / "config.json").read_text())
    for part, expected in (
        ({"num_key_value_heads": 1}, "decoder_config: num_key_value_heads is 1, num_attention_heads is 3"),
        ({"hidden_size": 39}, "decoder_config: hidden_size is 39; expected 36, the encoder's"),
        ({"model_type": "llama"}, "decoder_config.model_type is 'llama'; expected 'canary_decoder'"),
    ):
        edit_json(other / "config.json", decoder_config={**config["decoder_config"], **part})
        assert expected in refusal(other)
    for name, value, expected in (
        ("dither", "much", "dither is 'much', expected a number of at least 0"),
        ("n_fft", 300, "n_fft is 300, expected an even number of at least win_length 400"),
        ("hop_length", 0, "hop_length is 0, expected a whole number"),
        ("overlap_chunk_second", 36, "max_audio_clip_s is 35, expected two frames, and more than overlap_chunk"),
        ("padding_value", 1, "padding_value is 1; supported is 0"),
        ("feature_size", 80, r"makes features of 80 mels, config\.json expects 12 mels"),
    ):
        edit_json(folder / "config.json", num_key_value_heads=3)
        settings = json.loads((folder / "preprocessor_config.json").read_text())
        edit_json(folder / "preprocessor_config.json", **{name: value})
        with pytest.raises(ExportError, match=expected):
            export_model(folder, tmp_path / "out", check=False)
        (folder / "preprocessor_config.json").write_text(json.dumps(settings))
    with pytest.raises(ExportError, match=r"the keys of layer 0 go through rotary positions|xcache"):
        export_model(checkpoints("moonshine"), tmp_path / "out", variant="xcache", check=False)


VAD: dict[str, Any] = {"vad_filter": True, "vad_parameters": {"min_silence_duration_ms": 200, "speech_pad_ms": 0}}


@pytest.mark.parametrize(
    ("family",), slow_unless([(each,) for each in RECORDING_FAMILIES], lambda family: family == "moonshine")
)
def test_each_part_of_the_speech_is_transcribed_as_alone(
    bundles: BundleCache,
    family: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Parts of different lengths, a part that is longer than the model takes, and one that is shorter."""
    monkeypatch.setattr("tightbeam.deploy.inputs.recordings.SpeechDetector", Loud)
    folder = bundles(QUICK[family], family, tokenizer=True)
    runner = Runner.load(folder, threads=1)
    assert runner.recordings is not None
    longest = runner.recordings.longest = min(runner.recordings.longest, 2 * RATE_HZ)
    generator = np.random.default_rng(5)
    parts = [
        (0.1 * generator.standard_normal(n)).astype(np.float32) for n in (512 * 20, longest // 512 * 512 + 512 * 9, 512)
    ]
    silence = np.zeros(512 * 40, np.float32)
    recording = np.concatenate([silence, *(sound for part in parts for sound in (part, silence))])
    how: dict[str, Any] = {"num_beams": 2, "max_new_tokens": 6}
    (found,) = runner.transcribe_outputs([recording], **VAD, **how)
    assert found.segments and found.texts and len(found.segments) == 4
    spans = [(round(own.start_s * RATE_HZ), round(own.end_s * RATE_HZ)) for own in found.segments]
    assert [start for start, _ in spans[:2]] == [512 * 40, 512 * 100] and spans[1][1] <= spans[2][0] + 160
    for start, end in spans:
        assert end - start + 160 >= 1600 and end - start <= longest + 160
    (alone,) = runner.transcribe_outputs([parts[0]], **how)
    first = found.segments[0]
    assert [first.tokens] == alone.sequences and [first.text] == [text.strip() for text in alone.texts or []]
    assert found.sequences == [[token for own in found.segments for token in own.tokens]]
    (quiet,) = runner.transcribe_outputs([silence], **VAD, **how)
    assert (quiet.texts, quiet.sequences, quiet.segments) == ([""], [[]], [])
    request = audio_request(1, recording, silence, **VAD, **how)
    for stream in (False, True):
        served = run_requests(runner, [replace(request, stream=stream)]).outputs(1)
        assert [own.segments for own in served] == [found.segments, []]
        assert [own.sequences for own in served] == [found.sequences, [[]]]
    soundfile.write(tmp_path / "talk.wav", recording, RATE_HZ)
    call = caller(monkeypatch, capsys)
    asked = ("--vad-filter", "--vad-parameters", json.dumps(VAD["vad_parameters"]), *SHORT)
    shown = call(folder, tmp_path / "talk.wav", "--format", "srt", *asked).out
    assert shown.startswith("1\n00:00:01,280 --> 00:00:01,920\n")
    call(folder, tmp_path / "talk.wav", "--format", "srt", *SHORT).failed("needs times", "pass --vad-filter")


def test_voice_activity_is_refused_where_it_cannot_be(bundles: BundleCache) -> None:
    runner = Runner.load(bundles(QUICK["moonshine"], "moonshine", tokenizer=True), threads=1)
    wave = recordings(1)[0]
    for settings, problem in (
        ({"vad_parameters": {"threshold": 0.6}}, "does nothing without vad_filter; pass vad_filter=True too"),
        ({"vad_filter": True, "vad_parameters": {"onset": 1}}, "has no setting 'onset'"),
        ({"batched_windows": True}, "batched_windows=True .* is not a setting of this model: it is for Whisper"),
    ):
        with pytest.raises(GenerationError, match=problem):
            runner.transcribe([wave], **settings)
    with pytest.raises(GenerationError, match="vad_filter is for recordings"):
        runner.generate_from_features(wave[None], vad_filter=True)


def _add_tokens(folder: Path, names: list[str]) -> Any:
    """Give a checkpoint's tokenizer special tokens in the place of its last ones, and return it."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    names = list(dict.fromkeys(names))
    first = len(tokenizer) - len(set(names) - {"▁"})
    vocabulary = {token: number for token, number in tokenizer.get_vocab().items() if number < first}
    description = json.loads((folder / "tokenizer.json").read_text())
    added = {name: first + place for place, name in enumerate(name for name in names if name not in vocabulary)}
    description["model"]["vocab"] = {**vocabulary, **added}
    kept = [pair for pair in description["model"]["merges"] if {*pair, "".join(pair)} <= vocabulary.keys()]
    description["model"]["merges"] = kept
    how = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    description["added_tokens"] += [
        {"id": number, "content": name, **how} for name, number in added.items() if name != "▁"
    ]
    (folder / "tokenizer.json").write_text(json.dumps({**description, "post_processor": None}))
    return transformers.AutoTokenizer.from_pretrained(folder)


def test_the_language_of_cohere_asr_by_name(checkpoints: CheckpointCache, tmp_path: Path) -> None:
    """The tokens are those of transformers' processor."""
    folder = checkpoints.copy(tmp_path / "cohere", "cohere_asr", tokenizer=True)
    names = [token.format("de") for token in COHERE_ASR.language_prompt]
    tokenizer = _add_tokens(folder, [*names, "<|ja|>", "<|nopnc|>", "<|eo|>"])
    processor = transformers.CohereAsrProcessor(transformers.CohereAsrFeatureExtractor(), tokenizer)
    runner = Runner.load(export_model(folder, output=tmp_path / "bundle", check=False).path, threads=1)
    wave = recordings(8)[0]
    how: dict[str, Any] = {"num_beams": 2, "max_new_tokens": 9}
    expected = {
        (code, punctuation): runner.transcribe(
            [wave], decoder_input_ids=processor.get_decoder_prompt_ids(code, punctuation), **how
        )
        for code in ("de", "ja")
        for punctuation in (True, False)
    }
    assert expected["de", True] != expected["ja", True] and expected["de", True] != expected["de", False]
    for given, code in (("de", "de"), ("German", "de"), ("japanese", "ja")):
        assert runner.transcribe([wave], language=given, **how) == expected[code, True]
        assert runner.transcribe([wave], language=given, punctuation=False, **how) == expected[code, False]
    (output,) = runner.transcribe_outputs([wave], language="japanese", punctuation=False, **how)
    assert (output.language, output.language_probability) == ("ja", None)
    for settings, problem in (
        ({"language": "dutch"}, r"is not a language of this model; pass one of de \(german\), ja \(japanese\)"),
        ({"language": "eo"}, "is not a language of this model"),  # a token that the processor does not know
        ({"language": "de", "decoder_input_ids": [5]}, "both begin the output"),
        ({"punctuation": False}, "needs the language spoken; pass language='de' too"),
        ({"language": "de", "target_language": "ja"}, "target_language='ja' .*is not a choice of this model"),
        ({"language": "de", "task": "translate"}, "is for Whisper; leave it out, since this model transcribes"),
        ({"language": "de", "punctuation": "no"}, "is not true or false"),
    ):
        with pytest.raises(GenerationError, match=problem):
            runner.transcribe([wave], **settings)


TEMPLATE = (
    "{% for message in messages %}{% for part in message.content if part.type == 'text' %}"
    "<|startofcontext|><|startoftranscript|><|emo:undefined|><|{{ part.source_language }}|>"
    "<|{{ part.target_language }}|>{{ '<|pnc|>' if part.punctuation else '<|nopnc|>' }}"
    "<|noitn|><|notimestamp|><|nodiarize|>{% endfor %}{% endfor %}"
)


@pytest.mark.slow
def test_the_languages_of_canary_by_name(checkpoints: CheckpointCache, tmp_path: Path) -> None:
    """The output begins with the prompt that transformers' processor makes, and goes on as transformers' does."""
    folder = checkpoints.copy(tmp_path / "canary", "canary", tokenizer=True)
    names = [token.format("de") for token in CANARY.language_prompt]
    tokenizer = _add_tokens(folder, [*names, "<|fr|>", "<|nopnc|>", "<|itn|>"])
    start = tokenizer.convert_tokens_to_ids("<|startofcontext|>")
    for name in ("config.json", "generation_config.json"):
        edit_json(folder / name, decoder_start_token_id=start)
    extractor = transformers.ParakeetFeatureExtractor.from_pretrained(folder)
    processor = transformers.CanaryProcessor(extractor, tokenizer, chat_template=TEMPLATE)
    found = []
    for template in (None, TEMPLATE, TEMPLATE.replace("<|noitn|>", "<|itn|>"), "{{ raise_exception('no') }}"):
        tokenizer.chat_template = template
        found.append(language_settings(CANARY, tokenizer, 94))
    assert found[0] == found[1] == found[3] != found[2]  # a checkpoint's own template is followed
    assert found[2]["language_prompts"]["de"][6] == tokenizer.convert_tokens_to_ids("<|itn|>")
    runner = Runner.load(export_model(folder, output=tmp_path / "bundle", check=False).path, threads=1)
    model = transformers.CanaryForConditionalGeneration.from_pretrained(folder).eval()
    wave = recordings(8)[0]
    how: dict[str, Any] = {"num_beams": 2, "max_new_tokens": 9}
    rows = []
    for ours, theirs in (
        ({"language": "de"}, {"source_language": "de"}),
        ({"language": "German", "target_language": "FR"}, {"source_language": "de", "target_language": "French"}),
        ({"language": "fr", "punctuation": False}, {"source_language": "fr", "punctuation": False}),
    ):
        with quiet_transformers(), torch.no_grad():
            inputs = processor.apply_transcription_request([wave], **theirs)
            expected = model.generate(**inputs, **how)[0].tolist()
        (output,) = runner.transcribe_outputs([wave], **ours, **how)
        assert output.sequences[0] == expected[: len(output.sequences[0])]
        assert output.language == tokenizer.convert_ids_to_tokens(expected[3]).strip("<|>")
        rows.append(output.sequences[0])
    assert len({tuple(row[9:]) for row in rows}) > 1
    for settings, problem in (
        ({"language": "es"}, r"is not a language of this model; pass one of de \(german\), fr \(french\)"),
        ({"language": "de", "target_language": 3}, "target_language=3 .*is not a language of this model"),
        ({"target_language": "de"}, "needs the language spoken; pass language='de' too"),
        ({"source_language": "de"}, "is for texts; pass it as language"),
        ({"language": "de", "task": "translate"}, "is for Whisper; pass target_language to translate"),
    ):
        with pytest.raises(GenerationError, match=problem):
            runner.transcribe([wave], **settings)
