"""Fuzzing of bodies over HTTP: forms and JSON of every endpoint, as far as the model's worker."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any, NoReturn, cast

import pytest
from hypothesis import strategies as st

from support.fuzzing import bytes_like, corpus, fuzz, json_like
from tightbeam.deploy.errors import InputError
from tightbeam.deploy.serving.http.app import PrometheusMetrics, make_app
from tightbeam.deploy.serving.http.errors import HttpError
from tightbeam.deploy.serving.http.guards import Limits
from tightbeam.deploy.serving.http.model import ServedModel

pytestmark = [pytest.mark.slow, pytest.mark.fuzz]
PATHS = (
    *("/generate", "/v2/models/m/generate", "/v2/models/m/generate_stream"),
    *("/v1/audio/transcriptions", "/v1/audio/translations", "/v1/completions", "/v1/chat/completions"),
    *("/translate", "/detect"),
)
BOUND = "limit"
FIELDS = (("model", "m"), ("response_format", "vtt"), ("timestamp_granularities[]", "word"), ("TEXT", "a"))
FORM = "".join(
    f'--{BOUND}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n' for name, value in FIELDS
)
FILE = (
    f'--{BOUND}\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\nContent-Type: audio/wav\r\n\r\n'
    f"RIFF\r\n--{BOUND}--\r\n"
)
BODIES: tuple[dict[str, Any], ...] = (
    {"model": "m", "TEXT": ["a", "b"], "parameters": {"num_beams": 2}, "stream": True},
    {"INPUT_IDS": [[5, 6], [7]], "num_beams": 2},
    {"AUDIO": [[0.1, 0.2]], "temperature": 0},
    {"model": "m", "prompt": ["a", [5, 6]], "max_tokens": 3, "stop": ["x"], "n": 1, "logprobs": 2, "stream": False},
    {
        "model": "m",
        "messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}],
        "stream_options": {"include_usage": True},
        "response_format": {"type": "text"},
        "logit_bias": {"5": 1},
    },
    {"q": ["a b.", "c"], "source": "en", "target": "de", "format": "html", "glossary": [["a", "b|c"]]},
    {"q": "a", "source": "auto", "target": "de", "alternatives": 2, "api_key": "x"},
)


class OnlyModel:
    """A speech model whose worker refuses every request that comes as far."""

    name, reads_text, has_timestamps, has_times_of_words, ready, codec = "m", True, True, True, True, None
    pair, deadline_s, gives_attention = ("en", "de"), 60.0, True
    max_batch_size = 16
    manifest = SimpleNamespace(
        speech=True,
        reads_text=True,
        takes_whole_recordings=False,
        family="whisper",
        tokenizer=SimpleNamespace(has_chat_template=True),
        generation={"task_to_id": {"transcribe": 1}},
        sizes=SimpleNamespace(decoder_only=True, vocabulary=300, max_source=64, max_target=64),
    )

    def check_rows(self, rows: int) -> None:
        if rows > self.max_batch_size:
            raise HttpError(400, "too many rows; send fewer")

    async def events(self, *inputs: object, **more: object) -> Any:
        self._refuse()
        yield None

    async def rows(self, *inputs: object, **more: object) -> NoReturn:
        self._refuse()

    outputs = rows

    def _refuse(self) -> NoReturn:
        raise HttpError(400, "the worker refuses it; send another")


async def _answer(app: Any, path: str, kind: str, body: bytes) -> tuple[int, bytes]:
    sent: list[dict[str, Any]] = []
    parts = [{"type": "http.request", "body": body, "more_body": False}, {"type": "http.disconnect"}]

    async def receive() -> dict[str, Any]:
        return parts.pop(0) if len(parts) > 1 else await asyncio.sleep(9, parts[0])

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    headers = [(b"content-type", kind.encode()), (b"content-length", str(len(body)).encode())]
    scope = {"type": "http", "method": "POST", "path": path, "raw_path": path.encode(), "query_string": b""}
    scope |= {"headers": headers, "http_version": "1.1", "scheme": "http", "server": ("a", 1), "client": ("b", 2)}
    await app(scope | {"root_path": ""}, receive, send)
    whole = b"".join(message.get("body", b"") for message in sent)
    return next(int(message["status"]) for message in sent if "status" in message), whole


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # Starlette leaves the file of a part without an end to Python
def test_bodies() -> None:
    model = cast(ServedModel, OnlyModel())
    app = make_app({"m": model}, PrometheusMetrics(), limits=Limits())
    forms = [(FORM + FILE).encode(), FILE.encode(), b"model=m&TEXT=a+b&num_beams=2", b"TEXT=%ff&TEXT=x"]
    kinds = (f"multipart/form-data; boundary={BOUND}", "application/x-www-form-urlencoded", "application/json", "")
    texts = json_like(list(BODIES)).map(lambda found: json.dumps(found).encode())
    valid = [json.dumps(body).encode() for body in BODIES]
    bodies = st.one_of(bytes_like(forms), bytes_like(forms), texts, texts, bytes_like([*valid, *forms]))

    def run(example: tuple[str, str, bytes]) -> None:
        status, whole = asyncio.run(_answer(app, *example))
        assert status < 500, whole[:500]
        if status >= 400:
            json.loads(whole)  # errors are JSON, whatever they quote
            raise InputError("refused")

    first = [(path, kind, body) for path in PATHS for kind in kinds for body in (*forms, *valid, *corpus("bodies"))]
    fuzz("bodies", st.tuples(st.sampled_from(PATHS), st.sampled_from(kinds), bodies), run, first=first)
