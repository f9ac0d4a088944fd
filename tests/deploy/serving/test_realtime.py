"""Live transcription over a WebSocket, by OpenAI's client and by plain messages."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI

from support.audio import chirp
from support.bundles.cache import BundleCache
from support.checkpoints.families import WHISPER_GENERATION
from support.checkpoints.timestamps import written_with_timestamps
from support.serving.http_server import HttpServer, http_server
from tightbeam.deploy.serving.http.guards import Limits
from tightbeam.deploy.serving.http.openai import realtime

client = pytest.importorskip("websockets.sync.client")
exceptions = pytest.importorskip("websockets.exceptions")

TRANSCRIPTION = "conversation.item.input_audio_transcription"
KEY = "a-key"


def pcm(seconds: float, rate_hz: int = 16000) -> str:
    return base64.b64encode((chirp(seconds, rate_hz) * 32767).astype("<i2").tobytes()).decode()


def session(**how: Any) -> dict[str, Any]:
    return {"type": "transcription", "audio": {"input": {"format": {"type": "audio/pcm", "rate": 16000}, **how}}}


@pytest.fixture(scope="module")
def folders(bundles: BundleCache, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    speech = bundles("dedup", "whisper", generation=WHISPER_GENERATION, tokenizer=True)
    return {
        "speech": written_with_timestamps(speech, tmp_path_factory.mktemp("realtime")),
        "text": bundles("dedup", tokenizer=True),
    }


@pytest.fixture(scope="module")
def server(folders: Mapping[str, Path]) -> Iterator[HttpServer]:
    with http_server(folders, limits=Limits(keys=[KEY]), origins=["https://example.org"]) as running:
        yield running


class Socket:
    """A connection that speaks in objects."""

    def __init__(self, server: HttpServer, *, first: str = "session.created", **how: Any) -> None:
        how = {"additional_headers": {"Authorization": f"Bearer {KEY}"}, **how}
        self._connect = client.connect(f"{server.url.replace('http', 'ws')}/v1/realtime?model=speech", **how)
        self._first = first

    def __enter__(self) -> Socket:
        self.inner = self._connect.__enter__()
        self.first = self.read()
        assert self.first["type"] == self._first
        return self

    def __exit__(self, *error: Any) -> None:
        self._connect.__exit__(*error)

    def read(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.inner.recv(timeout=60))
        return found

    def ask(self, kind: str, **fields: Any) -> None:
        self.inner.send(json.dumps({"type": kind, **fields}))

    def until(self, kind: str) -> list[dict[str, Any]]:
        found = [self.read()]
        while found[-1]["type"] != kind:
            found.append(self.read())
        return found


@pytest.mark.filterwarnings("ignore:connect.. must be used:DeprecationWarning")  # as OpenAI's client does not use it
def test_settled_words_come_as_deltas_and_join_to_the_transcript(server: HttpServer) -> None:
    """Two items by OpenAI's client, the second at another rate."""
    with OpenAI(base_url=f"{server.url}/v1", api_key=KEY) as made, made.realtime.connect(model="speech") as connection:
        assert connection.recv().type == "session.created"
        given: Any = session(transcription={"model": "speech", "language": "en"})
        for rate_hz in (16000, 24000):
            given["audio"]["input"]["format"]["rate"] = rate_hz
            connection.session.update(session=given)
            assert connection.recv().type == "session.updated"
            for _ in range(3):
                connection.input_audio_buffer.append(audio=pcm(0.6, rate_hz))
            connection.input_audio_buffer.commit()
            deltas, item = [], ""
            for event in connection:
                assert event.type != "error", event
                if event.type == f"{TRANSCRIPTION}.delta":
                    deltas.append(event.delta or "")
                elif event.type == "input_audio_buffer.committed":
                    item = event.item_id
                elif event.type == f"{TRANSCRIPTION}.completed":
                    break
            assert "".join(deltas).strip() == event.transcript != "" and event.item_id == item


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ("{", "not JSON"),
        ("[1]", "type is missing"),
        ({"type": "nothing"}, "type is nothing, expected one of session.update"),
        ({"type": "input_audio_buffer.append", "audio": "?"}, "audio is not base64"),
        ({"type": "input_audio_buffer.append", "audio": "AAAA"}, "half a sample"),
        ({"type": "input_audio_buffer.commit"}, "no sound has come"),
        ({"type": "session.update", "session": {"type": "realtime"}}, "session.type is not transcription"),
        ({"type": "session.update", "session": {"audio": 3}}, "audio is not an object"),
        ({"type": "session.update", "session": session(turn_detection={"type": "server_vad"})}, "turn_detection"),
        ({"type": "session.update", "session": session(format={"rate": 1})}, "rate is not a number from 8000"),
        ({"type": "session.update", "session": session(transcription={"model": "other"})}, "no model is named 'other'"),
        ({"type": "session.update", "session": session(transcription={"clip_timestamps": [1]})}, "clip_timestamps"),
    ],
)
def test_a_wrong_message_is_an_error_and_the_session_goes_on(server: HttpServer, message: Any, reason: str) -> None:
    with Socket(server) as socket:
        socket.inner.send(message if isinstance(message, str) else json.dumps({**message, "event_id": "mine"}))
        found = socket.read()
        assert found["type"] == "error" and reason in found["error"]["message"]
        assert found["error"]["event_id"] == (None if isinstance(message, str) else "mine")
        socket.ask("input_audio_buffer.clear")
        assert socket.read()["type"] == "input_audio_buffer.cleared"


def test_a_message_that_quotes_half_a_character_is_answered(server: HttpServer) -> None:
    """The answers quote it in escapes; as it is it has no UTF-8, which ended the session without a word."""
    with Socket(server) as socket:
        socket.ask("nothing", event_id="\ud800")
        assert socket.read()["error"]["event_id"] == "\ud800"
        socket.ask("session.update", session=session(transcription={"model": "speech", "prompt": "\ud800"}))
        assert socket.read()["session"]["audio"]["input"]["transcription"]["prompt"] == "\ud800"
        socket.ask("input_audio_buffer.append", audio=pcm(0.6))
        assert "prompt" in socket.until("error")[-1]["error"]["message"]


def test_sound_of_no_sample_begins_nothing(server: HttpServer) -> None:
    with Socket(server) as socket:
        socket.ask("input_audio_buffer.append", audio="")
        socket.ask("input_audio_buffer.commit")
        assert "no sound has come" in socket.read()["error"]["message"]
        socket.ask("input_audio_buffer.append", audio=pcm(0.6))
        socket.ask("input_audio_buffer.append", audio="")
        socket.ask("input_audio_buffer.commit")
        assert socket.until(f"{TRANSCRIPTION}.completed")


def test_a_model_or_a_setting_that_has_no_live_sound_is_an_error(server: HttpServer) -> None:
    with Socket(server) as socket:
        socket.ask("session.update", session=session(transcription={"model": "text"}))
        socket.ask("input_audio_buffer.append", audio=pcm(0.1))
        assert "not a Whisper model" in socket.until("error")[-1]["error"]["message"]
        socket.ask("session.update", session=session(transcription={"model": "speech", "num_beams": 0}))
        socket.ask("input_audio_buffer.append", audio=pcm(0.6))
        assert "num_beams" in socket.until("error")[-1]["error"]["message"]
        with pytest.raises(exceptions.ConnectionClosed):  # each further run would fail too
            socket.read()


def test_sound_and_messages_that_wait_are_bounded(server: HttpServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(realtime, "MOST_UNREAD_S", 0.5)
    with Socket(server) as socket:
        socket.ask("session.update", session=session())
        socket.ask("input_audio_buffer.append", audio=pcm(5))
        assert "sound no faster" in socket.until("error")[-1]["error"]["message"]
    with Socket(server) as socket, pytest.raises(exceptions.ConnectionClosed):
        socket.ask("input_audio_buffer.append", audio="A" * realtime.MOST_MESSAGE_BYTES)
        socket.read()
    monkeypatch.setattr(realtime, "SILENCE_S", 0.2)
    with Socket(server) as socket:
        assert "has sent nothing" in socket.read()["error"]["message"]
    monkeypatch.setattr(realtime, "MOST_SESSIONS", 0)
    with Socket(server, first="error") as socket:
        assert "0 sessions are open already" in socket.first["error"]["message"]


def test_a_failure_of_the_server_ends_the_session(server: HttpServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client hears of it at once, whatever the exception is."""
    for failure in (KeyError("a defect"), RuntimeError("a defect")):

        def fail(*given: Any, failure: Exception = failure) -> None:
            raise failure

        monkeypatch.setattr(realtime, "heard_segments", fail)
        with Socket(server) as socket:
            socket.ask("session.update", session=session())
            socket.ask("input_audio_buffer.append", audio=pcm(1.5))
            socket.ask("input_audio_buffer.commit")
            error = socket.until("error")[-1]["error"]
            assert error["type"] == "server_error" and "begin a new session" in error["message"]
            with pytest.raises(exceptions.ConnectionClosed):
                socket.read()


@pytest.mark.parametrize(
    ("how", "allowed"),
    [
        ({}, True),
        ({"additional_headers": {}}, False),
        ({"additional_headers": {"Authorization": "Bearer no"}}, False),
        ({"additional_headers": {}, "subprotocols": ["realtime", f"openai-insecure-api-key.{KEY}"]}, True),
        ({"origin": "https://example.org"}, True),
        ({"origin": "https://example.com"}, False),
    ],
)
def test_a_key_and_the_origin_of_a_page_are_asked_for(server: HttpServer, how: dict[str, Any], allowed: bool) -> None:
    """Any page that a browser opens could connect otherwise, also to a server on loopback without keys."""
    if allowed:
        with Socket(server, **how):
            pass
    else:
        with pytest.raises(exceptions.InvalidStatus, match="403"), Socket(server, **how):
            pass


def test_the_log_has_a_line_for_a_session(server: HttpServer) -> None:
    server.log.clear()
    with Socket(server):
        pass
    with Socket(server):  # after the first one has ended
        pass
    line = next(line for line in server.log if line["status"] != 403)  # a refusal by an earlier test may come late
    assert {key: line[key] for key in ("method", "path", "status")} == {
        "method": "WEBSOCKET",
        "path": "/v1/realtime",
        "status": 101,
    }
