"""Fuzzing of requests and of lines of JSON. What is accepted runs to its end on a tiny model."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

from support.audio import chirp
from support.bundles.cache import BundleCache
from support.checkpoints.families import WHISPER_GENERATION
from support.fuzzing import HOSTILE, corpus, fuzz, json_like
from support.serving.triton_requests import run as run_requests
from tightbeam.deploy import Runner
from tightbeam.deploy.errors import InputError
from tightbeam.deploy.generation.fields import FIELDS, ModelKind
from tightbeam.deploy.inputs.lines import LineFormat, run_lines
from tightbeam.deploy.serving.protocol.messages import Request

pytestmark = [pytest.mark.slow, pytest.mark.fuzz]
SETTINGS: list[dict[str, Any]] = [
    {},
    {"num_beams": 4, "num_return_sequences": 2, "length_penalty": 0.5, "early_stopping": "never"},
    {"do_sample": True, "seed": 1, "top_k": 5, "top_p": 0.9, "min_p": 0.1, "typical_p": 0.9, "temperature": 0.7},
    {"num_beams": 4, "num_beam_groups": 2, "diversity_penalty": 1.0},
    {"num_beams": 3, "force_words_ids": [[5, 6], [[7], [8, 9]]]},
    {"bad_words_ids": [[5], [6, 7]], "suppress_tokens": [8], "begin_suppress_tokens": [9], "forced_eos_token_id": 2},
    {"no_repeat_ngram_size": 2, "encoder_no_repeat_ngram_size": 3, "repetition_penalty": 1.2, "min_length": 4},
    {"return_token_scores": True, "return_alternatives": 3, "normalize_logits": True, "renormalize_logits": True},
    {"stop_strings": ["a", "the"], "decoder_input_ids": [5, 6], "eos_token_id": [2, 3], "truncate": True},
    {"generation_config": {"num_beams": 2, "max_length": 20}, "deadline_s": 5, "pad_token_id": 1},
    {"decoder_input_text": "a town", "max_length": 9, "forced_bos_token_id": 5, "decoder_start_token_id": 2},
]
SPEECH: list[dict[str, Any]] = [
    {},
    {"language": "en", "task": "transcribe", "return_timestamps": True, "prompt": "a town"},
    {"temperature": [0.0, 0.2], "seed": 1, "logprob_threshold": -1, "compression_ratio_threshold": 1.3},
    {"condition_on_prev_tokens": True, "prompt_ids": [5, 6], "prompt_condition_type": "all-segments", "num_beams": 2},
    {"no_speech_threshold": 0.5, "logprob_threshold": -1, "silence_threshold_db": -40, "min_speech_s": 0.1},
    {"clip_timestamps": [0.05, 0.1, 0.2], "return_timestamps": True},
    {"clip_timestamps": "0,0.1", "hotwords": "a town", "return_token_timestamps": True},
    {"vad_filter": True, "vad_parameters": {"threshold": 0.1, "speech_pad_ms": 20}, "batched_windows": True},
]


def settings_like(valid: list[dict[str, Any]], kind: ModelKind) -> st.SearchStrategy[dict[str, Any]]:
    """Settings with hostile values, also as JSON in a text, and one more setting of this kind of model."""
    names = sorted({own.name for own in FIELDS if kind in own.models})
    one = st.dictionaries(st.sampled_from(names), st.sampled_from(HOSTILE), max_size=2)
    whole = json_like(valid).map(lambda found: found if isinstance(found, dict) else {})

    def joined(found: dict[str, Any], more: dict[str, Any], textual: bool) -> dict[str, Any]:
        every = {"max_new_tokens": 6, **found, **more}
        return {name: json.dumps(value) if textual else value for name, value in every.items()}

    return st.builds(joined, whole, one, st.booleans())


def served(runner: Runner, inputs: dict[str, Any], parameters: str) -> None:
    """Run a request. Raises its refusal; a defect of Tightbeam fails."""
    log = run_requests(runner, [Request(1, inputs, parameters)], max_rows=40)
    for refused in log.refusals().values():
        assert "defect" not in refused.message, refused.message
        raise InputError(refused.message)


def test_requests_of_texts(bundles: BundleCache) -> None:
    runner = Runner.load(bundles("dedup", tokenizer=True), threads=1)
    message = {"role": "user", "content": "a town"}
    texts = st.one_of(st.sampled_from([b"a town", b"", b"\xff", b"a" * 70_000]), st.binary(max_size=20))
    messages = json_like([[message, {"role": "assistant", "content": [{"type": "text", "text": "b"}]}, message]])
    ids = st.lists(st.lists(st.sampled_from([5, 6, 2, 0, 100, 101, -1, 2**62]), max_size=4), max_size=3)
    lengths = st.lists(st.sampled_from([0, 1, 2, 3, -1, 2**31 - 1]), max_size=3)

    def inputs(kind: int, text: bytes, talk: Any, rows: list[list[int]], own: list[int]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        if kind in (0, 1, 5):
            found["TEXT"] = np.array([[text]] * (1 + len(rows)), np.object_)
        if kind == 2:
            found["MESSAGES"] = np.array([[json.dumps(talk).encode()]], np.object_)
        if kind in (3, 4, 5):
            width = max(map(len, rows), default=0)
            found["INPUT_IDS"] = np.array([row + [5] * (width - len(row)) for row in rows], np.int64).reshape(
                len(rows), width
            )
        if kind == 4:
            found["LENGTHS"] = np.array(own, np.int32).reshape(-1, 1)
        return found

    examples = st.tuples(
        st.builds(inputs, st.integers(0, 5), texts, messages, ids, lengths), settings_like(SETTINGS, ModelKind.TEXT)
    )
    fuzz("requests", examples, lambda example: served(runner, example[0], json.dumps(example[1])))


def test_requests_of_recordings(bundles: BundleCache) -> None:
    bundle = bundles("dedup", "whisper", generation=WHISPER_GENERATION, tokenizer=True)
    runner = Runner.load(bundle, threads=1)
    sound = {"AUDIO": chirp(0.3)[None]}
    examples = settings_like(SPEECH, ModelKind.WHISPER)
    fuzz("recordings", examples, lambda parameters: served(runner, sound, json.dumps(parameters)))


def test_lines(bundles: BundleCache) -> None:
    runner = Runner.load(bundles("dedup", tokenizer=True), threads=1)

    def run(example: tuple[Any, dict[str, Any], bool]) -> None:
        source, settings, ids = example
        lines = [json.dumps({"text": source, **settings}).encode()]
        for result in run_lines(runner.model, lines, LineFormat(ids=ids, field="text")):
            if result.error is not None:
                raise InputError(result.error)

    source = st.one_of(st.just("a town"), st.just([5, 6, 2]), json_like([[5, 6], [{"role": "user", "content": "x"}]]))
    fuzz("lines", st.tuples(source, settings_like(SETTINGS, ModelKind.TEXT), st.booleans()), run)


def test_parameters_as_text(bundles: BundleCache) -> None:
    runner = Runner.load(bundles("dedup", tokenizer=True), threads=1)
    text = {"TEXT": np.array([[b"a town"]], np.object_)}
    valid = [json.dumps(settings) for settings in SETTINGS] + [
        "",
        "[]",
        "1",
        '"x"',
        "[" * 9000,
        "{" * 9000,
        '{"a":' * 900,
    ]
    pieces = st.lists(
        st.sampled_from([*valid, "{", "}", "[", "]", ",", ":", '"', "NaN", "1e999", "\\ud800", "-"]), max_size=9
    )
    first = [data.decode(errors="surrogateescape") for data in corpus("parameters")]
    fuzz(
        "parameters",
        pieces.map("".join) | st.text(max_size=60),
        lambda example: served(runner, text, example),
        first=[*valid, *first],
    )
