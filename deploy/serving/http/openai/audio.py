"""Transcriptions and translations of sound.

Source: OpenAI's API reference, ``/v1/audio/transcriptions`` and ``/v1/audio/translations``.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from starlette.datastructures import FormData, UploadFile

from tightbeam.deploy.generation.spoken_language import TARGET_AT
from tightbeam.deploy.inputs.output import Output
from tightbeam.deploy.inputs.result import segment_records
from tightbeam.deploy.run_model.subtitles import subtitles
from tightbeam.deploy.serving.http.errors import HttpError, openai_error, refused, told_of
from tightbeam.deploy.serving.http.model import ServedModel, texts
from tightbeam.deploy.serving.http.streams import event_stream, while_connected
from tightbeam.deploy.serving.protocol.encoded import as_upload
from tightbeam.deploy.serving.protocol.messages import FoundSegment, Row, Token
from tightbeam.deploy.serving.protocol.tensors import AUDIO_FILE

__all__ = ["audio_routes"]

FORMATS = ("json", "text", "verbose_json", "srt", "vtt")
GRANULARITIES = frozenset({"segment", "word"})
OWN = frozenset({"file", "model", "response_format", "stream", "timestamp_granularities[]", "timestamp_granularities"})
"""Fields that are no settings."""
OF_THE_FILE = rf"the recording (?!ends)|{AUDIO_FILE}"
"""The beginning of errors about the file; that it ends before a clip is an error of the clip."""
REFUSED = {
    "chunking_strategy": "is not supported; leave it out: long recordings are transcribed whole",
    "include[]": "is not supported; leave it out",
    "known_speaker_names[]": "is not supported; leave it out",
    "known_speaker_references[]": "is not supported; leave it out",
}


def audio_routes(find: Callable[[str], ServedModel]) -> APIRouter:
    """Return the endpoints. ``find`` returns the model of a name, or raises HttpError."""
    routes = APIRouter()

    async def run(request: Request, task: str) -> Response:
        if not request.headers.get("content-type", "").lower().startswith("multipart/form-data"):
            raise HttpError(400, "the body is not a form; send multipart/form-data, with the recording as its file")
        async with request.form(max_files=1, max_fields=64, max_part_size=1 << 20) as form:
            model = find(_text(form, "model"))
            if not model.manifest.speech:
                raise HttpError(400, f"model {model.name} is not a speech model; pass one that is", param="model")
            kind = _text(form, "response_format") or "json"
            if kind not in FORMATS:
                raise refused("response_format", f"is {kind[:40]}, expected {', '.join(FORMATS[:-1])} or {FORMATS[-1]}")
            file = form.get("file")
            if not isinstance(file, UploadFile):
                raise refused("file", "is missing; send the recording as a file of the form")
            settings = _settings(form, model, kind, task)
            inputs = {AUDIO_FILE: texts([as_upload(await file.read())])}
            stream = _text(form, "stream").lower() in ("true", "1")
        with told_of("file", OF_THE_FILE):
            if stream:
                return await event_stream(request, _stream(model, inputs, settings), openai_error, name="type")
            (row,) = await while_connected(request, model.rows(inputs, settings))
        return _written(row, kind, task, words="return_token_timestamps" in settings)

    @routes.post("/v1/audio/transcriptions")
    async def transcribe(request: Request) -> Response:
        return await run(request, "transcribe")

    @routes.post("/v1/audio/translations")
    async def translate(request: Request) -> Response:
        return await run(request, "translate")

    return routes


def _text(form: FormData, name: str) -> str:
    value = form.get(name, "")
    if not isinstance(value, str):
        raise refused(name, "is a file, expected a text")
    return value


def _settings(form: FormData, model: ServedModel, kind: str, task: str) -> dict[str, Any]:
    """Return the settings of a request's form. Raises HttpError."""
    for name, problem in REFUSED.items():
        if form.get(name):
            raise refused(name, problem)
    settings: dict[str, Any] = {name: _text(form, name) for name in form if name not in OWN}
    for name in ("language", "prompt"):
        if settings.get(name) == "":
            del settings[name]
    wanted = {
        str(each) for name in ("timestamp_granularities[]", "timestamp_granularities") for each in form.getlist(name)
    }
    if wanted - GRANULARITIES:
        raise refused("timestamp_granularities[]", f"is {min(wanted - GRANULARITIES)[:40]}, expected segment or word")
    if wanted and kind != "verbose_json":
        raise refused("timestamp_granularities[]", "is for response_format=verbose_json; pass that too")
    multilingual = bool(model.manifest.generation.get("task_to_id"))
    if multilingual:
        settings.setdefault("task", task)
    elif task == "translate" and TARGET_AT in model.manifest.generation:
        settings.setdefault("target_language", "en")
    elif task == "translate":
        raise HttpError(
            400, f"model {model.name} does not translate speech; send the recording to /v1/audio/transcriptions"
        )
    finds_speech = model.manifest.takes_whole_recordings and settings.get("vad_filter", "").lower() == "true"
    if kind in ("srt", "vtt") and not (model.has_timestamps or finds_speech):
        fix = "pass vad_filter=true too, or json" if model.manifest.takes_whole_recordings else "pass json or text"
        raise refused("response_format", f"is {kind}, but model {model.name} predicts no times; {fix}")
    if kind in ("srt", "vtt", "verbose_json") and model.has_timestamps:
        settings.setdefault("return_timestamps", True)
    if "word" in wanted:
        settings.setdefault("return_token_timestamps", True)
    return settings


def _written(row: Row, kind: str, task: str, *, words: bool) -> Response:
    output = row.output
    text = output.texts[0] if output.texts else ""
    if kind == "text":
        return PlainTextResponse(f"{text}\n")
    if kind in ("srt", "vtt"):
        return PlainTextResponse(subtitles(output.segments or [], kind))
    if kind == "json":
        usage = {"type": "duration", "seconds": math.ceil(row.seconds)}
        return JSONResponse({"text": text, "usage": usage})
    return JSONResponse(_verbose(row, output, text, task, words=words))


def _verbose(row: Row, output: Output, text: str, task: str, *, words: bool) -> dict[str, Any]:
    segments = segment_records(output.segments or [])
    made: dict[str, Any] = {
        "task": task,
        "language": output.language,
        "duration": round(row.seconds, 2),
        "text": text,
        "segments": [
            {"id": place, **{name: each[name] for name in ("start", "end", "text", "tokens")}}
            for place, each in enumerate(segments)
        ],
        "usage": {"type": "duration", "seconds": math.ceil(row.seconds)},
        **_notes(row),
    }
    if words:
        made["words"] = [
            {"word": word["word"].strip(), **{name: word[name] for name in ("start", "end", "probability")}}
            for segment in segments
            for word in segment.get("words", [])
        ]
    return made


def _notes(row: Row) -> dict[str, list[str]]:
    """Return the field of what is to be known of a recording, such as that the file breaks off, if any."""
    return {"notes": list(row.notes)} if row.notes else {}


async def _stream(
    model: ServedModel, inputs: dict[str, Any], settings: dict[str, Any]
) -> AsyncIterator[dict[str, Any]]:
    """Yield the text of a recording as it is found, then the whole."""
    given = ""
    async for event in model.events(inputs, settings, stream=True):
        if isinstance(event, Token | FoundSegment):
            given += event.text
            if event.text:
                yield {"type": "transcript.text.delta", "delta": event.text}
        elif isinstance(event, Row):
            text = event.output.texts[0] if event.output.texts else ""
            if text.strip() != given.strip():  # nothing was streamed, such as of recordings of several parts
                yield {"type": "transcript.text.delta", "delta": text[len(given) :] if text.startswith(given) else text}
            usage = {"type": "duration", "seconds": math.ceil(event.seconds)}
            yield {"type": "transcript.text.done", "text": text, "usage": usage, **_notes(event)}
