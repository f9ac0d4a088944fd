"""Every setting of a request meets hostile values as JSON: it runs, or is refused in one line, in little work."""

from __future__ import annotations

import io
import json
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from support.audio import chirp
from support.bundles.cache import BundleCache
from support.refusals import refusal_of
from support.serving.triton_requests import ids_request, text_request
from tightbeam.deploy import Runner
from tightbeam.deploy.errors import InputError
from tightbeam.deploy.generation.fields import FIELDS
from tightbeam.deploy.generation.scoring import MOST_ALTERNATIVES
from tightbeam.deploy.serving.protocol.messages import Request
from tightbeam.deploy.serving.worker.requests import RequestParser

NAMES = sorted({own.name for own in FIELDS} | {"generation_config", "truncate", "deadline_s", "no_such_setting"})
HOSTILE: dict[str, str] = {
    "2**31": str(2**31),
    "2**70": str(2**70),
    "a number of 4,000 digits": "9" * 4000,
    "a number of 9,000 digits": "9" * 9000,
    "-1": "-1",
    "NaN": "NaN",
    "1e999": "1e999",
    "a long text": json.dumps("x" * 60_000),
    "a list of many ids": json.dumps([5] * 20_000),
    "a list of many lists": json.dumps([[5]] * 10_000),
    "a deep list": "[" * 30_000 + "]" * 30_000,
    "a deep object": '{"a":' * 9000 + "1" + "}" * 9000,
    "an object": '{"x": 1}',
}


@pytest.fixture(scope="module")
def inputs(bart: Runner, whisper: Runner, bundles: BundleCache) -> dict[str, tuple[Runner, dict[str, Any]]]:
    """A runner of each kind of model, and a source for it."""
    image = io.BytesIO()
    pytest.importorskip("PIL.Image").fromarray(np.zeros((3, 4, 3), np.uint8)).save(image, "PNG")
    trocr = Runner.load(bundles("dedup", "trocr", tokenizer=True), threads=1)
    return {
        "text": (bart, {"TEXT": np.array([[b"a town"]], np.object_)}),
        "speech": (whisper, {"AUDIO": chirp(0.1)[None]}),
        "image": (trocr, {"IMAGE": np.array([[image.getvalue()]], np.object_)}),
    }


@pytest.mark.parametrize("kind", ["text", "speech", pytest.param("image", marks=pytest.mark.slow)])
def test_hostile_parameters(inputs: dict[str, tuple[Runner, dict[str, Any]]], kind: str) -> None:
    runner, source = inputs[kind]
    parser = RequestParser(runner.model, 40)
    count = 0
    for place, (hostile, value) in enumerate(HOSTILE.items()):
        for name in NAMES[place % 2 :: 2]:  # each name meets half of them, as JSON or as JSON in a text
            parameters = f'{{"{name}": {json.dumps(value) if place % 4 < 2 else value}}}'
            refused = refusal_of(lambda: parser.parse(Request(1, source, parameters)))  # noqa: B023
            if refused is not None:
                count += 1
                refused.check()
                whole = ("the parameters have", "the parameters are not JSON")
                assert name in refused.message or refused.message.startswith(whole), (hostile, refused.message)
    assert count > len(HOSTILE) * len(NAMES) // 4


MANY: dict[str, str] = {
    "lists": "[" + "[]," * 200_000 + "1]",
    "a deep list": "[" * 60_000,
    "objects": "[" + "{}," * 100_000 + "1]",
    "pairs": "{" + ",".join(f'"{number}":1' for number in range(60_000)) + "}",
    "texts": "[" + '"ab",' * 180_000 + "1]",
    "numbers": "[" + "1e9," * 200_000 + "1]",
}


@pytest.mark.parametrize("form", MANY)
def test_messages_of_a_million_bytes_are_refused_in_little_work(bart: Runner, form: str) -> None:
    source = {"MESSAGES": np.array([[MANY[form].encode()]], np.object_)}
    refused = refusal_of(lambda: RequestParser(bart.model, 40).parse(Request(1, source, "")))
    assert refused is not None
    refused.check()


@pytest.mark.parametrize("parameters", ["[]", "1", '"x"', "{", "[" * 30_000, "NaN"])
def test_parameters_that_are_no_object_are_refused(bart: Runner, parameters: str) -> None:
    source = {"TEXT": np.array([[b"a town"]], np.object_)}
    with pytest.raises(InputError, match="the parameters are"):
        RequestParser(bart.model, 40).parse(Request(1, source, parameters))


@pytest.mark.parametrize("request_of", [text_request, ids_request])
def test_rows_of_a_request_are_bounded_by_a_setting_of_the_server(bart: Runner, request_of: Callable[..., Any]) -> None:
    row: Any = "a town" if request_of is text_request else [5, 6]
    parser = RequestParser(bart.model, 40, max_request_rows=3)
    assert len(parser.parse(request_of(1, *[row] * 3)).rows) == 3
    with pytest.raises(InputError, match="has 4 rows, expected 3 at most; send the others in another request"):
        parser.parse(request_of(1, *[row] * 4))


def test_alternatives_of_a_request_are_bounded(bart: Runner) -> None:
    parser = RequestParser(bart.model, 40)
    asked = {"return_alternatives": 90, "num_beams": 8, "max_new_tokens": 40}
    assert len(parser.parse(text_request(1, *["a"] * 145, **asked)).rows) == 145
    many = text_request(1, *["a"] * 146, **asked)
    with pytest.raises(InputError, match="for 146 rows, pages and windows is more than 4,194,304 in all; pass less"):
        parser.parse(many)


def test_attention_of_a_request_is_bounded(bundles: BundleCache) -> None:
    runner = Runner.load(bundles("dedup", "marian"), threads=1)
    parser = RequestParser(runner.model, 40)
    new, source = 40, 60
    most = MOST_ALTERNATIVES // (2 * new * source)
    asked = {"return_attention": True, "num_beams": 2, "num_return_sequences": 2, "max_new_tokens": new}
    assert len(parser.parse(ids_request(1, *[[5] * source] * most, **asked)).rows) == most
    with pytest.raises(InputError, match="x 2 sequences of 40 new and 60 source tokens is more than 4,194,304"):
        parser.parse(ids_request(1, *[[5] * source] * (most + 1), **asked))


def test_a_row_of_millions_of_ids_is_refused_before_they_are_read(bart: Runner) -> None:
    """It would be read between two steps, and take 40 bytes an id."""
    request = Request(1, {"INPUT_IDS": np.full((1, 4_000_000), 1 << 40, np.int64)}, "")
    tracemalloc.start()
    with pytest.raises(InputError, match="4000000 token ids are more than the model's 64 positions; shorten them"):
        RequestParser(bart.model, 40).parse(request)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1 << 20
