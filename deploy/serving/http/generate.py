"""``/generate``: inputs, settings and outputs by the names that a model has behind Triton.

Source: Triton Inference Server's generate extension of the HTTP protocol.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
from fastapi import APIRouter, Request
from fastapi.responses import Response
from starlette.datastructures import UploadFile

from tightbeam.deploy.arrays import Array
from tightbeam.deploy.errors import first_line
from tightbeam.deploy.inputs.json_line import json_value
from tightbeam.deploy.serving.dispatch.tensors import tensors_of, tensors_of_event
from tightbeam.deploy.serving.http.errors import HttpError, plain_error, refused
from tightbeam.deploy.serving.http.model import ServedModel, padded, texts
from tightbeam.deploy.serving.http.streams import event_stream, json_text, while_connected
from tightbeam.deploy.serving.protocol.encoded import as_upload
from tightbeam.deploy.serving.protocol.messages import Row
from tightbeam.deploy.serving.protocol.tensors import AUDIO, AUDIO_FILE, IMAGE, INPUT_IDS, MESSAGES, TEXT

__all__ = ["body_fields", "generate_routes", "json_fields"]

FILES = (AUDIO_FILE, IMAGE)
STRINGS = (TEXT, MESSAGES, *FILES)
NUMBERS: Mapping[str, type] = {INPUT_IDS: np.int64, AUDIO: np.float32}
MOST_FIELDS = 64
"""Fields of a form."""
MOST_FORM_BYTES = 1 << 20
"""Bytes of a form without files."""
QUICK_FORM_BYTES = 1 << 14
"""Bytes of a form that is decoded between two events of all clients."""
HEX = np.full(256, 255, np.uint8)
"""The value of each byte that is a hexadecimal digit; 255 for the others."""
for _digits in (b"0123456789abcdef", b"0123456789ABCDEF"):
    HEX[list(_digits)] = range(16)


def generate_routes(find: Callable[[str], ServedModel]) -> APIRouter:
    """Return the endpoints. ``find`` returns the model of a name, or raises HttpError."""
    routes = APIRouter()

    @routes.post("/generate")
    async def generate(request: Request) -> Response:
        fields = await body_fields(request, STRINGS)
        name, stream = fields.pop("model", ""), fields.pop("stream", False)
        if not isinstance(name, str):
            raise refused("model", "is not a text; pass the name of a model")
        return await _run(request, find(name), fields, stream=stream in (True, "true"))

    @routes.post("/v2/models/{name:path}/generate")
    async def triton_generate(request: Request, name: str) -> Response:
        return await _run(request, find(name), await body_fields(request, STRINGS), stream=False)

    @routes.post("/v2/models/{name:path}/generate_stream")
    async def triton_generate_stream(request: Request, name: str) -> Response:
        return await _run(request, find(name), await body_fields(request, STRINGS), stream=True)

    return routes


async def body_fields(request: Request, files: Collection[str] = ()) -> dict[str, Any]:
    """Return the fields of a body: an object in JSON, or a form, of which ``files`` may be files, which become bytes.

    Raises HttpError.
    """
    kind = request.headers.get("content-type", "")
    if kind.startswith("multipart/form-data"):
        async with request.form(max_files=16, max_fields=MOST_FIELDS, max_part_size=1 << 20) as form:
            fields = _once(form.multi_items())
            for name, each in form.items():
                if isinstance(each, UploadFile):
                    if name not in files:
                        raise refused(name[:100], "is a file, expected a text")
                    data = await each.read()
                    fields[name] = as_upload(data) if name in FILES else data
            return fields
    body = await request.body()
    if kind.startswith("application/x-www-form-urlencoded") and not body.lstrip().startswith(b"{"):  # as curl -d says
        return _once(await asyncio.to_thread(_pairs, body) if len(body) > QUICK_FORM_BYTES else _pairs(body))
    return json_fields(body)


def _pairs(body: bytes) -> list[tuple[str, str]]:
    """Return the names and values of a form without files. Raises HttpError."""
    if len(body) > MOST_FORM_BYTES:
        raise HttpError(413, f"the form has more than {MOST_FORM_BYTES:,} bytes; send JSON")
    parts = body.split(b"&", MOST_FIELDS)
    if len(parts) > MOST_FIELDS:
        raise HttpError(400, f"the form has more than {MOST_FIELDS} fields; send fewer, or JSON")
    fields = (part.partition(b"=") for part in parts if part)
    return [(_unquoted(name), _unquoted(value)) for name, _, value in fields]


def _unquoted(data: bytes) -> str:
    """Decode a part of a form. A `%` without two digits stays."""
    given = np.frombuffer(data.replace(b"+", b" "), np.uint8)
    digits = HEX[given]
    first, second = digits[1:-1], digits[2:]
    signs = (given[:-2] == ord("%")) & (first < 16) & (second < 16)
    found, kept = given.copy(), np.ones(len(given), bool)
    found[:-2][signs] = (first << 4 | second)[signs]
    kept[1:-1] &= ~signs
    kept[2:] &= ~signs
    return found[kept].tobytes().decode("utf-8", "replace")


def _once(given: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Return the fields of a form. Raises HttpError for one that stands twice."""
    fields: dict[str, Any] = {}
    for name, value in given:
        if name in fields:
            raise refused(name[:100], "stands twice, expected once; send several texts as a list in JSON")
        fields[name] = value
    return fields


def json_fields(body: bytes) -> dict[str, Any]:
    """Return the fields of an object in JSON. Raises HttpError."""
    try:
        fields = json_value(body.decode())
    except (ValueError, RecursionError) as error:
        raise HttpError(400, f"the body is not JSON ({first_line(error)}); send an object") from None
    if not isinstance(fields, dict):
        raise HttpError(400, "the body is not a JSON object; send one")
    return fields


async def _run(request: Request, model: ServedModel, fields: dict[str, Any], *, stream: bool) -> Response:
    inputs, settings = _parsed(model, fields)
    head = {"model_name": model.name, "model_version": "1"}
    if stream:
        return await event_stream(request, _stream(model, inputs, settings, head), plain_error)
    rows = await while_connected(request, model.rows(inputs, settings))
    tensors = tensors_of([row.output for row in rows], rows[0].fill)
    return Response(await json_text({**head, **tensors, **_notes(rows)}), media_type="application/json")


async def _stream(
    model: ServedModel, inputs: dict[str, Array], settings: dict[str, Any], head: dict[str, str]
) -> AsyncIterator[dict[str, Any]]:
    async for event in model.events(inputs, settings, stream=True):
        yield {**head, **tensors_of_event(event), **_notes([event] if isinstance(event, Row) else [])}


def _notes(rows: Sequence[Row]) -> dict[str, list[str]]:
    """Return NOTES, what is to be known of recordings, such as that a file breaks off, if there is something."""
    several = len(rows) > 1
    notes = [f"row {row.row}: {note}" if several else note for row in rows for note in row.notes]
    return {"NOTES": notes} if notes else {}


def _parsed(model: ServedModel, fields: dict[str, Any]) -> tuple[dict[str, Array], dict[str, Any]]:
    """Return inputs and settings of a body: settings stand beside the inputs, or in ``parameters``."""
    given = dict(fields)
    parameters = given.pop("parameters", {})
    if not isinstance(parameters, dict):
        raise refused("parameters", "is not an object; pass settings of model.generate")
    inputs: dict[str, Array] = {}
    for name in STRINGS:
        if name in given:
            inputs[name] = texts(_strings(name, given.pop(name)))
    for name, kind in NUMBERS.items():
        if name in given:
            rows = _rows(name, given.pop(name))
            model.check_rows(len(rows))
            inputs |= padded(name, rows, kind)
    if not inputs:
        raise HttpError(400, f"the body has none of {', '.join((*STRINGS, *NUMBERS))}; send one of them as the source")
    return inputs, parameters | given


def _strings(name: str, value: Any) -> list[str | bytes]:
    """Return the texts of an input: one, or several. Messages may be JSON, or a text of it."""
    if name == MESSAGES and isinstance(value, list) and value and all(isinstance(each, dict) for each in value):
        return [json.dumps(value)]
    given = value if isinstance(value, list) else [value]
    if not given or not all(isinstance(each, str | bytes) for each in given):
        raise refused(name, "is not a text; send one, or a list of texts")
    return given


def _rows(name: str, value: Any) -> list[list[float]]:
    rows = value if isinstance(value, list) and value and all(isinstance(each, list) for each in value) else [value]
    for row in rows:
        if not isinstance(row, list) or not row or not all(type(each) in (int, float) for each in row):
            raise refused(name, "is not a list of numbers; send one, or a list of such lists")
        if name == INPUT_IDS and not all(type(each) is int and abs(each) < 2**63 for each in row):
            raise refused(name, "holds a number that is not a token id; send integers")
        if name == AUDIO and any(abs(each) >= 2**63 for each in row):
            raise refused(name, "holds a number that is not a sample; send numbers from -1 to 1")
    return rows
