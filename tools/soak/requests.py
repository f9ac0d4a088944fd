"""The requests of the soak: good ones with the tokens that a runner finds, and hostile ones."""

from __future__ import annotations

import base64
import functools
import io
import json
import math
import random
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from tightbeam.deploy import Runner
from tightbeam.deploy.generation.fields import FIELDS
from tools.soak.models import DEMO, EXPORTED, LIVE, SOURCES, TROCR, WHISPER

__all__ = ["UNREAD", "Ask", "each_hostile_request", "good_requests", "hostile_request", "long_stream"]

OUTPUTS = ("OUTPUT_IDS", "OUTPUT_LENGTHS")
UNREAD = "unread"
"""The kind of a stream that its client does not read."""
TEXT_SETTINGS: tuple[dict[str, Any], ...] = (
    {"num_beams": 1},
    {"num_beams": 4},
    {"num_beams": 3, "num_return_sequences": 2, "no_repeat_ngram_size": 2},
    {"num_beams": 1, "do_sample": True, "temperature": 0.9, "top_p": 0.95, "seed": 7},
    {"num_beams": 2, "repetition_penalty": 1.3, "max_new_tokens": 12, "bad_words_ids": [[9], [40, 70]]},
)
SPEECH_SETTINGS: tuple[dict[str, Any], ...] = ({}, {"return_timestamps": True}, {"num_beams": 3, "language": "de"})
IMAGE_SETTINGS: tuple[dict[str, Any], ...] = ({}, {"num_beams": 1, "max_new_tokens": 9}, {"num_beams": 4})


@dataclass(frozen=True)
class Ask:
    """A request over HTTP.

    Attributes
    ----------
    kind : str
        What it is, for the report.
    model, verb : str
        The model, and ``infer`` or ``generate_stream``.
    body : bytes
        The JSON.
    expected : list or None
        For a good request the token ids of each row's sequences.
    """

    kind: str
    model: str
    body: bytes
    verb: str = "infer"
    expected: list[list[list[int]]] | None = None


def _parameter(value: Any) -> Any:
    """Return a value as Triton takes it: a list, a fraction or a large integer as JSON in a text."""
    plain = isinstance(value, str | bool) or (isinstance(value, int) and abs(value) < 1 << 62)
    return value if plain else json.dumps(value)


def _ask(
    kind: str, model: str, rows: Sequence[str], expected: list[list[list[int]]] | None = None, **settings: Any
) -> Ask:
    source = {"name": SOURCES[model], "datatype": "BYTES", "shape": [len(rows), 1], "data": list(rows)}
    parameters = {name: _parameter(value) for name, value in settings.items()}
    body: dict[str, Any] = {"inputs": [source], "parameters": parameters, "outputs": [{"name": n} for n in OUTPUTS]}
    verb = "infer"
    if model == LIVE:
        verb, body = "generate_stream", {SOURCES[model]: rows[0] if len(rows) == 1 else list(rows), **parameters}
    return Ask(kind, model, json.dumps(body).encode(), verb, expected)


def good_requests(bundles: dict[str, Path]) -> list[Ask]:
    """Good requests of every model, of one row and of several, with what a runner alone finds for them."""
    texts = (EXPORTED / "examples.txt").read_text().splitlines()
    found: list[Ask] = []
    runner = Runner.load(bundles[DEMO], threads=1)
    for settings in TEXT_SETTINGS:
        ids = [output.sequences for output in runner.generate_outputs(texts, **settings)]
        found += [_ask("text", DEMO, texts[n : n + 1], ids[n : n + 1], **settings) for n in range(len(texts))]
        if "seed" not in settings:  # a row draws by its place in the request
            found.append(_ask("text", DEMO, texts[:5], ids[:5], **settings))
        found += [_ask("stream", LIVE, texts[n : n + 1], ids[n : n + 1], **settings) for n in range(6)]
    runner = Runner.load(bundles[WHISPER], threads=1)
    for settings in SPEECH_SETTINGS:
        recordings = [_recording(seed) for seed in range(6)]
        for wave in recordings:
            (output,) = runner.transcribe_outputs([wave], **settings)
            found.append(_ask("speech", WHISPER, [_base64(wave)], [output.sequences], **settings))
    runner = Runner.load(bundles[TROCR], threads=1)
    for settings in IMAGE_SETTINGS:
        for seed in range(6):
            image = _image(seed)
            (output,) = runner.read_images([image], **settings)
            found.append(_ask("image", TROCR, [_base64(image)], [output.sequences], **settings))
    return found


def long_stream(rng: random.Random) -> Ask:
    """A streaming request with a large answer, for clients that do not read."""
    texts = (EXPORTED / "examples.txt").read_text().splitlines()
    return _ask(UNREAD, LIVE, rng.choices(texts, k=16), num_beams=1, min_new_tokens=40, return_alternatives=200)


def hostile_request(rng: random.Random) -> Ask:
    """A hostile request: one of `_HOSTILE`, or good input with random settings."""
    if rng.random() < 0.4:
        names = rng.sample(FIELDS, rng.choice((1, 1, 2, 3)))
        settings = {field.name: rng.choice(VALUES) for field in names}
        return _hostile("random settings", rng.choice((DEMO, LIVE, WHISPER, TROCR)), rng, **settings)
    name = rng.choice(sorted(_HOSTILE))
    return replace(_HOSTILE[name](rng), kind=name)


def each_hostile_request(rng: random.Random, times: int) -> Iterator[Ask]:
    """Yield hostile requests of each kind, as many as ``times`` in a row, and the streams that nobody reads last."""
    for name in sorted(_HOSTILE):
        for _ in range(times):
            yield replace(_HOSTILE[name](rng), kind=name)
    for _ in range(times):
        yield long_stream(rng)


def _nested(depth: int) -> Any:
    return json.loads("[" * depth + "]" * depth)


VALUES: tuple[Any, ...] = (
    *(None, True, False, -1, 0, 1, 2, 3, 50, 10**6, 10**9, 2**31 - 1, 2**31, 2**63 - 1, 2**64 - 1, 10**30),
    *(0.5, -0.5, 1.0, 1e-300, 1e300, math.nan, math.inf, -math.inf, "", "NaN", "en", "\x00", "a" * 1000),
    *(
        [],
        [[]],
        [1],
        [0, 10**9],
        [[1], [2, 3]],
        [[[1, 2], [3]]],
        {},
        {"a": 1},
        [[5, -1.5], [[1, 2], 3.0]],
        _nested(500),
    ),
    *([math.nan] * 3, [0.0, 0.2, 0.4], list(range(1400)), [[token] for token in range(1400)]),
)


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _wav(samples: Any, rate_hz: int = 16_000, *, declared: int | None = None) -> bytes:
    """Return a WAV file of 16 bits; ``declared``: the bytes that its header claims."""
    data: bytes = (np.clip(samples, -1, 1) * 32767).astype("<i2").tobytes()
    size = len(data) if declared is None else declared
    head = struct.pack("<4sI4s4sIHHIIHH4sI", b"RIFF", (36 + size) & 0xFFFFFFFF, b"WAVE", b"fmt ", 16, 1, 1, rate_hz,
                       (2 * rate_hz) & 0xFFFFFFFF, 2, 16, b"data", size)  # fmt: skip
    return head + data


@functools.cache
def _recording(seed: int) -> bytes:
    generator = np.random.default_rng(seed)
    return _wav(0.5 * np.sin(np.cumsum(generator.uniform(0.05, 0.4, 16_000 * (1 + 2 * seed)))))


def _image(seed: int, size: tuple[int, int] = (40, 60)) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 255, (*size, 3)).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


@functools.cache
def _palette(mode: str, columns: int, rows: int) -> str:
    file = io.BytesIO()
    Image.new(mode, (columns, rows)).save(file, "PNG")
    return _base64(file.getvalue())


@functools.cache
def _tiff(pages: int) -> str:
    """Return a TIFF whose pages share one pixel; the chain of its directories ends in a circle."""
    size = 2 + 12 * 8 + 4
    found = [b"II*\0" + struct.pack("<I", 9) + b"\x80"]
    for page in range(pages):
        fields = ((256, 1), (257, 1), (258, 8), (259, 1), (262, 1), (273, 8), (278, 1), (279, 1))
        following = 9 + size * (page + 1 if page + 1 < pages else 0)
        entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in fields)
        found.append(struct.pack("<H", len(fields)) + entries + struct.pack("<I", following))
    return _base64(b"".join(found))


def _hostile(kind: str, model: str, rng: random.Random, rows: Sequence[str] = (), **settings: Any) -> Ask:
    """Return a request of good input, unless ``rows`` are given, with hostile settings."""
    if not rows:
        rows = [
            {WHISPER: lambda: _base64(_recording(rng.randrange(4))), TROCR: lambda: _base64(_image(rng.randrange(9)))}
            .get(model, lambda: "The harbour bridge in Stonedale was closed on Monday.")()
        ]  # fmt: skip
    return _ask(kind, model, rows, **settings)


def _words(rng: random.Random, count: int, length: int) -> list[list[int]]:
    return [[rng.randrange(3, 1400) for _ in range(length)] for _ in range(count)]


def _text(rng: random.Random, **settings: Any) -> Ask:
    return _hostile("", rng.choice((DEMO, DEMO, LIVE)), rng, **settings)


def _raw(model: str, body: bytes, verb: str = "infer") -> Ask:
    return Ask("", model, body, verb)


def _inputs(model: str, name: str, datatype: str, shape: Sequence[int], data: Any) -> Ask:
    source = {"name": name, "datatype": datatype, "shape": shape, "data": data}
    return _raw(model, json.dumps({"inputs": [source]}).encode())


def _noise(rng: random.Random, count: int) -> str:
    return _base64(rng.randbytes(count))


def _speech(rng: random.Random, file: bytes | str, rows: int = 1, **settings: Any) -> Ask:
    text = file if isinstance(file, str) else _base64(file)
    return _hostile("", WHISPER, rng, [text] * rows, **settings)


def _picture(rng: random.Random, file: bytes | str, rows: int = 1, **settings: Any) -> Ask:
    text = file if isinstance(file, str) else _base64(file)
    return _hostile("", TROCR, rng, [text] * rows, **settings)


def _cut(rng: random.Random, data: bytes) -> bytes:
    return data[: rng.randrange(1, len(data))]


ZEROS = np.zeros(16_000, np.float32)
_HOSTILE: dict[str, Callable[[random.Random], Ask]] = {
    "encoder_no_repeat_ngram_size": lambda r: _text(
        r, encoder_no_repeat_ngram_size=r.choice((10**9, 3 * 10**6, 2**31 - 1))
    ),
    "no_repeat_ngram_size": lambda r: _text(r, no_repeat_ngram_size=r.choice((10**9, 2**31 - 1))),
    "force_words_ids": lambda r: _text(r, force_words_ids=_words(r, r.choice((900, 4000)), 2), num_beams=4),
    "force_words_ids alternatives": lambda r: _text(r, force_words_ids=[_words(r, 3000, 2)], num_beams=4),
    "bad_words_ids": lambda r: _text(r, bad_words_ids=_words(r, r.choice((100, 5000)), r.choice((1, 2, 3)))),
    "sequence_bias": lambda r: _text(r, sequence_bias=[[word, -1.5] for word in _words(r, 3000, 2)]),
    "stop_strings": lambda r: _text(r, stop_strings=[chr(97 + n % 26) * 256 for n in range(r.choice((64, 200)))]),
    "top_k": lambda r: _text(r, do_sample=True, num_beams=1, top_k=r.choice((2**70, 2**31 - 1, -5))),
    "beams": lambda r: _text(r, num_beams=r.choice((64, 65, 65_536, 10**9)), max_new_tokens=r.choice((5, 40))),
    "return_sequences": lambda r: _text(r, num_beams=64, num_return_sequences=64, return_alternatives=1024),
    "numbers": lambda r: _text(r, length_penalty=r.choice((math.nan, math.inf, 1e300, -1e300)), num_beams=3),
    "long text": lambda r: _hostile(
        "", DEMO, r, ["a long text " * r.choice((300, 5400, 90_000))] * r.choice((1, 16)), truncate=True
    ),
    "huge text": lambda r: _hostile("", DEMO, r, ["a" * (1 << 24)]),
    "odd text": lambda r: _hostile(
        "", r.choice((DEMO, LIVE)), r, [r.choice(("", " ", "\x00", "\ud83d", "é" * 9000, "\u202e\ufeff"))]
    ),
    "parameters": lambda r: _text(r, generation_config={"num_beams": 2, "x" * r.choice((5, 70_000)): 1}),
    "nested parameters": lambda r: _text(r, bad_words_ids="[" * r.choice((5000, 60_000))),
    "nested messages": lambda r: _inputs(DEMO, "MESSAGES", "BYTES", [1, 1], ["[" * 60_000]),
    "messages": lambda r: _inputs(
        DEMO, "MESSAGES", "BYTES", [1, 1], [json.dumps([{"role": "user", "content": "a"}] * r.choice((1, 5000)))]
    ),
    "ids": lambda r: _inputs(DEMO, "INPUT_IDS", "INT64", [1, 3], r.choice(([5, 6, -1], [2**62, 0, 1], [5, 6, 1400]))),
    "many ids": lambda r: _inputs(DEMO, "INPUT_IDS", "INT64", [16, 60_000], [5] * 960_000),
    "ids of no row": lambda r: _inputs(DEMO, "INPUT_IDS", "INT64", [0, 3], []),
    "wrong input": lambda r: _inputs(
        r.choice(sorted(SOURCES)), r.choice(("TEXT", "AUDIO", "IMAGE")), "FP32", [1, 2], [1, 2]
    ),
    "broken JSON": lambda r: _raw(
        r.choice(sorted(SOURCES)), r.choice((b"", b"{", b"[]", b"\xff\xfe", b'{"inputs":' + b"[" * 9000))
    ),
    "no such model": lambda r: _raw("nobody", b"{}"),
    "trie": lambda r: _text(r, trie=r.choice(("../../../etc/passwd", "x", "\x00", "a" * 9000))),
    "deadline": lambda r: _text(r, deadline_s=r.choice((0.001, 1e-300, 1e300, math.nan, -1, "x", True))),
    "seed": lambda r: _text(r, do_sample=True, num_beams=1, seed=r.choice((-1, 2**64 - 1, 2**64, 0.5))),
    "rate": lambda r: _speech(r, _wav(ZEROS[:100], r.choice((0, 1, 7, 767_999, 44_101, 2**31 - 1, 2**32 - 1)))),
    "declared length": lambda r: _speech(r, _wav(ZEROS, declared=r.choice((0, 1, 2**31, 2**32 - 1)))),
    "long recording": lambda r: _speech(
        r, _wav(np.tile(ZEROS, r.choice((60, 590, 601)))), return_timestamps=r.random() < 0.5
    ),
    "rows of recordings": lambda r: _speech(r, _recording(5), rows=16),
    "temperatures": lambda r: _speech(
        r,
        _recording(2),
        return_timestamps=True,
        temperature=[0.1 * n for n in range(r.choice((8, 40)))],
        compression_ratio_threshold=-1,
        deadline_s=20,
    ),
    "cut recording": lambda r: _speech(r, _cut(r, _recording(2))),
    "sound of noise": lambda r: _speech(r, b"RIFF" + r.randbytes(3000) if r.random() < 0.5 else _noise(r, 3000)),
    "broken base64": lambda r: _speech(r, "UklGR!!!" * 20),
    "NaN samples": lambda r: _inputs(WHISPER, "AUDIO", "FP32", [1, 3], [0, r.choice((math.nan, 1e39, 1e30)), 0]),
    "huge recording": lambda r: _speech(r, _base64(bytes(12 << 20))),
    "TIFF pages": lambda r: _picture(r, _tiff(r.choice((100, 129, 30_000)))),
    "TIFF rows": lambda r: _picture(r, _tiff(8), rows=16),
    "palette": lambda r: _picture(
        r, _palette(r.choice(("P", "1", "L")), 4000, r.choice((2250, 8000, 9000))), rows=r.choice((1, 4))
    ),
    "narrow image": lambda r: _picture(r, _palette("L", 1, r.choice((1, 65_000)))),
    "cut image": lambda r: _picture(r, _cut(r, _image(3, (200, 300)))),
    "image of noise": lambda r: _picture(
        r,
        r.choice((b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff\xe0", b"II*\0", b"BM", b"RIFF\0\0\0\0WEBP")) + r.randbytes(2000),
    ),
}
"""Hostile requests by name: the ones that a security review found, and kin of them."""
