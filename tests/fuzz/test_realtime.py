"""Fuzzing of the messages of a live transcription, over its WebSocket."""

from __future__ import annotations

import asyncio
import base64
import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from fastapi import FastAPI
from hypothesis import strategies as st

from support.fuzzing import corpus, fuzz, json_like
from tightbeam.deploy.errors import InputError
from tightbeam.deploy.serving.http.errors import HttpError
from tightbeam.deploy.serving.http.openai.realtime import MOST_MESSAGE_BYTES, realtime_routes

pytestmark = [pytest.mark.slow, pytest.mark.fuzz]
LONGEST_S = 60.0
"""Seconds that a session without a pause may take: it runs a model that answers at once."""
INPUT = {"format": {"type": "audio/pcm", "rate": 16000}, "transcription": {"model": "m", "language": "en"}}
SOUND = base64.b64encode(bytes(32000)).decode()
MESSAGES: tuple[dict[str, Any], ...] = (
    {"type": "session.update", "event_id": "e", "session": {"type": "transcription", "audio": {"input": INPUT}}},
    {"type": "input_audio_buffer.append", "audio": SOUND},
    {"type": "input_audio_buffer.append", "audio": "AAAA" * 100},
    {"type": "input_audio_buffer.commit"},
    {"type": "input_audio_buffer.clear", "event_id": "e"},
)


class OneWord:
    """A speech model that hears a word in each second of sound."""

    name, has_timestamps, has_times_of_words, codec, deadline_s = "m", True, True, object(), 60.0
    log_mel = SimpleNamespace(sampling_rate_hz=16000, chunk_s=30.0)
    manifest = SimpleNamespace(speech=True, generation={"task_to_id": {"transcribe": 1}})

    async def rows(self, inputs: Any, settings: Any) -> list[Any]:
        samples = next(value for value in inputs.values() if np.asarray(value).dtype.kind == "f")
        words = [
            SimpleNamespace(word=" a", start_s=float(second), end_s=second + 0.5)
            for second in range(np.asarray(samples).size // 16000)
        ]
        end_s = words[-1].end_s if words else 0.0
        shown = {"words": words, "text": " a" * len(words), "tokens": [7] * len(words)}
        segments = [SimpleNamespace(**shown, start_s=0.0, end_s=end_s)]
        return [SimpleNamespace(output=SimpleNamespace(segments=segments, language="en"))]


def find(name: str) -> Any:
    if name != "m":
        raise HttpError(404, "no such model; name another")
    return OneWord()


async def session(app: FastAPI, messages: list[str | bytes]) -> list[dict[str, Any]]:
    """Send messages, and hang up; return what came back."""
    left: list[dict[str, Any]] = [{"type": "websocket.connect"}]
    left += [{"type": "websocket.receive", "text" if isinstance(m, str) else "bytes": m} for m in messages]
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        await asyncio.sleep(0)
        return left.pop(0) if left else {"type": "websocket.disconnect", "code": 1000}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "websocket", "path": "/v1/realtime", "raw_path": b"/v1/realtime", "query_string": b"model=m"}
    scope |= {"headers": [], "subprotocols": [], "http_version": "1.1", "scheme": "ws", "root_path": ""}
    async with asyncio.timeout(LONGEST_S):
        await app(scope | {"server": ("a", 1), "client": ("b", 2)}, receive, send)
    return [json.loads(message["text"]) for message in sent if message.get("text")]


def test_realtime() -> None:
    app = FastAPI()
    app.include_router(realtime_routes(find))
    valid = [json.dumps(message) for message in MESSAGES]
    broken = st.one_of(st.text(max_size=50), st.binary(max_size=20), st.sampled_from(["", "{", "[" * 100_000]))
    hostile = json_like(list(MESSAGES)).map(json.dumps)
    message = st.one_of(st.sampled_from(valid), st.sampled_from(valid), hostile, hostile, broken)

    def run(messages: list[str | bytes]) -> None:
        found = asyncio.run(session(app, [each[:MOST_MESSAGE_BYTES] for each in messages]))
        errors = [each["error"] for each in found if each["type"] == "error"]
        for error in errors:
            assert error["message"] and len(error["message"].splitlines()) == 1, error
        if not messages:
            assert not errors  # a client that leaves is told nothing
        completed = sum(each["type"].endswith(".completed") for each in found)
        assert completed <= sum(each["type"].endswith(".committed") for each in found)
        if errors:
            raise InputError("refused")

    first = [[], valid, [valid[1]] * 40 + [valid[3]], *([each.decode()] for each in corpus("realtime"))]
    fuzz("realtime", st.lists(message, max_size=12), run, first=first)
