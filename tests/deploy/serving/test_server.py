"""A real Triton Inference Server: responses, errors, and their effect on other requests."""

from __future__ import annotations

import asyncio
import base64
import http.client
import io
import json
import os
import random
import shutil
import signal
import socket
import time
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpc_blocking

from support.audio import RATE_HZ, chirp
from support.bundles.cache import BundleCache
from support.checkpoints.families import SENTENCES
from support.checkpoints.image import images
from support.checkpoints.timestamps import written_with_timestamps
from support.inputs import run_windows
from support.serving import served
from support.serving.served import Response, Send, metrics, processes, texts, until
from tightbeam.deploy import Runner
from tightbeam.deploy.serving.server.triton_server import ServerError

LONG = {"num_beams": 4, "max_new_tokens": 1800, "min_new_tokens": 1800}
"""Settings of the model "slow": some seconds of work."""


@pytest.fixture(scope="module")
def world(bundles: BundleCache, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    """The server, its repository, and a runner of each of its models."""
    served.skip_without_server()
    root = tmp_path_factory.mktemp("served")
    repository = root / "models"
    made = {
        "text": bundles("dedup", tokenizer=True),
        "prompt": bundles("dedup", "gpt2", tokenizer=True),
        "ids": bundles("el"),
        "speech": written_with_timestamps(bundles("dedup", "whisper", tokenizer=True), root),
        "image": bundles("dedup", "trocr", tokenizer=True),
        "slow": bundles("dedup", tokenizer=True, max_position_embeddings=2048),
    }
    for name, bundle in made.items():
        served.serve(bundle, repository, name)
    served.serve(made["text"], repository, "live", stream=True)
    served.serve(made["slow"], repository, "slowlive", stream=True)
    served.serve(made["speech"], repository, "listen", stream=True)
    served.serve(made["text"], repository, "narrow", max_queue_size=4, max_batch_size=2)
    killed_under_load: list[int] = []
    runners = {name: Runner.load(bundle, threads=1) for name, bundle in made.items()}
    with served.start(repository, root / "log") as server:
        yield SimpleNamespace(
            server=server,
            repository=repository,
            runners=runners,
            made=made,
            log=root / "log",
            killed_under_load=killed_under_load,
        )
        started = processes(server, "stub") + processes(server, "worker")
        shared = [served.region(stub) for stub in processes(server, "stub")]
        assert len(started) == 20 and all(path.exists() for path in shared)
    # Triton may never finish requests of a model whose stub was killed under load: its exit timeout then ends it.
    assert server.process.returncode in ((0, 1) if killed_under_load else (0,))
    until(lambda: not served.running(*started), 5)
    assert not [path for path in shared if path.exists()]


def alone(world: SimpleNamespace, text: str = SENTENCES[0], **settings: Any) -> list[str]:
    return served.expected(world.runners["text"], text, **settings)[1]


def still_right(world: SimpleNamespace, model: str = "text") -> None:
    """Assert that the model serves and that its response is right."""
    response = served.run(world.server, lambda http, grpc: http(model, {"TEXT": texts(SENTENCES[0])}, max_new_tokens=5))
    assert response.get("error") is None
    assert response.texts == [served.expected(world.runners[model], SENTENCES[0], max_new_tokens=5)[1]]


def test_health_and_metadata(world: SimpleNamespace) -> None:
    for path in ("/v2/health/live", "/v2/health/ready", "/v2/models/text/ready"):
        assert world.server.status(path) == 200
    connection = http.client.HTTPConnection(world.server.http, timeout=10)
    connection.request("GET", "/v2/models/text")
    found = json.loads(connection.getresponse().read())
    connection.close()
    assert [tensor["name"] for tensor in found["inputs"]] == ["TEXT", "MESSAGES", "INPUT_IDS", "LENGTHS"]
    ends = ("FINISH_REASON", "SOURCE_TOKENS", "NEW_TOKENS", "TRUNCATED_TOKENS", "TRUNCATED_SIDE", "REPORTS")
    assert [tensor["name"] for tensor in found["outputs"]] == [*served.OUTPUTS, *ends, *served.OF_TOKENS]
    with grpc_blocking.InferenceServerClient(world.server.grpc) as client:
        assert client.is_model_ready("speech")
        config = client.get_model_config("live").config
    assert metrics(world.server, "narrow")["tightbeam_steps_total"] == 2, "expected it to be warm, by two tokens"
    assert config.model_transaction_policy.decoupled
    assert [output.name for output in config.output][-2:] == ["INDEX", "FINISHED"]


def drawn(rng: random.Random) -> dict[str, Any]:
    beams = rng.choice([1, 1, 2, 3, 4])
    settings: dict[str, Any] = {"num_beams": beams, "max_new_tokens": rng.choice([3, 8, 8, 12])}
    if rng.random() < 0.3:
        settings["no_repeat_ngram_size"] = rng.choice([2, 3])
    if rng.random() < 0.3:
        settings["length_penalty"] = rng.choice([0.5, 2.0])
    if rng.random() < 0.2:
        settings["repetition_penalty"] = 1.3
    if beams > 1 and rng.random() < 0.3:
        settings["num_return_sequences"] = 2
    if rng.random() < 0.2:
        settings["bad_words_ids"] = [[9], [4, 7]]
    if rng.random() < 0.2:
        settings["early_stopping"] = rng.choice([True, "never"])
    return settings


def as_parameters(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings as a client passes them: gRPC has neither lists nor fractions."""
    plain = (str, bool, int)
    return {name: value if isinstance(value, plain) else json.dumps(value) for name, value in settings.items()}


def test_200_mixed_requests_at_once_equal_the_runner(world: SimpleNamespace) -> None:
    rng = random.Random(5)
    work = []
    for _ in range(200):
        model = rng.choice(["text", "text", "prompt"])
        rows = [rng.choice(SENTENCES) for _ in range(rng.choice([1, 1, 1, 2, 3]))]
        work.append((model, rows, drawn(rng), rng.random() < 0.5))

    async def send_all(http: Send, grpc: Send) -> list[Response]:
        sending = [
            (http if over_http else grpc)(model, {"TEXT": texts(*rows)}, **as_parameters(settings))
            for model, rows, settings, over_http in work
        ]
        return list(await asyncio.gather(*sending))

    responses = served.run(world.server, send_all)
    wanted: dict[str, tuple[list[list[int]], list[str]]] = {}
    for (model, rows, settings, _), response in zip(work, responses, strict=True):
        assert response.get("error") is None
        for row, text in enumerate(rows):
            key = json.dumps([model, text, settings])
            if key not in wanted:
                wanted[key] = served.expected(world.runners[model], text, **settings)
            assert (response.ids[row], response.texts[row]) == wanted[key]
        scores = response["SCORES"]
        assert scores is None if settings["num_beams"] == 1 else scores.shape == response["TEXT"].shape
    found = metrics(world.server, "text")
    assert found["tightbeam_sample_steps_total"] > 1.5 * found["tightbeam_steps_total"], "nothing was run together"


def test_token_ids_with_lengths(world: SimpleNamespace) -> None:
    ids = np.array([[5, 6, 7, 8, 2], [9, 10, 2, 1, 1]])
    lengths = np.array([[5], [3]], np.int32)
    arrays = {"INPUT_IDS": ids, "LENGTHS": lengths}
    names = ("SCORES", "OUTPUT_IDS", "OUTPUT_LENGTHS")
    runner = world.runners["ids"]
    settings = {"num_beams": 3, "max_new_tokens": 7, "num_return_sequences": 2}
    wanted = runner.generate(ids, (np.arange(5) < lengths).astype(np.int64), **settings)
    for protocol in (0, 1):
        response = served.run(world.server, lambda *send, at=protocol: send[at]("ids", arrays, names, **settings))
        for row in range(2):
            for place, found in enumerate(response.ids[row]):
                assert found == wanted.sequences[2 * row + place][: len(found)].tolist()
        np.testing.assert_array_equal(response["SCORES"].ravel(), wanted.scores)


def test_token_scores_and_alternatives(world: SimpleNamespace) -> None:
    """Both come where the request asks for them, over both protocols; a response without them is whole."""
    settings = {"num_beams": 3, "max_new_tokens": 7, "num_return_sequences": 2}
    asked = {"return_token_scores": True, "return_alternatives": 2, **settings}
    output = world.runners["text"].generate_outputs([SENTENCES[0]], **asked)[0]
    names = (*served.OUTPUTS, *served.OF_TOKENS)
    arrays = {"TEXT": texts(SENTENCES[0])}
    for protocol in (0, 1):
        plain = served.run(world.server, lambda *send, at=protocol: send[at]("text", arrays, names, **settings))
        assert plain.ids == [output.sequences] and all(plain[name] is None for name in served.OF_TOKENS)
        found = served.run(world.server, lambda *send, at=protocol: send[at]("text", arrays, names, **asked))
        assert found.ids == [output.sequences]
        for place, tokens in enumerate(output.sequences):
            scores = found["TOKEN_SCORES"][0, place]
            np.testing.assert_allclose(scores[1 : len(tokens)], output.token_scores[place][1:], rtol=1e-5, atol=1e-6)
            assert not scores[0] and not scores[len(tokens) :].any()
            for t, pairs in enumerate(output.alternatives[place][1:], 1):
                there = found["ALTERNATIVE_IDS"][0, place, t]
                assert there[there >= 0].tolist() == [token for token, _ in pairs]
        assert found["ALTERNATIVE_SCORES"].shape == found["ALTERNATIVE_IDS"].shape


@pytest.mark.slow
def test_requests_of_each_search_at_once(world: SimpleNamespace) -> None:
    """Over both protocols: groups of beams, words that must occur, sampling with and without beams, beginnings."""
    asked: tuple[dict[str, Any], ...] = (
        {"num_beams": 4, "num_beam_groups": 2, "diversity_penalty": 1.0, "num_return_sequences": 3},
        {"num_beams": 3, "force_words_ids": "[[20, 21], [[30], [31, 32]]]"},
        {"do_sample": True, "seed": 5, "temperature": 1.5, "num_return_sequences": 3, "top_p": 0.9},
        {"do_sample": True, "seed": 6, "num_beams": 3, "num_return_sequences": 2},
        {"decoder_input_ids": "[9, 4]", "num_beams": 2},
        {"num_beams": 4, "num_beam_groups": 3, "diversity_penalty": 1.0},
    )

    async def all_at_once(*send: Send) -> list[Response]:
        arrays = {"TEXT": texts(*SENTENCES[:2])}
        return await asyncio.gather(*(to("text", arrays, **own) for own in asked for to in send))

    found = served.run(world.server, all_at_once)
    for index, settings in enumerate(asked):
        if index == len(asked) - 1:
            assert all("does not divide num_beams=4" in each["error"] for each in found[2 * index :])
            continue
        given = {name: json.loads(value) if isinstance(value, str) else value for name, value in settings.items()}
        outputs = world.runners["text"].generate_outputs(SENTENCES[:2], **given)
        for response in found[2 * index : 2 * index + 2]:
            assert response.ids == [output.sequences for output in outputs]


def test_recordings(world: SimpleNamespace) -> None:
    """Samples and files, over both protocols and as JSON: longer than a window, and a short one; broken ones."""
    soundfile = pytest.importorskip("soundfile")
    runner, names = world.runners["speech"], (*served.OUTPUTS, "SEGMENTS")
    samples = runner.log_mel.samples
    waves = [chirp(2.3), chirp(0.5)]
    lengths = np.array([[len(wave)] for wave in waves], np.int32)
    padded = np.stack([np.pad(wave, (0, 3 * samples - len(wave))) for wave in waves])
    data = io.BytesIO()
    soundfile.write(data, waves[0], RATE_HZ, format="FLAC")
    done = list(run_windows(runner, [*waves, data.getvalue()]))

    async def send_all(http: Send, grpc: Send) -> list[Response]:
        sending = []
        for send in (http, grpc):
            sending.append(send("speech", {"AUDIO": padded, "LENGTHS": lengths}, names))
            sending.append(send("speech", {"AUDIO_FILE": texts(data.getvalue())}, names))
            sending.append(send("speech", {"AUDIO_FILE": texts(bytes(999))}, names))
        return list(await asyncio.gather(*sending))

    for at, response in enumerate(served.run(world.server, send_all)):
        if at % 3 == 2:
            assert "the recording cannot be read as audio (" in response["error"]
            continue
        expected = done[2:] if at % 3 else done[:2]
        assert [row[0] for row in response.ids] == [each.result.sequences[0] for each in expected]
        assert [row[0] for row in response.texts] == [each.result.texts[0] for each in expected]
        segments = [json.loads(value) for value in response["SEGMENTS"].ravel()]
        assert segments == [json.loads(each.result.as_json()).get("segments") for each in expected]
    body = {"AUDIO_FILE": base64.b64encode(data.getvalue()).decode()}
    status, received = world.server.post("/v2/models/speech/generate", body)
    assert status == 200 and json.loads(received)["TEXT"] == done[2].result.texts[0]


def test_images(world: SimpleNamespace) -> None:
    """Files over both protocols and as JSON: several rows, one of them a TIFF of two pages; a broken one."""
    pillow = pytest.importorskip("PIL.Image")
    runner, names = world.runners["image"], (*served.OUTPUTS, "PAGES")
    pages = [pillow.fromarray(page) for page in images(4)]
    png, tiff = io.BytesIO(), io.BytesIO()
    pages[0].save(png, "PNG")
    pages[1].save(tiff, "TIFF", save_all=True, append_images=pages[2:])
    files, own = [png.getvalue(), tiff.getvalue()], {"num_beams": 2, "max_new_tokens": 6}
    expected = runner.read_images(files, **own)

    async def send_all(http: Send, grpc: Send) -> list[Response]:
        asked = [texts(*files), texts(*map(base64.b64encode, files)), texts(files[0][:99])]
        return list(
            await asyncio.gather(*(to("image", {"IMAGE": rows}, names, **own) for to in (http, grpc) for rows in asked))
        )

    for at, response in enumerate(served.run(world.server, send_all)):
        if at % 3 == 2:
            assert "the image cannot be read as an image" in response["error"]
            continue
        assert response.texts == [output.texts for output in expected]
        listed = [json.loads(value) for value in response["PAGES"].ravel()]
        assert listed[0] is None and [page["tokens"] for page in listed[1]] == [
            page.sequences[0] for page in expected[1].pages
        ]
    body = {"IMAGE": base64.b64encode(files[0]).decode(), **own}
    status, received = world.server.post("/v2/models/image/generate", body)
    assert status == 200 and json.loads(received)["TEXT"] == expected[0].texts[0]


ERRORS: dict[str, tuple[dict[str, Any], dict[str, Any], tuple[str, ...]]] = {
    "empty": ({"TEXT": texts("")}, {}, ("empty text", "at least one word")),
    "not UTF-8": ({"TEXT": texts(b"a \xff town")}, {}, ("not UTF-8", "byte 2 is 0xff")),
    "too long": ({"TEXT": texts("a town " * 200)}, {}, ("longer than the model's 64 positions", "truncate")),
    "much too long": ({"TEXT": texts("a" * (2 << 20))}, {}, ("2,097,152 bytes", "65,536 at most")),
    "unknown": ({"TEXT": texts("a town")}, {"num_beems": 4}, ("num_beems", "did you mean num_beams?")),
    "absurd beams": ({"TEXT": texts("a town")}, {"num_beams": 10**9}, ("num_beams=1000000000",)),
    "too many sequences": ({"TEXT": texts("a town")}, {"num_beams": 3, "num_return_sequences": 4}, ("num_beams=3",)),
    "no number": ({"TEXT": texts("a town")}, {"max_new_tokens": "many"}, ("max_new_tokens='many'", "integer")),
    "negative": ({"TEXT": texts("a town")}, {"max_new_tokens": -1}, ("max_new_tokens=-1", "at least 1")),
    "too many tokens": ({"TEXT": texts("a town")}, {"max_new_tokens": 64}, ("64 positions",)),
    "broken list": ({"TEXT": texts("a town")}, {"bad_words_ids": "[[1, 2"}, ("bad_words_ids", "[[17], [4, 8]]")),
    "sampling": ({"TEXT": texts("a town")}, {"do_sample": True, "top_p": 2}, ("top_p=2", "from 0 to 1")),
    "one bad row": ({"TEXT": texts("a town", "", "a river")}, {}, ("row 1: empty text",)),
    "both": ({"TEXT": texts("a town"), "INPUT_IDS": np.array([[5, 2]])}, {}, ("TEXT and INPUT_IDS", "expected")),
    "ids outside": ({"INPUT_IDS": np.array([[5, 101]])}, {}, ("token id 101", "0 to 100")),
    "lengths": (
        {"INPUT_IDS": np.array([[5, 2]]), "LENGTHS": np.array([[3]], np.int32)},
        {},
        ("LENGTHS holds 3", "1 to 2"),
    ),
    "language": ({"TEXT": texts("a town")}, {"language": "de"}, ("language='de'", "for Whisper")),
    "wrong shape": ({"TEXT": np.array([[b"a", b"b"]], np.object_)}, {}, ("shape",)),
    "wrong type": ({"INPUT_IDS": np.array([[5.0, 2.0]], np.float32)}, {}, ("INT64", "INPUT_IDS")),
    "no such input": ({"TEXTS": texts("a town")}, {}, ("TEXTS",)),
    "nothing": ({"LENGTHS": np.array([[3]], np.int32)}, {}, ("no source", "expected TEXT, MESSAGES or INPUT_IDS")),
    "too many rows": ({"TEXT": texts(*["a town"] * 17)}, {}, ("batch-size must be <= 16",)),
}


@pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")  # of the client's library
def test_client_error_fails_only_its_request(world: SimpleNamespace) -> None:
    settings = {"num_beams": 2, "max_new_tokens": 5}

    async def send_all(http: Send, grpc: Send) -> list[Response]:
        sending = []
        for index, (arrays, given, _) in enumerate(ERRORS.values()):
            for send in (http, grpc):
                sending.append(send("text", arrays, **given))
                sending.append(send("text", {"TEXT": texts(SENTENCES[index % len(SENTENCES)])}, **settings))
        return list(await asyncio.gather(*sending))

    before = metrics(world.server, "text").get("tightbeam_refused_total", 0)
    responses = served.run(world.server, send_all)
    # Triton refuses the others, and responses are sent before they are counted.
    until(lambda: metrics(world.server, "text")["tightbeam_refused_total"] - before >= 2 * 14, 5)
    for index, (name, (_, _, words)) in enumerate(ERRORS.items()):
        wanted = alone(world, SENTENCES[index % len(SENTENCES)], **settings)
        for at in (4 * index, 4 * index + 2):
            refused, neighbour = responses[at], responses[at + 1]
            assert "error" in refused, f"{name} was served"
            assert not [word for word in words if word not in refused["error"]], f"{name}: {refused['error']}"
            assert "Traceback" not in refused["error"]
            assert str(refused["status"]) in ("400", "StatusCode.INVALID_ARGUMENT"), name
            assert neighbour.get("error") is None
            assert neighbour.texts == [wanted], f"beside {name}"


NO_INPUT = "[request id: <id_unknown>] "
"""Triton's prefix of the message for a request without an input, which never reaches the model."""
MISSING = (
    NO_INPUT + "expected number of inputs between 1 and 2 but got 0 inputs for model '{0}'. Got input(s) [], but "
    "missing required input(s) ['{1}']. Please provide all required input(s)."
)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("ids", MISSING.format("ids", "INPUT_IDS")),
        ("speech", NO_INPUT + "out of bounds index 0: request has 0 inputs"),
        ("text", NO_INPUT + "out of bounds index 0: request has 0 inputs"),
    ],
)
def test_request_of_another_backend(world: SimpleNamespace, model: str, message: str) -> None:
    """`generate` takes an input of another name for a parameter. Where only one input will do, Triton names it."""
    for body in ({"text_input": "a town"}, {}):
        status, received = world.server.post(f"/v2/models/{model}/generate", body)
        assert (status, json.loads(received)) == (400, {"error": message})
    named = {"name": "text_input", "datatype": "BYTES", "shape": [1, 1], "data": ["a town"]}
    status, received = world.server.post(f"/v2/models/{model}/infer", {"inputs": [named]})
    assert (status, json.loads(received)) == (
        400,
        {"error": f"unexpected inference input 'text_input' for model '{model}'"},
    )


def tensor(shape: str, data: str, name: str = "TEXT", kind: str = "BYTES", parameters: str = "{}") -> str:
    body = f'{{"name": "{name}", "datatype": "{kind}", "shape": {shape}, "data": {data}}}'
    return f'{{"inputs": [{body}], "parameters": {parameters}}}'


@pytest.mark.parametrize(
    "body",
    [
        "",
        "{",
        "[]",
        '{"inputs": 3}',
        tensor("[1, 1]", "[]"),
        tensor("[-1, 1]", '["a"]'),
        tensor("[0, 1]", "[]"),
        tensor("[9999999999, 1]", '["a"]'),
        tensor("[1, 2]", '["a", {}]', "INPUT_IDS", "INT64"),
        tensor("[1, 1]", "[9223372036854775807]", "INPUT_IDS", "INT64"),
        tensor("[1, 0]", "[]", "INPUT_IDS", "INT64"),
        tensor("[1, 1]", '["a"]', parameters='{"num_beams": [4]}'),
        tensor("[1, 1]", '["a"]', parameters='{"length_penalty": 1e999}'),
        tensor("[1, 1]", '["a"]', parameters='{"num_beams": null}'),
    ],
)
def test_broken_requests(world: SimpleNamespace, body: str) -> None:
    """Most are refused by the server, which reports some of them as its own error (500)."""
    connection = http.client.HTTPConnection(world.server.http, timeout=20)
    connection.request("POST", "/v2/models/text/infer", body.encode())
    response = connection.getresponse()
    received = json.loads(response.read())
    connection.close()
    assert response.status in (400, 500) and received["error"]
    still_right(world)


def test_lengths_of_texts_inside_a_tensor_that_are_wrong(world: SimpleNamespace) -> None:
    head = b'{"inputs":[{"name":"TEXT","datatype":"BYTES","shape":[1,1],"parameters":{"binary_data_size":10}}]}'
    for tail in (b"\xff\xff\xff\x7fhello!", b"\x02\0\0\0hello!", b"\x06\0\0\0hello!"):
        connection = http.client.HTTPConnection(world.server.http, timeout=20)
        headers = {"Inference-Header-Content-Length": str(len(head))}
        connection.request("POST", "/v2/models/text/infer", head + tail, headers)
        response = connection.getresponse()
        response.read()
        connection.close()
        assert response.status == (200 if tail.startswith(b"\x06") else 400)
    still_right(world)


def cancel_after(world: SimpleNamespace, model: str, seconds: float, *sentences: str) -> None:
    """Start long work over gRPC, and cancel it."""
    with grpc_blocking.InferenceServerClient(world.server.grpc) as client:
        done: list[Any] = []
        inputs = served.inputs_of(grpc_blocking, {"TEXT": texts(*sentences)})
        call = client.async_infer(model, inputs, lambda result, error: done.append(error), parameters=LONG)
        time.sleep(seconds)
        assert not done
        call.cancel()
        until(lambda: done)
        assert "Locally cancelled" in str(done[0])


def test_cancelled_request_stops_early(world: SimpleNamespace) -> None:
    """The work stops long before its end. (test_running.py tests that a cancelled row is removed at its next step.)"""
    cancel_after(world, "slow", 1.0, *SENTENCES[:8])
    until(lambda: metrics(world.server, "slow").get("tightbeam_cancelled_total") == 1, 5)
    steps = metrics(world.server, "slow")["tightbeam_steps_total"]
    assert 10 < steps < LONG["min_new_tokens"] - 100
    still_right(world, "slow")


def test_cancellation_leaves_the_other_request_of_its_batch(world: SimpleNamespace) -> None:
    settings = {**LONG, "max_new_tokens": 1200, "min_new_tokens": 1200}
    with grpc_blocking.InferenceServerClient(world.server.grpc) as client:
        done: dict[int, tuple[Any, Any]] = {}
        calls = [
            client.async_infer(
                "slow",
                served.inputs_of(grpc_blocking, {"TEXT": texts(text)}),
                lambda result, error, index=index: done.update({index: (result, error)}),
                parameters=settings,
            )
            for index, text in enumerate(SENTENCES[:2])
        ]
        time.sleep(0.3)
        calls[0].cancel()
        until(lambda: len(done) == 2)
    assert done[0][1] is not None
    assert done[1][1] is None
    response = Response.of(done[1][0], served.OUTPUTS)
    assert response.texts == [served.expected(world.runners["slow"], SENTENCES[1], **settings)[1]]


@pytest.mark.parametrize("model", ["slowlive", pytest.param("slow", marks=pytest.mark.slow)])
def test_requests_join_one_that_runs(world: SimpleNamespace, model: str) -> None:
    """Requests of its group and of another, streaming or not, are answered while it goes on."""
    with grpc_blocking.InferenceServerClient(world.server.grpc) as client:
        long_inputs = served.inputs_of(grpc_blocking, {"TEXT": texts(SENTENCES[0])})
        done: list[Any] = []
        if model == "slow":
            client.async_infer(model, long_inputs, lambda result, error: done.append((result, error)), parameters=LONG)
        else:

            def streamed(result: Any, error: Any) -> None:
                if error is not None or result.as_numpy("FINISHED").item():  # tokens come before
                    done.append((result, error))

            client.start_stream(streamed)
            client.async_stream_infer(model, long_inputs, parameters=LONG)
        time.sleep(0.3)
        for beams in (4, 1):
            wanted = served.expected(world.runners["slow"], SENTENCES[1], num_beams=beams, max_new_tokens=5)
            if model == "slow":
                arrays = {"TEXT": texts(SENTENCES[1])}
                send = {"num_beams": beams, "max_new_tokens": 5}
                response = served.run(world.server, lambda http, grpc, s=send, a=arrays: http("slow", a, **s))
            else:
                response = stream(world, model, {"TEXT": texts(SENTENCES[1])}, num_beams=beams, max_new_tokens=5)[-1]
            assert (response.ids[0], response.texts[0]) == wanted
            assert not done, "expected it to be answered before the request that it joined"
        if model == "slow":
            until(lambda: done)
            result, error = done[0]
            assert error is None
            assert Response.of(result, served.OUTPUTS).texts == [
                served.expected(world.runners["slow"], SENTENCES[0], **LONG)[1]
            ]
        else:
            client.stop_stream(cancel_requests=True)
            until(lambda: metrics(world.server, model).get("tightbeam_cancelled_total") == 1, 5)


def stream(world: SimpleNamespace, model: str, arrays: dict[str, Any], **settings: Any) -> list[Response]:
    """All responses to one request of a model that streams."""
    got: list[tuple[Any, Any]] = []
    with grpc_blocking.InferenceServerClient(world.server.grpc) as client:
        client.start_stream(lambda result, error: got.append((result, error)))
        inputs = served.inputs_of(grpc_blocking, arrays)
        client.async_stream_infer(model, inputs, parameters=settings, enable_empty_final_response=True)

        def over() -> bool:
            if not got:
                return False
            result, error = got[-1]
            return error is not None or result.get_response().parameters["triton_final_response"].bool_param

        until(over)
        client.stop_stream()
    return [
        Response(error=error.message())
        if error
        else Response.of(result, (*served.OUTPUTS, "SEGMENTS", "INDEX", "FINISHED"))
        for result, error in got
    ]


def test_greedy_tokens_are_streamed_as_generated(world: SimpleNamespace) -> None:
    parts = stream(world, "live", {"TEXT": texts(*SENTENCES[:3])}, num_beams=1, max_new_tokens=9)
    for row, text in enumerate(SENTENCES[:3]):
        own = [part for part in parts if part["INDEX"].item() == row]
        sequences, wanted = served.expected(world.runners["text"], text, num_beams=1, max_new_tokens=9)
        assert [part["FINISHED"].item() for part in own] == [False] * (len(own) - 1) + [True]
        assert own[-1].texts == [wanted] and own[-1].ids == [sequences]
        assert [part.ids[0][0][0] for part in own[:-1]] == sequences[0][1:]
        assert "".join(part.texts[0][0] for part in own[:-1]) == wanted[0]


def test_each_row_is_streamed_when_finished(world: SimpleNamespace) -> None:
    parts = stream(
        world, "live", {"TEXT": texts(*SENTENCES[:3])}, num_beams=3, num_return_sequences=2, max_new_tokens=9
    )
    assert sorted(part["INDEX"].item() for part in parts) == [0, 1, 2]
    for part in parts:
        wanted = served.expected(
            world.runners["text"],
            SENTENCES[part["INDEX"].item()],
            **{"num_beams": 3, "num_return_sequences": 2, "max_new_tokens": 9},
        )
        assert (part.ids[0], part.texts[0]) == wanted


def test_segments_of_a_recording_are_streamed(world: SimpleNamespace) -> None:
    runner, wave = world.runners["speech"], chirp(2.3)
    *parts, last = stream(world, "listen", {"AUDIO": wave[None]})
    (expected,) = run_windows(runner, [wave])
    assert last.ids[0] == expected.result.sequences and last.texts[0] == expected.result.texts
    segments = json.loads(last["SEGMENTS"].item())
    assert segments == json.loads(expected.result.as_json())["segments"] and len(segments) > 2
    assert [json.loads(part["SEGMENTS"].item()) for part in parts] == [[segment] for segment in segments]
    assert [part.ids[0][0] for part in parts] == [segment["tokens"] for segment in segments]
    body = {"AUDIO": wave.tolist(), "num_beams": 2, "return_timestamps": True}
    status, received = world.server.post("/v2/models/listen/generate_stream", body)
    events = [json.loads(line.removeprefix("data: ")) for line in received.splitlines() if line]
    found = [json.loads(event["SEGMENTS"]) for event in events]
    assert status == 200 and [*chain(*found[:-1])] == found[-1] and len(found) > 2


def test_error_ends_a_stream(world: SimpleNamespace) -> None:
    for arrays, given, words in (ERRORS["empty"], ERRORS["unknown"], ERRORS["one bad row"]):
        parts = stream(world, "live", arrays, **given)
        assert all(word in parts[-1]["error"] for word in words)
    assert stream(world, "live", {"TEXT": texts("a town")}, max_new_tokens=3)[-1].get("error") is None


def test_server_sent_events(world: SimpleNamespace) -> None:
    status, body = world.server.post(
        "/v2/models/live/generate_stream", {"TEXT": SENTENCES[0], "num_beams": 1, "max_new_tokens": 6}
    )
    events = [json.loads(line.removeprefix("data: ")) for line in body.splitlines() if line]
    assert status == 200
    assert [event["FINISHED"] for event in events] == [False] * (len(events) - 1) + [True]
    assert events[-1]["TEXT"] == "".join(event["TEXT"] for event in events[:-1])
    assert [events[-1]["TEXT"]] == alone(world, num_beams=1, max_new_tokens=6)


def test_closed_stream_stops_early(world: SimpleNamespace) -> None:
    found = metrics(world.server, "slowlive")
    before, cancelled = (found.get(f"tightbeam_{name}_total", 0) for name in ("steps", "cancelled"))
    got: list[Any] = []
    with grpc_blocking.InferenceServerClient(world.server.grpc) as client:
        client.start_stream(lambda result, error: got.append(result))
        inputs = served.inputs_of(grpc_blocking, {"TEXT": texts(SENTENCES[0])})
        client.async_stream_infer("slowlive", inputs, parameters={**LONG, "num_beams": 1})
        until(lambda: len(got) > 20)
        client.stop_stream(cancel_requests=True)
    until(lambda: metrics(world.server, "slowlive").get("tightbeam_cancelled_total") == cancelled + 1, 5)
    assert metrics(world.server, "slowlive")["tightbeam_steps_total"] - before < 2000


@pytest.mark.slow
def test_slow_reader_does_not_delay_other_clients(world: SimpleNamespace) -> None:
    body = json.dumps({"TEXT": SENTENCES[0], **LONG, "num_beams": 1}).encode()
    host, _, port = world.server.http.partition(":")
    with socket.create_connection((host, int(port))) as reader:
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        reader.sendall(
            b"POST /v2/models/slowlive/generate_stream HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
            + body
        )
        time.sleep(0.5)
        still_right(world)
        parts = stream(world, "slowlive", {"TEXT": texts(SENTENCES[1])}, num_beams=1, max_new_tokens=4)
        assert parts[-1].get("error") is None
        received = b""
        reader.settimeout(30)
        while b'"FINISHED":true' not in received:
            data = reader.recv(1 << 16)
            assert data, "the server hung up"
            received += data


def test_more_beams_than_rows_that_are_run_together(world: SimpleNamespace) -> None:
    response = served.run(world.server, lambda http, grpc: http("narrow", {"TEXT": texts("a town")}, num_beams=9))
    assert "num_beams=9 is more than the 8 rows" in response["error"]


def test_requests_beyond_max_queue_size_are_refused(world: SimpleNamespace) -> None:
    async def send_all(http: Send, grpc: Send) -> list[Response]:
        sending = (grpc("narrow", {"TEXT": texts(SENTENCES[0])}, max_new_tokens=8) for _ in range(300))
        return list(await asyncio.gather(*sending))

    responses = served.run(world.server, send_all)
    wanted = [alone(world, max_new_tokens=8)]
    refused = [response for response in responses if "error" in response]
    assert 0 < len(refused) < 300
    assert {response["status"] for response in refused} == {"StatusCode.UNAVAILABLE"}
    assert all("maximum queue size" in response["error"] for response in refused)
    assert all(response.texts == wanted for response in responses if "error" not in response)
    still_right(world)


def test_metrics(world: SimpleNamespace) -> None:
    before = metrics(world.server, "text")

    async def four(http: Send, grpc: Send) -> None:
        same = {"num_beams": 1, "max_new_tokens": 6, "min_new_tokens": 6}
        await http("text", {"TEXT": texts(*SENTENCES[:4])}, **same)

    served.run(world.server, four)
    until(lambda: metrics(world.server, "text")["tightbeam_batch_fill"] == 4 / 16, 5)  # the responses are sent first
    after = metrics(world.server, "text")
    made = {name: after[name] - before[name] for name in after if name in before}
    assert made["tightbeam_samples_total"] == 4
    assert made["tightbeam_prefills_total"] == 1
    assert (made["tightbeam_steps_total"], made["tightbeam_sample_steps_total"]) == (6, 4 * 6)
    assert made["tightbeam_tokens_total"] == 4 * 7
    assert made["tightbeam_step_seconds_total"] > 0 and made["tightbeam_prefill_seconds_total"] > 0
    assert after["tightbeam_tokens_per_second"] > 0
    assert made["nv_inference_queue_duration_us"] >= 0


class Load:
    """Clients that send one request after the other until they are stopped."""

    def __init__(self, world: SimpleNamespace, model: str, clients: int, patience_s: float = 120.0) -> None:
        self.world, self.model, self.clients, self.patience_s = world, model, clients, patience_s
        self.responses: list[tuple[float, Response]] = []
        self.over = False

    async def one(self, send: Send) -> None:
        while not self.over:
            sending = send(self.model, {"TEXT": texts(SENTENCES[0])}, max_new_tokens=6)
            try:
                response = await asyncio.wait_for(sending, self.patience_s)
            except TimeoutError:
                response = Response(error=NO_RESPONSE)
            self.responses.append((time.monotonic(), response))
            if "error" in response:
                await asyncio.sleep(0.05)

    def during(self, work: Any) -> list[tuple[float, Response]]:
        """Run blocking ``work`` under load; the responses, by the time when they came."""

        async def both(http: Send, grpc: Send) -> None:
            clients = [asyncio.create_task(self.one(http if index % 2 else grpc)) for index in range(self.clients)]
            await asyncio.to_thread(work)
            self.over = True
            await asyncio.gather(*clients)

        served.run(self.world.server, both)
        return self.responses


def test_new_version_loses_no_request(world: SimpleNamespace) -> None:
    def reload() -> None:
        time.sleep(0.3)
        served.serve(world.made["text"], world.repository, "text", next_version=True)
        assert world.server.post("/v2/repository/models/text/load", {})[0] == 200
        time.sleep(0.3)

    load = Load(world, "text", 8)
    responses = [response for _, response in load.during(reload)]
    assert [response["error"] for response in responses if "error" in response] == []
    wanted = [alone(world, max_new_tokens=6)]
    assert all(response.texts == wanted for response in responses)
    assert world.server.status("/v2/models/text/versions/2/ready") == 200
    until(lambda: world.server.status("/v2/models/text/versions/1/ready") == 400)
    until(lambda: len(processes(world.server, "worker", "text")) == 1)

    shutil.rmtree(world.repository / "text" / "2")  # and back again
    assert world.server.post("/v2/repository/models/text/load", {})[0] == 200
    assert world.server.status("/v2/models/text/versions/1/ready") == 200
    until(lambda: len(processes(world.server, "worker", "text")) == 1)
    still_right(world)


def test_worker_killed_under_load(world: SimpleNamespace) -> None:
    """No request is lost: those that were running run again."""

    def kill() -> None:
        time.sleep(0.5)
        (worker,) = processes(world.server, "worker", "slow/")
        os.kill(worker, signal.SIGKILL)
        until(lambda: processes(world.server, "worker", "slow/") not in ([], [worker]))
        time.sleep(1.5)

    responses = Load(world, "slow", 32).during(kill)
    assert [response["error"] for _, response in responses if "error" in response] == []
    wanted = [served.expected(world.runners["slow"], SENTENCES[0], max_new_tokens=6)[1]]
    right = [when for when, response in responses if "error" not in response and response.texts == wanted]
    assert len(right) == len(responses)
    assert max(right) - min(right) > 1.5
    assert metrics(world.server, "slow")["tightbeam_restarts_total"] == 1


# Under load Triton itself may abort (docs/how-to/serve.md, Limits of Triton), by chance.
@pytest.mark.parametrize("model", ["live", pytest.param("text", marks=pytest.mark.slow)])
def test_killed_stub_is_reloaded(world: SimpleNamespace, model: str) -> None:
    """Triton does not restart it: the worker makes the server reload the model. One of the two models is under load."""
    (stub,) = processes(world.server, "stub", model)
    (worker,) = processes(world.server, "worker", model)
    region = served.region(stub)
    assert region.exists()

    def works() -> bool:
        found = processes(world.server, "worker", model)
        return found != [] and worker not in found and world.server.status(f"/v2/models/{model}/ready") == 200

    def kill() -> None:
        time.sleep(0.3)
        os.kill(stub, signal.SIGKILL)
        until(works, 90)
        time.sleep(0.5)

    if model == "live":
        kill()
        assert stream(world, model, {"TEXT": texts(SENTENCES[0])}, max_new_tokens=5)[-1].get("error") is None
    else:
        world.killed_under_load.append(stub)
        responses = [response for _, response in Load(world, model, 8, patience_s=10.0).during(kill)]
        unanswered = [response for response in responses if response.get("error") == NO_RESPONSE]
        assert len(unanswered) <= 8, "expected no more than what was running"
        responses = [response for response in responses if response.get("error") != NO_RESPONSE]
        wanted = [alone(world, max_new_tokens=6)]
        assert all(response.texts == wanted for response in responses if "error" not in response)
        assert all("error" not in response for response in (responses[0], *responses[-8:]))
        lost = {
            response["error"].partition("]")[2] or response["error"] for response in responses if "error" in response
        }
        assert lost and all(any(word in error for word in DOWN) for error in lost), lost
    until(lambda: not served.running(worker), 5)
    assert not region.exists()
    assert f"the backend of model {model} was killed; loading it again" in world.log.read_text()


NO_RESPONSE = "no response came"
DOWN = ("is not healthy", "is not found", "no available versions", "unknown model", NO_RESPONSE)
"""Triton's errors for a model whose process has ended, or that is being loaded. What that process was running gets no
response."""


def test_killed_server_leaves_no_process_or_memory(world: SimpleNamespace, tmp_path: Path) -> None:
    served.serve(world.made["text"], tmp_path / "models", "text")
    server = served.start(tmp_path / "models", tmp_path / "log")
    (stub,), (worker,) = processes(server, "stub"), processes(server, "worker")
    region = served.region(stub)
    assert region.exists()
    server.process.kill()
    server.process.wait()
    until(lambda: not served.running(stub, worker))
    assert not region.exists()


def test_error_names_a_bundle_that_cannot_be_loaded(world: SimpleNamespace, tmp_path: Path) -> None:
    served.serve(world.made["text"], tmp_path / "models", "text")
    with (tmp_path / "models/text/1/bundle/encoder.onnx").open("ab") as file:
        file.write(b" ")
    with pytest.raises(ServerError, match=r"encoder.onnx has \d+ bytes, expected \d+"):
        served.start(tmp_path / "models", tmp_path / "log")
