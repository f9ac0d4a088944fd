"""Times of Whisper's tokens and words: those of transformers' ``return_token_timestamps``, in every variant."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from transformers.models.whisper import generation_whisper, tokenization_whisper
from typer.testing import CliRunner

from support.audio import RATE_HZ, chirp, window_recordings
from support.bundles.cache import BundleCache
from support.checkpoints.edits import edit_json
from support.checkpoints.families import WHISPER_GENERATION
from support.checkpoints.timestamps import generate, with_timestamps
from support.checkpoints.whisper_tokenizer import whisper_tokenizer
from support.inputs import run_windows
from tightbeam.deploy import Runner
from tightbeam.deploy.audio.alignment import attention_of, time_warping
from tightbeam.deploy.commands import run_model
from tightbeam.deploy.errors import GenerationError, InputError
from tightbeam.deploy.inputs.output import text_of
from tightbeam.deploy.inputs.words import group_words
from tightbeam.deploy.model.model import Model
from tightbeam.deploy.runtimes.onnxruntime_cpu import OnnxRuntimeCpu
from tightbeam.deploy.search.token_scores import Alignment
from tightbeam.deploy.text.tokenizer import TextCodec, _TokenizersCodec
from tightbeam.export.checkpoint.alignment import alignment_of
from tightbeam.export.checkpoint.load import load_checkpoint
from tightbeam.export.errors import ExportError
from tightbeam.graph_passes import PRESETS, tensorrt_form

Array = Any
FRAMES = (100, 40, 71, 90)
"""Frames of each window that are the recording's."""
WINDOWS: tuple[dict[str, Any], ...] = (
    {},
    {"num_beams": 3, "language": "de"},
    {"num_beams": 4, "return_timestamps": True, "length_penalty": 2.0},
    {"return_timestamps": True},
)
RECORDINGS: tuple[dict[str, Any], ...] = (
    {},
    {"num_beams": 3, "length_penalty": 2.0},
    {"condition_on_prev_tokens": True, "num_beams": 2, "max_length": 20},
    {"prompt_ids": [52, 7, 8, 11], "language": "fr", "condition_on_prev_tokens": True},
)


def few(*quick: str) -> list[Any]:
    """All variants, with the mark ``slow`` on all but a few."""
    return [name if name in quick else pytest.param(name, marks=pytest.mark.slow) for name in PRESETS]


@pytest.fixture(scope="module")
def waves() -> list[Array]:
    """Recordings of a third of a window to three windows: tones, silence, noise."""
    return [*window_recordings(0.60001), chirp(0.3)]


@pytest.fixture(scope="module")
def codec(tmp_path_factory: pytest.TempPathFactory) -> TextCodec:
    folder = tmp_path_factory.mktemp("tokenizer")
    whisper_tokenizer().save_pretrained(folder)
    return _TokenizersCodec(str(folder / "tokenizer.json"))


@pytest.fixture(scope="module")
def expected_windows() -> dict[str, list[tuple[Array, Array]]]:
    """Tokens and times of transformers, which are those of any variant, by settings."""
    return {}


@pytest.mark.parametrize("variant", few("baseline", "kcache", "xcache"))
def test_windows_match_generate(
    bundles: BundleCache, variant: str, expected_windows: dict[str, list[tuple[Array, Array]]]
) -> None:
    """A batch of windows of which the recordings fill different parts, against transformers one by one.

    Tokens and times are equal, greedy and with beams; the times of what ends early are not those of its padding.
    """
    model, runner = with_timestamps(bundles, variant)
    assert runner.log_mel is not None
    tones = [chirp(1.0), chirp(0.4, high_hz=900), chirp(0.7, low_hz=2000, high_hz=100), chirp(0.9, low_hz=300)]
    features = np.stack([runner.log_mel.features(tone[:RATE_HZ]) for tone in tones])
    mask = (np.arange(100) < np.array(FRAMES)[:, None]).astype(np.int64)
    ends = set[float]()
    for settings in WINDOWS if variant == "el" else WINDOWS[1::2]:
        how = {**settings, "return_token_timestamps": True}
        if (key := str(settings)) not in expected_windows:
            expected_windows[key] = [_generated(model, features[i : i + 1], mask[i : i + 1], how) for i in range(4)]
        found = runner.generate_from_features(features, mask, **how)
        assert found.token_timestamps is not None
        for row, times, (tokens, ends_s) in zip(
            found.sequences, found.token_timestamps, expected_windows[key], strict=True
        ):
            np.testing.assert_array_equal(row[: len(tokens)], tokens, err_msg=key)
            np.testing.assert_array_equal(times[: len(tokens)], ends_s[: len(tokens)], err_msg=key)
            assert not times[len(tokens) :].any()
            ends |= set(times.tolist())
        unmasked = runner.generate_from_features(features, **how)
        assert (unmasked.token_timestamps[1] != found.token_timestamps[1]).any()  # type: ignore[index]
        assert runner.generate_from_features(features, **settings).token_timestamps is None
    assert len(ends) > 20


def _generated(model: Any, features: Array, mask: Array, how: dict[str, Any]) -> tuple[Array, Array]:
    inputs = {"attention_mask": torch.from_numpy(mask), "force_unique_generate_call": True}
    found = generate(model, torch.from_numpy(features), **inputs, return_dict_in_generate=True, **how)
    return found["sequences"][0].numpy(), found["token_timestamps"][0].numpy()


def _transcribed(bundles: BundleCache, model: Any, wave: Array, settings: dict[str, Any]) -> Any:
    """Output of transformers for one recording."""
    folder = bundles.trace("whisper", generation=WHISPER_GENERATION)[0].path
    extractor = transformers.AutoFeatureExtractor.from_pretrained(folder)
    how = {"truncation": False, "padding": "longest"} if len(wave) > RATE_HZ else {}
    given = extractor(wave, sampling_rate=RATE_HZ, return_tensors="pt", return_attention_mask=True, **how)
    own = {name: torch.tensor(value) if name == "prompt_ids" else value for name, value in settings.items()}
    own |= {"return_timestamps": True, "return_segments": True, "return_token_timestamps": True}
    return generate(
        model, given.input_features, attention_mask=given.attention_mask, return_dict_in_generate=True, **own
    )


def _words(tokenizer: Any, tokens: list[int], spans: list[tuple[float, float]]) -> list[tuple[str, Any]]:
    made = tokenization_whisper._collate_word_timestamps(tokenizer, tokens, spans, "english", False)
    return [(word["text"], word["timestamp"]) for word in made]


@pytest.mark.parametrize(
    ("variant", "which", "settings"),
    [
        ("el", slice(1, 4), RECORDINGS[2]),
        ("baseline", slice(0, 1), RECORDINGS[1]),
        *(pytest.param("el", slice(None), own, marks=pytest.mark.slow) for own in RECORDINGS),
        *(pytest.param(name, slice(None), RECORDINGS[3], marks=pytest.mark.slow) for name in PRESETS),
    ],
)
def test_recordings_match_generate(
    bundles: BundleCache, waves: list[Array], codec: TextCodec, variant: str, which: slice, settings: dict[str, Any]
) -> None:
    """Segments, times of tokens and words of recordings that run together, against transformers one by one.

    Windows behind the end of a recording are among them. Words are those that transformers makes of each segment's
    tokens, and for some recordings those of its whole pipeline, which joins segments that it finds no end of.
    """
    model, runner = with_timestamps(bundles, variant)
    runner.model.text._codec, tokenizer = codec, whisper_tokenizer()
    found = runner.transcribe_segments(waves[which], batch_size=3, return_token_timestamps=True, **settings)
    alike = 0
    for wave, parts in zip(waves[which], found, strict=True):
        expected = _transcribed(bundles, model, wave, settings)
        segments = expected["segments"][0]
        assert [part.tokens for part in parts] == [own["tokens"].tolist() for own in segments]
        ends_s = torch.cat([own["token_timestamps"] for own in segments])
        times = [time for part in parts for time in part.token_timestamps or []]
        np.testing.assert_allclose(times, ends_s.tolist(), atol=1e-5)
        place, starts_s = 0, [0.0, *times]
        for part in parts:
            spans = zip(starts_s[place:], times[place : place + len(part.tokens)], strict=False)
            text = [(token, span) for token, span in zip(part.tokens, spans, strict=False) if token < 45]
            made = [(own.word, (own.start_s, own.end_s)) for own in part.words or []]
            assert made == _words(tokenizer, [token for token, _ in text], [span for _, span in text])
            place += len(part.tokens)
        output = {"tokens": expected["sequences"], "token_timestamps": [ends_s]}
        how: dict[str, Any] = {"return_timestamps": "word", "return_language": False, "time_precision": 0.02}
        whole = tokenizer._decode_asr([output], **how)[1]["chunks"]
        words = [(own.word, (own.start_s, own.end_s)) for part in parts for own in part.words or []]
        alike += [(own["text"], own["timestamp"]) for own in whole] == words
    assert alike


def test_probabilities_are_those_of_the_scores(bundles: BundleCache, waves: list[Array], codec: TextCodec) -> None:
    model, runner = with_timestamps(bundles, "dedup")
    runner.model.text._codec = codec
    (parts,) = runner.transcribe_segments(waves[2:3], return_token_timestamps=True)
    segments = _transcribed(bundles, model, waves[2], {})["segments"][0]
    shown = 0
    for part, own in zip(parts, segments, strict=True):
        prompt = len(own["result"]["sequences"]) - len(own["result"]["scores"])
        scores = torch.stack(own["result"]["scores"]).log_softmax(-1)[slice(*(place - prompt for place in own["idxs"]))]
        each = scores.exp()[torch.arange(len(part.tokens)), own["tokens"]].tolist()
        text = [(token, probability) for token, probability in zip(part.tokens, each, strict=True) if token < 45]
        grouped = group_words([token for token, _ in text], codec.decode, "en")
        expected = [np.mean([text[index][1] for index in indices]) for _, indices in grouped]
        np.testing.assert_allclose([word.probability for word in part.words or []], expected, rtol=1e-4)
        shown += len(expected)
    assert shown > 5


def test_windows_that_are_cut_have_their_own_times(bundles: BundleCache, waves: list[Array], codec: TextCodec) -> None:
    """Without timestamps a long recording is cut into windows; the times of each are behind those before it."""
    runner = with_timestamps(bundles, "el")[1]
    runner.model.text._codec = codec

    how: dict[str, Any] = {"return_token_timestamps": True, "suppress_tokens": [*range(46, 107)]}
    (done,) = run_windows(runner, waves[:1], return_timestamps=False, **how)
    parts = done.result.segments or []
    assert [part.start_s for part in parts] == [0, 1, 2, 3]
    for start_s, part in enumerate(parts[:3]):
        window = waves[0][start_s * RATE_HZ : (start_s + 1) * RATE_HZ]
        assert runner.log_mel is not None
        alone = runner.generate_from_features(runner.log_mel.features(window)[None], **how)
        assert alone.token_timestamps is not None
        times = start_s + alone.token_timestamps[0, runner.options(**how).beginning :][: len(part.tokens)]
        np.testing.assert_allclose(part.token_timestamps, times, atol=1e-5)


def test_words_match_transformers_on_random_tokens(codec: TextCodec) -> None:
    """Spaces, punctuation, halves of characters, and languages without spaces."""
    rng, tokenizer, joined = np.random.default_rng(7), whisper_tokenizer(), 0
    for _ in range(400):
        tokens = rng.integers(0, 45, rng.integers(0, 14)).tolist()
        for name, code in (("english", "en"), ("japanese", "ja")):
            words, _, indices = tokenization_whisper._combine_tokens_into_words(tokenizer, tokens, name)
            assert group_words(tokens, codec.decode, code) == list(zip(words, indices, strict=True))
            joined += len(tokens) - len(words)
    assert joined > 1000


def test_texts_match_transformers_on_random_tokens(bundles: BundleCache, codec: TextCodec) -> None:
    """Timestamps are no text, and part the halves of a character that are on both sides of one."""
    runner, tokenizer, rng = with_timestamps(bundles, "el")[1], whisper_tokenizer(), np.random.default_rng(9)
    runner.model.text._codec = codec
    parted = 0
    for _ in range(400):
        tokens = [46, *rng.integers(30, 70, 12).tolist()]
        text = text_of(runner.model, tokens)
        assert text == tokenizer.decode(tokens, skip_special_tokens=True)
        parted += text != codec.decode([token for token in tokens if token < 56])
    assert parted > 5


def test_warping_and_filter_match_transformers_on_random_numbers() -> None:
    """Ties, NaN and infinities in the costs; positions that no token attends to; fewer positions than a filter has."""
    rng = np.random.default_rng(5)
    for case in range(60):
        n, N = int(rng.integers(1, 9)), int(rng.integers(0 if case % 7 == 0 else 1, 12))
        costs = rng.integers(-3, 4, (n, N)).astype(np.float64) + (case % 2) * rng.standard_normal((n, N))
        costs[rng.random((n, N)) < 0.1 * (case % 3)] = (np.nan, np.inf, -np.inf)[case % 3]
        with np.errstate(invalid="ignore"):
            text, time = generation_whisper._dynamic_time_warping(costs)
            np.testing.assert_array_equal(
                time_warping(costs), time[np.pad(np.diff(text), (1, 0), constant_values=1) > 0]
            )
        keys = rng.standard_normal((2, N + 1, 5)).astype(np.float32)
        queries = 3 * rng.standard_normal((n + 1, 2, 5)).astype(np.float32)
        keys[:, 0] -= 1e4 * (case % 2) * np.abs(queries).max(axis=(0, 1))  # attended to by none
        for width in (1, 3, 7):
            weights = torch.softmax(torch.from_numpy(np.einsum("nak,aNk->anN", queries[1:], keys)), -1)
            spread, mean = torch.std_mean(weights, dim=-2, keepdim=True, unbiased=False)
            expected = generation_whisper._median_filter((weights - mean) / spread, width).mean(dim=0)
            found = attention_of(Alignment(queries, keys), None, width)
            np.testing.assert_allclose(found, expected.numpy(), atol=2e-4)


def test_what_cannot_have_times_is_refused(bundles: BundleCache, monkeypatch: pytest.MonkeyPatch, waves: Any) -> None:
    asked: dict[str, Any] = {"return_token_timestamps": True}
    runner = with_timestamps(bundles, "el")[1]
    with pytest.raises(GenerationError, match="does not go with return_alternatives=2; leave one out"):
        runner.options(**asked, return_alternatives=2)
    with pytest.raises(GenerationError, match=r"return_token_timestamps='word' .* is neither true nor false"):
        runner.options(return_token_timestamps="word")
    with pytest.raises(GenerationError, match=r"alignment_heads=.* is another than the checkpoint's"):
        runner.options(**asked, alignment_heads=[[0, 0]])
    with pytest.raises(GenerationError, match=r"is more than texts; call Runner\.transcribe_segments"):
        runner.transcribe(waves[:1], **asked)
    assert runner.log_mel is not None
    features = runner.log_mel.features(waves[1])
    with pytest.raises(InputError, match="attention_mask of windows is read with return_token_timestamps=True alone"):
        runner.generate_from_features(features[None], np.ones((1, 100)))
    with pytest.raises(GenerationError, match=r"is for Runner\.transcribe_segments and run-model --word-timestamps"):
        runner.model.sample_of_features(0, features, asked)
    for mask in (np.ones((1, 99)), np.eye(1, 100, 3), np.full((1, 100), 2)):
        with pytest.raises(
            InputError, match=r"attention_mask is .* expected \[1, 100\] of 1 for the recording's frames"
        ):
            runner.generate_from_features(features[None], mask, **asked)
    monkeypatch.setattr(OnnxRuntimeCpu, "alignment_obstacle", "the reason; the fix")
    with pytest.raises(GenerationError, match="return_token_timestamps=True cannot be used: the reason; the fix"):
        runner.options(**asked)


def test_a_checkpoint_without_alignment_heads(bundles: BundleCache) -> None:
    generation = {name: value for name, value in WHISPER_GENERATION.items() if name != "alignment_heads"}
    runner = Runner.load(bundles("el", "whisper", generation=generation), threads=1)
    assert runner.manifest.alignment is None
    outputs = {tensor.name for graph in (runner.manifest.encoder, runner.manifest.decoder) for tensor in graph.outputs}
    assert not outputs & {"alignment_queries", "alignment_keys"}
    with pytest.raises(GenerationError, match=r"generation_config\.json has no alignment_heads; leave it out, or add"):
        runner.options(return_token_timestamps=True)


@pytest.mark.parametrize(
    ("file", "changes", "expected"),
    [
        ("generation_config", {"alignment_heads": [[2, 0]]}, "layers from 0 to 1 and heads from 0 to 2"),
        ("generation_config", {"alignment_heads": [[0, True]]}, "is not a list of pairs"),
        ("generation_config", {"alignment_heads": []}, "is not a list of pairs"),
        ("config", {"median_filter_width": 4}, "median_filter_width=4 is not an odd number; restore the file"),
    ],
)
def test_wrong_heads_are_refused(
    bundles: BundleCache, tmp_path: Path, file: str, changes: dict[str, Any], expected: str
) -> None:
    source = bundles.trace("whisper", generation=WHISPER_GENERATION)[0].path
    for path in source.iterdir():
        (tmp_path / path.name).symlink_to(path) if path.stem != file else (tmp_path / path.name).write_bytes(
            path.read_bytes()
        )
    edit_json(tmp_path / f"{file}.json", **changes)
    with pytest.raises(ExportError, match=expected):
        alignment_of(load_checkpoint(tmp_path))


def test_engines_have_no_alignment(bundles: BundleCache) -> None:
    from tightbeam.deploy.bundle.reader import Bundle
    from tightbeam.export.writing.graphs import read_graphs

    graphs = read_graphs(Bundle.load(bundles("dedup", "whisper", generation=WHISPER_GENERATION)))
    made, results = tensorrt_form(graphs, 40, "fp32")
    assert {result.name: result.matched for result in results}["drop_alignment"] == 2
    for before, after in ((graphs.encoder, made.encoder), (graphs.decoder, made.decoder)):
        names = [tensor.name for tensor in before.outputs]
        assert sum(name.startswith("alignment") for name in names) == 1
        assert not any("alignment" in name for name in (*after.tensors(), *(node.name for node in after.nodes)))


@pytest.fixture
def loaded(bundles: BundleCache, codec: TextCodec, monkeypatch: pytest.MonkeyPatch) -> Runner:
    """The runner that the command loads."""
    runner = with_timestamps(bundles, "el")[1]
    runner.model.text._codec = codec
    monkeypatch.setattr(Model, "load", lambda *args, **options: runner.model)
    return runner


def _run(*arguments: str, code: int = 0) -> str:
    done = CliRunner().invoke(run_model.app, ["bundle", *arguments])
    assert done.exit_code == code, done.output
    return done.stdout if not code else done.stderr


def test_command_writes_words(loaded: Runner, waves: list[Array], tmp_path: Path) -> None:
    soundfile = pytest.importorskip("soundfile")
    name = str(tmp_path / "talk.wav")
    soundfile.write(name, waves[2], RATE_HZ, subtype="FLOAT")
    (parts,) = loaded.transcribe_segments([name], return_token_timestamps=True)
    record = json.loads(_run(name, "--json", "--word-timestamps"))
    assert [own["token_timestamps"] for own in record["segments"]] == [part.token_timestamps for part in parts]
    words = [word for own in record["segments"] for word in own["words"]]
    assert [list(word) for word in words[:1]] == [["word", "start", "end", "probability"]]
    expected = [word for part in parts for word in part.words or []]
    assert [(own["word"], own["start"], own["end"]) for own in words] == [
        (own.word, own.start_s, own.end_s) for own in expected
    ]

    cues = _run(name, "--format", "srt", "--word-timestamps", "--max-words-per-line", "1").split("\n\n")
    shown = [own for own in expected if own.word.strip()]
    assert [cue.split("\n")[2] for cue in cues] == [" ".join(own.word.split()) for own in shown]
    whole = _run(name, "--format", "vtt", "--word-timestamps")
    first = next(part.words for part in parts if part.words)
    assert f"{first[0].start_s:06.3f} --> 00:00:{first[-1].end_s:06.3f}" in whole
    for options, fault in (
        (["--word-timestamps"], "is more than a line of text; pass --json, or --format srt or vtt"),
        (["--max-words-per-line", "2", "--format", "srt"], "--max-words-per-line needs --word-timestamps and --format"),
    ):
        assert fault in _run(name, *options, code=1)
