"""The HTTP server with the clients of OpenAI and LibreTranslate, and plain requests: answers are those of a runner."""

from __future__ import annotations

import asyncio
import html
import io
import json
import re
import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote_plus

import httpx
import numpy as np
import pytest
from libretranslatepy import LibreTranslateAPI
from openai import APIStatusError, AuthenticationError, BadRequestError, NotFoundError, OpenAI
from starlette.requests import Request

from support.audio import RATE_HZ, chirp
from support.bundles.cache import BundleCache
from support.bundles.chat import LLAMA, with_template
from support.checkpoints.families import SENTENCES, WHISPER_GENERATION
from support.serving.http_server import HttpServer, http_server
from tightbeam.deploy import Runner
from tightbeam.deploy.documents.glossary import read_terms
from tightbeam.deploy.inputs.output import Output, TextSegment, TextWord
from tightbeam.deploy.serving.http import streams
from tightbeam.deploy.serving.http.generate import body_fields
from tightbeam.deploy.serving.http.guards import Limits
from tightbeam.deploy.serving.http.openai import audio, settings
from tightbeam.deploy.serving.http.openai.stops import StoppedText, before_stop
from tightbeam.deploy.serving.protocol.messages import Row
from tightbeam.deploy.text import languages

soundfile = pytest.importorskip("soundfile")

MESSAGES: list[Any] = [{"role": "user", "content": "a town"}]
PROMPT = "the bridge of a town"


@pytest.fixture(scope="module")
def folders(bundles: BundleCache, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {
        "chat": with_template(bundles("dedup", **LLAMA), tmp_path_factory.mktemp("chat") / "chat"),
        "text": bundles("dedup", tokenizer=True),
        "speech": bundles("dedup", "whisper", generation=WHISPER_GENERATION, tokenizer=True),
    }


@pytest.fixture(scope="module")
def runners(folders: dict[str, Path]) -> dict[str, Runner]:
    return {name: Runner.load(path, threads=1) for name, path in folders.items()}


@pytest.fixture(scope="module")
def server(folders: dict[str, Path]) -> Iterator[HttpServer]:
    glossaries = {
        "places": read_terms("town,Größe|forest\n".encode(), "places"),
        "others": read_terms(b"x,y", "others"),
    }
    with http_server(folders, pairs={"text": ("en", "de")}, glossaries=glossaries, max_batch_size=4) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: HttpServer) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as made:
        yield made


@pytest.fixture(scope="module")
def web(server: HttpServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=60) as made:
        yield made


@pytest.fixture(scope="module")
def wave() -> bytes:
    data = io.BytesIO()
    soundfile.write(data, chirp(0.7, RATE_HZ), RATE_HZ, format="WAV")
    return data.getvalue()


def data_of(response: httpx.Response) -> list[Any]:
    """The objects of server-sent events."""
    lines = [line.removeprefix("data: ") for line in response.text.splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def test_completions_are_the_texts_of_a_runner(client: OpenAI, runners: dict[str, Runner]) -> None:
    """Several prompts, token ids, beams, several sequences, an echo, and the default of 16 tokens."""
    runner, how = runners["chat"], {"min_new_tokens": 3}
    prompts = [PROMPT, "a town"]
    expected = [
        runner.generate_text([each], max_new_tokens=5, num_beams=2, num_return_sequences=2, **how) for each in prompts
    ]
    found = client.completions.create(
        model="chat", prompt=prompts, max_tokens=5, n=2, echo=True, extra_body={"num_beams": 2, **how}
    )
    texts = [prompt + text for prompt, rows in zip(prompts, expected, strict=True) for text in np.ravel(rows)]
    assert [choice.text for choice in found.choices] == texts
    assert [choice.index for choice in found.choices] == [0, 1, 2, 3]
    ids = runner.model.text.encode(PROMPT)[0]
    default = client.completions.create(model="chat", prompt=ids, temperature=0)
    assert default.choices[0].text == runner.generate_text([PROMPT], max_new_tokens=16, num_beams=1)[0]
    usage = default.usage
    assert usage is not None and (usage.prompt_tokens, usage.completion_tokens <= 16) == (len(ids), True)


def test_a_stream_of_a_completion_joins_to_the_text(client: OpenAI) -> None:
    how: dict[str, Any] = {"model": "chat", "prompt": PROMPT, "max_tokens": 9, "temperature": 0.9, "seed": 5, "n": 2}
    whole = client.completions.create(**how)
    parts = ["", ""]
    reasons: list[Any] = [None, None]
    for chunk in client.completions.create(**how, stream=True):
        for choice in chunk.choices:
            parts[choice.index] += choice.text
            reasons[choice.index] = choice.finish_reason or reasons[choice.index]
    assert parts == [choice.text for choice in whole.choices]
    assert reasons == [choice.finish_reason for choice in whole.choices]


def test_an_answer_is_that_of_a_runner_and_streams(client: OpenAI, runners: dict[str, Runner]) -> None:
    expected = runners["chat"].chat(MESSAGES, max_new_tokens=12, num_beams=1)
    how: dict[str, Any] = {"model": "chat", "messages": MESSAGES, "max_completion_tokens": 12, "temperature": 0}
    whole = client.chat.completions.create(**how)
    assert whole.choices[0].message.content == expected and whole.choices[0].message.role == "assistant"
    chunks = list(client.chat.completions.create(**how, stream=True, stream_options={"include_usage": True}))
    assert chunks[0].choices[0].delta.role == "assistant"
    pieces = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert "".join(pieces) == expected and len([piece for piece in pieces if piece]) > 1
    assert chunks[-1].usage == whole.usage and chunks[-2].choices[0].finish_reason == whole.choices[0].finish_reason


def test_an_answer_without_a_limit_fits_behind_a_long_conversation(client: OpenAI, runners: dict[str, Runner]) -> None:
    runner = runners["chat"]
    long = next(MESSAGES * n for n in range(1, 80) if len(runner.encode(MESSAGES * n)[0]) > 200)
    left = runner.manifest.sizes.max_target - len(runner.encode(long)[0])
    answer = client.chat.completions.create(model="chat", messages=long, temperature=0)
    assert answer.choices[0].message.content == runner.chat(long, max_new_tokens=left, num_beams=1)


def test_an_answer_ends_before_its_stop_string(client: OpenAI) -> None:
    how: dict[str, Any] = {"model": "chat", "messages": MESSAGES, "max_tokens": 20, "temperature": 0}
    text = client.chat.completions.create(**how).choices[0].message.content or ""
    stop = text[len(text) // 2 :][:3]
    stopped = client.chat.completions.create(**how, stop=[stop, "never found"]).choices[0]
    assert stopped.message.content == text[: text.index(stop)] and stopped.finish_reason == "stop"
    stream = client.chat.completions.create(**how, stop=stop, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == stopped.message.content


def test_log_probabilities_of_tokens(client: OpenAI, runners: dict[str, Runner]) -> None:
    (output,) = runners["chat"].generate_outputs(
        [PROMPT], max_new_tokens=4, num_beams=1, return_token_scores=True, return_alternatives=2
    )
    assert output.token_scores is not None
    legacy = (
        client.completions.create(model="chat", prompt=PROMPT, max_tokens=4, temperature=0, logprobs=2)
        .choices[0]
        .logprobs
    )
    assert legacy is not None and legacy.token_logprobs is not None and legacy.top_logprobs is not None
    np.testing.assert_allclose(legacy.token_logprobs, output.token_scores[0], rtol=1e-4)
    assert all(1 <= len(each) <= 2 for each in legacy.top_logprobs)
    chat = client.chat.completions.create(
        model="chat", messages=MESSAGES, max_tokens=4, temperature=0, logprobs=True, top_logprobs=3
    )
    tokens = chat.choices[0].logprobs.content if chat.choices[0].logprobs else None
    assert tokens and all(each.top_logprobs[0].logprob == pytest.approx(each.logprob) for each in tokens)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"tools": [{"type": "function"}]}, "tools is not supported"),
    ({"response_format": {"type": "json_object"}}, "response_format is not supported"),
    ({"presence_penalty": 0.5}, "presence_penalty is not supported; pass repetition_penalty"),
    ({"max_tokens": 0}, "max_tokens: "),
    ({"temperature": -1}, "temperature: "),
    ({"extra_body": {"num_beems": 4}}, "did you mean num_beams?"),
    ({"extra_body": {"top_logprobs": 2}}, "top_logprobs is for logprobs=true"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}, "image_url"),
    ({"messages": []}, "messages: "),
    ({"n": 17}, "n is 17, which needs temperature above 0, top_p, or num_beams of at least 17; pass one"),
    ({"n": 3, "stream": True, "extra_body": {"num_beams": 2}}, "n is 3, which needs"),
]


def test_the_page_lists_every_field_that_is_refused_or_changes_nothing() -> None:
    page = (Path(__file__).resolve().parents[3] / "docs" / "how-to" / "serve-http.md").read_text("utf-8")
    _, _, section = page.partition("### What is refused\n")
    section, _, _ = section.partition("\n### ")
    known = {*settings.REFUSED, *settings.IGNORED, *audio.REFUSED}
    assert len(known) > 20 and sorted(name for name in known if f"`{name}`" not in section) == []


@pytest.mark.parametrize(("wrong", "expected"), REFUSED, ids=lambda each: str(each)[:40])
def test_wrong_fields_get_an_error_of_one_line(client: OpenAI, wrong: dict[str, Any], expected: str) -> None:
    with pytest.raises(BadRequestError) as caught:
        client.chat.completions.create(**{"model": "chat", "messages": MESSAGES, "max_tokens": 2, **wrong})
    body: Any = caught.value.body
    assert expected in body["message"] and len(body["message"].splitlines()) == 1
    assert body["type"] == "invalid_request_error"


def test_fields_without_a_wish_pass(client: OpenAI) -> None:
    client.chat.completions.create(
        model="chat",
        messages=MESSAGES,
        max_tokens=2,
        user="u",
        store=False,
        presence_penalty=0,
        tools=[],
        logit_bias={},
        extra_body={"stream": None, "n": None},
    )


def test_models_are_listed_and_an_unknown_one_is_not_found(client: OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["chat", "text", "speech"]
    with pytest.raises(NotFoundError, match="pass one of chat, text, speech"):
        client.chat.completions.create(model="gpt", messages=MESSAGES)
    with pytest.raises(BadRequestError, match="not decoder-only"):
        client.completions.create(model="text", prompt="a")
    with pytest.raises(BadRequestError, match="not a speech model"):
        client.audio.transcriptions.create(model="text", file=b"abc")


@pytest.mark.parametrize("kind", ["json", "text", "verbose_json"])
def test_transcriptions(client: OpenAI, runners: dict[str, Runner], wave: bytes, kind: str) -> None:
    how: dict[str, Any] = {"language": "de", "task": "transcribe", "max_new_tokens": 8}
    (expected,) = runners["speech"].transcribe([wave], **how)
    found: Any = client.audio.transcriptions.create(
        model="speech", file=("a.wav", wave), response_format=kind, language="de", extra_body={"max_new_tokens": 8}
    )
    assert (found.rstrip("\n") if kind == "text" else found.text) == expected
    if kind == "verbose_json":
        assert found.language == "de" and found.duration == pytest.approx(0.7)


def test_clips_of_an_upload(client: OpenAI, runners: dict[str, Runner], wave: bytes) -> None:
    how: dict[str, Any] = {"clip_timestamps": "0.2,0.45", "max_new_tokens": 4}
    (expected,) = runners["speech"].transcribe([wave], task="transcribe", **how)
    create = client.audio.transcriptions.create
    found: Any = create(model="speech", file=("a.wav", wave), response_format="verbose_json", extra_body=how)
    assert (found.text, found.duration) == (expected, pytest.approx(0.25))
    with pytest.raises(BadRequestError, match=r"ends at 0.70 s, before the clip from 3 s on"):
        create(model="speech", file=("a.wav", wave), extra_body={"clip_timestamps": "3"})
    with pytest.raises(BadRequestError, match="more than 120 clips"):
        create(model="speech", file=("a.wav", wave), extra_body={"clip_timestamps": ",".join(map(str, range(242)))})


def test_a_broken_upload_says_where_its_sound_ends(client: OpenAI, web: httpx.Client, wave: bytes) -> None:
    note = "its end is missing: the file breaks off after 0.5 s"
    cut = wave[: 44 + RATE_HZ]  # half a second of 16 bits
    how: dict[str, Any] = {"model": "speech", "file": ("a.wav", cut), "extra_body": {"max_new_tokens": 4}}
    assert client.audio.transcriptions.create(**how, response_format="verbose_json").model_extra["notes"] == [note]
    *_, done = client.audio.transcriptions.create(**how, stream=True)
    assert done.model_extra["notes"] == [note]
    data = {"model": "speech", "max_new_tokens": "4"}
    assert web.post("/generate", data=data, files={"AUDIO_FILE": cut}).json()["NOTES"] == [note]
    assert "NOTES" not in web.post("/generate", data=data, files={"AUDIO_FILE": wave}).json()


def test_a_stream_of_a_transcription_joins_to_the_text(client: OpenAI, wave: bytes) -> None:
    how: dict[str, Any] = {
        "model": "speech",
        "file": ("a.wav", wave),
        "extra_body": {"max_new_tokens": 8, "num_beams": 1},
    }
    whole = client.audio.transcriptions.create(**how).text
    events: list[Any] = list(client.audio.transcriptions.create(**how, stream=True))
    assert events[-1].type == "transcript.text.done" and events[-1].text == whole
    assert "".join(event.delta for event in events[:-1]).strip() == whole.strip()


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ({"response_format": "mp3"}, "response_format is mp3, expected json, text, verbose_json, srt or vtt"),
        ({"response_format": "srt"}, "predicts no times"),
        ({"timestamp_granularities": ["word"]}, "response_format=verbose_json"),
        ({"chunking_strategy": "auto"}, "chunking_strategy is not supported"),
        ({"file": ("a.wav", b"nothing")}, "the recording cannot be read as audio"),
        ({"file": ("a.wav", b"hello")}, "the recording cannot be read as audio"),
        ({"file": ("a.wav", b"hello, you"), "stream": True}, "the recording cannot be read as audio"),
        ({"language": "xx"}, "language"),
    ],
    ids=str,
)
def test_wrong_transcriptions_are_refused(client: OpenAI, wave: bytes, how: dict[str, Any], expected: str) -> None:
    with pytest.raises(APIStatusError) as caught:
        client.audio.transcriptions.create(**{"model": "speech", "file": ("a.wav", wave), **how})
    body: Any = caught.value.body
    assert caught.value.status_code == 400 and expected in body["message"]
    assert "file" not in how or body["param"] == "file"


def test_times_of_a_transcription_are_rounded() -> None:
    words = [TextWord(" a", 0.1, 28.74, 0.123456)]
    segment = TextSegment(0.1 + 0.2, 28.740000000000002, [5], " a", words=words)
    output = Output([[5]], None, texts=[" a"], segments=[segment], language="en")
    made = json.loads(audio._written(Row(0, 0, output, 0, seconds=0.1 + 0.2), "verbose_json", "t", words=True).body)
    assert made["segments"] == [{"id": 0, "start": 0.3, "end": 28.74, "text": " a", "tokens": [5]}]
    assert made["words"] == [{"word": "a", "start": 0.1, "end": 28.74, "probability": 0.1235}]
    assert made["duration"] == 0.3


def test_generate_gives_what_triton_gives(web: httpx.Client, runners: dict[str, Runner]) -> None:
    how: dict[str, Any] = {"num_beams": 3, "max_new_tokens": 6}
    expected = runners["text"].generate_text(SENTENCES[:2], **how)
    found = web.post("/generate", json={"model": "text", "TEXT": SENTENCES[:2], **how}).json()
    assert found["TEXT"] == expected and found["model_name"] == "text"
    ids = [runners["text"].model.text.encode(each)[0] for each in SENTENCES[:2]]
    other = web.post("/v2/models/text/generate", json={"INPUT_IDS": ids, "parameters": how}).json()
    assert other == found
    form = web.post("/generate", data={"model": "text", "TEXT": SENTENCES[0], "num_beams": "3", "max_new_tokens": "6"})
    assert form.json()["TEXT"] == expected[0]
    stream = data_of(web.post("/v2/models/text/generate_stream", json={"TEXT": SENTENCES[0], "num_beams": 1}))
    assert "".join(each["TEXT"] for each in stream[:-1]) == stream[-1]["TEXT"] and stream[-1]["FINISHED"] is True


def test_a_file_of_a_form_is_transcribed(web: httpx.Client, runners: dict[str, Runner], wave: bytes) -> None:
    (expected,) = runners["speech"].transcribe([wave], max_new_tokens=8)
    found = web.post("/generate", data={"model": "speech", "max_new_tokens": "8"}, files={"AUDIO_FILE": wave})
    assert found.json()["TEXT"] == expected
    for field, content in (("files", b"hello"), ("data", "hello")):
        sent: dict[str, Any] = {"data": {"model": "speech"}}
        sent[field] = {**sent.get(field, {}), "AUDIO_FILE": content}
        problem = "cannot be read as audio" if field == "files" else "AUDIO_FILE is broken base64"
        assert problem in web.post("/generate", **sent).json()["error"]


@pytest.mark.parametrize(
    ("body", "status", "expected"),
    [
        (b"{", 400, "the body is not JSON"),
        (b"[" * 100_000, 400, "the body is not JSON"),
        (b"[]", 400, "not a JSON object"),
        (b'{"TEXT": "a", "TEXT": "b"}', 400, "stands twice"),
        (b"{}", 404, "names no model"),
        (b'{"model": "text"}', 400, "none of TEXT"),
        (b'{"model": "text", "TEXT": 1}', 400, "TEXT is not a text"),
        (b'{"model": "text", "TEXT": ["a", "a", "a", "a", "a"]}', 400, "expected 4 at most"),
        (b'{"model": "text", "INPUT_IDS": [1, true]}', 400, "INPUT_IDS is not a list of numbers"),
        (b'{"model": "text", "INPUT_IDS": [99999999999999999999]}', 400, "not a token id"),
        (b'{"model": "text", "TEXT": "a", "num_beams": 1e400}', 400, "num_beams"),
        (b'{"model": "text", "TEXT": "\\ud800"}', 400, "not UTF-8"),
        (b'{"model": "speech", "AUDIO": [1%b]}' % (b"0" * 400), 400, "not a sample"),
        (b'{"model": "speech", "AUDIO": [0.5, 1e300]}', 400, "not a sample"),
        (b'{"model": "text", "INPUT_IDS": [%b[1]]}' % (b"[1], " * 4), 400, "expected 4 at most"),
        (b" " * 9_000_000, 413, "more than 8,388,608 bytes"),
    ],
    ids=lambda each: str(each)[:40],
)
def test_broken_bodies_get_an_error(web: httpx.Client, body: bytes, status: int, expected: str) -> None:
    answer = web.post("/generate", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == status and expected in answer.json()["error"]


@pytest.mark.parametrize(
    ("path", "body", "expected"),
    [
        ("completions", b'{"model": "chat", "model": "chat", "prompt": "a"}', "stands twice"),
        ("completions", b"[" * 100_000, "the body is not JSON"),
        ("completions", b'{"model": "chat", "prompt": [%bnull]}' % (b"null, " * 100_000), "prompt: "),
        ("completions", b'{"model": "chat", "prompt": [%b[%b1]]}' % (b"[1], " * 9, b"1, " * 50_000), "expected 4"),
        ("completions", b'{"model": "chat", "prompt": "a", "stream": true, "n": 100000000}', "n: "),
        ("completions", b'{"model": "chat", "prompt": "\\ud800", "stream": true, "echo": true}', "not UTF-8"),
        ("completions", b'{"model": "chat", "prompt": "a", "stream": "maybe"}', "stream: "),
        ("chat/completions", b'{"model": "a\\nb", "messages": [{}]}', "no model is named"),
        ("audio/transcriptions", b"{}", "send multipart/form-data"),
        ("a%0Ab%1B", b"{}", "there is no POST /v1/a"),
    ],
    ids=lambda each: str(each)[:40],
)
def test_broken_bodies_get_an_error_of_openai(web: httpx.Client, path: str, body: bytes, expected: str) -> None:
    """One line, with signs that print; the next request of the connection is answered."""
    answer = web.post(f"/v1/{path}", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code in (400, 404)
    message = answer.json()["error"]["message"]
    assert expected in message and message.isprintable()


@pytest.mark.parametrize(
    ("path", "fields", "files", "expected"),
    [
        ("/generate", {"model": "text", "TEXT": "a"}, [("num_beams", b"2")], "num_beams is a file"),
        ("/generate", {"model": "text"}, [("TEXT", b"a"), ("TEXT", b"b")], "TEXT stands twice"),
        ("/translate", {"source": "en", "target": "de"}, [("q", b"a")], "q is a file"),
        ("/translate", {"q": "a", "source": "a\nb", "target": "de"}, [], "from a b to de"),
    ],
)
def test_forms_of_wrong_parts_are_refused(
    web: httpx.Client, path: str, fields: dict[str, str], files: list[tuple[str, bytes]], expected: str
) -> None:
    answer = web.post(path, data=fields, files=files)
    assert answer.status_code == 400 and expected in answer.json()["error"]


def test_a_surrogate_in_a_language_is_refused(web: httpx.Client) -> None:
    answer = web.post("/translate", content=b'{"q": "a", "source": "\\ud800", "target": "de"}')
    assert answer.status_code == 400 and "no model translates" in answer.json()["error"]


def test_translations(server: HttpServer, web: httpx.Client, runners: dict[str, Runner]) -> None:
    api = LibreTranslateAPI(f"{server.url}/")
    assert api.languages() == [{"code": "en", "name": "English", "targets": ["de"]}]
    (expected,) = runners["text"].generate_text(SENTENCES[:1])
    assert api.translate(SENTENCES[0], "en", "de") == expected
    several = web.post(
        "/translate", json={"q": SENTENCES[:2], "source": "en", "target": "de", "alternatives": 1}
    ).json()
    beams = max(2, runners["text"].bundle.manifest.generation.get("num_beams") or 1)
    rows = runners["text"].generate_outputs(SENTENCES[:2], num_return_sequences=2, num_beams=beams)
    assert several["translatedText"] == [each.texts[0] for each in rows if each.texts]
    assert several["alternatives"] == [each.texts[1:] for each in rows if each.texts]


EN_DE = {"q": "a", "source": "en", "target": "de"}


@pytest.mark.parametrize(
    ("fields", "status", "expected"),
    [
        ({"q": "a", "source": "de", "target": "en"}, 400, "no model translates from de to en"),
        ({"q": "a", "source": "auto", "target": "en"}, 400, "no model translates from auto to en"),
        ({"q": "a", "source": "en", "target": "de", "format": "rtf"}, 400, "expected text or html"),
        ({"q": "x" * 300_000, "source": "en", "target": "de", "format": "html"}, 400, "262,144 characters"),
        ({"q": ["<b>"] * 20_000, "source": "auto", "target": "de", "format": "html"}, 400, "8,192 at most"),
        ({"q": ["<b>" * 87_000] * 9, "source": "auto", "target": "de", "format": "html"}, 400, "262,144 characters"),
        ({"source": "en", "target": "de"}, 400, "q is missing"),
        ({"q": "a", "source": "en", "target": "de", "alternatives": "many"}, 400, "alternatives"),
        ({"q": "a", "source": "en"}, 400, "target is missing; send the language to translate to"),
        ({**EN_DE, "model": "zzz"}, 404, "no translator is named 'zzz'; pass one of text"),
        ({**EN_DE, "model": "chat"}, 404, "no translator is named 'chat'; pass one of text"),
        ({**EN_DE, "q": "17", "foo": "bar"}, 400, "foo is neither a field of /translate nor a setting"),
        ({**EN_DE, "glosary": [["a", "b"]]}, 400, "did you mean glossary?"),
        ({**EN_DE, "num_beems": 2}, 400, "did you mean num_beams?"),
        ({**EN_DE, "target_language": "fr"}, 400, "target_language is not for /translate; pass target"),
        ({**EN_DE, "task": "translate"}, 400, "it is for Whisper"),
        ({**EN_DE, "alternatives": 3, "num_beams": 2}, 400, "alternatives is 3, which needs num_beams of at least 4"),
    ],
)
def test_wrong_translations_are_refused(web: httpx.Client, fields: dict[str, Any], status: int, expected: str) -> None:
    answer = web.post("/translate", json=fields)
    assert answer.status_code == status and expected in answer.json()["error"]
    if all(isinstance(value, str) for value in fields.values()):
        form = web.post("/translate", data=fields)
        assert (form.status_code, form.json()) == (status, answer.json())


def test_settings_of_a_translation(web: httpx.Client, runners: dict[str, Runner]) -> None:
    how: dict[str, Any] = {"max_new_tokens": 3, "num_beams": 1, "repetition_penalty": 1.5}
    (expected,) = runners["text"].generate_text(["A small town."], **how)
    fields = {**EN_DE, "q": "A small town."}
    made = web.post("/translate", json={**fields, **how}).json()
    assert made["translatedText"] == " ".join(expected.split())
    assert made != web.post("/translate", json=fields).json()
    assert web.post("/translate", data={**fields, **{name: str(value) for name, value in how.items()}}).json() == made
    several = web.post("/translate", json={**fields, "alternatives": 1, "num_beams": 3, "max_new_tokens": 3}).json()
    rows = runners["text"].generate_text([fields["q"]], num_return_sequences=2, num_beams=3, max_new_tokens=3)
    assert [several["translatedText"], *several["alternatives"]] == list(np.ravel(rows))
    late = web.post("/translate", json={**fields, "deadline_s": 1e-6})
    assert late.status_code == 503 and "within 1e-06 s" in late.json()["error"]
    detected = web.post("/detect", json={"q": "a", "sorce": "en"})
    assert detected.status_code == 400 and "sorce is not a field of /detect" in detected.json()["error"]


@pytest.mark.parametrize(
    ("form", "status", "expected"),
    [
        (b"&" * 65, 400, "more than 64 fields"),
        (b"q=" + b"a" * (1 << 20), 413, "more than 1,048,576 bytes; send JSON"),
        (b"q=a&source=en&q=b", 400, "q stands twice"),
    ],
)
def test_a_form_is_bounded(web: httpx.Client, form: bytes, status: int, expected: str) -> None:
    """8 MB of ampersands held the server for 8 seconds."""
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    response = web.post("/translate", content=form, headers=headers)
    assert response.status_code == status and expected in response.json()["error"]


def test_a_form_is_read_as_utf8(web: httpx.Client, runners: dict[str, Runner]) -> None:
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    for form in ("q=une maison \u00e9troite", "q=une+maison+%C3%A9troite"):
        response = web.post("/translate", content=f"{form}&source=en&target=de".encode(), headers=headers)
        expected = runners["text"].generate_text(["une maison \u00e9troite"])[0]
        assert response.json() == {"translatedText": expected}


@pytest.mark.parametrize("length", [0, 5, 16383, 16384, 16385, 40000])
def test_a_form_is_read_like_any_query(length: int) -> None:
    form = "&q=" + "a" * length + "%C3%A9 \u00e9+%2B100%&%zz%4&=b&c&" + "%41" * length
    expected = parse_qsl(form, keep_blank_values=True)
    assert asyncio.run(_fields(form.encode())) == dict(expected)


@pytest.mark.parametrize("signs", ["%", "%41", "%zz", "%ff", "+"])
def test_the_largest_form_is_read_quickly(signs: str) -> None:
    """One of percent signs took 0.6 s of processor time."""
    form = f"q={signs * ((1 << 20) // len(signs))}"[: 1 << 20]
    begun = time.process_time()
    (found,) = asyncio.run(_fields(form.encode())).values()
    assert time.process_time() - begun < 0.25
    assert found == unquote_plus(form[2:])


async def _fields(body: bytes) -> dict[str, Any]:
    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body}

    headers = [(b"content-type", b"application/x-www-form-urlencoded")]
    return await body_fields(Request({"type": "http", "method": "POST", "headers": headers}, receive))


def test_a_name_that_is_not_utf8_is_refused(web: httpx.Client) -> None:
    body = rb'{"model": "chat", "prompt": "a", "\ud800": 1}'
    response = web.post("/v1/completions", content=body)
    assert response.status_code == 400 and "not UTF-8" in response.json()["error"]["message"]


def test_many_log_probabilities_are_refused(web: httpx.Client) -> None:
    """Each takes 0.5 kB in the process that all clients share."""
    asked = {"model": "chat", "prompt": ["a", "b"], "n": 128, "max_tokens": 10**6, "logprobs": 20}
    response = web.post("/v1/completions", json=asked)
    assert response.status_code == 400 and "more than 262,144" in response.json()["error"]["message"]


def test_large_answers_are_written_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's writer of JSON holds the interpreter: for an answer of 60 MB no other client was served for 5 s."""
    threads, written = [], streams._written
    monkeypatch.setattr(
        streams, "_written", lambda each: (threads.append(threading.current_thread()), written(each))[1]
    )
    fields = {"a": np.array([b"x"], object), "b": np.array([[1.5, np.inf], [np.nan, 2]]), "c": [1, {"d": "\u00e9"}]}
    assert asyncio.run(streams.json_text(fields)) == '{"a":"x","b":[1.5,null,null,2.0],"c":[1,{"d":"\u00e9"}]}'
    ids = np.arange(3 * streams.PIECE + 5)
    assert json.loads(asyncio.run(streams.json_text({"ids": ids.reshape(1, -1)}))) == {"ids": ids.tolist()}
    assert [each is threading.main_thread() for each in threads] == [True, False]


def test_html_keeps_its_markup(web: httpx.Client, runners: dict[str, Runner]) -> None:
    made = [" ".join(text.split()) for text in runners["text"].generate_text([SENTENCES[0], "a town", "a small town"])]
    page = f'<p class="a&amp;b">\n {SENTENCES[0]}<br/><b>a town</b> </p><script>if (a < b) {{}}</script><!-- no -->'
    wanted = page.replace(SENTENCES[0], html.escape(made[0], quote=False))
    wanted = wanted.replace("a town", html.escape(made[1], quote=False))
    fields = {"source": "en", "target": "de", "format": "html"}
    found = web.post("/translate", json={"q": [page, "", "a <i>small</i> town"], **fields}).json()["translatedText"]
    assert found[:2] == [wanted, ""]
    assert "<i>" in found[2] and re.sub("</?i>", "", found[2]) == html.escape(made[2], quote=False)


def test_texts_are_translated_sentence_by_sentence(web: httpx.Client, runners: dict[str, Runner]) -> None:
    first, second = (" ".join(text.split()) for text in runners["text"].generate_text(["A town.", "A small town."]))
    fields = {"source": "en", "target": "de"}
    text = "A town. A small town.\n\n  - A town.\n"
    answer = web.post("/translate", json={"q": text, **fields}).json()
    assert answer == {"translatedText": f"{first} {second}\n\n  - {first}\n"}
    answer = web.post("/translate", json={"q": ["A town 17.", "{x}"], **fields}).json()
    assert answer["translatedText"][1] == "{x}"
    assert answer["reports"] == [['line 1: "A town 17." lost the number 17'], []]


def test_a_glossary_forces_its_terms(web: httpx.Client, runners: dict[str, Runner], tmp_path: Path) -> None:
    """With the translation and the reports of a runner, whose glossary is a file."""
    (plain,) = runners["text"].generate_text(["A small town."])
    word = next(each for each in ("river", "library", "snow") if each not in plain)
    (tmp_path / "terms.csv").write_text(f"town,{word}\nnowhere,never\n")
    how = {"document_format": "text", "glossary": tmp_path / "terms.csv"}
    expected = runners["text"].translate_document(b"A small town.", **how)
    fields = {"q": "A small town.", "source": "en", "target": "de"}
    made = web.post("/translate", json={**fields, "glossary": [["town", word], ["nowhere", "never"]]}).json()
    assert word in made["translatedText"] and made["translatedText"] == expected.data.decode()
    assert made.get("reports", []) == expected.reports
    assert web.post("/translate", data={**fields, "glossary": f"town,{word}\n"}).json() == made
    pairs = json.dumps([["town", word], ["nowhere", "never"]])
    assert web.post("/translate", data={**fields, "glossary": pairs}).json() == made
    assert web.post("/translate", json={**fields, "glossary": f" {pairs}"}).json() == made
    assert web.post("/translate", json={**fields, "glossary": [["town", word]], "num_beams": 1}).status_code == 200
    own = web.post("/translate", json={**fields, "glossary": [["town", "Größe|forest"]]}).json()
    assert web.post("/translate", json={**fields, "glossary": "places"}).json() == own
    assert web.post("/translate", data={**fields, "glossary": "places"}).json() == own != made
    for wrong, problem in (
        ([["town"]], "not a list of pairs"),
        ([["town", " "]], "pair 1 has an empty column"),
        ([["a", "b"]] * 1001, "more than 1,000 terms"),
        ('[["town"]]', "not a list of pairs of texts; pass pairs"),
        ("[town,Ort", "glossary begins with [ and is not JSON"),
        ("town\n", "line 1 of the glossary has 1 columns"),
        ("towns", "glossary is 'towns', which is no glossary of this server; pass one of places, others"),
    ):
        answer = web.post("/translate", json={**fields, "glossary": wrong})
        assert answer.status_code == 400 and problem in answer.json()["error"]


def test_hostile_html_takes_a_time_of_its_length(web: httpx.Client) -> None:
    """Python's parser of HTML takes minutes for 40,000 characters of this text."""
    page = "<a " * 80_000
    answer = web.post("/translate", json={"q": page, "source": "en", "target": "de", "format": "html"})
    assert answer.json() == {"translatedText": page}
    answer = web.post("/translate", content=b'{"q": "a\\ud800", "source": "en", "target": "de"}')
    assert answer.status_code == 400 and "surrogate" in answer.json()["error"]


def test_the_language_of_a_text_is_found(web: httpx.Client, server: HttpServer, runners: dict[str, Runner]) -> None:
    pytest.importorskip("py3langid")
    found = {"language": "en", "confidence": pytest.approx(100, abs=50)}
    (expected,) = runners["text"].generate_text(SENTENCES[:1])
    for given, detected, translated in ((SENTENCES[0], found, expected), (SENTENCES[:1], [found], [expected])):
        answer = web.post("/translate", json={"q": given, "source": "auto", "target": "de"}).json()
        assert answer == {"detectedLanguage": detected, "translatedText": translated}
    page = f"<table>{SENTENCES[0]}</table>"
    assert (
        web.post("/translate", json={"q": page, "target": "de", "format": "html"}).json()["detectedLanguage"] == found
    )
    assert LibreTranslateAPI(f"{server.url}/").detect(SENTENCES[0]) == [found]
    assert web.post("/detect", data={"q": "12"}).status_code == 400


def test_a_missing_detector_is_named(web: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "py3langid.langid", None)
    languages._detector.cache_clear()
    expected = "no detector of languages is installed; pip install 'tightbeam[detect]', or pass the source language"
    for path, more in (("/detect", {}), ("/translate", {"source": "auto", "target": "de"})):
        answer = web.post(path, data={"q": "a town", **more})
        assert answer.status_code == 501 and expected in answer.json()["error"]


def test_health_metrics_page_and_request_ids(server: HttpServer, web: httpx.Client) -> None:
    assert web.get("/health/live").status_code == web.get("/health/ready").status_code == 200
    web.post("/generate", json={"model": "text", "TEXT": "a secret", "max_new_tokens": 3})
    deadline = time.monotonic() + 60
    while 'tightbeam_samples_total{model="text"} 0.0' in web.get("/metrics").text and time.monotonic() < deadline:
        time.sleep(0.05)
    assert 'tightbeam_steps_total{model="text"}' in web.get("/metrics").text
    assert web.head("/health/ready").status_code == 200 and web.head("/detect").headers["Allow"] == "POST"
    page = web.get("/", headers={"X-Request-ID": "my-own.1"})
    assert page.headers["X-Request-ID"] == "my-own.1" and "<title>Tightbeam</title>" in page.text
    assert "http://" not in page.text and "https://" not in page.text, "the page asks nobody else"
    assert len(web.get("/health/live", headers={"X-Request-ID": "no spaces please"}).headers["X-Request-ID"]) == 24
    record = next(each for each in reversed(server.log) if each["path"] == "/generate")
    assert record["status"] == 200 and "secret" not in json.dumps(server.log)
    assert web.get("/nothing").json() == {"error": "there is no GET /nothing"}


def test_a_client_that_leaves_frees_its_place(server: HttpServer, web: httpx.Client) -> None:
    """In the middle of a stream, before its first event, and while it waits for a whole answer."""
    dispatcher = server.models["text"]._dispatcher
    body = {"TEXT": "a town", "num_beams": 1, "min_new_tokens": 60, "max_new_tokens": 60}
    for path, beams in (("generate_stream", 1), ("generate_stream", 4), ("generate", 1)):
        content = json.dumps({**body, "num_beams": beams}).encode()
        with socket.create_connection(server.url.removeprefix("http://").split(":"), timeout=60) as raw:  # type: ignore[arg-type]
            head = f"POST /v2/models/text/{path} HTTP/1.1\r\nHost: a\r\nContent-Length: {len(content)}\r\n\r\n"
            raw.sendall(head.encode() + content)
            if path == "generate_stream" and beams == 1:
                raw.recv(100)
            while not dispatcher._open:
                time.sleep(0.001)
        deadline = time.monotonic() + 60
        while dispatcher._open and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not dispatcher._open
    assert web.post("/generate", json={"model": "text", **body}).status_code == 200


def test_a_request_that_waits_for_a_place_ends_at_its_deadline(server: HttpServer, web: httpx.Client) -> None:
    with server.models["text"]._dispatcher._changed:  # nobody gets a place
        answer = web.post("/generate", json={"model": "text", "TEXT": "a", "deadline_s": 0.2})
    assert answer.status_code == 503 and "no place at its deadline" in answer.json()["error"]


def test_a_killed_worker_loses_no_request(server: HttpServer, web: httpx.Client) -> None:
    how: dict[str, Any] = {"model": "text", "TEXT": SENTENCES[0], "num_beams": 2}
    expected = web.post("/generate", json=how).json()
    server.models["text"]._dispatcher._worker.kill()
    assert web.post("/generate", json=how).json() == expected


def test_keys(folders: dict[str, Path]) -> None:
    with http_server(
        {"org/chat": folders["chat"]},
        pairs={"org/chat": ("en", "de")},
        limits=Limits(keys=["k1", "k2"]),
        origins=["https://a.example"],
    ) as running:
        good, bad = (OpenAI(base_url=f"{running.url}/v1", api_key=key, max_retries=0) for key in ("k2", "k3"))
        assert len(list(good.models.list())) == 1 and good.models.retrieve("org/chat").id == "org/chat"
        page = httpx.get(f"{running.url}/v1/models", headers={"Origin": "https://a.example"})
        assert page.headers["Access-Control-Allow-Origin"] == "https://a.example", "a page reads errors, too"
        with pytest.raises(AuthenticationError, match="the key is missing or wrong"):
            bad.models.list()
        for path in ("/generate", "/metrics", "/v1/models", "/openapi.json"):
            assert httpx.get(f"{running.url}{path}").status_code == 401
        for path in ("/", "/health/live", "/languages"):
            assert httpx.get(f"{running.url}{path}").status_code == 200
        wrong = httpx.post(f"{running.url}/translate", data={"q": "a", "api_key": "k"})
        assert wrong.status_code == 403 and "api_key" in wrong.json()["error"]
        surrogate = httpx.post(f"{running.url}/translate", content=b'{"q": "a", "api_key": "\\ud800"}')
        assert surrogate.status_code == 403
        right = {"q": "a town", "source": "en", "target": "de", "api_key": "k1"}
        assert httpx.post(f"{running.url}/translate", data=right, timeout=60).status_code == 200


def test_any_page_with_a_key_may_ask(folders: dict[str, Path]) -> None:
    """A page sends the key itself; nothing that a browser sends by itself, such as a cookie, lets it in."""
    with http_server({"chat": folders["chat"]}, limits=Limits(keys=["k1"]), origins=["*"]) as running:
        page = {"Origin": "https://a.example"}
        asks = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,content-type"}
        preflight = httpx.options(f"{running.url}/v1/chat/completions", headers={**page, **asks})
        assert preflight.status_code == 200 and "authorization" in preflight.headers["Access-Control-Allow-Headers"]
        without = httpx.get(f"{running.url}/v1/models", headers={**page, "Cookie": "key=k1"})
        right = httpx.get(f"{running.url}/v1/models", headers={**page, "Authorization": "Bearer k1"})
        assert (without.status_code, right.status_code) == (401, 200)
        for answer in (preflight, without, right):
            assert answer.headers["Access-Control-Allow-Origin"] == "*"
            assert "Access-Control-Allow-Credentials" not in answer.headers


def test_bodies_that_stop_or_are_too_many_are_refused(folders: dict[str, Path]) -> None:
    """A client that stops in its body, and one whose body would be the second of 500 bytes that wait."""
    limits = Limits(held_bytes=800, silence_s=2)
    with http_server({"text": folders["text"]}, limits=limits) as running:
        address = ("127.0.0.1", int(running.url.rpartition(":")[2]))
        with socket.create_connection(address, timeout=60) as slow:
            slow.sendall(b"POST /generate HTTP/1.1\r\nHost: a\r\nContent-Length: 600\r\n\r\n" + b" " * 500)
            time.sleep(0.3)
            body = json.dumps({"TEXT": "a", "max_new_tokens": 3}) + " " * 500
            many = httpx.post(f"{running.url}/generate", content=body)
            assert many.status_code == 429 and "hold 800 bytes" in many.json()["error"]
            answer = slow.recv(1000)
            assert b" 408 " in answer and b"has not come for 2 seconds" in answer
        assert httpx.post(f"{running.url}/generate", content=body, timeout=60).status_code == 200


def test_headers_without_an_end_are_refused(server: HttpServer) -> None:
    """And a client that leaves in its body is no defect."""
    address = ("127.0.0.1", int(server.url.rpartition(":")[2]))
    with socket.create_connection(address, timeout=60) as raw:
        raw.sendall(b"GET /health/live HTTP/1.1\r\nHost: a\r\nX-Long: " + b"a" * 100_000)
        assert b" 400 " in raw.recv(1000)
    with socket.create_connection(address, timeout=60) as raw:
        raw.sendall(b"POST /generate HTTP/1.1\r\nHost: a\r\nX-Request-ID: left\r\nContent-Length: 9\r\n\r\n{")
    while not (found := [each for each in server.log if each["id"] == "left"]):
        time.sleep(0.01)
    assert found[0]["status"] == 499


def test_stop_strings_in_pieces() -> None:
    """A piece that may begin a stop string waits; what follows one is never given."""
    stopped = StoppedText(["END", "ENOUGH"])
    assert [stopped.add(piece) for piece in ("abc E", "N", "O!", "xE", "ND", "zz")] == ["abc ", "", "ENO!", "x", "", ""]
    assert stopped.rest(before_stop("abc ENO!xENDzz", ["END", "ENOUGH"])) == ""
    assert StoppedText([]).add("all") == "all"
