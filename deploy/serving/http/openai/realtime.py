"""Live transcription over a WebSocket.

Source: OpenAI's API reference, Realtime, sessions of the type "transcription".

    client -> server     session.update, input_audio_buffer.append, .commit, .clear
    server -> client     session.created, session.updated, input_audio_buffer.committed, .cleared, error,
                         conversation.item.input_audio_transcription.delta and .completed
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
from fastapi import APIRouter
from starlette.websockets import WebSocket, WebSocketDisconnect

from tightbeam.deploy.arrays import Array
from tightbeam.deploy.errors import first_line
from tightbeam.deploy.inputs.files.sound_file import Resampler
from tightbeam.deploy.inputs.json_line import json_value
from tightbeam.deploy.inputs.live import LiveRun, LiveText, LiveUpdate, heard_segments, live_settings
from tightbeam.deploy.serving.http.errors import HttpError, openai_error, refused
from tightbeam.deploy.serving.http.model import ServedModel, padded
from tightbeam.deploy.serving.protocol.tensors import AUDIO

__all__ = ["MOST_MESSAGE_BYTES", "realtime_routes"]

MOST_MESSAGE_BYTES = 1 << 20
"""Bytes of a message: 16 s of sound at 24 kHz."""
MOST_UNREAD_S = 30.0
"""Seconds of sound that may wait while the model runs."""
MOST_SESSIONS = 64
"""The most sessions of all models."""
SILENCE_S = 300.0
"""Seconds that the next message may take."""
RATES_HZ = range(8_000, 48_001)
DEFAULT_HZ = 24_000
"""Samples a second of OpenAI's clients."""
TRANSCRIPTION = "conversation.item.input_audio_transcription"
PROTOCOL = "realtime"
GONE, POLICY, FAILED, TRY_LATER = 1006, 1008, 1011, 1013
"""Codes that a WebSocket is closed with."""
log = logging.getLogger(__name__)


def realtime_routes(find: Callable[[str], ServedModel]) -> APIRouter:
    """Return the endpoint. ``find`` returns the model of a name, or raises HttpError."""
    routes = APIRouter()
    sessions: set[_Session] = set()

    @routes.websocket("/v1/realtime")
    async def realtime(socket: WebSocket) -> None:
        await socket.accept(PROTOCOL if PROTOCOL in socket.scope["subprotocols"] else None)
        session = _Session(socket, find)
        if len(sessions) >= MOST_SESSIONS:
            await session.close(TRY_LATER, f"{MOST_SESSIONS} sessions are open already; connect again later")
            return
        sessions.add(session)
        try:
            await session.run()
        finally:
            sessions.discard(session)

    return routes


class _Session:
    """A client's session: settings, sound, and the text of it."""

    def __init__(self, socket: WebSocket, find: Callable[[str], ServedModel]) -> None:
        self._socket, self._find = socket, find
        self._name = socket.query_params.get("model", "")
        self._id, self._item = _new_id("sess"), _new_id("item")
        self._previous: str | None = None
        self._begin_s = 0.0
        self._settings: dict[str, Any] = {}
        self._rate_hz = DEFAULT_HZ
        self._model: ServedModel | None = None
        self._live: LiveText | None = None  # of the present item, once it has sound
        self._resampler: Resampler | None = None
        self._text = ""  # settled, of the present item
        self._wake, self._ended, self._committed = asyncio.Event(), False, asyncio.Event()
        self._sending = asyncio.Lock()
        self._open = True

    async def run(self) -> None:
        """Serve the client until it leaves."""
        end_s = time.monotonic() + 24 * 3600
        running = asyncio.ensure_future(self._run_model())
        try:
            await self._send("session.created", session=self._shown())
            while self._open:
                if self._model is not None:
                    end_s = min(end_s, self._begin_s + self._model.deadline_s)
                left_s = min(SILENCE_S, end_s - time.monotonic())
                try:
                    text = await asyncio.wait_for(self._socket.receive_text(), max(0.01, left_s))
                except TimeoutError:
                    await self.close(POLICY, "the session has sent nothing for long, or is at its deadline; begin anew")
                    return
                await self._take(text)
        except WebSocketDisconnect:
            self._open = False
        except (KeyError, RuntimeError):  # it sent bytes, or the session was closed beside
            await self.close(POLICY, "a message is not a text; send JSON")
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    async def close(self, code: int, reason: str, status: int = 400) -> None:
        """Tell the client an error, and close the session."""
        if not self._open:
            return
        self._open = False
        with suppress(WebSocketDisconnect, RuntimeError, OSError):
            await self._send_error(HttpError(status, reason))
            await self._socket.close(code, reason[:100])

    async def _take(self, text: str) -> None:
        """Follow a message; one that is wrong is answered by an error, and changes nothing."""
        given: Any = None
        try:
            try:
                given = json_value(text)
            except (ValueError, RecursionError) as error:
                raise HttpError(400, f"the message is not JSON ({first_line(error)}); send an object") from None
            if not isinstance(given, dict) or not isinstance(given.get("type"), str):
                raise refused("type", "is missing; send an object with the type of an event")
            kinds = {
                "session.update": self._update,
                "input_audio_buffer.append": self._append,
                "input_audio_buffer.commit": self._commit,
                "input_audio_buffer.clear": self._clear,
            }
            if given["type"] not in kinds:
                raise refused("type", f"is {given['type'][:60]}, expected one of {', '.join(kinds)}")
            await kinds[given["type"]](given)
        except HttpError as error:
            asked = given.get("event_id") if isinstance(given, dict) else None
            await self._send_error(error, asked if isinstance(asked, str) else None)

    async def _update(self, event: dict[str, Any]) -> None:
        if self._live is not None:
            raise refused("session", "cannot change within an item; commit or clear its sound before")
        session = _object(event, "session")
        if session.get("type", "transcription") != "transcription":
            raise refused("session.type", "is not transcription, which alone is served; pass that")
        given = _object(_object(session, "audio"), "input")
        for name in ("turn_detection", "noise_reduction"):
            if given.get(name) is not None:
                raise refused(f"session.audio.input.{name}", "is not supported; pass null, and commit the sound")
        if session.get("include"):
            raise refused("session.include", "is not supported; leave it out")
        how, rate_hz = _object(given, "format"), self._rate_hz
        if how.get("type", "audio/pcm") != "audio/pcm":
            raise refused("session.audio.input.format.type", "is not audio/pcm, which alone is read; pass that")
        if "rate" in how:
            rate_hz = how["rate"]
            if type(rate_hz) is not int or rate_hz not in RATES_HZ:
                raise refused(
                    "session.audio.input.format.rate", f"is not a number from {RATES_HZ[0]} to {RATES_HZ[-1]}; pass one"
                )
        settings = dict(_object(given, "transcription"))
        name = settings.pop("model", self._name)
        if not isinstance(name, str):
            raise refused("session.audio.input.transcription.model", "is not a text; pass the name of a model")
        self._find(name)
        for empty in ("language", "prompt"):
            if settings.get(empty) == "":
                del settings[empty]
        for refused_setting in ("condition_on_prev_tokens", "clip_timestamps", "return_timestamps"):
            if settings.get(refused_setting) is not None:
                raise refused(refused_setting, "is not for live sound; leave it out")
        self._name, self._settings, self._rate_hz = name, settings, rate_hz
        await self._send("session.updated", session=self._shown())

    async def _append(self, event: dict[str, Any]) -> None:
        given = event.get("audio")
        try:
            if not isinstance(given, str):
                raise ValueError
            data = base64.b64decode(given, validate=True)
        except ValueError:
            raise refused("audio", "is not base64; send 16-bit samples of one channel in base64") from None
        if len(data) % 2:
            raise refused("audio", "is half a sample at its end; send 16-bit samples")
        if not data:
            return
        live = self._live or self._begin()
        samples: Array = np.frombuffer(data, "<i2").astype(np.float32) / np.float32(32768)
        for block in [samples] if self._resampler is None else self._resampler.run(samples):
            live.add(block)
        if live.unread_s > MOST_UNREAD_S:
            problem = f"{MOST_UNREAD_S:g} s of sound wait for the model already; send sound no faster than it comes"
            await self.close(POLICY, problem)
        self._wake.set()

    async def _commit(self, event: dict[str, Any]) -> None:
        if self._live is None:
            raise refused("type", "is a commit, but no sound has come since the last one; append some")
        if self._resampler is not None:
            for block in self._resampler.end():
                self._live.add(block)
        self._live.end()
        await self._send("input_audio_buffer.committed", item_id=self._item, previous_item_id=self._previous)
        self._ended = True
        self._committed.clear()
        self._wake.set()
        await self._committed.wait()

    async def _clear(self, event: dict[str, Any]) -> None:
        self._next_item()
        await self._send("input_audio_buffer.cleared")

    def _begin(self) -> LiveText:
        """Begin an item. Raises HttpError if the model has no live sound."""
        model = self._find(self._name)
        if not model.manifest.speech or not model.has_timestamps or model.log_mel is None or model.codec is None:
            raise HttpError(
                400, f"model {model.name} is not a Whisper model with timestamps; pass one that is", param="model"
            )
        rate_hz = model.log_mel.sampling_rate_hz
        if self._rate_hz != rate_hz:
            self._resampler = Resampler(self._rate_hz, rate_hz)
        if self._model is None:
            self._begin_s = time.monotonic()
        self._model, self._live = model, LiveText(rate_hz, model.log_mel.chunk_s)
        return self._live

    def _next_item(self) -> None:
        self._live, self._resampler, self._text, self._ended = None, None, "", False
        self._previous, self._item = self._item, _new_id("item")

    async def _run_model(self) -> None:
        """Run the model whenever there is enough sound."""
        took_s = 0.0
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                while (live := self._live) is not None and (run := live.next_run(took_s)) is not None:
                    begin_s = time.monotonic()
                    heard = await self._heard(run)
                    took_s = time.monotonic() - begin_s
                    update = live.take(*heard)
                    if live is self._live:  # else it was cleared meanwhile
                        await self._tell(update)
                if self._ended and self._live is not None:
                    await self._tell(self._live.settle_rest())
                    await self._send(f"{TRANSCRIPTION}.completed", **self._of_item(), transcript=self._text.strip())
                    self._next_item()
                    self._committed.set()
        except HttpError as error:
            await self.close(POLICY, error.message)
        except WebSocketDisconnect:
            pass
        except Exception:
            log.exception("live transcription failed")
            await self.close(FAILED, "the server failed at this sound, as its log says; begin a new session", 500)
        finally:
            self._open = False
            self._committed.set()

    async def _heard(self, run: LiveRun) -> tuple[Any, str | None]:
        """Run the model. Raises HttpError."""
        model = self._model
        assert model is not None
        settings = dict(self._settings)
        if model.manifest.generation.get("task_to_id"):
            settings.setdefault("task", "transcribe")
        settings = live_settings(settings, run, words=model.has_times_of_words)
        inputs = padded(AUDIO, [run.samples], np.float32)  # type: ignore[list-item]  # an array is a row
        (row,) = await model.rows(inputs, settings)
        return heard_segments(row.output), row.output.language

    async def _tell(self, update: LiveUpdate) -> None:
        """Send what is settled, and what is pending."""
        delta = update.text if self._text else update.text.lstrip()
        self._text += delta
        await self._send(f"{TRANSCRIPTION}.delta", **self._of_item(), delta=delta, pending=update.pending)

    def _of_item(self) -> dict[str, Any]:
        return {"item_id": self._item, "content_index": 0}

    def _shown(self) -> dict[str, Any]:
        sound = {
            "format": {"type": "audio/pcm", "rate": self._rate_hz},
            "transcription": {"model": self._name, **self._settings},
            "turn_detection": None,
            "noise_reduction": None,
        }
        return {"id": self._id, "object": "realtime.session", "type": "transcription", "audio": {"input": sound}}

    async def _send_error(self, error: HttpError, event_id: str | None = None) -> None:
        await self._send("error", error={**openai_error(error)["error"], "event_id": event_id})

    async def _send(self, kind: str, **fields: Any) -> None:
        async with self._sending:
            event = {"type": kind, "event_id": _new_id("event"), **fields}
            try:
                await self._socket.send_text(json.dumps(event))  # escaped, since it may quote half a character
            except (RuntimeError, OSError):  # the client has left
                raise WebSocketDisconnect(GONE) from None


def _new_id(kind: str) -> str:
    return f"{kind}_{secrets.token_hex(12)}"


def _object(given: dict[str, Any], name: str) -> dict[str, Any]:
    """Return an object in an object, which is empty if it is missing. Raises HttpError."""
    found = given.get(name)
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise refused(name, "is not an object; send one")
    return found
